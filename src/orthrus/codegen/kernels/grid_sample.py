"""Images read at computed places, in between by interpolation: where a grid of coordinates says, or all over
the bins of regions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..write import vmath
from ..write.arithmetic import fmod
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import F32, F64, I64, PTR, V
from ..write.expr import LLVM, Expr
from ..write.template import template
from .rows import Read
from .sample import Block, Frame, Pixel

CUBIC = -0.75
"""The parameter of Keys' cubic kernel."""
FAR = 1e9
"""Pixels outside of an image beyond which a coordinate need not be exact."""


@template("")
def grid_taps(f: Body, *, rank: int, lanes: int, dtype: str, out: str, operands: tuple[Read, ...],
              after: Expr | None, grid: str, mode: str, padding: str, ends: str) -> None:
    """Two spatial axes; coordinates, the last axis first, are numbers of pixels, or -1 to 1 are `ends`: the
    image's `edges` or the `centres` of its corner pixels. `mode`: nearest, linear or cubic. What lies outside
    is 0 (`zeros`), the nearest pixel (`border`) or the image mirrored there (`reflection`).

    Arguments: the frame's, then the input's address and strides (image, spatial axes), its sizes, and the
    grid's address and strides (image, spatial axes, coordinate).
    """
    frame = Frame(f, rank, lanes, dtype if mode == "nearest" else "float32", out, operands, after)
    x, steps = frame.cell(PTR), frame.cells(rank + 1)
    sizes = frame.cells(rank)
    places, strides = frame.cell(PTR), frame.cells(rank + 2)
    elem, coordinate = LLVM[dtype], LLVM[grid]

    def along(axis: int, at: V) -> list[tuple[V, V | None, V | None]]:
        """(offset, weight, whether it is inside) of each place along an axis that coordinate `at` reads."""
        size = f.cast(sizes[axis], F32)
        last = size - 1.0
        half = f.const(F32, 0.5)
        where = at
        if ends == "centres":
            where = (at + 1.0) * half * last
        elif ends == "edges":
            where = ((at + 1.0) * size - 1.0) * half
        where = f.select(where.ne(where), f.const(F32, -1.0) - size, where)
        where = f.fast_max(f.fast_min(where, size + FAR), f.const(F32, -FAR) - size)

        def held(place: V) -> V:
            return f.fast_max(f.fast_min(place, last), 0.0)

        def mirrored(place: V) -> V:
            low, span = (0.0, last) if ends == "centres" else (-0.5, size)
            away, twice = vmath.abs(f, place - low), span + span
            (rest,) = f.when(away < twice, lambda: away, lambda: fmod(f, away, twice))
            return f.select(span > 0.0, f.select(rest > span, twice - rest, rest) + low, f.const(F32, low))
        if mode == "nearest":
            where = vmath.rint(f, where)
        elif mode == "linear" and padding == "border":
            where = held(where)
        elif mode == "linear" and padding == "reflection":
            where = held(mirrored(where))
        low = vmath.floor(f, where)
        found: list[tuple[V, V | None, V | None]] = []
        for step, weight in _weights(f, mode, where - low):
            place = low + float(step)
            if padding == "reflection":
                place = vmath.rint(f, mirrored(place))
            inside = (place >= 0.0) & (place <= last) if padding == "zeros" else None
            found.append((f.cast(held(place), I64) * steps[axis + 1], weight, inside))
        return found

    def row(at: Sequence[V]) -> Pixel:
        image = f.gep(x, at[0] * steps[0], elem)
        line = f.gep(places, at[0] * strides[0] + at[1] * strides[1], coordinate)

        def pixel(w: V) -> Block:
            given = [convert(f, f.load(coordinate, line, w * strides[2] + strides[3] * i), grid, "float32")
                     for i in (1, 0)]
            vertical, horizontal = along(0, given[0]), along(1, given[1])
            points = [(f.gep(image, a + b, elem), _both(u, v, operator.mul), _both(p, q, operator.and_))
                      for a, u, p in vertical for b, v, q in horizontal]

            def block(c: V, vectors: int, mask: V | None) -> list[V]:
                found: list[V] = []
                for j in range(vectors):
                    total: V | None = None
                    for point, weight, inside in points:
                        value = frame.load(point, (dtype, 1), c + j * lanes if j else c, mask)
                        if inside is not None:
                            value = f.select(inside, value, f.zero(value.ty))
                        if weight is not None:
                            value = convert(f, value, dtype, "float32")
                            value = value * weight if total is None else f.fma(value, weight, total)
                        total = value
                    assert total is not None
                    found.append(total)
                return found
            return block
        return pixel
    frame.each(row)


