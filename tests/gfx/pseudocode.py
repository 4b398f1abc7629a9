"""AMD's pseudo-code of an instruction as a tree: text such as `D0.f32 = fma(S0.f32, S1.f32, S2.f32)` goes in,
statements come out. Nothing is interpreted here; comments are dropped."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """`bits` is 0 where the text names no width; `pattern` says that it was written in hexadecimal."""

    value: int | float
    kind: str
    bits: int
    pattern: bool = False


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class View:
    """The low bits of `of` taken as another type: `x.f16`."""

    of: Any
    kind: str
    bits: int


@dataclass(frozen=True)
class Slice:
    of: Any
    high: Any
    low: Any


@dataclass(frozen=True)
class Index:
    of: Any
    at: Any


@dataclass(frozen=True)
class Cast:
    """A conversion of the value: `64'U(x)`."""

    kind: str
    bits: int
    of: Any


@dataclass(frozen=True)
class Call:
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Apply:
    operator: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Concat:
    """The first part is the highest."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Lambda:
    parameters: tuple[str, ...]
    body: Any


@dataclass(frozen=True)
class Assign:
    targets: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class Declare:
    name: str
    kind: str
    bits: int
    count: int


@dataclass(frozen=True)
class If:
    cases: tuple[tuple[Any, tuple[Any, ...]], ...]
    otherwise: tuple[Any, ...]


@dataclass(frozen=True)
class For:
    name: str
    first: Any
    last: Any
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Break:
    pass


class Unreadable(ValueError):
    """The text is prose, or uses what this reader does not know."""


_TOKEN = re.compile(r"""
    (?P<cast>\d+'[UIFB](?=\())
  | (?P<type>\d+'[UIFB])
  | (?P<sized>\d+'-?(?:0x[0-9a-fA-F]+|\d+\.\d+|\d+)[UI]?)
  | (?P<number>0x[0-9a-fA-F]+(?:ULL|LL|U)?|\d+\.\d+F?|\d+(?:ULL|LL|U|F)?)
  | (?P<view>\.(?:bf|[uifb])\d+)
  | (?P<name>[A-Za-z_]\w*(?:\.(?!(?:bf|[uifb])\d)[A-Za-z_]\w*)*)
  | (?P<sign>\*\*|<<=|>>=|\+=|-=|\*=|&=|\|=|\^=|==|!=|<>|<=|>=|<<|>>|&&|\|\||[-+*/%&|^~!<>=?:;,.(){}\[\]])
  | (?P<space>\s+)
""", re.VERBOSE)
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", ">", "<=", ">="), ("<<", ">>"),
           ("+", "-"), ("*", "/", "%"), ("**",))
_WORDS = frozenset({"if", "elsif", "else", "endif", "for", "endfor", "then", "do", "in", "break", "declare",
                    "lambda"})
_KINDS = {"U": "u", "I": "i", "F": "f", "B": "u"}


