"""Products with weights of 2, 4 or 8 bits, and rows of such by index, as kernels of
`codegen.triton.kernels.few_bits`.

In: nodes whose weights are constant. Out: the product in float32, A's elements read in the order of the
weights' where that is another.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ....codegen.kernels.few_bits.layout import Blocks
from ....codegen.triton.kernels.few_bits import Codes, few_bits_gather
from ...rules import few_bits as shared
from ...rules.few_bits import FLOATS, MS, Weights
from ...tensor import Tensor
from .. import few_bits, normal
from ..elements import power, several
from ..lower import GpuLowering, Out, Pending, lowers, writes

_ELEMENTS, _COLUMNS = 1024, 512
"""Elements and columns of a tile of gathered rows, at most."""


writes(shared.factor)(normal.factor)


def multiplied(lo: GpuLowering, a: Tensor | normal.Normed, weights: Weights, level: int,
               order: np.ndarray | None, key: Any) -> Pending:
    """A times the transpose of the weights; A is never rounded to bytes, whatever `level` allows."""
    places = None if order is None else lo.constant(("order", key), lambda: order.astype(np.int32))
    return few_bits.product(a, weights, places)


@writes(shared.rows_of_codes)
def rows_of_codes(lo: GpuLowering, out: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None,
                  where: Tensor, how: Blocks) -> None:
    """The rows of a matrix of codes that `where` names, as floats."""
    width = out.shape[-1]
    columns = min(_COLUMNS, power(width))
    rows = several(where.size, _ELEMENTS // columns)
    pieces = -(-width // columns)
    assert how.zeros != "floats"
    form = Codes(how.bits, how.block, how.scale, how.zeros)
    lo.step(few_bits_gather(codes=form, index=where.dtype, rows=rows, columns=columns),
            [Out(out), codes, scales, *([] if zeros is None else [zeros]), where, Out(lo.status), where.size,
             codes.shape[0], pieces, width, codes.shape[1], scales.shape[1],
             0 if zeros is None else zeros.shape[1]], -(-where.size // rows) * pieces)


_RULES: dict[str, Any] = {"MatMulNBits": shared.matmul_nbits, "MatMulBnb4": shared.matmul_bnb4,
                          "MatMulFpQ4": shared.matmul_fpq4}
for _kind, _rule in _RULES.items():
    lowers(MS + _kind, types=FLOATS)(functools.partial(_rule, multiply=multiplied))
