/* The names of onnxruntime's first C interface, before it had a table: OrtInitialize, OrtCreateSession,
 * factories of execution providers, OrtReleaseObject. Each is an inline function over today's table (C11 or
 * C++). */
#pragma once
#include "onnxruntime_c_api.h"

typedef OrtMemoryInfo OrtAllocatorInfo;

/* A factory remembers its provider; today's interface takes the name and the device. */
typedef struct OrtProviderFactoryInterface {
    struct OrtProviderFactoryInterface *self;
    const char *provider;
    const char *option;
    int number;
} OrtProviderFactoryInterface;

static inline const OrtApi *OrtFirstApi(void) {
    static const OrtApi *api;
    if (!api) api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    return api;
}

/* For functions that could not say that they failed. */
static inline void OrtFirstIgnore(OrtStatus *status) {
    if (status) OrtFirstApi()->ReleaseStatus(status);
}

/* Statuses */
static inline OrtStatus *OrtCreateStatus(OrtErrorCode code, const char *text) {
    return OrtFirstApi()->CreateStatus(code, text);
}
static inline OrtErrorCode OrtGetErrorCode(const OrtStatus *status) {
    return OrtFirstApi()->GetErrorCode(status);
}
static inline const char *OrtGetErrorMessage(const OrtStatus *status) {
    return OrtFirstApi()->GetErrorMessage(status);
}

/* Environment and session */
static inline OrtStatus *OrtInitialize(OrtLoggingLevel level, const char *id, OrtEnv **out) {
    return OrtFirstApi()->CreateEnv(level, id, out);
}
static inline OrtStatus *OrtInitializeWithCustomLogger(OrtLoggingFunction function, void *param,
                                                       OrtLoggingLevel level, const char *id, OrtEnv **out) {
    return OrtFirstApi()->CreateEnvWithCustomLogger(function, param, level, id, out);
}
static inline OrtStatus *OrtCreateSession(const OrtEnv *env, const ORTCHAR_T *path,
                                          const OrtSessionOptions *options, OrtSession **out) {
    return OrtFirstApi()->CreateSession(env, path, options, out);
}
static inline OrtStatus *OrtRun(OrtSession *session, const OrtRunOptions *options,
                                const char *const *input_names, const OrtValue *const *inputs,
                                size_t input_count, const char *const *output_names, size_t output_count,
                                OrtValue **outputs) {
    return OrtFirstApi()->Run(session, options, input_names, inputs, input_count, output_names, output_count,
                              outputs);
}
static inline OrtStatus *OrtSessionGetInputCount(const OrtSession *session, size_t *out) {
    return OrtFirstApi()->SessionGetInputCount(session, out);
}
static inline OrtStatus *OrtSessionGetOutputCount(const OrtSession *session, size_t *out) {
    return OrtFirstApi()->SessionGetOutputCount(session, out);
}
static inline OrtStatus *OrtSessionGetInputTypeInfo(const OrtSession *session, size_t index,
                                                    OrtTypeInfo **out) {
    return OrtFirstApi()->SessionGetInputTypeInfo(session, index, out);
}
static inline OrtStatus *OrtSessionGetOutputTypeInfo(const OrtSession *session, size_t index,
                                                     OrtTypeInfo **out) {
    return OrtFirstApi()->SessionGetOutputTypeInfo(session, index, out);
}
static inline OrtStatus *OrtSessionGetInputName(const OrtSession *session, size_t index,
                                                OrtAllocator *allocator, char **out) {
    return OrtFirstApi()->SessionGetInputName(session, index, allocator, out);
}
static inline OrtStatus *OrtSessionGetOutputName(const OrtSession *session, size_t index,
                                                 OrtAllocator *allocator, char **out) {
    return OrtFirstApi()->SessionGetOutputName(session, index, allocator, out);
}

