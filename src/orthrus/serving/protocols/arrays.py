"""A request in JSON whose tensors are long lists of numbers, read without a Python number for each.

In: the text. Out: what a reader of JSON makes of it, with arrays in the place of the inputs' `data`; None
where it is another text, or may be one: that is for the reader of all JSON, which also says what is wrong.

simdjson flattens lists without saying how they were nested, and counts no more than 2^24 - 1 elements, which
its own conversion to Python's lists believes: lists are walked here, and a text has as many brackets as there
were lists, or one of them was not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def _parser() -> Any:
    """simdjson, which there is not for every Python."""
    try:
        import simdjson
    except ImportError:
        return None
    return simdjson


simdjson = _parser()

LONG, FEW, ROW = 16384, 1024, 32
"""Bytes from which on a text is read here, its values beside the tensors' numbers at most, and the numbers in
an innermost list from which on it is an array's."""
KINDS = (("i", np.int64), ("u", np.uint64), ("d", np.float64))


class _Other(ValueError):
    """Not such a text."""


def loaded(text: bytes | memoryview) -> dict[str, Any] | None:
    """What is in it."""
    if simdjson is None or len(text) < LONG:
        return None
    text = bytes(text)
    try:
        walk = _Walk(len(text) // ROW)
        request = walk.request(simdjson.Parser().parse(text))
    except (LookupError, RuntimeError, TypeError, ValueError):
        return None
    return request if walk.lists == np.count_nonzero(np.frombuffer(text, np.uint8) == ord("[")) else None


class _Walk:
    """Through a request. `rows`: lists of an array's numbers at most; `lists`: those that were seen."""

    def __init__(self, rows: int) -> None:
        self.rows, self.lists, self.values = rows, 0, 0

    def request(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, simdjson.Object):
            raise _Other
        made = dict[str, Any]()
        for key, value in self._fields(given):
            if key == "inputs" and isinstance(value, simdjson.Array):
                self.lists += 1
                made[key] = [self._input(each) for each in value]
            else:
                made[key] = self._plain(value)
        return made

    def _input(self, given: Any) -> Any:
        self._count()
        if not isinstance(given, simdjson.Object):
            raise _Other
        return {key: self._data(value) if key == "data" and isinstance(value, simdjson.Array)
                else self._plain(value) for key, value in self._fields(given)}

    def _fields(self, given: Any) -> Iterator[tuple[str, Any]]:
        """Names and values of an object; simdjson finds the first of a name, JSON means the last."""
        seen = set[str]()
        for key in given:
            if key in seen or "\0" in key:
                raise _Other
            seen.add(key)
            self._count()
            yield key, given[key]

    def _plain(self, value: Any) -> Any:
        self._count()
        if isinstance(value, simdjson.Array):
            self.lists += 1
            return [self._plain(each) for each in value]
        if isinstance(value, simdjson.Object):
            return {key: self._plain(each) for key, each in self._fields(value)}
        return value

    def _count(self) -> None:
        self.values += 1
        if self.values > FEW:
            raise _Other

    def _data(self, given: Any) -> Any:
        """A tensor's elements: an array, or lists where they are few."""
        rows, shape = [given], list[int]()
        while True:
            shape.append(len(rows[0]))
            if any(len(row) != shape[-1] for row in rows):
                raise _Other
            if not shape[-1] or not isinstance(rows[0][0], simdjson.Array):
                break
            if len(rows) * shape[-1] > self.rows:
                raise _Other
            self.lists += len(rows)
            rows = [each for row in rows for each in row]
            if not all(isinstance(row, simdjson.Array) for row in rows):
                raise _Other
        if shape[-1] < ROW:
            if len(shape) > 1:
                raise _Other
            return self._plain(given)
        self.lists += len(rows)
        found = _numbers(rows)
        if any(len(row) != shape[-1] for row in found):
            raise _Other
        return (found[0] if len(found) == 1 else np.concatenate(found)).reshape(shape)


def _numbers(rows: list[Any]) -> list[np.ndarray]:
    """Lists of whole numbers that fit into int64, or of any of which one is not whole."""
    for code, kind in KINDS:
        try:
            found = [np.frombuffer(row.as_buffer(of_type=code), kind) for row in rows]
        except (TypeError, ValueError):
            continue
        if code != "u":
            return found
        break
    raise _Other
