/* Values: tensors, sequences and maps. A value has holders; what ReleaseValue takes away last is freed. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64, SMALL = 512 };

/* `room`: bytes that lie behind it, on a line of their own. */
static OrtStatus *value_new(ONNXType kind, size_t room, OrtValue **out) {
    size_t size = sizeof **out + (room > 0 ? room + LINE : 0);
    *out = malloc(size);
    if (*out == NULL) return status_out_of_memory(size);
    memset(*out, 0, sizeof **out);
    (*out)->kind = kind;
    if (room > 0) (*out)->data = (void *)(((uintptr_t)(*out + 1) + LINE - 1) / LINE * LINE);
    atomic_init(&(*out)->holders, 1);
    return NULL;
}

static bool known(ONNXTensorElementDataType type) {
    return element_size(type) != 0 || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
}

/* A tensor of a shape, without memory, or `with` it where it is little. */
static OrtStatus *tensor_begin(ONNXTensorElementDataType type, const int64_t *dims, size_t rank, bool with,
                               OrtValue **out) {
    size_t count, bytes;
    if (!known(type)) return status_new(ORT_NOT_IMPLEMENTED, "tensor type %d is not supported", (int)type);
    for (size_t i = 0; i < rank; i++)
        if (dims[i] < 0)
            return status_new(ORT_INVALID_ARGUMENT, "tried creating tensor with negative value in shape");
    if (!shape_count(dims, rank, &count) || !elements_size(type, count, &bytes))
        return status_new(ORT_FAIL, "Integer overflow: the shape has more elements than there can be");
    OrtValue *value;
    RETURN_IF_FAILED(value_new(ONNX_TYPE_TENSOR, with && bytes <= SMALL ? bytes + 1 : 0, &value));
    value->inside = value->data != NULL;
    value->dims = rank <= INLINE_RANK ? value->inline_dims : malloc(rank * sizeof *value->dims);
    if (value->dims == NULL) {
        free(value);
        return status_out_of_memory(rank * sizeof *value->dims);
    }
    if (rank != 0) memcpy(value->dims, dims, rank * sizeof *dims);
    value->type = type;
    value->rank = rank;
    value->count = count;
    value->bytes = bytes;
    *out = value;
    return NULL;
}

OrtStatus *tensor_new(OrtAllocator *allocator, ONNXTensorElementDataType type, const int64_t *dims,
                      size_t rank, OrtValue **out) {
    OrtValue *value;
    RETURN_IF_FAILED(tensor_begin(type, dims, rank, allocator == &cpu_allocator, &value));
    size_t room = value->bytes != 0 ? value->bytes : 1; /* a tensor always has an address */
    if (!value->inside) value->data = allocator->Alloc(allocator, room);
    if (value->data == NULL) {
        size_t bytes = value->bytes;
        api_ReleaseValue(value);
        return status_out_of_memory(bytes);
    }
    value->allocator = allocator;
    value->memory = allocator->Info(allocator);
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) memset(value->data, 0, room);
    *out = value;
    return NULL;
}

OrtStatus *tensor_over(const OrtMemoryInfo *memory, void *data, size_t bytes, ONNXTensorElementDataType type,
                       const int64_t *dims, size_t rank, OrtValue **out) {
    OrtValue *value;
    RETURN_IF_FAILED(tensor_begin(type, dims, rank, false, &value));
    OrtStatus *status = NULL;
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        status = status_new(ORT_INVALID_ARGUMENT, "a tensor of strings cannot lie in the caller's memory: "
                                                  "CreateTensorAsOrtValue and FillStringTensor make one");
    } else if (bytes < value->bytes) {
        status =
            status_new(ORT_INVALID_ARGUMENT, "not enough space: expected %zu, got %zu", value->bytes, bytes);
    } else {
        value->own_memory = memory->device == OrtMemoryInfoDeviceType_CPU ? NULL : memory_info_copy(memory);
        value->memory = value->own_memory != NULL ? value->own_memory : &cpu_memory;
        value->data = data;
    }
    if (status != NULL) {
        api_ReleaseValue(value);
        return status;
    }
    *out = value;
    return NULL;
}

static bool on_host(const OrtMemoryInfo *memory) {
    return memory->device == OrtMemoryInfoDeviceType_CPU ||
           memory->device_memory == OrtDeviceMemoryType_HOST_ACCESSIBLE;
}

