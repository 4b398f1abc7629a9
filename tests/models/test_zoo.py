"""The benchmark models agree with onnxruntime at every optimization level."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.zoo import build, cases, feeds

import orthrus

peer = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
FLOATS = [name for name in cases() if not name.endswith("_int8")]
INT8 = [name for name in cases() if name.endswith("_int8")]


def outputs(engine: Any, path: str, inputs: dict[str, np.ndarray], level: str) -> list[np.ndarray]:
    options = engine.SessionOptions()
    options.graph_optimization_level = getattr(engine.GraphOptimizationLevel, level)
    return engine.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)


def difference(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    """The largest difference, relative to the largest value of the output."""
    return max(float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max() / max(np.abs(x).max(), 1e-30))
               for x, y in zip(a, b, strict=True))


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The model's file, gone after the test."""
    file = tmp_path / f"{request.param}.onnx"
    onnx.save(build(request.param), file)
    yield str(file)
    file.unlink()


@pytest.mark.parametrize("path", FLOATS, indirect=True)
def test_float_models(path: str, request: pytest.FixtureRequest) -> None:
    """Within 1e-4. One model amplifies differences so much that onnxruntime's own levels are further apart:
    the bound there is twice that, as for the quantized ones."""
    inputs = feeds(request.node.callspec.params["path"])
    theirs = {level: outputs(peer, path, inputs, level) for level in LEVELS}
    spread = max(difference(a, b) for a in theirs.values() for b in theirs.values())
    for level in LEVELS:
        assert difference(theirs[level], outputs(orthrus, path, inputs, level)) < max(
            1e-4, 2 * spread if spread > 1e-4 else 0), level


@pytest.mark.parametrize("path", INT8, indirect=True)
def test_int8_models(path: str, request: pytest.FixtureRequest) -> None:
    """Quantization is chaotic: a rounding flips a step. The bound is what onnxruntime's own levels differ by,
    doubled because two engines stand on two sides of the exact answer."""
    inputs = feeds(request.node.callspec.params["path"])
    theirs = {level: outputs(peer, path, inputs, level) for level in LEVELS}
    spread = max(difference(a, b) for a in theirs.values() for b in theirs.values())
    for level in LEVELS:
        ours = outputs(orthrus, path, inputs, level)
        nearest = min(difference(reference, ours) for reference in theirs.values())
        assert nearest <= max(2 * spread, 1e-4), level


@pytest.mark.parametrize("path", FLOATS, indirect=True)
def test_no_part_of_a_float_model_is_interpreted(path: str, request: pytest.FixtureRequest) -> None:
    session = orthrus.InferenceSession(path)
    session.run(None, feeds(request.node.callspec.params["path"]))
    plans = [plan for part in session.explain().parts for plan in part.plans]
    assert plans and not [plan.interpreted for plan in plans if plan.interpreted]
