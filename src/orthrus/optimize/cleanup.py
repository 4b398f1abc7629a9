"""Passes that take away what does nothing: dead nodes, unread initializers, operators that give back their
input, repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir import Node, TensorType, Value
from .pattern import number
from .rewrite import Work, is_dead

_SHARED_BYTES = 4096
_SHARED_ELEMENTS = 8
"""As many as onnxruntime shares: more would make a model that it cannot always fuse."""
_INT_MAX = (1 << 31) - 1


def drop_dead_nodes(work: Work) -> int:
    """Take out nodes nothing reads."""
    count = 0
    for node in reversed(work.graph.nodes):
        if node not in work.removed and is_dead(node):
            if not work.take():
                break
            before = len(work.removed)
            work.remove(node)
            count += len(work.removed) - before
    return count


def drop_unused_initializers(work: Work) -> int:
    """Take out initializers nothing reads, unless they are inputs too."""
    inputs = set(work.graph.inputs)
    unread = [k for k, v in work.graph.initializers.items() if v.dead and v not in inputs]
    for name in unread:
        del work.graph.initializers[name]
    return len(unread)


def drop_identity(work: Work) -> int:
    """Let the readers of an operator that changes nothing read its input."""
    count, apart = 0, work.settings is not None and work.settings.weights_apart
    for node in work.graph.nodes:
        rule = _SAME.get(node.op_type) if not node.domain else None
        if rule is None or node in work.removed or not node.outputs or node.outputs[0] is None:
            continue
        if any(v is not None and not v.dead for v in node.outputs[1:]):
            continue
        same = rule(node)
        if same is None or same is node.output or not _agrees(node.output, same):
            continue
        if apart and any(v is not None and isinstance(v.const, np.ndarray) and _is_weight(v.const)
                         for v in node.inputs):
            continue
        if not work.can_replace(node.output, same):
            continue
        if not work.take():
            break
        _tell(same, node.output)
        work.replace(node.output, same)
        work.remove(node)
        count += 1
    return count


def _tell(value: Value, twin: Value) -> None:
    """What is known of `twin` holds for `value`, which is the same."""
    if value.type is None:
        value.type = twin.type
    if value.content is None and value.const is None:
        value.content = twin.content


def _agrees(old: Value, new: Value) -> bool:
    return old.elem is None or new.elem is None or old.elem == new.elem


def _known_same_shape(node: Node) -> bool:
    """Whether the first input and the output have one shape, every dimension of it a number or the same
    name."""
    x = node.inputs[0]
    a, b = (x.shape if x is not None else None), node.output.shape
    return a is not None and a == b and None not in a


def _const(node: Node, index: int) -> Any:
    value = node.inputs[index] if index < len(node.inputs) else None
    return value.const if value is not None and isinstance(value.const, np.ndarray) else None


def _first(node: Node) -> Value | None:
    return node.inputs[0]


def _dropout(node: Node) -> Value | None:
    if node.version < 7:
        return node.inputs[0] if node.attribute("is_test") else None
    if node.version >= 12 and len(node.inputs) > 2 and node.inputs[2] is not None:
        return node.inputs[0] if number(node.inputs[2]) == 0 else None
    return node.inputs[0]


def _cast(node: Node) -> Value | None:
    """One that makes an output stays, as in what onnxruntime saves."""
    x = node.inputs[0]
    same = x is not None and x.elem is not None and x.elem == node.attrs.get("to")
    return x if same and not node.output.graph_outputs else None


def _reshape(node: Node) -> Value | None:
    shape = _const(node, 1)
    x = node.inputs[0]
    if shape is not None and not node.attribute("allowzero") and x is not None and x.shape is not None \
            and shape.size == len(x.shape) and np.count_nonzero(shape) == int(-1 in shape):
        return x
    return x if _known_same_shape(node) else None


def _same_shape(node: Node) -> Value | None:
    return node.inputs[0] if _known_same_shape(node) else None


def _transpose(node: Node) -> Value | None:
    perm, x = node.attrs.get("perm"), node.inputs[0]
    if perm is None:
        return x if x is not None and x.shape is not None and len(x.shape) < 2 else None
    return x if list(perm) == list(range(len(perm))) else None


def _slice(node: Node) -> Value | None:
    x = node.inputs[0]
    starts, ends = _const(node, 1), _const(node, 2)
    if node.version < 10 or x is None or starts is None or ends is None or starts.ndim != 1 or ends.ndim != 1:
        return None
    axes = _const(node, 3) if len(node.inputs) > 3 and node.inputs[3] is not None else np.arange(starts.size)
    steps = _const(node, 4) if len(node.inputs) > 4 and node.inputs[4] is not None else np.ones(starts.size)
    if axes is None or steps is None or axes.ndim != 1 or np.any(steps != 1) or np.any(starts != 0):
        return None
    for axis, end in zip(axes.tolist(), ends.tolist(), strict=False):
        dim = x.shape[axis] if x.shape is not None and -len(x.shape) <= axis < len(x.shape) else None
        if end < _INT_MAX and not (isinstance(dim, int) and end >= dim):
            return None
    return x


def _pad(node: Node) -> Value | None:
    pads = _const(node, 1) if node.version >= 11 else np.asarray(node.attrs.get("pads", [1]))
    return node.inputs[0] if pads is not None and not np.any(pads) else None


def _expand(node: Node) -> Value | None:
    shape, x = _const(node, 1), node.inputs[0]
    if (
        shape is not None
        and x is not None
        and x.shape is not None
        and shape.size <= len(x.shape)
        and np.all(shape == 1)
    ):
        return x
    return x if _known_same_shape(node) else None


def _single(node: Node) -> Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _tile(node: Node) -> Value | None:
    repeats = _const(node, 1)
    return node.inputs[0] if node.version >= 6 and repeats is not None and np.all(repeats == 1) else None


def _flatten(node: Node) -> Value | None:
    x = node.inputs[0]
    return (
        x
        if x is not None and x.shape is not None and len(x.shape) == 2 and node.attribute("axis") in (1, -1)
        else None
    )


def _clip(node: Node) -> Value | None:
    bounded = any(v is not None for v in node.inputs[1:]) or "min" in node.attrs or "max" in node.attrs
    return None if bounded or node.version < 11 else node.inputs[0]


def _resize(node: Node) -> Value | None:
    scales = _const(node, 2)
    if scales is None or not scales.size or np.any(scales != 1) or node.version < 11:
        return None
    return (
        None if node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize" else node.inputs[0]
    )


def _neutral(value: float | bool, either: bool) -> Callable[[Node], Value | None]:
    """For `x + 0` and its like: x, where the constant is the neutral element and does not widen x's shape."""
    def rule(node: Node) -> Value | None:
        if node.version < 7 or len(node.inputs) != 2:
            return None
        a, b = node.inputs
        for x, c in ((a, b), (b, a)) if either else ((a, b),):
            if x is None or c is None or not isinstance(c.const, np.ndarray) or c.const.dtype == object:
                continue
            if not c.const.size or not np.all(c.const == value):
                continue
            if c.const.size == 1 and (
                c.const.ndim == 0 or (x.shape is not None and c.const.ndim <= len(x.shape))
            ):
                return x
            if isinstance(x.type, TensorType) and x.shape is not None and x.shape == node.output.shape \
                    and None not in x.shape:
                return x
        return None
    return rule


