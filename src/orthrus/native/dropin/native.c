/* A session's native plans: packages, which the compile service made and the cache keeps, and contexts that run
 * them. A package holds the plans of one service's time; a later one of the same service has all of them and one
 * more, so that it takes the earlier one's place once no run needs that any more. */
#define _GNU_SOURCE
#include "../runtime/package.h"
#include "session.h"
#include "wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_SIZES = 512, MOST_VALUES = 256, MOST_IDLE = 8, BUCKETS = 64 };

struct package {
    struct package *next;
    Name name;
    struct mapped mapped;
    orthrus_model *model;
    int users; /* plans and contexts */
};

struct plan {
    struct plan *next;
    struct package *package; /* null: the service runs it */
    size_t count;
    int64_t sizes[];
};

struct ready {
    struct ready *next;
    struct plan *plan;
    struct package *package;
    orthrus_context *context;
};

struct natives {
    struct package *packages;
    struct plan *plans[BUCKETS];
    struct ready *idle;
    size_t idle_count;
};

OrtStatus *natives_new(struct natives **natives) {
    *natives = calloc(1, sizeof **natives);
    return *natives == NULL ? status_out_of_memory(sizeof **natives) : NULL;
}

static void package_free(struct package *package) {
    orthrus_model_close(package->model);
    cache_unmap(&package->mapped);
    free(package);
}

void natives_free(struct natives *natives) {
    if (natives == NULL) return;
    while (natives->idle != NULL) {
        struct ready *ready = natives->idle;
        natives->idle = ready->next;
        orthrus_destroy(ready->context);
        free(ready);
    }
    for (size_t i = 0; i < BUCKETS; i++) {
        while (natives->plans[i] != NULL) {
            struct plan *plan = natives->plans[i];
            natives->plans[i] = plan->next;
            free(plan);
        }
    }
    while (natives->packages != NULL) {
        struct package *package = natives->packages;
        natives->packages = package->next;
        package_free(package);
    }
    free(natives);
}

/* Below: callers hold the session's lock. */

static struct plan **bucket(struct natives *natives, const int64_t *sizes, size_t count) {
    uint64_t hash = 0;
    for (size_t i = 0; i < count; i++) hash = (hash ^ (uint64_t)sizes[i]) * 0x9e3779b97f4a7c15u;
    return &natives->plans[hash >> 58];
}

static struct plan *plan_of(struct natives *natives, const int64_t *sizes, size_t count) {
    struct plan *plan = *bucket(natives, sizes, count);
    while (plan != NULL && (plan->count != count || memcmp(plan->sizes, sizes, count * sizeof *sizes) != 0))
        plan = plan->next;
    return plan;
}

static struct package *package_named(struct natives *natives, const char *name) {
    struct package *package = natives->packages;
    while (package != NULL && strcmp(package->name, name) != 0) package = package->next;
    return package;
}

static void leave(struct natives *natives, struct package *package) {
    if (package == NULL || --package->users > 0) return;
    struct package **link = &natives->packages;
    while (*link != package) link = &(*link)->next;
    *link = package->next;
    package_free(package);
}

static void move(struct natives *natives, struct plan *plan, struct package *package) {
    struct package *before = plan->package;
    if (package != NULL) package->users++;
    plan->package = package;
    leave(natives, before);
}

/* Lets the plans that `package` has too run from there. */
static void replace(struct natives *natives, struct package *package, const struct package *older) {
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct plan *plan = natives->plans[i]; plan != NULL; plan = plan->next) {
            if (plan->package == older) move(natives, plan, package);
        }
    }
}

static void drop_idle(struct natives *natives, struct ready **link) {
    struct ready *ready = *link;
    *link = ready->next;
    natives->idle_count--;
    orthrus_destroy(ready->context);
    leave(natives, ready->package);
    free(ready);
}

static struct ready *idle_of(struct natives *natives, const struct plan *plan) {
    struct ready **link = &natives->idle;
    while (*link != NULL) {
        struct ready *ready = *link;
        if (ready->package == plan->package && ready->plan == plan) {
            *link = ready->next;
            natives->idle_count--;
            return ready;
        }
        if (ready->package != ready->plan->package)
            drop_idle(natives, link);
        else
            link = &ready->next;
    }
    return NULL;
}

