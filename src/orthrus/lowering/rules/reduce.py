"""Reductions and the choice of the largest: which tree is folded, and the tree that closes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.kernels import reduce
from ...codegen.write.expr import BYTES, LLVM, Expr
from ...ir import No, Node, Value
from ...ops.define import normalized
from ...records import dataclass
from ..lower import Lazy, Lowering, Pending, lowers
from ..rule_sets import BOTH, RULES
from ..tensor import Tensor
from ..walk import Walked
from .rows import FLOATS, Reads, lying, reading

TYPES = tuple(LLVM)
FEW_ITEMS, LARGE, PIECES = 8, 1 << 17, 64
"""With so few items and so many elements a reduction is done in pieces first."""

_KINDS = {"ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}


@dataclass(eq=False)
class Folded:
    """One reduction: `kind` of `tree` over `tensors`, which all have the same shape, along `axes`."""

    kind: str
    tree: Expr
    tensors: list[Tensor]
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensors[0].shape

    @property
    def short(self) -> tuple[int, ...]:
        """The result's shape with 1 for each axis."""
        return tuple(1 if a in self.axes else d for a, d in enumerate(self.shape))

    @property
    def dtype(self) -> str:
        return "int64" if self.kind.startswith("arg") else self.tree.dtype

    def mapped(self, how: Any) -> list[Tensor]:
        return [how(t) for t in self.tensors]


def fold(lo: Lowering, what: Folded, out: Tensor, after: Expr | None, operands: Sequence[Tensor]) -> None:
    """Append the steps that write `out`, of the shape `what.short`: `after` over the reduction's value and
    over `operands`, which are of that shape too."""
    def walked(t: Tensor) -> tuple[int, ...]:
        return tuple(0 if a in what.axes else s for a, s in enumerate(t.strides))

    def planned(more: Sequence[Tensor]) -> reduce.ReduceWalk | None:
        return reduce.plan(lo.machine, what.shape, what.axes, [*(t.strides for t in what.tensors),
                                                                *map(walked, more)],
                           len(what.tensors), BYTES[what.tree.dtype])
    walk = planned([*operands, out])
    if walk is None:
        if planned([_lying_like(what, out)]) is None:
            whole = lo.new(what.shape, what.tree.dtype)
            lo.store(whole, what.tree, what.tensors)
            fold(lo, Folded(what.kind, Expr.leaf(0, whole.dtype), [whole], what.axes), out, after, operands)
            return
        plain = lo.new(what.short, what.dtype, _lying_like(what, out).strides)
        fold(lo, what, plain, None, [])
        lo.store(out, after or Expr.leaf(0, what.dtype), [plain, *operands])
        return
    if walk.items <= FEW_ITEMS and math.prod(what.shape) >= LARGE and not what.kind.startswith("arg"):
        _in_pieces(lo, what, out, after, operands)
        return
    tensors = [*what.tensors, *operands, out]
    kinds = [(t.dtype, u) for t, u in zip(tensors, walk.units, strict=True)]
    reads = len(what.tensors)
    spec = reduce.reduce_axes(form=walk.form, kind=what.kind, reads=tuple(kinds[:reads]), tree=what.tree,
                              operands=tuple(kinds[reads:-1]), out=out.dtype, after=after)
    met = [Walked(t, *walk.loops(i), t is out) for i, t in enumerate(tensors)]
    lo.step(spec, walk.cells(met), walk.items, walk.grain)


RULES.steps["fold"] = fold


def _lying_like(what: Folded, out: Tensor) -> Tensor:
    """A stand-in for a result that lies as what is read does."""
    first = what.tensors[0]
    return Tensor(what.dtype, what.short, lying(first.view(what.short, first.strides)), out.buffer)


