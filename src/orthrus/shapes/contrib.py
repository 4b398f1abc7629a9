"""Shapes of com.microsoft's operators whose dimensions are computed.

In and out: as in `rules`. The invariant: as there.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir import ElementType
from .axes import normalized_axis
from .expression import floor_div, greatest
from .facts import Facts, Shapes, broadcast
from .products import matmul
from .rules import RULES, concat, same
from .windows import conv, pool, spatial


def _nhwc_conv(f: Facts) -> Shapes:
    x, w = f.shape(0), f.shape(1)
    return [[x[0], *spatial(f, x[1:-1], f.attribute("kernel_shape") or w[1:-1]), w[0]]]


def _quantized_pair(f: Facts) -> Shapes:
    return [broadcast(f, f.shape(0), f.shape(3))]


def _attention(past: int) -> Callable[[Facts], Shapes]:
    """`past`: the input with the keys and values so far, [2, batch, heads, length, size]."""
    def rule(f: Facts) -> Shapes:
        x, weights, heads = f.shape(0), f.shape(1), f.attribute("num_heads")
        sizes = f.attribute("qkv_hidden_sizes")
        _, inner, width = sizes or [floor_div(weights[-1], 3)] * 3
        before = f.shape(past)[3] if f.has(past) else 0
        total = before if f.attribute("past_present_share_buffer") else before + x[1]
        return [[*x[:-1], width], [2, x[0], heads, total, floor_div(inner, heads)]]
    return rule


def _multi_head(f: Facts) -> Shapes:
    q, heads = f.shape(0), f.attribute("num_heads")
    k = f.shape(1) if f.has(1) else q
    v = f.shape(2) if f.has(2) else k
    if len(q) == 5:
        width, length, size = q[2] * q[4], q[1], q[4]
    elif len(k) == 5:
        width, length, size = k[2] * k[4], k[1], k[4]
    elif len(v) == 4:
        width, length, size = v[1] * v[3], v[2], k[3]
    else:
        width, length, size = v[2], v[1], floor_div(k[2], heads)
    value_size = floor_div(width, heads)
    before = f.shape(6) if f.has(6) else None
    total = length if before is None else before[2] + length
    if before is not None and (f.attribute("past_present_share_buffer") or f.has(8)):
        total = before[2]
    return [[*q[:2], width], [q[0], heads, total, size], [q[0], heads, total, value_size],
            [q[0], heads, q[1], total]]


def _group_query(f: Facts) -> Shapes:
    q, heads, shared = f.shape(0), f.attribute("num_heads"), f.attribute("kv_num_heads")
    packed = not f.has(1)
    size = floor_div(q[2], heads + 2 * shared if packed else heads)
    past = f.shape(3) if f.has(3) else [q[0], shared, 0, size]
    total = f.elements[6] if len(f.elements) > 6 else None
    length = None if total is None or total.size != 1 else total.ravel()[0]
    most = None if length is None else greatest(past[2], length)
    cache = [q[0], shared, past[2] if f.attribute("sliding_window_cache") else most, past[3]]
    if not f.has(3) and f.attribute("kv_cache_bit_width"):
        cache[3] = None
    return [[*q[:2], size * heads if packed else q[2]], cache, cache]


def _block_gather(f: Facts) -> Shapes:
    """Bytes hold several numbers of fewer bits each."""
    data, indices, bits = f.shape(0), f.shape(1), f.attribute("bits")
    quantized = f.node.inputs[0]
    if quantized is not None and quantized.elem == ElementType.UINT8 and bits < 8:
        data[-1] *= 8 // bits
    at = normalized_axis(f.attribute("gather_axis"), len(data))
    return [[*data[:at], *indices, *data[at + 1:]]]


def _expand_dims(f: Facts) -> Shapes:
    x, axes = f.shape(0), f.numbers(1)
    if axes is None or len(axes) != 1:
        return [[None] * (len(x) + 1)]
    at = normalized_axis(axes[0], len(x) + 1)
    return [[*x[:at], 1, *x[at:]]]


def _unfold(f: Facts) -> Shapes:
    x, size = f.shape(0), f.attribute("size")
    at = normalized_axis(f.attribute("dim"), len(x))
    return [[*x[:at], floor_div(x[at] - size, f.attribute("step")) + 1, *x[at + 1:], size]]


CONTRIB: dict[str, Callable[[Facts], Shapes]] = {
    **{name: RULES[name] for name in ("Expand", "Pad", "Range", "MatMulInteger")},
    "FusedConv": conv(1), "NhwcConv": _nhwc_conv, "NhwcFusedConv": _nhwc_conv, "QLinearConv": conv(3),
    "NhwcMaxPool": pool, "QLinearAveragePool": pool, "QLinearAdd": _quantized_pair,
    "QLinearMul": _quantized_pair, "QLinearConcat": lambda f: concat(f, 2, 3),
    **dict.fromkeys(("RotaryEmbedding", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), same),
    **dict.fromkeys(("FusedGemm", "FusedMatMul", "GemmFastGelu", "TransposeMatMul", "FusedMatMulActivation",
                     "MatMulInteger16", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"), matmul()),
    "Attention": _attention(4), "QAttention": _attention(8), "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _group_query, "GatherBlockQuantized": _block_gather, "UnfoldTensor": _unfold,
    "ExpandDims": _expand_dims, "MaxpoolWithMask": pool,
}
