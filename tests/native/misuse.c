/* Uses of a library of the digits model, for one to three images, that its header does not allow, and threads
   and forks that it does: each misuse is a status, and right results follow. What fails is printed.

   misuse IMAGES LABELS...      the bytes of three images, and what they are */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "digits.h"

enum { IMAGES = 3, PIXELS = 64, THREADS = 6, RUNS = 40 };

static float images[IMAGES * PIXELS];
static int64_t labels[IMAGES];
static int failed;

static void expect(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, digits_last_error());
    failed = 1;
}
#define REFUSED(call, status) expect((call) == (status) && *digits_last_error(), #call)

static int right(int64_t count) {
    float scores[IMAGES * 10];
    int64_t made[IMAGES] = {-1, -1, -1};
    return !digits_infer(count, images, made, scores) && !memcmp(made, labels, (size_t)count * sizeof *made);
}

static void *many(void *unused) {
    (void)unused;
    for (int i = 0; i < RUNS; i++)
        if (!right(1 + i % IMAGES)) return "a thread";
    return NULL;
}

/* Memory that is never where it was asked for: 8 bytes behind a multiple of 64. */
static long held;
static void *askew(void *user, size_t size, size_t alignment) {
    (void)user, (void)alignment;
    char *made = aligned_alloc(64, (size + 8 + 63) / 64 * 64);
    held += made != NULL;
    return made ? made + 8 : NULL;
}
static void back(void *user, void *memory, size_t size) {
    (void)user, (void)size;
    held--;
    free((char *)memory - 8);
}

static void of_models(orthrus_model *model) {
    orthrus_model *other = NULL;
    REFUSED(digits_open(NULL, NULL, NULL), ORTHRUS_INVALID_ARGUMENT);
    expect(digits_open("/nowhere/at/all", NULL, &other) != ORTHRUS_OK && !other, "weights from nowhere");
    expect(!digits_inputs(NULL) && !digits_outputs(NULL) && !digits_targets(NULL), "counts of no model");
    expect(!digits_input(NULL, 0) && !digits_output(NULL, 0) && !digits_target(NULL, 0), "values of no model");
    expect(!digits_input(model, 1) && !digits_output(model, 2) && !digits_input(model, (size_t)-1), "no such value");
    expect(!digits_target(model, (size_t)-1) && !digits_chosen_target(NULL), "no such target");
    expect(!digits_metadata(model, NULL) && !digits_metadata(NULL, "x") && !digits_metadata(model, ""), "no key");
    for (int i = -3; i < 20; i++)
        expect(digits_status_text(i) != NULL, "the text of a status");
    digits_close(NULL);
    digits_destroy(NULL);
    digits_stop_at(NULL, NULL);
}

static void of_options(orthrus_model *model) {
    orthrus_context *context = NULL;
    orthrus_options options = ORTHRUS_OPTIONS;
    REFUSED(digits_create(NULL, NULL, &context), ORTHRUS_INVALID_ARGUMENT);
    REFUSED(digits_create(model, NULL, NULL), ORTHRUS_INVALID_ARGUMENT);
    options.threads = -1;
    REFUSED(digits_create(model, &options, &context), ORTHRUS_INVALID_ARGUMENT);
    options.threads = 1 << 30;
    options.huge_pages = 77;
    expect(!digits_create(model, &options, &context), "more threads than there are");
    digits_destroy(context);
    options.size = 0; /* of a program that knows none of the options */
    options.threads = -1;
    expect(!digits_create(model, &options, &context), "options of no size");
    digits_destroy(context);
    options = (orthrus_options)ORTHRUS_OPTIONS;
    options.size = 1 << 20; /* of a later version */
    expect(!digits_create(model, &options, &context), "options of a later version");
    digits_destroy(context);
    options = (orthrus_options)ORTHRUS_OPTIONS;
    options.allocate = askew;
    options.release = back;
    REFUSED(digits_create(model, &options, &context), ORTHRUS_NO_MEMORY);
    expect(held == 0, "memory that was given back");
}

