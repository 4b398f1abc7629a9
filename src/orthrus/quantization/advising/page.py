"""One HTML file that shows a float model, with the error of each node in its quantized form.

In: the model's file and errors by node. Out: the page of `orthrus view`, whose distances are noise over
signal, in units of `ALLOWED`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from ...tools.view.data import Distance, collect
from ...tools.view.page import page as page_of
from ..calibration.activations import plain_session
from .errors_by_node import NodeError

ALLOWED = 1e-2
"""Noise over signal that is 1 on the page: an SQNR of 40 dB."""


def page(model: Path, errors: Sequence[NodeError]) -> str:
    """The text of the file."""
    def finite(number: float) -> float | None:
        return number if math.isfinite(number) else None
    distances = {e.value: Distance(finite(e.largest), finite(e.noise / ALLOWED), finite(e.added / ALLOWED))
                 for e in errors}
    return page_of(collect(plain_session(os.fspath(model), None), model.name, None, distances))
