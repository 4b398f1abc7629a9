"""Quantizing by a tensor's own range: two reductions, and a tree over what they give."""

from __future__ import annotations

from ....codegen.write.expr import Expr
from ....ir import No, Node
from ...lower import Lazy
from ...rules.reduce import Folded
from ...rules.rows import F
from ...tensor import Tensor
from ..lower import GpuLowering, lowers


@lowers("DynamicQuantizeLinear", types=(F,))
def dynamic_quantize_linear(lo: GpuLowering, node: Node) -> tuple[Lazy, Tensor, Tensor] | No:
    """The codes, the scale and the zero point."""
    t = lo.tensor(node.inputs[0])
    if not t.size or not t.rank:
        return No("empty or a scalar")
    least, most = (_bound(lo, t, kind) for kind in ("min", "max"))
    leaf, zero = Expr.leaf(0, F), Expr.const(0.0, F)
    by = Expr("div", (Expr("sub", (Expr.leaf(1, F), leaf), F), Expr.const(255.0, F)), F)
    scale, low = lo.new((), F), lo.new((), "uint8")
    none = Expr("eq", (by, zero), "bool")
    lo.store(scale, Expr("where", (none, Expr.const(1.0, F), by), F), [least, most])
    below = Expr("div", (Expr("neg", (leaf,), F), Expr.leaf(1, F)), F)
    ends = [Expr.const(end, F) for end in (0.0, 255.0)]
    lo.store(low, Expr("quantize", (below, *ends, Expr.const(0, "int32")), "uint8"), [least, scale])
    whole = Expr.leaf(2, "uint8").cast("int32")
    held = [Expr("sub", (end, whole.cast(F)), F) for end in ends]
    code = Expr("quantize", (Expr("div", (leaf, Expr.leaf(1, F)), F), *held, whole), "uint8")
    return Lazy(t.shape, code, [t, scale, low]), scale, low


def _bound(lo: GpuLowering, t: Tensor, kind: str) -> Tensor:
    """The least or the greatest element and 0."""
    what = Folded(kind, Expr.leaf(0, F), [t], tuple(range(t.rank)))
    out = lo.new(what.short, F)
    extreme = Expr("minimum" if kind == "min" else "maximum", (Expr.leaf(0, F), Expr.const(0.0, F)), F)
    lo.fold(what, out, extreme, [])
    return out.view((), ())
