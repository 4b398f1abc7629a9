"""The steps that write elements on a GPU: a tree over operands into a result.

In: tensors of any strides. Out: one step, over the axes that are left when those that lie behind each other
in every tensor are one. """

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...codegen.triton.kernels.elementwise import elementwise, elementwise_tiles
from ...codegen.write.expr import Expr
from ..tensor import Tensor
from ..walk import merged
from .walks import closed

if TYPE_CHECKING:
    from .lower import GpuLowering

BLOCK = 1024
"""Elements of a block of the flat form."""

_SMALL = 64
"""Elements of a block, where there are no more."""

TILE = 1 << 11
"""Elements of a tile, at most."""

_TURNED = 32
"""Rows and columns of a tile that is turned around."""

_SHORT = 16
"""Elements of a row below which the flat form is used."""


def store(lo: GpuLowering, out: Tensor, tree: Expr, operands: Sequence[Tensor]) -> None:
    """Write `tree` over `operands`, broadcast to the result's shape, into `out`."""
    if out.size == 0:
        return
    spread = [t.expand(out.shape) for t in operands]
    order = sorted(range(out.rank), key=lambda a: (-abs(out.strides[a]), a))
    shape = [out.shape[a] for a in order]
    axes = merged(shape, [[t.strides[a] for a in order] for t in (out, *spread)])
    sizes = [d for d, _ in axes] or [1]
    strides = list(zip(*(met for _, met in axes), strict=True)) or [()] * (1 + len(spread))
    every = [t.view(sizes, s or (1,)) for t, s in zip((out, *spread), strides, strict=True)]
    ended = tree.substitute(lambda leaf: Expr.leaf(leaf.value + 1, leaf.dtype))
    rows = _rows(every)
    if rows is None:
        closing, cells = closed(every[0], ended, every[1:], tree.dtype, [range(len(sizes))])
        block = BLOCK if out.size > _SMALL else _SMALL
        lo.step(elementwise(closing=closing, block=block), [*cells, out.size], -(-out.size // block))
        return
    last = len(sizes) - 1
    outer = [a for a in range(last) if a != rows]
    closing, cells = closed(every[0], ended, every[1:], tree.dtype, [outer, [rows], [last]])
    height, width = _tile(every, rows, bool(outer))
    items = math.prod(sizes[a] for a in outer) * -(-sizes[rows] // height) * -(-sizes[last] // width)
    lo.step(elementwise_tiles(closing=closing, rows=height, columns=width),
            [*cells, sizes[rows], sizes[last]], items)


def _rows(every: Sequence[Tensor]) -> int | None:
    """The axis beside the last one that tiles have: that of a tensor's neighbours, else the last but one.
    None
    for the flat form."""
    sizes = every[0].shape
    if len(sizes) < 2:
        return None
    crossed = _crossed(every)
    if crossed is not None:
        return crossed if min(sizes[crossed], sizes[-1]) >= _SHORT // 2 else None
    return len(sizes) - 2 if sizes[-1] >= _SHORT else None


def _crossed(every: Sequence[Tensor]) -> int | None:
    """The axis along which elements of a tensor that is not spread over it are neighbours, where these are
    not along the last one."""
    for t in every:
        if t.strides[-1] not in (0, 1):
            for axis in reversed(range(t.rank - 1)):
                if t.strides[axis] == 1:
                    return axis
    return None


def _tile(every: Sequence[Tensor], rows: int, outer: bool) -> tuple[int, int]:
    """Rows and columns of a tile. Where there are no `outer` axes its rows are not cut to those there are: a
    batch of any size has one kernel."""
    height, width = power(every[0].shape[rows]), power(every[0].shape[-1])
    if _crossed(every) is not None:
        return min(height, _TURNED), min(width, _TURNED)
    width = min(width, BLOCK)
    most = max(1, TILE // 2 // width)
    return min(height, most) if outer else most, width


def several(count: int, most: int) -> int:
    """How many of `count` things a block has, `most` of them at most: as many for whatever count there is, so
    that it needs no kernel of its own."""
    return max(1, most) if count > 1 else 1


def power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length() if size > 1 else 1
