/* Sparse tensors: dense shape in the value, values and indices as tensors of their own. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct Sparse {
    enum OrtSparseFormat format;
    OrtAllocator *allocator; /* of what is filled in; NULL: the values are the caller's */
    OrtValue *values;
    OrtValue *indices[2]; /* COO and blocks: the first alone; CSR: inner and outer */
};

void sparse_free(struct Sparse *sparse) {
    api_ReleaseValue(sparse->values);
    api_ReleaseValue(sparse->indices[0]);
    api_ReleaseValue(sparse->indices[1]);
    free(sparse);
}

OrtStatus *api_CreateSparseTensorAsOrtValue(OrtAllocator *allocator, const int64_t *dims, size_t rank,
                                            ONNXTensorElementDataType type, OrtValue **out) {
    static char nothing;
    OrtValue *value;
    /* The dense size is never taken: only its shape counts, so any address and size will do. */
    RETURN_IF_FAILED(tensor_over(&cpu_memory, &nothing, SIZE_MAX, type, dims, rank, &value));
    value->sparse = calloc(1, sizeof *value->sparse);
    if (value->sparse == NULL) {
        api_ReleaseValue(value);
        return status_out_of_memory(sizeof *value->sparse);
    }
    value->kind = ONNX_TYPE_SPARSETENSOR;
    value->sparse->allocator = allocator;
    *out = value;
    return NULL;
}

OrtStatus *api_CreateSparseTensorWithValuesAsOrtValue(const OrtMemoryInfo *memory, void *data,
                                                      const int64_t *dims, size_t rank,
                                                      const int64_t *value_dims, size_t value_rank,
                                                      ONNXTensorElementDataType type, OrtValue **out) {
    size_t count;
    REQUIRE(data != NULL || (shape_count(value_dims, value_rank, &count) && count == 0),
            "the values of a sparse tensor must not be null");
    RETURN_IF_FAILED(api_CreateSparseTensorAsOrtValue(NULL, dims, rank, type, out));
    OrtStatus *status =
        tensor_over(memory, data, SIZE_MAX, type, value_dims, value_rank, &(*out)->sparse->values);
    if (status != NULL) {
        api_ReleaseValue(*out);
        *out = NULL;
    }
    return status;
}

static OrtStatus *sparse_of(const OrtValue *value, struct Sparse **out) {
    if (value->sparse == NULL) return status_new(ORT_RUNTIME_EXCEPTION, "the value is not a sparse tensor");
    *out = value->sparse;
    return NULL;
}

/* What may still get a format: filled with copies (`copies`) or given the caller's indices. */
static OrtStatus *empty_of(OrtValue *value, bool copies, struct Sparse **out) {
    RETURN_IF_FAILED(sparse_of(value, out));
    REQUIRE((*out)->format == ORT_SPARSE_UNDEFINED, "the sparse tensor is filled already");
    REQUIRE(copies == ((*out)->allocator != NULL), "%s",
            copies ? "the sparse tensor lies in the caller's memory" : "the sparse tensor has no values yet");
    return NULL;
}

static OrtStatus *copy_in(OrtAllocator *allocator, ONNXTensorElementDataType type, const int64_t *dims,
                          size_t rank, const void *data, OrtValue **out) {
    RETURN_IF_FAILED(tensor_new(allocator, type, dims, rank, out));
    REQUIRE(data != NULL || (*out)->count == 0, "the values and indices of a sparse tensor must not be null");
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        const char *const *texts = data;
        return api_FillStringTensor(*out, texts, (*out)->count);
    }
    if ((*out)->bytes != 0) memcpy((*out)->data, data, (*out)->bytes);
    return NULL;
}

static OrtStatus *set_index(struct Sparse *sparse, int which, ONNXTensorElementDataType type,
                            const int64_t *dims, size_t rank, const void *data) {
    void *given = (void *)(uintptr_t)data;
    if (sparse->allocator != NULL)
        return copy_in(sparse->allocator, type, dims, rank, data, &sparse->indices[which]);
    return tensor_over(&cpu_memory, given, SIZE_MAX, type, dims, rank, &sparse->indices[which]);
}

static OrtStatus *set_coo(struct Sparse *sparse, const int64_t *indices, size_t count) {
    size_t values = sparse->values->count;
    REQUIRE(count == values || count == 2 * values,
            "%zu COO indices for %zu values: one or two for each are expected", count, values);
    int64_t dims[] = {(int64_t)values, 2};
    RETURN_IF_FAILED(
        set_index(sparse, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, dims, count == values ? 1 : 2, indices));
    sparse->format = ORT_SPARSE_COO;
    return NULL;
}

static OrtStatus *set_csr(struct Sparse *sparse, const int64_t *inner, size_t inner_count,
                          const int64_t *outer, size_t outer_count) {
    REQUIRE(inner_count == sparse->values->count, "%zu inner CSR indices for %zu values", inner_count,
            sparse->values->count);
    int64_t inner_dims[] = {(int64_t)inner_count}, outer_dims[] = {(int64_t)outer_count};
    RETURN_IF_FAILED(set_index(sparse, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, inner_dims, 1, inner));
    RETURN_IF_FAILED(set_index(sparse, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, outer_dims, 1, outer));
    sparse->format = ORT_SPARSE_CSRC;
    return NULL;
}

