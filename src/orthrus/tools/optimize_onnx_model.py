"""`python -m orthrus.tools.optimize_onnx_model`: write a model as it is after the optimizer.

In: a model file. Out: a model file. Options are those of onnxruntime's tool.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from ..shown import tell

_LOG = {"debug": 0, "info": 1, "warning": 2, "error": 3}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model or a file is at fault."""
    from ..errors import ALL
    from .onnx_model_utils import get_optimization_level, optimize_model

    parser = argparse.ArgumentParser(prog="python -m orthrus.tools.optimize_onnx_model",
                                     description="Write a model as it is after graph optimization.")
    parser.add_argument("--opt_level", default="basic",
                        choices=["disable", "basic", "extended", "layout", "all"],
                        help="how far to go (default: basic)")
    parser.add_argument("--log_level", default="error", choices=list(_LOG),
                        help="the least severe messages to show (default: error)")
    parser.add_argument("input_model", type=pathlib.Path, help="the model to read")
    parser.add_argument("output_model", type=pathlib.Path, help="where to write it")
    given = parser.parse_args(argv)
    faults: tuple[type[Exception], ...] = (OSError, ValueError, *ALL)
    try:
        optimize_model(given.input_model, given.output_model, get_optimization_level(given.opt_level),
                       _LOG[given.log_level])
    except faults as error:
        tell(f"{given.input_model}: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
