"""Samples of com.microsoft's operators for decoders: mixtures of experts, caches, gates, hashes of tokens.

As in `layers`: (inputs, attributes) or (inputs, attributes, number of outputs).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from .draw import Draw, Made, ints, sampled

contrib = partial(sampled, domain="com.microsoft")
HALF_FLOATS = ("float", "float16", "bfloat16")


def _int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@contrib("MoE", "float")
def experts(d: Draw) -> Iterator[Made]:
    for kind, rows, more in (("relu", 6, {}), ("swiglu", 12, {"swiglu_fusion": 1}), ("gelu", 6, {
            "normalize_routing_weights": 1})):
        yield ([d(5, 8), d.small(5, 4), d.small(4, rows, 8), None, d.small(4, 8, 6), d(4, 8)],
               {"k": 2, "activation_type": kind, **more})


@contrib("QMoE", "float", "float16")
def coded_experts(d: Draw) -> Iterator[Made]:
    def layer(n: int, k: int) -> list[np.ndarray]:
        return [d.rng.integers(0, 256, (4, n, k // 2)).astype(np.uint8), d.positive(4, n, k // 16) / 16]
    first, second = layer(64, 32), layer(32, 32)
    attrs = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "block_size": 16}
    yield [d(5, 32), d.small(5, 4), *first, d(4, 64), *second], attrs


@contrib("DecoderMaskedMultiHeadAttention", "float")
def one_token(d: Draw) -> Iterator[Made]:
    yield ([d(2, 1, 8), d(2, 1, 8), d(2, 1, 8), None, None, d(2, 2, 6, 4), d(2, 2, 6, 4), _int32(3)],
           {"num_heads": 2, "past_present_share_buffer": 1}, 3)
    yield [d(2, 1, 8), d(2, 2, 5, 4), d(2, 2, 5, 4)], {"num_heads": 2}


@contrib("SparseAttention", "float", "float16")
def sparse_attention(d: Draw) -> Iterator[Made]:
    blocks = np.array([[0, 1, 2]], np.int32), np.array([[0, 1]], np.int32)
    caches = d(1, 1, 32, 8), d(1, 1, 32, 8)
    yield ([d(1, 3, 16), d(1, 3, 8), d(1, 3, 8), *caches, *blocks, _int32(3), _int32(3)],
           {"num_heads": 2, "kv_num_heads": 1, "sparse_block_size": 16}, 3)


@contrib("MRotaryEmbedding", "float", "float16")
def multimodal_rotary(d: Draw) -> Iterator[Made]:
    for layout in (0, 1):
        yield ([d(1, 3, 16), d.below(6, 3, 1, 3), d(6, 4), d(6, 4)],
               {"num_heads": 2, "mrope_section": [2, 1, 1], "mrope_layout": layout})


@contrib("CausalConvWithState", *HALF_FLOATS)
def causal_conv(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 5), d.small(3, 1, 4), d(3), d(2, 3, 3)], {"activation": "silu"}, 2
    yield [d(1, 5, 2, 3), d.small(6, 1, 2)], {"channels_last": 1, "dilation": 2}, 2


@contrib("GatedRMSNorm", *HALF_FLOATS)
def gated_norm(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d.positive(4), d(2, 3, 8)], {"activation": "sigmoid"}


@contrib("LinearAttentionGate", *HALF_FLOATS)
def gates(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4), d.of(np.float32, 4), d.of(np.float32, 4), d(2, 3, 4)], {}, 2


@contrib("BranchwiseRMSNorm", *HALF_FLOATS)
def branch_norm(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4), d.positive(4)], {}
    yield [d(2, 12), d.positive(3, 4)], {"num_branches": 3}


@contrib("HyperConnectionPreMix", *HALF_FLOATS)
def mix_before(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4), d(2, 3)], {"reduction_scale": 0.5}


@contrib("HyperConnectionPostMix", *HALF_FLOATS)
def mix_behind(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4), d(2, 4), d(2, 3), d(2, 3, 3)], {}


@contrib("EngramGate", *HALF_FLOATS)
def engram(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 3, 4), d(1, 2, 3, 4), d(1, 2, 4), *(d.positive(3, 4) for _ in range(3))], {}, 2


@contrib("NGramHashMapping", "int32", "int64")
def hashed(d: Draw) -> Iterator[Made]:
    ids, factors, sizes = (ints(*v).astype(d.dtype) for v in ((3, 1, 4, 1, 5), (7, 11, 13), (31, 37)))
    yield ([ids[None], factors, sizes], {"max_ngram_size": 3, "n_head_per_ngram": 1, "pad_id": 0}, 2)


@contrib("VarlenNGramHashMapping", "int32", "int64")
def hashed_apart(d: Draw) -> Iterator[Made]:
    ids, factors, sizes = (ints(*v).astype(d.dtype) for v in ((3, 1, 4, 1, 5), (7, 11), (31, 37)))
    yield ([ids, factors, sizes, _int32(0, 2, 5)],
           {"max_ngram_size": 2, "n_head_per_ngram": 2, "pad_id": 0}, 2)


@contrib("BifurcationDetector", "int64")
def bifurcation(d: Draw) -> Iterator[Made]:
    yield [ints(1, 5, 3, 4), ints(1, 5), np.array(0), ints(1, 5, 9, 4, 2)], {}, 2


@contrib("WordConvEmbedding", "int32")
def words(d: Draw) -> Iterator[Made]:
    f = Draw(d.rng, np.dtype(np.float32))
    yield [d.rng.integers(1, 6, (2, 4)).astype(np.int32), f(3, 1, 2, 5), f(3), f(6, 5)], {}


@contrib("DynamicTimeWarping", "float")
def warping(d: Draw) -> Iterator[Made]:
    yield [d.positive(3, 5)], {}


@contrib("MatMulFpQ4", "float")
def blob_product(d: Draw) -> Iterator[Made]:
    scale = np.array([0.1], np.float32).view(np.uint8)
    block = np.concatenate((scale, np.arange(16, dtype=np.uint8)))
    yield [d(3, 32), np.tile(block, 2), ints(32, 2)], {"blk_quant_type": 0}


@sampled("Crop", "float")
def crop(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 5, 6)], {"border": [1, 0, 2, 1]}
    yield [d(1, 2, 5, 6)], {"border": [1, 0, 0, 0], "scale": [2, 3]}


@sampled("DynamicSlice", "float", "int64")
def dynamic_slice(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), ints(1, -2), ints(3, 9)], {}


@sampled("ImageScaler", "float", "double")
def image_scaler(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 3, 4)], {"bias": [1.0, -1.0], "scale": 0.5}