/* Session options */
static inline OrtSessionOptions *OrtCreateSessionOptions(void) {
    OrtSessionOptions *options = NULL;
    OrtFirstIgnore(OrtFirstApi()->CreateSessionOptions(&options));
    return options;
}
static inline OrtSessionOptions *OrtCloneSessionOptions(OrtSessionOptions *options) {
    OrtSessionOptions *copy = NULL;
    OrtFirstIgnore(OrtFirstApi()->CloneSessionOptions(options, &copy));
    return copy;
}
static inline void OrtEnableSequentialExecution(OrtSessionOptions *options) {
    OrtFirstIgnore(OrtFirstApi()->SetSessionExecutionMode(options, ORT_SEQUENTIAL));
}
static inline void OrtDisableSequentialExecution(OrtSessionOptions *options) {
    OrtFirstIgnore(OrtFirstApi()->SetSessionExecutionMode(options, ORT_PARALLEL));
}
static inline void OrtEnableProfiling(OrtSessionOptions *options, const char *prefix) {
    OrtFirstIgnore(OrtFirstApi()->EnableProfiling(options, prefix));
}
static inline void OrtDisableProfiling(OrtSessionOptions *options) {
    OrtFirstIgnore(OrtFirstApi()->DisableProfiling(options));
}
static inline void OrtEnableMemPattern(OrtSessionOptions *options) {
    OrtFirstIgnore(OrtFirstApi()->EnableMemPattern(options));
}
static inline void OrtDisableMemPattern(OrtSessionOptions *options) {
    OrtFirstIgnore(OrtFirstApi()->DisableMemPattern(options));
}
static inline void OrtEnableCpuMemArena(OrtSessionOptions *options) {
    OrtFirstIgnore(OrtFirstApi()->EnableCpuMemArena(options));
}
static inline void OrtDisableCpuMemArena(OrtSessionOptions *options) {
    OrtFirstIgnore(OrtFirstApi()->DisableCpuMemArena(options));
}
static inline void OrtSetSessionLogId(OrtSessionOptions *options, const char *id) {
    OrtFirstIgnore(OrtFirstApi()->SetSessionLogId(options, id));
}
static inline void OrtSetSessionLogVerbosityLevel(OrtSessionOptions *options, uint32_t level) {
    OrtFirstIgnore(OrtFirstApi()->SetSessionLogVerbosityLevel(options, (int)level));
}
static inline int OrtSetSessionThreadPoolSize(OrtSessionOptions *options, int threads) {
    if (threads <= 0) return -1;
    OrtFirstIgnore(OrtFirstApi()->SetIntraOpNumThreads(options, threads));
    return 0;
}

/* Execution providers by factory. `out` is the address of a pointer to, or to a pointer to, a factory. */
static inline OrtStatus *OrtFirstFactory(const char *provider, const char *option, int number, void *out) {
    OrtProviderFactoryInterface *factory = (OrtProviderFactoryInterface *)malloc(sizeof *factory);
    if (!factory) return OrtCreateStatus(ORT_FAIL, "out of memory");
    factory->self = factory;
    factory->provider = provider;
    factory->option = option;
    factory->number = number;
    *(OrtProviderFactoryInterface **)out = factory;
    return NULL;
}
static inline OrtStatus *OrtCreateCpuExecutionProviderFactory(int use_arena, void *out) {
    (void)use_arena;
    return OrtFirstFactory("CPU", NULL, 0, out);
}
static inline OrtStatus *OrtCreateCUDAExecutionProviderFactory(int device, void *out) {
    return OrtFirstFactory("CUDA", "device_id", device, out);
}
static inline OrtStatus *OrtCreateROCMExecutionProviderFactory(int device, void *out) {
    return OrtFirstFactory("ROCM", "device_id", device, out);
}
static inline OrtStatus *OrtCreateMIGraphXExecutionProviderFactory(int device, void *out) {
    return OrtFirstFactory("MIGraphX", "device_id", device, out);
}
static inline OrtStatus *OrtCreateMkldnnExecutionProviderFactory(int use_arena, void *out) {
    (void)use_arena;
    return OrtFirstFactory("Dnnl", NULL, 0, out);
}
static inline OrtStatus *OrtSessionOptionsAppendExecutionProvider(OrtSessionOptions *options,
                                                                  const void *factory) {
    const OrtProviderFactoryInterface *given = (const OrtProviderFactoryInterface *)factory;
    char text[16], *end = text + sizeof text - 1;
    unsigned rest = given->number < 0 ? 0u : (unsigned)given->number;
    *end = 0;
    do *--end = (char)('0' + rest % 10);
    while (rest /= 10);
    const char *const value = end;
    return OrtFirstApi()->SessionOptionsAppendExecutionProvider(options, given->provider, &given->option,
                                                                &value, given->option ? 1 : 0);
}

