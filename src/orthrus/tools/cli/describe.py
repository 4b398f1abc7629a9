"""What a model file says of itself, without making a session of it.

In: a path. Out: `Description`, plain data. Operators are counted as they stand in the file, bodies of control
flow and functions included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, field
from math import prod
from pathlib import Path
from typing import Any

from ...ir import ElementType
from ...limits import DEFAULT, Limits
from ...load.source import open_source
from ...records import dataclass


@dataclass
class Description:
    """A model at a glance; sizes in bytes. `inputs` and `outputs` are (name, type, shape); `shape` None: rank
    not declared."""

    path: str
    file_bytes: int
    ir_version: int
    opsets: dict[str, int]
    producer: str
    domain: str
    model_version: int
    doc: str
    metadata: dict[str, str]
    inputs: list[tuple[str, str, list[Any] | None]]
    outputs: list[tuple[str, str, list[Any] | None]]
    nodes: int
    operators: dict[str, int]
    functions: list[str]
    parameters: int
    parameter_bytes: int
    parameter_types: dict[str, int]
    external_files: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def describe(path: str, limits: Limits = DEFAULT) -> Description:
    """Read and describe a model. Raises what loading its file raises: NoSuchFile, InvalidProtobuf, Fail."""
    model = open_source(path, limits, None).model
    graph = model.graph
    operators: Counter[str] = Counter()
    tensors = list(graph.initializer) + [s.values for s in graph.sparse_initializer]
    for node in _nodes(graph, [f.node for f in model.functions]):
        domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}::"
        operators[domain + node.op_type] += 1
        if node.op_type == "Constant":
            tensors += [a.t for a in node.attribute if a.HasField("t")]
        tensors += [t for a in node.attribute if a.HasField("g") for t in a.g.initializer]
    types: Counter[str] = Counter()
    total = 0
    for tensor in tensors:
        elem = _elem(tensor.data_type)
        count = prod(tensor.dims)
        types[elem.text if elem else str(tensor.data_type)] += count
        total += 0 if elem is None or elem is ElementType.STRING else (count * elem.bits + 7) // 8
    weights = {t.name for t in graph.initializer}
    external = {e.value for t in tensors for e in t.external_data if e.key == "location"}
    return Description(
        path=path, file_bytes=Path(path).stat().st_size, ir_version=model.ir_version,
        opsets={o.domain or "ai.onnx": o.version for o in model.opset_import},
        producer=f"{model.producer_name} {model.producer_version}".strip(), domain=model.domain,
        model_version=model.model_version, doc=model.doc_string or graph.doc_string,
        metadata={p.key: p.value for p in model.metadata_props},
        inputs=[_value(v) for v in graph.input if v.name not in weights],
        outputs=[_value(v) for v in graph.output],
        nodes=sum(operators.values()), operators=dict(operators.most_common()),
        functions=[f"{f.domain}::{f.name}" for f in model.functions], parameters=sum(types.values()),
        parameter_bytes=total, parameter_types=dict(types.most_common()), external_files=sorted(external))


def _nodes(graph: Any, more: list[Any]) -> Iterator[Any]:
    stack = [graph.node, *more]
    while stack:
        for node in stack.pop():
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g.node)
                stack.extend(g.node for g in attribute.graphs)


def _elem(number: int) -> ElementType | None:
    try:
        return ElementType(number)
    except ValueError:
        return None


def _value(info: Any) -> tuple[str, str, list[Any] | None]:
    return info.name, type_text(info.type), _shape(info.type)


def type_text(proto: Any) -> str:
    which = proto.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        elem = _elem(getattr(proto, which).elem_type)
        return f"{which.removesuffix('_type')}({elem.text if elem else '?'})"
    if which in ("sequence_type", "optional_type"):
        kind = "seq" if which == "sequence_type" else "optional"
        return f"{kind}({type_text(getattr(proto, which).elem_type)})"
    if which == "map_type":
        key = _elem(proto.map_type.key_type)
        return f"map({key.text if key else '?'},{type_text(proto.map_type.value_type)})"
    return "?"


def _shape(proto: Any) -> list[Any] | None:
    which = proto.WhichOneof("value")
    if which not in ("tensor_type", "sparse_tensor_type") or not getattr(proto, which).HasField("shape"):
        return None
    dims = getattr(proto, which).shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]
