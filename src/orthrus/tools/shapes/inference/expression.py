"""Arithmetic on dimensions whose size is not known: polynomials over names, floor, Min and Max.

In: names, numbers and other expressions. Out: expressions in one canonical form, so that equal dimensions are
equal objects with equal texts (`batch*seq`, `floor((h + 1)/2)`); `parsing` reads such a text back and
`Expr.value` computes it. Names stand for whole numbers. The invariant: an operation is exact, or it answers
with a call (floor, Min, Max) that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

INFINITY = math.inf
_TERMS = 48


class TooLarge(ValueError):
    """An expression grew beyond what anybody could read."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name. `low`: the least it may stand for."""

    name: str
    low: float = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Call:
    """`floor` of a quotient (numerator, denominator), or `Min` or `Max` of two and more arguments."""

    name: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        if self.name != "floor":
            return f"{self.name}({', '.join(map(str, self.args))})"
        over, under = self.args
        return f"floor({_factor(over)}/{_factor(under, tight=True)})"


Atom: TypeAlias = "Symbol | Call"
Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"


class Expr:
    """A polynomial with rational coefficients. Raises TooLarge where an operation gives too many terms."""

    __slots__ = ("terms", "_hash", "_text")

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        if len(self.terms) > _TERMS:
            raise TooLarge(f"an expression of {len(self.terms)} terms")
        self._hash = hash(frozenset(self.terms.items()))
        self._text = ""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | Fraction):
            return self.number == other
        return isinstance(other, Expr) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Any) -> Expr:
        terms = dict(self.terms)
        for m, c in expr(other).terms.items():
            terms[m] = terms.get(m, Fraction(0)) + c
        return Expr(terms)

    def __neg__(self) -> Expr:
        return Expr({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Any) -> Expr:
        return self + -expr(other)

    def __mul__(self, other: Any) -> Expr:
        terms: dict[Monomial, Fraction] = {}
        for a, x in self.terms.items():
            for b, y in expr(other).terms.items():
                m = _times(a, b)
                terms[m] = terms.get(m, Fraction(0)) + x * y
        return Expr(terms)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Expr:
        return expr(other) - self

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __str__(self) -> str:
        if not self._text:
            parts = sorted(((m, c) for m, c in self.terms.items()),
                           key=lambda t: (-sum(p for _, p in t[0]), t[1] < 0, _monomial(t[0])))
            text = "".join(_term(m, c) for m, c in parts) or " + 0"
            self._text = text[3:] if text.startswith(" + ") else f"-{text[3:]}"
        return self._text

    @property
    def number(self) -> Fraction | None:
        """The number this is, None where a name is left."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def integer(self) -> int | None:
        """The whole number this is, else None."""
        n = self.number
        return int(n) if n is not None and n.denominator == 1 else None

    @property
    def symbol(self) -> Symbol | None:
        """The name this is and nothing else."""
        atom = _sole(self)
        return atom if isinstance(atom, Symbol) else None

    @property
    def whole(self) -> bool:
        """Whether it is a whole number whatever the names stand for."""
        return all(c.denominator == 1 for c in self.terms.values())

    def symbols(self) -> set[Symbol]:
        found: set[Symbol] = set()
        for m in self.terms:
            for atom, _ in m:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    found.update(s for a in atom.args for s in a.symbols())
        return found

    def bounds(self) -> tuple[float, float]:
        """The least and the greatest it can be, as far as follows from the names' bounds term by term."""
        low = high = 0.0
        for m, c in self.terms.items():
            a, b = 1.0, 1.0
            for atom, power in m:
                x, y = _bounds(atom)
                if x < 0:
                    a, b = -INFINITY, INFINITY
                    break
                a, b = a * x ** power, _product(b, y ** power)
            low += _product(float(c), a if c > 0 else b)
            high += _product(float(c), b if c > 0 else a)
        return low, high

    def put(self, names: Mapping[str, Expr]) -> Expr:
        """With expressions in the place of names."""
        out = expr(0)
        for m, c in self.terms.items():
            part = Expr({(): c})
            for atom, power in m:
                value = _replaced(atom, names)
                for _ in range(power):
                    part = part * value
            out = out + part
        return out

    def value(self, names: Mapping[str, int]) -> Fraction:
        """The number it is with numbers for names. Raises KeyError for a name that has none."""
        total = Fraction(0)
        for m, c in self.terms.items():
            for atom, power in m:
                c *= _atom_value(atom, names) ** power
            total += c
        return total


def expr(value: Any) -> Expr:
    """A number or an expression as an expression."""
    return value if isinstance(value, Expr) else Expr({(): Fraction(value)})


def named(name: str, low: float = 0) -> Expr:
    """A name as an expression; what it stands for is `low` at least."""
    return Expr({((Symbol(name, low), 1),): Fraction(1)})


def product(factors: Iterable[Expr]) -> Expr:
    return math.prod(factors, start=expr(1))


def floor_div(over: Expr, under: Expr) -> Expr:
    """The largest whole number of at most over / under, for whole expressions. Raises ZeroDivisionError."""
    if (exact := quotient(over, under)) is not None:
        return exact
    divisor = under.integer
    if divisor is not None and divisor < 0:
        return floor_div(-over, -under)
    if divisor is None or not over.whole:
        return _call("floor", (over, under))
    inside = {m: c // divisor for m, c in over.terms.items()}
    rest = Expr({m: c - divisor * inside[m] for m, c in over.terms.items()})
    whole = Expr({m: Fraction(c) for m, c in inside.items()})
    for m, c in rest.terms.items():
        if c == 1 and (nested := _floor_of(m)) is not None and (d := nested.args[1].integer) is not None:
            beside = rest - Expr({m: c})
            return whole + floor_div(nested.args[0] + beside * d, expr(d * divisor))
    shared = math.gcd(divisor, *(int(c) for m, c in rest.terms.items() if m))
    rest = Expr({m: Fraction(c // shared) if not m else c / shared for m, c in rest.terms.items()})
    number = rest.integer
    if number is not None:
        return whole + number // (divisor // shared)
    return whole + _call("floor", (rest, expr(divisor // shared)))


def ceil_div(over: Expr, under: int) -> Expr:
    """The smallest whole number of at least over / under."""
    return floor_div(over + (under - 1), expr(under))


def floor(value: Expr) -> Expr:
    """The largest whole number of at most `value`."""
    under = math.lcm(*(c.denominator for c in value.terms.values())) if value.terms else 1
    return floor_div(value * under, expr(under))


def ceiling(value: Expr) -> Expr:
    """The smallest whole number of at least `value`."""
    under = math.lcm(*(c.denominator for c in value.terms.values())) if value.terms else 1
    return ceil_div(value * under, under)


def quotient(over: Expr, under: Expr) -> Expr | None:
    """over / under where that is a polynomial with whole coefficients, else None. Raises
    ZeroDivisionError."""
    if not under.terms:
        raise ZeroDivisionError("division of a dimension by zero")
    lead, factor = max(under.terms.items(), key=lambda t: (sum(p for _, p in t[0]), _monomial(t[0])))
    found, rest = expr(0), over
    for _ in range(8):
        if not rest.terms:
            return found if found.whole or not over.whole else None
        best = None
        for m, c in rest.terms.items():
            left = _over(m, lead)
            if left is not None and (best is None or len(m) > len(best[0])):
                best = left, c / factor
        if best is None:
            return None
        part = Expr({best[0]: best[1]})
        found, rest = found + part, rest - part * under
    return None


def at_most(a: Expr, b: Expr) -> bool:
    """Whether a <= b whatever the names stand for, as far as can be told."""
    low_end, high_end = _sole(a), _sole(b)
    if isinstance(low_end, Call) and low_end.name == "Min" and any(at_most(x, b) for x in low_end.args):
        return True
    if isinstance(high_end, Call) and high_end.name == "Max" and any(at_most(a, x) for x in high_end.args):
        return True
    gap = b - a
    whole = gap.whole
    for _ in range(4):
        low = gap.bounds()[0]
        if low >= 0 or (whole and low > -1):
            return True
        looser = _relaxed(gap)
        if looser == gap:
            return False
        gap = looser
    return False


def _relaxed(value: Expr) -> Expr:
    """Something not larger, without floor at its top where the divisor is a number: (p - q + 1)/q <=
    floor(p/q) <= p/q for whole p."""
    out = expr(0)
    for m, c in value.terms.items():
        call = _floor_of(m)
        under = None if call is None else call.args[1].integer
        if call is None or under is None or under < 1 or not call.args[0].whole:
            out = out + Expr({m: c})
        else:
            out = out + (call.args[0] - (under - 1 if c > 0 else 0)) * (c / under)
    return out


def least(*values: Expr) -> Expr:
    """The smallest of `values`."""
    return _extreme("Min", values, lambda a, b: at_most(a, b))


def greatest(*values: Expr) -> Expr:
    """The largest of `values`."""
    return _extreme("Max", values, lambda a, b: at_most(b, a))


def _call(name: str, args: tuple[Expr, ...]) -> Expr:
    return Expr({((Call(name, args), 1),): Fraction(1)})


def _extreme(name: str, values: Iterable[Expr], beats: Callable[[Expr, Expr], bool]) -> Expr:
    pool: list[Expr] = []
    for value in values:
        atom = _sole(value)
        pool += atom.args if isinstance(atom, Call) and atom.name == name else (value,)
    kept: list[Expr] = []
    for value in dict.fromkeys(pool):
        if not any(beats(k, value) for k in kept):
            kept = [k for k in kept if not beats(value, k)] + [value]
    return kept[0] if len(kept) == 1 else _call(name, tuple(sorted(kept, key=str)))


def _sole(value: Expr) -> Atom | None:
    if len(value.terms) != 1:
        return None
    (m, c), = value.terms.items()
    return m[0][0] if c == 1 and len(m) == 1 and m[0][1] == 1 else None


def _floor_of(m: Monomial) -> Call | None:
    atom = m[0][0] if len(m) == 1 and m[0][1] == 1 else None
    return atom if isinstance(atom, Call) and atom.name == "floor" else None


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda p: str(p[0])))


def _over(a: Monomial, b: Monomial) -> Monomial | None:
    powers = dict(a)
    for atom, power in b:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        powers[atom] = left
    return tuple((k, p) for k, p in powers.items() if p)


def _product(a: float, b: float) -> float:
    return 0.0 if not a or not b else a * b


def _bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        return atom.low, INFINITY
    if atom.name == "floor":
        (low, high), (least_under, most_under) = (a.bounds() for a in atom.args)
        if least_under <= 0:
            return -INFINITY, INFINITY
        down = low / (most_under if low >= 0 else least_under) if abs(low) != INFINITY else low
        return (math.floor(down) if abs(down) != INFINITY else down), high / least_under
    lows, highs = zip(*(a.bounds() for a in atom.args), strict=True)
    return (min(lows), min(highs)) if atom.name == "Min" else (max(lows), max(highs))


def _replaced(atom: Atom, names: Mapping[str, Expr]) -> Expr:
    if isinstance(atom, Symbol):
        return names.get(atom.name) or Expr({((atom, 1),): Fraction(1)})
    args = [a.put(names) for a in atom.args]
    if atom.name == "floor":
        return floor_div(*args)
    return least(*args) if atom.name == "Min" else greatest(*args)


def _atom_value(atom: Atom, names: Mapping[str, int]) -> Fraction:
    if isinstance(atom, Symbol):
        return Fraction(names[atom.name])
    args = [a.value(names) for a in atom.args]
    if atom.name == "floor":
        return Fraction(args[0] // args[1])
    return min(args) if atom.name == "Min" else max(args)


def _factor(value: Expr, tight: bool = False) -> str:
    """Text that may stand before or after a `/`."""
    if len(value.terms) > 1:
        return f"({value})"
    (m, c), = value.terms.items()
    return f"({value})" if tight and m and (len(m) > 1 or c != 1) else str(value)


def _monomial(m: Monomial) -> str:
    return "*".join(str(a) if p == 1 else f"{a}**{p}" for a, p in m)


def _term(m: Monomial, c: Fraction) -> str:
    sign, size = (" - ", -c) if c < 0 else (" + ", c)
    over, under = size.numerator, size.denominator
    text = _monomial(m) if m and over == 1 else f"{over}*{_monomial(m)}" if m else str(over)
    return sign + (text if under == 1 else f"{text}/{under}")
