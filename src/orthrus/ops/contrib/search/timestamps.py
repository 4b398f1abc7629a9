"""Whisper's rule for timestamps: when a token may be one, and which.

In: log probabilities [rows, vocab], changed in place, and the tokens written so far. Every token from `first`
on is a timestamp; text stands between pairs of them, and their times never fall.
"""

from __future__ import annotations

import numpy as np

from .scores import LOWEST

_INITIAL = 50
"""How many timestamps after the first one a transcript may begin with."""


class Timestamps:
    """The tokens with a meaning of their own; -1 where a model has none. `once`: tokens that may come only
    before the first timestamp; `never`: those that may never come."""

    def __init__(self, first: int, eos: int, never: tuple[int, ...], once: tuple[int, ...]) -> None:
        self.first, self.eos, self.never, self.once = first, eos, never, once

    def __call__(self, scores: np.ndarray, tokens: np.ndarray) -> None:
        for row, written in zip(scores, tokens, strict=True):
            self._row(row, written)

    def _row(self, scores: np.ndarray, written: np.ndarray) -> None:
        stamps = np.flatnonzero(written >= self.first)
        begin = int(stamps[0]) + 1 if stamps.size else len(written)
        after = len(written) > begin
        for token in (*self.never, *(self.once if after else ())):
            if 0 <= token < len(scores):
                scores[token] = LOWEST
        closes = bool(stamps.size) and stamps[-1] == len(written) - 1
        pair = not after or written[-2] >= self.first
        if closes and pair:
            scores[self.first:] = LOWEST
        elif closes:
            scores[:self.eos] = LOWEST
        if stamps.size:
            latest = int(written[stamps[-1]])
            scores[self.first:latest + (0 if closes and not pair else 1)] = LOWEST
        if len(written) == begin:
            scores[self.first + _INITIAL + 1:] = LOWEST
        self._prefer(scores)

    def _prefer(self, scores: np.ndarray) -> None:
        """No text where a timestamp, whichever, is likelier than every token of text."""
        stamps = scores[self.first:]
        likely = stamps[stamps > LOWEST]
        if likely.size:
            most = likely.max()
            if np.log(np.exp(likely - most).sum()) + most > scores[:self.first].max(initial=LOWEST):
                scores[:self.first] = LOWEST
