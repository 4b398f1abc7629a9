/* Runs: names to slots, then a native plan, or the compile service for what has none. */
#define _GNU_SOURCE
#include "session.h"
#include "wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One run. Slots are those of the session; `results`, one for each output that was asked for, in the asker's order,
 * are the asker's own values or null. */
struct run {
    OrtSession *session;
    const OrtRunOptions *options;
    const char *const *input_names;
    const OrtValue *const *inputs;
    size_t input_count;
    const char *const *output_names;
    size_t output_count;
    OrtValue **results;
    int64_t number;
    Logger logger;
};

static size_t slot(const OrtSession *session, enum role role, const char *name, size_t expected) {
    const struct described *values = session->values[role];
    size_t count = session->counts[role];
    if (expected < count && strcmp(values[expected].name, name) == 0) return expected;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(values[i].name, name) == 0) return i;
    }
    return count;
}

static OrtStatus *check_names(const struct run *run) {
    const OrtSession *session = run->session;
    REQUIRE(run->output_count > 0, "At least one output should be requested.");
    for (size_t i = 0; i < run->input_count; i++) {
        const char *name = run->input_names[i];
        REQUIRE(name != NULL && name[0] != 0, "input name cannot be empty");
        REQUIRE(run->inputs[i] != NULL, "NULL input supplied for input %s", name);
        REQUIRE(slot(session, INPUTS, name, i) < session->counts[INPUTS] ||
                    slot(session, OVERRIDABLE, name, 0) < session->counts[OVERRIDABLE],
                "Invalid input name: %s", name);
    }
    for (size_t i = 0; i < run->output_count; i++) {
        const char *name = run->output_names[i];
        REQUIRE(name != NULL && name[0] != 0, "output name cannot be empty");
        REQUIRE(slot(session, OUTPUTS, name, i) < session->counts[OUTPUTS], "Invalid output name: %s", name);
    }
    return NULL;
}

static OrtStatus *wrong_dims(const char *what, const struct described *declared, const OrtValue *value) {
    const OrtTensorTypeAndShapeInfo *info = declared->type->tensor;
    char found[1024] = "";
    for (size_t i = 0; i < info->rank; i++) {
        size_t at = strlen(found);
        if (info->dims[i] >= 0 && value->dims[i] != info->dims[i])
            snprintf(found + at, sizeof found - at, " index: %zu Got: %lld Expected: %lld\n", i,
                     (long long)value->dims[i], (long long)info->dims[i]);
    }
    REQUIRE(found[0] == 0, "Got invalid dimensions for %s: %s for the following indices\n%s Please fix either the "
            "inputs/outputs or the model.", what, declared->name, found);
    return NULL;
}

static const char *kind_name(ONNXType kind) {
    switch (kind) {
    case ONNX_TYPE_TENSOR: return "tensor";
    case ONNX_TYPE_SPARSETENSOR: return "sparse tensor";
    case ONNX_TYPE_SEQUENCE: return "sequence";
    case ONNX_TYPE_MAP: return "map";
    default: return "value of nothing";
    }
}

/* An optional holds what it is declared to hold, bare or wrapped, or nothing. */
static OrtStatus *check_kind(const char *what, const struct described *declared, const OrtValue *value) {
    const OrtTypeInfo *type = declared->type;
    if (type->kind == ONNX_TYPE_OPTIONAL) {
        if (value->kind == ONNX_TYPE_UNKNOWN || (value->kind == ONNX_TYPE_OPTIONAL && value->element_count == 0))
            return NULL;
        if (value->kind == ONNX_TYPE_OPTIONAL) value = value->elements[0];
        type = type->element;
    }
    REQUIRE(value->kind == type->kind, "%s with name: '%s' expected to be of type: %s but received a %s", what,
            declared->name, kind_name(type->kind), kind_name(value->kind));
    return NULL;
}

static OrtStatus *check_value(const char *what, const struct described *declared, const OrtValue *value) {
    const OrtTensorTypeAndShapeInfo *info = declared->type->tensor;
    RETURN_IF_FAILED(check_on_host(value));
    RETURN_IF_FAILED(check_kind(what, declared, value));
    if (info == NULL || declared->type->kind != ONNX_TYPE_TENSOR || value->kind != ONNX_TYPE_TENSOR) return NULL;
    REQUIRE(value->type == info->type, "Unexpected %s data type. Actual: (tensor(%s)) , expected: (tensor(%s))\n"
            "  node: %s '%s'", what, element_name(value->type), element_name(info->type), what, declared->name);
    if (!info->has_shape || info->rank == 0) return NULL; /* as in onnxruntime, a scalar may be of any shape */
    REQUIRE(value->rank == info->rank, "Invalid rank for %s: %s Got: %zu Expected: %zu Please fix "
            "either the inputs/outputs or the model.", what, declared->name, value->rank, info->rank);
    return wrong_dims(what, declared, value);
}

