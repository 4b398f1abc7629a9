"""Polynomials: what sums, products and exact quotients of sizes are.

In and out: a dict from monomials to factors, ints or Fractions of which none is 0. A monomial is the sorted
tuple of its atoms, one for each power; () is 1. The invariant: equal polynomials are equal dicts.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

Monomial: TypeAlias = tuple[Any, ...]
Form: TypeAlias = dict[Monomial, Any]

_STEPS = 8


def added(one: Form, other: Form, sign: int = 1) -> Form:
    """one + sign * other."""
    made = dict(one)
    for m, c in other.items():
        if total := made.get(m, 0) + sign * c:
            made[m] = total
        else:
            made.pop(m, None)
    return made


def shifted(form: Form, by: Any) -> Form:
    """form + a number."""
    made = dict(form)
    if total := made.pop((), 0) + by:
        made[()] = total
    return made


def times(one: Form, other: Form) -> Form:
    made: Form = {}
    for a, x in one.items():
        for b, y in other.items():
            m = tuple(sorted(a + b)) if a and b else a or b
            made[m] = made.get(m, 0) + x * y
    return {m: c for m, c in made.items() if c}


def floored(over: Form, by: int) -> tuple[Form, Form, int]:
    """(whole, rest, by), for whole factors and a number above 0: over // by is whole + rest // by, in lowest
    terms; without a rest it is `whole`."""
    whole = {m: n for m, c in over.items() if (n := c // by)}
    rest = {m: n for m, c in over.items() if (n := c % by)}
    shared = math.gcd(by, *(int(c) for m, c in rest.items() if m))
    return whole, {m: n for m, c in rest.items() if (n := c // shared)}, by // shared


def ratio(a: Any, b: Any) -> Any:
    """a / b, an int where it is whole."""
    whole, rest = divmod(a, b)
    if not rest:
        return whole
    from fractions import Fraction

    return Fraction(a, b)


def divided(over: Form, under: Form) -> Form | None:
    """The polynomial that `under` times is `over`, None where none is found. `under` is not 0."""
    lead, factor = max(under.items(), key=_order)
    found: Form = {}
    for _ in range(_STEPS):
        if not over:
            return found
        part = next((
            {left: ratio(c, factor)} for m, c in sorted(over.items(), key=_order, reverse=True)
            if (left := _without(m, lead)) is not None), None)
        if part is None:
            return None
        found, over = added(found, part), added(over, times(part, under), -1)
    return None


def _order(term: tuple[Monomial, Any]) -> tuple[int, Monomial]:
    return len(term[0]), term[0]


def _without(m: Monomial, lead: Monomial) -> Monomial | None:
    """The monomial that `lead` times is `m`."""
    left = list(m)
    for atom in lead:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)
