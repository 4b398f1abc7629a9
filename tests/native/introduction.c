/* The introduction to execution providers, in the words of onnxruntime's first C interface.
 *
 *     introduction MODEL     doubles 1 2 3 by a model from "x" to "y" */
#include <stdio.h>

#include "onnxruntime_first_api.h"

static void check(OrtStatus *status) {
    if (status == NULL) return;
    fprintf(stderr, "%d %s\n", (int)OrtGetErrorCode(status), OrtGetErrorMessage(status));
    exit(1);
}

int main(int argc, char **argv) {
    OrtEnv *env;
    check(OrtInitialize(ORT_LOGGING_LEVEL_WARNING, "introduction", &env));
    OrtSessionOptions *session_option = OrtCreateSessionOptions();
    OrtProviderFactoryInterface **factory;
    check(OrtCreateCUDAExecutionProviderFactory(0, &factory));
    check(OrtSessionOptionsAppendExecutionProvider(session_option, factory));
    OrtReleaseObject(factory);
    OrtSession *session;
    check(OrtCreateSession(env, argc > 1 ? argv[1] : "", session_option, &session));
    float x[] = {1, 2, 3};
    const size_t shape[] = {3};
    const char *const names[] = {"x"}, *const results[] = {"y"};
    OrtAllocatorInfo *memory;
    check(OrtCreateCpuAllocatorInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    OrtValue *input = NULL, *output = NULL;
    check(OrtCreateTensorWithDataAsOrtValue(memory, x, sizeof x, shape, 1,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &input));
    const OrtValue *const inputs[] = {input};
    check(OrtRun(session, NULL, names, inputs, 1, results, 1, &output));
    void *y;
    check(OrtGetTensorMutableData(output, &y));
    printf("%g %g %g\n", ((float *)y)[0], ((float *)y)[1], ((float *)y)[2]);
    OrtReleaseObject(output);
    OrtReleaseObject(input);
    OrtReleaseObject(memory);
    OrtReleaseObject(session);
    OrtReleaseObject(session_option);
    OrtReleaseObject(env);
    return 0;
}
