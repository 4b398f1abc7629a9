/* The devices: this processor, with the one execution provider that works on it. */
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct OrtHardwareDevice {
    char vendor[16];
    uint32_t vendor_id;
    OrtKeyValuePairs metadata;
};

struct OrtEpDevice {
    OrtKeyValuePairs metadata, options;
};

struct OrtDeviceEpIncompatibilityDetails {
    uint32_t reasons;
};

static OrtHardwareDevice processor;
static OrtEpDevice cpu_device;
static const OrtEpDevice *const devices[] = {&cpu_device};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look(void) {
    char line[256], vendor[64] = "";
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "vendor_id : %63s", vendor) == 1) break;
    if (file != NULL) fclose(file);
    bool amd = strcmp(vendor, "AuthenticAMD") == 0, intel = strcmp(vendor, "GenuineIntel") == 0;
    snprintf(processor.vendor, sizeof processor.vendor, "%.15s", amd ? "AMD" : intel ? "Intel" : vendor);
    processor.vendor_id = amd ? 0x1022 : intel ? 0x8086 : 0;
    pairs_set(&cpu_device.metadata, "version", ORTHRUS_API_LEVEL);
}

OrtStatus *api_GetEpDevices(const OrtEnv *env, const OrtEpDevice *const **out, size_t *count) {
    (void)env;
    pthread_once(&once, look);
    *out = devices;
    *count = 1;
    return NULL;
}

OrtStatus *api_GetNumHardwareDevices(const OrtEnv *env, size_t *out) {
    (void)env;
    *out = 1;
    return NULL;
}

OrtStatus *api_GetHardwareDevices(const OrtEnv *env, const OrtHardwareDevice **out, size_t count) {
    (void)env;
    REQUIRE(count >= 1, "room for 1 device is needed, there is none");
    pthread_once(&once, look);
    out[0] = &processor;
    return NULL;
}

OrtHardwareDeviceType api_HardwareDevice_Type(const OrtHardwareDevice *device) {
    (void)device;
    return OrtHardwareDeviceType_CPU;
}

uint32_t api_HardwareDevice_VendorId(const OrtHardwareDevice *device) { return device->vendor_id; }

const char *api_HardwareDevice_Vendor(const OrtHardwareDevice *device) { return device->vendor; }

uint32_t api_HardwareDevice_DeviceId(const OrtHardwareDevice *device) {
    (void)device;
    return 0;
}

const OrtKeyValuePairs *api_HardwareDevice_Metadata(const OrtHardwareDevice *device) {
    return &device->metadata;
}

const char *api_EpDevice_EpName(const OrtEpDevice *device) {
    (void)device;
    return "CPUExecutionProvider";
}

const char *api_EpDevice_EpVendor(const OrtEpDevice *device) {
    (void)device;
    return "Microsoft"; /* what programs that choose the CPU by its vendor look for */
}

const OrtKeyValuePairs *api_EpDevice_EpMetadata(const OrtEpDevice *device) { return &device->metadata; }

const OrtKeyValuePairs *api_EpDevice_EpOptions(const OrtEpDevice *device) { return &device->options; }

const OrtHardwareDevice *api_EpDevice_Device(const OrtEpDevice *device) {
    (void)device;
    return &processor;
}

const OrtMemoryInfo *api_EpDevice_MemoryInfo(const OrtEpDevice *device, OrtDeviceMemoryType mem_type) {
    (void)device, (void)mem_type;
    return NULL;
}

OrtStatus *api_EpDevice_GetMemoryCapacity(const OrtEpDevice *device, OrtDeviceMemoryType kind, size_t *first,
                                          size_t *second) {
    (void)device, (void)kind;
    REQUIRE(first != NULL || second != NULL, "At least one memory capacity output must not be null");
    return status_new(ORT_NOT_IMPLEMENTED, "EpDevice_GetMemoryCapacity: the host's memory is no device's");
}

OrtStatus *api_SessionOptionsAppendExecutionProvider_V2(OrtSessionOptions *options, OrtEnv *env,
                                                        const OrtEpDevice *const *chosen, size_t device_count,
                                                        const char *const *keys, const char *const *values,
                                                        size_t count) {
    (void)env;
    REQUIRE(device_count != 0 && chosen != NULL, "Must provide one or more OrtEpDevice instances.");
    return api_SessionOptionsAppendExecutionProvider(options, "CPU", keys, values, count);
}

OrtStatus *api_SessionOptionsSetEpSelectionPolicy(OrtSessionOptions *options,
                                                  OrtExecutionProviderDevicePolicy policy) {
    (void)options, (void)policy; /* there is one device to choose from */
    return NULL;
}

OrtStatus *api_SessionOptionsSetEpSelectionPolicyDelegate(OrtSessionOptions *options,
                                                          EpSelectionDelegate delegate, void *state) {
    (void)options, (void)delegate, (void)state; /* as above */
    return NULL;
}

