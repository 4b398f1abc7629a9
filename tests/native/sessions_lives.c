/* Sessions, environments and options that come and go, on several threads at once and over forks; every result is
 * compared with what it has to be. */
#define _GNU_SOURCE
#include "sessions.h"

#include <dirent.h>
#include <sys/wait.h>

enum { PLACES = 4, CROWD = 8, BUSY = 3, LARGEST = 20, KILOBYTES = 1000 };

static OrtEnv *env;
static const char *path;
static char *bytes;
static size_t size;
static OrtRunOptions *shared; /* by all threads at once */
static struct {
    OrtSession *session; /* or null */
    pthread_rwlock_t lock;
} places[PLACES];
static atomic_int over;

struct worker {
    unsigned seed;
    int count, forks;
};

static void load(void) {
    FILE *file = fopen(path, "rb");
    EXPECT(file != NULL && fseek(file, 0, SEEK_END) == 0);
    size = (size_t)ftell(file);
    bytes = malloc(size);
    rewind(file);
    EXPECT(fread(bytes, 1, size, file) == size);
    fclose(file);
}

/* From bytes that lie anywhere and are gone afterwards. */
static OrtSession *of_bytes(const OrtSessionOptions *options, unsigned *seed) {
    OrtSession *session;
    unsigned shift = chance(seed, 8);
    char *copy = malloc(size + shift);
    memcpy(copy + shift, bytes, size);
    OrtStatus *status = api->CreateSessionFromArray(env, copy + shift, size, options, &session);
    memset(copy, 0xee, size + shift);
    free(copy);
    CHECK(status);
    return session;
}

static OrtSession *made(unsigned *seed) {
    OrtSessionOptions *options = NULL;
    OrtSession *session;
    if (chance(seed, 4) > 0) {
        CHECK(api->CreateSessionOptions(&options));
        CHECK(api->SetIntraOpNumThreads(options, 1 + (int)chance(seed, 3)));
        CHECK(api->SetSessionLogId(options, "id"));
    }
    if (chance(seed, 2) == 0)
        session = of_bytes(options, seed);
    else
        CHECK(api->CreateSession(env, path, options, &session));
    if (options != NULL && chance(seed, 2) == 0) { /* which is nothing to the session any more */
        CHECK(api->SetIntraOpNumThreads(options, 7));
        CHECK(api->SetSessionLogId(options, "other"));
        CHECK(api->AddSessionConfigEntry(options, "session.x", "y"));
    }
    api->ReleaseSessionOptions(options);
    return session;
}

/* Sizes may be zero. `may_end`: the options may be told to terminate meanwhile. */
static void run_once(OrtSession *session, unsigned *seed, const OrtRunOptions *options, int may_end) {
    static const char *const in[] = {"a", "b"}, *const out[] = {"s", "d"};
    const int64_t dims[] = {chance(seed, 4), chance(seed, 5)};
    float data[2][LARGEST];
    OrtValue *inputs[2], *outputs[2] = {NULL};
    size_t count = (size_t)(dims[0] * dims[1]);
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < count; i++) data[k][i] = (float)chance(seed, 1000);
        CHECK(api->CreateTensorWithDataAsOrtValue(memory, data[k], count * sizeof *data[k], dims, 2,
                                                  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &inputs[k]));
    }
    OrtStatus *status = api->Run(session, options, in, (const OrtValue *const *)inputs, 2, out, 2, outputs);
    if (status != NULL) {
        EXPECT(may_end && strstr(api->GetErrorMessage(status), "erminate") != NULL);
        api->ReleaseStatus(status);
    }
    for (int k = 0; k < 2; k++) {
        float *found;
        api->ReleaseValue(inputs[k]);
        if (outputs[k] == NULL) continue;
        CHECK(api->GetTensorMutableData(outputs[k], (void **)&found));
        for (size_t i = 0; i < count; i++)
            EXPECT(found[i] == (k == 0 ? data[0][i] + data[1][i] : data[0][i] - data[1][i]));
        api->ReleaseValue(outputs[k]);
    }
}

/* A child, which runs all sessions that there are, and one of its own where it is to. */
static void forked(unsigned seed, int of_its_own) {
    int status;
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child > 0) {
        EXPECT(waitpid(child, &status, 0) == child);
        EXPECT(status == 0);
        return;
    }
    alarm(60);
    for (int i = 0; i < PLACES; i++) {
        if (places[i].session != NULL) run_once(places[i].session, &seed, NULL, 0);
    }
    if (of_its_own) {
        OrtSession *session = made(&seed);
        run_once(session, &seed, NULL, 0);
        api->ReleaseSession(session);
    }
    _exit(0);
}

static void fork_where_all_hold(unsigned seed) {
    for (int i = 0; i < PLACES; i++) pthread_rwlock_rdlock(&places[i].lock);
    forked(seed, 1);
    for (int i = 0; i < PLACES; i++) pthread_rwlock_unlock(&places[i].lock);
}

