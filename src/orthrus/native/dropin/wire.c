#include "wire.h"

#include <stdlib.h>
#include <string.h>

enum { INLINE_BYTES = 4096, LINE = 64, DEEPEST = 16 };

static size_t lined(size_t size) { return (size + LINE - 1) / LINE * LINE; }

static bool in_room(const OrtValue *value) {
    return value->kind == ONNX_TYPE_TENSOR && value->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING &&
           value->bytes > INLINE_BYTES;
}

size_t wire_room(const OrtValue *value) {
    if (value == NULL) return 0;
    size_t size = in_room(value) ? lined(value->bytes) : 0;
    for (size_t i = 0; i < value->element_count; i++) size += wire_room(value->elements[i]);
    return size;
}

static void put_tensor(struct message *message, const OrtValue *value, unsigned char *room, size_t *at) {
    put_int(message, value->type);
    put_int(message, (int64_t)value->rank);
    for (size_t i = 0; i < value->rank; i++) put_int(message, value->dims[i]);
    if (value->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        const Text *texts = value->data;
        put_int(message, (int64_t)value->count);
        for (size_t i = 0; i < value->count; i++) put_bytes(message, texts[i].bytes, texts[i].length);
        return;
    }
    bool apart = room != NULL && in_room(value);
    put_int(message, apart ? (int64_t)*at : -1);
    put_int(message, (int64_t)value->bytes);
    if (!apart) {
        put_bytes(message, value->data, value->bytes);
        return;
    }
    memcpy(room + *at, value->data, value->bytes);
    *at += lined(value->bytes);
}

static OrtStatus *put_sparse(struct message *message, const OrtValue *value) {
    const OrtValue *values;
    OrtValue *indices;
    RETURN_IF_FAILED(sparse_coordinates(value, &values, &indices));
    put_int(message, ONNX_TYPE_SPARSETENSOR);
    put_int(message, (int64_t)value->rank);
    for (size_t i = 0; i < value->rank; i++) put_int(message, value->dims[i]);
    put_int(message, ONNX_TYPE_TENSOR);
    put_tensor(message, values, NULL, NULL);
    put_int(message, ONNX_TYPE_TENSOR);
    put_tensor(message, indices, NULL, NULL);
    api_ReleaseValue(indices);
    return NULL;
}

OrtStatus *wire_put(struct message *message, const OrtValue *value, unsigned char *room, size_t *at) {
    if (value == NULL || (value->kind == ONNX_TYPE_OPTIONAL && value->element_count == 0)) {
        put_int(message, ONNX_TYPE_UNKNOWN);
        return NULL;
    }
    if (value->kind == ONNX_TYPE_OPTIONAL) return wire_put(message, value->elements[0], room, at);
    if (value->kind == ONNX_TYPE_TENSOR) {
        put_int(message, value->kind);
        put_tensor(message, value, room, at);
        return NULL;
    }
    if (value->kind == ONNX_TYPE_SPARSETENSOR) return put_sparse(message, value);
    REQUIRE(value->kind == ONNX_TYPE_SEQUENCE || value->kind == ONNX_TYPE_MAP, "a value that is empty cannot be fed");
    put_int(message, value->kind);
    if (value->kind == ONNX_TYPE_SEQUENCE) put_int(message, (int64_t)value->element_count);
    for (size_t i = 0; i < value->element_count; i++)
        RETURN_IF_FAILED(wire_put(message, value->elements[i], room, at));
    return NULL;
}

OrtStatus *wire_put_whole(struct message *message, const OrtValue *value) {
    size_t at = 0;
    return wire_put(message, value, NULL, &at);
}

static OrtStatus *unreadable(void) { return status_new(ORT_FAIL, "the compile service's answer cannot be read"); }

static OrtStatus *take_texts(struct message *message, OrtValue *value) {
    Text *texts = value->data;
    size_t count = take_count(message, message->size);
    if (count != value->count) return unreadable();
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *bytes = take_text(message, &length);
        RETURN_IF_FAILED(text_set(&texts[i], bytes, length));
    }
    return message->broken ? unreadable() : NULL;
}

static OrtStatus *take_data(struct message *message, struct channel *channel, OrtValue *value) {
    int64_t at = take_int(message), size = take_int(message);
    size_t length = 0;
    const void *from = NULL;
    if (at < 0)
        from = take_text(message, &length);
    else if (size >= 0 && (from = channel_look(channel, (size_t)at, (size_t)size)) != NULL)
        length = (size_t)size;
    if (message->broken || from == NULL || length != value->bytes) return unreadable();
    if (length > 0) memcpy(value->data, from, length);
    return NULL;
}

