"""Products with constant weights of 2, 4 or 8 bits in blocks, as kernels of `codegen.kernels.few_bits`.

In: A (..., k), and a second factor (n, k) of codes with a scale for each block of k, as it is stored. Out:
the product, or rows of a table. Weights are packed once for all numbers of rows: they are unpacked in
registers, for many rows perhaps a panel at a time; where A may be rounded to eight bits, integers are
multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...codegen.kernels import gemm
from ...codegen.kernels.few_bits import gather as gather_rows
from ...codegen.kernels.few_bits import integers, rows, tiles
from ...codegen.kernels.few_bits.layout import CHUNK, Blocks, floats, pack
from ...codegen.write.expr import Expr
from ...codegen.write.tile import Operand
from ...ir import No, Node, Value, in_memory
from ...ops.contrib.quant import FP4, NF4, q4_blocks, unpacked
from ...ops.define import normalized_axis
from ...records import dataclass
from ..elements import store
from ..lower import BOTH, Lazy, Lowering, Out, Pending, Source, lowers, varied
from ..tensor import Tensor
from ..walk import Walked, merged
from .gather import EACH, INDICES, gathered, placed

FLOATS = ("float32", "float16", "bfloat16")
F = "float32"
MS = "com.microsoft::"

_BITS = (2, 4, 8)
_INTEGERS = 4
"""The accuracy level from which on A may be rounded to eight bits."""

_EXACT = 256
"""The longest block whose sums of integers are exact in float32."""

_KINDS = {"uint2": (2, 0), "int2": (2, 2), "uint4": (4, 0), "int4": (4, 8), "uint8": (8, 0), "int8": (8, 128)}
"""numpy's names of the types of codes: their bits, and what has to be added for none to be below 0."""



def _whole(block: int) -> bool:
    """Whether blocks of so many elements are whole words whatever their bits, and found by shifts."""
    return block >= CHUNK and not block & (block - 1)


@dataclass(eq=False)
class Weights:
    """A constant second factor (n, k): `make` gives its codes, scales and zero points as `pack` takes them;
    `key` tells it from others."""

    key: tuple[Any, ...]
    n: int
    k: int
    how: Blocks
    make: Callable[[], tuple[np.ndarray, np.ndarray, np.ndarray | None]]

    def packed(self, lo: Lowering) -> Tensor:
        how, wide = self.how, gemm.width(lo.machine, self.n)
        return lo.constant(("few bits", *self.key, how, wide), lambda: pack(how, wide, *self.make()))


def product(a: Tensor, weights: Weights, level: int = 0) -> Pending:
    """A (..., k) times the transpose of the weights, float32. `level`: of MatMulNBits' accuracy."""
    n, k, how = weights.n, weights.k, weights.how
    shape = (*a.shape[:-1], n)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        dims = merged(shape[:-1], [t.strides[:-1] for t in (out, *operands)])
        if len(dims) > 1:
            whole = lo.new(shape, out.dtype)
            emit(lo, whole, tree, [lo.contiguous(t) for t in operands])
            lo.copy(whole, out)
            return
        m, steps = dims[0] if dims else (1, [0] * (1 + len(operands)))
        first = lo.contiguous(a).view((m, k), (k, 1))
        views = [t.view((m, n), (s, t.strides[-1])) for t, s in zip((out, *operands), steps, strict=True)]
        if level >= _INTEGERS and how.block <= _EXACT and not how.values and integers.multiplies(lo.machine):
            _by_integers(lo, first, weights, views, tree)
        elif rows.takes(lo.machine, m, gemm.columns(lo.machine, n)):
            _by_rows(lo, first, weights, views, tree)
        else:
            _by_panels(lo, first, weights, views, tree)
    return Pending(shape, F, emit)


def _ends(views: Sequence[Tensor]) -> tuple[Walked, list[Any], tuple[Operand, ...]]:
    """The result as a kernel's argument, and the operands behind it: tensors with their strides over rows."""
    m, n = views[0].shape
    across = [n > 1 and t.strides[1] == 1 for t in views]
    result, *others = (Walked(t, (m, n), (t.strides[0], int(col or not i)), not i)
                       for i, (t, col) in enumerate(zip(views, across, strict=True)))
    kinds = tuple(Operand(t.dtype, m > 1 and t.strides[0] != 0, col)
                  for t, col in zip(views[1:], across[1:], strict=True))
    return result, [x for t in others for x in (t, t.strides[0])], kinds