/* Run options */
static inline OrtRunOptions *OrtCreateRunOptions(void) {
    OrtRunOptions *options = NULL;
    OrtFirstIgnore(OrtFirstApi()->CreateRunOptions(&options));
    return options;
}
static inline OrtStatus *OrtRunOptionsSetRunLogVerbosityLevel(OrtRunOptions *options, unsigned int level) {
    return OrtFirstApi()->RunOptionsSetRunLogVerbosityLevel(options, (int)level);
}
static inline OrtStatus *OrtRunOptionsSetRunTag(OrtRunOptions *options, const char *tag) {
    return OrtFirstApi()->RunOptionsSetRunTag(options, tag);
}
static inline const char *OrtRunOptionsGetRunTag(const OrtRunOptions *options) {
    const char *tag = NULL;
    OrtFirstIgnore(OrtFirstApi()->RunOptionsGetRunTag(options, &tag));
    return tag;
}
static inline void OrtRunOptionsSetTerminate(OrtRunOptions *options, int flag) {
    OrtFirstIgnore(flag ? OrtFirstApi()->RunOptionsSetTerminate(options)
                        : OrtFirstApi()->RunOptionsUnsetTerminate(options));
}

/* Memory and values; shapes were given as size_t */
static inline OrtStatus *OrtCreateAllocatorInfo(const char *name, OrtAllocatorType type, int id,
                                                OrtMemType mem_type, OrtAllocatorInfo **out) {
    return OrtFirstApi()->CreateMemoryInfo(name, type, id, mem_type, out);
}
static inline OrtStatus *OrtCreateCpuAllocatorInfo(OrtAllocatorType type, OrtMemType mem_type,
                                                   OrtAllocatorInfo **out) {
    return OrtFirstApi()->CreateCpuMemoryInfo(type, mem_type, out);
}
static inline OrtStatus *OrtCreateDefaultAllocator(OrtAllocator **out) {
    return OrtFirstApi()->GetAllocatorWithDefaultOptions(out);
}
static inline void *OrtAllocatorAlloc(OrtAllocator *allocator, size_t size) {
    return allocator->Alloc(allocator, size);
}
static inline void OrtAllocatorFree(OrtAllocator *allocator, void *block) {
    allocator->Free(allocator, block);
}
static inline OrtStatus *OrtCreateTensorAsOrtValue(OrtAllocator *allocator, const size_t *shape, size_t rank,
                                                   ONNXTensorElementDataType type, OrtValue **out) {
    return OrtFirstApi()->CreateTensorAsOrtValue(allocator, (const int64_t *)shape, rank, type, out);
}
static inline OrtStatus *OrtCreateTensorWithDataAsOrtValue(const OrtAllocatorInfo *info, void *data,
                                                           size_t size, const size_t *shape, size_t rank,
                                                           ONNXTensorElementDataType type, OrtValue **out) {
    return OrtFirstApi()->CreateTensorWithDataAsOrtValue(info, data, size, (const int64_t *)shape, rank, type,
                                                         out);
}
static inline OrtStatus *OrtGetTensorMutableData(OrtValue *value, void **out) {
    return OrtFirstApi()->GetTensorMutableData(value, out);
}
static inline int OrtIsTensor(const OrtValue *value) {
    int yes = 0;
    OrtFirstIgnore(OrtFirstApi()->IsTensor(value, &yes));
    return yes;
}
static inline OrtStatus *OrtFillStringTensor(OrtValue *value, const char *const *texts, size_t count) {
    return OrtFirstApi()->FillStringTensor(value, texts, count);
}
static inline OrtStatus *OrtGetStringTensorDataLength(const OrtValue *value, size_t *out) {
    return OrtFirstApi()->GetStringTensorDataLength(value, out);
}
static inline OrtStatus *OrtGetStringTensorContent(const OrtValue *value, void *bytes, size_t size,
                                                   size_t *offsets, size_t count) {
    return OrtFirstApi()->GetStringTensorContent(value, bytes, size, offsets, count);
}

