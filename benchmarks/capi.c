/* One library of onnxruntime's C interface, by itself: what a session takes to create, a first run, a run, memory.

 *   capi LIBRARY MODEL RUNS SIZE
 *
 * SIZE is taken for sizes that the model leaves open. One thread. Prints milliseconds of creation and first run,
 * microseconds of the best run, and megabytes resident. */
#define _GNU_SOURCE
#include "onnxruntime_c_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 64 };

static const OrtApi *api;

static void check(OrtStatus *status) {
    if (status == NULL) return;
    fprintf(stderr, "%s\n", api->GetErrorMessage(status));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

static double resident(void) {
    char line[256];
    double found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "VmRSS:", 6) == 0) found = atof(line + 6) / 1024;
    }
    if (file != NULL) fclose(file);
    return found;
}

static OrtValue *feed(const OrtSession *session, size_t index, OrtAllocator *allocator, int64_t size) {
    OrtTypeInfo *type;
    const OrtTensorTypeAndShapeInfo *info;
    ONNXTensorElementDataType element;
    int64_t dims[16];
    size_t rank, count = 1;
    OrtValue *value = NULL;
    void *data;
    check(api->SessionGetInputTypeInfo(session, index, &type));
    check(api->CastTypeInfoToTensorInfo(type, &info));
    check(api->GetTensorElementType(info, &element));
    check(api->GetDimensionsCount(info, &rank));
    check(api->GetDimensions(info, dims, rank));
    api->ReleaseTypeInfo(type);
    for (size_t i = 0; i < rank; i++) count *= (size_t)(dims[i] = dims[i] < 0 ? size : dims[i]);
    check(api->CreateTensorAsOrtValue(allocator, dims, rank, element, &value));
    check(api->GetTensorMutableData(value, &data));
    if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
        for (size_t i = 0; i < count; i++) ((float *)data)[i] = (float)(i * 7919 % 1000) / 1000;
    } else {
        memset(data, 0, count * (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 1));
    }
    return value;
}

int main(int count, char **words) {
    void *library = count == 5 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) return 2;
    const OrtApiBase *(*base)(void);
    *(void **)&base = dlsym(library, "OrtGetApiBase");
    api = base()->GetApi(22);
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtAllocator *allocator;
    OrtSession *session;
    char *names[2][MOST];
    OrtValue *feeds[MOST], *results[MOST] = {NULL};
    size_t inputs, outputs;
    check(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "capi", &env));
    check(api->CreateSessionOptions(&options));
    check(api->SetIntraOpNumThreads(options, 1));
    check(api->GetAllocatorWithDefaultOptions(&allocator));
    double begin = now();
    check(api->CreateSession(env, words[2], options, &session));
    double created = now() - begin, first = 0, best = 1e9;
    check(api->SessionGetInputCount(session, &inputs));
    check(api->SessionGetOutputCount(session, &outputs));
    for (size_t i = 0; i < inputs; i++) {
        check(api->SessionGetInputName(session, i, allocator, &names[0][i]));
        feeds[i] = feed(session, i, allocator, atoi(words[4]));
    }
    for (size_t i = 0; i < outputs; i++) check(api->SessionGetOutputName(session, i, allocator, &names[1][i]));
    for (int run = 0; run <= atoi(words[3]); run++) {
        begin = now();
        check(api->Run(session, NULL, (const char *const *)names[0], (const OrtValue *const *)feeds, inputs,
                       (const char *const *)names[1], outputs, results));
        double took = now() - begin;
        if (run == 0) first = took;
        if (took < best) best = took;
        for (size_t i = 0; i < outputs; i++) {
            api->ReleaseValue(results[i]);
            results[i] = NULL;
        }
    }
    printf("%.3f %.3f %.3f %.1f\n", created, first, 1e3 * best, resident());
    return 0;
}
