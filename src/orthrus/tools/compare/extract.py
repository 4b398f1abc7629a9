"""Parts of a model as models of their own, with the values they are fed.

In: a model file and names or numbers of its nodes. Out: ModelProtos that load on any engine, and test cases
in the folder layout of ONNX. A part computes from its feeds what its nodes computed in the whole: what is
constant, or follows from shapes alone, stays constant in it. Tensors outside the model file stay where they
are until a case is saved.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import Fail, InvalidProtobuf, NoSuchFile
from ...ir import SparseArray, element_of, type_of
from ...load.tensors import pack
from ...ops import find
from ...ops.infer import type_proto

_NARROW = (1, 10, 16)
OWN = "/alone"
"""What is put behind the name of a value that a node of `alone` makes."""


class Model:
    """A model file taken apart: `nodes` in an order in which they can run, each with a label, the values it
    `reads` (bodies of control flow included) and makes. `static` nodes give the same in every run;
    `derived` values follow from shapes alone; results of `random` ones differ from run to run. `narrow`:
    whether it has floats of less than double precision."""

    def __init__(self, source: str | os.PathLike[str] | bytes | Any) -> None:
        """Raises NoSuchFile, InvalidProtobuf, and Fail for a graph with a cycle."""
        self.source = os.fspath(source) if isinstance(source, str | os.PathLike) else source
        self.proto = _opened(self.source)
        path = self.source if isinstance(self.source, str) else None
        self.folder = None if path is None else os.path.dirname(os.path.abspath(path))
        graph = self.proto.graph
        self.initializers = {t.name: t for t in graph.initializer}
        self.sparse = {t.values.name: t for t in graph.sparse_initializer}
        self.inputs = {v.name: v for v in graph.input if v.name not in self.initializers}
        self.overridable = {v.name: v for v in graph.input if v.name in self.initializers}
        self.outputs = [v.name for v in graph.output]
        reads = [tuple(dict.fromkeys(_read(n))) for n in graph.node]
        order = _sorted([list(n.output) for n in graph.node], reads)
        self.nodes = [graph.node[i] for i in order]
        self.reads = [reads[i] for i in order]
        self.labels = [n.name or f"{n.op_type}_{i}" for i, n in zip(order, self.nodes, strict=True)]
        self.maker = {name: i for i, n in enumerate(self.nodes) for name in n.output if name}
        self.opsets = {o.domain: o.version for o in self.proto.opset_import}
        self.static: set[int] = set()
        self.derived: set[str] = set()
        self.random: set[int] = set()
        for i, node in enumerate(self.nodes):
            self._sort_out(i, node)
        self.narrow = any(kind in _NARROW for kind in (
            *(t.data_type for t in self.initializers.values()),
            *(v.type.tensor_type.elem_type for v in graph.input),
            *(a.i for n in self.nodes if n.op_type == "Cast" for a in n.attribute if a.name == "to")))
        self.values = [name for i, n in enumerate(self.nodes) if i not in self.static
                       for name in n.output if name]

    def _sort_out(self, i: int, node: Any) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self.opsets.get(node.domain, self.opsets.get(domain, 1))
        op = find(domain, node.op_type, version)
        if op is not None and "rng" in op.runtime:
            self.random.add(i)
        elif all(self.is_static(name) for name in self.reads[i]):
            self.static.add(i)
        elif (node.op_type in ("Shape", "Size") and not domain) or all(
                name in self.derived or self.is_static(name) for name in self.reads[i]):
            self.derived.update(n for n in node.output if n)

    def is_static(self, name: str) -> bool:
        """Whether `name` is an initializer or computed from nothing else."""
        return name in self.initializers or name in self.sparse or self.maker.get(name, -1) in self.static

    def above(self, names: Iterable[str]) -> list[int]:
        """The nodes that `names` are computed by, in order; static ones left out."""
        found: set[int] = set()
        stack = list(names)
        while stack:
            i = self.maker.get(stack.pop(), -1)
            if i >= 0 and i not in found and i not in self.static:
                found.add(i)
                stack.extend(self.reads[i])
        return sorted(found)

    def border(self, nodes: Iterable[int]) -> list[str]:
        """The values that `nodes` read and do not make, but for static ones."""
        inside = set(nodes)
        return list(dict.fromkeys(name for i in sorted(inside) for name in self.reads[i]
                                  if self.maker.get(name, -1) not in inside and not self.is_static(name)))

    def frontier(self, nodes: Iterable[int]) -> list[str]:
        """The values that `nodes` make for others, or as outputs of the model."""
        inside = set(nodes)
        outside = {name for i, reads in enumerate(self.reads) if i not in inside for name in reads}
        outside.update(self.outputs)
        return [name for i in sorted(inside) for name in self.nodes[i].output if name and name in outside]

    def part(self, nodes: Iterable[int], outputs: Sequence[str], given: Mapping[str, Any],
             types: Mapping[str, Any] | None = None) -> Any:
        """The model that computes `outputs` by `nodes` from `given`: values of `border(nodes)`, which become
        inputs, and initializers that are fed. `types`: values by whose types outputs are declared."""
        inside = sorted(set(nodes))
        return self._model([self.nodes[i] for i in inside], inside, outputs, given, types or {})

    def alone(self, nodes: Iterable[int], given: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
        """A model in which every one of `nodes` stands by itself, fed with `given`, and the names its outputs
        have there."""
        import onnx

        inside, renamed, protos = sorted(set(nodes)), dict[str, str](), []
        for i in inside:
            proto = onnx.NodeProto()
            proto.CopyFrom(self.nodes[i])
            for k, name in enumerate(proto.output):
                if name:
                    renamed[name] = proto.output[k] = name + OWN
            protos.append(proto)
        return self._model(protos, inside, list(renamed.values()), given, {}), renamed

    def _model(self, protos: list[Any], inside: list[int], outputs: Sequence[str], given: Mapping[str, Any],
               types: Mapping[str, Any]) -> Any:
        import onnx

        whole = self.proto
        model = onnx.ModelProto(ir_version=max(whole.ir_version, 4), producer_name="orthrus")
        model.opset_import.extend(whole.opset_import)
        model.functions.extend(whole.functions)
        graph = model.graph
        graph.name = whole.graph.name or "part"
        made = {name for proto in protos for name in proto.output}
        needed = self._static_above(name for i in inside for name in self.reads[i] if name not in given)
        graph.node.extend(self.nodes[i] for i in needed)
        graph.node.extend(protos)
        made.update(name for i in needed for name in self.nodes[i].output)
        reads = dict.fromkeys(name for i in (*needed, *inside) for name in self.reads[i])
        for name in reads:
            if name in made:
                continue
            if name in given and name in self.derived and isinstance(given[name], np.ndarray):
                graph.initializer.append(tensor_proto(given[name], name))
            elif name in given:
                declared = self.inputs.get(name) or self.overridable.get(name)
                graph.input.append(_info(name, given[name]) if declared is None else declared)
            elif name in self.initializers:
                graph.initializer.append(self.initializers[name])
            elif name in self.sparse:
                graph.sparse_initializer.append(self.sparse[name])
        graph.output.extend(_info(name, types.get(name)) for name in outputs)
        known = made - set(outputs)
        graph.value_info.extend(v for v in whole.graph.value_info if v.name in known)
        return model

    def _static_above(self, names: Iterable[str]) -> list[int]:
        found: set[int] = set()
        stack = list(names)
        while stack:
            i = self.maker.get(stack.pop(), -1)
            if i in self.static and i not in found:
                found.add(i)
                stack.extend(self.reads[i])
        return sorted(found)


def _opened(source: Any) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    if isinstance(source, onnx.ModelProto):
        return source
    try:
        if isinstance(source, str):
            return onnx.load(source, load_external_data=False)
        return onnx.ModelProto.FromString(bytes(source))
    except (FileNotFoundError, IsADirectoryError):
        raise NoSuchFile(f"Load model {source} failed. File doesn't exist",
                         cure="check the path; it is relative to the working directory") from None
    except DecodeError:
        name = source if isinstance(source, str) else f"{len(source)} bytes"
        raise InvalidProtobuf(f"{name} is no ONNX model", expected="a ModelProto",
                              cure="check that the file is complete") from None


def _read(node: Any) -> Iterator[str]:
    """What a node reads, also in the bodies among its attributes."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            own = {v.name for v in body.input} | {t.name for t in body.initializer}
            own.update(name for inner in body.node for name in inner.output)
            yield from (name for inner in body.node for name in _read(inner) if name not in own)
            yield from (v.name for v in body.output if v.name not in own)


