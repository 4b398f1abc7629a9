"""A pattern's deterministic automaton as a table: every state by every class of ASCII characters.

In: a compiled pattern of few states. Out: which texts it matches; many texts are read side by side, two
characters at a step, by numpy.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .regex import Pattern

_CELLS = 1 << 12
"""States times classes of characters, up to which there is a table."""
_LONG = 512
"""Instructions of a pattern, up to which all of its states are soon made."""
_WIDE = 1 << 14
"""Cells of a table by two characters."""
_PIECE = 1 << 12
"""Characters that are read before a look at whether anything can still match."""
_BLOCK = 1 << 18
"""Characters that are read side by side."""
_MANY = 16
"""Texts from which on they are."""


class Table:
    """`rows[state][class]` is the next state, `accepts` says where a text may end; `classes` are those of the
    bytes, of which the last stands for what is behind a text. State 0 is the first, in `dead` nothing can
    match any more."""

    def __init__(self, classes: bytes, rows: list[list[int]], accepts: list[bool], dead: int | None
                 ) -> None:
        self.classes, self.accepts = classes, np.array(accepts)
        states: list[list[Any]] = [[] for _ in rows]
        for state, row, accept in zip(states, rows, accepts, strict=True):
            state.extend([*(states[i] for i in row), accept])
        self.start, self.dead = states[0], None if dead is None else states[dead]
        code, count = np.frombuffer(classes, np.uint8).astype(np.uint16), len(rows[0]) + 1
        wide = np.array([[*row, i] for i, row in enumerate(rows)], np.intp)
        self.step = 2 if wide.size * count <= _WIDE else 1
        if self.step == 2:
            wide, code = wide[wide], (code * np.uint16(count) + code[:, None]).ravel()
        self.cells = wide.size // len(rows)
        self.code, self.wide = code, wide.ravel() * self.cells

    @classmethod
    def of(cls, pattern: Pattern) -> Table | None:
        """That of `pattern`, None where it is long or has too many states."""
        if pattern.end > _LONG:
            return None
        reads = [pattern.reads(bisect_right(pattern.cuts, code) - 1) for code in range(1, 128)]
        kinds = {read: i for i, read in enumerate(dict.fromkeys(reads))}
        classes = bytes([len(kinds), *(kinds[read] for read in reads), *[len(kinds)] * 128])
        states = {pattern.first: 0}
        rows: list[list[int]] = []
        accepts = []
        for state in (order := list(states)):
            row = []
            for mask, kind in kinds:
                after = pattern.after(*state, mask, kind)
                if after not in states:
                    if len(states) * (len(kinds) + 1) >= _CELLS:
                        return None
                    states[after] = len(states)
                    order.append(after)
                row.append(states[after])
            rows.append(row)
            accepts.append(pattern.ends(*state))
        dead = next((i for i, (threads, _) in enumerate(order) if not threads), None)
        return cls(classes, rows, accepts, dead)

    def fullmatch(self, text: str) -> bool:
        """Whether all of an ASCII text without a NUL matches."""
        state = self.start
        for start in range(0, len(text), _PIECE):
            for c in text[start:start + _PIECE].encode().translate(self.classes):
                state = state[c]
            if state is self.dead:
                break
        return bool(state[-1])

    def fullmatches(self, texts: np.ndarray) -> np.ndarray | None:
        """For each of a vector of texts whether all of it matches; None where each is better read by itself:
        they are few, of very different lengths, or not all of them such as `fullmatch` takes."""
        given = texts.tolist()
        if len(given) < _MANY or not (together := "".join(given)).isascii() or "\0" in together:
            return None
        width = -(-max(map(len, given)) // self.step) * self.step
        few = len(given) < _MANY // 2 + 2 * (width // self.step)
        if not width or few or width * len(given) > 4 * len(together) + _MANY * len(given):
            return None
        out, rows = np.empty(len(given), bool), max(_BLOCK // width, 1)
        for start in range(0, len(given), rows):
            block = texts[start:start + rows].astype(f"S{width}")
            state = np.zeros(len(block), np.intp)
            for column in np.ascontiguousarray(block.view(f"<u{self.step}").reshape(len(block), -1).T):
                state = self.wide.take(state + self.code.take(column))
            out[start:start + rows] = self.accepts.take(state // self.cells)
        return out
