/* Session options on their way to the compile service, as models.py reads them. */
#include "session.h"
#include "wire.h"

#include <stdlib.h>

#include <string.h>

static void put_pairs(struct message *message, const OrtKeyValuePairs *pairs) {
    put_pairs_of(message, (const char *const *)pairs->keys, (const char *const *)pairs->values, pairs->count);
}

void put_decisive_options(struct message *message, const OrtSessionOptions *options) {
    put_int(message, options->level);
    put_int(message, options->execution_mode);
    put_int(message, options->mem_pattern);
    put_int(message, options->deterministic);
    put_pairs(message, &options->config);
    put_int(message, (int64_t)options->provider_count);
    for (size_t i = 0; i < options->provider_count; i++) {
        put_text(message, options->providers[i].name);
        put_pairs(message, &options->providers[i].options);
    }
    put_int(message, (int64_t)options->dim_count);
    for (size_t i = 0; i < options->dim_count; i++) {
        put_text(message, options->dims[i].name);
        put_int(message, options->dims[i].size);
        put_int(message, options->dims[i].by_name);
    }
}

static OrtStatus *put_initializers(struct message *message, const OrtSessionOptions *options) {
    put_int(message, (int64_t)options->initializer_count);
    put_int(message, (int64_t)options->external_count);
    for (size_t i = 0; i < options->initializer_count; i++) {
        put_text(message, options->initializers[i].name);
        RETURN_IF_FAILED(wire_put_whole(message, options->initializers[i].value));
    }
    put_int(message, (int64_t)options->file_count);
    for (size_t i = 0; i < options->file_count; i++) {
        put_text(message, options->files[i].name);
        put_bytes(message, options->files[i].bytes, options->files[i].length);
    }
    return NULL;
}

OrtStatus *put_other_options(struct message *message, const OrtSessionOptions *options, OrtLoggingLevel severity) {
    put_int(message, options->intra);
    put_int(message, options->inter);
    put_int(message, options->cpu_arena);
    put_int(message, severity);
    put_int(message, options->verbosity);
    put_text(message, options->log_id);
    put_text(message, options->optimized_path);
    put_int(message, options->profiling);
    put_text(message, options->profile_prefix);
    put_int(message, options->cancelled);
    return put_initializers(message, options);
}

bool options_keepable(const OrtSessionOptions *options) {
    const char *modules = getenv("ORTHRUS_IMPORT"); /* whose content nothing here knows */
    return (modules == NULL || modules[0] == 0) && !options->profiling && (options->optimized_path == NULL || options->optimized_path[0] == 0) &&
           options->initializer_count == 0 && options->file_count == 0 && !options->cancelled;
}
