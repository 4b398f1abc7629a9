"""Where names stand while a graph is built: scopes of values, frames of nodes still to be made, and the frame
that a function call opens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from ..errors import Fail, InvalidGraph
from ..ir import Graph, Value
from ..records import dataclass
from . import check


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


def expansion(
    pending: set[Value],
    frame: Frame,
    proto: Any,
    function: Any,
    opsets: dict[str, int],
    given: dict[str, Bound],
    inputs: list[Value | None],
    outputs: list[Value | None],
    what: str,
    parent: Scope | None,
) -> Frame:
    """The frame that writes out `function` with `inputs` and makes `outputs`.

    The values made inside get fresh names and are `pending` until their nodes are made. Raises InvalidGraph
    if the call has more inputs or outputs than the function, Fail if the function makes a name twice.
    """
    if len(inputs) > len(function.input) or len(outputs) > len(function.output):
        raise InvalidGraph(
            "This is an invalid model. In Node, "
            f"{check.described(proto.name, proto.op_type, proto.domain, inputs, outputs)}, Error "
            f"Node({proto.name}) has {len(inputs)} inputs and {len(outputs)} outputs, its function has "
            f"{len(function.input)} and {len(function.output)}.",
            node=what,
        )
    graph = frame.scope.graph
    scope = Scope(graph, parent)
    for i, name in enumerate(function.input):
        scope.values[name] = inputs[i] if i < len(inputs) else None
    made = {name for node in function.node for name in node.output if name}
    after: list[tuple[str, Value]] = []
    results: dict[str, Value] = {}
    for name, target in zip(function.output, outputs, strict=False):
        if target is None:
            continue
        if name in made and name not in results:
            results[name] = target
        else:
            after.append((name, target))
    for node in function.node:
        for name in node.output:
            if not name:
                continue
            if name in scope.values:
                raise Fail(f"This is an invalid model. Error: Duplicate definition of name ({name}).",
                           node=f"function {function.domain}::{function.name}")
            value = results.get(name)
            if value is None:
                value = Value(graph.fresh(f"{what}/{name}"))
                pending.add(value)
            scope.values[name] = value
    callee = Frame(iter(enumerate(function.node)), scope, opsets, given, f"{what}/", after)
    for attribute in function.attribute_proto:
        if attribute.name not in given:
            given[attribute.name] = Bound(attribute, Frame(iter(()), scope, opsets))
    return callee
