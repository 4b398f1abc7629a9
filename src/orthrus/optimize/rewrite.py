"""Changing a graph: the builder of replacements, and the bookkeeping every pass shares.

A `Work` is one pass over one graph. It keeps uses, types, output names and topological order right, counts
rewrites against ORTHRUS_STOP, and collects what was declined. Nothing here walks deeper than one graph.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from ..ir import ElementType, Graph, No, Node, TensorType, Type, Value, type_of
from ..limits import Limits
from ..ops import define, infer, schema
from ..records import dataclass
from . import pattern as patterns
from .pattern import Match, Rule

_DECLINES = 20
_REWRITES_IN_PLACE = 16
_CYCLE_SEARCH = 512
KEPT_BYTES = 1 << 16
"""Bytes from which on a constant is worth letting go of."""


@dataclass
class Entry:
    """One line of the journal: what a pass did. `declined` holds up to 20 distinct reasons, each with its
    node; `grown` is by how many bytes the constants it made outgrew those they were made from."""

    name: str
    level: int
    count: int = 0
    seconds: float = 0.0
    grown: int = 0
    declined: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name}: {self.count} in {1e3 * self.seconds:.2f} ms"


class Missing(Exception):
    """A replacement needs what there is not: an operator that nobody defines, or not for this type; an
    attribute that holds a number exactly."""


class Settings:
    """What those who run passes tell the rules, which find it as `op.settings`. `loose_masks`: whether an
    operator may give 0 in the place of parts that give NaN where a mask excludes every key. `weights_apart`:
    whether float vectors and tables that happen to be equal stay constants of their own, and what adds or
    multiplies with one that happens to change nothing, as biases before training, stays too.
    `wide_attention`: whether an attention's scores are float32 whatever its type, so that it may stand for
    parts that cast between its product and its result, and for ones whose keys have to be turned for it."""

    loose_masks: ClassVar[bool] = False
    wide_attention: ClassVar[bool] = False
    weights_apart: ClassVar[bool] = False

    def refusal(self, domain: str, name: str, inputs: Sequence[Any]) -> str | None:
        """Why no rule may make this operator; None where it may."""
        return None


@functools.lru_cache(maxsize=1024)
def newest(domain: str, name: str) -> tuple[Any, int]:
    """The newest definition of an operator and its newest schema version. Raises Missing."""
    definition = define.find(domain, name, 1 << 30)
    if definition is None:
        raise Missing(f"{domain}::{name} has no definition" if domain else f"{name} has no definition")
    if domain not in schema.ONNX_DOMAINS:
        return definition, definition.since
    found = schema.lookup(domain, name, schema.newest_opset(domain) or 1)
    return definition, definition.since if isinstance(found, No) else found.version


class Builder:
    """`op` on the right side of a rule: `op.Add(x, 1.0)` makes a node and gives its first output.

    `outputs=n` gives a tuple; numbers become constants of the type of the first Value among the inputs; `_`
    in an operator's name after a domain is `op("com.microsoft::FusedMatMul")`. Nothing touches the graph
    before the commit.
    """

    def __init__(self, work: Work, root: Node) -> None:
        self.graph, self.root, self._opsets, self._own = work.graph, root, work.opsets, work.own
        self.settings: Any = work.settings
        self.nodes: list[Node] = []
        self.constants: list[Value] = []
        self.domains: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(self.node, "", name)

    def __call__(self, kind: str) -> Any:
        domain, _, name = kind.rpartition("::")
        return functools.partial(self.node, domain, name)

    def constant(self, array: Any, like: Value | None = None, name: str = "const") -> Value:
        """A new constant, of the element type of `like` where it is given."""
        if like is not None and like.elem is not None:
            array = np.asarray(array).astype(like.elem.numpy)
        array = array if isinstance(array, np.ndarray) else np.asarray(array)
        value = Value(self.graph.fresh(f"{self.root.output.name}_{name}"), type_of(array), None, array)
        self.constants.append(value)
        return value

    def ints(self, values: Iterable[int]) -> Value:
        """A vector of int64: axes, pads, a shape."""
        return self.constant(np.array(list(values), np.int64), name="ints")

    def node(self, domain: str, name: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Any:
        if self.settings is not None and (why := self.settings.refusal(domain, name, inputs)) is not None:
            raise Missing(why)
        definition, version = newest(domain, name)
        like = next((v for v in inputs if isinstance(v, Value)), None)
        values = [v if v is None or isinstance(v, Value) else
                  self.constant(v) if isinstance(v, np.ndarray) else self.constant(v, like) for v in inputs]
        while values and values[-1] is None:
            values.pop()
        attrs = {k: v for k, v in attrs.items() if v is not None}
        label = f"{self.root.label}/{name}" + (f"_{len(self.nodes)}" if self.nodes else "")
        made = Node(name, domain, version, definition, values, attrs, label, self.root.index)
        stem = f"{self.root.output.name}_{name}"
        made.outputs = [Value(self.graph.fresh(stem), None, made) for _ in range(outputs)]
        self.nodes.append(made)
        self.domains.add(domain)
        _check(made)
        _type(made, self._opsets)
        return made.output if outputs == 1 else tuple(made.outputs)

    def again(self, node: Node, *inputs: Any, **changed: Any) -> Any:
        """`node` applied anew, in its own version, to other inputs and with some attributes changed (None:
        left out)."""
        attrs = {k: v for k, v in {**node.attrs, **changed}.items() if v is not None}
        label = f"{self.root.label}/{node.op_type}" + (f"_{len(self.nodes)}" if self.nodes else "")
        made = Node(node.op_type, node.domain, node.version, node.op, inputs, attrs, label, self.root.index)
        made.outputs = [v and Value(self.graph.fresh(v.name), None, made) for v in node.outputs]
        self.nodes.append(made)
        _type(made, self._opsets)
        return made.output if len(made.outputs) == 1 else tuple(made.outputs)

    def maker(self, value: Value | None, *names: str, alone: bool = True) -> Node | None:
        """The node of this graph that makes `value`, if it is one of the operators `names`; with `alone`,
        only if nothing else reads the value."""
        node = value.node if value is not None else None
        if value is None or node is None or node.kind not in names or node not in self._own:
            return None
        if node.outputs[0] is not value or (alone and (value.graph_outputs or sum(value.uses.values()) != 1)):
            return None
        return node

    def cancel(self) -> None:
        for node in self.nodes:
            Graph.detach(node)


def _check(node: Node) -> None:
    """Raise Missing where a model file could not hold `node`: its schema refuses the types, or an attribute,
    which is of single precision, would round a number that double precision results depend on."""
    known = schema.lookup(node.domain, node.op_type, schema.newest_opset(node.domain) or 1)
    for i, value in enumerate(node.inputs):
        if value is None or not isinstance(value.elem, ElementType):
            continue
        formal = known.input_at(i) if isinstance(known, schema.Schema) else None
        if formal is not None and formal.types and str(value.type) not in formal.types:
            raise Missing(f"{node.op_type} does not take {value.type}")
        if value.elem == ElementType.DOUBLE:
            for name, number in node.attrs.items():
                if isinstance(number, float) and name != "epsilon" and float(np.float32(number)) != number:
                    raise Missing(f"{name} cannot hold {number} in double precision")


def _type(node: Node, opsets: dict[str, int]) -> None:
    x = node.inputs[0] if node.inputs else None
    if node.op_type == "Transpose" and x is not None and x.shape is not None and "perm" in node.attrs:
        node.output.type = TensorType(x.elem, tuple(x.shape[i] for i in node.attrs["perm"]))
    else:
        infer.annotate(node, opsets)


class Work:
    """One pass over one graph. `left` holds, in a list of one, how many rewrites STOP still allows."""

    def __init__(self, graph: Graph, limits: Limits, left: list[float], entries: dict[str, Entry],
                 quantized: bool = False, settings: Settings | None = None) -> None:
        self.settings = settings
        self.graph, self.limits, self.left, self.entries = graph, limits, left, entries
        self.opsets = {**graph.info.opsets, "": schema.newest_opset("") or 1, "com.microsoft": 1}
        self.removed: set[Node] = set()
        self.quantized = quantized
        self.new_bodies = False
        self._own: set[Node] | None = None
        self._renamed: dict[Value, Value] = {}
        self._place: dict[Node, int] = {}
        self._unsorted = False

    @property
    def own(self) -> set[Node]:
        """The nodes of this graph, bodies left out."""
        if self._own is None:
            self._own = set(self.graph.nodes)
        return self._own

    def take(self) -> bool:
        """Count one rewrite; False once STOP says no more."""
        if self.left[0] <= 0:
            return False
        self.left[0] -= 1
        return True

    def decline(self, name: str, node: Node, reason: str) -> None:
        declined = self.entries[name].declined
        if len(declined) < _DECLINES and not any(line.endswith(": " + reason) for line in declined):
            declined.append(f"{node}: {reason}")

    def can_replace(self, old: Value, new: Value) -> bool:
        """Whether everything that reads `old` may read `new`: a graph output has to keep its name and its
        maker."""
        return not old.graph_outputs or (
            new.node is not None and new.node in self.own and not new.graph_outputs
        )

    def replace(self, old: Value, new: Value) -> None:
        """Let everything that reads `old` read `new`; where `old` is a graph output, `new` takes its name."""
        for user in list(old.uses):
            Graph.redirect(user, old, new)
        if old.graph_outputs:
            new.graph_outputs, old.graph_outputs = new.graph_outputs + old.graph_outputs, 0
            new.name, old.name = old.name, new.name
            self._renamed[old] = new

    def constant(self, array: Any, stem: str) -> Value:
        """A new initializer of the graph."""
        return self.graph.add_initializer(Value(self.graph.fresh(stem), type_of(array), None, array))

    def fold(self, value: Value, array: Any) -> None:
        """Make `value` an initializer; the caller removes its maker."""
        node = value.node
        if node is not None:
            node.outputs[node.outputs.index(value)] = None
        if value.name in self.graph.initializers:
            value.name = self.graph.fresh(value.name)
        value.node, value.const, value.type, value.content = None, array, type_of(array), None
        self.graph.add_initializer(value)

    def remove(self, node: Node) -> None:
        """Take `node` out, and every maker of its inputs that nothing reads any more."""
        doubtful = [node]
        while doubtful:
            it = doubtful.pop()
            if it in self.removed:
                continue
            read = [v for v in it.inputs if v is not None]
            makers = [v.node for v in read if v.node is not None]
            Graph.detach(it)
            self.removed.add(it)
            for value in read:
                self._let_go(value)
            doubtful.extend(m for m in makers if m in self.own and m not in self.removed and is_dead(m))

    def _let_go(self, value: Value) -> None:
        """Take a large initializer out as soon as nothing reads it: a pass over all weights must not hold
        them twice."""
        own = self.graph.initializers.get(value.name) is value and value not in self.graph.inputs
        if own and value.dead and getattr(value.const, "nbytes", 0) > KEPT_BYTES:
            del self.graph.initializers[value.name]

    def finish(self) -> None:
        """Bring the graph's lists up to date; call it once after the pass."""
        graph = self.graph
        if self.removed:
            graph.nodes = [n for n in graph.nodes if n not in self.removed]
        if self._renamed:
            for it in (graph, *bodies_below(graph)):
                it.outputs = [self._resolve(v) for v in it.outputs]
        if self._unsorted:
            graph.sort()

    def _resolve(self, value: Value) -> Value:
        while value in self._renamed:
            value = self._renamed[value]
        return value

    def run_rules(self, rules: list[Rule]) -> int:
        """One walk over the graph; at each node the rules in their order, and again on what they built."""
        table = patterns.index(tuple(rules))
        if not any((n.domain, n.op_type) in table for n in self.graph.nodes):
            return 0
        total, out = 0, list[Node]()
        for node in self.graph.nodes:
            if node in self.removed:
                continue
            pending, turns = [node], 0
            while pending:
                it = pending.pop()
                if it in self.removed:
                    continue
                made = self._rewrite(it, table) if turns < _REWRITES_IN_PLACE else None
                if made is None:
                    self._place[it] = len(out)
                    out.append(it)
                else:
                    turns, total = turns + 1, total + 1
                    pending.extend(reversed(made))
        self.graph.nodes = out
        return total

    def _rewrite(self, node: Node, table: patterns.Table) -> list[Node] | None:
        """The nodes that take the place of `node`, or None where no rule applies."""
        candidates = table.get((node.domain, node.op_type))
        if not candidates:
            return None
        kinds = {(v.node.domain, v.node.op_type) for v in node.inputs if v is not None and v.node is not None}
        for it, needs, at in candidates:
            if not needs <= kinds:
                continue
            start = time.perf_counter()
            match = patterns.find(it.templates[at], node, self.own, it.shared)
            made = self._build(it, node, match) if match is not None else None
            self.entries[it.name].seconds += time.perf_counter() - start
            if made is not None:
                return made
        return None

    def _build(self, it: Rule, root: Node, match: Match) -> list[Node] | None:
        if self.left[0] <= 0:
            return None
        builder = Builder(self, root)
        given = {**match.bound, "root": root}
        try:
            result = it.build(builder, **{name: given.get(name) for name in it.parameters})
        except Missing as missing:
            result = No(str(missing))
        if result is None:
            builder.cancel()
            return None
        refusal = result if isinstance(result, No) else self._commit(root, result, builder, match)
        if refusal is not None:
            builder.cancel()
            self.decline(it.name, root, refusal.reason)
            return None
        self.take()
        self.entries[it.name].count += 1
        return builder.nodes

    def _commit(self, root: Node, result: Any, builder: Builder, match: Match) -> No | None:
        """Put what was built in place, or say why not; the graph is untouched then."""
        fresh, covered = set(builder.nodes), match.nodes
        pairs = [(old, new if new.node in fresh or self.can_replace(old, new) else builder.Identity(new))
                 for old, new in _pairs(root, result)]
        fresh = set(builder.nodes)
        early = False
        for old, new in pairs:
            if (reason := _clash(old.type, new.type)) is not None:
                return No(reason)
            if new is old:
                return No("the replacement is the value itself")
            readers = [u for u in old.uses if u not in covered]
            if old.node is not root and any(u in self._place or u not in self.own for u in readers):
                if any(u not in self.own for u in readers) or self._depends(builder, old, covered):
                    return No(f"%{old.name} is read before the replacement can stand")
                early = True
        self._unsorted |= early
        self.own.update(fresh)
        for value in builder.constants:
            if value.uses or any(new is value for _, new in pairs):
                self.graph.add_initializer(value)
        for domain in builder.domains - self.graph.info.opsets.keys():
            self.graph.info.opsets[domain] = schema.newest_opset(domain) or 1
        for old, new in pairs:
            if new.node in fresh:
                _adopt(old, new)
            else:
                self.replace(old, new)
        for node in covered:
            if node not in self.removed and is_dead(node):
                self.remove(node)
        return None

    def _depends(self, builder: Builder, old: Value, covered: set[Node]) -> bool:
        """Whether something outside the match that the new nodes read depends on `old`; True if that takes
        too long."""
        stack = [v for n in builder.nodes for v in n.inputs if v is not None and v.const is None]
        seen: set[Node] = set()
        floor = -1 if self._unsorted else self._place.get(old.node, -1) if old.node is not None else -1
        while stack:
            node = stack.pop().node
            if node is None or node in seen or node not in self.own or self._place.get(node, -1) < floor:
                continue
            seen.add(node)
            if len(seen) > _CYCLE_SEARCH:
                return True
            for value in (v for v in node.inputs if v is not None):
                if value is old and node not in covered:
                    return True
                stack.append(value)
            if node.has_bodies:
                return True
        return False


