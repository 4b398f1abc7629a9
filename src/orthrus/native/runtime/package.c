/* Opening a package: every word that says where something lies is checked, here or when a plan is bound. */

struct orthrus_model {
    orthrus_options options;
    const int64_t *words; /* the head */
    const char *bytes;
    const int64_t *target, *plans, *keys;
    const char *code, *constants;
    void *own_code, *own_constants; /* copies made here, else null */
    size_t chosen, key_words, inputs, outputs;
    int64_t most_cells, most_steps, most_arena, most_scratch, most_dims; /* of all plans */
    int code_kept;                                                       /* the pool's threads sit in it */
    orthrus_value *values; /* inputs, then outputs, in one block with their shapes and names */
    size_t values_size;
};

enum { DIM_WORDS = 2, LARGEST_RANK = 64 };
static const int64_t LARGEST = (int64_t)1 << 46; /* bytes of anything, so that sums and products hold */

/* Whether `count` rows of `width` words from `at` on lie in the head. */
static int inside(const int64_t *words, int64_t at, int64_t count, int64_t width) {
    int64_t end = words[HEAD_SIZE] / 8;
    return at >= HEAD_WORDS && at <= end && count >= 0 && count <= (end - at) / width;
}

/* Whether a text begins there; all of them end within the texts, whose last byte is 0. */
static int is_text(const int64_t *words, int64_t at) { return at >= 0 && at < words[HEAD_TEXT_SIZE]; }

static const char *text_at(const int64_t *words, int64_t at) {
    return (const char *)words + words[HEAD_TEXT] + at;
}

static int is_range(int64_t at, int64_t size, int64_t begin, int64_t end) {
    return at >= begin && at <= end && size >= 0 && size <= end - at;
}

static int values_hold(const int64_t *words, int64_t at, int64_t count) {
    if (!inside(words, at, count, VALUE_WORDS)) return 0;
    for (const int64_t *row = words + at; count--; row += VALUE_WORDS) {
        if (!orthrus_type_size((int)row[VALUE_TYPE]) || row[VALUE_TYPE] != (int)row[VALUE_TYPE] ||
            !is_text(words, row[VALUE_NAME]) || row[VALUE_RANK] < 0 || row[VALUE_RANK] > LARGEST_RANK ||
            !inside(words, row[VALUE_DIMS], row[VALUE_RANK], DIM_WORDS))
            return 0;
        for (int64_t i = 0; i < row[VALUE_RANK]; i++) {
            const int64_t *dim = words + row[VALUE_DIMS] + DIM_WORDS * i;
            if (dim[0] < -1 || !is_text(words, dim[1])) return 0;
        }
    }
    return 1;
}

/* What is wrong with a package's head, null where nothing is. */
static const char *head_fault(const orthrus_pieces *pieces) {
    const int64_t *w = pieces->package;
    const char *bytes = pieces->package;
    if (pieces->size < HEAD_WORDS * 8 || memcmp(bytes, ORTHRUS_MAGIC, 8)) return "it does not begin as one";
    int64_t size = w[HEAD_SIZE];
    if (size < HEAD_WORDS * 8 || size % 8 || (uint64_t)size > pieces->size) return "its head breaks off";
    if (pieces->verify &&
        !digest_is((const unsigned char *)(w + HEAD_SIZE), (size_t)size - 8 * HEAD_SIZE, w + HEAD_DIGEST))
        return "its head is not what was written";
    if (!is_range(w[HEAD_TEXT], w[HEAD_TEXT_SIZE], HEAD_WORDS * 8, size) || w[HEAD_TEXT_SIZE] < 1 ||
        bytes[w[HEAD_TEXT] + w[HEAD_TEXT_SIZE] - 1] ||
        !is_range(w[HEAD_ABOUT], w[HEAD_ABOUT_SIZE], HEAD_WORDS * 8, size))
        return "its texts lie elsewhere";
    if (!values_hold(w, w[HEAD_INPUTS], w[HEAD_INPUTS_COUNT]) ||
        !values_hold(w, w[HEAD_OUTPUTS], w[HEAD_OUTPUTS_COUNT]))
        return "its inputs or outputs";
    if (!inside(w, w[HEAD_METADATA], w[HEAD_METADATA_COUNT], 2)) return "its metadata";
    for (int64_t i = 0; i < 2 * w[HEAD_METADATA_COUNT]; i++)
        if (!is_text(w, w[w[HEAD_METADATA] + i])) return "its metadata";
    if (!inside(w, w[HEAD_TARGETS], w[HEAD_TARGETS_COUNT], TARGET_WORDS) || !w[HEAD_TARGETS_COUNT])
        return "its targets";
    for (int64_t i = 0; i < w[HEAD_TARGETS_COUNT]; i++)
        if (!is_text(w, w[w[HEAD_TARGETS] + TARGET_WORDS * i + TARGET_NAME])) return "its targets";
    if (w[HEAD_CONSTANTS_SIZE] < 0 || w[HEAD_CONSTANTS_SIZE] > LARGEST) return "its constants";
    if (!pieces->constants) {
        if (!is_range(w[HEAD_CONSTANTS], w[HEAD_CONSTANTS_SIZE], size, (int64_t)pieces->size) ||
            w[HEAD_CONSTANTS] % LINE)
            return "its constants break off";
        if (pieces->verify && !digest_is((const unsigned char *)bytes + w[HEAD_CONSTANTS],
                                         (size_t)w[HEAD_CONSTANTS_SIZE], w + HEAD_CONSTANTS_DIGEST))
            return "its constants are not what was written";
    }
    return NULL;
}

