"""Beams: several sequences for each row at a time, of which the likeliest go on.

In: logits of every beam's next token. Out: the tokens and which beam each continues, at last the best
sequence of each row. The score of a sequence is the sum of its log probabilities by a power of how many
tokens are new.
"""

from __future__ import annotations

import numpy as np

Ended = list[tuple[float, list[int]]]


class Beams:
    """`width` beams for each of `rows`; a sequence ends with a token of `stop`."""

    def __init__(self, rows: int, width: int, stop: frozenset[int], length_penalty: float) -> None:
        self.rows, self.width, self.stop, self.power = rows, width, stop, length_penalty
        self.sums = np.full((rows, width), -np.inf)
        self.sums[:, 0] = 0
        self.tokens: list[list[list[int]]] = [[[] for _ in range(width)] for _ in range(rows)]
        self.ended: list[Ended] = [[] for _ in range(rows)]
        self.done = np.zeros(rows, bool)

    def step(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next token of each beam [rows * width] from logits [rows * width, vocab], and which beam of all
        it continues."""
        vocab = logits.shape[1]
        x = logits.astype(np.float64)
        x -= x.max(1, keepdims=True)
        x -= np.log(np.exp(x).sum(1, keepdims=True))
        totals = (x.reshape(self.rows, self.width, vocab) + self.sums[:, :, None]).reshape(self.rows, -1)
        # Enough to leave `width` that go on when every stop token is among the best.
        count = min((1 + max(len(self.stop), 1)) * self.width, totals.shape[1])
        next_tokens, come = (np.zeros((self.rows, self.width), np.int64) for _ in range(2))
        for row in range(self.rows):
            best = np.argpartition(-totals[row], count - 1)[:count]
            best = best[np.argsort(-totals[row][best], kind="stable")]
            going = self._continued(row, totals[row], best, vocab)
            written = self.tokens[row]
            self.tokens[row] = [[*written[beam], token] for _, beam, token in going]
            self.sums[row] = [total for total, _, _ in going]
            next_tokens[row] = [token for _, _, token in going]
            come[row] = [row * self.width + beam for _, beam, _ in going]
            self._settle(row)
        return next_tokens.reshape(-1), come.reshape(-1)

    def _continued(self, row: int, totals: np.ndarray, best: np.ndarray, vocab: int
                   ) -> list[tuple[float, int, int]]:
        """What goes on: total, beam and token of the best that do not end; those that end are kept."""
        going: list[tuple[float, int, int]] = []
        for rank, place in enumerate(best.tolist()):
            total, beam, token = float(totals[place]), place // vocab, place % vocab
            if token not in self.stop:
                going.append((total, beam, token))
            elif rank < self.width and not self.done[row]:
                self._end(row, total, [*self.tokens[row][beam], token])
            if len(going) == self.width:
                break
        while len(going) < self.width:
            going.append((-np.inf, 0, next(iter(self.stop), 0)))
        return going

    def _end(self, row: int, total: float, tokens: list[int]) -> None:
        kept = self.ended[row]
        kept.append((self._worth(total, len(tokens)), tokens))
        kept.sort(key=lambda found: -found[0])
        del kept[self.width:]

    def _worth(self, total: float, length: int) -> float:
        return total / max(length, 1) ** self.power

    def _settle(self, row: int) -> None:
        """A row is done when it has enough ended sequences and no beam can beat the worst of them."""
        kept = self.ended[row]
        if len(kept) == self.width:
            hope = self._worth(float(self.sums[row].max()), len(self.tokens[row][0]))
            self.done[row] = self.done[row] or kept[-1][0] >= hope

    def best(self) -> list[tuple[float, list[int]]]:
        """The score and the tokens of the best sequence of each row."""
        for row in np.flatnonzero(~self.done).tolist():
            for total, tokens in zip(self.sums[row].tolist(), self.tokens[row], strict=True):
                if np.isfinite(total):
                    self._end(row, total, tokens)
        return [kept[0] for kept in self.ended]
