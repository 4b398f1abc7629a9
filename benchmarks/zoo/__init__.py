"""Eleven models to measure with: real exported graphs whose weights come from seeds.

In: a name. Out: a ModelProto, and seeded inputs for it. `skeletons/NAME.onnx.gz` is a model as an exporter or
a quantizer wrote it, every large initializer replaced by a recipe (seed, mean, deviation, range); filling the
recipes in gives the real structure, shapes and weight statistics, and the same bytes on every machine. The
outputs mean nothing; they serve speed, memory and agreement between engines.

    python -m benchmarks.zoo list
    python -m benchmarks.zoo models NAME [NAME ...] --out FOLDER
    python -m benchmarks.zoo feeds NAME --out FILE.npz
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
SEEDED = "seeded"


def cases() -> dict[str, dict[str, Any]]:
    """Name -> what it is (`about`) and what it takes (`inputs`: shape, dtype, range or value)."""
    return json.loads((HERE / "cases.json").read_text())


def build(name: str) -> onnx.ModelProto:
    """The model called `name`, its weights filled in. Raises FileNotFoundError for an unknown name."""
    packed = (HERE / "skeletons" / f"{name}.onnx.gz").read_bytes()
    model = onnx.ModelProto.FromString(gzip.decompress(packed))
    for tensor in _tensors(model.graph):
        recipe = {entry.key: entry.value for entry in tensor.external_data}
        if recipe.get("location") == SEEDED:
            values = _filled(recipe, tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type))
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = numpy_helper.from_array(values).raw_data
    return model


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)


def _filled(recipe: dict[str, str], shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Normal values by the recipe; `std0` holds a deviation per output channel, in half precision."""
    values = np.random.default_rng(int(recipe["seed"])).standard_normal(shape, dtype=np.float32)
    if "std0" in recipe:
        spread = np.frombuffer(base64.b64decode(recipe["std0"]), np.float16).astype(np.float32)
        values *= spread.reshape(-1, *[1] * (values.ndim - 1))
    else:
        values *= np.float32(float(recipe["std"]))
    values += np.float32(float(recipe["mean"]))
    if dtype.kind in "iu":
        values = np.rint(values)
    return np.clip(values, float(recipe["low"]), float(recipe["high"]), out=values).astype(dtype)


def feeds(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs for the model called `name`."""
    rng, made = np.random.default_rng(seed), {}
    for key, spec in cases()[name]["inputs"].items():
        dtype, shape = np.dtype(spec["dtype"]), spec["shape"]
        if "value" in spec:
            made[key] = np.full(shape, spec["value"], dtype)
        elif dtype.kind in "iu":
            made[key] = rng.integers(spec["low"], spec["high"], shape).astype(dtype)
        elif dtype.kind == "b":
            made[key] = np.ones(shape, bool)
        else:
            made[key] = rng.standard_normal(shape).astype(dtype)
    return made
