"""Types with names: every value of a graph gets a shape whose open dimensions are expressions.

In: a Graph from `reader`. Out: its values' types, dimensions as ints or as the texts of expressions over the
names of the inputs' dimensions. A dimension that depends on data gets a name of its own, after the node that
makes it. The invariant: a dimension stated is the one every run has whose inputs have the shapes the model
declares and are not empty: a name of an input's dimension stands for 1 and more, and with `long_enough` for
what any Slice of it counts from its end.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from onnx.defs import SchemaError

from ...ir import (
    ElementType,
    Graph,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    Type,
    Value,
)
from ...ops import infer
from ...shapes import elements
from ...shapes.by_operator import rule_of
from ...shapes.elements import Elements
from ...shapes.expression import Dim, Expr, TooLarge, bounds, greatest, named, put, symbols
from ...shapes.facts import Facts, Shape
from ...shapes.parsing import parse
from .control import CONTROL, control

log = logging.getLogger(__name__)
_FAILURES = (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, SchemaError)
_NAMED_ELEMENTS = 16
_LONGEST = 400
"""A dimension with a longer text gets a name: expressions over expressions would grow without end."""
_ANYTHING = ("?", "*", "-1")
"""Texts that exporters write where a dimension has no name."""


class Inference:
    """One pass over one graph. `merged`: expressions and what stands for them, from passes before."""

    def __init__(self, graph: Graph, declared: dict[Value, Type], *, int_max: int, auto_merge: bool,
                 guess_output_rank: bool, long_enough: bool, merged: dict[Dim, Dim]) -> None:
        self.graph, self.declared, self.int_max = graph, declared, int_max
        self.long_enough = long_enough
        self.auto_merge, self.guess_output_rank, self.merged = auto_merge, guess_output_rank, merged
        self.texts: dict[str, Dim] = {}
        self.known: dict[Value, Elements] = {}
        self.names: set[str] = set()
        self.long: dict[Dim, Dim] = {}
        self.inputs: set[str] = set()
        self.found: dict[Dim, Dim] = {}
        self.unknown_nodes: list[Node] = []

    def run(self) -> None:
        """Type every value of the graph and its bodies."""
        for value in self.graph.inputs:
            if isinstance(value.type, TensorType) and value.type.shape is not None:
                value.type = TensorType(value.type.elem, tuple(
                    None if d in _ANYTHING else d for d in value.type.shape))
        stated = {d for v in self.graph.inputs for d in v.shape or () if isinstance(d, str)}
        plain = {d for d in stated if d.isidentifier()}
        for text in sorted(stated, key=lambda d: d not in plain):
            self.texts[text] = self._stated(text, plain)
        self.names |= {s.name for e in self.texts.values() for s in symbols(e)}
        self.inputs = set(self.names)
        for value in self.graph.inputs:
            self._name_input(value)
        self._graph(self.graph, "")

    # dimensions and their texts

    def _stated(self, text: str, plain: set[str]) -> Dim:
        """The dimension an input states: a name, or an expression where inputs have its names."""
        if text not in plain:
            try:
                read = parse(text, lambda n: named(n, 1))
                if symbols(read) and {s.name for s in symbols(read)} <= plain:
                    return self._renamed(put(read, {s.name: self._renamed(named(s.name, 1))
                                             for s in symbols(read)}))
            except (ValueError, TooLarge):
                pass
        return self._renamed(named(text, 1))

    def _renamed(self, dim: Dim) -> Dim:
        return self.merged.get(dim, dim)

    def dim(self, dim: Any) -> Dim:
        """A dimension of a type as an expression."""
        if isinstance(dim, int):
            return dim
        if dim not in self.texts:
            self.texts[dim] = self._renamed(named(dim))
        return self.texts[dim]

    def text(self, dim: Dim) -> int | str:
        """An expression as a dimension of a type."""
        dim = self._renamed(dim)
        if isinstance(dim, int) and dim >= 0:
            return dim
        if isinstance(dim, Fraction):
            dim = self.fresh("length")
        text = str(dim)
        if len(text) > _LONGEST:
            if dim not in self.long:
                self.long[dim] = self.fresh("length", bounds(dim)[0])
            dim = self.long[dim]
            text = str(dim)
        self.texts.setdefault(text, dim)
        return text

    def shape(self, value: Value | None) -> list[Dim] | None:
        if value is None or value.shape is None:
            return None
        return [self.dim(d) for d in value.shape]

    def fresh(self, stem: str, low: float = 0) -> Dim:
        """A name that nothing has yet."""
        name, count = re.sub(r"\W", "_", stem), 1
        while name in self.names:
            count += 1
            name = re.sub(r"\W", "_", f"{stem}_{count}")
        self.names.add(name)
        return self._renamed(named(name, low))

    def _name_input(self, value: Value) -> None:
        kind = value.type
        if isinstance(kind, TensorType) and kind.shape is not None:
            dims = [self.fresh(f"{value.name}_d{i}", 1) if d is None else self.dim(d)
                    for i, d in enumerate(kind.shape)]
            for d in dims:
                self.inputs.update(s.name for s in symbols(d))
            value.type = TensorType(kind.elem, tuple(map(self.text, dims)))
            if value.const is None and elements.followed(value) and len(dims) < 2 \
                    and value.elem in (ElementType.INT64, ElementType.INT32):
                self._name_elements(value)

    def _name_elements(self, value: Value) -> Elements | None:
        count = 1 if value.shape == () else value.shape[0] if value.shape and len(value.shape) == 1 else None
        if not isinstance(count, int) or count > _NAMED_ELEMENTS:
            return None
        out = elements.full(value.shape, None)
        flat = out.reshape(-1)
        for i in range(count):
            flat[i] = self.fresh(f"{value.name}_v{i}" if value.shape else f"{value.name}_value",
                                 float("-inf"))
        self.known[value] = out
        return out

    # what rules ask for

    def wider(self, dims: Sequence[Dim]) -> Dim:
        left = [d for d in dict.fromkeys(dims) if d != 1] or [1]
        if len(left) == 1:
            return left[0]
        if fixed := [d for d in left if isinstance(d, int)]:
            if self.auto_merge:
                self._merge(left)
            return fixed[0]
        if self.auto_merge:
            return self._merge(left)
        return greatest(*left)

    def same(self, dims: Sequence[Dim]) -> Dim:
        left = list(dict.fromkeys(dims))
        if len(left) > 1 and self.auto_merge:
            return self._merge(left)
        return next((d for d in left if isinstance(d, int)), left[0])

    def is_one(self, dim: Dim) -> bool:
        return dim == 1

    def _merge(self, dims: Sequence[Dim]) -> Dim:
        """Take `dims` to be equal: a number stands for them, else an input's name, else the shortest."""
        def rank(d: Dim) -> tuple[bool, bool, bool, int, str]:
            symbol = d.symbol if isinstance(d, Expr) else None
            return (not isinstance(d, int), symbol is None or symbol.name not in self.inputs, symbol is None,
                    len(str(d)), str(d))

        best = min(dims, key=rank)
        for d in dims:
            if d is best or not isinstance(d, Expr) or d.symbol in symbols(best):
                continue
            self.found.setdefault(d, best)
            log.debug("dimension %s is taken to be %s", d, best)
        return best

    def unknown(self, node: Node, index: int) -> Elements | None:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None or value.elem not in (ElementType.INT64, ElementType.INT32):
            if value is None or value.shape is None or not all(isinstance(d, int) for d in value.shape):
                return None
            return elements.full(value.shape, None) if elements.followed(value) else None
        return self._name_elements(value)

    # graphs and nodes

    def _graph(self, graph: Graph, prefix: str) -> None:
        for value in graph.initializers.values():
            if value.const is not None and (found := elements.of_constant(value.const)) is not None:
                self.known[value] = found
        for index, node in enumerate(graph.nodes):
            self._node(node, f"{node.op_type}{prefix}_{index}", prefix)

    def _node(self, node: Node, label: str, prefix: str) -> None:
        shapes = [self.shape(v) for v in node.inputs]
        given = [self.known.get(v) if v is not None else None for v in node.inputs]
        for value, e in zip(node.inputs, given, strict=True):
            if value is not None and value.const is None:
                found = elements.ints(e) if e is not None and e.ndim < 2 else None
                value.content = None if found is None else tuple(found)
        if node.has_bodies and not node.domain and node.op_type in CONTROL:
            kinds = control(self, node, label, prefix)
        else:
            kinds = self._types(node)
        computed = self._computed(node, shapes, given)
        for i, value in enumerate(node.outputs):
            if value is None:
                continue
            kind = kinds[i] if i < len(kinds) else None
            own = computed[i] if i < len(computed) else None
            value.type = self._joined(node, value, kind, own, f"{label}_o{i}_")
        self._follow(node, given, shapes)
        if any(v is not None and not told(v.type) for v in node.outputs):
            self.unknown_nodes.append(node)
            log.debug("Stopping at incomplete shape inference at %s: %s", node.op_type, node.label)

    def _types(self, node: Node) -> list[Type | None]:
        try:
            return infer.infer_node(node, node.inputs, self.graph.info.opsets)
        except _FAILURES as error:
            log.debug("%s: %s", node.label, error)
            return []

    def _computed(self, node: Node, shapes: Any, given: Any) -> list[Shape]:
        rule = rule_of(node)
        if rule is None:
            return []
        try:
            return rule(Facts(node, shapes, given, self))
        except _FAILURES as error:
            log.debug("%s: %s", node.label, error)
            return []

    def _joined(self, node: Node, value: Value, kind: Type | None, own: Shape, stem: str) -> Type | None:
        """What inference, the rule here and the model's own statement say together."""
        stated = self.declared.get(value)
        if kind is None or (isinstance(kind, TensorType) and kind.elem is None):
            kind = self._guessed(node, kind, own, stated)
        if not isinstance(kind, TensorType):
            return self._fill(kind, stem)
        dims: list[Any] | None = None if kind.shape is None else list(kind.shape)
        if own is not None:
            if dims is None or len(dims) != len(own):
                dims = [None] * len(own)
            dims = [d if o is None else o for d, o in zip(dims, own, strict=True)]
        if dims is None and isinstance(stated, TensorType) and stated.shape is not None:
            dims = [d if isinstance(d, int) else None for d in stated.shape]
        if dims is None:
            return TensorType(kind.elem, None)
        return self._fill(TensorType(kind.elem, tuple(
            d if d is None or isinstance(d, int | str) else self.text(d) for d in dims)), stem)

    def _guessed(self, node: Node, kind: Type | None, own: Shape, stated: Type | None) -> Type | None:
        """The type of an output that inference knows nothing of, or not the elements of."""
        first = node.inputs[0] if node.inputs else None
        elem = None if first is None or isinstance(first.type, MapType) else first.elem
        if stated is not None and not isinstance(stated, TensorType):
            return stated
        if isinstance(stated, TensorType) and stated.elem is not None:
            elem = stated.elem
            if isinstance(kind, TensorType) or stated.shape is not None:
                return TensorType(elem, kind.shape if isinstance(kind, TensorType) else None)
        if own is not None and elem is not None:
            return TensorType(elem, (None,) * len(own))
        if self.guess_output_rank and kind is None and elem is not None and first is not None \
                and first.shape is not None:
            return TensorType(elem, (None,) * len(first.shape))
        return TensorType(elem, None) if isinstance(stated, TensorType) and stated.elem is not None else kind

    def _fill(self, kind: Type | None, stem: str) -> Type | None:
        """The type with a name for every dimension that has none."""
        if isinstance(kind, TensorType | SparseTensorType) and kind.shape is not None:
            dims = tuple(self.text(self.fresh(f"{stem}_d{i}")) if d is None else
                         self.text(self.dim(d)) for i, d in enumerate(kind.shape))
            return type(kind)(kind.elem, dims)  # type: ignore[arg-type]
        return kind

    def _follow(self, node: Node, given: Any, shapes: Any) -> None:
        value = node.outputs[0] if node.outputs else None
        if value is None or value in self.known or not elements.followed(value):
            return
        found = elements.follow(node, given, shapes)
        if found is not None and found.shape == tuple(value.shape):
            self.known[value] = found


def told(kind: Type | None) -> bool:
    """Whether a type says what the elements are."""
    if isinstance(kind, TensorType | SparseTensorType):
        return kind.elem is not None
    if isinstance(kind, SequenceType | OptionalType):
        return not isinstance(kind.elem, TensorType) or kind.elem.elem is not None
    return kind is not None


def settled(found: dict[Dim, Dim], merged: dict[Dim, Dim]) -> dict[Dim, Dim]:
    """`merged` with what was found on top; what stands for an expression has no stand-in itself."""
    out = {**found, **merged}
    for key, best in out.items():
        seen = {key}
        while best in out and best not in seen:
            seen.add(best)
            best = out[best]
        out[key] = best
    return {k: v for k, v in out.items() if k != v}
