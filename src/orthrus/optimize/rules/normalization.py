"""Normalizations exporters took apart, and the residual sum before one.

The core is fused first, with a scale of ones; the scale and the bias that follow are then taken in, one by
one.
"""

from __future__ import annotations

import numpy as np

from ...ir import ElementType, No
from ..pattern import number, rule
from .facts import array, ints, positive, rank, same_type, unread


def _axis(x, *axes):
    """Where the normalized axes begin: all of `axes` name the same last ones of x, else None."""
    n = rank(x)
    told = [positive(ints(a), n) for a in axes]
    if n is None or told[0] is None or not told[0] or any(t != told[0] for t in told):
        return None
    return told[0][0] if told[0] == list(range(told[0][0], n)) else None


def _ones(op, x, axis, like):
    shape = x.shape[axis:]
    if not all(isinstance(d, int) for d in shape) or like.elem is None:
        return None
    return op.constant(np.ones(shape, like.elem.numpy), name="scale")


def _square(op, d):
    return op.either(op.Pow(d, 2), op.Mul(d, d))


def _divided(op, d, root):
    return [op.Div(d, root), op.Mul(d, op.Reciprocal(root)), op.Mul(d, op.Div(1, root))]


def _layer_norm(op, x, a, b, e):
    d = op.Sub(x, op.ReduceMean(x, a, keepdims=1))
    inner = op.either(d, op.Sub(x, op.ReduceMean(x, a, keepdims=1)))
    sums = [op.Add(op.ReduceMean(_square(op, v), b, keepdims=1), e) for v in (d, inner, op.Cast(d))]
    return [form for s in sums for form in (*_divided(op, d, op.Sqrt(s)), op.Mul(d, op.Pow(s, -0.5)))]


def _variance_at_once(op, x, mean, b):
    """mean(x * x) - mean ** 2, which rounding may make negative."""
    variance = op.Sub(op.ReduceMean(_square(op, x), b, keepdims=1), _square(op, mean))
    return op.either(op.Max(variance, 0), variance)


def _roots(op, s):
    return op.either(op.Reciprocal(op.Sqrt(s)), op.Div(1, op.Sqrt(s)), op.Pow(s, -0.5))


def _layer_norm_at_once(op, x, a, b, e):
    mean = op.ReduceMean(x, a, keepdims=1)
    s = op.Add(_variance_at_once(op, x, mean, b), e)
    return [*_divided(op, op.Sub(x, mean), op.Sqrt(s)), op.Mul(op.Sub(x, mean), op.Pow(s, -0.5))]


def _layer_norm_weighted(op, x, a, b, e, g):
    mean = op.ReduceMean(x, a, keepdims=1)
    d = op.Sub(x, mean)
    variance = op.either(op.ReduceMean(_square(op, d), b, keepdims=1), _variance_at_once(op, x, mean, b))
    return op.Mul(d, op.Mul(_roots(op, op.Add(variance, e)), op.constant(g)))


@rule(_layer_norm_weighted)
def fuse_layer_normalization_weighted(op, x, a, b, e, g):
    """(x - mean) * (g / sqrt(variance + e))"""
    axis, epsilon = _axis(x, a, b), number(e)
    scale = _as_weights(op, g, x, axis)
    if scale is None or epsilon is None:
        return No("the axes are not the last ones, or the scale does not follow them")
    return op.LayerNormalization(x, scale, axis=axis - rank(x), epsilon=float(epsilon))


@rule(lambda op, x, a, e, g: op.Mul(x, op.Mul(
    _roots(op, op.Add(op.ReduceMean(_square(op, x), a, keepdims=1), e)), op.constant(g))))
def fuse_rms_normalization_weighted(op, x, a, e, g):
    """x * (g / sqrt(mean(x ** 2) + e))"""
    axis, epsilon = _axis(x, a), number(e)
    scale = _as_weights(op, g, x, axis)
    if scale is None or epsilon is None:
        return No("the axes are not the last ones, or the scale does not follow them")
    return op.RMSNormalization(x, scale, axis=axis - rank(x), epsilon=float(epsilon))


def _as_weights(op, g, x, axis):
    """A constant in the shape of the normalized axes, if that is its shape but for ones before; else None."""
    given = array(g)
    shape = None if axis is None else x.shape[axis:]
    if given is None or shape is None or not all(isinstance(d, int) for d in shape) or given.ndim > rank(x):
        return None
    full = (1,) * (rank(x) - given.ndim) + given.shape
    if full != (1,) * axis + shape:
        return None
    return g if given.shape == shape else op.constant(given.reshape(shape), name="scale")


