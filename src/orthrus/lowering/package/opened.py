"""Packages read: views of their bytes, every offset checked.

In: the bytes of a package. Out: what it was compiled for, and its plans' tables as arrays. The bytes may be
damaged: what does not hold is a ValueError. The digests guard what no check can: that kernels do what they
were written for. So whoever opens a package trusts it as a shared library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...codegen.machines.machine import Machine
from ...codegen.runtime.cells import JUMP
from ...ir import ElementType
from ...memory import LINE, take
from ...records import dataclass
from . import layout
from .layout import Head, Plan, Row, Target, digest

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Tables:
    """A plan as it is in a package: see `native/runtime/package.h`. `outputs`: the shapes of its outputs;
    `about`: which description of the steps."""

    kernels: np.ndarray
    work: np.ndarray
    begins: np.ndarray
    values: np.ndarray
    arena_rows: np.ndarray
    constant_rows: np.ndarray
    array_rows: np.ndarray
    outputs: Shapes
    arena: int
    scratch: int
    status: int
    about: int


@dataclass(frozen=True)
class Code:
    """The code of one target. `units`: the functions of code that is there besides kernels, by what it is, as
    bytes from its begin; `plans`: the row of each plan by its inputs' shapes."""

    machine: Machine
    image: np.ndarray
    units: Mapping[str, Mapping[str, int]]
    plans: Mapping[Shapes, int]


_MALFORMED = (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)
"""What reading JSON of another form raises."""


