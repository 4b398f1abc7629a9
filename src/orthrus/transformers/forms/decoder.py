"""Attention of decoders in com.microsoft's forms: with earlier keys and values, with keys that groups of
query heads share, and with rotary positions; what finds no form is written out again."""

from __future__ import annotations

import numpy as np

from ...ir import ElementType, No
from ...optimize.pattern import rule
from ...optimize.rules.facts import differ, rank
from ..fusion_options import AttentionOpType
from .attention import HEADS, added, heads_of, masks, repeated


@rule(lambda op, q, k, v, m=None: op.Attention(q, k, v, m, ...))
def fuse_group_query_attention(op, q, k, v, m, root):
    """Fewer key heads than query heads, where GroupQueryAttention's kernels take the sizes: onnxruntime's
    take one new token, or one batch entry, or no earlier keys."""
    past = _past(root)
    heads = heads_of(root, cached=past is not None)
    if isinstance(heads, No):
        return heads
    heads, shared = heads
    if root.attribute("is_causal") and m is not None:
        return No("it is causal and has a mask besides")
    asked = op.settings.options.attention_op_type == AttentionOpType.GroupQueryAttention
    if heads == shared and not asked:
        return None
    at = 1 if rank(q) == 3 else 2
    if not asked and past is not None and q.shape[0] != 1 and q.shape[at] != 1:
        return No("several batch entries may come with several new tokens")
    if differ(q.shape[at], k.shape[at]) or v.shape[-1] != k.shape[-1]:
        return No("keys do not come with the queries, or values differ in size")
    bias = None if m is None else added(op, m, root)
    if isinstance(bias, No):
        return bias
    length = op.Slice(op.Shape(q), op.ints([at]), op.ints([at + 1]), op.ints([0]))
    total = length if past is None else op.Add(length, op.Slice(
        op.Shape(past[0]), op.ints([2]), op.ints([3]), op.ints([0])))
    total = op.Cast(total, to=int(ElementType.INT32))
    batch = op.Slice(op.Shape(q), op.ints([0]), op.ints([1]), op.ints([0]))
    lengths = op.Expand(op.Sub(total, op.constant(np.array([1], np.int32))), batch)
    made = op("com.microsoft::GroupQueryAttention")(
        *(_flat(op, x) for x in (q, k, v)), *(past or (None, None)), lengths, op.Squeeze(total, op.ints([0])),
        None, None, None, bias, outputs=3, num_heads=heads, kv_num_heads=shared,
        causal=None if root.attribute("is_causal") else 0, scale=_scale(root))
    return _results(op, root, made, heads)


@rule(lambda op, q, k, v, m, pk, pv: op.Attention(q, k, v, m, pk, pv))
def fuse_multi_head_attention_past(op, q, k, v, m, pk, pv, root):
    """Earlier keys and values, of as many heads as the queries have"""
    heads = heads_of(root, cached=True)
    if isinstance(heads, No):
        return heads
    heads, shared = heads
    if heads != shared:
        return No("it has fewer key heads than query heads")
    mask, bias, given = masks(op, m, root, heads)
    if isinstance(mask, No):
        return mask
    made = op("com.microsoft::MultiHeadAttention")(
        *(_flat(op, x) for x in (q, k, v)), None, mask, bias, pk, pv, outputs=3, num_heads=heads, **given,
        unidirectional=1 if root.attribute("is_causal") else None)
    return _results(op, root, made, heads)


def _past(root):
    """The earlier keys and values; None without them."""
    return tuple(root.inputs[4:6]) if len(root.inputs) > 5 and root.inputs[4] is not None else None


def _scale(root):
    scale = root.attribute("scale")
    return None if scale is None else float(scale)


def _flat(op, x):
    """[batch, heads, sequence, size] with the heads side by side."""
    return x if rank(x) == 3 else op.Reshape(op.Transpose(x, perm=HEADS), op.ints([0, 0, -1]))


def _results(op, root, made, heads):
    """What takes the place of an Attention's outputs."""
    y, *present = made
    if rank(root.output) == 4:
        y = op.Transpose(op.Reshape(y, op.ints([0, 0, heads, root.output.shape[3]])), perm=HEADS)
    given = {old: new for old, new in zip(root.outputs[1:], present, strict=False) if old is not None}
    return {root.output: y, **given}


