/* An execution provider as a shared library, in C or in whatever can make one.
 *
 * The library exports `orthrus_provider_library`, which gives its providers. A program loads it with
 * orthrus.register_execution_provider_library(name, path). For each session a provider is created, asked
 * which nodes of the graph it takes, and given these, part by part, to compile; `run` then computes a part.
 *
 * Every function answers ORTHRUS_OK or another code, with a text in `error`. What it is given is there until
 * it returns, and no longer where nothing else is said. Texts are UTF-8 and end in a zero.
 *
 * Threads: `run` is called on many threads at once, also for one kernel; everything else on any thread, one
 * call at a time for each provider created. A forked process has the library as it was, without its threads.
 *
 * Only what is declared here crosses the border: tensors lie in the host's memory, in C order.
 */
#ifndef ORTHRUS_PROVIDER_H
#define ORTHRUS_PROVIDER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORTHRUS_PROVIDER_ABI 1

/* DLPack's tensors. A source that needs more of DLPack includes its own header before this one. */
#ifndef DLPACK_DLPACK_H_
typedef struct {
  int32_t device_type; /* 1: the host's memory */
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code; /* 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool, from 10 on: floats of 8 bits */
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL: C order */
  uint64_t byte_offset;
} DLTensor;

typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version; /* {1, 0} or later */
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif

/* Answers. Those but ORTHRUS_OK are errors of these classes in orthrus. */
enum {
  ORTHRUS_OK = 0,
  ORTHRUS_FAIL = 1,
  ORTHRUS_INVALID_ARGUMENT = 2,  /* an option, or a tensor that does not fit */
  ORTHRUS_ENGINE_ERROR = 5,      /* the library that this one stands on failed */
  ORTHRUS_RUNTIME_EXCEPTION = 6, /* something failed while running */
  ORTHRUS_NOT_IMPLEMENTED = 9,   /* of `compile`: the nodes go to the providers behind this one */
  ORTHRUS_EP_FAIL = 11,          /* the provider failed; a session may fall back to others */
  ORTHRUS_DEVICE_RESET = 15      /* the device was lost */
};

typedef struct {
  size_t size;     /* of this struct */
  int32_t node;    /* to set: the number of the node that is to blame, -1 for none */
  char text[1012]; /* to set: what was found, what was expected, what to do */
} orthrus_error;

/* A value of a graph: a tensor where element_type is not 0. */
typedef struct {
  const char *name;
  int32_t element_type;         /* as in ONNX's TensorProto.DataType; 0: no tensor, or not known */
  int32_t rank;                 /* -1: not known */
  const int64_t *dims;          /* -1: not known before a run */
  const char *const *dim_names; /* of those; two with one name are equal; NULL for one without a name */
  int32_t constant;             /* 1: a constant */
  size_t bytes;                 /* its elements in C order, one a byte of types below 8 bits; 0 for texts */
  const void *data;             /* these; in `claim` NULL where they are more than ORTHRUS_CLAIM_BYTES */
} orthrus_value;

#define ORTHRUS_CLAIM_BYTES 65536

/* An attribute, with the operator's defaults. `type` as in ONNX's AttributeProto.AttributeType. */
typedef struct {
  const char *name;
  int32_t type;                /* 1 float, 2 int, 3 string, 4 tensor, 6 floats, 7 ints, 8 strings; 0: else */
  size_t count;                /* of elements; an empty list has type 7 */
  const float *floats;         /* of 1 and 6 */
  const int64_t *ints;         /* of 2 and 7 */
  const char *const *strings;  /* of 3 and 8 */
  const size_t *string_bytes;  /* their lengths, as they may hold zeros */
  const orthrus_value *tensor; /* of 4: a constant */
} orthrus_attribute;

typedef struct {
  const char *op_type;
  const char *domain; /* "" for ONNX's own operators */
  const char *name;   /* may be "" */
  const char *label;  /* what errors and explanations call it; never "" */
  int32_t version;    /* of the operator's schema */
  int32_t free;       /* 1: may be taken; 0: another provider's, or of a kind that no library can take */
  const int32_t *inputs; /* numbers of values; -1: left out */
  size_t input_count;
  const int32_t *outputs;
  size_t output_count;
  const orthrus_attribute *attributes;
  size_t attribute_count;
} orthrus_node;

