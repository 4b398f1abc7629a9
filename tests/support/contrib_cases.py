"""Random applications of operators that onnxruntime's CPU build has and the standard has not.

A function per operator draws a `Case` of a generator: sizes odd, optional inputs there and not, every
attribute, every type it has a kernel for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from oracle import Case

MS = "com.microsoft"
CASES: dict[str, Callable[[Draw], Case]] = {}
FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)


class Draw:
    """What a case is drawn with."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def yes(self) -> bool:
        return bool(self.rng.integers(2))

    def floats(self, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> np.ndarray:
        return np.asarray(self.rng.standard_normal(shape) * scale).astype(dtype)

    def maybe(self, *shape: int, dtype: Any = np.float32) -> np.ndarray | None:
        return self.floats(*shape, dtype=dtype) if self.yes() else None

    def ints(self, low: int, high: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
        return self.rng.integers(low, high, shape).astype(dtype)

    def lead(self) -> tuple[int, ...]:
        return self.one((1, 1), (2, 5), (3, 1), (1, 7))


def drawn(name: str) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
    """Register the cases of an operator, or of one of its forms: `MoE`, `MoE/many`."""
    def register(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        CASES[name] = make
        return make
    return register


def contrib(op: str, inputs: list[Any], attrs: dict[str, Any] | None = None, outputs: int = 1, **more: Any
            ) -> Case:
    return Case(op, inputs, attrs or {}, outputs=outputs, domain=MS, **{"rtol": 1e-4, "atol": 2e-5, **more})


def early(op: str, inputs: list[Any], attrs: dict[str, Any] | None = None) -> Case:
    """One of the first operator sets, which the tenth took back."""
    return Case(op, inputs, attrs or {}, opset=9)


@drawn("Affine")
def affine(d: Draw) -> Case:
    return early("Affine", [d.floats(2, 5)], {"alpha": 0.7, "beta": -1.5} if d.yes() else {})


@drawn("Scale")
def scale(d: Draw) -> Case:
    return early("Scale", [d.floats(2, 5)], {"scale": 0.7} if d.yes() else {})


@drawn("ParametricSoftplus")
@drawn("ScaledTanh")
def scaled(d: Draw) -> Case:
    return early(d.one("ParametricSoftplus", "ScaledTanh"), [d.floats(3, 7, scale=20)], {
        "alpha": 0.7, "beta": d.one(-1.5, 3.0)})


@drawn("ImageScaler")
def image_scaler(d: Draw) -> Case:
    return early("ImageScaler", [d.floats(2, 3, 4, 5)], {"bias": [1.0, -2.0, 0.3]} | (
        {"scale": 2.5} if d.yes() else {}))


@drawn("Crop")
def crop(d: Draw) -> Case:
    left, top, right, bottom = (int(n) for n in d.ints(0, 3, 4))
    attrs: dict[str, Any] = {"border": [left, top, right, bottom]}
    if d.yes():
        attrs["scale"] = [int(d.ints(0, 7 - top)), int(d.ints(1, 6 - left))]
    return early("Crop", [d.floats(2, 3, 6, 5)], attrs)


@drawn("DynamicSlice")
def dynamic_slice(d: Draw) -> Case:
    kind, dtype = d.one(np.int32, np.int64), d.one(np.float32, np.int8, np.float64, np.bool_)
    axes = d.one(None, [1], [2, 0], [-1, 1])
    count = len(axes) if axes else d.one(1, 2)
    ends = d.ints(-4, 3, count, dtype=kind), d.ints(-1, 9, count, dtype=kind)
    named = [np.array(axes, kind)] if axes else []
    return early("DynamicSlice", [d.floats(3, 4, 5).astype(dtype), *ends, *named])


@drawn("MemcpyFromHost")
@drawn("MemcpyToHost")
def copied(d: Draw) -> Case:
    x = d.floats(3, 4).astype(d.one(np.float32, np.int16))
    return early(d.one("MemcpyFromHost", "MemcpyToHost"), [x])


@drawn("GatedAdd")
def gated_add(d: Draw) -> Case:
    lead, n, dtype = d.lead(), d.one(1, 5, 33), d.one(np.float32, np.float16)
    return contrib("GatedAdd", [d.floats(*lead, n, dtype=dtype), d.floats(*lead, n, dtype=dtype),
                                d.floats(*lead, 1, dtype=dtype)])


@drawn("ScaledSiLU")
def scaled_silu(d: Draw) -> Case:
    x = d.floats(*d.lead(), d.one(1, 5, 33), dtype=d.one(*FLOATS))
    if d.yes():
        return contrib("ScaledSiLU", [x], {"alpha": 1.7} if d.yes() else {})
    return contrib("ScaledSiLU", [x, d.floats(dtype=d.one(*FLOATS))], {"alpha": 0.3})


@drawn("LinearAttentionGate")
def linear_attention_gate(d: Draw) -> Case:
    lead, n, dtype = d.lead(), d.one(1, 3, 17), d.one(np.float32, np.float16)
    inputs = [d.floats(*lead, n, dtype=dtype, scale=4), d.floats(n), d.floats(n)]
    if d.yes():
        return contrib("LinearAttentionGate", inputs)
    return contrib("LinearAttentionGate", [*inputs, d.floats(*lead, n, dtype=dtype, scale=4)], outputs=2)


@drawn("GatedRMSNorm")
def gated_rms_norm(d: Draw) -> Case:
    lead, n, heads, dtype = d.lead(), d.one(1, 4, 33), d.one(1, 3), d.one(np.float32, np.float16)
    attrs = {"activation": d.one("silu", "swish", "sigmoid"), "epsilon": d.one(1e-5, 1e-3)}
    return contrib("GatedRMSNorm", [d.floats(*lead, heads * n, dtype=dtype), d.floats(n, dtype=dtype),
                                    d.floats(*lead, heads * n, dtype=dtype)], attrs if d.yes() else {})


def _streams(d: Draw) -> tuple[tuple[int, ...], int, int, Any, dict[str, int], np.ndarray]:
    lead, count, n = d.lead(), d.one(1, 3, 4), d.one(2, 5, 33)
    dtype, flat = d.one(*FLOATS), d.yes()
    x = d.floats(*lead, *((count * n,) if flat else (count, n)), dtype=dtype)
    return lead, count, n, dtype, {"num_branches": count} if flat else {}, x


@drawn("BranchwiseRMSNorm")
def branchwise_rms_norm(d: Draw) -> Case:
    _, count, n, _, attrs, x = _streams(d)
    shape = d.one((count * n,), (count, n), (n,), None)
    scale = [] if shape is None else [d.floats(*shape, dtype=d.one(*FLOATS))]
    return contrib("BranchwiseRMSNorm", [x, *scale], attrs | ({"epsilon": 1e-3} if d.yes() else {}))


@drawn("HyperConnectionPreMix")
def pre_mix(d: Draw) -> Case:
    lead, count, n, _, attrs, x = _streams(d)
    shape = d.one((count,), (count, 1), (count, n), *([(count * n,)] if attrs else []))
    gate = d.floats(*lead, *shape, dtype=d.one(*FLOATS))
    return contrib("HyperConnectionPreMix", [x, gate], attrs | ({"reduction_scale": 0.5} if d.yes() else {}))


@drawn("HyperConnectionPostMix")
def post_mix(d: Draw) -> Case:
    lead, count, n, dtype, attrs, x = _streams(d)
    gate = d.floats(*lead, *d.one((count,), (count, 1), (count, n)), dtype=(other := d.one(*FLOATS)))
    mix = [d.floats(*lead, count, count, dtype=other)] if d.yes() else []
    return contrib("HyperConnectionPostMix", [x, d.floats(*lead, n, dtype=dtype), gate, *mix], attrs)


@drawn("EngramGate")
def engram_gate(d: Draw) -> Case:
    lead, count, n, dtype = d.lead(), d.one(1, 3), d.one(2, 5, 33), d.one(np.float32, np.float16)
    after = d.yes()
    inputs = [d.floats(*lead, count, n, dtype=dtype), d.floats(*lead, count, n, dtype=dtype),
              d.floats(*lead, n, dtype=dtype), *(d.floats(count, n, dtype=dtype) for _ in range(2 + after))]
    return contrib("EngramGate", inputs, {"epsilon": 1e-3} if d.yes() else {}, 1 + after, rtol=2e-4)


@drawn("CausalConvWithState")
def causal_conv(d: Draw) -> Case:
    batch, channels, length, taps, dilation = (d.one(1, 2), d.one(1, 3, 17), d.one(1, 2, 7, 33),
                                               d.one(1, 2, 4), d.one(1, 1, 2))
    held, attrs = (taps - 1) * dilation, {"activation": d.one("none", "silu", "swish")}
    last, tail = d.yes(), d.one((channels,), (channels, 2))
    if last:
        attrs["channels_last"] = 1
        channels = int(np.prod(tail))
    if dilation > 1:
        attrs["dilation"] = dilation
    x, past = ((batch, n, *tail) if last else (batch, channels, n) for n in (length, held))
    return contrib("CausalConvWithState", [d.floats(*x), d.floats(channels, 1, taps), d.maybe(channels),
                                           d.maybe(*past)], attrs, 2)


@drawn("MRotaryEmbedding")
def multimodal_rotary(d: Draw) -> Case:
    batch, length, heads, size = d.one(1, 2), d.one(1, 5), d.one(1, 3), d.one(8, 16)
    dtype, dim = d.one(np.float32, np.float16), d.one(0, 4, size)
    half = (dim or size) // 2
    cuts = sorted(d.ints(0, half + 1, 2))
    attrs = {"mrope_section": [int(cuts[0]), int(cuts[1] - cuts[0]), int(half - cuts[1])],
             "interleaved": d.one(0, 1), "mrope_layout": d.one(0, 1), "num_heads": heads}
    if attrs["mrope_layout"]:
        attrs["mrope_section"].sort(reverse=True)
    if dim:
        attrs["rotary_embedding_dim"] = dim
    x = (batch, heads, length, size) if d.yes() else (batch, length, heads * size)
    return contrib("MRotaryEmbedding", [d.floats(*x, dtype=dtype), d.ints(0, 12, 3, batch, length),
                                        *(d.floats(12, half, dtype=dtype) for _ in range(2))], attrs)


def kept(d: Draw, batch: int, total: int) -> np.ndarray | None:
    """Perhaps a mask, which leaves each row a key."""
    made = d.ints(0, 2, batch, total, dtype=np.int32)
    made[:, -1] = 1
    return made if d.yes() else None


@drawn("DecoderMaskedMultiHeadAttention")
def one_token(d: Draw) -> Case:
    """Over a cache that is shared; for beams onnxruntime reads no bias but the first entry's."""
    batch, heads, size, capacity = d.one(1, 2, 4), d.one(1, 3), d.one(4, 8, 33), d.one(5, 16)
    held, width = d.one(0, 1, capacity - 1), d.one(1, 2) if batch > 1 else 1
    total, hidden = held + 1, heads * size
    mask = kept(d, batch, total)
    bias = d.floats(d.one(1, batch) if width == 1 else 1, d.one(1, heads), 1, total) if d.yes() else None
    beams = [np.array([width], np.int32)] if width > 1 else [None]
    chosen = d.ints(0, width, batch // width, width, capacity, dtype=np.int32) if width > 1 else None
    attrs = {"num_heads": heads, "past_present_share_buffer": 1}
    if d.yes():
        attrs |= {"scale": 0.3, "mask_filter_value": -3.0}
    return contrib("DecoderMaskedMultiHeadAttention", [
        *(d.floats(batch, 1, hidden) for _ in range(3)), mask, bias,
        *(d.floats(batch, heads, capacity, size) for _ in range(2)), np.array([held], np.int32), *beams,
        chosen, d.maybe(3 * hidden)], attrs, 3)


@drawn("DecoderMaskedMultiHeadAttention/cross")
def one_token_cross(d: Draw) -> Case:
    batch, heads, size, length = d.one(1, 2), d.one(1, 3), d.one(4, 8, 33), d.one(1, 7, 40)
    mask = kept(d, batch, length)
    more = [None] * 6 + [d.floats(3 * heads * size)] if d.yes() else []
    return contrib("DecoderMaskedMultiHeadAttention", [
        d.floats(batch, 1, heads * size), *(d.floats(batch, heads, length, size) for _ in range(2)), mask,
        *more],
        {"num_heads": heads})


def blocks(d: Draw, layouts: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists of the blocks each block of queries sees, itself among them."""
    seen = np.tril(d.ints(0, 2, layouts, count, count)) | np.eye(count, dtype=np.int64)
    columns = [np.nonzero(layout)[1] for layout in seen]
    most = max(map(len, columns))
    rows = np.concatenate((np.zeros((layouts, 1)), seen.sum(-1).cumsum(-1)), 1)
    filled = [np.pad(c, (0, most - len(c)), constant_values=-1) for c in columns]
    return rows.astype(np.int32), np.array(filled, np.int32)


@drawn("SparseAttention")
def sparse_attention(d: Draw) -> Case:
    batch, shared, times, size, block = d.one(1, 2), d.one(1, 2), d.one(1, 2), d.one(16, 32), d.one(16, 32)
    heads, capacity, dtype = shared * times, block * d.one(2, 3), d.one(np.float32, np.float16)
    total = d.one(1, block, block + 5, capacity)
    length = d.one(total, 1)
    layouts = d.one(*(n for n in (1, 2, 4) if heads % n == 0))
    widths = [heads * size, shared * size, shared * size]
    attrs = {"num_heads": heads, "kv_num_heads": shared, "sparse_block_size": block}
    turns: list[Any] = []
    if d.yes():
        attrs |= {"do_rotary": 1, "rotary_interleaved": d.one(0, 1)}
        turns = [d.floats(capacity, size // 2, dtype=dtype) for _ in range(2)]
    if d.yes():
        attrs["scale"] = 0.2
    given: list[Any] = [d.floats(batch, length, w, dtype=dtype) for w in widths]
    if d.yes():
        given = [np.concatenate(given, 2), None, None]
    return contrib("SparseAttention", [
        *given, *(d.floats(batch, shared, capacity, size, dtype=dtype) for _ in range(2)),
        *blocks(d, layouts, capacity // block), np.array([total], np.int32), np.full(batch, total, np.int32),
        *turns], attrs, 3, atol=2e-5 if dtype == np.float32 else 4e-3)


SHARED = {"SparseAttention": {1: 3, 2: 4}}
"""Outputs that onnxruntime wants in the memory of an input."""


@drawn("MoE")
def experts(d: Draw) -> Case:
    kind = d.one("relu", "gelu", "silu", "identity", "swiglu", "swiglu")
    count, hidden, inner, tokens = d.one(1, 4, 9), d.one(5, 16, 40), d.one(3, 8, 40), d.one(1, 2, 7, 30)
    lead = d.one((tokens,), (1, tokens))
    rows = 2 * inner if kind == "swiglu" else inner
    attrs = {"k": d.one(*range(1, min(count, 3) + 1)), "activation_type": kind,
             "normalize_routing_weights": d.one(0, 1)}
    if kind == "swiglu":
        attrs |= {"swiglu_fusion": 1}
        if d.yes():
            attrs |= {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.5}
    return contrib("MoE", [d.floats(*lead, hidden), d.floats(tokens, count), d.floats(count, rows, hidden),
                           d.maybe(count, rows), d.floats(count, hidden, inner), d.maybe(count, hidden)],
                   attrs)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis as bytes, the first in the lowest bits."""
    each = 8 // bits
    filled = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    apart = filled.reshape(*filled.shape[:-1], -1, each).astype(np.uint32) << np.arange(0, 8, bits)
    return apart.sum(-1).astype(np.uint8)


@drawn("QMoE")
def coded_experts(d: Draw) -> Case:
    """What is multiplied in float32 there: blocks of 8 bits have no such kernel."""
    kind, bits, zeros = d.one("relu", "gelu", "silu", "identity", "swiglu", "swiglu"), d.one(2, 4, 8), d.yes()
    count, hidden, inner, tokens = d.one(1, 4, 9), d.one(32, 64), d.one(32, 96), d.one(1, 2, 7, 30)
    block, dtype = d.one(0, 16, 32) if bits < 8 else 0, d.one(np.float32, np.float32, np.float16)
    paired = kind == "swiglu"
    attrs = {"k": d.one(*range(1, min(count, 3) + 1)), "activation_type": kind, "expert_weight_bits": bits,
             "swiglu_fusion": int(paired), "normalize_routing_weights": d.one(0, 1)}
    if paired and d.yes():
        attrs |= {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.5}
    if block:
        attrs["block_size"] = block

    def layer(n: int, k: int) -> list[Any]:
        blocks = k // block if block else 1
        codes, scales = d.ints(0, 1 << bits, count, n, k), d.rng.uniform(0.01, 0.03, (count, n, blocks))
        zero = d.ints(0, 1 << bits, count, n, blocks)
        scales = (scales if bits < 8 else 0.05 * scales).astype(dtype)
        return [packed(codes, bits), scales if block else scales[..., 0],
                packed(zero if block else zero[..., 0], bits) if zeros else None]

    first, second = layer(inner * (1 + paired), hidden), layer(hidden, inner)
    router = d.floats(tokens, count, dtype=dtype)
    weights = [np.abs(d.floats(tokens, count, dtype=dtype))] if d.yes() else []
    return contrib("QMoE", [
        d.floats(tokens, hidden, dtype=dtype), router, *first[:2],
        d.maybe(count, inner * (1 + paired), dtype=dtype), *second[:2], d.maybe(count, hidden, dtype=dtype),
        None, None, None, first[2], second[2], None, *weights],
        attrs, rtol=1e-3, atol=1e-3 if dtype == np.float32 else 4e-3)


@drawn("MatMulFpQ4")
def blob_product(d: Draw) -> Case:
    k, n, kind, lead = d.one(32, 33, 96), d.one(1, 5, 40), d.one(0, 1, 2), d.one((1,), (7,), (2, 3))
    scales = d.rng.uniform(0.01, 0.03, n * -(-k // 32)).astype("<f4")
    blob = [s.tobytes() + bytes([d.one(3, 11)] if kind else []) + d.ints(0, 256, 16, dtype=np.uint8).tobytes()
            for s in scales]
    return contrib("MatMulFpQ4", [d.floats(*lead, k), np.frombuffer(b"".join(blob), np.uint8).copy(),
                                  np.array([k, n])], {"blk_quant_type": kind}, rtol=1e-3, atol=1e-3)


@drawn("DynamicTimeWarping")
def warping(d: Draw) -> Case:
    shape = d.one(1, 3, 7), d.one(1, 4, 9)
    cost = d.one(d.floats(*shape), d.ints(0, 3, *shape).astype(np.float32))
    return contrib("DynamicTimeWarping", [cost[None] if d.yes() else cost])


@drawn("BifurcationDetector")
def bifurcation(d: Draw) -> Case:
    source, start = d.ints(0, 4, d.one(3, 8)), d.one(0, 2)
    made = np.append(source[start:], 1)
    if d.yes():
        made[d.one(0, len(made) - 1)] = 9
    inputs = [source, d.ints(0, 4, d.one(1, 5)), np.array(start)]
    attrs = {"min_ngram_size": d.one(1, 2), "max_ngram_size": d.one(2, 3)} if d.yes() else {}
    return contrib("BifurcationDetector", [*inputs, made] if d.yes() else inputs, attrs, 2)


@drawn("WordConvEmbedding")
def words(d: Draw) -> Case:
    """None begins with character 0, of which onnxruntime writes nothing."""
    window, deep, filters = d.one(1, 3), d.one(2, 5), d.one(1, 8)
    letters = d.ints(0, 6, d.one(1, 4), d.one(3, 7), dtype=np.int32)
    letters[:, 0] = 1
    attrs = {"char_embedding_size": deep, "conv_window_size": window, "embedding_size": filters}
    return contrib("WordConvEmbedding", [letters, d.floats(filters, 1, window, deep), d.floats(filters),
                                         d.floats(6, deep)], attrs if d.yes() else {})


@drawn("NGramHashMapping")
def hashed(d: Draw) -> Case:
    dtype, batch, length, reach, heads = (d.one(np.int32, np.int64), d.one(1, 2), d.one(1, 7), d.one(1, 2, 3),
                                          d.one(1, 2))
    attrs = {"max_ngram_size": reach + 1, "n_head_per_ngram": heads, "pad_id": d.one(0, 7),
             "reset_on_eos": d.one(0, 1)}
    return contrib("NGramHashMapping", [
        d.ints(-2, 6, batch, length, dtype=dtype), d.ints(1, 1 << 30, reach + 1, dtype=dtype),
        d.ints(1, 999, reach * heads, dtype=dtype), *_before(d, batch, reach, heads, dtype),
        d.ints(0, 2, batch, length, dtype=np.int32) if d.yes() else None], attrs, 2)


def _before(d: Draw, batch: int, reach: int, heads: int, dtype: Any) -> list[np.ndarray | None]:
    """Ids before, offsets, and the id that ends a sequence."""
    return [d.ints(0, 6, batch, reach, dtype=dtype) if d.yes() else None,
            d.ints(0, 1 << 31 - 1, reach * heads, dtype=dtype) if d.yes() else None,
            np.array(2, dtype) if d.yes() else None]


@drawn("VarlenNGramHashMapping")
def hashed_apart(d: Draw) -> Case:
    dtype, batch, reach, heads = d.one(np.int32, np.int64), d.one(1, 3), d.one(1, 2, 3), d.one(1, 2)
    lengths = d.ints(1, 6, batch)
    ends, room = np.append(0, np.cumsum(lengths)).astype(np.int32), d.one(1, 3)
    attrs = {"max_ngram_size": reach + 1, "n_head_per_ngram": heads, "pad_id": d.one(0, 7),
             "reset_on_eos": d.one(0, 1), "state_update_capacity": room}
    past, *others = _before(d, batch, reach, heads, dtype)
    old = None if past is None else d.ints(0, 2, batch, reach, dtype=np.int32)
    return contrib("VarlenNGramHashMapping", [
        d.ints(0, 6, ends[-1], dtype=dtype), d.ints(1, 1 << 30, reach + 1, dtype=dtype),
        d.ints(1, 999, reach * heads, dtype=dtype), ends, past, *others,
        d.ints(0, 2, ends[-1], dtype=np.int32), old, d.ints(0, 5, batch, dtype=np.int32)], attrs, 4)


@drawn("EmbedLayerNormalization")
def embedded(d: Draw) -> Case:
    batch, length, size, kind = d.one(1, 3), d.one(1, 5), d.one(8, 33), np.int32
    ids = d.ints(0, 9, batch, length, dtype=kind)
    segments = d.ints(0, 2, batch, length, dtype=kind) if d.yes() else None
    mask = d.ints(0, 2, batch, length, dtype=kind) if d.yes() else None
    places = [d.ints(0, 6, batch, length, dtype=kind)] if d.yes() else []
    attrs, count = {"epsilon": 1e-3} if d.yes() else {}, d.one(2, 3) if mask is not None or places else 2
    return contrib("EmbedLayerNormalization", [
        ids, segments, d.floats(9, size), d.floats(6, size), None if segments is None else d.floats(2, size),
        d.floats(size), d.floats(size), mask, *places], attrs, count)


@drawn("GroupQueryAttention/quantized")
def coded_cache(d: Draw) -> Case:
    shared, times, size, bits = d.one(1, 2), d.one(1, 3), d.one(8, 16), d.one(4, 8)
    kind, dtype, first = d.one("PER_TENSOR", "PER_CHANNEL"), d.one(np.float32, np.float16), d.yes()
    batch, length, held = d.one(1, 2), d.one(1, 4) if first else 1, 0 if first else d.one(1, 6)
    shape = batch, shared, held, size * bits // 8
    past = [d.ints(0, 256, *shape, dtype=np.uint8) for _ in range(2)]
    of = (1,) if kind == "PER_TENSOR" else (1, shared, 1, size)
    scales = [d.rng.uniform(0.02, 0.1 if bits == 8 else 0.4, of) for _ in range(2)]
    return contrib("GroupQueryAttention", [
        *(d.floats(batch, length, n * size, dtype=dtype) for n in (shared * times, shared, shared)),
        *(p if bits == 4 else p.view(np.int8) for p in past), np.full(batch, held + length - 1, np.int32),
        np.array([held + length], np.int32), *[None] * 5, *(s.astype(np.float32) for s in scales)],
        {"num_heads": shared * times, "kv_num_heads": shared, "k_quant_type": kind, "v_quant_type": kind,
         "kv_cache_bit_width": bits}, 3, rtol=1e-3, atol=1e-4 if dtype == np.float32 else 1e-2, slack=1)


@drawn("GroupQueryAttention/sliding")
def sliding_cache(d: Draw) -> Case:
    """A cache as long as the window, full after the run; onnxruntime takes several new tokens behind a past
    for one sequence only."""
    shared, times, size, window, length = d.one(1, 2), d.one(1, 3), 16, d.one(1, 4, 7), d.one(1, 3, 9)
    batch = d.one(1, 2) if length == 1 else 1
    ends = [max(window, length) + d.one(0, 1, 5) for _ in range(batch)]
    turned = [d.floats(32, 8), d.floats(32, 8)] if d.yes() else [None, None]
    coded = d.yes()
    past = [d.floats(batch, shared, window, size, scale=20) for _ in range(2)]
    scales = [None] * 3 + [np.array([0.03], np.float32)] * 2 if coded else []
    attrs = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR",
             "kv_cache_bit_width": 8} if coded else {}
    return contrib("GroupQueryAttention", [
        *(d.floats(batch, length, n * size) for n in (shared * times, shared, shared)),
        *(p.astype(np.int8 if coded else np.float32) for p in past), np.array(ends, np.int32) - 1,
        np.array([max(ends)], np.int32), *turned, *scales],
        {"num_heads": shared * times, "kv_num_heads": shared, "local_window_size": window,
         "sliding_window_cache": 1, "do_rotary": int(turned[0] is not None)} | attrs, 3, rtol=1e-3, atol=1e-4,
        slack=1)


@drawn("MultiHeadAttention/shared")
def attention_in_place(d: Draw) -> Case:
    """Over a cache that is written in place."""
    batch, heads, size, length, capacity = d.one(1, 2), d.one(1, 3), d.one(4, 33), d.one(1, 3), d.one(4, 16)
    held, hidden = d.one(0, 1, capacity - length), heads * size
    attrs = {"num_heads": heads} | ({"scale": 0.3, "unidirectional": 1} if d.yes() else {})
    return contrib("MultiHeadAttention", [
        *(d.floats(batch, length, hidden) for _ in range(3)), d.maybe(3 * hidden), None,
        d.maybe(d.one(1, batch), d.one(1, heads), length, held + length),
        *(d.floats(batch, heads, capacity, size) for _ in range(2)), np.array([held], np.int32)], attrs, 3)


@drawn("LinearAttention/shared")
def linear_attention_of_few(d: Draw) -> Case:
    """Fewer heads of queries or keys than of values."""
    batch, length, size, deep, held = d.one(1, 2), d.one(1, 5), d.one(4, 6), d.one(4, 7), d.one(4, 6)
    queries, keys, rule = d.one(*((1, 2, held) if held == 6 else (1, 2, 4))), d.one(1, 2, held), d.one(
        "linear", "gated", "delta", "gated_delta")
    decay = -np.abs(d.floats(batch, length, d.one(held, held * size))) if "gated" in rule else None
    rate = [np.abs(d.floats(batch, length, d.one(1, held)))] if "delta" in rule else []
    state = d.maybe(batch, held, size, deep)
    inputs = [d.floats(batch, length, queries * size), d.floats(batch, length, keys * size),
              d.floats(batch, length, held * deep), state, decay, *rate]
    return contrib("LinearAttention", inputs, {"q_num_heads": queries, "kv_num_heads": held,
                                               "update_rule": rule}, 2)


@drawn("AttnLSTM")
def attentive_lstm(d: Draw) -> Case:
    steps, batch, features, n, length, deep, size = (d.one(1, 4), d.one(1, 2), d.one(1, 3), d.one(2, 5),
                                                     d.one(2, 6), d.one(1, 4), d.one(1, 3))
    direction, wide = d.one("forward", "reverse", "bidirectional"), d.one(0, 7)
    count = 2 if direction == "bidirectional" else 1
    inputs = [d.floats(steps, batch, features), d.floats(count, 4 * n, features + (wide or deep)),
              d.floats(count, 4 * n, n), d.maybe(count, 8 * n),
              d.ints(1, steps + 1, batch, dtype=np.int32) if d.yes() else None, d.maybe(count, batch, n),
              d.maybe(count, batch, n), d.maybe(count, 3 * n), d.floats(count, n, size),
              d.floats(count, deep, size), d.floats(count, size), d.floats(batch, length, deep),
              d.ints(1, length + 1, batch, dtype=np.int32) if d.yes() else None,
              d.floats(count, n + deep, wide) if wide else None]
    return contrib("AttnLSTM", inputs, {"hidden_size": n, "direction": direction}, 3)