def _weights(f: Body, mode: str, part: V) -> list[tuple[int, V | None]]:
    """Of each pixel that is read, counted from the one below, the weight; `part`: how far above that one."""
    if mode == "nearest":
        return [(0, None)]
    rest = f.const(F32, 1.0) - part
    if mode == "linear":
        return [(0, rest), (1, part)]
    a = CUBIC

    def near(x: V) -> V:
        return (x * (a + 2) - (a + 3)) * x * x + 1.0

    def far(x: V) -> V:
        return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a
    return [(-1, far(part + 1.0)), (0, near(part)), (1, near(rest)), (2, far(rest + 1.0))]


def _both(a: V | None, b: V | None, joined: Callable[[V, V], V]) -> V | None:
    return None if a is None or b is None else joined(a, b)


MOST_SAMPLES = 1 << 52
"""Samples along an axis beyond which their places are no distinct numbers; such a region is empty."""


FAR_PIXEL = 2.0 ** 30
"""Pixels from a map beyond which a corner of a region is where it may."""


class _Regions:
    """What kernels over regions share: the frame, whose images are regions, then the map's address and
    strides (image, spatial axes), how many images it has, its sizes, how many rows of bins a region has, the
    regions' address and strides (region, number), `status` and what corners are multiplied with. Where a
    region names no image `status` becomes 1."""

    def __init__(self, f: Body, rank: int, lanes: int, dtype: str, out: str, operands: tuple[Read, ...],
                 after: Expr | None, regions: str) -> None:
        frame = self.frame = Frame(f, rank, lanes, "float32", out, operands, after)
        self.f, self.dtype, self.regions = f, dtype, regions
        self.x, self.steps, self.images = frame.cell(PTR), frame.cells(rank + 1), frame.cell(I64)
        self.sizes, self.bins = frame.cells(rank), [frame.cell(I64), frame.width]
        self.places, self.strides = frame.cell(PTR), frame.cells(2)
        self.status, self.scale = frame.cell(PTR), frame.cell(F32)

    def number(self, region: V, column: int) -> V:
        """A region's number, as float32."""
        f = self.f
        at = region * self.strides[0] + self.strides[1] * column
        return convert(f, f.load(LLVM[self.regions], self.places, at), self.regions, "float32")

    def image(self, index: V) -> tuple[V, V]:
        """Where an image begins, and whether there is one of that number; the first where there is not."""
        f = self.f
        good = f.compare("lt", index, self.images, unsigned=True)
        f.when(good, lambda: None, lambda: f.store(f.i64(1), self.status))
        return f.gep(self.x, f.select(good, index, f.i64(0)) * self.steps[0], LLVM[self.dtype]), good

    def values(self, at: V, c: V, vectors: int, mask: V | None) -> list[V]:
        """Vectors of a pixel's channels, as float32."""
        frame, lanes = self.frame, self.frame.lanes
        return [convert(self.f, frame.load(at, (self.dtype, 1), c + j * lanes if j else c, mask), self.dtype,
                        "float32") for j in range(vectors)]

    def start(self, vectors: int, value: V) -> list[V]:
        return [self.f.splat(value, self.frame.lanes)] * vectors


def _within(f: Body, x: V, most: V) -> V:
    """A float64 as a whole number from 0 to `most`."""
    return f.cast(f.fast_max(f.fast_min(x, f.cast(most, F64)), 0.0), I64)


@template("")
def region_samples(f: Body, *, rank: int, lanes: int, dtype: str, out: str, operands: tuple[Read, ...],
                   after: Expr | None, regions: str, index: str, kind: str, half: bool) -> None:
    """Of each bin of a region (two opposite corners) the mean of bilinear samples (`average`), or the largest
    of the samples' four weighted corners (`max`); a sample off the map is 0. `half`: regions are moved by
    half a pixel, and may be smaller than one. Places of samples are float64, so that which of them lie on the
    map is what the definition says.

    Arguments: those of `_Regions`; samples of a bin along each axis, 0 for as many as the bin has pixels; the
    address and stride of the number of each region's image.
    """
    samples = _Samples(_Regions(f, rank, lanes, dtype, out, operands, after, regions), index, kind, half)
    samples.it.frame.each(samples.row)


class _Bin(NamedTuple):
    """A bin of a region: where its image begins; along both axes where the region begins, how far samples are
    apart, and the first sample that may be on the map and the one behind the last."""

    image: V
    starts: tuple[V, V]
    apart: tuple[V, V]
    rows: tuple[V, V]
    columns: tuple[V, V]


class _Channels(NamedTuple):
    """Vectors of channels from `first` on, of a pixel."""

    first: V
    vectors: int
    mask: V | None


