"""Matrix products take in the bias, the scale and the transposes around them."""

from __future__ import annotations

import numpy as np

from ...ir import No
from ..pattern import number, rule
from .facts import array, from_weights, permutation, rank, unread


def _by_column(value, n):
    """A constant that varies along the last axis at most, as a scalar or a vector of float64."""
    given = array(value)
    if (
        given is None
        or given.dtype.kind not in "fV"
        or given.ndim > n
        or any(d != 1 for d in given.shape[:-1])
    ):
        return None
    return given.astype(np.float64).reshape(-1)


@rule(lambda op, a, b, c: op.Add(op.MatMul(a, b), c))
def fuse_matmul_add(op, a, b, c, root):
    """A product of two matrices and a bias."""
    if rank(a) != 2 or rank(b) != 2 or a.elem is None or not a.elem.floating:
        return No("the factors are not matrices of floats")
    if from_weights(a) or from_weights(b):
        return No("it belongs to a quantized unit")
    y = root.inputs[0] if root.inputs[1] is c else root.inputs[1]
    if c.shape is None or len(c.shape) > 2 or y.shape is None or root.output.shape != y.shape:
        return No("the addend widens the product")
    wide = [*[1] * (2 - len(c.shape)), *c.shape]
    if any(d != 1 and d != e for d, e in zip(wide, y.shape, strict=True)):
        return No("the addend's shape is not known to fit")
    return op.Gemm(a, b, c)


@rule(
    lambda op, a, b, c=None: op.Gemm(op.Transpose(a), b, c),
    lambda op, a, b, c=None: op.Gemm(a, op.Transpose(b), c),
    shared=True,
)
def fuse_gemm_transpose(op, a, b, c, root):
    left = root.inputs[0] is not a
    if permutation(root.inputs[0 if left else 1].node) != [1, 0]:
        return No("the transpose does not exchange the axes")
    changed = {}
    if left:
        changed["transA"] = 1 - root.attribute("transA")
    else:
        changed["transB"] = 1 - root.attribute("transB")
    return op.again(root, a, b, *([c] if c is not None else []), **changed)


@rule(lambda op, a, b, c: op.Add(op.Gemm(a, b), c), lambda op, a, b, c: op.Sum(op.Gemm(a, b), c))
def fuse_gemm_add(op, a, b, c, root):
    gemm = (op.maker(root.inputs[0], "Gemm") or op.maker(root.inputs[1], "Gemm"))
    if gemm is None:
        return No("it adds the product to itself")
    y = gemm.output
    if (
        c.shape is None
        or len(c.shape) > 2
        or y.shape is None
        or y.shape != root.output.shape
        or from_weights(a)
    ):
        return No("the addend's shape is not known to fit")
    wide = [*[1] * (2 - len(c.shape)), *c.shape]
    if any(d != 1 and d != e for d, e in zip(wide, y.shape, strict=True)):
        return No("the addend widens the product")
    return op.again(gemm, a, b, c, beta=1.0)


@rule(lambda op, a, b, c, d=None: op.Mul(op.Gemm(a, op.constant(b), d), op.constant(c)),
      lambda op, a, b, c: op.Mul(op.MatMul(a, op.constant(b)), op.constant(c)))
def fuse_matmul_mul(op, a, b, c, d, root):
    """A factor by column goes into constant weights."""
    made = op.maker(root.inputs[0], "Gemm", "MatMul") or op.maker(root.inputs[1], "Gemm", "MatMul")
    n, weights = rank(made.output), array(b)
    factor = _by_column(c, n or 0)
    if factor is None or n is None or n < 1 or weights.ndim != 2 or weights.dtype.kind not in "fV":
        return No("the factor is not constant by column")
    transposed = made.op_type == "Gemm" and bool(made.attribute("transB"))
    columns = weights.shape[0 if transposed else 1]
    bias = array(d) if d is not None else None
    if factor.size not in (1, columns) or (
        d is not None and (bias is None or bias.ndim > 1 or bias.size not in (1, columns))
    ):
        return No("the bias or the factor does not follow the columns")
    wide = weights.astype(np.float64) * (factor.reshape(-1, 1) if transposed else factor)
    inputs = [a, op.constant(wide.astype(weights.dtype), name="weight")]
    if bias is not None:
        inputs.append(op.constant((bias.astype(np.float64) * factor).astype(bias.dtype), name="bias"))
    return op.again(made, *inputs)


