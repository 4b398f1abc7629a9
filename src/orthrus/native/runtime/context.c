/* Contexts: the memory of runs, one plan at a time laid out in it. */

/* The cells of a program block, see src/orthrus/codegen/runtime/scheduler.py. */
enum block_cell {
    BLOCK_TABLE,
    BLOCK_STEPS,
    BLOCK_SCRATCH,
    BLOCK_SCRATCH_SIZE,
    BLOCK_THREADS,
    BLOCK_POOL,
    BLOCK_STOP,
    BLOCK_STOPPED,
    BLOCK_DONE,
    BLOCK_CELLS = 16,
    STEP_WORDS = 4,
    JUMP = -1 /* the items of a row that is a jump */
};

struct orthrus_context {
    _Alignas(64) int64_t block[BLOCK_CELLS];
    orthrus_model *model;
    orthrus_options options;
    const int64_t *plan, *key; /* those that are bound */
    const int64_t *arrays;     /* rows of the plan */
    int64_t arrays_count, threads;
    int64_t *table, *cells, *status;
    const int64_t **shapes; /* of inputs, then outputs */
    char *memory, *arena;
    size_t memory_size, arena_size;
    _Atomic int busy;
};

static code_function function_at(const orthrus_model *m, int which) {
    return (code_function)(intptr_t)(m->code + m->target[which]);
}

/* Whether `row[0]`, the cell, is one, and the bytes `row[1]` are at most `size`. */
static int rows_hold(const int64_t *row, int64_t count, int64_t cells, int64_t size) {
    for (; count--; row += 2)
        if (row[0] < 0 || row[0] >= cells || row[1] < 0 || row[1] > size) return 0;
    return 1;
}

/* What is wrong with a plan's tables, null where nothing is. */
static const char *plan_fault(const orthrus_model *m, const int64_t *plan) {
    const int64_t *w = m->words, cells = plan[PLAN_CELLS];
    const int64_t *kernels = w + plan[PLAN_KERNELS], *work = w + plan[PLAN_WORK],
                  *begins = w + plan[PLAN_BEGINS];
    for (int64_t i = 0; i < plan[PLAN_STEPS]; i++) {
        if (kernels[i] < 0 || kernels[i] >= m->target[TARGET_CODE_SIZE] || work[2 * i] < JUMP ||
            work[2 * i + 1] < 1 || begins[i] < 0 || begins[i] > cells)
            return "a step";
        const int64_t *jump = w + plan[PLAN_VALUES] + begins[i];
        if (work[2 * i] == JUMP && (begins[i] + 3 > cells || jump[1] < 0 || jump[1] > plan[PLAN_STEPS]))
            return "a jump";
    }
    if (!rows_hold(w + plan[PLAN_ARENA_ROWS], plan[PLAN_ARENA_COUNT], cells, plan[PLAN_ARENA]) ||
        !rows_hold(w + plan[PLAN_CONSTANT_ROWS], plan[PLAN_CONSTANT_COUNT], cells,
                   m->words[HEAD_CONSTANTS_SIZE]))
        return "a cell";
    const int64_t *row = w + plan[PLAN_ARRAY_ROWS];
    for (int64_t i = 0; i < plan[PLAN_ARRAY_COUNT]; i++, row += 3)
        if (row[0] < 0 || row[0] >= (int64_t)(m->inputs + m->outputs) || row[1] < 0 || row[1] >= cells ||
            row[2] < 0)
            return "an array";
    const int64_t *key = m->keys + (plan - m->plans) / PLAN_WORDS * (int64_t)m->key_words;
    for (size_t i = 0; i < m->key_words; i++)
        if (key[i] < 0) return "a shape";
    for (int64_t i = 0; i < m->most_dims; i++)
        if (w[plan[PLAN_SHAPES] + i] < 0) return "a shape";
    return NULL;
}

