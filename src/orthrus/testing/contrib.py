"""Samples of com.microsoft's operators, as optimizers and quantizers write them, and of some of ai.onnx.ml's.

As in `layers`: (inputs, attributes) or (inputs, attributes, number of outputs).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from .draw import Draw, Made, ints, sampled
from .layers import WIDE

contrib = partial(sampled, domain="com.microsoft")
learned = partial(sampled, domain="ai.onnx.ml")
NARROW = ("float", "float16")
BYTES = ("uint8", "int8")
Scale = np.float32


def _bytes(d: Draw, *shape: int) -> np.ndarray:
    return d.rng.integers(0, 120, shape).astype(d.dtype)


def _zero(d: Draw, value: int) -> np.ndarray:
    return np.array(value, d.dtype)


@contrib("Attention", *NARROW)
def attention(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d.small(8, 24), d(24)], {"num_heads": 2}
    yield [d(2, 3, 8), d.small(8, 24), d(24), np.array([2, 3], np.int32)], {"num_heads": 2}
    yield [d(2, 3, 8), d.small(8, 24), d(24)], {"num_heads": 2, "unidirectional": 1}


@contrib("MultiHeadAttention", *NARROW)
def multi_head_attention(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 8), d(2, 5, 8), d(2, 5, 8)], {"num_heads": 2}
    yield [d(2, 3, 8), d(2, 3, 8), d(2, 3, 8), d(24)], {"num_heads": 2, "unidirectional": 1}
    yield ([d(1, 1, 8), d(1, 1, 8), d(1, 1, 8), None, None, None, d(1, 2, 4, 4), d(1, 2, 4, 4)],
           {"num_heads": 2}, 3)


@contrib("GroupQueryAttention", *NARROW)
def group_query_attention(d: Draw) -> Iterator[Made]:
    lengths = np.array([2, 2], np.int32), np.array(3, np.int32)
    for more in ({}, {"local_window_size": 2}, {"softcap": 5.0}):
        yield ([d(2, 3, 32), d(2, 3, 16), d(2, 3, 16), None, None, *lengths],
               {"num_heads": 4, "kv_num_heads": 2, **more}, 3)


@contrib("RotaryEmbedding", *NARROW)
def rotary(d: Draw) -> Iterator[Made]:
    yield [d(2, 2, 3, 8), ints(0, 1, 2, 1, 2, 3).reshape(2, 3), d(6, 4), d(6, 4)], {}
    yield [d(1, 3, 16), ints(2), d(6, 4), d(6, 4)], {"interleaved": 1, "num_heads": 2}


@contrib("EmbedLayerNormalization", "int32")
def embed_layer_normalization(d: Draw) -> Iterator[Made]:
    f = Draw(d.rng, np.dtype(np.float32))
    ids, kinds = (d.rng.integers(0, end, (2, 3)).astype(np.int32) for end in (9, 2))
    yield [ids, kinds, f(9, 8), f(4, 8), f(2, 8), f(8), f(8)], {}, 2
    yield ([ids, kinds, f(9, 8), f(4, 8), f(2, 8), f(8), f(8), np.ones((2, 3), np.int32)],
           {"epsilon": 1e-5}, 2)


@contrib("QEmbedLayerNormalization", *BYTES)
def quantized_embed_layer_normalization(d: Draw) -> Iterator[Made]:
    ids, kinds = (d.rng.integers(0, end, (2, 3)).astype(np.int32) for end in (9, 2))
    tables = [_bytes(d, *shape) for shape in ((9, 8), (4, 8), (2, 8), (8,), (8,))]
    scales = [np.array(0.01 * (place + 1), Scale) for place in range(5)]
    zeros = [_zero(d, 10 * place) for place in range(5)]
    for mask in (None, np.ones((2, 3), np.int32)):
        yield [ids, kinds, *tables, mask, *scales, *zeros], {}, 2


@contrib("BiasSoftmax", *WIDE)
def bias_softmax(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4, 5), d(1, 1, 4, 5)], {"axis": 3, "is_inner_broadcast": 0}
    yield [d(2, 3, 4), d(2, 1, 4)], {"axis": 2, "is_inner_broadcast": 1}


@contrib("FusedConv", "float")
def fused_conv(d: Draw) -> Iterator[Made]:
    yield [d(1, 3, 6, 6), d.small(4, 3, 3, 3), d(4)], {"activation": "Relu", "pads": [1, 1, 1, 1]}
    yield [d(1, 3, 6, 6), d.small(4, 3, 3, 3)], {"activation": "LeakyRelu", "activation_params": [0.1]}
    yield [d(1, 3, 6, 6), d.small(4, 3, 3, 3), d(4), d(1, 4, 4, 4)], {"activation": "Relu"}


@contrib("FusedGemm", "float")
def fused_gemm(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), d(4, 5), d(5)], {"activation": "Relu"}
    yield [d(3, 4), d(5, 4), d(3, 5)], {"activation": "LeakyRelu", "activation_alpha": 0.1, "transB": 1}


@contrib("NhwcConv", "float")
def nhwc_conv(d: Draw) -> Iterator[Made]:
    yield [d(1, 6, 6, 3), d.small(4, 3, 3, 3), d(4)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}


@contrib("NhwcMaxPool", *BYTES)
def nhwc_max_pool(d: Draw) -> Iterator[Made]:
    yield [_bytes(d, 1, 6, 6, 3)], {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield [_bytes(d, 1, 7, 7, 3)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


@contrib("CDist", "float", "double")
def cdist(d: Draw) -> Iterator[Made]:
    yield [d(4, 6), d(5, 6)], {}
    yield [d(4, 6), d(5, 6)], {"metric": "euclidean"}


@contrib("Inverse", "float", "double")
def inverse(d: Draw) -> Iterator[Made]:
    yield [np.eye(4, dtype=d.dtype) * 3 + d.small(4, 4)], {}
    yield [np.eye(3, dtype=d.dtype) * 3 + d.small(2, 3, 3)], {}


@contrib("ExpandDims", "float", "int64")
def expand_dims(d: Draw) -> Iterator[Made]:
    yield [d(2, 3), np.array(1, np.int32)], {}
    yield [d(2, 3), np.array(-1, np.int32)], {}


@contrib("GatherND", "float", "int64")
def gather_nd(d: Draw) -> Iterator[Made]:
    yield [d(3, 4, 5), d.below(3, 6, 2)], {}


@contrib("GridSample", "float")
def grid_sample(d: Draw) -> Iterator[Made]:
    for more in ({}, {"mode": "nearest", "padding_mode": "border"}, {"align_corners": 1}):
        yield [d(1, 2, 4, 5), np.tanh(d(1, 3, 3, 2))], more


@contrib("Trilu", "float", "int64")
def trilu(d: Draw) -> Iterator[Made]:
    yield [d(2, 4, 5)], {}
    yield [d(4, 4), ints(-1).reshape(())], {"upper": 0}


@contrib("Range", "float", "int64", "int32")
def arange(d: Draw) -> Iterator[Made]:
    yield [np.array(value, d.dtype) for value in (1, 11, 3)], {}


@contrib("Pad", *NARROW)
def pad(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), ints(0, 1, 2, 0)], {}
    yield [d(3, 4), ints(1, 1, 1, 1), np.array([2.5], d.dtype)], {}
    yield [d(3, 4), ints(1, 1, 1, 1)], {"mode": "reflect"}


@contrib("QuantizeLinear", "float")
def quantize(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), Scale(0.05), np.uint8(128)], {}
    yield [d(3, 4), np.array([0.05, 0.1, 0.2], Scale), np.zeros(3, np.int8)], {"axis": 0}


@contrib("DequantizeLinear", *BYTES)
def dequantize(d: Draw) -> Iterator[Made]:
    yield [_bytes(d, 3, 4), Scale(0.05), _zero(d, 60)], {}
    yield [_bytes(d, 3, 4), np.array([0.05, 0.1, 0.2], Scale), np.zeros(3, d.dtype)], {"axis": 0}


@contrib("DynamicQuantizeMatMul", "float")
def dynamic_quantize_matmul(d: Draw) -> Iterator[Made]:
    weights = d.rng.integers(0, 250, (8, 5)).astype(np.uint8)
    yield [d(3, 8), weights, np.array([0.02], Scale), np.array([128], np.uint8)], {}
    yield [d(2, 3, 8), weights, np.array([0.02], Scale), np.array([128], np.uint8), d(5)], {}


@contrib("MatMulIntegerToFloat", "uint8")
def matmul_integer_to_float(d: Draw) -> Iterator[Made]:
    scales = np.array([0.02], Scale), np.array([0.03], Scale)
    given = [_bytes(d, 3, 8), _bytes(d, 8, 5).astype(np.uint8), *scales]
    yield [*given, _zero(d, 60).reshape(1), np.array([50], np.uint8)], {}
    yield [*given, None, None, d.of(np.float32, 5)], {}


@contrib("MatMulNBits", "float")
def matmul_nbits(d: Draw) -> Iterator[Made]:
    packed = d.rng.integers(0, 256, (6, 2, 8)).astype(np.uint8)
    yield [d(3, 32), packed, d.positive(6, 2) / 8], {"K": 32, "N": 6, "bits": 4, "block_size": 16}
    zeros = d.rng.integers(0, 256, (6, 1)).astype(np.uint8)
    yield [d(2, 3, 32), packed, d.positive(6, 2) / 8, zeros], {"K": 32, "N": 6, "bits": 4, "block_size": 16}


@contrib("MatMulBnb4", "float")
def matmul_bnb4(d: Draw) -> Iterator[Made]:
    attrs = {"K": 32, "N": 6, "block_size": 16}
    given = [d(3, 32), d.rng.integers(0, 256, 96).astype(np.uint8), d.positive(12) / 8]
    yield given, {**attrs, "quant_type": 0}
    yield [d(2, 3, 32), *given[1:]], {**attrs, "quant_type": 1}


@contrib("QGemm", *BYTES)
def qgemm(d: Draw) -> Iterator[Made]:
    given = [_bytes(d, 3, 8), Scale(0.02), _zero(d, 60), _bytes(d, 8, 5), Scale(0.03), _zero(d, 50)]
    yield [*given, d.of(np.int32, 5), Scale(0.05), _zero(d, 40)], {}
    yield [*given, None, Scale(0.05), _zero(d, 40)], {}


@contrib("QLinearAdd", *BYTES)
@contrib("QLinearMul", *BYTES)
def qlinear_binary(d: Draw) -> Iterator[Made]:
    for a, b in (((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1))):
        yield ([_bytes(d, *a), Scale(0.02), _zero(d, 60), _bytes(d, *b), Scale(0.03), _zero(d, 50),
                Scale(0.05), _zero(d, 40)], {})


@contrib("QLinearSigmoid", *BYTES)
@contrib("QLinearLeakyRelu", *BYTES)
def qlinear_unary(d: Draw) -> Iterator[Made]:
    yield [_bytes(d, 3, 5), Scale(0.05), _zero(d, 60), Scale(0.01), _zero(d, 10)], {}


@contrib("QLinearSoftmax", *BYTES)
def qlinear_softmax(d: Draw) -> Iterator[Made]:
    yield [_bytes(d, 3, 5), Scale(0.05), _zero(d, 60), Scale(1 / 256), _zero(d, 0)], {"opset": 13}


@contrib("QLinearAveragePool", *BYTES)
def qlinear_average_pool(d: Draw) -> Iterator[Made]:
    given = Scale(0.05), _zero(d, 60), Scale(0.047), _zero(d, 40)
    yield [_bytes(d, 1, 3, 6, 6), *given], {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield [_bytes(d, 1, 6, 6, 3), *given], {"kernel_shape": [3, 3], "channels_last": 1}


@contrib("QLinearGlobalAveragePool", *BYTES)
def qlinear_global_average_pool(d: Draw) -> Iterator[Made]:
    given = Scale(0.05), _zero(d, 60), Scale(0.047), _zero(d, 40)
    yield [_bytes(d, 2, 3, 4, 5), *given], {}
    yield [_bytes(d, 2, 4, 5, 3), *given], {"channels_last": 1}


@contrib("QLinearConv", *BYTES)
def qlinear_conv(d: Draw) -> Iterator[Made]:
    rest = (Scale(0.02), _zero(d, 60), _bytes(d, 4, 3, 3, 3), Scale(0.03), _zero(d, 50), Scale(0.1),
            _zero(d, 40))
    yield [_bytes(d, 1, 3, 6, 6), *rest], {"pads": [1, 1, 1, 1]}
    yield [_bytes(d, 1, 6, 6, 3), *rest, d.of(np.int32, 4)], {"channels_last": 1}


@contrib("QLinearConcat", "float")
def qlinear_concat(d: Draw) -> Iterator[Made]:
    b = Draw(d.rng, np.dtype(np.uint8))
    yield ([Scale(0.05), np.uint8(40), _bytes(b, 2, 3), Scale(0.02), np.uint8(60), _bytes(b, 2, 4),
            Scale(0.03), np.uint8(50)], {"axis": 1})


@contrib("QLinearWhere", "bool")
def qlinear_where(d: Draw) -> Iterator[Made]:
    b = Draw(d.rng, np.dtype(np.uint8))
    yield ([d(2, 3), _bytes(b, 2, 3), Scale(0.02), np.uint8(60), _bytes(b, 3), Scale(0.03), np.uint8(50),
            Scale(0.05), np.uint8(40)], {})


@learned("Scaler", "float", "double", "int64")
def scaler(d: Draw) -> Iterator[Made]:
    yield [d(3, 4)], {"offset": [1.0, 2.0, 3.0, 4.0], "scale": [0.5, 1.0, 2.0, 4.0]}
    yield [d(3, 4)], {"offset": [1.0], "scale": [0.5]}


@learned("Normalizer", "float", "double", "int64")
def normalizer(d: Draw) -> Iterator[Made]:
    for norm in ("MAX", "L1", "L2"):
        yield [d(3, 4)], {"norm": norm}


@learned("Binarizer", "float")
def binarizer(d: Draw) -> Iterator[Made]:
    yield [d(3, 4)], {"threshold": 0.25}


@learned("Imputer", "float")
def imputer(d: Draw) -> Iterator[Made]:
    x = d(3, 4)
    x[0, 1] = np.nan
    yield [x], {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")}


@learned("ArrayFeatureExtractor", "float", "int64")
def array_feature_extractor(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), ints(2, 0)], {}


@learned("LinearRegressor", "float")
def linear_regressor(d: Draw) -> Iterator[Made]:
    weights = [float(w) for w in d.small(8)]
    yield [d(3, 4)], {"coefficients": weights, "intercepts": [0.5, -0.5], "targets": 2}
