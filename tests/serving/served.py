"""A repository of small models, and a server in front of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import orthrus
from orthrus.serving.server import Server, ServerOptions
from orthrus.serving.tensors import DATATYPES

PROTO = {"BOOL": "BOOL", "BYTES": "STRING", "FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE",
         "BF16": "BFLOAT16"}


def model(nodes: list[Any], inputs: Mapping[str, tuple[str, Any]], outputs: Mapping[str, tuple[str, Any]],
          **constants: np.ndarray) -> bytes:
    """A model of nodes; a value's type is a datatype's name with its shape."""
    def infos(values: Mapping[str, tuple[str, Any]]) -> list[Any]:
        return [helper.make_tensor_value_info(name, getattr(TensorProto, PROTO.get(kind, kind)), shape)
                for name, (kind, shape) in values.items()]
    held = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "served", infos(inputs), infos(outputs), held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("served.test", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def same(kind: str, shape: Any = ("N", "M")) -> bytes:
    return model([helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, shape)}, {"y": (kind, shape)})


def adds(number: float) -> bytes:
    return model([helper.make_node("Add", ["x", "c"], ["y"])], {"x": ("FP32", ["N", 4])},
                 {"y": ("FP32", ["N", 4])}, c=np.float32(number))


awake = threading.Event()


@orthrus.op("served.test::Sleep")
def sleep(x: np.ndarray) -> np.ndarray:
    """Sleeps until `awake` is set."""
    assert awake.wait(120)
    return x.copy()


def put(folder: Path, name: str, data: bytes, version: int | None = 1, settings: Any = None) -> None:
    """A model into a repository."""
    path = folder / f"{name}.onnx" if version is None else folder / name / str(version) / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if settings is not None:
        (folder / (f"{name}.json" if version is None else f"{name}/config.json")).write_text(
            json.dumps(settings))


def repository(folder: Path) -> Path:
    """Every datatype, two versions, two inputs, a model that sleeps, and one that is broken."""
    for kind in DATATYPES:
        put(folder, f"same_{kind}", same(kind), None)
    put(folder, "add", adds(1))
    put(folder, "add", adds(2), 2, {"versions": "all"})
    put(folder, "joined", adds(1), 1, {"max_batch_size": 8, "max_delay": 0.05})
    put(folder, "picks", model(
        [helper.make_node("Gather", ["c", "x"], ["y"])], {"x": ("INT64", ["N"])}, {"y": ("FP32", ["N"])},
        c=np.arange(10, dtype=np.float32)), 1, {"max_batch_size": 8, "max_delay": 0.1})
    put(folder, "keeps", model(
        [helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL),
         helper.make_node("Compress", ["x", "b"], ["y"], axis=0)],
        {"x": ("FP32", ["N"])}, {"y": ("FP32", ["M"])}), 1, {"max_batch_size": 8, "max_delay": 0.1})
    put(folder, "two", model(
        [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Sub", ["a", "b"], ["d"])],
        {"a": ("FP32", ["N"]), "b": ("FP32", ["N"])}, {"s": ("FP32", ["N"]), "d": ("FP32", ["N"])}))
    put(folder, "fixed", same("FP32", [2, 3]))
    sleeps = model([helper.make_node("Sleep", ["x"], ["y"], domain="served.test")],
                   {"x": ("FP32", ["N"])}, {"y": ("FP32", ["N"])})
    put(folder, "sleeps", sleeps, 1, {"max_queue": 4})
    put(folder, "broken", b"no model")
    return folder


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Server]:
    given = {"port": 0, "grpc_port": 0, **options}
    with Server(ServerOptions(folder, **given)) as server:
        yield server