def _tokens(text: str) -> list[tuple[str, str]]:
    text = re.sub(r"//[^\n]*", "", text)
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unreadable(f"{text[at:at + 20]!r}")
        at = match.end()
        if match.lastgroup != "space":
            assert match.lastgroup is not None
            found.append((match.lastgroup, match.group()))
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens, self.at = _tokens(text), 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> bool:
        if self.peek() in wanted:
            self.at += 1
            return True
        return False

    def need(self, wanted: str) -> None:
        if not self.take(wanted):
            raise Unreadable(f"{self.peek()!r} where {wanted!r} was expected")

    def name(self) -> str:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind != "name" or text in _WORDS:
            raise Unreadable(f"{text!r} where a name was expected")
        self.at += 1
        return text

    def block(self, *ends: str) -> tuple[Any, ...]:
        found = []
        while self.peek() not in ends:
            if self.take(";"):
                continue
            if not self.peek():
                raise Unreadable(f"the end where {ends} was expected")
            found.append(self.statement())
        return tuple(found)

    def statement(self) -> Any:
        if self.take("if"):
            return self.condition()
        if self.take("for"):
            name = self.name()
            self.need("in")
            first = self.expression()
            self.need(":")
            last = self.expression()
            self.need("do")
            body = self.block("endfor")
            self.need("endfor")
            return For(name, first, last, body)
        if self.take("break"):
            return Break()
        if self.take("declare"):
            return self.declaration()
        return self.assignment()

    def condition(self) -> If:
        cases = []
        while True:
            test = self.expression()
            self.need("then")
            cases.append((test, self.block("elsif", "else", "endif")))
            if not self.take("elsif"):
                break
        otherwise = self.block("endif") if self.take("else") else ()
        self.need("endif")
        return If(tuple(cases), otherwise)

    def declaration(self) -> Declare:
        name, count = self.name(), 0
        self.need(":")
        type_, text = self.tokens[self.at]
        if type_ != "type":
            raise Unreadable(f"{text!r} where a type was expected")
        self.at += 1
        if self.take("["):
            count = int(self.peek())
            self.at += 1
            self.need("]")
        return Declare(name, _KINDS[text[-1]], int(text[:-2]), count)

    def assignment(self) -> Any:
        targets = [self.expression()]
        if self.take("="):
            value = self.lambda_() if self.take("lambda") else self.expression()
            while self.take("="):
                targets.append(value)
                value = self.expression()
            return Assign(tuple(targets), value)
        for sign in ("+", "-", "*", "&", "|", "^", "<<", ">>"):
            if self.take(sign + "="):
                return Assign(tuple(targets), Apply(sign, (targets[0], self.expression())))
        return targets[0]

    def lambda_(self) -> Lambda:
        self.need("(")
        parameters = [self.name()]
        while self.take(","):
            parameters.append(self.name())
        self.need(")")
        self.need("(")
        body = self.expression()
        self.take(";")
        self.need(")")
        return Lambda(tuple(parameters), body)

    def expression(self) -> Any:
        test = self.binary(0)
        if not self.take("?"):
            return test
        yes = self.expression()
        self.need(":")
        return Apply("?", (test, yes, self.expression()))

    def binary(self, level: int) -> Any:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            sign = self.peek()
            self.at += 1
            left = Apply(sign, (left, self.binary(level + 1)))
        return left

    def unary(self) -> Any:
        for sign in ("-", "+", "!", "~"):
            if self.take(sign):
                inner = self.unary()
                return inner if sign == "+" else Apply("neg" if sign == "-" else sign, (inner,))
        return self.postfix(self.primary())

    def postfix(self, x: Any) -> Any:
        while self.at < len(self.tokens):
            kind, text = self.tokens[self.at]
            if kind == "view":
                self.at += 1
                match = re.fullmatch(r"\.(bf|[uifb])(\d+)", text)
                assert match is not None
                x = View(x, {"b": "u"}.get(match.group(1), match.group(1)), int(match.group(2)))
            elif self.take("["):
                first = self.expression()
                x = Slice(x, first, self.expression()) if self.take(":") else Index(x, first)
                self.need("]")
            else:
                break
        return x

    def primary(self) -> Any:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "the end")
        if kind in ("number", "sized"):
            self.at += 1
            return _number(text)
        if kind == "cast":
            self.at += 1
            self.need("(")
            inner = self.expression()
            self.need(")")
            return Cast(_KINDS[text[-1]], int(text[:-2]), inner)
        if self.take("("):
            inner = self.expression()
            self.need(")")
            return inner
        if self.take("{"):
            parts = [self.expression()]
            while self.take(","):
                parts.append(self.expression())
            self.need("}")
            return Concat(tuple(parts))
        name = self.name()
        if not self.take("("):
            return Name(name)
        arguments = []
        while not self.take(")"):
            arguments.append(self.expression())
            self.take(",")
        return Call(name, tuple(arguments))


def _number(text: str) -> Number:
    if "'" in text:
        width, _, rest = text.partition("'")
        if "." in rest:
            return Number(float(rest), "f", int(width))
        return Number(int(rest.rstrip("UI"), 0), "i" if rest.endswith("I") else "u", int(width))
    if text.startswith("0x"):
        digits = text.rstrip("UL")
        bits = 64 if text.endswith("LL") else 32 if text.endswith("U") else 0
        return Number(int(digits, 16), "u", bits, True)
    if "." in text or text.endswith("F"):
        return Number(float(text.rstrip("F")), "f", 32 if text.endswith("F") else 0)
    bits = 64 if text.endswith("LL") else 32 if text.endswith("U") else 0
    return Number(int(text.rstrip("UL")), "u" if "U" in text else "i", bits)


@functools.cache
def read(text: str) -> tuple[Any, ...]:
    """The statements of a pseudo-code text. Raises Unreadable."""
    return _Reader(text).block("")
