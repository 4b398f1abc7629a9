/* Calls of onnxruntime's C interface that need no model, with good, wrong and null arguments: what they answer is
 * written line by line, so that two libraries can be compared. Each group runs in its own process, so that a crash
 * ends the group alone.
 *
 *     interface_calls LIBRARY */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "onnxruntime_c_api.h"

static const OrtApi *api;
static OrtAllocator *allocator;
static OrtMemoryInfo *memory;

static void answer(const char *what, OrtStatus *status) {
    if (status == NULL) {
        printf("%s: ok\n", what);
    } else {
        printf("%s: %d %s\n", what, (int)api->GetErrorCode(status), api->GetErrorMessage(status));
        api->ReleaseStatus(status);
    }
}

#define DO(call) answer(#call, api->call)
#define QUIET(call) do { OrtStatus *s_ = api->call; if (s_) { answer(#call, s_); } } while (0)
#define NUMBER(value) printf("  %s = %lld\n", #value, (long long)(value))
#define TEXT(value) printf("  %s = %s\n", #value, (value) == NULL ? "(null)" : (value))
#define COUNT(array) (sizeof(array) / sizeof *(array))

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
    printf("  tensor %d map %d sequence %d optional %d\n", tensor != NULL, map != NULL, sequence != NULL, optional != NULL);
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

static void statuses(void) {
    for (int code = 0; code < 17; code++) {
        OrtStatus *status = api->CreateStatus((OrtErrorCode)code, "a text");
        printf("%d\n", status != NULL);
        if (status != NULL) printf("%d %s\n", (int)api->GetErrorCode(status), api->GetErrorMessage(status));
        api->ReleaseStatus(status);
    }
    OrtStatus *status = api->CreateStatus(ORT_FAIL, "");
    TEXT(api->GetErrorMessage(status));
    api->ReleaseStatus(status);
    api->ReleaseStatus(NULL);
}

static void environments(void) {
    OrtEnv *first = NULL, *second = NULL;
    DO(CreateEnv(ORT_LOGGING_LEVEL_WARNING, "one", &first));
    DO(CreateEnv(ORT_LOGGING_LEVEL_ERROR, "two", &second));
    NUMBER(first == second);
    DO(EnableTelemetryEvents(first));
    DO(DisableTelemetryEvents(first));
    DO(SetLanguageProjection(first, ORT_PROJECTION_PYTHON));
    DO(UpdateEnvWithCustomLogLevel(first, ORT_LOGGING_LEVEL_INFO));
    const OrtEpDevice *const *devices = NULL;
    size_t count = 0;
    DO(GetEpDevices(first, &devices, &count));
    NUMBER(count > 0);
    if (count > 0) {
        TEXT(api->EpDevice_EpName(devices[0]));
        TEXT(api->EpDevice_EpVendor(devices[0]));
        NUMBER(api->HardwareDevice_Type(api->EpDevice_Device(devices[0])));
        const char *const *keys, *const *values;
        api->GetKeyValuePairs(api->EpDevice_EpMetadata(devices[0]), &keys, &values, &count);
        for (size_t i = 0; i < count; i++) printf("  metadata %s\n", keys[i]);
        api->GetKeyValuePairs(api->EpDevice_EpOptions(devices[0]), &keys, &values, &count);
        NUMBER(count);
        NUMBER(api->EpDevice_MemoryInfo(devices[0], OrtDeviceMemoryType_DEFAULT) != NULL);
    }
    DO(GetNumHardwareDevices(first, &count));
    NUMBER(count > 0);
    DO(UnregisterExecutionProviderLibrary(first, "nothing"));
    DO(RegisterExecutionProviderLibrary(first, "nothing", "/nowhere/lib.so"));
    api->ReleaseEnv(second);
    api->ReleaseEnv(first);
    api->ReleaseEnv(NULL);
}

