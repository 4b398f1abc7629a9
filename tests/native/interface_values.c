/* Calls about values and their types. */
#include "interface_calls.h"

static OrtValue *floats(const int64_t *dims, size_t rank) {
    OrtValue *value = NULL;
    QUIET(CreateTensorAsOrtValue(allocator, dims, rank, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    return value;
}

static void show_shape(const OrtTensorTypeAndShapeInfo *info) {
    ONNXTensorElementDataType type;
    size_t rank = 0, count = 0;
    int64_t dims[16];
    const char *names[16];
    QUIET(GetTensorElementType(info, &type));
    QUIET(GetDimensionsCount(info, &rank));
    QUIET(GetDimensions(info, dims, rank));
    QUIET(GetSymbolicDimensions(info, names, rank));
    printf("  type %d, rank %d:", (int)type, (int)rank);
    for (size_t i = 0; i < rank; i++) printf(" %lld '%s'", (long long)dims[i], names[i]);
    printf("; has shape %d\n", api->TensorTypeAndShape_HasShape(info));
    DO(GetTensorShapeElementCount(info, &count));
    NUMBER(count);
}

static void show_type(const OrtTypeInfo *info) {
    ONNXType kind = ONNX_TYPE_UNKNOWN;
    const char *denotation;
    size_t length;
    QUIET(GetOnnxTypeFromTypeInfo(info, &kind));
    NUMBER(kind);
    QUIET(GetDenotationFromTypeInfo(info, &denotation, &length));
    printf("  denotation '%.*s'\n", (int)length, denotation);
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    const OrtMapTypeInfo *map = NULL;
    const OrtSequenceTypeInfo *sequence = NULL;
    const OrtOptionalTypeInfo *optional = NULL;
    DO(CastTypeInfoToTensorInfo(info, &tensor));
    DO(CastTypeInfoToMapTypeInfo(info, &map));
    DO(CastTypeInfoToSequenceTypeInfo(info, &sequence));
    DO(CastTypeInfoToOptionalTypeInfo(info, &optional));
    printf("  tensor %d map %d sequence %d optional %d\n", tensor != NULL, map != NULL, sequence != NULL,
           optional != NULL);
    if (tensor != NULL) show_shape(tensor);
    OrtTypeInfo *inner = NULL;
    if (map != NULL) {
        ONNXTensorElementDataType key;
        DO(GetMapKeyType(map, &key));
        NUMBER(key);
        DO(GetMapValueType(map, &inner));
    }
    if (sequence != NULL) DO(GetSequenceElementType(sequence, &inner));
    if (optional != NULL) DO(GetOptionalContainedTypeInfo(optional, &inner));
    if (inner != NULL) {
        show_type(inner);
        api->ReleaseTypeInfo(inner);
    }
}

static void show_value(const OrtValue *value) {
    ONNXType kind = ONNX_TYPE_UNKNOWN;
    int is_tensor = -1, is_sparse = -1, has = -1;
    size_t count = 0, bytes = 0;
    DO(GetValueType(value, &kind));
    NUMBER(kind);
    DO(IsTensor(value, &is_tensor));
    DO(IsSparseTensor(value, &is_sparse));
    DO(HasValue(value, &has));
    printf("  %d %d %d\n", is_tensor, is_sparse, has);
    DO(GetValueCount(value, &count));
    NUMBER(count);
    DO(GetTensorSizeInBytes(value, &bytes));
    NUMBER(bytes);
    OrtTensorTypeAndShapeInfo *shape = NULL;
    DO(GetTensorTypeAndShape(value, &shape));
    if (shape != NULL) show_shape(shape);
    api->ReleaseTensorTypeAndShapeInfo(shape);
    OrtTypeInfo *type = NULL;
    DO(GetTypeInfo(value, &type));
    if (type != NULL) show_type(type);
    api->ReleaseTypeInfo(type);
    const OrtMemoryInfo *info = NULL;
    DO(GetTensorMemoryInfo(value, &info));
    const char *name = NULL;
    if (info != NULL) QUIET(MemoryInfoGetName(info, &name));
    TEXT(name);
    ONNXTensorElementDataType element;
    const int64_t *dims = NULL;
    size_t rank = 99;
    DO(GetTensorElementTypeAndShapeDataReference(value, &element, &dims, &rank));
    NUMBER(rank);
}

void tensors_of_types(void) {
    const int64_t dims[] = {2, 3};
    for (int type = 0; type < 28; type++) {
        OrtValue *value = NULL;
        printf("type %d\n", type);
        DO(CreateTensorAsOrtValue(allocator, dims, 2, (ONNXTensorElementDataType)type, &value));
        if (value == NULL) continue;
        show_value(value);
        void *data = NULL;
        const void *again = NULL;
        DO(GetTensorMutableData(value, &data));
        DO(GetTensorData(value, &again));
        NUMBER(data == again && data != NULL);
        const int64_t place[] = {1, 2};
        void *at = NULL;
        DO(TensorAt(value, place, 2, &at));
        if (at != NULL) NUMBER((char *)at - (char *)data);
        api->ReleaseValue(value);
    }
}

void tensors(void) {
    const int64_t shapes[][3] = {{2, 3, 4},
                                 {0, 3, 4},
                                 {2, -1, 4},
                                 {-2, -3, 1},
                                 {1, 1, 1},
                                 {INT64_MAX, 2, 1},
                                 {INT64_MAX, INT64_MAX, 1},
                                 {1LL << 40, 1LL << 20, 1},
                                 {1LL << 31, 1LL << 31, 1LL << 2}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        OrtValue *value = NULL;
        DO(CreateTensorAsOrtValue(allocator, shapes[i], 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
        if (value != NULL) show_value(value);
        api->ReleaseValue(value);
    }
    OrtValue *scalar = floats(NULL, 0);
    if (scalar != NULL) show_value(scalar);
    void *at = NULL;
    DO(TensorAt(scalar, NULL, 0, &at));
    api->ReleaseValue(scalar);
    OrtValue *value = floats(shapes[0], 3);
    const int64_t places[][3] = {{1, 2, 3}, {2, 0, 0}, {0, -1, 0}, {-1, 0, 0}};
    for (size_t i = 0; i < COUNT(places); i++) DO(TensorAt(value, places[i], 3, &at));
    DO(TensorAt(value, places[0], 2, &at));
    DO(FillStringTensor(value, NULL, 0));
    size_t length;
    DO(GetStringTensorDataLength(value, &length));
    DO(GetStringTensorElementLength(value, 0, &length));
    char buffer[64];
    DO(GetStringTensorElement(value, sizeof buffer, 0, buffer));
    DO(FillStringTensorElement(value, "x", 0));
    size_t offsets[4];
    DO(GetStringTensorContent(value, buffer, sizeof buffer, offsets, 4));
    char *resized;
    DO(GetResizedStringTensorElementBuffer(value, 0, 4, &resized));
    OrtValue *element = NULL;
    DO(GetValue(value, 0, allocator, &element));
    int sparse;
    enum OrtSparseFormat format;
    DO(IsSparseTensor(value, &sparse));
    DO(GetSparseTensorFormat(value, &format));
    const void *values;
    DO(GetSparseTensorValues(value, &values));
    api->ReleaseValue(value);
    api->ReleaseValue(NULL);
}

void tensors_over_memory(void) {
    float data[24] = {1, 2, 3};
    const int64_t dims[] = {2, 3, 4}, wrong[] = {2, -3, 4}, huge[] = {INT64_MAX, 4}, none[] = {0, 3};
    OrtValue *value = NULL;
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                                      &value));
    show_value(value);
    void *got = NULL;
    DO(GetTensorMutableData(value, &got));
    NUMBER(got == data);
    api->ReleaseValue(value);
    value = NULL;
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data - 1, dims, 3,
                                      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, wrong, 3,
                                      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, huge, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                                      &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, dims, 3,
                                      ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, dims, 3,
                                      ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, dims, 3, (ONNXTensorElementDataType)77,
                                      &value));
    DO(CreateTensorWithDataAsOrtValue(memory, NULL, 0, none, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    if (value != NULL) show_value(value);
    api->ReleaseValue(value);
    value = NULL;
    DO(CreateTensorWithDataAsOrtValue(memory, data, 1000, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4,
                                      &value));
    if (value != NULL) show_value(value);
    api->ReleaseValue(value);
    void *taken = NULL;
    QUIET(AllocatorAlloc(allocator, sizeof data, &taken));
    value = NULL;
    DO(CreateTensorWithDataAndDeleterAsOrtValue(allocator, taken, sizeof data, dims, 3,
                                                ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    if (value != NULL) show_value(value);
    api->ReleaseValue(value);
    QUIET(AllocatorAlloc(allocator, sizeof data, &taken));
    DO(CreateTensorWithDataAndDeleterAsOrtValue(allocator, taken, 3, dims, 3,
                                                ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    DO(CreateTensorWithDataAndDeleterAsOrtValue(allocator, taken, sizeof data, dims, 3,
                                                ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &value));
    QUIET(AllocatorFree(allocator, taken));
}

void strings(void) {
    const int64_t dims[] = {2, 2};
    const char *texts[] = {"a", "", "gr\xc3\xbc\xc3\x9f", "four"};
    OrtValue *value = NULL;
    DO(CreateTensorAsOrtValue(allocator, dims, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &value));
    size_t length = 99, offsets[6] = {0};
    char buffer[64] = {0};
    DO(GetStringTensorDataLength(value, &length));
    NUMBER(length);
    DO(FillStringTensor(value, texts, 3));
    DO(FillStringTensor(value, texts, 5));
    DO(FillStringTensor(value, texts, 4));
    DO(GetStringTensorDataLength(value, &length));
    NUMBER(length);
    DO(GetStringTensorContent(value, buffer, sizeof buffer, offsets, 4));
    printf("  %s %d %d %d %d\n", buffer, (int)offsets[0], (int)offsets[1], (int)offsets[2], (int)offsets[3]);
    DO(GetStringTensorContent(value, buffer, 3, offsets, 4));
    DO(GetStringTensorContent(value, buffer, length, offsets, 4));
    DO(GetStringTensorContent(value, buffer, sizeof buffer, offsets, 3));
    DO(GetStringTensorContent(value, buffer, sizeof buffer, offsets, 5));
    for (size_t i = 0; i < 6; i++) {
        DO(GetStringTensorElementLength(value, i, &length));
        NUMBER(length);
        memset(buffer, 0, sizeof buffer);
        DO(GetStringTensorElement(value, sizeof buffer, i, buffer));
        TEXT(buffer);
        DO(GetStringTensorElement(value, 1, i, buffer));
    }
    DO(FillStringTensorElement(value, "changed", 1));
    DO(FillStringTensorElement(value, "changed", 4));
    char *room = NULL;
    DO(GetResizedStringTensorElementBuffer(value, 0, 5, &room));
    if (room != NULL) memcpy(room, "12345", 5);
    DO(GetResizedStringTensorElementBuffer(value, 9, 5, &room));
    DO(GetStringTensorDataLength(value, &length));
    NUMBER(length);
    memset(buffer, 0, sizeof buffer);
    DO(GetStringTensorContent(value, buffer, sizeof buffer, offsets, 4));
    TEXT(buffer);
    void *data = NULL;
    DO(GetTensorMutableData(value, &data));
    show_value(value);
    api->ReleaseValue(value);
}

OrtValue *tensor_of(ONNXTensorElementDataType type, int64_t count) {
    OrtValue *value = NULL;
    QUIET(CreateTensorAsOrtValue(allocator, &count, 1, type, &value));
    return value;
}

void sequences(void) {
    OrtValue *values[] = {tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 2),
                          tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 3),
                          tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 3),
                          tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, 2)};
    const OrtValue *const *in = (const OrtValue *const *)values;
    OrtValue *sequence = NULL, *element = NULL;
    DO(CreateValue(in, 2, ONNX_TYPE_SEQUENCE, &sequence));
    show_value(sequence);
    api->ReleaseValue(values[1]);
    DO(GetValue(sequence, 1, allocator, &element));
    show_value(element);
    api->ReleaseValue(element);
    DO(GetValue(sequence, 2, allocator, &element));
    DO(GetValue(sequence, -1, allocator, &element));
    void *data;
    DO(GetTensorMutableData(sequence, &data));
    api->ReleaseValue(sequence);
    values[1] = values[2];
    DO(CreateValue(in, 2, ONNX_TYPE_SEQUENCE, &sequence));
    DO(CreateValue(in, 0, ONNX_TYPE_SEQUENCE, &sequence));
    DO(CreateValue(in, 1, ONNX_TYPE_TENSOR, &sequence));
    DO(CreateValue(in, 1, ONNX_TYPE_OPTIONAL, &sequence));
    DO(CreateValue(in, 1, ONNX_TYPE_UNKNOWN, &sequence));
    DO(CreateValue(in, 1, ONNX_TYPE_SPARSETENSOR, &sequence));
    DO(CreateValue(in, 1, ONNX_TYPE_OPAQUE, &sequence));
    DO(CreateValue(in + 3, 1, ONNX_TYPE_SEQUENCE, &sequence));
    show_value(sequence);
    OrtValue *nested[] = {sequence, sequence};
    OrtValue *outer = NULL;
    DO(CreateValue((const OrtValue *const *)nested, 2, ONNX_TYPE_SEQUENCE, &outer));
    if (outer != NULL) show_value(outer);
    api->ReleaseValue(outer);
    api->ReleaseValue(sequence);
    api->ReleaseValue(values[0]);
    api->ReleaseValue(values[2]);
    api->ReleaseValue(values[3]);
}

void maps(void) {
    static const ONNXTensorElementDataType types[] = {
        ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
        ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
    for (size_t k = 0; k < COUNT(types); k++)
        for (size_t v = 0; v < COUNT(types); v++) {
            OrtValue *pair[] = {tensor_of(types[k], 2), tensor_of(types[v], 2)}, *map = NULL, *part = NULL;
            void *data = NULL;
            const char *texts[] = {"b", "a"};
            if (types[k] == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
                QUIET(FillStringTensor(pair[0], texts, 2));
            } else if (types[k] == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
                QUIET(GetTensorMutableData(pair[0], &data));
                ((int64_t *)data)[0] = 7, ((int64_t *)data)[1] = 3;
            }
            printf("map %d %d\n", (int)types[k], (int)types[v]);
            DO(CreateValue((const OrtValue *const *)pair, 2, ONNX_TYPE_MAP, &map));
            if (map != NULL) {
                show_value(map);
                DO(GetValue(map, 0, allocator, &part));
                show_value(part);
                if (types[k] == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
                    QUIET(GetTensorMutableData(part, &data));
                    printf("  keys %d %d\n", (int)((int64_t *)data)[0], (int)((int64_t *)data)[1]);
                }
                api->ReleaseValue(part);
                DO(GetValue(map, 1, allocator, &part));
                show_value(part);
                api->ReleaseValue(part);
                DO(GetValue(map, 2, allocator, &part));
                DO(GetValue(map, -1, allocator, &part));
            }
            api->ReleaseValue(map);
            api->ReleaseValue(pair[0]);
            api->ReleaseValue(pair[1]);
        }
    OrtValue *pair[] = {tensor_of(types[0], 2), tensor_of(types[2], 3)}, *map = NULL;
    const OrtValue *const *in = (const OrtValue *const *)pair;
    DO(CreateValue(in, 2, ONNX_TYPE_MAP, &map));
    DO(CreateValue(in, 1, ONNX_TYPE_MAP, &map));
    DO(CreateValue(in, 0, ONNX_TYPE_MAP, &map));
    api->ReleaseValue(pair[0]);
    api->ReleaseValue(pair[1]);
}

void shape_infos(void) {
    OrtTensorTypeAndShapeInfo *info = NULL;
    DO(CreateTensorTypeAndShapeInfo(&info));
    show_shape(info);
    const int64_t dims[] = {2, -1, 4}, negative[] = {-5};
    const char *names[] = {"", "batch", ""};
    DO(SetTensorElementType(info, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8));
    DO(SetDimensions(info, dims, 3));
    show_shape(info);
    DO(SetSymbolicDimensions(info, names, 3));
    show_shape(info);
    DO(SetSymbolicDimensions(info, names, 2));
    int64_t some[2] = {9, 9};
    DO(GetDimensions(info, some, 2));
    printf("  %d %d\n", (int)some[0], (int)some[1]);
    int64_t more[5] = {9, 9, 9, 9, 9};
    DO(GetDimensions(info, more, 5));
    printf("  %d %d %d %d\n", (int)more[0], (int)more[1], (int)more[2], (int)more[3]);
    DO(SetDimensions(info, negative, 1));
    show_shape(info);
    DO(SetTensorElementType(info, (ONNXTensorElementDataType)99));
    api->ReleaseTensorTypeAndShapeInfo(info);
    api->ReleaseTensorTypeAndShapeInfo(NULL);
    api->ReleaseTypeInfo(NULL);
    api->ReleaseMapTypeInfo(NULL);
    api->ReleaseSequenceTypeInfo(NULL);
}

void sparse(void) {
    const int64_t dims[] = {3, 4}, count[] = {2}, coo[] = {1, 6}, coo2[] = {0, 1, 1, 2};
    const float values[] = {5, 6};
    OrtValue *value = NULL;
    DO(CreateSparseTensorAsOrtValue(allocator, dims, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    if (value == NULL) return;
    enum OrtSparseFormat format = ORT_SPARSE_UNDEFINED;
    DO(GetSparseTensorFormat(value, &format));
    NUMBER(format);
    DO(FillSparseTensorCoo(value, memory, count, 1, values, coo, 2));
    DO(GetSparseTensorFormat(value, &format));
    NUMBER(format);
    show_value(value);
    OrtTensorTypeAndShapeInfo *info = NULL;
    DO(GetSparseTensorValuesTypeAndShape(value, &info));
    if (info != NULL) show_shape(info);
    api->ReleaseTensorTypeAndShapeInfo(info);
    info = NULL;
    DO(GetSparseTensorIndicesTypeShape(value, ORT_SPARSE_COO_INDICES, &info));
    if (info != NULL) show_shape(info);
    api->ReleaseTensorTypeAndShapeInfo(info);
    const void *data = NULL;
    size_t number = 0;
    DO(GetSparseTensorValues(value, &data));
    if (data != NULL) printf("  %g %g\n", ((const float *)data)[0], ((const float *)data)[1]);
    DO(GetSparseTensorIndices(value, ORT_SPARSE_COO_INDICES, &number, &data));
    NUMBER(number);
    api->ReleaseValue(value);
    DO(CreateSparseTensorAsOrtValue(allocator, dims, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    DO(FillSparseTensorCoo(value, memory, count, 1, values, coo2, 4));
    info = NULL;
    DO(GetSparseTensorIndicesTypeShape(value, ORT_SPARSE_COO_INDICES, &info));
    if (info != NULL) show_shape(info);
    api->ReleaseTensorTypeAndShapeInfo(info);
    api->ReleaseValue(value);
}

void type_infos(void) {
    const OrtModelEditorApi *editor = api->GetModelEditorApi();
    OrtTensorTypeAndShapeInfo *shape = NULL;
    QUIET(CreateTensorTypeAndShapeInfo(&shape));
    QUIET(SetTensorElementType(shape, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
    const int64_t dims[] = {-1, 4};
    const char *names[] = {"batch", ""};
    QUIET(SetDimensions(shape, dims, 2));
    QUIET(SetSymbolicDimensions(shape, names, 2));
    OrtTypeInfo *tensor = NULL, *sequence = NULL, *map = NULL, *optional = NULL, *sparse_type = NULL;
    answer("CreateTensorTypeInfo", editor->CreateTensorTypeInfo(shape, &tensor));
    show_type(tensor);
    answer("CreateSparseTensorTypeInfo", editor->CreateSparseTensorTypeInfo(shape, &sparse_type));
    show_type(sparse_type);
    answer("CreateSequenceTypeInfo", editor->CreateSequenceTypeInfo(tensor, &sequence));
    show_type(sequence);
    answer("CreateMapTypeInfo", editor->CreateMapTypeInfo(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, tensor, &map));
    show_type(map);
    answer("CreateOptionalTypeInfo", editor->CreateOptionalTypeInfo(sequence, &optional));
    show_type(optional);
    OrtValueInfo *info = NULL;
    answer("CreateValueInfo", editor->CreateValueInfo("x", tensor, &info));
    const char *name = NULL;
    if (info != NULL) {
        DO(GetValueInfoName(info, &name));
        TEXT(name);
        const OrtTypeInfo *type = NULL;
        DO(GetValueInfoTypeInfo(info, &type));
        if (type != NULL) show_type(type);
    }
    api->ReleaseValueInfo(info);
    answer("CreateValueInfo", editor->CreateValueInfo("", tensor, &info));
    answer("CreateValueInfo", editor->CreateValueInfo("x", NULL, &info));
    answer("CreateValueInfo", editor->CreateValueInfo(NULL, tensor, &info));
    api->ReleaseTypeInfo(optional);
    api->ReleaseTypeInfo(map);
    api->ReleaseTypeInfo(sequence);
    api->ReleaseTypeInfo(sparse_type);
    api->ReleaseTypeInfo(tensor);
    api->ReleaseTensorTypeAndShapeInfo(shape);
}

void attributes(void) {
    OrtOpAttr *attribute = NULL;
    int64_t ints[] = {3, 4};
    float number = 2.5f;
    DO(CreateOpAttr("i", ints, 1, ORT_OP_ATTR_INT, &attribute));
    const char *name = NULL;
    OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
    if (attribute != NULL) {
        DO(OpAttr_GetName(attribute, &name));
        TEXT(name);
        DO(OpAttr_GetType(attribute, &type));
        NUMBER(type);
        int64_t got = 0;
        size_t size = 0;
        DO(ReadOpAttr(attribute, ORT_OP_ATTR_INT, &got, sizeof got, &size));
        NUMBER(got);
        NUMBER(size);
        DO(ReadOpAttr(attribute, ORT_OP_ATTR_FLOAT, &got, sizeof got, &size));
        DO(ReadOpAttr(attribute, ORT_OP_ATTR_INT, &got, 1, &size));
        NUMBER(size);
    }
    api->ReleaseOpAttr(attribute);
    DO(CreateOpAttr("is", ints, 2, ORT_OP_ATTR_INTS, &attribute));
    api->ReleaseOpAttr(attribute);
    DO(CreateOpAttr("f", &number, 1, ORT_OP_ATTR_FLOAT, &attribute));
    api->ReleaseOpAttr(attribute);
    DO(CreateOpAttr("s", "text", 4, ORT_OP_ATTR_STRING, &attribute));
    api->ReleaseOpAttr(attribute);
    DO(CreateOpAttr("u", "text", 4, ORT_OP_ATTR_UNDEFINED, &attribute));
    api->ReleaseOpAttr(NULL);
}
