"""Products with weights of 2, 4 or 8 bits, as kernels of `codegen.triton.kernels.few_bits`.

In: nodes whose weights are constant. Out: the product in float32, A's elements read in the order of the
weights' where that is another.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...rules import few_bits as shared
from ...rules.few_bits import FLOATS, MS, Weights
from ...tensor import Tensor
from .. import few_bits
from ..lower import GpuLowering, Pending, lowers


def multiplied(lo: GpuLowering, a: Tensor, weights: Weights, level: int, order: np.ndarray | None, key: Any
               ) -> Pending:
    """A times the transpose of the weights; A is never rounded to bytes, whatever `level` allows."""
    places = None if order is None else lo.constant(("order", key), lambda: order.astype(np.int32))
    return few_bits.product(a, weights, places)


_RULES: dict[str, Any] = {"MatMulNBits": shared.matmul_nbits, "MatMulBnb4": shared.matmul_bnb4,
                          "MatMulFpQ4": shared.matmul_fpq4}
for _kind, _rule in _RULES.items():
    lowers(MS + _kind, types=FLOATS)(functools.partial(_rule, multiply=multiplied))
