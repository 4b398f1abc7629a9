/* A program on the C interface: reads feeds, runs a model, writes results, in the form of src/orthrus/native/dropin's
 * wire.py with everything in the message.

 *   client MODEL FEEDS RESULTS [bytes] [threads N SECONDS] [fork] [again SECONDS]
 *
 * bytes: the model is handed over as bytes. threads: N threads run one session for so long, and every result has to
 * be the first one. fork: parent and child run it. again: runs with pauses for so long; a status counts, a result
 * has to be the first one. */
#define _GNU_SOURCE
#include "checked.h"
#include "message.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

enum { MOST = 64 };

const OrtApi *api;
OrtAllocator *allocator;
OrtMemoryInfo *memory;

struct model {
    OrtSession *session;
    size_t inputs, outputs;
    const char *input_names[MOST];
    OrtValue *feeds[MOST];
    char *output_names[MOST];
};

static struct message contents(const char *path) {
    struct message read = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) abort();
    if (!message_resize(&read, (size_t)ftell(file))) abort();
    rewind(file);
    if (fread(read.bytes, 1, read.size, file) != read.size) abort();
    fclose(file);
    return read;
}

static OrtValue *take_value(struct message *message);

static OrtValue *take_tensor(struct message *message) {
    int64_t dims[16];
    const char *texts[1024];
    OrtValue *value = NULL;
    ONNXTensorElementDataType type = (ONNXTensorElementDataType)take_int(message);
    size_t rank = take_count(message, 16), size;
    for (size_t i = 0; i < rank; i++) dims[i] = take_int(message);
    CHECK(api->CreateTensorAsOrtValue(allocator, dims, rank, type, &value));
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        size_t count = take_count(message, 1024);
        for (size_t i = 0; i < count; i++) texts[i] = take_text(message, NULL);
        CHECK(api->FillStringTensor(value, texts, count));
        return value;
    }
    take_int(message), take_int(message);
    const char *bytes = take_text(message, &size);
    void *data;
    CHECK(api->GetTensorMutableData(value, &data));
    memcpy(data, bytes, size);
    return value;
}

static OrtValue *take_value(struct message *message) {
    ONNXType kind = (ONNXType)take_int(message);
    OrtValue *elements[MOST] = {NULL}, *value = NULL;
    if (kind == ONNX_TYPE_TENSOR) return take_tensor(message);
    size_t count = kind == ONNX_TYPE_MAP ? 2 : take_count(message, MOST);
    for (size_t i = 0; i < count; i++) elements[i] = take_value(message);
    CHECK(api->CreateValue((const OrtValue *const *)elements, count, kind, &value));
    for (size_t i = 0; i < count; i++) api->ReleaseValue(elements[i]);
    return value;
}

static void put_strings(struct message *message, const OrtValue *value, size_t count) {
    size_t size;
    CHECK(api->GetStringTensorDataLength(value, &size));
    char *bytes = malloc(size + 1);
    size_t *begins = calloc(count + 1, sizeof *begins);
    CHECK(api->GetStringTensorContent(value, bytes, size, begins, count));
    begins[count] = size;
    put_int(message, (int64_t)count);
    for (size_t i = 0; i < count; i++) put_bytes(message, bytes + begins[i], begins[i + 1] - begins[i]);
    free(bytes);
    free(begins);
}

static void put_tensor(struct message *message, const OrtValue *value) {
    static const unsigned char sizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2};
    OrtTensorTypeAndShapeInfo *info;
    ONNXTensorElementDataType type;
    int64_t dims[16];
    size_t rank, count;
    const void *data;
    CHECK(api->GetTensorTypeAndShape(value, &info));
    CHECK(api->GetTensorElementType(info, &type));
    CHECK(api->GetDimensionsCount(info, &rank));
    CHECK(api->GetDimensions(info, dims, rank));
    CHECK(api->GetTensorShapeElementCount(info, &count));
    api->ReleaseTensorTypeAndShapeInfo(info);
    put_int(message, type);
    put_int(message, (int64_t)rank);
    for (size_t i = 0; i < rank; i++) put_int(message, dims[i]);
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
        put_strings(message, value, count);
        return;
    }
    CHECK(api->GetTensorData(value, &data));
    put_int(message, -1);
    put_int(message, (int64_t)(count * sizes[type]));
    put_bytes(message, data, count * sizes[type]);
}

static void put_value(struct message *message, const OrtValue *value) {
    ONNXType kind = ONNX_TYPE_UNKNOWN;
    size_t count = 0;
    int there = 0;
    if (value != NULL) CHECK(api->HasValue(value, &there));
    if (there) CHECK(api->GetValueType(value, &kind));
    put_int(message, kind);
    if (kind == ONNX_TYPE_TENSOR) put_tensor(message, value);
    if (kind != ONNX_TYPE_SEQUENCE && kind != ONNX_TYPE_MAP) return;
    CHECK(api->GetValueCount(value, &count));
    if (kind == ONNX_TYPE_SEQUENCE) put_int(message, (int64_t)count);
    for (size_t i = 0; i < count; i++) {
        OrtValue *element = NULL;
        CHECK(api->GetValue(value, (int)i, allocator, &element));
        put_value(message, element);
        api->ReleaseValue(element);
    }
}

