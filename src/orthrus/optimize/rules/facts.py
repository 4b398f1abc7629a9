"""What rules ask of values: constant integers, axes, shapes. Every answer is None where it is not known."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import Node, TensorType, Value
from ..dimensions import PREFIX


def ints(value: Value | None) -> list[int] | None:
    """The elements of a constant integer tensor."""
    if value is None or not isinstance(value.const, np.ndarray) or value.const.dtype.kind not in "iu":
        return None
    return [int(v) for v in value.const.ravel()]


def array(value: Value | None) -> np.ndarray | None:
    """The array of a constant of numbers."""
    if value is None or not isinstance(value.const, np.ndarray) or value.const.dtype == object:
        return None
    return value.const


def rank(value: Value | None) -> int | None:
    shape = value.shape if value is not None else None
    return None if shape is None else len(shape)


def positive(axes: list[int] | None, n: int | None) -> list[int] | None:
    """`axes` counted from the front, in order."""
    if axes is None or n is None or any(not -n <= a < n for a in axes):
        return None
    return sorted(a % n for a in axes)


def permutation(node: Node) -> list[int] | None:
    """A Transpose's permutation, its default written out."""
    perm = node.attribute("perm")
    if perm is not None:
        return [int(p) for p in perm]
    n = rank(node.inputs[0])
    return None if n is None else list(range(n))[::-1]


def inverse(perm: list[int]) -> list[int]:
    return [perm.index(i) for i in range(len(perm))]


def static(value: Value | None) -> tuple[int, ...] | None:
    """The shape where every dimension is a number."""
    shape = value.shape if value is not None else None
    return shape if shape is not None and all(isinstance(d, int) for d in shape) else None


def told(dim: int | str | None) -> bool:
    """Whether the model itself names a dimension."""
    return isinstance(dim, str) and not dim.startswith(PREFIX)


def differ(a: int | str | None, b: int | str | None) -> bool:
    """Whether two dimensions are not the same as far as the model tells, or one of them may be broadcast."""
    if a is None or b is None or a == b:
        return False
    return 1 in (a, b) or all(isinstance(d, int) or told(d) for d in (a, b))


def same_type(a: Value, b: Value) -> bool:
    """Whether two tensors surely have the same type: every dimension a number or the same name."""
    return isinstance(a.type, TensorType) and a.type == b.type and a.shape is not None and None not in a.shape


def unread(node: Node, *outputs: int) -> bool:
    """Whether nothing reads the outputs at these places."""
    return all(i >= len(node.outputs) or (v := node.outputs[i]) is None or v.dead for i in outputs)


def from_weights(value: Value | None) -> bool:
    """Whether a value comes straight from DequantizeLinear, so that its reader belongs to a quantized
    unit."""
    return value is not None and value.node is not None and value.node.op_type == "DequantizeLinear"


def as_type(values: Any, like: Value | np.ndarray) -> np.ndarray:
    """`values` in the element type of `like`."""
    dtype = like.dtype if isinstance(like, np.ndarray) else like.elem.numpy
    return np.asarray(values).astype(dtype)
