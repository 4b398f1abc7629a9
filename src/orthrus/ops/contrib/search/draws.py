"""Draws of tokens that follow the C++ standard library's default generator, number by number.

In: logits of each row and a seed. Out: one token a row. The generator is the multiplicative one modulo
2^31 - 1 with factor 16807, and a draw in [0, 1) is made of two of its numbers.
"""

from __future__ import annotations

import numpy as np

from ...functions import sum_of

_MODULUS, _FACTOR = 2147483647, 16807


class Draws:
    """The generator after `seed`."""

    def __init__(self, seed: int) -> None:
        self.state = (seed & 0xFFFFFFFF) % _MODULUS or 1

    def _number(self) -> int:
        self.state = self.state * _FACTOR % _MODULUS
        return self.state - 1

    def uniform(self) -> float:
        """The next number in [0, 1)."""
        span = float(_MODULUS - 1)
        low = float(self._number())
        made = (low + self._number() * span) / (span * span)
        return made if made < 1 else float(np.nextafter(1, 0))

    def tokens(self, logits: np.ndarray) -> np.ndarray:
        """One token for each row of `logits` [rows, vocab], by the softmax of the row."""
        out = np.empty(len(logits), np.int32)
        for i, row in enumerate(logits):
            finite = np.isfinite(row)
            share = np.exp(row.astype(np.float64) - row[finite].max(initial=np.finfo(np.float32).min))
            total = np.cumsum(np.where(finite, share, 0))
            found = np.searchsorted(total, self.uniform() * total[-1], "right")
            out[i] = min(int(found), len(row) - 1)
        return out


def filtered(scores: np.ndarray, top_p: float, least: int, value: float, custom: bool) -> None:
    """Give `value` to the scores [rows, vocab] of tokens that are not among the most likely, which sum to
    more than `top_p`; the first `least` stay. `custom`: to those of the least likely ones, which sum to no
    more than 1 - top_p; the first one stays."""
    order = np.argsort(scores if custom else -scores, -1, kind="stable")
    ranked = np.take_along_axis(scores, order, 1)
    share = np.exp(ranked - ranked.max(-1, keepdims=True))
    share /= sum_of(share, -1)
    sums = np.cumsum(share, -1, dtype=np.float32)
    out = np.zeros(scores.shape, bool)
    if custom:
        out[:, :-1] = sums[:, :-1] <= np.float32(1) - np.float32(top_p)
    else:
        kept = max(least, 1)
        out[:, kept:] = sums[:, kept - 1:-1] > np.float32(top_p)
    np.put_along_axis(scores, order, np.where(out, np.float32(value), ranked), 1)
