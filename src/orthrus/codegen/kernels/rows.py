"""The frame of softmax, layer normalization and their like: rows of a strided tensor, each changed by numbers
that the whole row gives.

A row runs along the axes that are reduced. Its elements either lie next to each other (`along`), or a vector
holds the same place of as many rows that lie next to each other (`across`), or several places of all of them
(`among`) where half its lanes would be empty. Before its first use an element passes a tree of elementwise
operations, and another one before it is stored, so that scales, masks, residuals and affine parts cost no
pass over memory. What has to be kept between two passes stays in registers where the row is short, else in
this thread's scratch.

Arithmetic is float32, or float64 where that is read. Kernels take, in this order: the walk's sizes, then per
tensor its address and strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...records import dataclass
from ...shapes.symbolic import memo
from ..machines.machine import Machine
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import I64, PTR, V, vec
from ..write.expr import BYTES, LLVM, Expr, emit

UNROLL = 4
_GRAIN = 1 << 14
_CHUNK = 256
"""Vectors after which partial sums go into the row's total."""
COUNTED = 1 << 24
"""Elements that float32 counts."""

Read = tuple[str, int]
"""A tensor as a kernel reads or writes it: numpy's type name and its stride from lane to lane, 0 or 1."""
Step = Callable[["RowPlace", V], V]
Steps = Callable[["RowPlace", list[V]], list[V]]
Combine = Callable[[V, V], V]


