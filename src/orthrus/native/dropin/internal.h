/* The objects behind onnxruntime's opaque handles, and what the files of the library ask of each other.
 *
 * Every function NAME of the table is a C function `api_NAME` with the table's own signature; the generated
 * `table.h` declares them all and `table.c` holds a weak definition of each that answers ORT_NOT_IMPLEMENTED
 * with its name, so a file implements NAME by defining it. What stands in the table calls it where no pointer is
 * null that may not be (functions.api says which may). Nothing but `OrtGetApiBase` and the first API's
 * names is exported. Invariant: every pointer held by an object here is owned by it unless its comment says
 * otherwise. */
#ifndef ORTHRUS_DROPIN_INTERNAL_H
#define ORTHRUS_DROPIN_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "onnxruntime_c_api.h"
#include "table.h"

/* status.c */

OrtStatus *status_new(OrtErrorCode code, const char *format, ...) __attribute__((format(printf, 2, 3)));
OrtStatus *status_out_of_memory(size_t bytes);
OrtStatus *status_not_implemented(const char *name, const char *cure); /* `cure`: "" where there is none */
OrtStatus *status_null(const char *function, const char *argument);

/* Leaves the function with the status of `call` if there is one. */
#define RETURN_IF_FAILED(call)               \
    do {                                     \
        OrtStatus *failed_ = (call);         \
        if (failed_ != NULL) return failed_; \
    } while (0)

/* Leaves with ORT_INVALID_ARGUMENT and a printf-like text unless `holds`. */
#define REQUIRE(holds, ...)                                                 \
    do {                                                                    \
        if (!(holds)) return status_new(ORT_INVALID_ARGUMENT, __VA_ARGS__); \
    } while (0)

/* lock.c */

typedef struct Lock {
    pthread_mutex_t mutex;
    struct Lock *next, **link;
} Lock;

void lock_new(Lock *lock);
void lock_free(Lock *lock);
void lock_take(Lock *lock);
void lock_give(Lock *lock);

/* memory.c */

struct OrtMemoryInfo {
    char *name;
    OrtAllocatorType type;
    OrtMemType mem_type;
    int id;
    OrtMemoryInfoDeviceType device;
    OrtDeviceMemoryType device_memory;
    uint32_t vendor;
    size_t alignment;
};

extern OrtAllocator cpu_allocator; /* the default one; its blocks lie on 64-byte lines */
extern const OrtMemoryInfo cpu_memory;

OrtMemoryInfo *memory_info_copy(const OrtMemoryInfo *from); /* NULL: out of memory */
char *text_copy(const char *text);                          /* malloc'd; NULL of NULL */
OrtStatus *text_to_allocator(OrtAllocator *allocator, const char *text, char **out);
bool array_append(void ***array, size_t *count, void *item); /* false: out of memory */

/* pairs.c: ordered keys and their values */

struct OrtKeyValuePairs {
    char **keys;
    char **values;
    size_t count;
    size_t capacity;
};

/* Replaces an older value; false: out of memory, here and in `pairs_copy`. */
bool pairs_set(OrtKeyValuePairs *pairs, const char *key, const char *value);
const char *pairs_get(const OrtKeyValuePairs *pairs, const char *key); /* NULL: not there */
bool pairs_copy(OrtKeyValuePairs *to, const OrtKeyValuePairs *from);
OrtStatus *pairs_new(const OrtKeyValuePairs *from, OrtKeyValuePairs **out);
/* A config entry: refuses empty keys and too long ones. */
OrtStatus *config_set(OrtKeyValuePairs *config, const char *key, const char *value);
void pairs_clear(OrtKeyValuePairs *pairs);

/* types.c */

struct OrtTensorTypeAndShapeInfo {
    ONNXTensorElementDataType type;
    bool has_shape;
    size_t rank;
    int64_t *dims;  /* -1: open */
    char **symbols; /* the name of an open dimension, else ""; never NULL, nor is one of them */
};

struct OrtTypeInfo { /* OrtMapTypeInfo, OrtSequenceTypeInfo and OrtOptionalTypeInfo are this struct too */
    ONNXType kind;
    char *denotation;                  /* "" */
    OrtTensorTypeAndShapeInfo *tensor; /* of tensors and sparse tensors */
    ONNXTensorElementDataType key;     /* of maps */
    OrtTypeInfo *element;              /* of a sequence or optional; the values of a map */
};

/* `dims` may be NULL with rank 0; `symbols` may be NULL, or hold NULLs. All return NULL where memory is out.
 */