/* What is wrong with the chosen target's rows, null where nothing is. Tables are looked at when a plan is
 * bound. */
static const char *target_fault(orthrus_model *m, const orthrus_pieces *pieces) {
    const int64_t *w = m->words, *t = m->target;
    int64_t size = t[TARGET_CODE_SIZE], count = t[TARGET_PLANS_COUNT];
    if (size < 0 || size > LARGEST) return "its code";
    if (!pieces->code) {
        if (!is_range(t[TARGET_CODE], size, w[HEAD_SIZE], (int64_t)pieces->size))
            return "its code breaks off";
        if (pieces->verify && !digest_is((const unsigned char *)m->bytes + t[TARGET_CODE], (size_t)size,
                                         t + TARGET_CODE_DIGEST))
            return "its code is not what was written";
    }
    for (int i = TARGET_DRIVE; i <= TARGET_PAUSES; i++)
        if (t[i] < 0 || t[i] >= size) return "its functions lie outside of its code";
    if (count < 1 || !inside(w, t[TARGET_PLANS], count, PLAN_WORDS)) return "its plans";
    if (!inside(w, t[TARGET_KEYS], count, m->key_words ? (int64_t)m->key_words : 1) && m->key_words)
        return "its plans' keys";
    for (const int64_t *plan = w + t[TARGET_PLANS]; count--; plan += PLAN_WORDS) {
        const int most[] = {PLAN_STEPS, PLAN_CELLS, PLAN_ARENA, PLAN_SCRATCH};
        int64_t *of[] = {&m->most_steps, &m->most_cells, &m->most_arena, &m->most_scratch};
        for (int i = 0; i < 4; i++) {
            if (plan[most[i]] < 0 || plan[most[i]] > LARGEST / PLACES) return "a plan's sizes";
            if (plan[most[i]] > *of[i]) *of[i] = plan[most[i]];
        }
        if (!inside(w, plan[PLAN_KERNELS], plan[PLAN_STEPS], 1) ||
            !inside(w, plan[PLAN_WORK], plan[PLAN_STEPS], 2) ||
            !inside(w, plan[PLAN_BEGINS], plan[PLAN_STEPS], 1) ||
            !inside(w, plan[PLAN_VALUES], plan[PLAN_CELLS], 1) ||
            !inside(w, plan[PLAN_ARENA_ROWS], plan[PLAN_ARENA_COUNT], 2) ||
            !inside(w, plan[PLAN_CONSTANT_ROWS], plan[PLAN_CONSTANT_COUNT], 2) ||
            !inside(w, plan[PLAN_ARRAY_ROWS], plan[PLAN_ARRAY_COUNT], 3) ||
            !inside(w, plan[PLAN_SHAPES], m->most_dims, 1) || plan[PLAN_STATUS] < 0 ||
            plan[PLAN_STATUS] % 8 || plan[PLAN_STATUS] > plan[PLAN_ARENA] - 8)
            return "a plan's tables lie elsewhere";
    }
    return NULL;
}

