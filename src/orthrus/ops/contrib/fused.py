"""Fused and extended operators of com.microsoft: activations, normalizations, matrix products, convolutions.

They are what onnxruntime's optimizers and exporters put in place of several ONNX operators; each means what
the operators it stands for mean together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import ElementType, TensorType, Type, Value
from ..define import FLOATS, Op, broadcast, define, elementwise, normalized_axis
from ..functions import centred, mean_of, sum_of
from ..math.arithmetic import Clip_6, Tanh
from ..math.linalg import gemm, matmul
from ..nn.activation import (
    Elu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Relu,
    Sigmoid,
    Softplus,
    Softsign,
    Swish,
)
from ..nn.activation import Gelu as OnnxGelu
from ..nn.conv import Conv, ConvTranspose
from ..nn.geometry import per_axis, window
from ..nn.norm import LayerNormalization
from ..nn.sampling import GridSample as OnnxGridSample

MS = "com.microsoft"


def like_first(x: Value, *_: Value | None, **__: Any) -> list[Type]:
    """The first input's type."""
    return [TensorType(x.elem, x.shape)]


def of_rank(elem: Any, rank: int | None) -> Type:
    """A tensor of which only the rank is known."""
    return TensorType(elem, None if rank is None else (None,) * rank)


def rank_of(x: Value | None) -> int | None:
    return None if x is None or x.shape is None else len(x.shape)


def product_shape(a: Any, b: Any) -> Any:
    """The shape of a matrix product of tensors of two known shapes, None where a rank is unknown."""
    if a is None or b is None or not a or not b:
        return None
    batch = broadcast(a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


@elementwise(domain=MS, types={"x": FLOATS})
def Gelu(x):
    """x times the normal distribution function of x"""
    return OnnxGelu(x)


@elementwise(domain=MS, types={"x": FLOATS})
def QuickGelu(x, *, alpha: float = 1.702):
    """x * sigmoid(alpha * x)"""
    return Swish(x, alpha=alpha)


@elementwise(domain=MS, types={"a": FLOATS, "b": FLOATS})
def BiasGelu(a, b):
    """The Gelu of a + b"""
    return OnnxGelu(a + b)


@elementwise(domain=MS, types={"x": FLOATS, "bias": FLOATS})
def FastGelu(x, bias=None):
    """The Gelu of x + bias by way of tanh"""
    return OnnxGelu(x if bias is None else x + bias, approximate="tanh")


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "bias": FLOATS, "skip": FLOATS})
def BiasAdd(x, bias, skip):
    """x + bias + skip"""
    return x + bias + skip


BiasAdd.infer_with(like_first)


@define(domain=MS, widen=True, result="same", types={"data": FLOATS, "bias": FLOATS})
def BiasSoftmax(data, bias, *, axis: int = 1, is_inner_broadcast: int):
    """The softmax of data + bias over the dimensions from `axis` on; bias lacks either inner or outer
    batch dimensions"""
    at = normalized_axis(axis, data.ndim)
    if is_inner_broadcast and bias.ndim < data.ndim:
        bias = bias.reshape(bias.shape + (1,) * (data.ndim - bias.ndim))
    x = data + bias
    flat = x.reshape(*x.shape[:at], math.prod(x.shape[at:]))
    e = np.exp(flat - flat.max(-1, keepdims=True, initial=-np.inf))
    return (e / sum_of(e, -1)).reshape(x.shape)


BiasSoftmax.infer_with(like_first)