static void of_runs(orthrus_model *model) {
    orthrus_context *context;
    float scores[IMAGES * 10];
    int64_t made[IMAGES], stop = 1;
    const void *inputs[] = {images}, *none[] = {NULL};
    void *outputs[] = {made, scores}, *one[] = {made, NULL};
    expect(!digits_create(model, NULL, &context), "a context");
    REFUSED(digits_run(NULL, inputs, outputs), ORTHRUS_INVALID_ARGUMENT);
    REFUSED(digits_run(context, NULL, outputs), ORTHRUS_INVALID_ARGUMENT);
    REFUSED(digits_run(context, inputs, NULL), ORTHRUS_INVALID_ARGUMENT);
    REFUSED(digits_run(context, none, outputs), ORTHRUS_INVALID_ARGUMENT);
    REFUSED(digits_run(context, inputs, one), ORTHRUS_INVALID_ARGUMENT);
    const int64_t *nothing[] = {NULL};
    REFUSED(digits_reshape(NULL, nothing), ORTHRUS_INVALID_ARGUMENT);
    REFUSED(digits_reshape(context, NULL), ORTHRUS_INVALID_ARGUMENT);
    REFUSED(digits_reshape(context, nothing), ORTHRUS_INVALID_ARGUMENT);
    static const int64_t wrong[][4] = {{0, 1, 8, 8},       {4, 1, 8, 8}, {-1, 1, 8, 8}, {1, 1, 8, 9},
                                       {1, 8, 8, 1},       {0, 0, 0, 0}, {INT64_MAX, 1, 8, 8},
                                       {INT64_MIN, 1, 8, 8}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const int64_t *shapes[] = {wrong[i]};
        REFUSED(digits_reshape(context, shapes), ORTHRUS_SHAPE);
    }
    expect(!digits_input_shape(NULL, 0) && !digits_input_shape(context, 1), "the shape of no input");
    expect(!digits_output_shape(NULL, 0) && !digits_output_shape(context, 2), "the shape of no output");
    expect(digits_output_shape(context, 1)[0] == 1, "a refused shape changes nothing");
    digits_stop_at(context, &stop);
    REFUSED(digits_run(context, inputs, outputs), ORTHRUS_STOPPED);
    digits_stop_at(context, NULL);
    expect(!digits_run(context, inputs, outputs) && made[0] == labels[0], "a run behind all this");
    digits_destroy(context);
    for (int64_t count = -2; count < 6; count++)
        if (count < 1 || count > IMAGES) REFUSED(digits_infer(count, images, made, scores), ORTHRUS_SHAPE);
    REFUSED(digits_infer(1, NULL, made, scores), ORTHRUS_INVALID_ARGUMENT);
    REFUSED(digits_infer(1, images, made, NULL), ORTHRUS_INVALID_ARGUMENT);
    expect(right(2), "one call behind all this");
}

static void threads_and_forks(void) {
    pthread_t made[THREADS];
    pid_t children[4];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&made[i], NULL, many, NULL);
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        children[i] = fork(); /* while the others run */
        if (!children[i] && many(NULL)) _exit(1);
        /* not by exit, whose status a watcher makes its own: what a thread held is lost to the child */
        if (!children[i]) kill(getpid(), SIGKILL);
    }
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        int status = 1;
        waitpid(children[i], &status, 0);
        expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a forked child");
    }
    for (int i = 0; i < THREADS; i++) {
        void *fault;
        pthread_join(made[i], &fault);
        expect(!fault, "a thread");
    }
}

int main(int count, char **given) {
    orthrus_model *model;
    FILE *file = count == 2 + IMAGES ? fopen(given[1], "rb") : NULL;
    if (!file || fread(images, sizeof images, 1, file) != 1) return 2;
    fclose(file);
    for (int i = 0; i < IMAGES; i++)
        labels[i] = atoll(given[2 + i]);
    if (digits_open(NULL, NULL, &model)) return 3;
    of_models(model);
    of_options(model);
    of_runs(model);
    threads_and_forks();
    digits_close(model);
    digits_release();
    digits_release();
    expect(right(3), "a call after everything was given back");
    digits_release();
    return failed;
}
