"""Reductions over constant axes."""

from __future__ import annotations

from ....ir import Node
from ..binding import DST, REDUCTION, SRC
from ..lower import Lowering, Tensor, lowers
from ..objects import Attr, Primitive, strided
from .elementwise import attributes

REDUCTIONS = {"ReduceSum": ("sum", 0.0), "ReduceMean": ("mean", 0.0), "ReduceProd": ("mul", 0.0),
              "ReduceL1": ("norm_power_sum", 1.0), "ReduceL2": ("norm_sum", 2.0),
              "ReduceSumSquare": ("norm_power_sum", 2.0)}
"""oneDNN's algorithm, and its power p."""


@lowers(*REDUCTIONS)
def reduction(lo: Lowering, node: Node) -> Tensor:
    """Over the given axes, all where none are given."""
    attrs = attributes(node)
    x = lo.tensor(node.inputs[0])
    given = lo.known(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = attrs.get("axes") if given is None else given.reshape(-1).tolist()
    if not axes and attrs.get("noop_with_empty_axes"):
        return x
    rank = len(x.shape)
    gone = {int(a) % rank for a in axes} if axes else set(range(rank))
    kept = tuple(1 if i in gone else d for i, d in enumerate(x.shape))
    shape = kept if attrs["keepdims"] else tuple(d for i, d in enumerate(x.shape) if i not in gone)
    if kept == x.shape and node.op_type not in ("ReduceL1", "ReduceL2", "ReduceSumSquare"):
        return lo.reshaped(x, shape)
    name, power = REDUCTIONS[node.op_type]
    x = lo.plain(x)
    target = strided(lo.lib, kept, x.dtype)
    made = Primitive(lo.lib, "reduction", lo.lib.engine, REDUCTION[name], x.desc, target, power, 0.0,
                     Attr(lo.lib))
    out = lo.new(kept, target)
    lo.step(made, [(SRC, x), (DST, out)], [out])
    return lo.view(out, shape)