/* In the compile service -------------------------------------------------------------------------------------------- */

static bool profiled(const OrtRunOptions *options) { return options != NULL && options->profiling; }

static OrtStatus *write_run(struct message *request, struct channel *channel, void *argument) {
    const struct run *run = argument;
    const OrtRunOptions *options = run->options;
    size_t size = 0, at = 0;
    unsigned char *room = NULL;
    for (size_t i = 0; i < run->input_count; i++) size += wire_room(run->inputs[i]);
    if (size > 0) RETURN_IF_FAILED(channel_room(channel, size, &room));
    put_int(request, run->number);
    put_int(request, run->logger.severity);
    put_text(request, options == NULL ? "" : options->tag);
    put_text(request, profiled(options) ? options->profile_prefix : "");
    static const OrtKeyValuePairs no_entries;
    const OrtKeyValuePairs *entries = options == NULL ? &no_entries : &options->config;
    put_pairs_of(request, (const char *const *)entries->keys, (const char *const *)entries->values, entries->count);
    put_int(request, (int64_t)run->output_count);
    for (size_t i = 0; i < run->output_count; i++) put_text(request, run->output_names[i]);
    put_int(request, (int64_t)run->input_count);
    for (size_t i = 0; i < run->input_count; i++) {
        put_text(request, run->input_names[i]);
        RETURN_IF_FAILED(wire_put(request, run->inputs[i], room, &at));
    }
    return NULL;
}

static OrtStatus *handed_to(OrtValue *given, const OrtValue *made, const char *name) {
    bool alike = made != NULL && made->kind == ONNX_TYPE_TENSOR && given->kind == ONNX_TYPE_TENSOR &&
                 made->type == given->type && made->rank == given->rank &&
                 (made->rank == 0 || memcmp(made->dims, given->dims, made->rank * sizeof *made->dims) == 0);
    REQUIRE(alike, "OrtValue shape verification failed: the value given for the output '%s' has another type or shape "
            "than the result\n  cure: give a tensor like the result, or none", name);
    return tensor_copy(given, made);
}

static OrtStatus *read_run(struct message *answer, struct channel *channel, void *argument) {
    struct run *run = argument;
    OrtValue **made = calloc(run->output_count, sizeof *made);
    OrtStatus *status = made == NULL ? status_out_of_memory(run->output_count * sizeof *made) : NULL;
    for (size_t i = 0; status == NULL && i < run->output_count; i++) {
        const OrtSession *session = run->session;
        size_t which = slot(session, OUTPUTS, run->output_names[i], i);
        status = wire_take(answer, channel, &made[i]);
        if (status == NULL) status = value_declare(made[i], session->values[OUTPUTS][which].type);
        if (status == NULL && run->results[i] != NULL)
            status = handed_to(run->results[i], made[i], run->output_names[i]);
    }
    for (size_t i = 0; made != NULL && i < run->output_count; i++) {
        if (status == NULL && run->results[i] == NULL)
            run->results[i] = made[i];
        else if (made[i] != NULL)
            api_ReleaseValue(made[i]);
    }
    free(made);
    return status;
}

static OrtStatus *run_in_service(struct run *run) {
    static atomic_llong runs;
    run->number = atomic_fetch_add(&runs, 1) + 1;
    struct listening listening = {&run->logger, run->options == NULL ? NULL : &run->options->terminate, run->number};
    struct question question = {ASK_RUN, write_run, read_run, run, &listening};
    return session_ask(run->session, &question);
}

/* Natively ------------------------------------------------------------------------------------------------------------ */

enum { SLOTS = 16 };

/* What natives_run takes, in the session's order. */
struct slots {
    const OrtValue **feeds;
    OrtValue **results;
    bool *asked;
};

