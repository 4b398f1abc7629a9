/* Models compiled ahead, to a file, to memory or to a program's function: the compile service makes them. */
#define _POSIX_C_SOURCE 200809L
#include "editor.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct OrtModelCompilationOptions {
    OrtSessionOptions *session_options;
    char *path; /* of the model, or its bytes, which stay the caller's or are `own` */
    const void *bytes;
    size_t size;
    unsigned char *own;
    char *out;
    OrtAllocator *allocator; /* of the bytes that `buffer` and `buffer_size` are to name */
    void **buffer;
    size_t *buffer_size;
    OrtWriteBufferFunc write;
    void *state;
    char *external; /* the file for initializers from `threshold` bytes on */
    size_t threshold;
    bool embed;
    uint32_t flags;
    GraphOptimizationLevel level;
};

OrtStatus *api_CreateModelCompilationOptionsFromSessionOptions(const OrtEnv *env,
                                                               const OrtSessionOptions *session_options,
                                                               OrtModelCompilationOptions **out) {
    (void)env;
    OrtModelCompilationOptions *options = calloc(1, sizeof *options);
    if (options != NULL) options->session_options = session_options_copy(session_options);
    if (options == NULL || options->session_options == NULL) {
        free(options);
        return status_out_of_memory(sizeof *options);
    }
    options->level = ORT_DISABLE_ALL;
    *out = options;
    return NULL;
}

void api_ReleaseModelCompilationOptions(OrtModelCompilationOptions *options) {
    if (options == NULL) return;
    api_ReleaseSessionOptions(options->session_options);
    free(options->path);
    free(options->own);
    free(options->out);
    free(options->external);
    free(options);
}

static OrtStatus *set_path(char **path, const char *name, const char *to) {
    REQUIRE(to[0] != 0, "Invalid %s: path must not be empty", name);
    char *copy = text_copy(to);
    if (copy == NULL) return status_out_of_memory(1);
    free(*path);
    *path = copy;
    return NULL;
}

static void set_bytes(OrtModelCompilationOptions *options, unsigned char *own, const void *bytes, size_t size) {
    free(options->own);
    free(options->path);
    options->path = NULL;
    options->own = own;
    options->bytes = bytes;
    options->size = size;
}

OrtStatus *api_ModelCompilationOptions_SetInputModelPath(OrtModelCompilationOptions *options, const ORTCHAR_T *path) {
    set_bytes(options, NULL, NULL, 0);
    return set_path(&options->path, "input model", path);
}

OrtStatus *api_ModelCompilationOptions_SetInputModelFromBuffer(OrtModelCompilationOptions *options, const void *model,
                                                               size_t size) {
    REQUIRE(size != 0, "Invalid input buffer: size is 0");
    set_bytes(options, NULL, model, size);
    return NULL;
}

OrtStatus *api_ModelCompilationOptions_SetInputModel(OrtModelCompilationOptions *options, const OrtModel *model) {
    struct bytes made = {0};
    RETURN_IF_FAILED(model_written(model, &made));
    set_bytes(options, made.data, made.data, made.size);
    return NULL;
}

static void set_no_output(OrtModelCompilationOptions *options) {
    free(options->out);
    options->out = NULL;
    options->buffer = NULL;
    options->write = NULL;
}

OrtStatus *api_ModelCompilationOptions_SetOutputModelPath(OrtModelCompilationOptions *options, const ORTCHAR_T *path) {
    set_no_output(options);
    return set_path(&options->out, "output model", path);
}

OrtStatus *api_ModelCompilationOptions_SetOutputModelBuffer(OrtModelCompilationOptions *options,
                                                            OrtAllocator *allocator, void **buffer, size_t *size) {
    set_no_output(options);
    options->allocator = allocator;
    options->buffer = buffer;
    options->buffer_size = size;
    return NULL;
}

OrtStatus *api_ModelCompilationOptions_SetOutputModelWriteFunc(OrtModelCompilationOptions *options,
                                                               OrtWriteBufferFunc function, void *state) {
    set_no_output(options);
    options->write = function;
    options->state = state;
    return NULL;
}