def _sorted(makes: list[list[str]], reads: list[tuple[str, ...]]) -> list[int]:
    """The nodes in a running order, as they stand where that is one. Raises Fail for a cycle."""
    maker = {name: i for i, names in enumerate(makes) for name in names if name}
    waits = [len({maker[name] for name in names if name in maker}) for names in reads]
    readers: dict[int, list[int]] = {}
    for i, names in enumerate(reads):
        for source in {maker[name] for name in names if name in maker}:
            readers.setdefault(source, []).append(i)
    ready = [i for i, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        order.append(i := heapq.heappop(ready))
        for reader in readers.get(i, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(order) != len(makes):
        raise Fail("This is an invalid model. Error: the graph is not acyclic.")
    return order


def _info(name: str, value: Any) -> Any:
    import onnx

    proto = onnx.ValueInfoProto(name=name)
    if value is not None:
        proto.type.CopyFrom(type_proto(type_of(value)))
    return proto


def tensor_proto(array: np.ndarray, name: str) -> Any:
    """An array of any element type as a TensorProto."""
    import onnx

    element = element_of(array.dtype)
    proto = onnx.TensorProto(name=name, dims=array.shape, data_type=int(element))
    if element.name == "STRING":
        proto.string_data.extend(v if isinstance(v, bytes) else str(v).encode() for v in array.ravel())
    else:
        proto.raw_data = bytes(pack(array, element))
    return proto


def save_case(folder: Path, model: Any, root: str | None, inputs: Mapping[str, Any],
              outputs: Mapping[str, Any]) -> list[Path]:
    """Write `model.onnx` and a data set `test_data_set_0` with its inputs and expected outputs; answers the
    files. `root`: where tensors outside the model file lie; they go into the new file. Raises Fail for a
    value that no test case can hold, or a model over 2 GB."""
    from onnx.external_data_helper import load_external_data_for_model

    if root is not None:
        load_external_data_for_model(model, root)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    for old in data.glob("*put_*.pb"):
        old.unlink()
    try:
        raw = model.SerializeToString()
    except ValueError:
        raise Fail("the part is over 2 GB, the largest protobuf message",
                   cure="extract fewer nodes: their weights lie in the part") from None
    written = [folder / "model.onnx"]
    written[0].write_bytes(raw)
    for kind, infos, values in (("input", model.graph.input, inputs),
                                ("output", model.graph.output, outputs)):
        for i, info in enumerate(infos):
            written.append(data / f"{kind}_{i}.pb")
            written[-1].write_bytes(_value_proto(values[info.name], info.name).SerializeToString())
    return written


def _value_proto(value: Any, name: str) -> Any:
    """A value as the protobuf message of its kind."""
    import onnx

    if isinstance(value, np.ndarray | np.generic):
        return tensor_proto(np.asarray(value), name)
    if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
        tensors = [tensor_proto(item, "") for item in value]
        return onnx.SequenceProto(name=name, elem_type=onnx.SequenceProto.TENSOR, tensor_values=tensors)
    if value is None:
        return onnx.OptionalProto(name=name)
    kind = "a sparse tensor" if isinstance(value, SparseArray) else type(value).__name__
    raise Fail(f"{name} cannot be written into a test case", found=kind, expected="a tensor or a sequence")
