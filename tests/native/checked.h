/* What programs of these tests share: the interface, and calls that have to succeed. */
#ifndef CHECKED_H
#define CHECKED_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "onnxruntime_c_api.h"

extern const OrtApi *api;
extern OrtAllocator *allocator;
extern OrtMemoryInfo *memory;

static inline void fail_at(int line, const char *what) {
    printf("line %d: %s\n", line, what);
    fflush(stdout);
    _exit(3);
}

static inline void check_at(int line, OrtStatus *status) {
    if (status != NULL) fail_at(line, api->GetErrorMessage(status));
}

#define CHECK(call) check_at(__LINE__, (call))
#define EXPECT(holds)                                \
    do {                                             \
        if (!(holds)) fail_at(__LINE__, #holds);     \
    } while (0)

static inline void use_interface(const OrtApiBase *base) {
    api = base->GetApi(ORT_API_VERSION);
    CHECK(api->GetAllocatorWithDefaultOptions(&allocator));
    CHECK(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
}

static inline void use_library(const char *path) {
    const OrtApiBase *(*base)(void) = NULL;
    void *library = dlopen(path, RTLD_NOW);
    if (library != NULL) *(void **)&base = dlsym(library, "OrtGetApiBase");
    if (base == NULL) fail_at(__LINE__, dlerror());
    use_interface(base());
}

#endif
