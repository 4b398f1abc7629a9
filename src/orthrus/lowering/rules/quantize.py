"""Quantizing and its inverse, as elementwise trees: between float kernels a pair of them costs no memory.

Scales and zero points are operands of the trees, not numbers in them, so that few kernels serve a model. What
quantizes a sum of products, or a sum of dequantized tensors, is divided by the new scale where its own scales
are, once and for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...codegen.write.expr import Expr
from ...ir import ElementType, No, Node, Value
from ...ops.define import normalized_axis
from ...ops.tensor.movement import VIEWS
from ..lower import Lazy, Lowering, Source, lowers
from ..tensor import Tensor
from .int8 import coded, number

_F32 = "float32"
_BYTES = {"int8": (-128, 127), "uint8": (0, 255)}
MOVES = (*VIEWS, "MaxPool", "GlobalMaxPool", "Transpose", "Expand", "Slice", "DepthToSpace", "SpaceToDepth",
         "Tile")
"""Operators that give some of their first input's elements, unchanged."""

_READS_BYTES = frozenset({"Conv", "MatMul", "Gemm", "Concat", *MOVES})
_WHOLE = frozenset({"int8", "uint8", "int32"})


class _Tree:
    """A tree being built over a value and parameters: one for all, or one for each index of an axis."""

    def __init__(self, lo: Lowering, lazy: Lazy, axis: int) -> None:
        self.lo, self.shape, self.top = lo, lazy.shape, lazy.tree
        self.operands: list[Tensor | Source] = list(lazy.operands)
        self.axis = axis

    def operand(self, t: Tensor) -> Expr:
        self.operands.append(t)
        return Expr.leaf(len(self.operands) - 1, t.dtype)

    def parameter(self, value: Value, dtype: str, how: Callable[[np.ndarray], Any] = lambda x: x,
                  name: str = "") -> Expr | None:
        """`how` of the numbers of `value`, as `dtype`; None where they do not fit, or are computed and more
        than one. Of a computed one `how` is not taken."""
        if not self.lo.knows(value):
            t = self.lo.tensor(value)
            return self.operand(t.view((), ())).cast(dtype) if t.size == 1 else None
        known = self.lo.known(value)
        assert known is not None
        if known.ndim > 1:
            return None
        if known.size == 1:
            number = np.asarray(how(known.reshape(()).astype(dtype)))
            return self.operand(self.lo.constant(("number", dtype, number.tobytes()), lambda: number))
        at = 0 if len(self.shape) == 1 else normalized_axis(self.axis, len(self.shape))
        if known.size != self.shape[at]:
            return None
        lying = (-1, *(1,) * (len(self.shape) - at - 1))
        return self.operand(self.lo.constant((name, "along", id(value), dtype, len(lying)),
                                             lambda: how(known.astype(dtype)).reshape(lying)))

    def done(self, tree: Expr) -> Lazy:
        return Lazy(self.shape, tree, self.operands)


