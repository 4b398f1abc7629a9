/* Memory, from whoever the options name; code that may be run. */
#include <stdlib.h>
#include <sys/mman.h>

enum { LINE = 64, PAGE = 4096, HUGE = 2 << 20 };

static size_t rounded(size_t size, size_t to) { return (size + to - 1) / to * to; }

/* `given` as far as its size goes, else the defaults. */
static orthrus_options options_of(const orthrus_options *given) {
    orthrus_options made = ORTHRUS_OPTIONS;
    if (given) memcpy(&made, given, given->size < sizeof made ? given->size : sizeof made);
    made.size = sizeof made;
    return made;
}

static void given_back(const orthrus_options *options, void *memory, size_t size) {
    if (!memory) return;
    if (options->allocate) {
        if (options->release) options->release(options->user, memory, size);
    } else {
        free(memory);
    }
}

/* Memory on that boundary, null where there is none. */
static void *taken(const orthrus_options *options, size_t size, size_t alignment) {
    void *made = NULL;
    if (!options->allocate) return posix_memalign(&made, alignment, size) ? NULL : made;
    made = options->allocate(options->user, size, alignment);
    if (!((uintptr_t)made % alignment)) return made;
    given_back(options, made, size);
    return NULL;
}

/* How many bytes to take for `size`, and on what boundary, where they are many and pages are to be huge. */
static size_t alignment_of(const orthrus_options *options, size_t *size) {
    size_t alignment = options->huge_pages && *size >= HUGE ? HUGE : LINE;
    *size = rounded(*size ? *size : 1, alignment);
    return alignment;
}

static void *room(const orthrus_options *options, size_t size) {
    size_t alignment = alignment_of(options, &size);
    void *made = taken(options, size, alignment);
#ifdef MADV_HUGEPAGE
    if (made && alignment == HUGE) madvise(made, size, MADV_HUGEPAGE);
#endif
    return made;
}

static void room_back(const orthrus_options *options, void *memory, size_t size) {
    alignment_of(options, &size);
    given_back(options, memory, size);
}

/* Code copied to pages of its own, null where it cannot be. */
static void *code_pages(const void *code, size_t size) {
    char *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return NULL;
    memcpy(made, code, size);
    __builtin___clear_cache(made, made + size);
    if (mprotect(made, size, PROT_READ | PROT_EXEC)) {
        munmap(made, size);
        return NULL;
    }
    return made;
}
