"""Products and convolutions of bytes with their scales and zero points, and the quantization by a tensor's
own range. Sums are exact; results are what the operators' definitions give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....codegen.kernels import quantize_range
from ....codegen.kernels.conv.geometry import Geometry
from ....codegen.kernels.int8 import few
from ....codegen.kernels.int8.step import unit
from ....codegen.write.expr import Expr
from ....ir import No, Node, Value
from ....ops.contrib.quant import gemm_factors
from ....records import dataclass
from ...elements import store
from ...lower import Lazy, Lowering, Out, Pending, Source, lowers
from ...tensor import Tensor, joint_shape
from ..conv import geometry
from ..reduce import Folded, pending
from . import int8
from .quantize import one, quantized

MS = "com.microsoft::"
F, INT = "float32", "int32"
_SUM = Expr.leaf(0, INT)
_GRAIN = 2


Lack = tuple[Expr, list[Tensor]] | None
"""An int32 tree and its operands, one number or one for each column; None for nothing."""


@dataclass(eq=False)
class Second:
    """The second factor of a product, and what each of its packed bytes lacks."""

    factor: int8.Factor | int8.Computed
    lack: Lack = None

    @property
    def n(self) -> int:
        return self.factor.shape[2]


def _second(lo: Lowering, b: Value, zero: Value | None, flip: bool = False, a: Value | None = None
            ) -> Second | No:
    """A matrix B, perhaps transposed, less its zero point; computed ones may be batches, as those of A."""
    known, low = lo.known(b) if lo.knows(b) else None, lo.known(zero)
    if known is None or (zero is not None and low is None) or known.ndim != 2:
        return _computed(lo, b, zero, flip, a)
    if not known.size or known.dtype.name not in int8.BYTES:
        return No("integer kernels take a matrix of bytes as second factor")
    k, n = known.shape[::-1] if flip else known.shape
    if low is not None and low.size not in (1, n):
        return No("the second factor's zero point is not one for each column")
    return Second(int8.Factor(
        ("product", id(b), id(zero), flip), (1, k, n),
        lambda: ((known.T if flip else known)[None], None if low is None else low.reshape(-1))))


def _computed(lo: Lowering, b: Value, zero: Value | None, flip: bool, a: Value | None) -> Second | No:
    t = lo.tensor(b)
    if t.rank < 2 or not t.size or t.dtype not in int8.BYTES or unit(lo.machine).kind == "ime":
        return No("integer kernels take matrices of bytes as second factor")
    if flip:
        t = t.permute((*range(t.rank - 2), t.rank - 1, t.rank - 2))
    k, n = t.shape[-2:]
    if zero is not None and lo.shape(zero) not in ((), (1,), (n,)):
        return No("the second factor's zero point is not one for each column")
    batch: tuple[int, ...] = ()
    outer = () if a is None else lo.shape(a)[:-2]
    if any(d != 1 for d in t.shape[:-2]) or len(outer) < t.rank - 2:
        try:
            batch = joint_shape(outer, t.shape[:-2])
        except ValueError:
            return No("the batches do not fit")
        t = t.expand((*batch, k, n))
    if t.strides[-1] != 1 and n > 1:
        t = lo.contiguous(t)
    matrices = t.reshape((math.prod(batch), 1, k, n)) or lo.contiguous(t).reshape((math.prod(batch), 1, k, n))
    assert matrices is not None
    factor = int8.Computed(lo, matrices, batch)
    return Second(factor, _lack(lo, factor.lack, zero, ()))


def _lack(lo: Lowering, middle: int, zero: Value | None, behind: tuple[int, ...]) -> Lack:
    """What packed bytes, which are less `middle`, lack of those less their zero point. `behind`: ones for the
    axes of a result behind that of the zero points."""
    low = lo.known(zero) if lo.knows(zero) else None
    if (zero is None and not middle) or (low is not None and (low == middle).all()):
        return None
    if zero is None:
        return Expr.const(middle, INT), []
    t = lo.tensor(zero)
    lying = t.view((), ()) if t.size == 1 else t.view((t.size, *behind), (t.strides[0], *(0,) * len(behind)))
    return Expr("sub", (Expr.const(middle, INT), Expr.leaf(0, t.dtype).cast(INT)), INT), [lying]


def _sums(lo: Lowering, a: Value, a_zero: Value | None, second: Second, bias: int8.Bias | None = None
          ) -> Lazy | No:
    """(A - a_zero)·B + bias, int32; the zero point is one number, known or computed."""
    shape, factor = lo.shape(a), second.factor
    if not shape or shape[-1] != factor.shape[1] or 0 in shape:
        return No("the factors do not fit")
    if lo.dtype(a) not in int8.BYTES:
        return No("integer kernels take bytes as first factor")
    t = lo.tensor(a)
    if isinstance(factor, int8.Computed) and factor.batch:
        if len(shape) < 2:
            return No("integer kernels take no vector times a batch of matrices")
        t = t.expand((*factor.batch, *shape[-2:]))
    if a_zero is None or lo.knows(a_zero):
        zero = int8.number(lo, a_zero)
        if zero is None:
            return No("its first zero point is more than one number")
        made = _whole(int8.product(lo, t, factor, int(zero), bias))
    elif len(lo.shape(a_zero)) > 1 or math.prod(lo.shape(a_zero)) != 1:
        return No("its first zero point is more than one number")
    else:
        made = _less(int8.product(lo, t, factor, 0, bias), lo.tensor(a_zero).view((), ()), factor.sums(lo))
    if second.lack is None:
        return made
    k = factor.shape[1]
    ones = int8.Factor(("ones", k), (1, k, 1), lambda: (np.ones((1, k, 1), np.int8), None))
    rows = _sums(lo, a, a_zero, Second(ones))
    return rows if isinstance(rows, No) else _filled(lo, made, rows, second.lack)


def _less(made: Pending, point: Tensor, sums: Tensor) -> Lazy:
    """Sums of products with bytes less `point`, made of those with the bytes; `sums`: those of the second
    factor."""
    by = Expr("mul", (Expr.leaf(1, point.dtype).cast(INT), Expr.leaf(2, INT)), INT)
    return Lazy(made.shape, Expr("sub", (_SUM, by), INT), [Source(made), point, sums])


def _filled(lo: Lowering, sums: Lazy, rows: Lazy, lack: tuple[Expr, list[Tensor]]) -> Lazy:
    """Sums of products with bytes that lack something, given those of A with ones."""
    tree, more = lack
    first = len(sums.operands)
    term = Expr("mul", (Expr.leaf(first, INT),
                        tree.substitute(lambda leaf: Expr.leaf(leaf.value + first + 1, leaf.dtype))), INT)
    operands = [*sums.operands, _in_memory(lo, rows), *more]
    return Lazy(sums.shape, Expr("add", (sums.tree, term), INT), operands)


def _in_memory(lo: Lowering, made: Lazy) -> Tensor:
    value = Value("made of bytes")
    lo.bind(value, made)
    lo.left[value] = 1
    return lo.tensor(value)


def _whole(pending: Pending) -> Lazy:
    return Lazy(pending.shape, _SUM, [Source(pending)])


def times(lazy: Lazy, *more: tuple[Tensor, str]) -> Lazy:
    """`lazy` as float32, then for each tensor "mul" or "add" it."""
    tree, operands = lazy.tree.cast(F), list(lazy.operands)
    for t, op in more:
        operands.append(t)
        tree = Expr(op, (tree, Expr.leaf(len(operands) - 1, t.dtype)), F)
    return Lazy(lazy.shape, tree, operands)


Bytes = tuple[Value, Value | None]
"""Bytes and their zero point."""

Multiply = Callable[[Any, Bytes, Bytes, bool, "int8.Bias | None"], "Lazy | No"]
"""A·B, B perhaps transposed, of bytes less their zero points, plus a bias, int32."""


def _multiplied(lo: Lowering, a: Bytes, b: Bytes, flip: bool = False, bias: int8.Bias | None = None
                ) -> Lazy | No:
    made = None if bias is not None else _few(lo, a, b, flip)
    if made is not None:
        return made
    second = _second(lo, *b, flip, a[0])
    return second if isinstance(second, No) else _sums(lo, *a, second, bias)


def _few(lo: Lowering, a: Bytes, b: Bytes, flip: bool) -> Lazy | None:
    """Few rows times a computed matrix whose rows lie side by side: nothing is packed that is read once. None
    for other factors."""
    shape = lo.shape(a[0])
    if lo.knows(b[0]) or not shape or len(lo.shape(b[0])) != 2:
        return None
    m, n = math.prod(shape[:-1]), lo.shape(b[0])[0 if flip else 1]
    by_rows = few.worth(lo.machine, m, n)
    if not m or not by_rows and m != 1:
        return None
    matrix, points = lo.tensor(b[0]), [v for v in (b[1], a[1]) if v is not None]
    k, n = matrix.shape[::-1] if flip else matrix.shape
    fits = k == shape[-1] and k and n and all(lo.shape(v) in ((), (1,)) for v in points)
    if not fits or not {matrix.dtype, lo.dtype(a[0])}.issubset(int8.BYTES):
        return None
    if flip:
        matrix = matrix.permute((1, 0))
    if matrix.strides[1] != 1:
        return None
    if by_rows:
        return _whole(_by_rows(lo, lo.tensor(a[0]), a[1], matrix, b[1]))
    whole, ones = (*shape[:-1], k, n), (1,) * (len(shape) - 1)
    row = lo.tensor(a[0])
    tensors = [matrix.expand(whole), row.view(whole, (*row.strides, 0))]
    factors = []
    for i, point in enumerate((b[1], a[1])):
        factor = Expr.leaf(i, tensors[i].dtype).cast(INT)
        if point is not None:
            t = lo.tensor(point)
            factor = Expr("sub", (factor, Expr.leaf(len(tensors), t.dtype).cast(INT)), INT)
            tensors.append(t.view((), ()).expand(whole))
        factors.append(factor)
    product = Folded("sum", Expr("mul", tuple(factors), INT), tensors, (len(ones),))
    return _whole(pending(lo, product, False, INT))


def _by_rows(lo: Lowering, a: Tensor, a_zero: Value | None, matrix: Tensor, zero: Value | None) -> Pending:
    """`few.worth` rows of A times the matrix, both less their zero points."""
    k, n = matrix.shape
    m = math.prod(a.shape[:-1])
    tree, operands = Expr.leaf(0, a.dtype).cast("int16"), [a]
    if a_zero is not None:
        point = lo.tensor(a_zero)
        tree = Expr("sub", (tree, Expr.leaf(1, point.dtype).cast("int16")), "int16")
        operands.append(point.view((), ()))
    rows = lo.new(a.shape, "int16")
    store(lo, rows, tree, operands)
    spec, items, grain, scratch = few.plan(lo.machine, m, n, k, matrix.dtype == "uint8", zero is not None)
    point = matrix if zero is None else lo.tensor(zero)
    shape = (*a.shape[:-1], n)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        to = out if tree is None and out.contiguous else lo.new(shape, INT)
        lo.step(spec, [rows, matrix, point, Out(to), n, k, matrix.strides[0], n], items, grain, scratch)
        if to is not out:
            store(lo, out, tree or _SUM, [to, *operands])
    return Pending(shape, INT, emit)


@lowers("MatMulInteger", types=int8.BYTES)
def matmul_integer(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """The int32 sums."""
    a, b, a_zero, b_zero = (*node.inputs, None, None)[:4]
    assert a is not None and b is not None
    return multiply(lo, (a, a_zero), (b, b_zero), False, None)


@lowers("QLinearMatMul", types=int8.BYTES)
def qlinear_matmul(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """The sums, scaled and quantized."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    assert a is not None and b is not None and y_zero is not None
    scales = [lo.known(s) for s in (a_scale, b_scale, y_scale)]
    if any(s is None for s in scales):
        return No("its scales are computed")
    first, second, third = (s.astype(np.float32) for s in scales if s is not None)
    if first.size != 1 or third.size != 1 or second.size not in (1, lo.shape(b)[-1]) or one(
            lo, y_zero) is None:
        return No("its scales are neither one number nor one for each column")
    sums = multiply(lo, (a, a_zero), (b, b_zero), False, None)
    total = np.asarray(first.reshape(()) * second.reshape(-1) / third.reshape(()), np.float32)
    return _requantized(lo, sums, total, id(node), 0, y_zero)


