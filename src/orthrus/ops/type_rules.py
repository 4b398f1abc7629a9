"""Type rules for operators whose schema inference cannot be asked.

Some hold a graph and are no control flow; some have none beside their function body. That of others does not
survive hostile attributes in onnx 1.23: Einsum's does not end for some equations, GatherND's reads out of
bounds. Those the standard took back have no schema.
"""

from __future__ import annotations

from typing import Any

from ..ir import Graph, SequenceType, TensorType, Type, Value
from ..shapes.products import parsed_equation
from .define import broadcast
from .math.linalg import Einsum
from .nn.attention import FlexAttention
from .sequence import SequenceMap
from .tensor.index import GatherND
from .tensor.movement import Crop, DynamicSlice, MemcpyFromHost, MemcpyToHost


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


@Einsum.infer_with
def einsum(*inputs: Value | None, equation: str) -> list[Type]:
    """The shape the equation spells. Raises ValueError where it is malformed or does not fit the operands'
    ranks."""
    terms, output = parsed_equation(equation)
    operands = [v for v in inputs if v is not None]
    if len(terms) != len(operands):
        raise ValueError(f"the Einsum equation has {len(terms)} terms for {len(operands)} operands")
    elem = operands[0].elem
    if any(v.shape is None for v in operands):
        return [TensorType(elem, None)]
    sizes: dict[str, Any] = {}
    ellipses: list[Any] = []
    for term, value in zip(terms, operands, strict=True):
        before, dots, after = term.partition("...")
        shape = value.shape
        if len(shape) < len(before) + len(after) or (not dots and len(shape) != len(before)):
            raise ValueError(f"the Einsum term {term!r} does not fit an operand of rank {len(shape)}")
        end = len(shape) - len(after)
        ellipses.append(shape[len(before):end])
        for letter, size in zip(before + after, (*shape[:len(before)], *shape[end:]), strict=True):
            known = broadcast((size,), (sizes.get(letter, size),))
            sizes[letter] = known[0]
    if output is None:
        every = "".join(terms).replace(".", "")
        output = "..." * any("..." in t for t in terms) + "".join(
            sorted(letter for letter in set(every) if every.count(letter) == 1))
    before, dots, after = output.partition("...")
    middle = broadcast(*ellipses) if dots else ()
    return [TensorType(elem, (*(sizes[k] for k in before), *middle, *(sizes[k] for k in after)))]


@GatherND.infer_with
def gather_nd(data: Value, indices: Value, *, batch_dims: int) -> list[Type]:
    """The batch and index dimensions, then those of the data that the tuples leave open."""
    if data.shape is None or indices.shape is None:
        return [TensorType(data.elem, None)]
    rank, count = len(data.shape), len(indices.shape)
    if not rank or not count or not 0 <= batch_dims < min(rank, count):
        raise ValueError(
            f"batch_dims {batch_dims} does not fit data of rank {rank} and indices of rank {count}"
        )
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        return [TensorType(data.elem, None)]
    if not 1 <= depth <= rank - batch_dims:
        raise ValueError(
            f"the last dimension of indices, {depth}, must not be larger than the {rank - batch_dims} "
            "dimensions of data it indexes"
        )
    return [TensorType(data.elem, (*indices.shape[:-1], *data.shape[batch_dims + depth:]))]


@MemcpyFromHost.infer_with
@MemcpyToHost.infer_with
def copied(x: Value) -> list[Type | None]:
    """The input's type."""
    return [x.type]


@DynamicSlice.infer_with
def sliced(data: Value, *_: Value | None) -> list[Type]:
    """The input's rank."""
    return [TensorType(data.elem, None if data.shape is None else (None,) * len(data.shape))]


@Crop.infer_with
def cropped(input: Value, *, border: list[int], scale: list[int] | None) -> list[Type]:
    """The input's images and channels, and lengths less what the borders take."""
    shape = input.shape
    if shape is None or len(shape) != 4 or len(border) != 4:
        return [TensorType(input.elem, None)]
    taken = (border[1] + border[3], border[0] + border[2])
    lengths = scale or [n - t if isinstance(n, int) else None for n, t in zip(shape[2:], taken, strict=True)]
    return [TensorType(input.elem, (*shape[:2], *lengths))]
