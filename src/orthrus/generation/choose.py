"""One token for each row, from the logits of what may follow.

In: logits [rows, vocab]. Out: tokens [rows]; drawn ones follow a seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import InvalidArgument

Choose = Callable[[np.ndarray], np.ndarray]


def chooser(temperature: float, top_k: int, top_p: float, seed: int | None) -> Choose:
    """How tokens are chosen: the likeliest where `temperature` is 0; else drawn by the softmax of logits over
    `temperature`, among the `top_k` likeliest (0: all) and of those the likeliest that sum to `top_p`. Raises
    InvalidArgument for a value out of range."""
    for name, value, good in (("temperature", temperature, temperature >= 0), ("top_k", top_k, top_k >= 0),
                              ("top_p", top_p, 0 < top_p <= 1), ("seed", seed, seed is None or seed >= 0)):
        if not good:
            raise InvalidArgument(f"{name} is out of range", found=value,
                                  expected="above 0, at most 1" if name == "top_p" else "0 or more")
    if temperature == 0:
        return likeliest
    rng = np.random.default_rng(seed)

    def draw(logits: np.ndarray) -> np.ndarray:
        return np.array([_drawn(row, temperature, top_k, top_p, rng) for row in logits])
    return draw


def likeliest(logits: np.ndarray) -> np.ndarray:
    """The first of the largest logits of each row."""
    return logits.argmax(-1)


def _drawn(row: np.ndarray, temperature: float, top_k: int, top_p: float, rng: np.random.Generator) -> int:
    count = top_k if 0 < top_k < row.size else row.size
    kept = np.argpartition(row, row.size - count)[row.size - count:]
    share = row[kept].astype(np.float64) / temperature
    share = np.exp(share - share.max())
    if top_p < 1:
        order = np.argsort(-share, kind="stable")
        kept, share = kept[order], share[order]
        sums = np.cumsum(share)
        count = int(np.searchsorted(sums, top_p * sums[-1], "left")) + 1
        kept, share = kept[:count], share[:count]
    sums = np.cumsum(share)
    return int(kept[min(int(np.searchsorted(sums, rng.random() * sums[-1], "right")), len(kept) - 1)])
