/* onnx.proto3 as it is written: no more of it than models that a program puts together have. */
#include "editor.h"

#include <stdlib.h>
#include <string.h>

enum { VARINT, LENGTH = 2, FIXED32 = 5 };
static const size_t most = INT32_MAX; /* bytes of a message of protobuf */

void bytes_clear(struct bytes *bytes) {
    free(bytes->data);
    *bytes = (struct bytes){0};
}

static void add(struct bytes *to, const void *data, size_t size) {
    if (to->broken || size > most - to->size) {
        to->broken = true;
        return;
    }
    if (to->size + size > to->capacity) {
        size_t capacity = 2 * (to->size + size) + 64;
        unsigned char *larger = realloc(to->data, capacity);
        to->broken = larger == NULL;
        if (to->broken) return;
        to->data = larger;
        to->capacity = capacity;
    }
    if (size > 0) memcpy(to->data + to->size, data, size);
    to->size += size;
}

static void add_varint(struct bytes *to, uint64_t number) {
    unsigned char bytes[10];
    size_t size = 0;
    for (; number >= 128; number >>= 7) bytes[size++] = (unsigned char)(number | 128);
    bytes[size++] = (unsigned char)number;
    add(to, bytes, size);
}

void field_int(struct bytes *to, unsigned field, int64_t number) {
    add_varint(to, field << 3 | VARINT);
    add_varint(to, (uint64_t)number);
}

void field_float(struct bytes *to, unsigned field, float number) {
    add_varint(to, field << 3 | FIXED32);
    add(to, &number, sizeof number);
}

void field_bytes(struct bytes *to, unsigned field, const void *data, size_t size) {
    add_varint(to, field << 3 | LENGTH);
    add_varint(to, size);
    add(to, data, size);
}

void field_text(struct bytes *to, unsigned field, const char *text) {
    if (text != NULL && text[0] != 0) field_bytes(to, field, text, strlen(text));
}

void field_message(struct bytes *to, unsigned field, struct bytes *inside) {
    if (inside->broken) to->broken = true;
    field_bytes(to, field, inside->data, inside->size);
    bytes_clear(inside);
}

/* Three types were numbered in another order here than in ONNX. */
static int64_t onnx_element(ONNXTensorElementDataType type) {
    switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2: return 25;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2: return 26;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0: return 24;
    default: return type;
    }
}

static void write_shape(struct bytes *to, unsigned field, const OrtTensorTypeAndShapeInfo *info) {
    struct bytes shape = {0};
    for (size_t i = 0; i < info->rank; i++) {
        struct bytes dim = {0};
        if (info->dims[i] >= 0)
            field_int(&dim, 1, info->dims[i]);
        else
            field_text(&dim, 2, info->symbols[i]);
        field_message(&shape, 1, &dim);
    }
    field_message(to, field, &shape);
}

void write_type(struct bytes *to, const OrtTypeInfo *type) {
    static const unsigned fields[] = {[ONNX_TYPE_TENSOR] = 1, [ONNX_TYPE_SEQUENCE] = 4, [ONNX_TYPE_MAP] = 5,
                                      [ONNX_TYPE_SPARSETENSOR] = 8, [ONNX_TYPE_OPTIONAL] = 9};
    struct bytes inside = {0};
    if (type->tensor != NULL) {
        field_int(&inside, 1, onnx_element(type->tensor->type));
        if (type->tensor->has_shape) write_shape(&inside, 2, type->tensor);
    } else {
        struct bytes element = {0};
        if (type->kind == ONNX_TYPE_MAP) field_int(&inside, 1, onnx_element(type->key));
        write_type(&element, type->element);
        field_message(&inside, type->kind == ONNX_TYPE_MAP ? 2 : 1, &element);
    }
    field_message(to, fields[type->kind], &inside);
}

void write_tensor(struct bytes *to, const char *name, const OrtValue *value) {
    for (size_t i = 0; i < value->rank; i++) field_int(to, 1, value->dims[i]);
    field_int(to, 2, onnx_element(value->type));
    field_text(to, 8, name);
    if (value->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        field_bytes(to, 9, value->data, value->bytes);
        return;
    }
    for (size_t i = 0; i < value->count; i++) {
        const Text *text = (const Text *)value->data + i;
        field_bytes(to, 6, text->bytes, text->length);
    }
}
