"""How a command that quantizes the weights of a model's file ends.

In: its options `input_model`, `output_model`, `verbose`, and what makes its quantizer. Out: the file, and an
exit code. A file that is there is never written over.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from typing import Any

from ...shown import tell


def written(args: argparse.Namespace, logger: logging.Logger, quantizer: Callable[[], Any]) -> int:
    """Quantize and write the model. The exit code: 1 where the model, an option or a file is at fault."""
    if args.verbose:
        logger.setLevel(logging.DEBUG)
    try:
        if os.path.exists(args.output_model):
            raise FileExistsError(f"file {args.output_model} already exists")
        made = quantizer()
        made.process()
        made.model.save_model_to_file(args.output_model, True)
    except (OSError, ValueError, RuntimeError) as error:
        tell(f"{args.input_model}: {error}", err=True)
        return 1
    return 0
