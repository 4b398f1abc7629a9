"""Resizing: an image in, each output pixel the weighted sum of a few input pixels out.

Every mode is separable: per axis a table lists the places each output element reads and another their
weights. A nearest neighbour is one place without a weight and copies elements of any type. Where those of a
row lie next to each other they are picked in registers if their places repeat, else one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ...records import dataclass
from ..machines.machine import Machine
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import F32, I8, I16, I32, I64, PTR, V, vec
from ..write.expr import LLVM, Expr
from ..write.spec import Spec
from ..write.template import template
from .rows import Read, positions
from .sample import Block, Frame, Pixel, dot

MOST = 64
"""Taps of a pixel up to which they are written out."""

_PERIOD = 16
"""Elements after which places may repeat."""
_BLOCK = 1 << 14
"""Elements of an item where rows are copied as they are."""
_COPIES = 8
"""Of a row, written at once, at most."""
GRAIN = 1 << 14
_UNROLL = 8
_MASKED = 4
"""Bytes of elements from which on machines load and store vectors under masks."""
_RAW = {1: I8, 2: I16, 4: I32, 8: I64}


def table(along: Callable[[np.ndarray], np.ndarray], length: int, nearest: bool
          ) -> tuple[np.ndarray, np.ndarray]:
    """Places (int32) and weights (float32), each (out, taps), of one axis: `along` resizes the second axis of
    a matrix. A place of weight 0 is none: elements that read fewer places than others read their first one
    several times, by parts of its weight whose sum is exact, so that infinities stay what they are."""
    if nearest:
        one = along(np.arange(length, dtype=np.float64)[None]).astype(np.int32).reshape(-1, 1)
        return one, np.ones(one.shape, np.float32)
    matrix = along(np.eye(length)).T.astype(np.float32)
    read = (matrix != 0).sum(1)
    taps = max(int(read.max(initial=0)), 1)
    places = np.argsort(matrix != 0, axis=1, kind="stable")[:, length - taps:]
    missing = np.clip(taps - read, 0, taps - 1)[:, None]
    count = np.arange(taps)
    places = np.where(count < missing, np.take_along_axis(places, missing, 1), places)
    weights = np.take_along_axis(matrix, places, 1)
    parts = np.where(count <= missing, missing - np.maximum(count - 1, 0), 0)
    return np.ascontiguousarray(places, np.int32), np.ldexp(weights, -parts).astype(np.float32)


@template("")
def resize_taps(f: Body, *, rank: int, lanes: int, dtype: str, out: str, operands: tuple[Read, ...],
                after: Expr | None, taps: tuple[int, ...]) -> None:
    """Sums over `taps` places along each spatial axis; an axis with one place has no weights.

    Arguments: the frame's, then the input's address and strides (image, spatial axes), per axis the table of
    places (int32, output element by output element), and per axis with several the table of weights
    (float32).
    """
    copies = all(t == 1 for t in taps)
    frame = Frame(f, rank, lanes, dtype if copies else "float32", out, operands, after)
    x, strides = frame.cell(PTR), frame.cells(rank + 1)
    places = frame.cells(rank, PTR)
    weights = [frame.cell(PTR) if t > 1 else None for t in taps]
    elem = LLVM[dtype]

    def along(axis: int, at: V) -> list[tuple[V, V | None]]:
        """(offset, weight) of each tap of an output element."""
        count, table = taps[axis], weights[axis]
        return [(f.cast(f.load(I32, places[axis], at * count + j), I64) * strides[axis + 1],
                 None if table is None else f.load(F32, table, at * count + j)) for j in range(count)]

    def row(at: Sequence[V]) -> Pixel:
        lines: list[tuple[V, V | None]] = [(dot(at[:1], strides), None)]
        for axis, i in enumerate(at[1:]):
            steps = along(axis, i)
            lines = [(o + p, _times(w, v)) for o, w in lines for p, v in steps]
        starts = [(f.gep(x, o, elem), w) for o, w in lines]

        def pixel(w: V) -> Block:
            steps = along(rank - 1, w)
            points = [(f.gep(p, o, elem), _times(u, v)) for p, u in starts for o, v in steps]

            def block(c: V, vectors: int, mask: V | None) -> list[V]:
                found: list[V] = []
                for j in range(vectors):
                    total: V | None = None
                    for p, weight in points:
                        value = frame.load(p, (dtype, 1), c + j * lanes if j else c, mask)
                        if weight is None:
                            total = value
                        else:
                            value = convert(f, value, dtype, "float32")
                            total = value * weight if total is None else f.fma(value, weight, total)
                    assert total is not None
                    found.append(total)
                return found
            return block
        return pixel
    frame.each(row)


def _times(a: V | None, b: V | None) -> V | None:
    if a is None or b is None:
        return a if b is None else b
    return a * b


@template("out:ptr x:ptr places:ptr weights:ptr length:i64 wide:i64")
def resize_axis(f: Body, out: V, x: V, places: V, weights: V, length: V, wide: V, *, dtype: str, taps: int,
                along: bool) -> None:
    """One axis of an array in C order, as float32: sums over `taps` places, each rounded before the next is
    added.

    With `along`, items are rows: `length` elements from `wide`, both tables tap by tap. Else items are
    (outer, element), the tables element by element, and there is one more argument: the elements that lie
    together, which all go by the same places and weights.
    """
    elem, lanes = LLVM[dtype], f.machine.lanes(4)

    def total(load: Callable[[int], V], weight: Callable[[int], V]) -> V:
        found: V | None = None
        for j in range(taps):
            part = convert(f, load(j), dtype, "float32") * weight(j)
            found = part if found is None else found + part
        assert found is not None
        return found

    def row(_: V, at: Sequence[V]) -> None:
        to, source = f.gep(out, at[0] * length, F32), f.gep(x, at[0] * wide, elem)

        def some(i: V, mask: V | None) -> None:
            def read(ty: str, table: V, j: int) -> V:
                begin = i + length * j if j else i
                return f.load_masked(vec(ty, lanes), table, begin, mask)
            made = total(lambda j: f.gather(elem, source, f.cast(read(I32, places, j), I64), mask=mask),
                         lambda j: read(F32, weights, j))
            f.store_masked(made, to, i, mask)
        whole = length & -lanes
        f.loop(0, whole, lanes, [], lambda i: some(i, None))
        f.when(whole < length, lambda: some(whole, f.mask(lanes, length - whole)))

    def element(_: V, at: Sequence[V]) -> None:
        together = f.arg(6, I64)
        to = f.gep(out, (at[0] * length + at[1]) * together, F32)
        lines, sizes = list[V](), list[V]()
        for j in range(taps):
            place = f.cast(f.load(I32, places, at[1] * taps + j), I64)
            lines.append(f.gep(x, (at[0] * wide + place) * together, elem))
            sizes.append(f.splat(f.load(F32, weights, at[1] * taps + j), lanes))

        def some(c: V, mask: V | None) -> None:
            ty = vec(elem, lanes)
            made = total(lambda j: f.load_masked(ty, lines[j], c, mask), lambda j: sizes[j])
            f.store_masked(made, to, c, mask)
        whole = together & -lanes
        f.loop(0, whole, lanes, [], lambda c: some(c, None))
        f.when(whole < together, lambda: some(whole, f.mask(lanes, together - whole)))
    if along:
        positions(f, [], row)
    else:
        positions(f, [length], element)


@dataclass(frozen=True)
class Picks:
    """Places in a row that repeat: of `offsets` elements the next reads `step` further on."""

    offsets: tuple[int, ...]
    step: int

    @property
    def read(self) -> int:
        """Elements of the vector that is read."""
        return 1 << self.offsets[-1].bit_length()

    def order(self, lanes: int) -> list[int]:
        """What each lane of a vector is picked from."""
        return [*self.offsets, *[0] * (lanes - len(self.offsets))]

    def fit(self, lanes: int) -> bool:
        """Whether a vector takes two periods at least."""
        return 2 * len(self.offsets) <= lanes and self.offsets[-1] + self.step < lanes

    def spread(self, lanes: int) -> Picks:
        """As many periods as read and write at most `lanes`."""
        period = len(self.offsets)
        times = min(lanes // period, (lanes - 1 - self.offsets[-1]) // self.step + 1)
        return Picks(tuple(o + t * self.step for t in range(times) for o in self.offsets), times * self.step)


def repeating(places: np.ndarray, lanes: int) -> Picks | None:
    """How ascending places repeat, if a vector takes two periods at least."""
    for period in range(1, min(_PERIOD, len(places) - 1, lanes // 2) + 1):
        steps = places[period:] - places[:-period]
        step, offsets = int(steps[0]), tuple(places[:period].tolist())
        found = Picks(offsets, step)
        if (steps == step).all() and step > 0 and list(offsets) == sorted(offsets) and found.fit(lanes):
            return found
    return None


@dataclass(frozen=True)
class Outside:
    """An axis around rows: its size, the strides of result and input, and the places it reads if not all."""

    size: int
    strides: tuple[int, int]
    places: np.ndarray | None = None


def nearest(machine: Machine, size: int, length: int, wide: int, places: np.ndarray | None,
            axes: Sequence[Outside]) -> tuple[Spec, list[int], list[np.ndarray], int, int]:
    """The kernel for rows of `length` elements of `size` bytes that read rows of `wide` at `places`, or all:
    its spec, the sizes and strides behind two addresses, the tables behind these, its items and their grain.
    """
    lanes = machine.lanes(size)
    picks = None if places is None else repeating(places, lanes)
    way = "copy" if places is None else "pick" if picks is not None else "each"
    outer, copies, apart = _rows(axes)
    cells = [length, wide, apart, *(axis.size for axis in outer[1:])]
    for i in range(2):
        cells += [axis.strides[i] for axis in outer]
    tables = [p for p in (places if way == "each" else None, *(axis.places for axis in outer))
              if p is not None]
    each = min(length, _BLOCK) if way == "copy" else length
    items = prod(axis.size for axis in outer) * (-(-length // _BLOCK) if way == "copy" else 1)
    spec = resize_nearest(size=size, way=way, picks=picks,
                          copies=copies, tables=tuple(axis.places is not None for axis in outer))
    return spec, cells, tables, items, max(1, GRAIN // (each * copies))


def _rows(axes: Sequence[Outside]) -> tuple[list[Outside], int, int]:
    """The axes around rows, as few as say the same, and how often each row is written and how far apart."""
    outer, copies, apart = list(axes) or [Outside(1, (0, 0))], 1, 0
    last = outer[-1]
    if last.places is not None:
        times = int((last.places == last.places[0]).sum())
        count, rest = divmod(last.size, times)
        if 1 < times <= _COPIES and not rest and (last.places == np.repeat(np.arange(count), times)).all():
            copies, apart = times, last.strides[0]
            outer[-1] = Outside(count, (times * apart, last.strides[1]))
    found: list[Outside] = []
    for axis in outer:
        over = found[-1] if found else None
        if over is not None and over.places is axis.places is None and (
                over.strides == (axis.size * axis.strides[0], axis.size * axis.strides[1])):
            found[-1] = Outside(over.size * axis.size, axis.strides)
        else:
            found.append(axis)
    return found, copies, apart


@template("out:ptr x:ptr length:i64 wide:i64 apart:i64")
def resize_nearest(f: Body, out: V, x: V, length: V, wide: V, apart: V, *, size: int, way: str,
                   picks: Picks | None, copies: int, tables: tuple[bool, ...]) -> None:
    """Each row is written `copies` times, `apart` elements from each other. Behind the cells: the sizes of
    the outer axes but for the first, the result's strides over these axes, the input's, the places in a row
    where there is a table, then those of each axis that has `tables`."""
    elem, count, begin = _RAW[size], len(tables), 5
    lanes = f.machine.lanes(size)
    sizes = [f.arg(begin + i, I64) for i in range(count - 1)]
    begin += count - 1
    strides = [[f.arg(begin + t * count + i, I64) for i in range(count)] for t in range(2)]
    begin += 2 * count
    rest = [f.arg(begin + i, PTR) for i in range(sum(tables) + (way == "each"))]
    own = rest.pop(0) if way == "each" else None
    found = [rest.pop(0) if wanted else None for wanted in tables]

    def item(_: V, at: Sequence[V]) -> None:
        to = from_ = f.i64(0)
        for i, table, a, b in zip(at, found, *strides, strict=False):
            to = to + i * a
            from_ = from_ + (i if table is None else f.cast(f.load(I32, table, i), I64)) * b
        first, source = f.gep(out, to, elem), f.gep(x, from_, elem)
        rows = [f.gep(first, apart * c, elem) if c else first for c in range(copies)]
        if way == "copy":
            begin = at[-1] * _BLOCK
            end = f.minimum(begin + _BLOCK, length)
            whole = begin + ((end - begin) & -lanes)
            f.loop(begin, whole, lanes, [], lambda i: put(f.load(vec(elem, lanes), source, i), rows, i))
            f.when(whole < end, lambda: kept(rows, source, whole, f.mask(lanes, end - whole)))
        elif way == "each":
            whole = length & -_UNROLL
            f.loop(0, whole, _UNROLL, [], lambda i: several(rows, source, i))
            f.loop(whole, length, 1, [], lambda i: one(rows, source, i))
        else:
            picked(rows, source)

    def put(value: V, rows: Sequence[V], i: V, mask: V | None = None) -> None:
        for row in rows:
            f.store_masked(value, row, i, mask)

    def kept(rows: Sequence[V], source: V, i: V, mask: V) -> None:
        put(f.load_masked(vec(elem, lanes), source, i, mask), rows, i, mask)

    def one(rows: Sequence[V], source: V, i: V) -> None:
        assert own is not None
        put(f.load(elem, source, f.cast(f.load(I32, own, i), I64)), rows, i)

    def several(rows: Sequence[V], source: V, i: V) -> None:
        for u in range(_UNROLL):
            one(rows, source, i + u)

    def picked(rows: Sequence[V], source: V) -> None:
        """Vectors of which the next writes over what is too much; at the end shorter ones and then single
        elements, or under masks where machines have these."""
        assert picks is not None
        i = j = f.i64(0)
        wanted = lanes
        while wanted == lanes or size < _MASKED and picks.fit(wanted):
            i, j = vectors(rows, source, picks.spread(wanted), wanted, i, j)
            wanted //= 2
        if size < _MASKED:
            f.loop(i, length, len(picks.offsets), [j], lambda i, j: period(rows, source, i, j))
            return
        most = picks.spread(lanes)
        made, read = len(most.offsets), most.read

        def some(i: V, j: V) -> V:
            there = f.mask(read, f.minimum(wide - j, read))
            x = f.load_masked(vec(elem, read), source, j, there)
            mask = f.mask(lanes, f.minimum(length - i, made))
            put(f.shuffle(x, None, most.order(lanes)), rows, i, mask)
            return j + most.step
        f.loop(i, length, made, [j], some)

    def vectors(rows: Sequence[V], source: V, picks: Picks, lanes: int, i: V, j: V) -> tuple[V, V]:
        """As many vectors of `lanes` as the row has from element `i` on, which reads `j`; where it ends."""
        made = len(picks.offsets)

        def whole(i: V, j: V) -> V:
            x = f.load(vec(elem, picks.read), source, j)
            put(f.shuffle(x, None, picks.order(lanes)), rows, i)
            return j + picks.step
        full = f.minimum((length - i - lanes + made) // made,
                         (wide - j - picks.read + picks.step) // picks.step)
        end = i + f.maximum(full, 0) * made
        (j,) = f.loop(i, end, made, [j], whole)
        return end, j

    def period(rows: Sequence[V], source: V, i: V, j: V) -> V:
        assert picks is not None
        for n, offset in enumerate(picks.offsets):
            def element(n: int = n, offset: int = offset) -> None:
                put(f.load(elem, source, j + offset), rows, i + n)
            f.when(i + n < length, element)
        return j + picks.step
    blocks = [(length + (_BLOCK - 1)) // _BLOCK] if way == "copy" else [f.i64(1)]
    positions(f, [*sizes, *blocks], item)