def _cast_like(node: Node) -> Value | None:
    x, like = node.inputs
    return x if x is not None and like is not None and x.elem is not None and x.elem == like.elem else None


_SAME: dict[str, Callable[[Node], Value | None]] = {
    **dict.fromkeys(("Identity", "MemcpyFromHost", "MemcpyToHost"), _first),
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Concat": _single,
    "Sum": _single,
    "Max": _single,
    "Min": _single,
    "Mean": _single,
    "Tile": _tile,
    "Flatten": _flatten,
    "Clip": _clip,
    "Resize": _resize,
    "Squeeze": _same_shape,
    "Unsqueeze": _same_shape,
    "Add": _neutral(0, True),
    "Sub": _neutral(0, False),
    "Mul": _neutral(1, True),
    "Div": _neutral(1, False),
    "Pow": _neutral(1, False),
    "And": _neutral(True, True),
    "Or": _neutral(False, True),
    "Xor": _neutral(False, True),
    "BitShift": _neutral(0, False),
}


def merge_common_subexpressions(work: Work) -> int:
    """One node for all that apply the same operator to the same values, equal constants among them; one
    initializer for equal constants of a few elements."""
    apart = work.settings is not None and work.settings.weights_apart
    count = _merge_constants(work, apart)
    seen: dict[Any, Node] = {}
    contents: dict[Value, Any] = {}
    for node in work.graph.nodes:
        key = _key(node, contents, apart)
        if key is None or node in work.removed:
            continue
        first = seen.setdefault(key, node)
        if first in work.removed:
            first = seen[key] = node
        if first is node:
            continue
        pairs = [
            (a, b)
            for a, b in zip(node.outputs, first.outputs, strict=True)
            if a is not None and b is not None
        ]
        if not all(work.can_replace(a, b) for a, b in pairs):
            continue
        if not work.take():
            break
        for a, b in pairs:
            _tell(b, a)
            work.replace(a, b)
        work.remove(node)
        count += 1
    return count