static void replaced(unsigned at, unsigned *seed) {
    pthread_rwlock_wrlock(&places[at].lock);
    OrtSession *older = places[at].session;
    places[at].session = older == NULL ? made(seed) : NULL;
    api->ReleaseSession(older);
    pthread_rwlock_unlock(&places[at].lock);
}

static void another_env(void) {
    OrtEnv *other;
    CHECK(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "other", &other));
    api->ReleaseEnv(other);
}

static void *crowded(void *argument) {
    struct worker *worker = argument;
    for (int i = 0; i < worker->count; i++) {
        unsigned *seed = &worker->seed, at = chance(seed, PLACES), what = chance(seed, 8);
        if (what == 0) {
            replaced(at, seed);
        } else if (what == 1) {
            another_env();
        } else if (what == 2) {
            CHECK(chance(seed, 8) == 0 ? api->RunOptionsSetTerminate(shared) : api->RunOptionsUnsetTerminate(shared));
        } else if (what == 3 && worker->forks > 0 && i % 16 == 0) {
            fork_where_all_hold(*seed);
        } else {
            pthread_rwlock_rdlock(&places[at].lock);
            if (places[at].session != NULL)
                run_once(places[at].session, seed, chance(seed, 3) == 0 ? shared : NULL, 1);
            pthread_rwlock_unlock(&places[at].lock);
        }
    }
    return NULL;
}

static void crowd(unsigned seed, int count, int forks) {
    pthread_t threads[CROWD];
    struct worker workers[CROWD];
    CHECK(api->CreateRunOptions(&shared));
    for (int i = 0; i < PLACES; i++) pthread_rwlock_init(&places[i].lock, NULL);
    for (unsigned i = 0; i < CROWD; i++) {
        workers[i] = (struct worker){seed + 977 * i, count, forks};
        EXPECT(pthread_create(&threads[i], NULL, crowded, &workers[i]) == 0);
    }
    for (int i = 0; i < CROWD; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < PLACES; i++) {
        api->ReleaseSession(places[i].session);
        places[i].session = NULL;
        pthread_rwlock_destroy(&places[i].lock);
    }
    api->ReleaseRunOptions(shared);
}

static void *kept_busy(void *argument) {
    struct worker *worker = argument;
    while (!atomic_load(&over)) run_once(places[0].session, &worker->seed, NULL, 0);
    return NULL;
}

/* Forks while other threads are anywhere in a run. */
static void busy(unsigned seed, int count) {
    pthread_t threads[BUSY];
    struct worker workers[BUSY];
    places[0].session = made(&seed);
    atomic_store(&over, 0);
    for (unsigned i = 0; i < BUSY; i++) {
        workers[i] = (struct worker){seed + 977 * i, 0, 0};
        EXPECT(pthread_create(&threads[i], NULL, kept_busy, &workers[i]) == 0);
    }
    for (int i = 0; i < count; i++) forked(chance(&seed, 1000), 0);
    atomic_store(&over, 1);
    for (int i = 0; i < BUSY; i++) pthread_join(threads[i], NULL);
    api->ReleaseSession(places[0].session);
    places[0].session = NULL;
}

static long resident(void) {
    char line[256];
    long found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL && sscanf(line, "VmRSS: %ld", &found) != 1) continue;
    if (file != NULL) fclose(file);
    return found;
}

static int open_files(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL) count++;
    if (folder != NULL) closedir(folder);
    return count;
}

/* One after another: neither memory nor descriptors are left behind. */
static void many(unsigned seed, int count) {
    long before = 0;
    int files = 0;
    for (int i = 0; i < count; i++) {
        OrtSession *session = made(&seed);
        if (chance(&seed, 2) == 0) run_once(session, &seed, NULL, 0);
        api->ReleaseSession(session);
        if (i == count / 5) {
            before = resident();
            files = open_files();
        }
    }
    EXPECT(resident() < before + KILOBYTES);
    EXPECT(open_files() <= files);
}

/* The library let go of and loaded again, with a session left open or not. */
static void again(unsigned seed, int count, const char *library) {
    for (int i = 0; i < count; i++) {
        OrtSession *session = made(&seed);
        for (int k = 0; k < 3; k++) run_once(session, &seed, NULL, 0);
        if (chance(&seed, 4) > 0) api->ReleaseSession(session);
        void *loaded = dlopen(library, RTLD_NOW);
        EXPECT(loaded != NULL && dlclose(loaded) == 0 && dlclose(loaded) == 0);
        EXPECT(dlopen(library, RTLD_NOW) != NULL);
    }
}

void lives(OrtEnv *of, const char *model, const char *library, const char *what, unsigned seed, int count) {
    env = of;
    path = model;
    load();
    if (strcmp(what, "crowd") == 0)
        crowd(seed, count, 0);
    else if (strcmp(what, "forks") == 0)
        crowd(seed, count, 1);
    else if (strcmp(what, "busy") == 0)
        busy(seed, count);
    else if (strcmp(what, "many") == 0)
        many(seed, count);
    else if (strcmp(what, "again") == 0)
        again(seed, count, library);
    free(bytes);
}
