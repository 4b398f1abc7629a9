"""Patterns: a piece of graph with variables, and a function that builds what replaces it.

    @rule(lambda op, x: op.Mul(x, op.Sigmoid(x)))
    def fuse_swish(op, x):
        return op.Swish(x)

The parameters after `op` are the pattern's variables; one with the default None may stand for an absent
input. A variable in an input's place binds the Value, in an attribute's place the attribute. Numbers match
constants of one element within rounding; a last `...` stands for whatever further inputs there are. The
function returns a Value, a tuple of them for the root's outputs, a dict from old values to new ones,
`No(reason)`, or None where the pattern was only a first look and there is nothing to say. Operators that
commute match either way round. What the pattern names but no variable binds must be read by nothing else,
unless the rule says `shared=True` or the pattern keeps it with `op.keep`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from ..ir import Node, Value
from ..records import cached_property, dataclass

Kind = tuple[str, str]
Root = tuple[Kind, frozenset[Kind]]
"""An operator, and those of which each must have made one of its inputs."""
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean",
                         "BitwiseAnd", "BitwiseOr", "BitwiseXor"})


@dataclass(frozen=True, eq=False)
class Variable:
    name: str
    optional: bool = False
    constant: bool = False


@dataclass(frozen=True, eq=False)
class Apply:
    """An operator applied; `keep` names the variable that binds its result, which others may then read
    too."""

    kind: Kind
    inputs: tuple[Any, ...]
    attrs: dict[str, Any]
    output: int = 0
    keep: str = ""

    def __getitem__(self, output: int) -> Apply:
        return Apply(self.kind, self.inputs, self.attrs, output, self.keep)


@dataclass(frozen=True, eq=False)
class Either:
    options: tuple[Any, ...]


class _Patterns:
    """`op` on the left side of a rule."""

    def __getattr__(self, name: str) -> Callable[..., Apply]:
        return lambda *inputs, **attrs: Apply(("", name), inputs, attrs)

    def __call__(self, kind: str) -> Callable[..., Apply]:
        """`op("com.microsoft::Gelu")(x)`"""
        domain, _, name = kind.rpartition("::")
        return lambda *inputs, **attrs: Apply((domain, name), inputs, attrs)

    @staticmethod
    def either(*options: Any) -> Either:
        return Either(options)

    @staticmethod
    def constant(x: Variable) -> Variable:
        return Variable(x.name, constant=True)

    @staticmethod
    def keep(pattern: Apply, x: Variable) -> Apply:
        return Apply(pattern.kind, pattern.inputs, pattern.attrs, pattern.output, x.name)


@dataclass(frozen=True, eq=False)
class Template:
    """One pattern of a rule. `needs`: the operators of which each must have made one of the root's inputs."""

    root: Apply
    needs: frozenset[Kind]


class Rule:
    """Patterns and the function that builds their replacement."""

    def __init__(self, name: str, templates: tuple[Template, ...], build: Callable[..., Any],
                 shared: bool = False, parameters: tuple[str, ...] = ()) -> None:
        self.name, self.templates, self.build = name, templates, build
        self.shared, self.parameters = shared, parameters

    def __repr__(self) -> str:
        return f"<rule {self.name}>"

    def roots(self) -> Iterator[Root]:
        """What each template's root is, and what it needs."""
        return ((t.root.kind, t.needs) for t in self.templates)


class Listed(Rule):
    """A rule of a module that is imported when a node could be its root. `text`: as `listed` has it."""

    def __init__(self, name: str, module: str, text: str) -> None:
        self.name, self._module, self._text = name, module, text

    @cached_property
    def rule(self) -> Rule:
        """The rule itself."""
        found: Rule = getattr(import_module(self._module), self.name)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.rule, name)

    def roots(self) -> Iterator[Root]:
        for word in self._text.split():
            kinds, _, needs = word.partition("<")
            needed = frozenset(map(_kind, needs.split(",") if needs else ()))
            yield from ((_kind(each), needed) for each in kinds.split("|"))


def listed(rule: Rule) -> str:
    """The roots of a rule's templates, in order: operators, those of one row of templates with `|` between,
    and behind `<` what they need."""
    rows: list[tuple[list[str], str]] = []
    for kind, needed in rule.roots():
        needs = ",".join(sorted("::".join(each).removeprefix("::") for each in needed))
        if not rows or rows[-1][1] != needs:
            rows.append(([], needs))
        rows[-1][0].append("::".join(kind).removeprefix("::"))
    return " ".join("|".join(kinds) + ("<" + needs if needs else "") for kinds, needs in rows)


