"""The graph: values, the nodes that make them, and nothing that runs.

A graph's nodes are in topological order. Every use of a value is in its `uses`, also from inside
the bodies of control flow, so that "is this dead?" and "who reads this?" take constant time. All
changes go through the methods here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from ..records import dataclass
from .types import SparseTensorType, TensorType, Type, shape_text, type_of

OWN = "orthrus"
"""The domain of operators that only the optimizer writes. A saved model has their parts instead."""


@dataclass(frozen=True, slots=True)
class No:
    """A refusal and its reason: what a rule, a kernel or a provider answers when it leaves a node alone."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Value:
    """One named result: a graph input, an initializer (`const` holds its array) or a node's output.

    A graph input that is an initializer too is no constant, as a run may feed it: `default` holds the array
    that is taken where none does. `content` is what is known of the elements of a small integer tensor that
    is no constant: ints, dimension names, None. `watched`: whether runs show it, so that it has to be in
    memory by itself.
    """

    __slots__ = ("name", "type", "node", "const", "default", "content", "uses", "graph_outputs", "watched",
                 "__weakref__")

    def __init__(self, name: str, type: Type | None = None, node: Node | None = None,
                 const: Any = None) -> None:
        self.name, self.type, self.node, self.const = name, type, node, const
        self.default: Any = None
        self.content: tuple[Any, ...] | None = None
        self.uses: dict[Node, int] = {}
        self.graph_outputs = 0
        self.watched = False

    def __repr__(self) -> str:
        return f"%{self.name}: {shape_text(self.type)}"

    @property
    def initial(self) -> Any:
        """The array a run begins with: the constant, or what is taken where nothing is fed."""
        return self.default if self.const is None else self.const

    @property
    def dead(self) -> bool:
        return not self.uses and not self.graph_outputs and not self.watched

    @property
    def elem(self) -> Any:
        """The element type where this is a tensor of known type, else None."""
        return self.type.elem if isinstance(self.type, TensorType | SparseTensorType) else None

    @property
    def shape(self) -> Any:
        """The shape where it is known at least in rank, else None."""
        return getattr(self.type, "shape", None)


class Node:
    """One application of an operator.

    `version` is the operator's schema version that the model asks for; `op` its definition, None where
    a function body or a provider has to supply the meaning. An absent optional input or output is
    None. `label` names it to people. `doc` and `arity`, how many inputs the file lists with the absent ones
    at the end, are kept for whoever writes the model again. `places`: see `Graph.redirect`.
    """

    __slots__ = ("op_type", "domain", "version", "op", "inputs", "outputs", "attrs", "name", "index",
                 "metadata", "doc", "arity", "places", "__weakref__")

    def __init__(self, op_type: str, domain: str, version: int, op: Any, inputs: Iterable[Value | None],
                 attrs: dict[str, Any], name: str = "", index: int = -1) -> None:
        self.op_type, self.domain, self.version, self.op = op_type, domain, version, op
        self.inputs: list[Value | None] = list(inputs)
        self.outputs: list[Value | None] = []
        self.attrs, self.name, self.index = attrs, name, index
        self.metadata: dict[str, str] = {}
        self.doc, self.arity = "", 0
        self.places: dict[Value, set[int]] = {}
        for value in self.inputs:
            _use(value, self)

    @property
    def label(self) -> str:
        """The node's name, or `Add_17` for a nameless one."""
        return self.name or f"{self.op_type}_{self.index}"

    @property
    def kind(self) -> str:
        """`Add`, or `com.microsoft::Gelu` outside the default domain."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes: those given, and the definition's defaults for the others. Raises TypeError where
        one is required and not given."""
        return dict(self.attrs) if self.op is None else self.op.with_defaults(self.attrs)

    def attribute(self, name: str) -> Any:
        """One attribute, given or by default; None where it has neither."""
        if name in self.attrs or self.op is None:
            return self.attrs.get(name)
        return self.op.defaults.get(name)

    @property
    def output(self) -> Value:
        """The first output."""
        value = self.outputs[0]
        assert value is not None
        return value

    @property
    def watched(self) -> list[Value]:
        """The outputs that runs show."""
        return [v for v in self.outputs if v is not None and v.watched]

    @property
    def has_bodies(self) -> bool:
        """Whether there is a graph among the attributes."""
        return bool(self.attrs) and any(True for _ in self.bodies())

    def bodies(self) -> Iterator[Graph]:
        """The graphs among the attributes."""
        for attr in self.attrs.values():
            if isinstance(attr, Graph):
                yield attr
            elif isinstance(attr, list) and attr and isinstance(attr[0], Graph):
                yield from attr

    def __repr__(self) -> str:
        outs = ", ".join(repr(v) if v else "_" for v in self.outputs)
        args = [f"%{v.name}" if v else "_" for v in self.inputs]
        args += [f"{k}={_brief(v)}" for k, v in self.attrs.items()]
        return f"{outs} = {self.kind}-{self.version}({', '.join(args)})"

    def __str__(self) -> str:
        return f"{self.label} ({self.kind}-{self.version})"


