/* What this processor has, as the bits of TARGET_FEATURES. */
#include <sched.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

enum { ARCH = 62, AVX = 0x6, AVX512 = 0xE6, TILES = 0x60000 };
enum { EAX, EBX, ECX, EDX };
/* Where cpuid says it, and what the system must keep of a thread besides. */
static const struct feature {
    const char *name;
    unsigned leaf, sub, word, bit, kept;
} features[] = {
    {"sse2", 1, 0, EDX, 26, 0},
    {"sse3", 1, 0, ECX, 0, 0},
    {"ssse3", 1, 0, ECX, 9, 0},
    {"sse4.1", 1, 0, ECX, 19, 0},
    {"sse4.2", 1, 0, ECX, 20, 0},
    {"popcnt", 1, 0, ECX, 23, 0},
    {"avx", 1, 0, ECX, 28, AVX},
    {"f16c", 1, 0, ECX, 29, AVX},
    {"fma", 1, 0, ECX, 12, AVX},
    {"avx2", 7, 0, EBX, 5, AVX},
    {"bmi", 7, 0, EBX, 3, 0},
    {"bmi2", 7, 0, EBX, 8, 0},
    {"lzcnt", 0x80000001, 0, ECX, 5, 0},
    {"avx512f", 7, 0, EBX, 16, AVX512},
    {"avx512bw", 7, 0, EBX, 30, AVX512},
    {"avx512cd", 7, 0, EBX, 28, AVX512},
    {"avx512dq", 7, 0, EBX, 17, AVX512},
    {"avx512vl", 7, 0, EBX, 31, AVX512},
    {"avx512vnni", 7, 0, ECX, 11, AVX512},
    {"avx512bf16", 7, 1, EAX, 5, AVX512},
    {"avx512fp16", 7, 0, EDX, 23, AVX512},
    {"avx512vbmi", 7, 0, ECX, 1, AVX512},
    {"avx512vbmi2", 7, 0, ECX, 6, AVX512},
    {"avxvnni", 7, 1, EAX, 4, AVX},
    {"amx-tile", 7, 0, EDX, 24, TILES},
    {"amx-bf16", 7, 0, EDX, 22, TILES},
    {"amx-int8", 7, 0, EDX, 25, TILES},
};
enum { AMX = 7 << 24 };

static unsigned kept_state(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27)) return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a;
}

static int64_t cpu_features(void) {
    unsigned kept = kept_state();
    int64_t found = 0;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        const struct feature *f = &features[i];
        unsigned words[4];
        if (!__get_cpuid_count(f->leaf, f->sub, &words[EAX], &words[EBX], &words[ECX], &words[EDX])) continue;
        if (words[f->word] >> f->bit & 1 && (kept & f->kept) == f->kept) found |= (int64_t)1 << i;
    }
    return found;
}

/* Ask the system for the matrix unit where code needs it: whoever does not ask may not use it. */
static int permitted(int64_t needed) { return !(needed & AMX) || syscall(158, 0x1023, 18) == 0; }

#elif defined(__aarch64__)

enum { ARCH = 183 };
static const struct feature {
    const char *name;
    unsigned bit;
} features[] = {{"neon", 1}, {"dotprod", 20}};

static int64_t cpu_features(void) {
    unsigned long words = getauxval(AT_HWCAP);
    int64_t found = 0;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (words >> features[i].bit & 1) found |= (int64_t)1 << i;
    return found;
}

#elif defined(__riscv) && __riscv_xlen == 64

enum { ARCH = 243, HWPROBE = 258, EXTENSIONS = 4 };
/* A letter of AT_HWCAP, or a bit of what riscv_hwprobe answers. SpacemiT's matrix instruction has neither:
   the device tree calls its cores those for AI. */
static const struct feature {
    const char *name;
    unsigned letter, bit;
} features[] = {{"a", 'a', 0}, {"c", 'c', 0},  {"d", 'd', 0},   {"f", 'f', 0},
                {"m", 'm', 0}, {"v", 'v', 0},  {"zba", 0, 3},   {"zbb", 0, 4},
                {"zbs", 0, 5}, {"zfh", 0, 27}, {"zvfh", 0, 30}, {"xsfvqmaccqoq", 1, 0}};

static int has_matrix(void) {
    char path[64], text[8] = "";
    snprintf(path, sizeof path, "/proc/device-tree/cpus/cpu@%x/cpu-ai", (unsigned)sched_getcpu());
    FILE *file = fopen(path, "r");
    if (file) {
        if (!fgets(text, sizeof text, file)) text[0] = 0;
        fclose(file);
    }
    return !strncmp(text, "true", 4);
}

static int64_t cpu_features(void) {
    struct {
        int64_t key;
        uint64_t value;
    } asked = {EXTENSIONS, 0};
    unsigned long letters = getauxval(AT_HWCAP);
    if (syscall(HWPROBE, &asked, (size_t)1, (size_t)0, NULL, 0u)) asked.value = 0;
    int64_t found = 0;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        unsigned letter = features[i].letter;
        int there = letter > 1 ? letters >> (letter - 'a') & 1
                    : letter   ? has_matrix()
                               : asked.value >> features[i].bit & 1;
        if (there) found |= (int64_t)1 << i;
    }
    return found;
}

static int64_t vector_bytes(void) {
    if (!(getauxval(AT_HWCAP) >> ('v' - 'a') & 1)) return 0;
    int64_t made;
    __asm__(".option push\n.option arch, +v\ncsrr %0, vlenb\n.option pop" : "=r"(made));
    return made;
}

#else
#error "Orthrus generates code for x86-64, AArch64 and RISC-V"
#endif

#ifndef __x86_64__
static int permitted(int64_t needed) { return (void)needed, 1; }
#endif
#ifndef __riscv
static int64_t vector_bytes(void) { return 0; }
#endif

/* The names of the features in `bits`, separated by commas, as far as there is room. */
static void feature_names(int64_t bits, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof features / sizeof *features && used < size; i++)
        if (bits >> i & 1) {
            int n = snprintf(text + used, size - used, "%s%s", used ? ", " : "", features[i].name);
            used += n > 0 ? (size_t)n : 0;
        }
}
