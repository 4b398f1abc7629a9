"""Convolutions: X [N, C, D1..Dn] and a kernel in, the sums over its windows out.

Products are formed by matrix multiplication on columns gathered block by block, so that the extra memory is
bounded whatever the shapes. Padding is never materialised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import limits
from ...errors import Unfit
from ..define import op
from ..functions import summing_type
from .activation import Swish
from .geometry import Window, blocks, per_axis, taps, window

_ALL: Any = slice(None)
_BLOCK = 1 << 23
"""Elements of one block of gathered columns."""
_RUN = 128
"""Products that are summed in a row."""
_CACHED = 1 << 15
"""Elements of a result that stays in the cache while the taps of a depthwise kernel are added to it."""


def _kernel_of(w: np.ndarray, kernel_shape: Sequence[int] | None) -> tuple[int, ...]:
    given = per_axis(kernel_shape, w.ndim - 2, "kernel_shape") if kernel_shape else w.shape[2:]
    if given != w.shape[2:]:
        raise ValueError(f"kernel_shape is {list(given)}, but the weight's shape is {list(w.shape)}")
    return given


def _check(x: np.ndarray, w: np.ndarray, group: int, bias: np.ndarray | None,
           transposed: bool = False) -> None:
    if x.ndim < 3 or w.ndim != x.ndim:
        raise ValueError(f"X has shape {list(x.shape)} and W {list(w.shape)}, expected equal "
                         "ranks of at least 3")
    if group < 1:
        raise ValueError(f"group is {group}, expected at least 1")
    ins, outs = (w.shape[0], w.shape[1] * group) if transposed else (w.shape[1] * group, w.shape[0])
    if x.shape[1] != ins:
        raise (Unfit if transposed else ValueError)(
            f"X has {x.shape[1]} channels, but W of shape {list(w.shape)} with group {group} expects {ins}")
    if ins % group or outs % group:
        raise Unfit(f"{ins} input and {outs} output channels cannot be split into {group} groups")
    if bias is not None and bias.shape != (outs,):
        raise ValueError(f"B has shape {list(bias.shape)}, expected [{outs}]")


def _convolve(x: np.ndarray, w: np.ndarray, group: int, win: Window) -> np.ndarray:
    """x [N, C, ...], w [M, C/group, ...] of one type → [N, M, *win.out], without bias."""
    n, c = x.shape[:2]
    m, cg = w.shape[:2]
    shape = limits.bounded((n, m, *win.out), x.dtype)
    if 0 in shape or 0 in w.shape or 0 in x.shape:
        return np.zeros(shape, x.dtype)
    if all(k == 1 for k in win.kernel) and not any(win.begin) and not any(win.end):
        x = x[(_ALL, _ALL, *(slice(None, None, s) for s in win.strides))]
        return _products(w.reshape(group, m // group, cg), x.reshape(n, group, cg, -1)).reshape(shape)
    if cg == 1 and group > 1 and math.prod(win.kernel) <= _RUN:
        return _depthwise(x, w, group, win)
    kernel = w.reshape(group, m // group, -1)
    y = np.empty((n, m, *win.out), x.dtype)
    whole = int(np.prod(win.out))
    per_place = c * int(np.prod(win.kernel))
    batch = min(n, max(1, _BLOCK // (per_place * whole)))
    for box in blocks(win.out, max(1, _BLOCK // per_place)):
        count = tuple(s.stop - s.start for s in box)
        begin = [b - s.start * t for b, s, t in zip(win.begin, box, win.strides, strict=True)]
        places = list(taps(win.size, win.kernel, win.strides, win.dilations, begin, count))
        for first in range(0, n, batch):
            part = x[first:first + batch]
            columns = np.zeros((part.shape[0], c, *win.kernel, *count), x.dtype)
            for tap, outs, ins in places:
                columns[(_ALL, _ALL, *tap, *outs)] = part[(_ALL, _ALL, *ins)]
            made = _products(kernel, columns.reshape(part.shape[0], group, kernel.shape[2], -1))
            y[(slice(first, first + batch), _ALL, *box)] = made.reshape(part.shape[0], m, *count)
    return y


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, summed in runs of `_RUN` and these in pairs: float32 errors grow with the run, not the depth."""
    depth = a.shape[-1]
    if a.dtype != np.float32 or depth <= _RUN:
        return np.matmul(a, b)
    sums = [np.matmul(a[..., i:i + _RUN], b[..., i:i + _RUN, :]) for i in range(0, depth, _RUN)]
    while len(sums) > 1:
        for left, right in zip(sums[::2], sums[1::2], strict=False):
            left += right
        sums = sums[::2]
    return sums[0]


