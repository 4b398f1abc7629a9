"""Patterns read from tables, one text or many at a time, against the automaton that makes its states as it
goes and against Python's expressions."""

from __future__ import annotations

import re

import numpy as np
import pytest

from orthrus.ops.define import find
from orthrus.ops.tensor.regex import Pattern

ALIKE = ["", "a", "a*", "(ab|a)*b?", "a{2,4}b+?", "[^b]*", "(?:a|b|0)+", "[a-z]+0", "a.b|.", "(?i)aB*",
         "word[0-9]+( word[0-9]+)*", "([a-c]bcdefghijklmnopqrstuvwxyz*){0,5}", "(a|b)*a(a|b){3}", "\\.|\\+"]
"""What Python reads as RE2 does, for texts without newlines."""
PLACES = ["(a*)*b", "^a*$", "\\ba+\\b.*", "(?m)^a$\\n^b$", "a\\B.*", "(?s).*b", "\\pL+", "[[:alpha:]]+\\z",
          "\\A[^a]*", "b\\b|\\Ba"]
LONG = "(a|b)*a(a|b){12}"
"""A pattern of more states than a table has."""


def drawn(rng: np.random.Generator, letters: str, count: int, longest: int) -> list[str]:
    return ["".join(rng.choice(list(letters), rng.integers(0, longest))) for _ in range(count)]


def texts(rng: np.random.Generator) -> list[list[str]]:
    every = [drawn(rng, letters, count, longest) for letters in ("ab", "ab0. AB", "ab\n", "ab\0", "aébB")
             for count, longest in ((1, 5), (15, 9), (16, 2), (40, 12), (200, 7))]
    words = ["word1", "word23 word4", "word", "word1 word2 ", "x" * 400, "ab" * 90,
             "abcdefghijklmnopqrstuvwxyzzcbcdefghijklmnopqrstuvwxy", "abcdefghijklmnopqrstuvwxyzz1"]
    return [*every, [""] * 40, [], words * 9, ["a" * 9001, "a" * 5000 + "b", "b" + "a" * 5000],
            ["b" + "a" * 16000, *["a" * 16000] * 17]]


@pytest.mark.parametrize("pattern", [*ALIKE, *PLACES, LONG])
def test_tables_read_what_the_automaton_reads(pattern: str) -> None:
    made = Pattern(pattern)
    assert (made.table is None) == (pattern == LONG)
    for given in texts(np.random.default_rng(2)):
        walked = [made.walk(text) for text in given]
        assert [made.fullmatch(text) for text in given] == walked
        many = made.fullmatches(np.array(given, object))
        assert many.dtype == bool and many.shape == (len(given),) and many.tolist() == walked
        if pattern in ALIKE and not any("\n" in text or "é" in text for text in given):
            assert walked == [re.fullmatch(pattern, text) is not None for text in given]


def test_one_or_two_characters_at_a_step() -> None:
    tables = [Pattern(pattern).table for pattern in ALIKE]
    assert {made.step for made in tables if made is not None} == {1, 2}


@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 8), (2, 0), (4, 2, 5)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    drawn = np.random.default_rng(4).choice(np.array(["ab", "", "b", "abab"], object), shape)
    x = np.asarray(drawn, object).reshape(shape)
    op = find("", "RegexFullMatch", 20)
    assert op is not None
    made = op.bind({"pattern": "(ab)*"})(x)
    assert made.shape == shape and made.ravel().tolist() == [text != "b" for text in x.ravel().tolist()]
