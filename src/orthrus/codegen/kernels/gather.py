"""Elements by index: rows gathered and scattered, single elements picked and placed, running totals.

Indices are int32 or int64, may count from the back, and are checked before they are used: one out of range
sets `status` and reads or writes nothing outside. Elements that only move are integers of their size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..write.body import Body
from ..write.convert import convert
from ..write.emit import I1, I8, I16, I32, I64, V, vec
from ..write.expr import BYTES, LLVM
from ..write.template import template
from .rows import positions

RAW = {1: I8, 2: I16, 4: I32, 8: I64}
CHUNK = 1024
"""Elements of a row that an item scatters to."""


class Cells:
    """A kernel's arguments, read in order."""

    def __init__(self, f: Body, first: int) -> None:
        self.f, self.at = f, first

    def one(self, ty: str = I64) -> V:
        self.at += 1
        return self.f.arg(self.at - 1, ty)

    def several(self, count: int) -> list[V]:
        return [self.one() for _ in range(count)]


def dot(f: Body, at: Sequence[V], steps: Sequence[V]) -> V:
    total = f.i64(0)
    for i, s in zip(at, steps, strict=True):
        total = total + i * s
    return total


def _wrapped(f: Body, indices: V, at: V, dtype: str, size: V) -> tuple[V, V]:
    """The index at `at` counted from the front, and whether it is in range; 0 where it is not. One of a type
    without signs never counts from behind."""
    i = f.cast(f.load(LLVM[dtype], indices, at), I64)
    if not dtype.startswith("u"):
        i = f.select(i < 0, i + size, i)
    good = f.compare("lt", i, size, unsigned=True)
    return f.select(good, i, 0), good


def index_at(f: Body, status: V, indices: V, at: V, dtype: str, size: V) -> tuple[V, V]:
    """The same, and `status` set where it is not in range."""
    i, good = _wrapped(f, indices, at, dtype, size)
    f.when(good, lambda: None, lambda: f.store(f.const(I64, 1), status))
    return i, good


def _copied(f: Body, elem: str, lanes: int, source: V, target: V, count: V) -> None:
    """`count` elements next to each other."""
    ty = vec(elem, lanes)

    def vectors() -> None:
        whole = count & -lanes
        f.loop(0, whole, lanes, [], lambda i: f.store(f.load(ty, source, i), target, i))
        if elem in (I32, I64):
            def rest() -> None:
                mask = f.mask(lanes, count - whole)
                f.store_masked(f.load_masked(ty, source, whole, mask), target, whole, mask)
            f.when(whole < count, rest)
        else:
            f.loop(whole, count, 1, [], lambda i: f.store(f.load(elem, source, i), target, i))
    f.copied(elem, source, target, count, vectors)


