"""How far models that turn sound into spectra are from float64: `python -m benchmarks.mel FILE...`

In: models with an input of sounds, [N, samples] in float32, and perhaps one of their lengths. Out: a line
per model, with the largest differences of onnxruntime's and this package's results from those of the same
graph in which every float32 is a float64, run by the definitions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import orthrus

BY_DEFINITION = [("CPUExecutionProvider", {"use_codegen": "0"})]


def wider(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in float64."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _widen(made.graph)
    for function in made.functions:
        _nodes(function.node)
    return made


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    _nodes(graph.node)


def _nodes(nodes: Any) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            elif attribute.type == attribute.TENSOR:
                _tensor(attribute.t)
            elif attribute.type == attribute.GRAPH:
                _widen(attribute.g)
            elif node.op_type == "Constant" and attribute.name == "value_float":
                value = numpy_helper.from_array(np.float64(attribute.f))
                attribute.Clear()
                attribute.name, attribute.type = "value", attribute.TENSOR
                attribute.t.CopyFrom(value)


def _tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def sound(rate: int = 16000, seconds: int = 3) -> np.ndarray:
    """A voice that comes and goes, over a noise of 80 dB less."""
    time = np.arange(seconds * rate) / rate
    voice = sum(np.sin(2 * np.pi * k * (120 * time + 8 * np.sin(3 * time))) / k for k in range(1, 20))
    noise = np.random.default_rng(0).standard_normal(len(time))
    return (0.2 * voice * (np.sin(4 * np.pi * time) > 0) + 1e-4 * noise).astype(np.float32)[None]


def distances(path: Path) -> tuple[float, float]:
    """The largest differences from float64, of onnxruntime's results and of this package's."""
    import onnxruntime

    model, x = onnx.load(path), sound()
    inputs = model.graph.input
    whole = {arg.name for arg in inputs if arg.type.tensor_type.elem_type != TensorProto.FLOAT}
    feed = {arg.name: np.array([x.shape[1]], np.int64) if arg.name in whole else x for arg in inputs}
    wide = {name: value if name in whole else value.astype(np.float64) for name, value in feed.items()}
    exact = orthrus.InferenceSession(wider(model), providers=BY_DEFINITION).run(None, wide)[0]
    theirs = onnxruntime.InferenceSession(path).run(None, feed)[0]
    ours = orthrus.InferenceSession(path).run(None, feed)[0]
    return float(np.abs(theirs - exact).max()), float(np.abs(ours - exact).max())


def main(paths: list[str]) -> None:
    print(f"{'':24} {'onnxruntime':>12} {'Orthrus':>12}")
    for path in map(Path, paths):
        theirs, ours = distances(path)
        print(f"{path.stem:24} {theirs:12.1e} {ours:12.1e}")


if __name__ == "__main__":
    main(sys.argv[1:])