static OrtStatus *take_tensor(struct message *message, struct channel *channel, OrtValue **value) {
    int64_t dims[64];
    ONNXTensorElementDataType type = (ONNXTensorElementDataType)take_int(message);
    size_t rank = take_count(message, sizeof dims / sizeof *dims);
    for (size_t i = 0; i < rank; i++) dims[i] = take_int(message);
    if (message->broken) return unreadable();
    RETURN_IF_FAILED(tensor_new(&cpu_allocator, type, dims, rank, value));
    OrtStatus *status = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING ? take_texts(message, *value)
                                                                      : take_data(message, channel, *value);
    if (status != NULL) {
        api_ReleaseValue(*value);
        *value = NULL;
    }
    return status;
}

static OrtStatus *take_value(struct message *message, struct channel *channel, int depth, OrtValue **value);

static OrtStatus *take_elements(struct message *message, struct channel *channel, int depth, ONNXType kind,
                                OrtValue **value) {
    size_t count = kind == ONNX_TYPE_MAP ? 2 : take_count(message, message->size), made = 0;
    OrtValue **elements = calloc(count + 1, sizeof *elements);
    OrtStatus *status = elements == NULL ? status_out_of_memory(count * sizeof *elements) : NULL;
    while (status == NULL && made < count) {
        status = take_value(message, channel, depth + 1, &elements[made]);
        if (status == NULL) made++;
    }
    if (status == NULL) status = container_new(kind, elements, count, value);
    for (size_t i = 0; i < made; i++) api_ReleaseValue(elements[i]);
    free(elements);
    return status;
}

static OrtStatus *take_sparse(struct message *message, struct channel *channel, OrtValue **value) {
    int64_t dims[64];
    OrtValue *parts[2] = {NULL, NULL};
    OrtStatus *status = NULL;
    size_t rank = take_count(message, sizeof dims / sizeof *dims);
    for (size_t i = 0; i < rank; i++) dims[i] = take_int(message);
    for (int i = 0; i < 2 && status == NULL; i++)
        status = take_int(message) == ONNX_TYPE_TENSOR ? take_tensor(message, channel, &parts[i]) : unreadable();
    if (status == NULL && (parts[1]->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 || parts[1]->rank != 2 ||
                           parts[1]->count != parts[0]->count * rank))
        status = unreadable();
    if (status == NULL) status = sparse_new(dims, rank, parts[0], parts[1], value);
    api_ReleaseValue(parts[0]);
    api_ReleaseValue(parts[1]);
    return status;
}

static OrtStatus *take_value(struct message *message, struct channel *channel, int depth, OrtValue **value) {
    ONNXType kind = (ONNXType)take_int(message);
    *value = NULL;
    if (message->broken || depth > DEEPEST) return unreadable();
    switch (kind) {
    case ONNX_TYPE_UNKNOWN: return depth == 0 ? NULL : unreadable();
    case ONNX_TYPE_TENSOR: return take_tensor(message, channel, value);
    case ONNX_TYPE_SEQUENCE:
    case ONNX_TYPE_MAP: return take_elements(message, channel, depth, kind, value);
    case ONNX_TYPE_SPARSETENSOR: return take_sparse(message, channel, value);
    default: return unreadable();
    }
}

OrtStatus *wire_take(struct message *message, struct channel *channel, OrtValue **value) {
    return take_value(message, channel, 0, value);
}

static OrtTypeInfo *take_tensor_type(struct message *message) {
    int64_t dims[64];
    const char *symbols[64];
    ONNXTensorElementDataType type = (ONNXTensorElementDataType)take_int(message);
    int64_t rank = take_int(message);
    if (rank > 64) return NULL;
    for (int64_t i = 0; i < rank; i++) {
        dims[i] = take_int(message);
        symbols[i] = take_text(message, NULL);
    }
    if (message->broken) return NULL;
    OrtTensorTypeAndShapeInfo *info = shape_info_new(type, dims, symbols, rank < 0 ? 0 : (size_t)rank);
    if (info == NULL) return NULL;
    info->has_shape = rank >= 0;
    return type_info_tensor(info);
}

static OrtTypeInfo *take_type(struct message *message, int depth) {
    ONNXType kind = (ONNXType)take_int(message);
    if (message->broken || depth > DEEPEST) return NULL;
    if (kind == ONNX_TYPE_TENSOR || kind == ONNX_TYPE_SPARSETENSOR) {
        OrtTypeInfo *made = take_tensor_type(message);
        if (made != NULL) made->kind = kind;
        return made;
    }
    ONNXTensorElementDataType key = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    if (kind == ONNX_TYPE_MAP) key = (ONNXTensorElementDataType)take_int(message);
    if (kind != ONNX_TYPE_MAP && kind != ONNX_TYPE_SEQUENCE && kind != ONNX_TYPE_OPTIONAL) return NULL;
    OrtTypeInfo *inner = take_type(message, depth + 1);
    if (inner == NULL) return NULL;
    return kind == ONNX_TYPE_MAP        ? type_info_map(key, inner)
           : kind == ONNX_TYPE_SEQUENCE ? type_info_sequence(inner)
                                        : type_info_optional(inner);
}

OrtTypeInfo *wire_take_type(struct message *message) { return take_type(message, 0); }
