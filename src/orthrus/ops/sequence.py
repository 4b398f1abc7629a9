"""Sequences and optionals: a sequence is a list of arrays, an optional is its value or None.

Bodies never change a list they are given: each returns a new one that shares the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..limits import bounded, charge, held
from .define import op
from .tensor.movement import axis_of, ints, joined, pieces, scalar


class Items(list[Any]):
    """A sequence that knows the bytes its elements own, so that one that grows is not counted again."""

    __slots__ = ("held",)

    def __init__(self, items: Iterable[Any], size: int | None = None) -> None:
        super().__init__(items)
        self.held = sum([held(item) for item in self]) if size is None else size


def _place(position: Any, size: int, end: int) -> int:
    """`position` counted from the front; it may be at most `end` above or `size` below zero."""
    at = scalar(position, "position")
    if not -size <= at < end:
        raise InvalidArgument(f"Invalid sequence index ({at}) specified for sequence of size ({size})")
    return at + size if at < 0 else at


def _sequence(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a sequence, found {type(value).__name__}")
    return value


def _one_type(items: Sequence[Any]) -> Sequence[Any]:
    kinds = {x.dtype if type(x) is np.ndarray else getattr(x, "dtype", type(x)) for x in items}
    if len(kinds) > 1:
        raise ValueError(f"a sequence holds one element type, found {', '.join(sorted(map(str, kinds)))}")
    return items


@op
def SequenceConstruct(*inputs):
    """The inputs as a sequence"""
    return Items(_one_type(inputs))


@op
def SequenceEmpty(*, dtype: int | None = None):
    """A sequence without elements"""
    return []


@op
def SequenceAt(input_sequence, position):
    """The element at `position`"""
    items = _sequence(input_sequence)
    return items[_place(position, len(items), len(items))]


@op
def SequenceInsert(input_sequence, tensor, position=None):
    """The sequence with `tensor` put in before `position`, by default at the end"""
    items = Items(_sequence(input_sequence), held(input_sequence) + held(tensor))
    if items:
        _one_type([items[0], tensor])
    items.insert(len(items) if position is None else _place(position, len(items), len(items) + 1), tensor)
    return items


@op
def SequenceErase(input_sequence, position=None):
    """The sequence without the element at `position`, by default the last"""
    items = Items(_sequence(input_sequence), held(input_sequence))
    gone = items.pop(_place(-1 if position is None else position, len(items), len(items)))
    items.held -= held(gone)
    return items


@op
def SequenceLength(input_sequence):
    """The number of elements, an int64 scalar"""
    return np.array(len(_sequence(input_sequence)), np.int64)


@op
def SplitToSequence(x, split=None, *, axis: int = 0, keepdims: int = 1):
    """The input cut along `axis` into parts of the lengths in `split`, or of one length where it is a
    scalar. The standard asks for `keepdims` only where `split` is missing; a scalar of 1 is no other cut,
    and exporters that write the split out count on onnxruntime's reading of the two together."""
    axis = axis_of(axis, x.ndim)
    size, before = x.shape[axis], (slice(None),) * axis
    if split is not None and split.ndim:
        return list(pieces(x, ints(split, "split"), axis))
    step = 1 if split is None else scalar(split, "split")
    if step < 1:
        raise InvalidArgument(f"Invalid value in 'split' input. A scalar must be positive, found {step}")
    # A part costs an array object even where it holds nothing.
    bounded((-(-size // step), 128), np.dtype(np.int8), "sequence")
    if step == 1 and not keepdims:
        return [np.squeeze(x[(*before, slice(i, i + 1))], axis) for i in range(size)]
    return [x[(*before, slice(i, i + step))] for i in range(0, size, step)]


@op
def ConcatFromSequence(input_sequence, *, axis: int, new_axis: int = 0):
    """The elements one after the other along `axis`, which is made first where `new_axis`"""
    items = _sequence(input_sequence)
    if not items:
        raise ValueError("Must have 1 or more inputs")
    if not new_axis:
        return joined(items, axis)
    axis = axis_of(axis, items[0].ndim + 1)
    for x in items:
        if x.shape != items[0].shape:
            raise ValueError(f"cannot stack shapes {list(items[0].shape)} and {list(x.shape)}")
    bounded((len(items), *items[0].shape), items[0].dtype)
    return np.stack(items, axis)


@op
def Optional(x=None, *, type: Any = None):
    """An optional holding the input, or an empty one of the given type"""
    return x


@op
def OptionalGetElement(x):
    """What the optional holds; a tensor or a sequence stays itself"""
    if x is None:
        raise InvalidArgument("Trying to use OptionalGetElement on an optional type OrtValue which "
                              "contains no data")
    return x


@op
def OptionalHasElement(x=None):
    """Whether the optional holds something, a boolean scalar"""
    return np.array(x is not None)


@op(outputs=None)
def SequenceMap(input_sequence, *additional_inputs, body: Callable[..., list[Any]], n_outputs: int):
    """`body` applied to the i-th elements of the sequences and to the tensors as they are, for every i"""
    items = _sequence(input_sequence)
    for x in additional_inputs:
        if isinstance(x, list) and len(x) != len(items):
            raise ValueError(f"sequences of {len(items)} and {len(x)} elements cannot be mapped together")
    outputs: list[list[Any]] = [[] for _ in range(n_outputs)]
    kept = 0
    for i, item in enumerate(items):
        results = body(item, *(x[i] if isinstance(x, list) else x for x in additional_inputs))
        for made, value in zip(outputs, results, strict=True):
            made.append(value)
        size = sum(map(held, results))
        charge(size)
        kept += size
    charge(-kept)
    return tuple(outputs)
