"""Matrix products and determinants: arrays in, one array of the same element type out.

Half-precision products accumulate in float32, integer ones wrap in their own width, and no result is
allocated before `bounded` has seen its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import Unfit
from ...limits import bounded
from ...shapes.products import parsed_equation
from ..define import define
from ..functions import summing_type


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`a @ b` with numpy's rules for vectors and batches, of any shapes that fit. Raises ValueError where
    they do not."""
    if not a.ndim or not b.ndim:
        raise ValueError(f"a matrix product takes tensors of rank 1 or more, found shapes {a.shape} and"
                         f" {b.shape}")
    rows, inner = a.shape[-2:-1], a.shape[-1]
    other, columns = b.shape[-2 if b.ndim > 1 else 0], b.shape[-1:] if b.ndim > 1 else ()
    if inner != other:
        raise ValueError(f"the inner dimensions of shapes {a.shape} and {b.shape} differ: {inner} and"
                         f" {other}")
    bounded((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns), a.dtype)
    return np.asarray(np.matmul(a, b))


@define(widen=True, result="same")
def MatMul(a, b):
    """a @ b, as numpy.matmul"""
    return matmul(a, b)


def scaled(x: np.ndarray, factor: float) -> np.ndarray:
    """`factor * x` in the type of `x`; a fractional factor times integers is truncated toward zero."""
    if factor == 1:
        return x
    if x.dtype.kind in "iu":
        if float(factor).is_integer():
            return x * np.array(int(factor)).astype(x.dtype)
        return np.trunc(x * float(factor)).astype(np.int64).astype(x.dtype)
    return x * x.dtype.type(factor)


def gemm(a: np.ndarray, b: np.ndarray, c: np.ndarray | None, alpha: float, beta: float, flip_a: int,
         flip_b: int
         ) -> np.ndarray:
    """alpha * A' @ B' + beta * C for matrices, with C broadcast to the product. Raises ValueError for
    other shapes."""
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"Gemm takes matrices, found shapes {a.shape} and {b.shape}")
    try:
        y = scaled(matmul(a.T if flip_a else a, b.T if flip_b else b), alpha)
        fits = c is None or beta == 0 or np.broadcast_shapes(c.shape, y.shape) == y.shape
    except ValueError as error:
        raise Unfit(str(error)) from None
    if c is None or beta == 0:
        return y
    if not fits:
        raise Unfit(f"C of shape {c.shape} does not broadcast to the product's shape {y.shape}")
    return y + scaled(c, beta)


@define(widen=True, result="same", since=7)
def Gemm(a, b, c=None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0):
    """alpha * A' @ B' + beta * C, where C broadcasts to the result"""
    return gemm(a, b, c, alpha, beta, transA, transB)


@define(widen=True, result="same")
def Gemm_1(a, b, c, *, alpha: float = 1.0, beta: float = 1.0, broadcast: int = 0, transA: int = 0,
           transB: int = 0):
    """alpha * A' @ B' + beta * C, where C broadcasts to the result only if `broadcast` says so"""
    if not broadcast and c.shape != (a.shape[-1] if transA else a.shape[0],
                                     b.shape[0] if transB else b.shape[-1]):
        raise ValueError(f"C of shape {c.shape} has to have the product's shape, as `broadcast` is 0")
    return gemm(a, b, c, alpha, beta, transA, transB)


def _dimensions(terms: list[str], shapes: Sequence[tuple[int, ...]]) -> tuple[dict[str, int],
                                                                              tuple[int, ...]]:
    """The size of every letter, and the broadcast shape of the ellipses."""
    sizes: dict[str, int] = {}
    ellipses = []
    for term, shape in zip(terms, shapes, strict=True):
        before, dots, after = term.partition("...")
        if len(shape) < len(before) + len(after) or (not dots and len(shape) != len(before)):
            raise ValueError(f"the Einsum term {term!r} does not fit an operand of shape {shape}")
        end = len(shape) - len(after)
        ellipses.append(shape[len(before):end])
        for letter, size in zip(before + after, (*shape[:len(before)], *shape[end:]), strict=True):
            if size != sizes.setdefault(letter, size) and size != 1:
                if sizes[letter] != 1:
                    raise Unfit(f"the Einsum letter {letter!r} stands for {sizes[letter]} and for {size}")
                sizes[letter] = size
    return sizes, np.broadcast_shapes(*ellipses)


@define(widen=True, result="same", prepared=("terms", "output"))
def Einsum(*inputs, terms, output):
    """The sum of products that an equation such as "bij,bjk->bik" spells"""
    if len(terms) != len(inputs):
        raise ValueError(f"the Einsum equation has {len(terms)} terms for {len(inputs)} operands")
    sizes, ellipsis = _dimensions(terms, [x.shape for x in inputs])
    spelled = output
    if spelled is None:
        every = "".join(terms).replace(".", "")
        spelled = ("..." if any("..." in t for t in terms) else "") + "".join(
            sorted(letter for letter in set(every) if every.count(letter) == 1))
    before, dots, after = spelled.partition("...")
    kind, sums = inputs[0].dtype, summing_type(inputs[0].dtype)
    bounded((*(sizes[k] for k in before), *(ellipsis if dots else ()), *(sizes[k] for k in after)), sums)
    arrays, left = [], []
    for i, (x, term) in enumerate(zip(inputs, terms, strict=True)):
        named = {*spelled, *"".join([*terms[:i], *terms[i + 1:]]), "."}
        kept = "".join(k for at, k in enumerate(term) if k in named and (k == "." or k not in term[:at]))
        if kept != term:  # letters that only this term names are summed first
            x = np.einsum(f"{term}->{kept}", x, dtype=sums).astype(kind, copy=False)
        arrays.append(x)
        left.append(kept)
    made = np.einsum(f"{','.join(left)}->{spelled}", *arrays, optimize=len(inputs) > 1, dtype=sums)
    return np.asarray(made).astype(kind, copy=False)


@Einsum.prepare_with
def _equation(*, equation: str) -> dict[str, Any]:
    terms, output = parsed_equation(equation)
    return {"terms": terms, "output": output}


@define(widen=True, result="same")
def Det(x):
    """The determinant of each square matrix in the last two dimensions"""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"Det takes square matrices, found shape {x.shape}")
    return np.asarray(np.linalg.det(x))
