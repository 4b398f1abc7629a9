"""`python -m orthrus.tools.symbolic_shape_infer`: write down the shape of every value of a model.

In: a model. Out: the same model with `value_info`, open dimensions as expressions over the names of the
inputs' dimensions. Command line and class are those of `onnxruntime.tools.symbolic_shape_infer`. The
invariant: the nodes are as they were.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Any

from ..ir import TensorType, Value
from ..ops.infer import type_proto
from ..shapes.expression import Dim
from ..shown import Shown, tell
from .shapes.inference import Inference, settled, told
from .shapes.reader import Model, Reader

__all__ = ["Incomplete", "SymbolicShapeInference", "infer_shapes", "main"]

_UNBOUNDED = (1 << 31) - 1
_PASSES = 16


class Incomplete(Exception):
    """Values were left without a type. `model`: what could be inferred."""

    def __init__(self, message: str, model: Any) -> None:
        super().__init__(message)
        self.model = model


def infer_shapes(model: Any, *, int_max: int = _UNBOUNDED, auto_merge: bool = False,
                 guess_output_rank: bool = False, long_enough: bool = False) -> Any:
    """A copy of an onnx ModelProto with a `value_info` for every value that is computed and, where more is
    known now, other types of its inputs and outputs.

    `int_max`: bounds of Slice from here on mean the end of the dimension. `auto_merge`: dimensions that meet
    in an operator that needs them equal get one name; else a dimension is the larger of those that broadcast.
    `guess_output_rank`: an unknown operator's outputs get the element type and rank of its first input.
    `long_enough`: dimensions reach as far as a Slice counts from their ends: x[-10:-1] has 9 elements, not
    Min(10, n) - 1, and x[2:-2] has n - 4. Raises Incomplete where a node's output stays without a type, and
    ValueError where the graph is cyclic or the branches of an If give different element types.
    """
    out = type(model)()
    out.CopyFrom(model)
    merged: dict[Dim, Dim] = {}
    for _ in range(_PASSES):
        read = Reader(out).out
        inference = Inference(read.graph, read.declared, int_max=int_max, auto_merge=auto_merge,
                              guess_output_rank=guess_output_rank, long_enough=long_enough, merged=merged)
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
        given = {i.name for i in proto.input} | {t.name for t in proto.initializer}
        given |= {t.values.name for t in proto.sparse_initializer}
        del proto.value_info[:]
        for name, value in values.items():
            if name not in given and value.type is not None:
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


class SymbolicShapeInference:
    """The name that callers of onnxruntime's tool know."""

    @staticmethod
    def infer_shapes(in_mp: Any, int_max: int = _UNBOUNDED, auto_merge: bool = False,
                     guess_output_rank: bool = False, verbose: int = 0) -> Any:
        """As the function `infer_shapes`. `verbose` above 0 logs what is not known, node by node, to the
        logger `orthrus.tools.shapes.inference`; dimensions are taken to be long enough, as in onnxruntime's.
        Raises Incomplete, "Incomplete symbolic shape inference", where a node's output stays without a
        type."""
        log = logging.getLogger("orthrus.tools.shapes.inference")
        before = log.level
        log.setLevel(logging.DEBUG if verbose else before)
        try:
            return infer_shapes(in_mp, int_max=int_max, auto_merge=auto_merge,
                                guess_output_rank=guess_output_rank, long_enough=True)
        finally:
            log.setLevel(before)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orthrus.tools.symbolic_shape_infer",
        description="Infer the shapes of a model's values, with names for dimensions that are open.")
    add = parser.add_argument
    add("--input", required=True, metavar="MODEL", help="the model to read")
    add("--output", metavar="MODEL",
        help="where to write it with its shapes; left out, it is only checked")
    add("--auto_merge", action="store_true",
        help="take dimensions to be equal that meet in an operator that needs them equal")
    add("--int_max", type=int, default=_UNBOUNDED, metavar="N",
        help="a bound of Slice from N on is the end of the dimension (default: 2**31 - 1)")
    add("--guess_output_rank", action="store_true",
        help="an unknown operator gives the element type and rank of its first input")
    add("--verbose", type=int, default=0, metavar="N",
        help="above 0: say on stderr what could not be inferred, node by node")
    add("--save_as_external_data", action="store_true", help="write weights into files beside the model")
    add("--all_tensors_to_one_file", action="store_true", help="one file for all weights")
    add("--external_data_location", default="./", metavar="FILE", help="the name of that file")
    add("--external_data_size_threshold", type=int, default=1024, metavar="BYTES",
        help="smaller weights stay in the model (default: 1024)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model or a file is at fault."""
    import onnx

    given = arguments().parse_args(argv)
    if given.verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Shown())
        logging.basicConfig(handlers=[handler])
    try:
        out = SymbolicShapeInference.infer_shapes(onnx.load(given.input), given.int_max, given.auto_merge,
                                                  given.guess_output_rank, given.verbose)
        if given.output and given.save_as_external_data:
            onnx.save_model(out, given.output, save_as_external_data=True,
                            all_tensors_to_one_file=given.all_tensors_to_one_file,
                            location=None if given.external_data_location == "./"
                            else given.external_data_location,
                            size_threshold=given.external_data_size_threshold, convert_attribute=False)
        elif given.output:
            onnx.save_model(out, given.output)
    except (Incomplete, OSError, ValueError) as error:
        tell(f"{given.input}: {error}", err=True)
        return 1
    tell(summary(out) + (f"; wrote {given.output}" if given.output else ""))
    return 0


def summary(model: Any) -> str:
    """How many of a model's values have a fixed shape, an expression, or no rank."""
    values = [*model.graph.value_info, *model.graph.output]
    tensors = [v.type.tensor_type for v in values if v.type.HasField("tensor_type")]
    ranked = [t for t in tensors if t.HasField("shape")]
    fixed = sum(all(d.HasField("dim_value") for d in t.shape.dim) for t in ranked)
    return (f"{len(values)} values: {fixed} of fixed shape, {len(ranked) - fixed} with names, "
            f"{len(values) - len(ranked)} without a rank")


if __name__ == "__main__":
    sys.exit(main())
