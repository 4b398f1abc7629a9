"""Rules by operator: what a node becomes, for each kind of machine that kernels are written for.

In: functions of a lowering and a node, where they are written. Out: a set for the CPU's kernels and one for
those of GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..ir import Node

Rule = Callable[[Any, Node], Any]
_Steps = TypeVar("_Steps", bound=Callable[..., Any])


class RuleSet(dict[tuple[str, str], Rule]):
    """Rules by domain and operator. `types`: those of the first input that a rule takes; all that kernels
    know where it is not listed. `steps`: functions of a lowering that append steps of this set's own kernels,
    by the names that rules of several sets call them by."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[tuple[str, str], tuple[str, ...]] = {}
        self.steps: dict[str, Callable[..., Any]] = {}


RULES, GPU_RULES = RuleSet(), RuleSet()
"""Those of the CPU, and those of GPUs."""

BOTH = (RULES, GPU_RULES)
"""For rules that write no kernel themselves: they make views, trees, and copies by the lowering's own
means."""


def lowers(*kinds: str, types: tuple[str, ...] | None = None, sets: Sequence[RuleSet] = (RULES,)
           ) -> Callable[[Rule], Rule]:
    """Register a rule for operators, named `Softmax` or `com.microsoft::Gelu`; `types`: which its first input
    may have. A rule gives a Tensor, a `Pending`, a tuple of them, or `No` where it leaves this node to numpy.
    """
    def register(rule: Rule) -> Rule:
        for kind in kinds:
            domain, _, op_type = kind.rpartition("::")
            for each in sets:
                each[domain, op_type] = rule
                if types is not None:
                    each.types[domain, op_type] = types
        return rule
    return register


def varied(write: _Steps) -> _Steps:
    """Declare that a function which appends steps, for rules that sets have in common, is the CPU's: another
    set may have one of that name, which is called for its lowerings."""
    @functools.wraps(write)
    def call(lo: Any, *args: Any, **named: Any) -> Any:
        return lo.rules.steps.get(write.__name__, write)(lo, *args, **named)
    return call  # type: ignore[return-value]


def writes(shared: Callable[..., Any], sets: Sequence[RuleSet]) -> Callable[[_Steps], _Steps]:
    """Register what sets call instead of `shared`, which is `varied`."""
    def register(write: _Steps) -> _Steps:
        for each in sets:
            each.steps[shared.__name__] = write
        return write
    return register
