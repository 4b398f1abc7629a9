"""Matrix products: MatMul, Gemm and their integer forms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....ir import No, Node, Value
from ..binding import BIAS, DST, SRC, WEIGHTS, ZERO_POINTS
from ..fuse import finish
from ..lower import Lowering
from ..objects import Attr, Binary, Desc, Eltwise, PostOp, Primitive, Scaling, open_layout, strided
from ..step import lowers
from ..tensor import Argument, Quantized, Tensor
from .conv import fits, operands, scaled
from .elementwise import ranked


@lowers("MatMul")
def matrix_product(lo: Lowering, node: Node) -> None:
    """Over the last two dimensions, the others broadcasting; integers where both sides are quantized."""
    qa, qb = lo.quantized(node.inputs[0]), lo.quantized(node.inputs[1])
    if qa is not None and qb is not None and fits(qa, qb, -1):
        scalings, args = scaled(lo, qa, qb, _last(qb))
        product(lo, node, qa.tensor, qb.tensor, scalings=scalings, more=args, integer=True)
        return
    product(lo, node, lo.tensor(node.inputs[0]), lo.tensor(node.inputs[1]))


@lowers("com.microsoft::FusedMatMul")
def product_of_flipped(lo: Lowering, node: Node) -> None:
    """alpha * A' @ B'; what is flipped stays where it is."""
    attrs = node.attributes
    a, b = (_flipped(lo, lo.tensor(value), attrs[f"trans{side}"], attrs[f"transBatch{side}"])
            for side, value in zip("AB", node.inputs, strict=True))
    product(lo, node, a, b, first=[] if attrs["alpha"] == 1 else [(Eltwise("linear", attrs["alpha"]), None)])


def _flipped(lo: Lowering, t: Tensor, flip: int, flip_batch: int) -> Tensor:
    """`flip_batch` moves dimension 0 behind the other batch dimensions, `flip` swaps the last two."""
    order = list(range(len(t.shape)))
    if flip_batch and len(order) > 2:
        order.insert(-1, order.pop(0))
    if flip and len(order) > 1:
        order[-2:] = order[:-3:-1]
    return lo.permuted(t, order) if order != sorted(order) else t


@lowers("QLinearMatMul")
def quantized_product(lo: Lowering, node: Node) -> No | None:
    """As between DequantizeLinear and QuantizeLinear."""
    found = operands(lo, node, -1)
    if isinstance(found, No):
        return found
    qa, qb, end = found
    scalings, args = scaled(lo, qa, qb, _last(qb))
    more, further = lo.scaled(end, DST)
    product(lo, node, qa.tensor, qb.tensor, dtype=end.tensor.dtype, scalings=[*scalings, *more],
            more=[*args, *further], fuse=False)
    return None


def _last(found: Quantized) -> int:
    """The mask of a matrix' columns."""
    return 1 << len(found.tensor.shape) - 1


def product(lo: Lowering, node: Node, a: Tensor, b: Tensor, *, dtype: str = "float32",
            first: Sequence[tuple[PostOp, Tensor | None]] = (), bias: Tensor | None = None,
            scalings: Sequence[Scaling] = (), more: Sequence[Argument] = (), integer: bool = False,
            fuse: bool = True) -> None:
    """Write the step of a @ b with `first` as post-ops and `bias` [1, N] added. A row times a constant matrix
    is as fast as that comes from memory: by oneDNN's older code, which reads it as it is."""
    rows = () if len(a.shape) == 1 else (a.shape[-2],)
    columns = () if len(b.shape) == 1 else (b.shape[-1],)
    if len(a.shape) == 1:
        a = lo.reshaped(a, (1, *a.shape))
    if len(b.shape) == 1:
        b = lo.reshaped(b, (*b.shape, 1))
    outer = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*outer, *rows, *columns)
    if len(b.shape) == 2 and len(a.shape) > 2:
        a = lo.reshaped(a, (math.prod(a.shape[:-1]), a.shape[-1]))
    else:
        rank = max(len(a.shape), len(b.shape))
        a, b = ranked(lo, lo.strided(a), rank), ranked(lo, b, rank)
    inner = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if a.dtype == "bfloat16":
        dtype = a.dtype
    constant = b.buffer.kind == "const"
    a = lo.plain(a) if _awkward(a) else a
    if not constant:
        b = lo.strided(b)
        b = lo.plain(b) if _awkward(b) else b
    row = constant and len(a.shape) == 2 and a.shape[0] == 1 and a.dtype == b.dtype == "float32" and (
        b.plain or lo.permuted(b, (1, 0)).plain)
    if row:
        b = lo.constants.near(b)
    weights = open_layout(lo.lib, b.shape, b.dtype) if constant and not row else b.desc

    def make(desc: Desc, attr: Attr) -> Primitive:
        return Primitive(lo.lib, "matmul", lo.lib.engine, a.desc, weights,
                         None if bias is None else bias.desc, desc, attr, rather="gemm" if row else "")

    def reads(p: Primitive) -> list[Argument]:
        args = [(SRC, a), (WEIGHTS, lo.laid(b, p.desc(WEIGHTS, b.shape, b.dtype)) if constant else b), *more]
        return args if bias is None else [*args, (BIAS, bias)]
    finish(lo, node, shape, dtype, make, reads, inner=inner, layout=strided(lo.lib, inner, dtype),
           first=first, scalings=scalings, integer=integer, fuse=fuse)


