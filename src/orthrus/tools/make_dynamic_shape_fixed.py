"""`python -m orthrus.tools.make_dynamic_shape_fixed`: give open dimensions of a model a size.

In: a model file, and a dimension's name with its size or an input with its shape. Out: a model file whose
outputs have fixed shapes where those follow. Options are those of onnxruntime's tool.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from ..shown import tell


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orthrus.tools.make_dynamic_shape_fixed",
        description="Give a named dimension (--dim_param, --dim_value) or an input (--input_name, "
                    "--input_shape) of a model a fixed size.")
    parser.add_argument("--dim_param", metavar="NAME", help="the name of a dimension; needs --dim_value")
    parser.add_argument("--dim_value", type=int, metavar="N", help="its size, above 0")
    parser.add_argument("--input_name", metavar="NAME", help="an input; needs --input_shape")
    parser.add_argument("--input_shape", type=lambda text: [int(n) for n in text.split(",")],
                        metavar="1,3,256,256", help="its shape, every dimension above 0")
    parser.add_argument("input_model", type=pathlib.Path, help="the model to read")
    parser.add_argument("output_model", type=pathlib.Path, help="where to write it")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model or a file is at fault."""
    import onnx

    from .onnx_model_utils import fix_output_shapes, make_dim_param_fixed, make_input_shape_fixed

    parser = arguments()
    given = parser.parse_args(argv)
    if bool(given.dim_param) == bool(given.input_name):
        parser.error("give either --dim_param or --input_name")
    if given.dim_param and (given.dim_value or 0) < 1:
        parser.error("--dim_param needs a --dim_value above 0")
    if given.input_name and (not given.input_shape or min(given.input_shape) < 1):
        parser.error("--input_name needs an --input_shape with dimensions above 0")
    try:
        model = onnx.load(str(given.input_model.resolve(strict=True)))
        if given.dim_param:
            make_dim_param_fixed(model.graph, given.dim_param, given.dim_value)
        else:
            make_input_shape_fixed(model.graph, given.input_name, given.input_shape)
        fix_output_shapes(model)
        onnx.save(model, str(given.output_model.resolve()))
    except (OSError, ValueError) as error:
        tell(f"{given.input_model}: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
