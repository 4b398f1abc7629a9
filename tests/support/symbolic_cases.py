"""Holding inferred shapes against runs: what a name stands for follows from the feeds.

In: a model with shapes inferred and the arrays one run gave its values. Out: a line per shape that the run
contradicts. A name that is made by data is what it is where it first stands alone.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from orthrus.shapes.expression import Expr, named, put, symbols
from orthrus.shapes.parsing import parse

FEED = dict[str, Any]


def shape_of(info: onnx.ValueInfoProto) -> list[int | str | None] | None:
    """The stated dimensions; None without a rank or for what is no tensor."""
    if not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None
            for d in info.type.tensor_type.shape.dim]


def shapes(model: onnx.ModelProto) -> dict[str, list[int | str | None] | None]:
    graph = model.graph
    return {v.name: shape_of(v) for v in (*graph.input, *graph.value_info, *graph.output)}


def names_of(model: onnx.ModelProto, feeds: FEED) -> dict[str, int]:
    """What the names of a model's inputs, and of the elements of small inputs, stand for in a run."""
    out: dict[str, int] = {}
    for info in model.graph.input:
        array = feeds.get(info.name)
        if not isinstance(array, np.ndarray):
            continue
        for dim, size in zip(shape_of(info) or (), array.shape, strict=False):
            if isinstance(dim, str) and not re.search(r"[-+*/()]", dim):
                out[dim] = size
        stem = re.sub(r"\W", "_", info.name)
        if array.dtype.kind == "i" and array.size <= 16:
            out |= {f"{stem}_v{i}": int(v) for i, v in enumerate(array.ravel())}
            if not array.ndim:
                out[f"{stem}_value"] = int(array)
    return out


def exposed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every tensor of its main graph as an output."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    have = {o.name for o in out.graph.output}
    for info in model.graph.value_info:
        if info.name not in have and info.type.HasField("tensor_type"):
            open_ended = out.graph.output.add(name=info.name)
            open_ended.type.tensor_type.elem_type = info.type.tensor_type.elem_type
    for info in out.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    del out.graph.value_info[:]
    return out


def contradictions(model: onnx.ModelProto, feeds: FEED, arrays: FEED) -> tuple[list[str], int]:
    """Lines that say what differs, and how many dimensions were computed from expressions and agree."""
    names, wrong, checked = names_of(model, feeds), [], 0
    stated = shapes(model)
    for name, array in arrays.items():
        shape = stated.get(name)
        if shape is None or not isinstance(array, np.ndarray):
            continue
        if len(shape) != array.ndim:
            wrong.append(f"{name}: {shape}, the run gives {array.shape}")
            continue
        for dim, size in zip(shape, array.shape, strict=True):
            if isinstance(dim, str):
                found = parse(dim, named) if dim not in names else named(dim)
                unbound = [s.name for s in symbols(found) if s.name not in names]
                if isinstance(found, Expr) and found.symbol is not None and unbound:
                    names[unbound[0]] = size
                elif not unbound:
                    checked += 1
                    if put(found, names) != size:
                        wrong.append(f"{name}: {shape}, the run gives {array.shape}")
            elif dim != size:
                wrong.append(f"{name}: {shape}, the run gives {array.shape}")
    return wrong, checked


def tensor(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def floats(name: str, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def longs(name: str, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.INT64, shape)


def made(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str],
         constants: dict[str, Any] | None = None, opset: int = 17, **more: Any) -> onnx.ModelProto:
    """A model whose outputs have no type."""
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs],
                              [tensor(k, v) for k, v in (constants or {}).items()])
    more.setdefault("opset_imports", [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft",
                                                                                          1)])
    return helper.make_model(graph, ir_version=8, **more)
