"""Regular expressions in RE2's syntax, matched against whole strings in time linear in their length.

A pattern becomes a list of instructions for a nondeterministic automaton (Thompson's construction); matching
walks the deterministic one, whose states are made when first reached and thrown away when there are too many.
No input makes it backtrack. Syntax RE2 refuses, and the little that is not covered (`\\C`, scripts by name),
raises ValueError.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np

from ...records import cached_property
from .regex_table import Table

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"

MAX_CODE = 20_000
MAX_NESTING = 1000
MAX_REPEAT = 1000
MAX_HELD = 1 << 25
_LAST = sys.maxunicode

_CHARS, _SPLIT, _JUMP, _ASSERT = range(4)


class _Step(NamedTuple):
    """`_CHARS` reads one character of `ranges`; `_SPLIT` goes on at both `a` and `b`, `_JUMP` at `a`, counted
    from here; `_ASSERT` goes on where the condition `a` holds."""
    kind: int
    a: int = 0
    b: int = 0
    ranges: Ranges = ()


# What stands beside a place in the text: its edge, a newline, a word character, another character.
_EDGE, _NEWLINE, _WORD, _OTHER = range(4)
_BEGIN_TEXT, _END_TEXT, _BEGIN_LINE, _END_LINE, _BOUNDARY, _NO_BOUNDARY = range(6)


def _holds(condition: int, before: int, after: int) -> bool:
    if condition == _BEGIN_TEXT:
        return before == _EDGE
    if condition == _END_TEXT:
        return after == _EDGE
    if condition == _BEGIN_LINE:
        return before in (_EDGE, _NEWLINE)
    if condition == _END_LINE:
        return after in (_EDGE, _NEWLINE)
    return ((before == _WORD) != (after == _WORD)) == (condition == _BOUNDARY)


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def _negated(ranges: Ranges) -> Ranges:
    out, start = [], 0
    for low, high in ranges:
        if start < low:
            out.append((start, low - 1))
        start = high + 1
    return (*out, (start, _LAST)) if start <= _LAST else tuple(out)


def _within(ranges: Ranges, code: int) -> bool:
    i = bisect_right(ranges, (code, _LAST))
    return i > 0 and code <= ranges[i - 1][1]


def _spans(text: str) -> Ranges:
    """`"09AZ"`: the ranges 0-9 and A-Z."""
    return _merged((ord(text[i]), ord(text[i + 1])) for i in range(0, len(text), 2))


_DIGIT, _SPACE, _WORDS = _spans("09"), _spans("\t\n\f\r  "), _spans("09AZaz__")
_PERL = {"d": _DIGIT, "s": _SPACE, "w": _WORDS}
_POSIX = {"alnum": _spans("09AZaz"), "alpha": _spans("AZaz"), "ascii": ((0, 127),), "blank": _spans("\t\t  "),
          "cntrl": ((0, 31), (127, 127)), "digit": _DIGIT, "graph": _spans("!~"), "lower": _spans("az"),
          "print": _spans(" ~"), "punct": _spans("!/:@[`{~"), "space": _spans("\t\r  "),
          "upper": _spans("AZ"), "word": _WORDS, "xdigit": _spans("09AFaf")}
_ESCAPES = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}


@functools.cache
def _folds() -> dict[int, tuple[int, ...]]:
    """For each character with other cases: all of them, by Unicode's simple case folding."""
    groups: dict[str, list[int]] = {}
    for code in range(0x1E944):
        c = chr(code)
        folded = c.casefold()
        if len(folded) != 1:
            folded = c.lower()
        if len(folded) == 1 and (folded != c or c.upper() != c):
            groups.setdefault(folded, []).append(code)
    for folded, codes in groups.items():
        if ord(folded) not in codes:
            codes.append(ord(folded))
    return {code: tuple(codes) for codes in groups.values() if len(codes) > 1 for code in codes}


def _folded(ranges: Ranges) -> Ranges:
    folds = _folds()
    if sum(high - low for low, high in ranges) < len(folds):
        extra = [c for low, high in ranges for code in range(low, high + 1) for c in folds.get(code, ())]
    else:
        starts = [low for low, _ in ranges]
        extra = [c for code, codes in folds.items()
                 if (i := bisect_right(starts, code)) and code <= ranges[i - 1][1] for c in codes]
    return _merged((*ranges, *((c, c) for c in extra)))