/* Above: callers hold the session's lock. */

static OrtStatus *failed(int status) {
    OrtErrorCode code = status == ORTHRUS_INVALID_ARGUMENT || status == ORTHRUS_SHAPE ? ORT_INVALID_ARGUMENT : ORT_FAIL;
    if (status == ORTHRUS_STOPPED)
        return status_new(ORT_FAIL, "Exiting due to terminate flag being set to true.");
    return status_new(code, "%s", orthrus_last_error());
}

static int threads_of(const OrtSession *session) {
    OrtEnv *env = env_current();
    if (!session->options->per_session_threads && env != NULL && env->global_threads) return env->threading.intra;
    return session->options->intra;
}

static orthrus_options options_of_session(const OrtSession *session) {
    orthrus_options options = ORTHRUS_OPTIONS;
    int threads = threads_of(session);
    options.threads = threads > 0 ? threads : 0;
    return options;
}

static bool same_names(const OrtSession *session, const orthrus_model *model) {
    if (orthrus_inputs(model) != session->counts[INPUTS] || orthrus_outputs(model) != session->counts[OUTPUTS])
        return false;
    for (size_t i = 0; i < session->counts[INPUTS]; i++) {
        if (strcmp(orthrus_input(model, i)->name, session->values[INPUTS][i].name) != 0) return false;
    }
    for (size_t i = 0; i < session->counts[OUTPUTS]; i++) {
        if (strcmp(orthrus_output(model, i)->name, session->values[OUTPUTS][i].name) != 0) return false;
    }
    return true;
}

/* A package that nobody uses yet, of what was mapped; null where it is not for this session and processor. */
static struct package *package_new(const OrtSession *session, const char *name, struct mapped *mapped) {
    struct package *package = calloc(1, sizeof *package);
    orthrus_pieces pieces = {mapped->bytes, mapped->size, NULL, NULL, 0};
    orthrus_options options = options_of_session(session);
    if (package == NULL || orthrus_model_open(&pieces, &options, &package->model) != ORTHRUS_OK) {
        free(package);
        cache_unmap(mapped);
        return NULL;
    }
    package->mapped = *mapped;
    snprintf(package->name, sizeof package->name, "%s", name);
    if (same_names(session, package->model)) return package;
    package_free(package);
    return NULL;
}

/* Notes that the package of this name, or the service where there is none, runs these sizes. `package`: it, where it
 * was not there before; it is taken over. `older`, "" for none: the name of the one whose place it takes. */
static OrtStatus *note(OrtSession *session, const int64_t *sizes, size_t count, const char *name,
                       struct package *package, const char *older) {
    struct natives *natives = session->natives;
    struct plan *made = malloc(sizeof *made + count * sizeof *sizes);
    if (made == NULL) {
        if (package != NULL) package_free(package);
        return status_out_of_memory(sizeof *made);
    }
    lock_take(&session->lock);
    struct package *there = package_named(natives, name);
    if (package != NULL && there == NULL) {
        package->next = natives->packages;
        natives->packages = there = package;
        package = NULL;
    }
    struct plan *plan = plan_of(natives, sizes, count);
    if (plan == NULL) {
        plan = made;
        made = NULL;
        plan->package = NULL;
        plan->count = count;
        memcpy(plan->sizes, sizes, count * sizeof *sizes);
        struct plan **first = bucket(natives, sizes, count);
        plan->next = *first;
        *first = plan;
    }
    if (plan->package != there) move(natives, plan, there);
    struct package *old = there == NULL || older[0] == 0 ? NULL : package_named(natives, older);
    if (old != NULL && old != there) replace(natives, there, old);
    lock_give(&session->lock);
    free(made);
    if (package != NULL) package_free(package);
    return NULL;
}

/* Finding a package ------------------------------------------------------------------------------------------------- */

