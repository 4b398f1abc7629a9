"""Depthwise convolution of bytes, sums exact in int32: every channel with its own window.

In: an image with margins, channels adjacent, a register of bytes readable behind it; weights (taps, channels)
as int16, so that any zero point is taken off exactly; `start` (int32, per channel). Out: as in `int8`.
"""

from __future__ import annotations

import numpy as np

from ...machines.machine import Machine
from ...runtime.call_kernel import aligned
from ...write.body import Body
from ...write.emit import I8, I16, I32, V, vec
from ...write.expr import Expr
from ...write.rvv_intrinsics import multiply_shorts
from ...write.template import template
from ...write.tile import Operand, mask_list
from .results import Results

_HELD = 9
"""Taps whose weights wait in registers while a row is walked."""

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


@template(CELLS)
def int8_depthwise(f: Body, x: V, w: V, start: V, out: V, channels: V, rows: V, width: V, image_step: V,
                   row_step: V, col_step: V, tap_row: V, tap_col: V, out_image: V, out_row: V, out_col: V, *,
                   signed: bool, kernel: tuple[int, int], tail: bool, tree: Expr,
                   operands: tuple[Operand, ...]) -> None:
    """An item is a row of the result. Steps in bytes, `out_image`, `out_row` and `out_col` in elements."""
    lanes = lanes_of(f.machine)
    joined = lanes > f.machine.lanes()
    taps = kernel[0] * kernel[1]
    ints, shorts, bytes_ = vec(I32, lanes), vec(I16, lanes), vec(I8, lanes)
    results = Results(f, out, channels, width, width, (out_image, out_row, out_col), (1, lanes), tree,
                      operands, True, tail, CELLS)
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
                loaded = f.load(shorts, w, wide * t + column)
                return loaded if joined else f.cast(loaded, I32)
            held = [weight(t) for t in range(taps)] if taps <= _HELD else None

            def pixel(at: V) -> None:
                total, there = first, at * col_step + column
                for t in range(taps):
                    j, k = divmod(t, kernel[1])
                    at_tap = f.gep(lines[j], there + across[k], I8)
                    mask = masks[0] if joined else None
                    loaded = f.load(bytes_, at_tap) if mask is None else f.load_masked(
                        bytes_, at_tap, 0, mask, f.undef(bytes_))
                    value = f.cast(loaded, I16 if joined else I32, unsigned=not signed)
                    factor = held[t] if held else weight(t)
                    total = multiply_shorts(f, total, value, factor) if joined else total + value * factor
                to, *rest = results.places(image, y, at, column)
                results.finish.store([total], 1, to, rest, masks)
            f.loop(0, width, 1, [], pixel)
        f.loop(0, channels, lanes, [], block)
    f.loop(f.lo, f.hi, 1, [], item)
