"""What a rule is told of a node, and what it may ask.

In: a node, its inputs' dimensions and the elements that are known of them. Out: shapes, a dimension None
where it depends on data. The invariant: asking for what is not known raises LookupError, which leaves the
node to other inference; so does ValueError, where the node contradicts itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from ..ir import Node
from ..records import dataclass
from .elements import Elements, ints
from .expression import Dim, Expr

Shape: TypeAlias = "list[Dim | None] | None"
Shapes: TypeAlias = "list[Shape]"


class Context(Protocol):
    """What a rule may ask the inference for."""

    int_max: int
    long_enough: bool
    """Whether a dimension reaches as far as a Slice counts from its end."""

    def wider(self, dims: Sequence[Dim]) -> Dim | None:
        """The dimension that `dims` broadcast to."""
        ...

    def same(self, dims: Sequence[Dim]) -> Dim | None:
        """The dimension that `dims` all have to be."""
        ...

    def is_one(self, dim: Dim) -> bool:
        """Whether a dimension that goes where it is 1 does. Raises LookupError where that is not known."""
        ...

    def unknown(self, node: Node, index: int) -> Elements | None:
        """Elements of an input that nothing is known of, as names; None where there may be many."""
        ...


@dataclass(slots=True)
class Facts:
    """What is known of a node's inputs."""

    node: Node
    shapes: Sequence[list[Dim] | None]
    elements: Sequence[Elements | None]
    context: Context

    def has(self, i: int) -> bool:
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def shape(self, i: int) -> list[Dim]:
        """Raises LookupError where the rank is not known."""
        found = self.shapes[i] if i < len(self.shapes) else None
        if found is None:
            raise LookupError("the rank is not known")
        return list(found)

    def vector(self, i: int) -> list[Dim | None]:
        """The elements of an input. Raises LookupError where there is no saying how many."""
        found = self.elements[i] if i < len(self.elements) else None
        if found is None:
            found = self.context.unknown(self.node, i)
        if found is None:
            raise LookupError("the elements are not known")
        return list(found.ravel())

    def numbers(self, i: int) -> list[int] | None:
        """The elements of an input as ints, None where one is not known."""
        return ints(self.elements[i]) if i < len(self.elements) else None

    def attribute(self, name: str) -> Any:
        return self.node.attribute(name)

    def axes(self, i: int = 1) -> list[int] | None:
        """Axes from the input `i` or the attribute; None where there are none. Raises LookupError where they
        are not known."""
        if not self.has(i):
            return self.attribute("axes")
        found = self.numbers(i)
        if found is None:
            raise LookupError("the axes are not known")
        return found


def is_one(dim: Dim) -> bool:
    """Whether a dimension is 1. Raises LookupError where a run decides."""
    if isinstance(dim, Expr):
        raise LookupError("the dimension may be 1")
    return dim == 1


def broadcast(f: Facts, *shapes: Sequence[Dim]) -> list[Dim | None]:
    rank = max(map(len, shapes))
    return [f.context.wider([s[len(s) - rank + i] for s in shapes if len(s) - rank + i >= 0])
            for i in range(rank)]


def elementwise(f: Facts) -> Shapes:
    """All inputs broadcast together."""
    return [broadcast(f, *(f.shape(i) for i in range(len(f.node.inputs)) if f.has(i)))]
