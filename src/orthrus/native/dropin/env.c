/* The environment: one per process, with holders, as in onnxruntime: who asks for a second one gets the
 * first. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static Lock guard;
static OrtEnv *current;

__attribute__((constructor)) static void begin(void) { lock_new(&guard); }

Logger env_logger(void) {
    lock_take(&guard);
    Logger logger = current == NULL ? (Logger){.severity = ORT_LOGGING_LEVEL_WARNING, .id = ""} : current->logger;
    lock_give(&guard);
    return logger;
}

OrtEnv *env_current(void) {
    lock_take(&guard);
    OrtEnv *env = current;
    lock_give(&guard);
    return env;
}

static void threading_clear(OrtThreadingOptions *options) {
    free(options->affinity);
    options->affinity = NULL;
}

static bool threading_copy(OrtThreadingOptions *to, const OrtThreadingOptions *from) {
    *to = *from;
    to->affinity = text_copy(from->affinity);
    return to->affinity != NULL || from->affinity == NULL;
}

static void env_free(OrtEnv *env) {
    free(env->id);
    threading_clear(&env->threading);
    pairs_clear(&env->config);
    free(env->allocators);
    free(env);
}

static OrtEnv *env_new(Logger logger, const char *id, const OrtThreadingOptions *threading,
                       const OrtKeyValuePairs *config) {
    OrtEnv *env = calloc(1, sizeof *env);
    if (env == NULL) return NULL;
    env->id = text_copy(id);
    env->logger = logger;
    env->logger.id = env->id;
    env->global_threads = threading != NULL;
    if (env->id == NULL || (threading != NULL && !threading_copy(&env->threading, threading)) ||
        (config != NULL && !pairs_copy(&env->config, config))) {
        env_free(env);
        return NULL;
    }
    return env;
}

static OrtStatus *env_open(Logger logger, const char *id, const OrtThreadingOptions *threading,
                           const OrtKeyValuePairs *config, OrtEnv **out) {
    lock_take(&guard);
    if (current == NULL) current = env_new(logger, id == NULL ? "" : id, threading, config);
    if (current != NULL) current->holders++;
    *out = current;
    lock_give(&guard);
    return *out == NULL ? status_out_of_memory(sizeof **out) : NULL;
}

OrtStatus *api_CreateEnv(OrtLoggingLevel severity, const char *id, OrtEnv **out) {
    return env_open((Logger){.severity = severity}, id, NULL, NULL, out);
}

OrtStatus *api_CreateEnvWithCustomLogger(OrtLoggingFunction function, void *param, OrtLoggingLevel severity,
                                         const char *id, OrtEnv **out) {
    return env_open((Logger){function, param, severity, NULL}, id, NULL, NULL, out);
}

OrtStatus *api_CreateEnvWithGlobalThreadPools(OrtLoggingLevel severity, const char *id,
                                              const OrtThreadingOptions *threading, OrtEnv **out) {
    REQUIRE(threading != NULL, "Received null OrtThreadingOptions");
    return env_open((Logger){.severity = severity}, id, threading, NULL, out);
}

OrtStatus *api_CreateEnvWithCustomLoggerAndGlobalThreadPools(OrtLoggingFunction function, void *param,
                                                             OrtLoggingLevel severity, const char *id,
                                                             const OrtThreadingOptions *threading,
                                                             OrtEnv **out) {
    REQUIRE(threading != NULL, "Received null OrtThreadingOptions");
    return env_open((Logger){function, param, severity, NULL}, id, threading, NULL, out);
}

OrtStatus *api_CreateEnvWithOptions(const OrtEnvCreationOptions *options, OrtEnv **out) {
    const char *requires = "CreateEnvWithOptions requires a";
    REQUIRE(options != NULL, "%s valid (non-null) OrtEnvCreationOptions argument", requires);
    REQUIRE(options->version != 0,
            "%s OrtEnvCreationOptions argument with the version set equal to ORT_API_VERSION", requires);
    REQUIRE(options->log_id != NULL,
            "%s OrtEnvCreationOptions argument with a valid (non-null) log identifier string", requires);
    REQUIRE(options->logging_severity_level >= ORT_LOGGING_LEVEL_VERBOSE &&
                options->logging_severity_level <= ORT_LOGGING_LEVEL_FATAL,
            "%s OrtEnvCreationOptions argument with a valid logging severity level value from the "
            "OrtLoggingLevel enumeration",
            requires);
    Logger logger = {options->custom_logging_function, options->custom_logging_param,
                     (OrtLoggingLevel)options->logging_severity_level, NULL};
    return env_open(logger, options->log_id, options->threading_options, options->config_entries, out);
}

void api_ReleaseEnv(OrtEnv *env) {
    if (env == NULL) return;
    lock_take(&guard);
    if (--env->holders == 0) {
        current = NULL;
        env_free(env);
    }
    lock_give(&guard);
}

OrtStatus *api_UpdateEnvWithCustomLogLevel(OrtEnv *env, OrtLoggingLevel severity) {
    lock_take(&guard);
    env->logger.severity = severity;
    lock_give(&guard);
    return NULL;
}

OrtStatus *api_EnableTelemetryEvents(const OrtEnv *env) {
    (void)env; /* there are none */
    return NULL;
}

