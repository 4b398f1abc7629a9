/* What the compile service knows of a session, or of a file, and is asked for when a program asks. */
#include "session.h"
#include "wire.h"

#include <stdlib.h>
#include <string.h>

void put_pairs_of(struct message *message, const char *const *keys, const char *const *values, size_t count) {
    put_int(message, (int64_t)count);
    for (size_t i = 0; i < count; i++) {
        put_text(message, keys[i]);
        put_text(message, values[i]);
    }
}

/* Options of a living session ------------------------------------------------------------------------------------ */

struct pairs {
    const char *const *keys, *const *values;
    size_t count;
};

static OrtStatus *write_pairs(struct message *request, struct channel *channel, void *argument) {
    const struct pairs *pairs = argument;
    (void)channel;
    put_pairs_of(request, pairs->keys, pairs->values, pairs->count);
    return NULL;
}

OrtStatus *api_SetEpDynamicOptions(OrtSession *session, const char *const *keys, const char *const *values,
                                   size_t count) {
    struct pairs pairs = {keys, values, count};
    return session_ask(session, &(struct question){ASK_DYNAMIC_OPTIONS, write_pairs, NULL, &pairs, NULL});
}

OrtStatus *api_SessionReleaseCapturedGraph(OrtSession *session, int annotation) {
    (void)session, (void)annotation; /* none is captured */
    return NULL;
}

/* Which nodes each provider got ------------------------------------------------------------------------------------ */

struct OrtEpAssignedNode {
    char *domain, *op, *name;
};

struct OrtEpAssignedSubgraph {
    char *provider;
    OrtEpAssignedNode **nodes;
    size_t count;
};

struct assigned {
    OrtEpAssignedSubgraph **subgraphs;
    size_t count;
};

static void subgraph_free(OrtEpAssignedSubgraph *subgraph) {
    for (size_t i = 0; i < subgraph->count; i++) {
        free(subgraph->nodes[i]->domain);
        free(subgraph->nodes[i]->op);
        free(subgraph->nodes[i]->name);
        free(subgraph->nodes[i]);
    }
    free(subgraph->nodes);
    free(subgraph->provider);
    free(subgraph);
}

void assigned_free(struct assigned *assigned) {
    if (assigned == NULL) return;
    for (size_t i = 0; i < assigned->count; i++) subgraph_free(assigned->subgraphs[i]);
    free(assigned->subgraphs);
    free(assigned);
}

static bool take_node(struct message *answer, OrtEpAssignedSubgraph *subgraph) {
    OrtEpAssignedNode *node = calloc(1, sizeof *node);
    if (node == NULL || !array_append((void ***)&subgraph->nodes, &subgraph->count, node)) {
        free(node);
        return false;
    }
    node->domain = text_copy(take_text(answer, NULL));
    node->op = text_copy(take_text(answer, NULL));
    node->name = text_copy(take_text(answer, NULL));
    return node->domain != NULL && node->op != NULL && node->name != NULL;
}

static bool take_subgraph(struct message *answer, struct assigned *assigned) {
    OrtEpAssignedSubgraph *subgraph = calloc(1, sizeof *subgraph);
    if (subgraph == NULL || !array_append((void ***)&assigned->subgraphs, &assigned->count, subgraph)) {
        free(subgraph);
        return false;
    }
    subgraph->provider = text_copy(take_text(answer, NULL));
    size_t count = take_count(answer, answer->size);
    for (size_t i = 0; i < count; i++)
        if (!take_node(answer, subgraph)) return false;
    return subgraph->provider != NULL;
}

static OrtStatus *read_assigned(struct message *answer, struct channel *channel, void *argument) {
    struct assigned **out = argument, *assigned = calloc(1, sizeof *assigned);
    (void)channel;
    if (assigned == NULL) return status_out_of_memory(sizeof *assigned);
    size_t count = take_count(answer, answer->size);
    bool whole = true;
    for (size_t i = 0; whole && i < count; i++) whole = take_subgraph(answer, assigned);
    if (whole && !answer->broken) {
        *out = assigned;
        return NULL;
    }
    assigned_free(assigned);
    return status_out_of_memory(answer->size);
}

OrtStatus *api_Session_GetEpGraphAssignmentInfo(const OrtSession *session, const OrtEpAssignedSubgraph *const **out,
                                                size_t *count) {
    OrtSession *asked = (OrtSession *)(uintptr_t)session;
    struct assigned *made = NULL;
    if (atomic_load(&asked->assigned) == NULL) {
        RETURN_IF_FAILED(session_ask(asked, &(struct question){ASK_ASSIGNED, NULL, read_assigned, &made, NULL}));
        struct assigned *none = NULL;
        if (!atomic_compare_exchange_strong(&asked->assigned, &none, made)) assigned_free(made);
    }
    const struct assigned *assigned = atomic_load(&asked->assigned);
    *out = (const OrtEpAssignedSubgraph *const *)assigned->subgraphs;
    *count = assigned->count;
    return NULL;
}

OrtStatus *api_EpAssignedSubgraph_GetEpName(const OrtEpAssignedSubgraph *subgraph, const char **out) {
    *out = subgraph->provider;
    return NULL;
}