def standardized(x: np.ndarray, epsilon: float, centre: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of `x` over their deviation, less their mean if `centre`; the means and the inverse deviations,
    [..., 1]."""
    shifted, mean = centred(x, (-1,)) if centre else (x, np.zeros((*x.shape[:-1], 1), x.dtype))
    inverse = 1 / np.sqrt(mean_of(shifted * shifted, (-1,)) + x.dtype.type(epsilon))
    return shifted * inverse, mean, inverse


def _skip_norm(x: np.ndarray, skip: np.ndarray, gamma: np.ndarray, beta: np.ndarray | None,
               bias: np.ndarray | None,
               epsilon: float, centre: bool) -> tuple[np.ndarray, ...]:
    dtype = x.dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    fits = len(skip.shape) <= x.ndim and all(s in (1, d) for s, d in zip(
        reversed(skip.shape), reversed(x.shape), strict=False))
    if not fits or any(v is not None and v.shape != x.shape[-1:] for v in (gamma, beta, bias)):
        found = [None if v is None else v.shape for v in (skip, gamma, beta, bias)]
        raise Unfit(f"a skip, gamma, beta and bias of shapes {found} do not fit an input of shape {x.shape}")
    total = x.astype(wide) + skip.astype(wide)
    if bias is not None:
        total += bias.astype(wide)
    y, mean, inverse = standardized(total, epsilon, centre)
    y = y * gamma.astype(wide)
    if beta is not None:
        y += beta.astype(wide)
    kept = np.float32 if dtype != np.float64 else np.float64
    return y.astype(dtype), mean.astype(kept), inverse.astype(kept), total.astype(dtype)


def _skip_norm_type(x: Value, *_: Value | None, **__: Any) -> list[Type]:
    rows = None if x.shape is None else (*x.shape[:-1], 1)
    inner = ElementType.DOUBLE if x.elem is ElementType.DOUBLE else ElementType.FLOAT
    return [TensorType(x.elem, x.shape), TensorType(inner, rows), TensorType(inner, rows),
            TensorType(x.elem, x.shape)]


@define(domain=MS, outputs=4, types=dict.fromkeys(("x", "skip", "gamma", "beta", "bias"), FLOATS))
def SkipLayerNormalization(x, skip, gamma, beta=None, bias=None, *, epsilon: float = 1e-12):
    """The layer normalization of x + skip + bias, its means and inverse deviations, and the sum"""
    return _skip_norm(x, skip, gamma, beta, bias, epsilon, True)


@define(domain=MS, outputs=4, types=dict.fromkeys(("x", "skip", "gamma", "bias"), FLOATS))
def SkipSimplifiedLayerNormalization(x, skip, gamma, bias=None, *, epsilon: float = 1e-12):
    """x + skip + bias over the root of its mean square, times gamma; zeros, the inverse roots, and the sum"""
    return _skip_norm(x, skip, gamma, None, bias, epsilon, False)


SkipLayerNormalization.infer_with(_skip_norm_type)
SkipSimplifiedLayerNormalization.infer_with(_skip_norm_type)


@define(outputs=2, types={"x": FLOATS, "scale": FLOATS})
def SimplifiedLayerNormalization(x, scale, *, axis: int = -1,
                                 epsilon: float = LayerNormalization.defaults["epsilon"],
                                 stash_type: int = 1):
    """x over the root of its mean square along the dimensions from `axis` on, times scale; and the inverse
    roots"""
    at = normalized_axis(axis, x.ndim)
    inner = ElementType(stash_type).numpy
    wide = np.float64 if np.float64 in (inner, x.dtype) else np.float32
    flat = x.astype(wide).reshape(*x.shape[:at], math.prod(x.shape[at:]))
    y, _, inverse = standardized(flat, epsilon, False)
    y = y.reshape(x.shape) * scale.astype(wide)
    return y.astype(scale.dtype), inverse.reshape(*x.shape[:at], *(1,) * (x.ndim - at)).astype(inner)


_IDS = ("int32", "int64")


@define(domain=MS, outputs=3, types={"input_ids": _IDS, "segment_ids": _IDS, "word_embedding": FLOATS},
        optional=("segment_ids", "segment_embedding"))
def EmbedLayerNormalization(input_ids, segment_ids, word_embedding, position_embedding, segment_embedding,
                            gamma, beta,
                            mask=None, position_ids=None, *, epsilon: float = 1e-12,
                            mask_index_type: int = 1):
    """The layer normalization of the sum of word, position and segment embeddings; the words per row; and
    the sum"""
    if input_ids.ndim != 2:
        raise ValueError(f"input_ids have shape {input_ids.shape}, expected [batch, sequence]")
    if any(x is None for x in (word_embedding, position_embedding, gamma, beta)):
        raise ValueError("EmbedLayerNormalization needs tables of words and positions, gamma and beta")
    dtype = word_embedding.dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    places = np.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
    total = (_looked_up(word_embedding, input_ids, "input_ids").astype(wide)
             + _looked_up(position_embedding, places, "position_ids").astype(wide))
    if segment_embedding is not None and segment_ids is not None:
        total = total + _looked_up(segment_embedding, segment_ids, "segment_ids").astype(wide)
    y, _, _ = standardized(total, epsilon, True)
    y = (y * gamma.astype(wide) + beta.astype(wide)).astype(dtype)
    count = np.zeros(len(input_ids), np.int32) if mask is None else (mask == 1).sum(1).astype(np.int32)
    return y, count, total.astype(dtype)


@EmbedLayerNormalization.infer_with
def _embedded_type(input_ids: Value, segment_ids: Value | None = None, word_embedding: Value | None = None,
                   *_: Value | None, **__: Any) -> list[Type]:
    if word_embedding is None:
        raise ValueError("the input word_embedding is missing")
    ids, words = input_ids.shape, word_embedding.shape
    shape = None if ids is None or words is None else (*ids, words[-1])
    return [TensorType(word_embedding.elem, shape), TensorType(ElementType.INT32,
                                                               None if ids is None else ids[:1]),
            TensorType(word_embedding.elem, shape)]


@define(domain=MS, outputs=2, types={"input_ids": ("int32",), "segment_ids": ("int32",),
                                     "word_embedding_quant": ("uint8", "int8")})
def QEmbedLayerNormalization(input_ids, segment_ids=None, word_embedding_quant=None,
                             position_embedding_quant=None, segment_embedding=None, gamma_quant=None,
                             beta_quant=None, mask=None, word_embedding_scale=None,
                             position_embedding_scale=None, segment_embedding_scale=None, gamma_scale=None,
                             beta_scale=None, word_embedding_zero_point=None,
                             position_embedding_zero_point=None, segment_embedding_zero_point=None,
                             gamma_zero_point=None, beta_zero_point=None, *,
                             epsilon: float = EmbedLayerNormalization.defaults["epsilon"]):
    """EmbedLayerNormalization of quantized tables, gamma and beta; its first two outputs"""
    quantized = ((word_embedding_quant, word_embedding_scale, word_embedding_zero_point),
                 (position_embedding_quant, position_embedding_scale, position_embedding_zero_point),
                 (segment_embedding, segment_embedding_scale, segment_embedding_zero_point),
                 (gamma_quant, gamma_scale, gamma_zero_point), (beta_quant, beta_scale, beta_zero_point))
    none = segment_embedding is None
    if any(part is None for i, row in enumerate(quantized) for part in row if not (none and i == 2)):
        raise ValueError("QEmbedLayerNormalization lacks a table, a scale or a zero point")
    tables = [None if q is None else (q.astype(np.float32) - zero.astype(np.float32)) * scale
              for q, scale, zero in quantized]
    return EmbedLayerNormalization(input_ids, segment_ids, *tables, mask, epsilon=epsilon)[:2]


@QEmbedLayerNormalization.infer_with
def _quantized_embedded_type(input_ids: Value, segment_ids: Value | None = None,
                             word_embedding_quant: Value | None = None, *_: Value | None, **__: Any
                             ) -> list[Type]:
    ids, words = input_ids.shape, None if word_embedding_quant is None else word_embedding_quant.shape
    shape = None if ids is None or words is None else (*ids, words[-1])
    return [TensorType(ElementType.FLOAT, shape), TensorType(ElementType.INT32,
                                                             None if ids is None else ids[:1])]


def _looked_up(table: np.ndarray, ids: np.ndarray, name: str) -> np.ndarray:
    if ids.size and not 0 <= ids.min() <= ids.max() < len(table):
        raise ValueError(f"{name} run from {ids.min()} to {ids.max()}, expected 0 to {len(table) - 1}")
    return table[ids]


ACTIVATIONS = {it.name: it for it in (Clip_6, Elu, OnnxGelu, HardSigmoid, HardSwish, LeakyRelu, Relu,
                                      Sigmoid, Softplus, Softsign, Tanh)}
"""What fused operators name."""


def fused_activation(name: str, params: Sequence[float | None] | None) -> tuple[Op, dict[str, Any]]:
    """The activation a fused operator names, with the attributes that its parameters set, in order, but for
    those that are None. Raises ValueError for an activation that does not exist."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
    op = ACTIVATIONS[name]
    given = [float(v) for v in params or () if v is not None]
    return op, dict(zip((k for k, v in op.attributes.items() if isinstance(v, float)), given, strict=False))


def _activated(y: np.ndarray, name: str | None, params: Sequence[float | None] | None) -> np.ndarray:
    if not name:
        return y
    op, attrs = fused_activation(name, params)
    return np.asarray(op.bind(attrs)(y))


def flipped(x: np.ndarray, flip: int, flip_batch: int) -> np.ndarray:
    """A factor of FusedMatMul: `flip_batch` moves dimension 0 behind the other batch dimensions, `flip`
    swaps the last two."""
    if flip_batch and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)
    return x.swapaxes(-1, -2) if flip and x.ndim > 1 else x