def _merge_constants(work: Work, apart: bool) -> int:
    seen: dict[Any, Value] = {}
    count = 0
    inputs = set(work.graph.inputs)
    for value in list(work.graph.initializers.values()):
        array = value.const
        if (
            not isinstance(array, np.ndarray)
            or array.dtype == object
            or array.size > _SHARED_ELEMENTS
            or (apart and _is_weight(array))
            or value in inputs
            or value.graph_outputs
        ):
            continue
        first = seen.setdefault(_content(array), value)
        if first is not value and not value.dead:
            if not work.take():
                break
            work.replace(value, first)
            count += 1
    return count


_APART = frozenset({"QuantizeLinear", "DequantizeLinear"})


def _is_weight(array: np.ndarray) -> bool:
    return array.size > 1 and array.dtype.kind not in "biuO"


def _content(array: np.ndarray) -> Any:
    """What makes two arrays equal."""
    return array.dtype, array.shape, array.tobytes()


def _key(node: Node, contents: dict[Value, Any], apart: bool) -> Any:
    """What makes two nodes equal; None for a node that must stay itself. `contents`: by which constants were
    told apart so far. `apart`: equal weights are not the same."""
    op = node.op
    if op is None or "rng" in op.runtime or node.op_type in _APART or not node.inputs:
        return None
    try:
        attrs = tuple(sorted((k, _frozen(v)) for k, v in node.attrs.items()))
    except TypeError:
        return None
    present = tuple(v is not None for v in node.outputs)
    given = tuple(id(v) if v is None or not isinstance(v.const, np.ndarray) else contents.get(v) or
                  contents.setdefault(v, _frozen_constant(v, apart)) for v in node.inputs)
    return node.domain, node.op_type, node.version, given, attrs, present


def _frozen_constant(value: Value, apart: bool) -> Any:
    """A small constant by its elements, another by its place."""
    array = value.const
    own = array.dtype == object or array.nbytes > _SHARED_BYTES or (apart and _is_weight(array))
    return id(value) if own else _content(array)


def _frozen(value: Any) -> Any:
    if isinstance(value, int | float | str):
        return type(value).__name__, value
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes <= _SHARED_BYTES:
        return _content(value)
    raise TypeError("an attribute without a key")