/* The first target that runs here; the number of targets where there is none, with the reason noted. */
static int choose(orthrus_model *m, const orthrus_pieces *pieces) {
    const int64_t *t = m->words + m->words[HEAD_TARGETS];
    int64_t here = cpu_features(), vector = vector_bytes(), least = -1;
    char missing[256] = "another architecture";
    for (m->chosen = 0; m->chosen < (size_t)m->words[HEAD_TARGETS_COUNT]; m->chosen++, t += TARGET_WORDS) {
        if (t[TARGET_ARCH] != ARCH || !t[TARGET_PLANS_COUNT] || (pieces->code && !pieces->code[m->chosen]))
            continue;
        int64_t lacking = t[TARGET_FEATURES] & ~here;
        if (!lacking && t[TARGET_VECTOR] <= vector && permitted(t[TARGET_FEATURES])) {
            m->target = t;
            return ORTHRUS_OK;
        }
        if (least < 0 || (lacking && lacking < least)) {
            least = lacking;
            feature_names(lacking, missing, sizeof missing);
            if (!lacking)
                snprintf(missing, sizeof missing, "%s",
                         t[TARGET_VECTOR] > vector ? "longer vectors"
                                                   : "the system's leave to use its matrix unit");
        }
    }
    return refuse(ORTHRUS_UNSUPPORTED_CPU,
                  "the model was not compiled for this processor, which lacks %s: compile it "
                  "for this one too, see orthrus compile --target",
                  missing);
}

static size_t value_bytes(const int64_t *words, int64_t at, int64_t count, int64_t *dims) {
    size_t bytes = (size_t)count * sizeof(orthrus_value);
    for (const int64_t *row = words + at; count--; row += VALUE_WORDS) {
        bytes += (size_t)row[VALUE_RANK] * (sizeof(int64_t) + sizeof(char *));
        *dims += row[VALUE_RANK];
    }
    return bytes;
}

/* Describe the values of the package in `m->values`. */
static int describe(orthrus_model *m) {
    const int64_t *w = m->words;
    int64_t of_inputs = 0;
    m->inputs = (size_t)w[HEAD_INPUTS_COUNT];
    m->outputs = (size_t)w[HEAD_OUTPUTS_COUNT];
    m->values_size = value_bytes(w, w[HEAD_INPUTS], w[HEAD_INPUTS_COUNT], &of_inputs) +
                     value_bytes(w, w[HEAD_OUTPUTS], w[HEAD_OUTPUTS_COUNT], &m->most_dims) + 8;
    m->key_words = (size_t)of_inputs;
    m->values = taken(&m->options, m->values_size, LINE);
    if (!m->values) return refuse(ORTHRUS_NO_MEMORY, "no memory for the descriptions of inputs and outputs");
    char *free_from = (char *)(m->values + m->inputs + m->outputs);
    for (size_t i = 0; i < m->inputs + m->outputs; i++) {
        const int64_t *row = w + (i < m->inputs ? w[HEAD_INPUTS] + VALUE_WORDS * (int64_t)i
                                                : w[HEAD_OUTPUTS] + VALUE_WORDS * (int64_t)(i - m->inputs));
        size_t rank = (size_t)row[VALUE_RANK];
        int64_t *shape = (int64_t *)(void *)free_from;
        const char **names = (const char **)(void *)(free_from + rank * sizeof *shape);
        free_from += rank * (sizeof *shape + sizeof *names);
        for (size_t d = 0; d < rank; d++) {
            const int64_t *dim = w + row[VALUE_DIMS] + DIM_WORDS * (int64_t)d;
            shape[d] = dim[0];
            names[d] = dim[1] ? text_at(w, dim[1]) : NULL;
        }
        m->values[i] = (orthrus_value){text_at(w, row[VALUE_NAME]), (int)row[VALUE_TYPE], rank, shape, names};
    }
    return ORTHRUS_OK;
}

/* Find the code and the constants, copied where they cannot stay. */
static int place(orthrus_model *m, const orthrus_pieces *pieces) {
    size_t size = (size_t)m->target[TARGET_CODE_SIZE], constants = (size_t)m->words[HEAD_CONSTANTS_SIZE];
    m->constants = pieces->constants ? pieces->constants : m->bytes + m->words[HEAD_CONSTANTS];
    if ((uintptr_t)m->constants % LINE && constants)
        return refuse(ORTHRUS_INVALID_ARGUMENT, "constants do not begin at a multiple of %d", (int)LINE);
    if (pieces->code) {
        m->code = pieces->code[m->chosen];
    } else {
        m->own_code = code_pages(m->bytes + m->target[TARGET_CODE], size);
        m->code = m->own_code;
        if (!m->code) return refuse(ORTHRUS_NO_MEMORY, "no memory that may be made executable");
    }
    if (m->options.huge_pages && constants) {
        m->own_constants = room(&m->options, constants);
        if (!m->own_constants)
            return refuse(ORTHRUS_NO_MEMORY, "no memory for %zu bytes of constants", constants);
        m->constants = memcpy(m->own_constants, m->constants, constants);
    }
    return ORTHRUS_OK;
}