def _by_rows(lo: Lowering, a: Tensor, weights: Weights, views: Sequence[Tensor], tree: Expr | None) -> None:
    """Tiles of rows, float32."""
    (m, n), k, how = views[0].shape, weights.k, weights.how
    result, others, kinds = _ends(views)
    cols = gemm.columns(lo.machine, n)
    full = _filled(lo, a, how)
    made = tiles.plan(lo.machine, m, n, k, gemm.width(lo.machine, n), rows.most(lo.machine, cols), 4,
                      gemm.SPLIT)
    spec = rows.few_bits_rows(how=how, cols=cols, heights=made.heights, tail=made.tail, tree=tree,
                              operands=kinds)
    lo.step(spec, [full, weights.packed(lo), result, full.strides[0], n, k, result.strides[0], *made.cells(),
                   *others], made.items, made.grain)


def _filled(lo: Lowering, a: Tensor, how: Blocks) -> Tensor:
    """A as float32, each row filled up with zeros to whole blocks."""
    m, k = a.shape
    wide = how.count(k) * how.block
    if a.dtype == F and wide == k:
        return a
    made = lo.new((m, wide), F)
    store(lo, made.slice(1, 0, k), Expr.leaf(0, a.dtype).cast(F), [a])
    if wide > k:
        store(lo, made.slice(1, k, wide - k), Expr.const(0.0, F), [])
    return made


def _by_panels(lo: Lowering, a: Tensor, weights: Weights, views: Sequence[Tensor], tree: Expr | None) -> None:
    """Many rows, float32, each panel unpacked once for all of them."""
    (m, n), k = views[0].shape, weights.k
    result, others, kinds = _ends(views)
    made = gemm.plan(lo.machine, m, n, k, 1, gemm.BLOCKS, k, 0, a.dtype, F)
    sides = [x for t, s in zip(others[::2], others[1::2], strict=True) for x in (t, s, 0, 0)]
    batch = 1, *[0] * 6
    lo.step(made.spec(tree, kinds, weights.how),
            [a, weights.packed(lo), result, n, k, k, 0, result.strides[0], *batch, *made.cells(), *sides],
            made.items, made.grain, made.scratch)