static bool from_cache(OrtSession *session, const int64_t *sizes, size_t count) {
    struct message entry = {0};
    struct content_key key;
    struct mapped mapped;
    Name name;
    OrtStatus *status = NULL;
    bool found = false;
    if (session->notes[0] == 0) return false;
    cache_note_name(session->notes, sizes, count, name);
    if (cache_read(name, &entry) && cache_key(&key)) {
        const char *file = take_text(&entry, NULL);
        lock_take(&session->lock);
        struct package *there = package_named(session->natives, file);
        if (there != NULL) there->users++;
        lock_give(&session->lock);
        struct package *package = NULL;
        if (there == NULL && strlen(file) < NAME_BYTES && cache_map(&key, file, &mapped))
            package = package_new(session, file, &mapped);
        if (there != NULL || package != NULL) status = note(session, sizes, count, file, package, "");
        found = (there != NULL || package != NULL) && status == NULL;
        if (status != NULL) api_ReleaseStatus(status);
        if (there != NULL) {
            lock_take(&session->lock);
            leave(session->natives, there);
            lock_give(&session->lock);
        }
    }
    message_clear(&entry);
    return found;
}

struct wanted {
    OrtSession *session;
    const int64_t *sizes;
    const size_t *ranks;
    size_t count;
};

static OrtStatus *write_wanted(struct message *request, struct channel *channel, void *argument) {
    struct wanted *wanted = argument;
    size_t inputs = wanted->session->counts[INPUTS], at = 0;
    (void)channel;
    put_int(request, (int64_t)inputs);
    for (size_t i = 0; i < inputs; i++) {
        put_int(request, (int64_t)wanted->ranks[i]);
        for (size_t d = 0; d < wanted->ranks[i]; d++) put_int(request, wanted->sizes[at++]);
    }
    return NULL;
}

/* A package that came by way of the room, in memory of its own. */
static bool copied(struct channel *channel, int64_t at, int64_t size, struct mapped *mapped) {
    const unsigned char *bytes = at < 0 || size <= 0 ? NULL : channel_look(channel, (size_t)at, (size_t)size);
    memset(mapped, 0, sizeof *mapped);
    if (bytes == NULL) return false;
    void *room = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return false;
    mapped->bytes = memcpy(room, bytes, (size_t)size);
    mapped->size = mapped->whole = (size_t)size;
    return true;
}

/* The answer: the package's name, that of the one whose place it takes, why there is none, and where it lies in the
 * room if it could not be kept. */
static OrtStatus *read_package(struct message *answer, struct channel *channel, void *argument) {
    struct wanted *wanted = argument;
    struct content_key key;
    struct mapped mapped;
    struct package *package = NULL;
    const char *name = take_text(answer, NULL), *older = take_text(answer, NULL), *why = take_text(answer, NULL);
    int64_t at = take_int(answer), size = take_int(answer);
    if (answer->broken || strlen(name) >= NAME_BYTES)
        return status_new(ORT_FAIL, "the compile service's answer cannot be read");
    if (name[0] != 0) {
        bool there = at >= 0 ? copied(channel, at, size, &mapped) : cache_key(&key) && cache_map(&key, name, &mapped);
        if (there) package = package_new(wanted->session, name, &mapped);
    } else {
        Logger logger = session_logger(wanted->session);
        LOG(&logger, INFO, "runs in the compile service: %s", why);
    }
    return note(wanted->session, wanted->sizes, wanted->count, package == NULL ? "" : name, package, older);
}

static OrtStatus *from_service(OrtSession *session, const int64_t *sizes, const size_t *ranks, size_t count) {
    struct wanted wanted = {session, sizes, ranks, count};
    struct question question = {ASK_PACKAGE, write_wanted, read_package, &wanted, NULL};
    return session_ask(session, &question);
}

bool natives_prepare(OrtSession *session, bool ask, OrtStatus **status) {
    int64_t sizes[MOST_SIZES];
    size_t ranks[MOST_VALUES], count = 0;
    if (session->counts[INPUTS] > MOST_VALUES) return false;
    for (size_t i = 0; i < session->counts[INPUTS]; i++) {
        const OrtTensorTypeAndShapeInfo *info = session->values[INPUTS][i].type->tensor;
        if (info == NULL || !info->has_shape || count + info->rank > MOST_SIZES) return false;
        ranks[i] = info->rank;
        for (size_t d = 0; d < info->rank; d++) {
            if (info->dims[d] < 0) return false;
            sizes[count++] = info->dims[d];
        }
    }
    if (from_cache(session, sizes, count)) return true;
    if (ask) *status = from_service(session, sizes, ranks, count);
    return ask && *status == NULL;
}