@functools.lru_cache(64)
def _category(name: str) -> Ranges:
    """The characters whose general category is, or starts with, `name`."""
    if name == "Any":
        return ((0, _LAST),)
    out: list[tuple[int, int]] = []
    start = -1
    for code in range(_LAST + 2):
        inside = code <= _LAST and unicodedata.category(chr(code)).startswith(name)
        if inside and start < 0:
            start = code
        elif not inside and start >= 0:
            out.append((start, code - 1))
            start = -1
    return tuple(out)


_CATEGORIES = {
    "Any", "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn",
    "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm",
    "So", "Z", "Zl", "Zp", "Zs"}


class _Frame:
    """An open group: the branches done, the pieces of the present one, and the flags to go back to at its
    end."""

    def __init__(self, flags: frozenset[str]) -> None:
        self.before = flags
        self.branches: list[list[_Step]] = []
        self.pieces: list[list[_Step]] = []
        self.repeatable = False
        self.repeated = False

    def add(self, piece: list[_Step]) -> None:
        self.pieces.append(piece)
        self.repeatable, self.repeated = True, False

    def next_branch(self) -> None:
        self.branches.append([step for piece in self.pieces for step in piece])
        self.pieces, self.repeatable, self.repeated = [], False, False

    def code(self) -> list[_Step]:
        self.next_branch()
        *others, last = self.branches
        if all(len(b) == 1 and b[0].kind == _CHARS for b in self.branches):
            return [_Step(_CHARS, ranges=_merged(r for b in self.branches for r in b[0].ranges))]
        size = sum(len(b) + 2 for b in others) + len(last)
        _sized(size)
        out: list[_Step] = []
        for branch in others:
            out += [_Step(_SPLIT, 1, len(branch) + 2), *branch]
            out.append(_Step(_JUMP, size - len(out)))
        return out + last


def _sized(size: int) -> None:
    if size > MAX_CODE:
        raise ValueError(f"pattern too large - compile failed: over {MAX_CODE} instructions")