@rule(lambda op, a, b, s, t, m, v, c=None: op.BatchNormalization(op.Gemm(a, op.constant(b), c), s, t, m, v),
      lambda op, a, b, s, t, m, v: op.BatchNormalization(op.MatMul(a, op.constant(b)), s, t, m, v))
def fuse_matmul_batch_normalization(op, a, b, s, t, m, v, c, root):
    made = root.inputs[0].node
    given = [array(x) for x in (s, t, m, v)]
    if rank(root.output) != 2 or any(g is None for g in given) or array(b).ndim != 2:
        return No("the statistics are not constant, or it is no matrix")
    if root.attribute("training_mode") or not unread(root, 1, 2, 3, 4) or root.version < 7:
        return No("it is in training mode")
    scale, shift, mean, var = (g.astype(np.float64) for g in given)
    factor = scale / np.sqrt(var + root.attribute("epsilon"))
    weights, transposed = array(b), made.op_type == "Gemm" and bool(made.attribute("transB"))
    if c is not None and (array(c) is None or array(c).ndim > 1):
        return No("the bias does not follow the columns")
    alpha, beta = (made.attribute(k) if made.op_type == "Gemm" else 1.0 for k in ("alpha", "beta"))
    bias = 0.0 if c is None else array(c).astype(np.float64) * beta
    wide = weights.astype(np.float64) * alpha * (factor.reshape(-1, 1) if transposed else factor)
    total = np.broadcast_to((bias - mean) * factor + shift, factor.shape)
    return op.Gemm(a, op.constant(wide.astype(weights.dtype), name="weight"),
                   op.constant(total.astype(weights.dtype), name="bias"), transB=int(transposed),
                   transA=made.attribute("transA") if made.op_type == "Gemm" else None)


def _swaps_last(perm):
    n = len(perm or ())
    return n >= 2 and perm == [*range(n - 2), n - 1, n - 2]


@rule(lambda op, a, b: op.MatMul(op.Transpose(a), b), lambda op, a, b: op.MatMul(a, op.Transpose(b)))
def fuse_matmul_transpose(op, a, b, root):
    """A product with a transposed factor."""
    left = root.inputs[0] is not a
    perm = permutation(root.inputs[0 if left else 1].node)
    if not _swaps_last(perm) or root.output.elem is None or not root.output.elem.floating:
        return No("the transpose does not exchange the last two axes")
    if (rank(a) or 0) < 2 or (rank(b) or 0) < 2:
        return No("a factor is a vector")
    return op("com.microsoft::FusedMatMul")(a, b, transA=int(left), transB=int(not left))


@rule(lambda op, a, b: op("com.microsoft::FusedMatMul")(op.Transpose(a), b, transA=0),
      lambda op, a, b: op("com.microsoft::FusedMatMul")(a, op.Transpose(b), transB=0))
def fuse_second_transpose(op, a, b, root):
    left = root.inputs[0] is not a
    if not _swaps_last(permutation(root.inputs[0 if left else 1].node)):
        return No("the transpose does not exchange the last two axes")
    return op.again(root, a, b, **{"transA" if left else "transB": 1})


@rule(
    lambda op, a, b, c: op.Mul(op.MatMul(a, b), op.constant(c)),
    lambda op, a, b, c: op.Div(op.MatMul(a, b), op.constant(c)),
    lambda op, a, b, c: op.Mul(op("com.microsoft::FusedMatMul")(a, b), op.constant(c)),
    lambda op, a, b, c: op.Div(op("com.microsoft::FusedMatMul")(a, b), op.constant(c)),
)
def fuse_matmul_scale(op, a, b, c, root):
    """A product times a number."""
    factor, y = number(c), next(v for v in root.inputs if v is not c)
    if (
        not factor
        or c.const.ndim > (rank(y) or 0)
        or root.output.elem is None
        or not root.output.elem.floating
    ):
        return No("the factor is no constant number")
    attrs = y.node.attrs if y.node.domain else {}
    own = y.node.attribute("alpha") if y.node.domain else 1.0
    alpha = own * (factor if root.op_type == "Mul" else 1 / factor)
    return op("com.microsoft::FusedMatMul")(a, b, **{**attrs, "alpha": float(alpha)})


BASIC = (
    fuse_matmul_add,
    fuse_gemm_transpose,
    fuse_gemm_add,
    fuse_matmul_mul,
    fuse_matmul_batch_normalization,
)
EXTENDED = (fuse_matmul_transpose, fuse_second_transpose, fuse_matmul_scale)
