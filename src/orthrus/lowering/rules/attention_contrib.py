"""com.microsoft's Attention and QAttention: hidden states and projection weights in, mixed values and the
grown cache out.

The projection is a matrix product with its bias, of floats or of bytes; queries, keys and values are views of
its rows. What follows is in the product's type; on CPUs that is float32, and half precision is read and
written at the ends. """

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...codegen.write.expr import Expr
from ...ir import No, Node, Value
from ..lower import BOTH, Lowering, lowers, varied
from ..tensor import Tensor
from .attention import (
    FILTER,
    MS,
    UNLIMITED,
    F,
    Heads,
    added_bias,
    attended,
    by_head,
    computed,
    inputs_of,
    refusal,
    result,
)
from .matmul import product
from .quantized.int8 import BYTES
from .quantized.int8_operators import real_product
from .rows import FLOATS, alive


@lowers(MS + "Attention", types=FLOATS, sets=BOTH)
def attend_projected(lo: Lowering, node: Node) -> Any:
    """Self attention of input · weights + bias."""
    x, weights, bias, mask, past, added, held = inputs_of(node, 7)
    assert x is not None and weights is not None
    if held is not None:
        return No("a shared cache")
    if any(v is not None and lo.dtype(v) not in FLOATS for v in (weights, bias, past, added)):
        return No("several types")
    sizes = node.attributes.get("qkv_hidden_sizes")
    return _attended(lo, node, x, weights, lo.dtype(x), sizes,
                     lambda shape: projected(lo, x, weights, bias, shape), (mask, past, added))


@lowers(MS + "QAttention", types=BYTES)
def attend_coded(lo: Lowering, node: Node) -> Any:
    """Self attention of input · weights + bias, the first two of bytes."""
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = inputs_of(node, 9)
    assert x is not None and weights is not None
    if past is not None and lo.dtype(past) != F:
        return No("several types")

    def product(shape: tuple[int, ...]) -> Tensor | No:
        made = real_product(lo, (x, x_scale, x_zero), (weights, w_scale, w_zero), bias)
        if isinstance(made, No):
            return made
        value = Value("projected")
        lo.bind(value, made)
        lo.left[value] = 1
        return lo.tensor(value)
    return _attended(lo, node, x, weights, F, None, product, (mask, past, None))


def _attended(lo: Lowering, node: Node, vx: Value, v_weights: Value, dtype: str, sizes: list[int] | None,
              project: Callable[[tuple[int, ...]], Tensor | No],
              more: tuple[Value | None, Value | None, Value | None]) -> Any:
    """The results, as `dtype`: `project` gives queries, keys and values of `sizes` next to each other;
    `more`: mask, past and what is added to the scores."""
    at, (v_mask, v_past, v_added) = node.attributes, more
    if at.get("do_rotary") or at.get("past_present_share_buffer"):
        return No("a rotary or a shared cache")
    x = lo.shape(vx)
    width, heads = lo.shape(v_weights)[-1], at["num_heads"]
    sizes = sizes or [width // 3] * 3
    if len(x) != 3 or len(lo.shape(v_weights)) != 2 or 0 in (*x, heads):
        return No("its shapes do not fit, or are empty")
    if len(sizes) != 3 or sum(sizes) != width or min(sizes) < 1 or any(n % heads for n in sizes):
        return No("its heads do not divide")
    batch, length, _ = x
    kept = alive(lo, node, 1)
    if sizes[1] != sizes[2] and (kept or v_past is not None):
        return No("a cache of keys and values of two sizes")
    cache = (2, batch, heads, sizes[1] // heads)
    past = None if v_past is None else lo.tensor(v_past)
    if past is not None and (past.rank != 5 or (*past.shape[:3], past.shape[4]) != cache):
        return No("a past that does not fit")
    held = past.shape[3] if past is not None else 0
    total = held + length
    rows = project((batch, length, width))
    if isinstance(rows, No):
        return rows
    real = rows.dtype
    mask = added_bias(lo, v_mask, v_added, batch, length, total, at.get("mask_filter_value") or FILTER)
    if isinstance(mask, No):
        return mask
    if mask is not None and any(m not in (1, n) for m, n in zip(mask.shape[:2], (batch, heads), strict=True)):
        return No("a mask that does not broadcast to the scores")
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (t for s, n in zip(starts, sizes, strict=True)
               if isinstance(t := by_head(rows.slice(2, s, n), heads), Tensor))
    a = Heads(q, k, v, at.get("scale") or 1 / math.sqrt(q.shape[3]), mask,
              window=(held, UNLIMITED, 0) if at.get("unidirectional") and length > 1 else None)
    if past is not None and held:
        if past.dtype != real:
            past = computed(lo, past.shape, Expr.leaf(0, past.dtype).cast(F), [past])
        a.past = _half(past, 0), _half(past, 1)
    refused = refusal(lo, a)
    if refused is not None:
        return refused
    grown = (*cache[:3], total, cache[3])
    made = _made(lo, node, 1, grown, dtype, real) if kept or a.past is not None else None
    if made is not None and a.past is None:
        for i, t in enumerate((k, v)):
            lo.copy(t, _half(made, i))
    y = _made(lo, node, 0, (batch, length, sizes[2]), dtype, real)
    view = by_head(y, heads)
    assert isinstance(view, Tensor)
    attended(lo, a, view, (_half(made, 0), _half(made, 1)) if made is not None else None)
    narrow = [t if t is None or dtype == real else _narrowed(lo, node, i, t, dtype)
              for i, t in enumerate((y, made))]
    return tuple(narrow) if kept else (narrow[0],)


@varied
def projected(lo: Lowering, x: Value, weights: Value, bias: Value | None, shape: tuple[int, ...]
              ) -> Tensor | No:
    """x · weights + bias, float32."""
    if lo.dtype(weights) != lo.dtype(x):
        return No("several types")
    operands, tree = [], None
    if bias is not None:
        term = lo.contiguous(lo.tensor(bias))
        if term.shape != shape[2:]:
            return No("a bias that does not fit")
        operands = [term.expand(shape)]
        tree = Expr("add", (Expr.leaf(0, F), Expr.leaf(1, term.dtype).cast(F)), F)
    made = product(lo, x, weights)
    if isinstance(made, No):
        return made
    out = lo.new(shape, F)
    made.emit(lo, out, tree, operands)
    return out


def _half(t: Tensor, index: int) -> Tensor:
    """Keys, 0, or values, 1, of a cache (2, B, H, T, D)."""
    return t.view(t.shape[1:], t.strides[1:], index * t.strides[0])


def _value(node: Node, index: int) -> Value | None:
    return node.outputs[index] if index < len(node.outputs) else None


def _made(lo: Lowering, node: Node, index: int, shape: tuple[int, ...], dtype: str, real: str) -> Tensor:
    """Memory for a result of the type `real`, the caller's own where it has that type."""
    return result(lo, _value(node, index), shape, real) if dtype == real else lo.new(shape, real)


def _narrowed(lo: Lowering, node: Node, index: int, t: Tensor, dtype: str) -> Tensor:
    """A float32 result in the operator's type."""
    out = result(lo, _value(node, index), t.shape, dtype)
    lo.store(out, Expr.leaf(0, F).cast(dtype), [t])
    return out
