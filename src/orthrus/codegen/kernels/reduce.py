"""Reductions: a tree over strided tensors and the axes to fold in, one number per remaining position out.

A vector holds either neighbours of one run that is folded (`along`), whose lanes are folded at the end, or
the same place of as many results that lie next to each other (`across`). Of short runs (`abreast`) the lanes
of as many as a vector has are folded together, and give a vector of results; runs of a few elements without
gaps are read whole and dealt to vectors as of `across`, which are folded as the lanes would be. Sums of
floats are made of runs of 16 per accumulator, several accumulators side by side, and what rounding takes from
a total is carried on: the error does not grow with the number of elements, and the order does not depend on
how the items are divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...records import dataclass
from ..machines.machine import Machine
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import F32, I32, I64, PTR, V, vec
from ..write.expr import BYTES, LLVM, Expr, emit
from ..write.template import template
from .loops import picked, side_by_side
from .rows import Read, cell_of, closed, merged, positions

RUN = 16
"""Elements an accumulator takes before it goes into the total."""

FEW = 8
"""Elements of a run that is read whole, at most."""
SHORT = 8
"""Vectors of a run whose lanes are folded with those of others, at most."""
GRAIN = 1 << 14
_FLOATS = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class ReduceForm:
    """How a kernel walks. `outer`: dimensions that count items; `inner`: folded dimensions around the
    innermost; `across`: lanes are results, `width` vectors of them, and with `ragged` the last ones are not
    full; `few`: the elements of runs without gaps, 0 where lanes lie otherwise; `abreast`: short runs whose
    results are a vector, where `ragged` is as across."""

    outer: int
    inner: int
    across: bool
    width: int = 1
    ragged: bool = False
    few: int = 0
    abreast: bool = False

    @property
    def laned(self) -> bool:
        """Whether results lie in lanes."""
        return self.across or self.abreast


@dataclass(frozen=True, slots=True)
class ReduceWalk:
    """A `ReduceForm` with its sizes. `steps`: per tensor its strides over the outer dimensions, then of what
    is read those over the inner ones, and where across the innermost, where abreast from run to run; `units`:
    per tensor its stride between lanes. `outer`, `inner`: the sizes that `steps` go with; the first `reads`
    tensors are read."""

    form: ReduceForm
    sizes: tuple[int, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    units: tuple[int, ...]
    reads: int
    items: int
    grain: int

    def loops(self, tensor: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """By which sizes and strides the elements of a tensor are met."""
        strides = self.steps[tensor]
        sizes = (*self.outer, *self.inner)[:len(strides)]
        across = self.form.across or tensor >= self.reads
        lanes = 1 if across and not self.form.laned else self.sizes[across]
        return (*sizes, lanes), (*strides, self.units[tensor])

    def cells(self, tensors: Sequence[Any]) -> list[Any]:
        """A kernel's arguments."""
        out: list[Any] = list(self.sizes)
        for tensor, steps in zip(tensors, self.steps, strict=True):
            out += [tensor, *steps]
        return out