@dataclass(frozen=True, slots=True)
class RowForm:
    """How a kernel walks its rows. `outer`: dimensions that count rows; `across`: lanes are rows, and with
    `ragged` the last vector is not full; `among`: how many rows a vector holds several places of, which count
    as one, else 0; `segments`: a row is made of several runs; `held`: vectors of a row that stays in
    registers, 0 where it goes through scratch; `dtype`: float32 or float64, in which numbers are computed."""

    outer: int = 1
    across: bool = False
    ragged: bool = False
    among: int = 0
    segments: bool = False
    held: int = 0
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class RowWalk:
    """A `RowForm` with its sizes: what `plan` finds out. `columns`: rows next to each other, 0 unless across;
    `outer`: sizes of the dimensions that count rows; `strides`: per tensor those of `outer`, then of segments
    where there are some, then from element to element where across."""

    form: RowForm
    length: int
    segments: int
    columns: int
    outer: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    lanes: tuple[int, ...]
    items: int
    grain: int
    scratch: int

    def loops(self, tensor: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """By which sizes and strides the elements of a tensor are met."""
        sizes = *self.outer, *([self.segments] if self.form.segments else []), self.length
        strides = self.strides[tensor]
        if self.form.across:
            return (*sizes, self.columns), (*strides, self.lanes[tensor])
        return sizes, (*strides, self.lanes[tensor])

    def cells(self, tensors: Sequence[Any]) -> list[Any]:
        """A kernel's arguments up to the last tensor."""
        form = self.form
        out: list[Any] = [self.length, *([self.segments] if form.segments else []),
                          *([self.columns] if form.across else []), *self.outer[1:]]
        for tensor, strides in zip(tensors, self.strides, strict=True):
            out += [tensor, *strides]
        return out


def plan(machine: Machine, shape: Sequence[int], reduced: Sequence[int], strides: Sequence[Sequence[int]],
         dtype: str = "float32", hold: bool = True) -> RowWalk | None:
    """The walk over the rows of tensors that all have `shape` and lie by `strides` (in elements; 0 where
    broadcast), the first being what is read and the last what is written. Where `hold`, rows that fit into
    half the registers stay there; `dtype`: in which numbers are computed. None where no kernel walks so: more
    than three dimensions count rows, a row has more than two levels, or no dimension has stride 1 or 0
    everywhere."""
    return _planned(machine, tuple(shape), tuple(reduced), tuple(map(tuple, strides)), dtype, hold)


@memo()
def _planned(machine: Machine, shape: tuple[int, ...], reduced: tuple[int, ...],
             strides: tuple[tuple[int, ...], ...], dtype: str, hold: bool) -> RowWalk | None:
    axes = [a for a, d in enumerate(shape) if d != 1]
    inner = sorted((a for a in axes if a in reduced), key=lambda a: (-strides[0][a], a))
    kept = merged(shape, [a for a in axes if a not in reduced], strides)
    rows = merged(shape, inner, strides)
    lanes, columns, blocks = machine.lanes(BYTES[dtype]), 0, 1
    length, steps = rows.pop() if rows else (1, (1,) * len(strides))
    across, units = not _unit(steps), steps
    if across:
        at = next((i for i, k in enumerate(kept) if _unit(k[1])), None)
        if at is None:
            return None
        columns, units = kept.pop(at)
        blocks = -(-columns // lanes)
    among = columns if _alternate(columns, length, steps, units, lanes) else 0
    if among:
        length, steps, across, columns, blocks = length * among, units, False, 0, 1
    if len(rows) > 1 or len(kept) > 3:
        return None
    vectors = length if across else -(-length // (lanes - lanes % among if among else lanes))
    form = RowForm(max(len(kept), 1), across, columns % lanes != 0, among, bool(rows),
                vectors if hold and not rows and vectors <= machine.registers // 2 else 0, dtype)
    size = length * (rows[0][0] if rows else 1)
    found = [(*([k[1][t] for k in kept] or [0]), *(r[1][t] for r in rows), *([steps[t]] if across else []))
             for t in range(len(strides))]
    return RowWalk(form, length, rows[0][0] if rows else 1, columns, tuple(k[0] for k in kept) or (1,),
                tuple(found), units if across else steps, math.prod(k[0] for k in kept) * blocks,
                max(1, _GRAIN // (size * (min(columns, lanes) if across else 1))),
                BYTES[dtype] * size * (lanes if across else 1))


def _alternate(columns: int, length: int, steps: tuple[int, ...], units: tuple[int, ...], lanes: int
               ) -> bool:
    """Whether so many rows next to each other, none of them broadcast, lie place after place, several of
    which a vector holds; all together no more than float32 counts."""
    return 1 < columns <= lanes // 2 and length * columns < COUNTED and all(
        unit and step == columns for unit, step in zip(units, steps, strict=True))


def number_cell(x: float, dtype: str) -> float | int:
    """A kernel's argument that `Rows.number` reads: a float is float32, the bits of a float64 are an int."""
    return int(np.float64(x).view(np.int64)) if dtype == "float64" else x


def _unit(strides: tuple[int, ...]) -> bool:
    return strides[0] == 1 and all(s in (0, 1) for s in strides)


def merged(shape: Sequence[int], axes: Sequence[int], strides: Sequence[Sequence[int]]
            ) -> list[tuple[int, tuple[int, ...]]]:
    """`axes` as (size, strides per tensor), neighbours made one where every tensor steps on evenly."""
    out: list[tuple[int, tuple[int, ...]]] = []
    for a in axes:
        size, steps = shape[a], tuple([s[a] for s in strides])
        if out and out[-1][1] == tuple([size * step for step in steps]):
            out[-1] = (out[-1][0] * size, steps)
        else:
            out.append((size, steps))
    return out


def cell_of(dtype: str) -> str:
    """The type that counts a tensor's elements in memory."""
    return "i8" if dtype == "bool" else LLVM[dtype]


def positions(f: Body, sizes: Sequence[V], body: Callable[[V, Sequence[V]], None]) -> None:
    """Run `body(item, place)` for a kernel's items: `place` counts the item's number in dimensions, all but
    the first of which have `sizes`."""
    rest, first = f.lo, list[V]()
    for size in reversed(sizes):
        first.insert(0, rest % size)
        rest = rest // size

    def item(i: V, *at: V) -> list[V]:
        body(i, at)
        carry, out = None, list[V]()
        for k in range(len(at) - 1, -1, -1):
            step = at[k] + 1 if carry is None else at[k] + f.cast(carry, I64)
            if k:
                carry = step.eq(sizes[k - 1]) if carry is None else step.eq(sizes[k - 1]) & carry
                step = f.select(carry, 0, step)
            out.insert(0, step)
        return out
    f.loop(f.lo, f.hi, 1, [rest, *first], item)


class RowPlace:
    """One vector of a row during a pass."""

    def __init__(self, rows: Rows, bases: Sequence[V], index: V | int, slot: V | int, mask: V | None) -> None:
        self.rows, self.bases, self.index, self.slot, self.mask = rows, bases, index, slot, mask

    def _at(self, tensor: int) -> V | int:
        rows = self.rows
        if not rows.form.across:
            return self.index if rows.tensors[tensor][1] else 0
        return rows.f.i64(self.index) * rows.steps[tensor]

    def read(self, tensor: int, other: float = 0) -> V:
        """The vector of a tensor; `other` in lanes outside the row."""
        rows, f = self.rows, self.rows.f
        dtype, unit = rows.tensors[tensor]
        base, at, elem = self.bases[tensor], self._at(tensor), LLVM[dtype]
        if not unit:
            return f.splat(f.load(elem, base, at), rows.lanes)
        return f.load_masked(vec(elem, rows.lanes), base, at, self.mask, other)

    def fetch(self, tensors: int, out: int) -> None:
        """Fetch what is written here later, and the same place of the next row of the first `tensors`: memory
        would rest while a row is computed."""
        rows, f = self.rows, self.rows.f
        f.prefetch(self.bases[out], self._at(out), cell_of(rows.tensors[out][0]), write=True)
        if rows.form.across or rows.form.segments:
            return
        for t in range(tensors):
            dtype, unit = rows.tensors[t]
            if unit:
                f.prefetch(self.bases[t], f.i64(self.index) + rows.strides[t][-1], cell_of(dtype))

    def write(self, tensor: int, x: V, dtype: str | None = None) -> None:
        """Store `x`, of type `dtype` or as numbers are computed, converted to the tensor's type."""
        f = self.rows.f
        x = convert(f, x, dtype or self.rows.form.dtype, self.rows.tensors[tensor][0])
        f.store_masked(x, self.bases[tensor], self._at(tensor), self.mask)

    def only(self, x: V, other: float) -> V:
        """`x`, but `other` in lanes outside the row; lanes that are rows of their own do not matter."""
        return x if self.mask is None or self.rows.form.across else self.rows.f.select(self.mask, x, other)

    def keep(self, x: V) -> None:
        """Keep a vector for a later pass."""
        rows = self.rows
        if rows.form.held:
            assert isinstance(self.index, int)
            rows.kept[self.index] = x
        elif self.mask is None or rows.form.across:
            rows.f.store(x, rows.f.scratch, self.slot, rows.align)
        else:
            rows.f.store_masked(x, rows.f.scratch, self.slot, self.mask)

    def kept(self, other: float = 0) -> V:
        """What an earlier pass kept here; `other` in lanes outside the row where the row is in scratch."""
        rows = self.rows
        if rows.form.held:
            assert isinstance(self.index, int)
            return rows.kept[self.index]
        ty = rows.vector
        if self.mask is None or rows.form.across:
            return rows.f.load(ty, rows.f.scratch, self.slot, rows.align)
        return rows.f.load_masked(ty, rows.f.scratch, self.slot, self.mask, other)


class Rows:
    """The loops of a kernel over its rows and over the vectors of each. The arguments are those of
    `RowWalk.cells`; `cell` reads what comes behind them."""

    def __init__(self, f: Body, form: RowForm, tensors: Sequence[Read]) -> None:
        self.f, self.form, self.tensors = f, form, tensors
        self.elem, self.lanes = LLVM[form.dtype], f.machine.lanes(BYTES[form.dtype])
        self.vector = vec(self.elem, self.lanes)
        self.align = f.machine.vector if form.across else 0
        self.none = f.const(self.vector, 0)
        self.width = self.lanes - self.lanes % form.among if form.among else self.lanes
        self.mask = None if self.width == self.lanes else f.mask(self.lanes, f.i64(self.width))
        self.kept: dict[int, V] = {}
        self.next = 0
        self.length = self.cell(I64)
        self.segments = self.cell(I64) if form.segments else f.i64(1)
        self.columns = self.cell(I64) if form.across else f.i64(0)
        self.outer = [self.cell(I64) for _ in range(form.outer - 1)]
        self.pointers: list[V] = []
        self.strides: list[list[V]] = []
        self.jumps: list[V] = []
        self.steps: list[V] = []
        for _ in tensors:
            self.pointers.append(self.cell(PTR))
            self.strides.append([self.cell(I64) for _ in range(form.outer)])
            if form.segments:
                self.jumps.append(self.cell(I64))
            if form.across:
                self.steps.append(self.cell(I64))
        total = self.length * self.segments
        self.count = f.cast(total // form.among if form.among else total, self.elem)
        self.tail: V | None = None
        if form.held and not form.across:
            self.tail = f.mask(self.lanes, self.length - (form.held - 1) * self.width)

    def cell(self, ty: str) -> V:
        self.next += 1
        return self.f.arg(self.next - 1, ty)

    def number(self) -> V:
        """The next argument, of the type in which numbers are computed; see `number_cell`."""
        return self.cell(self.elem)

    def each(self, body: Callable[[V], None]) -> None:
        """Run `body(item)` for every row, or vector of rows."""
        f = self.f
        sizes = list(self.outer)
        if self.form.across:
            sizes.append((self.columns + (self.lanes - 1)) // self.lanes)

        def item(i: V, at: Sequence[V]) -> None:
            self._enter(at)
            body(i)
        positions(f, sizes, item)

    def _enter(self, at: Sequence[V]) -> None:
        f = self.f
        column = None
        if self.form.across:
            column = at[-1] * self.lanes
            if self.form.ragged:
                self.mask = f.mask(self.lanes, f.minimum(self.columns - column, self.lanes))
        self.bases = []
        for t, (dtype, unit) in enumerate(self.tensors):
            offset = at[0] * self.strides[t][0]
            for i, stride in zip(at[1:], self.strides[t][1:], strict=False):
                offset = offset + i * stride
            if column is not None and unit:
                offset = offset + column
            self.bases.append(f.gep(self.pointers[t], offset, cell_of(dtype)))

    def sweep(self, step: Step, start: V | None = None, combine: Combine | None = None) -> V:
        """One pass over the row: `step(place, so far)` gives what is carried on, beginning with `start`.
        Returns the row's number in every lane, or where across each row's own; `combine` makes one vector of
        two, a sum where None. Without `start` nothing is carried."""
        if start is None:
            self._pass(lambda place, now: _done(step(place, self.none)), [], None)
            return self.none
        (found,) = self._pass(lambda place, now: [step(place, now[0])], [start], combine)
        return self._everywhere(found, combine)

    def totals(self, step: Steps, count: int) -> list[V]:
        """Several sums of one pass over the row, as `sweep` gives one: `step(place, so far)` gives them all.
        """
        return [self._everywhere(found, None) for found in self._pass(step, [self.none] * count, None)]

    def _everywhere(self, found: V, combine: Combine | None) -> V:
        """What lanes carried as their row's number in every lane; where across each lane is a row of its own.
        """
        f, among = self.f, self.form.among
        if not among:
            return found if self.form.across else f.splat(f.reduce(found, combine or _plus), self.lanes)
        places, other = self.width // among, list[V]()
        for ahead in range(places):
            other.append(f.shuffle(found, None, [
                lane % among + (lane // among + ahead) % places * among for lane in range(self.lanes)]))
        return _joined(other, combine)

    def _pass(self, step: Steps, start: list[V], combine: Combine | None) -> list[V]:
        f, form, across = self.f, self.form, self.form.across
        if form.held:
            ways = [list(start) for _ in range(min(UNROLL, form.held))]
            for j in range(form.held):
                mask = self.tail if not across and j == form.held - 1 else self.mask
                place = RowPlace(self, self.bases, j if across else j * self.width, 0, mask)
                ways[j % UNROLL] = step(place, ways[j % UNROLL])
            return [_joined([w[k] for w in ways], combine) for k in range(len(start))]
        chunk = _CHUNK * (1 if across else self.width)
        carried = [*start, *([f.const(s.ty, 0) for s in start] if combine is None else [])]

        def run(bases: Sequence[V], slot: V, given: Sequence[V]) -> list[V]:
            def part(at: V, *now: V) -> list[V]:
                end = f.minimum(at + chunk, self.length)
                return self._gathered(self._run(step, bases, slot, at, end, start), now, combine)
            return f.loop(0, self.length, chunk, given, part)

        def segment(j: V, *now: V) -> list[V]:
            bases = [f.gep(b, j * jump, cell_of(dtype))
                     for b, jump, (dtype, _) in zip(self.bases, self.jumps, self.tensors, strict=True)]
            return run(bases, j * self.length, now)
        if form.segments:
            carried = f.loop(0, self.segments, 1, carried, segment)
        else:
            carried = run(self.bases, f.i64(0), carried)
        return carried[:len(start)]

    def _gathered(self, parts: list[V], now: Sequence[V], combine: Combine | None) -> list[V]:
        """What is carried from chunk to chunk: sums with the part that rounding took, so that the error does
        not grow with their number."""
        count = len(now) if combine is not None else len(now) // 2
        joined = [_joined(parts[k::count], combine) for k in range(count)]
        if combine is not None:
            return [combine(part, so_far) for part, so_far in zip(joined, now, strict=True)]
        totals, losses = list[V](), list[V]()
        for part, so_far, lost in zip(joined, now[:count], now[count:], strict=True):
            more = part - lost
            total = so_far + more
            totals.append(total)
            losses.append(self.f.select((total - total).eq(0), (total - so_far) - more, 0))
        return totals + losses

    def _run(self, step: Steps, bases: Sequence[V], slot: V, begin: V, end: V, start: list[V]) -> list[V]:
        """The vectors from `begin` to `end`, `UNROLL` independent results; `slot`: where the run begins in
        scratch."""
        f, across, count = self.f, self.form.across, len(start)
        width = 1 if across else self.width

        def place(i: V, mask: V | None) -> RowPlace:
            at = slot + i
            return RowPlace(self, bases, i, at * self.lanes if across else at, mask)

        def several(i: V, *now: V) -> list[V]:
            return [v for j in range(UNROLL)
                    for v in step(place(i + j * width, self.mask), list(now[j * count:(j + 1) * count]))]

        def one(i: V, *now: V) -> list[V]:
            mask = self.mask if across else f.mask(self.lanes, f.minimum(end - i, self.width))
            return step(place(i, mask), list(now))
        whole = end - f.binary("urem", end - begin, f.i64(UNROLL * width))
        carried = f.loop(begin, whole, UNROLL * width, start * UNROLL, several)
        return f.loop(whole, end, width, carried[:count], one) + carried[count:]


def _done(_: V) -> list[V]:
    return []


def plain(tree: Expr) -> bool:
    """Whether a row is read again in each pass; what costs more than a conversion is kept in scratch."""
    return (tree.args[0] if tree.op == "cast" else tree).op == "leaf"


def closed(f: Body, tree: Expr, x: V, dtype: str, read: Callable[[int], V]) -> V:
    """`tree` of `x`, which is of type `dtype`, as leaf 0 and of what `read` gives for each further leaf."""
    kind = {leaf.value: leaf.dtype for leaf in tree.leaves()}
    first = convert(f, x, dtype, kind.get(0, dtype))
    return emit(f, tree, [read(i) if i and i in kind else first for i in range(max(kind, default=0) + 1)])


def _plus(a: V, b: V) -> V:
    return a + b


def _joined(parts: Sequence[V], combine: Combine | None) -> V:
    parts, both = list(parts), combine or _plus
    while len(parts) > 1:
        parts = [both(*parts[i:i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


class Ends:
    """The elementwise parts of a kernel: `tree` before, over the first `reads` tensors, and `after` behind,
    over the operands that follow. A plain value is read again in each pass; what costs more is kept."""

    def __init__(self, rows: Rows, tree: Expr, reads: int, after: Expr | None) -> None:
        self.rows, self.tree, self.after = rows, tree, after
        self.reads = reads
        self.again = not rows.form.held and plain(tree)

    def value(self, place: RowPlace) -> V:
        """The element as the row sees it."""
        read = {leaf.value: place.read(leaf.value) for leaf in self.tree.leaves()}
        inputs = [read.get(i, next(iter(read.values()))) for i in range(max(read) + 1)]
        f = self.rows.f
        return convert(f, emit(f, self.tree, inputs), self.tree.dtype, self.rows.form.dtype)

    def first(self, place: RowPlace) -> V:
        """The element in the first pass."""
        x = self.value(place)
        if not self.again:
            place.keep(x)
        return x

    def later(self, place: RowPlace) -> V:
        """The element in a pass that follows."""
        return self.value(place) if self.again else place.kept()

    def store(self, place: RowPlace, x: V, out: int) -> V:
        """Apply the closing tree and store; its operands stand between `reads` and `out`."""
        f = self.rows.f
        if self.after is None:
            place.write(out, x)
        else:
            place.write(out, closed(f, self.after, x, self.rows.form.dtype,
                                    lambda i: place.read(self.reads + i - 1)), self.after.dtype)
        return x


def tensors_of(dtypes: Sequence[str], walk: RowWalk) -> tuple[Read, ...]:
    """What a kernel for `walk` has to know of its tensors."""
    return tuple(zip(dtypes, walk.lanes, strict=True))
