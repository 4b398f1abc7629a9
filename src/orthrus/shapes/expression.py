"""Arithmetic on dimensions whose size is not known: polynomials over names, floor, Min and Max.

In: numbers, names and other expressions. Out: a number where no name is left, else an expression in one
canonical form, so that equal dimensions are equal objects with equal texts (`batch*seq`,
`floor((h + 1)/2)`); `parsing` reads such a text back and `put` computes it. Names stand for whole
numbers. The invariant: an operation is exact, or it answers with a call (floor, Min, Max) that is; on
numbers alone it is theirs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..records import dataclass
from .polynomial import Form, Monomial, added, divided, floored, ratio, times

if TYPE_CHECKING:
    from fractions import Fraction

INFINITY = math.inf
_TERMS = 48
_POWERS = 32
_FACTOR = 1 << 64
"""What an expression has at most: terms, names in one of them, and the size of a factor."""


class TooLarge(ValueError):
    """An expression grew beyond what anybody could read."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name. `low`: the least it may stand for."""

    name: str
    low: float = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.name

    def __lt__(self, other: Atom) -> bool:
        return str(self) < str(other)


@dataclass(frozen=True, slots=True)
class Call:
    """`floor` of a quotient (numerator, denominator), or `Min` or `Max` of two and more arguments."""

    name: str
    args: tuple[Dim, ...]

    def __str__(self) -> str:
        if self.name != "floor":
            return f"{self.name}({', '.join(map(str, self.args))})"
        over, under = self.args
        return f"floor({_factor(over)}/{_factor(under, tight=True)})"

    __lt__ = Symbol.__lt__


Atom: TypeAlias = "Symbol | Call"
Dim: TypeAlias = "Expr | int | Fraction"
"""A number is an int where it is whole; one that is no number is an Expr."""


class Expr:
    """A polynomial with names. Raises TooLarge where an operation gives one that is beyond what dimensions of
    tensors can be."""

    __slots__ = ("terms", "_hash", "_text")

    def __init__(self, terms: Form) -> None:
        if len(terms) > _TERMS:
            raise TooLarge(f"an expression of {len(terms)} terms")
        for names, factor in terms.items():
            if len(names) > _POWERS or not -_FACTOR < factor.numerator < _FACTOR > factor.denominator:
                raise TooLarge("a term of too many names, or with too large a factor")
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))
        self._text = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Any:
        return _made(added(self.terms, _terms(other)))

    def __sub__(self, other: Dim) -> Any:
        return _made(added(self.terms, _terms(other), -1))

    def __rsub__(self, other: Dim) -> Any:
        return _made(added(_terms(other), self.terms, -1))

    def __neg__(self) -> Any:
        return 0 - self

    def __mul__(self, other: Dim) -> Any:
        return _made(times(self.terms, _terms(other)))

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __str__(self) -> str:
        if not self._text:
            parts = sorted(self.terms.items(), key=lambda t: (-len(t[0]), t[1] < 0, _monomial(t[0])))
            text = "".join(_term(m, c) for m, c in parts)
            self._text = text[3:] if text.startswith(" + ") else f"-{text[3:]}"
        return self._text

    @property
    def symbol(self) -> Symbol | None:
        """The name this is and nothing else."""
        atom = _sole(self)
        return atom if isinstance(atom, Symbol) else None

    @property
    def plain(self) -> bool:
        """Whether it is a polynomial over names, without calls."""
        return all(isinstance(atom, Symbol) for m in self.terms for atom in m)


def number(value: Any) -> int | Fraction:
    """What any number is exactly."""
    if type(value) is int:
        return value
    from fractions import Fraction

    made = Fraction(value)
    return int(made) if made.denominator == 1 else made


def fractional(value: Any) -> bool:
    """Whether it is a Fraction; their module is imported where one is made."""
    return type(value).__module__ == "fractions"


@functools.lru_cache(1 << 12)
def named(name: str, low: float = 0) -> Expr:
    """A name as an expression; what it stands for is `low` at least."""
    return Expr({(Symbol(name, low),): 1})


def whole(value: Dim) -> bool:
    """Whether it is a whole number whatever the names stand for."""
    if isinstance(value, Expr):
        return all(c.denominator == 1 for c in value.terms.values())
    return not fractional(value) or value.denominator == 1