/* Running ----------------------------------------------------------------------------------------------------------- */

static struct ready *ready_new(const OrtSession *session, struct plan *plan, struct package *package,
                               const OrtValue *const *feeds, OrtStatus **status) {
    const int64_t *shapes[MOST_VALUES];
    orthrus_options options = options_of_session(session);
    struct ready *ready = calloc(1, sizeof *ready);
    int code = ready == NULL ? ORTHRUS_NO_MEMORY : orthrus_create(package->model, &options, &ready->context);
    for (size_t i = 0; i < session->counts[INPUTS]; i++) shapes[i] = feeds[i]->dims;
    if (code == ORTHRUS_OK && (code = orthrus_reshape(ready->context, shapes)) != ORTHRUS_OK)
        orthrus_destroy(ready->context);
    if (code != ORTHRUS_OK) {
        free(ready);
        *status = failed(code);
        return NULL;
    }
    ready->plan = plan;
    ready->package = package;
    return ready;
}

/* A context for these sizes; null with a status, or without one where the service is to run them. */
static struct ready *ready_take(OrtSession *session, const int64_t *sizes, const size_t *ranks, size_t count,
                                const OrtValue *const *feeds, OrtStatus **status) {
    struct natives *natives = session->natives;
    for (;;) {
        lock_take(&session->lock);
        struct plan *plan = plan_of(natives, sizes, count);
        struct package *package = plan == NULL ? NULL : plan->package;
        struct ready *ready = package == NULL ? NULL : idle_of(natives, plan);
        if (package != NULL && ready == NULL) package->users++;
        lock_give(&session->lock);
        if (ready != NULL || (plan != NULL && package == NULL)) return ready;
        if (plan != NULL) {
            ready = ready_new(session, plan, package, feeds, status);
            if (ready != NULL) return ready;
            lock_take(&session->lock);
            leave(natives, package);
            lock_give(&session->lock);
            return NULL;
        }
        if (!from_cache(session, sizes, count)) *status = from_service(session, sizes, ranks, count);
        if (*status != NULL) return NULL;
    }
}

static void ready_give(OrtSession *session, struct ready *ready) {
    struct natives *natives = session->natives;
    orthrus_stop_at(ready->context, NULL);
    lock_take(&session->lock);
    ready->next = natives->idle;
    natives->idle = ready;
    natives->idle_count++;
    struct ready **last = &natives->idle;
    if (natives->idle_count > MOST_IDLE) {
        while ((*last)->next != NULL) last = &(*last)->next;
        drop_idle(natives, last);
    }
    lock_give(&session->lock);
}

static bool overlap(const OrtValue *a, const OrtValue *b) {
    const char *first = a->data, *second = b->data;
    return a != b && a->bytes > 0 && b->bytes > 0 && first < second + b->bytes && second < first + a->bytes;
}

/* Whether results may be written to an output's memory while the inputs are read. */
static bool apart(const OrtSession *session, const OrtValue *const *feeds, OrtValue *const *outputs, size_t which) {
    for (size_t i = 0; i < session->counts[INPUTS]; i++) {
        if (feeds[i] == outputs[which] || overlap(feeds[i], outputs[which])) return false;
    }
    for (size_t i = 0; i < session->counts[OUTPUTS]; i++) {
        if (i != which && outputs[i] != NULL && (outputs[i] == outputs[which] || overlap(outputs[i], outputs[which])))
            return false;
    }
    return true;
}

static bool fits(const OrtValue *value, int type, const int64_t *dims, size_t rank) {
    return value->kind == ONNX_TYPE_TENSOR && (int)value->type == type && value->rank == rank &&
           (rank == 0 || memcmp(value->dims, dims, rank * sizeof *dims) == 0);
}

