"""The steps that write elements on the CPU: a tree over operands into a result, or a copy.

In: tensors and an expression tree. Out: one step appended to the lowering.
"""

from __future__ import annotations

import math
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
    if tree.op == "leaf":
        if pair := _widened(lo, out, spread[tree.value]):
            out, spread = pair[0], [pair[1]]
            tree = Expr.leaf(0, out.dtype)
        if _turned(lo, out, spread[tree.value]):
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


def _widened(lo: Lowering, target: Tensor, source: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both of a copy of short runs of elements as tensors of wider integers; None of others, and where
    elements have to lie at multiples of their size."""
    lying = loops.nest(target.shape, [target.strides, source.strides])
    run = lying.sizes[-1] if len(lying.sizes) > 1 else 1
    if type(run) is not int or not 1 < run <= _SHORT // source.itemsize or (
            lo.machine.arch.startswith("riscv") or any(steps[-1] != 1 for steps in lying.strides)):
        return None
    numbers = [run, target.offset, source.offset, *(n for steps in lying.strides for n in steps[:-1])]
    if not all(type(n) is int for n in numbers):
        return None
    times = math.gcd(*numbers, 8 // source.itemsize)
    if times == 1:
        return None
    wide, sizes = f"int{8 * times * source.itemsize}", (*lying.sizes[:-1], run // times)

    def widened(t: Tensor, steps: tuple[int, ...]) -> Tensor:
        return Tensor(wide, sizes, (*(s // times for s in steps[:-1]), 1), t.buffer, t.offset // times)
    return widened(target, lying.strides[0]), widened(source, lying.strides[1])


_SHORT = 16
"""Bytes of a run up to which its elements are moved several at a time."""


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
