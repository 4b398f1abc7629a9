"""Shapes of a part's results, from this package's own inference: what a compiled module gives is held to it.

In: a part and the arrays of a run. Out: the expected shapes, or an error that names the node which does not
take such inputs. A compiler that was told a dimension is open may compute something of another shape where
the model contradicts itself; its results are never handed on unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import EPFail, Fail
from ...ir import Node, TensorType, Value
from ...kernels import Part
from ...ops.contents import content
from ...ops.infer import InferenceError, infer_node, merged
from ...recent import Recent

Shape = tuple[Any, ...]
_KEPT = 64


class Shapes:
    """The shapes of one part's results by those of its inputs; the latest are kept. `engine`: who computes.
    """

    def __init__(self, part: Part, engine: str) -> None:
        self.part, self.engine = part, engine
        self.compiled = all(_inferable(node) for node in part.nodes)
        self.known: Recent[tuple[Shape, ...], list[Shape | None]] = Recent(_KEPT)

    def expected(self, arrays: Sequence[np.ndarray]) -> list[Shape | None]:
        """A shape per output; None, and None for a dimension, where it depends on more than shapes. Raises
        Fail where a node cannot take inputs of such shapes."""
        given = tuple(a.shape for a in arrays)
        find = self._inferred if self.compiled else self._declared
        return self.known.kept(given, lambda: find(given))

    def check(self, made: Sequence[np.ndarray], expected: Sequence[Shape | None],
              arrays: Sequence[np.ndarray]) -> None:
        """Raise EPFail where a result has another shape than it has to have."""
        for value, array, shape in zip(self.part.outputs, made, expected, strict=True):
            if shape is not None and (len(shape) != array.ndim or any(
                    isinstance(d, int) and d != n for d, n in zip(shape, array.shape, strict=True))):
                raise EPFail(f"{self.engine} computed {value.name} in a wrong shape", node=self.part,
                             found=list(array.shape), expected=list(shape),
                             cure="another provider, or fixed dimensions instead of symbolic ones")

    def _declared(self, given: Sequence[Shape]) -> list[Shape | None]:
        """The outputs' own types, with the names of dimensions replaced by their sizes."""
        sizes: dict[Any, int] = {}
        for value, shape in zip(self.part.inputs, given, strict=True):
            sizes.update((d, n) for d, n in zip(value.shape or (), shape, strict=False) if isinstance(d, str))
        return [None if v.shape is None else tuple(sizes.get(d) if isinstance(d, str) else d for d in v.shape)
                for v in self.part.outputs]

    def _inferred(self, given: Sequence[Shape]) -> list[Shape | None]:
        """Inference through the part's nodes, as if the model had these shapes."""
        new = {v: Value(v.name, TensorType(v.elem, shape))
               for v, shape in zip(self.part.inputs, given, strict=True)}
        for node in self.part.nodes:
            inputs = [None if v is None else new.get(v, v) for v in node.inputs]
            try:
                types = infer_node(node, inputs, self.part.info.opsets)
            except InferenceError as error:
                raise Fail(f"inputs of these shapes do not fit {node.op_type}: {error}", node=node,
                           found=", ".join(str(list(shape)) for shape in given),
                           cure="feed shapes that every node of the model takes") from error
            for value, kind in zip(node.outputs, [*types, *[None] * len(node.outputs)], strict=False):
                if value is not None:
                    new[value] = Value(value.name, merged(kind, TensorType(value.elem)))
            first = node.outputs[0] if node.outputs else None
            if first is not None:
                new[first].content = content(node, inputs)
        found = [new[v].shape for v in self.part.outputs]
        return [None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)
                for shape in found]


def _inferable(node: Node) -> bool:
    """Whether `node` is an operator, and not one that stands for a compiled part."""
    return node.op is not None
