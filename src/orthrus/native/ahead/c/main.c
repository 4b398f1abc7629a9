/* A program around one model: inputs from files, outputs into files.

   Compiled with -DMODEL_HEADER='"NAME.h"' -DMODEL_LIBRARY=NAME_library. An input is an array that numpy.save() wrote,
   or the bytes of its elements; so are outputs. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include MODEL_HEADER

enum { MOST_RANK = 64, NAME_SIZE = 4096, PLAIN_NAME = 200 };

static const orthrus_library *lib;

static const struct npy_type {
    int type;
    const char *text;
} npy_types[] = {{ORTHRUS_FLOAT, "<f4"}, {ORTHRUS_DOUBLE, "<f8"}, {ORTHRUS_FLOAT16, "<f2"}, {ORTHRUS_UINT8, "|u1"},
                 {ORTHRUS_INT8, "|i1"}, {ORTHRUS_BOOL, "|b1"}, {ORTHRUS_UINT16, "<u2"}, {ORTHRUS_INT16, "<i2"},
                 {ORTHRUS_UINT32, "<u4"}, {ORTHRUS_INT32, "<i4"}, {ORTHRUS_UINT64, "<u8"}, {ORTHRUS_INT64, "<i8"}};

static const char *npy_text(int type) {
    for (size_t i = 0; i < sizeof npy_types / sizeof *npy_types; i++)
        if (npy_types[i].type == type) return npy_types[i].text;
    return "|V2"; /* numpy has no bfloat16 */
}

/* An input: the bytes of its file, and where in them the elements begin. */
struct array {
    char *file;
    const char *data;
    size_t rank, bytes;
    int64_t shape[MOST_RANK];
    int known; /* whether the file says its shape */
};

_Noreturn static void end(const char *what, const char *which) {
    fprintf(stderr, "%s: %s: %s\n", lib->name, which, what);
    exit(1);
}

static void check(int status) {
    if (status != ORTHRUS_OK) end(lib->last_error(), lib->status_text(status));
}

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) end(strerror(errno), path);
    size_t room = 1 << 16;
    char *bytes = malloc(room);
    *size = 0;
    while (bytes) {
        *size += fread(bytes + *size, 1, room - *size, file);
        if (*size < room) break;
        char *more = realloc(bytes, room *= 2);
        if (!more) free(bytes);
        bytes = more;
    }
    if (!bytes) end("no memory for this file", path);
    if (ferror(file)) end(strerror(errno), path);
    fclose(file);
    return bytes;
}

/* The value behind 'key' in the header of an .npy file. */
static const char *behind(const char *header, const char *key, const char *path) {
    const char *found = strstr(header, key);
    found = found ? strchr(found, ':') : NULL;
    if (!found) end("an .npy file without all of its header", path);
    return found + 1 + strspn(found + 1, " ");
}

/* What the header of an .npy file says, which becomes a text: nothing reads past its end. */
static void read_header(struct array *a, const char *path, int type, size_t size) {
    const unsigned char *bytes = (const unsigned char *)a->file;
    size_t at = size > 6 && bytes[6] > 1 ? 12 : 10, length = 0;
    if (size < at) end("an .npy file that breaks off", path);
    for (size_t i = at; i-- > 8;) length = length << 8 | bytes[i];
    if (length < 2 || length > size - at) end("an .npy file that breaks off", path);
    char *header = a->file + at;
    header[length - 1] = 0;
    a->data = header + length;
    a->bytes = size - at - length;
    const char *kind = behind(header, "'descr'", path), *expected = npy_text(type);
    if (strncmp(kind + 1, expected, 3) || (*kind != '\'' && *kind != '"')) end("elements of another type", path);
    if (strncmp(behind(header, "'fortran_order'", path), "False", 5))
        end("an array in Fortran's order: save numpy.ascontiguousarray() of it", path);
    char *sizes = strchr(behind(header, "'shape'", path) - 1, '(');
    if (!sizes) end("an .npy file without all of its header", path);
    for (sizes++; *sizes && *sizes != ')' && a->rank < MOST_RANK;) {
        char *next;
        a->shape[a->rank] = strtoll(sizes, &next, 10);
        if (next == sizes) break;
        a->rank++;
        sizes = next + strspn(next, ", ");
    }
    a->known = 1;
}

static void read_input(struct array *a, const char *path, const orthrus_value *value) {
    memset(a, 0, sizeof *a);
    a->file = read_file(path, &a->bytes);
    a->data = a->file;
    if (a->bytes >= 6 && !memcmp(a->file, "\x93NUMPY", 6)) read_header(a, path, value->type, a->bytes);
    if (a->known && a->rank != value->rank) end("an array of another rank", path);
}

/* Elements of a shape, -1 for one that is not known or too large. */
static int64_t elements(const int64_t *shape, size_t rank) {
    int64_t made = 1;
    for (size_t i = 0; i < rank; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(made, shape[i], &made)) return -1;
    return made;
}

