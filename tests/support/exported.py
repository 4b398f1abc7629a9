"""Networks of transformers and diffusers as torch's exporters write them, for tests without torch.

In: `tests/transformers/exported.tar.xz`, which `tests/transformers/record.py` makes: graphs without their
large weights. Out: models with weights drawn by seed, and feeds. The same name always gives the same model.
"""

from __future__ import annotations

import json
import tarfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

FOLDER = Path(__file__).parents[1] / "transformers"


@cache
def _files() -> dict[str, bytes]:
    with tarfile.open(FOLDER / "exported.tar.xz") as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


@cache
def names() -> list[str]:
    """Every network, as "bert.script" or "bert.dynamo"."""
    return sorted(name.removesuffix(".onnx") for name in _files() if name.endswith(".onnx"))


def model(name: str) -> onnx.ModelProto:
    """A network with its weights."""
    made = onnx.load_from_string(_files()[f"{name}.onnx"])
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    constants = [node for node in made.graph.node if node.op_type == "Constant"]
    held = [a.t for node in constants for a in node.attribute if a.name == "value"]
    for weight in (*made.graph.initializer, *held):
        if weight.doc_string:
            mean, deviation = map(np.float32, weight.doc_string.split())
            values = rng.standard_normal(tuple(weight.dims), np.float32) * deviation + mean
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    return made


def feeds(name: str) -> dict[str, np.ndarray]:
    """What a network is fed."""
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    told = json.loads(_files()[f"{name}.json"])
    return {key: np.array(it["values"], np.int64).reshape(it["shape"]) if "values" in it
            else rng.standard_normal(it["shape"], np.float32) for key, it in told.items()}


@cache
def theirs() -> dict[str, dict]:
    """What onnxruntime's optimizer made of each network: model_type, counts and seconds, or error."""
    return json.loads((FOLDER / "fusions.json").read_text())
