"""A smoothed model computes the same; quantized, it loses less where some channels are much larger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from quantization_cases import model, random

import orthrus
from orthrus import quantization as ours
from orthrus.quantization.smooth import smoothed


class Reader(ours.CalibrationDataReader):
    """Rows in which two channels are far larger than the others."""

    def __init__(self, shape: tuple[int, ...] = (4, 16), axis: int = 1) -> None:
        generator = np.random.default_rng(0)
        size = np.ones(shape[axis], np.float32)
        size[[2, 5]] = 60.0
        size = size.reshape([-1 if place == axis else 1 for place in range(len(shape))])
        self.feeds = [{"x": (generator.normal(size=shape) * size).astype(np.float32)} for _ in range(8)]
        self.left = list(self.feeds)

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


def network(opset: int = 17) -> onnx.ModelProto:
    return model([("MatMul", ["x", "w"], ["a"]), ("MatMul", ["x", "v"], ["b"]), ("Add", ["a", "b"], ["c"]),
                  ("LayerNormalization", ["c", "s", "t"], ["l"]),
                  ("Gemm", ["l", "g", "h"], ["r"], {"transB": 1})],
                 {"x": [4, 16]}, [random("w", 16, 8), random("v", 16, 8), random("s", 8), random("t", 8),
                                  random("g", 5, 8), random("h", 5)], opset=opset)


def convolution() -> onnx.ModelProto:
    return model([("Conv", ["x", "w", "b"], ["c"]), ("Relu", ["c"], ["d"]), ("Conv", ["d", "v"], ["r"])],
                 {"x": [1, 6, 8, 8]}, [random("w", 4, 6, 3, 3), random("b", 4), random("v", 3, 4, 1, 1)])


def run(source: Any, feed: dict[str, np.ndarray]) -> np.ndarray:
    source = source if isinstance(source, str) else source.SerializeToString()
    return orthrus.InferenceSession(source).run(None, feed)[0]


@pytest.mark.parametrize("folding", (True, False))
@pytest.mark.parametrize("alpha", (0.0, 0.5, 1.0))
@pytest.mark.parametrize(("source", "reader"), (
    (network(17), Reader()), (network(21), Reader()), (convolution(), Reader((1, 6, 8, 8)))),
    ids=("products", "products 21", "convolution"))
def test_the_same_is_computed(source: onnx.ModelProto, reader: Reader, alpha: float, folding: bool) -> None:
    made, added = smoothed(source, reader.feeds, alpha, folding)
    assert len(added) == (2 if source.graph.node[0].op_type == "Conv" or not folding else 1)
    for feed in reader.feeds[:2]:
        expected = run(source, feed)
        np.testing.assert_allclose(run(made, feed), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("form", [*ours.QuantFormat])
def test_less_is_lost(form: ours.QuantFormat, tmp_path: Path) -> None:
    source = model([("MatMul", ["x", "w"], ["r"])], {"x": [4, 16]}, [random("w", 16, 8)])
    array = onnx.numpy_helper.to_array(source.graph.initializer[0]).copy()
    array[[2, 5]] /= 60
    source.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    lost = []
    for smooth in (False, True):
        out = str(tmp_path / f"{smooth}.onnx")
        ours.quantize_static(source, out, Reader(), quant_format=form, activation_type=ours.QuantType.QUInt8,
                             extra_options={"SmoothQuant": smooth})
        feed = Reader().feeds[0]
        lost.append(np.abs(run(out, feed) - run(source, feed)).mean())
    assert lost[1] < lost[0] / 3


def test_what_cannot_be_smoothed(tmp_path: Path) -> None:
    out, options = tmp_path / "out.onnx", {"SmoothQuant": True}
    with pytest.raises(ValueError, match="calibration_data_reader"):
        ours.quantize_static(network(), out, None, extra_options=options)
    with pytest.raises(ValueError, match="from 0 to 1"):
        ours.quantize_static(network(), out, Reader(), extra_options={**options, "SmoothQuantAlpha": 3})
    reader = Reader()
    reader.left = (feed for feed in reader.feeds)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="twice"):
        ours.quantize_static(network(), out, reader, extra_options=options)
    empty = Reader()
    empty.left = []
    with pytest.raises(ValueError, match="no feeds"):
        ours.quantize_static(network(), out, empty, extra_options=options)
    assert not out.exists()
