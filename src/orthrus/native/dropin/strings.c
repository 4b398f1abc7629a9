/* Tensors of strings, and maps, whose keys are sorted. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

OrtStatus *text_set(Text *text, const char *bytes, size_t length) {
    char *copy = malloc(length + 1);
    if (copy == NULL) return status_out_of_memory(length + 1);
    if (bytes != NULL)
        memcpy(copy, bytes, length);
    else
        memset(copy, 0, length);
    copy[length] = 0;
    free(text->bytes);
    text->bytes = copy;
    text->length = length;
    return NULL;
}

static OrtStatus *texts_of(const OrtValue *value, Text **out) {
    if (value->kind != ONNX_TYPE_TENSOR || value->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING)
        return status_new(ORT_FAIL,
                          "Tensor type mismatch: a tensor of strings is expected, this is one of %s",
                          element_name(value->type));
    *out = value->data;
    return NULL;
}

OrtStatus *api_FillStringTensor(OrtValue *value, const char *const *texts, size_t count) {
    Text *elements;
    RETURN_IF_FAILED(texts_of(value, &elements));
    REQUIRE(count == value->count, "input array doesn't equal tensor size");
    for (size_t i = 0; i < count; i++) {
        REQUIRE(texts[i] != NULL, "FillStringTensor: texts[%zu] must not be null", i);
        RETURN_IF_FAILED(text_set(&elements[i], texts[i], strlen(texts[i])));
    }
    return NULL;
}

OrtStatus *api_FillStringTensorElement(OrtValue *value, const char *text, size_t index) {
    Text *elements;
    RETURN_IF_FAILED(texts_of(value, &elements));
    REQUIRE(index < value->count, "element index is out of bounds");
    return text_set(&elements[index], text, strlen(text));
}

OrtStatus *api_GetResizedStringTensorElementBuffer(OrtValue *value, size_t index, size_t length, char **out) {
    Text *elements;
    RETURN_IF_FAILED(texts_of(value, &elements));
    REQUIRE(index < value->count, "element index is out of bounds");
    RETURN_IF_FAILED(text_set(&elements[index], NULL, length));
    *out = elements[index].bytes;
    return NULL;
}

static size_t whole_length(const Text *elements, size_t count) {
    size_t length = 0;
    for (size_t i = 0; i < count; i++) length += elements[i].length;
    return length;
}

OrtStatus *api_GetStringTensorDataLength(const OrtValue *value, size_t *out) {
    Text *elements;
    RETURN_IF_FAILED(texts_of(value, &elements));
    *out = whole_length(elements, value->count);
    return NULL;
}

OrtStatus *api_GetStringTensorContent(const OrtValue *value, void *bytes, size_t size, size_t *offsets,
                                      size_t count) {
    Text *elements;
    RETURN_IF_FAILED(texts_of(value, &elements));
    if (count != value->count) return status_new(ORT_FAIL, "offsets buffer is not equal to tensor size");
    if (size < whole_length(elements, count))
        return status_new(ORT_FAIL, "output buffer is too small. Use GetStringTensorDataLength.");
    size_t end = 0;
    for (size_t i = 0; i < count; i++) {
        offsets[i] = end;
        if (elements[i].length != 0) memcpy((char *)bytes + end, elements[i].bytes, elements[i].length);
        end += elements[i].length;
    }
    return NULL;
}

OrtStatus *api_GetStringTensorElementLength(const OrtValue *value, size_t index, size_t *out) {
    Text *elements;
    RETURN_IF_FAILED(texts_of(value, &elements));
    REQUIRE(index < value->count, "index is out of bounds");
    *out = elements[index].length;
    return NULL;
}

OrtStatus *api_GetStringTensorElement(const OrtValue *value, size_t size, size_t index, void *bytes) {
    Text *elements;
    RETURN_IF_FAILED(texts_of(value, &elements));
    REQUIRE(index < value->count, "element index is out of bounds");
    if (size < elements[index].length)
        return status_new(ORT_FAIL, "buffer size is too small for string element");
    if (elements[index].length != 0) memcpy(bytes, elements[index].bytes, elements[index].length);
    return NULL;
}

static int compare_texts(const Text *a, const Text *b) {
    size_t shorter = a->length < b->length ? a->length : b->length;
    int order = shorter == 0 ? 0 : memcmp(a->bytes, b->bytes, shorter);
    return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

static int compare_keys(const OrtValue *keys, size_t i, size_t j) {
    if (keys->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        const Text *texts = keys->data;
        return compare_texts(&texts[i], &texts[j]);
    }
    const int64_t *numbers = keys->data;
    return (numbers[i] > numbers[j]) - (numbers[i] < numbers[j]);
}

/* The places of the keys in their order, each key once, the first one where there are several; gives how
 * many. Sorts by merging, so that equal keys stay in order. `order` has room for twice as many. */