OrtStatus *api_EpAssignedSubgraph_GetNodes(const OrtEpAssignedSubgraph *subgraph, const OrtEpAssignedNode *const **out,
                                           size_t *count) {
    *out = (const OrtEpAssignedNode *const *)subgraph->nodes;
    *count = subgraph->count;
    return NULL;
}

OrtStatus *api_EpAssignedNode_GetName(const OrtEpAssignedNode *node, const char **out) {
    *out = node->name;
    return NULL;
}

OrtStatus *api_EpAssignedNode_GetDomain(const OrtEpAssignedNode *node, const char **out) {
    *out = node->domain;
    return NULL;
}

OrtStatus *api_EpAssignedNode_GetOperatorType(const OrtEpAssignedNode *node, const char **out) {
    *out = node->op;
    return NULL;
}

/* Of models and adapters in files or in memory --------------------------------------------------------------------- */

struct file {
    const char *path, *provider;
    const void *bytes;
    size_t size;
    OrtAllocator *allocator;
    char **text;
    OrtLoraAdapter *adapter;
};

static OrtStatus *write_file(struct message *request, struct channel *channel, void *argument) {
    const struct file *file = argument;
    (void)channel;
    put_text(request, file->path);
    put_bytes(request, file->bytes, file->size);
    if (file->provider != NULL) put_text(request, file->provider);
    return NULL;
}

static OrtStatus *read_text(struct message *answer, struct channel *channel, void *argument) {
    const struct file *file = argument;
    (void)channel;
    bool there = take_int(answer) != 0;
    *file->text = NULL;
    return there ? text_to_allocator(file->allocator, take_text(answer, NULL), file->text) : NULL;
}

static OrtStatus *compatibility(struct file file) {
    return service_ask(&(struct question){ASK_COMPATIBILITY, write_file, read_text, &file, NULL});
}

OrtStatus *api_GetCompatibilityInfoFromModel(const ORTCHAR_T *path, const char *provider, OrtAllocator *allocator,
                                             char **out) {
    return compatibility((struct file){path, provider, NULL, 0, allocator, out, NULL});
}

OrtStatus *api_GetCompatibilityInfoFromModelBytes(const void *model, size_t size, const char *provider,
                                                  OrtAllocator *allocator, char **out) {
    return compatibility((struct file){"", provider, model, size, allocator, out, NULL});
}

static OrtStatus *read_adapter(struct message *answer, struct channel *channel, void *argument) {
    OrtLoraAdapter *adapter = ((struct file *)argument)->adapter;
    size_t count = take_count(answer, answer->size);
    adapter->names = calloc(count + 1, sizeof *adapter->names);
    adapter->values = calloc(count + 1, sizeof *adapter->values);
    if (adapter->names == NULL || adapter->values == NULL) return status_out_of_memory(count);
    for (; adapter->count < count; adapter->count++) {
        adapter->names[adapter->count] = text_copy(take_text(answer, NULL));
        if (adapter->names[adapter->count] == NULL) return status_out_of_memory(count);
        OrtStatus *status = wire_take(answer, channel, &adapter->values[adapter->count]);
        if (status == NULL) continue;
        free(adapter->names[adapter->count]);
        return status;
    }
    return NULL;
}

static OrtStatus *adapter_new(struct file file, OrtLoraAdapter **out) {
    OrtLoraAdapter *adapter = file.adapter = calloc(1, sizeof *adapter);
    if (adapter == NULL) return status_out_of_memory(sizeof *adapter);
    atomic_init(&adapter->holders, 1);
    OrtStatus *status = service_ask(&(struct question){ASK_ADAPTER, write_file, read_adapter, &file, NULL});
    if (status == NULL)
        *out = adapter;
    else
        api_ReleaseLoraAdapter(adapter);
    return status;
}

OrtStatus *api_CreateLoraAdapter(const ORTCHAR_T *path, OrtAllocator *allocator, OrtLoraAdapter **out) {
    (void)allocator; /* of a device; the parameters lie on the host */
    return adapter_new((struct file){.path = path}, out);
}

OrtStatus *api_CreateLoraAdapterFromArray(const void *bytes, size_t size, OrtAllocator *allocator,
                                          OrtLoraAdapter **out) {
    (void)allocator;
    return adapter_new((struct file){.path = "", .bytes = bytes, .size = size}, out);
}

void api_ReleaseLoraAdapter(OrtLoraAdapter *adapter) {
    if (adapter == NULL || atomic_fetch_sub(&adapter->holders, 1) != 1) return;
    for (size_t i = 0; i < adapter->count; i++) {
        free(adapter->names[i]);
        api_ReleaseValue(adapter->values[i]);
    }
    free(adapter->names);
    free(adapter->values);
    free(adapter);
}

OrtStatus *api_RunOptionsAddActiveLoraAdapter(OrtRunOptions *options, const OrtLoraAdapter *adapter) {
    OrtLoraAdapter *held = (OrtLoraAdapter *)(uintptr_t)adapter;
    if (!array_append((void ***)&options->adapters, &options->adapter_count, held))
        return status_out_of_memory(sizeof held);
    atomic_fetch_add(&held->holders, 1);
    return NULL;
}