def _awkward(t: Tensor) -> bool:
    """Whether no dimension of the matrices in `t` is dense."""
    assert t.desc.strides is not None
    return all(s != 1 for s in t.desc.strides[-2:])


@lowers("Gemm")
def general_product(lo: Lowering, node: Node) -> No | None:
    """alpha * A' @ B' + beta * C."""
    attrs = node.attributes
    values = [*node.inputs, None][:3]
    qa, qb = lo.quantized(values[0]), lo.quantized(values[1])
    axis = 0 if attrs["transB"] else 1
    whole = qa is not None and qb is not None and fits(qa, qb, axis)
    scalings: list[Scaling] = []
    more: list[Argument] = []
    if whole:
        assert qa is not None and qb is not None
        a, b = qa.tensor, qb.tensor
        scalings, more = scaled(lo, qa, qb, 2)
    else:
        a, b = lo.tensor(values[0]), lo.tensor(values[1])
    if attrs["transA"]:
        a = lo.permuted(a, (1, 0))
    if attrs["transB"]:
        b = lo.permuted(b, (1, 0))
    shape = (a.shape[0], b.shape[1])
    first: list[tuple[PostOp, Tensor | None]] = []
    bias = None
    if attrs["alpha"] != 1:
        first.append((Eltwise("linear", attrs["alpha"]), None))
    if values[2] is not None and attrs["beta"]:
        c = _times(lo, values[2], attrs["beta"])
        if c is None:
            return No(f"beta is {attrs['beta']} and C no constant")
        if not first and c.size == shape[1] and c.shape[-1:] == shape[1:] and c.dtype == "float32":
            bias = lo.reshaped(c, (1, shape[1]))
        else:
            c = lo.plain(ranked(lo, c, 2))
            first.append((Binary("add", c.desc), c))
    product(lo, node, a, b, first=first, bias=bias, scalings=scalings, more=more, integer=whole)
    return None


def _times(lo: Lowering, value: Value, factor: float) -> Tensor | None:
    """A value times a factor; None where that is not known."""
    if factor == 1:
        return lo.tensor(value)
    known = lo.known(value)
    if known is None:
        return None
    return lo.constant(("times", id(value), factor), lambda: (known * known.dtype.type(factor)))


@lowers("MatMulInteger")
def integer_product(lo: Lowering, node: Node) -> No | None:
    """(A - a0) @ (B - b0) in int32; a Cast behind it makes the sums float32 as they are stored."""
    a, b = lo.tensor(node.inputs[0]), lo.tensor(node.inputs[1])
    zeros = [*node.inputs[2:], None, None][:2]
    scalings: list[Scaling] = []
    args: list[Argument] = []
    known = lo.known(node.inputs[1])
    shift = 0
    if b.dtype == "uint8":
        if known is None:
            return No("B is uint8 and no constant: oneDNN's weights are int8")
        shift = 128
        b = lo.constant(("signed", id(node.inputs[1])),
                        lambda: (known.astype(np.int16) - 128).astype(np.int8))
    for value, arg, moved in ((zeros[0], SRC, 0), (zeros[1], WEIGHTS, shift)):
        zero = lo.known(value)
        if value is not None and zero is None:
            if lo.tensor(value).size != 1 or arg == WEIGHTS:
                return No("a zero point for each row or column")
            t = lo.reshaped(lo.tensor(value), (1,))
            scalings.append(Scaling(arg, "zero_points"))
            args.append((ZERO_POINTS | arg, lo.laid(t, strided(lo.lib, (1,), "int32"))))
            continue
        numbers = np.zeros(1, np.int64) if zero is None else zero.astype(np.int64).reshape(-1)
        if (numbers != numbers[0]).any():
            return No("a zero point for each row or column")
        if at := int(numbers[0]) - moved:
            scalings.append(Scaling(arg, "zero_points"))
            args.append((ZERO_POINTS | arg, lo.number(at, "int32")))
    product(lo, node, a, b, dtype="int32", scalings=scalings, more=args)
    return None