OrtStatus *check_on_host(const OrtValue *value) {
    const OrtMemoryInfo *memory = value->memory;
    for (size_t i = 0; i < value->element_count; i++) RETURN_IF_FAILED(check_on_host(value->elements[i]));
    if (memory == NULL || on_host(memory)) return NULL;
    return status_new(ORT_FAIL,
                      "There's no data transfer registered for copying tensors from Device:[DeviceType:%d "
                      "MemoryType:%d VendorId:%u DeviceId:%d Alignment:%zu] to Device:[DeviceType:0 MemoryType:0 "
                      "VendorId:0 DeviceId:0 Alignment:0]",
                      (int)memory->device, (int)memory->device_memory, (unsigned)memory->vendor, memory->id,
                      memory->alignment);
}

OrtStatus *tensor_copy(OrtValue *to, const OrtValue *from) {
    REQUIRE(to->kind == ONNX_TYPE_TENSOR && from->kind == ONNX_TYPE_TENSOR && to->type == from->type &&
                to->count == from->count,
            "a tensor can be copied to one of the same type and size only");
    if (from->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        if (from->bytes > 0) memmove(to->data, from->data, from->bytes);
        return NULL;
    }
    for (size_t i = 0; to != from && i < from->count; i++) {
        const Text *text = (const Text *)from->data + i;
        RETURN_IF_FAILED(text_set((Text *)to->data + i, text->bytes, text->length));
    }
    return NULL;
}

OrtStatus *value_empty(OrtValue **out) { return value_new(ONNX_TYPE_UNKNOWN, 0, out); }

OrtStatus *container_new(ONNXType kind, OrtValue *const *elements, size_t count, OrtValue **out) {
    OrtValue *value;
    RETURN_IF_FAILED(value_new(kind, 0, &value));
    value->elements = calloc(count + 1, sizeof *value->elements);
    if (value->elements == NULL) {
        free(value);
        return status_out_of_memory(count * sizeof *value->elements);
    }
    for (size_t i = 0; i < count; i++) value->elements[i] = value_hold(elements[i]);
    value->element_count = count;
    *out = value;
    return NULL;
}

OrtValue *value_hold(const OrtValue *value) {
    OrtValue *held = (OrtValue *)(uintptr_t)value;
    if (held != NULL) atomic_fetch_add_explicit(&held->holders, 1, memory_order_relaxed);
    return held;
}

bool value_same_type(const OrtValue *a, const OrtValue *b) {
    if (a->kind != b->kind) return false;
    if (a->kind == ONNX_TYPE_TENSOR) return a->type == b->type;
    if (a->element_count == 0 || b->element_count == 0) return true;
    for (size_t i = 0; i < (a->kind == ONNX_TYPE_MAP ? a->element_count : 1); i++)
        if (!value_same_type(a->elements[i], b->elements[i])) return false;
    return true;
}

void api_ReleaseValue(OrtValue *value) {
    if (value == NULL || atomic_fetch_sub_explicit(&value->holders, 1, memory_order_acq_rel) != 1) return;
    if (value->allocator != NULL) {
        if (value->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING)
            for (size_t i = 0; i < value->count; i++) free(((Text *)value->data)[i].bytes);
        if (!value->inside) value->allocator->Free(value->allocator, value->data);
    }
    for (size_t i = 0; i < value->element_count; i++) api_ReleaseValue(value->elements[i]);
    free(value->elements);
    api_ReleaseMemoryInfo(value->own_memory);
    if (value->sparse != NULL) sparse_free(value->sparse);
    if (value->declared != NULL) api_ReleaseTypeInfo(value->declared);
    if (value->dims != value->inline_dims) free(value->dims);
    free(value);
}

OrtStatus *api_CreateTensorAsOrtValue(OrtAllocator *allocator, const int64_t *dims, size_t rank,
                                      ONNXTensorElementDataType type, OrtValue **out) {
    for (size_t i = 0; i < rank; i++)
        if (dims[i] < 0) return status_new(ORT_FAIL, "Tensor shape.Size() must be >= 0");
    return tensor_new(allocator, type, dims, rank, out);
}

OrtStatus *api_CreateTensorWithDataAsOrtValue(const OrtMemoryInfo *memory, void *data, size_t size,
                                              const int64_t *dims, size_t rank,
                                              ONNXTensorElementDataType type, OrtValue **out) {
    return tensor_over(memory, data, size, type, dims, rank, out);
}

