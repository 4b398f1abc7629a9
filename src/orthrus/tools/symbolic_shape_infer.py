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

from ..shown import Shown, tell
from .shapes.inference import Incomplete, infer_shapes

__all__ = ["Incomplete", "SymbolicShapeInference", "main"]

_UNBOUNDED = (1 << 31) - 1


class SymbolicShapeInference:
    """The name that callers of onnxruntime's tool know."""

    @staticmethod
    def infer_shapes(in_mp: Any, int_max: int = _UNBOUNDED, auto_merge: bool = False,
                     guess_output_rank: bool = False, verbose: int = 0) -> Any:
        """A copy of the ModelProto `in_mp` with a `value_info` for every value; see
        `shape_inference.infer_shapes`. `verbose` above 0 logs what is not known, node by node, to the logger
        `orthrus.tools.shapes.inference`. Raises Incomplete, "Incomplete symbolic shape inference", where a
        node's output stays without a type."""
        log = logging.getLogger("orthrus.tools.shapes.inference")
        before = log.level
        log.setLevel(logging.DEBUG if verbose else before)
        try:
            return infer_shapes(in_mp, int_max=int_max, auto_merge=auto_merge,
                                guess_output_rank=guess_output_rank)
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
