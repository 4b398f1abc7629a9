/* Run options. */
#include "internal.h"

#include <stdlib.h>

static OrtStatus *tag_set(char **text, const char *with) {
    char *copy = text_copy(with);
    if (copy == NULL) return status_out_of_memory(1);
    free(*text);
    *text = copy;
    return NULL;
}

OrtStatus *api_CreateRunOptions(OrtRunOptions **out) {
    OrtRunOptions *options = calloc(1, sizeof *options);
    if (options == NULL || (options->tag = text_copy("")) == NULL) {
        free(options);
        return status_out_of_memory(sizeof *options);
    }
    options->severity = -1;
    atomic_init(&options->terminate, 0);
    *out = options;
    return NULL;
}

void api_ReleaseRunOptions(OrtRunOptions *options) {
    if (options == NULL) return;
    free(options->tag);
    free(options->profile_prefix);
    pairs_clear(&options->config);
    for (size_t i = 0; i < options->adapter_count; i++) api_ReleaseLoraAdapter(options->adapters[i]);
    free(options->adapters);
    free(options);
}

OrtStatus *api_RunOptionsSetRunLogVerbosityLevel(OrtRunOptions *options, int verbosity) {
    options->verbosity = verbosity;
    return NULL;
}

OrtStatus *api_RunOptionsSetRunLogSeverityLevel(OrtRunOptions *options, int severity) {
    options->severity = severity;
    return NULL;
}

OrtStatus *api_RunOptionsSetRunTag(OrtRunOptions *options, const char *tag) {
    return tag == NULL ? NULL : tag_set(&options->tag, tag);
}

OrtStatus *api_RunOptionsGetRunLogVerbosityLevel(const OrtRunOptions *options, int *out) {
    *out = options->verbosity;
    return NULL;
}

OrtStatus *api_RunOptionsGetRunLogSeverityLevel(const OrtRunOptions *options, int *out) {
    *out = options->severity;
    return NULL;
}

OrtStatus *api_RunOptionsGetRunTag(const OrtRunOptions *options, const char **out) {
    *out = options->tag;
    return NULL;
}

OrtStatus *api_RunOptionsSetTerminate(OrtRunOptions *options) {
    atomic_store(&options->terminate, 1);
    return NULL;
}

OrtStatus *api_RunOptionsUnsetTerminate(OrtRunOptions *options) {
    atomic_store(&options->terminate, 0);
    return NULL;
}

OrtStatus *api_AddRunConfigEntry(OrtRunOptions *options, const char *key, const char *value) {
    return config_set(&options->config, key, value);
}

const char *api_GetRunConfigEntry(const OrtRunOptions *options, const char *key) {
    return options == NULL || key == NULL ? NULL : pairs_get(&options->config, key);
}

OrtStatus *api_RunOptionsEnableProfiling(OrtRunOptions *options, const ORTCHAR_T *prefix) {
    options->profiling = true;
    return tag_set(&options->profile_prefix, prefix);
}

OrtStatus *api_RunOptionsDisableProfiling(OrtRunOptions *options) {
    options->profiling = false;
    return NULL;
}
