"""Matrix products: MatMul, Gemm and their fused forms as kernels of `codegen.triton.kernels.products`.

In: A (..., m, k) and B (..., k, n) of any strides, batches broadcast, either one a vector. Out: the product
in the type sums have, with scale, addend and what follows applied before it is stored.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ....codegen.triton.kernels.products import summed
from ....codegen.write.expr import Expr
from ....ir import No, Node
from ...rules import few_bits, matmul
from ...rules.matmul import Flips, Sum, matrices
from ...tensor import Tensor
from .. import products
from ..lower import GpuLowering, Lazy, Pending, lowers
from ..normal import entering
from . import int8
from .few_bits import multiplied as by_codes

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int32", "uint32", "int64", "uint64")
MS = "com.microsoft::"


def multiplied(lo: GpuLowering, node: Node, flips_a: Flips, flips_b: Flips, ended: Sum | None
               ) -> Lazy | Pending | No:
    """A'·B' in the type its sums have; of dequantized bytes what these stand for."""
    a, b = node.inputs[:2]
    assert a is not None and b is not None
    if ended is not None and flips_a == matmul.PLAIN and not flips_b[0]:
        exact = int8.dequantized_product(lo, node, flips_b[1], *ended)
        if exact is not None:
            return exact
    dtype = lo.dtype(a)
    if dtype not in (*FLOATS, *INTEGERS) or lo.dtype(b) != dtype:
        return No(f"no kernel multiplies {dtype} by {lo.dtype(b)}")
    if flips_a == matmul.PLAIN and not flips_b[0]:
        coded = few_bits.dequantized(lo, a, b, flips_b[1], by_codes)
        if coded is not None:
            return coded
    plain = flips_a == matmul.PLAIN and "float" in dtype and len(lo.shape(b)) == 2 <= len(lo.shape(a))
    normed = entering(lo, a) if plain and lo.shape(a)[-1] == lo.shape(b)[1 if flips_b[1] else 0] else None
    made = matrices(lo, a, b, flips_a, flips_b, None if normed is None else normed.x)
    if isinstance(made, No):
        return made
    first, second, shape, lifted = made
    what = products.Dense(normed or first, second, lifted)

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        products.write(lo, what.a, second, lifted(out), tree, [lifted(t) for t in operands])
    return Pending(shape, summed(dtype), emit, what=what)


_RULES: dict[tuple[str, ...], tuple[Any, tuple[str, ...]]] = {
    ("MatMul",): (matmul.matmul, (*FLOATS, *INTEGERS)),
    ("Gemm", MS + "FusedGemm"): (matmul.matrix_product, FLOATS),
    (MS + "FusedMatMul", MS + "TransposeMatMul"): (matmul.fused_matmul, FLOATS),
}
for _kinds, (_rule, _types) in _RULES.items():
    lowers(*_kinds, types=_types)(functools.partial(_rule, multiply=multiplied))
