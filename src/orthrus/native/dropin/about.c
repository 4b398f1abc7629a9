/* What a session says of its model. */
#include "session.h"
#include "wire.h"

#include <stdlib.h>

static OrtStatus *count_of(const OrtSession *session, enum role role, size_t *out) {
    *out = session->counts[role];
    return NULL;
}

static OrtStatus *described(const OrtSession *session, enum role role, size_t index, const struct described **out) {
    if (index >= session->counts[role])
        return status_new(ORT_FAIL, "the index %zu is out of range: there are %zu", index, session->counts[role]);
    *out = &session->values[role][index];
    return NULL;
}

static OrtStatus *name_of(const OrtSession *session, enum role role, size_t index, OrtAllocator *allocator, char **out) {
    const struct described *value = NULL;
    RETURN_IF_FAILED(described(session, role, index, &value));
    return text_to_allocator(allocator, value->name, out);
}

static OrtStatus *type_of(const OrtSession *session, enum role role, size_t index, OrtTypeInfo **out) {
    const struct described *value = NULL;
    RETURN_IF_FAILED(described(session, role, index, &value));
    *out = type_info_copy(value->type);
    return *out == NULL ? status_out_of_memory(sizeof **out) : NULL;
}

OrtStatus *api_SessionGetInputCount(const OrtSession *session, size_t *out) { return count_of(session, INPUTS, out); }

OrtStatus *api_SessionGetOutputCount(const OrtSession *session, size_t *out) { return count_of(session, OUTPUTS, out); }

OrtStatus *api_SessionGetOverridableInitializerCount(const OrtSession *session, size_t *out) {
    return count_of(session, OVERRIDABLE, out);
}

OrtStatus *api_SessionGetInputTypeInfo(const OrtSession *session, size_t index, OrtTypeInfo **out) {
    return type_of(session, INPUTS, index, out);
}

OrtStatus *api_SessionGetOutputTypeInfo(const OrtSession *session, size_t index, OrtTypeInfo **out) {
    return type_of(session, OUTPUTS, index, out);
}

OrtStatus *api_SessionGetOverridableInitializerTypeInfo(const OrtSession *session, size_t index, OrtTypeInfo **out) {
    return type_of(session, OVERRIDABLE, index, out);
}

OrtStatus *api_SessionGetInputName(const OrtSession *session, size_t index, OrtAllocator *allocator, char **out) {
    return name_of(session, INPUTS, index, allocator, out);
}

OrtStatus *api_SessionGetOutputName(const OrtSession *session, size_t index, OrtAllocator *allocator, char **out) {
    return name_of(session, OUTPUTS, index, allocator, out);
}

OrtStatus *api_SessionGetOverridableInitializerName(const OrtSession *session, size_t index, OrtAllocator *allocator,
                                                    char **out) {
    return name_of(session, OVERRIDABLE, index, allocator, out);
}

static OrtModelMetadata *metadata_copy(const OrtModelMetadata *from) {
    OrtModelMetadata *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->producer = text_copy(from->producer);
    made->graph_name = text_copy(from->graph_name);
    made->domain = text_copy(from->domain);
    made->description = text_copy(from->description);
    made->graph_description = text_copy(from->graph_description);
    made->version = from->version;
    pairs_copy(&made->custom, &from->custom);
    if (made->producer && made->graph_name && made->domain && made->description && made->graph_description) return made;
    api_ReleaseModelMetadata(made);
    return NULL;
}

OrtStatus *api_SessionGetModelMetadata(const OrtSession *session, OrtModelMetadata **out) {
    *out = metadata_copy(session->metadata);
    return *out == NULL ? status_out_of_memory(sizeof **out) : NULL;
}

OrtStatus *api_SessionGetOpsetForDomain(const OrtSession *session, const char *domain, int *out) {
    const char *version = pairs_get(&session->opsets, domain);
    if (version == NULL) return status_new(ORT_FAIL, "Domain not used by model.\n  found: '%s'", domain);
    *out = atoi(version);
    return NULL;
}

OrtStatus *api_SessionGetProfilingStartTimeNs(const OrtSession *session, uint64_t *out) {
    *out = (uint64_t)session->profiling_start;
    return NULL;
}

struct named {
    OrtAllocator *allocator;
    char **out;
};

static OrtStatus *read_name(struct message *answer, struct channel *channel, void *argument) {
    const struct named *named = argument;
    (void)channel;
    return text_to_allocator(named->allocator, take_text(answer, NULL), named->out);
}

OrtStatus *api_SessionEndProfiling(OrtSession *session, OrtAllocator *allocator, char **out) {
    if (!session->options->profiling) return text_to_allocator(allocator, "", out);
    struct named named = {allocator, out};
    struct question question = {ASK_END_PROFILING, NULL, read_name, &named, NULL};
    return session_ask(session, &question);
}

static OrtStatus *memory_of(const OrtSession *session, enum role role, const OrtMemoryInfo **out, size_t count) {
    REQUIRE(count == session->counts[role], "there is room for %zu, and there are %zu", count, session->counts[role]);
    for (size_t i = 0; i < count; i++) out[i] = &cpu_memory;
    return NULL;
}

OrtStatus *api_SessionGetMemoryInfoForInputs(const OrtSession *session, const OrtMemoryInfo **out, size_t count) {
    return memory_of(session, INPUTS, out, count);
}

OrtStatus *api_SessionGetMemoryInfoForOutputs(const OrtSession *session, const OrtMemoryInfo **out, size_t count) {
    return memory_of(session, OUTPUTS, out, count);
}