class Opened:
    """A package, opened. Raises ValueError for anything else. `data` is kept where it begins at a cache line,
    and copied where it does not; `kept`: whether it is this user's own, from the cache, and so undamaged and
    made by this package. `inputs`, `outputs`: their types and ranks; `steps`: descriptions of steps; `about`:
    what its maker says."""

    def __init__(self, data: bytes | np.ndarray, kept: bool = False) -> None:
        self.bytes, self.kept = at_line(data), kept
        try:
            self._read()
        except _MALFORMED as error:
            raise ValueError(f"no package of a compiled part: {error}") from None

    def _read(self) -> None:
        whole, least = len(self.bytes), Head.WORDS * layout.WORD
        if whole < least or self.bytes[:8].tobytes() != layout.MAGIC:
            raise ValueError(f"no package of a compiled part, or not of format {layout.FORMAT}")
        size = int(self.bytes[:least].view(np.int64)[Head.SIZE])
        if not least <= size <= whole or size % layout.WORD:
            raise _damaged(f"a head of {size} bytes in {whole}")
        self.words = self.bytes[:size].view(np.int64)
        self._is_as_written(self.bytes[Head.SIZE * layout.WORD:size], Head.DIGEST)
        self.digest = self.words[Head.DIGEST:Head.SIZE].tobytes().hex()
        head = self.words[:Head.WORDS].tolist()
        about = json.loads(self._between(head[Head.ABOUT], head[Head.ABOUT_SIZE]).tobytes())
        self.about: dict[str, Any] = about["about"]
        self.steps: list[dict[str, Any]] = about["steps"]
        self.inputs = self._values(head[Head.INPUTS], head[Head.INPUTS_COUNT])
        self.outputs = self._values(head[Head.OUTPUTS], head[Head.OUTPUTS_COUNT])
        self.constants = self._between(head[Head.CONSTANTS], head[Head.CONSTANTS_SIZE])
        if head[Head.CONSTANTS] % LINE:
            raise _damaged(f"constants from {head[Head.CONSTANTS]} on")
        self._is_as_written(self.constants, Head.CONSTANTS_DIGEST)
        rows = self.rows(head[Head.TARGETS], head[Head.TARGETS_COUNT], Target.WORDS)
        self.codes = [self._code(head[Head.TARGETS] + i * Target.WORDS, row, plain) for i, (row, plain) in
                      enumerate(zip(rows.tolist(), about["targets"], strict=True))]

    def _is_as_written(self, data: np.ndarray, at: int) -> None:
        if not self.kept and (digest([data.data]) != self.words[at:at + layout.DIGEST]).any():
            raise _damaged("its content is not what was written")

    def _between(self, begin: int, size: int) -> np.ndarray:
        if not 0 <= begin <= begin + size <= len(self.bytes):
            raise _damaged(f"{begin} + {size} of {len(self.bytes)} bytes")
        return self.bytes[begin:begin + size]

    def rows(self, at: int, count: int, width: int = 0) -> np.ndarray:
        """Rows of `width` words, or words where that is 0. Raises ValueError."""
        end = at + count * (width or 1)
        if not Head.WORDS <= at <= end <= len(self.words) or count < 0:
            raise _damaged(f"{count} rows from word {at} on, of {len(self.words)}")
        found = self.words[at:end]
        return found.reshape(count, width) if width else found

    def _values(self, at: int, count: int) -> list[tuple[ElementType, int]]:
        rows = self.rows(at, count, Row.WORDS).tolist()
        if any(row[Row.RANK] < 0 for row in rows):
            raise _damaged("a rank is negative")
        return [(ElementType(row[Row.TYPE]), row[Row.RANK]) for row in rows]

    def _code(self, at: int, row: list[int], plain: Mapping[str, Any]) -> Code:
        image = self._between(row[Target.CODE], row[Target.CODE_SIZE])
        self._is_as_written(image, at + Target.CODE_DIGEST)
        units = {str(key): {str(name): int(offset) for name, offset in each.items()}
                 for key, each in plain["units"].items()}
        if not all(0 <= offset < len(image) for each in units.values() for offset in each.values()):
            raise _damaged("a function lies outside of its code")
        return Code(_machine(plain["machine"]), image, units, self._keys(row))

    def _keys(self, row: list[int]) -> dict[Shapes, int]:
        count, ranks = row[Target.PLANS_COUNT], [rank for _, rank in self.inputs]
        self.rows(row[Target.PLANS], count, Plan.WORDS)
        keys = self.rows(row[Target.KEYS], count * sum(ranks))
        if not _within(keys):
            raise _damaged("a size is negative")
        return {split(key, ranks): row[Target.PLANS] + Plan.WORDS * i
                for i, key in enumerate(keys.reshape(count, sum(ranks)).tolist())}

    def tables(self, code: Code, at: int) -> Tables:
        """The plan whose row begins with word `at`. Raises ValueError."""
        try:
            return self._tables(code, at)
        except _MALFORMED as error:
            raise _damaged(f"a plan is of another form: {error!r}") from None

    def _tables(self, code: Code, at: int) -> Tables:
        row = self.words[at:at + Plan.WORDS].tolist()
        steps, cells = row[Plan.STEPS], row[Plan.CELLS]
        ranks = [rank for _, rank in self.outputs]
        made = Tables(
            self.rows(row[Plan.KERNELS], steps), self.rows(row[Plan.WORK], steps, 2),
            self.rows(row[Plan.BEGINS], steps), self.rows(row[Plan.VALUES], cells),
            self.rows(row[Plan.ARENA_ROWS], row[Plan.ARENA_COUNT], 2),
            self.rows(row[Plan.CONSTANT_ROWS], row[Plan.CONSTANT_COUNT], 2),
            self.rows(row[Plan.ARRAY_ROWS], row[Plan.ARRAY_COUNT], 3),
            split(self.rows(row[Plan.SHAPES], sum(ranks)).tolist(), ranks),
            row[Plan.ARENA], row[Plan.SCRATCH], row[Plan.STATUS], row[Plan.STEPS_ABOUT])
        if not self.kept and not self._sound(made, code):
            raise _damaged("a plan points elsewhere")
        return made

    def _sound(self, made: Tables, code: Code) -> bool:
        """Whether what a plan's tables point to is there."""
        cells, arrays = len(made.values), len(self.inputs) + len(self.outputs)
        return (_within(made.kernels, len(code.image)) and _within(made.work[:, 0] - JUMP)
                and _within(made.work[:, 1] - 1) and _within(made.begins, cells + 1)
                and self._jumps(made)
                and _within(made.arena_rows[:, 0], cells) and _within(made.arena_rows[:, 1], made.arena + 1)
                and _within(made.constant_rows[:, 0], cells)
                and _within(made.constant_rows[:, 1], len(self.constants) + 1)
                and _within(made.array_rows[:, 0], arrays) and _within(made.array_rows[:, 1], cells)
                and _within(made.array_rows[:, 2]) and made.scratch >= 0
                and 0 <= made.status <= made.arena - layout.WORD and made.status % layout.WORD == 0
                and 0 <= made.about < len(self.steps)
                and len(self.steps[made.about]["steps"]) == len(made.kernels)
                and all(d >= 0 for shape in made.outputs for d in shape))

    def _jumps(self, made: Tables) -> bool:
        """Whether jumps go to other rows."""
        given = made.begins[made.work[:, 0] == JUMP]
        return _within(given, len(made.values) - 2) and _within(made.values[given + 1], len(made.kernels) + 1)

    def choose(self, fits: Callable[[Machine], bool]) -> Code | None:
        """The first target with plans whose machine `fits`."""
        return next((code for code in self.codes if code.plans and fits(code.machine)), None)


def split(sizes: Sequence[int], ranks: Sequence[int]) -> Shapes:
    """Shapes of these ranks, from their sizes one behind the other."""
    left = iter(sizes)
    return tuple(tuple(next(left) for _ in range(rank)) for rank in ranks)


def _within(numbers: np.ndarray, end: int = np.iinfo(np.int64).max) -> bool:
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < end)


def _damaged(what: str) -> ValueError:
    return ValueError(f"a damaged package: {what}")


def _machine(plain: Mapping[str, Any]) -> Machine:
    """A machine from its fields as JSON."""
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in plain.items()}
    return Machine(**fields)


def at_line(data: bytes | np.ndarray) -> np.ndarray:
    """Bytes from a cache line on: these, or a copy."""
    whole = np.frombuffer(data, np.uint8)
    if whole.ctypes.data % LINE == 0:
        return whole
    made = take(len(whole))
    made[:] = whole
    return made