class _Samples:
    """A kernel `region_samples` as it is written."""

    def __init__(self, it: _Regions, index: str, kind: str, half: bool) -> None:
        self.it, self.f, self.index, self.kind, self.half = it, it.f, index, kind, half
        self.ratio, self.images, self.stride = it.frame.cell(I64), it.frame.cell(PTR), it.frame.cell(I64)
        self.one, self.none = it.f.const(F64, 1.0), it.f.const(F64, 0.0)

    # places

    def along(self, low: V, high: V, bins: V, size: V) -> tuple[V, V, V, Callable[[V], tuple[V, V, V]]]:
        """Along an axis whether there is a sample, how many a bin has, how far they are apart; and for a bin
        its first sample and the one behind the last that may be on the map, and whether all are on it."""
        f = self.f
        length = high - low
        if not self.half:
            length = f.fast_max(length, 1.0)
        needed = f.fast_max(f.fast_min(vmath.ceil(f, length / f.cast(bins, F32)), 2.0 ** 53), 0.0)
        per = f.select(self.ratio > 0, self.ratio, f.cast(needed, I64))
        some = (per > 0) & (f.cast(per, F64) * f.cast(bins, F64) <= float(MOST_SAMPLES))
        per = f.select(some, per, f.i64(1))
        total = per * bins
        step = f.cast(length, F64) / f.cast(total, F64)
        start, growing = f.cast(low, F64), step > 0.0
        apart = f.select(growing, step, self.one)
        first = _within(f, vmath.ceil(f, (-1.0 - start) / apart - 0.5) - 1.0, total)
        last = _within(f, vmath.floor(f, (f.cast(size, F64) - start) / apart - 0.5) + 2.0, total)
        first, last = f.select(growing, first, f.i64(0)), f.select(growing, last, total)

        def of(place: V) -> tuple[V, V, V]:
            begin = place * per
            end = begin + per
            _, _, _, head = self.sample(start, step, begin, size)
            _, _, _, tail = self.sample(start, step, end - 1, size)
            return f.maximum(begin, first), f.minimum(end, last), head & tail
        return some, per, step, of

    def sample(self, start: V, step: V, k: V, size: V) -> tuple[V, V, V, V]:
        """The pixels below and above a sample, how far it is from the one below, whether it is on the map."""
        f, none = self.f, self.none
        at = start + (f.cast(k, F64) + 0.5) * step
        inside = (at >= -1.0) & (at <= f.cast(size, F64))
        at = f.select(inside & (at > 0.0), at, none)
        low = f.minimum(f.cast(at, I64), size - 1)
        edge = low.eq(size - 1)
        return low, f.select(edge, low, low + 1), f.select(edge, none, at - f.cast(low, F64)), inside

    # bins

    def row(self, at: Sequence[V]) -> Pixel:
        """The bins of a region that lie side by side."""
        f, it, largest = self.f, self.it, self.kind == "max"
        region = at[0]
        image, good = it.image(f.cast(f.load(LLVM[self.index], self.images, region * self.stride), I64))
        ends = [it.number(region, i) * it.scale - (0.5 if self.half else 0.0) for i in range(4)]
        for end in (*ends, ends[2] - ends[0], ends[3] - ends[1]):
            good = good & (vmath.abs(f, end) < math.inf)
        ends = [f.select(good, end, f.const(F32, 0)) for end in ends]
        (tall, down, apart_y, bins_y), (wide, across, apart_x, bins_x) = (
            self.along(ends[1 - a], ends[3 - a], it.bins[a], it.sizes[a]) for a in (0, 1))
        good = good & tall & wide
        start_y, start_x = (f.cast(end, F64) for end in (ends[1], ends[0]))
        top, bottom, whole = bins_y(at[1])
        share = f.cast(self.one / (f.cast(down, F64) * f.cast(across, F64)), F32)
        begin = f.const(F32, 0)

        def pixel(w: V) -> Block:
            left, right, entire = bins_x(w)
            lowest = f.select(good & whole & entire, f.const(F32, -math.inf), begin) if largest else begin
            here = _Bin(image, (start_y, start_x), (apart_y, apart_x), (top, bottom), (left, right))

            def block(c: V, vectors: int, mask: V | None) -> list[V]:
                channels = _Channels(c, vectors, mask)
                start = it.start(vectors, lowest)
                made = f.when(good, lambda: f.loop(*here.rows, 1, start, lambda k, *now: self.line(
                    here, channels, k, now)), lambda: start)
                return made if largest else [x * share for x in made]
            return block
        return pixel

    def line(self, here: _Bin, channels: _Channels, k: V, now: Sequence[V]) -> list[V]:
        """What is `now`, with the samples of line `k`."""
        f, it = self.f, self.it
        low, high, part, there = self.sample(here.starts[0], here.apart[0], k, it.sizes[0])
        lines = [(f.gep(here.image, p * it.steps[1], LLVM[it.dtype]), v)
                 for p, v in ((low, self.one - part), (high, part))]

        def all_of(start: list[V]) -> list[V]:
            return f.loop(*here.columns, 1, start,
                          lambda k, *now: self.corners(here, channels, lines, k, now))
        return f.when(there, lambda: self.more(channels, now, all_of), lambda: list(now))

    def corners(self, here: _Bin, channels: _Channels, lines: Sequence[tuple[V, V]], k: V, now: Sequence[V]
                ) -> list[V]:
        """What is `now`, with the pixels around sample `k` of a line, which lie in two `lines` of the map."""
        f, it = self.f, self.it
        low, high, part, there = self.sample(here.starts[1], here.apart[1], k, it.sizes[1])

        def four(found: list[V]) -> list[V]:
            for base, v in lines:
                for p, u in ((low, self.one - part), (high, part)):
                    found = self.joined(channels, found, f.gep(base, p * it.steps[2], LLVM[it.dtype]), v * u)
            return found
        return f.when(there, lambda: self.more(channels, now, four), lambda: list(now))

    def more(self, channels: _Channels, now: Sequence[V], made: Callable[[list[V]], list[V]]) -> list[V]:
        """What is `made` from `now` on; sums by themselves: a large one swallows small terms."""
        if self.kind == "max":
            return made(list(now))
        start = self.it.start(channels.vectors, self.f.const(F32, 0))
        return [s + x for s, x in zip(now, made(start), strict=True)]

    def joined(self, channels: _Channels, now: Sequence[V], at: V, weight: V) -> list[V]:
        """What is `now`, with the pixel at an address."""
        f = self.f
        values, factor = self.it.values(at, *channels), f.splat(f.cast(weight, F32), self.it.frame.lanes)
        return [f.maximum(s, x * factor) if self.kind == "max" else f.fma(x, factor, s)
                for s, x in zip(now, values, strict=True)]