static OrtStatus *run(struct model *model, struct message *results) {
    OrtValue *outputs[MOST] = {NULL};
    OrtStatus *status = api->Run(model->session, NULL, model->input_names, (const OrtValue *const *)model->feeds,
                                 model->inputs, (const char *const *)model->output_names, model->outputs, outputs);
    if (status != NULL) return status;
    for (size_t i = 0; i < model->outputs; i++) {
        put_value(results, outputs[i]);
        if (outputs[i] != NULL) api->ReleaseValue(outputs[i]);
    }
    return NULL;
}

static void load(struct model *model, OrtEnv *env, const char *path, struct message *feeds, int as_bytes) {
    OrtSessionOptions *options;
    CHECK(api->CreateSessionOptions(&options));
    CHECK(api->SetIntraOpNumThreads(options, 1));
    if (as_bytes) {
        struct message bytes = contents(path);
        CHECK(api->CreateSessionFromArray(env, bytes.bytes, bytes.size, options, &model->session));
        message_clear(&bytes);
    } else {
        CHECK(api->CreateSession(env, path, options, &model->session));
    }
    api->ReleaseSessionOptions(options);
    model->inputs = take_count(feeds, MOST);
    for (size_t i = 0; i < model->inputs; i++) {
        model->input_names[i] = take_text(feeds, NULL);
        model->feeds[i] = take_value(feeds);
    }
    CHECK(api->SessionGetOutputCount(model->session, &model->outputs));
    for (size_t i = 0; i < model->outputs; i++)
        CHECK(api->SessionGetOutputName(model->session, i, allocator, &model->output_names[i]));
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int same(const struct message *a, const struct message *b) {
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

struct work {
    struct model *model;
    const struct message *expected;
    double end;
    long runs, wrong, refused;
};

static void *runs(void *argument) {
    struct work *work = argument;
    while (now() < work->end) {
        struct message results = {0};
        OrtStatus *status = run(work->model, &results);
        work->runs++;
        if (status != NULL) {
            if (work->refused++ == 0) fprintf(stderr, "%s\n", api->GetErrorMessage(status));
            api->ReleaseStatus(status);
        } else if (!same(&results, work->expected)) {
            work->wrong++;
        }
        message_clear(&results);
    }
    return NULL;
}

static int on_threads(struct model *model, const struct message *expected, int count, double seconds) {
    pthread_t threads[256];
    struct work works[256], sum = {0};
    for (int i = 0; i < count; i++) {
        works[i] = (struct work){model, expected, now() + seconds, 0, 0, 0};
        if (pthread_create(&threads[i], NULL, runs, &works[i]) != 0) abort();
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        sum.runs += works[i].runs;
        sum.wrong += works[i].wrong;
        sum.refused += works[i].refused;
    }
    printf("runs %ld wrong %ld refused %ld\n", sum.runs, sum.wrong, sum.refused);
    return sum.wrong != 0;
}

static int forked(struct model *model, const struct message *expected) {
    int state = 0;
    pid_t child = fork();
    struct message results = {0};
    alarm(60);
    CHECK(run(model, &results));
    int wrong = !same(&results, expected);
    message_clear(&results);
    if (child == 0) _exit(wrong);
    if (waitpid(child, &state, 0) != child) abort();
    printf("child %d parent %d\n", WIFEXITED(state) ? WEXITSTATUS(state) : 99, wrong);
    return wrong || state != 0;
}

static void write_to(const char *path, const struct message *results) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(results->bytes, 1, results->size, file) != results->size || fclose(file) != 0) abort();
}

int main(int count, char **words) {
    struct model model = {0};
    struct message results = {0};
    OrtEnv *env;
    int as_bytes = 0, failed = 0;
    if (count < 4) return 2;
    for (int i = 4; i < count; i++) as_bytes |= strcmp(words[i], "bytes") == 0;
    use_interface(OrtGetApiBase());
    struct message feeds = contents(words[2]);
    CHECK(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "client", &env));
    double begin = now();
    load(&model, env, words[1], &feeds, as_bytes);
    double made = now();
    CHECK(run(&model, &results));
    printf("created %.3f ms, first run %.3f ms\n", 1e3 * (made - begin), 1e3 * (now() - made));
    fflush(stdout);
    write_to(words[3], &results);
    for (int i = 4; i < count; i++) {
        if (strcmp(words[i], "threads") == 0)
            failed |= on_threads(&model, &results, atoi(words[i + 1]), atof(words[i + 2]));
        if (strcmp(words[i], "again") == 0) failed |= on_threads(&model, &results, 1, atof(words[i + 1]));
        if (strcmp(words[i], "fork") == 0) failed |= forked(&model, &results);
    }
    for (size_t i = 0; i < model.inputs; i++) api->ReleaseValue(model.feeds[i]);
    for (size_t i = 0; i < model.outputs; i++) allocator->Free(allocator, model.output_names[i]);
    api->ReleaseSession(model.session);
    api->ReleaseMemoryInfo(memory);
    api->ReleaseEnv(env);
    message_clear(&feeds);
    message_clear(&results);
    return failed;
}