OrtTensorTypeAndShapeInfo *shape_info_new(ONNXTensorElementDataType type, const int64_t *dims,
                                          const char *const *symbols, size_t rank);
OrtTensorTypeAndShapeInfo *shape_info_copy(const OrtTensorTypeAndShapeInfo *from);
OrtTypeInfo *type_info_tensor(OrtTensorTypeAndShapeInfo *taken);
OrtTypeInfo *type_info_sequence(OrtTypeInfo *taken);
OrtTypeInfo *type_info_optional(OrtTypeInfo *taken);
OrtTypeInfo *type_info_map(ONNXTensorElementDataType key, OrtTypeInfo *taken);
OrtTypeInfo *type_info_copy(const OrtTypeInfo *from);

size_t element_size(ONNXTensorElementDataType type); /* bytes; 0: strings and types without memory */
/* Bytes of `count` elements, half bytes and quarters packed; false: too many for memory. */
bool elements_size(ONNXTensorElementDataType type, size_t count, size_t *bytes);
bool shape_count(const int64_t *dims, size_t rank, size_t *count); /* false: a negative size, or too many */
const char *element_name(ONNXTensorElementDataType type);          /* "float", "int64", "string" … */

/* value.c */

typedef struct Text { /* one element of a tensor of strings: bytes, and a 0 after them */
    char *bytes;      /* NULL: empty */
    size_t length;
} Text;

enum { INLINE_RANK = 6 };

struct Sparse;

struct OrtValue {
    atomic_int holders; /* sequences, bindings and options share values */
    ONNXType kind;
    ONNXTensorElementDataType type; /* of tensors */
    size_t rank;
    int64_t *dims; /* `inline_dims` or malloc'd */
    int64_t inline_dims[INLINE_RANK];
    size_t count;                /* elements */
    size_t bytes;                /* of `data` */
    void *data;                  /* `Text *` for strings */
    bool inside;                 /* `data` lies in the block of the value */
    OrtAllocator *allocator;     /* frees `data`; NULL: the caller's memory */
    const OrtMemoryInfo *memory; /* never NULL for tensors */
    OrtMemoryInfo *own_memory;   /* what `memory` points to, if it is this value's own */
    struct OrtValue **elements;  /* of a sequence; a map has two: keys and values; an optional none or one */
    size_t element_count;
    struct Sparse *sparse;
    OrtTypeInfo *declared; /* of a sequence without elements that a run made: its type. Or null */
};

/* A tensor whose memory comes from `allocator` (strings: all empty). */
OrtStatus *tensor_new(OrtAllocator *allocator, ONNXTensorElementDataType type, const int64_t *dims,
                      size_t rank, OrtValue **out);
/* A tensor over memory that stays the caller's. */
OrtStatus *tensor_over(const OrtMemoryInfo *memory, void *data, size_t bytes, ONNXTensorElementDataType type,
                       const int64_t *dims, size_t rank, OrtValue **out);
/* `bytes` NULL: zeros. */
OrtStatus *text_set(Text *text, const char *bytes, size_t length);
/* A map whose keys are those of a tensor, sorted, each once; both tensors are copied. */
OrtStatus *map_new(const OrtValue *keys, const OrtValue *values, OrtValue **out);
/* A sparse tensor in coordinates, for the service: its values and an index for each axis of each, a new tensor. */
OrtStatus *sparse_coordinates(const OrtValue *value, const OrtValue **values, OrtValue **indices);
OrtStatus *sparse_new(const int64_t *dims, size_t rank, const OrtValue *values, const OrtValue *indices,
                      OrtValue **out);
void sparse_free(struct Sparse *sparse);
/* A sequence or map that shares the values given (holds each once more). */
OrtStatus *container_new(ONNXType kind, OrtValue *const *elements, size_t count, OrtValue **out);
OrtStatus *value_empty(OrtValue **out); /* what has no value yet */
/* Lets a result, or null, know the type it was declared with, where it cannot tell by itself. */
OrtStatus *value_declare(OrtValue *value, const OrtTypeInfo *type);
OrtStatus *tensor_copy(OrtValue *to, const OrtValue *from); /* the elements; refuses another type or size */
OrtStatus *check_on_host(const OrtValue *value); /* whether its memory can be read here */
OrtValue *value_hold(const OrtValue *value); /* one holder more; ReleaseValue takes one away */
bool value_same_type(const OrtValue *a, const OrtValue *b);

/* env.c: one environment per process, as in onnxruntime */

