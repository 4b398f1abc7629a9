"""Activations exporters took apart."""

from __future__ import annotations

import math

from ...ir import No
from ..pattern import close, number, rule
from .facts import ints, positive, rank

_ROOT_HALF, _ROOT_TWO, _TANH = math.sqrt(0.5), math.sqrt(2), math.sqrt(2 / math.pi)


def _products(op, x, e):
    """x * e / 2 in every order."""
    return [op.Mul(op.Mul(x, e), 0.5), op.Mul(x, op.Mul(e, 0.5)), op.Mul(op.Mul(x, 0.5), e),
            op.Div(op.Mul(x, e), 2), op.Mul(x, op.Div(e, 2)), op.Mul(op.Div(x, 2), e)]


def erf_gelu(op, x, scaled):
    """The ways to write a Gelu; `scaled`: x over the root of 2."""
    e = op.Erf(scaled)
    return [*_products(op, x, op.Add(e, 1)), op.Mul(x, op.Add(op.Mul(e, 0.5), 0.5))]


def _tanh_gelu(op, x):
    square = op.either(op.Mul(x, x), op.Pow(x, 2))
    cube = op.either(op.Pow(x, 3), op.Mul(x, square), op.Mul(square, x))
    scaled = op.either(op.Mul(cube, 0.044715), op.Mul(op.Mul(x, 0.044715), square),
                       op.Mul(op.Mul(op.Mul(x, 0.044715), x), x))
    arc = op.either(op.Mul(op.Add(x, scaled), _TANH),
                    op.Mul(op.Mul(x, _TANH), op.Add(op.either(op.Mul(square, 0.044715),
                                                              op.Mul(op.Mul(x, 0.044715), x)), 1)),
                    op.Mul(x, op.Add(op.Mul(square, _TANH * 0.044715), _TANH)))
    t = op.Tanh(arc)
    return [*_products(op, x, op.Add(t, 1)), op.Mul(x, op.Add(op.Mul(t, 0.5), 0.5))]


@rule(lambda op, x: erf_gelu(op, x, op.either(op.Div(x, _ROOT_TWO), op.Mul(x, _ROOT_HALF))))
def fuse_gelu(op, x):
    """x * (1 + erf(x / sqrt(2))) / 2"""
    return op.Gelu(x)


@rule(_tanh_gelu)
def fuse_gelu_tanh(op, x):
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2"""
    return op.Gelu(x, approximate="tanh")


@rule(lambda op, x: op.Mul(x, op.Sigmoid(x)))
def fuse_swish(op, x):
    return op.Swish(x)


@rule(lambda op, x, c: op.Mul(x, op.Sigmoid(op.Mul(x, op.constant(c)))))
def fuse_quick_gelu(op, x, c):
    """x * sigmoid(c * x), of which 1.702 is the QuickGelu"""
    alpha = number(c)
    if alpha is None or c.const.ndim > (rank(x) or 0):
        return No("the factor is no constant number")
    return op.Swish(x, alpha=float(alpha))


@rule(
    lambda op, x: op.Div(op.Clip(op.Add(x, 3), 0, 6), 6),
    lambda op, x: op.Mul(op.Clip(op.Add(x, 3), 0, 6), 1 / 6),
)
def fuse_hard_sigmoid(op, x):
    """clip(x + 3, 0, 6) / 6"""
    if x.elem is None or not x.elem.floating:
        return No("integers round otherwise")
    return op.HardSigmoid(x, alpha=1 / 6, beta=0.5)


@rule(lambda op, x, a, b: op.Mul(x, op.HardSigmoid(x, alpha=a, beta=b)))
def fuse_hard_swish(op, x, a, b, root):
    if x.elem is None or not close(a, 1 / 6, x.elem.numpy) or b != 0.5:
        return No("it is another HardSigmoid")
    return op.HardSwish(x)


@rule(
    lambda op, x: [
        op.Div(op.Mul(x, op.Clip(op.Add(x, 3), 0, 6)), 6),
        op.Mul(op.Mul(x, op.Clip(op.Add(x, 3), 0, 6)), 1 / 6),
        op.Mul(op.Div(x, 6), op.Clip(op.Add(x, 3), 0, 6)),
        op.Mul(op.Mul(x, 1 / 6), op.Clip(op.Add(x, 3), 0, 6)),
    ]
)
def fuse_hard_swish_parts(op, x):
    """x * clip(x + 3, 0, 6) / 6"""
    if x.elem is None or not x.elem.floating:
        return No("integers round otherwise")
    return op.HardSwish(x)


@rule(lambda op, x: op.Log(op.Add(op.Exp(x), 1)))
def fuse_softplus(op, x):
    return op.Softplus(x)


@rule(lambda op, x: op.Mul(x, op.Tanh(op.Softplus(x))))
def fuse_mish(op, x):
    return op.Mish(x)


def _softmax(op, x, a, b):
    e = op.Exp(op.Sub(x, op.ReduceMax(x, a, keepdims=1)))
    return op.Div(e, op.ReduceSum(e, b, keepdims=1))


@rule(_softmax)
def fuse_softmax(op, x, a, b):
    """exp(x - max) / sum(exp(x - max)) along one axis"""
    n = rank(x)
    axes = positive(ints(a), n)
    if axes is None or len(axes) != 1 or positive(ints(b), n) != axes:
        return No("it is not along one known axis")
    return op.Softmax(x, axis=axes[0] - n)


EXTENDED = (fuse_gelu, fuse_gelu_tanh, fuse_swish, fuse_quick_gelu, fuse_hard_sigmoid, fuse_hard_swish,
            fuse_hard_swish_parts, fuse_softplus, fuse_mish, fuse_softmax)