OrtStatus *api_CreateTensorWithDataAndDeleterAsOrtValue(OrtAllocator *deleter, void *data, size_t size,
                                                        const int64_t *dims, size_t rank,
                                                        ONNXTensorElementDataType type, OrtValue **out) {
    OrtValue *value;
    RETURN_IF_FAILED(tensor_begin(type, dims, rank, false, &value));
    if (size < value->bytes || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        size_t expected = value->bytes;
        api_ReleaseValue(value);
        return status_new(ORT_INVALID_ARGUMENT, "p_data_len was smaller than expected. Expected:%zu Got:%zu",
                          expected, size);
    }
    value->data = data;
    value->allocator = deleter;
    value->memory = deleter->Info(deleter);
    *out = value;
    return NULL;
}

static bool is_tensor(const OrtValue *value) { return value->kind == ONNX_TYPE_TENSOR; }

static bool is_container(const OrtValue *value) {
    return value->kind == ONNX_TYPE_SEQUENCE || value->kind == ONNX_TYPE_MAP;
}

static OrtStatus *not_a_tensor(const OrtValue *value) {
    OrtErrorCode code = value->kind == ONNX_TYPE_MAP ? ORT_FAIL : ORT_RUNTIME_EXCEPTION;
    return status_new(code, "IsTensor() was false. Trying to get a Tensor, but got a value of kind %d",
                      value->kind);
}

OrtStatus *api_IsTensor(const OrtValue *value, int *out) {
    *out = is_tensor(value);
    return NULL;
}

OrtStatus *api_HasValue(const OrtValue *value, int *out) {
    bool may_lack = value->kind == ONNX_TYPE_OPTIONAL || value->kind == ONNX_TYPE_UNKNOWN;
    *out = !may_lack || value->element_count != 0;
    return NULL;
}

OrtStatus *api_GetValueType(const OrtValue *value, ONNXType *out) {
    *out = value->kind;
    return NULL;
}

OrtStatus *api_GetTensorData(const OrtValue *value, const void **out) {
    if (!is_tensor(value)) return not_a_tensor(value);
    *out = value->data;
    return NULL;
}

OrtStatus *api_GetTensorMutableData(OrtValue *value, void **out) {
    const void *data;
    RETURN_IF_FAILED(api_GetTensorData(value, &data));
    *out = value->data;
    return NULL;
}

OrtStatus *api_GetTensorSizeInBytes(const OrtValue *value, size_t *out) {
    REQUIRE(value != NULL && is_tensor(value), "OrtValue is expected to contain a tensor");
    REQUIRE(value->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
            "String tensors are not supported by this API");
    *out = value->bytes;
    return NULL;
}

OrtStatus *api_TensorAt(OrtValue *value, const int64_t *location, size_t count, void **out) {
    if (!is_tensor(value)) return not_a_tensor(value);
    REQUIRE(value->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, "this API does not support strings");
    size_t bytes;
    elements_size(value->type, 2, &bytes);
    REQUIRE(
        bytes == 2 * element_size(value->type),
        "this API does not support sub-byte packed types (e.g., int4). Use "
        "OrtValue::GetTensorMutableData and manual unpacking instead.");
    REQUIRE(count == value->rank, "location dimensions do not match shape size");
    size_t place = 0;
    for (size_t i = 0; i < count; i++) {
        REQUIRE(location[i] >= 0 && location[i] < value->dims[i], "invalid location range");
        place = place * (size_t)value->dims[i] + (size_t)location[i];
    }
    *out = (char *)value->data + place * element_size(value->type);
    return NULL;
}

static OrtStatus *shape_of(const OrtValue *value, OrtTensorTypeAndShapeInfo **out) {
    *out = shape_info_new(value->type, value->dims, NULL, value->rank);
    return *out == NULL ? status_out_of_memory(sizeof **out) : NULL;
}

OrtStatus *api_GetTensorTypeAndShape(const OrtValue *value, OrtTensorTypeAndShapeInfo **out) {
    if (!is_tensor(value) && value->sparse == NULL) return status_new(ORT_FAIL, "Argument is not a tensor");
    return shape_of(value, out);
}

OrtStatus *api_GetTensorElementTypeAndShapeDataReference(const OrtValue *value,
                                                         ONNXTensorElementDataType *type,
                                                         const int64_t **dims, size_t *rank) {
    REQUIRE(value != NULL && (is_tensor(value) || value->sparse != NULL),
            "Input parameter `value` must contain a constructed tensor or sparse tensor");
    *type = value->type;
    *dims = value->rank == 0 ? NULL : value->dims;
    *rank = value->rank;
    return NULL;
}

