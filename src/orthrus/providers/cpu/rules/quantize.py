"""Quantizing and its inverse, as elementwise trees: between float kernels a pair of them costs no memory."""

from __future__ import annotations

import numpy as np

from ....codegen.expr import Expr
from ....ir import ElementType, No, Node, Value
from ....ops.define import normalized_axis
from ..lower import Lazy, Lowering, Source, lowers
from ..tensor import Tensor

_F32 = "float32"
_BYTES = {"int8": (-128, 127), "uint8": (0, 255)}


class _Tree:
    """A tree being built over a value and constants that go along one of its axes."""

    def __init__(self, lo: Lowering, x: Value, axis: int) -> None:
        self.lo = lo
        lazy = lo.lazy(x)
        self.shape, self.top = lazy.shape, lazy.tree
        self.operands: list[Tensor | Source] = list(lazy.operands)
        self.axis = axis

    def constant(self, value: Value) -> Expr | None:
        """One number, or one for each index of the axis, as float32; None where it is not known or not so."""
        known = self.lo.known(value)
        if known is None or known.ndim > 1:
            return None
        wide = known.astype(np.float32)
        if known.size == 1:
            return Expr.const(float(wide.reshape(())), _F32)
        at = 0 if len(self.shape) == 1 else normalized_axis(self.axis, len(self.shape))
        if known.size != self.shape[at]:
            return None
        lying = (-1, *(1,) * (len(self.shape) - at - 1))
        self.operands.append(self.lo.constant(("along", id(value), len(lying)), lambda: wide.reshape(lying)))
        return Expr.leaf(len(self.operands) - 1, _F32)

    def done(self, tree: Expr) -> Lazy:
        return Lazy(self.shape, tree, self.operands)


@lowers("QuantizeLinear", types=(_F32,))
def quantize_linear(lo: Lowering, node: Node) -> Lazy | No:
    """To eight bits, with one scale or one for each index of an axis."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    asked = node.attrs.get("output_dtype", 0)
    target = lo.dtype(zero) if zero is not None else ElementType(asked).numpy.name if asked else "uint8"
    if target not in _BYTES or lo.dtype(scale) != _F32 or node.attrs.get("block_size") or (
            node.attrs.get("precision")):
        return No(f"kernels quantize float32 to eight bits, not to {target} or in blocks")
    made = _Tree(lo, x, node.attrs.get("axis", 1))
    by = made.constant(scale)
    shift = Expr.const(0.0, _F32) if zero is None else made.constant(zero)
    if by is None or shift is None:
        return No("its scale or zero point is computed")
    low, high = (Expr.const(float(v), _F32) for v in _BYTES[target])
    tree = Expr("add", (Expr("rint", (Expr("div", (made.top, by), _F32),), _F32), shift), _F32)
    tree = Expr("where", (Expr("ge", (tree, low), "bool"), tree, low), _F32)
    tree = Expr("where", (Expr("le", (tree, high), "bool"), tree, high), _F32)
    return made.done(tree.cast("int32").cast(target))


@lowers("DequantizeLinear", types=("int8", "uint8", "int32"))
def dequantize_linear(lo: Lowering, node: Node) -> Lazy | No:
    """To float32."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    if lo.dtype(scale) != _F32 or node.attrs.get("block_size") or node.attrs.get("output_dtype") or (
            zero is not None and lo.dtype(x) == "int32"):
        return No("kernels dequantize eight bits to float32")
    made = _Tree(lo, x, node.attrs.get("axis", 1))
    by = made.constant(scale)
    shift = None if zero is None else made.constant(zero)
    if by is None or (zero is not None and shift is None):
        return No("its scale or zero point is computed")
    tree = made.top.cast(_F32)
    if shift is not None:
        tree = Expr("sub", (tree, shift), _F32)
    return made.done(Expr("mul", (tree, by), _F32))