@define(domain=MS, widen=True, result="same", types={"a": FLOATS, "b": FLOATS})
def FusedMatMul(a, b, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
                transBatchB: int = 0):
    """alpha * A' @ B'"""
    y = matmul(flipped(a, transA, transBatchA), flipped(b, transB, transBatchB))
    return y if alpha == 1 else y * y.dtype.type(alpha)


@define(domain=MS, widen=True, result="same", types={"a": FLOATS, "b": FLOATS})
def TransposeMatMul(a, b, *, alpha: float = 1.0, transA: int = 0, transB: int = 0):
    """alpha * A' @ B'"""
    return FusedMatMul.body(a, b, alpha=alpha, transA=transA, transB=transB)


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "w": FLOATS, "bias": FLOATS})
def GemmFastGelu(x, w, bias=None):
    """The Gelu of x @ w + bias by way of tanh"""
    y = matmul(x, w)
    return OnnxGelu(y if bias is None else y + bias, approximate="tanh")


@define(domain=MS, widen=True, result="same", types={"a": FLOATS, "b": FLOATS, "c": FLOATS})
def FusedGemm(a, b, c=None, *, activation: str | None = None, activation_alpha: float | None = None,
              activation_beta: float | None = None, activation_gamma: float | None = None, alpha: float = 1.0,
              beta: float = 1.0, transA: int = 0, transB: int = 0):
    """An activation of alpha * A' @ B' + beta * C"""
    y = gemm(a, b, c, alpha, beta, transA, transB)
    return _activated(y, activation, (activation_alpha, activation_beta, activation_gamma))


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "w": FLOATS, "b": FLOATS, "z": FLOATS})
def FusedConv(x, w, b=None, z=None, *, activation: str | None = None, activation_params: list[float]
              | None = None,
              auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
              kernel_shape: list[int] | None = None, pads: list[int] | None = None,
              strides: list[int] | None = None):
    """An activation of a convolution plus Z"""
    y = Conv.body(x, w, b, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
                  pads=pads,
                  strides=strides)
    return _activated(y if z is None else y + z, activation, activation_params)


