/* Session options: what CreateSession reads, and nothing that acts by itself. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static OrtStatus *text_replace(char **text, const char *with) {
    char *copy = text_copy(with);
    if (copy == NULL) return status_out_of_memory(strlen(with));
    free(*text);
    *text = copy;
    return NULL;
}

OrtStatus *api_CreateSessionOptions(OrtSessionOptions **out) {
    OrtSessionOptions *options = calloc(1, sizeof *options);
    if (options == NULL || (options->log_id = text_copy("")) == NULL) {
        free(options);
        return status_out_of_memory(sizeof *options);
    }
    options->per_session_threads = true;
    options->level = ORT_ENABLE_ALL;
    options->mem_pattern = options->cpu_arena = true;
    options->severity = -1;
    *out = options;
    return NULL;
}

void api_ReleaseSessionOptions(OrtSessionOptions *options) {
    if (options == NULL) return;
    free(options->optimized_path);
    free(options->profile_prefix);
    free(options->log_id);
    pairs_clear(&options->config);
    for (size_t i = 0; i < options->provider_count; i++) {
        free(options->providers[i].name);
        pairs_clear(&options->providers[i].options);
    }
    free(options->providers);
    for (size_t i = 0; i < options->initializer_count; i++) {
        free(options->initializers[i].name);
        api_ReleaseValue(options->initializers[i].value);
    }
    free(options->initializers);
    for (size_t i = 0; i < options->file_count; i++) free(options->files[i].name);
    free(options->files);
    for (size_t i = 0; i < options->dim_count; i++) free(options->dims[i].name);
    free(options->dims);
    free(options);
}

/* Room for one more item at the end of an array, or NULL; the caller fills it and counts it. */
static void *grown(void *array, size_t count, size_t size, void **last) {
    char *larger = realloc(array, (count + 1) * size);
    *last = larger == NULL ? NULL : larger + count * size;
    return larger == NULL ? array : larger;
}

static OrtStatus *add_initializer(OrtSessionOptions *options, const char *name, const OrtValue *value) {
    void *last;
    options->initializers =
        grown(options->initializers, options->initializer_count, sizeof(NamedValue), &last);
    char *copy = last == NULL ? NULL : text_copy(name);
    if (copy == NULL) return status_out_of_memory(sizeof(NamedValue));
    *(NamedValue *)last = (NamedValue){copy, value_hold(value)};
    options->initializer_count++;
    return NULL;
}

static OrtStatus *add_file(OrtSessionOptions *options, const FileInMemory *file) {
    void *last;
    options->files = grown(options->files, options->file_count, sizeof(FileInMemory), &last);
    char *copy = last == NULL ? NULL : text_copy(file->name);
    if (copy == NULL) return status_out_of_memory(sizeof(FileInMemory));
    *(FileInMemory *)last = (FileInMemory){copy, file->bytes, file->length};
    options->file_count++;
    return NULL;
}

static OrtStatus *add_dim(OrtSessionOptions *options, const DimOverride *dim) {
    void *last;
    options->dims = grown(options->dims, options->dim_count, sizeof(DimOverride), &last);
    char *copy = last == NULL ? NULL : text_copy(dim->name);
    if (copy == NULL) return status_out_of_memory(sizeof(DimOverride));
    *(DimOverride *)last = (DimOverride){copy, dim->size, dim->by_name};
    options->dim_count++;
    return NULL;
}

OrtStatus *provider_add(OrtSessionOptions *options, const char *name, const OrtKeyValuePairs *settings) {
    void *last;
    options->providers = grown(options->providers, options->provider_count, sizeof(Provider), &last);
    char *copy = last == NULL ? NULL : text_copy(name);
    if (copy == NULL) return status_out_of_memory(sizeof(Provider));
    Provider *provider = last;
    *provider = (Provider){copy, {0}};
    options->provider_count++;
    return settings == NULL || pairs_copy(&provider->options, settings)
               ? NULL
               : status_out_of_memory(sizeof *provider);
}

static OrtStatus *copy_parts(OrtSessionOptions *to, const OrtSessionOptions *from) {
    RETURN_IF_FAILED(text_replace(&to->log_id, from->log_id));
    if (from->optimized_path != NULL)
        RETURN_IF_FAILED(text_replace(&to->optimized_path, from->optimized_path));
    if (from->profile_prefix != NULL)
        RETURN_IF_FAILED(text_replace(&to->profile_prefix, from->profile_prefix));
    if (!pairs_copy(&to->config, &from->config)) return status_out_of_memory(from->config.count);
    for (size_t i = 0; i < from->provider_count; i++)
        RETURN_IF_FAILED(provider_add(to, from->providers[i].name, &from->providers[i].options));
    for (size_t i = 0; i < from->initializer_count; i++)
        RETURN_IF_FAILED(add_initializer(to, from->initializers[i].name, from->initializers[i].value));
    for (size_t i = 0; i < from->file_count; i++) RETURN_IF_FAILED(add_file(to, &from->files[i]));
    for (size_t i = 0; i < from->dim_count; i++) RETURN_IF_FAILED(add_dim(to, &from->dims[i]));
    return NULL;
}

