"""Shape inference with names for the dimensions a model leaves open.

In: a ModelProto. Out: a copy of it in which every value has a type whose dimensions are numbers or
expressions over the names of the inputs' dimensions. The invariant: nodes, weights and names are as they
were.
"""

from __future__ import annotations

from typing import Any

from ....ir import TensorType, Value
from ....ops.infer import type_proto
from .expression import Expr
from .inference import Inference, settled, told
from .reader import Model, Reader

__all__ = ["Incomplete", "infer_shapes"]

_PASSES = 16


class Incomplete(Exception):
    """Values were left without a type. `model`: what could be inferred."""

    def __init__(self, message: str, model: Any) -> None:
        super().__init__(message)
        self.model = model


def infer_shapes(model: Any, *, int_max: int = (1 << 31) - 1, auto_merge: bool = False,
                 guess_output_rank: bool = False) -> Any:
    """A copy of an onnx ModelProto with a `value_info` for every value and, where more is known now, other
    types of its inputs and outputs.

    `int_max`: bounds of Slice from here on mean the end of the dimension. `auto_merge`: dimensions that meet
    in an operator that needs them equal get one name; else a dimension is the larger of those that broadcast.
    `guess_output_rank`: an unknown operator's outputs get the element type and rank of its first input.
    Raises Incomplete where a node's output stays without a type, and ValueError where the graph is cyclic.
    """
    out = type(model)()
    out.CopyFrom(model)
    merged: dict[Expr, Expr] = {}
    for _ in range(_PASSES):
        read = Reader(out).out
        inference = Inference(read.graph, read.declared, int_max=int_max, auto_merge=auto_merge,
                              guess_output_rank=guess_output_rank, merged=merged)
        inference.run()
        now = settled(inference.found, merged)
        if now == merged:
            break
        merged = now
    _write(read)
    if inference.unknown_nodes:
        node = inference.unknown_nodes[0]
        more = len(inference.unknown_nodes) - 1
        raise Incomplete(
            f"Incomplete symbolic shape inference: nothing says what {node.label} ({node.kind}) gives"
            + (f", nor {more} other nodes" if more else "")
            + f"; register {node.kind} with orthrus.op and infer_with, state its outputs in value_info, or "
            "use guess_output_rank", out)
    return out


def _write(model: Model) -> None:
    """Put the values' types into the GraphProtos they come from."""
    for proto, graph, values in model.graphs:
        outputs = {o.name for o in proto.output}
        given = {i.name for i in proto.input} | {t.name for t in proto.initializer}
        given |= {t.values.name for t in proto.sparse_initializer}
        del proto.value_info[:]
        for name, value in values.items():
            if name not in outputs and name not in given and value.type is not None:
                proto.value_info.add(name=name).type.CopyFrom(type_proto(value.type))
        for info, value in zip(proto.output, graph.outputs, strict=True):
            if told(value.type) and not (isinstance(value.type, TensorType) and value.shape is None):
                _state(info, value)
    proto, graph, values = model.graphs[-1]
    for info in proto.input:
        _state(info, values[info.name])


def _state(info: Any, value: Value) -> None:
    """Give a ValueInfoProto the value's type; denotations of its dimensions stay."""
    if not isinstance(value.type, TensorType) or not info.type.HasField("tensor_type"):
        if value.type is not None and not info.type.WhichOneof("value"):
            info.type.CopyFrom(type_proto(value.type))
        return
    stated = info.type.tensor_type
    dims = list(stated.shape.dim) if stated.HasField("shape") else []
    meant = [d.denotation for d in dims]
    info.type.tensor_type.CopyFrom(type_proto(value.type).tensor_type)
    if len(meant) == len(value.type.shape or ()):
        for dim, denotation in zip(stated.shape.dim, meant, strict=True):
            if denotation:
                dim.denotation = denotation
