"""com.microsoft's operators of diffusion networks, whose channels come last, in ONNX's own, which have
kernels: what is left between two of them is movement."""

from __future__ import annotations

from ...ir import No
from ..pattern import rule
from .facts import rank


def _first(op, x):
    n = rank(x)
    return op.Transpose(x, perm=[0, n - 1, *range(1, n - 1)])


def _last(op, x):
    n = rank(x)
    return op.Transpose(x, perm=[0, *range(2, n), 1])


def _normalized(op, x, gamma, beta, root):
    """`x` with its channels second normalized as `root` says, in the layout of root."""
    y = op.GroupNormalization(x, op.Cast(gamma, to=int(x.elem)), op.Cast(beta, to=int(x.elem)),
                              num_groups=root.attribute("groups"), epsilon=root.attribute("epsilon"))
    y = op.Swish(y) if root.attribute("activation") == 1 else y
    return _last(op, y) if root.attribute("channels_last") else y


def _unfit(x, root):
    if rank(x) is None or rank(x) < 3 or x.elem is None:
        return "the rank is not known"
    return None if root.attribute("activation") in (0, 1) else "the activation is not known"


@rule(lambda op, x, g, b: op("com.microsoft::GroupNorm")(x, g, b))
def expand_group_norm(op, x, g, b, root):
    """A GroupNormalization, with swish or without"""
    if (why := _unfit(x, root)) is not None:
        return No(why)
    return _normalized(op, _first(op, x) if root.attribute("channels_last") else x, g, b, root)


@rule(lambda op, x, g, b, y, t=None: op("com.microsoft::SkipGroupNorm")(x, g, b, y, t))
def expand_skip_group_norm(op, x, g, b, y, t, root):
    """The same of a sum, which is given on"""
    if (why := _unfit(x, root)) is not None or rank(y) != rank(x):
        return No(why or "the terms differ in rank")
    last = root.attribute("channels_last")
    total = op.Add(x, y)
    if t is not None:
        total = op.Add(total, t if last else op.Unsqueeze(t, op.ints(range(1, rank(x) - 1))))
    made = _normalized(op, _first(op, total) if last else total, g, b, root)
    return (made, total) if len(root.outputs) > 1 else made


@rule(lambda op, x, b: op("com.microsoft::BiasSplitGelu")(x, b))
def expand_bias_split_gelu(op, x, b):
    """The first half of a sum times the Gelu of the second"""
    if not rank(x) or x.shape[-1] is None:
        return No("the shape is not known")
    left, right = op.node("", "Split", op.Add(x, b), axis=-1, num_outputs=2, outputs=2)
    return op.Mul(left, op.Gelu(right))


@rule(lambda op, x, b, y: op("com.microsoft::BiasAdd")(x, b, y))
def expand_bias_add(op, x, b, y):
    """Two sums"""
    return op.Add(op.Add(x, b), y)


@rule(lambda op, x, w, b=None: op("com.microsoft::NhwcConv")(x, w, b))
def expand_nhwc_conv(op, x, w, b, root):
    """A Conv"""
    if (rank(x) or 0) < 3 or rank(w) != rank(x):
        return No("the rank is not known")
    return _last(op, op.Conv(_first(op, x), _first(op, w), b, **root.attrs))


EXTENDED = (expand_group_norm, expand_skip_group_norm, expand_bias_split_gelu, expand_bias_add,
            expand_nhwc_conv)
