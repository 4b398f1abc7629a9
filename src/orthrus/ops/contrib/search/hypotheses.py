"""Beams: the most likely runs of tokens, several for each row of a batch, and those that came to an end.

In: the scores of every beam's next tokens. Out: which beams go on with which token, and at the end the best
sequences of each row. A finished sequence is kept without its last token, the end itself.
"""

from __future__ import annotations

import numpy as np

FAR = np.float32(-1e9)
"""The score of a beam that is nobody's yet: at the start all beams of a row are the same."""


class Finished:
    """The best `most` sequences of one row, best first."""

    def __init__(self, most: int, length_penalty: float) -> None:
        self.most, self.length_penalty, self.done = most, length_penalty, False
        self.found: list[tuple[np.float32, np.ndarray]] = []

    def worth(self, total: np.float32, length: int) -> np.float32:
        """The score of a sequence: the sum over its tokens by a power of its length."""
        return np.float32(total / np.float32(np.power(np.float32(length), np.float32(self.length_penalty))))

    def add(self, tokens: np.ndarray, total: np.float32) -> None:
        score = self.worth(total, len(tokens))
        at = len(self.found)
        while at and self.found[at - 1][0] < score:
            at -= 1
        self.found.insert(at, (score, tokens))
        del self.found[self.most:]

    def can_improve(self, best: np.float32, length: int) -> bool:
        return bool(self.found[-1][0] < self.worth(best, length))


class Beams:
    """`width` beams for each of `batch` rows. `scores` [batch * width] are their sums so far. Beams of a row
    that is done go on with `pad` behind the first beam of all, and mean nothing."""

    def __init__(self, batch: int, width: int, length_penalty: float, early: bool, pad: int, eos: int
                 ) -> None:
        self.batch, self.width, self.early, self.pad, self.eos = batch, width, early, pad, eos
        self.rows = [Finished(width, length_penalty) for _ in range(batch)]
        self.scores = np.full(batch * width, FAR)
        self.scores[::width] = 0

    @property
    def done(self) -> bool:
        return all(row.done for row in self.rows)

    def step(self, scores: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """With the summed scores of the next tokens [batch * width, vocab] and what is written so far
        [batch * width, length]: the token that each beam goes on with, and which beam that was."""
        vocab = scores.shape[1]
        best, at = largest(scores.reshape(self.batch, -1), min(2 * self.width, self.width * vocab))
        chosen = np.full((self.batch, self.width), self.pad, np.int32)
        come = np.zeros((self.batch, self.width), np.int64)
        sums = np.zeros((self.batch, self.width), np.float32)
        for b, row in enumerate(self.rows):
            if row.done:
                continue
            taken = 0
            for rank, (total, place) in enumerate(zip(best[b], at[b].tolist(), strict=True)):
                beam, token = b * self.width + place // vocab, place % vocab
                if token == self.eos:
                    if rank < self.width:
                        row.add(tokens[beam].copy(), total)
                    continue
                chosen[b, taken], come[b, taken], sums[b, taken] = token, beam, total
                taken += 1
                if taken == self.width:
                    break
            row.done = len(row.found) == self.width and (
                self.early or not row.can_improve(self._hope(best, b), tokens.shape[1]))
        self.scores = sums.ravel()
        return chosen.reshape(-1), come.reshape(-1)

    def _hope(self, best: np.ndarray, b: int) -> np.float32:
        """What the beams of row `b` may yet come to. onnxruntime looks for it at this place among the
        candidates of all rows, and where a row ends follows from it."""
        return best.reshape(-1)[b * self.width:][:2 * self.width].max()

    def best(self, tokens: np.ndarray, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` best sequences of each row [batch, count, length], padded, and their scores; beams of
        rows that are not done end with `tokens`."""
        sequences = np.full((self.batch, count, length), self.pad, np.int32)
        scores = np.empty((self.batch, count), np.float32)
        for b, row in enumerate(self.rows):
            if not row.done:
                for beam in range(b * self.width, (b + 1) * self.width):
                    row.add(tokens[beam], self.scores[beam])
            for i, (score, found) in enumerate(row.found[:count]):
                sequences[b, i, :len(found)], scores[b, i] = found, score
        return sequences, scores


def largest(x: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest of each row and their places, largest first; of equals the first ones."""
    values = np.empty((len(x), count), x.dtype)
    places = np.empty((len(x), count), np.int64)
    for i, row in enumerate(x):
        least = np.partition(row, row.size - count)[row.size - count]
        found = np.flatnonzero(row >= least)
        kept = found[np.argsort(-row[found], kind="stable")[:count]]
        values[i], places[i] = row[kept], kept
    return values, places
