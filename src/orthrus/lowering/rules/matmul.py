"""Matrix products: MatMul, Gemm and their fused forms as kernels of `codegen.kernels.gemm`.

In: A (..., m, k) and B (..., k, n), batches broadcast, either one a vector; B is packed where it is constant.
Out: the product, with scale, addend and what follows applied before it is stored; half precision is widened
on the way in and narrowed at the end, other types add up in themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as indices
from typing import Any

import numpy as np

from ...codegen.kernels import gemm
from ...codegen.write.expr import BYTES, Expr
from ...codegen.write.tile import Operand, total_of
from ...ir import No, Node, Value
from ..lower import Lazy, Lowering, Pending, Source, lowers
from ..rule_sets import RULES
from ..tensor import Tensor, joint_shape
from ..walk import Walked, merged
from . import matrix_unit
from .elementwise import activation

FLOATS = ("float32", "float16", "bfloat16", "float64")
WHOLE = ("int32", "int64", "uint32", "uint64")
F = "float32"
MS = "com.microsoft::"

Flips = tuple[bool, bool]
"""Whether dimension 0 goes behind the other batch dimensions, and whether the last two change places."""
PLAIN = (False, False)

Weights = tuple[tuple[Any, ...], Callable[[], np.ndarray]]
"""A constant B: the key it is known by, and its elements (..., k, n)."""


Sum = tuple[float, Value | None]
"""What a product is multiplied by, and what is added to that."""

Multiply = Callable[[Any, Node, Flips, Flips, Sum | None], "Lazy | Pending | No"]
"""A node's first inputs, to their product, or to `Sum` of it where that is given and comes out whole."""


def _multiplied(lo: Lowering, node: Node, flips_a: Flips, flips_b: Flips, ended: Sum | None
                ) -> Lazy | Pending | No:
    """Quantized factors as integers, else in the type of their sums."""
    a, b = node.inputs[:2]
    assert a is not None and b is not None
    if flips_a == PLAIN and not flips_b[0] and lo.dequantized(a, b):
        from .quantized import int8
        from .quantized.int8_operators import product_of_two

        exact = None
        if ended is not None:
            alpha, addend = ended
            exact = int8.dequantized_product(lo, node, a, b, flips_b[1], addend, alpha)
            if exact is None and addend is None:
                exact = product_of_two(lo, node, a, b, flips_b[1], alpha)
        if exact is not None:
            return exact
    if lo.dtype(a) not in FLOATS + WHOLE or lo.dtype(b) != lo.dtype(a):
        return No(f"no kernel multiplies {lo.dtype(a)} by {lo.dtype(b)}")
    made: Pending | No | None = None
    if flips_a == PLAIN and not flips_b[0] and lo.dequantized(b):
        from . import few_bits

        if lo.dtype(a) in few_bits.FLOATS:
            made = few_bits.dequantized(lo, a, b, flips_b[1])
    return made or product(lo, a, b, flips_a, flips_b)


