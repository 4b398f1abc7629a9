"""A look into a model before a session is made of it: its metadata, and the initializers whose data lies
outside.

Takes what a session takes (path, bytes, ModelProto); reads no external file.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import numpy as np

from ..errors import Fail, InvalidArgument
from ..limits import DEFAULT
from ..run.feeds import Misfit
from .options import SessionOptions


def proto(source: Any) -> Any:
    """The parsed model. Raises as loading it would."""
    from ..load.source import open_source

    return open_source(source, DEFAULT, None).model


def metadata(source: Any) -> dict[str, str]:
    """What a provider selection delegate is told of the model."""
    model = proto(source)
    version = model.model_version if model.HasField("model_version") else (1 << 63) - 1
    return {**{p.key: p.value for p in model.metadata_props}, "doc_string": model.doc_string,
            "domain": model.domain, "graph_description": model.graph.doc_string,
            "graph_name": model.graph.name, "model_version": str(version),
            "producer_name": model.producer_name, "producer_version": model.producer_version}


_FROM_MODEL = ("intra_op_num_threads", "inter_op_num_threads", "enable_profiling", "execution_mode",
               "graph_optimization_level")


def options_from_model(source: Any, options: SessionOptions) -> SessionOptions:
    """`options` with those that the model's metadata entry `ort_config` sets, JSON as {"session_options":
    {...}} with whole numbers.

    Raises InvalidArgument, a RuntimeError too, for an entry that cannot be read.
    """
    text = next((p.value for p in proto(source).metadata_props if p.key == "ort_config"), None)
    if text is None:
        return options
    given = options.__copy__()
    try:
        said = json.loads(text)
        asked = said.get("session_options") if isinstance(said, dict) else None
        for name, value in asked.items() if isinstance(asked, dict) else ():
            if name in _FROM_MODEL:
                setattr(given, name, _option(name, value))
    except ValueError as error:
        raise Misfit(f"the model's metadata entry 'ort_config' cannot be read: {error}",
                     found=text[:200], expected='{"session_options": {...}}') from error
    return given


def _option(name: str, value: Any) -> Any:
    """An option's value as a model gives it. Raises ValueError for one that it cannot have."""
    from .enums import ExecutionMode, GraphOptimizationLevel

    if type(value) is not int:
        raise ValueError(f"{name} option in the model file must be an integer")
    kind = {"execution_mode": ExecutionMode, "graph_optimization_level": GraphOptimizationLevel}.get(name)
    if kind is not None:
        return kind(value)
    if value < 0 or (name == "enable_profiling" and value > 1):
        raise ValueError(f"Unsupported value for {name}: {value}")
    return value


def external_arrays(source: Any, by_name: dict[str, np.ndarray], files: dict[str, bytes]
                    ) -> dict[str, np.ndarray]:
    """Arrays for the initializers given by name, and for those whose data lies in `files`.

    Raises Fail for a name the model has no initializer of, InvalidArgument for data that lies outside its
    file.
    """
    from ..ir import ElementType
    from ..load.tensors import from_bytes, packed_bytes

    graph = proto(source).graph
    known = {t.name: t for t in graph.initializer}
    for name in by_name:
        if name not in known:
            raise Fail(f"Failed to find existing initializer with name {name}.", expected=", ".join(known),
                       cure="add_initializer defines what the model has no initializer for")
    found = dict(by_name)
    content = {os.path.normpath(name): data for name, data in files.items()}
    for name, entry in known.items():
        where = {e.key: e.value for e in entry.external_data}
        data = content.get(os.path.normpath(where.get("location", "")))
        if entry.data_location != 1 or data is None or name in found:
            continue
        try:
            element, shape = ElementType(entry.data_type), tuple(entry.dims)
            offset = int(where.get("offset", 0))
        except ValueError as error:
            raise InvalidArgument(f"initializer {name}: {error}") from error
        count = math.prod(shape)
        size = packed_bytes(count, element)
        if element.numpy.hasobject or count < 0 or offset < 0 or offset + size > len(data):
            raise InvalidArgument(f"initializer {name} does not lie in the file given in memory",
                                  found=f"{size} bytes at {offset}", expected=f"within {len(data)} bytes")
        found[name] = from_bytes(memoryview(data)[offset:offset + size], element, shape)
    return found