OrtStatus *api_DisableTelemetryEvents(const OrtEnv *env) { return api_EnableTelemetryEvents(env); }

OrtStatus *api_SetLanguageProjection(const OrtEnv *env, OrtLanguageProjection projection) {
    (void)projection;
    return api_EnableTelemetryEvents(env);
}

OrtStatus *api_SetPerSessionThreadPoolCallbacks(OrtEnv *env, const OrtThreadPoolCallbacksConfig *config) {
    (void)env;
    REQUIRE(config != NULL, "config must not be null");
    REQUIRE(config->version != 0, "OrtThreadPoolCallbacksConfig requires version set to ORT_API_VERSION");
    return status_new(
        ORT_NOT_IMPLEMENTED,
        "SetPerSessionThreadPoolCallbacks requires ORT built with --enable_session_threadpool_callbacks");
}

OrtStatus *api_CreateThreadingOptions(OrtThreadingOptions **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return status_out_of_memory(sizeof **out);
    (*out)->spin = 1;
    return NULL;
}

#define NEED_THREADING(options) REQUIRE((options) != NULL, "Received null OrtThreadingOptions")

OrtStatus *api_SetGlobalIntraOpNumThreads(OrtThreadingOptions *options, int threads) {
    NEED_THREADING(options);
    options->intra = threads;
    return NULL;
}

OrtStatus *api_SetGlobalInterOpNumThreads(OrtThreadingOptions *options, int threads) {
    NEED_THREADING(options);
    options->inter = threads;
    return NULL;
}

OrtStatus *api_SetGlobalSpinControl(OrtThreadingOptions *options, int spin) {
    NEED_THREADING(options);
    REQUIRE(spin == 0 || spin == 1, "Received invalid value for allow_spinning. Valid values are 0 or 1");
    options->spin = spin;
    return NULL;
}

OrtStatus *api_SetGlobalDenormalAsZero(OrtThreadingOptions *options) {
    NEED_THREADING(options);
    options->denormal_as_zero = true;
    return NULL;
}

OrtStatus *api_SetGlobalIntraOpThreadAffinity(OrtThreadingOptions *options, const char *affinity) {
    enum { LONGEST = 4096 };
    NEED_THREADING(options);
    REQUIRE(affinity != NULL, "Received null affinity_string");
    REQUIRE(*affinity != 0 && strlen(affinity) <= LONGEST, "Size of affinity string must be between 1 and %d",
            LONGEST);
    char *copy = text_copy(affinity);
    if (copy == NULL) return status_out_of_memory(LONGEST);
    free(options->affinity);
    options->affinity = copy;
    return NULL;
}

OrtStatus *api_SetGlobalCustomCreateThreadFn(OrtThreadingOptions *options, OrtCustomCreateThreadFn function) {
    NEED_THREADING(options);
    options->create_thread = function;
    return NULL;
}

OrtStatus *api_SetGlobalCustomThreadCreationOptions(OrtThreadingOptions *options, void *creation_options) {
    NEED_THREADING(options);
    options->creation_options = creation_options;
    return NULL;
}

OrtStatus *api_SetGlobalCustomJoinThreadFn(OrtThreadingOptions *options, OrtCustomJoinThreadFn function) {
    NEED_THREADING(options);
    options->join_thread = function;
    return NULL;
}

void api_ReleaseThreadingOptions(OrtThreadingOptions *options) {
    if (options == NULL) return;
    threading_clear(options);
    free(options);
}