/* The shape of an input of which there are only bytes: as declared, one size that is open from the bytes. */
static void find_shape(struct array *a, const orthrus_value *value, const char *path) {
    size_t open = value->rank, item = lib->type_size(value->type);
    int64_t others = 1;
    if (!a->known) {
        a->rank = value->rank;
        for (size_t i = 0; i < value->rank; i++) {
            a->shape[i] = value->shape[i];
            if (value->shape[i] >= 0) others *= value->shape[i];
            else if (open == value->rank) open = i;
            else end("bytes do not tell several sizes: give an .npy file", path);
        }
        if (open < value->rank) a->shape[open] = others ? (int64_t)(a->bytes / item) / others : 0;
    }
    int64_t count = elements(a->shape, a->rank);
    if (count < 0 || (size_t)count != a->bytes / item || a->bytes % item) end("not as many bytes as its shape says", path);
}

/* What an output's file is called: its name, as far as it can be one. */
static void plain_name(char *name, size_t size, const char *given) {
    snprintf(name, size, "%s", given);
    for (char *c = name; *c; c++)
        if (*c == '/') *c = '_';
}

/* The same, with the output's number where an earlier one is called so. */
static void file_name(char *name, size_t size, orthrus_model *model, size_t index) {
    char other[PLAIN_NAME];
    plain_name(name, PLAIN_NAME, lib->output(model, index)->name);
    for (size_t i = 0; i < index; i++) {
        plain_name(other, sizeof other, lib->output(model, i)->name);
        if (strcmp(other, name)) continue;
        size_t used = strlen(name);
        snprintf(name + used, size - used, "_%zu", index);
        return;
    }
}

/* Written under another name first, so that it is there as a whole or not at all. */
static void write_output(const char *folder, const char *name, const orthrus_value *value, const int64_t *shape,
                         const void *data, int raw) {
    char path[NAME_SIZE], part[NAME_SIZE + 8], header[2048];
    size_t used = 0;
    if (snprintf(path, sizeof path, "%s/%s.%s", folder, name, raw ? "bin" : "npy") >= NAME_SIZE)
        end("too long a path", folder);
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    if (!file) end(strerror(errno), part);
    if (!raw) {
        used = (size_t)snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                                npy_text(value->type));
        for (size_t i = 0; i < value->rank; i++)
            used += (size_t)snprintf(header + used, sizeof header - used, "%lld, ", (long long)shape[i]);
        used += (size_t)snprintf(header + used, sizeof header - used, "), }");
        while ((10 + used + 1) % 64) header[used++] = ' ';
        header[used++] = '\n';
        const unsigned char front[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, used & 255, (unsigned char)(used >> 8)};
        fwrite(front, 1, sizeof front, file);
        fwrite(header, 1, used, file);
    }
    fwrite(data, lib->type_size(value->type), (size_t)elements(shape, value->rank), file);
    int failed = ferror(file);
    if (fclose(file) || failed) {
        remove(part);
        end(strerror(errno), part);
    }
    if (rename(part, path)) end(strerror(errno), path);
    printf("%s\n", path);
}

static void tell_values(const char *title, orthrus_model *model, size_t count,
                        const orthrus_value *(*value_at)(const orthrus_model *, size_t)) {
    for (size_t i = 0; i < count; i++) {
        const orthrus_value *value = value_at(model, i);
        printf("%s %s: type %d [", title, value->name, value->type);
        for (size_t d = 0; d < value->rank; d++) {
            if (d) printf(", ");
            if (value->shape[d] >= 0) printf("%lld", (long long)value->shape[d]);
            else printf("%s", value->names[d] ? value->names[d] : "?");
        }
        printf("]\n");
    }
}

static void tell(orthrus_model *model) {
    printf("%s, compiled by Orthrus %s\n", lib->name, lib->version());
    for (size_t i = 0; i < lib->targets(model); i++)
        printf("for %s%s\n", lib->target(model, i), i == lib->chosen_target(model) ? " (chosen)" : "");
    tell_values("in ", model, lib->inputs(model), lib->input);
    tell_values("out", model, lib->outputs(model), lib->output);
}

