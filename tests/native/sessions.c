/* Sessions that share out work: bindings in random orders of calls, runs on other threads, and what is logged. Every
 * answer is compared with what the calls so far have to give. It is run on onnxruntime's own library too.
 *
 *   sessions LIBRARY MODEL [binding|threads|async|crowd|forks|busy|many|again SEED COUNT]...
 *   sessions LIBRARY MODEL logging SEVERITY [OPTION]...
 *
 * The model has the inputs a and b and the outputs s = a + b and d = a - b, matrices of any size. */
#define _GNU_SOURCE
#include "sessions.h"

const OrtApi *api;
OrtAllocator *allocator;
OrtMemoryInfo *memory;

int refused(OrtStatus *status) {
    if (status == NULL) return 0;
    EXPECT(api->GetErrorCode(status) != ORT_OK && api->GetErrorMessage(status)[0] != 0);
    api->ReleaseStatus(status);
    return 1;
}

unsigned chance(unsigned *seed, unsigned below) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 16) % below;
}

OrtSession *session_on(OrtEnv *env, const char *path, int threads) {
    OrtSessionOptions *options;
    OrtSession *session;
    CHECK(api->CreateSessionOptions(&options));
    CHECK(api->SetIntraOpNumThreads(options, threads));
    CHECK(api->CreateSession(env, path, options, &session));
    api->ReleaseSessionOptions(options);
    return session;
}

struct worker {
    OrtSession *session;
    unsigned seed;
    int count;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    bindings(worker->session, worker->seed, worker->count);
    return NULL;
}

static void on_threads(OrtSession *session, unsigned seed, int count) {
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){session, seed + 977 * i, count};
        EXPECT(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

int main(int count, char **words) {
    if (count < 5) return 2;
    use_library(words[1]);
    alarm(240);
    if (strcmp(words[3], "logging") == 0) {
        logging(words[2], atoi(words[4]), count - 5, words + 5);
    } else {
        OrtEnv *env;
        CHECK(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "sessions", &env));
        OrtSession *session = session_on(env, words[2], 2);
        for (int i = 3; i + 2 < count; i += 3) {
            unsigned seed = (unsigned)atoi(words[i + 1]);
            int times = atoi(words[i + 2]);
            if (strcmp(words[i], "binding") == 0) bindings(session, seed, times);
            if (strcmp(words[i], "threads") == 0) on_threads(session, seed, times);
            if (strcmp(words[i], "async") == 0) asynchronous(session, seed, times);
            lives(env, words[2], words[1], words[i], seed, times);
        }
        api->ReleaseSession(session);
        api->ReleaseEnv(env);
    }
    api->ReleaseMemoryInfo(memory);
    puts("right");
    return 0;
}