static int opened(orthrus_model *m, const orthrus_pieces *pieces) {
    const char *fault = head_fault(pieces);
    if (fault) return damaged(fault);
    m->words = pieces->package;
    m->bytes = pieces->package;
    int status = describe(m);
    if (!status) status = choose(m, pieces);
    if (status) return status;
    fault = target_fault(m, pieces);
    if (fault) return damaged(fault);
    m->plans = m->words + m->target[TARGET_PLANS];
    m->keys = m->words + m->target[TARGET_KEYS];
    return place(m, pieces);
}

ORTHRUS_API int orthrus_model_open(const orthrus_pieces *pieces, const orthrus_options *options,
                                   orthrus_model **model) {
    if (!pieces || !pieces->package || !model || (uintptr_t)pieces->package % 8)
        return refuse(ORTHRUS_INVALID_ARGUMENT,
                      "no package, no place for the model, or a package that does not begin "
                      "at a multiple of 8");
    orthrus_options chosen = options_of(options);
    orthrus_model *m = taken(&chosen, sizeof *m, LINE);
    if (!m) return refuse(ORTHRUS_NO_MEMORY, "no memory for a model");
    memset(m, 0, sizeof *m);
    m->options = chosen;
    int status = opened(m, pieces);
    if (status) {
        orthrus_model_close(m);
        return status;
    }
    *model = m;
    return ORTHRUS_OK;
}

ORTHRUS_API void orthrus_model_close(orthrus_model *m) {
    if (!m) return;
    if (m->own_code && !m->code_kept) munmap(m->own_code, (size_t)m->target[TARGET_CODE_SIZE]);
    if (m->own_constants) room_back(&m->options, m->own_constants, (size_t)m->words[HEAD_CONSTANTS_SIZE]);
    given_back(&m->options, m->values, m->values_size);
    orthrus_options options = m->options;
    given_back(&options, m, sizeof *m);
}

ORTHRUS_API const char *orthrus_model_about(const orthrus_model *m, size_t *size) {
    *size = (size_t)m->words[HEAD_ABOUT_SIZE];
    return m->bytes + m->words[HEAD_ABOUT];
}

ORTHRUS_API size_t orthrus_type_size(int type) {
    static const unsigned char sizes[] = {0,  4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8,
                                          16, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    return type < 0 || (size_t)type >= sizeof sizes ? 0 : sizes[type];
}

ORTHRUS_API const char *orthrus_version(void) {
#ifdef ORTHRUS_VERSION
    return ORTHRUS_VERSION;
#else
    return "0";
#endif
}

ORTHRUS_API size_t orthrus_inputs(const orthrus_model *m) { return m ? m->inputs : 0; }
ORTHRUS_API size_t orthrus_outputs(const orthrus_model *m) { return m ? m->outputs : 0; }

ORTHRUS_API const orthrus_value *orthrus_input(const orthrus_model *m, size_t index) {
    return index < orthrus_inputs(m) ? &m->values[index] : NULL;
}

ORTHRUS_API const orthrus_value *orthrus_output(const orthrus_model *m, size_t index) {
    return index < orthrus_outputs(m) ? &m->values[m->inputs + index] : NULL;
}

ORTHRUS_API size_t orthrus_targets(const orthrus_model *m) {
    return m ? (size_t)m->words[HEAD_TARGETS_COUNT] : 0;
}

ORTHRUS_API const char *orthrus_target(const orthrus_model *m, size_t index) {
    if (index >= orthrus_targets(m)) return NULL;
    const int64_t *w = m->words;
    return text_at(w, w[w[HEAD_TARGETS] + TARGET_WORDS * (int64_t)index + TARGET_NAME]);
}

ORTHRUS_API size_t orthrus_chosen_target(const orthrus_model *m) { return m ? m->chosen : 0; }

ORTHRUS_API const char *orthrus_metadata(const orthrus_model *m, const char *key) {
    if (!m || !key) return NULL;
    const int64_t *row = m->words + m->words[HEAD_METADATA];
    for (int64_t i = 0; i < m->words[HEAD_METADATA_COUNT]; i++, row += 2)
        if (!strcmp(text_at(m->words, row[0]), key)) return text_at(m->words, row[1]);
    return NULL;
}