@template("out:ptr x:ptr indices:ptr status:ptr count:i64 chunk:i64 step:i64")
def gather_rows(f: Body, out: V, x: V, indices: V, status: V, count: V, chunk: V, step: V, *, size: int,
                dtype: str, outer: int, parts: int, dims: int, inner: str) -> None:
    """out[outer..., j, row...] = x[outer..., *indices[outer..., j], row...] for `count` tuples of `parts`
    indices of type `dtype`, `chunk` of them an item; `step`: the result's stride from tuple to tuple.
    `inner`: along the last of a row's `dims` + 1 dimensions both are `unit`, or one is `strided`, or it is
    `one` element.

    Cells behind: outer sizes but for the first; strides over them of the result, of x and of the indices; per
    index the size and x's stride of its axis; a row's sizes; its strides in the result and in x."""
    cells, elem = Cells(f, 7), RAW[size]
    sizes = cells.several(outer - 1)
    steps = [cells.several(outer) for _ in range(3)]
    limits = [(cells.one(), cells.one()) for _ in range(parts)]
    row = cells.several(dims + 1)
    along = [cells.several(dims + 1) for _ in range(2)]
    lanes = f.machine.lanes(size)

    def item(_: V, at: Sequence[V]) -> None:
        place = at[:-1]
        target, source = (f.gep(b, dot(f, place, s), elem) for b, s in ((out, steps[0]), (x, steps[1])))
        mine = f.gep(indices, dot(f, place, steps[2]), LLVM[dtype])
        begin = at[-1] * chunk

        def one(j: V) -> None:
            offset = f.i64(0)
            for p, (limit, stride) in enumerate(limits):
                i, _ = index_at(f, status, mine, j * parts + p, dtype, limit)
                offset = offset + i * stride
            nest(0, f.gep(target, j * step, elem), f.gep(source, offset, elem))
        f.loop(begin, f.minimum(begin + chunk, count), 1, [], one)

    def nest(depth: int, target: V, source: V) -> None:
        if depth < dims:
            f.loop(0, row[depth], 1, [], lambda i: nest(
                depth + 1, f.gep(target, i * along[0][depth], elem),
                f.gep(source, i * along[1][depth], elem)))
        elif inner == "one":
            f.store(f.load(elem, source), target)
        elif inner == "unit":
            _copied(f, elem, lanes, source, target, row[depth])
        else:
            f.loop(0, row[depth], 1, [], lambda i: f.store(
                f.load(elem, source, i * along[1][depth]), target, i * along[0][depth]))
    positions(f, [*sizes, (count + (chunk - 1)) // chunk], item)


@template("out:ptr x:ptr indices:ptr status:ptr count:i64 limit:i64 axis:i64")
def pick_elements(f: Body, out: V, x: V, indices: V, status: V, count: V, limit: V, axis: V, *, size: int,
                  dtype: str, outer: int, unit: bool) -> None:
    """out[at, j] = x[at, j] moved along an axis of `limit` elements, `axis` apart, to indices[at, j]. `unit`:
    along j the result and the indices lie next to each other. Cells behind: outer sizes but for the first;
    strides over them and over j of the result, of x (0 for that axis) and of the indices."""
    cells, elem = Cells(f, 7), RAW[size]
    sizes = cells.several(outer - 1)
    steps = [cells.several(outer + 1) for _ in range(3)]
    lanes = f.machine.lanes(8) if unit else 4
    wide = f.splat(limit, lanes)

    def item(_: V, at: Sequence[V]) -> None:
        target, source = (f.gep(b, dot(f, at, s[:-1]), elem) for b, s in ((out, steps[0]), (x, steps[1])))
        mine = f.gep(indices, dot(f, at, steps[2][:-1]), LLVM[dtype])

        def one(j: V, fine: V) -> V:
            i, good = _wrapped(f, mine, j * steps[2][-1], dtype, limit)
            f.store(f.load(elem, source, j * steps[1][-1] + i * axis), target, j * steps[0][-1])
            return fine & good

        def several(j: V, fine: V) -> V:
            for u in range(lanes):
                fine = one(j + u, fine)
            return fine

        def vector(j: V, fine: V) -> V:
            i = f.load(vec(LLVM[dtype], lanes), mine, j)
            i = f.cast(i, I64)
            i = f.select(i < 0, i + wide, i)
            good = f.compare("lt", i, wide, unsigned=True)
            place = f.select(good, i, f.zero(wide.ty)) * f.splat(axis, lanes) + moves
            origin = f.gep(source, j * steps[1][-1], elem)
            if f.machine.arch == "riscv64":
                f.store(f.gather(elem, origin, place), target, j)
            else:  # one by one is faster than processors' gathers, by a third on Zen 4
                for u in range(lanes):
                    f.store(f.load(elem, origin, f.extract(place, u)), target, j + u)
            return fine & good
        moves = f.const(wide.ty, list(range(lanes))) * f.splat(steps[1][-1], lanes)
        whole, start = count & -lanes, f.const(I1, 1)
        (fine,) = f.loop(0, whole, lanes, [f.splat(start, lanes) if unit else start],
                         vector if unit else several)
        fine = f.reduce(fine, lambda a, b: a & b) if unit else fine
        (fine,) = f.loop(whole, count, 1, [fine], one)
        f.when(fine, lambda: None, lambda: f.store(f.const(I64, 1), status))
    positions(f, sizes, item)


def _both(f: Body, how: str, dtype: str, old: V, new: V) -> V:
    if how == "add":
        return old + new
    if how == "mul":
        return old * new
    if old.is_float:
        return f.maximum(old, new) if how == "max" else f.minimum(old, new)
    return f.select(f.compare("gt" if how == "max" else "lt", old, new, dtype.startswith("u")), old, new)


@template("out:ptr updates:ptr indices:ptr status:ptr count:i64 limit:i64 axis:i64")
def place_elements(f: Body, out: V, updates: V, indices: V, status: V, count: V, limit: V, axis: V, *,
                   element: str, how: str, dtype: str, outer: int) -> None:
    """updates[at, j] into, or with `how` folded into, out[at] at indices[at, j] along an axis; the last wins.
    Cells behind: outer sizes but for the first; strides over them of the result; and over them and j of the
    updates and the indices."""
    cells = Cells(f, 7)
    elem = RAW[BYTES[element]] if how == "none" else LLVM[element]
    sizes = cells.several(outer - 1)
    own = cells.several(outer)
    steps = [cells.several(outer + 1) for _ in range(2)]

    def item(_: V, at: Sequence[V]) -> None:
        target = f.gep(out, dot(f, at, own), elem)
        source = f.gep(updates, dot(f, at, steps[0][:-1]), elem)
        mine = f.gep(indices, dot(f, at, steps[1][:-1]), LLVM[dtype])

        def one(j: V) -> None:
            i, good = index_at(f, status, mine, j * steps[1][-1], dtype, limit)

            def write() -> None:
                new = f.load(elem, source, j * steps[0][-1])
                if how != "none":
                    new = _both(f, how, element, f.load(elem, target, i * axis), new)
                f.store(new, target, i * axis)
            f.when(good, write)
        f.loop(0, count, 1, [], one)
    positions(f, sizes, item)


@template("out:ptr updates:ptr indices:ptr status:ptr count:i64 width:i64")
def scatter_rows(f: Body, out: V, updates: V, indices: V, status: V, count: V, width: V, *, element: str,
                 how: str, dtype: str, parts: int, single: bool) -> None:
    """Row j of `updates` into, or with `how` folded into, the row of `out` that tuple j of `parts` indices
    names; the last wins. `single`: a row is one element. An item is a run of `CHUNK` elements of all rows.
    Cells behind: per index the size and the stride of its axis."""
    cells = Cells(f, 6)
    elem = RAW[BYTES[element]] if how == "none" else LLVM[element]
    limits = [(cells.one(), cells.one()) for _ in range(parts)]
    lanes = f.machine.lanes(BYTES[element])

    def item(i: V) -> None:
        begin = i * CHUNK
        length = f.minimum(begin + CHUNK, width) - begin

        def one(j: V) -> None:
            offset, fine = begin, None
            for p, (limit, stride) in enumerate(limits):
                index, good = index_at(f, status, indices, j * parts + p, dtype, limit)
                offset, fine = offset + index * stride, good if fine is None else fine & good
            target, source = f.gep(out, offset, elem), f.gep(updates, j * width + begin, elem)

            def write() -> None:
                if how == "none":
                    if single:
                        f.store(f.load(elem, source), target)
                    else:
                        _copied(f, elem, lanes, source, target, length)
                    return

                def fold(ty: str, at: V) -> None:
                    old, new = f.load(ty, target, at), f.load(ty, source, at)
                    f.store(_both(f, how, element, old, new), target, at)
                if single:
                    fold(elem, f.i64(0))
                    return
                whole = length & -lanes
                f.loop(0, whole, lanes, [], lambda at: fold(vec(elem, lanes), at))
                f.loop(whole, length, 1, [], lambda at: fold(elem, at))
            if fine is None:
                write()
            else:
                f.when(fine, write)
        f.loop(0, count, 1, [], one)
    f.loop(f.lo, f.hi, 1, [], item)


@template("out:ptr x:ptr length:i64 columns:i64 step:i64 apart:i64")
def running(f: Body, out: V, x: V, length: V, columns: V, step: V, apart: V, *, dtype: str, how: str,
            outer: int, exclusive: bool, across: int) -> None:
    """Totals (`add`) or products (`mul`) so far along an axis, in order: `step` and `apart` are its strides
    in the result and in x. `across`: an item is as many vectors of the `columns` next to each other; 0: one
    element. Cells behind: outer sizes but for the first, strides over them of the result and of x."""
    cells, elem = Cells(f, 6), LLVM[dtype]
    sizes = cells.several(outer - 1)
    steps = [cells.several(outer) for _ in range(2)]
    work = "float32" if dtype in ("float16", "bfloat16") else dtype
    lanes = f.machine.lanes(BYTES[work]) if across else 1
    start = f.const(vec(LLVM[work], lanes), 0 if how == "add" else 1)

    def item(_: V, at: Sequence[V]) -> None:
        place, column = list(at), f.i64(0)
        if across:
            column = place.pop() * (lanes * across)
        target, source = (f.gep(b, dot(f, place, s) + column, elem)
                          for b, s in zip((out, x), steps, strict=True))
        if not across:
            lines(target, source)
            return
        rest = columns - column
        f.when(rest < lanes * across, lambda: few(target, source, rest),
               lambda: lines(target, source, across))

    def few(target: V, source: V, rest: V) -> None:
        whole = rest & -lanes
        f.loop(0, whole, lanes, [], lambda j: lines(f.gep(target, j, elem), f.gep(source, j, elem)))
        f.when(whole < rest, lambda: lines(f.gep(target, whole, elem), f.gep(source, whole, elem),
                                           mask=f.mask(lanes, rest - whole)))

    def lines(target: V, source: V, count: int = 1, mask: V | None = None) -> None:
        """The totals of `count` vectors."""
        ty = vec(elem, lanes)

        def one(i: V, *totals: V) -> list[V]:
            made = []
            for j, now in enumerate(totals):
                from_, to = i * apart + j * lanes, i * step + j * lanes
                given = f.load_masked(ty, source, from_, mask)
                value = convert(f, given, dtype, work)
                total = now + value if how == "add" else now * value
                stored = convert(f, now if exclusive else total, work, dtype)
                f.store_masked(stored, target, to, mask)
                made.append(total)
            return made
        f.loop(0, length, 1, [start] * count, one)
    blocks = [(columns + (lanes * across - 1)) // (lanes * across)] if across else []
    positions(f, [*sizes, *blocks], item)
