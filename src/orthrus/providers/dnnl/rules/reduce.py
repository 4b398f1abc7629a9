"""Reductions over constant axes.

Sums are matrix products with ones, which oneDNN has fast code for whatever the axes; other reductions run
over the dimensions that are last in memory.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import Node
from ..binding import DST, REDUCTION, SRC, WEIGHTS
from ..lower import Lowering
from ..objects import Attr, Eltwise, PostOp, Primitive, strided
from ..step import lowers
from ..tensor import Tensor
from .elementwise import applied

REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceProd": "mul", "ReduceL1": "sum",
              "ReduceL2": "sum", "ReduceSumSquare": "sum"}
"""oneDNN's algorithm."""

_BEFORE = {"ReduceL1": Eltwise("abs"), "ReduceL2": Eltwise("square"), "ReduceSumSquare": Eltwise("square")}
_BEHIND = {"ReduceL2": Eltwise("sqrt")}
"""What is done to elements before, and to results behind it."""

_LONGEST = 4096
"""Elements that are added up one by one; longer rows are summed in lanes."""


@lowers(*REDUCTIONS)
def reduction(lo: Lowering, node: Node) -> Tensor:
    """Over the given axes, all where none are given."""
    attrs, kind = node.attributes, node.op_type
    x = lo.tensor(node.inputs[0])
    given = lo.known(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = attrs.get("axes") if given is None else given.reshape(-1).tolist()
    if not axes and attrs.get("noop_with_empty_axes"):
        return x
    rank = len(x.shape)
    gone = {int(a) % rank for a in axes} if axes else set(range(rank))
    kept = tuple(1 if i in gone else d for i, d in enumerate(x.shape))
    shape = kept if attrs["keepdims"] else tuple(d for i, d in enumerate(x.shape) if i not in gone)
    if kept == x.shape and kind not in _BEFORE:
        return lo.reshaped(x, shape)
    x, order = lo.as_it_lies(x)
    if kind in _BEFORE:
        x = applied(lo, _BEFORE[kind], x)
    outer, row, inside = _split(x.shape, [i in gone for i in order])
    if not row or (inside > 1 and (REDUCTIONS[kind] == "mul" or row > _LONGEST)):
        last = sorted(range(rank), key=lambda i: order[i] in gone)
        x, order = lo.plain(lo.permuted(x, last)), [order[i] for i in last]
        outer, row, inside = _split(x.shape, [i in gone for i in order])
    made = _reduced(lo, REDUCTIONS[kind], lo.reshaped(x, (outer, row, inside)),
                    [_BEHIND[kind]] if kind in _BEHIND else [])
    made = lo.view(made, [kept[i] for i in order])
    return lo.regrouped(lo.permuted(made, [order.index(i) for i in range(rank)]), shape)


def _split(shape: tuple[int, ...], gone: list[bool]) -> tuple[int, int, int]:
    """Elements before, along and behind the neighbouring dimensions that are gone; no elements along them
    where they are no neighbours."""
    at = [i for i, (d, g) in enumerate(zip(shape, gone, strict=True)) if g and d > 1]
    first, last = (at[0], at[-1] + 1) if at else (len(shape), len(shape))
    if any(d > 1 and not g for d, g in zip(shape[first:last], gone[first:last], strict=True)):
        return 0, 0, 0
    return math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:])


def _reduced(lo: Lowering, name: str, x: Tensor, behind: list[PostOp]) -> Tensor:
    """[A, R, B] to [A, 1, B], B being one where the rows are long or multiplied."""
    outer, row, inside = x.shape
    target = strided(lo.lib, (outer, 1, inside), x.dtype)
    if name == "mul" or row > _LONGEST or x.size == row:
        x, target = lo.view(x, (outer, row)), strided(lo.lib, (outer, 1), x.dtype)
        made = Primitive(lo.lib, "reduction", lo.lib.engine, REDUCTION[name], x.desc, target, 0.0, 0.0,
                         Attr(lo.lib, behind))
        out = lo.new(target.shape, target)
        lo.step(made, [(SRC, x), (DST, out)], [out])
        return out
    ones = lo.constant(("ones", row), lambda: np.ones((1, 1, row), np.float32))
    a, b = (ones, x) if inside > 1 else (lo.view(x, (1, outer, row)), lo.view(ones, (1, row, 1)))
    if name == "mean":
        behind = [Eltwise("linear", 1 / row), *behind]
    desc = target if inside > 1 else strided(lo.lib, (1, outer, 1), x.dtype)
    made = Primitive(lo.lib, "matmul", lo.lib.engine, a.desc, b.desc, None, desc, Attr(lo.lib, behind))
    out = lo.new(desc.shape, desc)
    lo.step(made, [(SRC, a), (WEIGHTS, b), (DST, out)], [out])
    return out
