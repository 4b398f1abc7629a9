"""GridSample: output pixels read an image where a grid of coordinates says, in between by interpolation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from ..write import vmath
from ..write.arithmetic import fmod
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import F32, I64, PTR, V
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
