/* Element types, and the types of values: tensors with their shapes, sequences, maps, optionals. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned bits; /* 0: without memory of its own */
} elements[] = {
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED] = {"undefined", 0},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT] = {"float", 32},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8] = {"uint8", 8},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8] = {"int8", 8},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16] = {"uint16", 16},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16] = {"int16", 16},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32] = {"int32", 32},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64] = {"int64", 64},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING] = {"string", 0},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL] = {"bool", 8},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16] = {"float16", 16},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE] = {"double", 64},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32] = {"uint32", 32},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64] = {"uint64", 64},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64] = {"complex64", 0},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128] = {"complex128", 0},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16] = {"bfloat16", 16},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN] = {"float8e4m3fn", 8},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ] = {"float8e4m3fnuz", 8},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2] = {"float8e5m2", 8},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ] = {"float8e5m2fnuz", 8},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4] = {"uint4", 4},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4] = {"int4", 4},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1] = {"float4e2m1", 4},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2] = {"uint2", 2},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2] = {"int2", 2},
    [ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0] = {"float8e8m0", 8},
};
enum { ELEMENTS = sizeof elements / sizeof *elements };

static unsigned bits_of(ONNXTensorElementDataType type) {
    return (unsigned)type < ELEMENTS ? elements[type].bits : 0;
}

size_t element_size(ONNXTensorElementDataType type) { return (bits_of(type) + 7) / 8; }

bool elements_size(ONNXTensorElementDataType type, size_t count, size_t *bytes) {
    unsigned bits = bits_of(type);
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) bits = 8 * sizeof(Text);
    if (bits < 8) {
        size_t in_byte = bits == 0 ? 1 : 8 / bits;
        *bytes = bits == 0 ? 0 : count / in_byte + (count % in_byte != 0);
        return true;
    }
    *bytes = count * (bits / 8);
    return count <= PTRDIFF_MAX / (bits / 8);
}

const char *element_name(ONNXTensorElementDataType type) {
    return (unsigned)type < ELEMENTS ? elements[type].name : "undefined";
}

bool shape_count(const int64_t *dims, size_t rank, size_t *count) {
    *count = 1;
    for (size_t i = 0; i < rank; i++) {
        if (dims[i] < 0 || (dims[i] != 0 && *count > PTRDIFF_MAX / (uint64_t)dims[i])) return false;
        *count *= (size_t)dims[i];
    }
    return true;
}

static void dims_clear(OrtTensorTypeAndShapeInfo *info) {
    for (size_t i = 0; i < info->rank; i++) free(info->symbols[i]);
    free(info->symbols);
    free(info->dims);
    info->dims = NULL;
    info->symbols = NULL;
    info->rank = 0;
}

static bool dims_set(OrtTensorTypeAndShapeInfo *info, const int64_t *dims, const char *const *symbols,
                     size_t rank) {
    int64_t *new_dims = calloc(rank + 1, sizeof *new_dims);
    char **new_symbols = calloc(rank + 1, sizeof *new_symbols);
    bool whole = new_dims != NULL && new_symbols != NULL;
    for (size_t i = 0; whole && i < rank; i++) {
        new_dims[i] = dims[i];
        new_symbols[i] = text_copy(symbols != NULL && symbols[i] != NULL ? symbols[i] : "");
        whole = new_symbols[i] != NULL;
    }
    if (!whole) {
        for (size_t i = 0; new_symbols != NULL && i < rank; i++) free(new_symbols[i]);
        free(new_symbols);
        free(new_dims);
        return false;
    }
    dims_clear(info);
    info->dims = new_dims;
    info->symbols = new_symbols;
    info->rank = rank;
    info->has_shape = true;
    return true;
}

OrtTensorTypeAndShapeInfo *shape_info_new(ONNXTensorElementDataType type, const int64_t *dims,
                                          const char *const *symbols, size_t rank) {
    OrtTensorTypeAndShapeInfo *info = calloc(1, sizeof *info);
    if (info == NULL) return NULL;
    info->type = type;
    if (dims_set(info, dims, symbols, rank)) return info;
    free(info);
    return NULL;
}

OrtTensorTypeAndShapeInfo *shape_info_copy(const OrtTensorTypeAndShapeInfo *from) {
    OrtTensorTypeAndShapeInfo *copy =
        shape_info_new(from->type, from->dims, (const char *const *)from->symbols, from->rank);
    if (copy != NULL) copy->has_shape = from->has_shape;
    return copy;
}