@rule(_layer_norm, _layer_norm_at_once)
def fuse_layer_normalization(op, x, a, b, e):
    """(x - mean) / sqrt(mean((x - mean) ** 2) + e)"""
    axis, epsilon = _axis(x, a, b), number(e)
    if axis is None or epsilon is None:
        return No("the axes are not the last ones, or the epsilon is no constant")
    scale = _ones(op, x, axis, x)
    if scale is None:
        return No("the normalized dimensions are not known")
    return op.LayerNormalization(x, scale, axis=axis - rank(x), epsilon=float(epsilon))


def _layer_norm_shifted(op, x, a, b, e, g, t):
    mean = op.ReduceMean(x, a, keepdims=1)
    d = op.Sub(x, mean)
    root = op.Sqrt(op.Add(op.ReduceMean(_square(op, d), b, keepdims=1), e))
    s = op.Mul(op.either(op.Reciprocal(root), op.Div(1, root)), op.constant(g))
    return op.Add(op.Mul(x, s), op.Sub(op.constant(t), op.Mul(mean, s)))


@rule(_layer_norm_shifted)
def fuse_layer_normalization_shifted(op, x, a, b, e, g, t):
    """x * s + (t - mean * s) with s = g / sqrt(variance + e)"""
    axis, epsilon = _axis(x, a, b), number(e)
    if axis is None or epsilon is None or g.shape != x.shape[axis:] or t.shape != x.shape[axis:]:
        return No("the axes are not the last ones, or scale and bias do not follow them")
    return op.LayerNormalization(x, g, t, axis=axis - rank(x), epsilon=float(epsilon))


def _rms_norm(op, x, a, e):
    s = op.Add(op.ReduceMean(_square(op, x), a, keepdims=1), e)
    return [*_divided(op, x, op.Sqrt(s)), op.Mul(x, op.Pow(s, -0.5))]


@rule(_rms_norm)
def fuse_rms_normalization(op, x, a, e):
    """x / sqrt(mean(x ** 2) + e)"""
    axis, epsilon = _axis(x, a), number(e)
    if axis is None or epsilon is None:
        return No("the axes are not the last ones, or the epsilon is no constant")
    scale = _ones(op, x, axis, x)
    if scale is None:
        return No("the normalized dimensions are not known")
    return op.RMSNormalization(x, scale, axis=axis - rank(x), epsilon=float(epsilon))


@rule(lambda op, x, s, g: [op.Mul(getattr(op, name)(x, op.constant(s)), g)
                           for name in ("LayerNormalization", "RMSNormalization")])
def fuse_normalization_scale(op, x, s, g, root):
    """The scale, where there was none yet."""
    norm = op.maker(root.inputs[0], "LayerNormalization", "RMSNormalization") or \
        op.maker(root.inputs[1], "LayerNormalization", "RMSNormalization")
    if norm is None or not np.all(s.const == 1) or g.shape is None or g.shape != s.shape or g.elem != s.elem:
        return No("it has a scale already, or the factor does not follow the normalized axes")
    if not unread(norm, 1, 2):
        return No("its statistics are read")
    return op.again(norm, x, g) if len(norm.outputs) == 1 else None


@rule(lambda op, x, s, b: op.Add(op.LayerNormalization(x, s), op.constant(b)))
def fuse_normalization_bias(op, x, s, b, root):
    """The bias, where there was none yet."""
    norm = op.maker(root.inputs[0], "LayerNormalization") or op.maker(root.inputs[1], "LayerNormalization")
    if b.shape != s.shape or b.elem != s.elem:
        return No("the addend does not follow the normalized axes")
    return op.again(norm, x, s, b) if len(norm.outputs) == 1 else None


@rule(lambda op, x, s, a, b: op.Cast(op.either(op.LayerNormalization(op.Cast(x, to=1), op.constant(s)),
                                               op.RMSNormalization(op.Cast(x, to=1), op.constant(s))), to=a))
def fuse_normalization_casts(op, x, s, a, root):
    """A normalization of half precision carried out in float is what its stash type says anyway."""
    if x.elem is None or a != x.elem or x.elem.numpy.itemsize >= 4 or not np.all(s.const == 1):
        return No("it does not return to the type it came from")
    norm = root.inputs[0].node
    return op.node("", norm.op_type, x, op.constant(np.ones(s.const.shape, x.elem.numpy), name="scale"),
                   axis=norm.attrs.get("axis"), epsilon=norm.attrs.get("epsilon"))


@rule(lambda op, x, a, s, t, b: op.Reshape(
    op.InstanceNormalization(op.Reshape(x, a), op.constant(s), op.constant(t)), b))
