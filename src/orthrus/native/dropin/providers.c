/* Execution providers in session options, by name, by their settings' structs and by factory. The names are
 * checked here; whether a provider can work is the session's to say, which warns and takes the CPU's where it
 * cannot. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *brief, *name;
    bool here;
} known[] = {
    {"CPU", "CPUExecutionProvider", true},
    {"AZURE", "AzureExecutionProvider", true},
    {"CUDA", "CUDAExecutionProvider", true},
    {"ROCM", "ROCMExecutionProvider", true},
    {"MIGraphX", "MIGraphXExecutionProvider", true},
    {"Dnnl", "DnnlExecutionProvider", true},
    {"IREE", "IREEExecutionProvider", true},
    {"SpaceMIT", "SpaceMITExecutionProvider", true},
    {"DML", "DmlExecutionProvider", false},
    {"QNN", "QNNExecutionProvider", false},
    {"OpenVINO", "OpenVINOExecutionProvider", false},
    {"SNPE", "SNPEExecutionProvider", false},
    {"XNNPACK", "XnnpackExecutionProvider", false},
    {"WEBNN", "WebNNExecutionProvider", false},
    {"WebGPU", "WebGpuExecutionProvider", false},
    {"JS", "JsExecutionProvider", false},
    {"VitisAI", "VitisAIExecutionProvider", false},
    {"CoreML", "CoreMLExecutionProvider", false},
    {"NvTensorRtRtx", "NvTensorRTRTXExecutionProvider", false},
};
enum { KNOWN = sizeof known / sizeof *known };

static OrtStatus *unknown(const char *name) {
    char names[1024] = "";
    for (size_t i = 0; i < KNOWN; i++)
        if (known[i].here)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s'%s'/'%s'",
                     *names == 0 ? "" : ", ", known[i].brief, known[i].name);
    return status_new(ORT_INVALID_ARGUMENT, "Unknown provider name '%s'. Currently supported values are %s.",
                      name, names);
}

static OrtStatus *append(OrtSessionOptions *options, const char *name, const OrtKeyValuePairs *settings) {
    for (size_t i = 0; i < options->provider_count; i++)
        if (strcmp(options->providers[i].name, name) == 0) return NULL; /* the first one's settings hold */
    return provider_add(options, name, settings);
}

OrtStatus *api_SessionOptionsAppendExecutionProvider(OrtSessionOptions *options, const char *name,
                                                     const char *const *keys, const char *const *values,
                                                     size_t count) {
    size_t k = 0;
    while (k < KNOWN && strcmp(name, known[k].brief) != 0 && strcmp(name, known[k].name) != 0) k++;
    if (k == KNOWN) return unknown(name);
    REQUIRE(known[k].here, "%s execution provider is not supported in this build. ", name);
    OrtKeyValuePairs settings = {0};
    OrtStatus *status = NULL;
    for (size_t i = 0; status == NULL && i < count; i++)
        if (keys[i] == NULL || values[i] == NULL || *keys[i] == 0) {
            status =
                status_new(ORT_INVALID_ARGUMENT, "Provider option key and value must not be NULL or empty");
        } else if (!pairs_set(&settings, keys[i], values[i])) {
            status = status_out_of_memory(count);
        }
    if (status == NULL && strcmp(known[k].brief, "AZURE") != 0)
        status = append(options, known[k].name, &settings);
    pairs_clear(&settings);
    return status;
}

/* Numbers of a settings' struct as the options of a provider: names and values, NULL at the end. */
typedef struct Number {
    const char *key;
    size_t value;
} Number;