def _requantized(lo: Lowering, sums: Lazy | No, scale: np.ndarray, key: Any, behind: int, zero: Value
                 ) -> Lazy | No:
    """sums * scale, quantized; `scale`: one for each index of the axis with `behind` axes behind it."""
    if isinstance(sums, No):
        return sums
    lying = scale.reshape((-1, *(1,) * behind)) if scale.size > 1 else scale.reshape(())
    by = lo.constant(("scale", key, lying.shape), lambda: lying)
    return quantized(lo, times(sums, (by, "mul")), None, zero, lo.dtype(zero)) or No(
        "its zero point is more than one number")


@lowers(MS + "QGemm", types=int8.BYTES)
def quantized_gemm(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """alpha * A·B' + C, quantized or as floats."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*node.inputs, None, None, None)[:9]
    assert a is not None and b is not None
    attrs = node.attributes
    if len(lo.shape(b)) != 2:
        return No("B is no matrix")
    scales, added = [lo.known(s) for s in (a_scale, b_scale)], lo.known(c)
    n = lo.shape(b)[0 if attrs["transB"] else 1]
    if attrs["transA"] or any(s is None for s in scales) or (c is not None and (
            added is None or added.size not in (1, n))):
        return No("kernels take constant scales and a constant bias, and A as it lies")
    first, second = (np.asarray(s, np.float32).reshape(-1) for s in scales)
    if first.size != 1 or second.size not in (1, n):
        return No("its scales are neither one number nor one for each column")
    bias = None if added is None else int8.Bias(id(c), np.broadcast_to(added.reshape(-1), (n,)))
    sums = multiply(lo, (a, a_zero), (b, b_zero), bool(attrs["transB"]), bias)
    if isinstance(sums, No):
        return sums
    over = None if y_scale is None else lo.known(y_scale)
    if any(v is not None and np.prod(lo.shape(v)) != 1 for v in (y_scale, y_zero)):
        return No("its result's scale or zero point is more than one number")
    total = gemm_factors(attrs["alpha"], first, second, over)
    by = lo.constant(("scale", id(node)), lambda: total.reshape(-1) if total.size > 1 else total.reshape(()))
    if y_scale is not None and over is None:
        factors, by = by, lo.new(by.shape, F)
        divisor = lo.tensor(y_scale).view((), ())
        lo.store(by, Expr("div", (Expr.leaf(0, F), Expr.leaf(1, F)), F), [factors, divisor])
    made = times(sums, (by, "mul"))
    if y_scale is None:
        return made
    target = lo.dtype(a if y_zero is None else y_zero)
    return quantized(lo, made, None, y_zero, target) or No("its zero point is more than one number")


def _by_columns(lo: Lowering, sums: Lazy | No, scales: list[Value | None], bias: Value | None) -> Lazy | No:
    """sums times the product of the scales, which may be computed, plus a bias."""
    if isinstance(sums, No):
        return sums
    given = [v for v in scales if v is not None]
    if any(lo.dtype(v) != F or np.prod(lo.shape(v)) not in (1, sums.shape[-1])
           for v in (*given, *([] if bias is None else [bias]))):
        return No("its scales are no float32 numbers, one or one for each column")
    return scaled(lo, sums, [lo.tensor(v) for v in given], None if bias is None else lo.tensor(bias))


def scaled(lo: Lowering, sums: Lazy, scales: list[Tensor], bias: Tensor | None) -> Lazy:
    """sums times the product of two scales, each one number or one for each column, plus a bias."""
    rows = [t.view((), ()) if t.size == 1 else lo.contiguous(t).view((t.size,), (1,)) for t in scales]
    by = lo.new(max((t.shape for t in rows), key=len), F)
    lo.store(by, Expr("mul", (Expr.leaf(0, F), Expr.leaf(1, F)), F), rows)
    return times(sums, (by, "mul"), *([] if bias is None else [(bias, "add")]))


@lowers(MS + "MatMulIntegerToFloat", types=int8.BYTES)
def matmul_integer_to_float(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """The sums, scaled, plus a bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*node.inputs, None, None, None)[:7]
    assert a is not None and b is not None
    return real_product(lo, (a, a_scale, a_zero), (b, b_scale, b_zero), bias, multiply)


