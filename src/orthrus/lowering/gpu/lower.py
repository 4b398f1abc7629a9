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
from ..lower import GPU_RULES, Lazy, Lowering, Out, Pending, RuleSet, Source
from ..lower import lowers as _lowers
from ..rule_sets import INDEX
from ..rule_sets import writes as _writes
from ..tensor import Tensor

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
    that share sums count each other, by size and turn."""

    rules: ClassVar[RuleSet] = GPU_RULES
    unfolded: ClassVar[tuple[str, ...]] = ("bool",)

    def __init__(self, nodes: Sequence[Node], inputs: Sequence[tuple[Value, tuple[int, ...], str]],
                 outputs: Sequence[Value], target: Target, constants: dict[Hashable, Tensor],
                 reference: Callable[[Node], Callable[..., Any]], settings: dict[str, Any] | None = None,
                 given: Mapping[Value, np.ndarray] | None = None, tuner: Tuner | None = None) -> None:
        self.target, self.settings, self.tuner = target, settings or {}, tuner
        self.arrivals = dict[tuple[int, int], Tensor]()
        super().__init__(nodes, inputs, outputs, None, constants, reference, given=given)

    def store(self, out: Tensor, tree: Expr, operands: list[Tensor]) -> None:
        from .elements import store

        store(self, out, tree, operands)

    def accepts(self, pending: Pending, out: Tensor) -> Callable[[Tensor], bool]:
        return pending.accepts or (lambda t: True)

    def fits(self, pending: Pending, out: Tensor) -> bool:
        return pending.accepts is None or pending.accepts(out)
