"""A part with open dimensions as one compiled kernel for each tuple of input shapes.

In: a part, and what makes a kernel of a part whose shapes are known. Out: `FixedShapes`, whose `start` begins
a run by the kernel for the shapes of its arrays, compiled when they come for the first time. Code for known
sizes is several times faster than code for any size, and nothing is left for it to assume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import EPFail, Fail
from ...ir import Graph, No, Node, TensorType, Value
from ...kernels import Kernel, Part
from ...ops.contents import content
from ...ops.infer import InferenceError, infer_node, merged
from ...recent import Recent
from ...records import dataclass

Shape = tuple[int, ...]
_LOADED = 8
"""Kernels of one part that stay loaded; the others are in the cache on disk."""


def is_open(part: Part) -> bool:
    """Whether a dimension of what comes into `part` is not known."""
    return any(not all(isinstance(d, int) for d in v.shape or ()) for v in part.inputs)


@dataclass(frozen=True)
class Engine:
    """The engine's name, and what helps where a part does not compile for the shapes of a run."""

    name: str
    cure: str


class FixedShapes:
    """The kernels of one part by the shapes of its inputs. `make`: a part of known shapes in, its kernel or
    why there is none out."""

    def __init__(self, part: Part, make: Callable[[Part], Kernel | No], engine: Engine) -> None:
        self.part, self.make, self.engine = part, make, engine
        self.kernels: Recent[tuple[Shape, ...], Kernel] = Recent(_LOADED)

    def kernel(self, arrays: Sequence[np.ndarray]) -> Kernel:
        """The kernel for arrays of these shapes. Raises EPFail where they do not compile, Fail where a node
        cannot take them."""
        return self.of_shapes(tuple(a.shape for a in arrays))

    def of_shapes(self, shapes: tuple[Shape, ...]) -> Kernel:
        """The kernel for these shapes; raises as `kernel`."""
        return self.kernels.kept(shapes, lambda: self._compiled(shapes))

    def _compiled(self, shapes: tuple[Shape, ...]) -> Kernel:
        found = self.make(fixed(self.part, shapes))
        if isinstance(found, No):
            raise EPFail(f"{self.engine.name} does not compile a part for these shapes: {found.reason}",
                         node=self.part, found=", ".join(str(list(s)) for s in shapes), cure=self.engine.cure)
        return found

    def __call__(self, *arrays: np.ndarray) -> Any:
        """The results for `arrays`."""
        return self.kernel(arrays).run(*arrays)

    def start(self, *arrays: np.ndarray) -> Callable[[], Any]:
        """Begin a run; the function that is answered waits for it. The device has to be one that can."""
        begin = self.kernel(arrays).start
        assert begin is not None
        made: Callable[[], Any] = begin(*arrays)
        return made


def fixed(part: Part, shapes: Sequence[Shape]) -> Part:
    """`part` for inputs of these shapes: copies of its nodes, which hold no bodies, every shape that follows
    inferred anew; constants are shared. Raises Fail where a node cannot take them."""
    graph = Graph(str(part), info=part.info)
    new: dict[Value, Value] = {}
    for value, shape in zip(part.inputs, shapes, strict=True):
        new[value] = Value(value.name, TensorType(value.elem, tuple(shape)))
    graph.inputs = [new[v] for v in part.inputs]
    for node in part.nodes:
        graph.nodes.append(_copied(node, new, graph, shapes))
    graph.set_outputs([new[v] for v in part.outputs])
    return replace(part, nodes=graph.nodes, inputs=graph.inputs, outputs=graph.outputs)


def _copied(node: Node, new: dict[Value, Value], graph: Graph, shapes: Sequence[Shape]) -> Node:
    """`node` on the values of `new`, where its own go as well."""
    for value in node.inputs:
        if value is not None and value not in new:
            new[value] = Value(value.name, value.type, None, value.const)
    made = Node(node.op_type, node.domain, node.version, node.op,
                [None if v is None else new[v] for v in node.inputs], node.attrs, node.name, node.index)
    for value in node.outputs:
        if value is not None:
            new[value] = Value(value.name, TensorType(value.elem), made)
        made.outputs.append(None if value is None else new[value])
    try:
        types = infer_node(made, made.inputs, graph.info.opsets)
    except InferenceError as error:
        raise Fail(f"inputs of these shapes do not fit {node.op_type}: {error}", node=node,
                   found=", ".join(str(list(shape)) for shape in shapes),
                   cure="feed shapes that every node of the model takes") from error
    for value, kind in zip(made.outputs, types, strict=False):
        if value is not None:
            value.type = merged(kind, value.type)
    if made.outputs and made.outputs[0] is not None:
        made.outputs[0].content = content(made, made.inputs)
    return made
