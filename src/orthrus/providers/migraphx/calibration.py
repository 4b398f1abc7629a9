"""Ranges of tensors, as calibration wrote them, and a model with its products in int8.

In: a table's file: onnxruntime's three forms, or that of TensorRT and MIGraphX; an ONNX model. Out: the
largest magnitude of each tensor; the model with a QuantizeLinear and a DequantizeLinear before each input of
a convolution or product whose range is known, weights by their own. The library's own calibration is not
used: it accepts missing ranges without a word and gives useless results."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...ir import Graph, in_memory

Ranges = dict[str, float]
"""The largest magnitude of tensors by name."""

_STEPS = 127
_PRODUCTS = ("Conv", "MatMul", "Gemm")


def read_ranges(path: Path, native: bool) -> Ranges:
    """The ranges in a table. Raises InvalidArgument for a file that is missing or none."""
    try:
        raw = path.read_bytes()
        found = dict(_native(raw) if native else _json(raw) if path.suffix == ".json" else
                     _packed(raw) if path.suffix == ".flatbuffers" else _lines(raw))
        if not found or not all(math.isfinite(limit) and limit >= 0 for limit in found.values()):
            raise ValueError("it has no ranges, or some that are no numbers")
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as error:
        raise InvalidArgument(f"the calibration table {path} cannot be read: {error}",
                              expected="MIGraphX's or TensorRT's own table" if native else
                              "a .json, .flatbuffers or .cache file as orthrus.quantization writes it",
                              cure="int8_use_native_calibration_table says which of the two it is") from error


def _native(raw: bytes) -> Iterator[tuple[str, float]]:
    """`name: 3c010a14`, the bits of a float32: the size of one of 127 steps."""
    for line in raw.decode("utf-8").splitlines():
        name, colon, bits = line.rpartition(":")
        if colon:
            yield name.strip(), struct.unpack(">f", bytes.fromhex(bits.strip().zfill(8)))[0] * _STEPS


def _lines(raw: bytes) -> Iterator[tuple[str, float]]:
    for line in raw.decode("utf-8").splitlines():
        name, _, limit = line.rpartition(" ")
        yield name, abs(float(limit))


def _json(raw: bytes) -> Iterator[tuple[str, float]]:
    found = json.loads(raw)
    found = found.get("data", found)
    for name, data in found.items():
        ends = [np.abs(np.asarray(data[end]["data"] if isinstance(data[end], dict) else data[end],
                                  np.float64))
                for end in ("lowest", "highest")]
        yield name, float(max(end.max() for end in ends))


def _packed(raw: bytes) -> Iterator[tuple[str, float]]:
    """A flatbuffer: a table of one vector of tables of two texts, the name and the number."""
    def number(at: int, kind: str = "<I") -> int:
        found: int = struct.unpack_from(kind, raw, at)[0]
        return found

    def fields(table: int) -> list[int]:
        names = table - number(table, "<i")
        places = [number(names + 4 + 2 * i, "<H") for i in range((number(names, "<H") - 4) // 2)]
        return [table + place + number(table + place) if place else 0 for place in places]

    def text(at: int) -> str:
        return raw[at + 4:at + 4 + number(at)].decode("utf-8")

    (vector,) = fields(number(0))
    for i in range(number(vector)):
        at = vector + 4 + 4 * i
        name, limit = fields(at + number(at))
        yield text(name), abs(float(text(limit)))


def of_constants(graph: Graph) -> Ranges:
    """The largest magnitudes of constant factors."""
    factors = {n.inputs[1] for n in graph.nodes if n.kind in _PRODUCTS and n.inputs[1] is not None}
    return {v.name: float(np.abs(array).max()) for v in factors
            if v.const is not None and (array := in_memory(v.const)) is not None and array.size}


def quantize(model: Any, ranges: Ranges) -> None:
    """Round what products of `model` read to 8 bits, where both factors have a range."""
    graph, done, nodes = model.graph, dict[str, str](), []
    for node in graph.node:
        if node.op_type in _PRODUCTS and not node.domain and all(map(ranges.get, node.input[:2])):
            for i, name in enumerate(node.input[:2]):
                nodes += _rounded(graph, name, ranges[name], done)
                node.input[i] = done[name]
        nodes.append(type(node).FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(nodes)


def _rounded(graph: Any, name: str, limit: float, done: dict[str, str]) -> list[Any]:
    """The two nodes that round a tensor to 8 bits, where it is not rounded yet."""
    import onnx

    if name in done:
        return []
    done[name] = f"{name}.dequantized"
    graph.initializer.extend([
        onnx.numpy_helper.from_array(np.asarray(limit / _STEPS, np.float32), f"{name}.scale"),
        onnx.numpy_helper.from_array(np.asarray(0, np.int8), f"{name}.zero")])
    given = [f"{name}.scale", f"{name}.zero"]
    return [onnx.helper.make_node("QuantizeLinear", [name, *given], [f"{name}.quantized"]),
            onnx.helper.make_node("DequantizeLinear", [f"{name}.quantized", *given], [done[name]])]