def _in_pieces(lo: Lowering, what: Folded, out: Tensor, after: Expr | None, operands: Sequence[Tensor]
               ) -> None:
    """Fixed parts of the outermost long axis by themselves, then their results."""
    what = _one_axis_for_several(what)
    shape = what.shape
    axis = max(what.axes, key=lambda a: (min(shape[a], PIECES), abs(what.tensors[0].strides[a])))
    each = -(-shape[axis] // PIECES)
    count, rest = divmod(shape[axis], each)
    parts = lo.new((count + (rest > 0), *what.short), what.tree.dtype)
    split = tuple(each if a == axis else d for a, d in enumerate(shape))

    def pieces(t: Tensor) -> Tensor:
        return t.view((count, *split), (each * t.strides[axis], *t.strides))
    inner = tuple(a + 1 for a in what.axes)
    _whole(lo, Folded(what.kind, what.tree, what.mapped(pieces), inner), parts.slice(0, 0, count))
    if rest:
        left = what.mapped(lambda t: t.slice(axis, count * each, rest))
        _whole(lo, Folded(what.kind, what.tree, left, what.axes),
               parts.slice(0, count, 1).view(what.short, parts.strides[1:]))
    joined = Folded(what.kind, Expr.leaf(0, parts.dtype), [parts], (0, *inner))
    fold(lo, joined, _raised(out), after, [_raised(t) for t in operands])


def _one_axis_for_several(what: Folded) -> Folded:
    """The same with neighbouring axes that are folded, and lie in one run everywhere, as the last of them,
    the others being 1."""
    sizes, last = list(what.shape), len(what.shape) - 1
    for a in range(last - 1, -1, -1):
        if {a, last} <= set(what.axes) and all(
                sizes[a] == 1 or t.strides[a] == sizes[last] * t.strides[last] for t in what.tensors):
            sizes[a], sizes[last] = 1, sizes[a] * sizes[last]
        else:
            last = a
    return Folded(what.kind, what.tree, what.mapped(lambda t: t.view(sizes, t.strides)), what.axes)


def _whole(lo: Lowering, what: Folded, out: Tensor) -> None:
    fold(lo, what, out, None, [])


def _raised(t: Tensor) -> Tensor:
    return t.view((1, *t.shape), (0, *t.strides))


def pending(lo: Lowering, what: Folded, keepdims: bool, dtype: str, after: Expr | None = None,
            operands: Sequence[Tensor] = ()) -> Pending:
    """The reduction as a result that a following tree joins. `after`, over its value and `operands` (of the
    shape `what.short`, or broadcast to it), gives `dtype`."""
    closing = after or Expr.leaf(0, what.dtype).cast(dtype)
    own = [t.expand(what.short) for t in operands]
    wanted = _lying_like(what, what.tensors[0]).strides
    kept = [a for a in range(len(what.shape)) if keepdims or a not in what.axes]

    def full(t: Tensor) -> Tensor:
        strides = [0] * len(what.short)
        for a, s in zip(kept, t.strides, strict=True):
            strides[a] = s
        return t.view(what.short, strides)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, more: list[Tensor]) -> None:
        whole = closing if tree is None else tree.substitute(
            lambda leaf: closing if leaf.value == 0 else Expr.leaf(leaf.value + len(own), leaf.dtype))
        lo.rules.steps["fold"](lo, what, full(out), None if whole.op == "leaf" else whole,
                               [*own, *map(full, more)])
    return Pending(tuple(what.short[a] for a in kept), dtype, emit, tuple(wanted[a] for a in kept))


def _axes(lo: Lowering, node: Node, rank: int) -> tuple[int, ...] | No:
    attrs = node.attributes
    given: Any = attrs.get("axes")
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        given = lo.known(node.inputs[1])
        if given is None:
            return No("its axes are not known")
    if attrs.get("noop_with_empty_axes") and (given is None or not np.size(given)):
        return ()
    return normalized(given, rank)


def _read(lo: Lowering, x: Value, work: str) -> Reads:
    """`x` as numbers of type `work`."""
    if work == "float32":
        return reading(lo, x)
    t = lo.tensor(x)
    return Reads(Expr.leaf(0, t.dtype).cast(work), [t])


def _work(dtype: str) -> str:
    return "float32" if dtype in FLOATS else "uint8" if dtype == "bool" else dtype


def _count(lo: Lowering, what: Folded, dtype: str) -> Tensor:
    count = math.prod(what.shape[a] for a in what.axes)
    return lo.numbers([count], dtype)


@lowers("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
        "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", types=TYPES, sets=BOTH)
def reduction(lo: Lowering, node: Node) -> Pending | Lazy | No:
    """Along the axes of an attribute or an input."""
    x, kind = node.inputs[0], node.op_type
    assert x is not None
    shape = lo.shape(x)
    axes = _axes(lo, node, len(shape))
    if isinstance(axes, No):
        return axes
    if 0 in shape or not shape:
        return No("empty or a scalar")
    if not axes:
        plain = kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
        return lo.lazy(x) if plain else No("no axes")
    keepdims = bool(node.attributes["keepdims"])
    return _reduction(lo, x, kind, axes, keepdims)