/* Lay the plan of row `index` out in the context's memory. */
static int bind(orthrus_context *c, int64_t index) {
    const orthrus_model *m = c->model;
    const int64_t *w = m->words, *plan = m->plans + PLAN_WORDS * index;
    const char *fault = plan_fault(m, plan);
    if (fault) return damaged(fault);
    memcpy(c->cells, w + plan[PLAN_VALUES], (size_t)plan[PLAN_CELLS] * sizeof *c->cells);
    const int64_t *row = w + plan[PLAN_ARENA_ROWS];
    for (int64_t i = 0; i < plan[PLAN_ARENA_COUNT]; i++, row += 2)
        c->cells[row[0]] = (int64_t)(intptr_t)c->arena + row[1];
    row = w + plan[PLAN_CONSTANT_ROWS];
    for (int64_t i = 0; i < plan[PLAN_CONSTANT_COUNT]; i++, row += 2)
        c->cells[row[0]] = (int64_t)(intptr_t)m->constants + row[1];
    int large = 0;
    for (int64_t i = 0; i < plan[PLAN_STEPS]; i++) {
        int64_t *step = c->table + STEP_WORDS * i;
        step[0] = (int64_t)(intptr_t)m->code + w[plan[PLAN_KERNELS] + i];
        step[1] = (int64_t)(intptr_t)(c->cells + w[plan[PLAN_BEGINS] + i]);
        step[2] = w[plan[PLAN_WORK] + 2 * i];
        step[3] = w[plan[PLAN_WORK] + 2 * i + 1];
        large |= step[2] > step[3];
    }
    c->block[BLOCK_TABLE] = (int64_t)(intptr_t)c->table;
    c->block[BLOCK_STEPS] = plan[PLAN_STEPS];
    c->block[BLOCK_SCRATCH] = (int64_t)(intptr_t)c->arena + plan[PLAN_ARENA];
    c->block[BLOCK_SCRATCH_SIZE] = plan[PLAN_SCRATCH];
    c->block[BLOCK_THREADS] = c->threads;
    c->block[BLOCK_POOL] = c->threads > 1 && large ? (int64_t)(intptr_t)&orthrus_pool_1 : 0;
    c->arrays = w + plan[PLAN_ARRAY_ROWS];
    c->arrays_count = plan[PLAN_ARRAY_COUNT];
    c->status = (int64_t *)(void *)(c->arena + plan[PLAN_STATUS]);
    c->plan = plan;
    c->key = m->keys + (int64_t)m->key_words * index;
    const int64_t *input = c->key, *output = w + plan[PLAN_SHAPES];
    for (size_t i = 0; i < m->inputs + m->outputs; i++) {
        const int64_t **from = i < m->inputs ? &input : &output;
        c->shapes[i] = *from;
        *from += m->values[i].rank;
    }
    return ORTHRUS_OK;
}

/* The order of inputs' sizes and a key. */
static int compared(const orthrus_model *m, const int64_t *const *shapes, const int64_t *key) {
    for (size_t i = 0; i < m->inputs; i++)
        for (size_t d = 0; d < m->values[i].rank; d++, key++)
            if (shapes[i][d] != *key) return shapes[i][d] < *key ? -1 : 1;
    return 0;
}

/* The row of the plan for inputs of these shapes, -1 where there is none. */
static int64_t find(const orthrus_model *m, const int64_t *const *shapes) {
    int64_t low = 0, high = m->target[TARGET_PLANS_COUNT];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = compared(m, shapes, m->keys + (int64_t)m->key_words * middle);
        if (!order) return middle;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return -1;
}

