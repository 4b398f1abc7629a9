"""How tensors lie over the index spaces that kernels walk: what `codegen.triton.epilogue` writes offsets of.

In: tensors of one shape, and groups of its axes, by which a kernel counts. Out: the kernel's parameter, and
its arguments in the order in which the kernel declares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...codegen.triton.epilogue import Closing, Reading, Walk
from ...codegen.write.expr import Expr
from ..tensor import Tensor, extent
from ..walk import Walked, merged

LONG = 1 << 31
"""Elements from which on an offset needs 64 bits."""

Groups = Sequence[Sequence[int]]


def walk(tensors: Sequence[Tensor], groups: Groups, written: int = 0) -> tuple[Walk, list[Walked], list[int]]:
    """How these tensors lie, the tensors, the first `written` of which are, and sizes and strides. Axes of
    one group count from the outermost to the innermost; negative ones from the last."""
    shape = tensors[0].shape
    sizes, strides, kinds = list[int](), list[list[int]](), list[tuple[str, ...]]()
    counts, steps = list[int](), list[int]()
    for group in groups:
        axes = merged([shape[a] for a in group], [[t.strides[a] for a in group] for t in tensors])
        kinds.append(tuple("".join(str(s) if s in (0, 1) else "s" for s in met) for _, met in axes))
        counts += [d for d, _ in axes[1:]]
        steps += [s for _, met in axes for s in met if s not in (0, 1)]
        sizes += [d for d, _ in axes]
        strides += [met for _, met in axes]
    wide = any(extent(t.shape, [abs(s) for s in t.strides]) >= LONG for t in tensors)
    met = [Walked(t, sizes, [s[i] for s in strides], i < written) for i, t in enumerate(tensors)]
    return Walk(tuple(kinds), wide), met, [*counts, *steps]


def closed(out: Tensor, tree: Expr | None, operands: Sequence[Tensor], dtype: str, groups: Groups,
           values: int = 1) -> tuple[Closing, list[Any]]:
    """The end of a kernel whose value, or each of whose `values`, has `dtype`: `tree`, or none, over these
    and `operands` goes to `out`. All have the shape of `out`."""
    form, tensors, numbers = walk([out, *operands], groups, 1)
    whole = tree if tree is not None else Expr.leaf(0, dtype)
    return Closing(form, whole.cast(out.dtype), tuple(t.dtype for t in operands), values), [
        *tensors, *numbers]


def read(tree: Expr, tensors: Sequence[Tensor], groups: Groups) -> tuple[Reading, list[Any]]:
    """What a kernel reads: `tree` over `tensors`, which have one shape."""
    form, met, numbers = walk(tensors, groups)
    return Reading(form, tree, tuple(t.dtype for t in tensors)), [*met, *numbers]
