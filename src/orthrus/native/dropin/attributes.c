/* What describes nodes and values of a model: attributes, value infos, places of external data. */
#include "editor.h"

#include <stdlib.h>
#include <string.h>

struct OrtOpAttr {
    char *name;
    OrtOpAttrType type;
    size_t size; /* bytes of `data`; strings: each with its 0 */
    char *data;
};

struct OrtValueInfo {
    char *name;
    OrtTypeInfo *type;
};

struct OrtExternalInitializerInfo {
    char *path;
    int64_t offset;
    size_t size;
};

static const char *const kinds[] = {[ORT_OP_ATTR_INT] = "int",       [ORT_OP_ATTR_INTS] = "ints",
                                    [ORT_OP_ATTR_FLOAT] = "float",   [ORT_OP_ATTR_FLOATS] = "floats",
                                    [ORT_OP_ATTR_STRING] = "string", [ORT_OP_ATTR_STRINGS] = "strings"};

static size_t texts_size(const char *const *texts, size_t count) {
    size_t size = 0;
    for (size_t i = 0; i < count; i++) size += strlen(texts[i]) + 1;
    return size;
}

static bool size_of(OrtOpAttrType type, const void *data, size_t length, size_t *out) {
    switch (type) {
    case ORT_OP_ATTR_INT: *out = sizeof(int64_t); return true;
    case ORT_OP_ATTR_INTS: *out = length * sizeof(int64_t); return true;
    case ORT_OP_ATTR_FLOAT: *out = sizeof(float); return true;
    case ORT_OP_ATTR_FLOATS: *out = length * sizeof(float); return true;
    case ORT_OP_ATTR_STRING: *out = length; return true;
    case ORT_OP_ATTR_STRINGS: *out = texts_size(data, length); return true;
    default: return false;
    }
}

static void join(char *to, const char *const *texts, size_t count) {
    for (size_t i = 0; i < count; i++) to = strcpy(to, texts[i]) + strlen(texts[i]) + 1;
}

OrtStatus *api_CreateOpAttr(const char *name, const void *data, int length, OrtOpAttrType type,
                            OrtOpAttr **out) {
    size_t size, count = length < 0 ? 0 : (size_t)length;
    bool many = type == ORT_OP_ATTR_INTS || type == ORT_OP_ATTR_FLOATS || type == ORT_OP_ATTR_STRING ||
                type == ORT_OP_ATTR_STRINGS;
    REQUIRE(data != NULL || (many && count == 0), "CreateOpAttr: data must not be null");
    for (size_t i = 0; type == ORT_OP_ATTR_STRINGS && i < count; i++)
        REQUIRE(((const char *const *)data)[i] != NULL, "CreateOpAttr: data[%zu] must not be null", i);
    if (!size_of(type, data, count, &size)) return status_new(ORT_FAIL, "Attribute type not supported yet.");
    OrtOpAttr *attribute = calloc(1, sizeof *attribute);
    if (attribute == NULL) return status_out_of_memory(sizeof *attribute);
    attribute->name = text_copy(name);
    attribute->data = malloc(size + 1);
    if (attribute->name == NULL || attribute->data == NULL) {
        api_ReleaseOpAttr(attribute);
        return status_out_of_memory(size);
    }
    if (type == ORT_OP_ATTR_STRINGS)
        join(attribute->data, data, count);
    else if (size != 0)
        memcpy(attribute->data, data, size);
    attribute->type = type;
    attribute->size = size;
    *out = attribute;
    return NULL;
}

OrtStatus *api_ReadOpAttr(const OrtOpAttr *attribute, OrtOpAttrType type, void *data, size_t length,
                          size_t *out) {
    if ((unsigned)type >= sizeof kinds / sizeof *kinds || kinds[type] == NULL)
        return status_new(ORT_INVALID_ARGUMENT, "Unexpected attribute type.");
    REQUIRE(attribute->type == type, "Attribute has no %s value.", kinds[type]);
    *out = attribute->size;
    REQUIRE(length >= attribute->size, "Size of data not large enough to hold %s.",
            type == ORT_OP_ATTR_INT     ? "an int64"
            : type == ORT_OP_ATTR_FLOAT ? "a float"
                                        : "the value");
    if (attribute->size != 0) memcpy(data, attribute->data, attribute->size);
    return NULL;
}

OrtStatus *api_OpAttr_GetName(const OrtOpAttr *attribute, const char **out) {
    *out = attribute->name;
    return NULL;
}