static int other_shapes(const orthrus_model *m, const int64_t *const *shapes) {
    char text[256];
    size_t used = 0;
    for (size_t i = 0; i < m->inputs && used < sizeof text; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s (", i ? ", " : "", m->values[i].name);
        for (size_t d = 0; d < m->values[i].rank && used < sizeof text; d++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", d ? ", " : "",
                                     (long long)shapes[i][d]);
        if (used < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, ")");
    }
    return refuse(ORTHRUS_SHAPE,
                  "the model was not compiled for inputs of these shapes: %s; compile it for those too, "
                  "see orthrus compile --dim",
                  text);
}

/* Take all memory of a context: its tables in one block, and what runs write. */
static int furnish(orthrus_context *c) {
    const orthrus_model *m = c->model;
    size_t table = (size_t)m->most_steps * STEP_WORDS * 8, cells = (size_t)m->most_cells * 8 + 8;
    c->memory_size = table + cells + (m->inputs + m->outputs) * sizeof *c->shapes;
    c->memory = taken(&c->options, c->memory_size, LINE);
    c->arena_size = (size_t)m->most_arena + (size_t)(m->most_scratch * c->threads) + LINE;
    c->arena = room(&c->options, c->arena_size);
    if (!c->memory || !c->arena)
        return refuse(ORTHRUS_NO_MEMORY, "no memory for a context of %zu bytes",
                      c->memory_size + c->arena_size);
    c->table = (int64_t *)(void *)c->memory;
    c->cells = (int64_t *)(void *)(c->memory + table);
    c->shapes = (const int64_t **)(void *)(c->memory + table + cells);
    return ORTHRUS_OK;
}

ORTHRUS_API int orthrus_create(orthrus_model *model, const orthrus_options *options,
                               orthrus_context **context) {
    if (!model || !context) return refuse(ORTHRUS_INVALID_ARGUMENT, "no model, or no place for the context");
    orthrus_options chosen = options_of(options);
    if (chosen.threads < 0)
        return refuse(ORTHRUS_INVALID_ARGUMENT, "%d threads: 0 is for as many as there are cores",
                      chosen.threads);
    orthrus_context *c = taken(&chosen, rounded(sizeof *c, LINE), LINE);
    if (!c) return refuse(ORTHRUS_NO_MEMORY, "no memory for a context");
    memset(c, 0, sizeof *c);
    c->model = model;
    c->options = chosen;
    c->threads = 1;
    if (chosen.threads != 1) {
        int64_t work = (int64_t)(intptr_t)function_at(model, TARGET_WORK);
        int64_t pauses = (int64_t)(intptr_t)function_at(model, TARGET_PAUSES);
        int64_t most = pool_cells(work, pauses, &model->code_kept)[POOL_CAPACITY];
        c->threads = chosen.threads > 0 && chosen.threads < most ? chosen.threads : most;
    }
    orthrus_stop_at(c, NULL);
    int status = furnish(c);
    if (!status) status = bind(c, 0);
    if (status) {
        orthrus_destroy(c);
        return status;
    }
    *context = c;
    return ORTHRUS_OK;
}

ORTHRUS_API void orthrus_destroy(orthrus_context *c) {
    if (!c) return;
    given_back(&c->options, c->memory, c->memory_size);
    room_back(&c->options, c->arena, c->arena_size);
    orthrus_options options = c->options;
    given_back(&options, c, rounded(sizeof *c, LINE));
}

ORTHRUS_API int orthrus_reshape(orthrus_context *c, const int64_t *const *shapes) {
    if (!c || (!shapes && c->model->inputs))
        return refuse(ORTHRUS_INVALID_ARGUMENT, "no context, or no shapes");
    for (size_t i = 0; i < c->model->inputs; i++)
        if (!shapes[i] && c->model->values[i].rank)
            return refuse(ORTHRUS_INVALID_ARGUMENT, "no shape for the input %s", c->model->values[i].name);
    if (atomic_exchange_explicit(&c->busy, 1, memory_order_acquire))
        return refuse(ORTHRUS_BUSY, "the context is running");
    int status = ORTHRUS_OK;
    if (compared(c->model, shapes, c->key)) {
        int64_t index = find(c->model, shapes);
        status = index < 0 ? other_shapes(c->model, shapes) : bind(c, index);
    }
    atomic_store_explicit(&c->busy, 0, memory_order_release);
    return status;
}

ORTHRUS_API const int64_t *orthrus_input_shape(const orthrus_context *c, size_t index) {
    return c && index < c->model->inputs ? c->shapes[index] : NULL;
}

ORTHRUS_API const int64_t *orthrus_output_shape(const orthrus_context *c, size_t index) {
    return c && index < c->model->outputs ? c->shapes[c->model->inputs + index] : NULL;
}

static int finished(const orthrus_context *c) {
    if (c->block[BLOCK_DONE] < c->block[BLOCK_STEPS]) return refuse(ORTHRUS_STOPPED, "the run was stopped");
    if (!*c->status) return ORTHRUS_OK;
    if (*c->status == 2)
        return refuse(ORTHRUS_OUTSIDE,
                      "a convolution met numbers that are not finite, or beyond 2**40: results near "
                      "these, or in other groups, may be NaN or inexact");
    if (*c->status == 3)
        return refuse(ORTHRUS_SHAPE, "the inputs' elements choose a branch of the model that takes no inputs "
                                     "of these shapes");
    return refuse(ORTHRUS_BAD_INDEX, "an index in the data lies outside of what it is for");
}

/* Whether the array that stands at `index` among inputs and outputs may be null: it has no elements. */
static int has_no_elements(const orthrus_context *c, int64_t index) {
    for (size_t d = 0; d < c->model->values[index].rank; d++)
        if (!c->shapes[index][d]) return 1;
    return 0;
}

/* Say that there is nothing to read or to write at `index`, and let go of the context. */
static int no_array(orthrus_context *c, int64_t index) {
    atomic_store_explicit(&c->busy, 0, memory_order_release);
    return refuse(ORTHRUS_INVALID_ARGUMENT, "the %s %s is null",
                  index < (int64_t)c->model->inputs ? "input" : "output", c->model->values[index].name);
}

ORTHRUS_API int orthrus_run(orthrus_context *c, const void *const *inputs, void *const *outputs) {
    if (!c || (!inputs && c->model->inputs) || (!outputs && c->model->outputs))
        return refuse(ORTHRUS_INVALID_ARGUMENT, "no context, no inputs, or no outputs");
    if (atomic_exchange_explicit(&c->busy, 1, memory_order_acquire))
        return refuse(ORTHRUS_BUSY, "the context is running: make one for each thread");
    int64_t first_output = (int64_t)c->model->inputs;
    const int64_t *row = c->arrays;
    for (int64_t i = 0; i < c->arrays_count; i++, row += 3) {
        const void *array = row[0] < first_output ? inputs[row[0]] : outputs[row[0] - first_output];
        if (!array && !has_no_elements(c, row[0])) return no_array(c, row[0]);
        c->cells[row[1]] = (int64_t)(intptr_t)array + row[2];
    }
    if (c->block[BLOCK_POOL]) {
        int64_t size = atomic_load_explicit(&orthrus_pool_1.cells[POOL_SIZE], memory_order_relaxed);
        if (size < c->threads && size < orthrus_pool_1.cells[POOL_CAPACITY]) pool_ensure(c->threads);
    }
    *c->status = 0;
    function_at(c->model, TARGET_DRIVE)((int64_t)(intptr_t)c->block);
    int status = finished(c);
    atomic_store_explicit(&c->busy, 0, memory_order_release);
    return status;
}

ORTHRUS_API void orthrus_stop_at(orthrus_context *c, const int64_t *stop) {
    if (!c) return;
    c->block[BLOCK_STOP] = (int64_t)(intptr_t)(stop ? stop : &c->block[BLOCK_STOPPED]);
}
