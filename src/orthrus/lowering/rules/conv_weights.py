"""Weights of convolutions as their kernels read them: known ones are packed once, computed ones in each run.

In: weights [Cout, Cin / groups, three spatial axes]. Out: panels as `conv.direct.pack` lays them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...codegen.kernels.conv import direct
from ...codegen.write.expr import Expr
from ...records import dataclass
from ..elements import store
from ..lower import Lowering
from ..tensor import Tensor


@dataclass(eq=False)
class Known:
    """Weights that `make` gives, under a `key` that tells them from those of other nodes."""

    make: Callable[[], np.ndarray]
    key: tuple[Any, ...]

    def panels(self, lo: Lowering, groups: int, merge: int, wide: int, dtype: str) -> Tensor:
        """Panels of `wide` channels, `merge` of the `groups` made one."""
        return lo.constant((*self.key, groups, merge, wide, dtype),
                           lambda: direct.pack(self.make(), groups, merge, wide, dtype))

    def upright(self) -> Known:
        """The taps of a row as channels, and channels as depth, without a depth of their own."""
        return Known(lambda: np.moveaxis(self.make(), -1, 1)[..., None][:, :, :, 0], (*self.key, "upright"))


@dataclass(eq=False)
class Computed:
    """Weights that are known in a run, as `tensor` (groups, Cout / groups, Cin / groups, spatial)."""

    tensor: Tensor

    def panels(self, lo: Lowering, groups: int, merge: int, wide: int, dtype: str) -> Tensor:
        """As those of `Known`, by steps."""
        w = self.tensor
        if groups != w.shape[0]:
            assert groups == 1
            w = _joined(lo, w)
        count, cout, cin, *taps = w.shape
        made = lo.new((count // merge, -(-cout * merge // wide), *taps, cin * merge, wide), dtype)
        whole = cout // wide
        tree = Expr.leaf(0, w.dtype).cast(dtype)
        if whole:
            size, steps = list(w.shape), list(w.strides)
            size[1:2], steps[1:2] = [whole, wide], [wide * steps[1], steps[1]]
            source = w.view(size, steps).permute((0, 1, 4, 5, 6, 3, 2))
            store(lo, made.slice(1, 0, whole), tree, [source])
        if left := cout - whole * wide:
            last = made.slice(1, whole, 1)
            if merge > 1 or left < wide:
                store(lo, last, Expr.const(0.0, dtype), [])
            for i in range(merge):
                part = w.slice(0, i, count // merge, merge).slice(1, whole * wide, left)
                target = last.slice(5, i * cin, cin).slice(6, i * cout, left)
                size, steps = [part.shape[0], 1, *part.shape[1:]], [part.strides[0], 0, *part.strides[1:]]
                store(lo, target, tree, [part.view(size, steps).permute((0, 1, 4, 5, 6, 3, 2))])
        return made

    def upright(self) -> Computed:
        """As that of `Known`."""
        return Computed(self.tensor.permute((0, 1, 5, 2, 4, 3)))


Weights = Known | Computed


def _joined(lo: Lowering, w: Tensor) -> Tensor:
    """All groups' channels as those of one."""
    shape = (1, w.shape[0] * w.shape[1], *w.shape[2:])
    made = w.reshape(shape) or lo.contiguous(w).reshape(shape)
    assert made is not None
    return made