def _repeated(x: list[_Step], low: int, high: int | None) -> list[_Step]:
    size = len(x)
    _sized((size + 1) * max(low, high or 0, 1) + 2)
    if high is not None:
        return x * low + [_Step(_SPLIT, 1, size + 1), *x] * (high - low)
    if low:
        return [*(x * low), _Step(_SPLIT, -size, 1)] if size else []
    return [_Step(_SPLIT, 1, size + 2), *x, _Step(_JUMP, -size - 1)]


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text, self.at = pattern, 0
        self.flags: frozenset[str] = frozenset()
        self.frames = [_Frame(self.flags)]
        self.size = 0

    def fail(self, why: str, text: str | None = None) -> ValueError:
        shown = self.text if len(self.text) < 80 else self.text[:77] + "..."
        return ValueError(f"Invalid regex pattern: {shown}: {why}" + ("" if text is None else f": {text}"))

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, what: str) -> str:
        if self.at >= len(self.text):
            raise self.fail(what)
        self.at += 1
        return self.text[self.at - 1]

    def until(self, end: str, what: str) -> str:
        found = self.text.find(end, self.at)
        if found < 0:
            raise self.fail(what, self.text[self.at:])
        text, self.at = self.text[self.at:found], found + len(end)
        return text

    def emit(self, piece: list[_Step]) -> None:
        self.size += len(piece)
        _sized(self.size)
        self.frames[-1].add(piece)

    def chars(self, ranges: Ranges) -> None:
        self.emit([_Step(_CHARS, ranges=_folded(ranges) if "i" in self.flags else ranges)])

    def check(self, condition: int) -> None:
        self.emit([_Step(_ASSERT, condition)])

    def parse(self) -> list[_Step]:
        while self.at < len(self.text):
            self.piece(self.take(""))
        if len(self.frames) > 1:
            raise self.fail("missing )")
        return self.frames[0].code()

    def piece(self, c: str) -> None:
        lines = "m" in self.flags
        if c == "(":
            self.open()
        elif c == ")":
            if len(self.frames) == 1:
                raise self.fail("unexpected )")
            frame = self.frames.pop()
            code, self.flags = frame.code(), frame.before
            self.frames[-1].add(code)
        elif c == "|":
            self.frames[-1].next_branch()
        elif c in "*+?":
            self.repeat(self.at - 1, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[c])
        elif c == "{" and (bounds := self.bounds()):
            self.repeat(bounds[0], bounds[1], bounds[2])
        elif c == ".":
            self.emit([_Step(_CHARS, ranges=((0, _LAST),) if "s" in self.flags else ((0, 9), (11, _LAST)))])
        elif c == "^":
            self.check(_BEGIN_LINE if lines else _BEGIN_TEXT)
        elif c == "$":
            self.check(_END_LINE if lines else _END_TEXT)
        elif c == "[":
            self.emit([_Step(_CHARS, ranges=self.bracket())])
        elif c == "\\":
            self.escape()
        else:
            self.chars(((ord(c), ord(c)),))

    def open(self) -> None:
        if len(self.frames) > MAX_NESTING:
            raise self.fail("expression nests too deeply")
        frame = _Frame(self.flags)
        if self.peek("?"):
            start = self.at
            self.at += 1
            if self.peek("P<") or (self.peek("<") and not self.peek("<=") and not self.peek("<!")):
                self.at += 2 if self.peek("P") else 1
                name = self.until(">", "invalid named capture group")
                if not name or not all(ch.isalnum() or ch == "_" for ch in name):
                    raise self.fail("invalid named capture group", name)
            else:
                flags, on, seen = set(self.flags), True, False
                while (c := self.take("missing argument in (?")) not in ":)":
                    if c == "-" and on:
                        on, seen = False, False
                    elif c in "imsU":
                        seen = True
                        (flags.add if on else flags.discard)(c)
                    else:
                        raise self.fail("invalid or unsupported Perl syntax", self.text[start - 1:self.at])
                if not on and not seen:
                    raise self.fail("missing argument to flag operator", self.text[start - 1:self.at])
                self.flags = frozenset(flags)
                if c == ")":
                    self.frames[-1].repeated = False
                    return
        self.frames.append(frame)

    def bounds(self) -> tuple[int, int, int | None] | None:
        """A counted repetition after `{`; None where the text is none, so that the brace stands for
        itself."""
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at:max(end, self.at)].partition(",")
        if not all(part.isascii() and part.isdigit() for part in (low, *([high] if high else ()))):
            return None
        least, given = (int(part.lstrip("0")[:9] or 0) for part in (low, high))
        most = given if high else None if comma else least
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self.fail("invalid repetition size", "{" + self.text[self.at:end + 1])
        start, self.at = self.at - 1, end + 1
        return start, least, most

    def repeat(self, start: int, low: int, high: int | None) -> None:
        if self.peek("?"):
            self.at += 1
        frame = self.frames[-1]
        if not frame.repeatable:
            raise self.fail("no argument for repetition operator", self.text[start:self.at])
        if frame.repeated:
            raise self.fail("bad repetition operator", self.text[start:self.at])
        before = len(frame.pieces[-1])
        frame.pieces[-1] = _repeated(frame.pieces[-1], low, high)
        frame.repeated = True
        self.size += len(frame.pieces[-1]) - before
        _sized(self.size)

    def escape(self) -> None:
        c = self.take("trailing \\")
        if c in "AzbB":
            self.check({"A": _BEGIN_TEXT, "z": _END_TEXT, "b": _BOUNDARY, "B": _NO_BOUNDARY}[c])
        elif c == "Q":
            end = self.text.find("\\E", self.at)
            quoted = self.text[self.at:] if end < 0 else self.text[self.at:end]
            self.at = len(self.text) if end < 0 else end + 2
            for ch in quoted:
                self.chars(((ord(ch), ord(ch)),))
        elif (named := self.named(c)) is not None:
            self.emit([_Step(_CHARS, ranges=named)])
        else:
            code = self.character(c)
            self.chars(((code, code),))

    def named(self, c: str) -> Ranges | None:
        """The class after a backslash, such as d, W, pL or P{Lu}; None where `c` begins no class."""
        if c.lower() in _PERL:
            ranges, negative = _PERL[c.lower()], c.isupper()
        elif c in "pP":
            name, negative = self.take("invalid character class range"), c == "P"
            if name == "{":
                name = self.until("}", "invalid character class range")
            if name.startswith("^"):
                name, negative = name[1:], not negative
            if name not in _CATEGORIES:
                raise self.fail("invalid or unsupported character class", name)
            ranges = _category(name)
        else:
            return None
        ranges = _folded(ranges) if "i" in self.flags else ranges
        return _negated(ranges) if negative else ranges

    def character(self, c: str) -> int:
        """The one character that the escape beginning with `c` stands for."""
        if c in _ESCAPES:
            return _ESCAPES[c]
        if c in "01234567" and (c == "0" or self.text[self.at:self.at + 1] in tuple("01234567")):
            digits = c
            while len(digits) < 3 and self.text[self.at:self.at + 1] in tuple("01234567"):
                digits += self.take("")
            return int(digits, 8)
        if c == "x":
            braces = self.peek("{")
            if braces:
                self.at += 1
                digits = self.until("}", "invalid escape sequence")
            else:
                digits = self.text[self.at:self.at + 2]
                self.at += 2
            good = digits and all(d in "0123456789abcdefABCDEF" for d in digits)
            if not good or len(digits) > 8 or not (braces or len(digits) == 2) or int(digits, 16) > _LAST:
                raise self.fail("invalid escape sequence", "\\x" + digits)
            return int(digits, 16)
        if c.isascii() and not c.isalnum():
            return ord(c)
        raise self.fail("invalid escape sequence", "\\" + c)

    def bracket(self) -> Ranges:
        """A class in brackets, after the opening one."""
        missing = "missing ]"
        negative = self.peek("^")
        self.at += negative
        out: list[tuple[int, int]] = []
        first = True
        while first or not self.peek("]"):
            first = False
            if self.peek("[:"):
                end = self.text.find(":]", self.at + 2)
                if end >= 0:
                    name = self.text[self.at + 2:end]
                    ranges = _POSIX.get(name.removeprefix("^"))
                    if ranges is None:
                        raise self.fail("invalid character class range", f"[:{name}:]")
                    self.at = end + 2
                    ranges = _folded(ranges) if "i" in self.flags else ranges
                    out += _negated(ranges) if name.startswith("^") else ranges
                    continue
            c = self.take(missing)
            if c == "\\":
                c = self.take("trailing \\")
                if (named := self.named(c)) is not None:
                    out += named
                    continue
                low = self.character(c)
            else:
                low = ord(c)
            high = low
            if self.peek("-") and not self.peek("-]") and self.at + 1 < len(self.text):
                self.at += 1
                c = self.take(missing)
                high = self.character(self.take("trailing \\")) if c == "\\" else ord(c)
                if high < low:
                    raise self.fail("invalid character class range", f"{chr(low)}-{chr(high)}")
            out += _folded(((low, high),)) if "i" in self.flags else ((low, high),)
        self.at += 1
        ranges = _merged(out)
        return _negated(ranges) if negative else ranges


