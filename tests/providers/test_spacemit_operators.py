"""Every operator the provider for SpacemiT's processors takes, from its samples, at three vector lengths, and
whole networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.zoo import build, feeds
from onnx import TensorProto, helper

pytest.importorskip("llvmlite")

from graphs import info, model
from skips import needs

import orthrus as ort
from orthrus.ir import OWN
from orthrus.lowering.native import Native
from orthrus.providers.spacemit import SpaceMITExecutionProvider, claims
from orthrus.testing import check_provider

pytestmark = needs("emulator")
NAME, CPU = "SpaceMITExecutionProvider", "CPUExecutionProvider"
EXACT = {"SPACEMIT_EP_INTRA_THREAD_NUM": "1", "SPACEMIT_EP_DISABLE_FLOAT16_EPILOGUE": "1"}
TARGETS: dict[str, dict[str, Any]] = {
    "128": {"target": "generic", "vlen": "128"}, "256": {"target": "spacemit-k1"},
    "1024": {"target": "spacemit-k3"}}


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is run by definitions because it does not lower."""
    def interpret(self: Native, *_: Any) -> Any:
        raise AssertionError(f"{self.part} is interpreted: {list(self.refused.values())}")
    monkeypatch.setattr(Native, "interpret", interpret)


CHECKS = ("claimed_nodes_run", "claims_and_capability_agree", "results", "broadcasting", "empty_tensors",
          "scalars")
WITHOUT_SAMPLES = {"spacemit_functions::YoloDecode", f"{OWN}::SoftmaxAttention"}
"""A function, of which models bring the body, whose nodes are placed one by one; and what a pass makes, which
test_attention_parts.py tries."""


@pytest.mark.slow
@pytest.mark.parametrize("bits", [
    pytest.param(bits, marks=[pytest.mark.thorough][:bits == "128"]) for bits in TARGETS])
def test_operators(bits: str) -> None:
    checks = CHECKS if bits == "256" else CHECKS[:3]
    report = check_provider(SpaceMITExecutionProvider, options={**TARGETS[bits], **EXACT}, only=checks)
    assert report.ok, "\n".join(map(str, report.failed))
    tried = {row.operator for row in report.coverage if row.ran}
    assert set(claims.CLAIMS) - tried <= WITHOUT_SAMPLES


def quantized_network() -> onnx.ModelProto:
    """Two convolutions, a pool and a product between bytes, with scales that are powers of two: what float32
    computes of it is exact, so every implementation has to give the same bytes."""
    rng = np.random.default_rng(3)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {"zx": np.array(3, np.uint8), "zw": np.array(0, np.int8)}

    def node(op: str, inputs: list[str], **attrs: Any) -> str:
        out = f"{op}{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [out], name=out, **attrs))
        return out

    def scale(power: int) -> str:
        weights[f"s{power}"] = np.array(2.0 ** power, np.float32)
        return f"s{power}"

    def coded(x: str, power: int) -> str:
        q = node("QuantizeLinear", [x, scale(power), "zx"])
        return node("DequantizeLinear", [q, scale(power), "zx"])

    def constant(name: str, *shape: int) -> str:
        weights[name] = rng.integers(-7, 8, shape).astype(np.int8)
        weights[f"{name}s"] = (2.0 ** rng.integers(-6, -3, shape[0])).astype(np.float32)
        weights[f"{name}z"] = np.zeros(shape[0], np.int8)
        return node("DequantizeLinear", [name, f"{name}s", f"{name}z"], axis=0)

    x = coded("x", -3)
    x = node("Relu", [node("Conv", [x, constant("w1", 16, 8, 3, 3)], kernel_shape=[3, 3], pads=[1, 1, 1, 1])])
    x = node("MaxPool", [coded(x, -1)], kernel_shape=[2, 2], strides=[2, 2])
    x = coded(node("Conv", [coded(x, -1), constant("w2", 24, 16, 1, 1)], kernel_shape=[1, 1]), 0)
    x = coded(node("Flatten", [node("ReduceMax", [x, "axes"], keepdims=1)]), 0)
    weights["axes"] = np.array([2, 3])
    y = node("QuantizeLinear", [node("Gemm", [x, constant("w3", 10, 24)], transB=1), scale(1), "zx"])
    return model(nodes, [info("x", shape=(1, 8, 12, 12))], [info(y, TensorProto.UINT8, (1, 10))], weights)


@pytest.mark.parametrize("bits", TARGETS)
def test_quantized_network(bits: str) -> None:
    made = quantized_network().SerializeToString()
    s = ort.InferenceSession(made, providers=[(NAME, {**TARGETS[bits], **EXACT}), CPU])
    plain = ort.InferenceSession(made, providers=[(CPU, {"use_codegen": "0"})])
    assert {p.provider for p in s.explain().nodes} == {NAME}
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 8, 12, 12)).astype(np.float32) * 4
        (got,), (expected,) = s.run(None, {"x": x}), plain.run(None, {"x": x})
        np.testing.assert_array_equal(got, expected)
        assert len(set(got.reshape(-1).tolist())) > 3


@pytest.mark.slow
def test_mobilenet(tmp_path: Path) -> None:
    path, inputs = str(tmp_path / "m.onnx"), feeds("mobilenetv2")
    onnx.save(build("mobilenetv2"), path)
    s = ort.InferenceSession(path, providers=[(NAME, {**TARGETS["256"], **EXACT}), CPU])
    assert {p.provider for p in s.explain().nodes} == {NAME} and len({p.part for p in s.explain().nodes}) == 1
    (got,) = s.run(None, inputs)
    (expected,) = ort.InferenceSession(path, providers=[CPU]).run(None, inputs)
    assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()
