"""Text of com.microsoft: arrays of strings in, arrays of their tokens out.

Expressions are RE2's and never backtrack; a search takes the leftmost match, and of those the longest.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from ...ir import ElementType, TensorType, Type, Value
from ..define import define
from ..tensor.regex import _EDGE, _OTHER, Pattern
from ..tensor.text import table
from .fused import MS

_STEPS = 1 << 22
_START, _END = "\x02", "\x03"


class Searcher(Pattern):
    """A pattern that can be searched for. Work is counted down in `left`; ValueError once it is spent.

    A search takes time linear in the text unless match after match fails late.
    """

    def _number(self, c: str) -> int:
        number = self.classes.get(c)
        if number is None:
            number = self.classes[c] = bisect_right(self.cuts, ord(c)) - 1
        return number

    def _kind(self, text: str, at: int) -> int:
        if not 0 <= at < len(text):
            return _EDGE if self.looks else _OTHER
        return self.reads(self._number(text[at]))[1]

    def longest(self, text: str, start: int) -> int:
        """Where the longest match that begins at `start` ends, -1 if none begins there."""
        state = self._state(1, self._kind(text, start - 1))
        found, at = -1, start
        while state.threads:
            if self._reached(state, self._kind(text, at)) >> self.end & 1:
                found = at
            if at == len(text):
                break
            number = self._number(text[at])
            state = state.next.get(number) or self._advance(state, number)
            at += 1
        self.left -= at - start + 1
        if self.left < 0:
            raise ValueError("searching a text for the pattern takes too long")
        return found

    def matches(self, text: str) -> list[tuple[int, int]]:
        """The non-empty matches from left to right, none overlapping another, as starts and ends."""
        self.left = max(_STEPS, 64 * len(text))
        found, at = [], 0
        while at < len(text):
            end = self.longest(text, at)
            if end > at:
                found.append((at, end))
            at = max(end, at + 1)
        return found


def _between(text: str, separators: list[Searcher | str]) -> list[str]:
    """The parts of `text` between matches of the separators, taken one after the other."""
    parts = [text]
    for separator in separators:
        split: list[str] = []
        for part in parts:
            if isinstance(separator, str):
                split += part.split(separator)
                continue
            at = 0
            for start, end in separator.matches(part):
                split.append(part[at:start])
                at = end
            split.append(part[at:])
        parts = split
    return parts


@define(domain=MS, types={"x": ("string",)}, prepared=("characters", "token", "separating"))
def Tokenizer(x, *, mark: int, mincharnum: int, pad_value: str, characters, token, separating):
    """The tokens of every string in a new last dimension, filled up with `pad_value`"""
    if x.ndim not in (1, 2):
        raise ValueError(f"Input dimensions are either [C] or [N][C] allowed, found shape {x.shape}")
    if not x.size:
        return np.empty((*x.shape, 0) if x.shape[-1:] != (0,) else x.shape, object)
    given = x.ravel().tolist()
    if characters:
        rows = list(map(list, given))
    elif token is not None:
        rows = [[text[a:b] for a, b in token.matches(text) if b - a >= mincharnum] for text in given]
    elif len(separating) == 1 and isinstance(separating[0], str):
        rows = [[part for part in text.split(separating[0]) if len(part) >= mincharnum] for text in given]
    else:
        rows = [[part for part in _between(text, separating) if len(part) >= mincharnum] for text in given]
    out, _ = table(rows, pad_value, x.dtype, (_START, _END) if mark else None)
    return out.reshape(*x.shape, out.shape[1])


@Tokenizer.prepare_with
def _expressions(*, mincharnum: int, separators: list[str] | None = None,
                 tokenexp: str | None = None) -> dict[str, Any]:
    if mincharnum < 1:
        raise ValueError(f"mincharnum is {mincharnum}, expected at least 1")
    if bool(separators) == bool(tokenexp):
        raise ValueError("Tokenizer needs either separators or tokenexp, and not both")
    given = list(separators or ())
    characters = tokenexp == "." or given == [""]
    if characters and mincharnum != 1:
        raise ValueError("Tokenizer by characters needs a mincharnum of 1")
    if not characters and "" in given:
        raise ValueError("Tokenizer takes an empty separator only on its own")
    return {"characters": characters, "token": Searcher(tokenexp) if tokenexp and not characters else None,
            "separating": [] if characters else [s if _literal(s) else Searcher(s) for s in given]}


def _literal(pattern: str) -> bool:
    """Whether a pattern matches itself and nothing else."""
    return not any(c in pattern for c in "\\.^$|?*+()[]{}")


@Tokenizer.infer_with
def _tokens_type(x: Value, **_: Any) -> list[Type]:
    return [TensorType(ElementType.STRING, None)]