OrtStatus *api_CloneSessionOptions(const OrtSessionOptions *options, OrtSessionOptions **out) {
    OrtSessionOptions *copy = malloc(sizeof *copy);
    if (copy == NULL) return status_out_of_memory(sizeof *copy);
    *copy = *options;
    copy->optimized_path = copy->profile_prefix = copy->log_id = NULL;
    copy->config = (OrtKeyValuePairs){0};
    copy->providers = NULL;
    copy->initializers = NULL;
    copy->files = NULL;
    copy->dims = NULL;
    copy->provider_count = copy->initializer_count = copy->file_count = copy->dim_count = 0;
    OrtStatus *status = copy_parts(copy, options);
    if (status != NULL) {
        api_ReleaseSessionOptions(copy);
        return status;
    }
    *out = copy;
    return NULL;
}

OrtSessionOptions *session_options_copy(const OrtSessionOptions *from) {
    OrtSessionOptions *copy = NULL;
    api_ReleaseStatus(api_CloneSessionOptions(from, &copy));
    return copy;
}

OrtStatus *api_SetOptimizedModelFilePath(OrtSessionOptions *options, const ORTCHAR_T *path) {
    return text_replace(&options->optimized_path, path);
}

OrtStatus *api_SetSessionExecutionMode(OrtSessionOptions *options, ExecutionMode mode) {
    REQUIRE(mode == ORT_SEQUENTIAL || mode == ORT_PARALLEL, "execution_mode is not valid");
    options->execution_mode = mode;
    return NULL;
}

OrtStatus *api_GetSessionExecutionMode(const OrtSessionOptions *options, ExecutionMode *out) {
    *out = options->execution_mode;
    return NULL;
}

OrtStatus *api_EnableProfiling(OrtSessionOptions *options, const ORTCHAR_T *prefix) {
    options->profiling = true;
    return text_replace(&options->profile_prefix, prefix);
}

OrtStatus *api_DisableProfiling(OrtSessionOptions *options) {
    options->profiling = false;
    return NULL;
}

OrtStatus *api_EnableMemPattern(OrtSessionOptions *options) {
    options->mem_pattern = true;
    return NULL;
}

OrtStatus *api_DisableMemPattern(OrtSessionOptions *options) {
    options->mem_pattern = false;
    return NULL;
}

OrtStatus *api_GetMemPatternEnabled(const OrtSessionOptions *options, int *out) {
    *out = options->mem_pattern;
    return NULL;
}

OrtStatus *api_EnableCpuMemArena(OrtSessionOptions *options) {
    options->cpu_arena = true;
    return NULL;
}

OrtStatus *api_DisableCpuMemArena(OrtSessionOptions *options) {
    options->cpu_arena = false;
    return NULL;
}

OrtStatus *api_SetSessionLogId(OrtSessionOptions *options, const char *id) {
    return text_replace(&options->log_id, id == NULL ? "" : id);
}

OrtStatus *api_SetSessionLogVerbosityLevel(OrtSessionOptions *options, int verbosity) {
    options->verbosity = verbosity;
    return NULL;
}

OrtStatus *api_SetSessionLogSeverityLevel(OrtSessionOptions *options, int severity) {
    options->severity = severity;
    return NULL;
}

OrtStatus *api_SetUserLoggingFunction(OrtSessionOptions *options, OrtLoggingFunction function, void *param) {
    options->log_function = function;
    options->log_param = param;
    return NULL;
}

OrtStatus *api_SetSessionGraphOptimizationLevel(OrtSessionOptions *options, GraphOptimizationLevel level) {
    REQUIRE(((int)level >= ORT_DISABLE_ALL && level <= ORT_ENABLE_LAYOUT) || level == ORT_ENABLE_ALL,
            "graph_optimization_level is not valid");
    options->level = level;
    return NULL;
}

OrtStatus *api_SetIntraOpNumThreads(OrtSessionOptions *options, int threads) {
    options->intra = threads;
    return NULL;
}

OrtStatus *api_SetInterOpNumThreads(OrtSessionOptions *options, int threads) {
    options->inter = threads;
    return NULL;
}

OrtStatus *api_DisablePerSessionThreads(OrtSessionOptions *options) {
    options->per_session_threads = false;
    return NULL;
}

OrtStatus *api_SetDeterministicCompute(OrtSessionOptions *options, bool value) {
    options->deterministic = value;
    return NULL;
}

OrtStatus *api_SessionOptionsSetLoadCancellationFlag(OrtSessionOptions *options, bool cancel) {
    options->cancelled = cancel;
    return NULL;
}

