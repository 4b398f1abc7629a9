/* Models compiled by Orthrus, run without Python.

   A model is opened from a package (package.h), or comes in a library that was compiled ahead of time, whose
   own header wraps these functions. What runs it is a context: its memory is all taken when it is made, so
   that runs take none.

       orthrus_options options = ORTHRUS_OPTIONS;
       orthrus_context *context;
       int status = orthrus_create(model, &options, &context);
       if (status) puts(orthrus_last_error());
       const void *inputs[] = {image};
       void *outputs[] = {scores};
       status = orthrus_run(context, inputs, outputs);
       orthrus_destroy(context);

   Where inputs may have several shapes, orthrus_reshape() says which come next, and orthrus_output_shape()
   what the outputs' shapes then are.

   A context serves one run at a time; any number of contexts of a model may run at the same time, on any
   threads. Threads that help belong to the process, one pool for all models in it. A forked child may go on
   with its copy of a context that was not running. Functions answer 0 (ORTHRUS_OK) or a status; none ends the
   process. */
#ifndef ORTHRUS_H
#define ORTHRUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef ORTHRUS_PREFIX /* other names, for two runtimes in one program */
#define ORTHRUS_JOIN_(a, b) a##b
#define ORTHRUS_JOIN(a, b) ORTHRUS_JOIN_(a, b)
#define orthrus_model_open ORTHRUS_JOIN(ORTHRUS_PREFIX, model_open)
#define orthrus_model_close ORTHRUS_JOIN(ORTHRUS_PREFIX, model_close)
#define orthrus_model_about ORTHRUS_JOIN(ORTHRUS_PREFIX, model_about)
#define orthrus_inputs ORTHRUS_JOIN(ORTHRUS_PREFIX, inputs)
#define orthrus_outputs ORTHRUS_JOIN(ORTHRUS_PREFIX, outputs)
#define orthrus_input ORTHRUS_JOIN(ORTHRUS_PREFIX, input)
#define orthrus_output ORTHRUS_JOIN(ORTHRUS_PREFIX, output)
#define orthrus_targets ORTHRUS_JOIN(ORTHRUS_PREFIX, targets)
#define orthrus_target ORTHRUS_JOIN(ORTHRUS_PREFIX, target)
#define orthrus_chosen_target ORTHRUS_JOIN(ORTHRUS_PREFIX, chosen_target)
#define orthrus_metadata ORTHRUS_JOIN(ORTHRUS_PREFIX, metadata)
#define orthrus_create ORTHRUS_JOIN(ORTHRUS_PREFIX, create)
#define orthrus_destroy ORTHRUS_JOIN(ORTHRUS_PREFIX, destroy)
#define orthrus_reshape ORTHRUS_JOIN(ORTHRUS_PREFIX, reshape)
#define orthrus_input_shape ORTHRUS_JOIN(ORTHRUS_PREFIX, input_shape)
#define orthrus_output_shape ORTHRUS_JOIN(ORTHRUS_PREFIX, output_shape)
#define orthrus_run ORTHRUS_JOIN(ORTHRUS_PREFIX, run)
#define orthrus_stop_at ORTHRUS_JOIN(ORTHRUS_PREFIX, stop_at)
#define orthrus_status_text ORTHRUS_JOIN(ORTHRUS_PREFIX, status_text)
#define orthrus_last_error ORTHRUS_JOIN(ORTHRUS_PREFIX, last_error)
#define orthrus_type_size ORTHRUS_JOIN(ORTHRUS_PREFIX, type_size)
#define orthrus_version ORTHRUS_JOIN(ORTHRUS_PREFIX, version)
#endif

#ifndef ORTHRUS_API /* e.g. static inline, where all of the runtime is in one file */
#define ORTHRUS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct orthrus_model orthrus_model;
typedef struct orthrus_context orthrus_context;

enum {
    ORTHRUS_OK = 0,
    ORTHRUS_INVALID_ARGUMENT = 1, /* a null pointer, an index beyond the end */
    ORTHRUS_NO_MEMORY = 2,
    ORTHRUS_DAMAGED = 3,         /* no package, or not all of one */
    ORTHRUS_UNSUPPORTED_CPU = 4, /* none of the targets is for this processor */
    ORTHRUS_SHAPE = 5,           /* inputs of shapes that the model was not compiled for */
    ORTHRUS_BAD_INDEX = 6, /* an index in the data lies outside of what it is for; outputs are undefined */
    ORTHRUS_OUTSIDE = 7,   /* numbers not finite, or beyond 2**40, met a transformed convolution, or one of
                              groups: outputs are there, and NaN or inexact near those or in other groups */
    ORTHRUS_STOPPED = 8,   /* the cell of orthrus_stop_at() was set; outputs are undefined */
    ORTHRUS_BUSY = 9       /* the context is running */
};