static OrtTypeInfo *type_info_new(ONNXType kind, OrtTensorTypeAndShapeInfo *tensor, OrtTypeInfo *element) {
    OrtTypeInfo *info = calloc(1, sizeof *info);
    char *denotation = text_copy("");
    if (info == NULL || denotation == NULL || (tensor == NULL) == (element == NULL)) {
        free(info);
        free(denotation);
        api_ReleaseTensorTypeAndShapeInfo(tensor);
        api_ReleaseTypeInfo(element);
        return NULL;
    }
    info->kind = kind;
    info->denotation = denotation;
    info->tensor = tensor;
    info->element = element;
    return info;
}

OrtTypeInfo *type_info_tensor(OrtTensorTypeAndShapeInfo *taken) {
    return type_info_new(ONNX_TYPE_TENSOR, taken, NULL);
}

OrtTypeInfo *type_info_sequence(OrtTypeInfo *taken) { return type_info_new(ONNX_TYPE_SEQUENCE, NULL, taken); }

OrtTypeInfo *type_info_optional(OrtTypeInfo *taken) { return type_info_new(ONNX_TYPE_OPTIONAL, NULL, taken); }

OrtTypeInfo *type_info_map(ONNXTensorElementDataType key, OrtTypeInfo *taken) {
    OrtTypeInfo *info = type_info_new(ONNX_TYPE_MAP, NULL, taken);
    if (info != NULL) info->key = key;
    return info;
}

OrtTypeInfo *type_info_copy(const OrtTypeInfo *from) {
    OrtTypeInfo *copy = type_info_new(from->kind, from->tensor == NULL ? NULL : shape_info_copy(from->tensor),
                                      from->element == NULL ? NULL : type_info_copy(from->element));
    char *denotation = copy == NULL ? NULL : text_copy(from->denotation);
    if (denotation == NULL) {
        api_ReleaseTypeInfo(copy);
        return NULL;
    }
    free(copy->denotation);
    copy->denotation = denotation;
    copy->key = from->key;
    return copy;
}

/* Hands out an object, or says that there was no memory for it. */
#define GIVE(object, out)                                                    \
    do {                                                                     \
        *(out) = (object);                                                   \
        return *(out) == NULL ? status_out_of_memory(sizeof **(out)) : NULL; \
    } while (0)

OrtStatus *api_CreateTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo **out) {
    OrtTensorTypeAndShapeInfo *info = shape_info_new(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, NULL, NULL, 0);
    if (info != NULL) info->has_shape = false;
    GIVE(info, out);
}

OrtStatus *api_SetTensorElementType(OrtTensorTypeAndShapeInfo *info, ONNXTensorElementDataType type) {
    info->type = type;
    return NULL;
}

OrtStatus *api_SetDimensions(OrtTensorTypeAndShapeInfo *info, const int64_t *dims, size_t rank) {
    for (size_t i = 0; i < rank; i++)
        REQUIRE(dims[i] >= -1, "dim_values must be -1 (symbolic dimension) or larger.");
    return dims_set(info, dims, NULL, rank) ? NULL : status_out_of_memory(rank);
}

OrtStatus *api_SetSymbolicDimensions(OrtTensorTypeAndShapeInfo *info, const char **names, size_t length) {
    for (size_t i = 0; i < length && i < info->rank; i++) {
        char *name = text_copy(names[i] == NULL ? "" : names[i]);
        if (name == NULL) return status_out_of_memory(length);
        free(info->symbols[i]);
        info->symbols[i] = name;
    }
    return NULL;
}

OrtStatus *api_GetTensorElementType(const OrtTensorTypeAndShapeInfo *info, ONNXTensorElementDataType *out) {
    *out = info->type;
    return NULL;
}

OrtStatus *api_GetDimensionsCount(const OrtTensorTypeAndShapeInfo *info, size_t *out) {
    *out = info->rank;
    return NULL;
}

OrtStatus *api_GetDimensions(const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t length) {
    for (size_t i = 0; i < length && i < info->rank; i++) dims[i] = info->dims[i];
    return NULL;
}

OrtStatus *api_GetSymbolicDimensions(const OrtTensorTypeAndShapeInfo *info, const char **names,
                                     size_t length) {
    for (size_t i = 0; i < length && i < info->rank; i++) names[i] = info->symbols[i];
    return NULL;
}

OrtStatus *api_GetTensorShapeElementCount(const OrtTensorTypeAndShapeInfo *info, size_t *out) {
    size_t count = 0;
    if (info->has_shape && !shape_count(info->dims, info->rank, &count))
        return status_new(ORT_FAIL, "Integer overflow: the shape has an open dimension or too many elements");
    *out = count;
    return NULL;
}

