"""Type rules for operators whose schema inference cannot be asked: those that hold a graph and are no control flow."""

from __future__ import annotations

from typing import Any

from ..ir import Graph, SequenceType, TensorType, Type, Value
from .attention import FlexAttention
from .sequence import SequenceMap


def _of_element(kind: Type | None) -> Type:
    """The type of a sequence's elements; their dimensions may differ from one to the next."""
    if isinstance(kind, TensorType):
        return SequenceType(TensorType(kind.elem, None))
    return SequenceType(kind if kind is not None else TensorType(None))


@SequenceMap.infer_with
def sequence_map(*inputs: Value | None, body: Graph) -> list[Type]:
    """A sequence per output of the body."""
    return [_of_element(value.type) for value in body.outputs]


@FlexAttention.infer_with
def flex_attention(q: Value, k: Value, v: Value, **_: Any) -> list[Type]:
    """The query's batch, heads and length, and the value's width."""
    if q.shape is None or v.shape is None or len(q.shape) != 4 or len(v.shape) != 4:
        return [TensorType(q.elem, None)]
    return [TensorType(q.elem, (*q.shape[:3], v.shape[3]))]