Coded = tuple[Value, Value | None, Value | None]
"""Bytes, their scale and their zero point."""


def real_product(lo: Lowering, a: Coded, b: Coded, bias: Value | None, multiply: Multiply = _multiplied
                 ) -> Lazy | No:
    """What the product of two matrices of bytes stands for, plus a bias, float32."""
    sums = multiply(lo, (a[0], a[2]), (b[0], b[2]), False, None)
    return _by_columns(lo, sums, [a[1], b[1]], bias)


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
    shape = lo.shape(a)
    if not shape or 0 in shape:
        return No("it is empty")
    factor = _second(lo, b, b_zero, a=a)
    if isinstance(factor, No):
        return factor
    if shape[-1] != factor.factor.shape[1]:
        return No("the factors do not fit")
    for v in (b_scale, bias):
        if v is not None and (lo.dtype(v) != F or np.prod(lo.shape(v)) not in (1, factor.n)):
            return No("its scales are no float32 numbers, one or one for each column")
    assert b_scale is not None
    made = ranged_product(lo, a, factor, lo.tensor(b_scale), None if bias is None else lo.tensor(bias))
    return made or No("the factors do not fit")


def ranged_product(lo: Lowering, a: Value, factor: Second, scale: Tensor, bias: Tensor | None
                   ) -> Lazy | None:
    """A (..., k), quantized by its own range, times the factor, scaled by column, plus a bias."""
    lazy, by, zero = _ranged(lo, a)
    codes, point = Value("codes"), Value("zero point")
    lo.env.update({codes: lazy, point: zero})
    lo.left.update({codes: 2, point: 2})
    sums = _sums(lo, codes, point, factor)
    return None if isinstance(sums, No) else scaled(lo, sums, [by, scale], bias)


