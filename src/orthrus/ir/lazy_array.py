"""An array that stays where it is stored until someone looks at its elements.

In: type, shape, and how to read the bytes. Out: what behaves as the numpy array in every respect, and is told
apart from one only by `type(x) is np.ndarray`. Elements are read again for each look, unless somebody still
holds what an earlier look read: weights that were only packed into another form take no memory of their own.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Read = Callable[[int, int], np.ndarray]
"""`read(start, end)` gives these bytes of the tensor, aligned for its elements. Raises Fail where it
cannot."""


class LazyArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A tensor of `dtype` and `shape`, whose content `read` fetches. It passes for a numpy array."""

    __slots__ = ("dtype", "shape", "_read", "_last", "__weakref__")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], read: Read) -> None:
        self.dtype, self.shape = dtype, shape
        self._read = read
        self._last: Callable[[], np.ndarray | None] = _nothing

    @classmethod
    def computed(cls, make: Callable[[], np.ndarray], like: np.ndarray, *sources: np.ndarray) -> Any:
        """What `make()` gives, of the type and shape of `like`: itself where all `sources` are in memory,
        else computed anew for each look."""
        if not any(_stays(s) for s in sources):
            return make()

        def read(start: int, end: int) -> np.ndarray:
            return np.ascontiguousarray(make()).reshape(-1).view(np.uint8)[start:end]
        return cls(like.dtype, like.shape, read)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What `isinstance` is told."""
        return np.ndarray

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def array(self) -> np.ndarray:
        """The tensor in memory, read-only. Raises Fail where its bytes cannot be had any more."""
        found = self._last()
        if found is None:
            found = self._read(0, self.nbytes).view(self.dtype).reshape(self.shape)
            found.flags.writeable = False
            self._last = weakref.ref(found)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self.array()
        if copy or (dtype is not None and found.dtype != dtype):
            return found.astype(found.dtype if dtype is None else dtype)
        return found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*map(in_memory, inputs), **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array(), name)

    def __getitem__(self, index: Any) -> Any:
        return self.array()[index]

    def __len__(self) -> int:
        return len(self.array())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array())

    def __contains__(self, item: Any) -> bool:
        return item in self.array()

    def __bool__(self) -> bool:
        return bool(self.array())

    def __int__(self) -> int:
        return int(self.array())

    def __float__(self) -> float:
        return float(self.array())

    def __reduce__(self) -> Any:
        return self.array().__reduce__()

    def __repr__(self) -> str:
        return f"LazyArray({self.dtype}, {self.shape})"


def in_memory(value: Any) -> Any:
    """`value`, as a numpy array proper where it is a stored one."""
    return value.array() if _stays(value) else value


def _stays(value: Any) -> bool:
    return type(value) is LazyArray


def _nothing() -> None:
    """The last look before the first."""
