"""Attention as two products with a softmax between."""

from __future__ import annotations

import math

import numpy as np

from ....ir import OWN, No, Node
from ....lowering.shaped_part import Unfit
from ..binding import DST, POST_OP, SRC, SRC_1, WEIGHTS
from ..lower import Lowering
from ..objects import Attr, Binary, Desc, Eltwise, PostOp, Primitive, strided
from ..step import DnnlStep, lowers
from ..tensor import Argument, Tensor
from .elementwise import ranked
from .norm import exponentials


@lowers("Attention", f"{OWN}::SoftmaxAttention")
def attention(lo: Lowering, node: Node) -> Tensor | No:
    """softmax(q @ k' * scale + mask) @ v, of [B, H, L, E] or [B, L, H*E]."""
    attrs = node.attributes
    q, k, v = (lo.tensor(value) for value in node.inputs[:3])
    flat = len(q.shape) == 3
    if flat:
        q, k, v = (_heads(lo, t, attrs[name]) for t, name in ((q, "q_num_heads"), (k, "kv_num_heads"),
                                                              (v, "kv_num_heads")))
    batch, heads, length, size = q.shape
    if k.shape[1] != heads or v.shape[1] != heads:
        return No("several heads share keys and values")
    scale = 1 / math.sqrt(size) if attrs["scale"] is None else attrs["scale"]
    scores: list[tuple[PostOp, Tensor | None]] = [(Eltwise("linear", scale), None)]
    shape = (batch, heads, length, k.shape[2])
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        mask = lo.plain(lo.tensor(node.inputs[3]))
        if mask.shape[-1:] != shape[-1:]:
            return No("the mask is shorter than the keys")
        mask = ranked(lo, mask if node.domain else _looked_at(lo, mask), 4)
        scores.append((Binary("add", mask.desc), mask))
    raw = _product(lo, q, lo.permuted(k, (0, 1, 3, 2)), strided(lo.lib, shape, q.dtype), scores)
    weights = exponentials(lo, raw, 3)
    wide = v.shape[3]
    result = (batch, heads, length, wide)
    if not flat:
        return _product(lo, weights, v, strided(lo.lib, result, q.dtype), [])
    lying = strided(lo.lib, result, q.dtype, (length * heads * wide, wide, heads * wide, 1))
    out = _product(lo, weights, v, lying, [])
    return lo.view(out, (batch, length, heads * wide), (length * heads * wide, heads * wide, 1))


def _heads(lo: Lowering, t: Tensor, count: int) -> Tensor:
    """[B, L, H*E] as [B, H, L, E], in the same memory."""
    batch, length, width = t.shape
    return lo.permuted(lo.reshaped(t, (batch, length, count, width // count)), (0, 2, 1, 3))


def _product(lo: Lowering, a: Tensor, b: Tensor, desc: Desc, posts: list[tuple[PostOp, Tensor | None]]
             ) -> Tensor:
    lib = lo.lib
    made = Primitive(lib, "matmul", lib.engine, a.desc, b.desc, None, desc, Attr(lib, [p for p, _ in posts]))
    out = lo.new(desc.shape, desc)
    args: list[Argument] = [(SRC, a), (WEIGHTS, b), (DST, out)]
    args += [(POST_OP * (i + 1) | SRC_1, t) for i, (_, t) in enumerate(posts) if t is not None]
    lo.step(made, args, [out])
    return out


def _looked_at(lo: Lowering, mask: Tensor) -> Tensor:
    """`mask`, once it is known that no row hides every key: ONNX says zeros there, and oneDNN gives NaN."""
    mask = lo.plain(mask)
    for source, seen in lo.looked_at:
        if source.buffer is mask.buffer and source.offset == mask.offset:
            return seen
    out = lo.new(mask.shape, mask.desc)
    lo.steps.append(DnnlStep(lo.node, (lo.node,), "look at the mask", [], [out], None, _no_empty_row, [mask],
                         "oneDNN's softmax has no result for a row that is all minus infinity"))
    lo.looked_at.append((mask, out))
    return out


def _no_empty_row(mask: np.ndarray) -> np.ndarray:
    if np.isneginf(mask).all(-1).any():
        raise Unfit("the attention mask hides every key from a row")
    return mask
