/* What a model says of itself. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static OrtStatus *text_out(const char *text, OrtAllocator *allocator, char **out) {
    return text_to_allocator(allocator, text == NULL ? "" : text, out);
}

OrtStatus *api_ModelMetadataGetProducerName(const OrtModelMetadata *metadata, OrtAllocator *allocator,
                                            char **out) {
    return text_out(metadata->producer, allocator, out);
}

OrtStatus *api_ModelMetadataGetGraphName(const OrtModelMetadata *metadata, OrtAllocator *allocator,
                                         char **out) {
    return text_out(metadata->graph_name, allocator, out);
}

OrtStatus *api_ModelMetadataGetDomain(const OrtModelMetadata *metadata, OrtAllocator *allocator, char **out) {
    return text_out(metadata->domain, allocator, out);
}

OrtStatus *api_ModelMetadataGetDescription(const OrtModelMetadata *metadata, OrtAllocator *allocator,
                                           char **out) {
    return text_out(metadata->description, allocator, out);
}

OrtStatus *api_ModelMetadataGetGraphDescription(const OrtModelMetadata *metadata, OrtAllocator *allocator,
                                                char **out) {
    return text_out(metadata->graph_description, allocator, out);
}

OrtStatus *api_ModelMetadataGetVersion(const OrtModelMetadata *metadata, int64_t *out) {
    *out = metadata->version;
    return NULL;
}

OrtStatus *api_ModelMetadataLookupCustomMetadataMap(const OrtModelMetadata *metadata, OrtAllocator *allocator,
                                                    const char *key, char **out) {
    const char *found = pairs_get(&metadata->custom, key);
    *out = NULL;
    return found == NULL ? NULL : text_to_allocator(allocator, found, out);
}

static void keys_free(OrtAllocator *allocator, char **keys, size_t count) {
    for (size_t i = 0; i < count; i++) allocator->Free(allocator, keys[i]);
    allocator->Free(allocator, keys);
}

OrtStatus *api_ModelMetadataGetCustomMetadataMapKeys(const OrtModelMetadata *metadata,
                                                     OrtAllocator *allocator, char ***keys, int64_t *count) {
    size_t number = metadata->custom.count;
    *keys = NULL;
    *count = (int64_t)number;
    if (number == 0) return NULL;
    char **copies = allocator->Alloc(allocator, number * sizeof *copies);
    if (copies == NULL) return status_out_of_memory(number * sizeof *copies);
    for (size_t i = 0; i < number; i++) {
        OrtStatus *status = text_to_allocator(allocator, metadata->custom.keys[i], &copies[i]);
        if (status != NULL) {
            keys_free(allocator, copies, i);
            return status;
        }
    }
    *keys = copies;
    return NULL;
}

void api_ReleaseModelMetadata(OrtModelMetadata *metadata) {
    if (metadata == NULL) return;
    free(metadata->producer);
    free(metadata->graph_name);
    free(metadata->domain);
    free(metadata->description);
    free(metadata->graph_description);
    pairs_clear(&metadata->custom);
    free(metadata);
}
