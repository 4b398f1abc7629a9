"""The null provider: takes every node and computes nothing, so that what is left to
measure is the runtime itself.

Outputs have the planned type and shape and hold zeros; a dimension that is not known is 1. They are the
same arrays in each run and read-only, so that what a run hands out is a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir import No, Node, OptionalType, SequenceType, TensorType, Value
from ...kernels import Kernel, Part
from ..base import ExecutionProvider


class NullExecutionProvider(ExecutionProvider):
    """Computes nothing: measures overhead, tests planning."""

    name = "NullExecutionProvider"
    listed = False

    def claim(self, node: Node) -> No | None:
        if node.has_bodies:
            return No("control flow stays with the runtime; its bodies are partitioned themselves")
        if any(v is not None and not isinstance(v.type, TensorType | SequenceType | OptionalType)
               for v in node.outputs):
            return No("an output's type is not known")
        return None

    def compile(self, part: Part) -> Sequence[Kernel]:
        return [Kernel(_nothing([_empty(v) for v in node.outputs]), "nothing") for node in part.nodes]


def _nothing(results: list[Any]) -> Any:
    answer = results[0] if len(results) == 1 else tuple(results)
    return lambda *_: answer


def _empty(value: Value | None) -> Any:
    if value is None or isinstance(value.type, OptionalType):
        return None
    if not isinstance(value.type, TensorType):
        return []
    shape = [d if isinstance(d, int) else 1 for d in value.type.shape or ()]
    elem = value.type.elem
    array = np.zeros(shape, elem.numpy if elem is not None else np.float32)
    if array.dtype == object:
        array[...] = ""
    array.flags.writeable = False
    return array
