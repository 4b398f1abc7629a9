"""`python -m orthrus.tools.update_onnx_opset`: convert a model to a newer opset.

In: a model file. Out: a model file with the opset asked for, by onnx's version converter. Options are those
of onnxruntime's tool.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from ..shown import tell


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model or a file is at fault."""
    from .onnx_model_utils import update_onnx_opset

    parser = argparse.ArgumentParser(prog="python -m orthrus.tools.update_onnx_opset",
                                     description="Convert a model to a newer opset.")
    parser.add_argument("--opset", type=int, default=15, metavar="N", help="the opset (default: 15)")
    parser.add_argument("input_model", type=pathlib.Path, help="the model to read")
    parser.add_argument("output_model", type=pathlib.Path, help="where to write it")
    given = parser.parse_args(argv)
    try:
        update_onnx_opset(given.input_model, given.opset, given.output_model)
    except (OSError, ValueError, RuntimeError) as error:
        tell(f"{given.input_model}: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
