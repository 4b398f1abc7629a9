/* Handwritten digits classified in C, by a model that was compiled ahead of time:

       orthrus compile digits.onnx --emit library --dim N=1..32 --out digits
       cc classify.c -Idigits/include digits/lib/libdigits.a -pthread -o classify
       ./classify images.bin

   images.bin: images of 8 x 8 floats, one behind the other. A line is printed for each. */
#include <stdio.h>
#include <stdlib.h>

#include "digits.h"

enum { PIXELS = 64, CLASSES = 10, MOST = 32 };

static int failed(const char *what, int status) {
    fprintf(stderr, "%s: %s: %s\n", what, digits_status_text(status), digits_last_error());
    return 1;
}

static void print(const int64_t *labels, const float *scores, size_t images) {
    for (size_t i = 0; i < images; i++)
        printf("%d %.9g\n", (int)labels[i], scores[i * CLASSES + (size_t)labels[i]]);
}

/* One call: what it needs besides, it keeps to itself. */
static int in_one_call(const float *pixels, size_t images) {
    int64_t labels[MOST];
    float scores[MOST * CLASSES];
    int status = digits_infer((int64_t)images, pixels, labels, scores);
    if (status) return failed("digits_infer", status);
    print(labels, scores, images);
    return 0;
}

/* The same with a context of one's own: its threads and its memory are chosen here, and runs take none. */
static int in_a_context(const float *pixels, size_t images) {
    orthrus_options options = ORTHRUS_OPTIONS;
    options.threads = 1;
    orthrus_model *model;
    orthrus_context *context;
    int status = digits_open(NULL, &options, &model);
    if (status) return failed("digits_open", status);
    status = digits_create(model, &options, &context);
    if (status) {
        digits_close(model);
        return failed("digits_create", status);
    }
    int64_t labels[MOST];
    float scores[MOST * CLASSES];
    const int64_t shape[] = {(int64_t)images, 1, 8, 8};
    const int64_t *const shapes[] = {shape};
    const void *const inputs[] = {pixels};
    void *const outputs[] = {labels, scores};
    status = digits_reshape(context, shapes);
    if (!status) status = digits_run(context, inputs, outputs);
    if (!status) print(labels, scores, images);
    digits_destroy(context);
    digits_close(model);
    return status ? failed("digits_run", status) : 0;
}

int main(int count, char **words) {
    static float pixels[MOST * PIXELS];
    FILE *file = count > 1 ? fopen(words[1], "rb") : NULL;
    if (!file) {
        fprintf(stderr, "usage: classify IMAGES\n");
        return 2;
    }
    size_t images = fread(pixels, PIXELS * sizeof *pixels, MOST, file);
    fclose(file);
    int wrong = in_one_call(pixels, images) || in_a_context(pixels, images);
    digits_release();
    return wrong;
}
