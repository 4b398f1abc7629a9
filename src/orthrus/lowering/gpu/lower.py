"""A part of a graph, for concrete shapes, to steps of a GPU's kernels.

In: nodes and the shapes of their inputs. Out: steps in order. A tensor may have any strides wherever a kernel
reads or writes: every kernel walks results and operands by strides of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...codegen.write.expr import Expr
from ...ir import Node, Value
from ..lower import GPU_RULES, Lazy, Lowering, Out, Pending, RuleSet, Source, read_by
from ..lower import lowers as _lowers
from ..rule_sets import INDEX
from ..rule_sets import writes as _writes
from ..tensor import Tensor, c_strides

if TYPE_CHECKING:
    from ...codegen.triton.targets import Target
    from .tuning import Tuner

__all__ = ["GpuLowering", "Lazy", "Out", "Pending", "Source", "lowers", "writes"]

INDEX.read_all()
lowers = functools.partial(_lowers, sets=(GPU_RULES,))
"""Registers a rule for GPUs; see `lowering.rule_sets`."""

writes = functools.partial(_writes, sets=(GPU_RULES,))
"""Registers what GPUs call instead of a `varied` function."""


class GpuLowering(Lowering):
    """One walk over a part's nodes for a `target`. `settings`: what the provider's options say that rules go
    by, by name; `tuner`: what knows tiles better than the model of their costs. `arrivals`: where programs
    that share sums count each other, by size and turn; `reading`: see `readers`."""

    rules: ClassVar[RuleSet] = GPU_RULES
    unfolded: ClassVar[tuple[str, ...]] = ("bool",)

    def __init__(self, nodes: Sequence[Node], inputs: Sequence[tuple[Value, tuple[int, ...], str]],
                 outputs: Sequence[Value], target: Target, constants: dict[Hashable, Tensor],
                 reference: Callable[[Node], Callable[..., Any]], settings: dict[str, Any] | None = None,
                 given: Mapping[Value, np.ndarray] | None = None, tuner: Tuner | None = None) -> None:
        self.target, self.settings, self.tuner = target, settings or {}, tuner
        self.arrivals = dict[tuple[int, int], Tensor]()
        self.reading = dict[Value, list[Node | None]]()
        super().__init__(nodes, inputs, outputs, None, constants, reference, given=given)

    def reads(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> None:
        super().reads(nodes, outputs)
        for node in nodes:
            for value in read_by(node):
                self.reading.setdefault(value, []).append(node)
        for value in outputs:
            self.reading.setdefault(value, []).append(None)

    def readers(self, value: Value) -> list[Node | None]:
        """The nodes that read `value`, None for whoever takes it as a result."""
        return self.reading.get(value, [])

    def store(self, out: Tensor, tree: Expr, operands: list[Tensor]) -> None:
        from .elements import store

        store(self, out, tree, operands)

    def accepts(self, pending: Pending, out: Tensor) -> Callable[[Tensor], bool]:
        return pending.accepts or (lambda t: True)

    def unwritten(self, value: Value | None, shape: tuple[int, ...]) -> Lazy | None:
        """Where it has other dimensions of 1 alone, and nobody else reads it."""
        found = self.env.get(value) if value is not None and self.left[value] <= 1 else None
        lazy = self._resolved(found) if isinstance(found, Lazy) else None
        source = None if lazy is None else lazy.source
        if lazy is None or source is None or len(lazy.sources) > 1:
            return None
        own = source.pending
        plain = own.accepts is None and (own.strides is None or own.strides == c_strides(own.shape))
        if not plain or own.shape != lazy.shape or (
                [d for d in lazy.shape if d != 1] != [d for d in shape if d != 1]):
            return None

        def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
            own.emit(lo, _of_shape(out, own.shape), tree, [_of_shape(t, own.shape) for t in operands])
        made = Source(Pending(shape, own.dtype, emit, numbers=own.numbers))
        return Lazy(shape, lazy.tree, [
            made if isinstance(o, Source) else _of_shape(o.expand(own.shape), shape) for o in lazy.operands])

    def fits(self, pending: Pending, out: Tensor) -> bool:
        return pending.accepts is None or pending.accepts(out)


def _of_shape(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`t` under a shape that has other dimensions of 1 alone."""
    strides = iter([s for d, s in zip(t.shape, t.strides, strict=True) if d != 1])
    return t.view(shape, [next(strides) if d != 1 else 0 for d in shape])
