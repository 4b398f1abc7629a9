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

from ....codegen.write.expr import Expr
from ....ir import ElementType, No, Node, Value, element_of
from ....ops.define import normalized_axis
from ....ops.tensor.movement import VIEWS
from ...lower import Lazy, Lowering, Source, lowers
from ...rule_sets import BOTH
from ...tensor import Tensor
from ..rows import FLOATS
from .int8 import BYTES, coded, number

_F32 = "float32"
_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}
MOVES = (*VIEWS, "MaxPool", "GlobalMaxPool", "Transpose", "Expand", "Slice", "Split", "DepthToSpace",
         "SpaceToDepth", "Tile", "Gather", "GatherElements", "GatherND")
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

    def parameter(self, value: Value | Tensor, dtype: str, how: Callable[[np.ndarray], Any] = lambda x: x,
                  name: str = "") -> Expr | None:
        """`how` of the numbers of `value`, as `dtype`; None where they do not fit. A tensor fits as it is; of
        computed numbers `how` is not taken."""
        if isinstance(value, Tensor):
            return self.operand(value).cast(dtype)
        if not self.lo.knows(value):
            return self._computed(self.lo.tensor(value), dtype)
        known = self.lo.known(value)
        assert known is not None
        if known.ndim > 1:
            return None
        if known.size == 1:
            number = np.asarray(how(known.reshape(()).astype(dtype)))
            return self.operand(self.lo.constant(("number", dtype, number.tobytes()), lambda: number))
        at = self._axis(known.size)
        if at is None:
            return None
        lying = (-1, *(1,) * (len(self.shape) - at - 1))
        return self.operand(self.lo.constant((name, "along", id(value), dtype, len(lying)),
                                             lambda: how(known.astype(dtype)).reshape(lying)))

    def _computed(self, t: Tensor, dtype: str) -> Expr | None:
        if t.size == 1:
            return self.operand(t.view((), ())).cast(dtype)
        at = self._axis(t.size)
        if t.rank != 1 or at is None:
            return None
        behind = len(self.shape) - at - 1
        return self.operand(t.view((t.size, *(1,) * behind), (t.strides[0], *(0,) * behind))).cast(dtype)

    def _axis(self, count: int) -> int | None:
        """The axis of which each index has one of `count` numbers."""
        at = 0 if len(self.shape) == 1 else self.axis
        if not -len(self.shape) <= at < len(self.shape):
            return None
        at = normalized_axis(at, len(self.shape))
        return at if count == self.shape[at] else None

    def done(self, tree: Expr) -> Lazy:
        return Lazy(self.shape, tree, self.operands)


