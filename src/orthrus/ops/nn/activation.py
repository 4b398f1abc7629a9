"""Activations: y = f(x), element by element or along one axis; an array of the input's type and shape out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir import HALF, TensorType, Type, Value
from ..define import (
    FLOATS,
    Samples,
    broadcast,
    define,
    elementwise,
    normalized_axis,
    random_array,
    unalike,
    xp,
)
from ..functions import scalar, sum_of
from ..math.arithmetic import Tanh


@elementwise()
def Relu(x):
    """max(x, 0)"""
    return xp.maximum(x, x.dtype.type(0))


@elementwise()
def LeakyRelu(x, *, alpha: float = 0.01):
    """x where positive, alpha * x elsewhere"""
    return xp.where(x < 0, alpha * x, x)


@elementwise(since=7)
def PRelu(x, slope):
    """x where positive, slope * x elsewhere"""
    return xp.where(x < 0, slope * x, x)


@PRelu.infer_with
def _prelu_type(x: Value, slope: Value) -> list[Type]:
    if x.shape is not None and slope.shape is not None:
        if len(slope.shape) > len(x.shape):
            raise ValueError(f"a slope of shape {slope.shape} is not broadcast to shape {x.shape}")
        broadcast(x.shape, slope.shape)
    return [TensorType(x.elem, x.shape)]


@define(widen=True, result="same")
def PRelu_1(x, slope):
    """x where positive, slope * x elsewhere, with one slope or one for each channel"""
    if slope.size == 1:
        slope = slope.reshape(())
    elif slope.ndim == 1 and x.ndim > 1 and slope.size == x.shape[1]:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    elif np.broadcast_shapes(x.shape, slope.shape) != x.shape:
        raise ValueError(f"a slope of shape {slope.shape} fits neither the channels nor shape {x.shape}")
    return np.where(x < 0, slope * x, x)


@PRelu_1.infer_with
def _prelu_1_type(x: Value, slope: Value) -> list[Type]:
    return [TensorType(x.elem, x.shape)]


@elementwise()
def Elu(x, *, alpha: float = 1.0):
    """x where positive, alpha * (exp(x) - 1) elsewhere"""
    return xp.where(x < 0, alpha * xp.expm1(x), x)


@elementwise(since=6)
def Selu(x, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875):
    """gamma times x where positive, gamma * alpha * (exp(x) - 1) elsewhere"""
    return gamma * xp.where(x > 0, x, alpha * xp.expm1(x))


@elementwise()
def Selu_1(x, *, alpha: float = 1.6732, gamma: float = 1.0507):
    """gamma times x where positive, gamma * alpha * (exp(x) - 1) elsewhere"""
    return gamma * xp.where(x > 0, x, alpha * xp.expm1(x))


@elementwise()
def Celu(x, *, alpha: float = 1.0):
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)"""
    zero = x.dtype.type(0)
    return xp.maximum(x, zero) + xp.minimum(alpha * xp.expm1(x / alpha), zero)


@elementwise()
def Gelu(x, *, approximate: str = "none"):
    """x times the normal distribution function, exact or by its tanh approximation"""
    if approximate == "tanh":
        # (1 + tanh(y)) / 2 is sigmoid(2 y), of which nothing cancels where x is negative
        return x * xp.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))
    if approximate != "none":
        raise ValueError(f"Gelu's attribute approximate is 'none' or 'tanh', found {approximate!r}")
    return 0.5 * x * (1 + xp.erf(x * math.sqrt(0.5)))


@elementwise()
def HardSigmoid(x, *, alpha: float = 0.2, beta: float = 0.5):
    """alpha * x + beta, held in [0, 1]"""
    return xp.maximum(xp.minimum(alpha * x + beta, x.dtype.type(1)), x.dtype.type(0))


@elementwise()
def HardSwish(x):
    """x times x / 6 + 1 / 2, that held in [0, 1]"""
    return x * xp.maximum(xp.minimum(x * (1 / 6) + 0.5, x.dtype.type(1)), x.dtype.type(0))


@elementwise()
def Mish(x):
    """x * tanh(log(1 + exp(x)))"""
    return x * xp.tanh(xp.maximum(x, x.dtype.type(0)) + xp.log1p(xp.exp(-xp.abs(x))))


@elementwise()
def Sigmoid(x):
    """1 / (1 + exp(-x))"""
    return xp.sigmoid(x)