def product_of_two(lo: Lowering, node: Node, a: Value, b: Value, flip: bool, alpha: float
                   ) -> Lazy | None:
    """A·B, B perhaps transposed, of dequantized factors that are both there; None where they are not that."""
    first, other = int8.coded(lo, a), int8.coded(lo, b)
    if first is None or other is None or lo.knows(other.value) or not lo.shape(first.value):
        return None
    known = [int8.number(lo, v) for v in (first.scale, first.zero, other.scale, other.zero)]
    if any(v is None for v in known) or 0 in (*lo.shape(first.value), *lo.shape(other.value)):
        return None
    second = _second(lo, other.value, other.zero, flip, first.value)
    sums = second if isinstance(second, No) else _sums(lo, first.value, first.zero, second)
    if isinstance(sums, No):
        return None
    total = np.float32(known[0]) * np.float32(known[2]) * np.float32(alpha)
    by = lo.constant(("scale", id(node)), lambda: np.asarray(total, np.float32))
    return times(sums, (by, "mul"))


def _convolved(lo: Lowering, node: Node, x: Tensor, x_zero: Value | None, w: Value, w_zero: Value | None,
               bias: Value | None = None) -> Lazy | No:
    """The int32 convolution of x (N, C, spatial...), less its zero point, one number, known or computed."""
    dims, point = lo.shape(w), None
    if x_zero is not None and not lo.knows(x_zero) and math.prod(lo.shape(x_zero)) == 1:
        point = lo.tensor(x_zero).view((), ())
    zero = int8.number(lo, x_zero) if point is None else 0
    if zero is None:
        return No("its zero point is more than one number")
    g = geometry(x.shape, np.broadcast_to(np.int8(0), dims), node.attributes)
    if isinstance(g, No):
        return g
    if w_zero is not None and lo.shape(w_zero) not in ((), (1,), (dims[0],)):
        return No("its zero point is not one for each channel")
    added = lo.known(bias) if lo.knows(bias) else None
    held = None if added is None else int8.Bias(id(bias), added)
    shape, ones = (g.batch, dims[0], *g.out[5 - len(dims):]), (1,) * (len(dims) - 2)
    known = lo.known(w) if lo.knows(w) and (w_zero is None or lo.knows(w_zero)) else None
    if known is not None:
        low = lo.known(w_zero)
        made = int8.convolution(lo, x, g, ("conv", id(node)), lambda: (int8.planes(known), low), shape,
                                int(zero), held, point)
        whole = made if isinstance(made, No) else _whole(made) if point is None else _less(made, point, (
            lo.constant(("sums of weights", id(node), ones), lambda: _sums_by_channel(known, low, ones))))
    elif point is not None:
        return No("integer kernels convolve known weights, or less a known zero point")
    else:
        whole = _with_computed(lo, node, x, int(zero), w, w_zero, g, shape, held)
    if isinstance(whole, No) or bias is None or added is not None:
        return whole
    t = lo.tensor(bias)
    more = Expr.leaf(len(whole.operands), INT)
    return Lazy(whole.shape, Expr("add", (whole.tree, more), INT),
                [*whole.operands, t.view((t.size, *ones), (t.strides[0], *(0,) * len(ones)))])