def symbols(value: Dim) -> set[Symbol]:
    """The names in it."""
    found: set[Symbol] = set()
    for atom in itertools.chain(*_terms(value)):
        found.update([atom] if isinstance(atom, Symbol) else itertools.chain(*map(symbols, atom.args)))
    return found


def bounds(value: Dim) -> tuple[float, float]:
    """The least and the greatest it can be, as far as follows from the names' bounds term by term."""
    if not isinstance(value, Expr):
        return float(value), float(value)
    low = high = 0.0
    for m, c in value.terms.items():
        a, b = 1.0, 1.0
        for atom in m:
            x, y = _bounds(atom)
            if x < 0:
                a, b = -INFINITY, INFINITY
                break
            a, b = a * x, _product(b, y)
        low += _product(float(c), a if c > 0 else b)
        high += _product(float(c), b if c > 0 else a)
    return low, high


def put(value: Dim, names: Mapping[str, Any]) -> Any:
    """With expressions or numbers in the place of names."""
    return sum(math.prod([c, *(_replaced(atom, names) for atom in m)]) for m, c in _terms(value).items())


def natural(value: Any) -> bool:
    """Whether it is 0 or more whatever the names stand for, as far as can be told."""
    return bool((bounds(value)[0] if isinstance(value, Expr) else value) >= 0)


def floor_div(over: Any, under: Any) -> Any:
    """The largest whole number of at most over / under, for whole dimensions. Raises ZeroDivisionError."""
    if not isinstance(over, Expr) and not isinstance(under, Expr):
        return over // under
    if (exact := quotient(over, under)) is not None:
        return exact
    if isinstance(under, Expr) or not whole(over):
        return _call("floor", (over, under))
    if under < 0:
        return floor_div(-over, -under)
    inside, left, under = floored(over.terms, under)
    rest = _made(left)
    for m, c in left.items():
        if c == 1 and (nested := _floor_of(m)) is not None and isinstance(d := nested.args[1], int):
            beside = rest - Expr({m: c})
            return _made(inside) + floor_div(nested.args[0] + beside * d, d * under)
    return _made(inside) + (_call("floor", (rest, under)) if left else 0)


def ceil_div(over: Any, under: int) -> Any:
    """The smallest whole number of at least over / under."""
    return floor_div(over + (under - 1), under)


def floor(value: Any) -> Any:
    """The largest whole number of at most `value`."""
    under = _denominator(value)
    return floor_div(value * under, under)


def ceiling(value: Any) -> Any:
    """The smallest whole number of at least `value`."""
    under = _denominator(value)
    return ceil_div(value * under, under)


def quotient(over: Any, under: Any) -> Any:
    """over / under where that is a polynomial with whole coefficients, else None. Raises
    ZeroDivisionError."""
    if isinstance(under, Expr):
        found = divided(_terms(over), under.terms)
    elif under == 0:
        raise ZeroDivisionError("division of a dimension by zero")
    else:
        found = {m: ratio(c, under) for m, c in _terms(over).items()}
    exact = None if found is None else _made(found)
    return exact if exact is not None and (whole(exact) or not whole(over)) else None


def at_most(a: Any, b: Any) -> bool:
    """Whether a <= b whatever the names stand for, as far as can be told."""
    low_end, high_end = _sole(a), _sole(b)
    if isinstance(low_end, Call) and low_end.name == "Min" and any(at_most(x, b) for x in low_end.args):
        return True
    if isinstance(high_end, Call) and high_end.name == "Max" and any(at_most(a, x) for x in high_end.args):
        return True
    gap = b - a
    if not isinstance(gap, Expr):
        return bool(gap >= 0)
    least_gap = -1 if whole(gap) else 0
    for _ in range(4):
        low = bounds(gap)[0]
        if low >= 0 or low > least_gap:
            return True
        looser = _relaxed(gap)
        if looser == gap:
            return False
        gap = looser
    return False