OrtStatus *api_ModelCompilationOptions_SetOutputModelExternalInitializersFile(OrtModelCompilationOptions *options,
                                                                              const ORTCHAR_T *path,
                                                                              size_t threshold) {
    options->threshold = threshold;
    return set_path(&options->external, "external initializers file", path);
}

OrtStatus *api_ModelCompilationOptions_SetEpContextEmbedMode(OrtModelCompilationOptions *options, bool embed) {
    options->embed = embed;
    return NULL;
}

OrtStatus *api_ModelCompilationOptions_SetFlags(OrtModelCompilationOptions *options, uint32_t flags) {
    const uint32_t known = OrtCompileApiFlags_ERROR_IF_NO_NODES_COMPILED | OrtCompileApiFlags_ERROR_IF_OUTPUT_FILE_EXISTS;
    REQUIRE((flags & ~known) == 0, "Invalid model compilation flags: 0x%x", (unsigned)flags);
    options->flags = flags;
    return NULL;
}

OrtStatus *api_ModelCompilationOptions_SetGraphOptimizationLevel(OrtModelCompilationOptions *options,
                                                                 GraphOptimizationLevel level) {
    REQUIRE(((int)level >= ORT_DISABLE_ALL && level <= ORT_ENABLE_LAYOUT) || level == ORT_ENABLE_ALL,
            "graph_optimization_level is not valid");
    options->level = level;
    return NULL;
}

static OrtStatus *write_compile(struct message *request, struct channel *channel, void *argument) {
    const OrtModelCompilationOptions *options = argument;
    (void)channel;
    put_decisive_options(request, options->session_options);
    Logger logger = env_logger();
    int severity = options->session_options->severity;
    RETURN_IF_FAILED(put_other_options(request, options->session_options,
                                       severity >= 0 ? (OrtLoggingLevel)severity : logger.severity));
    put_text(request, options->path);
    put_bytes(request, options->bytes, options->size);
    put_int(request, options->embed);
    put_int(request, options->flags);
    put_int(request, options->level);
    put_text(request, options->external);
    put_int(request, (int64_t)options->threshold);
    put_text(request, options->out);
    put_int(request, options->buffer != NULL || options->write != NULL);
    return NULL;
}

static OrtStatus *read_compiled(struct message *answer, struct channel *channel, void *argument) {
    const OrtModelCompilationOptions *options = argument;
    size_t size;
    (void)channel;
    const char *bytes = take_text(answer, &size);
    if (answer->broken) return status_new(ORT_FAIL, "the compile service's answer cannot be read");
    if (options->write != NULL) return options->write(options->state, bytes, size);
    if (options->buffer == NULL) return NULL;
    *options->buffer = options->allocator->Alloc(options->allocator, size);
    if (*options->buffer == NULL) return status_out_of_memory(size);
    memcpy(*options->buffer, bytes, size);
    *options->buffer_size = size;
    return NULL;
}

OrtStatus *api_CompileModel(const OrtEnv *env, const OrtModelCompilationOptions *options) {
    (void)env;
    bool no_output = options->out == NULL && options->buffer == NULL && options->write == NULL;
    REQUIRE(options->path != NULL || options->bytes != NULL, "Input model to compile must be loaded from either a path "
            "or a memory buffer");
    if (no_output && options->path == NULL)
        return status_new(ORT_FAIL, "Unable to generate an output model path: require an input model path if the "
                          "location of the output model (e.g., file, buffer, or output stream) is not specified.");
    REQUIRE(options->path == NULL || access(options->path, F_OK) == 0, "Input model path does not exist: \"%s\"",
            options->path);
    REQUIRE(options->external == NULL || options->buffer == NULL, "initializers cannot go to a file while the model "
            "goes to memory\n  cure: name a file for the model");
    void *argument = (OrtModelCompilationOptions *)(uintptr_t)options;
    return service_ask(&(struct question){ASK_COMPILE, write_compile, read_compiled, argument, NULL});
}
