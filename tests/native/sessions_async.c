/* Runs on other threads, started from several and from callbacks; and the log. */
#define _GNU_SOURCE
#include "sessions.h"

enum { WIDE = 8, STARTERS = 4 };
enum kind { NEW, GIVEN, ONE, WRONG_INPUT, WRONG_OUTPUT, NO_OUTPUT, TERMINATED, LACKING, KINDS };
static const char *const good_inputs[] = {"a", "b"}, *const good_outputs[] = {"s", "d"};
static const char *const wrong_inputs[] = {"a", "c"}, *const wrong_outputs[] = {"s", "c"};

static atomic_int begun, ended;

/* One run; all of it stays until the callback has been. */
struct job {
    OrtSession *session;
    unsigned seed;
    int further;
    enum kind kind;
    OrtRunOptions *options;
    float in[2][WIDE], out[2][WIDE];
    OrtValue *inputs[2], *outputs[2];
};

static void start(OrtSession *session, unsigned seed, int further);

static OrtValue *over(float *data) {
    const int64_t dims[] = {1, WIDE};
    OrtValue *value;
    CHECK(api->CreateTensorWithDataAsOrtValue(memory, data, WIDE * sizeof *data, dims, 2,
                                              ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    return value;
}

static void check_result(const struct job *job, int which, const OrtValue *value) {
    float *data;
    CHECK(api->GetTensorMutableData((OrtValue *)value, (void **)&data));
    EXPECT(job->kind != GIVEN || data == job->out[which]);
    for (int i = 0; i < WIDE; i++) {
        float a = job->in[0][i], b = job->in[1][i];
        EXPECT(data[i] == (which == 0 ? a + b : a - b));
    }
}

static void done(void *user, OrtValue **outputs, size_t count, OrtStatusPtr status) {
    struct job *job = user;
    int wanted = job->kind == ONE ? 1 : 2, passes = job->kind <= ONE;
    EXPECT(passes == (status == NULL) && (int)count == (passes ? wanted : 0));
    EXPECT(outputs == job->outputs);
    for (int i = 0; i < (int)count; i++) check_result(job, i, outputs[i]);
    if (status != NULL) EXPECT(refused(status));
    for (int i = 0; i < 2; i++) {
        api->ReleaseValue(job->inputs[i]);
        api->ReleaseValue(job->outputs[i]);
    }
    api->ReleaseRunOptions(job->options);
    if (job->further > 0) start(job->session, job->seed, job->further - 1);
    free(job);
    atomic_fetch_add(&ended, 1);
}

static void start(OrtSession *session, unsigned seed, int further) {
    struct job *job = calloc(1, sizeof *job);
    job->session = session;
    job->kind = (enum kind)chance(&seed, KINDS);
    job->further = further;
    for (int i = 0; i < WIDE; i++) {
        job->in[0][i] = (float)chance(&seed, 1000);
        job->in[1][i] = (float)chance(&seed, 1000);
    }
    job->seed = seed;
    for (int i = 0; i < 2; i++) job->inputs[i] = over(job->in[i]);
    for (int i = 0; job->kind == GIVEN && i < 2; i++) job->outputs[i] = over(job->out[i]);
    if (job->kind == TERMINATED || chance(&seed, 2) == 0) CHECK(api->CreateRunOptions(&job->options));
    if (job->kind == TERMINATED) CHECK(api->RunOptionsSetTerminate(job->options));
    size_t outputs = job->kind == ONE ? 1 : job->kind == NO_OUTPUT ? 0 : 2, inputs = job->kind == LACKING ? 1 : 2;
    atomic_fetch_add(&begun, 1);
    CHECK(api->RunAsync(session, job->options, job->kind == WRONG_INPUT ? wrong_inputs : good_inputs,
                        (const OrtValue *const *)job->inputs, inputs,
                        job->kind == WRONG_OUTPUT ? wrong_outputs : good_outputs, outputs, job->outputs, done, job));
}

struct starter {
    OrtSession *session;
    unsigned seed;
    int count;
};

static void *starts(void *argument) {
    struct starter *starter = argument;
    for (int i = 0; i < starter->count; i++) {
        start(starter->session, chance(&starter->seed, 1u << 15) + (unsigned)i, (int)chance(&starter->seed, 4));
        if (chance(&starter->seed, 4) == 0) usleep(200);
    }
    return NULL;
}

void asynchronous(OrtSession *session, unsigned seed, int count) {
    pthread_t threads[STARTERS];
    struct starter starters[STARTERS];
    for (unsigned i = 0; i < STARTERS; i++) {
        starters[i] = (struct starter){session, seed + i * 71, count};
        EXPECT(pthread_create(&threads[i], NULL, starts, &starters[i]) == 0);
    }
    for (int i = 0; i < STARTERS; i++) pthread_join(threads[i], NULL);
    while (atomic_load(&ended) < atomic_load(&begun)) usleep(1000);
    usleep(100000);
    EXPECT(atomic_load(&ended) == atomic_load(&begun) && atomic_load(&ended) >= STARTERS * count);
}

/* Logging ------------------------------------------------------------------------------------------------------ */

static void heard(void *param, OrtLoggingLevel severity, const char *category, const char *id, const char *place,
                  const char *message) {
    int status = -1;
    char **names = NULL;
    int count = 0;
    if (api->GetAvailableProviders(&names, &count) == NULL) status = count; /* the interface may be called */
    EXPECT(status > 0 && api->ReleaseAvailableProviders(names, count) == NULL);
    printf("%s|%d|%s|%s|%s|%s\n", (const char *)param, (int)severity, category, id, place, message);
}

static int has(int count, char **words, const char *word) {
    for (int i = 0; i < count; i++)
        if (strcmp(words[i], word) == 0) return 1;
    return 0;
}

/* What each of both functions hears while a session is made, runs, and fails to run. */
void logging(const char *path, int severity, int count, char **words) {
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtRunOptions *run;
    OrtSession *session = NULL;
    float numbers[2][WIDE] = {{0}};
    OrtValue *outputs[1] = {NULL}, *inputs[] = {over(numbers[0]), over(numbers[1])};
    const OrtValue *const *in = (const OrtValue *const *)inputs;
    CHECK(api->CreateEnvWithCustomLogger(heard, "env", (OrtLoggingLevel)severity, "envid", &env));
    CHECK(api->CreateSessionOptions(&options));
    CHECK(api->CreateRunOptions(&run));
    if (has(count, words, "id")) CHECK(api->SetSessionLogId(options, "sid"));
    if (has(count, words, "user")) CHECK(api->SetUserLoggingFunction(options, heard, "user"));
    if (has(count, words, "session")) CHECK(api->SetSessionLogSeverityLevel(options, 0));
    if (has(count, words, "quiet")) CHECK(api->SetSessionLogSeverityLevel(options, 4));
    if (has(count, words, "run")) CHECK(api->RunOptionsSetRunLogSeverityLevel(run, 0));
    if (has(count, words, "tag")) CHECK(api->RunOptionsSetRunTag(run, "tag"));
    CHECK(api->CreateSession(env, path, options, &session));
    puts("-");
    CHECK(api->Run(session, run, good_inputs, in, 2, good_outputs, 1, outputs));
    api->ReleaseValue(outputs[0]);
    outputs[0] = NULL;
    puts("-");
    (void)refused(api->Run(session, run, good_inputs, in, 1, good_outputs, 1, outputs));
    api->ReleaseValue(outputs[0]);
    api->ReleaseValue(inputs[0]);
    api->ReleaseValue(inputs[1]);
    api->ReleaseSession(session);
    api->ReleaseRunOptions(run);
    api->ReleaseSessionOptions(options);
    api->ReleaseEnv(env);
}