typedef struct Logger {
    OrtLoggingFunction function; /* NULL: standard error */
    void *param;
    OrtLoggingLevel severity;
    const char *id; /* never NULL */
} Logger;

struct OrtThreadingOptions {
    int intra, inter;
    int spin;
    bool denormal_as_zero;
    char *affinity;
    OrtCustomCreateThreadFn create_thread;
    OrtCustomJoinThreadFn join_thread;
    void *creation_options;
};

struct OrtEnv {
    int holders;
    char *id;
    struct Logger logger; /* its id is `id` */
    bool global_threads;
    OrtThreadingOptions threading; /* of CreateEnvWithGlobalThreadPools */
    OrtKeyValuePairs config;
    OrtAllocator **allocators; /* registered ones, not owned */
    size_t allocator_count;
};

/* The environment that exists now, or NULL. */
OrtEnv *env_current(void);
/* Its logger, or where there is none what warns on standard error. */
Logger env_logger(void);

/* logging.c */

/* A line as onnxruntime writes it, or a call of the logger's function; below the logger's severity nothing.
 */
void log_message(const Logger *logger, OrtLoggingLevel severity, const char *place, const char *message);
void log_write(const Logger *logger, OrtLoggingLevel severity, const char *file, int line, const char *function,
               const char *format, ...) __attribute__((format(printf, 6, 7)));
#define LOG(logger, severity, ...) \
    log_write(logger, ORT_LOGGING_LEVEL_##severity, __FILE__, __LINE__, __func__, __VA_ARGS__)

/* options.c */

typedef struct Provider {
    char *name; /* "CPUExecutionProvider" */
    OrtKeyValuePairs options;
} Provider;

typedef struct NamedValue {
    char *name;
    OrtValue *value;
} NamedValue;

typedef struct FileInMemory { /* external data given as memory; the bytes are the caller's */
    char *name;
    const char *bytes;
    size_t length;
} FileInMemory;

typedef struct DimOverride {
    char *name;
    int64_t size;
    bool by_name; /* else by denotation */
} DimOverride;

struct OrtSessionOptions {
    int intra, inter; /* 0: the default */
    bool per_session_threads;
    ExecutionMode execution_mode;
    GraphOptimizationLevel level;
    bool mem_pattern, cpu_arena, deterministic, cancelled;
    char *optimized_path; /* NULL: none */
    bool profiling;
    char *profile_prefix;
    char *log_id; /* "" */
    int severity; /* -1: the environment's */
    int verbosity;
    OrtLoggingFunction log_function; /* NULL: the environment's */
    void *log_param;
    OrtKeyValuePairs config;
    Provider *providers;
    size_t provider_count;
    NamedValue *initializers; /* AddInitializer and AddExternalInitializers */
    size_t initializer_count;
    size_t external_count; /* of them: the last ones, of AddExternalInitializers */
    FileInMemory *files;
    size_t file_count;
    DimOverride *dims;
    size_t dim_count;
    OrtCustomCreateThreadFn create_thread;
    OrtCustomJoinThreadFn join_thread;
    void *creation_options;
};

typedef _Atomic int64_t Stop; /* not 0: a run that looks at it ends */

struct OrtLoraAdapter { /* tensors that are fed beside a run's own */
    atomic_int holders;
    char **names;
    OrtValue **values;
    size_t count;
};

struct OrtRunOptions {
    int severity; /* -1: the session's */
    int verbosity;
    char *tag; /* "" */
    Stop terminate;
    OrtKeyValuePairs config;
    bool profiling;
    char *profile_prefix;
    OrtLoraAdapter **adapters;
    size_t adapter_count;
};

/* A deep copy; NULL where memory is out. CreateSession keeps one of these. */
OrtSessionOptions *session_options_copy(const OrtSessionOptions *from);

/* Adds a provider by its whole name, unchecked. */
OrtStatus *provider_add(OrtSessionOptions *options, const char *name, const OrtKeyValuePairs *settings);

/* binding.c */

typedef struct Binding {
    char *name;
    OrtValue *value;       /* NULL: an output whose memory the run allocates */
    OrtMemoryInfo *memory; /* of such an output */
} Binding;

struct OrtIoBinding {
    OrtSession *session; /* not owned */
    Binding *inputs;
    size_t input_count;
    Binding *outputs; /* where `memory` is, `value` holds the last run's result */
    size_t output_count;
};

/* metadata.c */

struct OrtModelMetadata {
    char *producer, *graph_name, *domain, *description, *graph_description;
    int64_t version;
    OrtKeyValuePairs custom;
};

#endif
