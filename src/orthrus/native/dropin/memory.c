/* Memory infos and allocators. The one memory here is the host's. */
#define _POSIX_C_SOURCE 200809L
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define HOST_ACCESSIBLE OrtDeviceMemoryType_HOST_ACCESSIBLE
enum { LINE = 64 };

static const struct {
    const char *name, *shown;
    OrtMemoryInfoDeviceType device;
    OrtDeviceMemoryType memory;
    uint32_t vendor;
    bool first; /* there is only number 0 of it */
} known_devices[] = {
    {"Cpu", "Cpu", OrtMemoryInfoDeviceType_CPU, OrtDeviceMemoryType_DEFAULT, 0, true},
    {"Cuda", "Cuda", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, 0x10DE, false},
    {"CudaPinned", "CudaPinned", OrtMemoryInfoDeviceType_GPU, HOST_ACCESSIBLE, 0x10DE, false},
    {"Hip", "Hip", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, 0x1002, false},
    {"HipPinned", "HipPinned", OrtMemoryInfoDeviceType_GPU, HOST_ACCESSIBLE, 0x1002, false},
    {"OpenVINO_GPU", "OpenVINO_GPU", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, 0x8086, false},
    {"WebGPU_Buffer", "WebGPU_Buf", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, 0, false},
    {"WebGPU_Buf", "WebGPU_Buf", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, 0, false},
    {"WebNN_Tensor", "WebNN_Ten", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, 0, false},
    {"WebNN_Ten", "WebNN_Ten", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, 0, false},
    {"QnnHtpShared", "QnnHtpShared", OrtMemoryInfoDeviceType_CPU, HOST_ACCESSIBLE, 0x5143, false},
};

const OrtMemoryInfo cpu_memory = {.name = (char[]){"Cpu"}, .alignment = LINE};

char *text_copy(const char *text) { return text == NULL ? NULL : strdup(text); }

OrtStatus *text_to_allocator(OrtAllocator *allocator, const char *text, char **out) {
    size_t size = strlen(text) + 1;
    *out = allocator->Alloc(allocator, size);
    if (*out == NULL) return status_out_of_memory(size);
    memcpy(*out, text, size);
    return NULL;
}

bool array_append(void ***array, size_t *count, void *item) {
    void **larger = realloc(*array, (*count + 1) * sizeof *larger);
    if (larger == NULL) return false;
    larger[(*count)++] = item;
    *array = larger;
    return true;
}

static void *take(OrtAllocator *self, size_t size) {
    (void)self;
    void *block = NULL;
    return size == 0 || posix_memalign(&block, LINE, size) != 0 ? NULL : block;
}

static void give(OrtAllocator *self, void *block) {
    (void)self;
    free(block);
}

static const OrtMemoryInfo *info_of(const OrtAllocator *self) {
    (void)self;
    return &cpu_memory;
}

static OrtStatus *no_stats(const OrtAllocator *self, OrtKeyValuePairs **out) {
    (void)self;
    api_CreateKeyValuePairs(out);
    return *out == NULL ? status_out_of_memory(sizeof **out) : NULL;
}

OrtAllocator cpu_allocator = {.version = ORT_API_VERSION,
                              .Alloc = take,
                              .Free = give,
                              .Info = info_of,
                              .Reserve = take,
                              .GetStats = no_stats};

OrtStatus *api_GetAllocatorWithDefaultOptions(OrtAllocator **out) {
    *out = &cpu_allocator;
    return NULL;
}

OrtStatus *api_CreateAllocator(const OrtSession *session, const OrtMemoryInfo *memory, OrtAllocator **out) {
    (void)session;
    REQUIRE(memory->device == OrtMemoryInfoDeviceType_CPU, "No requested allocator available");
    *out = &cpu_allocator;
    return NULL;
}

void api_ReleaseAllocator(OrtAllocator *allocator) { (void)allocator; /* there is one, and it stays */ }

OrtStatus *api_AllocatorAlloc(OrtAllocator *allocator, size_t size, void **out) {
    *out = allocator->Alloc(allocator, size);
    return *out == NULL && size != 0 ? status_out_of_memory(size) : NULL;
}

OrtStatus *api_AllocatorFree(OrtAllocator *allocator, void *block) {
    allocator->Free(allocator, block);
    return NULL;
}