@template("")
def region_windows(f: Body, *, rank: int, lanes: int, dtype: str, out: str, operands: tuple[Read, ...],
                   after: Expr | None, regions: str) -> None:
    """The largest number in each bin of a region (the number of its image, two opposite corners); 0 where a
    bin has no pixel of the map. Where a region's number is not finite `status` becomes 1.

    Arguments: those of `_Regions`.
    """
    it = _Regions(f, rank, lanes, dtype, out, operands, after, regions)

    def nearest(corner: V) -> V:
        """The pixel at a corner, halves away from zero."""
        at = f.fast_max(f.fast_min(corner * it.scale, FAR_PIXEL), -FAR_PIXEL)
        whole = vmath.trunc(f, at)
        more = f.select(at < 0.0, f.i64(-1), f.i64(1))
        return f.cast(whole, I64) + f.select(vmath.abs(f, at - whole) >= 0.5, more, f.i64(0))

    def along(low: V, high: V, bins: V, size: V) -> Callable[[V], tuple[V, V]]:
        """For a bin along an axis its first pixel, and the one behind its last."""
        first, last = nearest(low), nearest(high)
        step = f.cast(f.maximum(last - first + 1, 1), F32) / f.cast(bins, F32)

        def held(place: V) -> V:
            return f.minimum(f.maximum(f.cast(place, I64) + first, 0), size)

        def of(place: V) -> tuple[V, V]:
            begin, end = f.cast(place, F32) * step, f.cast(place + 1, F32) * step
            return held(vmath.floor(f, begin)), held(vmath.ceil(f, end))
        return of

    def row(at: Sequence[V]) -> Pixel:
        named, *ends = (it.number(at[0], i) for i in range(5))
        good = f.const("i1", 1)
        for end in (named, *ends):
            good = good & (vmath.abs(f, end) < math.inf)
        held = f.fast_max(f.fast_min(named, 2.0 ** 62), -(2.0 ** 62))
        image, _ = it.image(f.select(good, f.cast(f.select(good, held, f.const(F32, 0)), I64), f.i64(-1)))
        ends = [f.select(good, end, f.const(F32, 0)) for end in ends]
        top, bottom = along(ends[1], ends[3], it.bins[0], it.sizes[0])(at[1])
        columns = along(ends[0], ends[2], it.bins[1], it.sizes[1])

        def pixel(w: V) -> Block:
            left, right = columns(w)
            some = (top < bottom) & (left < right)
            lowest = f.select(some, f.const(F32, -math.inf), f.const(F32, 0))

            def block(c: V, vectors: int, mask: V | None) -> list[V]:
                def line(y: V, *now: V) -> list[V]:
                    base = f.gep(image, y * it.steps[1], LLVM[dtype])
                    return f.loop(left, right, 1, list(now), lambda x, *now: [
                        f.maximum(s, v) for s, v in zip(now, it.values(
                            f.gep(base, x * it.steps[2], LLVM[dtype]), c, vectors, mask), strict=True)])
                return f.loop(top, bottom, 1, it.start(vectors, lowest), line)
            return block
        return pixel
    it.frame.each(row)
