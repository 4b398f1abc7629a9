"""A fused attention is what its parts are, NaN and infinities included: of each provider, and of the model
that is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_parts import TYPES, attention
from skips import needs

import orthrus
from fuzz import judge

CPU = "CPUExecutionProvider"
PROVIDERS = [CPU, pytest.param("DnnlExecutionProvider", marks=needs("oneDNN")),
             pytest.param("IREEExecutionProvider", marks=[needs("IREE"), pytest.mark.thorough]),
             pytest.param("SpaceMITExecutionProvider", marks=[needs("emulator"), pytest.mark.slow])]
COUNTS = {CPU: 15, "DnnlExecutionProvider": 30, "IREEExecutionProvider": 12,
          "SpaceMITExecutionProvider": 12}


def fused(session: Any) -> list[str]:
    return [n.kind for n in session._sess._engine.graph.nodes if n.kind.endswith("Attention")]


def same(got: np.ndarray, wanted: np.ndarray, tolerance: float, what: str) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted), what)
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance,
                               err_msg=what)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_random_forms(provider: str) -> None:
    random_forms(provider, range(COUNTS[provider]))


@pytest.mark.slow
def test_more_random_forms() -> None:
    random_forms(CPU, range(COUNTS[CPU], 300))


def random_forms(provider: str, seeds: range) -> None:
    """Against the definitions of the parts."""
    seen: list[str] = []
    for seed in seeds:
        model, feeds, dtype = attention(seed)
        session = orthrus.InferenceSession(model, providers=[provider, CPU][provider == CPU:])
        seen += fused(session)
        wanted = judge.session(orthrus, model, "ORT_DISABLE_ALL", 1, judge.NUMPY).run(None, feeds)[0]
        same(session.run(None, feeds)[0], wanted, TYPES[dtype], f"seed {seed}")
    if provider != "IREEExecutionProvider":  # which takes the parts
        assert len(seen) > 0.7 * len(seeds) and len(set(seen)) == 2


@pytest.mark.slow
def test_onnxruntime_s_are_the_same() -> None:
    """As far as its operators are exact: its softmax of halves is not."""
    peer = pytest.importorskip("onnxruntime")
    for seed in range(150):
        model, feeds, dtype = attention(seed, (np.float32, np.float64))
        wanted = judge.session(peer, model, "ORT_DISABLE_ALL", 1).run(None, feeds)[0]
        same(orthrus.InferenceSession(model).run(None, feeds)[0], wanted, TYPES[dtype], f"seed {seed}")


@pytest.mark.slow
def test_saved_models_keep_it(tmp_path: Path) -> None:
    """They hold the parts, which onnxruntime runs too, and which are fused again."""
    peer = pytest.importorskip("onnxruntime")
    again = 0
    for seed in range(100):
        model, feeds, dtype = attention(seed, (np.float32,))
        options = orthrus.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "saved.onnx")
        session = orthrus.InferenceSession(model, options)
        wanted = session.run(None, feeds)[0]
        saved = (tmp_path / "saved.onnx").read_bytes()
        loaded = orthrus.InferenceSession(saved)
        assert fused(loaded) == fused(session), f"seed {seed}"
        again += "orthrus::SoftmaxAttention" in fused(loaded)
        same(loaded.run(None, feeds)[0], wanted, TYPES[dtype], f"seed {seed}")
        if not {"Attention"} & set(fused(session)):
            theirs = judge.session(peer, saved, "ORT_DISABLE_ALL", 1).run(None, feeds)[0]
            same(theirs, wanted, TYPES[dtype], f"seed {seed}")
    assert again > 40
