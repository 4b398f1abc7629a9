"""Determinants and inverses of small matrices, each an item."""

from __future__ import annotations

import math

from ...codegen.kernels.elimination import eliminated, scratch
from ...ir import No, Node
from ..lower import Lowering, Out, lowers
from ..tensor import Tensor

LARGEST = 128
"""Rows up to which a matrix is eliminated row by row; larger ones are LAPACK's, which goes by blocks."""
GRAIN = 1 << 13


@lowers("Det", "com.microsoft::Inverse", types=("float32", "float64"))
def eliminate(lo: Lowering, node: Node) -> Tensor | No:
    """The determinant, or the inverse, of each matrix in the last two dimensions."""
    x = node.inputs[0]
    assert x is not None
    shape = lo.shape(x)
    if len(shape) < 2 or shape[-1] != shape[-2] or 0 in shape or shape[-1] > LARGEST:
        return No("no square matrices, none at all, or large ones")
    inverse, n, t = node.op_type == "Inverse", shape[-1], lo.contiguous(lo.tensor(x))
    made = lo.new(shape if inverse else shape[:-2], t.dtype)
    lo.step(eliminated(dtype=t.dtype, inverse=inverse), [t, Out(made), Out(lo.status), n],
            math.prod(shape[:-2]), max(1, GRAIN // (n * n * n)), scratch(lo.machine, n, inverse))
    return made