/* Whether all of the run is dense tensors of the host, each input fed and each output asked for once. */
static bool plain(const struct run *run, const struct slots *slots) {
    const OrtSession *session = run->session;
    for (size_t i = 0; i < run->input_count; i++) {
        size_t which = slot(session, INPUTS, run->input_names[i], i);
        if (which >= session->counts[INPUTS] || slots->feeds[which] != NULL ||
            run->inputs[i]->kind != ONNX_TYPE_TENSOR)
            return false;
        slots->feeds[which] = run->inputs[i];
    }
    for (size_t i = 0; i < run->output_count; i++) {
        size_t which = slot(session, OUTPUTS, run->output_names[i], i);
        OrtValue *given = run->results[i];
        if (slots->asked[which] || (given != NULL && given->kind != ONNX_TYPE_TENSOR)) return false;
        slots->asked[which] = true;
        slots->results[which] = given;
    }
    for (size_t i = 0; i < session->counts[INPUTS]; i++) {
        if (slots->feeds[i] == NULL) return false;
    }
    return true;
}

static OrtStatus *run_natively(struct run *run, const struct slots *slots, bool *done) {
    *done = false;
    if (!plain(run, slots)) return NULL;
    const Stop *stop = run->options == NULL ? NULL : &run->options->terminate;
    RETURN_IF_FAILED(natives_run(run->session, slots->feeds, slots->asked, slots->results, stop, done));
    if (!*done) return NULL;
    for (size_t i = 0; i < run->output_count; i++)
        run->results[i] = slots->results[slot(run->session, OUTPUTS, run->output_names[i], i)];
    return NULL;
}

static OrtStatus *run_with_slots(struct run *run, bool *done) {
    const OrtSession *session = run->session;
    size_t inputs = session->counts[INPUTS], outputs = session->counts[OUTPUTS];
    const OrtValue *few_feeds[SLOTS] = {NULL};
    OrtValue *few_results[SLOTS] = {NULL};
    bool few_asked[SLOTS] = {false};
    if (inputs <= SLOTS && outputs <= SLOTS)
        return run_natively(run, &(struct slots){few_feeds, few_results, few_asked}, done);
    struct slots many = {calloc(inputs + 1, sizeof *many.feeds), calloc(outputs + 1, sizeof *many.results),
                         calloc(outputs + 1, sizeof *many.asked)};
    OrtStatus *status = many.feeds == NULL || many.results == NULL || many.asked == NULL
                            ? status_out_of_memory(inputs + outputs)
                            : run_natively(run, &many, done);
    free(many.feeds);
    free(many.results);
    free(many.asked);
    return status;
}

static bool adapted(const OrtRunOptions *options, const char *name) {
    for (size_t i = 0; i < options->adapter_count; i++) {
        for (size_t k = 0; k < options->adapters[i]->count; k++) {
            if (strcmp(options->adapters[i]->names[k], name) == 0) return true;
        }
    }
    return false;
}

static OrtStatus *execute_fed(struct run *run);

/* A run fed with what its adapters hold as well, which goes before the caller's inputs of these names. */
static OrtStatus *execute(struct run *run) {
    const OrtRunOptions *options = run->options;
    if (options == NULL || options->adapter_count == 0) return execute_fed(run);
    size_t most = run->input_count, count = 0;
    for (size_t i = 0; i < options->adapter_count; i++) most += options->adapters[i]->count;
    const char **names = calloc(most + 1, sizeof *names);
    const OrtValue **values = calloc(most + 1, sizeof *values);
    OrtStatus *status = names == NULL || values == NULL ? status_out_of_memory(most) : NULL;
    for (size_t i = 0; status == NULL && i < run->input_count; i++) {
        if (run->input_names[i] != NULL && adapted(options, run->input_names[i])) continue;
        names[count] = run->input_names[i];
        values[count++] = run->inputs[i];
    }
    for (size_t i = 0; status == NULL && i < options->adapter_count; i++) {
        for (size_t k = 0; k < options->adapters[i]->count; k++) {
            names[count] = options->adapters[i]->names[k];
            values[count++] = options->adapters[i]->values[k];
        }
    }
    if (status == NULL) {
        run->input_names = names;
        run->inputs = values;
        run->input_count = count;
        status = execute_fed(run);
    }
    free(names);
    free(values);
    return status;
}