static OrtStatus *set_blocks(struct Sparse *sparse, const int64_t *dims, size_t rank,
                             const int32_t *indices) {
    RETURN_IF_FAILED(set_index(sparse, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, dims, rank, indices));
    sparse->format = ORT_SPARSE_BLOCK_SPARSE;
    return NULL;
}

static OrtStatus *fill(OrtValue *value, const OrtMemoryInfo *memory, const int64_t *dims, size_t rank,
                       const void *values, struct Sparse **out) {
    RETURN_IF_FAILED(empty_of(value, true, out));
    REQUIRE(memory->device == OrtMemoryInfoDeviceType_CPU, "the values have to lie in the host's memory");
    api_ReleaseValue((*out)->values);
    (*out)->values = NULL;
    return copy_in((*out)->allocator, value->type, dims, rank, values, &(*out)->values);
}

OrtStatus *api_FillSparseTensorCoo(OrtValue *value, const OrtMemoryInfo *memory, const int64_t *dims,
                                   size_t rank, const void *values, const int64_t *indices,
                                   size_t index_count) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(fill(value, memory, dims, rank, values, &sparse));
    return set_coo(sparse, indices, index_count);
}

OrtStatus *api_FillSparseTensorCsr(OrtValue *value, const OrtMemoryInfo *memory, const int64_t *dims,
                                   size_t rank, const void *values, const int64_t *inner, size_t inner_count,
                                   const int64_t *outer, size_t outer_count) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(fill(value, memory, dims, rank, values, &sparse));
    return set_csr(sparse, inner, inner_count, outer, outer_count);
}

OrtStatus *api_FillSparseTensorBlockSparse(OrtValue *value, const OrtMemoryInfo *memory, const int64_t *dims,
                                           size_t rank, const void *values, const int64_t *index_dims,
                                           size_t index_rank, const int32_t *indices) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(fill(value, memory, dims, rank, values, &sparse));
    return set_blocks(sparse, index_dims, index_rank, indices);
}

OrtStatus *api_UseCooIndices(OrtValue *value, int64_t *indices, size_t count) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(empty_of(value, false, &sparse));
    return set_coo(sparse, indices, count);
}

OrtStatus *api_UseCsrIndices(OrtValue *value, int64_t *inner, size_t inner_count, int64_t *outer,
                             size_t outer_count) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(empty_of(value, false, &sparse));
    return set_csr(sparse, inner, inner_count, outer, outer_count);
}

OrtStatus *api_UseBlockSparseIndices(OrtValue *value, const int64_t *index_dims, size_t index_rank,
                                     int32_t *indices) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(empty_of(value, false, &sparse));
    return set_blocks(sparse, index_dims, index_rank, indices);
}

OrtStatus *api_IsSparseTensor(const OrtValue *value, int *out) {
    *out = value->sparse != NULL;
    return NULL;
}

OrtStatus *api_GetSparseTensorFormat(const OrtValue *value, enum OrtSparseFormat *out) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(sparse_of(value, &sparse));
    *out = sparse->format;
    return NULL;
}

static OrtStatus *values_of(const OrtValue *value, const OrtValue **out) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(sparse_of(value, &sparse));
    REQUIRE(sparse->values != NULL, "the sparse tensor has no values yet");
    *out = sparse->values;
    return NULL;
}

OrtStatus *api_GetSparseTensorValuesTypeAndShape(const OrtValue *value, OrtTensorTypeAndShapeInfo **out) {
    const OrtValue *values;
    RETURN_IF_FAILED(values_of(value, &values));
    return api_GetTensorTypeAndShape(values, out);
}

OrtStatus *api_GetSparseTensorValues(const OrtValue *value, const void **out) {
    const OrtValue *values;
    RETURN_IF_FAILED(values_of(value, &values));
    return api_GetTensorData(values, out);
}

static OrtStatus *indices_of(const OrtValue *value, enum OrtSparseIndicesFormat format,
                             const OrtValue **out) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(sparse_of(value, &sparse));
    static const enum OrtSparseFormat formats[] = {
        [ORT_SPARSE_COO_INDICES] = ORT_SPARSE_COO,
        [ORT_SPARSE_CSR_INNER_INDICES] = ORT_SPARSE_CSRC,
        [ORT_SPARSE_CSR_OUTER_INDICES] = ORT_SPARSE_CSRC,
        [ORT_SPARSE_BLOCK_SPARSE_INDICES] = ORT_SPARSE_BLOCK_SPARSE,
    };
    REQUIRE((unsigned)format <= ORT_SPARSE_BLOCK_SPARSE_INDICES && formats[format] == sparse->format,
            "the sparse tensor has no indices of this kind");
    *out = sparse->indices[format == ORT_SPARSE_CSR_OUTER_INDICES];
    return NULL;
}

