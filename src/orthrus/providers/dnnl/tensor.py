"""What a walk computes with: tensors that lie anyhow, and numbers that are kept as integers."""

from __future__ import annotations

import math

import numpy as np

from ...ir import Node
from ...lowering.tensor import Buffer
from ...records import dataclass
from .objects import Desc, c_strides

Argument = tuple[int, "Tensor"]
"""A number of `binding`, and what is given for it."""


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value in memory: `shape` as ONNX has it, `desc` how it lies, from `offset` bytes on in `buffer`."""

    shape: tuple[int, ...]
    desc: Desc
    buffer: Buffer
    offset: int = 0

    @property
    def dtype(self) -> str:
        return self.desc.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def plain(self) -> bool:
        """Whether it is dense in C order."""
        return self.desc.strides is not None and all(
            d == 1 or s == c for d, s, c in zip(self.desc.shape, self.desc.strides,
                                                c_strides(self.desc.shape), strict=True))


@dataclass(frozen=True, eq=False, slots=True)
class Joined:
    """Tensors one after another along the channels, not yet copied together: a convolution adds up what it
    makes of each."""

    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        return (first[0], sum(p.shape[1] for p in self.parts), *first[2:])


@dataclass(frozen=True, eq=False, slots=True)
class Quantized:
    """A real value that is kept as integers: (tensor - zero) * scale, with one scale and zero point in all or
    one for each index of `axis`. Nothing has been computed for it yet."""

    tensor: Tensor
    scale: np.ndarray
    zero: np.ndarray
    axis: int
    node: Node

    @property
    def whole(self) -> bool:
        """Whether one scale and one zero point hold for all of it."""
        return self.scale.size == 1 and self.zero.size == 1

    def like(self, other: object) -> bool:
        """Whether `other` has the same type, scale and zero point, for all of it."""
        return isinstance(other, Quantized) and self.whole and other.whole and \
            self.tensor.dtype == other.tensor.dtype and \
            self.scale.item() == other.scale.item() and self.zero.item() == other.zero.item()
