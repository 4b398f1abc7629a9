"""Products and convolutions of bytes with their scales and zero points, and the quantization by a tensor's
own range. Sums are exact; results are what the operators' definitions give.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...codegen.kernels import quantize_range
from ...codegen.write.expr import Expr
from ...ir import No, Node, Value
from ..elements import store
from ..lower import Lazy, Lowering, Out, Pending, Source, lowers
from ..tensor import Tensor
from . import int8
from .conv import geometry
from .quantize import one, quantized

MS = "com.microsoft::"
F, INT = "float32", "int32"
_SUM = Expr.leaf(0, INT)
_GRAIN = 2


def _factor(lo: Lowering, b: Value, zero: Value | None, flip: bool = False) -> int8.Factor | No:
    """A constant matrix B, perhaps transposed, less its zero point, which is known."""
    known, low = lo.known(b) if lo.knows(b) else None, lo.known(zero)
    if known is None or (zero is not None and low is None):
        return No("integer kernels take a second factor that is constant")
    if known.ndim != 2 or not known.size or known.dtype.name not in int8.BYTES:
        return No("integer kernels take a matrix as second factor")
    k, n = known.shape[::-1] if flip else known.shape
    if low is not None and low.size not in (1, n):
        return No("the second factor's zero point is not one for each column")
    return int8.Factor(("product", id(b), id(zero), flip), (1, k, n),
                       lambda: ((known.T if flip else known)[None], None if low is None else low.reshape(-1)))


def _sums(lo: Lowering, a: Value, a_zero: Value | None, factor: int8.Factor, bias: int8.Bias | None = None
          ) -> Lazy | No:
    """(A - a_zero)·B + bias, int32; the zero point is one number, known or computed."""
    shape = lo.shape(a)
    if not shape or shape[-1] != factor.shape[1] or 0 in shape:
        return No("the factors do not fit")
    if a_zero is None or lo.knows(a_zero):
        zero = int8.number(lo, a_zero)
        if zero is None:
            return No("its first zero point is more than one number")
        return _whole(int8.product(lo, lo.tensor(a), factor, int(zero), bias))
    if len(lo.shape(a_zero)) > 1 or np.prod(lo.shape(a_zero)) != 1:
        return No("its first zero point is more than one number")
    made = int8.product(lo, lo.tensor(a), factor, 0, bias)
    less = Expr("mul", (Expr.leaf(1, lo.dtype(a_zero)).cast(INT), Expr.leaf(2, INT)), INT)
    return Lazy(made.shape, Expr("sub", (_SUM, less), INT),
                [Source(made), lo.tensor(a_zero).view((), ()), factor.sums(lo)])


def _whole(pending: Pending) -> Lazy:
    return Lazy(pending.shape, _SUM, [Source(pending)])


def _times(lazy: Lazy, *more: tuple[Tensor, str]) -> Lazy:
    """`lazy` as float32, then for each tensor "mul" or "add" it."""
    tree, operands = lazy.tree.cast(F), list(lazy.operands)
    for t, op in more:
        operands.append(t)
        tree = Expr(op, (tree, Expr.leaf(len(operands) - 1, t.dtype)), F)
    return Lazy(lazy.shape, tree, operands)


@lowers("MatMulInteger", types=int8.BYTES)
def matmul_integer(lo: Lowering, node: Node) -> Lazy | No:
    """The int32 sums."""
    a, b, a_zero, b_zero = (*node.inputs, None, None)[:4]
    assert a is not None and b is not None
    factor = _factor(lo, b, b_zero)
    return factor if isinstance(factor, No) else _sums(lo, a, a_zero, factor)


@lowers("QLinearMatMul", types=int8.BYTES)
def qlinear_matmul(lo: Lowering, node: Node) -> Lazy | No:
    """The sums, scaled and quantized."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    assert a is not None and b is not None and y_zero is not None
    factor = _factor(lo, b, b_zero)
    scales = [lo.known(s) for s in (a_scale, b_scale, y_scale)]
    if isinstance(factor, No):
        return factor
    if any(s is None for s in scales):
        return No("its scales are computed")
    first, second, third = (s.astype(np.float32) for s in scales if s is not None)
    if first.size != 1 or third.size != 1 or second.size not in (1, factor.shape[2]) or one(
            lo, y_zero) is None:
        return No("its scales are neither one number nor one for each column")
    total = np.asarray(first.reshape(()) * second.reshape(-1) / third.reshape(()), np.float32)
    return _requantized(lo, _sums(lo, a, a_zero, factor), total, id(node), 0, y_zero)


def _requantized(lo: Lowering, sums: Lazy | No, scale: np.ndarray, key: Any, behind: int, zero: Value
                 ) -> Lazy | No:
    """sums * scale, quantized; `scale`: one for each index of the axis with `behind` axes behind it."""
    if isinstance(sums, No):
        return sums
    lying = scale.reshape((-1, *(1,) * behind)) if scale.size > 1 else scale.reshape(())
    by = lo.constant(("scale", key), lambda: lying)
    return quantized(lo, _times(sums, (by, "mul")), None, zero, lo.dtype(zero)) or No(
        "its zero point is more than one number")