static void environments_with(void) {
    OrtEnv *env = NULL;
    OrtThreadingOptions *threading = NULL;
    DO(CreateThreadingOptions(&threading));
    DO(SetGlobalIntraOpNumThreads(threading, 2));
    DO(SetGlobalIntraOpNumThreads(threading, -1));
    DO(SetGlobalInterOpNumThreads(threading, 1));
    DO(SetGlobalInterOpNumThreads(threading, -1));
    DO(SetGlobalIntraOpNumThreads(NULL, 2));
    DO(SetGlobalInterOpNumThreads(NULL, 2));
    DO(SetGlobalSpinControl(threading, 0));
    DO(SetGlobalSpinControl(threading, 2));
    DO(SetGlobalSpinControl(NULL, 1));
    DO(SetGlobalDenormalAsZero(threading));
    DO(SetGlobalDenormalAsZero(NULL));
    DO(SetGlobalIntraOpThreadAffinity(threading, ""));
    DO(SetGlobalIntraOpThreadAffinity(threading, "1"));
    DO(SetGlobalIntraOpThreadAffinity(threading, NULL));
    DO(SetGlobalIntraOpThreadAffinity(NULL, "1"));
    DO(SetGlobalCustomCreateThreadFn(threading, NULL));
    DO(SetGlobalCustomJoinThreadFn(threading, NULL));
    DO(SetGlobalCustomThreadCreationOptions(threading, NULL));
    OrtThreadingOptions *plain = NULL;
    QUIET(CreateThreadingOptions(&plain));
    QUIET(SetGlobalIntraOpNumThreads(plain, 1));
    QUIET(SetGlobalInterOpNumThreads(plain, 1));
    DO(CreateEnvWithGlobalThreadPools(ORT_LOGGING_LEVEL_WARNING, "one", plain, &env));
    api->ReleaseThreadingOptions(plain);
    api->ReleaseThreadingOptions(threading);
    api->ReleaseThreadingOptions(NULL);
    OrtArenaCfg *arena = NULL;
    DO(CreateArenaCfg(0, -1, -1, -1, &arena));
    DO(CreateAndRegisterAllocator(env, memory, arena));
    DO(CreateAndRegisterAllocator(env, memory, arena));
    DO(CreateAndRegisterAllocator(env, memory, NULL));
    DO(CreateAndRegisterAllocator(NULL, memory, NULL));
    DO(CreateAndRegisterAllocator(env, NULL, NULL));
    DO(UnregisterAllocator(env, memory));
    DO(UnregisterAllocator(env, memory));
    OrtAllocator *shared = NULL;
    DO(GetSharedAllocator(env, memory, &shared));
    NUMBER(shared != NULL);
    api->ReleaseArenaCfg(arena);
    const char *keys[] = {"max_mem", "arena_extend_strategy", "wrong"};
    const size_t values[] = {1 << 20, 1, 3};
    DO(CreateArenaCfgV2(keys, values, 2, &arena));
    api->ReleaseArenaCfg(arena);
    DO(CreateArenaCfgV2(keys, values, 3, &arena));
    api->ReleaseEnv(env);
}

static void collect(void *param, OrtLoggingLevel severity, const char *category, const char *id, const char *place,
                    const char *message) {
    (void)param, (void)severity, (void)category, (void)id, (void)place, (void)message;
}

static void environments_by_options(void) {
    OrtEnv *env = NULL;
    OrtEnvCreationOptions options = {.version = ORT_API_VERSION, .log_id = "one"};
    options.logging_severity_level = ORT_LOGGING_LEVEL_WARNING;
    DO(CreateEnvWithOptions(NULL, &env));
    options.version = 0;
    DO(CreateEnvWithOptions(&options, &env));
    options.version = 1000;
    DO(CreateEnvWithOptions(&options, &env));
    options.version = ORT_API_VERSION;
    options.log_id = NULL;
    DO(CreateEnvWithOptions(&options, &env));
    options.log_id = "one";
    options.logging_severity_level = 9;
    DO(CreateEnvWithOptions(&options, &env));
    options.logging_severity_level = ORT_LOGGING_LEVEL_WARNING;
    options.custom_logging_function = collect;
    DO(CreateEnvWithOptions(&options, &env));
    if (env != NULL) {
        DO(SetPerSessionThreadPoolCallbacks(env, NULL));
        OrtThreadPoolCallbacksConfig callbacks = {.version = 0};
        DO(SetPerSessionThreadPoolCallbacks(env, &callbacks));
        callbacks.version = ORT_API_VERSION;
        DO(SetPerSessionThreadPoolCallbacks(env, &callbacks));
        DO(SetPerSessionThreadPoolCallbacks(NULL, &callbacks));
    }
    api->ReleaseEnv(env);
    DO(CreateEnvWithCustomLogger(collect, NULL, ORT_LOGGING_LEVEL_WARNING, "two", &env));
    api->ReleaseEnv(env);
    DO(CreateEnv((OrtLoggingLevel)17, "three", &env));
    api->ReleaseEnv(env);
}

