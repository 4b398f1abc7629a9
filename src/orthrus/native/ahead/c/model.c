/* The way to the one model of a library: behind the runtime, in the file that `orthrus compile` writes.

   That file says before: MODEL_NAME, MODEL_WEIGHTS (bytes of the weights in a file beside, 0 where they are linked
   in), and the symbols that the object file holds:

       model_package, model_package_size, model_code[], model_constants (null for weights in a file)  */
#include <fcntl.h>
#include <sys/stat.h>

/* A file of weights: these bytes, the digest of the weights, and from WEIGHTS_AT on the weights. */
#define WEIGHTS_MAGIC "orthrusW"
enum { WEIGHTS_AT = 64, SPARE = 64 };

/* The file of the weights: `NAME.weights` in the folder of the library or program that `address` is in. Answers
   whether it is known. */
static int beside(const void *address, char *path, size_t size) {
    char line[PATH_MAX + 128];
    int known = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    while (file && !known && fgets(line, sizeof line, file)) {
        unsigned long long begin, end;
        int at = 0;
        if (sscanf(line, "%llx-%llx %*s %*s %*s %*s %n", &begin, &end, &at) != 2 || !at) continue;
        if ((uintptr_t)address < begin || (uintptr_t)address >= end) continue;
        char *last = strrchr(line + at, '/');
        if (!last) break;
        known = snprintf(path, size, "%.*s/%s.weights", (int)(last - line - at), line + at, MODEL_NAME) < (int)size;
    }
    if (file) fclose(file);
    return known;
}

/* Map a file of weights; `*mapped` is null where status is not 0. */
static int weights_mapped(const char *path, const void **mapped) {
    char own[PATH_MAX];
    size_t size = WEIGHTS_AT + (size_t)MODEL_WEIGHTS;
    *mapped = NULL;
    if (!path && !beside(model_package, own, sizeof own))
        return refuse(ORTHRUS_INVALID_ARGUMENT, "where this library lies is not known: name the file of its weights");
    const char *chosen = path ? path : own;
    int file = open(chosen, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return refuse(ORTHRUS_INVALID_ARGUMENT, "%s: %s: the weights of %s are in a file beside the library, which "
                      "belongs to it", chosen, strerror(errno), MODEL_NAME);
    struct stat about;
    char *made = MAP_FAILED;
    if (!fstat(file, &about) && (size_t)about.st_size == size)
        made = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    const int64_t *head = (const int64_t *)model_package;
    if (made == MAP_FAILED || memcmp(made, WEIGHTS_MAGIC, 8) || memcmp(made + 8, head + HEAD_CONSTANTS_DIGEST, 32)) {
        if (made != MAP_FAILED) munmap(made, size);
        return refuse(ORTHRUS_DAMAGED, "%s is not the file of weights that was made with this library", chosen);
    }
    *mapped = made + WEIGHTS_AT;
    return ORTHRUS_OK;
}

static void weights_released(const void *mapped) {
    if (mapped) munmap((char *)mapped - WEIGHTS_AT, WEIGHTS_AT + (size_t)MODEL_WEIGHTS);
}

int MODEL(open)(const char *weights, const orthrus_options *options, orthrus_model **model) {
    const void *mapped = NULL;
    int status = ORTHRUS_OK;
    if (!model) return refuse(ORTHRUS_INVALID_ARGUMENT, "no place for the model");
    if (model_constants && weights)
        status = refuse(ORTHRUS_INVALID_ARGUMENT, "the weights of %s are inside the library: name no file", MODEL_NAME);
    if (!model_constants) status = weights_mapped(weights, &mapped);
    if (status) return status;
    orthrus_pieces pieces = {model_package, MODEL_PACKAGE_SIZE, model_code,
                             model_constants ? (const void *)model_constants : mapped, 0};
    status = orthrus_model_open(&pieces, options, model);
    if (status || (*model)->own_constants) weights_released(mapped);
    return status;
}

void MODEL(close)(orthrus_model *model) {
    if (!model) return;
    const void *mapped = model_constants || model->own_constants ? NULL : model->constants;
    orthrus_model_close(model);
    weights_released(mapped);
}

/* What one-call runs keep: the model, and contexts that are not running. Without locks, so that a child of a fork
   finds no lock that nobody holds. */
static _Atomic(orthrus_model *) kept_model;
static _Atomic(orthrus_context *) kept[SPARE];

static int model_kept(orthrus_model **model) {
    *model = atomic_load(&kept_model);
    if (*model) return ORTHRUS_OK;
    int status = MODEL(open)(NULL, NULL, model);
    if (status) return status;
    orthrus_model *other = NULL;
    if (!atomic_compare_exchange_strong(&kept_model, &other, *model)) {
        MODEL(close)(*model);
        *model = other;
    }
    return ORTHRUS_OK;
}

static int context_taken(orthrus_context **context) {
    orthrus_model *model;
    for (int i = 0; i < SPARE; i++)
        if (atomic_load_explicit(&kept[i], memory_order_relaxed) && (*context = atomic_exchange(&kept[i], NULL)))
            return ORTHRUS_OK;
    int status = model_kept(&model);
    return status ? status : orthrus_create(model, NULL, context);
}

static void context_returned(orthrus_context *context) {
    for (int i = 0; i < SPARE; i++) {
        orthrus_context *none = NULL;
        if (atomic_compare_exchange_strong(&kept[i], &none, context)) return;
    }
    orthrus_destroy(context);
}

/* One run for inputs of these shapes, in a context of those that are kept. */
static int inferred(const int64_t *const *shapes, const void *const *inputs, void *const *outputs) {
    orthrus_context *context = NULL;
    int status = context_taken(&context);
    if (status) return status;
    status = orthrus_reshape(context, shapes);
    if (!status) status = orthrus_run(context, inputs, outputs);
    context_returned(context);
    return status;
}

void MODEL(release)(void) {
    for (int i = 0; i < SPARE; i++) orthrus_destroy(atomic_exchange(&kept[i], NULL));
    MODEL(close)(atomic_exchange(&kept_model, NULL));
}

const orthrus_library *MODEL(library)(void) {
    static const orthrus_library library = {
        sizeof library, MODEL_NAME, MODEL(open), MODEL(close), orthrus_inputs, orthrus_outputs, orthrus_input,
        orthrus_output, orthrus_targets, orthrus_target, orthrus_chosen_target, orthrus_metadata, orthrus_create,
        orthrus_destroy, orthrus_reshape, orthrus_input_shape, orthrus_output_shape, orthrus_run, orthrus_stop_at,
        orthrus_status_text, orthrus_last_error, orthrus_type_size, orthrus_version};
    return &library;
}