@lowers(MS + "QGemm", types=int8.BYTES)
def quantized_gemm(lo: Lowering, node: Node) -> Lazy | No:
    """alpha * A·B' + C, quantized or as floats."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*node.inputs, None, None, None)[:9]
    assert a is not None and b is not None
    attrs = node.attributes
    factor = _factor(lo, b, b_zero, bool(attrs["transB"]))
    if isinstance(factor, No):
        return factor
    scales, added = [lo.known(s) for s in (a_scale, b_scale)], lo.known(c)
    n = factor.shape[2]
    if attrs["transA"] or any(s is None for s in scales) or (c is not None and (
            added is None or added.size not in (1, n))):
        return No("kernels take constant scales and a constant bias, and A as it lies")
    first, second = (np.asarray(s, np.float32).reshape(-1) for s in scales)
    if first.size != 1 or second.size not in (1, n):
        return No("its scales are neither one number nor one for each column")
    bias = None if added is None else int8.Bias(id(c), np.broadcast_to(added.reshape(-1), (n,)))
    sums = _sums(lo, a, a_zero, factor, bias)
    if isinstance(sums, No):
        return sums
    total = np.float32(attrs["alpha"]) * first * second
    by = lo.constant(("scale", id(node)), lambda: total.reshape(-1) if total.size > 1 else total.reshape(()))
    made = _times(sums, (by, "mul"))
    if y_scale is None:
        return made
    target = lo.dtype(a if y_zero is None else y_zero)
    return quantized(lo, made, y_scale, y_zero, target) or No("its scale is more than one number")


def _by_columns(lo: Lowering, sums: Lazy | No, scales: list[Value | None], bias: Value | None) -> Lazy | No:
    """sums times the product of the scales, which may be computed, plus a bias."""
    if isinstance(sums, No):
        return sums
    given = [v for v in scales if v is not None]
    if any(lo.dtype(v) != F or np.prod(lo.shape(v)) not in (1, sums.shape[-1])
           for v in (*given, *([] if bias is None else [bias]))):
        return No("its scales are no float32 numbers, one or one for each column")
    return _scaled(lo, sums, [lo.tensor(v) for v in given], None if bias is None else lo.tensor(bias))


def _scaled(lo: Lowering, sums: Lazy, scales: list[Tensor], bias: Tensor | None) -> Lazy:
    """sums times the product of two scales, each one number or one for each column, plus a bias."""
    rows = [t.view((), ()) if t.size == 1 else lo.contiguous(t).view((t.size,), (1,)) for t in scales]
    by = lo.new(max((t.shape for t in rows), key=len), F)
    store(lo, by, Expr("mul", (Expr.leaf(0, F), Expr.leaf(1, F)), F), rows)
    return _times(sums, (by, "mul"), *([] if bias is None else [(bias, "add")]))


@lowers(MS + "MatMulIntegerToFloat", types=int8.BYTES)
def matmul_integer_to_float(lo: Lowering, node: Node) -> Lazy | No:
    """The sums, scaled, plus a bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*node.inputs, None, None, None)[:7]
    assert a is not None and b is not None
    return real_product(lo, (a, a_scale, a_zero), (b, b_scale, b_zero), bias)


Coded = tuple[Value, Value | None, Value | None]
"""Bytes, their scale and their zero point."""


def real_product(lo: Lowering, a: Coded, b: Coded, bias: Value | None) -> Lazy | No:
    """What the product of two matrices of bytes stands for, plus a bias, float32."""
    factor = _factor(lo, b[0], b[2])
    if isinstance(factor, No):
        return factor
    return _by_columns(lo, _sums(lo, a[0], a[2], factor), [a[1], b[1]], bias)


