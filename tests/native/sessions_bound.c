/* A binding and calls in random order. What is bound is known here too, and so what each run has to answer. */
#define _GNU_SOURCE
#include "sessions.h"

enum { INPUTS = 2, OUTPUTS = 2, LARGEST = 20, MOST_BLOCKS = 4096 };
static const int64_t shapes[][2] = {{2, 3}, {3, 2}, {4, 5}};
static const char *const input_names[] = {"a", "b"}, *const output_names[] = {"s", "d", "nothing"};

/* One name's: the value's own numbers, or what a run is to fill. `made`: theirs writes to what an earlier run
 * allocated, whose shape the next result has to have. */
struct bound {
    int there, shape, made;
    float *data; /* null: an output that the run allocates */
};

struct model {
    OrtSession *session;
    OrtIoBinding *binding;
    unsigned seed;
    struct bound inputs[INPUTS], outputs[OUTPUTS + 1];
    int order[OUTPUTS + 1], ordered; /* outputs as they were first bound */
    float *blocks[MOST_BLOCKS];      /* the caller's memory, which stays to the end */
    OrtValue *kept[MOST_BLOCKS];
    int block_count, kept_count, ours;
};

static int elements(int shape) { return (int)(shapes[shape][0] * shapes[shape][1]); }

static void fill(struct model *model, float *data) {
    for (int i = 0; i < LARGEST; i++) data[i] = (float)chance(&model->seed, 1000);
}

