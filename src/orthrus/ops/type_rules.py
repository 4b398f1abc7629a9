"""Type rules for operators whose schema inference cannot be asked.

Some hold a graph and are no control flow; some have none beside their function body. That of others does not
survive hostile attributes in onnx 1.23: Einsum's does not end for some equations, GatherND's and
LayerNormalization's read out of bounds, and Expand's counts to whatever length its shape input is declared
with. ConvTranspose's adds the output padding to what auto_pad has fixed already, and STFT's takes an absent
`onesided` for 0.
"""

from __future__ import annotations

from typing import Any

from ..ir import ElementType, Graph, SequenceType, TensorType, Type, Value
from .define import broadcast, normalized_axis
from .infer import elements
from .math.linalg import Einsum, parsed_equation
from .math.signal import STFT
from .nn.attention import FlexAttention
from .nn.conv import ConvTranspose, transposed
from .nn.norm import (
    GroupNormalization,
    GroupNormalization_18,
    LayerNormalization,
    MeanVarianceNormalization,
)
from .sequence import SequenceMap
from .tensor.index import GatherND
from .tensor.movement import Expand

_RANK_LIMIT = 1024
_WIDE = 1 << 40
"""Stands for an unknown dimension that padding must not use up."""


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


@Expand.infer_with
def expand(x: Value, shape: Value) -> list[Type]:
    """Broadcast both ways against the shape, or as much of it as is known."""
    wanted = elements(shape)
    if wanted is not None:
        if any(isinstance(d, int) and d < 0 for d in wanted):
            raise ValueError(f"Expand to a negative dimension: {list(wanted)}")
        return [TensorType(x.elem, broadcast(x.shape, wanted))]
    length = shape.shape[0] if shape.shape else None
    if x.shape is None or not isinstance(length, int) or length > _RANK_LIMIT:
        return [TensorType(x.elem, None)]
    return [TensorType(x.elem, (None,) * max(length, len(x.shape)))]


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


@LayerNormalization.infer_with
def layer_normalization(
    x: Value, *_: Value | None, axis: int, stash_type: int, **__: Any
) -> list[Type]:
    """The input's type; mean and deviation have 1 for every normalized dimension."""
    stash = ElementType(stash_type)
    if x.shape is None:
        return [TensorType(x.elem, None), TensorType(stash, None), TensorType(stash, None)]
    start = normalized_axis(axis, len(x.shape))
    kept = TensorType(stash, (*x.shape[:start], *(1,) * (len(x.shape) - start)))
    return [TensorType(x.elem, x.shape), kept, kept]


@GroupNormalization.infer_with
@GroupNormalization_18.infer_with
@MeanVarianceNormalization.infer_with
def normalization(x: Value, *_: Value | None, **__: Any) -> list[Type]:
    """The input's type."""
    return [TensorType(x.elem, x.shape)]


@ConvTranspose.infer_with
def conv_transpose(x: Value, w: Value, *_: Value | None, auto_pad: str,
                   dilations: list[int] | None = None, group: int, kernel_shape: list[int] | None = None,
                   output_padding: list[int] | None = None, output_shape: list[int] | None = None,
                   pads: list[int] | None = None, strides: list[int] | None = None) -> list[Type]:
    """[N, M, O...], a dimension of it unknown where that of the input or of the kernel is."""
    if x.shape is None or w.shape is None or len(x.shape) < 3:
        return [TensorType(x.elem, None)]
    kernel, size = kernel_shape or w.shape[2:], x.shape[2:]
    if len(w.shape) != len(x.shape) or len(kernel) != len(size):
        raise ValueError(f"a kernel of shape {w.shape} does not fit an input of shape {x.shape}")
    known = [isinstance(n, int) and isinstance(k, int) for n, k in zip(size, kernel, strict=True)]
    out = transposed([n if ok else _WIDE for n, ok in zip(size, known, strict=True)],
                     [k if ok else 1 for k, ok in zip(kernel, known, strict=True)],
                     strides, dilations, auto_pad, output_padding, output_shape, pads)[1]
    channels = w.shape[1] * group if isinstance(w.shape[1], int) else w.shape[1] if group == 1 else None
    fixed = bool(output_shape)
    return [TensorType(x.elem, (x.shape[0], channels, *(n if ok or fixed else None
                                                        for n, ok in zip(out, known, strict=True))))]


@STFT.infer_with
def stft(signal: Value, step: Value, window: Value | None = None, length: Value | None = None, *,
         onesided: int) -> list[Type]:
    """[batch, frames, bins, 2], each unknown where it follows from what is not known."""
    if signal.shape is None:
        return [TensorType(signal.elem, (None, None, None, 2))]
    batch, total = signal.shape[:2]
    size, stride = _number(length), _number(step)
    if size is None and length is None:
        size = total if window is None else window.shape[0] if window.shape else None
    if not isinstance(size, int):
        return [TensorType(signal.elem, (batch, None, None, 2))]
    whole = stride is not None and stride > 0 and isinstance(total, int)
    frames = (total - size) // stride + 1 if whole else None
    return [TensorType(signal.elem, (batch, frames, size // 2 + 1 if onesided else size, 2))]


def _number(value: Value | None) -> Any:
    known = elements(value)
    return known[0] if known and isinstance(known[0], int) else None
