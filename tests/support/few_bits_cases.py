"""Products with weights of few bits: models, and what they should give."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its types by name then
import numpy as np
from onnx import helper, numpy_helper

MS = "com.microsoft"
ROUNDED = {"float32": 2 ** -21, "float16": 2 ** -10, "bfloat16": 2 ** -7}
"""What a result may differ by, relative to the sum of its products' sizes."""


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as bytes, the first in the lowest bits."""
    each = 8 // bits
    filled = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).reshape(len(codes), -1, each)
    return (filled.astype(np.uint32) << np.arange(0, 8, bits)).sum(-1).astype(np.uint8)


def model(nodes: list[Any], fixed: dict[str, np.ndarray], fed: dict[str, tuple[Any, tuple[Any, ...]]],
          dtype: str) -> bytes:
    """`fed`: types and shapes of the inputs."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), shape)
                     for n, (t, shape) in fed.items()],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)],
        [numpy_helper.from_array(a, n) for n, a in fixed.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


class Product:
    """A MatMulNBits, its matrix (n, k) in float64, and its bias."""

    def __init__(self, rng: np.random.Generator, n: int, k: int, bits: int, block: int, zeros: str = "",
                 dtype: str = "float32", level: int = 0, bias: bool = False, groups: bool = False) -> None:
        count, kind = -(-k // block), np.dtype(dtype)
        codes = rng.integers(0, 1 << bits, (n, count * block))
        scales = rng.uniform(0.01, 0.03, (n, count)).astype(kind)
        zero, self.bias = np.full((n, count), 1 << (bits - 1)), np.zeros(n, kind)
        group = np.arange(k) // block
        self.fixed = {"b": packed(codes, bits).reshape(n, count, -1), "scales": scales}
        if zeros == "codes":
            zero = rng.integers(0, 1 << bits, (n, count))
            self.fixed["zeros"] = packed(zero, bits)
        elif zeros == "floats":
            zero = self.fixed["zeros"] = rng.uniform(0, 1 << bits, (n, count)).astype(kind)
        if groups:
            group = rng.permutation(group)
            self.fixed["groups"] = group.astype(np.int32)
        if bias:
            self.bias = self.fixed["bias"] = rng.standard_normal(n).astype(kind)
        weights = codes[:, :k] - np.asarray(zero, np.float64)[:, group]
        self.matrix = weights * scales.astype(np.float64)[:, group]
        names = [n if n in self.fixed else "" for n in ("b", "scales", "zeros", "groups", "bias")]
        self.node = helper.make_node("MatMulNBits", ["a", *names], ["y"], domain=MS, K=k, N=n, bits=bits,
                                     block_size=block, accuracy_level=level)
        self.dtype, self.level, self.k = dtype, level, k

    def model(self, shape: tuple[Any, ...]) -> bytes:
        """A model of the product, `a` of such a shape."""
        return model([self.node], self.fixed, {"a": (self.dtype, shape)}, self.dtype)

    def close(self, a: np.ndarray, y: np.ndarray) -> None:
        """Whether y is A times the matrix, plus the bias."""
        assert y.dtype == a.dtype
        wide = a.astype(np.float64)
        size = np.abs(wide) @ np.abs(self.matrix).T + np.abs(self.bias.astype(np.float64))
        error = np.abs(y - (wide @ self.matrix.T + self.bias.astype(np.float64)))
        rounded = (np.abs(wide).max(-1) * np.abs(self.matrix).sum(1).max() / 254)[..., None]
        assert (error <= ROUNDED[self.dtype] * size + (rounded if self.level == 4 else 0) + 1e-37).all()
