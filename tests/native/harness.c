/* Runs packages as a program would: the runtime and nothing else.

   harness run PACKAGE DATA THREADS CONTEXTS RUNS   each context in a thread of its own; DATA: the inputs'
   bytes for the first shapes, then the outputs' as they are expected. A child is forked in between, and runs
   too. harness open PACKAGE...                          opens each, makes a context, and says the statuses */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "package.h"

struct file {
    char *bytes;
    size_t size;
};

static struct file contents(const char *path) {
    struct file made = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file) exit(2);
    fseek(file, 0, SEEK_END);
    made.size = (size_t)ftell(file);
    rewind(file);
    made.bytes = aligned_alloc(64, (made.size + 64) / 64 * 64);
    if (!made.bytes || fread(made.bytes, 1, made.size, file) != made.size) exit(2);
    fclose(file);
    return made;
}

static orthrus_model *model;
static struct file data;
static int threads, runs;

static size_t bytes_of(const orthrus_value *value, const int64_t *shape) {
    size_t size = orthrus_type_size(value->type);
    for (size_t i = 0; i < value->rank; i++)
        size *= (size_t)shape[i];
    return size;
}

static void *work(void *unused) {
    orthrus_options options = ORTHRUS_OPTIONS;
    orthrus_context *context;
    const void *inputs[16];
    void *outputs[16];
    options.threads = threads;
    options.huge_pages = threads == 2;
    if (orthrus_create(model, &options, &context)) return "a context";
    const char *at = data.bytes, *fault = unused;
    for (size_t i = 0; i < orthrus_inputs(model); i++) {
        inputs[i] = at;
        at += bytes_of(orthrus_input(model, i), orthrus_input_shape(context, i));
    }
    for (size_t i = 0; i < orthrus_outputs(model); i++)
        outputs[i] = malloc(bytes_of(orthrus_output(model, i), orthrus_output_shape(context, i)) + 1);
    for (int run = 0; run < runs && !fault; run++) {
        const char *expected = at;
        int64_t stop = run == 1;
        orthrus_stop_at(context, &stop);
        int status = orthrus_run(context, inputs, outputs);
        if (status != (stop ? ORTHRUS_STOPPED : ORTHRUS_OK)) fault = orthrus_last_error();
        orthrus_stop_at(context, NULL);
        for (size_t i = 0; i < orthrus_outputs(model) && !fault && !stop; i++) {
            size_t size = bytes_of(orthrus_output(model, i), orthrus_output_shape(context, i));
            if (memcmp(outputs[i], expected, size)) fault = "other results";
            expected += size;
        }
    }
    for (size_t i = 0; i < orthrus_outputs(model); i++)
        free(outputs[i]);
    orthrus_destroy(context);
    return (void *)(uintptr_t)fault;
}

static int all(int contexts) {
    pthread_t made[64];
    int failed = 0;
    for (int i = 0; i < contexts; i++)
        pthread_create(&made[i], NULL, work, NULL);
    for (int i = 0; i < contexts; i++) {
        void *fault = NULL;
        pthread_join(made[i], &fault);
        if (fault) fprintf(stderr, "%s\n", (const char *)fault);
        failed |= fault != NULL;
    }
    return failed;
}

static int opens(const char *path) {
    struct file package = contents(path);
    orthrus_pieces pieces = {package.bytes, package.size, NULL, NULL, 0};
    int status = orthrus_model_open(&pieces, NULL, &model);
    if (!status) {
        orthrus_context *context;
        status = orthrus_create(model, NULL, &context);
        if (!status) orthrus_destroy(context);
        orthrus_model_close(model);
    }
    printf("%d\n", status);
    free(package.bytes);
    return 0;
}

int main(int count, char **given) {
    if (count > 2 && !strcmp(given[1], "open")) {
        for (int i = 2; i < count; i++)
            opens(given[i]);
        return 0;
    }
    if (count != 7) return 2;
    struct file package = contents(given[2]);
    data = contents(given[3]);
    threads = atoi(given[4]);
    runs = atoi(given[6]);
    orthrus_pieces pieces = {package.bytes, package.size, NULL, NULL, 1};
    if (orthrus_model_open(&pieces, NULL, &model)) {
        fprintf(stderr, "%s\n", orthrus_last_error());
        return 1;
    }
    int failed = all(atoi(given[5]));
    pid_t child = fork();
    if (!child) _exit(work(NULL) != NULL);
    int status = 1;
    waitpid(child, &status, 0);
    failed |= all(1) | (status != 0);
    orthrus_model_close(model);
    free(package.bytes);
    free(data.bytes);
    return failed;
}