def _by_integers(lo: Lowering, a: Tensor, weights: Weights, views: Sequence[Tensor], tree: Expr | None
                 ) -> None:
    """A rounded to eight bits."""
    (m, n), k, how = views[0].shape, weights.k, weights.how
    result, others, kinds = _ends(views)
    count = how.count(k)
    codes, scales, starts = (lo.new(shape, dtype) for shape, dtype in (
        ((m, count * how.block), "int8"), ((m, count), F), ((m, count), "int32")))
    lo.step(integers.few_bits_bytes(a_type=a.dtype, how=how, factor=integers.factor(lo.machine, how)),
            [a, Out(codes), Out(scales), Out(starts), k, k, count], m * count,
            max(1, integers.CODE_SPLIT // how.block))
    cols = gemm.columns(lo.machine, n)
    made = tiles.plan(lo.machine, m, n, k, gemm.width(lo.machine, n), integers.most(lo.machine, cols), 1,
                      integers.SPLIT)
    spec = integers.few_bits_integers(how=how, cols=cols, heights=made.heights, tail=made.tail, tree=tree,
                                      operands=kinds)
    lo.step(spec,
            [codes, scales, starts, weights.packed(lo), result, n, k, result.strides[0], *made.cells(),
             *others], made.items, made.grain)


Multiply = Callable[[Any, Tensor, Weights, int, "np.ndarray | None", Any], Pending]
"""A times weights: `product` of a level, of an A whose last axis is put into an order, known by a key."""


@varied
def factor(lo: Lowering, value: Value) -> Any:
    """`value` as a kernel multiplies it."""
    return lo.tensor(value)


def _multiplied(lo: Lowering, a: Tensor, weights: Weights, level: int, order: np.ndarray | None, key: Any
                ) -> Pending:
    if order is not None:
        a = _permuted(lo, a, lo.constant(("order", key), lambda: order))
    return product(a, weights, level)


@lowers(MS + "MatMulNBits", types=FLOATS)
def matmul_nbits(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """A·Bᵀ + bias in the type of A."""
    a, _, _, _, g_idx, bias = (*node.inputs, None, None, None)[:6]
    attrs = node.attributes
    assert a is not None
    weights = _stored(lo, node)
    if isinstance(weights, No):
        return weights
    if lo.shape(a)[-1:] != (weights.k,) or 0 in lo.shape(a):
        return No("A is empty or does not fit K")
    if bias is not None and lo.shape(bias) != (weights.n,):
        return No("its bias is no row of N")
    order = None if g_idx is None else _order(lo, g_idx, weights.k, weights.how.block)
    if g_idx is not None and order is None:
        return No("its groups are not blocks whose elements were put elsewhere")
    made = multiply(lo, factor(lo, a), weights, attrs["accuracy_level"], order, id(g_idx))
    return finished(lo, made, lo.dtype(a), bias)


def finished(lo: Lowering, made: Pending, dtype: str, bias: Value | None) -> Lazy:
    """The product plus a bias, in its type."""
    tree, operands = Expr.leaf(0, F), [Source(made)]  # type: tuple[Expr, list[Tensor | Source]]
    if bias is not None:
        known = lo.known(bias)
        row = lo.tensor(bias) if known is None else lo.constant(("bias", id(bias)), lambda: known.astype(F))
        tree = Expr("add", (tree, Expr.leaf(1, row.dtype).cast(F)), F)
        operands.append(row)
    return Lazy(made.shape, tree.cast(dtype), operands)


def _stored(lo: Lowering, node: Node) -> Weights | No:
    """What MatMulNBits multiplies by."""
    _, b, scales, zeros, g_idx, _ = (*node.inputs, None, None, None)[:6]
    attrs = node.attributes
    n, k, bits, block = (attrs[name] for name in ("N", "K", "bits", "block_size"))
    codes, by, low = (lo.known(v) if v is not None and lo.knows(v) else None for v in (b, scales, zeros))
    if codes is None or by is None or (zeros is not None and low is None) or (
            g_idx is not None and not lo.knows(g_idx)):
        return No("kernels take weights of few bits that are constant, and their scales and zero points")
    if bits not in _BITS or not _whole(block) or attrs["weight_prepacked"] or min(n, k) < 1:
        return No("kernels take 2, 4 or 8 bits, and blocks of a power of two from 16 on")
    how = Blocks(bits, block, by.dtype.name, 1 << (bits - 1))
    count, packed = how.count(k), 0
    if low is not None and low.dtype == np.uint8:
        packed = -(-how.count(k) * bits // 8)
        how = replace(how, zeros="codes")
    elif low is not None:
        how = replace(how, zeros="floats", scale=how.scale if low.dtype == by.dtype else F)
    if codes.dtype != np.uint8 or how.scale not in FLOATS or by.size != n * count or (
            codes.size != n * count * block * bits // 8) or (
            low is not None and low.size != n * (packed or count)):
        return No("its weights, scales or zero points do not fit N and K")

    def make() -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        whole, scale, zero = map(in_memory, (codes, by, low))
        whole, scale = whole.reshape(n, -1), scale.reshape(n, count).astype(how.scale, copy=False)
        if low is not None:
            zero = zero.reshape(n, -1) if packed else zero.reshape(n, count).astype(how.scale, copy=False)
        if g_idx is not None:
            order = _order(lo, g_idx, k, block)
            whole = how.whole(unpacked(whole, bits)[:, order])
        return whole, scale, zero
    return Weights((id(b), id(scales), id(zeros), id(g_idx)), n, k, how, make)


def _order(lo: Lowering, g_idx: Value, k: int, block: int) -> np.ndarray | None:
    """The elements of k in the order of their blocks; None where these are not the blocks of that order."""
    groups = in_memory(lo.known(g_idx)).reshape(-1)[:k]
    order = np.argsort(groups, kind="stable")
    return order if np.array_equal(groups[order], np.arange(k) // block) else None


def _permuted(lo: Lowering, a: Tensor, order: Tensor) -> Tensor:
    """A copy of A (..., k), its last axis in another order."""
    first = lo.contiguous(a)
    k = first.shape[-1]
    m = first.size // k
    made = lo.new(first.shape, a.dtype)
    gathered(lo, first.view((m, k), (k, 1)), order, made.view((m, k), (k, 1)), 1, 1, 1, False)
    return made


def dequantized(lo: Lowering, a: Value, b: Value, flip: bool, multiply: Multiply = _multiplied
                ) -> Pending | None:
    """A·B, or A·Bᵀ with `flip`, of a constant B that is dequantized by blocks of k; None where it is not."""
    node = b.node
    if node is None or node.op_type != "DequantizeLinear" or b not in lo.later or not lo.shape(a):
        return None
    x, scale, zero = (*node.inputs, None)[:3]
    axis, block = normalized_axis(node.attribute("axis"), 2), node.attribute("block_size") or 0
    codes, by, low = (in_memory(lo.known(v)) for v in (x, scale, zero))
    if codes is None or by is None or codes.ndim != 2 or codes.dtype.name not in _KINDS or (
            axis != int(flip) or not _whole(block)):
        return None
    n, k = codes.shape if flip else codes.shape[::-1]
    bits, middle = _KINDS[codes.dtype.name]
    how = Blocks(bits, block, by.dtype.name, middle if low is None else "codes")
    if lo.shape(a)[-1] != k or 0 in (n, *lo.shape(a)) or how.scale not in FLOATS:
        return None

    def rows(array: np.ndarray) -> np.ndarray:
        """Codes, none below 0, a row for each of n."""
        return ((array if flip else array.T).astype(np.int16) + middle).astype(np.uint8)

    def make() -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return (how.whole(rows(codes)), by if flip else by.T,
                None if low is None else how.bytes(rows(low)))
    weights = Weights((id(x), id(scale), id(zero), flip), n, k, how, make)
    return multiply(lo, factor(lo, a), weights, lo.accuracy_level, None, None)


@lowers(MS + "GatherBlockQuantized", sets=BOTH)
def gather_block_quantized(lo: Lowering, node: Node) -> Pending | No:
    """Rows by index, dequantized."""
    data, indices, scales, zeros = (*node.inputs, None)[:4]
    assert data is not None and indices is not None and scales is not None
    attrs, stored = node.attributes, lo.dtype(data)
    block, shape, by, index = attrs["block_size"], lo.shape(data), lo.shape(scales), lo.shape(indices)
    bits, middle = _KINDS.get(stored, (0, 0))
    if stored == "uint8":
        bits, middle = attrs["bits"], (0 if zeros is not None else 1 << (attrs["bits"] - 1))
    if len(shape) != 2 or normalized_axis(attrs["gather_axis"], 2) != 0 or (
            normalized_axis(attrs["quantize_axis"], 2) != 1):
        return No("kernels gather rows of a matrix whose blocks lie along them")
    if bits not in _BITS or not _whole(block) or gather_rows.PIECE % block or (
            lo.dtype(scales) not in FLOATS or lo.dtype(indices) not in INDICES):
        return No("kernels take 2, 4 or 8 bits and blocks of a power of two from 16 to 1024")
    k = shape[1] * (8 // bits) if stored == "uint8" else shape[1]
    count = -(-k // block)
    wide = -(-count * bits // 8)
    how = Blocks(bits, block, lo.dtype(scales), middle if zeros is None else "codes")
    codes, low = (_bytes(lo, v, how, middle) for v in (data, zeros))
    if by != (shape[0], count) or isinstance(codes, No) or isinstance(low, No) or (
            low is not None and low.shape != (shape[0], wide)) or codes is None or (
            0 in shape and 0 not in index):
        return No("its scales or zero points do not fit, or it is empty")
    where, factors = lo.contiguous(lo.tensor(indices)), lo.contiguous(lo.tensor(scales))

    def write(lo: Lowering, out: Tensor) -> None:
        if not out.size:
            return
        if not out.contiguous:
            whole = lo.new(out.shape, out.dtype)
            write(lo, whole)
            lo.copy(whole, out)
            return
        rows_of_codes(lo, out, codes, factors, low, where, how)
    return placed((*index, k), how.scale, write)


@varied
def rows_of_codes(lo: Lowering, out: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None,
                  where: Tensor, how: Blocks) -> None:
    """The rows of a matrix of codes that `where` names, as floats; all in C order, `codes` and `zeros` as
    bytes that hold several."""
    k = out.shape[-1]
    pieces = -(-k // gather_rows.PIECE)
    spec = gather_rows.few_bits_gather(how=how, dtype=where.dtype)
    lo.step(spec, [Out(out), codes, scales, scales if zeros is None else zeros, where, Out(lo.status),
                   codes.shape[0], k, pieces, codes.shape[1], scales.shape[1],
                   0 if zeros is None else zeros.shape[1]],
            where.size * pieces, max(1, EACH // min(k, gather_rows.PIECE)))


def _bytes(lo: Lowering, value: Value | None, how: Blocks, middle: int) -> Tensor | No | None:
    """Codes (rows, columns) as bytes that hold several, where they are not that already."""
    if value is None:
        return None
    if lo.dtype(value) == "uint8":
        return lo.contiguous(lo.tensor(value))
    known = lo.known(value) if lo.knows(value) else None
    if known is None:
        return No("it is computed")

    def make() -> np.ndarray:
        return how.bytes((in_memory(known).astype(np.int16) + middle).astype(np.uint8))
    return lo.constant(("bytes of few bits", id(value)), make)


@lowers(MS + "MatMulBnb4", types=FLOATS)
def matmul_bnb4(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """A·Bᵀ in the type of A."""
    a, b, absmax = node.inputs
    assert a is not None
    attrs = node.attributes
    n, k, block = attrs["N"], attrs["K"], attrs["block_size"]
    codes, by = (lo.known(v) if lo.knows(v) else None for v in (b, absmax))
    if codes is None or by is None or not attrs["transB"] or attrs["quant_type"] not in (0, 1):
        return No("kernels take constant weights, transposed, of type 0 or 1")
    if not _whole(block) or k % block or min(n, k) < 1 or 2 * codes.size != n * k or (
            by.size != n * k // block) or by.dtype.name not in FLOATS:
        return No("its blocks are not whole in each row, or its inputs do not fit")
    if lo.shape(a)[-1:] != (k,) or 0 in lo.shape(a):
        return No("A is empty or does not fit K")
    how = Blocks(4, block, by.dtype.name, values=floats((FP4, NF4)[attrs["quant_type"]]))

    def make() -> tuple[np.ndarray, np.ndarray, None]:
        whole = in_memory(codes).reshape(n, -1)
        return whole >> 4 | whole << 4, in_memory(by).reshape(n, -1), None
    made = multiply(lo, factor(lo, a), Weights((id(b), id(absmax)), n, k, how, make), 0, None, None)
    return finished(lo, made, lo.dtype(a), None)


@lowers(MS + "MatMulFpQ4", types=(F,))
def matmul_fpq4(lo: Lowering, node: Node, multiply: Multiply = _multiplied) -> Lazy | No:
    """A·B of a blob of blocks."""
    a, b, shape = node.inputs
    assert a is not None and b is not None
    known, size = (lo.known(v) if lo.knows(v) else None for v in (b, shape))
    if known is None or size is None or size.shape != (2,):
        return No("kernels take constant weights")
    k, n, kind = int(size[0]), int(size[1]), node.attributes["blk_quant_type"]
    if lo.shape(a)[-1:] != (k,) or 0 in lo.shape(a):
        return No("A is empty or does not fit its matrix")
    try:
        codes, scales, zeros = q4_blocks(in_memory(known), n, k, kind)
    except ValueError as error:
        return No(str(error))
    how = Blocks(4, codes.shape[2], zeros=8 if zeros is None else "codes")

    def make() -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return how.bytes(codes.reshape(n, -1)), scales, None if zeros is None else how.bytes(zeros)
    weights = Weights((id(b), n, k, kind), n, k, how, make)
    return finished(lo, multiply(lo, factor(lo, a), weights, 0, None, None), F, None)
