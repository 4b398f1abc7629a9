/* The package format, and opening one. Internal: used by the runtime, by libraries that are compiled ahead of
   time, and by the drop-in library.

   A package is position independent and little-endian. Its head is words of 8 bytes and text; the machine
   code of each target and the constants follow it, each beginning at a page, or lie elsewhere: as functions
   in an object file, as a file beside. `at` is always a word's index from the begin of the package, and
   `count` a number of rows; a text is a byte's index among the texts, of bytes that end with a 0, where 0 is
   the empty text. src/orthrus/lowering/package/layout.py has the same words.

   head:     enum head_word
   target:   enum target_word, for one processor: its code, its plans, and their keys: a row for each plan, in
             ascending order, the sizes of all inputs one behind the other
   plan:     enum plan_word, for one tuple of input shapes. Tables that are equal are there once:
               kernels    a word for each step: bytes from the begin of the code
               work       (items, grain) for each step; -1 items: a jump, see scheduler.py
               begins     a word for each step: its first cell
               values     a word for each cell
               arena      (cell, bytes): the cell is an address in the memory of the run
               constants  (cell, bytes): the cell is an address in the constants
               arrays     (index, cell, bytes): the cell is an address in an input, or behind these an output
               shapes     the sizes of all outputs, one behind the other
   value:    enum value_word, an input or output; its dims: (size or -1, text of its name) */
#ifndef ORTHRUS_PACKAGE_H
#define ORTHRUS_PACKAGE_H

#include "orthrus.h"

#define ORTHRUS_MAGIC "orthrus\3"

enum head_word {
    HEAD_MAGIC = 0,
    HEAD_DIGEST = 1, /* 4 words: SHA-256 of the head from HEAD_SIZE on */
    HEAD_SIZE = 5,   /* bytes of the head */
    HEAD_WHOLE = 6,  /* bytes of the package */
    HEAD_TARGETS = 7,
    HEAD_TARGETS_COUNT = 8,
    HEAD_INPUTS = 9,
    HEAD_INPUTS_COUNT = 10,
    HEAD_OUTPUTS = 11,
    HEAD_OUTPUTS_COUNT = 12,
    HEAD_TEXT = 13,
    HEAD_TEXT_SIZE = 14, /* bytes */
    HEAD_ABOUT = 15,
    HEAD_ABOUT_SIZE = 16, /* bytes of JSON, for Python */
    HEAD_METADATA = 17,
    HEAD_METADATA_COUNT = 18, /* (text, text) */
    HEAD_CONSTANTS = 19,
    HEAD_CONSTANTS_SIZE = 20,   /* bytes from the begin of the package */
    HEAD_CONSTANTS_DIGEST = 21, /* 4 words */
    HEAD_WORDS = 32
};

enum target_word {
    TARGET_ARCH = 0,     /* ELF's number: 62 x86-64, 183 AArch64, 243 RISC-V */
    TARGET_FEATURES = 1, /* a bit for each that the processor must have, see cpu.c */
    TARGET_VECTOR = 2,   /* bytes of RISC-V's vector registers at least, else 0 */
    TARGET_NAME = 3,     /* text */
    TARGET_CODE = 4,
    TARGET_CODE_SIZE = 5,   /* bytes from the begin of the package */
    TARGET_CODE_DIGEST = 6, /* 4 words */
    TARGET_DRIVE = 10,
    TARGET_WORK = 11,
    TARGET_PAUSES = 12, /* functions: bytes from the begin of the code */
    TARGET_PLANS = 13,
    TARGET_PLANS_COUNT = 14,
    TARGET_KEYS = 15,
    TARGET_WORDS = 16
};

enum plan_word {
    PLAN_STEPS = 0, /* how many */
    PLAN_KERNELS = 1,
    PLAN_WORK = 2,
    PLAN_BEGINS = 3,
    PLAN_CELLS = 4, /* how many */
    PLAN_VALUES = 5,
    PLAN_ARENA_ROWS = 6,
    PLAN_ARENA_COUNT = 7,
    PLAN_CONSTANT_ROWS = 8,
    PLAN_CONSTANT_COUNT = 9,
    PLAN_ARRAY_ROWS = 10,
    PLAN_ARRAY_COUNT = 11,
    PLAN_SHAPES = 12,
    PLAN_ARENA = 13,
    PLAN_SCRATCH = 14,     /* bytes, and bytes for each thread behind them */
    PLAN_STATUS = 15,      /* where in the arena kernels say that they gave up */
    PLAN_STEPS_ABOUT = 16, /* for Python: which description of the steps */
    PLAN_WORDS = 17
};

enum value_word { VALUE_TYPE = 0, VALUE_NAME = 1, VALUE_RANK = 2, VALUE_DIMS = 3, VALUE_WORDS = 4 };

/* Where a package lies. package: its head at least, from a multiple of 8 on. code: the code of each target,
   null for those of other architectures, ready to run; or null where it is in the package, from which it is
   copied. constants: from a multiple of 64 on, or null where they are in the package, which then begins at
   such a multiple. verify: whether to compare digests, of the head and of all that is in the package; what
   they do not guard is only that a package does what its maker says. All of it stays until the model is
   closed. */
typedef struct orthrus_pieces {
    const void *package;
    size_t size;
    const void *const *code;
    const void *constants;
    int verify;
} orthrus_pieces;

#ifdef __cplusplus
extern "C" {
#endif
/* The model in a package, for this processor. `options` (threads means nothing here) may be null. */
ORTHRUS_API int orthrus_model_open(const orthrus_pieces *pieces, const orthrus_options *options,
                                   orthrus_model **model);
/* Close it, once its last context is destroyed. */
ORTHRUS_API void orthrus_model_close(orthrus_model *model);
/* What the package holds in HEAD_ABOUT; its bytes in `*size`. */
ORTHRUS_API const char *orthrus_model_about(const orthrus_model *model, size_t *size);
#ifdef __cplusplus
}
#endif
#endif
