/* Calls of onnxruntime's C interface that need no model, with good, wrong and null arguments: what they
 * answer is written line by line, so that two libraries can be compared. Each group runs in its own process,
 * so that a crash ends the group alone.
 *
 *     interface_calls LIBRARY */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interface_calls.h"

const OrtApi *api;
OrtAllocator *allocator;
OrtMemoryInfo *memory;

void answer(const char *what, OrtStatus *status) {
    if (status == NULL) {
        printf("%s: ok\n", what);
    } else {
        printf("%s: %d %s\n", what, (int)api->GetErrorCode(status), api->GetErrorMessage(status));
        api->ReleaseStatus(status);
    }
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

static void collect(void *param, OrtLoggingLevel severity, const char *category, const char *id,
                    const char *place, const char *message) {
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
    struct {
        const char *name;
        OrtAllocatorType type;
        int id;
        OrtMemType mem_type;
    } cases[] = {
        {"Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"Cpu", OrtArenaAllocator, 0, OrtMemTypeCPUInput},
        {"Cpu", OrtArenaAllocator, 1, OrtMemTypeCPUOutput},
        {"Cuda", OrtArenaAllocator, 1, OrtMemTypeDefault},
        {"CudaPinned", OrtDeviceAllocator, 0, OrtMemTypeCPUOutput},
        {"Hip", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"HipPinned", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"Dml", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"OpenVINO_CPU", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"OpenVINO_GPU", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"Cann", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"WebGPU_Buffer", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"QnnHtpShared", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"Nothing", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"Cpu", OrtInvalidAllocator, 0, OrtMemTypeDefault},
        {"Tensorrt", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"WebNN_Tensor", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"CannPinned", OrtDeviceAllocator, 0, OrtMemTypeDefault},
        {"cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault},
    };
    OrtMemoryInfo *first = NULL;
    for (size_t i = 0; i < COUNT(cases); i++) {
        OrtMemoryInfo *info = NULL;
        printf("%s %d %d %d: ", cases[i].name, (int)cases[i].type, cases[i].id, (int)cases[i].mem_type);
        answer("CreateMemoryInfo",
               api->CreateMemoryInfo(cases[i].name, cases[i].type, cases[i].id, cases[i].mem_type, &info));
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
    DO(CreateMemoryInfo_V2("any", OrtMemoryInfoDeviceType_GPU, 4318, 1, OrtDeviceMemoryType_HOST_ACCESSIBLE,
                           256, OrtDeviceAllocator, &info));
    if (info != NULL) {
        printf("  %d %d\n", (int)api->MemoryInfoGetDeviceMemType(info),
               (int)api->MemoryInfoGetVendorId(info));
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
    QUIET(CreateTensorWithDataAsOrtValue(memory, data, sizeof data, &two, 1,
                                         ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &over));
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
    api->ReleaseValue(sequence);
    api->ReleaseValue(own);
    api->ReleaseValue(over);
}

static void providers(void) {
    static const char *const names[] = {"CPU",
                                        "CPUExecutionProvider",
                                        "XNNPACK",
                                        "QNN",
                                        "SNPE",
                                        "AZURE",
                                        "JS",
                                        "VitisAI",
                                        "CoreML",
                                        "WebGPU",
                                        "OpenVINO",
                                        "WEBNN",
                                        "NvTensorRtRtx",
                                        "NoSuch",
                                        "",
                                        "CUDA",
                                        "CUDAExecutionProvider",
                                        "DML",
                                        "Dnnl",
                                        "ROCM",
                                        "MIGraphX",
                                        "TensorRT",
                                        "CUDAPluginExecutionProvider",
                                        "VSINPU"};
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
    static const char *const added[][2] = {{"b", "2"},  {"a", "1"},  {"c", ""},  {"", "empty"},
                                           {"b", "22"}, {"z", NULL}, {NULL, "n"}};
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

static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {
    {"statuses", statuses},
    {"environments", environments},
    {"environments_with", environments_with},
    {"environments_by_options", environments_by_options},
    {"memory_infos", memory_infos},
    {"allocators", allocators},
    {"tensors_of_types", tensors_of_types},
    {"tensors", tensors},
    {"tensors_over_memory", tensors_over_memory},
    {"strings", strings},
    {"sequences", sequences},
    {"maps", maps},
    {"shape_infos", shape_infos},
    {"session_options", session_options},
    {"config_entries", config_entries},
    {"initializers", initializers},
    {"providers", providers},
    {"run_options", run_options},
    {"pairs", pairs},
    {"others", others},
    {"sparse", sparse},
    {"type_infos", type_infos},
    {"attributes", attributes},
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
            if (strncmp(groups[i].name, "environments", 12) != 0)
                QUIET(CreateEnv(ORT_LOGGING_LEVEL_ERROR, "calls", &env));
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
