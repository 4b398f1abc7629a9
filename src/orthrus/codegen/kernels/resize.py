"""Resizing: an image in, each output pixel the weighted sum of a few input pixels out.

Every mode is separable: per axis a table lists the places each output element reads and another their
weights. A nearest neighbour is one place without a weight and copies elements of any type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..write.body import Body
from ..write.convert import convert
from ..write.emit import F32, I32, I64, PTR, V
from ..write.expr import LLVM, Expr
from ..write.template import template
from .rows import Read
from .sample import Block, Frame, Pixel, dot

MOST = 64
"""Taps of a pixel up to which they are written out."""


def table(along: Callable[[np.ndarray], np.ndarray], length: int, nearest: bool
          ) -> tuple[np.ndarray, np.ndarray]:
    """Places (int32) and weights (float32), each (out, taps), of one axis: `along` resizes the second axis of
    a matrix. Elements that read fewer places than others get further ones of weight 0."""
    if nearest:
        one = along(np.arange(length, dtype=np.float64)[None]).astype(np.int32).reshape(-1, 1)
        return one, np.ones(one.shape, np.float32)
    matrix = along(np.eye(length))
    used = matrix != 0
    taps = max(int(used.sum(0).max(initial=0)), 1)
    places = np.argsort(~used, axis=0, kind="stable")[:taps].T
    weights = np.take_along_axis(matrix.T, places, 1)
    places = np.where(weights != 0, places, places[:, :1])
    return np.ascontiguousarray(places, np.int32), np.ascontiguousarray(weights, np.float32)


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