def _kind(text: str) -> Kind:
    domain, _, name = text.rpartition("::")
    return domain, name


def templates(*patterns: Callable[..., Any]) -> tuple[Template, ...]:
    """What patterns written as functions say; each may be a list of alternatives."""
    found: list[Template] = []
    for pattern in patterns:
        names, optional = _parameters(pattern)
        made = pattern(_Patterns(), *(Variable(name, name in optional) for name in names))
        for root in made if isinstance(made, list) else [made]:
            assert isinstance(root, Apply), "the root of a pattern is an operator"
            found.append(Template(root, frozenset(p.kind for p in root.inputs if isinstance(p, Apply))))
    return tuple(found)


def rule(*patterns: Callable[..., Any], shared: bool = False) -> Callable[[Callable[..., Any]], Rule]:
    """Make a rule of one or more patterns and the function below."""
    wanted = templates(*patterns)

    def decorate(build: Callable[..., Any]) -> Rule:
        return Rule(build.__name__, wanted, build, shared, _parameters(build)[0])
    return decorate


def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a function's parameters but the first, and of those that have a default."""
    code = function.__code__
    names, count = code.co_varnames[:code.co_argcount], len(function.__defaults__ or ())
    return names[1:], names[len(names) - count:]


class Match:
    """What a pattern found: the values and attributes of its variables, and the nodes it covers."""

    __slots__ = ("bound", "made", "own", "_trail")

    def __init__(self, own: Container[Node]) -> None:
        self.bound: dict[str, Any] = {}
        self.made: dict[Apply, Node] = {}
        self.own = own
        self._trail: list[Any] = []

    @property
    def nodes(self) -> set[Node]:
        return set(self.made.values())

    def _bind(self, name: str, value: Any) -> bool:
        if name in self.bound:
            return _same(self.bound[name], value)
        self.bound[name] = value
        self._trail.append(name)
        return True

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            key = self._trail.pop()
            del (self.bound if isinstance(key, str) else self.made)[key]


def find(template: Template, node: Node, own: Container[Node], shared: bool) -> Match | None:
    """Match `template` with its root at `node`; `own` holds the nodes of the graph, which a match does not
    leave."""
    match = Match(own)
    if _solve(_enter(template.root, node, match), match, shared, node):
        return match
    return None


Goals = Any
_FAIL: Any = object()


def _enter(pattern: Apply, node: Node, match: Match, goals: Goals = None) -> Goals:
    """The goals left once `node` is taken for `pattern`, or _FAIL; a pair of goal lists where either order
    may fit."""
    match.made[pattern] = node
    match._trail.append(pattern)
    for name, wanted in pattern.attrs.items():
        value = node.attribute(name)
        if isinstance(wanted, Variable):
            if not match._bind(wanted.name, value):
                return _FAIL
        elif not _equal(wanted, value):
            return _FAIL
    if pattern.keep and not match._bind(pattern.keep, node.outputs[pattern.output]):
        return _FAIL
    wanted, given = pattern.inputs, node.inputs
    if wanted and wanted[-1] is ...:
        wanted = wanted[:-1]
        given = given[:len(wanted)]
    if len(given) > len(wanted) and any(v is not None for v in given[len(wanted):]):
        return _FAIL
    pairs = [(p, given[i] if i < len(given) else None) for i, p in enumerate(wanted)]
    if len(pairs) == 2 and len(given) == 2 and pattern.kind[1] in COMMUTATIVE and not pattern.kind[0]:
        (p, a), (q, b) = pairs
        straight = _may(p, a) and _may(q, b)
        crossed = _may(p, b) and _may(q, a) and a is not b
        if straight and crossed:
            return _Choice(((p, a), ((q, b), goals)), ((p, b), ((q, a), goals)))
        if not straight and not crossed:
            return _FAIL
        if crossed:
            pairs = [(p, b), (q, a)]
    for pair in reversed(pairs):
        goals = (pair, goals)
    return goals


class _Choice(tuple[Any, ...]):
    """Goal lists of which one must be solved."""

    __slots__ = ()

    def __new__(cls, *options: Goals) -> _Choice:
        return super().__new__(cls, options)


