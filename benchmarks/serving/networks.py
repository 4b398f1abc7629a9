"""The models that are served: a small one, one of large tensors, one for which batches pay,
and one that takes long beside what HTTP does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shutil import copy

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from orthrus.demo import MODEL, samples


@dataclass(frozen=True)
class Case:
    """A model in the folder, a request's feeds, and how many rows may be joined."""
    name: str
    feeds: dict[str, np.ndarray]
    max_batch: int = 1


def write(folder: Path, name: str, made: onnx.ModelProto | Path) -> None:
    path = folder / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    copy(made, path) if isinstance(made, Path) else onnx.save(made, path)


def perceptron(wide: int, layers: int) -> onnx.ModelProto:
    """`layers` of `wide` x `wide`: one row reads all weights, as 32 rows do."""
    rng, nodes, held, last = np.random.default_rng(0), [], [], "x"
    for index in range(layers):
        weight = (rng.standard_normal((wide, wide)) / np.sqrt(wide)).astype(np.float32)
        held.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes += [helper.make_node("MatMul", [last, f"w{index}"], [f"m{index}"]),
                  helper.make_node("Relu", [f"m{index}"], [f"r{index}"])]
        last = f"r{index}"
    return _model(nodes, ("N", wide), last, held)


def scaled() -> onnx.ModelProto:
    """Sums of 768 KiB images and themselves: little to compute, much to carry, both ways."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    return _model(nodes, ("N", 3, 256, 256), "y", [])


def _model(nodes: list[onnx.NodeProto], shape: tuple[object, ...], output: str,
           held: list[onnx.TensorProto]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "served", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def cases(folder: Path) -> dict[str, Case]:
    """Write the models; what to ask of them, by name."""
    write(folder, "digits", Path(MODEL))
    write(folder, "large", scaled())
    write(folder, "batches", perceptron(1024, 4))
    for name in ("heavy", "bounded"):
        write(folder, name, perceptron(2048, 8))
    rng = np.random.default_rng(1)
    [image] = onnx.load(MODEL).graph.input
    return {
        "digits": Case("digits", {image.name: samples()[0][:1]}),
        "large": Case("large", {"x": rng.standard_normal((1, 3, 256, 256)).astype(np.float32)}),
        "batches": Case("batches", {"x": rng.standard_normal((1, 1024)).astype(np.float32)}, 32),
        "heavy": Case("heavy", {"x": rng.standard_normal((1, 2048)).astype(np.float32)}, 4)}
