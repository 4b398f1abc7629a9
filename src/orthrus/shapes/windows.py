"""Shapes of what slides windows over images, scales them or cuts them.

In and out: as in `rules`. The invariant: as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .expression import Dim, Expr, ceil_div, floor, floor_div, least, number
from .facts import Facts, Shapes

_EXACT = 1 << 8
"""Numerators of scales whose product with a length of up to 2**16 float32 holds."""


def fitting(size: Dim, k: Any, stride: int, dilation: int, begin: int, end: int, auto: str,
            up: bool = False) -> Any:
    """How many windows fit, as for Conv and the pools: none over nothing; `up`: ceil_mode."""
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return ceil_div(size, stride)
    if auto == "VALID":
        begin = end = 0
    room = size + begin + end - (k - 1) * dilation - 1
    if isinstance(room, int) and room < 0:
        return 1 - -room // stride if size else 0
    if not up:
        return floor_div(room, stride) + 1
    return least(ceil_div(room, stride) + 1, ceil_div(size + begin, stride))


def spatial(f: Facts, size: Sequence[Dim], kernel: Sequence[Any], up: bool = False) -> list[Dim | None]:
    n, auto = len(size), f.attribute("auto_pad")
    strides, dilations, pads = _sliding(f, n, kernel)
    return [fitting(size[i], k, strides[i], dilations[i], pads[i], pads[n + i], auto, up)
            for i, k in enumerate(kernel)]


def _sliding(f: Facts, n: int, kernel: Sequence[Any]) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads. Raises ValueError where they do not fit `n` dimensions."""
    strides, dilations = f.attribute("strides") or [1] * n, f.attribute("dilations") or [1] * n
    pads = f.attribute("pads") or [0] * 2 * n
    if not n or [len(kernel), len(strides), len(dilations), len(pads)] != [n, n, n, 2 * n] or any(
            isinstance(v, int) and v < 1 for v in (*kernel, *strides, *dilations)):
        raise ValueError(f"{n} dimensions, and windows of {kernel}, {strides}, {dilations} and {pads}")
    return strides, dilations, pads


def conv(w: int, last: bool = False) -> Callable[[Facts], Shapes]:
    """Weights are the input `w`, in the order [M, C, K...]; `last`: the image's channels are its last axis.
    """
    def rule(f: Facts) -> Shapes:
        x, weights = f.shape(0), f.shape(w)
        channels_last = last or bool(f.attribute("channels_last"))
        size = x[1:-1] if channels_last else x[2:]
        out = spatial(f, size, f.attribute("kernel_shape") or weights[2:])
        return [[x[0], *out, weights[0]] if channels_last else [x[0], weights[0], *out]]
    return rule


def pool(f: Facts) -> Shapes:
    x = f.shape(0)
    last = bool(f.attribute("channels_last")) or f.node.op_type.startswith("Nhwc")
    size = x[1:-1] if last else x[2:]
    out = spatial(f, size, f.attribute("kernel_shape") or [1] * len(size), bool(f.attribute("ceil_mode")))
    shape = [x[0], *out, x[-1]] if last else [*x[:2], *out]
    return [shape, shape]


def conv_transpose(f: Facts) -> Shapes:
    x, w = f.shape(0), f.shape(1)
    n = len(x) - 2
    kernel, more = f.attribute("kernel_shape") or w[2:], f.attribute("output_padding") or [0] * n
    strides, dilations, pads = _sliding(f, n, kernel)
    out: list[Dim | None] = []
    for i, size in enumerate(x[2:]):
        full = (size - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + (more[i] + 1)
        if f.attribute("output_shape"):
            out.append(f.attribute("output_shape")[-n:][i])
        elif f.attribute("auto_pad").startswith("SAME"):
            out.append(least(size * strides[i], full))
        else:
            out.append(full if f.attribute("auto_pad") == "VALID" else full - (pads[i] + pads[n + i]))
    return [[x[0], w[1] * f.attribute("group"), *out]]


def max_unpool(f: Facts) -> Shapes:
    if f.has(2):
        return [f.vector(2)]
    x, n = f.shape(0), len(f.attribute("kernel_shape"))
    strides, pads = f.attribute("strides") or [1] * n, f.attribute("pads") or [0] * 2 * n
    return [[*x[:2], *((d - 1) * strides[i] + (f.attribute("kernel_shape")[i] - pads[i] - pads[n + i])
                       for i, d in enumerate(x[2:]))]]


def resize(f: Facts) -> Shapes:
    x = f.shape(0)
    axes = [a % len(x) for a in f.attribute("axes") or range(len(x))]
    out: list[Dim | None] = list(x)
    modern = f.node.version >= 11
    if f.has(3):
        if f.attribute("keep_aspect_ratio_policy") not in (None, "stretch"):
            raise LookupError("the aspect ratio decides")
        for axis, told in zip(axes, f.vector(3), strict=True):
            out[axis] = told
        return [out]
    if f.node.op_type == "Upsample" and f.node.version < 9:
        scales: list[Any] = [number(s) for s in f.attribute("scales")]
    else:
        scales = f.vector(2 if modern and f.node.op_type == "Resize" else 1)
    for axis, scale in zip(axes, scales, strict=True):
        out[axis] = _scaled(x[axis], scale)
    return [out]


def scaled(length: int, scale: np.float32) -> int:
    """The length of an axis of `length` elements times `scale`: the product in float32, cut down."""
    return int(np.floor(np.float32(length) * scale)) if float(length) * float(scale) < 1 << 60 else 1 << 60


def _scaled(size: Dim, scale: Dim | None) -> Dim | None:
    """The length of a resized axis. A name's is told where no product of it is rounded in float32."""
    if scale is None or isinstance(scale, Expr):
        return None
    if isinstance(size, int):
        return scaled(size, np.float32(scale))
    over, under = scale.as_integer_ratio()
    return floor(size * scale) if over < _EXACT and under & (under - 1) == 0 else None


def space_to_depth(f: Facts) -> Shapes:
    n, c, h, w = f.shape(0)
    b = f.attribute("blocksize")
    return [[n, c * (b * b), floor_div(h, b), floor_div(w, b)]]


def depth_to_space(f: Facts) -> Shapes:
    n, c, h, w = f.shape(0)
    b = f.attribute("blocksize")
    return [[n, floor_div(c, (b * b)), h * b, w * b]]


def col_to_im(f: Facts) -> Shapes:
    x, image, block = f.shape(0), f.vector(1), f.vector(2)
    if any(b is None for b in block):
        return [[x[0], None, *image]]
    return [[x[0], floor_div(x[1], math.prod(b for b in block if b is not None)), *image]]


def affine_grid(f: Facts) -> Shapes:
    batch, _, *image = f.vector(1)
    return [[batch, *image, len(image)]]


def center_crop_pad(f: Facts) -> Shapes:
    x, sizes = f.shape(0), f.vector(1)
    out: list[Dim | None] = list(x)
    for axis, size in zip(f.attribute("axes") or range(len(x)), sizes, strict=True):
        out[axis] = size
    return [out]


def causal_conv(f: Facts) -> Shapes:
    x, w = f.shape(0), f.shape(1)
    return [[*x], [*x[:2], w[2] - 1]]