/* Types and shapes */
static inline const OrtTensorTypeAndShapeInfo *OrtCastTypeInfoToTensorInfo(const OrtTypeInfo *info) {
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    OrtFirstIgnore(OrtFirstApi()->CastTypeInfoToTensorInfo(info, &tensor));
    return tensor;
}
static inline ONNXTensorElementDataType OrtGetTensorElementType(const OrtTensorTypeAndShapeInfo *info) {
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    OrtFirstIgnore(OrtFirstApi()->GetTensorElementType(info, &type));
    return type;
}
static inline size_t OrtGetNumOfDimensions(const OrtTensorTypeAndShapeInfo *info) {
    size_t rank = 0;
    OrtFirstIgnore(OrtFirstApi()->GetDimensionsCount(info, &rank));
    return rank;
}
static inline void OrtGetDimensions(const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t length) {
    OrtFirstIgnore(OrtFirstApi()->GetDimensions(info, dims, length));
}
static inline OrtStatus *OrtGetTensorShapeAndType(const OrtValue *value, OrtTensorTypeAndShapeInfo **out) {
    return OrtFirstApi()->GetTensorTypeAndShape(value, out);
}
static inline OrtStatus *OrtGetTypeInfo(const OrtValue *value, OrtTypeInfo **out) {
    return OrtFirstApi()->GetTypeInfo(value, out);
}

/* Releases: by kind, and by OrtReleaseObject, which takes any of them */
static inline void OrtReleaseEnv(OrtEnv *object) { OrtFirstApi()->ReleaseEnv(object); }
static inline void OrtReleaseStatus(OrtStatus *object) { OrtFirstApi()->ReleaseStatus(object); }
static inline void OrtReleaseSession(OrtSession *object) { OrtFirstApi()->ReleaseSession(object); }
static inline void OrtReleaseSessionOptions(OrtSessionOptions *object) {
    OrtFirstApi()->ReleaseSessionOptions(object);
}
static inline void OrtReleaseRunOptions(OrtRunOptions *object) { OrtFirstApi()->ReleaseRunOptions(object); }
static inline void OrtReleaseValue(OrtValue *object) { OrtFirstApi()->ReleaseValue(object); }
static inline void OrtReleaseTypeInfo(OrtTypeInfo *object) { OrtFirstApi()->ReleaseTypeInfo(object); }
static inline void OrtReleaseTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo *object) {
    OrtFirstApi()->ReleaseTensorTypeAndShapeInfo(object);
}
static inline void OrtReleaseAllocatorInfo(OrtAllocatorInfo *object) {
    OrtFirstApi()->ReleaseMemoryInfo(object);
}
static inline void OrtReleaseAllocator(OrtAllocator *object) { (void)object; }
static inline void OrtReleaseFactory(void *object) { free(object); }

#ifdef __cplusplus
inline void OrtReleaseObject(OrtEnv *object) { OrtReleaseEnv(object); }
inline void OrtReleaseObject(OrtStatus *object) { OrtReleaseStatus(object); }
inline void OrtReleaseObject(OrtSession *object) { OrtReleaseSession(object); }
inline void OrtReleaseObject(OrtSessionOptions *object) { OrtReleaseSessionOptions(object); }
inline void OrtReleaseObject(OrtRunOptions *object) { OrtReleaseRunOptions(object); }
inline void OrtReleaseObject(OrtValue *object) { OrtReleaseValue(object); }
inline void OrtReleaseObject(OrtTypeInfo *object) { OrtReleaseTypeInfo(object); }
inline void OrtReleaseObject(OrtTensorTypeAndShapeInfo *object) { OrtReleaseTensorTypeAndShapeInfo(object); }
inline void OrtReleaseObject(OrtAllocatorInfo *object) { OrtReleaseAllocatorInfo(object); }
inline void OrtReleaseObject(OrtAllocator *object) { OrtReleaseAllocator(object); }
inline void OrtReleaseObject(OrtProviderFactoryInterface *object) { OrtReleaseFactory(object); }
inline void OrtReleaseObject(OrtProviderFactoryInterface **object) { OrtReleaseFactory(object); }
#else
#define OrtReleaseObject(object)                                       \
    _Generic((object),                                                 \
        OrtEnv *: OrtReleaseEnv,                                       \
        OrtStatus *: OrtReleaseStatus,                                 \
        OrtSession *: OrtReleaseSession,                               \
        OrtSessionOptions *: OrtReleaseSessionOptions,                 \
        OrtRunOptions *: OrtReleaseRunOptions,                         \
        OrtValue *: OrtReleaseValue,                                   \
        OrtTypeInfo *: OrtReleaseTypeInfo,                             \
        OrtTensorTypeAndShapeInfo *: OrtReleaseTensorTypeAndShapeInfo, \
        OrtAllocatorInfo *: OrtReleaseAllocatorInfo,                   \
        OrtAllocator *: OrtReleaseAllocator,                           \
        OrtProviderFactoryInterface *: OrtReleaseFactory,              \
        OrtProviderFactoryInterface * *: OrtReleaseFactory)(object)
#endif