static void memory_infos(void) {
    struct { const char *name; OrtAllocatorType type; int id; OrtMemType mem_type; } cases[] = {
        {"Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault}, {"Cpu", OrtArenaAllocator, 0, OrtMemTypeCPUInput},
        {"Cpu", OrtArenaAllocator, 1, OrtMemTypeCPUOutput}, {"Cuda", OrtArenaAllocator, 1, OrtMemTypeDefault},
        {"CudaPinned", OrtDeviceAllocator, 0, OrtMemTypeCPUOutput}, {"Hip", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"HipPinned", OrtDeviceAllocator, 0, OrtMemTypeDefault}, {"Dml", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"OpenVINO_CPU", OrtDeviceAllocator, 0, OrtMemTypeDefault}, {"OpenVINO_GPU", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"Cann", OrtDeviceAllocator, 0, OrtMemTypeDefault}, {"WebGPU_Buffer", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"QnnHtpShared", OrtDeviceAllocator, 0, OrtMemTypeDefault}, {"Nothing", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"", OrtDeviceAllocator, 0, OrtMemTypeDefault}, {"Cpu", OrtInvalidAllocator, 0, OrtMemTypeDefault},
        {"Tensorrt", OrtDeviceAllocator, 0, OrtMemTypeDefault}, {"WebNN_Tensor", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"CannPinned", OrtDeviceAllocator, 0, OrtMemTypeDefault}, {"cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault},
    };
    OrtMemoryInfo *first = NULL;
    for (size_t i = 0; i < COUNT(cases); i++) {
        OrtMemoryInfo *info = NULL;
        printf("%s %d %d %d: ", cases[i].name, (int)cases[i].type, cases[i].id, (int)cases[i].mem_type);
        answer("CreateMemoryInfo", api->CreateMemoryInfo(cases[i].name, cases[i].type, cases[i].id, cases[i].mem_type, &info));
        if (info == NULL) continue;
        const char *name;
        int id, same;
        OrtMemType mem_type;
        OrtAllocatorType type;
        OrtMemoryInfoDeviceType device;
        QUIET(MemoryInfoGetName(info, &name));
        QUIET(MemoryInfoGetId(info, &id));
        QUIET(MemoryInfoGetMemType(info, &mem_type));
        QUIET(MemoryInfoGetType(info, &type));
        api->MemoryInfoGetDeviceType(info, &device);
        printf("  %s %d %d %d %d %d %d\n", name, id, (int)mem_type, (int)type, (int)device,
               (int)api->MemoryInfoGetDeviceMemType(info), (int)api->MemoryInfoGetVendorId(info));
        if (first == NULL) {
            first = info;
        } else {
            DO(CompareMemoryInfo(first, info, &same));
            NUMBER(same);
            api->ReleaseMemoryInfo(info);
        }
    }
    int same = 9;
    DO(CompareMemoryInfo(first, first, &same));
    NUMBER(same);
    DO(CompareMemoryInfo(first, memory, &same));
    NUMBER(same);
    api->ReleaseMemoryInfo(first);
    api->ReleaseMemoryInfo(NULL);
    OrtMemoryInfo *info = NULL;
    DO(CreateMemoryInfo_V2("any", OrtMemoryInfoDeviceType_GPU, 4318, 1, OrtDeviceMemoryType_HOST_ACCESSIBLE, 256,
                           OrtDeviceAllocator, &info));
    if (info != NULL) {
        printf("  %d %d\n", (int)api->MemoryInfoGetDeviceMemType(info), (int)api->MemoryInfoGetVendorId(info));
        int id;
        OrtMemType mem_type;
        OrtMemoryInfoDeviceType device;
        QUIET(MemoryInfoGetId(info, &id));
        QUIET(MemoryInfoGetMemType(info, &mem_type));
        api->MemoryInfoGetDeviceType(info, &device);
        printf("  %d %d %d\n", id, (int)mem_type, (int)device);
        api->ReleaseMemoryInfo(info);
    }
}

static void allocators(void) {
    void *block = NULL;
    NUMBER(allocator->version);
    DO(AllocatorAlloc(allocator, 100, &block));
    NUMBER(block != NULL && ((uintptr_t)block & 63) == 0);
    memset(block, 1, 100);
    DO(AllocatorFree(allocator, block));
    DO(AllocatorFree(allocator, NULL));
    DO(AllocatorAlloc(allocator, 0, &block));
    NUMBER(block != NULL);
    DO(AllocatorFree(allocator, block));
    const OrtMemoryInfo *info = NULL;
    DO(AllocatorGetInfo(allocator, &info));
    int id;
    OrtAllocatorType type;
    OrtMemType mem_type;
    const char *name;
    QUIET(MemoryInfoGetId(info, &id));
    QUIET(MemoryInfoGetType(info, &type));
    QUIET(MemoryInfoGetMemType(info, &mem_type));
    QUIET(MemoryInfoGetName(info, &name));
    printf("  %s %d %d %d\n", name, id, (int)type, (int)mem_type);
    OrtKeyValuePairs *stats = NULL;
    DO(AllocatorGetStats(allocator, &stats));
    api->ReleaseKeyValuePairs(stats);
    OrtAllocator *again = NULL;
    DO(GetAllocatorWithDefaultOptions(&again));
    NUMBER(again == allocator);
    api->ReleaseAllocator(NULL);
    DO(AllocatorAlloc(allocator, (size_t)1 << 60, &block));
}

static void tensors_of_types(void) {
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

static void tensors(void) {
    const int64_t shapes[][3] = {{2, 3, 4}, {0, 3, 4}, {2, -1, 4}, {-2, -3, 1}, {1, 1, 1}, {INT64_MAX, 2, 1}, {INT64_MAX, INT64_MAX, 1},
                                 {1LL << 40, 1LL << 20, 1}, {1LL << 31, 1LL << 31, 1LL << 2}};
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

static void tensors_over_memory(void) {
    float data[24] = {1, 2, 3};
    const int64_t dims[] = {2, 3, 4}, wrong[] = {2, -3, 4}, huge[] = {INT64_MAX, 4}, none[] = {0, 3};
    OrtValue *value = NULL;
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    show_value(value);
    void *got = NULL;
    DO(GetTensorMutableData(value, &got));
    NUMBER(got == data);
    api->ReleaseValue(value);
    value = NULL;
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data - 1, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, wrong, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, huge, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, dims, 3, (ONNXTensorElementDataType)77, &value));
    DO(CreateTensorWithDataAsOrtValue(memory, NULL, 0, none, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    if (value != NULL) show_value(value);
    api->ReleaseValue(value);
    value = NULL;
    DO(CreateTensorWithDataAsOrtValue(memory, data, 1000, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4, &value));
    if (value != NULL) show_value(value);
    api->ReleaseValue(value);
    void *taken = NULL;
    QUIET(AllocatorAlloc(allocator, sizeof data, &taken));
    value = NULL;
    DO(CreateTensorWithDataAndDeleterAsOrtValue(allocator, taken, sizeof data, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    if (value != NULL) show_value(value);
    api->ReleaseValue(value);
    QUIET(AllocatorAlloc(allocator, sizeof data, &taken));
    DO(CreateTensorWithDataAndDeleterAsOrtValue(allocator, taken, 3, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    DO(CreateTensorWithDataAndDeleterAsOrtValue(allocator, taken, sizeof data, dims, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &value));
    QUIET(AllocatorFree(allocator, taken));
}

static void strings(void) {
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

static OrtValue *tensor_of(ONNXTensorElementDataType type, int64_t count) {
    OrtValue *value = NULL;
    QUIET(CreateTensorAsOrtValue(allocator, &count, 1, type, &value));
    return value;
}

static void sequences(void) {
    OrtValue *values[] = {tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 2), tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 3),
                          tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 3), tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, 2)};
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
}

static void maps(void) {
    static const ONNXTensorElementDataType types[] = {
        ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
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
}

static void shape_infos(void) {
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

static void session_options(void) {
    OrtSessionOptions *options = NULL, *clone = NULL;
    DO(CreateSessionOptions(&options));
    DO(SetOptimizedModelFilePath(options, "/tmp/x.onnx"));
    DO(SetSessionExecutionMode(options, ORT_PARALLEL));
    DO(SetSessionExecutionMode(options, ORT_SEQUENTIAL));
    DO(SetSessionExecutionMode(options, (ExecutionMode)7));
    ExecutionMode mode;
    DO(GetSessionExecutionMode(options, &mode));
    NUMBER(mode);
    int on = 5;
    DO(GetMemPatternEnabled(options, &on));
    NUMBER(on);
    DO(DisableMemPattern(options));
    DO(GetMemPatternEnabled(options, &on));
    NUMBER(on);
    DO(EnableMemPattern(options));
    DO(EnableCpuMemArena(options));
    DO(DisableCpuMemArena(options));
    DO(EnableProfiling(options, "prefix"));
    DO(DisableProfiling(options));
    DO(SetSessionLogId(options, "id"));
    DO(SetSessionLogVerbosityLevel(options, -3));
    DO(SetSessionLogSeverityLevel(options, 7));
    DO(SetSessionLogSeverityLevel(options, -1));
    static const int levels[] = {0, 1, 2, 3, 99, 4, -1, 100, 50};
    for (size_t i = 0; i < COUNT(levels); i++)
        DO(SetSessionGraphOptimizationLevel(options, (GraphOptimizationLevel)levels[i]));
    DO(SetIntraOpNumThreads(options, 2));
    DO(SetIntraOpNumThreads(options, 0));
    DO(SetIntraOpNumThreads(options, -2));
    DO(SetInterOpNumThreads(options, -2));
    DO(DisablePerSessionThreads(options));
    DO(SetDeterministicCompute(options, true));
    DO(AddFreeDimensionOverride(options, "DATA_BATCH", 3));
    DO(AddFreeDimensionOverrideByName(options, "batch", 3));
    DO(AddFreeDimensionOverrideByName(options, "batch", 4));
    DO(AddFreeDimensionOverrideByName(options, "", -4));
    DO(SessionOptionsSetLoadCancellationFlag(options, true));
    DO(SessionOptionsSetLoadCancellationFlag(options, false));
    DO(SessionOptionsSetCustomCreateThreadFn(options, NULL));
    DO(SessionOptionsSetCustomThreadCreationOptions(options, NULL));
    DO(SessionOptionsSetCustomJoinThreadFn(options, NULL));
    DO(SetUserLoggingFunction(options, collect, NULL));
    DO(SessionOptionsSetWeightlessSourceModelBuffer(options, NULL, 3));
    DO(SessionOptionsSetWeightlessSourceModelBuffer(options, "x", 0));
    DO(CloneSessionOptions(options, &clone));
    NUMBER(clone != NULL && clone != options);
    api->ReleaseSessionOptions(clone);
    api->ReleaseSessionOptions(options);
    api->ReleaseSessionOptions(NULL);
}

static void config_entries(void) {
    OrtSessionOptions *options = NULL, *clone = NULL;
    QUIET(CreateSessionOptions(&options));
    DO(AddSessionConfigEntry(options, "session.b", "2"));
    DO(AddSessionConfigEntry(options, "session.a", "1"));
    DO(AddSessionConfigEntry(options, "session.a", "11"));
    DO(AddSessionConfigEntry(options, "", "1"));
    DO(AddSessionConfigEntry(options, "key", ""));
    char longer[5000];
    memset(longer, 'x', sizeof longer);
    longer[1024] = 0;
    printf("%s", "1024 characters: ");
    DO(AddSessionConfigEntry(options, longer, "1"));
    longer[1024] = 'x', longer[1025] = 0;
    DO(AddSessionConfigEntry(options, longer, "1"));
    longer[1025] = 'x', longer[4096] = 0;
    DO(AddSessionConfigEntry(options, "long", longer));
    longer[4096] = 'x', longer[4999] = 0;
    DO(AddSessionConfigEntry(options, "longer", longer));
    int has = 9;
    DO(HasSessionConfigEntry(options, "session.a", &has));
    NUMBER(has);
    DO(HasSessionConfigEntry(options, "nothing", &has));
    NUMBER(has);
    char value[8] = "?";
    size_t size = 0;
    DO(GetSessionConfigEntry(options, "session.a", NULL, &size));
    NUMBER(size);
    size = 1;
    DO(GetSessionConfigEntry(options, "session.a", value, &size));
    NUMBER(size);
    size = sizeof value;
    DO(GetSessionConfigEntry(options, "session.a", value, &size));
    NUMBER(size);
    TEXT(value);
    size = sizeof value;
    DO(GetSessionConfigEntry(options, "nothing", value, &size));
    NUMBER(size);
    QUIET(CloneSessionOptions(options, &clone));
    DO(HasSessionConfigEntry(clone, "session.b", &has));
    NUMBER(has);
    OrtKeyValuePairs *pairs = NULL;
    OrtSessionOptions *plain = NULL;
    QUIET(CreateSessionOptions(&plain));
    QUIET(AddSessionConfigEntry(plain, "one", "1"));
    DO(GetSessionOptionsConfigEntries(plain, &pairs));
    const char *const *keys, *const *values;
    size_t count = 0;
    if (pairs != NULL) api->GetKeyValuePairs(pairs, &keys, &values, &count);
    for (size_t i = 0; i < count; i++) printf("  %s %s\n", keys[i], values[i]);
    api->ReleaseKeyValuePairs(pairs);
    api->ReleaseSessionOptions(plain);
    api->ReleaseSessionOptions(clone);
    api->ReleaseSessionOptions(options);
}

static void initializers(void) {
    OrtSessionOptions *options = NULL, *clone = NULL;
    QUIET(CreateSessionOptions(&options));
    float data[2] = {1, 2};
    int64_t two = 2;
    OrtValue *over = NULL, *own = tensor_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 2);
    QUIET(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, &two, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &over));
    DO(AddInitializer(options, "w", over));
    DO(AddInitializer(options, "w", over));
    DO(AddInitializer(options, "own", own));
    DO(AddInitializer(options, "", over));
    OrtValue *parts[] = {over}, *sequence = NULL;
    QUIET(CreateValue((const OrtValue *const *)parts, 1, ONNX_TYPE_SEQUENCE, &sequence));
    DO(AddInitializer(options, "s", sequence));
    const char *names[] = {"a", "b", "a"}, *empty[] = {""};
    const OrtValue *values[] = {over, own, over}, *wrong[] = {sequence};
    DO(AddExternalInitializers(options, names, values, 0));
    DO(AddExternalInitializers(options, names, values, 2));
    DO(AddExternalInitializers(options, names, values, 3));
    DO(AddExternalInitializers(options, empty, values, 1));
    names[0] = "c";
    DO(AddExternalInitializers(options, names, wrong, 1));
    const char *files[] = {"weights.bin"};
    char *buffers[] = {"0123"};
    size_t lengths[] = {4};
    DO(AddExternalInitializersFromFilesInMemory(options, files, buffers, lengths, 1));
    DO(AddExternalInitializersFromFilesInMemory(options, files, buffers, lengths, 1));
    DO(AddExternalInitializersFromFilesInMemory(options, files, buffers, lengths, 0));
    files[0] = "";
    DO(AddExternalInitializersFromFilesInMemory(options, files, buffers, lengths, 1));
    DO(CloneSessionOptions(options, &clone));
    api->ReleaseSessionOptions(options);
    api->ReleaseSessionOptions(clone);
}

static void providers(void) {
    static const char *const names[] = {
        "CPU", "CPUExecutionProvider", "XNNPACK", "QNN", "SNPE", "AZURE", "JS", "VitisAI", "CoreML", "WebGPU", "OpenVINO", "WEBNN",
        "NvTensorRtRtx", "NoSuch", "", "CUDA", "CUDAExecutionProvider", "DML", "Dnnl", "ROCM", "MIGraphX", "TensorRT",
        "CUDAPluginExecutionProvider", "VSINPU"};
    OrtSessionOptions *options = NULL;
    QUIET(CreateSessionOptions(&options));
    const char *keys[] = {"a", "b"}, *values[] = {"1", "2"};
    for (size_t i = 0; i < COUNT(names); i++) {
        printf("%s ", names[i]);
        DO(SessionOptionsAppendExecutionProvider(options, names[i], keys, values, 2));
        printf("%s ", names[i]);
        DO(SessionOptionsAppendExecutionProvider(options, names[i], NULL, NULL, 0));
    }
    OrtCUDAProviderOptions cuda;
    memset(&cuda, 0, sizeof cuda);
    DO(SessionOptionsAppendExecutionProvider_CUDA(options, &cuda));
    OrtROCMProviderOptions rocm;
    memset(&rocm, 0, sizeof rocm);
    DO(SessionOptionsAppendExecutionProvider_ROCM(options, &rocm));
    OrtOpenVINOProviderOptions openvino;
    memset(&openvino, 0, sizeof openvino);
    DO(SessionOptionsAppendExecutionProvider_OpenVINO(options, &openvino));
    OrtTensorRTProviderOptions tensorrt;
    memset(&tensorrt, 0, sizeof tensorrt);
    DO(SessionOptionsAppendExecutionProvider_TensorRT(options, &tensorrt));
    OrtMIGraphXProviderOptions migraphx;
    memset(&migraphx, 0, sizeof migraphx);
    DO(SessionOptionsAppendExecutionProvider_MIGraphX(options, &migraphx));
    DO(SessionOptionsAppendExecutionProvider_OpenVINO_V2(options, keys, values, 2));
    DO(SessionOptionsAppendExecutionProvider_VitisAI(options, keys, values, 2));
    OrtCUDAProviderOptionsV2 *v2 = NULL;
    DO(CreateCUDAProviderOptions(&v2));
    api->ReleaseCUDAProviderOptions(v2);
    OrtTensorRTProviderOptionsV2 *trt = NULL;
    DO(CreateTensorRTProviderOptions(&trt));
    api->ReleaseTensorRTProviderOptions(trt);
    OrtCANNProviderOptions *cann = NULL;
    DO(CreateCANNProviderOptions(&cann));
    api->ReleaseCANNProviderOptions(cann);
    OrtDnnlProviderOptions *dnnl = NULL;
    DO(CreateDnnlProviderOptions(&dnnl));
    api->ReleaseDnnlProviderOptions(dnnl);
    OrtROCMProviderOptions *rocm_options = NULL;
    DO(CreateROCMProviderOptions(&rocm_options));
    api->ReleaseROCMProviderOptions(rocm_options);
    const void *special = NULL;
    DO(GetExecutionProviderApi("DML", 1, &special));
    DO(GetExecutionProviderApi("NoSuch", 1, &special));
    int device = -7;
    DO(SetCurrentGpuDeviceId(0));
    DO(GetCurrentGpuDeviceId(&device));
    DO(EnableOrtCustomOps(options));
    DO(SessionOptionsSetEpSelectionPolicy(options, OrtExecutionProviderDevicePolicy_PREFER_CPU));
    char **available = NULL;
    int count = 0;
    DO(GetAvailableProviders(&available, &count));
    TEXT(count > 0 ? available[count - 1] : NULL);
    DO(ReleaseAvailableProviders(available, count));
    api->ReleaseSessionOptions(options);
}

static void run_options(void) {
    OrtRunOptions *options = NULL;
    DO(CreateRunOptions(&options));
    int level = 99;
    const char *tag = NULL;
    DO(RunOptionsGetRunLogVerbosityLevel(options, &level));
    NUMBER(level);
    DO(RunOptionsGetRunLogSeverityLevel(options, &level));
    NUMBER(level);
    DO(RunOptionsGetRunTag(options, &tag));
    TEXT(tag);
    DO(RunOptionsSetRunLogVerbosityLevel(options, 3));
    DO(RunOptionsSetRunLogSeverityLevel(options, 77));
    DO(RunOptionsSetRunTag(options, "tag"));
    DO(RunOptionsGetRunLogVerbosityLevel(options, &level));
    NUMBER(level);
    DO(RunOptionsGetRunLogSeverityLevel(options, &level));
    NUMBER(level);
    DO(RunOptionsGetRunTag(options, &tag));
    TEXT(tag);
    DO(RunOptionsSetRunTag(options, NULL));
    DO(RunOptionsGetRunTag(options, &tag));
    TEXT(tag);
    DO(RunOptionsSetTerminate(options));
    DO(RunOptionsUnsetTerminate(options));
    DO(AddRunConfigEntry(options, "key", "value"));
    DO(AddRunConfigEntry(options, "", "value"));
    TEXT(api->GetRunConfigEntry(options, "key"));
    TEXT(api->GetRunConfigEntry(options, "nothing"));
    DO(RunOptionsEnableProfiling(options, "prefix"));
    DO(RunOptionsDisableProfiling(options));
    api->ReleaseRunOptions(options);
    api->ReleaseRunOptions(NULL);
}

static void pairs(void) {
    OrtKeyValuePairs *pairs = NULL;
    api->CreateKeyValuePairs(&pairs);
    const char *const *keys, *const *values;
    size_t count = 99;
    api->GetKeyValuePairs(pairs, &keys, &values, &count);
    NUMBER(count);
    static const char *const added[][2] = {{"b", "2"}, {"a", "1"}, {"c", ""}, {"", "empty"}, {"b", "22"}, {"z", NULL}, {NULL, "n"}};
    for (size_t i = 0; i < COUNT(added); i++) api->AddKeyValuePair(pairs, added[i][0], added[i][1]);
    api->RemoveKeyValuePair(pairs, "a");
    api->RemoveKeyValuePair(pairs, "nothing");
    api->GetKeyValuePairs(pairs, &keys, &values, &count);
    for (size_t i = 0; i < count; i++) printf("  %s = %s\n", keys[i], values[i]);
    TEXT(api->GetKeyValue(pairs, "b"));
    TEXT(api->GetKeyValue(pairs, "a"));
    TEXT(api->GetKeyValue(pairs, "z"));
    api->ReleaseKeyValuePairs(pairs);
    api->ReleaseKeyValuePairs(NULL);
}

static void others(void) {
    OrtPrepackedWeightsContainer *container = NULL;
    DO(CreatePrepackedWeightsContainer(&container));
    NUMBER(container != NULL);
    api->ReleasePrepackedWeightsContainer(container);
    api->ReleasePrepackedWeightsContainer(NULL);
    NUMBER(api->GetTrainingApi(31) == NULL);
    NUMBER(api->GetModelEditorApi() != NULL);
    NUMBER(api->GetCompileApi() != NULL);
    NUMBER(api->GetInteropApi() != NULL);
    TEXT(strncmp(api->GetBuildInfoString(), "ORT Build Info: ", 16) ? "other" : "as expected");
    NUMBER(api->GetExperimentalFunction("NoSuch") == NULL);
    OrtExternalInitializerInfo *external = NULL;
    DO(CreateExternalInitializerInfo("file", 3, 4, &external));
    if (external != NULL) {
        TEXT(api->ExternalInitializerInfo_GetFilePath(external));
        NUMBER(api->ExternalInitializerInfo_GetFileOffset(external));
        NUMBER(api->ExternalInitializerInfo_GetByteSize(external));
    }
    api->ReleaseExternalInitializerInfo(external);
    api->ReleaseLoraAdapter(NULL);
}

static void sparse(void) {
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

static void type_infos(void) {
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

static void attributes(void) {
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

static const struct { const char *name; void (*run)(void); } groups[] = {
    {"statuses", statuses}, {"environments", environments}, {"environments_with", environments_with},
    {"environments_by_options", environments_by_options}, {"memory_infos", memory_infos}, {"allocators", allocators},
    {"tensors_of_types", tensors_of_types}, {"tensors", tensors}, {"tensors_over_memory", tensors_over_memory},
    {"strings", strings}, {"sequences", sequences}, {"maps", maps}, {"shape_infos", shape_infos},
    {"session_options", session_options}, {"config_entries", config_entries}, {"initializers", initializers},
    {"providers", providers}, {"run_options", run_options}, {"pairs", pairs}, {"others", others}, 
    {"sparse", sparse}, {"type_infos", type_infos}, {"attributes", attributes},
};

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) return fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "which library?"), 2;
    const OrtApiBase *(*base)(void) = NULL;
    *(void **)&base = dlsym(library, "OrtGetApiBase");
    api = base()->GetApi(ORT_API_VERSION);
    printf("%s\n", base()->GetVersionString());
    QUIET(GetAllocatorWithDefaultOptions(&allocator));
    QUIET(CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < COUNT(groups); i++) {
        if (argc > 2 && strcmp(argv[2], groups[i].name) != 0) continue;
        printf("== %s\n", groups[i].name);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            OrtEnv *env = NULL;
            if (strncmp(groups[i].name, "environments", 12) != 0) QUIET(CreateEnv(ORT_LOGGING_LEVEL_ERROR, "calls", &env));
            groups[i].run();
            api->ReleaseEnv(env);
            fflush(stdout);
            exit(0);
        }
        int how;
        waitpid(child, &how, 0);
        if (how != 0) printf("crashed: %x\n", (unsigned)how);
    }
    api->ReleaseMemoryInfo(memory);
    return 0;
}
