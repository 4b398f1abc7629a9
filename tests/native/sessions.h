/* What the files of `sessions` share. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "onnxruntime_c_api.h"

extern const OrtApi *api;
extern OrtAllocator *allocator;
extern OrtMemoryInfo *memory;

void fail_at(int line, const char *what);
void check_at(int line, OrtStatus *status);
/* Whether it is a status, which is released. */
int refused(OrtStatus *status);
/* A number below `below`. */
unsigned chance(unsigned *seed, unsigned below);
OrtSession *session_on(OrtEnv *env, const char *path, int threads);

void bindings(OrtSession *session, unsigned seed, int count);
/* What is neither of the others: crowd, forks, busy, many, again. */
void lives(OrtEnv *env, const char *model, const char *library, const char *what, unsigned seed, int count);
void asynchronous(OrtSession *session, unsigned seed, int count);
void logging(const char *path, int severity, int count, char **words);

#define CHECK(call) check_at(__LINE__, (call))
#define EXPECT(holds)                                \
    do {                                             \
        if (!(holds)) fail_at(__LINE__, #holds);     \
    } while (0)