/* Nodes in an order in which they can run. `inputs` holds no constants. */
typedef struct {
  size_t size; /* of this struct */
  const orthrus_node *nodes;
  size_t node_count;
  const orthrus_value *values;
  size_t value_count;
  const int32_t *inputs; /* numbers of values: what comes from outside */
  size_t input_count;
  const int32_t *outputs; /* what is read outside */
  size_t output_count;
} orthrus_graph;

/* What `claim` says about nodes, by their numbers. A node that it says nothing about is refused. */
typedef struct orthrus_claims {
  size_t size; /* of this struct */
  /* This node is taken. Nodes taken with the same `group`, 0 or more, are one part; no node that is not in it
   * may stand between two of them. ORTHRUS_JOIN: connected ones are joined to such parts. */
  void (*take)(const struct orthrus_claims *self, size_t node, int32_t group);
  /* This node is left alone; `reason` appears in session.explain(). */
  void (*refuse)(const struct orthrus_claims *self, size_t node, const char *reason);
} orthrus_claims;

#define ORTHRUS_JOIN (-1)

typedef struct {
  size_t size;    /* of this struct */
  int32_t threads; /* a run may use; 0: as many as there are cores */
} orthrus_session;

/* A compiled part. */
typedef struct {
  size_t size;    /* of this struct */
  void *handle;   /* to set: what `run` and `release` are given */
  char name[248]; /* may be set: what explanations and profiles call it */
} orthrus_kernel;

/* A result of a run. Where its shape is known before the run, `tensor` has room for it: write there. Where it
 * is not, `tensor.data` and `tensor.shape` are NULL, and `made` is to be set to a tensor of the library's,
 * which may be done as well where the shape is not `tensor.shape`. The tensor made is read until its deleter
 * is called, on any thread, before the kernel's `release`; without a deleter it is copied at once. Where `run`
 * fails, what it made is given back as well. */
typedef struct {
  DLTensor tensor;
  DLManagedTensorVersioned *made;
} orthrus_output;

typedef struct {
  const char *name;
  const char *value;
} orthrus_setting;

typedef struct {
  const char *name;
  const char *default_value; /* may be NULL */
  const char *meaning;
} orthrus_option;

typedef struct {
  int32_t kind; /* 0 CPU, 1 GPU, 2 NPU */
  uint32_t vendor_id;
  uint32_t device_id;
  const char *vendor;
} orthrus_device;

typedef struct {
  size_t size;      /* of this struct, as the library was compiled */
  const char *name; /* how sessions ask for it: a word that ends in ExecutionProvider */
  const char *vendor;
  const char *version;
  const orthrus_device *devices; /* what it computes on; none: the processor */
  size_t device_count;
  const orthrus_option *options;
  size_t option_count;

  /* Whether it can work on this machine; may be NULL. */
  int32_t (*probe)(orthrus_error *error);
  /* A provider for one session, with every option. NULL, as `destroy`: it keeps nothing, `self` is NULL. */
  int32_t (*create)(const orthrus_setting *settings, size_t count, void **self, orthrus_error *error);
  void (*destroy)(void *self);
  /* Says which nodes of a graph it takes. The same nodes get the same answers, however often it is asked. */
  int32_t (*claim)(void *self, const orthrus_graph *graph, const orthrus_claims *claims,
                   orthrus_error *error);
  /* Makes a kernel of a part, which has an output at least. The data of constants, and nothing else of
   * `part`, stays until `release`. */
  int32_t (*compile)(void *self, const orthrus_graph *part, const orthrus_session *session,
                     orthrus_kernel *kernel, orthrus_error *error);
  /* Computes a part. Tensors come in the order of the part's inputs and outputs; inputs are not written. */
  int32_t (*run)(void *kernel, const DLTensor *inputs, size_t input_count, orthrus_output *outputs,
                 size_t output_count, orthrus_error *error);
  void (*release)(void *kernel);
} orthrus_provider;

typedef struct {
  uint32_t abi; /* ORTHRUS_PROVIDER_ABI, as the library was compiled */
  const orthrus_provider *const *providers;
  size_t provider_count;
} orthrus_library;

/* What a library exports: its providers, for as long as it is loaded. `abi`: of the orthrus that asks. NULL:
 * it has nothing for that one. */
#if defined(_WIN32)
__declspec(dllexport)
#elif defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const orthrus_library *orthrus_provider_library(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