/* A tensor of its own memory or the caller's, and where its numbers lie. */
static OrtValue *tensor(struct model *model, int shape, float **data) {
    OrtValue *value;
    if (chance(&model->seed, 2) == 0) {
        CHECK(api->CreateTensorAsOrtValue(allocator, shapes[shape], 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
        CHECK(api->GetTensorMutableData(value, (void **)data));
        for (int i = 0; i < elements(shape); i++) (*data)[i] = (float)chance(&model->seed, 1000);
    } else {
        *data = malloc(LARGEST * sizeof **data);
        model->blocks[model->block_count++] = *data;
        fill(model, *data);
        CHECK(api->CreateTensorWithDataAsOrtValue(memory, *data, (size_t)elements(shape) * sizeof **data,
                                                  shapes[shape], 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    }
    return value;
}

/* The caller lets go of a value at once, or later. */
static void let_go(struct model *model, OrtValue *value) {
    if (chance(&model->seed, 2) == 0)
        api->ReleaseValue(value);
    else
        model->kept[model->kept_count++] = value;
}

static void note_output(struct model *model, int which, int shape, float *data) {
    if (!model->outputs[which].there) model->order[model->ordered++] = which;
    model->outputs[which] = (struct bound){1, shape, 0, data};
}

static void bind_input(struct model *model) {
    int which = (int)chance(&model->seed, INPUTS), shape = (int)chance(&model->seed, 2);
    float *data;
    OrtValue *value = tensor(model, shape, &data);
    CHECK(api->BindInput(model->binding, input_names[which], value));
    model->inputs[which] = (struct bound){1, shape, 0, data};
    let_go(model, value);
}

static void bind_wrong_input(struct model *model) {
    static const char *const wrong[] = {"nothing", "", "s", "A"};
    float *data;
    if (!model->ours) return; /* theirs does not recover from a name that it refused */
    OrtValue *value = tensor(model, 0, &data);
    OrtStatus *status = api->BindInput(model->binding, wrong[chance(&model->seed, 4)], value);
    EXPECT(status != NULL && strstr(api->GetErrorMessage(status), "Failed to find input name in the mapping: "));
    EXPECT(refused(status));
    let_go(model, value);
}

static void bind_output(struct model *model) {
    int which = (int)chance(&model->seed, 8) == 0 ? OUTPUTS : (int)chance(&model->seed, OUTPUTS);
    int shape = (int)chance(&model->seed, 3);
    float *data = NULL;
    if (chance(&model->seed, 2) == 0) {
        CHECK(api->BindOutputToDevice(model->binding, output_names[which], memory));
    } else {
        OrtValue *value = tensor(model, shape, &data);
        CHECK(api->BindOutput(model->binding, output_names[which], value));
        let_go(model, value);
    }
    note_output(model, which, shape, data);
}

static int run_may_pass(const struct model *model) {
    int wanted = 0;
    if (!model->inputs[0].there || !model->inputs[1].there || model->inputs[0].shape != model->inputs[1].shape)
        return 0;
    for (int i = 0; i <= OUTPUTS; i++) {
        const struct bound *output = &model->outputs[i];
        wanted += output->there;
        if (output->there && (output->data != NULL || output->made) && output->shape != model->inputs[0].shape) return 0;
    }
    return wanted > 0 && !model->outputs[OUTPUTS].there;
}

static void check_numbers(const struct model *model, int which, const float *found) {
    const float *a = model->inputs[0].data, *b = model->inputs[1].data;
    for (int i = 0; i < elements(model->inputs[0].shape); i++)
        EXPECT(found[i] == (which == 0 ? a[i] + b[i] : a[i] - b[i]));
}

static void check_results(struct model *model) {
    OrtValue **values = NULL;
    size_t count = 0;
    CHECK(api->GetBoundOutputValues(model->binding, allocator, &values, &count));
    EXPECT((int)count == model->ordered);
    for (int i = 0; i < model->ordered; i++) {
        struct bound *output = &model->outputs[model->order[i]];
        const int64_t *dims;
        size_t rank;
        ONNXTensorElementDataType type;
        float *data;
        CHECK(api->GetTensorElementTypeAndShapeDataReference(values[i], &type, &dims, &rank));
        EXPECT(rank == 2 && memcmp(dims, shapes[model->inputs[0].shape], sizeof shapes[0]) == 0);
        CHECK(api->GetTensorMutableData(values[i], (void **)&data));
        EXPECT(output->data == NULL || data == output->data);
        check_numbers(model, model->order[i], data);
        output->made = output->data == NULL && !model->ours;
        if (output->made) output->shape = model->inputs[0].shape;
        api->ReleaseValue(values[i]);
    }
    CHECK(api->AllocatorFree(allocator, values));
}

static void check_names(struct model *model) {
    char *names = NULL, *at;
    size_t *lengths = NULL, count = 0;
    CHECK(api->GetBoundOutputNames(model->binding, allocator, &names, &lengths, &count));
    EXPECT((int)count == model->ordered && (count == 0) == (names == NULL));
    at = names;
    for (size_t i = 0; i < count; i++) {
        const char *name = output_names[model->order[i]];
        EXPECT(lengths[i] == strlen(name) && memcmp(at, name, lengths[i]) == 0);
        at += lengths[i];
    }
    if (names != NULL) CHECK(api->AllocatorFree(allocator, names));
    if (lengths != NULL) CHECK(api->AllocatorFree(allocator, lengths));
}

/* Values are there for what is bound, run or not. */
static void check_values(struct model *model) {
    OrtValue **values = NULL;
    size_t count = 0;
    CHECK(api->GetBoundOutputValues(model->binding, allocator, &values, &count));
    EXPECT((int)count == model->ordered);
    for (size_t i = 0; i < count; i++) {
        int has = -1;
        CHECK(api->HasValue(values[i], &has));
        EXPECT(has == 1 || model->outputs[model->order[i]].data == NULL);
        api->ReleaseValue(values[i]);
    }
    if (values != NULL) CHECK(api->AllocatorFree(allocator, values));
}

static void run(struct model *model) {
    OrtRunOptions *options = NULL;
    if (chance(&model->seed, 3) == 0) CHECK(api->CreateRunOptions(&options));
    int terminated = options != NULL && chance(&model->seed, 3) == 0;
    if (terminated) CHECK(api->RunOptionsSetTerminate(options));
    int passes = run_may_pass(model) && !terminated;
    OrtStatus *status = api->RunWithBinding(model->session, options, model->binding);
    EXPECT(passes != refused(status));
    if (passes) check_results(model);
    api->ReleaseRunOptions(options);
}

static void clear(struct model *model) {
    if (chance(&model->seed, 2) == 0) {
        api->ClearBoundInputs(model->binding);
        memset(model->inputs, 0, sizeof model->inputs);
    } else {
        api->ClearBoundOutputs(model->binding);
        memset(model->outputs, 0, sizeof model->outputs);
        model->ordered = 0;
    }
}

/* The caller writes to memory that is bound: the next run has to read that. */
static void scribble(struct model *model) {
    struct bound *input = &model->inputs[chance(&model->seed, INPUTS)];
    for (int i = 0; input->there && i < elements(input->shape); i++) input->data[i] = (float)chance(&model->seed, 1000);
}

void bindings(OrtSession *session, unsigned seed, int count) {
    struct model *model = calloc(1, sizeof *model);
    model->session = session;
    model->seed = seed;
    model->ours = strstr(api->GetBuildInfoString(), "Orthrus") != NULL;
    CHECK(api->CreateIoBinding(session, &model->binding));
    for (int i = 0; i < count && model->block_count < MOST_BLOCKS && model->kept_count < MOST_BLOCKS; i++) {
        switch (chance(&model->seed, 12)) {
        case 0: case 1: case 2: bind_input(model); break;
        case 3: case 4: bind_output(model); break;
        case 5: bind_wrong_input(model); break;
        case 6: check_names(model); check_values(model); break;
        case 7: if (chance(&model->seed, 3) == 0) clear(model); break;
        case 8: scribble(model); break;
        case 9:
            CHECK(api->SynchronizeBoundInputs(model->binding));
            CHECK(api->SynchronizeBoundOutputs(model->binding));
            break;
        default: run(model); break;
        }
    }
    api->ReleaseIoBinding(model->binding);
    for (int i = 0; i < model->kept_count; i++) api->ReleaseValue(model->kept[i]);
    for (int i = 0; i < model->block_count; i++) free(model->blocks[i]);
    free(model);
}
