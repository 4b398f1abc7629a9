/* What the generated calls of test_nulls.py need: good arguments, and a process for each call. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "onnxruntime_c_api.h"

/* Classes of which there is an object, and how it is made. */
#define OBJECTS(X)                                                                      \
    X(Env, api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "nulls", &objects.Env))                 \
    X(SessionOptions, api->CreateSessionOptions(&objects.SessionOptions))                  \
    X(Session, api->CreateSession(objects.Env, words[1], NULL, &objects.Session))          \
    X(RunOptions, api->CreateRunOptions(&objects.RunOptions))                              \
    X(MemoryInfo, api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &objects.MemoryInfo)) \
    X(Value, api->CreateTensorAsOrtValue(allocator, numbers, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &objects.Value)) \
    X(TypeInfo, api->SessionGetInputTypeInfo(objects.Session, 0, &objects.TypeInfo))       \
    X(TensorTypeAndShapeInfo, api->GetTensorTypeAndShape(objects.Value, &objects.TensorTypeAndShapeInfo)) \
    X(IoBinding, api->CreateIoBinding(objects.Session, &objects.IoBinding))                \
    X(ModelMetadata, api->SessionGetModelMetadata(objects.Session, &objects.ModelMetadata)) \
    X(ThreadingOptions, api->CreateThreadingOptions(&objects.ThreadingOptions))            \
    X(ArenaCfg, api->CreateArenaCfg(0, -1, -1, -1, &objects.ArenaCfg))                     \
    X(PrepackedWeightsContainer, api->CreatePrepackedWeightsContainer(&objects.PrepackedWeightsContainer)) \
    X(OpAttr, api->CreateOpAttr("a", numbers, 1, ORT_OP_ATTR_INT, &objects.OpAttr))        \
    X(ExternalInitializerInfo, api->CreateExternalInitializerInfo("f", 0, 1, &objects.ExternalInitializerInfo)) \
    X(ValueInfo, api->GetModelEditorApi()->CreateValueInfo("v", objects.TypeInfo, &objects.ValueInfo)) \
    X(Graph, api->GetModelEditorApi()->CreateGraph(&objects.Graph))                        \
    X(Node, api->GetModelEditorApi()->CreateNode("Relu", "", "", texts, 1, texts, 1, NULL, 0, &objects.Node)) \
    X(Model, api->GetModelEditorApi()->CreateModel(texts, versions, 1, &objects.Model))    \
    X(ModelCompilationOptions, api->GetCompileApi()->CreateModelCompilationOptionsFromSessionOptions(     \
        objects.Env, objects.SessionOptions, &objects.ModelCompilationOptions))            \
    X(CUDAProviderOptionsV2, api->CreateCUDAProviderOptions(&objects.CUDAProviderOptionsV2)) \
    X(DnnlProviderOptions, api->CreateDnnlProviderOptions(&objects.DnnlProviderOptions))   \
    X(KeyValuePairs, (api->CreateKeyValuePairs(&objects.KeyValuePairs), NULL))

static struct {
#define DECLARED(name, made) Ort##name *name;
    OBJECTS(DECLARED)
} objects;

static OrtAllocator *allocator;
static char room[1 << 16];
static const char *texts[4] = {"a", "b", "c", "d"};
static int64_t numbers[16] = {1, 1, 1, 1};
static size_t sizes[4] = {1, 1, 1, 1};
static int versions[4] = {1, 1, 1, 1};
static OrtValue *values[4];
static const OrtEpDevice *const *devices;
static OrtEnvCreationOptions creation = {ORT_API_VERSION, ORT_LOGGING_LEVEL_ERROR, "nulls", NULL, NULL, NULL, NULL};
static const OrtApi *api;

static void nothing(void) {}

static void made(OrtStatus *status, const char *name) {
    if (status == NULL) return;
    fprintf(stderr, "no %s: %s\n", name, api->GetErrorMessage(status));
    exit(3);
}

static void prepare(int count, char **words) {
    if (count != 2) exit(2);
    size_t found;
    api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    made(api->GetAllocatorWithDefaultOptions(&allocator), "allocator");
#define MADE(name, call) made(call, #name);
    OBJECTS(MADE)
    made(api->GetEpDevices(objects.Env, &devices, &found), "devices");
    for (int i = 0; i < 4; i++) values[i] = objects.Value;
}

/* A child writes what was answered; who does not return has ended. */
#define BEGIN(function, argument)                          \
    {                                                      \
        const char *called = function " " argument;        \
        fflush(stdout);                                    \
        pid_t child = fork();                              \
        if (child == 0) {                                  \
            OrtStatus *status = NULL;                      \
            alarm(20);

#define END                                                                                              \
            printf("%s %d %s\n", called, (int)api->GetErrorCode(status), api->GetErrorMessage(status));  \
            fflush(stdout);                                                                              \
            _exit(0);                                                                                    \
        }                                                                                                \
        int how = 0;                                                                                     \
        waitpid(child, &how, 0);                                                                         \
        if (how != 0) printf("%s ended by %d\n", called, how);                                           \
    }
