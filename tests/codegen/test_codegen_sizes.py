"""Integers that follow from dimensions: what a trace says of others is what planning for them gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from orthrus.shapes.symbolic import Polynomials, Sizes, SymInt, choice, formed, has_size, memo, pinned


@dataclass(frozen=True)
class Halves:
    """What a planner answers with: numbers, and what no polynomial says."""

    parts: tuple[int, int]
    even: bool


@choice()
def halved(n: int, *, most: int = 100) -> Halves:
    small = min(n, most)
    return Halves((small // 2, small - small // 2), n % 2 == 0)


@memo()
def total(shape: tuple[int, ...]) -> int:
    return math.prod(shape) + len(shape)


def drawn(draw: Callable[[Any], Any], sizes: Sequence[Any]) -> list[Any]:
    """Numbers made of `sizes` by the steps that hypothesis chooses; the same steps for the same draws."""
    made: list[Any] = [*sizes, 1, 7]
    for kind, i, j, k in draw:
        a, b = made[i % len(made)], made[j % len(made)]
        if kind == "add":
            made.append(a + b)
        elif kind == "sub":
            made.append(a - k * b)
        elif kind == "mul":
            made.append(a * k if abs(a) > 1000 or abs(b) > 1000 else a * b)
        elif kind == "div":
            made.append(a // k)
            made.append((a * b) // b if b != 0 and abs(int_of(a)) < 1000 else a)
        elif kind == "by":
            made.append(a // b if b > 0 else a)
        elif kind == "mod":
            made.append(a % k)
        elif kind == "least":
            made.append(min(a, b, 5 * k))
        elif kind == "most":
            made.append(max(a, k))
        elif kind == "equal":
            made.append(a if a == b else b)
        elif kind == "choice":
            found = halved(a, most=k)
            made.extend(found.parts if found.even else (a,))
        else:
            made.append(total((a, k)))
    return made


def int_of(x: Any) -> int:
    """The value, without relying on it."""
    return x.value if isinstance(x, SymInt) else x


KINDS = ["add", "sub", "mul", "div", "by", "mod", "least", "most", "equal", "choice", "memo"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 50), st.integers(0, 50),
                           st.integers(1, 9)), max_size=12)
DIMENSIONS = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(STEPS, DIMENSIONS, st.lists(DIMENSIONS, min_size=8, max_size=8))
@draws(400)
def test_what_is_traced_holds_for_other_dimensions(steps: Any, now: Any, others: Any) -> None:
    with Sizes() as sizes:
        made = drawn(steps, [sizes.dimension(d) for d in now])
    assert [int_of(x) for x in made] == drawn(steps, now)
    numbers = Polynomials([x.key for x in made if isinstance(x, SymInt)])
    for dimensions in (now, *others):
        atoms = sizes.at(dimensions)
        if atoms is None:
            assert dimensions != now
            continue
        values = numbers.at(atoms)
        if values is None:
            assert dimensions != now
            continue
        found = iter(values.tolist())
        assert [next(found) if isinstance(x, SymInt) else x for x in made] == drawn(steps, dimensions)


def test_facts_say_where_it_holds() -> None:
    with Sizes() as sizes:
        n = sizes.dimension(20)
        rows = -(-n // 8)
        assert rows > 2 and n != 7 and min(n, 30) is n
    assert [d for d in range(1, 40) if sizes.at([d]) is not None] == list(range(17, 31))


def test_equal_polynomials_need_no_fact() -> None:
    with Sizes() as sizes:
        n, m = sizes.dimension(3), sizes.dimension(5)
        assert (n + 2) * m == m * n + 2 * m and n * m // m == n and (6 * n + 4) // 2 == 3 * n + 2
        assert (n * m + 2 * m) // (n + 2) == m and n - n == 0 and n * 0 == 0
        assert type(n - n) is int
    assert all(sizes.at([a, b]) is not None for a in range(1, 9) for b in range(1, 9))
    assert sizes.at([3, 0]) is None, "something is divided by it"


@pytest.mark.parametrize("use", [int, hash, range, lambda n: [0] * n, lambda n: n / 2, float,
                                 lambda n: {n: 1}, lambda n: n < 20.5])
def test_a_plain_integer_is_relied_on(use: Callable[[Any], Any]) -> None:
    with Sizes() as sizes:
        use(sizes.dimension(20))
    assert sizes.at([20]) is not None and sizes.at([21]) is None
    ((value, where),) = sizes.pins
    assert value == 20 and where.startswith(__file__)


def test_choices_are_asked_again() -> None:
    with Sizes() as sizes:
        n = sizes.dimension(20)
        found = halved(n + 1, most=15)
        assert [int_of(p) for p in found.parts] == [7, 8] and not found.even
        numbers = Polynomials([p.key for p in found.parts])  # type: ignore[attr-defined]
        assert halved(n + 1, most=15).parts[0] is not None and len(sizes.calls) == 1
    atoms = sizes.at([6])
    assert atoms is not None
    values = numbers.at(atoms)
    assert values is not None and values.tolist() == [3, 4]
    assert sizes.at([7]) is None, "eight is even"


def test_a_choice_is_not_asked_where_a_fact_before_it_is_not_so() -> None:
    asked: list[int] = []

    @choice()
    def strict(n: int) -> int:
        asked.append(n)
        return 100 // n
    with Sizes() as sizes:
        n = sizes.dimension(5)
        assert n > 3 and strict(n - 3) == 50
    asked.clear()
    assert sizes.at([3]) is None and not asked


def test_numbers_that_pass_64_bits_are_refused() -> None:
    with Sizes() as sizes:
        n = sizes.dimension(5)
        assert n * n * n > 0
    assert sizes.at([1 << 20]) is None and sizes.at([1 << 10]) is not None


def test_structures() -> None:
    with Sizes() as sizes:
        n = sizes.dimension(4)
        inside = (1, [n], Halves((n, 2), True))
        assert has_size(inside) and not has_size(pinned(inside))
        assert pinned(inside) == (1, [4], Halves((4, 2), True))
        assert formed((1, "a")) == (1, "a")