@lowers("MatMul", types=FLOATS + WHOLE)
def matmul(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """A·B."""
    return _finished(lo, node, multiply, PLAIN, PLAIN)


@lowers(MS + "FusedMatMul", MS + "TransposeMatMul", types=FLOATS)
def fused_matmul(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """alpha * A'·B'."""
    attrs = node.attributes
    a, b = ((bool(attrs.get(f"transBatch{x}")), bool(attrs[f"trans{x}"])) for x in "AB")
    return _finished(lo, node, multiply, a, b, attrs["alpha"])


@lowers("Gemm", MS + "FusedGemm", types=FLOATS)
def matrix_product(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """alpha * A'·B' + beta * C, and an activation of it."""
    attrs = node.attributes
    a, b, *rest = node.inputs
    assert a is not None and b is not None
    if len(lo.shape(a)) != 2 or len(lo.shape(b)) != 2:
        return No("Gemm takes matrices")
    c = rest[0] if rest and attrs["beta"] else None
    then = activation(attrs.get("activation"),
                      [attrs.get(f"activation_{x}") for x in ("alpha", "beta", "gamma")])
    if isinstance(then, No):
        return then
    if then is not None and lo.dtype(a) == "float64":
        return No("activations of products are computed in float32")
    made = _finished(lo, node, multiply, (False, bool(attrs["transA"])), (False, bool(attrs["transB"])),
                     attrs["alpha"], c, attrs["beta"], then)
    if c is not None and attrs.get("broadcast") == 0 and isinstance(made, Lazy) and lo.shape(c) != made.shape:
        return No("C has to have the product's shape")
    return made


def _finished(lo: Lowering, node: Node, multiply: Multiply, flips_a: Flips, flips_b: Flips,
              alpha: float = 1.0, addend: Value | None = None, beta: float = 1.0, then: Expr | None = None
              ) -> Lazy | No:
    """then(alpha * A'·B' + beta * addend) in the type of A."""
    def behind(tree: Expr) -> Expr:
        return tree if then is None else then.substitute(lambda _: tree.cast(F)).cast(tree.dtype)
    assert node.inputs[0] is not None
    dtype = lo.dtype(node.inputs[0])
    made = multiply(lo, node, flips_a, flips_b, (alpha, addend) if beta == 1 else None)
    if isinstance(made, No):
        return made
    if isinstance(made, Lazy):
        return Lazy(made.shape, behind(made.tree), made.operands)
    total = made.dtype
    tree, operands = Expr.leaf(0, total), [Source(made)]  # type: tuple[Expr, list[Tensor | Source]]
    if alpha != 1:
        tree = Expr("mul", (tree, Expr.const(alpha, total)), total)
    if addend is not None:
        if lo.dtype(addend) != dtype or not _spreads(lo.shape(addend), made.shape):
            return No("C does not fit the product")
        term = Expr.leaf(1, dtype).cast(total)
        tree = Expr("add", (tree, term if beta == 1 else Expr("mul", (term, Expr.const(beta, total)), total)),
                    total)
        operands.append(lo.tensor(addend))
    return Lazy(made.shape, behind(tree).cast(dtype), operands)


def _spreads(shape: Sequence[int], to: Sequence[int]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(d in (1, e) for d, e in pairs)


def matrices(lo: Lowering, a: Value, b: Value, flips_a: Flips = PLAIN, flips_b: Flips = PLAIN,
             given: Tensor | None = None
             ) -> tuple[Tensor, Tensor, tuple[int, ...], Callable[[Tensor], Tensor]] | No:
    """A' and B' as matrices, the shape of their product, and what gives a tensor of that shape rows and
    columns. `given`: what stands for A."""
    shape_a, shape_b = (_flipped_shape(lo.shape(v), flips) for v, flips in ((a, flips_a), (b, flips_b)))
    if not shape_a or not shape_b or shape_a[-1] != shape_b[-2:][0]:
        return No("the factors do not fit")
    m, n = shape_a[:-1][-1:], shape_b[1:][-1:]
    try:
        batch = joint_shape(shape_a[:-2], shape_b[:-2])
    except ValueError:
        return No("the batches do not fit")

    def lifted(t: Tensor) -> Tensor:
        """With dimensions for rows and columns where a factor was a vector."""
        shape, strides = [*t.shape], [*t.strides]
        if not m:
            shape.insert(len(batch), 1)
            strides.insert(len(batch), 0)
        return t.view(shape, strides) if n else t.view((*shape, 1), (*strides, 1))
    first = _matrix(_flipped(lo.tensor(a) if given is None else given, flips_a), 0)
    second = _matrix(_flipped(lo.tensor(b), flips_b), 1)
    return first, second, (*batch, *m, *n), lifted if not (m and n) else lambda t: t


def product(lo: Lowering, a: Value, b: Value, flips_a: Flips = PLAIN, flips_b: Flips = PLAIN
            ) -> Pending | No:
    """A'·B' in the type of their sums."""
    made = matrices(lo, a, b, flips_a, flips_b)
    if isinstance(made, No):
        return made
    first, second, shape, lifted = made
    known = lo.known(b) if b.const is not None else None
    if second.shape[-1] == 1 and first.strides[-1] != 1 == first.strides[-2] and first.shape[-1] > 1:
        def upright(t: Tensor, plainly: Callable[[Tensor], Tensor] = lifted) -> Tensor:
            return _turned(plainly(t))
        first, second, lifted, known = _turned(second), _turned(first), upright, None
    if first.strides[-1] != 1 and first.shape[-1] > 1:
        first = lo.contiguous(first)
    weights: Weights | None = None
    if known is not None and known.ndim > 1 and known.size:
        weights = ("product", id(b), flips_b), lambda: known.transpose(_order(known.ndim, flips_b))
    if weights is None and 1 not in second.strides[-2:] and 1 not in second.shape[-2:]:
        second = lo.contiguous(second)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        write(lo, first, second, weights, lifted(out), tree, [lifted(t) for t in operands])
    return Pending(shape, total_of(first.dtype), emit, numbers=total_of(first.dtype) == "float32")


def _order(rank: int, flips: Flips) -> list[int]:
    order = list(range(rank))
    if flips[0] and rank > 2:
        order.insert(rank - 2, order.pop(0))
    if flips[1] and rank > 1:
        order[-2:] = order[:-3:-1]
    return order


def _flipped_shape(shape: tuple[int, ...], flips: Flips) -> tuple[int, ...]:
    return shape if flips == PLAIN else tuple([shape[i] for i in _order(len(shape), flips)])


def _flipped(t: Tensor, flips: Flips) -> Tensor:
    return t if flips == PLAIN else t.permute(_order(t.rank, flips))


def _turned(t: Tensor) -> Tensor:
    return t.permute([*range(t.rank - 2), t.rank - 1, t.rank - 2])


def _matrix(t: Tensor, axis: int) -> Tensor:
    """A vector as a matrix of one row or column."""
    if t.rank > 1:
        return t
    shape, strides = list(t.shape), list(t.strides)
    shape.insert(axis, 1)
    strides.insert(axis, 1 if axis else 0)
    return t.view(shape, strides)


def write(lo: Lowering, a: Tensor, b: Tensor, weights: Weights | None, out: Tensor, tree: Expr | None,
           operands: Sequence[Tensor]) -> None:
    """out (..., m, n) = tree(a (..., m, k)·b (..., k, n))."""
    *batch, m, n = out.shape
    k = a.shape[-1]
    a = a.expand((*batch, m, k))
    b_row, source = (b.strides[-2], "rows") if n == 1 or b.strides[-1] == 1 else (b.strides[-1], "transposed")
    if weights is not None and n > 1:
        if b.rank == 2 and a.dtype == F and _on_matrix_unit(lo, a, weights, out, tree, operands):
            return
        key, make = weights
        lead = b.shape[:-2]
        b = lo.constant((*key, "panels"), lambda: gemm.pack(lo.machine, make()))
        b = b.view((*lead, 1, 1), (*b.strides[:-3], 0, 0))
        b_row, source = 0, "panels"
    b = b.expand((*batch, *b.shape[-2:]))
    dims = merged([*batch, m], [a.strides[:-1], (*b.strides[:-2], 0),
                                 *(t.strides[:-1] for t in (out, *operands))])
    if not dims or dims[-1][1][1]:
        dims.append((1, [0] * (3 + len(operands))))
    rows, row = dims.pop()
    together = gemm.rows_together(lo.machine, rows, n, k, a.dtype, b.dtype) if source == "rows" else rows
    if together < rows:
        dims.append((rows // together, [together * s for s in row]))
        rows = together
    *lead_dims, (outer, outs), (inner, ins) = [(1, [0] * len(row))] * 2 + dims
    for place in indices(*(range(d) for d, _ in lead_dims)):
        at = [sum(i * strides[j] for i, (_, strides) in zip(place, lead_dims, strict=True))
              for j in range(len(row))]
        factors = [t.view((1,), (0,), x) for t, x in zip((a, b), at, strict=False)]
        parts = [t.view((outer, inner, rows, n), (*(s[j] for s in (outs, ins, row)), t.strides[-1]), at[j])
                 for j, t in enumerate((out, *operands), 2)]
        _step(lo, [*factors, *parts], rows, n, k, row, b_row, source, (outer, inner), outs, ins, tree,
              [n > 1 and t.strides[-1] == 1 for t in operands], b.strides[-2] == 1)


def plain(lo: Lowering, a: Tensor, b: Tensor, out: Tensor) -> None:
    """out (..., m, n) = a (..., m, k)·b (..., k, n), all of one type."""
    a = a if a.strides[-1] == 1 or a.shape[-1] == 1 else lo.contiguous(a)
    b = b if 1 in b.strides[-2:] or 1 in b.shape[-2:] else lo.contiguous(b)
    total = total_of(a.dtype)
    write(lo, a, b, None, out, None if total == out.dtype else Expr.leaf(0, total).cast(out.dtype), [])


RULES.steps["product"], RULES.steps["product_then"] = plain, write


def _step(lo: Lowering, views: Sequence[Tensor], rows: int, n: int, k: int, row: Sequence[int], b_row: int,
          source: str, batch: tuple[int, int], outs: Sequence[int], ins: Sequence[int], tree: Expr | None,
          cols: Sequence[bool], upright: bool) -> None:
    """One kernel call; `row`, `outs` and `ins`: strides of A, B, C and the operands over rows and batches;
    `upright`: B's elements are adjacent along k."""
    a, b, c, *operands = views
    lanes, count = lo.machine.lanes(BYTES[total_of(views[0].dtype)]), batch[0] * batch[1]
    between = [x for pair in zip(outs, ins, strict=True) for x in pair]
    result, *rest = (Walked(t, (*batch, rows, n), (outs[j], ins[j], row[j], int(col)), t is c)
                     for j, (t, col) in enumerate(zip((c, *operands), (True, *cols), strict=True), 2))
    sides = [x for j, t in enumerate(rest, 3) for x in (t, row[j], outs[j], ins[j])]
    kinds = tuple(Operand(t.dtype, r != 0, col) for t, r, col in zip(operands, row[3:], cols, strict=True))
    turned = n == 1 and rows >= lanes and upright and row[2] == 1 and all(r in (0, 1) for r in row[3:])
    if turned:
        kinds = tuple(Operand(t.dtype, False, r == 1) for t, r in zip(operands, row[3:], strict=True))
        a, b, rows, n = b, a, 1, rows
        between[:4] = *between[2:4], *between[:2]
        row, b_row = [0, 0, 0], row[0]
    abreast = 0
    if turned or source == "transposed":
        abreast = gemm.dots_abreast(lo.machine, rows, n, k, a.dtype)
    if abreast:
        blocks = -(-n // lanes)
        spec = gemm.dots(a_type=a.dtype, b_type=b.dtype, abreast=abreast, tree=tree, operands=kinds)
        lo.step(spec, [a, b, result, rows, n, k, row[0], b_row, row[2], batch[1], *between[:6], blocks,
                       *sides], count * blocks, gemm.grain(rows * n * k * count, count * blocks))
        return
    streamed = gemm.stream_plan(lo.machine, rows, n, k, count, a.dtype, b.dtype) if source == "rows" else None
    if streamed is not None:
        spec = gemm.streams(rows=streamed.rows, a_type=a.dtype, b_type=b.dtype, tree=tree, operands=kinds)
        lo.step(spec, [a, b, result, n, k, row[0], b_row, row[2], batch[1], *between[:6], streamed.wide,
                       streamed.blocks, *sides], count * streamed.blocks,
                gemm.grain(rows * n * k * count, count * streamed.blocks), streamed.scratch)
        return
    made = gemm.plan(lo.machine, rows, n, k, count, source, row[0], b_row, a.dtype, b.dtype)
    lo.step(made.spec(tree, kinds), [a, b, result, n, k, row[0], b_row, row[2], batch[1], *between[:6],
                                     *made.cells(), *sides], made.items, made.grain, made.scratch)


def _on_matrix_unit(lo: Lowering, a: Tensor, weights: Weights, out: Tensor, tree: Expr | None,
                    operands: Sequence[Tensor]) -> bool:
    """Write the product there where that is faster and the batches are one list of rows."""
    n, k = out.shape[-1], a.shape[-1]
    dims = merged(out.shape[:-1], [t.strides[:-1] for t in (a, out, *operands)])
    if len(dims) != 1 or not matrix_unit.takes(lo, dims[0][0], n, k, k):
        return False
    rows, strides = dims[0]
    first, target, *rest = (t.view((rows, t.shape[-1]), (s, t.strides[-1]))
                            for t, s in zip((a, out, *operands), strides, strict=True))
    matrix_unit.product(lo, first, *weights, target, tree, rest)
    return True