def _relaxed(value: Dim) -> Any:
    """Something not larger, without floor at its top where the divisor is a number: (p - q + 1)/q <=
    floor(p/q) <= p/q for whole p."""
    out: Any = 0
    for m, c in _terms(value).items():
        over, under = call.args if (call := _floor_of(m)) is not None else (0, 0)
        if not isinstance(under, int) or under < 1 or not whole(over):
            out = out + _made({m: c})
        else:
            out = out + (over - (under - 1 if c > 0 else 0)) * ratio(c, under)
    return out


def least(*values: Any) -> Any:
    """The smallest of `values`."""
    if not any(isinstance(v, Expr) for v in values):
        return min(values)
    return _extreme("Min", values, at_most)


def greatest(*values: Any) -> Any:
    """The largest of `values`."""
    if not any(isinstance(v, Expr) for v in values):
        return max(values)
    return _extreme("Max", values, lambda a, b: at_most(b, a))


def _made(terms: Form) -> Any:
    """The number or the expression that a polynomial is."""
    if not terms:
        return 0
    constant = terms.get(()) if len(terms) == 1 else None
    return Expr(terms) if constant is None else number(constant)


def _terms(value: Dim) -> Form:
    if isinstance(value, Expr):
        return value.terms
    if not isinstance(value, int) and not fractional(value):
        raise TypeError(f"{value!r} is no dimension")
    return {(): value} if value else {}


def _denominator(value: Dim) -> int:
    return math.lcm(*(c.denominator for c in _terms(value).values()))


def _call(name: str, args: tuple[Any, ...]) -> Expr:
    return Expr({(Call(name, args),): 1})


def _extreme(name: str, values: Iterable[Any], beats: Callable[[Any, Any], bool]) -> Any:
    pool: list[Any] = []
    for value in values:
        atom = _sole(value)
        pool += atom.args if isinstance(atom, Call) and atom.name == name else (value,)
    kept: list[Any] = []
    for value in dict.fromkeys(pool):
        if not any(beats(k, value) for k in kept):
            kept = [k for k in kept if not beats(value, k)] + [value]
    return kept[0] if len(kept) == 1 else _call(name, tuple(sorted(kept, key=str)))


def _sole(value: Any) -> Atom | None:
    if not isinstance(value, Expr) or len(value.terms) != 1:
        return None
    (m, c), = value.terms.items()
    return m[0] if c == 1 and len(m) == 1 else None


def _floor_of(m: Monomial) -> Call | None:
    atom = m[0] if len(m) == 1 else None
    return atom if isinstance(atom, Call) and atom.name == "floor" else None


def _product(a: float, b: float) -> float:
    return 0.0 if not a or not b else a * b


def _bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        return atom.low, INFINITY
    if atom.name == "floor":
        (low, high), (least_under, most_under) = map(bounds, atom.args)
        if least_under <= 0:
            return -INFINITY, INFINITY
        down = low / (most_under if low >= 0 else least_under) if abs(low) != INFINITY else low
        return (math.floor(down) if abs(down) != INFINITY else down), high / least_under
    lows, highs = zip(*map(bounds, atom.args), strict=True)
    return (min(lows), min(highs)) if atom.name == "Min" else (max(lows), max(highs))


def _replaced(atom: Atom, names: Mapping[str, Any]) -> Any:
    if isinstance(atom, Symbol):
        return names[atom.name] if atom.name in names else Expr({(atom,): 1})
    args = [put(a, names) for a in atom.args]
    if atom.name == "floor":
        return floor_div(*args)
    return least(*args) if atom.name == "Min" else greatest(*args)


def _factor(value: Dim, tight: bool = False) -> str:
    """Text that may stand before or after a `/`."""
    terms = _terms(value)
    if len(terms) > 1:
        return f"({value})"
    return f"({value})" if tight and any(m and (len(set(m)) > 1 or c != 1) for m, c in terms.items()) \
        else str(value)


def _monomial(m: Monomial) -> str:
    powers = [(atom, len(list(same))) for atom, same in itertools.groupby(m)]
    return "*".join(str(a) if p == 1 else f"{a}**{p}" for a, p in powers)


def _term(m: Monomial, c: Any) -> str:
    sign, size = (" - ", -c) if c < 0 else (" + ", c)
    over, under = size.numerator, size.denominator
    text = _monomial(m) if m and over == 1 else f"{over}*{_monomial(m)}" if m else str(over)
    return sign + (text if under == 1 else f"{text}/{under}")