static void help(void) {
    printf("usage: %s [--out FOLDER] [--raw] [--threads N] [--repeat N] [--weights FILE] [--info] FILE...\n\n"
           "A FILE for each input, in their order, or NAME=FILE: what numpy.save() wrote, or bytes of elements.\n"
           "Each output becomes NAME.npy in FOLDER, this one by default; --raw: NAME.bin, its elements alone.\n"
           "--repeat: run so many times more, and say how long one took. --info: what the model takes and gives.\n",
           lib->name);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct command {
    const char *out, *weights;
    int raw, threads, info;
    long repeat;
};

static long number(const char *text, const char *option, long most) {
    char *end_of_it;
    errno = 0;
    long found = strtol(text, &end_of_it, 10);
    if (errno || end_of_it == text || *end_of_it || found < 0 || found > most) end("no number from 0 on", option);
    return found;
}

/* The command line; what is no option is moved to its front. Answers how many those are. */
static int parse(int count, char **words, struct command *made) {
    int files = 0;
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *next = i + 1 < count ? words[i + 1] : NULL;
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            help();
            exit(0);
        }
        if (!strcmp(word, "--raw")) made->raw = 1;
        else if (!strcmp(word, "--info")) made->info = 1;
        else if (strncmp(word, "--", 2)) words[files++] = words[i];
        else if (!next) end("this option takes a value", word);
        else {
            if (!strcmp(word, "--out")) made->out = next;
            else if (!strcmp(word, "--weights")) made->weights = next;
            else if (!strcmp(word, "--threads")) made->threads = (int)number(next, word, 1 << 20);
            else if (!strcmp(word, "--repeat")) made->repeat = number(next, word, LONG_MAX);
            else end("no such option; --help tells those there are", word);
            i++;
        }
    }
    return files;
}

/* Which input a word is for, and the file it names. */
static size_t input_of(orthrus_model *model, char *word, size_t position, const char **path) {
    char *equals = strchr(word, '=');
    for (size_t i = 0; equals && i < lib->inputs(model); i++) {
        const char *name = lib->input(model, i)->name;
        if (strlen(name) == (size_t)(equals - word) && !strncmp(name, word, strlen(name))) {
            *path = equals + 1;
            return i;
        }
    }
    *path = word;
    return position;
}

static void read_inputs(orthrus_model *model, struct array *arrays, char **words, int files) {
    size_t count = lib->inputs(model);
    char text[96];
    snprintf(text, sizeof text, "%d files for %zu inputs; --info tells what they are", files, count);
    if ((size_t)files != count) end(text, "inputs");
    for (int i = 0; i < files; i++) {
        const char *path;
        size_t which = input_of(model, words[i], (size_t)i, &path);
        if (arrays[which].file) end("two files for one input", lib->input(model, which)->name);
        read_input(&arrays[which], path, lib->input(model, which));
        find_shape(&arrays[which], lib->input(model, which), path);
    }
}

static void compute(orthrus_model *model, const struct command *asked, struct array *arrays) {
    size_t inputs = lib->inputs(model), outputs = lib->outputs(model);
    orthrus_options options = ORTHRUS_OPTIONS;
    options.threads = asked->threads;
    orthrus_context *context;
    check(lib->create(model, &options, &context));
    const int64_t **shapes = calloc(inputs + 1, sizeof *shapes);
    const void **given = calloc(inputs + 1, sizeof *given);
    void **made = calloc(outputs + 1, sizeof *made);
    if (!shapes || !given || !made) end("no memory", "outputs");
    for (size_t i = 0; i < inputs; i++) {
        shapes[i] = arrays[i].shape;
        given[i] = arrays[i].data;
    }
    check(lib->reshape(context, shapes));
    for (size_t i = 0; i < outputs; i++) {
        const orthrus_value *value = lib->output(model, i);
        int64_t count = elements(lib->output_shape(context, i), value->rank);
        made[i] = calloc((size_t)count + 1, lib->type_size(value->type));
        if (count < 0 || !made[i]) end("no memory", value->name);
    }
    check(lib->run(context, given, made));
    if (asked->repeat > 0) {
        double begin = seconds();
        for (long i = 0; i < asked->repeat; i++) check(lib->run(context, given, made));
        printf("%.2f microseconds a run\n", 1e6 * (seconds() - begin) / (double)asked->repeat);
    }
    for (size_t i = 0; i < outputs; i++) {
        char name[PLAIN_NAME + 24];
        file_name(name, sizeof name, model, i);
        write_output(asked->out, name, lib->output(model, i), lib->output_shape(context, i), made[i], asked->raw);
        free(made[i]);
    }
    free(shapes);
    free(given);
    free(made);
    lib->destroy(context);
}

int main(int count, char **words) {
    struct command asked = {".", NULL, 0, 0, 0, 0};
    lib = MODEL_LIBRARY();
    int files = parse(count, words, &asked);
    orthrus_model *model;
    check(lib->open(asked.weights, NULL, &model));
    if (asked.info) {
        tell(model);
    } else {
        struct array *arrays = calloc(lib->inputs(model) + 1, sizeof *arrays);
        if (!arrays) end("no memory", "inputs");
        read_inputs(model, arrays, words, files);
        compute(model, &asked, arrays);
        for (size_t i = 0; i < lib->inputs(model); i++) free(arrays[i].file);
        free(arrays);
    }
    lib->close(model);
    return 0;
}
