"""Which nodes a step of a plan works for: a part's steps in, a `Work` for each out.

A node of a part has its own steps, or is applied inside a step of a later node (an elementwise node in the
kernel that stores), or is nothing but another view of memory, or was computed while lowering. Every node but
the last kind is named by exactly one group of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..ir import Node, TensorType, Type, Value, element_of, type_of
from ..kernels import Part, Work
from .lower import Lazy, Lowering
from .step import KernelStep
from .tensor import Buffer, Tensor, numpy_type


class Account:
    """What a lowering knew of its part's values: `folded`, those known without running anything."""

    def __init__(self, lowering: Lowering) -> None:
        self.kinds = {v: (found.dtype if isinstance(found, Tensor) else found.tree.dtype, found.shape)
                      for v, found in lowering.env.items() if found is not None}
        self.kinds.update((v, (array.dtype.name, array.shape)) for v, array in lowering.host.items())
        self.placed, self.folded = places(lowering), frozenset(lowering.host)
        self._works: list[Work] | None = None

    def works(self, part: Part, steps: Sequence[KernelStep]) -> list[Work]:
        """What each of the lowering's steps does, and for which nodes of `part`."""
        if self._works is None:
            known: dict[Value, Type] = {v: TensorType(element_of(numpy_type(dtype)), shape)
                                        for v, (dtype, shape) in self.kinds.items()}
            known.update((v, type_of(v.const)) for node in part.nodes for v in node.inputs
                         if v is not None and v not in known and isinstance(v.const, np.ndarray))
            self._works = works(part, steps, self.placed, self.folded, known)
        return self._works


def places(lowering: Lowering) -> dict[Value, Buffer]:
    """The buffer of each value that is in memory."""
    found: dict[Value, Buffer] = {}
    for value, where in lowering.env.items():
        if isinstance(where, Tensor):
            found[value] = where.buffer
        elif isinstance(where, Lazy) and where.tree.op == "leaf" and where.source is not None \
                and where.source.tensor is not None:
            found[value] = where.source.tensor.buffer
    return found


def works(part: Part, steps: Sequence[KernelStep], placed: Mapping[Value, Buffer], folded: frozenset[Value],
          types: Mapping[Value, Type]) -> list[Work]:
    """A work for each of `steps`. `folded`: values known without running anything."""
    owners = _owners(part, steps, placed)
    groups = _groups(part, set(owners), folded)
    members: dict[Node, list[Node]] = {}
    for node in part.nodes:
        if node in groups:
            members.setdefault(groups[node], []).append(node)
    turns = {node: owners.count(node) for node in members}
    made: dict[Node, int] = {}
    found: list[Work] = []
    for step, owner in zip(steps, owners, strict=True):
        nodes = tuple(members[owner])
        given, results = _border(nodes, folded)
        made[owner] = made.get(owner, 0) + 1
        kernel = step.spec.template if step.spec is not None else f"reference {step.node.op_type}"
        found.append(Work(owner, kernel, nodes, given, results, types, made[owner], turns[owner]))
    return found


def _owners(part: Part, steps: Sequence[KernelStep], placed: Mapping[Value, Buffer]) -> list[Node]:
    """Per step the node whose result it makes, or helps to make."""
    order = {node: i for i, node in enumerate(part.nodes)}
    makers: dict[int, set[Node]] = {}
    for value, buffer in placed.items():
        if value.node in order:
            makers.setdefault(id(buffer), set()).add(value.node)
    readers: dict[int, Node] = {}
    owners: list[Node] = []
    for step in reversed(steps):
        written = [id(t.buffer) for t in step.outs]
        candidates = {node for b in written for node in makers.get(b, ())}
        if step.node in candidates:
            owner = step.node
        elif candidates:
            owner = min(candidates, key=order.__getitem__)
        else:
            owner = next((readers[b] for b in written if b in readers), step.node)
        owners.append(owner)
        for t in step.args:
            if isinstance(t, Tensor):
                readers[id(t.buffer)] = owner
    return owners[::-1]


def _groups(part: Part, owners: set[Node], folded: frozenset[Value]) -> dict[Node, Node]:
    """Per node the one whose steps serve it: itself, else that of its first reader, else of a source."""
    groups = {node: node for node in owners}
    inside = {node: i for i, node in enumerate(part.nodes)}
    waiting: list[Node] = []
    for node in reversed(part.nodes):
        results = [v for v in node.outputs if v is not None]
        if node in groups or all(v in folded for v in results):
            continue
        readers = sorted((r for v in results for r in v.uses if r in groups and r in inside),
                         key=inside.__getitem__)
        if readers:
            groups[node] = groups[readers[0]]
        else:
            waiting.append(node)
    for node in reversed(waiting):
        source = next((v.node for v in node.inputs if v is not None and v.node in groups), None)
        if source is not None:
            groups[node] = groups[source]
    return groups


def _border(nodes: Sequence[Node], folded: frozenset[Value]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """What `nodes` read from others, and what others read of them."""
    own = set(nodes)
    given = {v: None for node in nodes for v in node.inputs if v is not None and v.node not in own}
    results = [v for node in nodes for v in node.outputs
               if v is not None and v not in folded and (v.graph_outputs or set(v.uses) - own)]
    return tuple(given), tuple(results)
