/* Models that a program puts together, written as ONNX and opened as any other. Who adds something to a graph or a
 * model gives it away. */
#include "editor.h"

#include <stdlib.h>
#include <string.h>

enum { IR_VERSION = 10 };

struct OrtNode {
    struct bytes written; /* a NodeProto */
};

struct OrtGraph {
    struct bytes nodes; /* fields of a GraphProto */
    struct bytes initializers;
    OrtValueInfo **inputs, **outputs;
    size_t input_count, output_count;
};

struct OrtModel {
    struct bytes opsets; /* fields of a ModelProto */
    OrtGraph *graph;
};

static OrtStatus *whole(const struct bytes *bytes) {
    if (!bytes->broken) return NULL;
    return status_new(ORT_FAIL, "there is no memory for the model, or it has more than 2 GiB");
}

OrtStatus *api_CreateNode(const char *op, const char *domain, const char *name, const char *const *inputs,
                          size_t input_count, const char *const *outputs, size_t output_count,
                          OrtOpAttr **attributes, size_t attribute_count, OrtNode **out) {
    REQUIRE(op[0] != 0, "operator_name cannot be null or empty");
    OrtNode *node = calloc(1, sizeof *node);
    if (node == NULL) return status_out_of_memory(sizeof *node);
    for (size_t i = 0; i < input_count; i++) field_bytes(&node->written, 1, inputs[i], strlen(inputs[i]));
    for (size_t i = 0; i < output_count; i++) field_bytes(&node->written, 2, outputs[i], strlen(outputs[i]));
    field_text(&node->written, 3, name);
    field_text(&node->written, 4, op);
    for (size_t i = 0; i < attribute_count; i++) {
        struct bytes inside = {0};
        write_attribute(&inside, attributes[i]);
        field_message(&node->written, 5, &inside);
    }
    field_text(&node->written, 7, domain);
    OrtStatus *status = whole(&node->written);
    if (status != NULL) {
        api_ReleaseNode(node);
        return status;
    }
    for (size_t i = 0; i < attribute_count; i++) {
        api_ReleaseOpAttr(attributes[i]);
        attributes[i] = NULL;
    }
    *out = node;
    return NULL;
}

void api_ReleaseNode(OrtNode *node) {
    if (node == NULL) return;
    bytes_clear(&node->written);
    free(node);
}

OrtStatus *api_CreateGraph(OrtGraph **out) {
    *out = calloc(1, sizeof **out);
    return *out == NULL ? status_out_of_memory(sizeof **out) : NULL;
}

static void infos_clear(OrtValueInfo ***infos, size_t *count) {
    for (size_t i = 0; i < *count; i++) api_ReleaseValueInfo((*infos)[i]);
    free(*infos);
    *infos = NULL;
    *count = 0;
}

void api_ReleaseGraph(OrtGraph *graph) {
    if (graph == NULL) return;
    bytes_clear(&graph->nodes);
    bytes_clear(&graph->initializers);
    infos_clear(&graph->inputs, &graph->input_count);
    infos_clear(&graph->outputs, &graph->output_count);
    free(graph);
}

static OrtStatus *infos_set(OrtValueInfo ***infos, size_t *count, OrtValueInfo **taken, size_t number) {
    OrtValueInfo **copies = calloc(number + 1, sizeof *copies);
    if (copies == NULL) return status_out_of_memory(number * sizeof *copies);
    infos_clear(infos, count);
    for (size_t i = 0; i < number; i++) {
        copies[i] = taken[i];
        taken[i] = NULL;
    }
    *infos = copies;
    *count = number;
    return NULL;
}

OrtStatus *api_SetGraphInputs(OrtGraph *graph, OrtValueInfo **inputs, size_t count) {
    return infos_set(&graph->inputs, &graph->input_count, inputs, count);
}

OrtStatus *api_SetGraphOutputs(OrtGraph *graph, OrtValueInfo **outputs, size_t count) {
    return infos_set(&graph->outputs, &graph->output_count, outputs, count);
}