class _State:
    """A state of the deterministic automaton: where the threads stand, a bit for each, and what came
    before."""

    __slots__ = ("threads", "before", "next", "accepts")

    def __init__(self, threads: int, before: int) -> None:
        self.threads, self.before = threads, before
        self.next: dict[int, _State] = {}
        self.accepts: bool | None = None


class Pattern:
    """A compiled pattern. `fullmatch` is safe to call from many threads: what they race to fill in is the
    same.

    Raises ValueError for a pattern RE2 refuses, or one over `MAX_CODE` instructions.
    """

    def __init__(self, pattern: str) -> None:
        self.code = _Parser(pattern).parse()
        self.end = len(self.code)
        self.looks = any(s.kind == _ASSERT for s in self.code)
        self.places: dict[Ranges, int] = {}
        self.stops = 1 << self.end
        for at, step in enumerate(self.code):
            if step.kind == _CHARS:
                self.places[step.ranges] = self.places.get(step.ranges, 0) | 1 << at
                self.stops |= 1 << at
        marks = (_WORDS, ((10, 10),)) if self.looks else ()
        self.cuts = sorted({0} | {cut for ranges in (*self.places, *marks) for low, high in ranges
                                  for cut in (low, high + 1) if cut <= _LAST})
        self.readers: dict[int, tuple[int, int]] = {}
        self.classes: dict[str, int] = {}
        self._forget()

    def reads(self, number: int) -> tuple[int, int]:
        """The instructions that read characters of class `number`, a bit for each, and the characters'
        kind."""
        found = self.readers.get(number)
        if found is None:
            code, mask = self.cuts[number], 0
            for ranges, places in self.places.items():
                if _within(ranges, code):
                    mask |= places
            kind = _OTHER
            if self.looks:
                kind = _WORD if _within(_WORDS, code) else _NEWLINE if code == 10 else _OTHER
            found = self.readers[number] = mask, kind
        return found

    def _forget(self) -> None:
        self.states: dict[tuple[int, int], _State] = {}
        self.closures: dict[tuple[int, int, int], int] = {}
        self.held = 0
        self.start = self._state(1, _EDGE if self.looks else _OTHER)

    def _hold(self, mask: int) -> None:
        self.held += mask.bit_length() // 8 + 400

    def _state(self, threads: int, before: int) -> _State:
        state = self.states.get((threads, before))
        if state is None:
            state = self.states[threads, before] = _State(threads, before)
            self._hold(threads)
        return state

    def _closure(self, start: int, before: int, after: int) -> int:
        """What is reached from one instruction without reading, between characters of these kinds."""
        key = (start, before, after)
        found = self.closures.get(key)
        if found is not None:
            return found
        seen, stack = {start}, [start]
        while stack:
            step = self.code[at := stack.pop()]
            targets: tuple[int, ...] = (at + step.a,)
            if step.kind == _ASSERT:
                targets = (at + 1,) if _holds(step.a, before, after) else ()
            elif step.kind == _SPLIT:
                targets = (at + step.a, at + step.b)
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    if not self.stops >> target & 1:
                        stack.append(target)
        bits = bytearray(self.end // 8 + 1)
        for at in seen:
            bits[at >> 3] |= 1 << (at & 7)
        found = self.closures[key] = int.from_bytes(bits, "little")
        self._hold(found)
        return found

    def _reached(self, state: _State, after: int) -> int:
        """Where the threads of `state` can read or end, before a character of kind `after`."""
        reached = state.threads & self.stops
        todo = state.threads & ~self.stops
        while todo:
            closure = self._closure((todo & -todo).bit_length() - 1, state.before, after)
            reached |= closure
            todo &= ~closure
        return reached & self.stops

    def _advance(self, state: _State, number: int) -> _State:
        mask, kind = self.reads(number)
        threads = (self._reached(state, kind) & mask) << 1
        if self.held > MAX_HELD:
            self._forget()
        state.next[number] = found = self._state(threads, kind)
        return found

    @property
    def first(self) -> tuple[int, int]:
        """The threads of the first state, and what stands before them."""
        return self.start.threads, self.start.before

    def after(self, threads: int, before: int, mask: int, kind: int) -> tuple[int, int]:
        """The state behind another, once it has read a character with these `reads`."""
        threads = (self._reached(_State(threads, before), kind) & mask) << 1
        return threads, kind if threads else _OTHER

    def ends(self, threads: int, before: int) -> bool:
        """Whether a text may end in a state."""
        last = _EDGE if self.looks else _OTHER
        return bool(self._reached(_State(threads, before), last) >> self.end & 1)

    @cached_property
    def table(self) -> Table | None:
        return Table.of(self)

    def fullmatches(self, texts: np.ndarray) -> np.ndarray:
        """For each of a vector of texts whether the pattern matches all of it."""
        found = self.table.fullmatches(texts) if self.table is not None else None
        return np.fromiter(map(self.fullmatch, texts.tolist()), bool, len(texts)) if found is None else found

    def fullmatch(self, text: str) -> bool:
        """Whether the pattern matches all of `text`."""
        if (table := self.table) is not None and text.isascii() and "\0" not in text:
            return table.fullmatch(text)
        return self.walk(text)

    def walk(self, text: str) -> bool:
        """As `fullmatch`, by states that are made when they are reached."""
        state, classes = self.start, self.classes
        for c in text:
            number = classes.get(c)
            if number is None:
                number = classes[c] = bisect_right(self.cuts, ord(c)) - 1
            state = state.next.get(number) or self._advance(state, number)
            if not state.threads:
                return False
        if state.accepts is None:
            state.accepts = bool(self._reached(state, _EDGE if self.looks else _OTHER) >> self.end & 1)
        return state.accepts
