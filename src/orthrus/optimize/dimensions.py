"""Names for dimensions nobody named, while a graph is optimized, so that equal ones are known to be equal.

Every unknown dimension gets a name of its own; the same arithmetic on the same dimensions gets the same name.
So a Reshape to a shape computed from another tensor's shape is known to keep that tensor's dimensions.
`forget` takes the names away again: they mean nothing outside.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ..ir import ElementType, Graph, Node, TensorType, Value
from ..ops import infer
from ..ops.contents import small
from ..shapes import elements
from ..shapes.by_operator import rule_of
from ..shapes.elements import Elements
from ..shapes.expression import Dim, Expr, bounds, named
from ..shapes.facts import Facts, Shape, is_one

PREFIX = "\N{MIDDLE DOT}"
_FOLLOWED = frozenset({ElementType.BOOL, ElementType.INT64, ElementType.INT32})
_INT64 = 1 << 63
_FAILURES = (TypeError, ValueError, AttributeError, ArithmeticError, LookupError)


class Dimensions:
    """The names given so far, over all graphs of one model. It is what the rules of shapes ask."""

    int_max = (1 << 31) - 1
    long_enough = False
    is_one = staticmethod(is_one)

    def __init__(self, opsets: dict[str, int], graphs: Sequence[Graph]) -> None:
        self.opsets = opsets
        self.given = {d for graph in graphs for value in graph.inputs for d in value.shape or ()}
        self.names: dict[Any, str] = {}
        self.texts: dict[Expr, str] = {}
        self.dims: dict[str, Expr] = {}
        self.known: dict[Value, Elements] = {}
        self.seen: dict[Node, tuple[Any, ...]] = {}
        self.count = 0

    def name(self, *key: Any) -> str:
        """The name of a dimension that `key` determines."""
        if key not in self.names:
            self.count += 1
            self.names[key] = f"{PREFIX}{self.count}"
        return self.names[key]

    def dim(self, dim: int | str) -> Dim:
        """A dimension of a type for the rules."""
        if isinstance(dim, int):
            return dim
        found = self.dims.get(dim)
        if found is None:
            found = self.dims[dim] = named(dim)
            self.texts[found] = dim
        return found

    def text(self, dim: Dim | None) -> int | str | None:
        """What a rule says of a dimension as types have it. A name stands for a polynomial over names, or for
        itself."""
        if not isinstance(dim, Expr):
            return dim if isinstance(dim, int) and 0 <= dim < _INT64 else None
        found = self.texts.get(dim)
        if found is None:
            found = self.texts[dim] = self.name(dim)
            if dim.plain and bounds(dim)[0] >= 0:
                self.dims[found] = dim
        return found

    def wider(self, dims: Sequence[Dim]) -> Dim:
        """The dimension that `dims` broadcast to. Raises ValueError where they do not."""
        kinds = set(dims) - {1}
        fixed = [d for d in kinds if isinstance(d, int)]
        if len(fixed) > 1:
            raise ValueError(f"dimensions {fixed} do not broadcast")
        if fixed or not kinds:
            return fixed[0] if fixed else 1
        return kinds.pop() if len(kinds) == 1 else self.dim(self.name("wider", frozenset(kinds)))

    def same(self, dims: Sequence[Dim]) -> Dim:
        """The dimension that `dims` all have to be."""
        return next((d for d in dims if isinstance(d, int)), dims[0])

    def unknown(self, node: Node, index: int) -> Elements | None:
        """As many unknown elements as an input has."""
        value = node.inputs[index] if index < len(node.inputs) else None
        return elements.full(value.shape, None) if value is not None and small(value) else None

    def invented(self, dim: Any) -> bool:
        """Whether no input has a dimension of this name: it is one of ours, or a tool's name for an unknown
        one."""
        return isinstance(dim, str) and dim not in self.given

    def forget(self, graphs: Sequence[Graph]) -> None:
        """Take invented names out of every type and content."""
        for graph in graphs:
            for value in graph.inputs:
                self._forget(value)
            for node in graph.nodes:
                for made in node.outputs:
                    if made is not None:
                        self._forget(made)

    def _forget(self, value: Value) -> None:
        self._forget_shape(value)
        if value.content is not None and any(map(self.invented, value.content)):
            left = tuple(None if self.invented(d) else d for d in value.content)
            value.content = left if any(d is not None for d in left) else None

    def _forget_shape(self, value: Value) -> None:
        kind = value.type
        if isinstance(kind, TensorType) and kind.shape is not None and any(map(self.invented, kind.shape)):
            value.type = TensorType(kind.elem, tuple(None if self.invented(d) else d for d in kind.shape))

    def _complete(self, value: Value) -> bool:
        if not isinstance(value.type, TensorType):
            return value.type is not None
        shape = value.shape
        return shape is not None and None not in shape and not any(map(self.invented, shape))

    def refine(self, graph: Graph) -> None:
        """Type what is not typed yet, in order, and name every dimension left unknown; call it again when
        more is known."""
        for value in graph.inputs:
            self._fill(value)
        for node in graph.nodes:
            if self._seen(node):
                continue
            typed = all(v is None or self._complete(v) for v in node.outputs)
            followed = _followed(node)
            if typed and followed is None:
                continue
            if not typed:
                self._type(node)
            if followed is not None:
                self._follow(node, followed)
            self.seen[node] = self._state(node)

    def _seen(self, node: Node) -> bool:
        """Whether all that types and elements of `node`'s outputs follow from is as it was."""
        before = self.seen.get(node)
        if before is None:
            return False
        now = self._state(node)
        return len(now) == len(before) and all(map(operator.is_, now, before))

    def _state(self, node: Node) -> tuple[Any, ...]:
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        return (node.op_type, node.op, *node.attrs, *node.attrs.values(), *node.inputs,
                *[v.type for v in values], *[v.content for v in values], *map(self.known.get, values))

    def _type(self, node: Node) -> None:
        """Type the outputs; a type that is as it was stays the same object."""
        made = [v for v in node.outputs if v is not None]
        before = [v.type for v in made]
        for value in made:
            self._forget_shape(value)
        shapes = self._shapes(node)
        if not shapes and not node.has_bodies:
            infer.annotate(node, self.opsets)
        for output, dims in zip(node.outputs, shapes, strict=False):
            if dims is not None and output is not None and isinstance(output.type, TensorType) \
                    and output.elem is not None:
                told = TensorType(output.elem, tuple(map(self.text, dims)))
                output.type = infer.merged(told, output.type)
        for value, kind in zip(made, before, strict=True):
            self._fill(value)
            if value.type == kind:
                value.type = kind

    def _shapes(self, node: Node) -> list[Shape]:
        """The outputs' shapes as a rule says them; none where there is none."""
        rule = rule_of(node)
        if rule is None:
            return []
        try:
            return rule(Facts(node, *self._inputs(node), self))
        except _FAILURES:
            return []

    def _inputs(self, node: Node) -> tuple[list[list[Dim] | None], list[Elements | None]]:
        """What is known of a node's inputs: their dimensions and their elements."""
        return ([None if v is None or v.shape is None or None in v.shape else list(map(self.dim, v.shape))
                 for v in node.inputs],
                [None if v is None else self._elements(v) for v in node.inputs])

    def _elements(self, value: Value) -> Elements | None:
        if value.elem not in _FOLLOWED:
            return None
        if value not in self.known and small(value):
            found = elements.of_constant(value.const)
            if found is None and value.content is not None:
                found = elements.full((len(value.content),), None)
                found[:] = [d if d is None else self.dim(d) for d in value.content]
                found = found.reshape(value.shape)
            if found is None:
                return None
            self.known[value] = found
        return self.known.get(value)

    def _fill(self, value: Value) -> None:
        shape = value.shape
        if isinstance(value.type, TensorType) and shape is not None and None in shape:
            dims = tuple(self.name(value, i) if d is None else d for i, d in enumerate(shape))
            value.type = TensorType(value.type.elem, dims)

    def _follow(self, node: Node, value: Value) -> None:
        """What is known of the elements of `node`'s first output, `value`, where it is small."""
        if not small(value):
            return
        known = self.known.get(value)
        before = value.content if known is None else [self._told(e) for e in known.ravel()]
        if before is not None and None not in before and not any(map(self.invented, before)):
            return
        shapes, given = self._inputs(node)
        found = elements.follow(node, given, shapes)
        if found is None or found.shape != value.shape:
            return
        if known is not None and known.shape == found.shape:
            pairs = list(zip(known.flat, found.flat, strict=True))
            if all(new is None or old == new for old, new in pairs):
                return
            found = elements.full(found.shape, None)
            found.ravel()[:] = [old if new is None else new for old, new in pairs]
        self.known[value] = found
        told = tuple(map(self._told, found.ravel()))
        if value.elem != ElementType.BOOL and found.ndim < 2 and any(d is not None for d in told) \
                and (value.content is None or None not in told):
            value.content = told

    def _told(self, element: Any) -> int | str | None:
        """An element as contents have it: names stand for 0 and more."""
        if isinstance(element, Expr):
            return self.text(element) if bounds(element)[0] >= 0 else None
        return element if type(element) is int and -_INT64 <= element < _INT64 else None


def _followed(node: Node) -> Value | None:
    """The output whose elements are followed."""
    value = node.outputs[0] if node.outputs else None
    return value if value is not None and value.elem in _FOLLOWED and elements.follows(node) else None
