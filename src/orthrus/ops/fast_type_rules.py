"""The types of the operators that large models are made of, where all that decides them is known.

In: a node and its inputs. Out: the type ONNX's schema inference would give its one output, for a tenth of the
time, or None. Anything unusual (an attribute out of range, a contradiction, a rank not known) is None: the
schema inference then answers, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import ElementType, Node, TensorType, Value

_LENGTH = 64
_ELEMENTS = {int(e): e for e in ElementType}

Values = Sequence[Value | None]
Dims = tuple[Any, ...]


def shortcut(node: Node, inputs: Values) -> TensorType | None:
    """The type of `node`'s output, or None where ONNX has to be asked."""
    rule = _RULES.get(node.op_type)
    if rule is None or len(node.outputs) != 1 or not inputs:
        return None
    x = inputs[0]
    if x is None or type(x.type) is not TensorType or x.type.elem is None or x.type.shape is None:
        return None
    return rule(node, inputs, x.type.elem, x.type.shape)


def _dims(value: Value | None) -> Dims | None:
    return value.type.shape if value is not None and type(value.type) is TensorType else None


def _ints(value: Value | None) -> list[int] | None:
    """The elements of a vector of integers that is constant or known."""
    if value is None:
        return None
    array = value.const
    if isinstance(array, np.ndarray):
        vector = array.ndim == 1 and array.dtype.kind == "i" and array.size <= _LENGTH
        return array.tolist() if vector else None
    content = value.content
    if content is None or len(value.shape or ()) != 1:
        return None
    return list(content) if all(type(d) is int for d in content) else None


def _axes(node: Node, inputs: Values) -> list[int] | None:
    """The axes of Squeeze and Unsqueeze, given as an attribute or as an input."""
    if node.version >= 13:
        return _ints(inputs[1]) if len(inputs) > 1 else None
    return node.attrs.get("axes")


def _inside(node: Node, axis: int, rank: int) -> bool:
    """Whether `axis` is one of `rank`; before opset 11 none counted from the back."""
    return (0 if node.version < 11 else -rank) <= axis < rank


def _places(node: Node, axes: list[int] | None, rank: int) -> set[int] | None:
    if axes is None or not all(_inside(node, a, rank) for a in axes):
        return None
    places = {a % rank for a in axes}
    return places if len(places) == len(axes) else None


def _same(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    return TensorType(elem, shape)


def _softmax(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    axis = node.attribute("axis")
    return TensorType(elem, shape) if _inside(node, axis, len(shape)) else None


def _cast(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    to = _ELEMENTS.get(node.attrs.get("to", 0))
    return None if to is None else TensorType(to, shape)


def _shape(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    if node.version < 15 and node.attrs:
        return None
    kept = shape[slice(node.attribute("start"), node.attrs.get("end"))]
    return TensorType(ElementType.INT64, (len(kept),))


def _transpose(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    perm = node.attrs.get("perm")
    if perm is None:
        return TensorType(elem, shape[::-1])
    if sorted(perm) != list(range(len(shape))):
        return None
    return TensorType(elem, tuple([shape[i] for i in perm]))


def _matmul(node: Node, inputs: Values, elem: ElementType, a: Dims) -> TensorType | None:
    b = _dims(inputs[1]) if len(inputs) == 2 else None
    if b is None or len(a) < 2 or len(b) < 2 or not (a[:-2] == b[:-2] or len(a) == 2 or len(b) == 2):
        return None
    if type(a[-1]) is int and type(b[-2]) is int and a[-1] != b[-2]:
        return None
    return TensorType(elem, (*(a[:-2] or b[:-2]), a[-2], b[-1]))


def _gather(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    indices, axis = _dims(inputs[1]) if len(inputs) == 2 else None, node.attribute("axis")
    if indices is None or not _inside(node, axis, len(shape)):
        return None
    axis %= len(shape)
    return TensorType(elem, (*shape[:axis], *indices, *shape[axis + 1:]))


def _concat(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    axis = node.attrs.get("axis", len(shape))
    total: int | None = 0
    if not _inside(node, axis, len(shape)):
        return None
    axis %= len(shape)
    for value in inputs:
        dims = _dims(value)
        if dims is None or len(dims) != len(shape):
            return None
        for i, (d, first) in enumerate(zip(dims, shape, strict=True)):
            if i == axis:
                total = total + d if type(d) is int and total is not None else None
            elif d is None or d != first:
                return None
    return TensorType(elem, (*shape[:axis], total, *shape[axis + 1:]))


def _unsqueeze(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    axes = _axes(node, inputs)
    rank = len(shape) + len(axes or ())
    places = _places(node, axes, rank)
    if not places:
        return None
    rest = iter(shape)
    return TensorType(elem, tuple([1 if i in places else next(rest) for i in range(rank)]))


def _squeeze(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    places = _places(node, _axes(node, inputs), len(shape))
    if not places or any(shape[i] != 1 for i in places):
        return None
    return TensorType(elem, tuple([d for i, d in enumerate(shape) if i not in places]))


def _reshape(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    wanted = _ints(inputs[1]) if len(inputs) == 2 else None
    if wanted is None or node.attrs.get("allowzero"):
        return None
    out: list[Any] = []
    for i, d in enumerate(wanted):
        if d < -1 or (d == 0 and i >= len(shape)):
            return None
        out.append(d or shape[i])
    if -1 not in wanted:
        return TensorType(elem, tuple(out))
    total = size = 1
    for i, d in enumerate(shape):
        if i >= len(wanted) or wanted[i]:
            if type(d) is not int:
                return None
            total *= d
    for d in wanted:
        size *= d if d > 0 else 1
    if wanted.count(-1) > 1 or not total or total % size or 0 in out:
        return None
    out[out.index(-1)] = total // size
    return TensorType(elem, tuple(out))


def _slice(node: Node, inputs: Values, elem: ElementType, shape: Dims) -> TensorType | None:
    if node.version < 10 or len(inputs) < 3:
        return None
    starts, ends = _ints(inputs[1]), _ints(inputs[2])
    if starts is None or ends is None:
        return None
    axes = _ints(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else list(range(len(starts)))
    steps = _ints(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else [1] * len(starts)
    if not _places(node, axes, len(shape)) or axes is None or steps is None:
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    out = list(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = out[axis]
        if type(size) is not int or step <= 0:
            return None
        out[axis] = len(range(*slice(start, end, step).indices(size)))
    return TensorType(elem, tuple(out))


_RULES: dict[str, Callable[[Node, Values, ElementType, Dims], TensorType | None]] = {
    "Cast": _cast, "Concat": _concat, "Gather": _gather, "Identity": _same, "LogSoftmax": _softmax,
    "MatMul": _matmul, "Reshape": _reshape, "Shape": _shape, "Slice": _slice, "Softmax": _softmax,
    "Squeeze": _squeeze, "Transpose": _transpose, "Unsqueeze": _unsqueeze,
}