def _pairs(root: Node, result: Any) -> Iterator[tuple[Value, Value]]:
    if isinstance(result, dict):
        yield from result.items()
        return
    given = result if isinstance(result, tuple | list) else (result,)
    for old, new in zip(root.outputs, given, strict=False):
        if old is not None and new is not None:
            yield old, new


def _adopt(old: Value, new: Value) -> None:
    """Let the maker of `new`, just built, make `old` instead."""
    maker, node = old.node, new.node
    assert node is not None
    if maker is not None:
        maker.outputs[maker.outputs.index(old)] = None
    node.outputs[node.outputs.index(new)] = old
    old.node = node
    old.type = infer.merged(old.type, new.type)
    for user in list(new.uses):
        for i, value in enumerate(user.inputs):
            if value is new:
                Graph.set_input(user, i, old)


def _clash(old: Type | None, new: Type | None) -> str | None:
    """Why a value of type `new` cannot take the place of one of type `old`; None where nothing known speaks
    against it."""
    if old is None or new is None:
        return None
    if not isinstance(old, TensorType) or not isinstance(new, TensorType):
        return None if old == new else f"the type would change from {old} to {new}"
    if old.elem != new.elem and None not in (old.elem, new.elem):
        return f"the element type would change from {old} to {new}"
    if old.shape is None or new.shape is None:
        return None
    if len(old.shape) != len(new.shape) or any(isinstance(a, int) and isinstance(b, int) and a != b
                                              for a, b in zip(old.shape, new.shape, strict=True)):
        return f"the shape would change from {list(old.shape)} to {list(new.shape)}"
    return None


def is_dead(node: Node) -> bool:
    """Whether nothing reads any of `node`'s outputs."""
    return all(v is None or v.dead for v in node.outputs)


def bodies_below(graph: Graph) -> list[Graph]:
    """Every body of control flow in `graph`, at any depth, outer ones first."""
    found: list[Graph] = []
    stack = [graph]
    while stack:
        it = stack.pop()
        inner = [body for node in it.nodes for body in node.bodies()]
        found += inner
        stack += inner
    return found
