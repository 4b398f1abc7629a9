"""The words of a package: what stands where, and how its head is put together.

In: rows of numbers, and texts. Out: the head of a package, in which equal tables and texts are there once.
`native/runtime/package.h` says what they mean, and has the same words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

MAGIC = b"orthrus\3"
FORMAT = 3
WORD, LINE, PAGE = 8, 64, 4096
DIGEST = 4
"""Words of a digest."""


class Head:
    """A package's first words."""

    MAGIC = 0
    DIGEST = 1
    SIZE, WHOLE, TARGETS, TARGETS_COUNT, INPUTS, INPUTS_COUNT, OUTPUTS, OUTPUTS_COUNT = range(5, 13)
    TEXT, TEXT_SIZE, ABOUT, ABOUT_SIZE, METADATA, METADATA_COUNT = range(13, 19)
    CONSTANTS, CONSTANTS_SIZE, CONSTANTS_DIGEST = range(19, 22)
    WORDS = 32


class Target:
    """A row of a target."""

    ARCH, FEATURES, VECTOR, NAME, CODE, CODE_SIZE, CODE_DIGEST = range(7)
    DRIVE, WORK, PAUSES, PLANS, PLANS_COUNT, KEYS, WORDS = range(10, 17)


class Plan:
    """A row of a plan."""

    STEPS, KERNELS, WORK, BEGINS, CELLS, VALUES, ARENA_ROWS, ARENA_COUNT, CONSTANT_ROWS, \
        CONSTANT_COUNT, ARRAY_ROWS, ARRAY_COUNT, SHAPES, ARENA, SCRATCH, STATUS, STEPS_ABOUT, \
        WORDS = range(18)


class Row:
    """A row of an input or output."""

    TYPE, NAME, RANK, DIMS, WORDS = range(5)


DIM = 2
"""Words of a row of a value's dims."""

ARCHITECTURES = {"x86_64": 62, "aarch64": 183, "riscv64": 243}
"""ELF's numbers."""

FEATURES = {
    "x86_64": ("sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "f16c", "fma", "avx2", "bmi",
               "bmi2", "lzcnt",
               "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16",
               "avx512fp16", "avx512vbmi", "avx512vbmi2", "avxvnni", "amx-tile", "amx-bf16", "amx-int8"),
    "aarch64": ("neon", "dotprod"),
    "riscv64": ("a", "c", "d", "f", "m", "v", "zba", "zbb", "zbs", "zfh", "zvfh", "xsfvqmaccqoq")}
"""By architecture what the bits of `Target.FEATURES` stand for, from the lowest on; `cpu.c` has the same
rows. Lengths of vectors are in `Target.VECTOR`."""


def feature_bits(arch: str, features: Iterable[str]) -> int:
    """The bits of `features`, LLVM's names."""
    known = FEATURES[arch]
    return sum(1 << known.index(name) for name in features if not name.startswith("zvl"))


class Tables:
    """The words and texts of a head, which grows; what is equal is there once."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.end = Head.WORDS
        self.places: dict[bytes, int] = {}
        self.texts, self.known = bytearray(1), {"": 0}

    def add(self, rows: np.ndarray | Sequence[int]) -> int:
        """Which word the rows begin with."""
        data = np.ascontiguousarray(rows, np.int64).tobytes()
        if data not in self.places:
            self.places[data] = self.end
            self.rows.append(data)
            self.end += len(data) // WORD
        return self.places[data]

    def text(self, text: str) -> int:
        """Where among the texts it begins."""
        if text not in self.known:
            self.known[text] = len(self.texts)
            self.texts += text.replace("\0", "").encode("utf-8", "surrogateescape") + b"\0"
        return self.known[text]


def digest(pieces: Iterable[Any]) -> np.ndarray:
    """SHA-256 of what `pieces` are together, as words."""
    made = hashlib.sha256()
    for piece in pieces:
        made.update(piece)
    return np.frombuffer(made.digest(), np.int64)


def rounded(size: int, to: int) -> int:
    return -(-size // to) * to
