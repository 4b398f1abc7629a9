#define _GNU_SOURCE
#include "session.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is known of a model: from the service, or from the cache ------------------------------------------------- */

static bool take_described(struct message *message, OrtSession *session, enum role role) {
    size_t count = take_count(message, message->size);
    struct described *values = calloc(count + 1, sizeof *values);
    if (values == NULL) return false;
    session->values[role] = values;
    session->counts[role] = count;
    for (size_t i = 0; i < count; i++) {
        values[i].name = text_copy(take_text(message, NULL));
        values[i].type = wire_take_type(message);
        if (values[i].name == NULL || values[i].type == NULL) return false;
    }
    return !message->broken;
}

static void take_pairs(struct message *message, OrtKeyValuePairs *pairs) {
    size_t count = take_count(message, message->size);
    for (size_t i = 0; i < count && !message->broken; i++) {
        const char *key = take_text(message, NULL), *value = take_text(message, NULL);
        pairs_set(pairs, key, value);
    }
}

static bool take_metadata(struct message *message, OrtSession *session) {
    OrtModelMetadata *metadata = session->metadata = calloc(1, sizeof *metadata);
    if (metadata == NULL) return false;
    char **texts[] = {&metadata->producer, &metadata->graph_name, &metadata->domain, &metadata->description,
                      &metadata->graph_description};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        *texts[i] = text_copy(take_text(message, NULL));
        if (*texts[i] == NULL) return false;
    }
    metadata->version = take_int(message);
    take_pairs(message, &metadata->custom);
    take_pairs(message, &session->opsets);
    return !message->broken;
}

static bool take_description(struct message *message, OrtSession *session) {
    for (enum role role = INPUTS; role < ROLES; role++) {
        if (!take_described(message, session, role)) return false;
    }
    if (!take_metadata(message, session)) return false;
    snprintf(session->notes, sizeof session->notes, "%s", take_text(message, NULL));
    session->profiling_start = take_int(message);
    session->native = take_int(message) != 0;
    return !message->broken;
}

static void forget_description(OrtSession *session) {
    for (enum role role = INPUTS; role < ROLES; role++) {
        for (size_t i = 0; session->values[role] != NULL && i < session->counts[role]; i++) {
            free(session->values[role][i].name);
            if (session->values[role][i].type != NULL) api_ReleaseTypeInfo(session->values[role][i].type);
        }
        free(session->values[role]);
        session->values[role] = NULL;
        session->counts[role] = 0;
    }
    if (session->metadata != NULL) api_ReleaseModelMetadata(session->metadata);
    session->metadata = NULL;
    pairs_clear(&session->opsets);
    session->notes[0] = 0;
}

/* Asking ------------------------------------------------------------------------------------------------------------ */

static OrtStatus *service_open(OrtSession *session, struct channel *channel, bool *lost) {
    struct message answer = {0};
    Logger logger = session_logger(session);
    OrtStatus *status = channel_ask(channel, &session->opening, session->model,
                                    &(struct listening){&logger, NULL, 0}, &answer, lost);
    if (status == NULL) {
        int64_t handle = take_int(&answer);
        lock_take(&session->lock);
        session->handle = handle;
        session->generation = channel_generation(channel);
        lock_give(&session->lock);
        if (session->metadata == NULL && !take_description(&answer, session))
            status = status_new(ORT_FAIL, "the compile service's answer cannot be read");
    }
    message_clear(&answer);
    return status;
}

static bool known(OrtSession *session, const struct channel *channel, int64_t *handle) {
    lock_take(&session->lock);
    bool same = session->generation == channel_generation(channel);
    *handle = session->handle;
    lock_give(&session->lock);
    return same;
}

static OrtStatus *ask_on(OrtSession *session, const struct question *question, struct channel *channel, bool *lost) {
    struct message request = {0}, answer = {0};
    int64_t handle;
    OrtStatus *status = NULL;
    Logger logger = session_logger(session);
    struct listening usual = {&logger, NULL, 0};
    *lost = false;
    if (!known(session, channel, &handle)) {
        status = service_open(session, channel, lost);
        if (status == NULL) known(session, channel, &handle);
    }
    put_int(&request, question->what);
    put_int(&request, handle);
    if (status == NULL && question->write != NULL)
        status = question->write(&request, channel, question->argument);
    if (status == NULL)
        status = channel_ask(channel, &request, -1, question->listening == NULL ? &usual : question->listening,
                             &answer, lost);
    if (status == NULL && question->read != NULL) status = question->read(&answer, channel, question->argument);
    message_clear(&request);
    message_clear(&answer);
    return status;
}

OrtStatus *session_ask(OrtSession *session, const struct question *question) {
    OrtStatus *status = NULL;
    bool lost = true;
    for (int attempt = 0; attempt < 2 && lost; attempt++) {
        struct channel *channel;
        if (status != NULL) api_ReleaseStatus(status);
        RETURN_IF_FAILED(channel_take(&channel));
        status = ask_on(session, question, channel, &lost);
        channel_give(channel);
    }
    return status;
}