def plan(machine: Machine, shape: Sequence[int], axes: Sequence[int], strides: Sequence[Sequence[int]],
         reads: int, size: int) -> ReduceWalk | None:
    """The walk over tensors that all have `shape`, the first `reads` of them read and the last written,
    folded along `axes`, where the others have stride 0. `size`: bytes of a number. None where no dimension of
    one element after the other is common to what is read."""
    lanes = machine.lanes(size)
    steps = [tuple(0 if d == 1 else s for d, s in zip(shape, t, strict=True)) for t in strides]
    order = sorted((a for a, d in enumerate(shape) if d != 1), key=lambda a: (-steps[0][a], a))
    kept = merged(shape, [a for a in order if a not in axes], steps)
    folded = merged(shape, [a for a in order if a in axes], steps)
    length, last = folded.pop() if folded else (1, (0,) * len(steps))
    columns, width, ragged, few, abreast = 0, 1, False, 0, False
    along = last[0] == 1 and all(s in (0, 1) for s in last[:reads])
    units = (*last[:reads], *(0 for _ in steps[reads:]))
    if not along:
        at = next((i for i, (_, s) in enumerate(kept)
                   if s[0] == s[-1] == 1 and all(u in (0, 1) for u in s)), None)
        if at is not None:
            columns, units = kept.pop(at)
            vectors = -(-columns // lanes)
            most = 8 if machine.registers >= 32 and vectors >= 16 else 4
            width = next(w for w in (most, 4, 2, 1) if vectors >= w)
            ragged = columns % (lanes * width) != 0
        elif length > 1:
            return None
    elif 1 < length <= FEW and size >= 4:
        at = next((i for i, (_, s) in enumerate(kept) if s[0] == length and s[-1] == 1
                   and all(pitch in (0, length * step) for pitch, step in zip(s[:reads], last, strict=False))
                   and all(u in (0, 1) for u in s[reads:])), None)
        if at is not None:
            columns, units = kept.pop(at)
            ragged, few = columns % lanes != 0, length
    innermost, runs = last, length * math.prod(d for d, _ in folded)
    if along and not few and size >= 4 and length > 1 and runs <= SHORT * lanes:
        at = next((i for i, (d, s) in enumerate(kept)
                   if d >= lanes and s[-1] == 1 and all(u in (0, 1) for u in s[reads:])), None)
        if at is not None:
            columns, innermost = kept.pop(at)
            units = (*last[:reads], *innermost[reads:])
            ragged, abreast = columns % lanes != 0, True
    laned = columns > 0
    form = ReduceForm(max(len(kept), 1), len(folded), laned and not abreast, width, ragged, few, abreast)
    rows = [d for d, _ in kept] or [1]
    sizes = (length, *((columns,) if laned else ()), *(d for d, _ in folded), *rows[1:])
    found = tuple((*([s[t] for _, s in kept] or [0]),
                   *((*(s[t] for _, s in folded), *((innermost[t],) if laned else ())) if t < reads else ()))
                  for t in range(len(steps)))
    items = math.prod(rows) * (-(-columns // (lanes * width)) if laned else 1)
    inner = (*(d for d, _ in folded), *((columns if abreast else length,) if laned else ()))
    return ReduceWalk(form, sizes, tuple(rows), inner, found, units, reads, items,
                max(1, GRAIN * math.prod(rows) // max(1, math.prod(shape))) if not laned else
                max(1, GRAIN // (runs * min(columns, lanes * width))))


class Fold:
    """How elements become one: vectors carried (`start`), an element taken (`step`), two results joined."""

    def __init__(self, f: Body, kind: str, dtype: str, lanes: int) -> None:
        self.f, self.kind, self.dtype = f, kind, dtype
        self.unsigned = dtype.startswith(("u", "bool"))
        ty = vec(LLVM[dtype], lanes)
        first = {"sum": 0, "prod": 1}.get(kind)
        self.start = [f.const(ty, _bound(dtype, kind == "max") if first is None else first)]
        self.total = [*self.start, f.const(ty, 0)] if self.compensated else self.start

    @property
    def compensated(self) -> bool:
        return self.kind == "sum" and self.dtype in _FLOATS

    def step(self, now: Sequence[V], x: V, index: V) -> list[V]:
        return [self._both(now[0], x)]

    def _both(self, a: V, b: V) -> V:
        f = self.f
        if self.kind == "sum":
            return a + b
        if self.kind == "prod":
            return a * b
        if a.is_float:
            return f.maximum(a, b) if self.kind == "max" else f.minimum(a, b)
        return f.select(f.compare("gt" if self.kind == "max" else "lt", a, b, self.unsigned), a, b)

    def join(self, a: Sequence[V], b: Sequence[V]) -> list[V]:
        return [self._both(a[0], b[0])]

    def gather(self, total: Sequence[V], part: Sequence[V]) -> list[V]:
        """`part` into what is carried from run to run."""
        if not self.compensated:
            return self.join(total, part)
        less = part[0] - total[1]
        more = total[0] + less
        lost = (more - total[0]) - less
        return [more, self.f.select((more - more).eq(0), lost, 0)]

    def result(self, total: Sequence[V]) -> V:
        return total[0]


class Best(Fold):
    """Which element is the largest: carried are its key, a signed integer, and its index. NaN is the largest
    of all; of several the first, or with `last` the last."""

    def __init__(self, f: Body, kind: str, dtype: str, lanes: int) -> None:
        self.f, self.dtype = f, dtype
        self.least, self.last = "min" in kind, "last" in kind
        self.elem = {"float32": I32, "float64": I64}.get(dtype, LLVM[dtype])
        low = -(1 << 8 * BYTES[dtype] - 1)
        self.start = self.total = [f.const(vec(self.elem, lanes), low),
                                   f.const(vec(I32, lanes), -1 if self.last else (1 << 31) - 1)]

    @property
    def compensated(self) -> bool:
        return False

    def step(self, now: Sequence[V], x: V, index: V) -> list[V]:
        key = order_key(self.f, x, self.dtype, self.least)
        better = key >= now[0] if self.last else key > now[0]
        return [self.f.select(better, key, now[0]), self.f.select(better, index, now[1])]

    def join(self, a: Sequence[V], b: Sequence[V]) -> list[V]:
        f = self.f
        nearer = b[1] > a[1] if self.last else b[1] < a[1]
        better = (b[0] > a[0]) | (b[0].eq(a[0]) & nearer)
        return [f.select(better, b[0], a[0]), f.select(better, b[1], a[1])]

    def result(self, total: Sequence[V]) -> V:
        found = total[1]
        return self.f.cast(self.f.select(found.eq((1 << 31) - 1), 0, found), I64)


def order_key(f: Body, x: V, dtype: str, least: bool) -> V:
    """A signed integer that grows with `x`, or with `least` falls; of NaN the largest there is."""
    if not x.is_float:
        bits = 8 * BYTES[dtype]
        key = x ^ -(1 << bits - 1) if dtype.startswith("u") else x
        return ~key if least else key
    elem, bits = (I32, 32) if x.elem == F32 else (I64, 64)
    most = (1 << bits - 1) - 1
    raw = f.bitcast(x + 0.0, vec(elem, x.lanes))
    key = raw ^ ((raw >> bits - 1) & most)
    return f.select(x.ne(x), f.const(key.ty, most), ~key if least else key)


def _bound(dtype: str, lowest: bool) -> Any:
    if dtype in _FLOATS:
        return -math.inf if lowest else math.inf
    bits = 8 * BYTES[dtype]
    if dtype.startswith("u"):
        return 0 if lowest else -1
    return -(1 << bits - 1) if lowest else (1 << bits - 1) - 1


@template("")
def reduce_axes(f: Body, *, form: ReduceForm, kind: str, reads: tuple[Read, ...], tree: Expr,
                operands: tuple[Read, ...], out: str, after: Expr | None) -> None:
    """`kind` (`sum`, `prod`, `max`, `min`, or `arg max`, `arg min`, `arg max last`, `arg min last`) of `tree`
    over the tensors `reads`; of those that runs without gaps are read from, the stride from lane to lane is
    what a run has. `after`, over the result and `operands`, gives what is stored as `out`."""
    made = _Reduction(f, form, kind, reads, tree, operands, out, after)
    results = made.lanes * form.width
    blocks = [(made.columns + (results - 1)) // results] if form.laned else []
    positions(f, [*made.sizes, *blocks], made.item)


class _Tensor(NamedTuple):
    """An argument: its address, and its strides over the outer, the inner and the innermost dimensions."""

    base: V
    outer: list[V]
    inner: list[V]
    step: V


class _Reduction:
    """A kernel `reduce_axes` as it is written. What is folded so far is a list of vectors: those of the fold,
    for each of the `width` vectors of results."""

    bases: list[V]
    masks: list[V | None]
    left: V
    """Of the item that is being written: where its tensors begin, which lanes of each vector of results there
    are, and how many results are left."""

    def __init__(self, f: Body, form: ReduceForm, kind: str, reads: tuple[Read, ...], tree: Expr,
                 operands: tuple[Read, ...], out: str, after: Expr | None) -> None:
        dtype, by_number = tree.dtype, kind.startswith("arg")
        self.f, self.form, self.reads, self.tree, self.operands = f, form, reads, tree, operands
        self.out, self.after, self.own = out, after, "int64" if by_number else dtype
        self.lanes = lanes = f.machine.lanes(BYTES[dtype])
        self.fold = fold = Best(f, kind, dtype, lanes) if by_number else Fold(f, kind, dtype, lanes)
        self.chains = max(1, (8 if tree.size() <= 3 and len(fold.start) == 1 else 4) // form.width)
        counted = iter(range(1 << 10))

        def cell(ty: str = I64) -> V:
            return f.arg(next(counted), ty)

        self.length = cell()
        self.columns = cell() if form.laned else f.i64(0)
        self.inner = [cell() for _ in range(form.inner)]
        self.sizes = [cell() for _ in range(form.outer - 1)]
        self.tensors = list[_Tensor]()
        for i in range(len(reads) + len(operands) + 1):
            base, outer = cell(PTR), [cell() for _ in range(form.outer)]
            around = [cell() for _ in range(form.inner)] if i < len(reads) else []
            self.tensors.append(_Tensor(
                base, outer, around, cell() if form.laned and i < len(reads) else f.i64(1)))
        self.kinds: list[Read] = [*reads, *operands, (out, int(form.laned))]
        self.iota = f.const(vec(I32, lanes), list(range(lanes)))
        self.step, self.count = 1 if form.across else lanes, len(fold.start)
        self.beside = min(form.width if form.across else self.chains, 16 // BYTES[dtype])
        self.together = (self.beside > 1 and self.count == 1 and not form.ragged
                         and side_by_side(f.machine, tree))
        self.begin = [s for _ in range(form.width) for s in fold.start]

    def item(self, number: V, at: Sequence[V]) -> None:
        """The results of one position, or `width` vectors of them."""
        f, form, lanes, fold = self.f, self.form, self.lanes, self.fold
        place, column = list(at), f.i64(0)
        self.masks = [None] * form.width
        if form.laned:
            column = place.pop() * (lanes * form.width)
            self.left = self.columns - column
            if form.ragged:
                self.masks = [f.mask(lanes, f.minimum(self.left - w * lanes, lanes))
                              for w in range(form.width)]
        self.bases = []
        for i, (tensor, (kind, unit)) in enumerate(zip(self.tensors, self.kinds, strict=True)):
            offset = f.i64(0)
            for p, s in zip(place, tensor.outer, strict=True):
                offset = offset + p * s
            if form.abreast and i < len(self.reads):
                offset = offset + column * tensor.step
            elif form.laned and unit:
                offset = offset + column * unit
            self.bases.append(f.gep(tensor.base, offset, cell_of(kind)))
        if form.abreast:
            results = [self.abreast()]
        else:
            total = self.nest(0, self.bases[:len(self.reads)],
                              [t for _ in range(form.width) for t in fold.total])
            results = _split(total, len(fold.total))
        if not form.laned:
            whole = f.splat(fold.result(_folded(f, fold, results[0], lanes)), lanes)
            f.store(f.extract(self.stored(whole, 0), 0), self.bases[-1])
            return
        for w, one in enumerate(results):
            f.store_masked(self.stored(fold.result(one), w), self.bases[-1], w * lanes, self.masks[w])

    def stored(self, x: V, w: int) -> V:
        """Vector `w` of the results, as it is stored."""
        def read(i: int) -> V:
            base, kind = self.bases[len(self.reads) + i - 1], self.operands[i - 1]
            return self.load(base, kind, w * self.lanes if self.form.laned and kind[1] else 0, self.masks[w])
        if self.after is None:
            return convert(self.f, x, self.own, self.out)
        return convert(self.f, closed(self.f, self.after, x, self.own, read), self.after.dtype, self.out)

    def load(self, base: V, kind: Read, at: V | int, mask: V | None) -> V:
        """A vector of a tensor, or its one number in all lanes."""
        name, unit = kind
        if not unit:
            return self.f.splat(self.f.load(LLVM[name], base, at if self.form.across else 0), self.lanes)
        return self.f.load_masked(vec(LLVM[name], self.lanes), base, at, mask)

    # loops

    def nest(self, depth: int, bases: Sequence[V], total: Sequence[V]) -> list[V]:
        """The total with what the inner dimensions from `depth` on have."""
        if depth == self.form.inner:
            inside = self.runs if self.form.few else self.short if self.form.abreast else self.run
            return inside(bases, total)

        def again(i: V, *now: V) -> list[V]:
            return self.nest(depth + 1, [self.f.gep(b, i * t.inner[depth], cell_of(k[0])) for b, t, k in zip(
                bases, self.tensors, self.reads, strict=False)], now)
        return self.f.loop(0, self.inner[depth], 1, total, again)

    def run(self, bases: Sequence[V], total: Sequence[V]) -> list[V]:
        """The total with the innermost dimension, in parts of `RUN` elements per accumulator."""
        f, fold, begin, chains, step = self.f, self.fold, self.begin, self.chains, self.step
        across, lanes = self.form.across, self.lanes

        def part(at: V, *now: V) -> list[V]:
            end = f.minimum(at + RUN * chains * step, self.length)
            whole = at + ((end - at) & -(chains * step))
            state = f.loop(at, whole, chains * step, begin * chains,
                           lambda i, *s: self.taken_chains(bases, i, s))
            rest = f.loop(whole, end, step, state[:len(begin)], lambda i, *s: self.taken(
                bases, i, s, None if across else f.mask(lanes, f.minimum(end - i, lanes))))
            parts = [rest, *_split(state, len(begin))[1:]]
            while len(parts) > 1:
                parts = [[v for a, b in zip(_split(x, self.count), _split(y, self.count), strict=True)
                          for v in fold.join(a, b)] for x, y in zip(parts[::2], parts[1::2], strict=True)]
            return [v for a, b in zip(_split(now, len(fold.total)), _split(parts[0], self.count), strict=True)
                    for v in fold.gather(a, b)]
        return f.loop(0, self.length, RUN * chains * step, total, part)

    def runs(self, bases: Sequence[V], total: Sequence[V]) -> list[V]:
        """The total with runs of a few elements, folded as the lanes of one would be."""
        f, fold = self.f, self.fold
        given = [self.dealt(b, k, t.step) for b, k, t in zip(bases, self.reads, self.tensors, strict=False)]
        now = [fold.step(fold.start, emit(f, self.tree, each), f.splat(f.const(I32, c), self.lanes))
               for c, each in enumerate(zip(*given, strict=True))]
        while len(now) > 1:
            half = 1 << (len(now) - 1).bit_length() - 1
            alone = now[len(now) - half:half]
            now = [fold.join(a, b) for a, b in zip(now, now[half:], strict=False)] + alone
        return fold.gather(total, now[0])

    def short(self, bases: Sequence[V], total: Sequence[V]) -> list[V]:
        """The total with the innermost dimension of one short run."""
        f, lanes, length = self.f, self.lanes, self.length
        whole = length & -lanes
        state = f.loop(0, whole, lanes, self.begin, lambda i, *s: self.taken(bases, i, s, None))
        state = f.loop(whole, length, lanes, state,
                       lambda i, *s: self.taken(bases, i, s, f.mask(lanes, length - i)))
        return self.fold.gather(total, state) if self.form.inner else [*state, *total[self.count:]]

    def abreast(self) -> list[V]:
        """The results of as many short runs as there are lanes, each run's lanes put by until all are
        there."""
        f, fold, lanes = self.f, self.fold, self.lanes
        rooms = [f.alloca(t.ty, lanes) for t in fold.start]

        def one(row: V) -> list[V]:
            at = [f.gep(b, row * t.step, cell_of(k[0]))
                  for b, t, k in zip(self.bases, self.tensors, self.reads, strict=False)]
            for room, made in zip(rooms, self.nest(0, at, fold.total), strict=False):
                f.store(made, room, row * lanes)
            return []
        f.loop(0, f.minimum(self.left, lanes) if self.form.ragged else lanes, 1, [], one)
        return _folded_abreast(f, fold, [[f.load(t.ty, room, row * lanes) for room, t in
                                          zip(rooms, fold.start, strict=True)] for row in range(lanes)])

    def dealt(self, base: V, kind: Read, step: V) -> list[V]:
        """Per element of a run the vector of all runs."""
        f, few, lanes = self.f, self.form.few, self.lanes
        name, unit = kind
        if not unit:
            return [f.splat(f.load(LLVM[name], base, step * c), lanes) for c in range(few)]
        parts, ty = list[V](), vec(LLVM[name], lanes)
        for j in range(few):
            mask = f.mask(lanes, self.left * few - j * lanes) if self.form.ragged else None
            parts.append(f.load_masked(ty, base, j * lanes, mask))
        return [picked(f, parts, [divmod(row * few + c, lanes) for row in range(lanes)]) for c in range(few)]

    # steps

    def taken_chains(self, bases: Sequence[V], i: V, now: Sequence[V]) -> list[V]:
        """`now`, accumulators of several chains one after another, with the elements from `i` on."""
        if self.together and not self.form.across:
            return self.taken_together(bases, i, now)

        def one(at: V, state: Sequence[V]) -> list[V]:
            if self.together:
                return self.taken_together(bases, at, state)
            return self.taken(bases, at, state, None)
        return [v for c, state in enumerate(_split(now, len(self.begin)))
                for v in one(i + c * self.step, state)]

    def taken(self, bases: Sequence[V], i: V, now: Sequence[V], tail: V | None) -> list[V]:
        """`now` with element `i` of all results, or with the lanes `tail` of the elements from `i` on."""
        f, across, lanes = self.f, self.form.across, self.lanes
        index = f.splat(f.cast(i, I32), lanes)
        index = index if across else index + self.iota
        out = list[V]()
        for w, one in enumerate(_split(now, self.count)):
            given = [self.load(b, k, i * t.step + (w * lanes if k[1] else 0) if across else i,
                               self.masks[w] if across else tail)
                     for b, k, t in zip(bases, self.reads, self.tensors, strict=False)]
            made = self.fold.step(one, emit(f, self.tree, given), index)
            if tail is not None:
                made = [f.select(tail, m, o) for m, o in zip(made, one, strict=True)]
            out += made
        return out

    def taken_together(self, bases: Sequence[V], i: V, now: Sequence[V]) -> list[V]:
        """As `taken`, of neighbouring vectors whose trees are computed side by side."""
        f, across, lanes, beside = self.f, self.form.across, self.lanes, self.beside
        made, wide = list[V](), lanes * beside
        for first in range(0, len(now), beside):
            given = []
            for b, (name, unit), t in zip(bases, self.reads, self.tensors, strict=False):
                at = i * t.step if across else i
                given.append(f.load(vec(LLVM[name], wide), b, at + first * lanes) if unit else
                             f.splat(f.load(LLVM[name], b, at if across else 0), wide))
            x = emit(f, self.tree, given)
            made += [self.fold.step([one], f.shuffle(x, None, range(w * lanes, (w + 1) * lanes)), i)[0]
                     for w, one in enumerate(now[first:first + beside])]
        return made


def _split(flat: Sequence[V], each: int) -> list[list[V]]:
    return [list(flat[i:i + each]) for i in range(0, len(flat), each)]


def _folded(f: Body, fold: Fold, total: Sequence[V], lanes: int) -> list[V]:
    """The lanes joined, halves first, as numbers."""
    now = total[:len(fold.start)]
    while lanes > 2:
        # halves are vectors of their own: of shuffles within a whole one, LLVM 22 loses the last before
        # arithmetic on integers of one lane
        lanes //= 2
        low, high = ([f.shuffle(v, None, range(at, at + lanes)) for v in now] for at in (0, lanes))
        now = fold.join(low, high)
    ends = [[f.extract(v, i) for v in now] for i in range(lanes)]
    return fold.join(*ends) if lanes == 2 else ends[0]


def _folded_abreast(f: Body, fold: Fold, rows: Sequence[Sequence[V]]) -> list[V]:
    """As many vectors as each has lanes, the lanes of each joined as `_folded` does: a lane for each."""
    now, lanes = [list(row) for row in rows], len(rows)
    parts = lanes
    while parts > 1:
        # a vector holds lanes / parts rows with so many parts each; of two such vectors the first halves of
        # all rows meet the second ones
        low = [at + i for at in range(0, 2 * lanes, parts) for i in range(parts // 2)]
        high = [at + parts // 2 for at in low]
        now = [fold.join(*([f.shuffle(a, b, half) for a, b in zip(one, other, strict=True)]
                           for half in (low, high)))
               for one, other in zip(now[::2], now[1::2], strict=True)]
        parts //= 2
    return now[0]