def _sums_by_channel(weights: np.ndarray, low: np.ndarray | None, ones: tuple[int, ...]) -> np.ndarray:
    """Of weights (M, ...) less their zero point, int32 (M, 1, ...)."""
    total = weights.reshape(len(weights), -1).sum(1, dtype=np.int32)
    less = 0 if low is None else low.reshape(-1).astype(np.int32) * weights[0].size
    return np.asarray(total - less, np.int32).reshape(-1, *ones)


def _with_computed(lo: Lowering, node: Node, x: Tensor, zero: int, w: Value, w_zero: Value | None,
                   g: Geometry, shape: tuple[int, ...], bias: int8.Bias | None) -> Lazy | No:
    """A convolution with weights that are there: what their packed bytes lack times the sums of windows."""
    t = lo.tensor(w)
    if t.dtype not in int8.BYTES or unit(lo.machine).kind == "ime":
        return No("integer kernels take weights of bytes")
    lack = _lack(lo, 128 if t.dtype == "uint8" else 0, w_zero, (1,) * (len(shape) - 2))
    if lack is not None and g.groups > 1:
        return No("integer kernels take computed weights in groups only around 0")
    planes = t if t.rank == 4 else t.view((*t.shape[:2], 1, *t.shape[2:]),
                                          (*t.strides[:2], 0, *t.strides[2:]))
    if planes.rank != 4:
        return No("integer kernels convolve one or two spatial axes")
    made = int8.convolution(lo, x, g, ("conv", id(node)), planes, shape, zero, bias)
    if isinstance(made, No) or lack is None:
        return made if isinstance(made, No) else _whole(made)
    ones = np.broadcast_to(np.int8(1), (1, *t.shape[1:]))
    single = geometry(x.shape, ones, node.attributes)
    assert not isinstance(single, No)
    windows = int8.convolution(lo, x, single, ("ones", *ones.shape), lambda: (int8.planes(ones), None),
                               (shape[0], 1, *shape[2:]), zero)
    return windows if isinstance(windows, No) else _filled(lo, _whole(made), _whole(windows), lack)