OrtStatus *service_ask(const struct question *question) {
    struct channel *channel;
    struct message request = {0}, answer = {0};
    bool lost;
    Logger logger = env_logger();
    RETURN_IF_FAILED(channel_take(&channel));
    put_int(&request, question->what);
    OrtStatus *status =
        question->write == NULL ? NULL : question->write(&request, channel, question->argument);
    if (status == NULL)
        status = channel_ask(channel, &request, -1, &(struct listening){&logger, NULL, 0}, &answer, &lost);
    if (status == NULL && question->read != NULL) status = question->read(&answer, channel, question->argument);
    channel_give(channel);
    message_clear(&request);
    message_clear(&answer);
    return status;
}

/* Making ------------------------------------------------------------------------------------------------------------ */

struct source {
    const char *path; /* or null, and the bytes */
    const void *bytes;
    size_t size;
};

static OrtStatus *opened(const char *path, int *file) {
    struct stat found;
    *file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*file >= 0 && fstat(*file, &found) == 0 && S_ISDIR(found.st_mode)) {
        close(*file);
        return status_new(ORT_INVALID_ARGUMENT, "The model path is a directory: %s\n  cure: give the path of a model's "
                          "file", path);
    }
    if (*file >= 0) return NULL;
    if (errno == ENOENT || errno == ENOTDIR)
        return status_new(ORT_NO_SUCHFILE, "Load model from %s failed:Load model %s failed. File doesn't exist", path,
                          path);
    return status_new(ORT_FAIL, "Load model from %s failed:system error number %d\n  found: %s", path, errno,
                      strerror(errno));
}

/* A file without a name that holds the bytes. */
static OrtStatus *kept(const void *bytes, size_t size, int *file) {
    *file = memfd_create("orthrus-model", MFD_CLOEXEC);
    int error = *file < 0 ? errno : size > 0 ? posix_fallocate(*file, 0, (off_t)size) : 0;
    const char *from = bytes;
    for (size_t done = 0; error == 0 && done < size;) {
        ssize_t count = pwrite(*file, from + done, size - done, (off_t)done);
        if (count > 0) done += (size_t)count;
        if (count <= 0 && errno != EINTR) error = errno;
    }
    return error == 0 ? NULL : status_new(ORT_FAIL, "there is no room for a model of %zu bytes: %s", size,
                                          strerror(error));
}

/* The key of contents, which the service makes where there is none. */
static OrtStatus *key_of_contents(struct content_key *key, bool *there) {
    *there = cache_key(key);
    const char *on = getenv("ORTHRUS_CACHE");
    if (*there || (on != NULL && strcmp(on, "0") == 0)) return NULL;
    OrtStatus *status = service_ask(&(struct question){.what = ASK_NOTHING});
    *there = status == NULL && cache_key(key);
    return status;
}

/* The name that the cache knows the model by, and what tells its content; both "" where it keeps nothing. */
static OrtStatus *named(OrtSession *session, const struct source *source, Name content) {
    struct content_key key;
    struct message options = {0};
    Digest digest;
    bool there = false;
    int file = -1;
    content[0] = 0;
    if (source->path != NULL) RETURN_IF_FAILED(opened(source->path, &file));
    OrtStatus *status = options_keepable(session->options) ? key_of_contents(&key, &there) : NULL;
    if (there && (file >= 0 ? content_of_file(&key, file, digest)
                            : content_of_bytes(&key, source->bytes, source->size, digest))) {
        put_decisive_options(&options, session->options);
        put_text(&options, file >= 0 ? "file" : "bytes");
        hexadecimal(digest, content);
        if (!options.broken) cache_name(digest, &options, session->name);
        message_clear(&options);
    }
    if (file >= 0) close(file);
    return status;
}

static OrtStatus *put_opening(OrtSession *session, const struct source *source, const char *content) {
    struct message *opening = &session->opening;
    char path[PATH_MAX];
    put_int(opening, ASK_OPEN);
    put_text(opening, source->path == NULL ? "" : realpath(source->path, path) == NULL ? source->path : path);
    put_int(opening, source->path == NULL ? (int64_t)source->size : -1);
    put_text(opening, session->name);
    put_text(opening, content);
    put_decisive_options(opening, session->options);
    return put_other_options(opening, session->options, session_logger(session).severity);
}

/* Whether the files that hold tensors are still what they were. */
static bool files_hold(struct message *entry, const struct source *source) {
    size_t count = take_count(entry, entry->size);
    struct content_key key;
    if (count > 0 && (source->path == NULL || !cache_key(&key))) return false;
    const char *end = source->path == NULL ? NULL : strrchr(source->path, '/');
    int folder = end == NULL ? 0 : (int)(end - source->path + 1);
    for (size_t i = 0; i < count && !entry->broken; i++) {
        const char *name = take_text(entry, NULL), *expected = take_text(entry, NULL);
        char path[PATH_MAX];
        Digest digest;
        Name found = "";
        int size = snprintf(path, sizeof path, "%.*s%s", folder, source->path, name);
        int file = size > 0 && size < PATH_MAX ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
        if (file >= 0 && content_of_file(&key, file, digest)) hexadecimal(digest, found);
        if (file >= 0) close(file);
        if (strcmp(found, expected) != 0) return false;
    }
    return !entry->broken;
}

