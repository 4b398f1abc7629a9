"""Images whose output elements each come from a few places of the input: the frame that pooling and resizing
share.

Images are channels-last: a vector holds neighbouring channels of one pixel. A work item is one row of output
pixels, or of it a `chunk` of the channels. Where a row of pixels reads follows from tables per axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from ..machines.machine import Machine
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import I64, PTR, V, vec
from ..write.expr import BYTES, LLVM, Expr
from .rows import Read, cell_of, closed, positions

Block = Callable[[V, int, "V | None"], Sequence[V]]
"""(first channel, vectors, mask of the last one or None) to the values of those vectors."""
Pixel = Callable[[V], Block]
Row = Callable[[Sequence[V]], Pixel]

GROUP = 4
"""Vectors of channels that pass through a pixel's taps together."""
_GRAIN = 1 << 14


class Frame:
    """The loops over output rows, pixels and channels. Arguments: the width of a row, channels, channels of
    an item, sizes of the spatial axes but the last, then for the output and each operand its address and
    strides (image, then spatial axes). `cell` reads what follows. `dtype`: of the blocks' values; `out`: of
    the output."""

    def __init__(self, f: Body, rank: int, lanes: int, dtype: str, out: str, operands: tuple[Read, ...],
                 after: Expr | None) -> None:
        self.f, self.rank, self.lanes, self.dtype, self.after = f, rank, lanes, dtype, after
        self.next = 0
        self.width, self.channels, self.chunk = self.cell(I64), self.cell(I64), self.cell(I64)
        self.sizes = [self.cell(I64) for _ in range(rank - 1)]
        self.tensors = [(out, 1), *operands]
        self.places = [(self.cell(PTR), self.cells(rank + 1)) for _ in self.tensors]

    def cell(self, ty: str) -> V:
        """The next argument."""
        self.next += 1
        return self.f.arg(self.next - 1, ty)

    def cells(self, count: int, ty: str = I64) -> list[V]:
        """The next arguments."""
        return [self.cell(ty) for _ in range(count)]

    def each(self, row: Row) -> None:
        """Write all items. `row(place)`, with the image and the outer spatial places, gives `pixel(w)`, which
        gives `block(channel, vectors, mask)`."""
        f = self.f
        parts = (self.channels + (self.chunk - 1)) // self.chunk

        def item(i: V, at: Sequence[V]) -> None:
            begin = at[-1] * self.chunk
            end = f.minimum(begin + self.chunk, self.channels)
            bases = [self._offset(t, at[:-1]) for t in range(len(self.tensors))]
            pixel = row(at[:-1])

            def one(w: V) -> None:
                block = pixel(w)
                here = [f.gep(b, w * strides[-1], cell_of(dtype))
                        for b, (_, strides), (dtype, _) in zip(bases, self.places, self.tensors, strict=True)]
                def blocks(c: V, vectors: int, mask: V | None = None) -> None:
                    self._store(here, c, mask, block(c, vectors, mask))
                many, whole = (begin + ((end - begin) & -(n * self.lanes)) for n in (GROUP, 1))
                f.loop(begin, many, GROUP * self.lanes, (), lambda c: blocks(c, GROUP))
                f.loop(many, whole, self.lanes, (), lambda c: blocks(c, 1))
                if self.lanes > 1:
                    f.when(whole < end, lambda: blocks(whole, 1, f.mask(self.lanes, end - whole)))
            f.loop(0, self.width, 1, (), one)
        positions(f, [*self.sizes, parts], item)

    def _offset(self, t: int, at: Sequence[V]) -> V:
        pointer, strides = self.places[t]
        return self.f.gep(pointer, dot(at, strides), cell_of(self.tensors[t][0]))

    def _store(self, here: Sequence[V], c: V, mask: V | None, values: Sequence[V]) -> None:
        f = self.f
        for j, x in enumerate(values):
            at = c + j * self.lanes if j else c
            dtype = self.dtype
            if self.after is not None:
                x = closed(f, self.after, x, dtype, partial(self._operand, here, at, mask))
                dtype = self.after.dtype
            x = convert(f, x, dtype, self.tensors[0][0])
            f.store_masked(x, here[0], at, mask)

    def _operand(self, here: Sequence[V], at: V, mask: V | None, i: int) -> V:
        return self.load(here[i], self.tensors[i], at, mask)

    def load(self, base: V, kind: Read, at: V, mask: V | None) -> V:
        """A vector of channels from `at` on, in the tensor's own type."""
        dtype, unit = kind
        if not unit:
            return self.f.splat(self.f.load(LLVM[dtype], base, 0), self.lanes)
        return self.f.load_masked(vec(LLVM[dtype], self.lanes), base, at, mask)


def dot(at: Sequence[V], strides: Sequence[V]) -> V:
    """The offset of a place; strides beyond the place's axes are left out."""
    total = at[0] * strides[0]
    for i, stride in zip(at[1:], strides[1:], strict=False):
        total = total + i * stride
    return total


def lanes_for(machine: Machine, dtype: str) -> int:
    """Channels a vector takes."""
    return machine.lanes(max(BYTES[dtype], 4) if dtype in ("float16", "bfloat16") else BYTES[dtype])


def frame_cells(out: tuple[int, ...], channels: int, lanes: int, tensors: Sequence[Any],
                strides: Sequence[Sequence[int]]) -> tuple[list[Any], int, int]:
    """The frame's arguments, the items and the grain, for `out` = (images, spatial...): `tensors` are the
    output and the operands, `strides` theirs along those."""
    images, *spatial = out
    rows = images * prod(spatial[:-1])
    chunk = GROUP * lanes if rows < 16 and channels > GROUP * lanes else channels
    cells: list[Any] = [spatial[-1], channels, chunk, *spatial[:-1]]
    for tensor, steps in zip(tensors, strides, strict=True):
        cells += [tensor, *steps]
    return cells, rows * -(-channels // chunk), max(1, _GRAIN // max(1, spatial[-1] * min(chunk, channels)))