bool api_TensorTypeAndShape_HasShape(const OrtTensorTypeAndShapeInfo *info) { return info->has_shape; }

OrtStatus *api_GetOnnxTypeFromTypeInfo(const OrtTypeInfo *info, ONNXType *out) {
    *out = info->kind;
    return NULL;
}

OrtStatus *api_GetDenotationFromTypeInfo(const OrtTypeInfo *info, const char **const denotation,
                                         size_t *length) {
    *denotation = info->denotation;
    *length = strlen(info->denotation);
    return NULL;
}

OrtStatus *api_CastTypeInfoToTensorInfo(const OrtTypeInfo *info, const OrtTensorTypeAndShapeInfo **out) {
    *out = info->tensor;
    return NULL;
}

static const void *if_kind(const OrtTypeInfo *info, ONNXType kind) {
    return info->kind == kind ? info : NULL;
}

OrtStatus *api_CastTypeInfoToMapTypeInfo(const OrtTypeInfo *info, const OrtMapTypeInfo **out) {
    *out = if_kind(info, ONNX_TYPE_MAP);
    return NULL;
}

OrtStatus *api_CastTypeInfoToSequenceTypeInfo(const OrtTypeInfo *info, const OrtSequenceTypeInfo **out) {
    *out = if_kind(info, ONNX_TYPE_SEQUENCE);
    return NULL;
}

OrtStatus *api_CastTypeInfoToOptionalTypeInfo(const OrtTypeInfo *info, const OrtOptionalTypeInfo **out) {
    *out = if_kind(info, ONNX_TYPE_OPTIONAL);
    return NULL;
}

static OrtStatus *copy_of_element(const void *info, OrtTypeInfo **out) {
    GIVE(type_info_copy(((const OrtTypeInfo *)info)->element), out);
}

OrtStatus *api_GetMapKeyType(const OrtMapTypeInfo *info, ONNXTensorElementDataType *out) {
    *out = ((const OrtTypeInfo *)(const void *)info)->key;
    return NULL;
}

OrtStatus *api_GetMapValueType(const OrtMapTypeInfo *info, OrtTypeInfo **out) {
    return copy_of_element(info, out);
}

OrtStatus *api_GetSequenceElementType(const OrtSequenceTypeInfo *info, OrtTypeInfo **out) {
    return copy_of_element(info, out);
}

OrtStatus *api_GetOptionalContainedTypeInfo(const OrtOptionalTypeInfo *info, OrtTypeInfo **out) {
    return copy_of_element(info, out);
}

void api_ReleaseTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo *info) {
    if (info == NULL) return;
    dims_clear(info);
    free(info);
}

void api_ReleaseTypeInfo(OrtTypeInfo *info) {
    if (info == NULL) return;
    api_ReleaseTensorTypeAndShapeInfo(info->tensor);
    api_ReleaseTypeInfo(info->element);
    free(info->denotation);
    free(info);
}

void api_ReleaseMapTypeInfo(OrtMapTypeInfo *info) { (void)info; /* part of the type info it was cast from */ }

void api_ReleaseSequenceTypeInfo(OrtSequenceTypeInfo *info) { (void)info; /* as above */ }

OrtStatus *api_CreateTensorTypeInfo(const OrtTensorTypeAndShapeInfo *tensor, OrtTypeInfo **out) {
    REQUIRE(tensor != NULL, "tensor_info cannot be null");
    GIVE(type_info_tensor(shape_info_copy(tensor)), out);
}

OrtStatus *api_CreateSparseTensorTypeInfo(const OrtTensorTypeAndShapeInfo *tensor, OrtTypeInfo **out) {
    REQUIRE(tensor != NULL, "tensor_info cannot be null");
    GIVE(type_info_new(ONNX_TYPE_SPARSETENSOR, shape_info_copy(tensor), NULL), out);
}

OrtStatus *api_CreateMapTypeInfo(ONNXTensorElementDataType key, const OrtTypeInfo *value, OrtTypeInfo **out) {
    REQUIRE(value != NULL, "map_value_type cannot be null");
    GIVE(type_info_map(key, type_info_copy(value)), out);
}

OrtStatus *api_CreateSequenceTypeInfo(const OrtTypeInfo *element, OrtTypeInfo **out) {
    REQUIRE(element != NULL, "sequence_type cannot be null");
    GIVE(type_info_sequence(type_info_copy(element)), out);
}

OrtStatus *api_CreateOptionalTypeInfo(const OrtTypeInfo *contained, OrtTypeInfo **out) {
    REQUIRE(contained != NULL, "contained_type cannot be null");
    GIVE(type_info_optional(type_info_copy(contained)), out);
}