OrtStatus *api_OpAttr_GetType(const OrtOpAttr *attribute, OrtOpAttrType *out) {
    *out = attribute->type;
    return NULL;
}

void api_ReleaseOpAttr(OrtOpAttr *attribute) {
    if (attribute == NULL) return;
    free(attribute->name);
    free(attribute->data);
    free(attribute);
}

void write_attribute(struct bytes *to, const OrtOpAttr *attribute) {
    static const int kinds_in_onnx[] = {[ORT_OP_ATTR_FLOAT] = 1,  [ORT_OP_ATTR_INT] = 2,  [ORT_OP_ATTR_STRING] = 3,
                                        [ORT_OP_ATTR_FLOATS] = 6, [ORT_OP_ATTR_INTS] = 7, [ORT_OP_ATTR_STRINGS] = 8};
    const float *floats = (const float *)(const void *)attribute->data;
    const int64_t *ints = (const int64_t *)(const void *)attribute->data;
    field_text(to, 1, attribute->name);
    field_int(to, 20, kinds_in_onnx[attribute->type]);
    switch (attribute->type) {
    case ORT_OP_ATTR_FLOAT: field_float(to, 2, floats[0]); break;
    case ORT_OP_ATTR_INT: field_int(to, 3, ints[0]); break;
    case ORT_OP_ATTR_STRING: field_bytes(to, 4, attribute->data, attribute->size); break;
    case ORT_OP_ATTR_FLOATS:
        for (size_t i = 0; i < attribute->size / sizeof *floats; i++) field_float(to, 7, floats[i]);
        break;
    case ORT_OP_ATTR_INTS:
        for (size_t i = 0; i < attribute->size / sizeof *ints; i++) field_int(to, 8, ints[i]);
        break;
    default:
        for (size_t at = 0; at < attribute->size; at += strlen(attribute->data + at) + 1)
            field_bytes(to, 9, attribute->data + at, strlen(attribute->data + at));
    }
}

OrtStatus *api_CreateValueInfo(const char *name, const OrtTypeInfo *type, OrtValueInfo **out) {
    REQUIRE(name != NULL && *name != 0, "name cannot be null or empty string");
    REQUIRE(type != NULL, "type_info cannot be null");
    OrtValueInfo *info = calloc(1, sizeof *info);
    if (info == NULL) return status_out_of_memory(sizeof *info);
    info->name = text_copy(name);
    info->type = type_info_copy(type);
    if (info->name == NULL || info->type == NULL) {
        api_ReleaseValueInfo(info);
        return status_out_of_memory(sizeof *info);
    }
    *out = info;
    return NULL;
}

void write_value_info(struct bytes *to, const OrtValueInfo *info) {
    struct bytes type = {0};
    field_text(to, 1, info->name);
    write_type(&type, info->type);
    field_message(to, 2, &type);
}

OrtStatus *api_GetValueInfoName(const OrtValueInfo *info, const char **out) {
    *out = info->name;
    return NULL;
}

OrtStatus *api_GetValueInfoTypeInfo(const OrtValueInfo *info, const OrtTypeInfo **out) {
    *out = info->type;
    return NULL;
}

void api_ReleaseValueInfo(OrtValueInfo *info) {
    if (info == NULL) return;
    free(info->name);
    api_ReleaseTypeInfo(info->type);
    free(info);
}

OrtStatus *api_CreateExternalInitializerInfo(const ORTCHAR_T *path, int64_t offset, size_t size,
                                             OrtExternalInitializerInfo **out) {
    OrtExternalInitializerInfo *info = calloc(1, sizeof *info);
    if (info == NULL || (info->path = text_copy(path)) == NULL) {
        free(info);
        return status_out_of_memory(sizeof *info);
    }
    info->offset = offset;
    info->size = size;
    *out = info;
    return NULL;
}

const ORTCHAR_T *api_ExternalInitializerInfo_GetFilePath(const OrtExternalInitializerInfo *info) {
    return info->path;
}

int64_t api_ExternalInitializerInfo_GetFileOffset(const OrtExternalInitializerInfo *info) {
    return info->offset;
}

size_t api_ExternalInitializerInfo_GetByteSize(const OrtExternalInitializerInfo *info) { return info->size; }

void api_ReleaseExternalInitializerInfo(OrtExternalInitializerInfo *info) {
    if (info == NULL) return;
    free(info->path);
    free(info);
}