def _reduction(lo: Lowering, x: Value, kind: str, axes: tuple[int, ...], keepdims: bool) -> Pending | No:
    dtype = lo.dtype(x)
    work = _work(dtype)
    real = work in ("float32", "float64")
    if kind == "ReduceMean" and not real:
        work = "uint64" if dtype.startswith("u") else "int64"
    if kind in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp") and not real:
        if lo.rules is not RULES or dtype == "bool":
            return No("of integers")
        work = "float64"
    reads = _read(lo, x, work)
    value = Expr.leaf(0, work)
    if kind == "ReduceLogSumExp":
        return _log_sum_exp(lo, reads, axes, keepdims, dtype)
    if kind == "ReduceL1":
        reads.tree = Expr("abs", (reads.tree,), work)
    elif kind in ("ReduceL2", "ReduceSumSquare"):
        reads.tree = Expr("mul", (reads.tree, reads.tree), work)
    what = Folded(_KINDS.get(kind, "sum"), reads.tree, reads.tensors, axes)
    if kind == "ReduceMean":
        count = _count(lo, what, work)
        after = Expr("div" if real else "quotient", (value, Expr.leaf(1, work)), work).cast(dtype)
        return pending(lo, what, keepdims, dtype, after, [count])
    if kind in ("ReduceL2", "ReduceLogSum"):
        after = Expr("sqrt" if kind == "ReduceL2" else "log", (value,), work).cast(dtype)
        return pending(lo, what, keepdims, dtype, after)
    return pending(lo, what, keepdims, dtype)


def _log_sum_exp(lo: Lowering, reads: Reads, axes: tuple[int, ...], keepdims: bool, dtype: str) -> Pending:
    """Of what lies below the largest, which is found first."""
    work = reads.tree.dtype
    what = Folded("max", reads.tree, reads.tensors, axes)
    most = lo.new(what.short, work, _lying_like(what, what.tensors[0]).strides)
    lo.rules.steps["fold"](lo, what, most, None, [])

    def top(leaf: Expr) -> Expr:
        finite = Expr("lt", (Expr("abs", (leaf,), work), Expr.const(math.inf, work)), "bool")
        return Expr("where", (finite, leaf, Expr.const(0.0, work)), work)
    below = Expr("sub", (reads.tree, top(Expr.leaf(len(reads.tensors), work))), work)
    total = Folded("sum", Expr("exp", (below,), work), [*reads.tensors, most.expand(what.shape)], axes)
    after = Expr("add", (Expr("log", (Expr.leaf(0, work),), work), top(Expr.leaf(1, work))), work).cast(dtype)
    return pending(lo, total, keepdims, dtype, after, [most])


@lowers("GlobalAveragePool", "GlobalLpPool", types=(*FLOATS, "float64"), sets=BOTH)
@lowers("GlobalMaxPool", types=TYPES, sets=BOTH)
def global_pool(lo: Lowering, node: Node) -> Pending | No:
    """The mean, the largest or a norm over the spatial axes."""
    (x,) = node.inputs
    assert x is not None
    shape, p = lo.shape(x), node.attributes.get("p")
    if len(shape) < 3 or 0 in shape:
        return No("no spatial axes, or empty")
    if p not in (None, 1, 2):
        return No("no generated kernel for this norm")
    kind = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}.get(
        node.op_type, f"ReduceL{p or 0:.0f}")
    return _reduction(lo, x, kind, tuple(range(2, len(shape))), True)


@lowers("ArgMax", "ArgMin", types=tuple(t for t in TYPES if t != "bool"), sets=BOTH)
def arg(lo: Lowering, node: Node) -> Pending | No:
    """Where the largest or smallest stands."""
    (x,) = node.inputs
    assert x is not None
    shape, attrs = lo.shape(x), node.attributes
    if 0 in shape or not shape or max(shape) >= 1 << 31:
        return No("empty, a scalar or too long")
    (axis,) = normalized([attrs["axis"]], len(shape))
    reads = _read(lo, x, _work(lo.dtype(x)))
    kind = ("arg max" if node.op_type == "ArgMax" else "arg min") + (
        " last" if attrs.get("select_last_index") else "")
    # places are of four bytes: numbers of as many stand in as many lanes
    tree = reads.tree if BYTES[reads.tree.dtype] >= 4 else reads.tree.cast("int32")
    return pending(lo, Folded(kind, tree, reads.tensors, (axis,)), bool(attrs["keepdims"]), "int64")
