"""Elementwise operators that are more than their definition's tree, and the loop that stores a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.kernels import loops
from ...codegen.write.expr import Expr
from ...codegen.write.tile import total_of
from ...codegen.write.trace import cast, trace, traced
from ...ir import ElementType, No, Node
from ..lower import BOTH, Lazy, Lowering, Out, lowers
from ..tensor import Tensor

_GRAIN = 8


def activation(name: str | None, params: Sequence[float | None] | None) -> Expr | None | No:
    """The tree of a fused activation over leaf 0, float32; None for none."""
    if not name:
        return None
    from ...ops.contrib.fused import fused_activation

    try:
        op, attrs = fused_activation(name, params)
    except ValueError as error:
        return No(str(error))
    return traced(op, attrs, ["float32"])


@lowers("Cast", sets=BOTH)
def cast_to(lo: Lowering, node: Node) -> Lazy | No:
    """An elementwise conversion, where kernels know both types."""
    (x,) = node.inputs
    assert x is not None
    target = ElementType(node.attrs["to"]).numpy.name
    return lo.elementwise([x], lambda dtypes: cast(dtypes[0], target))


@lowers("CastLike", sets=BOTH)
def cast_like(lo: Lowering, node: Node) -> Lazy | No:
    """A conversion to the type of another tensor."""
    x, like = node.inputs
    assert x is not None and like is not None
    target = lo.dtype(like)
    return lo.elementwise([x], lambda dtypes: cast(dtypes[0], target))


_OF_INTEGERS = {"Div": "quotient", "Mod": "remainder"}


@lowers("Div", "Mod")
def division(lo: Lowering, node: Node) -> Lazy | No:
    """A quotient or what it leaves."""
    def none_zero(lo: Lowering, t: Tensor) -> None:
        lo.step(loops.none_zero(dtype=t.dtype), [t, Out(lo.status), t.size], -(-t.size // loops.BLOCK),
                _GRAIN)
    return divided(lo, node, none_zero)


def divided(lo: Lowering, node: Node, check: Callable[[Any, Tensor], None]) -> Lazy | No:
    """A quotient or what it leaves; of integers by others that `check` looks through for 0, which the
    definition has an error for."""
    op, (a, b), attrs = node.op, node.inputs, node.attributes
    if op is None or not op.broadcasts or a is None or b is None:
        return No("its older form broadcasts otherwise")
    dtype = lo.dtype(a)
    number = lo.number(b)
    if number is not None or np.dtype(dtype).kind not in "iu" or lo.dtype(b) != dtype:
        numbers = {} if number is None else {1: number}
        return lo.elementwise([a, b], lambda dtypes: trace(op, node.attrs, dtypes, numbers))
    known = lo.known(b) if lo.knows(b) else None
    if known is not None and not known.all():
        return No("a divisor is zero")
    if known is None:
        check(lo, lo.contiguous(lo.tensor(b)))
    how = "fmod" if attrs.get("fmod") else _OF_INTEGERS[node.op_type]
    return lo.elementwise([a, b], lambda _: Expr(how, (Expr.leaf(0, dtype), Expr.leaf(1, dtype)), dtype))


@lowers("BatchNormalization", types=("float32", "float64", "float16", "bfloat16"), sets=BOTH)
def batch_normalization(lo: Lowering, node: Node) -> Lazy | No:
    """x times a factor plus a term per channel, both computed once where they are of constants."""
    if node.attrs.get("training_mode") or any(v is not None and not v.dead for v in node.outputs[1:]):
        return No("training form")
    x, *rest = node.inputs
    assert x is not None
    dtype, shape = total_of(lo.dtype(x)), lo.shape(x)
    arrays = [lo.known(v) for v in rest]
    if any(a is None for a in arrays):
        if len(shape) < 2 or any(lo.shape(v) != shape[1:2] for v in rest):
            return No("its scale, bias, mean and variance do not fit")
        factor, term = _scaled(lo, [lo.tensor(v) for v in rest], node.attribute("epsilon"), dtype)
        operands = [t.view((t.size, *(1,) * (len(shape) - 2)), (t.strides[0], *(0,) * (len(shape) - 2)))
                    for t in (factor, term)]
    else:
        scale, bias, mean, variance = (np.asarray(a, np.float64) for a in arrays)
        if any(a.size != (shape[1] if len(shape) > 1 else 1) for a in (scale, bias, mean, variance)):
            return No("its scale, bias, mean and variance are none of channels")
        times = scale / np.sqrt(variance + node.attribute("epsilon"))
        plus = bias - mean * times
        lying = (-1, *(1,) * (len(shape) - 2))
        key = tuple(id(v) for v in rest), node.attribute("epsilon"), lying
        operands = [lo.constant(("factor", key), lambda: times.astype(dtype).reshape(lying)),
                    lo.constant(("term", key), lambda: plus.astype(dtype).reshape(lying))]
    lazy = lo.lazy(x)
    count = len(lazy.operands)
    tree = Expr("fma", (lazy.tree.cast(dtype), Expr.leaf(count, dtype), Expr.leaf(count + 1, dtype)), dtype)
    return Lazy(lazy.shape, tree.cast(lo.dtype(x)), [*lazy.operands, *operands])


def _scaled(lo: Lowering, given: Sequence[Tensor], epsilon: float, dtype: str) -> tuple[Tensor, Tensor]:
    """What each channel is multiplied by and what is added then, of computed scale, bias, mean and variance.
    """
    def operation(name: str, *of: Expr) -> Expr:
        return Expr(name, of, dtype)
    scale, bias, mean, variance = (Expr.leaf(i, t.dtype).cast(dtype) for i, t in enumerate(given))
    times = operation("div", scale, operation("sqrt", operation("add", variance, Expr.const(epsilon, dtype))))
    factor, term = (lo.new(given[0].shape, dtype) for _ in range(2))
    lo.store(factor, times, list(given))
    lo.store(term, operation("sub", bias, operation("mul", mean, times)), list(given))
    return factor, term


@lowers("Dropout", "Identity", "MemcpyFromHost", "MemcpyToHost", sets=BOTH)
def identity(lo: Lowering, node: Node) -> Lazy | No | tuple[Lazy]:
    """The input itself."""
    x = node.inputs[0]
    assert x is not None
    if any(v is not None and not v.dead for v in node.outputs[1:]):
        return No("its mask is read")
    training = lo.known(node.inputs[2]) if len(node.inputs) > 2 else None
    if node.op_type == "Dropout" and training is not None and training.any():
        return No("training form")
    return (lo.lazy(x),)
