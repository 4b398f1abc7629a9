/* Allocators that an environment's sessions share, and what configures arenas. There is no arena here: the
 * configuration is checked and kept for nobody. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct OrtArenaCfg {
    OrtKeyValuePairs nothing;
};

OrtStatus *api_CreateArenaCfg(size_t most, int extend_strategy, int initial_chunk, int most_dead,
                              OrtArenaCfg **out) {
    (void)most, (void)extend_strategy, (void)initial_chunk, (void)most_dead;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? status_out_of_memory(sizeof **out) : NULL;
}

OrtStatus *api_CreateArenaCfgV2(const char *const *keys, const size_t *values, size_t count,
                                OrtArenaCfg **out) {
    static const char *const known[] = {"max_mem",
                                        "arena_extend_strategy",
                                        "initial_chunk_size_bytes",
                                        "max_dead_bytes_per_chunk",
                                        "initial_growth_chunk_size_bytes",
                                        "max_power_of_two_extend_bytes"};
    (void)values;
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(keys[i], known[k]) != 0) k++;
        REQUIRE(k < sizeof known / sizeof *known, "Invalid key found: %s", keys[i]);
    }
    return api_CreateArenaCfg(0, -1, -1, -1, out);
}

void api_ReleaseArenaCfg(OrtArenaCfg *arena) { free(arena); }

static bool same_memory(const OrtMemoryInfo *a, const OrtMemoryInfo *b) {
    return a->device == b->device && a->device_memory == b->device_memory && a->vendor == b->vendor &&
           a->id == b->id;
}

/* The place of the allocator for a memory, or the end. */
static size_t place_of(const OrtEnv *env, const OrtMemoryInfo *memory) {
    size_t i = 0;
    while (i < env->allocator_count && !same_memory(env->allocators[i]->Info(env->allocators[i]), memory))
        i++;
    return i;
}

OrtStatus *api_RegisterAllocator(OrtEnv *env, OrtAllocator *allocator) {
    REQUIRE(env != NULL, "Env is null");
    REQUIRE(allocator != NULL, "Provided OrtAllocator is null");
    size_t place = place_of(env, allocator->Info(allocator));
    if (place < env->allocator_count) {
        env->allocators[place] = allocator;
        return NULL;
    }
    void **allocators = (void **)env->allocators;
    bool whole = array_append(&allocators, &env->allocator_count, allocator);
    env->allocators = (OrtAllocator **)allocators;
    return whole ? NULL : status_out_of_memory(sizeof allocator);
}

OrtStatus *api_CreateAndRegisterAllocator(OrtEnv *env, const OrtMemoryInfo *memory,
                                          const OrtArenaCfg *arena) {
    (void)arena;
    REQUIRE(env != NULL, "Env is null");
    REQUIRE(memory != NULL, "OrtMemoryInfo is null");
    REQUIRE(memory->device == OrtMemoryInfoDeviceType_CPU,
            "%s has no memory that Orthrus can share: only the CPU's can be", memory->name);
    return api_RegisterAllocator(env, &cpu_allocator);
}

OrtStatus *api_CreateAndRegisterAllocatorV2(OrtEnv *env, const char *provider, const OrtMemoryInfo *memory,
                                            const OrtArenaCfg *arena, const char *const *keys,
                                            const char *const *values, size_t count) {
    (void)keys, (void)values, (void)count;
    REQUIRE(provider != NULL && strcmp(provider, "CPUExecutionProvider") == 0,
            "Provided provider type is not supported: only CPUExecutionProvider is");
    return api_CreateAndRegisterAllocator(env, memory, arena);
}

OrtStatus *api_UnregisterAllocator(OrtEnv *env, const OrtMemoryInfo *memory) {
    REQUIRE(env != NULL, "Env is null");
    REQUIRE(memory != NULL, "Provided OrtMemoryInfo is null");
    size_t place = place_of(env, memory);
    REQUIRE(place < env->allocator_count, "No allocator for this device has been registered for sharing.");
    env->allocators[place] = env->allocators[--env->allocator_count];
    return NULL;
}

OrtStatus *api_GetSharedAllocator(OrtEnv *env, const OrtMemoryInfo *memory, OrtAllocator **out) {
    size_t place = place_of(env, memory);
    OrtAllocator *ours = same_memory(memory, &cpu_memory) ? &cpu_allocator : NULL;
    *out = place < env->allocator_count ? env->allocators[place] : ours;
    return NULL;
}

struct OrtPrepackedWeightsContainer {
    OrtKeyValuePairs nothing; /* packages share their packed weights by themselves */
};

OrtStatus *api_CreatePrepackedWeightsContainer(OrtPrepackedWeightsContainer **out) {
    *out = calloc(1, sizeof **out);
    return *out == NULL ? status_out_of_memory(sizeof **out) : NULL;
}

void api_ReleasePrepackedWeightsContainer(OrtPrepackedWeightsContainer *container) { free(container); }
