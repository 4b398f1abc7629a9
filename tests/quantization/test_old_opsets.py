"""Models of old operator sets, quantized: converted where it is needed, what they compute stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus
from orthrus import quantization as tools
from orthrus.errors import ALL
from orthrus.quantization.opset import converted

SHAPE = (1, 3, 6, 8)
SCALES: dict[str, list[float]] = {"whole": [1, 1, 2, 3], "grows": [1, 1, 1.5, 2.25],
                                  "shrinks": [1, 1, 0.6, 0.4], "both": [1, 1, 0.6, 1.7]}
KINDS = [(opset, kind) for opset in range(7, 14) for kind in (
    *(["Upsample"] if opset < 10 else []), *(["Resize"] if opset > 9 else []))]


def model(opset: int, kind: str, mode: str, scales: list[float]) -> onnx.ModelProto:
    """A Conv, the pixels in another number, and a Conv."""
    rng = np.random.default_rng(1)
    fixed = {name: rng.standard_normal((3, 3, 3, 3)).astype(np.float32) / 5 for name in ("w0", "w1")}
    fixed |= {"by": np.array(scales, np.float32), "roi": np.zeros(0, np.float32)}
    attrs: dict[str, Any] = {"mode": mode, **({"scales": [*map(float, scales)]} if opset < 9 else {})}
    names = ["a"] if opset < 9 else ["a", "by"] if opset < 11 else ["a", "roi", "by"]
    nodes = [helper.make_node("Conv", ["x", "w0"], ["a"], "first", pads=[1] * 4),
             helper.make_node(kind, names, ["b"], "pixels", **attrs),
             helper.make_node("Conv", ["b", "w1"], ["y"], "last", pads=[1] * 4)]
    kept = [numpy_helper.from_array(v, n) for n, v in fixed.items() if any(n in node.input for node in nodes)]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
            for name, shape in (("x", SHAPE), ("y", [1, 3, None, None]))]
    graph = helper.make_graph(nodes, "g", *ends, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def feed(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)}


def result(made: onnx.ModelProto | Path) -> np.ndarray:
    given = made.SerializeToString() if isinstance(made, onnx.ModelProto) else made
    return np.asarray(orthrus.InferenceSession(given).run(None, feed())[0])


class Reader(tools.CalibrationDataReader):
    def __init__(self) -> None:
        self.rows = iter([feed(), feed(1)])

    def get_next(self) -> Any:
        return next(self.rows, None)


def quantized(source: onnx.ModelProto, out: Path, how: str) -> None:
    if how == "dynamic":
        tools.quantize_dynamic(source, out, weight_type=tools.QuantType.QUInt8)
    else:
        form, _, channel = how.partition(" ")
        tools.quantize_static(source, out, Reader(), tools.QuantFormat[form], per_channel=bool(channel))


@pytest.mark.parametrize("how", ["dynamic", "QDQ", "QDQ by channel", "QOperator", "QOperator by channel"])
@pytest.mark.parametrize("mode", ["nearest", pytest.param("linear", marks=pytest.mark.slow)])
@pytest.mark.parametrize("opset, kind", KINDS)
def test_what_is_quantized_computes_nearly_what_it_did(opset: int, kind: str, mode: str, how: str,
                                                       tmp_path: Path) -> None:
    for label, scales in SCALES.items():
        if kind == "Upsample" and label not in ("whole", "grows"):
            continue
        source, out = model(opset, kind, mode, scales), tmp_path / "q.onnx"
        refused = opset == 10 and mode == "nearest" and label == "both" and how == "QDQ by channel"
        if refused:
            with pytest.raises(ALL, match="pixels"):
                quantized(source, out, how)
            continue
        quantized(source, out, how)
        wanted = result(source)
        assert np.abs(result(out) - wanted).max() < 0.08 * np.abs(wanted).max(), (label, how)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset, kind", KINDS)
def test_a_converted_model_computes_the_same(opset: int, kind: str, mode: str) -> None:
    for label, scales in SCALES.items():
        if kind == "Upsample" and label not in ("whole", "grows"):
            continue
        source = model(opset, kind, mode, scales)
        if opset == 10 and mode == "nearest" and label == "both":
            with pytest.raises(ALL, match="pixels"):
                converted(source, 13)
            continue
        for version in (11, 13, 17, 21):
            if version > opset:
                made = converted(source, version)
                onnx.checker.check_model(made)
                np.testing.assert_allclose(result(made), result(source), rtol=0, atol=1e-6)
