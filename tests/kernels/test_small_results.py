"""Activations keep their digits where results are small, far below zero; so do divisions by any power."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from graphs import info, model
from onnx import helper

import orthrus as ort

MS = "com.microsoft"


def found(name: str, x: np.ndarray, domain: str, attrs: dict[str, Any]) -> np.ndarray:
    """What generated code gives, in float64."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node(name, ["x"], ["y"], domain=domain, **attrs)
    proto = model([node], [info("x", kind, x.shape)], [info("y", kind, None)], opset=22, domains={MS: 1})
    (y,) = ort.InferenceSession(proto.SerializeToString(), fallback="error").run(None, {"x": x})
    return y.astype(np.float64)


def swish(x: np.ndarray, factor: float = 1) -> np.ndarray:
    return x / (1 + np.exp(-factor * x))


def gelu(x: np.ndarray) -> np.ndarray:
    return swish(x + 0.044715 * x ** 3, np.sqrt(8 / np.pi)) * (1 / (1 + 0.044715 * x * x))


ACTIVATIONS: dict[str, tuple[str, dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = {
    "Sigmoid": ("", {}, lambda x: 1 / (1 + np.exp(-x))),
    "Softplus": ("", {}, lambda x: np.logaddexp(0, x)),
    "Mish": ("", {}, lambda x: x * np.tanh(np.logaddexp(0, x))),
    "Elu": ("", {}, lambda x: np.where(x < 0, np.expm1(x), x)),
    "Celu": ("", {}, lambda x: np.where(x < 0, np.expm1(x), x)),
    "Gelu": ("", {"approximate": "tanh"}, gelu),
    "FastGelu": (MS, {}, gelu),
    "QuickGelu": (MS, {"alpha": 1.5}, lambda x: swish(x, 1.5)),
}
"""The domain, attributes and truth. Gelu of the error function is not among them: it cancels by its
definition, here and in onnxruntime."""


@pytest.mark.parametrize("kind", (np.float32, np.float16, ml_dtypes.bfloat16))
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, kind: Any) -> None:
    domain, attrs, truth = ACTIVATIONS[name]
    if name == "Celu" and kind is not np.float32:
        return
    x = np.concatenate([np.linspace(-9, 3, 3001), -np.logspace(-9, 0, 100)]).astype(kind)
    wanted = truth(x.astype(np.float64))
    of = ml_dtypes.finfo(kind)
    most = 1e-5 if kind is np.float32 else float(of.eps)
    least = float(of.smallest_subnormal)
    assert (np.abs(found(name, x, domain, attrs) - wanted) <= most * np.abs(wanted) + least).all()


@pytest.mark.parametrize("beta", (0.3, 0.6, 0.75, 1.0, 2.5))
@pytest.mark.parametrize("size", (1e-3, 1.0, 1e5))
def test_powers_of_squares(size: float, beta: float) -> None:
    """Powers that no roots give: of large and small sums alike."""
    x = (size * np.random.default_rng(0).random((1, 6, 9, 20)) + size).astype(np.float32)
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    wanted = x / (2 + 0.5 / 3 * total) ** np.float64(np.float32(beta))
    y = found("LRN", x, "", {"size": 3, "alpha": 0.5, "beta": beta, "bias": 2.0})
    np.testing.assert_allclose(y, wanted, 3e-7 * max(1.0, beta))