def _depthwise(x: np.ndarray, w: np.ndarray, group: int, win: Window) -> np.ndarray:
    n, m = x.shape[0], w.shape[0]
    each = m // group
    y = np.zeros((n, group, each, *win.out), x.dtype)
    weights = w.reshape(group, each, *win.kernel)
    places = list(taps(win.size, win.kernel, win.strides, win.dilations, win.begin, win.out))
    for image, channels in blocks((n, group), max(1, _CACHED // (each * int(np.prod(win.out))))):
        part, made = x[image, channels, None], y[image, channels]
        scales = weights[channels].reshape(-1, each, *win.kernel, *(1,) * len(win.out))
        for tap, outs, ins in places:
            made[(_ALL, _ALL, _ALL, *outs)] += part[(_ALL, _ALL, _ALL, *ins)] * scales[(_ALL, _ALL, *tap)]
    return y.reshape(n, m, *win.out)


def _add_bias(y: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    return y


@op(widen=True)
def Conv(X, W, B=None, *, auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
         kernel_shape: list[int] | None = None, pads: list[int] | None = None,
         strides: list[int] | None = None):
    """Convolution: X [N, C, D...], W [M, C/group, K...], B [M] → [N, M, O...]."""
    _check(X, W, group, B)
    win = window(X.shape[2:], _kernel_of(W, kernel_shape), strides, dilations, pads, auto_pad)
    return _add_bias(_convolve(X, W, group, win), B)


@op(widen=True)
def ConvTranspose(X, W, B=None, *, auto_pad: str = "NOTSET", dilations: list[int] | None = None,
                  group: int = 1, kernel_shape: list[int] | None = None,
                  output_padding: list[int] | None = None,
                  output_shape: list[int] | None = None, pads: list[int] | None = None,
                  strides: list[int] | None = None):
    """Transposed convolution: X [N, C, D...], W [C, M/group, K...], B [M] → [N, M, O...]."""
    _check(X, W, group, B, transposed=True)
    kernel, rank = _kernel_of(W, kernel_shape), X.ndim - 2
    kernel = per_axis(kernel, rank, "kernel_shape")
    steps, spread = per_axis(strides, rank, "strides"), per_axis(dilations, rank, "dilations")
    begin, out = transposed(X.shape[2:], kernel, steps, spread, auto_pad, output_padding, output_shape, pads)
    n, m, cg = X.shape[0], W.shape[1] * group, X.shape[1] // group
    kind = summing_type(X.dtype, math.prod(kernel) // math.prod(steps))
    y = np.zeros(limits.bounded((n, m, *out), kind), kind)
    if X.size and y.size:
        weights = W.reshape(group, cg, -1).transpose(0, 2, 1)
        places = m * int(np.prod(kernel))
        for box in blocks((n, *X.shape[2:]), max(1, _BLOCK // places)):
            part = X[(box[0], _ALL, *box[1:])]
            made = np.matmul(weights, part.reshape(part.shape[0], group, cg, -1))
            made = made.reshape(part.shape[0], m, *kernel, *part.shape[2:])
            shifted = [b - s.start * t for b, s, t in zip(begin, box[1:], steps, strict=True)]
            for tap, ins, outs in taps(out, kernel, steps, spread, shifted, part.shape[2:]):
                y[(box[0], _ALL, *outs)] += made[(_ALL, _ALL, *tap, *ins)]
    return _add_bias(y.astype(X.dtype, copy=False), B)


def transposed(size: Sequence[int], kernel: Sequence[int], strides: Any, dilations: Any, auto_pad: str,
               output_padding: Any, output_shape: Any, pads: Any) -> tuple[list[int], list[int]]:
    """The leading padding and the spatial output shape of a transposed convolution."""
    rank = len(size)
    strides, dilations = per_axis(strides, rank, "strides"), per_axis(dilations, rank, "dilations")
    extra = per_axis(output_padding, rank, "output_padding", 0, 0)
    full = [s * (n - 1) + e + (k - 1) * d + 1
            for s, n, e, k, d in zip(strides, size, extra, kernel, dilations, strict=True)]
    if auto_pad not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad is {auto_pad!r}, expected NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    if output_shape:
        out = list(per_axis(output_shape[-rank:], rank, "output_shape", 0, 0))
    elif auto_pad.startswith("SAME"):
        out = [min(n * s, f) for n, s, f in zip(size, strides, full, strict=True)]
    else:
        given = (0,) * (2 * rank) if auto_pad == "VALID" else per_axis(pads, 2 * rank, "pads", 0, 0)
        out = [f - b - e for f, b, e in zip(full, given[:rank], given[rank:], strict=True)]
        if any(o < 0 for o in out):
            raise Unfit(f"pads {list(given)} are larger than the output {full} they are taken from")
        return list(given[:rank]), out
    total = [max(f - o, 0) for f, o in zip(full, out, strict=True)]
    return [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total], out


def _integer_convolution(x: np.ndarray, w: np.ndarray, x_zero: Any, w_zero: Any, group: int,
                         win: Window) -> np.ndarray:
    """The exact sums as float64; a float32 product is taken where it is exact too."""
    terms = w.shape[1] * int(np.prod(win.kernel))
    kind = np.float32 if terms * 255 * 255 < 1 << 24 else np.float64
    a, b = x.astype(kind), w.astype(kind)
    if x_zero is not None:
        a -= _one(x_zero, "x_zero_point")
    if w_zero is not None:
        b -= _per_output(w_zero, w, "w_zero_point").astype(kind)
    return _convolve(a, b, group, win).astype(np.float64)


def _one(value: np.ndarray, name: str) -> Any:
    if value.size != 1:
        raise ValueError(f"{name} has shape {list(value.shape)}, expected a scalar")
    return value.reshape(-1)[0].item()


def _per_output(value: np.ndarray, w: np.ndarray, name: str) -> np.ndarray:
    """A scalar or a value per output channel, shaped to broadcast over W."""
    if value.size not in (1, w.shape[0]) or value.ndim > 1:
        raise ValueError(f"{name} has shape {list(value.shape)}, expected a scalar or [{w.shape[0]}]")
    return value.reshape(-1, *(1,) * (w.ndim - 1))


@op
def ConvInteger(x, w, x_zero_point=None, w_zero_point=None, *, auto_pad: str = "NOTSET",
                dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
                pads: list[int] | None = None, strides: list[int] | None = None):
    """Convolution of 8-bit integers less their zero points, in int32; padding counts as the zero point."""
    _check(x, w, group, None)
    win = window(x.shape[2:], _kernel_of(w, kernel_shape), strides, dilations, pads, auto_pad)
    total = _integer_convolution(x, w, x_zero_point, w_zero_point, group, win)
    return total.astype(np.int64).astype(np.int32)


@op
def QLinearConv(x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B=None, *,
                auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
                kernel_shape: list[int] | None = None, pads: list[int] | None = None,
                strides: list[int] | None = None):
    """Convolution of quantized tensors; the int32 sum, which wraps, is rescaled, rounded half to even and
    saturated."""
    _check(x, w, group, B)
    win = window(x.shape[2:], _kernel_of(w, kernel_shape), strides, dilations, pads, auto_pad)
    total = _integer_convolution(x, w, x_zero_point, w_zero_point, group, win).astype(np.int64)
    total = _add_bias(total, None if B is None else B.astype(np.int64)).astype(np.int32)
    source, target = np.float32(_one(x_scale, "x_scale")), np.float32(_one(y_scale, "y_scale"))
    factor = np.asarray(source * w_scale.astype(np.float32) / target)
    scale = _per_output(factor, w, "w_scale").reshape(-1, *(1,) * (x.ndim - 2))
    rounded = np.rint(total.astype(np.float32) * scale) + np.float32(_one(y_zero_point, "y_zero_point"))
    range_ = np.iinfo(y_zero_point.dtype)
    rounded = np.nan_to_num(rounded, copy=False, posinf=range_.max, neginf=range_.min)
    return np.clip(rounded, range_.min, range_.max).astype(y_zero_point.dtype)


@op(widen=True)
def CausalConvWithState(input, weight, bias=None, past_state=None, *, activation: str = "none"):
    """Depthwise convolution over past and present: input [N, C, L], weight [C, 1, k], state [N, C, k-1]."""
    if input.ndim != 3 or weight.ndim != 3 or weight.shape[:2] != (input.shape[1], 1) or not weight.shape[2]:
        raise Unfit(f"input has shape {list(input.shape)} and weight {list(weight.shape)}, expected "
                    "[N, C, L] and [C, 1, k]")
    n, c, length = input.shape
    k = weight.shape[2]
    if past_state is None:
        past_state = np.zeros((n, c, k - 1), input.dtype)
    if past_state.shape != (n, c, k - 1):
        raise Unfit(f"past_state has shape {list(past_state.shape)}, expected {[n, c, k - 1]}")
    if bias is not None and bias.shape != (c,):
        raise Unfit(f"bias has shape {list(bias.shape)}, expected [{c}]")
    x = np.concatenate([past_state, input], axis=2)
    y = np.zeros(input.shape, summing_type(input.dtype, k))
    for j in range(k):
        y += x[:, :, j:j + length] * weight[:, :, j]
    y = _add_bias(y.astype(input.dtype, copy=False), bias)
    if activation in ("silu", "swish"):
        y = Swish(y)
    elif activation != "none":
        raise ValueError(f"activation is {activation!r}, expected silu, swish or none")
    return y, x[:, :, length:].copy()


@op(widen=True)
def Col2Im(input, image_shape, block_shape, *, dilations: list[int] | None = None,
           pads: list[int] | None = None, strides: list[int] | None = None):
    """Adds columns [N, C * prod(block_shape), L] back into the image [N, C, *image_shape] they come from."""
    size, kernel = image_shape.tolist(), block_shape.tolist()
    if input.ndim != 3 or image_shape.ndim != 1 or block_shape.shape != image_shape.shape:
        raise ValueError(f"input has rank {input.ndim}, image_shape {size} and block_shape {kernel}, "
                         "expected rank 3 and two lists of the same length")
    per_axis(size, len(size), "image_shape", least=0)
    win = window(size, kernel, strides, dilations, pads)
    n, rows, length = input.shape
    block, places = int(np.prod(kernel, dtype=object)), int(np.prod(win.out, dtype=object))
    if rows % block or length != places:
        raise ValueError(f"input has shape {list(input.shape)}, expected [N, C * {block}, {places}]")
    kind = summing_type(input.dtype, block // math.prod(win.strides))
    shape = limits.bounded((n, rows // block, *size), kind)
    y = np.full(shape, "", object) if input.dtype == object else np.zeros(shape, kind)
    columns = input.reshape(n, rows // block, *kernel, *win.out)
    for tap, outs, ins in taps(size, kernel, win.strides, win.dilations, win.begin, win.out):
        y[(_ALL, _ALL, *ins)] += columns[(_ALL, _ALL, *tap, *outs)]
    return y.astype(input.dtype, copy=False)


@op(widen=True)
def DeformConv(X, W, offset, B=None, mask=None, *, dilations: list[int] | None = None, group: int = 1,
               kernel_shape: list[int] | None = None, offset_group: int = 1, pads: list[int] | None = None,
               strides: list[int] | None = None):
    """Convolution whose taps are moved by `offset` [N, offset_group * K * n, O...] and weighted by `mask`."""
    _check(X, W, group, B)
    rank, (n, c) = X.ndim - 2, X.shape[:2]
    win = window(X.shape[2:], _kernel_of(W, kernel_shape), strides, dilations, pads)
    count = int(np.prod(win.kernel))
    if offset_group < 1 or c % offset_group:
        raise ValueError(f"offset_group is {offset_group}, expected a divisor of the {c} channels")
    if offset.shape != (n, offset_group * count * rank, *win.out):
        raise ValueError(f"offset has shape {list(offset.shape)}, expected "
                         f"{[n, offset_group * count * rank, *win.out]}")
    if mask is not None and mask.shape != (n, offset_group * count, *win.out):
        raise ValueError(f"mask has shape {list(mask.shape)}, expected {[n, offset_group * count, *win.out]}")
    m = W.shape[0]
    y = np.zeros(limits.bounded((n, m, *win.out), X.dtype), X.dtype)
    if not y.size or not X.size:
        return _add_bias(y, B)
    weights = W.reshape(group, m // group, -1)
    moved = offset.reshape(n, offset_group, count, rank, *win.out)
    scaled = None if mask is None else mask.reshape(n, offset_group, count, *win.out)
    taps_at = np.indices(win.kernel).reshape(rank, count)
    for image in range(n):
        source = X[image].reshape(offset_group, c // offset_group, -1)
        for box in blocks(win.out, max(1, _BLOCK // (c * count))):
            where = []
            for a in range(rank):
                starts = np.arange(box[a].start, box[a].stop) * win.strides[a] - win.begin[a]
                starts = starts.reshape(-1, *(1,) * (rank - 1 - a))
                base = (taps_at[a] * win.dilations[a]).reshape(count, *(1,) * rank) + starts
                where.append(base + moved[(image, _ALL, _ALL, a, *box)])
            columns = _sample(source, where, win.size)
            if scaled is not None:
                columns *= scaled[(image, _ALL, _ALL, *box)][:, None]
            made = np.matmul(weights, columns.reshape(group, weights.shape[2], -1))
            y[(image, _ALL, *box)] = made.reshape(m, *columns.shape[3:])
    return _add_bias(y, B)


def _sample(source: np.ndarray, where: Sequence[np.ndarray], size: Sequence[int]) -> np.ndarray:
    """Multilinear samples of source [G, C, prod(size)] at the coordinates where[axis] [G, ...] → [G, C, ...].

    Outside is 0.
    """
    lows, fractions = [], []
    for at, n in zip(where, size, strict=True):
        at = np.clip(np.nan_to_num(at, nan=-2.0), -2, n + 1)
        low = np.floor(at)
        lows.append(low.astype(np.int64))
        fractions.append((at - low).astype(source.dtype))
    groups = np.arange(source.shape[0]).reshape(-1, *(1,) * (where[0].ndim - 1))
    rows = np.moveaxis(source, 1, 2)
    out: Any = 0
    for corner in np.ndindex(*(2,) * len(size)):
        index: Any = 0
        weight: Any = 1
        for side, low, fraction, n in zip(corner, lows, fractions, size, strict=True):
            at = low + side
            weight = weight * (fraction if side else 1 - fraction) * ((at >= 0) & (at < n))
            index = index * n + np.clip(at, 0, n - 1)
        out = out + rows[groups, index] * weight[..., None].astype(source.dtype)
    return np.moveaxis(out, -1, 1)