def fuse_group_normalization(op, x, s, t, b, root):
    """Channels normalized in groups, which stand side by side for InstanceNormalization"""
    grouped, y = root.inputs[0].shape, root.output.shape
    if x.shape is None or grouped is None or y is None or len(y) < 3 or x.elem is None:
        return No("the shapes are not known")
    groups, channels = grouped[1], y[1]
    if not isinstance(groups, int) or not isinstance(channels, int) or not groups or channels % groups:
        return No("the channels do not fall into groups")
    if grouped[0] != y[0] or y[0] is None:
        return No("the batch is not known to stay")
    scale, bias = (op.constant(v.const.repeat(channels // groups), name=name)
                   for v, name in ((s, "scale"), (t, "bias")))
    return op.GroupNormalization(x if x.shape == y and None not in y else op.Reshape(x, b), scale, bias,
                                 num_groups=groups, epsilon=root.inputs[0].node.attribute("epsilon"))


def _by_channel(value, x):
    """A constant with one number for each channel of x [batch, channels, …], as a vector; else None."""
    given, n = array(value), rank(x)
    if given is None or n is None or given.ndim < n - 1 or given.ndim > n or given.shape[1 - n] != x.shape[1]:
        return None
    return given.reshape(-1) if given.size == x.shape[1] else None


@rule(lambda op, x, s, t, f: op.Mul(op.GroupNormalization(x, op.constant(s), op.constant(t)), op.constant(f)))
def fuse_group_normalization_scale(op, x, s, t, f, root):
    """A factor by channel"""
    made, factor = op.maker(root.inputs[0], "GroupNormalization") or op.maker(
        root.inputs[1], "GroupNormalization"), _by_channel(f, x)
    if made is None or factor is None or made.version < 21:
        return No("the factor does not follow the channels")
    return op.again(made, x, op.constant(s.const * factor, name="scale"),
                    op.constant(t.const * factor, name="bias"))


@rule(lambda op, x, s, t, f: op.Add(op.GroupNormalization(x, s, op.constant(t)), op.constant(f)))
def fuse_group_normalization_bias(op, x, s, t, f, root):
    """An addend by channel"""
    made, addend = op.maker(root.inputs[0], "GroupNormalization") or op.maker(
        root.inputs[1], "GroupNormalization"), _by_channel(f, x)
    if made is None or addend is None or made.version < 21:
        return No("the addend does not follow the channels")
    return op.again(made, x, s, op.constant(t.const + addend, name="bias"))


@rule(lambda op, x, y, s, g, b=None: op.LayerNormalization(op.keep(op.Add(x, y), s), g, b))
def fuse_skip_layer_normalization(op, x, y, s, g, b, root):
    """A LayerNormalization of a sum, whose sum others may read too."""
    return _skip(op, "com.microsoft::SkipLayerNormalization", x, y, s, root, (g, b))


@rule(lambda op, x, y, s, g: op.RMSNormalization(op.keep(op.Add(x, y), s), g))
def fuse_skip_rms_normalization(op, x, y, s, g, root):
    """An RMSNormalization of a sum, whose sum others may read too."""
    return _skip(op, "com.microsoft::SkipSimplifiedLayerNormalization", x, y, s, root, (g,))


def _terms(x, y):
    """Two terms of a sum, of which the second may be one text's [1, length, width] or [length, width], which
    is added to every text; None for others."""
    if same_type(x, y):
        return (x, y) if array(y) is None else (y, x)
    for whole, part in ((x, y), (y, x)):
        if rank(whole) == 3 and rank(part) in (2, 3) and whole.elem == part.elem:
            text = whole.shape[1:]
            if None not in text and part.shape in (text, (1, *text)):
                return whole, part
    return None


def _skip(op, kind, x, y, s, root, weights):
    n = rank(s)
    axis = root.attribute("axis")
    given = _terms(x, y)
    if n not in (2, 3) or axis not in (-1, n - 1) or not unread(root, 1, 2) or given is None:
        return No("the terms are not two tensors of one shape, normalized along the last axis")
    if (
        rank(weights[0]) != 1
        or root.attribute("stash_type") != 1
        or x.elem not in (ElementType.FLOAT, ElementType.FLOAT16)
        or weights[0].elem != x.elem
    ):
        return No("scale and terms differ in type")
    epsilon = root.attribute("epsilon")
    if any(user is not root for user in s.uses) or s.graph_outputs:
        made, _, _, total = op(kind)(*given, *weights, epsilon=epsilon, outputs=4)
        return {root.output: made, s: total}
    return op(kind)(*given, *weights, epsilon=epsilon)


EXTENDED = (
    fuse_layer_normalization_shifted,
    fuse_layer_normalization_weighted,
    fuse_rms_normalization_weighted,
    fuse_layer_normalization,
    fuse_rms_normalization,
    fuse_normalization_casts,
    fuse_normalization_scale,
    fuse_normalization_bias,
)
GROUPS = (fuse_group_normalization, fuse_group_normalization_scale, fuse_group_normalization_bias)
LAST = (fuse_skip_layer_normalization, fuse_skip_rms_normalization)