Convolve = Callable[..., "Lazy | No"]
"""As `_convolved`."""


@lowers("ConvInteger", types=int8.BYTES)
def conv_integer(lo: Lowering, node: Node, convolve: Convolve = _convolved) -> Lazy | No:
    """The int32 sums."""
    x, w, x_zero, w_zero = (*node.inputs, None, None)[:4]
    assert x is not None and w is not None
    return convolve(lo, node, lo.tensor(x), x_zero, w, w_zero)


@lowers("QLinearConv", MS + "QLinearConv", types=int8.BYTES)
def qlinear_conv(lo: Lowering, node: Node, convolve: Convolve = _convolved) -> Lazy | Tensor | No:
    """The sums, scaled and quantized."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*node.inputs, None)[:9]
    assert x is not None and w is not None and y_zero is not None
    source, by, target = (lo.known(v) for v in (x_scale, w_scale, y_scale))
    if source is None or by is None or target is None or source.size != 1 or target.size != 1:
        return No("its scales are computed")
    if by.size not in (1, lo.shape(w)[0]):
        return No("its scales are not one for each channel")
    if bias is not None and lo.shape(bias) != lo.shape(w)[:1]:
        return No("its bias is not one for each channel")
    t, behind = lo.tensor(x), node.attrs.get("channels_last")
    if behind:
        t = t.permute((0, t.rank - 1, *range(1, t.rank - 1)))
    made = convolve(lo, node, t, x_zero, w, w_zero, bias)
    if isinstance(made, No):
        return made
    first, last = (np.float32(v.reshape(())) for v in (source, target))
    scale = np.asarray(first * by.astype(np.float32).reshape(-1) / last)
    coded = _requantized(lo, made, scale, id(node), len(made.shape) - 2, y_zero)
    return coded if isinstance(coded, No) or not behind else _in_memory(lo, coded).permute(
        (0, *range(2, t.rank), 1))