def channels_first(x: np.ndarray) -> np.ndarray:
    """[N, D..., C] as [N, C, D...]."""
    return np.moveaxis(x, -1, 1)


def channels_last(x: np.ndarray) -> np.ndarray:
    """[N, C, D...] as [N, D..., C]."""
    return np.moveaxis(x, 1, -1)


def convolved_shape(x: Any, w: Any, auto_pad: str, dilations: Any, pads: Any, strides: Any) -> Any:
    """The shape of a convolution of two known shapes, None where a rank is unknown."""
    if x is None or w is None or len(x) < 3 or len(w) != len(x):
        return None
    n = len(x) - 2
    steps, spread = per_axis(strides, n, "strides"), per_axis(dilations, n, "dilations")
    around = per_axis(pads, 2 * n, "pads", 0, 0)
    out = [window([size], [kernel], [steps[i]], [spread[i]], [around[i], around[n + i]], auto_pad).out[0]
           if isinstance(size, int) and isinstance(kernel, int) else None
           for i, (size, kernel) in enumerate(zip(x[2:], w[2:], strict=True))]
    return (x[0], w[0], *out)


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "w": FLOATS, "b": FLOATS})
def NhwcConv(x, w, b=None, *, auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
             kernel_shape: list[int] | None = None, pads: list[int] | None = None,
             strides: list[int] | None = None):
    """The convolution of X [N, D..., C] with W [M, K..., C / group], [N, O..., M]"""
    y = Conv.body(channels_first(x), channels_first(w), b, auto_pad=auto_pad, dilations=dilations,
                  group=group,
                  kernel_shape=kernel_shape, pads=pads, strides=strides)
    return channels_last(y)


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "w": FLOATS, "pads": ("int64",),
                                                     "b": FLOATS})
def ConvTransposeWithDynamicPads(x, w, pads=None, b=None, *, auto_pad: str = "NOTSET",
                                 dilations: list[int] | None = None, group: int = 1,
                                 kernel_shape: list[int] | None = None,
                                 output_padding: list[int] | None = None,
                                 strides: list[int] | None = None):
    """A transposed convolution whose padding is an input"""
    return ConvTranspose.body(x, w, b, auto_pad=auto_pad, dilations=dilations, group=group,
                              kernel_shape=kernel_shape,
                              output_padding=output_padding, strides=strides,
                              pads=None if pads is None else [int(v) for v in pads.reshape(-1)])


@ConvTransposeWithDynamicPads.infer_with
def _dynamic_pads_type(x: Value, w: Value, *_: Value | None, group: int, **__: Any) -> list[Type]:
    if x.shape is None or w.shape is None or len(w.shape) < 2:
        return [of_rank(x.elem, rank_of(x))]
    channels = w.shape[1] * group if isinstance(w.shape[1], int) else None
    return [TensorType(x.elem, (x.shape[0], channels, *(None,) * (len(x.shape) - 2)))]


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "grid": FLOATS})
def GridSample(x, grid, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"):
    """X sampled at the places a grid names, as ONNX's GridSample of version 16"""
    return OnnxGridSample.body(x, grid, align_corners=align_corners, padding_mode=padding_mode,
                               mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@GridSample.infer_with
def _grid_sample_type(x: Value, grid: Value, **_: Any) -> list[Type]:
    known = x.shape is not None and grid.shape is not None
    return [TensorType(x.elem, (*x.shape[:2], *grid.shape[1:-1]) if known else None)]