@lowers("QuantizeLinear", "com.microsoft::QuantizeLinear", types=FLOATS, sets=BOTH)
def quantize_linear(lo: Lowering, node: Node) -> Lazy | Tensor | No:
    """To eight or sixteen bits, with one scale, one for each index of an axis, or one for each block."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    asked = node.attribute("output_dtype")
    target = lo.dtype(zero) if zero is not None else ElementType(asked).numpy.name if asked else "uint8"
    if asked and zero is not None and asked != element_of(np.dtype(target)):
        return No("its output_dtype is not the type of its zero point")
    if target not in _RANGES or lo.dtype(scale) not in FLOATS or node.attrs.get("precision"):
        return No(f"kernels quantize to eight or sixteen bits, not to {target} or of another precision")
    half = lo.dtype(scale) if node.op is not None and node.op.since >= 23 else _F32
    if node.attrs.get("block_size"):
        return _in_blocks(lo, node, target,
                          lambda lazy, by, low: quantized(lo, lazy, by, low, target, work=half))
    source = coded(lo, x)
    if source is not None and lo.dtype(source.value) == target and lo.knows(scale) and (
            zero is None or lo.knows(zero)) and number(lo, scale) is not None and (
            number(lo, source.scale) == number(lo, scale) and number(lo, source.zero) == number(lo, zero)):
        return lo.lazy(source.value)
    lazy = lo.lazy(x)
    wide = Lazy(lazy.shape, lazy.tree.cast(_F32), lazy.operands)
    made = quantized(lo, wide, scale, zero, target, node.attribute("axis"), half)
    return made or No("its scale or zero point does not fit")


def _in_blocks(lo: Lowering, node: Node, dtype: str,
               how: Callable[[Lazy, Tensor, Tensor | None], Lazy | None]) -> Tensor | No:
    """`how` of float32 or integer elements and their blocks' parameters, which are there for each block along
    an axis."""
    x, scale, zero = ([None if v is None else lo.tensor(v) for v in node.inputs] + [None])[:3]
    assert x is not None and scale is not None
    size, axis = node.attrs["block_size"], node.attribute("axis")
    if not -x.rank <= axis < x.rank or size < 1:
        return No("its axis or block size is out of range")
    axis = normalized_axis(axis, x.rank)
    blocks = tuple(-(-d // size) if i == axis else d for i, d in enumerate(x.shape))
    if any(t is not None and t.shape != blocks for t in (scale, zero)):
        return No("its scale or zero point is not one for each block")
    out = lo.new(x.shape, dtype)
    whole, rest = divmod(x.shape[axis], size)
    for first, count, length in ((0, whole, size), (whole, 1, rest)):
        def part(t: Tensor, first: int = first, count: int = count, length: int = length) -> Tensor:
            return _split(t.slice(axis, first * size, count * length), axis, length)

        def each(t: Tensor, first: int = first, count: int = count) -> Tensor:
            return _split(t.slice(axis, first, count), axis, 1)
        if not count * length or not x.size:
            continue
        mine = part(x)
        made = how(Lazy(mine.shape, Expr.leaf(0, x.dtype).cast(_F32), [mine]), each(scale),
                   None if zero is None else each(zero))
        assert made is not None
        lo.store(part(out), made.tree, [t for t in made.operands if isinstance(t, Tensor)])
    return out


def _split(t: Tensor, axis: int, length: int) -> Tensor:
    """`t` with an axis as pieces of a length, and their elements behind them."""
    step = t.strides[axis]
    return t.view((*t.shape[:axis], t.shape[axis] // length, length, *t.shape[axis + 1:]),
                  (*t.strides[:axis], step * length, step, *t.strides[axis + 1:]))


def quantized(lo: Lowering, lazy: Lazy, scale: Value | Tensor | None, zero: Value | Tensor | None,
              target: str, axis: int = 1, work: str = _F32) -> Lazy | None:
    """A float32 tree over `scale`, where there is one, divided in type `work`, rounded, plus `zero`, held in
    the range of `target`; None where the parameters do not fit."""
    low, high = _RANGES[target]
    shift = 0 if zero is None else one(lo, zero)
    by = None if scale is None else one(lo, scale)
    top = None if by is None or work != _F32 else divided(lo, lazy, np.float32(by), low == shift)
    made = _Tree(lo, lazy if top is None else top, axis)
    tree = made.top
    if top is None and scale is not None:
        divisor = made.parameter(scale, _F32)
        if divisor is None:
            return None
        tree = Expr("div", (made.top.cast(work).cast(_F32), divisor), _F32).cast(work).cast(_F32)
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
        if isinstance(zero, Value) and lo.knows(zero):
            real = made.parameter(zero, _F32, partial(np.subtract, np.float32(end)), f"{end} less")
        if real is None:
            return None
        ends.append(real)
    return made.done(Expr("quantize", (tree, *ends, whole), target))


def one(lo: Lowering, value: Value | Tensor) -> float | None:
    """The only element of a value known now."""
    known = lo.known(value) if isinstance(value, Value) and lo.knows(value) else None
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


@lowers("DequantizeLinear", "com.microsoft::DequantizeLinear", types=(*_RANGES, "int32"),
        sets=BOTH)
def dequantize_linear(lo: Lowering, node: Node) -> Lazy | Tensor | No:
    """To float32, or rounded to half precision."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    asked = node.attrs.get("output_dtype")
    target = ElementType(asked).numpy.name if asked else lo.dtype(scale)
    if lo.dtype(scale) not in FLOATS or target not in FLOATS or (
            zero is not None and lo.dtype(x) == "int32" and one(lo, zero) != 0):
        return No("kernels dequantize eight or sixteen bits to float32 and half precision")

    def rounded(made: Lazy | None) -> Lazy | None:
        return made and Lazy(made.shape, made.tree.cast(target), made.operands)
    if node.attrs.get("block_size"):
        return _in_blocks(lo, node, target, lambda lazy, by, low: rounded(dequantized(lo, lazy, by, low)))
    if lo.dtype(x) in BYTES and (len(node.output.uses) > 1 or any(
            reader.op_type in _READS_BYTES for reader in node.output.uses)):
        lo.tensor(x)
    made = rounded(dequantized(lo, lo.lazy(x), scale, zero, node.attribute("axis")))
    return made or No("its scale or zero point does not fit")


def dequantized(lo: Lowering, lazy: Lazy, scale: Value | Tensor, zero: Value | Tensor | None, axis: int = 1
                ) -> Lazy | None:
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
