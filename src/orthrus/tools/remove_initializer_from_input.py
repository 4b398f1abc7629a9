"""`python -m orthrus.tools.remove_initializer_from_input`: let weights be constants.

In: a model some of whose initializers are graph inputs too, so that a feed may override them. Out: the model
with those inputs taken away: the optimizer may now fold them. Options are those of onnxruntime's tool.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ..shown import tell

_IR_WITH_CONSTANTS = 4


def remove_initializer_from_input(model: Any) -> bool:
    """Take inputs that are initializers out of a ModelProto; whether there were any. A model of an IR version
    below 4 has to list them, and is left alone."""
    if model.ir_version < _IR_WITH_CONSTANTS:
        tell(f"The model has IR version {model.ir_version}: below {_IR_WITH_CONSTANTS}, initializers have "
              "to be graph inputs", err=True)
        return False
    weights = {t.name for t in model.graph.initializer} | {
        t.values.name for t in model.graph.sparse_initializer}
    found = [info for info in model.graph.input if info.name in weights]
    for info in found:
        model.graph.input.remove(info)
    return bool(found)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model or a file is at fault."""
    import onnx

    parser = argparse.ArgumentParser(prog="python -m orthrus.tools.remove_initializer_from_input",
                                     description="Take a model's weights out of its inputs.")
    parser.add_argument("--input", required=True, metavar="MODEL", help="the model to read")
    parser.add_argument("--output", required=True, metavar="MODEL", help="where to write it")
    given = parser.parse_args(argv)
    try:
        model = onnx.load(given.input)
        remove_initializer_from_input(model)
        onnx.save(model, given.output)
    except (OSError, ValueError) as error:
        tell(f"{given.input}: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
