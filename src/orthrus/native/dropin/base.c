/* The way in: OrtGetApiBase, which gives the table, and the tables beside it. */
#include "internal.h"

#include <stdio.h>

static const OrtApi *get_api(uint32_t version) {
    if (version >= 1 && version <= ORT_API_VERSION) return &table_of_OrtApi;
    fprintf(
        stderr,
        "The requested API version [%u] is not available, only API versions [1, %u] are supported in this "
        "build. Current ORT Version is: %s\n",
        version, (unsigned)ORT_API_VERSION, ORTHRUS_API_LEVEL);
    return NULL;
}

static const char *get_version(void) { return ORTHRUS_API_LEVEL; }

const OrtApiBase *OrtGetApiBase(void) {
    static const OrtApiBase base = {get_api, get_version};
    return &base;
}

const char *api_GetBuildInfoString(void) { return "ORT Build Info: Orthrus, API " ORTHRUS_API_LEVEL; }

const OrtTrainingApi *api_GetTrainingApi(uint32_t version) {
    (void)version; /* as in every build of onnxruntime that does not train */
    return NULL;
}

OrtExperimentalFnPtr api_GetExperimentalFunction(const char *name) {
    (void)name; /* none is known */
    return NULL;
}

const OrtModelEditorApi *api_GetModelEditorApi(void) { return &table_of_OrtModelEditorApi; }

const OrtCompileApi *api_GetCompileApi(void) { return &table_of_OrtCompileApi; }

const OrtInteropApi *api_GetInteropApi(void) { return &table_of_OrtInteropApi; }