/* Memory for every output: the caller's, new values for those that are asked for, or what is thrown away. */
static OrtStatus *furnish(const OrtSession *session, const struct ready *ready, const OrtValue *const *feeds,
                          OrtValue *const *given, OrtValue **made, void **memory) {
    for (size_t i = 0; i < session->counts[OUTPUTS]; i++) {
        const orthrus_value *output = orthrus_output(ready->package->model, i);
        const int64_t *dims = orthrus_output_shape(ready->context, i);
        if (given[i] != NULL && !fits(given[i], output->type, dims, output->rank))
            return status_new(ORT_INVALID_ARGUMENT, "OrtValue shape verification failed: the tensor given for the output "
                              "'%s' has another type or shape than the result\n  cure: give a tensor like the result, or "
                              "none", output->name);
        if (given[i] == NULL || !apart(session, feeds, given, i))
            RETURN_IF_FAILED(tensor_new(&cpu_allocator, (ONNXTensorElementDataType)output->type, dims, output->rank,
                                        &made[i]));
        memory[i] = made[i] != NULL ? made[i]->data : given[i]->data;
    }
    return NULL;
}

static void hand_out(const OrtSession *session, const bool *asked, OrtValue **outputs, OrtValue **made) {
    for (size_t i = 0; i < session->counts[OUTPUTS]; i++) {
        if (made[i] == NULL || !asked[i]) continue;
        if (outputs[i] == NULL) {
            outputs[i] = made[i];
            made[i] = NULL;
        } else if (made[i]->bytes > 0) {
            memcpy(outputs[i]->data, made[i]->data, made[i]->bytes);
        }
    }
}

static OrtStatus *run_ready(OrtSession *session, struct ready *ready, const OrtValue *const *feeds, const bool *asked,
                            OrtValue **outputs, const Stop *stop, bool *done) {
    const void *in[MOST_VALUES];
    void *out[MOST_VALUES];
    OrtValue *made[MOST_VALUES] = {NULL};
    for (size_t i = 0; i < session->counts[INPUTS]; i++) in[i] = feeds[i]->data;
    OrtStatus *status = furnish(session, ready, feeds, outputs, made, out);
    if (status == NULL && stop != NULL && atomic_load(stop)) status = failed(ORTHRUS_STOPPED);
    if (status == NULL) {
        orthrus_stop_at(ready->context, (const int64_t *)stop);
        int code = orthrus_run(ready->context, in, out);
        *done = code != ORTHRUS_BAD_INDEX && code != ORTHRUS_OUTSIDE && code != ORTHRUS_SHAPE;
        if (code == ORTHRUS_OK)
            hand_out(session, asked, outputs, made);
        else if (*done)
            status = failed(code);
    }
    for (size_t i = 0; i < session->counts[OUTPUTS]; i++) {
        if (made[i] != NULL) api_ReleaseValue(made[i]);
    }
    return status;
}

OrtStatus *natives_run(OrtSession *session, const OrtValue *const *feeds, const bool *asked, OrtValue **outputs,
                       const Stop *stop, bool *done) {
    int64_t sizes[MOST_SIZES];
    size_t ranks[MOST_VALUES], count = 0, inputs = session->counts[INPUTS];
    OrtStatus *status = NULL;
    *done = false;
    if (!session->native || inputs > MOST_VALUES || session->counts[OUTPUTS] > MOST_VALUES) return NULL;
    for (size_t i = 0; i < inputs; i++) {
        size_t rank = session->values[INPUTS][i].type->tensor->rank;
        if (feeds[i]->rank != rank || count + rank > MOST_SIZES) return NULL;
        ranks[i] = feeds[i]->rank;
        for (size_t d = 0; d < feeds[i]->rank; d++) sizes[count++] = feeds[i]->dims[d];
    }
    struct ready *ready = ready_take(session, sizes, ranks, count, feeds, &status);
    *done = status != NULL;
    if (ready == NULL) return status;
    *done = true;
    status = run_ready(session, ready, feeds, asked, outputs, stop, done);
    ready_give(session, ready);
    return status;
}