static bool from_cache(OrtSession *session, const struct source *source) {
    struct message entry = {0};
    bool found = session->name[0] != 0 && cache_read(session->name, &entry) && take_description(&entry, session) &&
                 files_hold(&entry, source);
    if (!found) forget_description(session);
    message_clear(&entry);
    return found;
}

static OrtStatus *open_in_service(OrtSession *session) {
    struct question nothing = {ASK_NOTHING, NULL, NULL, NULL, NULL};
    return session_ask(session, &nothing);
}

static OrtStatus *make(OrtSession *session, const struct source *source, const OrtSessionOptions *options) {
    Name content;
    OrtStatus *status = NULL;
    OrtSessionOptions *defaults = NULL;
    if (options == NULL) RETURN_IF_FAILED(api_CreateSessionOptions(&defaults));
    session->options = session_options_copy(options == NULL ? defaults : options);
    if (defaults != NULL) api_ReleaseSessionOptions(defaults);
    if (session->options == NULL) return status_out_of_memory(sizeof *session->options);
    if (session->options->cancelled)
        return status_new(ORT_MODEL_LOAD_CANCELED, "Graph loading canceled due to user request.");
    RETURN_IF_FAILED(check_severity("session", session->options->severity));
    RETURN_IF_FAILED(natives_new(&session->natives));
    RETURN_IF_FAILED(named(session, source, content));
    if (source->path == NULL) RETURN_IF_FAILED(kept(source->bytes, source->size, &session->model));
    RETURN_IF_FAILED(put_opening(session, source, content));
    Logger logger = session_logger(session);
    LOG(&logger, INFO, "Initializing session.");
    bool cached = from_cache(session, source);
    LOG(&logger, INFO, cached ? "what is known of the model comes from the cache" : "the compile service is asked");
    if (!cached) RETURN_IF_FAILED(open_in_service(session));
    if (session->native) natives_prepare(session, !cached, &status);
    if (status == NULL) LOG(&logger, INFO, "Session successfully initialized.");
    return status;
}

static OrtStatus *create(const struct source *source, const OrtSessionOptions *options, OrtSession **out) {
    *out = NULL;
    OrtSession *session = calloc(1, sizeof *session);
    if (session == NULL) return status_out_of_memory(sizeof *session);
    session->model = -1;
    lock_new(&session->lock);
    OrtStatus *status = make(session, source, options);
    if (status == NULL)
        *out = session;
    else
        api_ReleaseSession(session);
    return status;
}

OrtStatus *api_CreateSession(const OrtEnv *env, const char *path, const OrtSessionOptions *options, OrtSession **out) {
    (void)env;
    return create(&(struct source){path, NULL, 0}, options, out);
}

OrtStatus *api_CreateSessionFromArray(const OrtEnv *env, const void *model, size_t size,
                                      const OrtSessionOptions *options, OrtSession **out) {
    (void)env;
    return create(&(struct source){NULL, model, size}, options, out);
}

OrtStatus *api_CreateSessionWithPrepackedWeightsContainer(const OrtEnv *env, const char *path,
                                                          const OrtSessionOptions *options,
                                                          OrtPrepackedWeightsContainer *container, OrtSession **out) {
    (void)container;
    return api_CreateSession(env, path, options, out);
}

OrtStatus *api_CreateSessionFromArrayWithPrepackedWeightsContainer(const OrtEnv *env, const void *model, size_t size,
                                                                   const OrtSessionOptions *options,
                                                                   OrtPrepackedWeightsContainer *container,
                                                                   OrtSession **out) {
    (void)container;
    return api_CreateSessionFromArray(env, model, size, options, out);
}

/* Tells the service, where it runs and knows the model; starts none for it. */
static void close_in_service(OrtSession *session) {
    struct channel *channel;
    struct message request = {0}, answer = {0};
    int64_t handle;
    bool lost;
    if (session->generation == 0 || service_generation() != session->generation) return;
    OrtStatus *status = channel_take(&channel);
    if (status == NULL && known(session, channel, &handle)) {
        put_int(&request, ASK_CLOSE);
        put_int(&request, handle);
        Logger logger = session_logger(session);
        status = channel_ask(channel, &request, -1, &(struct listening){&logger, NULL, 0}, &answer, &lost);
    }
    api_ReleaseStatus(status);
    channel_give(channel);
    message_clear(&request);
    message_clear(&answer);
}

void api_ReleaseSession(OrtSession *session) {
    if (session == NULL) return;
    close_in_service(session);
    natives_free(session->natives);
    assigned_free(atomic_load(&session->assigned));
    forget_description(session);
    if (session->options != NULL) api_ReleaseSessionOptions(session->options);
    if (session->model >= 0) close(session->model);
    message_clear(&session->opening);
    lock_free(&session->lock);
    free(session);
}