static size_t sort_keys(const OrtValue *keys, size_t *order) {
    size_t count = keys->count, *from = order, *to = order + count;
    for (size_t i = 0; i < count; i++) from[i] = i;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t low = 0; low < count; low += 2 * width) {
            size_t middle = low + width < count ? low + width : count;
            size_t high = low + 2 * width < count ? low + 2 * width : count;
            for (size_t at = low, a = low, b = middle; at < high; at++) {
                bool left = a < middle && (b >= high || compare_keys(keys, from[a], from[b]) <= 0);
                to[at] = left ? from[a++] : from[b++];
            }
        }
        size_t *swapped = from;
        from = to;
        to = swapped;
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (i == 0 || compare_keys(keys, from[i], from[i - 1]) != 0) order[kept++] = from[i];
    return kept;
}

static OrtStatus *gather(const OrtValue *from, const size_t *places, size_t count, OrtValue **out) {
    int64_t dims[] = {(int64_t)count};
    RETURN_IF_FAILED(tensor_new(&cpu_allocator, from->type, dims, 1, out));
    size_t size = element_size(from->type);
    for (size_t i = 0; i < count; i++) {
        OrtStatus *status = NULL;
        if (from->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
            const Text *text = (const Text *)from->data + places[i];
            if (text->length != 0) status = text_set((Text *)(*out)->data + i, text->bytes, text->length);
        } else {
            memcpy((char *)(*out)->data + i * size, (const char *)from->data + places[i] * size, size);
        }
        if (status != NULL) {
            api_ReleaseValue(*out);
            *out = NULL;
            return status;
        }
    }
    return NULL;
}

static bool keyed_by(ONNXTensorElementDataType type) {
    return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
}

static bool mapped_to(ONNXTensorElementDataType type) {
    return keyed_by(type) || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ||
           type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
}

OrtStatus *map_new(const OrtValue *keys, const OrtValue *values, OrtValue **out) {
    if (keys->kind != ONNX_TYPE_TENSOR || values->kind != ONNX_TYPE_TENSOR)
        return status_new(ORT_FAIL, "Either the key tensor or the value tensor has NOT been initialized.");
    if (keys->count != values->count)
        return status_new(ORT_FAIL, "Key and value tensors have unequal number of elements.");
    if (!keyed_by(keys->type)) return status_new(ORT_FAIL, "Key type is not supported yet.");
    if (!mapped_to(values->type))
        return status_new(ORT_FAIL, "Value type is not supported yet: %s", element_name(values->type));
    size_t *order = malloc((2 * keys->count + 1) * sizeof *order);
    if (order == NULL) return status_out_of_memory(2 * keys->count * sizeof *order);
    size_t count = sort_keys(keys, order);
    OrtValue *parts[2] = {NULL, NULL};
    OrtStatus *status = gather(keys, order, count, &parts[0]);
    if (status == NULL) status = gather(values, order, count, &parts[1]);
    if (status == NULL) status = container_new(ONNX_TYPE_MAP, parts, 2, out);
    api_ReleaseValue(parts[0]);
    api_ReleaseValue(parts[1]);
    free(order);
    return status;
}
