"""Depthwise convolution of bytes, sums exact in int32: every channel with its own window.

In: an image with margins, channels adjacent, a register of bytes readable behind it; weights (taps, channels)
as int16, so that any zero point is taken off exactly; `start` (int32, per channel). Where bytes hold the
weights, and an instruction sums products of four bytes, four taps of a channel are put next to each other.
Out: as in `int8`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...machines.machine import Machine
from ...runtime.call_kernel import aligned
from ...write.body import Body
from ...write.emit import I8, I16, I32, V, vec
from ...write.expr import Expr
from ...write.rvv_intrinsics import multiply_shorts
from ...write.template import template
from ...write.tile import Operand, mask_list
from ..loops import joined
from .results import Results
from .step import dot

_HELD = 9
"""Taps whose weights wait in registers while a row is walked."""

_DOT = 4
"""Taps that an instruction sums."""

CELLS = ("x:ptr w:ptr start:ptr out:ptr channels:i64 rows:i64 width:i64 image_step:i64 row_step:i64 "
         "col_step:i64 tap_row:i64 tap_col:i64 out_image:i64 out_row:i64 out_col:i64")


def lanes_of(machine: Machine) -> int:
    """Channels done at once: where an instruction works on several registers, those of four."""
    return machine.lanes() * min(machine.group, 4)


def padded(machine: Machine, channels: int) -> int:
    """Channels of the packed weights."""
    lanes = lanes_of(machine)
    return -(-channels // lanes) * lanes


def pack(machine: Machine, w: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    """Weights (channels, 1, kh, kw) of bytes less their zero point, one or one for each channel."""
    c = len(w)
    wide = w.reshape(c, -1).astype(np.int16)
    if zero is not None:
        wide -= zero.astype(np.int16).reshape(-1, 1)
    out = aligned((wide.shape[1], padded(machine, c)), np.int16)
    out[...] = 0
    out[:, :c] = wide.T
    return out


def dots(machine: Machine, packed: np.ndarray) -> bool:
    """Whether four taps are summed at once, with weights that `pack` made."""
    fits = np.iinfo(np.int8)
    return machine.has("avx512vnni") and machine.has("avx512vbmi") and machine.lanes() == 16 and bool(
        packed.min() >= fits.min and packed.max() <= fits.max)


def pack_dots(packed: np.ndarray) -> np.ndarray:
    """What `pack` made as int8 (taps / 4, channels, 4)."""
    taps, channels = packed.shape
    groups = -(-taps // _DOT)
    filled = np.zeros((groups * _DOT, channels), np.int8)
    filled[:taps] = packed
    out = aligned((groups, channels, _DOT), np.int8)
    out[...] = filled.reshape(groups, _DOT, channels).transpose(0, 2, 1)
    return out


@template(CELLS)
def int8_depthwise(f: Body, x: V, w: V, start: V, out: V, channels: V, rows: V, width: V, image_step: V,
                   row_step: V, col_step: V, tap_row: V, tap_col: V, out_image: V, out_row: V, out_col: V, *,
                   signed: bool, kernel: tuple[int, int], tail: bool, tree: Expr,
                   operands: tuple[Operand, ...], dots: bool = False) -> None:
    """An item is a row of the result. Steps in bytes, `out_image`, `out_row` and `out_col` in elements. With
    `dots` weights are those of `pack_dots`, and signed bytes are read as 128 more than they are."""
    lanes = lanes_of(f.machine)
    several = lanes > f.machine.lanes()
    taps = kernel[0] * kernel[1]
    ints, shorts, bytes_ = vec(I32, lanes), vec(I16, lanes), vec(I8, lanes)
    results = Results(f, out, channels, width, width, (out_image, out_row, out_col), (1, lanes), tree,
                      operands, True, tail, CELLS, [o.row for o in operands])
    wide = (channels + (lanes - 1)) & -lanes
    across = [tap_col * j for j in range(kernel[1])]

    def item(i: V) -> None:
        image = i // rows
        y = i - image * rows
        base = f.gep(x, image * image_step + y * row_step, I8)
        lines = [f.gep(base, tap_row * j, I8) for j in range(kernel[0])]

        def block(column: V) -> None:
            masks = mask_list(results.masks(column), 1)
            first = f.load(ints, start, column, 4 * lanes)

            def weight(t: int) -> V:
                if dots:
                    return f.load(vec(I8, _DOT * lanes), w, (wide * t + column) * _DOT)
                loaded = f.load(shorts, w, wide * t + column)
                return loaded if several else f.cast(loaded, I32)
            count = -(-taps // _DOT) if dots else taps
            held = [weight(t) for t in range(count)] if count <= _HELD else None

            def tap(t: int, places: Sequence[V]) -> V:
                j, k = divmod(t, kernel[1])
                at_tap = f.gep(lines[j], places[k], I8)
                return f.load_masked(bytes_, at_tap, 0, masks[0] if several else None, f.undef(bytes_))

            def four(group: int, places: Sequence[V]) -> V:
                found = [tap(t, places) for t in range(group * _DOT, min(taps, (group + 1) * _DOT))]
                found += found[:1] * (_DOT - len(found))
                made = f.shuffle(joined(f, found), None, [e % _DOT * lanes + e // _DOT
                                                          for e in range(_DOT * lanes)])
                return made ^ -128 if signed else made

            def pixel(at: V) -> None:
                total, there = first, at * col_step + column
                places = [f.opaque(there + step) for step in across]
                for t in range(count):
                    factor = held[t] if held else weight(t)
                    if dots:
                        total = dot(f, total, four(t, places), factor)
                        continue
                    value = f.cast(tap(t, places), I16 if several else I32, unsigned=not signed)
                    total = multiply_shorts(f, total, value, factor) if several else total + value * factor
                to, *rest = results.places(image, y, at, column)
                results.finish.store([total], 1, to, rest, masks)
            f.loop(0, width, 1, [], pixel)
        f.loop(0, channels, lanes, [], block)
    f.loop(f.lo, f.hi, 1, [], item)