@rule(lambda op, q, k, v, m=None: op.Attention(q, k, v, m, ...))
def expand_grouped_attention(op, q, k, v, m, root):
    """Keys and values joined with the earlier ones, and repeated for the query heads that share them: what is
    left is an attention that MultiHeadAttention can be."""
    past = _past(root)
    heads = heads_of(root, cached=past is not None)
    if isinstance(heads, No):
        return heads
    heads, shared = heads
    if heads == shared or root.attribute("is_causal"):
        return None
    k, v = (x if rank(x) == 4 else op.Transpose(op.Reshape(x, op.ints([0, 0, shared, -1])), perm=HEADS)
            for x in (k, v))
    if past is not None:
        k, v = (op.Concat(old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
    split = q if rank(q) == 4 else op.Transpose(op.Reshape(q, op.ints([0, 0, heads, -1])), perm=HEADS)
    wide = [repeated(op, x, split) for x in (k, v)]
    if None in wide:
        return No("the heads are not known")
    attrs = {name: value for name, value in root.attrs.items() if not name.endswith("_num_heads")}
    y = op.Attention(split, *wide, m, **attrs)
    if rank(root.output) == 3:
        y = op.Reshape(op.Transpose(y, perm=HEADS), op.ints([0, 0, -1]))
    present = {old: new for old, new in zip(root.outputs[1:], (k, v), strict=False) if old is not None}
    return {root.output: y, **present}


@rule(lambda op, q, k, v, m, pk, pv: op.Attention(q, k, v, m, pk, pv))
def expand_attention_past(op, q, k, v, m, pk, pv, root):
    """Earlier keys and values joined with the new ones, where the model's opset has no Attention"""
    shared = k.shape[1] if rank(k) == 4 else root.attribute("kv_num_heads")
    if op.settings.opset >= 23 or root.attribute("is_causal") or not shared:
        return None
    if rank(q) == 3:
        q = op.Transpose(op.Reshape(q, op.ints([0, 0, root.attribute("q_num_heads"), -1])), perm=HEADS)
        k, v = (op.Transpose(op.Reshape(x, op.ints([0, 0, shared, -1])), perm=HEADS) for x in (k, v))
    k, v = (op.Concat(old, new, axis=2) for old, new in zip((pk, pv), (k, v), strict=True))
    attrs = {name: value for name, value in root.attrs.items() if not name.endswith("_num_heads")}
    y = op.Attention(q, k, v, m, **attrs)
    if rank(root.output) == 3:
        y = op.Reshape(op.Transpose(y, perm=HEADS), op.ints([0, 0, -1]))
    present = {old: new for old, new in zip(root.outputs[1:], (k, v), strict=False) if old is not None}
    return {root.output: y, **present}


@rule(lambda op, x, c, s, p=None: op.RotaryEmbedding(x, c, s, p))
def fuse_rotary_embedding_form(op, x, c, s, p, root):
    """com.microsoft's RotaryEmbedding: a table of angles by position, and the positions"""
    dim, heads = root.attrs.get("rotary_embedding_dim") or 0, root.attrs.get("num_heads") or 0
    if dim and not heads:
        heads = x.shape[1]
        if rank(x) != 4 or not isinstance(heads, int):
            return No("how many heads turn in part is not known")
    placed = (c, s, p) if p is not None and rank(c) == 2 else _table(op, c, s)
    if placed is None:
        return No("the rank of the angles is not known")
    cos, sin, positions = placed
    return op("com.microsoft::RotaryEmbedding")(
        x, positions, cos, sin, interleaved=root.attribute("interleaved") or None,
        num_heads=heads or None, rotary_embedding_dim=dim or None)


def _table(op, cos, sin):
    """Angles [batch, sequence, half] as a table with a row for each token, and where each token's is."""
    if rank(cos) != 3 or not isinstance(cos.shape[2], int):
        return None
    shared = [_spread(x) for x in (cos, sin)]
    if None not in shared:
        return *(op.Squeeze(x, op.ints([0])) for x in shared), op.ints([0])
    size = op.Slice(op.Shape(cos), op.ints([0]), op.ints([2]), op.ints([0]))
    count = op.Squeeze(op.ReduceProd(size, op.ints([0]), keepdims=1), op.ints([0]))
    places = op.Range(op.constant(np.array(0)), count, op.constant(np.array(1)))
    return *(op.Reshape(x, op.ints([-1, cos.shape[2]])) for x in (cos, sin)), op.Reshape(places, size)


def _spread(value):
    """[1, sequence, half] of which `value` is a copy for each batch entry; None where it is none."""
    if value.shape[0] == 1:
        return value
    node = value.node
    if node is None or node.domain or node.op_type != "Expand" or rank(node.inputs[0]) != 3:
        return None
    x = node.inputs[0]
    return x if x.shape[0] == 1 and x.shape[1:] == value.shape[1:] else None


@rule(lambda op, x, c, s: op.RotaryEmbedding(x, c, s))
def expand_rotary_embedding(op, x, c, s, root):
    """The turning written out, where the model's opset has no RotaryEmbedding"""
    dim, size = root.attrs.get("rotary_embedding_dim") or 0, x.shape[-1] if rank(x) == 4 else None
    if op.settings.opset >= 23 or not isinstance(size, int) or rank(c) != 3:
        return None
    width = dim or size
    cos, sin = (op.Unsqueeze(v, op.ints([1])) for v in (c, s))
    step, half = (2, 1) if root.attribute("interleaved") else (1, width // 2)
    a, b = (op.Slice(x, op.ints([start]), op.ints([end]), op.ints([3]), op.ints([step])) for start, end in
            ((0, width if step == 2 else half), (half, width)))
    parts = [op.Sub(op.Mul(a, cos), op.Mul(b, sin)), op.Add(op.Mul(b, cos), op.Mul(a, sin))]
    if step == 2:
        wide = op.Concat(*(op.Unsqueeze(part, op.ints([4])) for part in parts), axis=-1)
        parts = [op.Reshape(wide, op.ints([0, 0, 0, width]))]
    rest = [op.Slice(x, op.ints([width]), op.ints([size]), op.ints([3]))] if width < size else []
    return op.Concat(*parts, *rest, axis=-1) if len(parts) + len(rest) > 1 else parts[0]


ROTARY = (fuse_rotary_embedding_form,)
ATTENTION = (fuse_group_query_attention, expand_grouped_attention, fuse_multi_head_attention_past)
LEFT = (expand_attention_past, expand_rotary_embedding)
