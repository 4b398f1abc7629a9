/* IO bindings: names with values, for inputs and outputs. RunWithBinding reads and fills them. */
#include "session.h"

#include <stdlib.h>
#include <string.h>

OrtStatus *api_CreateIoBinding(OrtSession *session, OrtIoBinding **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return status_out_of_memory(sizeof **out);
    (*out)->session = session;
    return NULL;
}

static void bound_clear(Binding *bound) {
    api_ReleaseValue(bound->value);
    api_ReleaseMemoryInfo(bound->memory);
    bound->value = NULL;
    bound->memory = NULL;
}

static void all_clear(Binding **bound, size_t *count) {
    for (size_t i = 0; i < *count; i++) {
        bound_clear(&(*bound)[i]);
        free((*bound)[i].name);
    }
    free(*bound);
    *bound = NULL;
    *count = 0;
}

/* What is bound to a name: anew, or in the place of what was. */
static OrtStatus *bind(Binding **bound, size_t *count, const char *name, const OrtValue *value,
                       const OrtMemoryInfo *memory) {
    OrtMemoryInfo *own = memory == NULL ? NULL : memory_info_copy(memory);
    if (memory != NULL && own == NULL) return status_out_of_memory(sizeof *own);
    size_t i = 0;
    while (i < *count && strcmp((*bound)[i].name, name) != 0) i++;
    if (i == *count) {
        Binding *larger = realloc(*bound, (*count + 1) * sizeof *larger);
        if (larger != NULL) *bound = larger;
        char *copy = larger == NULL ? NULL : text_copy(name);
        if (copy == NULL) {
            api_ReleaseMemoryInfo(own);
            return status_out_of_memory(sizeof *larger);
        }
        larger[i] = (Binding){copy, NULL, NULL};
        ++*count;
    }
    OrtValue *held = value_hold(value);
    bound_clear(&(*bound)[i]);
    (*bound)[i].value = held;
    (*bound)[i].memory = own;
    return NULL;
}

static bool known(const OrtSession *session, enum role role, const char *name) {
    for (size_t i = 0; i < session->counts[role]; i++)
        if (strcmp(session->values[role][i].name, name) == 0) return true;
    return false;
}

OrtStatus *api_BindInput(OrtIoBinding *binding, const char *name, const OrtValue *value) {
    if (!known(binding->session, INPUTS, name) && !known(binding->session, OVERRIDABLE, name))
        return status_new(ORT_FAIL, "Failed to find input name in the mapping: %s", name);
    RETURN_IF_FAILED(check_on_host(value));
    return bind(&binding->inputs, &binding->input_count, name, value, NULL);
}

OrtStatus *api_BindOutput(OrtIoBinding *binding, const char *name, const OrtValue *value) {
    return bind(&binding->outputs, &binding->output_count, name, value, NULL);
}

OrtStatus *api_BindOutputToDevice(OrtIoBinding *binding, const char *name, const OrtMemoryInfo *memory) {
    return bind(&binding->outputs, &binding->output_count, name, NULL, memory);
}

OrtStatus *api_GetBoundOutputNames(const OrtIoBinding *binding, OrtAllocator *allocator, char **buffer,
                                   size_t **lengths, size_t *count) {
    *buffer = NULL;
    *lengths = NULL;
    *count = binding->output_count;
    if (*count == 0) return NULL;
    size_t size = 0;
    for (size_t i = 0; i < *count; i++) size += strlen(binding->outputs[i].name);
    *buffer = allocator->Alloc(allocator, size + 1);
    *lengths = allocator->Alloc(allocator, *count * sizeof **lengths);
    if (*buffer == NULL || *lengths == NULL) {
        if (*buffer != NULL) allocator->Free(allocator, *buffer);
        if (*lengths != NULL) allocator->Free(allocator, *lengths);
        return status_out_of_memory(size);
    }
    char *end = *buffer;
    for (size_t i = 0; i < *count; i++) {
        (*lengths)[i] = strlen(binding->outputs[i].name);
        memcpy(end, binding->outputs[i].name, (*lengths)[i]);
        end += (*lengths)[i];
    }
    *end = 0;
    return NULL;
}

OrtStatus *api_GetBoundOutputValues(const OrtIoBinding *binding, OrtAllocator *allocator, OrtValue ***out,
                                    size_t *count) {
    *out = NULL;
    *count = binding->output_count;
    if (*count == 0) return NULL;
    *out = allocator->Alloc(allocator, *count * sizeof **out);
    if (*out == NULL) return status_out_of_memory(*count * sizeof **out);
    OrtStatus *status = NULL;
    for (size_t i = 0; i < *count; i++) {
        const OrtValue *bound = binding->outputs[i].value;
        (*out)[i] = value_hold(bound);
        if (bound == NULL && status == NULL) status = value_empty(&(*out)[i]);
    }
    if (status == NULL) return NULL;
    for (size_t i = 0; i < *count; i++) api_ReleaseValue((*out)[i]);
    allocator->Free(allocator, *out);
    *out = NULL;
    return status;
}

void api_ClearBoundInputs(OrtIoBinding *binding) { all_clear(&binding->inputs, &binding->input_count); }

void api_ClearBoundOutputs(OrtIoBinding *binding) { all_clear(&binding->outputs, &binding->output_count); }

OrtStatus *api_SynchronizeBoundInputs(OrtIoBinding *binding) {
    (void)binding; /* the host's memory is always there */
    return NULL;
}

OrtStatus *api_SynchronizeBoundOutputs(OrtIoBinding *binding) { return api_SynchronizeBoundInputs(binding); }

void api_ReleaseIoBinding(OrtIoBinding *binding) {
    if (binding == NULL) return;
    api_ClearBoundInputs(binding);
    api_ClearBoundOutputs(binding);
    free(binding);
}
