"""`python -m orthrus.quantization.preprocess`: write a model that is ready to be quantized.

In: a model file. Out: a model file. Options are those of onnxruntime's tool.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from ..shown import Shown, tell
from .shape_inference import quant_pre_process

logger = logging.getLogger(__name__)

_SWITCHES = {**dict.fromkeys(("1", "true", "yes", "on"), True),
             **dict.fromkeys(("", "0", "false", "no", "off"), False)}


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise argparse.ArgumentTypeError(f"Expected true, false, 1, or 0, found {text!r}")
    return _SWITCHES[text.lower()]


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line, the process's own where none is given."""
    parser = argparse.ArgumentParser(
        prog="python -m orthrus.quantization.preprocess",
        description="Make a float model ready for quantization, in three steps that can be left out: "
                    "symbolic shape inference, graph optimization, ONNX's shape inference. A tensor whose "
                    "shape is not known may not be quantized.")
    add = parser.add_argument
    add("--input", required=True, metavar="MODEL", help="the model to read")
    add("--output", required=True, metavar="MODEL", help="where to write it")
    for step, what in (("optimization", "graph optimization"), ("onnx_shape", "ONNX's shape inference"),
                       ("symbolic_shape", "symbolic shape inference")):
        add(f"--skip_{step}", type=_switch, nargs="?", const=True, default=False, metavar="BOOL",
            help=f"leave {what} out")
    add("--auto_merge", action="store_true",
        help="take dimensions to be equal that meet in an operator that needs them equal")
    add("--int_max", type=int, default=2 ** 31 - 1, metavar="N",
        help="a bound of Slice from N on is the end of the dimension (default: 2**31 - 1)")
    add("--guess_output_rank", action="store_true",
        help="an unknown operator gives the element type and rank of its first input")
    add("--verbose", type=int, default=0, metavar="N", help="above 0: say what could not be inferred")
    add("--save_as_external_data", action="store_true", help="write weights into files beside the model")
    add("--all_tensors_to_one_file", action="store_true", help="one file for all weights")
    add("--external_data_location", metavar="FILE", help="the name of that file")
    add("--external_data_size_threshold", type=int, default=1024, metavar="BYTES",
        help="smaller weights stay in the model (default: 1024)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model, a file or an option is at fault."""
    from ..errors import ALL
    from ..tools.symbolic_shape_infer import Incomplete

    given = parse_arguments(argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Shown())
    logging.basicConfig(handlers=[handler])
    if given.skip_optimization and given.skip_onnx_shape and given.skip_symbolic_shape:
        tell("all three steps are left out: nothing is to be done", err=True)
        return 1
    options = vars(given)
    faults: tuple[type[Exception], ...] = (OSError, ValueError, Incomplete, *ALL)
    try:
        quant_pre_process(options.pop("input"), options.pop("output"), **options)
    except faults as error:
        tell(f"the model is not written: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