def _solve(goals: Goals, match: Match, shared: bool, root: Node) -> bool:
    while True:
        if goals is _FAIL:
            return False
        if isinstance(goals, _Choice):
            for option in goals:
                mark = len(match._trail)
                if _solve(option, match, shared, root):
                    return True
                match._undo(mark)
            return False
        if goals is None:
            return shared or _private(match, root)
        (pattern, value), goals = goals
        if isinstance(pattern, Variable):
            if value is None and not pattern.optional:
                return False
            if pattern.constant and (value is None or value.const is None):
                return False
            if not match._bind(pattern.name, value):
                return False
        elif isinstance(pattern, Apply):
            node = value.node if value is not None else None
            if node is None or (node.domain, node.op_type) != pattern.kind or node not in match.own:
                return False
            if pattern.output >= len(node.outputs) or node.outputs[pattern.output] is not value:
                return False
            known = match.made.get(pattern)
            if known is not None:
                if known is not node:
                    return False
                continue
            goals = _enter(pattern, node, match, goals)
        elif isinstance(pattern, Either):
            rest = goals
            goals = _Choice(*(((option, value), rest) for option in pattern.options if _may(option, value)))
        elif pattern is None:
            if value is not None:
                return False
        elif not _is_number(value, pattern) or (
                value.const.ndim > 1 and getattr(root.outputs[0], "shape", None) is None):
            return False


def _may(pattern: Any, value: Value | None) -> bool:
    """A cheap look at whether `pattern` can fit `value` at all."""
    if isinstance(pattern, Apply):
        node = value.node if value is not None else None
        return node is not None and node.op_type == pattern.kind[1] and node.domain == pattern.kind[0]
    if isinstance(pattern, Variable):
        return value is not None and (not pattern.constant or value.const is not None)
    if isinstance(pattern, int | float):
        return _is_number(value, pattern)
    return True


def _private(match: Match, root: Node) -> bool:
    nodes = match.nodes
    kept = {match.bound[p.keep] for p in match.made if p.keep}
    for node in nodes:
        if node is root:
            continue
        for value in node.outputs:
            if value is not None and value not in kept and (value.graph_outputs or
                                                           any(user not in nodes for user in value.uses)):
                return False
    return True


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Value) or isinstance(b, Value):
        if not isinstance(a, Value) or not isinstance(b, Value) or a.const is None or b.const is None:
            return False
        x, y = a.const, b.const
        return isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.dtype == y.dtype and \
            x.shape == y.shape and x.size <= 64 and bool(np.all(x == y))
    return bool(_equal(a, b))


def _equal(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, float) and isinstance(value, float | int):
        return bool(np.float32(wanted) == np.float32(value))
    if isinstance(wanted, list | tuple):
        return isinstance(value, list | tuple) and list(value) == list(wanted)
    return bool(value == wanted)


def number(value: Value | None) -> float | None:
    """The one element of a constant, as a Python number, else None."""
    if value is None or not isinstance(value.const, np.ndarray) or value.const.size != 1:
        return None
    if value.const.dtype.kind not in "iufbV" or value.const.dtype.names:
        return None
    try:
        return value.const.reshape(()).astype(np.float64).item() if value.const.dtype.kind not in "iu" \
            else int(value.const.reshape(()))
    except (TypeError, ValueError):
        return None


def _is_number(value: Value | None, wanted: float) -> bool:
    found = number(value)
    if found is None or value is None:
        return False
    return close(found, wanted, value.const.dtype)


def close(found: float, wanted: float, dtype: Any) -> bool:
    """Whether `found`, a number of type `dtype`, is `wanted` up to that type's rounding: to nearest in the
    narrow types, and as few operations leave it in the others."""
    if found == wanted:
        return True
    dtype = np.dtype(dtype)
    if dtype.kind in "iub":
        return False
    if dtype.kind == "f":
        eps = float(np.finfo(dtype).eps)
    else:
        import ml_dtypes

        eps = float(ml_dtypes.finfo(dtype).eps)
    tolerance = (0.55 if dtype.itemsize < 4 else 8) * eps
    return abs(found - wanted) <= tolerance * abs(wanted)


Table = dict[Kind, list[tuple[Rule, frozenset[Kind], int]]]
"""By the operator at their root: templates, as a rule, what they need and which of the rule's they are."""


@functools.lru_cache(maxsize=64)
def index(rules: tuple[Rule, ...]) -> Table:
    """The templates by the operator at their root, in the order of the rules."""
    table: Table = {}
    for it in rules:
        for at, (kind, needs) in enumerate(it.roots()):
            table.setdefault(kind, []).append((it, needs, at))
    return table
