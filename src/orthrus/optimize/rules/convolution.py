"""Convolutions take in what follows them by channel, and the normalization and the padding before them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...ir import LazyArray, No, Node, Value
from ..pattern import number, rule
from .facts import array, ints, rank, unread

_NAMES = ("Conv", "ConvTranspose")
_PADDING = ("SAME_UPPER", "SAME_LOWER")


def _channels(node: Node) -> int | None:
    """How many output channels a convolution with constant weights has."""
    weights = array(node.inputs[1])
    if weights is None or weights.ndim < 3:
        return None
    return int(
        weights.shape[0] if node.op_type == "Conv" else weights.shape[1] * (node.attribute("group"))
    )


def _scaled(groups: int | None, weights: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`weights` of a convolution, or of a transposed one in so many groups, each output channel times its
    element of `scale`."""
    wide = weights.astype(np.float64)
    if groups is None:
        wide *= scale.reshape(-1, *[1] * (wide.ndim - 1))
    else:
        parts = wide.reshape(groups, wide.shape[0] // groups, *wide.shape[1:])
        parts *= scale.reshape(groups, 1, -1, *[1] * (wide.ndim - 2))
        wide = parts.reshape(wide.shape)
    return np.asarray(wide.astype(weights.dtype))


def _bias(node: Node, channels: int) -> np.ndarray | None:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return np.zeros(channels)
    given = array(node.inputs[2])
    return None if given is None else given.astype(np.float64)


def _per_channel(value: Value | None, channels: int, n: int) -> np.ndarray | None:
    """A constant that varies along axis 1 of a tensor of rank `n` at most, as one number per channel."""
    given = array(value)
    if given is None or given.ndim > n or given.dtype.kind not in "fV":
        return None
    full = (1,) * (n - given.ndim) + given.shape
    if any(d != 1 for i, d in enumerate(full) if i != 1) or full[1] not in (1, channels):
        return None
    return np.broadcast_to(given.astype(np.float64).reshape(-1), (channels,))


def _fused(op: Any, conv: Node, root: Node, scale: np.ndarray | None, shift: np.ndarray) -> Any:
    """The convolution whose results are those of `conv`, scaled and shifted by channel."""
    channels = _channels(conv)
    bias = None if channels is None else _bias(conv, channels)
    if channels is None or bias is None:
        return No("the weights or the bias are not constant")
    kept = conv.inputs[1]
    assert kept is not None
    given, dtype, weights = kept.const, kept.const.dtype, kept
    if scale is not None:
        groups = None if conv.op_type == "Conv" else conv.attribute("group")
        made = LazyArray.computed(partial(_scaled, groups, given, scale), given, given, scale)
        weights = op.constant(made, name="weight")
    total = (bias if scale is None else bias * scale) + shift
    return op.again(conv, conv.inputs[0], weights, op.constant(total.astype(dtype), name="bias"))


@rule(lambda op, s, b, m, v: [op.BatchNormalization(getattr(op, name)(...), s, b, m, v) for name in _NAMES])
def fuse_conv_batch_normalization(op, s, b, m, v, root):
    conv = root.inputs[0].node
    told = _line(root, _channels(conv))
    return told if isinstance(told, No) else _fused(op, conv, root, *told)


def _line(norm: Node, channels: int | None) -> tuple[np.ndarray, np.ndarray] | No:
    """What a BatchNormalization multiplies each channel by, and what it adds then."""
    given = [array(x) for x in norm.inputs[1:5]]
    known = [g.astype(np.float64) for g in given if g is not None and g.shape == (channels,)]
    if channels is None or len(known) < 4:
        return No("the statistics or the weights are not constant")
    if (
        norm.attribute("training_mode")
        or not unread(norm, 1, 2, 3, 4)
        or (norm.version < 7 and not norm.attrs.get("is_test"))
    ):
        return No("it is in training mode")
    scale, bias, mean, var = known
    factor = scale / np.sqrt(var + norm.attribute("epsilon"))
    if not np.all(np.isfinite(factor)):
        return No("a variance is not positive")
    return factor, bias - mean * factor


@rule(lambda op, x, w, c=None: op.Conv(op.BatchNormalization(x, ...), op.constant(w), c))
def fuse_batch_normalization_conv(op, x, w, c, root):
    """The normalization before a convolution whose windows never leave the image, or that adds nothing"""
    weights, channels = array(w), _channels(root)
    bias = None if channels is None else _bias(root, channels)
    if bias is None or weights.dtype.kind not in "fV" or weights.ndim < 3:
        return No("the weights or the bias are not constant")
    groups = root.attribute("group")
    told = _line(root.inputs[0].node, weights.shape[1] * groups)
    if isinstance(told, No):
        return told
    factor, shift = (v.reshape(groups, 1, -1, *[1] * (weights.ndim - 2)) for v in told)
    if np.any(shift) and (any(root.attribute("pads") or ()) or root.attribute("auto_pad") in _PADDING):
        return No("what is padded with is not shifted")
    wide = weights.astype(np.float64).reshape(groups, -1, *weights.shape[1:])
    total = bias + (wide * shift).sum(axis=tuple(range(2, wide.ndim))).reshape(-1)
    scaled = (wide * factor).reshape(weights.shape)
    return op.again(root, x, op.constant(scaled.astype(weights.dtype), name="weight"),
                    op.constant(total.astype(weights.dtype), name="bias"))


def _by_channel(op, root, c):
    """The convolution among the inputs of `root`, and the constant `c` as one number per channel of it; None
    where it is none."""
    conv = next(filter(None, (op.maker(value, *_NAMES) for value in root.inputs)), None)
    channels = _channels(conv) if conv is not None else None
    return conv, None if channels is None else _per_channel(c, channels, conv.inputs[1].const.ndim)


@rule(lambda op, c: [op.Mul(getattr(op, name)(...), op.constant(c)) for name in _NAMES])
def fuse_conv_mul(op, c, root):
    conv, factor = _by_channel(op, root, c)
    if factor is None:
        return No("the factor is not constant by channel")
    return _fused(op, conv, root, factor, np.zeros(len(factor)))


@rule(lambda op, c: [op.Add(getattr(op, name)(...), op.constant(c)) for name in _NAMES],
      lambda op, c: [op.Sub(getattr(op, name)(...), op.constant(c)) for name in _NAMES])
def fuse_conv_add(op, c, root):
    conv, shift = _by_channel(op, root, c)
    if shift is None:
        return No("the addend is not constant by channel")
    return _fused(op, conv, root, None, -shift if root.op_type == "Sub" else shift)


@rule(lambda op, c: [op.Div(getattr(op, name)(...), op.constant(c)) for name in _NAMES])
def fuse_conv_div(op, c, root):
    conv, divisor = _by_channel(op, root, c)
    if divisor is None or np.any(divisor == 0):
        return No("the divisor is not constant by channel")
    return _fused(op, conv, root, 1 / divisor, np.zeros(len(divisor)))


@rule(lambda op, x, pads, v=None: op.Conv(op.Pad(x, pads, v, mode="constant"), ...),
      lambda op, x, pads, v=None: op.AveragePool(op.Pad(x, pads, v, mode="constant")),
      lambda op, x, pads, v=None: op.MaxPool(op.Pad(x, pads, v, mode="constant")))
def fuse_pad(op, x, pads, v, root):
    """Padding with what the operator itself pads with becomes its own."""
    told, n = ints(pads), rank(x)
    if (
        told is None
        or n is None
        or n < 3
        or len(told) != 2 * n
        or min(told) < 0
        or any(told[:2] + told[n : n + 2])
    ):
        return No("it does not pad the spatial axes by known amounts")
    if (
        root.attribute("auto_pad") not in (None, "NOTSET", "VALID")
        or root.attribute("ceil_mode")
        or not unread(root, 1)
    ):
        return No("the operator pads by its own rule")
    spatial = n - 2
    own = root.attribute("pads") or [0] * 2 * spatial
    value = 0 if v is None else number(v)
    changed = {}
    if root.op_type == "MaxPool":
        if value is None or x.elem is None or not x.elem.floating or value > float(np.finfo(np.float32).min):
            return No("it pads with something else than the least number")
    elif value != 0:
        return No("it pads with something else than 0")
    elif root.op_type == "AveragePool":
        if any(own) and not root.attribute("count_include_pad"):
            return No("the operator leaves its own padding out of the average")
        changed["count_include_pad"] = 1
    merged = [a + b for a, b in zip(own, told[2:n] + told[n + 2:], strict=True)]
    if root.op_type != "Conv" and (kernel := root.attribute("kernel_shape")) is not None and any(
            p >= k for p, k in zip(merged, [*kernel, *kernel], strict=True)):
        return No("the padding is as wide as the kernel")
    return op.again(root, x, *root.inputs[1:], pads=merged, auto_pad=None, **changed)


BASIC = (fuse_conv_batch_normalization, fuse_batch_normalization_conv, fuse_conv_mul, fuse_conv_add,
         fuse_conv_div, fuse_pad)
