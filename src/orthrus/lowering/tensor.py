"""Tensors of a compiled part: strided views of buffers whose addresses come later."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..codegen.runtime.call_kernel import aligned
from ..codegen.write.expr import BYTES
from ..ir import ElementType
from ..records import dataclass


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory that steps read and write. `kind`: "arena", "input" or "output" with its `index`, or "const"
    with its array, and its `address` once a plan has laid that out, or "table" with what each plan makes such
    an array of. An arena buffer gets an `offset` once its first and last step are known."""

    kind: str
    size: int
    index: int = -1
    array: np.ndarray | None = None
    first: int = -1
    last: int = -1
    offset: int = -1
    address: int = 0
    table: Any = None


@dataclass(eq=False, slots=True)
class Tensor:
    """`shape` and `strides` over `buffer`; strides and offset count elements. `dtype` is numpy's name. Never
    changed: another view is another tensor."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    buffer: Buffer
    offset: int = 0

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return BYTES[self.dtype]

    @property
    def byte_offset(self) -> int:
        return self.offset * BYTES[self.dtype]

    @property
    def contiguous(self) -> bool:
        """Whether elements lie in C order without gaps."""
        expected = 1
        for d, s in zip(self.shape[::-1], self.strides[::-1], strict=True):
            if d != 1:
                if s != expected:
                    return False
                expected *= d
        return True

    def permute(self, axes: Sequence[int]) -> Tensor:
        shape, strides = self.shape, self.strides
        return Tensor(self.dtype, tuple([shape[a] for a in axes]), tuple([strides[a] for a in axes]),
                      self.buffer, self.offset)

    def view(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Tensor:
        """Another view of the same buffer, `offset` elements further on."""
        return Tensor(self.dtype, tuple(shape), tuple(strides), self.buffer, self.offset + offset)

    def slice(self, axis: int, start: int, count: int, step: int = 1) -> Tensor:
        shape, strides = list(self.shape), list(self.strides)
        offset = start * strides[axis] if count else 0
        shape[axis], strides[axis] = count, strides[axis] * step
        return self.view(shape, strides, offset)

    def expand(self, shape: Sequence[int]) -> Tensor:
        """Broadcast to `shape`: stride 0 where a dimension is spread. ValueError where that cannot be."""
        shape = tuple(shape)
        if shape == self.shape and 1 not in shape:
            return self
        missing = len(shape) - len(self.shape)
        if missing < 0:
            raise ValueError(f"shape {self.shape} is not broadcast to {shape}")
        strides = [0] * missing
        for d, s, wanted in zip(self.shape, self.strides, shape[missing:], strict=True):
            if d != wanted and d != 1:
                raise ValueError(f"shape {self.shape} is not broadcast to {shape}")
            strides.append(s if d == wanted and d != 1 else 0)
        return Tensor(self.dtype, shape, tuple(strides), self.buffer, self.offset)

    def reshape(self, shape: Sequence[int]) -> Tensor | None:
        """The same elements in C order under another shape; None where no strides can say that."""
        shape = tuple(shape)
        if self.contiguous or self.size == 0:
            return Tensor(self.dtype, shape, c_strides(shape), self.buffer, self.offset)
        old = [(d, s) for d, s in zip(self.shape, self.strides, strict=True) if d != 1]
        runs: list[list[int]] = []
        for d, s in old:
            if runs and runs[-1][1] == d * s:
                runs[-1] = [runs[-1][0] * d, s]
            else:
                runs.append([d, s])
        strides: list[int] = []
        left = [run[:] for run in runs]
        for d in reversed(shape):
            if d == 1:
                strides.append(0)
                continue
            if not left or left[-1][0] % d:
                return None
            strides.append(left[-1][1])
            left[-1] = [left[-1][0] // d, left[-1][1] * d]
            if left[-1][0] == 1:
                left.pop()
        return Tensor(self.dtype, shape, tuple(reversed(strides)), self.buffer, self.offset)

    def joined(self, first: int, end: int) -> int | None:
        """The stride of the axes from `first` up to `end` walked as one; None where there is none."""
        found, size = 0, 1
        for axis in reversed(range(first, end)):
            d, s = self.shape[axis], self.strides[axis]
            if d == 1:
                continue
            if size == 1:
                found = s
            elif s != size * found:
                return None
            size *= d
        return found


def numpy_type(name: str) -> np.dtype[Any]:
    """The type that kernels call so."""
    return np.dtype(name) if name != "bfloat16" else ElementType.BFLOAT16.numpy


def joint_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all of these broadcast to. Raises ValueError where there is none."""
    longest = max(shapes, key=len, default=())
    made = list(longest)
    for shape in shapes:
        for i in range(1, len(shape) + 1):
            if made[-i] == 1:
                made[-i] = shape[-i]
            elif shape[-i] != 1 and shape[-i] != made[-i]:
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
    return tuple(made)


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of C order."""
    out, at = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        out[i] = at
        at *= shape[i]
    return tuple(out)


def last_strides(shape: Sequence[int], pitch: int) -> tuple[int, ...]:
    """Strides of a channels-last image (N, C, ...spatial) whose pixels are `pitch` elements apart."""
    spatial, at = [], pitch
    for d in reversed(shape[2:]):
        spatial.append(at)
        at *= d
    return (at, 1, *reversed(spatial))


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last that the view touches."""
    if 0 in shape:
        return 0
    return 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))


def of_constant(array: Any) -> Tensor:
    """A tensor over an array, which its buffer keeps alive and a plan that reads it lays out in C order."""
    buffer = Buffer("const", array.nbytes, array=array)
    return Tensor(array.dtype.name, array.shape, c_strides(array.shape), buffer)


def at_line(array: np.ndarray) -> np.ndarray:
    """`array`, or a copy of it, in C order from a cache line on: vectors across two lines load slowly."""
    if array.flags.c_contiguous and array.ctypes.data % 64 == 0:
        return array
    made = aligned(array.shape, array.dtype)
    made[...] = array
    return made


def listed(numbers: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array of these numbers."""
    return np.array(numbers, np.int64).astype(dtype)


def counted(start: int, count: int, step: int, dtype: str) -> np.ndarray:
    """`count` numbers from `start` on."""
    return np.arange(start, start + count * step, step).astype(numpy_type(dtype))
