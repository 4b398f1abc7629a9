"""Rules by operator: what a node becomes, for each kind of machine that kernels are written for.

In: functions of a lowering and a node, where they are written. Out: a set for the CPU's kernels and one for
those of GPUs. Rules of this package are imported when somebody first asks for one of theirs (`rules.index`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, TypeVar

from ..index import Index, Key
from ..ir import No, Node
from .rules.index import RULES_BY_MODULE

Rule = Callable[[Any, Node], Any]
_Steps = TypeVar("_Steps", bound=Callable[..., Any])


INDEX = Index(f"{__package__}.rules", RULES_BY_MODULE)
STEPS, ON_BYTES = "steps", "on_bytes"
"""Stand for domains in the index."""


class _Named(dict[str, Callable[..., Any]]):
    """Functions by name, imported when they are asked for; `kind` is their domain in the index."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __missing__(self, name: str) -> Callable[..., Any]:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        INDEX.read((self.kind, name))
        return super().get(name, default)


class RuleSet(MutableMapping[Key, Rule]):
    """Rules by domain and operator. `types`: those of the first input that a rule takes; all that kernels
    know where it is not listed. `steps`: functions of a lowering that append steps of this set's own kernels,
    by the names that rules of several sets call them by. `on_bytes`: by operators of ONNX, rules that come
    before theirs where an input was dequantized."""

    def __init__(self) -> None:
        self._rules: dict[Key, Rule] = {}
        self.types: dict[Key, tuple[str, ...]] = {}
        self.steps, self.on_bytes = _Named(STEPS), _Named(ON_BYTES)

    def __getitem__(self, key: Key) -> Rule:
        INDEX.read(key)
        return self._rules[key]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, tuple) and key in INDEX.keys:
            INDEX.read(key)
        return key in self._rules

    def __setitem__(self, key: Key, rule: Rule) -> None:
        self._rules[key] = rule

    def __delitem__(self, key: Key) -> None:
        del self._rules[key]

    def __iter__(self) -> Iterator[Key]:
        INDEX.read_all()
        return iter(self._rules)

    def __len__(self) -> int:
        INDEX.read_all()
        return len(self._rules)

    def of(self, node: Node) -> Rule | No | None:
        """The rule for `node`, why it is not for the type of that, or None where there is none."""
        key = node.domain, node.op_type
        rule, types = self.get(key), self.types.get(key)
        first = next((v for v in node.inputs if v is not None), None)
        if types is None or first is None or first.elem.numpy.name in types:
            return rule
        return No(f"no generated kernel of {node.kind} for {first.elem.numpy.name}")

    def written(self, key: Key) -> Rule:
        """A rule that is there, for a module that has imported it."""
        return self._rules[key]


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