/* Element types: ONNX's numbers. */
enum {
    ORTHRUS_FLOAT = 1,
    ORTHRUS_UINT8 = 2,
    ORTHRUS_INT8 = 3,
    ORTHRUS_UINT16 = 4,
    ORTHRUS_INT16 = 5,
    ORTHRUS_INT32 = 6,
    ORTHRUS_INT64 = 7,
    ORTHRUS_BOOL = 9,
    ORTHRUS_FLOAT16 = 10,
    ORTHRUS_DOUBLE = 11,
    ORTHRUS_UINT32 = 12,
    ORTHRUS_UINT64 = 13,
    ORTHRUS_BFLOAT16 = 16
};

/* size: sizeof(orthrus_options), told by ORTHRUS_OPTIONS. threads: those of a run at most, its own included,
   0 for as many as the process has cores. huge_pages: whether constants and memory of runs are put into pages
   of 2 MB, where the system has such. allocate, release: who gives memory, the C library where null;
   alignment is a power of two; allocate answers null where there is none, and what it gives on another
   boundary is given back and counts as none. user: what they are given. */
typedef struct orthrus_options {
    size_t size;
    int threads;
    int huge_pages;
    void *(*allocate)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory, size_t size);
    void *user;
} orthrus_options;
#define ORTHRUS_OPTIONS {sizeof(orthrus_options), 0, 0, NULL, NULL, NULL}

/* An input or output. shape: `rank` sizes, -1 for one that is known only when it is run; names: of the sizes
   that the model gives a name, else null. All of it lives as long as the model. */
typedef struct orthrus_value {
    const char *name;
    int type;
    size_t rank;
    const int64_t *shape;
    const char *const *names;
} orthrus_value;

ORTHRUS_API const char *orthrus_version(void);
ORTHRUS_API const char *orthrus_status_text(int status);
/* What was wrong last in this thread, with the cure where there is one. */
ORTHRUS_API const char *orthrus_last_error(void);
/* Bytes of an element, 0 for a type that no package has. */
ORTHRUS_API size_t orthrus_type_size(int type);

ORTHRUS_API size_t orthrus_inputs(const orthrus_model *model);
ORTHRUS_API size_t orthrus_outputs(const orthrus_model *model);
/* The input or output at `index`, null beyond the last. */
ORTHRUS_API const orthrus_value *orthrus_input(const orthrus_model *model, size_t index);
ORTHRUS_API const orthrus_value *orthrus_output(const orthrus_model *model, size_t index);
/* The processors that it is compiled for, and which of them was chosen; null beyond the last. */
ORTHRUS_API size_t orthrus_targets(const orthrus_model *model);
ORTHRUS_API const char *orthrus_target(const orthrus_model *model, size_t index);
ORTHRUS_API size_t orthrus_chosen_target(const orthrus_model *model);
/* What is known of the model by a key such as "producer", null where nothing is. */
ORTHRUS_API const char *orthrus_metadata(const orthrus_model *model, const char *key);

/* A context, for the first shapes that the model was compiled for. `options` may be null. */
ORTHRUS_API int orthrus_create(orthrus_model *model, const orthrus_options *options,
                               orthrus_context **context);
ORTHRUS_API void orthrus_destroy(orthrus_context *context);
/* From now on inputs have these shapes, `shapes[i]` the sizes of input i. After ORTHRUS_SHAPE nothing has
 * changed. */
ORTHRUS_API int orthrus_reshape(orthrus_context *context, const int64_t *const *shapes);
/* The sizes of an input or output of the next run; null beyond the last. */
ORTHRUS_API const int64_t *orthrus_input_shape(const orthrus_context *context, size_t index);
ORTHRUS_API const int64_t *orthrus_output_shape(const orthrus_context *context, size_t index);
/* Compute outputs, each `outputs[i]` memory of its own with room for its shape, in C order, aligned as
   elements are. Null is for what has no elements, or is not read. */
ORTHRUS_API int orthrus_run(orthrus_context *context, const void *const *inputs, void *const *outputs);
/* From now on runs end before their next step once `*stop` is not 0; null for never. */
ORTHRUS_API void orthrus_stop_at(orthrus_context *context, const int64_t *stop);

#ifdef __cplusplus
}
#endif
#endif
