"""Products of bytes, as kernels of `codegen.triton.kernels.products`, with their scales and zero points.

In: factors of int8 or uint8, known or computed, and zero points: one number, or one for each row of A or
column of B. Out: exact int32 sums, and what they stand for as trees over them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....codegen.triton.kernels.products import MIDDLE
from ....codegen.write.expr import Expr
from ....ir import No, Node, Value
from ....ops.define import normalized_axis
from ...rules.matmul import matrices
from ...rules.quantized import int8_operators as shared
from ...rules.quantized.int8 import BYTES, Bias, coded, number
from ...rules.quantized.int8_operators import MS, Bytes, scaled, times
from ...tensor import Tensor
from .. import products
from ..lower import GpuLowering, Lazy, Pending, Source, lowers
from .quantize import dynamic_quantize_linear

F, INT = "float32", "int32"


def multiplied(lo: GpuLowering, a: Bytes, b: Bytes, flip: bool = False, bias: Bias | None = None
               ) -> Lazy | No:
    """A·B, B perhaps transposed, of bytes less their zero points, plus a bias, int32."""
    if lo.dtype(a[0]) not in BYTES or lo.dtype(b[0]) not in BYTES:
        return No("integer kernels take factors of bytes")
    made = matrices(lo, a[0], b[0], (False, False), (False, flip))
    if isinstance(made, No):
        return made
    first, second, shape, lifted = made
    low, other = _zero(lo, *a, first.shape[-2]), _zero(lo, *b, second.shape[-1])
    if isinstance(low, No) or isinstance(other, No):
        return No("its zero points are neither one number nor one for each row or column")
    zeros = products.Zeros(low, other)

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        products.write(lo, first, second, lifted(out), tree, [lifted(t) for t in operands], zeros)
    sums = Lazy(shape, Expr.leaf(0, INT), [Source(Pending(shape, INT, emit))])
    if bias is None:
        return sums
    more = lo.constant(("bias", bias.key), lambda: bias.values.astype(np.int32))
    return Lazy(shape, Expr("add", (sums.tree, Expr.leaf(1, INT)), INT), [*sums.operands, more])


def _zero(lo: GpuLowering, codes: Value, zero: Value | None, count: int) -> Tensor | str | None | No:
    """What `products.Zeros` holds."""
    if zero is None:
        return None
    known = lo.known(zero) if lo.knows(zero) else None
    if known is not None and not known.any():
        return None
    if known is not None and lo.dtype(codes) == "uint8" and (known == 128).all():
        return MIDDLE
    t = lo.tensor(zero)
    if t.size == 1:
        return t
    if t.shape != (count,):
        return No("its zero points are of another shape")
    return lo.contiguous(t)


def dequantized_product(lo: GpuLowering, node: Node, flip: bool, alpha: float, addend: Value | None
                        ) -> Lazy | None:
    """alpha * A·B + addend, B perhaps transposed, of dequantized bytes; None where they are not that."""
    a, b = node.inputs[:2]
    first, second = coded(lo, a), coded(lo, b)
    if first is None or second is None or not lo.shape(first.value):
        return None
    scale, by, shape = number(lo, first.scale), lo.known(second.scale), lo.shape(second.value)
    if scale is None or by is None or (by.size > 1 and (
            len(shape) != 2 or by.ndim != 1 or normalized_axis(second.axis, 2) != (0 if flip else 1))):
        return None
    if any(number(lo, v) is None for v in (first.zero, second.zero if by.size == 1 else first.zero)):
        return None
    columns = shape[-2 if flip else -1:][:1]
    if addend is not None and (lo.dtype(addend) != F or lo.shape(addend) not in (columns, ())):
        return None
    sums = multiplied(lo, (first.value, first.zero), (second.value, second.zero), flip)
    if isinstance(sums, No):
        return None
    total = np.asarray(scale * by, np.float32) * np.float32(alpha)
    lying = total.reshape(-1) if total.size > 1 else total.reshape(())
    factor = lo.constant(("scale", id(node)), lambda: lying)
    return times(sums, (factor, "mul"), *([] if addend is None else [(lo.tensor(addend), "add")]))


@lowers(MS + "DynamicQuantizeMatMul", types=(F,))
def dynamic_quantize_matmul(lo: GpuLowering, node: Node) -> Lazy | No:
    """A quantized by its own range, times B, as floats."""
    _, b, b_scale, b_zero, bias = (*node.inputs, None, None)[:5]
    assert b is not None and b_scale is not None
    made = dynamic_quantize_linear(lo, node)
    if isinstance(made, No):
        return made
    lazy, scale, zero = made
    codes, point = Value("codes"), Value("zero point")
    lo.bind(codes, lazy)
    lo.bind(point, zero)
    lo.left.update({codes: 1, point: 1})
    sums = multiplied(lo, (codes, point), (b, b_zero))
    if isinstance(sums, No):
        return sums
    for v in (b_scale, bias):
        if v is not None and (lo.dtype(v) != F or np.prod(lo.shape(v)) not in (1, sums.shape[-1])):
            return No("its scales are no float32 numbers, one or one for each column")
    return scaled(lo, sums, [scale, lo.tensor(b_scale)], None if bias is None else lo.tensor(bias))


_RULES: dict[str, Any] = {
    "MatMulInteger": shared.matmul_integer, "QLinearMatMul": shared.qlinear_matmul,
    MS + "QGemm": shared.quantized_gemm, MS + "MatMulIntegerToFloat": shared.matmul_integer_to_float,
}
for _kind, _rule in _RULES.items():
    lowers(_kind, types=BYTES)(functools.partial(_rule, multiply=multiplied))