OrtStatus *api_GetSparseTensorIndicesTypeShape(const OrtValue *value, enum OrtSparseIndicesFormat format,
                                               OrtTensorTypeAndShapeInfo **out) {
    const OrtValue *indices;
    RETURN_IF_FAILED(indices_of(value, format, &indices));
    return api_GetTensorTypeAndShape(indices, out);
}

OrtStatus *api_GetSparseTensorIndices(const OrtValue *value, enum OrtSparseIndicesFormat format,
                                      size_t *count, const void **out) {
    const OrtValue *indices;
    RETURN_IF_FAILED(indices_of(value, format, &indices));
    *count = indices->count;
    return api_GetTensorData(indices, out);
}

/* The place of an element in the dense tensor, -1 where it lies beyond it. */
static int64_t place_of(const OrtValue *value, const int64_t *index) {
    int64_t place = 0;
    for (size_t d = 0; d < value->rank; d++) {
        if (index[d] < 0 || index[d] >= value->dims[d]) return -1;
        place = place * value->dims[d] + index[d];
    }
    return place;
}

static bool unfold(const OrtValue *value, int64_t place, int64_t *index) {
    bool inside = place >= 0 && (uint64_t)place < value->count;
    for (size_t d = value->rank; inside && d-- > 0;) {
        index[d] = place % value->dims[d];
        place /= value->dims[d];
    }
    return inside;
}

static bool unfold_rows(const OrtValue *value, const struct Sparse *sparse, int64_t *index) {
    const int64_t *inner = sparse->indices[0]->data, *outer = sparse->indices[1]->data;
    size_t rows = sparse->indices[1]->count, at = 0, count = sparse->values->count;
    if (value->rank != 2 || (count != 0 && rows != (size_t)value->dims[0] + 1)) return count == 0;
    for (size_t row = 0; row + 1 < rows; row++) {
        if (outer[row] != (int64_t)at || outer[row + 1] < outer[row] || outer[row + 1] > (int64_t)count) return false;
        for (; (int64_t)at < outer[row + 1]; at++) {
            index[2 * at] = (int64_t)row;
            index[2 * at + 1] = inner[at];
            if (place_of(value, index + 2 * at) < 0) return false;
        }
    }
    return at == count;
}

static bool unfold_all(const OrtValue *value, const struct Sparse *sparse, int64_t *index) {
    size_t count = sparse->values->count;
    if (sparse->format == ORT_SPARSE_CSRC) return unfold_rows(value, sparse, index);
    const int64_t *given = sparse->indices[0]->data;
    bool each = sparse->indices[0]->rank == 2;
    if (each && value->rank != 2) return false;
    for (size_t i = 0; i < count; i++) {
        if (!unfold(value, each ? place_of(value, given + 2 * i) : given[i], index + i * value->rank)) return false;
    }
    return true;
}

OrtStatus *sparse_coordinates(const OrtValue *value, const OrtValue **values, OrtValue **indices) {
    struct Sparse *sparse;
    RETURN_IF_FAILED(sparse_of(value, &sparse));
    REQUIRE(sparse->format == ORT_SPARSE_COO || sparse->format == ORT_SPARSE_CSRC,
            "a sparse tensor that is fed has to be filled, in the COO or CSR format");
    const int64_t dims[] = {(int64_t)sparse->values->count, (int64_t)value->rank};
    RETURN_IF_FAILED(tensor_new(&cpu_allocator, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, dims, 2, indices));
    if (unfold_all(value, sparse, (*indices)->data)) {
        *values = sparse->values;
        return NULL;
    }
    api_ReleaseValue(*indices);
    return status_new(ORT_INVALID_ARGUMENT, "the indices of a sparse tensor do not fit its shape");
}

OrtStatus *sparse_new(const int64_t *dims, size_t rank, const OrtValue *values, const OrtValue *indices,
                      OrtValue **out) {
    RETURN_IF_FAILED(api_CreateSparseTensorAsOrtValue(&cpu_allocator, dims, rank, values->type, out));
    struct Sparse *sparse = (*out)->sparse;
    const int64_t *each = indices->data, places_dims[] = {(int64_t)values->count};
    OrtValue *places = NULL;
    OrtStatus *status =
        tensor_new(&cpu_allocator, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, places_dims, 1, &places);
    sparse->values = value_hold(values);
    for (size_t i = 0; status == NULL && i < values->count; i++) {
        ((int64_t *)places->data)[i] = place_of(*out, each + i * rank);
        if (((int64_t *)places->data)[i] < 0) status = status_new(ORT_FAIL, "a sparse result that cannot be read");
    }
    if (status == NULL)
        status = rank == 2 ? set_coo(sparse, each, 2 * values->count) : set_coo(sparse, places->data, values->count);
    api_ReleaseValue(places);
    if (status == NULL) return NULL;
    api_ReleaseValue(*out);
    *out = NULL;
    return status;
}