OrtStatus *api_AllocatorGetInfo(const OrtAllocator *allocator, const OrtMemoryInfo **out) {
    *out = allocator->Info(allocator);
    return NULL;
}

OrtStatus *api_AllocatorGetStats(const OrtAllocator *allocator, OrtKeyValuePairs **out) {
    if (allocator->version >= 23 && allocator->GetStats != NULL) return allocator->GetStats(allocator, out);
    return no_stats(allocator, out);
}

static OrtStatus *info_new(const OrtMemoryInfo *from, OrtMemoryInfo **out) {
    OrtMemoryInfo *info = malloc(sizeof *info);
    if (info == NULL) return status_out_of_memory(sizeof *info);
    *info = *from;
    info->name = text_copy(from->name);
    if (info->name == NULL) {
        free(info);
        return status_out_of_memory(strlen(from->name));
    }
    *out = info;
    return NULL;
}

OrtMemoryInfo *memory_info_copy(const OrtMemoryInfo *from) {
    OrtMemoryInfo *copy = NULL;
    api_ReleaseStatus(info_new(from, &copy));
    return copy;
}

OrtStatus *api_CreateMemoryInfo(const char *name, OrtAllocatorType type, int id, OrtMemType mem_type,
                                OrtMemoryInfo **out) {
    for (size_t i = 0; i < sizeof known_devices / sizeof *known_devices; i++)
        if (strcmp(name, known_devices[i].name) == 0) {
            OrtMemoryInfo info = {(char *)known_devices[i].shown,
                                  type,
                                  mem_type,
                                  known_devices[i].first ? 0 : id,
                                  known_devices[i].device,
                                  known_devices[i].memory,
                                  known_devices[i].vendor,
                                  0};
            return info_new(&info, out);
        }
    return status_new(ORT_INVALID_ARGUMENT, "Specified device is not supported. Try CreateMemoryInfo_V2.");
}

OrtStatus *api_CreateMemoryInfo_V2(const char *name, OrtMemoryInfoDeviceType device, uint32_t vendor,
                                   int32_t id, OrtDeviceMemoryType mem_type, size_t alignment,
                                   OrtAllocatorType type, OrtMemoryInfo **out) {
    OrtMemType shown = mem_type == OrtDeviceMemoryType_DEFAULT ? OrtMemTypeDefault : OrtMemTypeCPU;
    OrtMemoryInfo info = {(char *)name, type, shown, id, device, mem_type, vendor, alignment};
    return info_new(&info, out);
}

OrtStatus *api_CreateCpuMemoryInfo(OrtAllocatorType type, OrtMemType mem_type, OrtMemoryInfo **out) {
    return api_CreateMemoryInfo("Cpu", type, 0, mem_type, out);
}

OrtStatus *api_CompareMemoryInfo(const OrtMemoryInfo *a, const OrtMemoryInfo *b, int *out) {
    bool same = strcmp(a->name, b->name) == 0 && a->type == b->type && a->mem_type == b->mem_type &&
                a->id == b->id && a->device == b->device && a->device_memory == b->device_memory &&
                a->vendor == b->vendor;
    *out = same ? 0 : -1;
    return NULL;
}

OrtStatus *api_MemoryInfoGetName(const OrtMemoryInfo *info, const char **out) {
    *out = info->name;
    return NULL;
}

OrtStatus *api_MemoryInfoGetId(const OrtMemoryInfo *info, int *out) {
    *out = info->id;
    return NULL;
}

OrtStatus *api_MemoryInfoGetMemType(const OrtMemoryInfo *info, OrtMemType *out) {
    *out = info->mem_type;
    return NULL;
}

OrtStatus *api_MemoryInfoGetType(const OrtMemoryInfo *info, OrtAllocatorType *out) {
    *out = info->type;
    return NULL;
}

void api_MemoryInfoGetDeviceType(const OrtMemoryInfo *info, OrtMemoryInfoDeviceType *out) {
    *out = info->device;
}

OrtDeviceMemoryType api_MemoryInfoGetDeviceMemType(const OrtMemoryInfo *info) { return info->device_memory; }

uint32_t api_MemoryInfoGetVendorId(const OrtMemoryInfo *info) { return info->vendor; }

void api_ReleaseMemoryInfo(OrtMemoryInfo *info) {
    if (info == NULL) return;
    free(info->name);
    free(info);
}
