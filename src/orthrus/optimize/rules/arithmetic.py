"""Arithmetic: chains that are one operator, and powers written out."""

from __future__ import annotations

import numpy as np

from ...ir import No
from ..pattern import number, rule
from .facts import as_type, from_weights

_TWICE = ["Relu", "Abs", "Floor", "Ceil", "Round", "Sign"]


@rule(lambda op, x: [getattr(op, name)(getattr(op, name)(x)) for name in _TWICE], shared=True)
def drop_second_application(op, x, root):
    """f(f(x)) is f(x) for these."""
    return root.inputs[0]


@rule(lambda op, x: op.Neg(op.Neg(x)), lambda op, x: op.Not(op.Not(x)), shared=True)
def drop_double_negation(op, x):
    return x


@rule(lambda op, x, y: op.Mul(op.Div(1, x), y))
def fuse_div(op, x, y):
    """(1 / x) * y"""
    if x.elem is None or not x.elem.floating:
        return No("integers round between the two")
    return op.Div(y, x)


@rule(lambda op, x, a, b: op.Clip(op.Relu(x), a, b))
def fuse_relu_clip(op, x, a=None, b=None):
    """A Relu before a Clip only lifts the lower bound."""
    low, high = number(a), number(b)
    if from_weights(x) or low is None or high is None or high < 0:
        return No("the bounds are not constant")
    return op.Clip(x, a if low >= 0 else op.constant(np.zeros((), a.const.dtype)), b)


@rule(lambda op, x, a, b: op.Relu(op.Clip(x, a, b)))
def fuse_clip_relu(op, x, a, b):
    low, high = number(a), number(b)
    if low is None or high is None or high < 0:
        return No("the bounds are not constant")
    return op.Clip(x, a if low >= 0 else op.constant(np.zeros((), a.const.dtype)), b)


@rule(lambda op, x, a, b, c, d: op.Clip(op.Clip(x, a, b), c, d))
def merge_clips(op, x, a, b, c, d):
    told = [number(v) for v in (a, b, c, d)]
    if None in told:
        return No("the bounds are not constant")
    low, high = max(told[0], told[2]), min(told[1], told[3])
    if low > high:
        return No("the bounds do not overlap")
    return op.Clip(x, op.constant(as_type(low, a)), op.constant(as_type(high, a)))


@rule(lambda op, x, n: op.Pow(x, op.constant(n)))
def expand_pow(op, x, n):
    """Squares, cubes and square roots without a logarithm."""
    power = number(n)
    if x.elem is None or not x.elem.floating or n.const.ndim > len(x.shape or ()):
        return None
    if power == 2:
        return op.Mul(x, x)
    if power == 3:
        return op.Mul(op.Mul(x, x), x)
    return op.Sqrt(x) if power == 0.5 else None


BASIC = (drop_second_application, drop_double_negation, fuse_div, fuse_relu_clip, fuse_clip_relu, merge_clips)
EXTENDED = (expand_pow,)
