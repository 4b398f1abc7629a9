"""Gelu and its kin in com.microsoft's forms, with the bias before them."""

from __future__ import annotations

from ...ir import ElementType, No
from ...optimize.pattern import rule
from ...optimize.rules.activation import erf_gelu
from ...optimize.rules.facts import array, rank

_MEGATRONS_ROOT = 1.41421


@rule(lambda op, x: erf_gelu(op, x, op.Div(x, _MEGATRONS_ROOT)))
def fuse_megatrons_gelu(op, x):
    """A Gelu with the root of 2 as Megatron rounds it: the values differ by up to 8e-7"""
    return No("double tells them apart") if x.elem == ElementType.DOUBLE else op.Gelu(x)


@rule(lambda op, x: op.Gelu(x))
def fuse_gelu_form(op, x, root):
    if root.attribute("approximate") == "tanh":
        return op("com.microsoft::FastGelu")(x)
    return op("com.microsoft::Gelu")(x)


@rule(lambda op, x: op.Swish(x))
def fuse_quick_gelu_form(op, x, root):
    return op("com.microsoft::QuickGelu")(x, alpha=float(root.attribute("alpha")))


def _bias(x, b):
    """Why `b` is no bias along the last axis of x; None where it is one."""
    given = array(b)
    if given is None or given.ndim != 1 or (rank(x) or 0) < 2 or x.shape[-1] != given.shape[0]:
        return "the addend is no constant vector along the last axis"
    return None


@rule(lambda op, x, b: op("com.microsoft::Gelu")(op.Add(x, op.constant(b))))
def fuse_bias_gelu(op, x, b):
    """The Gelu of x + a bias"""
    if (why := _bias(x, b)) is not None:
        return No(why)
    return op("com.microsoft::BiasGelu")(x, b)


@rule(lambda op, x, b: op("com.microsoft::FastGelu")(op.Add(x, op.constant(b))))
def fuse_bias_fast_gelu(op, x, b):
    """The FastGelu of x + a bias"""
    if (why := _bias(x, b)) is not None:
        return No(why)
    return op("com.microsoft::FastGelu")(x, b)


@rule(lambda op, x: op("com.microsoft::Gelu")(x), lambda op, x, b: op("com.microsoft::BiasGelu")(x, b))
def fuse_gelu_approximation(op, x, b=None):
    """FastGelu in the place of Gelu: the values differ by up to 5e-4."""
    return op("com.microsoft::FastGelu")(x, b)


@rule(lambda op, a, w, b: op("com.microsoft::FastGelu")(op.MatMul(a, w), b),
      lambda op, a, w: op("com.microsoft::FastGelu")(op.MatMul(a, w)))
def fuse_gemm_fast_gelu(op, a, w, b=None):
    """The FastGelu of a product with a matrix of weights"""
    if array(w) is None or rank(w) != 2:
        return No("the weights are no constant matrix")
    return op("com.microsoft::GemmFastGelu")(a, w, b)
