"""What is known of the elements of small integer tensors, so that a Reshape to a computed shape has a type.

In: a node and its inputs. Out: the elements of its first output for `Value.content`: ints, names of
dimensions, None. The invariant: they are what the rules of elements say, as far as a name can tell it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import ElementType, Node, TensorType, Value
from ..shapes.elements import Elements, follow, follows, of_constant
from ..shapes.expression import Expr, named

CONTENT_LIMIT = 64
_BY_DIMENSIONS = frozenset({"Concat", "Shape", "Size"})
"""Operators some of whose elements, or how many they are, follow from their inputs' dimensions."""
_NO_INDEX = frozenset(e for e in ElementType if e.floating or e in (ElementType.BOOL, ElementType.STRING))


def content(node: Node, inputs: Sequence[Value | None]) -> tuple[Any, ...] | None:
    """What is known of the elements of `node`'s first output, if it is a small
    integer tensor of rank 0 or 1."""
    made = node.outputs[0] if node.outputs else None
    if made is None or not follows(node) or (isinstance(made.type, TensorType) and (
            made.type.elem in _NO_INDEX or len(made.shape or ()) > 1)):
        return None
    by_dimensions, first = node.op_type in _BY_DIMENSIONS, inputs[0] if inputs else None
    if not by_dimensions and (first is None or first.const is None and first.content is None):
        return None
    found = follow(node, [None if v is None else known(v) for v in inputs], [
        None if v is None or v.shape is None else list(map(dimension, v.shape)) for v in inputs
    ] if by_dimensions else ())
    if found is None or found.ndim > 1 or found.size > CONTENT_LIMIT:
        return None
    told = tuple(map(_told, found.ravel()))
    return None if all(d is None for d in told) else told


def elements(value: Value | None) -> tuple[Any, ...] | None:
    """The elements of a small integer tensor as far as they are known, else None."""
    if value is None:
        return None
    if isinstance(value.const, np.ndarray) and value.const.dtype.kind in "iu" and value.const.ndim <= 1 \
            and value.const.size <= CONTENT_LIMIT:
        return tuple(int(v) for v in value.const.ravel())
    return value.content


def known(value: Value) -> Elements | None:
    """The elements of a small tensor for the rules of shapes."""
    if value.const is not None:
        return of_constant(value.const) if value.elem not in _NO_INDEX else None
    if value.content is None:
        return None
    out = np.empty(len(value.content), object)
    out[:] = list(map(dimension, value.content))
    return out.reshape(shape_of(value))


def dimension(d: int | str | None) -> Any:
    return named(d) if isinstance(d, str) else d


def _told(element: Any) -> int | str | None:
    """An element as contents have it."""
    if isinstance(element, Expr):
        return element.symbol.name if element.symbol is not None else None
    return element if type(element) is int else None


def shape_of(value: Value) -> tuple[int, ...]:
    shape = value.shape
    return () if shape == () else (len(value.content or ()),)


def small(value: Value) -> bool:
    """Whether a tensor's elements are few enough to be followed."""
    shape = value.shape
    return shape is not None and all(isinstance(d, int) for d in shape) \
        and math.prod(shape) <= CONTENT_LIMIT
