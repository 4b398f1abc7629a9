"""Products of bytes on RISC-V, with and without the matrix instruction: exact."""

from __future__ import annotations

import numpy as np
import pytest
from skips import needs

board = pytest.importorskip("board")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import orthrus as ort  # noqa: E402
from orthrus.codegen.machines.machine import RVV256, SPACEMIT_K1, SPACEMIT_K3  # noqa: E402

emulated = needs("emulator")
TARGETS = {"k1": SPACEMIT_K1, "k3": SPACEMIT_K3, "rvv256": RVV256}
CONVOLUTIONS = {"depthwise": (40, 40, 3, 1, 40, 7), "depthwise, tail": (150, 150, 3, 2, 150, 5),
                "depthwise 5": (8, 8, 5, 1, 8, 6), "plain": (24, 20, 3, 1, 1, 6),
                "pointwise": (16, 40, 1, 1, 1, 5)}
"""Channels in and out, kernel, stride, groups, size."""


def integers(kind: str, x: np.ndarray, w: np.ndarray, zero: int, **attributes: object) -> bytes:
    """A model of one node that gives sums of products as int32."""
    kinds = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8}
    held = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array(zero, x.dtype), "zero")]
    node = helper.make_node(kind, ["x", "w", "zero"], ["y"], name="it", **attributes)
    graph = helper.make_graph([node], "bytes",
                              [helper.make_tensor_value_info("x", kinds[x.dtype], x.shape)],
                              [helper.make_tensor_value_info("y", TensorProto.INT32, None)], held)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
                                   ).SerializeToString())


def on(target: str, model: bytes, x: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The result, and the kernels that ran."""
    before = len(board.ran)
    with board.on(TARGETS[target]):
        (got,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return got, board.ran[before:]


@emulated
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype,zero", ((np.uint8, 131), (np.int8, -7)))
def test_convolutions(name: str, target: str, dtype: type, zero: int) -> None:
    cin, cout, kernel, stride, groups, size = CONVOLUTIONS[name]
    rng, pad = np.random.default_rng(cin), kernel // 2
    x = rng.integers(0, 256, (2, cin, size, size), np.uint8).view(dtype)
    w = rng.integers(-128, 128, (cout, cin // groups, kernel, kernel)).astype(np.int8)
    model = integers("ConvInteger", x, w, zero, group=groups, strides=[stride] * 2, pads=[pad] * 4)
    got, ran = on(target, model, x)
    wide = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    seen = np.lib.stride_tricks.sliding_window_view(wide, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    parts = [np.einsum("nchwij,ocij->nohw", *pair) for pair in zip(
        np.split(seen, groups, 1), np.split(w.astype(np.int64), groups), strict=True)]
    np.testing.assert_array_equal(got, np.concatenate(parts, 1))
    assert ran, "nothing ran in a worker"


@emulated
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m,n,k", ((1, 5, 3), (13, 33, 40), (30, 70, 129)))
def test_products(target: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m)
    x = rng.integers(0, 256, (m, k), np.uint8)
    w = rng.integers(-128, 128, (k, n)).astype(np.int8)
    got, ran = on(target, integers("MatMulInteger", x, w, 77), x)
    np.testing.assert_array_equal(got, (x.astype(np.int64) - 77) @ w.astype(np.int64))
    assert ran, "nothing ran in a worker"
