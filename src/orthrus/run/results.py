"""What a run hands out: arrays that are the caller's own.

In: the values of the output slots. Out: the same values, copied where a kernel gave memory that is somebody
else's: a feed's, a constant's, the arena's, or another result's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..ir import SparseArray
from ..kernels import DeviceArray, copied
from ..limits import charge
from ..plan import Program

_TEXT = np.dtype(object)
_WASTE = 4
"""A view is copied where the memory it keeps alive is more than this many times its own."""


def results(values: Sequence[Any], fed: Collection[Any], constants: frozenset[int],
            block: np.ndarray | None, targets: Sequence[Any] = ()) -> list[Any]:
    """`values` for the caller to keep and to write on: C-contiguous, and none in memory of `fed`, of
    `constants` (the ids of their `root`s), of the arena's `block` or of another result; but a result may be
    its own of `targets`. Numbers in memory of their own are a view, whose `base` has it, as onnxruntime hands
    them out. Raises Fail where the copies are more than the run may hold."""
    if len(values) == 1 and block is None and not targets and type(value := values[0]) is np.ndarray and (
            value.flags.carray):
        memory = value if value.base is None else root(value)
        if id(memory) not in constants and (
                memory is value or getattr(memory, "nbytes", 0) <= _WASTE * value.nbytes):
            for given in fed:
                if type(given) is not np.ndarray or root(given) is memory:
                    break
            else:
                return [value if memory is not value or value.dtype is _TEXT else value.view()]
    taken = {id(block)} if block is not None else set[int]()
    for value in fed:
        if type(value) is np.ndarray:
            taken.add(id(value if value.base is None else root(value)))
        else:
            taken.update([id(root(v)) for v in _arrays((value,))])
    out = []
    for i, value in enumerate(values):
        if targets and value is targets[i]:
            out.append(value)
        elif type(value) is np.ndarray:
            memory = value if value.base is None else root(value)
            key = id(memory)
            if (not value.flags.carray or key in taken or key in constants
                    or (memory is not value and getattr(memory, "nbytes", 0) > _WASTE * value.nbytes)):
                charge(value.nbytes)
                memory = value = value.copy()
                key = id(value)
            taken.add(key)
            out.append(value if memory is not value or value.dtype.hasobject else value.view())
        else:
            out.append(_owned(value, constants, taken))
    return out


def constants_of(program: Program) -> frozenset[int]:
    """The ids of the memory of every constant of `program` and of the bodies in it."""
    found, stack = set[int](), [program]
    while stack:
        it = stack.pop()
        found.update(id(root(v)) for v in it.template if isinstance(v, np.ndarray | DeviceArray))
        stack.extend(body for bound in it.kernels for body in bound.bodies)
    return frozenset(found)


def root(array: Any) -> Any:
    """The object whose memory `array` looks at."""
    if type(array) is np.ndarray:
        while (base := array.base) is not None:
            if type(base) is not np.ndarray:
                return root(base)
            array = base
        return array
    if isinstance(array, DeviceArray):
        return array.memory
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array


def _arrays(values: Iterable[Any]) -> Iterator[np.ndarray | DeviceArray]:
    for value in values:
        if isinstance(value, np.ndarray | DeviceArray):
            yield value
        elif isinstance(value, list):
            yield from _arrays(value)
        elif isinstance(value, SparseArray):
            yield from (value.values, value.indices)


def _owned(value: Any, constants: frozenset[int], taken: set[int]) -> Any:
    if isinstance(value, np.ndarray):
        memory = root(value)
        if (not value.flags.carray or id(memory) in taken or id(memory) in constants
                or getattr(memory, "nbytes", 0) > _WASTE * value.nbytes):
            charge(value.nbytes)
            return value.copy()
        taken.add(id(memory))
        return value
    if isinstance(value, DeviceArray):
        if any(id(value.memory) in known for known in (constants, taken)):
            return copied(value, value.device)
        taken.add(id(value.memory))
        return value
    if isinstance(value, list):
        return [_owned(v, constants, taken) for v in value]
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, SparseArray):
        return SparseArray(_owned(value.values, constants, taken),
                           _owned(value.indices, constants, taken), value.shape, value.flat)
    return value
