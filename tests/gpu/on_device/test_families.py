"""Every family of kernels against the operators' definitions, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_models import defined, model, node, of_arrays
from onnx import load_from_string

RNG = np.random.default_rng(0)
Made = tuple[bytes, dict[str, np.ndarray]]


def x(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def ints(low: int, high: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def op(kind: str, *arrays: np.ndarray | None, **attrs: Any) -> Callable[[], Made]:
    """A model of one node."""
    return lambda: of_arrays(kind, list(arrays), **attrs)


def fused() -> Made:
    """A product with all that can follow in its kernel."""
    made = model([node("MatMul", "a w", "p"), node("Add", "p b", "s"), node("Gelu", "s", "g"),
                  node("Add", "g r", "y")], {"a": (40, 96), "r": (40, 72)}, ["y"], w=x(96, 72), b=x(72))
    return made, {"a": x(40, 96), "r": x(40, 72)}


H, BF = np.float16, ml_dtypes.bfloat16
FAMILIES: dict[str, Callable[[], Made]] = {
    "broadcast": op("Add", x(7, 1, 33), x(5, 33)),
    "where": op("Where", x(6, 70) > 0, x(6, 70), x(70)),
    "erf of halves": op("Erf", x(1000, dtype=H)),
    "integers": op("Div", ints(-50, 50, 300, dtype=np.int32), ints(1, 9, 300, dtype=np.int32)),
    "turned": op("Transpose", x(5, 33, 47), perm=[2, 0, 1]),
    "sum of rows": op("ReduceSum", x(37, 1025), np.array([1]), constants=("x1",)),
    "largest of columns": op("ReduceMax", x(129, 70), np.array([0]), constants=("x1",)),
    "softmax": op("Softmax", x(9, 333)),
    "softmax of halves": op("Softmax", x(3, 5, 77, dtype=H)),
    "layer norm": op("LayerNormalization", x(17, 768), x(768), x(768)),
    "layer norm of bfloat16": op("LayerNormalization", x(17, 256, dtype=BF), x(256, dtype=BF)),
    "instance norm": op("InstanceNormalization", x(2, 5, 9, 8), x(5), x(5)),
    "group norm": op("GroupNormalization", x(2, 8, 9, 7), x(8), x(8), num_groups=4),
    "product": op("MatMul", x(70, 130), x(130, 90)),
    "product of halves": op("MatMul", x(96, 128, dtype=H), x(128, 64, dtype=H)),
    "product of bfloat16": op("MatMul", x(33, 65, dtype=BF), x(65, 40, dtype=BF)),
    "product of float64": op("MatMul", x(20, 30, dtype=np.float64), x(30, 25, dtype=np.float64)),
    "batched product": op("MatMul", x(3, 1, 20, 33), x(4, 33, 18)),
    "turned product": op("Gemm", x(64, 40), x(50, 64), x(50), transA=1, transB=1, alpha=0.5),
    "one row": op("MatMul", x(1, 1024), x(1024, 300)),
    "long k": op("MatMul", x(16, 4096), x(4096, 16)),
    "fused product": fused,
    "product of bytes": op("MatMulInteger", ints(0, 255, 20, 64, dtype=np.uint8),
                           ints(-99, 99, 64, 40, dtype=np.int8), np.array(7, np.uint8), np.array(3, np.int8)),
    "convolution": op("Conv", x(2, 8, 17, 15), x(24, 8, 3, 3), x(24), pads=[1, 1, 1, 1]),
    "strided convolution of halves": op("Conv", x(1, 32, 16, 16, dtype=H), x(32, 32, 3, 3, dtype=H),
                                        pads=[1, 1, 1, 1], strides=[2, 2]),
    "grouped convolution": op("Conv", x(1, 12, 10, 9), x(12, 4, 3, 3), group=3),
    "depthwise convolution": op("Conv", x(1, 24, 10, 9), x(24, 1, 3, 3), group=24, pads=[1, 1, 1, 1]),
    "convolution of lines": op("Conv", x(2, 6, 70), x(9, 6, 5), dilations=[2]),
    "convolution of volumes": op("Conv", x(1, 4, 5, 6, 7), x(6, 4, 2, 3, 3)),
    "transposed convolution": op("ConvTranspose", x(1, 6, 7, 8), x(6, 5, 3, 3), strides=[2, 2]),
    "attention": op("Attention", x(1, 4, 33, 32), x(1, 4, 50, 32), x(1, 4, 50, 32)),
    "causal grouped attention": op("Attention", x(1, 8, 24, 64, dtype=H), x(1, 2, 24, 64, dtype=H),
                                   x(1, 2, 24, 64, dtype=H), is_causal=1),
    "gather": op("Gather", x(50, 64), ints(-50, 50, 7, 3)),
    "gather elements": op("GatherElements", x(9, 40), ints(0, 9, 5, 40), axis=0),
    "scatter": op("ScatterND", x(12, 30), ints(0, 12, 5, 1), x(5, 30), reduction="add"),
    "largest pools": op("MaxPool", x(1, 6, 13, 12), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "average pools": op("AveragePool", x(1, 6, 13, 12), kernel_shape=[2, 3]),
    "resize": op("Resize", x(1, 3, 9, 7), None, np.array([1, 1, 2, 1.5], np.float32), constants=("x2",),
                 mode="linear"),
    "top k": op("TopK", x(9, 300), np.array([5]), outputs=2, constants=("x1",)),
    "running sum": op("CumSum", x(9, 300), np.array(1), constants=("x1",)),
    "quantize": op("QuantizeLinear", x(9, 70), np.float32(0.05), np.uint8(100), constants=("x1", "x2")),
    "dequantize": op("DequantizeLinear", ints(-128, 128, 9, 70, dtype=np.int8), np.float32(0.05),
                     constants=("x1",)),
    "4 bits": op("com.microsoft::MatMulNBits", x(3, 128), ints(0, 256, 40, 4, 16, dtype=np.uint8),
                 np.abs(x(40, 4)), constants=("x1", "x2"), K=128, N=40, bits=4, block_size=32),
    "lstm": op("LSTM", x(5, 2, 12), x(1, 64, 12), x(1, 64, 16), outputs=3, constants=("x1", "x2"),
               hidden_size=16),
    "gru": op("GRU", x(5, 2, 12), x(1, 48, 12), x(1, 48, 16), outputs=2, constants=("x1", "x2"),
              hidden_size=16),
}
FEW = {"where", "softmax of halves", "layer norm of bfloat16", "fused product", "depthwise convolution",
       "scatter", "4 bits"}
"""Those that are emulated whenever the longer suites run; each family has tests of its own there."""
FAR = {"float16": 2e-2, "bfloat16": 6e-2, "float64": 1e-9, "float32": 1e-4}


@pytest.mark.parametrize("name", [
    name if name in FEW else pytest.param(name, marks=pytest.mark.thorough) for name in FAMILIES])
def test_a_family(gpu: Any, name: str) -> None:
    made, feeds = FAMILIES[name]()
    session = gpu.session(made)
    expected = defined(load_from_string(made), feeds)
    for _ in range(2):
        for got, wanted in zip(session.run(None, feeds), expected, strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            if got.dtype.kind in "iub":
                apart = np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max()
                assert apart <= (1 if name == "quantize" else 0), apart
                continue
            far = FAR[got.dtype.name]
            np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), far, far * max(
                1.0, float(np.abs(wanted.astype(np.float64)).max())))
    assert not session.explain().numpy, session.explain()
