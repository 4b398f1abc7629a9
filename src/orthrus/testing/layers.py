"""Samples of layers: products, convolutions, pooling, normalization, recurrence, attention, quantization.

Each yields (inputs, attributes) or (inputs, attributes, number of outputs); small sizes, every attribute
that a kernel could overlook at least once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .draw import FLOATS, Draw, Made, sampled

WIDE = ("float", "double", "float16")
"""Types in which a long sum keeps its digits."""


@sampled("MatMul")
def matmul(d: Draw) -> Iterator[Made]:
    for a, b in (((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 3)),
                 ((2, 3), (3,)), ((4,), (4,)), ((17, 33), (33, 19)), ((0, 4), (4, 2)), ((3, 0), (0, 2))):
        yield [d(*a), d(*b)], {}


@sampled("Gemm")
def gemm(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), d(4, 5), d(5)], {}
    yield [d(3, 4), d(4, 5)], {}
    yield [d(4, 3), d(5, 4), d(3, 1)], {"transA": 1, "transB": 1}
    yield [d(3, 4), d(4, 5), d(3, 5)], {"alpha": 2.0, "beta": 3.0}
    yield [d(3, 4), d(5, 4), d()], {"transB": 1}


@sampled("MatMulInteger", "uint8", "int8")
def matmul_integer(d: Draw) -> Iterator[Made]:
    yield [d(3, 8), d(8, 5)], {}
    yield [d(2, 3, 8), d.of(np.int8, 8, 5), np.array(1, d.dtype), np.array(2, np.int8)], {}


@sampled("Einsum", *FLOATS, "int32")
def einsum(d: Draw) -> Iterator[Made]:
    yield [d(2, 3), d(3, 4)], {"equation": "ij,jk->ik"}
    yield [d(2, 3, 4)], {"equation": "bij->bji"}
    yield [d(3, 3)], {"equation": "ii"}
    yield [d(2, 3, 4), d(2, 4, 5)], {"equation": "bij,bjk->bik"}


@sampled("Conv", *WIDE)
def conv(d: Draw) -> Iterator[Made]:
    yield [d(1, 3, 7, 7), d(4, 3, 3, 3)], {}
    yield [d(2, 3, 8, 8), d(4, 3, 3, 3), d(4)], {"pads": [1, 1, 1, 1], "strides": [2, 2],
                                               "kernel_shape": [3, 3]}
    yield [d(1, 4, 6, 6), d(4, 1, 3, 3), d(4)], {"group": 4, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    yield [d(1, 8, 5, 5), d(6, 8, 1, 1), d(6)], {"kernel_shape": [1, 1]}
    yield [d(1, 4, 9, 9), d(2, 2, 3, 3)], {"group": 2, "dilations": [2, 2]}
    yield [d(1, 2, 7, 7), d(2, 2, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
    yield [d(1, 2, 9), d(3, 2, 3)], {"pads": [0, 2], "kernel_shape": [3]}
    yield [d(1, 1, 4, 5, 4), d(2, 1, 2, 2, 2)], {"kernel_shape": [2, 2, 2]}


@sampled("ConvTranspose", *WIDE)
def conv_transpose(d: Draw) -> Iterator[Made]:
    yield [d(1, 3, 4, 4), d(3, 2, 3, 3)], {}
    yield [d(1, 2, 3, 3), d(2, 2, 3, 3), d(2)], {"strides": [2, 2], "pads": [1, 1, 1, 1],
                                               "output_padding": [1, 1], "kernel_shape": [3, 3]}
    yield [d(1, 4, 3, 3), d(4, 1, 2, 2)], {"group": 2, "kernel_shape": [2, 2]}


@sampled("ConvInteger")
def conv_integer(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 5, 5), d(3, 2, 3, 3)], {}
    yield [d(1, 2, 5, 5), d(3, 2, 3, 3), np.array(2, d.dtype), np.array(1, d.dtype)], {"pads": [1, 1, 1, 1]}


@sampled("MaxPool", *FLOATS, "int8", "uint8")
def max_pool(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 6, 6)], {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield [d(1, 2, 7, 7)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    yield [d(1, 2, 7, 7)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    yield [d(1, 1, 9)], {"kernel_shape": [3], "dilations": [2]}
    yield [d(1, 1, 4, 4)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 2


@sampled("AveragePool", *FLOATS)
def average_pool(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 6, 6)], {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield [d(1, 2, 7, 7)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    yield [d(1, 2, 7, 7)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    yield [d(1, 2, 6, 6)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}


@sampled("GlobalAveragePool", *FLOATS)
@sampled("GlobalMaxPool", *FLOATS)
def global_pool(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4, 5)], {}
    yield [d(1, 3, 7)], {}


@sampled("LpPool", *WIDE)
def lp_pool(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 6, 6)], {"kernel_shape": [2, 2], "strides": [2, 2], "p": 2}
    yield [d(1, 2, 6, 6)], {"kernel_shape": [3, 3], "p": 1}


@sampled("BatchNormalization", *FLOATS)
def batch_normalization(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4, 4), d(3), d(3), d(3), d.positive(3)], {}
    yield [d(2, 3), d(3), d(3), d(3), d.positive(3)], {"epsilon": 0.01}


@sampled("InstanceNormalization", *WIDE)
def instance_normalization(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4, 4), d(3), d(3)], {}
    yield [d(1, 2, 9), d(2), d(2)], {"epsilon": 0.01}


@sampled("LayerNormalization", *FLOATS)
def layer_normalization(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d(8), d(8)], {}
    yield [d(2, 3, 8), d(8)], {}
    yield [d(2, 3, 8), d(3, 8), d(3, 8)], {"axis": 1, "epsilon": 0.01}
    yield [d(5, 7), d(7), d(7)], {}, 3


@sampled("GroupNormalization", *WIDE)
def group_normalization(d: Draw) -> Iterator[Made]:
    yield [d(2, 4, 3, 3), d(4), d(4)], {"num_groups": 2}
    yield [d(1, 6, 5), d(6), d(6)], {"num_groups": 3, "epsilon": 0.01}


@sampled("RMSNormalization", *FLOATS)
def rms_normalization(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d(8)], {}
    yield [d(4, 6), d(6)], {"epsilon": 0.01}


@sampled("LpNormalization", *WIDE)
def lp_normalization(d: Draw) -> Iterator[Made]:
    yield [d.positive(3, 5)], {}
    yield [d.positive(3, 5)], {"axis": 0, "p": 1}


@sampled("MeanVarianceNormalization", *WIDE)
def mean_variance(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4, 4)], {}
    yield [d(2, 3, 4, 4)], {"axes": [2, 3]}


@sampled("LRN", *WIDE)
def local_response(d: Draw) -> Iterator[Made]:
    yield [d(1, 6, 3, 3)], {"size": 3}
    yield [d(1, 6, 3, 3)], {"size": 5, "alpha": 0.01, "beta": 0.5, "bias": 2.0}


@sampled("LSTM", *WIDE)
def lstm(d: Draw) -> Iterator[Made]:
    yield [d(4, 2, 3), d.small(1, 16, 3), d.small(1, 16, 4)], {"hidden_size": 4}, 3
    yield ([d(4, 2, 3), d.small(2, 16, 3), d.small(2, 16, 4), d.small(2, 32), None, d.small(2, 2, 4),
            d.small(2, 2, 4)], {"hidden_size": 4, "direction": "bidirectional"}, 3)
    yield ([d(4, 2, 3), d.small(1, 16, 3), d.small(1, 16, 4), d.small(1, 32)],
           {"hidden_size": 4, "direction": "reverse"}, 1)


@sampled("GRU", *WIDE)
def gru(d: Draw) -> Iterator[Made]:
    yield [d(4, 2, 3), d.small(1, 12, 3), d.small(1, 12, 4)], {"hidden_size": 4}, 2
    yield ([d(4, 2, 3), d.small(1, 12, 3), d.small(1, 12, 4), d.small(1, 24)],
           {"hidden_size": 4, "linear_before_reset": 1}, 2)


@sampled("RNN", *WIDE)
def rnn(d: Draw) -> Iterator[Made]:
    yield [d(4, 2, 3), d.small(1, 4, 3), d.small(1, 4, 4)], {"hidden_size": 4}, 2
    yield ([d(4, 2, 3), d.small(1, 4, 3), d.small(1, 4, 4), d.small(1, 8)],
           {"hidden_size": 4, "activations": ["Relu"]}, 2)


@sampled("Attention", *FLOATS)
def attention(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 4, 8), d(1, 2, 5, 8), d(1, 2, 5, 8)], {}
    yield [d(1, 2, 5, 8), d(1, 2, 5, 8), d(1, 2, 5, 8)], {"is_causal": 1}
    yield [d(1, 4, 3, 8), d(1, 2, 5, 8), d(1, 2, 5, 8), d(3, 5)], {"scale": 0.5}
    yield [d(2, 3, 16), d(2, 5, 16), d(2, 5, 16)], {"q_num_heads": 2, "kv_num_heads": 2}


@sampled("RotaryEmbedding", *FLOATS)
def rotary(d: Draw) -> Iterator[Made]:
    yield [d(2, 2, 3, 8), d(6, 4), d(6, 4), d.below(6, 2, 3)], {}
    yield [d(2, 2, 3, 8), d(2, 3, 4), d(2, 3, 4)], {"interleaved": 1}


def _quantized(d: Draw, *shape: int) -> np.ndarray:
    return d.rng.integers(0, 120, shape).astype(d.dtype)


def _scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def _zero(d: Draw, value: int) -> np.ndarray:
    return np.array(value, d.dtype)


@sampled("QLinearMatMul", "uint8", "int8")
def qlinear_matmul(d: Draw) -> Iterator[Made]:
    for a, b in (((3, 8), (8, 5)), ((2, 3, 8), (8, 5))):
        yield ([_quantized(d, *a), _scale(0.02), _zero(d, 60), _quantized(d, *b), _scale(0.03), _zero(d, 50),
                _scale(0.05), _zero(d, 40)], {})


@sampled("QLinearConv", "uint8", "int8")
def qlinear_conv(d: Draw) -> Iterator[Made]:
    for bias in (None, d.of(np.int32, 4)):
        given: list[Any] = [_quantized(d, 1, 3, 6, 6), _scale(0.02), _zero(d, 60), _quantized(d, 4, 3, 3, 3),
                            _scale(0.03), _zero(d, 50), _scale(0.1), _zero(d, 40)]
        yield given if bias is None else [*given, bias], {"pads": [1, 1, 1, 1]}


@sampled("DynamicQuantizeLinear", "float")
def dynamic_quantize(d: Draw) -> Iterator[Made]:
    yield [d(3, 5)], {}, 3
    yield [d(7)], {}, 3


@sampled("Dropout", *FLOATS)
def dropout(d: Draw) -> Iterator[Made]:
    yield [d(3, 5)], {}
    yield [d(3, 5), np.array(0.5, np.float32)], {}, 2


@sampled("FastGelu", *FLOATS, domain="com.microsoft")
def fast_gelu(d: Draw) -> Iterator[Made]:
    yield [d(3, 8)], {}
    yield [d(2, 3, 8), d(8)], {}


@sampled("GemmFastGelu", *WIDE, domain="com.microsoft")
def gemm_fast_gelu(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), d(4, 5)], {}
    yield [d(2, 3, 4), d(4, 5), d(5)], {}


@sampled("FusedMatMul", *WIDE, domain="com.microsoft")
@sampled("TransposeMatMul", *WIDE, domain="com.microsoft")
def fused_matmul(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), d(4, 5)], {}
    yield [d(2, 4, 3), d(2, 5, 4)], {"transA": 1, "transB": 1, "alpha": 0.5}


@sampled("SkipLayerNormalization", *WIDE, domain="com.microsoft")
def skip_layer_normalization(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d(2, 3, 8), d(8), d(8)], {}
    yield [d(2, 3, 8), d(2, 3, 8), d(8), d(8), d(8)], {"epsilon": 0.001}
    yield [d(2, 3, 8), d(1, 3, 8), d(8), d(8), d(8)], {}
    yield [d(2, 3, 8), d(3, 8), d(8), d(8)], {}


@sampled("SkipSimplifiedLayerNormalization", *WIDE, domain="com.microsoft")
def skip_rms_normalization(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d(2, 3, 8), d(8)], {}
    yield [d(2, 3, 8), d(1, 3, 8), d(8)], {}


@sampled("SimplifiedLayerNormalization", *WIDE)
def simplified_layer_normalization(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d(8)], {}


@sampled("GroupNorm", *WIDE, domain="com.microsoft")
def group_norm(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 2, 8), d(8), d(8)], {"groups": 4, "activation": 1}
    yield [d(2, 8, 3), d(8), d(8)], {"groups": 2, "activation": 0, "channels_last": 0, "epsilon": 0.01}


@sampled("SkipGroupNorm", *WIDE, domain="com.microsoft")
def skip_group_norm(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 2, 8), d(8), d(8), d(2, 3, 2, 8), d(8)], {"groups": 4, "activation": 0}
    yield [d(2, 3, 2, 8), d(8), d(8), d(2, 1, 1, 8)], {"groups": 2, "activation": 1}
    yield [d(2, 3, 2, 8), d(8), d(8), d(2, 8)], {"groups": 2, "activation": 1}


@sampled("BiasSplitGelu", *WIDE, domain="com.microsoft")
def bias_split_gelu(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d(8)], {}


@sampled("NhwcConv", *WIDE, domain="com.microsoft")
def nhwc_conv(d: Draw) -> Iterator[Made]:
    yield [d(2, 5, 4, 3), d(6, 2, 3, 3), d(6)], {"pads": [1, 0, 1, 1], "strides": [2, 1]}


@sampled("BiasAdd", *WIDE, domain="com.microsoft")
def bias_add(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d(8), d(2, 3, 8)], {}
