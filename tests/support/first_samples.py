"""Every operator's samples of the first type that they come in, and how far results may be from their
definitions'."""

from __future__ import annotations

from typing import Any

import numpy as np

from orthrus.testing.closeness import apart
from orthrus.testing.samples import Sample, samples

FIRST: dict[str, dict[int, Sample]] = {}
"""By operator and index."""
for _sample in samples():
    FIRST.setdefault(_sample.kind, {}).setdefault(_sample.index, _sample)

_DRAWN = {"com.microsoft::Sampling", "Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike",
          "Dropout"}
_TIES = {"com.microsoft::QLinearAveragePool"}
"""Where a number halfway between two bytes is rounded to either."""


def wrong(kind: str, got: Any, wanted: Any) -> str | None:
    """What is wrong with results of an operator, None where nothing is; such as are drawn may be any."""
    for a, b in zip(got, wanted, strict=False) if kind not in _DRAWN else ():
        found = None if b is None else apart(a, b)
        tie = kind in _TIES and a.shape == b.shape and np.max(np.abs(a - b.astype(int)), initial=0) <= 1
        if found and not tie:
            return found
    return None
