/* Models that a program puts together: bytes that grow, and what onnx.proto3 writes. */
#ifndef ORTHRUS_EDITOR_H
#define ORTHRUS_EDITOR_H

#include "internal.h"

struct bytes {
    unsigned char *data;
    size_t size, capacity;
    bool broken; /* there was no memory, or more of it than a message of protobuf may have */
};

/* protobuf.c: fields of a message, by their numbers in onnx.proto3. */
void bytes_clear(struct bytes *bytes);
void field_int(struct bytes *to, unsigned field, int64_t number);
void field_float(struct bytes *to, unsigned field, float number);
void field_bytes(struct bytes *to, unsigned field, const void *data, size_t size);
void field_text(struct bytes *to, unsigned field, const char *text);
/* A message inside, which is cleared. */
void field_message(struct bytes *to, unsigned field, struct bytes *inside);
/* A TypeProto; a TensorProto. */
void write_type(struct bytes *to, const OrtTypeInfo *type);
void write_tensor(struct bytes *to, const char *name, const OrtValue *value);

/* attributes.c: an AttributeProto; a ValueInfoProto. */
void write_attribute(struct bytes *to, const OrtOpAttr *attribute);
void write_value_info(struct bytes *to, const OrtValueInfo *info);

/* editor.c: a ModelProto, in memory that is the caller's. */
OrtStatus *model_written(const OrtModel *model, struct bytes *made);

#endif
