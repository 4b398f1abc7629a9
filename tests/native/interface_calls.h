/* What the two files of calls share: the interface, and how an answer is written. */
#ifndef INTERFACE_CALLS_H
#define INTERFACE_CALLS_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "onnxruntime_c_api.h"

extern const OrtApi *api;
extern OrtAllocator *allocator;
extern OrtMemoryInfo *memory;

void answer(const char *what, OrtStatus *status);
/* A tensor of `count` elements. */
OrtValue *tensor_of(ONNXTensorElementDataType type, int64_t count);

#define DO(call) answer(#call, api->call)
#define QUIET(call)                \
    do {                           \
        OrtStatus *s_ = api->call; \
        if (s_) {                  \
            answer(#call, s_);     \
        }                          \
    } while (0)
#define NUMBER(value) printf("  %s = %lld\n", #value, (long long)(value))
#define TEXT(value) printf("  %s = %s\n", #value, (value) == NULL ? "(null)" : (value))
#define COUNT(array) (sizeof(array) / sizeof *(array))

void tensors_of_types(void);
void tensors(void);
void tensors_over_memory(void);
void strings(void);
void sequences(void);
void maps(void);
void shape_infos(void);
void sparse(void);
void type_infos(void);
void attributes(void);

#endif