static OrtStatus *execute_fed(struct run *run) {
    const OrtSession *session = run->session;
    bool done = false;
    if (run->options != NULL) RETURN_IF_FAILED(check_severity("run", run->options->severity));
    RETURN_IF_FAILED(check_names(run));
    if (run->options != NULL && atomic_load(&run->options->terminate))
        return status_new(ORT_FAIL, "Exiting due to terminate flag being set to true.");
    for (size_t i = 0; i < run->input_count; i++) {
        size_t which = slot(session, INPUTS, run->input_names[i], i);
        const struct described *declared =
            which < session->counts[INPUTS]
                ? &session->values[INPUTS][which]
                : &session->values[OVERRIDABLE][slot(session, OVERRIDABLE, run->input_names[i], 0)];
        RETURN_IF_FAILED(check_value("input", declared, run->inputs[i]));
    }
    for (size_t i = 0; i < run->output_count; i++) {
        size_t which = slot(session, OUTPUTS, run->output_names[i], i);
        if (run->results[i] != NULL)
            RETURN_IF_FAILED(check_value("output", &session->values[OUTPUTS][which], run->results[i]));
    }
    LogId id;
    OrtStatus *status = session->native && !profiled(run->options) ? run_with_slots(run, &done) : NULL;
    bool native = done || status != NULL;
    if (native && status == NULL && run->options == NULL) return NULL;
    run->logger = run_logger(session, run->options, id);
    if (!native)
        status = run_in_service(run);
    else if (run->options != NULL && run->options->tag[0] != 0)
        LOG(&run->logger, INFO, "Running with tag: %s", run->options->tag);
    if (status != NULL) LOG(&run->logger, ERROR, "%s", api_GetErrorMessage(status));
    return status;
}

OrtStatus *api_Run(OrtSession *session, const OrtRunOptions *options, const char *const *input_names,
                   const OrtValue *const *inputs, size_t input_count, const char *const *output_names,
                   size_t output_count, OrtValue **outputs) {
    struct run run = {session, options, input_names, inputs, input_count, output_names, output_count, outputs, 0, {0}};
    return execute(&run);
}

/* On what is bound ---------------------------------------------------------------------------------------------------- */

OrtStatus *api_RunWithBinding(OrtSession *session, const OrtRunOptions *options, const OrtIoBinding *binding) {
    size_t inputs = binding->input_count, outputs = binding->output_count;
    const char **names = calloc(inputs + outputs + 1, sizeof *names);
    OrtValue **values = calloc(inputs + outputs + 1, sizeof *values);
    OrtStatus *status = names == NULL || values == NULL ? status_out_of_memory(inputs + outputs) : NULL;
    for (size_t i = 0; status == NULL && i < inputs; i++) {
        names[i] = binding->inputs[i].name;
        values[i] = binding->inputs[i].value;
    }
    for (size_t i = 0; status == NULL && i < outputs; i++) {
        names[inputs + i] = binding->outputs[i].name;
        values[inputs + i] = binding->outputs[i].memory == NULL ? binding->outputs[i].value : NULL;
    }
    if (status == NULL)
        status = api_Run(session, options, names, (const OrtValue *const *)values, inputs, names + inputs, outputs,
                         values + inputs);
    for (size_t i = 0; status == NULL && i < outputs; i++) {
        Binding *output = &binding->outputs[i];
        if (output->memory == NULL) continue;
        if (output->value != NULL) api_ReleaseValue(output->value);
        output->value = values[inputs + i];
    }
    free(names);
    free(values);
    return status;
}

/* On another thread --------------------------------------------------------------------------------------------------- */

struct later {
    struct run run;
    RunAsyncCallbackFn callback;
    void *user;
    const void *names[];
};

static void *run_later(void *argument) {
    struct later *later = argument;
    OrtStatus *status = execute(&later->run);
    later->callback(later->user, later->run.results, status == NULL ? later->run.output_count : 0, status);
    free(later);
    return NULL;
}

OrtStatus *api_RunAsync(OrtSession *session, const OrtRunOptions *options, const char *const *input_names,
                        const OrtValue *const *inputs, size_t input_count, const char *const *output_names,
                        size_t output_count, OrtValue **outputs, RunAsyncCallbackFn callback, void *user) {
    struct later *later = malloc(sizeof *later + (2 * input_count + output_count) * sizeof *later->names);
    if (later == NULL) return status_out_of_memory(sizeof *later);
    const void **names = later->names;
    memcpy(names, input_names, input_count * sizeof *names);
    memcpy(names + input_count, inputs, input_count * sizeof *names);
    memcpy(names + 2 * input_count, output_names, output_count * sizeof *names);
    later->run = (struct run){session, options, (const char *const *)names,
                              (const OrtValue *const *)(names + input_count), input_count,
                              (const char *const *)(names + 2 * input_count), output_count, outputs, 0, {0}};
    later->callback = callback;
    later->user = user;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int error = pthread_create(&thread, &attributes, run_later, later);
    pthread_attr_destroy(&attributes);
    if (error == 0) return NULL;
    free(later);
    return status_new(ORT_FAIL, "no thread for RunAsync: %s", strerror(error));
}