OrtStatus *api_CreateSharedAllocator(OrtEnv *env, const OrtEpDevice *device, OrtDeviceMemoryType mem_type,
                                     OrtAllocatorType type, const OrtKeyValuePairs *options,
                                     OrtAllocator **out) {
    (void)env, (void)device, (void)mem_type, (void)type, (void)options, (void)out;
    return status_new(ORT_INVALID_ARGUMENT, "Invalid memory type for OrtEpDevice.");
}

OrtStatus *api_ReleaseSharedAllocator(OrtEnv *env, const OrtEpDevice *device, OrtDeviceMemoryType mem_type) {
    return api_CreateSharedAllocator(env, device, mem_type, OrtDeviceAllocator, NULL, NULL);
}

OrtStatus *api_CreateSyncStreamForEpDevice(const OrtEpDevice *device, const OrtKeyValuePairs *options,
                                           OrtSyncStream **out) {
    (void)device, (void)options, (void)out;
    return status_new(ORT_INVALID_ARGUMENT, "ep_device does not use DEFAULT memory of a non-CPU device.");
}

OrtStatus *api_GetModelCompatibilityForEpDevices(const OrtEpDevice *const *chosen, size_t count,
                                                 const char *info, OrtCompiledModelCompatibility *out) {
    REQUIRE(chosen != NULL && count != 0 && info != NULL, "Invalid argument provided to "
                                                          "GetModelCompatibilityForEpDevices.");
    *out = OrtCompiledModelCompatibility_EP_NOT_APPLICABLE;
    return NULL;
}

OrtStatus *api_RegisterExecutionProviderLibrary(OrtEnv *env, const char *name, const ORTCHAR_T *path) {
    (void)env, (void)name;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return status_new(ORT_FAIL,
                          "Failed to load library %s with error: %s: cannot open shared object file: "
                          "No such file or directory",
                          path, path);
    fclose(file);
    return status_new(ORT_NOT_IMPLEMENTED, "execution provider libraries are not loaded by Orthrus: %s",
                      path);
}

OrtStatus *api_UnregisterExecutionProviderLibrary(OrtEnv *env, const char *name) {
    (void)env;
    return status_new(ORT_FAIL, "Execution provider library: %s was not registered.", name);
}

OrtStatus *api_GetHardwareDeviceEpIncompatibilityDetails(const OrtEnv *env, const char *provider,
                                                         const OrtHardwareDevice *device,
                                                         OrtDeviceEpIncompatibilityDetails **out) {
    (void)env, (void)provider, (void)device;
    static OrtDeviceEpIncompatibilityDetails none = {OrtDeviceEpIncompatibility_NONE};
    *out = &none;
    return NULL;
}

void api_ReleaseDeviceEpIncompatibilityDetails(OrtDeviceEpIncompatibilityDetails *details) {
    (void)details; /* there are none, and they stay */
}

/* The devices that a session's inputs or outputs are copied to; the host's memory is copied nowhere. */
static OrtStatus *device_of_each(const OrtEpDevice **out, size_t count) {
    pthread_once(&once, look);
    for (size_t i = 0; i < count; i++) out[i] = &cpu_device;
    return NULL;
}

OrtStatus *api_SessionGetEpDeviceForInputs(const OrtSession *session, const OrtEpDevice **out, size_t count) {
    (void)session;
    return device_of_each(out, count);
}

OrtStatus *api_SessionGetEpDeviceForOutputs(const OrtSession *session, const OrtEpDevice **out, size_t count) {
    (void)session;
    return device_of_each(out, count);
}

void *api_SyncStream_GetHandle(OrtSyncStream *stream) {
    (void)stream; /* nothing here makes one */
    return NULL;
}

void api_ReleaseSyncStream(OrtSyncStream *stream) { (void)stream; }

void api_RunOptionsSetSyncStream(OrtRunOptions *options, OrtSyncStream *stream) { (void)options, (void)stream; }

OrtStatus *api_CopyTensors(const OrtEnv *env, const OrtValue *const *from, OrtValue *const *to,
                           OrtSyncStream *stream, size_t count) {
    (void)env, (void)stream;
    for (size_t i = 0; i < count; i++) {
        RETURN_IF_FAILED(check_on_host(from[i]));
        RETURN_IF_FAILED(check_on_host(to[i]));
        RETURN_IF_FAILED(tensor_copy(to[i], from[i]));
    }
    return NULL;
}

OrtStatus *api_DeviceEpIncompatibilityDetails_GetReasonsBitmask(
    const OrtDeviceEpIncompatibilityDetails *details, uint32_t *out) {
    *out = details->reasons;
    return NULL;
}

OrtStatus *api_DeviceEpIncompatibilityDetails_GetNotes(const OrtDeviceEpIncompatibilityDetails *details,
                                                       const char **out) {
    (void)details;
    *out = NULL;
    return NULL;
}

OrtStatus *api_DeviceEpIncompatibilityDetails_GetErrorCode(const OrtDeviceEpIncompatibilityDetails *details,
                                                           int32_t *out) {
    (void)details;
    *out = 0;
    return NULL;
}