@elementwise()
def Softplus(x):
    """log(1 + exp(x))"""
    return xp.maximum(x, x.dtype.type(0)) + xp.log1p(xp.exp(-xp.abs(x)))


@elementwise(types={"x": FLOATS})
def ParametricSoftplus(x, *, alpha: float, beta: float):
    """alpha * log(1 + exp(beta * x)), an operator of the first versions"""
    return alpha * Softplus(beta * x)


@ParametricSoftplus.sample_with
def _softened(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for shape in ((3, 5), (0, 3), ()):
        yield [random_array(rng, shape, dtype)], {"alpha": 0.5, "beta": 2.0}


@elementwise(types={"x": FLOATS})
def Affine(x, *, alpha: float = 1.0, beta: float = 0.0):
    """alpha * x + beta, an operator of the first versions"""
    return alpha * x + beta


@elementwise(types={"input": FLOATS})
def Scale(input, *, scale: float = 1.0):
    """scale * x, an operator of the first versions"""
    return scale * input


@elementwise(types={"input": FLOATS})
def ScaledTanh(x, *, alpha: float = 1.0, beta: float = 1.0):
    """alpha * tanh(beta * x), an operator of the first versions"""
    return alpha * Tanh(beta * x)


@elementwise()
def Softsign(x):
    """x / (1 + |x|)"""
    return x / (1 + xp.abs(x))


@elementwise(since=10)
def ThresholdedRelu(x, *, alpha: float = 1.0):
    """x above alpha, 0 elsewhere"""
    return xp.where(x > alpha, x, x.dtype.type(0))


@elementwise(types={"x": FLOATS})
def ThresholdedRelu_1(x, *, alpha: float = 1.0):
    """x above alpha, 0 elsewhere, an operator of the first versions"""
    return ThresholdedRelu(x, alpha=alpha)


@elementwise()
def Shrink(x, *, bias: float = 0.0, lambd: float = 0.5):
    """x + bias below -lambd, x - bias above lambd, 0 between"""
    low, high = (x + bias, x - bias) if bias else (x, x)
    y = xp.where(x < -lambd, low, xp.where(x > lambd, high, x.dtype.type(0)))
    return y if y.dtype == x.dtype else xp.to_integer(y, x.dtype)


@elementwise()
def Swish(x, *, alpha: float = 1.0):
    """x * sigmoid(alpha * x)"""
    return x * xp.sigmoid(alpha * x)


@elementwise(alike=True)
def SwiGLU(a, b, *, alpha: float = 1.0):
    """a * sigmoid(alpha * a) * b"""
    return Swish(a, alpha=alpha) * b


@SwiGLU.infer_with
def _swiglu_type(a: Value, b: Value, **_: Any) -> list[Type]:
    unalike("SwiGLU", [a.shape, b.shape])
    return [TensorType(a.elem, a.shape if a.shape is not None else b.shape)]


@SwiGLU.sample_with
def _swiglu_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for shape, alpha in (((3, 5), 1.0), ((0, 3), 0.5), ((), 2.0)):
        yield [random_array(rng, shape, dtype), random_array(rng, shape, dtype)], {"alpha": alpha}


def softmax(x: np.ndarray, axis: int, steps: Any = None) -> np.ndarray:
    """exp(x) over its sum along `axis`, without overflow; NaN along lines without a finite element.
    `steps`: the type to which the exponentials and the sums are rounded."""
    if not x.size:
        return x
    y = x - x.max(axis=axis, keepdims=True)
    np.exp(y, out=y)
    if steps is None:
        y /= sum_of(y, axis)
    else:
        y = y.astype(steps).astype(x.dtype)
        y /= sum_of(y, axis).astype(steps)
    return y


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """The logarithm of softmax along `axis`."""
    if not x.size:
        return x
    y = x - x.max(axis=axis, keepdims=True)
    y -= np.log(sum_of(np.exp(y), axis))
    return y


def hardmax(x: np.ndarray, axis: int) -> np.ndarray:
    """1 at the first largest element along `axis`, 0 elsewhere."""
    y = np.zeros_like(x)
    if x.size:
        np.put_along_axis(y, np.expand_dims(x.argmax(axis), axis), 1, axis)
    return y


def _flattened(f: Any, x: np.ndarray, axis: int) -> np.ndarray:
    """`f` along the rows of the matrix that `axis` divides the dimensions of `x` into."""
    at = normalized_axis(axis, x.ndim)
    rows, columns = math.prod(x.shape[:at]), math.prod(x.shape[at:])
    return f(x.reshape(rows, columns), 1).reshape(x.shape)


@define(result="same", since=13)
def Softmax(x, *, axis: int = -1):
    """exp(x) over its sum along `axis`; half precision is rounded after each step of ONNX's function body"""
    if x.dtype in HALF:
        return softmax(x.astype(np.float32), normalized_axis(axis, x.ndim), x.dtype)
    return softmax(x, normalized_axis(axis, x.ndim))


@define(widen=True, result="same")
def Softmax_1(x, *, axis: int = 1):
    """exp(x) over its sum over the dimensions from `axis` on"""
    return _flattened(softmax, x, axis)


@define(widen=True, result="same", since=13)
def LogSoftmax(x, *, axis: int = -1):
    """The logarithm of Softmax"""
    return log_softmax(x, normalized_axis(axis, x.ndim))


@define(widen=True, result="same")
def LogSoftmax_1(x, *, axis: int = 1):
    """The logarithm of Softmax over the dimensions from `axis` on"""
    return _flattened(log_softmax, x, axis)


@define(widen=True, result="same", since=13)
def Hardmax(x, *, axis: int = -1):
    """1 at the first largest element along `axis`, 0 elsewhere"""
    return hardmax(x, normalized_axis(axis, x.ndim))


@define(widen=True, result="same")
def Hardmax_1(x, *, axis: int = 1):
    """1 at the first largest element over the dimensions from `axis` on, 0 elsewhere"""
    return _flattened(hardmax, x, axis)


@Softmax.sample_with
@LogSoftmax.sample_with
@Hardmax.sample_with
@Softmax_1.sample_with
@LogSoftmax_1.sample_with
@Hardmax_1.sample_with
def _along_axis(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for shape, axis in (((3, 5), 1), ((2, 3, 4), 0), ((2, 3, 4), -2), ((5,), 0), ((0, 3), 1)):
        yield [random_array(rng, shape, dtype)], {"axis": axis}


def _dropped(x: np.ndarray, ratio: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`x` with about `ratio` of its elements zero and the others scaled up, and which are kept."""
    if not 0 <= ratio < 1:
        raise ValueError(f"Dropout's ratio is in [0, 1), found {ratio}")
    mask = rng.random(x.shape, np.float32) >= ratio
    wide = x.astype(np.float32) if x.dtype in HALF else x
    return np.where(mask, wide * wide.dtype.type(1 / (1 - ratio)), wide.dtype.type(0)).astype(x.dtype), mask


@define(since=12, outputs=2)
def Dropout(data, ratio=None, training_mode=None, *, n_outputs, rng):
    """The data; in training, `ratio` of them zero and the rest times 1 / (1 - ratio). Then which are kept"""
    share = 0.5 if ratio is None else float(scalar(ratio))
    if training_mode is not None and scalar(training_mode) and share:
        y, mask = _dropped(data, share, rng)
        return (y, mask) if n_outputs > 1 else y
    return (data, np.ones(data.shape, bool)) if n_outputs > 1 else data


@define(since=10, outputs=2)
def Dropout_10(data, *, ratio: float = 0.5, n_outputs):
    """The data, and a mask that keeps them all"""
    return (data, np.ones(data.shape, bool)) if n_outputs > 1 else data


@define(since=7, outputs=2)
def Dropout_7(data, *, ratio: float = 0.5, n_outputs):
    """The data, and a mask of their type that keeps them all"""
    return (data, np.ones_like(data)) if n_outputs > 1 else data


@define(outputs=2)
def Dropout_1(data, *, is_test: int = 0, ratio: float = 0.5, n_outputs, rng):
    """The data; unless `is_test`, `ratio` of them zero, the rest times 1 / (1 - ratio). Then those kept"""
    if is_test or not ratio:
        return (data, np.ones_like(data)) if n_outputs > 1 else data
    y, mask = _dropped(data, ratio, rng)
    return (y, mask.astype(data.dtype)) if n_outputs > 1 else y


@Dropout_1.infer_with
def _dropout_1_type(data: Value, **_: Any) -> list[Type]:
    return [TensorType(data.elem, data.shape)] * 2