@lowers("QuantizeLinear", "com.microsoft::QuantizeLinear", types=(_F32,))
def quantize_linear(lo: Lowering, node: Node) -> Lazy | No:
    """To eight bits, with one scale or one for each index of an axis."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    asked = node.attribute("output_dtype")
    target = lo.dtype(zero) if zero is not None else ElementType(asked).numpy.name if asked else "uint8"
    if target not in _BYTES or lo.dtype(scale) != _F32 or node.attrs.get("block_size") or (
            node.attrs.get("precision")):
        return No(f"kernels quantize float32 to eight bits, not to {target} or in blocks")
    source = coded(lo, x)
    if source is not None and lo.dtype(source.value) == target and lo.knows(scale) and (
            zero is None or lo.knows(zero)) and number(lo, scale) is not None and (
            number(lo, source.scale) == number(lo, scale) and number(lo, source.zero) == number(lo, zero)):
        return lo.lazy(source.value)
    made = quantized(lo, lo.lazy(x), scale, zero, target, node.attribute("axis"))
    return made or No("its scale or zero point is computed or does not fit")


def quantized(lo: Lowering, lazy: Lazy, scale: Value | None, zero: Value | None, target: str,
              axis: int = 1) -> Lazy | None:
    """A float32 tree over `scale`, where there is one, rounded, plus `zero`, held in the range of `target`;
    None where the parameters are more than one and computed, or do not fit."""
    low, high = _BYTES[target]
    shift = 0 if zero is None else one(lo, zero)
    by = None if scale is None else one(lo, scale)
    top = None if by is None else divided(lo, lazy, np.float32(by), low == shift)
    made = _Tree(lo, lazy if top is None else top, axis)
    tree = made.top
    if top is None and scale is not None:
        divisor = made.parameter(scale, _F32)
        if divisor is None:
            return None
        tree = Expr("div", (made.top, divisor), _F32)
    if shift == 0:
        return made.done(Expr("quantize", (tree, Expr.const(float(low), _F32), Expr.const(float(high), _F32),
                                           Expr.const(0, "int32")), target))
    assert zero is not None
    whole = made.parameter(zero, "int32")
    if whole is None:
        return None
    ends = []
    for end in (low, high):
        real: Expr | None = Expr("sub", (Expr.const(float(end), _F32), whole.cast(_F32)), _F32)
        if lo.knows(zero):
            real = made.parameter(zero, _F32, partial(np.subtract, np.float32(end)), f"{end} less")
        if real is None:
            return None
        ends.append(real)
    return made.done(Expr("quantize", (tree, *ends, whole), target))


def one(lo: Lowering, value: Value) -> float | None:
    """The only element of a value known now."""
    known = lo.known(value) if lo.knows(value) else None
    return None if known is None or known.size != 1 else known.reshape(()).item()


def divided(lo: Lowering, lazy: Lazy, by: np.float32, floor: bool) -> Lazy | None:
    """`lazy` over `by` where it is a sum of scaled integers and their scales are constant, else None.
    `floor`: what is negative need not be kept from being so."""
    operands = list(lazy.operands)
    places: dict[int, int] = {}

    def less(leaf: Expr) -> Expr | None:
        t = operands[leaf.value]
        if isinstance(t, Source) or t.buffer.kind != "const" or t.dtype != _F32 or not t.contiguous or (
                t.buffer.array is None or t.offset or t.buffer.array.size != t.size):
            return None
        if leaf.value not in places:
            array = t.buffer.array
            operands.append(lo.constant(("over", array.tobytes(), float(by), t.shape),
                                        lambda: np.asarray(array / by).reshape(t.shape)))
            places[leaf.value] = len(operands) - 1
        return Expr.leaf(places[leaf.value], _F32)

    tree = _over(lazy.tree, less) if lazy.tree.dtype == _F32 and lazy.tree.op != "leaf" else None
    if tree is None:
        return None
    if floor and tree.op == "maximum":
        tree = tree.args[0]
    return Lazy(lazy.shape, tree, operands)


def _over(it: Expr, less: Callable[[Expr], Expr | None]) -> Expr | None:
    """A tree with its leaves made `less`; None where that is not the same."""
    if it.op == "leaf":
        return less(it)
    if it.op == "mul" and _whole(it.args[0]) and it.args[1].op == "leaf":
        scale = less(it.args[1])
        return scale and Expr("mul", (it.args[0], scale), _F32)
    if it.op == "add":
        a, b = (_over(arg, less) for arg in it.args)
        return Expr("add", (a, b), _F32) if a is not None and b is not None else None
    if it.op == "maximum" and it.args[1] == Expr.const(0.0, _F32):
        inner = _over(it.args[0], less)
        return inner and Expr("maximum", (inner, it.args[1]), _F32)
    return None


def _whole(it: Expr) -> bool:
    """Whether a float32 tree is an integer, perhaps less a zero point."""
    return (it.op == "cast" and it.args[0].dtype in _WHOLE) or (it.op == "sub" and _whole(it.args[0]))


@lowers("DequantizeLinear", "com.microsoft::DequantizeLinear", types=("int8", "uint8", "int32"))
def dequantize_linear(lo: Lowering, node: Node) -> Lazy | No:
    """To float32."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    if lo.dtype(scale) != _F32 or node.attrs.get("block_size") or node.attrs.get("output_dtype") or (
            zero is not None and lo.dtype(x) == "int32" and one(lo, zero) != 0):
        return No("kernels dequantize eight bits to float32")
    if lo.dtype(x) in _BYTES and (len(node.output.uses) > 1 or any(
            reader.op_type in _READS_BYTES for reader in node.output.uses)):
        lo.tensor(x)
    made = dequantized(lo, lo.lazy(x), scale, zero, node.attribute("axis"))
    return made or No("its scale or zero point is computed or does not fit")


def dequantized(lo: Lowering, lazy: Lazy, scale: Value, zero: Value | None, axis: int = 1) -> Lazy | None:
    """(x - zero) * scale as float32."""
    made = _Tree(lo, lazy, axis)
    tree = made.top.cast(_F32)
    if zero is not None and one(lo, zero) != 0:
        shift = made.parameter(zero, _F32)
        if shift is None:
            return None
        tree = Expr("sub", (tree, shift), _F32)
    by = made.parameter(scale, _F32)
    return None if by is None else made.done(Expr("mul", (tree, by), _F32))
