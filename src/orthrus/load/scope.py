"""Where names stand while a graph is built: scopes of values, and frames of nodes still to be made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..ir import Graph, Value


@dataclass(eq=False)
class Scope:
    """The names one graph or function body can see; a name mapped to None is an input the caller left out."""

    graph: Graph
    parent: Scope | None = None
    values: dict[str, Value | None] = field(default_factory=dict)


@dataclass(eq=False)
class Frame:
    """A list of NodeProtos being turned into nodes: where names, attribute references and versions are
    looked up.

    `after` are values to copy once the list is done: function outputs that are function inputs.
    """

    protos: Iterator[tuple[int, Any]]
    scope: Scope
    opsets: dict[str, int]
    bound: dict[str, Bound] | None = None
    prefix: str = ""
    after: list[tuple[str, Value]] = field(default_factory=list)


@dataclass(eq=False)
class Bound:
    """What an attribute reference inside a function stands for: an attribute of the call, read where the
    call stands."""

    proto: Any
    frame: Frame