def _ranged(lo: Lowering, x: Value) -> tuple[Lazy, Tensor, Tensor]:
    """`x` quantized by its own range, its scale and its zero point."""
    t = lo.contiguous(lo.tensor(x))
    scale, zero = lo.new((), F), lo.new((), "uint8")
    count = -(-t.size // quantize_range.CHUNK)
    parts = lo.new((2 * max(count, 1),), F)
    lo.step(quantize_range.range_parts(), [t, Out(parts), t.size], count, _GRAIN)
    divisor = lo.new((3,), F)
    lo.step(quantize_range.range_codes(), [parts, count, Out(scale), Out(zero), Out(divisor)], 1)
    whole = Expr.leaf(2, "uint8").cast(INT)
    ends = [Expr("sub", (Expr.const(end, F), whole.cast(F)), F) for end in (0.0, 255.0)]
    power, by, inverse = (divisor.view((), (), i) for i in range(3))
    if lo.machine.arch == "x86_64" and not lo.machine.has("fma"):
        quotient, operands = Expr("div", (Expr.leaf(0, F), Expr.leaf(1, F)), F), [t, scale, zero]
    else:
        scaled = Expr("mul", (Expr.leaf(0, F), Expr.leaf(1, F)), F)
        quotient = Expr("over", (scaled, Expr.leaf(3, F), Expr.leaf(4, F)), F)
        operands = [t, power, zero, by, inverse]
    tree = Expr("quantize", (quotient, *ends, whole), "uint8")
    return Lazy(t.shape, tree, [*operands]), scale, zero


@lowers("DynamicQuantizeLinear", types=(F,))
def dynamic_quantize_linear(lo: Lowering, node: Node) -> tuple[Lazy, Tensor, Tensor]:
    """The codes, the scale and the zero point."""
    (x,) = node.inputs
    assert x is not None
    return _ranged(lo, x)


@lowers(MS + "DynamicQuantizeMatMul", types=(F,))
def dynamic_quantize_matmul(lo: Lowering, node: Node) -> Lazy | No:
    """A quantized by its own range, times B, as floats."""
    a, b, b_scale, b_zero, bias = (*node.inputs, None, None)[:5]
    assert a is not None and b is not None
    factor = _factor(lo, b, b_zero)
    shape = lo.shape(a)
    if isinstance(factor, No):
        return factor
    if not shape or 0 in shape or shape[-1] != factor.shape[1]:
        return No("the factors do not fit")
    for v in (b_scale, bias):
        if v is not None and (lo.dtype(v) != F or np.prod(lo.shape(v)) not in (1, factor.shape[2])):
            return No("its scales are no float32 numbers, one or one for each column")
    assert b_scale is not None
    return ranged_product(lo, a, factor, lo.tensor(b_scale), None if bias is None else lo.tensor(bias))


def ranged_product(lo: Lowering, a: Value, factor: int8.Factor, scale: Tensor, bias: Tensor | None) -> Lazy:
    """A (..., k), quantized by its own range, times the factor, scaled by column, plus a bias."""
    lazy, by, zero = _ranged(lo, a)
    codes, point = Value("codes"), Value("zero point")
    lo.env.update({codes: lazy, point: zero})
    lo.left.update({codes: 1, point: 1})
    sums = _sums(lo, codes, point, factor)
    assert isinstance(sums, Lazy)
    return _scaled(lo, sums, [by, scale], bias)


def _convolved(lo: Lowering, node: Node, x: Value, x_zero: Value | None, w: Value, w_zero: Value | None,
               bias: Value | None) -> Pending | No:
    """The int32 convolution; weights, zero points and bias are known."""
    weights, zero, low, added = lo.known(w), int8.number(lo, x_zero), lo.known(w_zero), lo.known(bias)
    if weights is None or zero is None or (w_zero is not None and low is None) or (
            bias is not None and added is None):
        return No("integer kernels take constant weights, zero points and bias")
    g = geometry(lo.shape(x), weights, node.attributes)
    if isinstance(g, No):
        return g
    if low is not None and low.size not in (1, weights.shape[0]):
        return No("its zero point is not one for each channel")
    shape = (g.batch, weights.shape[0], *g.out[5 - weights.ndim:])
    return int8.convolution(lo, lo.tensor(x), g, ("conv", id(node)), lambda: (int8.planes(weights), low),
                            shape, int(zero), None if added is None else int8.Bias(id(bias), added))


@lowers("ConvInteger", types=int8.BYTES)
def conv_integer(lo: Lowering, node: Node) -> Pending | No:
    """The int32 sums."""
    x, w, x_zero, w_zero = (*node.inputs, None, None)[:4]
    assert x is not None and w is not None
    return _convolved(lo, node, x, x_zero, w, w_zero, None)


@lowers("QLinearConv", MS + "QLinearConv", types=int8.BYTES)
def qlinear_conv(lo: Lowering, node: Node) -> Lazy | No:
    """The sums, scaled and quantized."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*node.inputs, None)[:9]
    assert x is not None and w is not None and y_zero is not None
    if node.attrs.get("channels_last"):
        return No("kernels take its channels as the second axis")
    source, by, target = (lo.known(v) for v in (x_scale, w_scale, y_scale))
    if source is None or by is None or target is None or source.size != 1 or target.size != 1:
        return No("its scales are computed")
    made = _convolved(lo, node, x, x_zero, w, w_zero, bias)
    if isinstance(made, No):
        return made
    if by.size not in (1, made.shape[1]):
        return No("its scales are not one for each channel")
    first, last = (np.float32(v.reshape(())) for v in (source, target))
    scale = np.asarray(first * by.astype(np.float32).reshape(-1) / last)
    return _requantized(lo, _whole(made), scale, id(node), len(made.shape) - 2, y_zero)
