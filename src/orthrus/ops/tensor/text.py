"""Strings: normalizing, joining, splitting, matching and counting n-grams.

String tensors are object arrays of str. Nothing depends on the machine's locale: letters change case by
Unicode's simple mapping, one character for one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...limits import HARMLESS, bounded
from ...records import cached_property
from ..define import op
from .movement import chosen
from .regex import Pattern

_MANY = 16
"""Texts from which on they are split together."""
_TEXT = np.dtype(object)
_SPACES = " \t\n\v\f\r"
_SPACE_RUN = re.compile(f"[{_SPACES}]+")


def _upper(text: str) -> str:
    if text.isascii():
        return text.upper()
    return "".join(u if len(u := c.upper()) == 1 else c for c in text)


def _lower(text: str) -> str:
    if text.isascii():
        return text.lower()
    return "".join(u if len(u := c.lower()) == 1 else c for c in text)


_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": _lower, "UPPER": _upper}


@op(prepared=("gone",))
def StringNormalizer(x, *, case_change_action: str = "NONE", is_case_sensitive: int = 0, gone: set[str]):
    """The strings [C] or [1, C] that are no stop words, in the case asked for; one empty string where none is
    left"""
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"Input dimensions are either [C > 0] or [1][C > 0] allowed, found {list(x.shape)}")
    change = _CASES[chosen(case_change_action, tuple(_CASES), "case_change_action")]
    compared = str if is_case_sensitive else _lower
    given = x.tolist() if x.ndim == 1 else x.ravel().tolist()
    longest = max(map(len, given), default=0)
    if x.size * (64 + longest) > HARMLESS:
        bounded((x.size, 64 + longest), np.dtype(np.int8))
    if gone:
        given = [s for s in given if s not in gone] if compared is str else [
            s for s in given if compared(s) not in gone]
    kept = (given if change is str else list(map(change, given))) or [""]
    return texts(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


@StringNormalizer.prepare_with
def _unwanted(*, is_case_sensitive: int, stopwords: list[str] | None = None, locale: str | None = None):
    return {"gone": set(stopwords or ()) if is_case_sensitive else set(map(_lower, stopwords or ()))}


def texts(items: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
    """An array of these strings."""
    out = np.fromiter(items, object, len(items))
    return out if shape == out.shape else out.reshape(shape)


@op
def StringConcat(x, y):
    """Each string of x followed by the string of y it broadcasts with"""
    shape = x.shape if x.shape == y.shape else np.broadcast_shapes(x.shape, y.shape)
    longest = max(map(len, x.ravel().tolist()), default=0) + max(map(len, y.ravel().tolist()), default=0)
    bounded((*shape, 64 + 4 * longest), np.dtype(np.int8))
    return np.asarray(x + y, object)


def _parts(text: str, delimiter: str, maxsplit: int) -> list[str]:
    if delimiter:
        return text.split(delimiter, maxsplit) if text else []
    text = text.strip(_SPACES)
    if not text:
        return []
    return _SPACE_RUN.split(text, max(maxsplit, 0)) if maxsplit else [text]


def _plain(text: str) -> bool:
    """Whether Python sees no other spaces in it than these operators do."""
    return text.isascii() and not (
        "\x1c" in text or "\x1d" in text or "\x1e" in text or "\x1f" in text)


@op(outputs=2)
def StringSplit(x, *, delimiter: str | None = None, maxsplit: int | None = None):
    """Each string's parts along a new last axis, filled up with empty strings, and how many it has"""
    most, given = -1 if maxsplit is None else maxsplit, x.tolist() if x.ndim == 1 else x.ravel().tolist()
    letters = "".join(given)
    if 64 * (len(letters) + len(given)) > HARMLESS:
        if delimiter:
            cuts = [s.count(delimiter) for s in given]
        else:
            cuts = [n // 2 for n in map(len, given)]
        if most >= 0:
            cuts = [min(count, most) for count in cuts]
        bounded((sum(cuts) + len(cuts), 64), np.dtype(np.int8), "parts of the strings")
    if not delimiter and most < 0 and _plain(letters):
        if len(given) >= _MANY and (found := _words(given)) is not None:
            return found[0].reshape(*x.shape, found[0].shape[1]), found[1].reshape(x.shape)
        rows = [s.split() for s in given]
    elif most < 0 and len(given) >= _MANY and delimiter and len(delimiter) == 1 and all(given):
        found = _side_by_side(delimiter.join(given).split(delimiter), given, delimiter)
        return found[0].reshape(*x.shape, found[0].shape[1]), found[1].reshape(x.shape)
    else:
        rows = [_parts(s, delimiter or "", most) for s in given]
    y, counts = table(rows, "", x.dtype)
    return (y, counts) if x.ndim == 1 else (y.reshape(*x.shape, y.shape[1]), counts.reshape(x.shape))


def _words(given: list[str]) -> tuple[np.ndarray, np.ndarray] | None:
    """`table` of the words of plain texts, all split at once; None where they have other spaces than one
    between two words."""
    line = " ".join(given)
    if any(c in line for c in _SPACES[1:]):
        return None
    found = line.split()
    return _side_by_side(found, given, " ") if len(found) == line.count(" ") + 1 else None


def _side_by_side(parts: list[str], given: list[str], delimiter: str) -> tuple[np.ndarray, np.ndarray]:
    """`table` of the parts of all texts, one after the other, that a letter is between."""
    counts = np.fromiter(map(str.count, given, itertools.repeat(delimiter)), np.int64, len(given)) + 1
    width = int(counts.max())
    shape = bounded((len(given), width), _TEXT)
    made = np.fromiter(parts, object, len(parts))
    if len(parts) == len(given) * width:
        return made.reshape(shape), counts
    out = np.full(shape, "", object)
    out[np.arange(width) < counts[:, None]] = made
    return out, counts


def table(rows: Sequence[list[str]], fill: str, dtype: Any, around: tuple[str, str] | None = None
          ) -> tuple[np.ndarray, np.ndarray]:
    """Rows side by side, filled up to the longest; and how many each has. `around`: what is put before and
    behind each, if one has any."""
    sizes = list(map(len, rows))
    width = max(sizes, default=0)
    if around is not None and width:
        rows = [[around[0], *row, around[1]] for row in rows]
        sizes, width = [size + 2 for size in sizes], width + 2
    if len(rows) * width * dtype.itemsize > HARMLESS:
        bounded((len(rows), width), dtype)
    if min(sizes, default=width) < width:
        rows = [row + [fill] * (width - len(row)) for row in rows]
    out = np.fromiter(itertools.chain.from_iterable(rows), object, len(rows) * width)
    return out.reshape(len(rows), width), np.array(sizes, np.int64)


@op(prepared=("compiled",))
def RegexFullMatch(x, *, compiled: Pattern):
    """Whether `pattern`, in RE2's syntax, matches all of each string"""
    return compiled.fullmatches(x.ravel()).reshape(x.shape)


@RegexFullMatch.prepare_with
def _compiled(*, pattern: str):
    return {"compiled": Pattern(pattern)}


_DENSE = 1 << 16
"""Between the least and the greatest number of a pool that has a place for each."""


_OFTEN = 64
"""Numbers of the result to one n-gram that is found, up to which all are counted."""

_DENSELY = 16
"""Numbers of the result to one token, up to which what is no n-gram of the pool is counted too."""

_FEW = 64
"""Tokens that are looked up one by one."""

_SPARSE = 64
"""Columns of the result to one n-gram of the pool, up to which weights are kept by column."""


class Grams:
    """The n-grams of a pool, by length: sorted prefixes, each known by its rank among those of its length.

    A prefix of j tokens is the number `rank of its first j - 1 tokens * vocabulary + last token`.
    """

    def __init__(self, pool: Sequence[Any], starts: Sequence[int], low: int, high: int) -> None:
        if not 1 <= low <= high <= len(starts):
            raise ValueError(f"gram lengths {low} to {high} are not covered by {len(starts)} ngram_counts")
        bounds = [*starts, len(pool)]
        if bounds != sorted(bounds) or bounds[0] != 0:
            raise ValueError(f"ngram_counts {list(starts)} must rise from 0 and stay within the {len(pool)} "
                             "pool entries")
        self.words: dict[str, int] | None = None
        self.dense: np.ndarray | None = None
        if pool and isinstance(pool[0], str):
            self.words = {w: i for i, w in enumerate(dict.fromkeys(pool))}
            codes = np.array([self.words[w] for w in pool], np.int64)
            self.size = len(self.words)
        else:
            self.vocabulary, codes = np.unique(np.array(pool, np.int64), return_inverse=True)
            self.size = len(self.vocabulary)
            span = int(self.vocabulary[-1]) - int(self.vocabulary[0])
            if span < _DENSE and abs(int(self.vocabulary[0])) < 1 << 62:
                self.dense = np.full(span + 3, -1)
                self.dense[self.vocabulary - self.vocabulary[0] + 1] = np.arange(self.size)
        self.levels: dict[int, tuple[list[np.ndarray], np.ndarray]] = {}
        self.count = 0
        self.pool, self.bounds, self.numbers = pool, bounds, np.arange(len(pool))
        for n, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False), 1):
            if (end - start) % n:
                raise ValueError(f"the pool holds {end - start} entries for {n}-grams, no multiple of {n}")
            rows = codes[start:end].reshape(-1, n)
            prefixes, rank = [], np.zeros(len(rows), np.int64)
            for column in rows.T:
                keys, rank = np.unique(rank * self.size + column, return_inverse=True)
                prefixes.append(keys)
            if len(prefixes[-1]) != len(rows):
                raise ValueError(f"the pool holds a {n}-gram twice")
            if low <= n <= high:
                self.levels[n] = prefixes, self.count + np.argsort(rank, kind="stable")
            self.count += len(rows)

    def number(self, numbers: np.ndarray, count: int) -> None:
        """Give the n-grams other numbers, below `count`."""
        self.numbers = numbers
        self.levels = {n: (prefixes, numbers[old]) for n, (prefixes, old) in self.levels.items()}
        self.count = count

    def encode(self, x: np.ndarray) -> np.ndarray:
        """The tokens' numbers, -1 or their count for one that is not in the pool."""
        if self.words is not None:
            last = self.size if self.size < 1 << 8 else -1
            found = map(self.words.get, x.ravel().tolist(), itertools.repeat(last))
            if last < 0:
                return np.fromiter(found, np.int64, x.size).reshape(x.shape)
            return np.frombuffer(bytes(found), np.uint8).reshape(x.shape)
        x = x.astype(np.int64, copy=False)
        if self.dense is None:
            return _rank(self.vocabulary, x, np.ones(x.shape, bool))
        return self.dense.take(x - (self.vocabulary[0] - 1), mode="clip")

    @cached_property
    def tokens(self) -> dict[int, dict[Any, int]]:
        """By length: the number of each n-gram, a token or a tuple of them."""
        made, at = {}, 0
        for n, (start, end) in enumerate(zip(self.bounds, self.bounds[1:], strict=False), 1):
            held = self.pool[start:end]
            grams = held if n == 1 else zip(*(held[i::n] for i in range(n)), strict=True)
            numbers = self.numbers[at:(at := at + (end - start) // n)].tolist()
            if n in self.levels:
                made[n] = dict(zip(grams, numbers, strict=True))
        return made

    def few(self, rows: list[list[Any]], max_skip: int) -> np.ndarray:
        """As `found`, of tokens one by one."""
        found: list[int] = []
        starts = range(0, len(rows) * self.count or len(rows), self.count or 1)
        for n, known in self.tokens.items():
            get = known.get
            if n == 1:
                found += [start + number for start, row in zip(starts, rows, strict=True)
                          for number in map(get, row) if number is not None]
                continue
            for start, row in zip(starts, rows, strict=True):
                for step in range(1, min(max_skip + 1, (len(row) - 1) // (n - 1)) + 1):
                    grams = zip(*(row[j * step:] for j in range(n)), strict=False)
                    found += [start + number for number in map(get, grams) if number is not None]
        return np.array(found, np.int64)

    def found(self, codes: np.ndarray, max_skip: int, spare: int = 0) -> np.ndarray:
        """Every n-gram in `codes` [rows, C], with up to `max_skip` tokens between: `row * count + n-gram`.
        With one number to `spare`, that behind all others is what is no n-gram of the pool."""
        found = [np.zeros(0, np.int64)]
        starts = np.arange(len(codes))[:, None] * (self.count + spare)
        length, missing = codes.shape[1], self.count if spare else -1
        for n, (prefixes, numbers) in self.levels.items():
            if not len(numbers):
                continue
            if n == 1:
                ranks = np.full(self.size + 1, missing)
                ranks[prefixes[0]] = numbers
                gram = ranks.take(codes)
                found.append((starts + gram).ravel() if spare else (starts + gram)[gram >= 0])
                continue
            for step in range(1, min(max_skip + 1, (length - 1) // (n - 1)) + 1):
                width = length - (n - 1) * step
                rank = np.zeros((len(codes), max(width, 0)), np.int64)
                for j, keys in enumerate(prefixes):
                    token = codes[:, j * step:j * step + width]
                    valid = (rank >= 0) & (token >= 0) & (token < self.size)
                    rank = _rank(keys, rank * self.size + token, valid)
                gram = np.where(rank >= 0, numbers.take(rank), missing)
                found.append((starts + gram).ravel() if spare else (starts + gram)[gram >= 0])
        return np.concatenate(found) if len(found) > 2 else found[-1]


def _rank(keys: np.ndarray, values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Where each value stands among the sorted keys, -1 where it is none of them or not valid."""
    if not len(keys):
        return np.full(values.shape, -1)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.where(valid & (keys[at] == values), at, -1)


def _weighted(counts: np.ndarray, mode: str, scale: np.ndarray) -> np.ndarray:
    amount = (np.minimum(counts, 1) if mode == "IDF" else counts).astype(np.float32)
    return amount if mode == "TF" else np.multiply(amount, scale, out=amount, where=counts > 0)


@op(prepared=("grams", "columns", "width", "scale"))
def TfIdfVectorizer(x, *, mode: str, max_skip_count: int, grams: Grams, columns: np.ndarray | None,
                    width: int, scale: np.ndarray):
    """How often each n-gram of the pool occurs in each row, weighted as `mode` says"""
    if x.ndim not in (1, 2):
        raise ValueError(f"Input shape must have either [C] or [B,C] dimensions, found {list(x.shape)}")
    if (x.dtype.kind == "O") != (grams.words is not None):
        raise TypeError(f"the pool does not hold tokens of the input's type {x.dtype}")
    rows = x if x.ndim == 2 else x[None]
    shape = len(rows), width
    if 4 * len(rows) * width > HARMLESS:
        bounded(shape, np.dtype(np.float32))
    if x.size > _FEW and columns is None and len(rows) * width <= _DENSELY * x.size:
        found = grams.found(grams.encode(rows), max_skip_count, 1)
        counts = np.bincount(found, minlength=len(rows) * (width + 1)).reshape(len(rows), width + 1)
        out = _weighted(counts[:, :width], mode, scale)
        return out if x.ndim == 2 else out[0]
    found = grams.few(rows.tolist(), max_skip_count) if x.size <= _FEW else (
        grams.found(grams.encode(rows), max_skip_count))
    if columns is None and len(rows) * width <= _OFTEN * len(found):
        out = _weighted(np.bincount(found, minlength=len(rows) * width).reshape(shape), mode, scale)
    else:
        out = np.zeros(shape, np.float32)
        seen, counts = np.unique(found, return_counts=True)
        row, gram = np.divmod(seen, max(grams.count, 1))
        amount = _weighted(counts, mode, scale[gram])
        np.add.at(out, (row, gram if columns is None else columns[gram]), amount)
    return out if x.ndim == 2 else out[0]


@TfIdfVectorizer.prepare_with
def _pooled(*, mode: str, min_gram_length: int, max_gram_length: int, max_skip_count: int,
            ngram_counts: list[int], ngram_indexes: list[int], pool_int64s: list[int] | None = None,
            pool_strings: list[str] | None = None, weights: list[float] | None = None):
    chosen(mode, ("TF", "IDF", "TFIDF"), "mode")
    if bool(pool_int64s) == bool(pool_strings):
        raise ValueError("exactly one of pool_int64s and pool_strings must be given, and not be empty")
    if max_skip_count < 0:
        raise ValueError(f"max_skip_count must be non-negative, found {max_skip_count}")
    grams = Grams(pool_strings or pool_int64s or (), ngram_counts, min_gram_length, max_gram_length)
    columns = np.array(ngram_indexes, np.int64)
    if len(columns) != grams.count or (columns < 0).any():
        raise ValueError(f"ngram_indexes must give each of the pool's {grams.count} n-grams a non-negative "
                         f"column, found {len(columns)} entries")
    scale = np.array(weights, np.float32) if weights else np.ones(len(columns), np.float32)
    if len(scale) != len(columns):
        raise ValueError(f"Got weights of size: {len(scale)} but ngram_indexes of size: {len(columns)}")
    width = int(columns.max(initial=-1)) + 1
    if width > _SPARSE * len(columns) or (mode != "TF" and len(np.unique(columns)) < len(columns)):
        return {"grams": grams, "columns": columns, "width": width, "scale": scale}
    placed = np.ones(width, np.float32)
    placed[columns] = scale
    grams.number(columns, width)
    return {"grams": grams, "columns": None, "width": width, "scale": placed}