static OrtStatus *append_numbers(OrtSessionOptions *options, const char *name, const Number *numbers) {
    char texts[16][24];
    const char *keys[16], *values[16];
    size_t count = 0;
    for (; numbers[count].key != NULL; count++) {
        snprintf(texts[count], sizeof texts[count], "%zu", numbers[count].value);
        keys[count] = numbers[count].key;
        values[count] = texts[count];
    }
    return api_SessionOptionsAppendExecutionProvider(options, name, keys, values, count);
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_CUDA(OrtSessionOptions *options,
                                                          const OrtCUDAProviderOptions *settings) {
    return append_numbers(
        options, "CUDA",
        (Number[]){{"device_id", (size_t)settings->device_id},
                   {"gpu_mem_limit", settings->gpu_mem_limit},
                   {"arena_extend_strategy", (size_t)settings->arena_extend_strategy},
                   {"do_copy_in_default_stream", (size_t)settings->do_copy_in_default_stream},
                   {NULL, 0}});
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_ROCM(OrtSessionOptions *options,
                                                          const OrtROCMProviderOptions *settings) {
    return append_numbers(
        options, "ROCM",
        (Number[]){{"device_id", (size_t)settings->device_id},
                   {"gpu_mem_limit", settings->gpu_mem_limit},
                   {"arena_extend_strategy", (size_t)settings->arena_extend_strategy},
                   {"do_copy_in_default_stream", (size_t)settings->do_copy_in_default_stream},
                   {NULL, 0}});
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_MIGraphX(OrtSessionOptions *options,
                                                              const OrtMIGraphXProviderOptions *settings) {
    return append_numbers(options, "MIGraphX",
                          (Number[]){{"device_id", (size_t)settings->device_id},
                                     {"migraphx_fp16_enable", (size_t)settings->migraphx_fp16_enable},
                                     {"migraphx_int8_enable", (size_t)settings->migraphx_int8_enable},
                                     {NULL, 0}});
}

static OrtStatus *no_library(const char *function) {
    return status_new(ORT_FAIL, "%s: Failed to load shared library", function);
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_OpenVINO(OrtSessionOptions *options,
                                                              const OrtOpenVINOProviderOptions *settings) {
    (void)options, (void)settings;
    return no_library("SessionOptionsAppendExecutionProvider_OpenVINO");
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_OpenVINO_V2(OrtSessionOptions *options,
                                                                 const char *const *keys,
                                                                 const char *const *values, size_t count) {
    (void)options, (void)keys, (void)values, (void)count;
    return no_library("SessionOptionsAppendExecutionProvider_OpenVINO_V2");
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_VitisAI(OrtSessionOptions *options,
                                                             const char *const *keys,
                                                             const char *const *values, size_t count) {
    (void)options, (void)keys, (void)values, (void)count;
    return no_library("SessionOptionsAppendExecutionProvider_VitisAI");
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_TensorRT(OrtSessionOptions *options,
                                                              const OrtTensorRTProviderOptions *settings) {
    (void)options, (void)settings;
    return no_library("OrtSessionOptionsAppendExecutionProvider_TensorRT");
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_TensorRT_V2(
    OrtSessionOptions *options, const OrtTensorRTProviderOptionsV2 *settings) {
    (void)options, (void)settings;
    return no_library("OrtSessionOptionsAppendExecutionProvider_TensorRT");
}

/* Settings of a provider that are made, changed and shown as text: pairs under another name. */
static OrtStatus *settings_update(void *settings, const char *const *keys, const char *const *values,
                                  size_t count) {
    for (size_t i = 0; i < count; i++) {
        REQUIRE(keys[i] != NULL && *keys[i] != 0 && values[i] != NULL, "key/value cannot be empty");
        if (!pairs_set(settings, keys[i], values[i])) return status_out_of_memory(count);
    }
    return NULL;
}

static OrtStatus *settings_text(const void *settings, OrtAllocator *allocator, char **out) {
    const OrtKeyValuePairs *pairs = settings;
    size_t size = 1;
    for (size_t i = 0; i < pairs->count; i++) size += strlen(pairs->keys[i]) + strlen(pairs->values[i]) + 2;
    char *text = allocator->Alloc(allocator, size), *end = text;
    if (text == NULL) return status_out_of_memory(size);
    *end = 0;
    for (size_t i = 0; i < pairs->count; i++)
        end += sprintf(end, "%s%s=%s", i == 0 ? "" : ";", pairs->keys[i], pairs->values[i]);
    *out = text;
    return NULL;
}

static OrtStatus *settings_new(void **out) {
    *out = calloc(1, sizeof(OrtKeyValuePairs));
    return *out == NULL ? status_out_of_memory(sizeof(OrtKeyValuePairs)) : NULL;
}

OrtStatus *api_CreateCUDAProviderOptions(OrtCUDAProviderOptionsV2 **out) {
    return settings_new((void **)out);
}

OrtStatus *api_UpdateCUDAProviderOptions(OrtCUDAProviderOptionsV2 *settings, const char *const *keys,
                                         const char *const *values, size_t count) {
    return settings_update(settings, keys, values, count);
}

OrtStatus *api_GetCUDAProviderOptionsAsString(const OrtCUDAProviderOptionsV2 *settings,
                                              OrtAllocator *allocator, char **out) {
    return settings_text(settings, allocator, out);
}

void api_ReleaseCUDAProviderOptions(OrtCUDAProviderOptionsV2 *settings) {
    api_ReleaseKeyValuePairs((OrtKeyValuePairs *)(void *)settings);
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_CUDA_V2(OrtSessionOptions *options,
                                                             const OrtCUDAProviderOptionsV2 *settings) {
    return append(options, "CUDAExecutionProvider", (const OrtKeyValuePairs *)(const void *)settings);
}

OrtStatus *api_CreateDnnlProviderOptions(OrtDnnlProviderOptions **out) { return settings_new((void **)out); }

OrtStatus *api_UpdateDnnlProviderOptions(OrtDnnlProviderOptions *settings, const char *const *keys,
                                         const char *const *values, size_t count) {
    return settings_update(settings, keys, values, count);
}

OrtStatus *api_GetDnnlProviderOptionsAsString(const OrtDnnlProviderOptions *settings, OrtAllocator *allocator,
                                              char **out) {
    return settings_text(settings, allocator, out);
}

void api_ReleaseDnnlProviderOptions(OrtDnnlProviderOptions *settings) {
    api_ReleaseKeyValuePairs((OrtKeyValuePairs *)(void *)settings);
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_Dnnl(OrtSessionOptions *options,
                                                          const OrtDnnlProviderOptions *settings) {
    return append(options, "DnnlExecutionProvider", (const OrtKeyValuePairs *)(const void *)settings);
}

OrtStatus *api_CreateTensorRTProviderOptions(OrtTensorRTProviderOptionsV2 **out) {
    (void)out;
    return status_new(ORT_FAIL, "TensorRT execution provider is not enabled in this build.");
}

OrtStatus *api_CreateCANNProviderOptions(OrtCANNProviderOptions **out) {
    (void)out;
    return status_new(ORT_FAIL, "CANN execution provider is not enabled in this build.");
}

static OrtStatus *no_device(void) {
    return status_new(ORT_FAIL, "CUDA execution provider is either not enabled or not available.");
}

OrtStatus *api_SetCurrentGpuDeviceId(int device) {
    (void)device;
    return no_device();
}

OrtStatus *api_GetCurrentGpuDeviceId(int *device) {
    (void)device;
    return no_device();
}

OrtStatus *api_GetExecutionProviderApi(const char *provider, uint32_t version, const void **out) {
    (void)provider, (void)version, (void)out;
    return status_new(ORT_INVALID_ARGUMENT, "Specified provider is not supported.");
}

OrtStatus *api_EnableOrtCustomOps(OrtSessionOptions *options) {
    (void)options;
    return status_new(ORT_FAIL,
                      "EnableOrtCustomOps: Custom operators in onnxruntime-extensions are not enabled\n"
                      "  cure: write the operator in Python and name its module by ORTHRUS_IMPORT");
}

OrtStatus *api_GetAvailableProviders(char ***out, int *count) {
    static char cpu[] = "CPUExecutionProvider";
    static char *names[] = {cpu};
    *out = names;
    *count = 1;
    return NULL;
}

OrtStatus *api_ReleaseAvailableProviders(char **names, int count) {
    (void)names, (void)count; /* they stay */
    return NULL;
}

/* These stand in no table, which would look for nulls. */
#define NEED_OPTIONS() REQUIRE(options != NULL, "%s: options must not be null", __func__)

OrtStatus *OrtSessionOptionsAppendExecutionProvider_CPU(OrtSessionOptions *options, int use_arena) {
    NEED_OPTIONS();
    options->cpu_arena = use_arena != 0;
    return append(options, "CPUExecutionProvider", NULL);
}

OrtStatus *OrtSessionOptionsAppendExecutionProvider_CUDA(OrtSessionOptions *options, int device) {
    NEED_OPTIONS();
    return append_numbers(options, "CUDA", (Number[]){{"device_id", (size_t)device}, {NULL, 0}});
}

OrtStatus *OrtSessionOptionsAppendExecutionProvider_ROCM(OrtSessionOptions *options, int device) {
    NEED_OPTIONS();
    return append_numbers(options, "ROCM", (Number[]){{"device_id", (size_t)device}, {NULL, 0}});
}

OrtStatus *OrtSessionOptionsAppendExecutionProvider_MIGraphX(OrtSessionOptions *options, int device) {
    NEED_OPTIONS();
    return append_numbers(options, "MIGraphX", (Number[]){{"device_id", (size_t)device}, {NULL, 0}});
}

OrtStatus *OrtSessionOptionsAppendExecutionProvider_Dnnl(OrtSessionOptions *options, int use_arena) {
    NEED_OPTIONS();
    (void)use_arena;
    return append(options, "DnnlExecutionProvider", NULL);
}

OrtStatus *OrtSessionOptionsAppendExecutionProvider_Tensorrt(OrtSessionOptions *options, int device) {
    NEED_OPTIONS();
    (void)device;
    return api_SessionOptionsAppendExecutionProvider_TensorRT(options, NULL);
}
