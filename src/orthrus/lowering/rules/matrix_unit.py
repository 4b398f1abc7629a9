"""Convolutions and matrix products on a matrix unit: the steps of `codegen.kernels.amx`.

In: channels-last images or rows, constant second factors. Out: steps that split the first factor into planes
and multiply. `takes` says where that is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ...codegen.kernels import amx
from ...codegen.write.expr import Expr
from ...records import dataclass
from ...shapes.symbolic import choice
from ..lower import Lowering, Out
from ..tensor import Tensor
from ..walk import Walked

_ENOUGH = 2_000_000
"""Multiply-adds from which on splitting the first factor pays."""

_SPLIT_GRAIN = 1 << 15
"""Elements below which splitting is not divided among threads."""


@dataclass(frozen=True)
class Window:
    """A convolution's geometry: per spatial dimension (height, width)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begins: tuple[int, int]


def takes(lo: Lowering, m: int, n: int, k: int, run: int) -> bool:
    """Whether a product of (m, k) and (k, n) is faster here; `run`: elements of k that lie together."""
    return (lo.matrix_unit and run >= 24 and n >= 24 and m >= 16 and m * n * k >= _ENOUGH)


def conv(lo: Lowering, x: Tensor, key: Hashable, weights: Callable[[], np.ndarray], window: Window,
         out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
    """out (N, M, OH, OW) = x (N, C, H, W) * weights (M, C, KH, KW), both images channels-last."""
    images, c, _, _ = x.shape
    _, n, oh, ow = out.shape
    (kh, kw), (sh, sw), (dh, dw), (top, left) = window.kernel, window.strides, window.dilations, window.begins
    if (kh, kw, top, left) == (1, 1, 0, 0) and (sh, sw) != (1, 1):
        s = x.strides
        x = x.view((images, c, oh, ow), (s[0], s[1], s[2] * sh, s[3] * sw))
        sh = sw = 1
    high, wide = oh + (kh - 1) * dh // sh, ow + (kw - 1) * dw // sw
    chunks = -(-c // amx.CHUNK)
    phase = images * high * wide * amx.CHUNK
    phases = {(i * dh % sh, j * dw % sw): 0 for i in range(kh) for j in range(kw)}
    chunk_step = _apart(len(phases) * phase)
    plane = chunks * chunk_step + amx.PANEL * amx.CHUNK
    planes = lo.new((2 * plane,), "bfloat16")
    for at, (row, col) in enumerate(phases):
        phases[row, col] = at
        first, left_out = (row - top) % sh, (col - left) % sw
        rows, cols = -(-(x.shape[2] - first) // sh), -(-(x.shape[3] - left_out) // sw)
        above, before = (top + first - row) // sh, (left + left_out - col) // sw
        rows, cols = max(0, min(rows, high - above)), max(0, min(cols, wide - before))
        s = x.strides
        seen = x.view((images, c, rows, cols), (s[0], s[1], s[2] * sh, s[3] * sw),
                      first * s[2] + left_out * s[3] if rows and cols else 0)
        lo.step(amx.split(), [seen, Out(planes.view((1,), (1,), at * phase)), rows, cols, c, s[0], s[2] * sh,
                              s[3] * sw, above, before, high, wide, chunks, chunk_step, plane],
                images * high, max(1, _SPLIT_GRAIN // (wide * c)))
    offsets = tuple([2 * (phases[i * dh % sh, j * dw % sw] * phase
                          + amx.CHUNK * (i * dh // sh * wide + j * dw // sw))
                     for i in range(kh) for j in range(kw)])
    packed = lo.constant((amx.PACKED, key), lambda: amx.pack(
        weights().reshape(n, c, kh * kw).transpose(2, 1, 0), lo.machine))
    length, width, valid = (oh - 1) * wide + ow, wide, ow
    if wide == ow and all(t.joined(2, 4) is not None for t in (out, *operands)):
        width = valid = length
    _multiply(lo, planes, plane, chunk_step, images, length, high * wide, offsets, chunks, packed, n, width,
              valid, [(t, t.strides[0], t.strides[2], t.strides[3]) for t in (out, *operands)],
              [t.strides[1] for t in operands], tree)


def product(lo: Lowering, a: Tensor, key: Hashable, weights: Callable[[], np.ndarray], out: Tensor,
            tree: Expr | None, operands: Sequence[Tensor]) -> None:
    """out (M, N) = a (M, K) · weights (K, N), a and out with unit stride along their rows."""
    m, k = a.shape
    n = out.shape[1]
    chunks = -(-k // amx.CHUNK)
    chunk_step = _apart(m * amx.CHUNK)
    plane = chunks * chunk_step + amx.PANEL * amx.CHUNK
    planes = lo.new((2 * plane,), "bfloat16")
    lo.step(amx.split(), [a, Out(planes), m, 1, k, 0, a.strides[0], 0, 0, 0, m, 1, chunks, chunk_step, plane],
            m, max(1, _SPLIT_GRAIN // k))
    packed = lo.constant((amx.PACKED, key), lambda: amx.pack(weights()[None], lo.machine))
    places = [(t, 0, 0, t.strides[0]) for t in (out, *operands)]
    _multiply(lo, planes, plane, chunk_step, 1, m, 0, (0,), chunks, packed, n, m, m, places,
              [t.strides[1] for t in operands], tree)


@choice()
def _apart(elements: int) -> int:
    """Distance of chunks: not a multiple of what one way of a cache holds."""
    return elements + amx.CHUNK * 17 if elements * 2 % 2048 == 0 else elements


def _multiply(lo: Lowering, planes: Tensor, plane: int, chunk_step: int, lines: int, length: int,
              line_step: int, offsets: tuple[int, ...], chunks: int, packed: Tensor, n: int, width: int,
              valid: int, places: Sequence[tuple[Tensor, int, int, int]], inner: Sequence[int],
              tree: Expr | None) -> None:
    """Append the product of the planes' lines with `packed`; `places`: the result and the operands with their
    strides over lines, rows and positions, `inner`: the operands' along the columns."""
    panels = -(-n // amx.PANEL)
    pairs, per_line = amx.pairs(lines, length, panels, len(offsets) * chunks)
    total = amx.sums(offsets, chunks, 2 * chunk_step, 4 if pairs > 2 else 24)
    size = lines, -(-length // width), valid, n
    result, *rest = (Walked(t, size, (*strides, across), t is places[0][0])
                     for (t, *strides), across in zip(places, (1, *inner), strict=True))
    args = [planes, 2 * plane, 2 * chunk_step, 2 * amx.CHUNK, 2 * amx.CHUNK * line_step, length,
            lo.numbers([x for segment in total.segments for x in segment]), lo.numbers(total.blocks),
            len(total.blocks) - 1, packed,
            total.chunks * 4096, pairs, per_line, panels, result, n, width, valid, *result.strides[:3]]
    for each in rest:
        args += [each, *each.strides[:3]]
    operands = tuple([(1 if s == 1 and n > 1 else 0, t.tensor.dtype)
                      for s, t in zip(inner, rest, strict=True)])
    work = lines * length * n * total.chunks * amx.CHUNK
    items = lines * per_line * panels
    share = 1 if pairs == 1 else 2 if pairs < 4 else 4
    lo.step(amx.tiles(tree=tree, operands=operands, masked=n % amx.PANEL != 0, share=share), args, items,
            max(1, items if work < _ENOUGH else 1), amx.scratch(pairs))
