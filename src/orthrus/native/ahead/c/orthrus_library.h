/* The functions of one model's library in a table, for code that is written for any model:

       const orthrus_library *library = digits_library();
       orthrus_model *model;
       int status = library->open(NULL, NULL, &model);

   Each is what orthrus.h says of the function of its name; a library has them under its own names besides
   (digits_create). Further ones come behind the last: `size` tells which are there. */
#ifndef ORTHRUS_LIBRARY_H
#define ORTHRUS_LIBRARY_H

#include "orthrus.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct orthrus_library {
    size_t size; /* of this struct, where the library was made */
    const char *name;
    int (*open)(const char *weights, const orthrus_options *options, orthrus_model **model);
    void (*close)(orthrus_model *model);
    size_t (*inputs)(const orthrus_model *model);
    size_t (*outputs)(const orthrus_model *model);
    const orthrus_value *(*input)(const orthrus_model *model, size_t index);
    const orthrus_value *(*output)(const orthrus_model *model, size_t index);
    size_t (*targets)(const orthrus_model *model);
    const char *(*target)(const orthrus_model *model, size_t index);
    size_t (*chosen_target)(const orthrus_model *model);
    const char *(*metadata)(const orthrus_model *model, const char *key);
    int (*create)(orthrus_model *model, const orthrus_options *options, orthrus_context **context);
    void (*destroy)(orthrus_context *context);
    int (*reshape)(orthrus_context *context, const int64_t *const *shapes);
    const int64_t *(*input_shape)(const orthrus_context *context, size_t index);
    const int64_t *(*output_shape)(const orthrus_context *context, size_t index);
    int (*run)(orthrus_context *context, const void *const *inputs, void *const *outputs);
    void (*stop_at)(orthrus_context *context, const int64_t *stop);
    const char *(*status_text)(int status);
    const char *(*last_error)(void);
    size_t (*type_size)(int type);
    const char *(*version)(void);
} orthrus_library;

#ifdef __cplusplus
}
#endif
#endif