OrtStatus *api_AddInitializerToGraph(OrtGraph *graph, const char *name, OrtValue *tensor, bool external) {
    struct bytes inside = {0};
    REQUIRE(name[0] != 0, "name cannot be null or empty");
    REQUIRE(tensor->kind == ONNX_TYPE_TENSOR, "Only Tensor is currently supported.");
    REQUIRE(!external || tensor->allocator == NULL, "the data of an initializer that is external has to be the "
            "caller's: CreateTensorWithDataAsOrtValue makes such a tensor");
    RETURN_IF_FAILED(check_on_host(tensor));
    write_tensor(&inside, name, tensor);
    field_message(&graph->initializers, 5, &inside);
    RETURN_IF_FAILED(whole(&graph->initializers));
    api_ReleaseValue(tensor);
    return NULL;
}

OrtStatus *api_AddNodeToGraph(OrtGraph *graph, OrtNode *node) {
    field_message(&graph->nodes, 1, &node->written);
    RETURN_IF_FAILED(whole(&graph->nodes));
    api_ReleaseNode(node);
    return NULL;
}

OrtStatus *api_CreateModel(const char *const *domains, const int *versions, size_t count, OrtModel **out) {
    OrtModel *model = calloc(1, sizeof *model);
    if (model == NULL) return status_out_of_memory(sizeof *model);
    for (size_t i = 0; i < count; i++) {
        struct bytes inside = {0};
        field_text(&inside, 1, domains[i]);
        field_int(&inside, 2, versions[i]);
        field_message(&model->opsets, 8, &inside);
    }
    OrtStatus *status = whole(&model->opsets);
    if (status == NULL)
        *out = model;
    else
        api_ReleaseModel(model);
    return status;
}

void api_ReleaseModel(OrtModel *model) {
    if (model == NULL) return;
    bytes_clear(&model->opsets);
    api_ReleaseGraph(model->graph);
    free(model);
}

OrtStatus *api_AddGraphToModel(OrtModel *model, OrtGraph *graph) {
    api_ReleaseGraph(model->graph);
    model->graph = graph;
    return NULL;
}

static void append(struct bytes *to, const struct bytes *fields) {
    if (to->broken || fields->size == 0) return;
    if (to->size + fields->size > to->capacity) {
        unsigned char *larger = realloc(to->data, to->size + fields->size);
        to->broken = larger == NULL;
        if (to->broken) return;
        to->data = larger;
        to->capacity = to->size + fields->size;
    }
    memcpy(to->data + to->size, fields->data, fields->size);
    to->size += fields->size;
}

static void write_infos(struct bytes *to, unsigned field, OrtValueInfo *const *infos, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct bytes inside = {0};
        write_value_info(&inside, infos[i]);
        field_message(to, field, &inside);
    }
}

OrtStatus *model_written(const OrtModel *model, struct bytes *made) {
    const OrtGraph *graph = model->graph;
    struct bytes inside = {0};
    REQUIRE(graph != NULL, "the model has no graph\n  cure: AddGraphToModel gives it one");
    field_text(&inside, 2, "model_editor");
    append(&inside, &graph->nodes);
    append(&inside, &graph->initializers);
    write_infos(&inside, 11, graph->inputs, graph->input_count);
    write_infos(&inside, 12, graph->outputs, graph->output_count);
    field_int(made, 1, IR_VERSION);
    append(made, &model->opsets);
    field_message(made, 7, &inside);
    OrtStatus *status = whole(made);
    if (status != NULL) bytes_clear(made);
    return status;
}

OrtStatus *api_CreateSessionFromModel(const OrtEnv *env, const OrtModel *model, const OrtSessionOptions *options,
                                      OrtSession **out) {
    struct bytes made = {0};
    RETURN_IF_FAILED(model_written(model, &made));
    OrtStatus *status = api_CreateSessionFromArray(env, made.data, made.size, options, out);
    bytes_clear(&made);
    return status;
}