OrtStatus *api_SessionOptionsSetCustomCreateThreadFn(OrtSessionOptions *options,
                                                     OrtCustomCreateThreadFn function) {
    options->create_thread = function;
    return NULL;
}

OrtStatus *api_SessionOptionsSetCustomThreadCreationOptions(OrtSessionOptions *options,
                                                            void *creation_options) {
    options->creation_options = creation_options;
    return NULL;
}

OrtStatus *api_SessionOptionsSetCustomJoinThreadFn(OrtSessionOptions *options,
                                                   OrtCustomJoinThreadFn function) {
    options->join_thread = function;
    return NULL;
}

OrtStatus *api_SessionOptionsSetWeightlessSourceModelBuffer(OrtSessionOptions *options, const void *model,
                                                            size_t size) {
    (void)options; /* no compiled model here leaves its weights with the source */
    REQUIRE(model != NULL, "Invalid source model: data pointer is null");
    REQUIRE(size != 0, "Invalid source model: data size is 0");
    return NULL;
}

OrtStatus *api_AddFreeDimensionOverride(OrtSessionOptions *options, const char *denotation, int64_t size) {
    return add_dim(options, &(DimOverride){(char *)(uintptr_t)denotation, size, false});
}

OrtStatus *api_AddFreeDimensionOverrideByName(OrtSessionOptions *options, const char *name, int64_t size) {
    return add_dim(options, &(DimOverride){(char *)(uintptr_t)name, size, true});
}

OrtStatus *api_AddSessionConfigEntry(OrtSessionOptions *options, const char *key, const char *value) {
    return config_set(&options->config, key, value);
}

OrtStatus *api_HasSessionConfigEntry(const OrtSessionOptions *options, const char *key, int *out) {
    *out = pairs_get(&options->config, key) != NULL;
    return NULL;
}

OrtStatus *api_GetSessionConfigEntry(const OrtSessionOptions *options, const char *key, char *value,
                                     size_t *size) {
    const char *found = pairs_get(&options->config, key);
    REQUIRE(found != NULL, "Session config entry '%s' was not found.", key);
    size_t room = *size;
    *size = strlen(found) + 1;
    if (value == NULL) return NULL;
    REQUIRE(room >= *size, "Output buffer is not large enough for session config entry");
    memcpy(value, found, *size);
    return NULL;
}

OrtStatus *api_GetSessionOptionsConfigEntries(const OrtSessionOptions *options, OrtKeyValuePairs **out) {
    return pairs_new(&options->config, out);
}

/* The initializers added one by one stand first, external ones behind them; each kind has its own names. */
static OrtStatus *check_initializer(const OrtSessionOptions *options, const char *name, const OrtValue *value,
                                    size_t begin, size_t end) {
    REQUIRE(name != NULL && value != NULL, "Received a null name or OrtValue");
    REQUIRE(value->kind == ONNX_TYPE_TENSOR,
            "Received OrtValue is not a tensor. Only tensors are supported.");
    REQUIRE(value->allocator == NULL, "Buffer containing the initializer must be owned by the user.");
    for (size_t i = begin; i < end; i++)
        REQUIRE(strcmp(options->initializers[i].name, name) != 0,
                "An OrtValue for this name has already been added: %s", name);
    return NULL;
}

OrtStatus *api_AddInitializer(OrtSessionOptions *options, const char *name, const OrtValue *value) {
    size_t own = options->initializer_count - options->external_count;
    RETURN_IF_FAILED(check_initializer(options, name, value, 0, own));
    RETURN_IF_FAILED(add_initializer(options, name, value));
    NamedValue *all = options->initializers, added = all[options->initializer_count - 1];
    memmove(all + own + 1, all + own, options->external_count * sizeof *all);
    all[own] = added;
    return NULL;
}

OrtStatus *api_AddExternalInitializers(OrtSessionOptions *options, const char *const *names,
                                       const OrtValue *const *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t end = options->initializer_count;
        RETURN_IF_FAILED(check_initializer(options, names[i], values[i], end - options->external_count, end));
        RETURN_IF_FAILED(add_initializer(options, names[i], values[i]));
        options->external_count++;
    }
    return NULL;
}

OrtStatus *api_AddExternalInitializersFromFilesInMemory(OrtSessionOptions *options,
                                                        const ORTCHAR_T *const *names, char *const *buffers,
                                                        const size_t *lengths, size_t count) {
    for (size_t i = 0; i < count; i++) {
        REQUIRE(names[i] != NULL && buffers[i] != NULL, "Received a null file name or buffer");
        for (size_t k = 0; k < options->file_count; k++)
            REQUIRE(strcmp(options->files[k].name, names[i]) != 0,
                    "An entry for this name has already been added: %s", names[i]);
        RETURN_IF_FAILED(
            add_file(options, &(FileInMemory){(char *)(uintptr_t)names[i], buffers[i], lengths[i]}));
    }
    return NULL;
}
