"""What changes the scores of the next token before one is chosen.

In: scores [rows, vocab] float32, changed in place, and the tokens written so far [rows, length] int32. A rule
forbids a token by the lowest float32, not by infinity, so that sums of scores stay numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ....errors import InvalidArgument
from ...functions import sum_of

LOWEST = np.finfo(np.float32).min
Rule = Callable[[np.ndarray, np.ndarray], None]


def log_softmax(x: np.ndarray) -> np.ndarray:
    """The logarithm of the softmax of each row, a new array."""
    y = x - x.max(-1, keepdims=True)
    y -= np.log(sum_of(np.exp(y), -1))
    return y


def penalize_repetition(penalty: float) -> Rule:
    """Scores of tokens already written: divided by `penalty` where positive, multiplied where negative."""
    by = np.float32(penalty)

    def rule(scores: np.ndarray, tokens: np.ndarray) -> None:
        found = np.take_along_axis(scores, tokens, 1)
        np.put_along_axis(scores, tokens, np.where(found < 0, found * by, found / by), 1)
    return rule


def forbid_repeated_ngrams(size: int) -> Rule:
    """No token may end a run of `size` tokens that was written before."""
    def rule(scores: np.ndarray, tokens: np.ndarray) -> None:
        if tokens.shape[1] < size:
            return
        runs = np.lib.stride_tricks.sliding_window_view(tokens, size, 1)
        last = tokens[:, tokens.shape[1] - size + 1:]
        rows, at = np.nonzero((runs[:, :, :-1] == last[:, None]).all(-1))
        scores[rows, runs[rows, at, -1]] = LOWEST
    return rule


def keep_to(mask: np.ndarray) -> Rule:
    """Only tokens where `mask` [vocab] or [rows, vocab] is not 0."""
    out = np.broadcast_to(mask == 0, (1, mask.shape[-1]) if mask.ndim == 1 else mask.shape)

    def rule(scores: np.ndarray, tokens: np.ndarray) -> None:
        np.copyto(scores, LOWEST, where=out)
    return rule


def keep_first_to(mask: np.ndarray, length: int) -> Rule:
    """`keep_to(mask)` while no more than `length` tokens are written."""
    keep = keep_to(mask)

    def rule(scores: np.ndarray, tokens: np.ndarray) -> None:
        if tokens.shape[1] <= length:
            keep(scores, tokens)
    return rule


def write_at_least(length: int, eos: int) -> Rule:
    """The end may not come before `length` tokens are written."""
    def rule(scores: np.ndarray, tokens: np.ndarray) -> None:
        if tokens.shape[1] < length and eos >= 0:
            scores[:, eos] = LOWEST
    return rule


def divide_by(temperature: float) -> Rule:
    by = np.float32(temperature)

    def rule(scores: np.ndarray, tokens: np.ndarray) -> None:
        scores /= by
    return rule


def penalize_presence(mask: np.ndarray, penalty: float) -> Rule:
    """`penalty` less for every token where `mask` [rows, vocab] says so."""
    less = mask.astype(np.float32) * np.float32(penalty)

    def rule(scores: np.ndarray, tokens: np.ndarray) -> None:
        np.subtract(scores, less, out=scores)
    return rule


def rules_of(start: int, eos: int, *, repetition_penalty: float = 1.0, no_repeat_ngram_size: int = 0,
             vocab_mask: np.ndarray | None = None, prefix_vocab_mask: np.ndarray | None = None,
             min_length: int = 0, temperature: float = 1.0, presence_mask: np.ndarray | None = None,
             presence_penalty: float = 0.0) -> list[Rule]:
    """The rules of a node in the order in which they apply. `start`: how many tokens are there before the
    first is written; masks have a row for every row of scores. Raises InvalidArgument for a value out of
    range."""
    if not repetition_penalty > 0:
        raise InvalidArgument("repetition_penalty shall be greater than 0", found=repetition_penalty)
    made: list[Rule] = []
    if repetition_penalty != 1:
        made.append(penalize_repetition(repetition_penalty))
    if no_repeat_ngram_size > 0:
        made.append(forbid_repeated_ngrams(no_repeat_ngram_size))
    if vocab_mask is not None:
        made.append(keep_to(vocab_mask))
    if prefix_vocab_mask is not None:
        made.append(keep_first_to(prefix_vocab_mask, start))
    if min_length > 0:
        made.append(write_at_least(min_length, eos))
    if temperature > 0 and temperature != 1:
        made.append(divide_by(temperature))
    if presence_mask is not None:
        made.append(penalize_presence(presence_mask, presence_penalty))
    return made


def apply(rules: Iterable[Rule], scores: np.ndarray, tokens: np.ndarray) -> None:
    for rule in rules:
        rule(scores, tokens)


def mask_rows(mask: np.ndarray | None, shape: Sequence[int], name: str, beams: int = 1) -> np.ndarray | None:
    """`mask`, each row `beams` times. Raises InvalidArgument for another shape than `shape`."""
    if mask is None:
        return None
    if mask.shape != tuple(shape):
        raise InvalidArgument(f"{name} has an unexpected shape", found=list(mask.shape), expected=list(shape))
    return np.repeat(mask, beams, 0) if mask.ndim > 1 and beams > 1 else mask