def _brief(value: Any) -> str:
    if isinstance(value, Graph):
        return f"<graph {value.name}>"
    text = repr(value) if not hasattr(value, "dtype") else f"<{value.dtype}{list(value.shape)}>"
    return text if len(text) < 60 else text[:57] + "..."


_MANY = 64
"""From how many inputs on a node remembers where each lies."""


def _places(inputs: list[Value | None]) -> dict[Value, set[int]]:
    found: dict[Value, set[int]] = {}
    for i, value in enumerate(inputs):
        if value is not None:
            found.setdefault(value, set()).add(i)
    return found


def _use(value: Value | None, node: Node) -> None:
    if value is not None:
        value.uses[node] = value.uses.get(node, 0) + 1


def _unuse(value: Value | None, node: Node) -> None:
    if value is not None:
        if value.uses[node] == 1:
            del value.uses[node]
        else:
            value.uses[node] -= 1


@dataclass
class ModelInfo:
    """What a model says of itself beside its graph. `denotations`: what an input's dimensions stand for, such
    as DATA_BATCH, by input name and axis. `external`: the files that some of its tensors lie in, as it names
    them. `sizes`: the sizes, or their names, that outputs are declared with where nothing else settles them,
    by name and axis.
    """

    ir_version: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = (1 << 63) - 1
    doc_string: str = ""
    graph_doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    path: str | None = None
    denotations: dict[str, dict[int, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    external: tuple[str, ...] = ()
    sizes: dict[str, dict[int, int | str]] = field(default_factory=dict)


class Graph:
    """Inputs, initializers, nodes and outputs; `outer` is the graph a body of control flow stands in."""

    def __init__(self, name: str = "", outer: Graph | None = None, info: ModelInfo | None = None) -> None:
        self.name, self.outer = name, outer
        self.info: ModelInfo = info or (outer.info if outer else ModelInfo())
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.initializers: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self._names: dict[str, int] = outer._names if outer else {}

    def add_initializer(self, value: Value) -> Value:
        self.initializers[value.name] = value
        return value

    def constant(self, array: Any, name: str = "const") -> Value:
        """A new initializer holding `array`."""
        return self.add_initializer(Value(self.fresh(name), type_of(array), None, array))

    def fresh(self, stem: str) -> str:
        """A value name not given before by this call: `stem`, with a number that no other fresh name and no
        initializer has."""
        while True:
            self._names[stem] = count = self._names.get(stem, 0) + 1
            if (name := f"{stem}__{count}") not in self.initializers:
                return name

    def set_outputs(self, values: Iterable[Value]) -> None:
        for value in self.outputs:
            value.graph_outputs -= 1
        self.outputs = list(values)
        for value in self.outputs:
            value.graph_outputs += 1

    def replace(self, old: Value, new: Value) -> None:
        """Let everything that reads `old`, graph outputs too, read `new`."""
        if old is new:
            return
        for node in list(old.uses):
            self.redirect(node, old, new)
        if old.graph_outputs:
            for graph in (self, *_bodies_below(self)):
                if old in graph.outputs:
                    graph.set_outputs([new if v is old else v for v in graph.outputs])

    @staticmethod
    def set_input(node: Node, index: int, value: Value | None) -> None:
        _unuse(node.inputs[index], node)
        node.inputs[index] = value
        _use(value, node)

    @staticmethod
    def redirect(node: Node, old: Value, new: Value) -> None:
        """Let `node` read `new` wherever it reads `old`. A node of many inputs remembers where each lies: to
        redirect them one by one takes time in their number, not in its square."""
        many, count = len(node.inputs) > _MANY, old.uses[node]
        found = [i for i in node.places.get(old, ()) if i < len(node.inputs) and node.inputs[i] is old]
        if len(found) != count:
            found = [i for i, value in enumerate(node.inputs) if value is old]
            node.places = _places(node.inputs) if many else {}
        for i in found:
            Graph.set_input(node, i, new)
        if many:
            node.places.pop(old, None)
            node.places.setdefault(new, set()).update(found)

    @staticmethod
    def detach(node: Node) -> None:
        """Give up `node`'s uses, and those of the bodies it holds; the caller takes it out of `nodes`."""
        stack = [node]
        while stack:
            it = stack.pop()
            for value in it.inputs:
                _unuse(value, it)
            it.inputs, it.places = [], {}
            for body in it.bodies():
                body.set_outputs([])
                stack.extend(body.nodes)
                body.nodes = []

    def walk(self) -> Iterator[Node]:
        """Every node, bodies of control flow included."""
        for node in self.nodes:
            yield node
            for body in node.bodies():
                yield from body.walk()

    def captures(self) -> list[Value]:
        """Values of outer graphs that this graph reads, in order of first use."""
        own: set[Value] = {*self.inputs, *self.initializers.values()}
        found: dict[Value, None] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value is not None and value not in own:
                    found[value] = None
            for body in node.bodies():
                found.update((v, None) for v in body.captures() if v not in own)
            own.update(v for v in node.outputs if v is not None)
        found.update((v, None) for v in self.outputs if v not in own)
        return list(found)

    def release(self) -> None:
        """Forget every initializer's array, those of bodies too; the graph is of no use afterwards.

        Values and the nodes that read them refer to each other, so that arrays would stay until the garbage
        collector comes by.
        """
        for graph in (self, *_bodies_below(self)):
            for value in graph.initializers.values():
                value.const = value.default = None

    def sort(self) -> None:
        """Restore topological order, keeping the present order where it is
        free. Raises ValueError on a cycle."""
        made = {v: node for node in self.nodes for v in node.outputs if v is not None}
        waits: dict[Node, int] = {}
        readers: dict[Node, list[Node]] = {}
        for node in self.nodes:
            needs = {made[v] for v in _reads(node) if v in made}
            waits[node] = len(needs)
            for source in needs:
                readers.setdefault(source, []).append(node)
        nodes, order = self.nodes, list[Node]()
        place = {node: i for i, node in enumerate(nodes)}
        heap = [i for i, node in enumerate(nodes) if not waits[node]]
        while heap:
            node = nodes[heapq.heappop(heap)]
            order.append(node)
            for reader in readers.get(node, ()):
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(heap, place[reader])
        if len(order) != len(nodes):
            raise ValueError("the graph is not acyclic")
        self.nodes = order

    def __str__(self) -> str:
        return self.text()

    def text(self, indent: str = "") -> str:
        """The printed form: one line per node, bodies indented below theirs."""
        lines = [f"{indent}graph {self.name}(" + ", ".join(map(repr, self.inputs)) + ")"]
        for node in self.nodes:
            lines.append(f"{indent}  {node!r}")
            lines.extend(body.text(indent + "    ") for body in node.bodies())
        return "\n".join([*lines, f"{indent}  return " + ", ".join("%" + v.name for v in self.outputs)])


def _reads(node: Node) -> Iterator[Value]:
    for value in node.inputs:
        if value is not None:
            yield value
    for body in node.bodies():
        yield from body.captures()


def _bodies_below(graph: Graph) -> Iterator[Graph]:
    for node in graph.nodes:
        for body in node.bodies():
            yield body
            yield from _bodies_below(body)


def verify(graph: Graph, known: frozenset[Value] = frozenset()) -> None:
    """Raise ValueError if a value is read before it is made, or a use is not
    recorded: a pass broke the graph."""
    seen: set[Value] = {*known, *graph.inputs, *graph.initializers.values()}
    for node in graph.nodes:
        for value in node.inputs:
            if value is None:
                continue
            if value not in seen:
                raise ValueError(f"%{value.name} is read before it is made, by {node!r}")
            if value.uses.get(node, 0) != sum(v is value for v in node.inputs):
                raise ValueError(f"the uses of %{value.name} do not list {node!r}")
        for body in node.bodies():
            verify(body, frozenset(seen))
        for made in node.outputs:
            if made is not None:
                if made.node is not node:
                    raise ValueError(f"%{made.name} does not name {node!r} as its maker")
                seen.add(made)
    for value in graph.outputs:
        if value not in seen:
            raise ValueError(f"the output %{value.name} is never made")
