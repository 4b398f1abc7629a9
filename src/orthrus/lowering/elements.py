"""The steps that write elements on the CPU: a tree over operands into a result, or a copy.

In: tensors and an expression tree. Out: one step appended to the lowering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..codegen.kernels import loops, transpose
from ..codegen.write.expr import Expr, ordered
from .numbers import with_numbers
from .tensor import Tensor
from .walk import Walked, order_like

if TYPE_CHECKING:
    from .lower import Lowering

_SMALL = 1024
"""Elements below which an operand that lies across the result is read where it is."""


def store(lo: Lowering, out: Tensor, tree: Expr, operands: list[Tensor]) -> None:
    """Write `tree` over `operands`, broadcast to the result's shape, into `out`."""
    spread = [t.expand(out.shape) for t in operands]
    if tree.args:
        tree = with_numbers(lo, ordered(tree), out.shape, spread, 0)
    if tree.op == "leaf" and _turned(lo, out, spread[tree.value]):
        return
    made = loops.nest(out.shape, [out.strides, *(t.strides for t in spread)])
    if tree.op != "leaf" and out.size > _SMALL:
        across = [kind == loops.STRIDED and 0 not in t.strides
                  for kind, t in zip(made.kinds[1:], spread, strict=True)]
        if any(across) and made.kinds[0] == loops.CONTIGUOUS:
            spread = [lo.copied(t, order_like(t, out)) if far else t
                      for t, far in zip(spread, across, strict=True)]
            made = loops.nest(out.shape, [out.strides, *(t.strides for t in spread)])
    spec, cells, items, grain = loops.elementwise(made, tree, [t.dtype for t in spread])
    walked = [Walked(t, made.sizes, strides, t is out)
              for t, strides in zip((out, *spread), made.strides, strict=True)]
    lo.step(spec, [*walked, *cells], items, grain)


def _turned(lo: Lowering, target: Tensor, source: Tensor) -> bool:
    """Whether a copy of a source that lies along another axis has been appended."""
    lying = loops.nest(target.shape, [target.strides, source.strides])
    made = transpose.plan(lo.machine, lying, source.itemsize)
    if made is None:
        return False
    spec, cells, items, grain = made
    to, what = (Walked(t, lying.sizes, strides, t is target)
                for t, strides in zip((target, source), lying.strides, strict=True))
    lo.step(spec, [to, what, *cells], items, grain)
    return True