/* A declared type as values have it: without the shapes of what a value holds. */
static OrtTypeInfo *shapeless(const OrtTypeInfo *type) {
    if (type->tensor == NULL) {
        OrtTypeInfo *element = shapeless(type->element);
        return type->kind == ONNX_TYPE_MAP        ? type_info_map(type->key, element)
               : type->kind == ONNX_TYPE_SEQUENCE ? type_info_sequence(element)
                                                  : type_info_optional(element);
    }
    OrtTensorTypeAndShapeInfo *shape = shape_info_new(type->tensor->type, NULL, NULL, 0);
    if (shape != NULL) shape->has_shape = false;
    OrtTypeInfo *info = type_info_tensor(shape);
    if (info != NULL) info->kind = type->kind;
    return info;
}

OrtStatus *value_declare(OrtValue *value, const OrtTypeInfo *type) {
    if (type->kind == ONNX_TYPE_OPTIONAL) type = type->element;
    if (value == NULL || value->kind != ONNX_TYPE_SEQUENCE || value->element_count != 0 || type->kind != value->kind)
        return NULL;
    value->declared = type_info_copy(type);
    return value->declared == NULL ? status_out_of_memory(sizeof *type) : NULL;
}

static OrtTypeInfo *type_of(const OrtValue *value, bool with_shape) {
    OrtTypeInfo *info = NULL;
    if (value->declared != NULL) return shapeless(value->declared);
    if (is_tensor(value) || value->sparse != NULL) {
        OrtTensorTypeAndShapeInfo *shape =
            shape_info_new(value->type, value->dims, NULL, with_shape ? value->rank : 0);
        if (shape != NULL) shape->has_shape = with_shape;
        info = type_info_tensor(shape);
        if (info != NULL) info->kind = value->kind;
    } else if (value->kind == ONNX_TYPE_MAP) {
        info = type_info_map(value->elements[0]->type, type_of(value->elements[1], false));
    } else if (value->element_count != 0) {
        OrtTypeInfo *element = type_of(value->elements[0], false);
        info = value->kind == ONNX_TYPE_SEQUENCE ? type_info_sequence(element) : type_info_optional(element);
    }
    return info;
}

OrtStatus *api_GetTypeInfo(const OrtValue *value, OrtTypeInfo **out) {
    *out = type_of(value, true);
    return *out == NULL ? status_new(ORT_FAIL, "the value is empty and has no type") : NULL;
}

OrtStatus *api_GetTensorMemoryInfo(const OrtValue *value, const OrtMemoryInfo **out) {
    if (!is_tensor(value)) return not_a_tensor(value);
    *out = value->memory;
    return NULL;
}

OrtStatus *api_GetValueCount(const OrtValue *value, size_t *out) {
    if (!is_container(value)) return status_new(ORT_FAIL, "Input is not of type sequence or map.");
    *out = value->element_count;
    return NULL;
}

OrtStatus *api_GetValue(const OrtValue *value, int index, OrtAllocator *allocator, OrtValue **out) {
    (void)allocator;
    if (!is_container(value)) return status_new(ORT_FAIL, "Input is not of type sequence or map.");
    if (index < 0 || (size_t)index >= value->element_count)
        return value->kind == ONNX_TYPE_MAP
                   ? status_new(ORT_FAIL, "Invalid index requested for map type.")
                   : status_new(ORT_FAIL, "element %d of a sequence of %zu", index, value->element_count);
    *out = value_hold(value->elements[index]);
    return NULL;
}

static OrtStatus *check_sequence(const OrtValue *const *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!is_tensor(values[i]) && values[i]->kind != ONNX_TYPE_MAP)
            return status_new(ORT_FAIL, "Each element of the sequence should be either tensor or map.");
        if (!value_same_type(values[i], values[0]))
            return status_new(ORT_FAIL,
                              "Sequences must have tensors of the same data type. There was at least one "
                              "tensor in the input that was different.");
    }
    return NULL;
}

OrtStatus *api_CreateValue(const OrtValue *const *values, size_t count, ONNXType kind, OrtValue **out) {
    if (kind != ONNX_TYPE_SEQUENCE && kind != ONNX_TYPE_MAP)
        return status_new(ORT_FAIL, "Input is not of type sequence or map.");
    if (count == 0) return status_new(ORT_FAIL, "Number of values should be at least 1.");
    if (kind == ONNX_TYPE_MAP && count != 2) return status_new(ORT_FAIL, "For map type num_values MUST be 2");
    if (kind == ONNX_TYPE_MAP) return map_new(values[0], values[1], out);
    RETURN_IF_FAILED(check_sequence(values, count));
    return container_new(kind, (OrtValue *const *)values, count, out);
}
