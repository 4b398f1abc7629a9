"""Sizes that follow from the dimensions of a part's inputs, for code that plans with integers.

What plans a kernel for concrete sizes can be given `SymInt`s in their place. It then does what it does for
the values they have now, and their `Sizes` hold what is needed to do the same for others without it: how each
number follows from the dimensions, as a polynomial over atoms, and every fact about them that a branch relied
on. `at(dimensions)` gives the atoms for other dimensions, or None where one of those facts is not so there.

Whatever needs a plain integer of a `SymInt` (an index, a hash, a parameter of a kernel) relies on its value.
`memo` and `choice` are caches for functions of sizes: the first lets `SymInt`s through to the function, the
second calls it with their values, then as later, and makes `SymInt`s of the integers in its result.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..records import cached_property
from .polynomial import Form, Monomial, added, divided, floored, shifted, times

P = ParamSpec("P")
R = TypeVar("R")

Key = frozenset[tuple[Monomial, int]]
"""A polynomial over atoms, which are numbered; atom 0 is 1."""

_LARGEST = 1 << 40
"""Of an atom or a product of some: what polynomials make of it has to fit into 64 bits."""

_WIDEST = 1 << 62
"""What a polynomial's value, its terms taken without signs, has to stay below."""

_ZERO, _OTHER, _POSITIVE = 0, 1, 2


class _Thread(threading.local):
    tracing = 0


_thread = _Thread()


def _key(form: Form) -> Key:
    return frozenset(form.items())


class Sizes:
    """The atoms of one trace, and its facts. A `with` block lets `memo` and `choice` expect its sizes."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = [("one",)]
        self.values: list[int] = [1]
        self.dimensions = 0
        self.facts: dict[tuple[Key, int], None] = {}
        self.pins: list[tuple[int, str]] = []
        self.calls: list[tuple[Callable[..., Any], Any, Any, int]] = []
        self._known: dict[Any, int] = {}

    def __enter__(self) -> Sizes:
        _thread.tracing += 1
        return self

    def __exit__(self, *given: object) -> None:
        _thread.tracing -= 1

    def dimension(self, value: int) -> SymInt:
        """The next dimension, which is `value` now."""
        self.dimensions += 1
        return SymInt(self, value, {(self._atom(("dimension", self.dimensions - 1), value),): 1})

    def at(self, dimensions: Sequence[int]) -> np.ndarray | None:
        """The atoms for these dimensions, int64; None where a fact is not so."""
        values: list[int] = []
        answers: list[Any] = []
        for how, *rest in self.made:
            if how == "one":
                values.append(1)
            elif how == "dimension":
                values.append(dimensions[rest[0]])
            elif how == "quotient":
                above, below = (_summed(key, values) for key in rest)
                if below == 0:
                    return None
                values.append(above // below)
            else:
                number, place = rest
                if not self._answered(answers, number + 1, values):
                    return None
                values.append(answers[number][place])
        if not self._answered(answers, len(self.calls), values):
            return None
        if max(values) > _LARGEST or min(values) < -_LARGEST:
            return None
        atoms = np.array(values, np.int64)
        facts, kinds = self._checks
        atoms = np.array(values, np.int64)
        found = facts.at(atoms)
        if found is None:
            return None
        good = np.where(kinds == _ZERO, found == 0, np.where(kinds == _OTHER, found != 0, found > 0))
        return atoms if bool(good.all()) else None

    @cached_property
    def _listed(self) -> list[tuple[Key, int]]:
        return list(self.facts)

    @cached_property
    def _checks(self) -> tuple[Polynomials, np.ndarray]:
        return Polynomials([key for key, _ in self.facts]), np.array([kind for _, kind in self.facts], int)

    def _answered(self, answers: list[list[int]], count: int, values: Sequence[int]) -> bool:
        """Make the first `count` calls, each where the facts before it are so; whether their results have the
        shapes they had."""
        for function, given, shape, relied in self.calls[len(answers):count]:
            first = self.calls[len(answers) - 1][3] if answers else 0
            if not all(_is(_summed(key, values), kind) for key, kind in self._listed[first:relied]):
                return False
            numbers: list[int] = []
            if _taken(function(*filled(given, values)), numbers) != shape:
                return False
            answers.append(numbers)
        return True

    def _atom(self, how: tuple[Any, ...], value: int) -> int:
        found = self._known.get(how)
        if found is None:
            found = self._known[how] = len(self.made)
            self.made.append(how)
            self.values.append(value)
        return found

    def _size(self, form: Form, value: int) -> Any:
        """A number, `value` now: an integer where it follows from no dimension."""
        return value if not form or (len(form) == 1 and () in form) else SymInt(self, value, form)

    def _over(self, above: Form, below: Form, value: int) -> Any:
        """`above` // `below`, `value` now; a polynomial where one is a multiple of the other."""
        whole: Form = {}
        if len(below) == 1 and () in below:
            if (by := below[()]) < 0:
                above, by = added({}, above, -1), -by
            whole, above, by = floored(above, by)
            below = {(): by}
            if not above:
                return self._size(whole, value)
        elif (exact := divided(above, below)) is not None and all(type(x) is int for x in exact.values()):
            return self._size(exact, value)
        rest = self._atom(("quotient", _key(above), _key(below)), value - _summed(whole.items(), self.values))
        return self._size(added(whole, {(rest,): 1}), value)

    def fact(self, form: Form, kind: int) -> None:
        """Rely on a polynomial's being 0, not 0, or above 0."""
        self.facts[_key(form), kind] = None

    def asked(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """The result of `function` for the values of `args`, with `SymInt`s for its integers."""
        given = formed(args)
        key = "call", function, given
        if key not in self._known:
            numbers: list[int] = []
            result = function(*filled(given, self.values))
            shape = _taken(result, numbers)
            number = self._known[key] = len(self.calls)
            self.calls.append((function, given, shape, len(self.facts)))
            for place, value in enumerate(numbers):
                self._atom(("answer", number, place), value)
        number = self._known[key]
        at = iter(range(len(self.made)))
        shape = self.calls[number][2]

        def answer(_: _Number) -> SymInt:
            atom = self._known["answer", number, next(at)]
            return SymInt(self, self.values[atom], {(atom,): 1})
        return _put_back(shape, answer)


class SymInt:
    """An integer of a trace: `value` now, `form` in general."""

    __slots__ = ("form", "of", "value")

    def __init__(self, of: Sizes, value: int, form: Form) -> None:
        self.of, self.value, self.form = of, value, form

    @property
    def key(self) -> Key:
        return _key(self.form)

    def __add__(self, other: Any) -> Any:
        if type(other) is int:
            return SymInt(self.of, self.value + other, shifted(self.form, other)) if other else self
        if (form := _form(other)) is None:
            return NotImplemented
        return self.of._size(added(self.form, form), self.value + _value(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if type(other) is int:
            return self + -other
        if (form := _form(other)) is None:
            return NotImplemented
        return self.of._size(added(self.form, form, -1), self.value - _value(other))

    def __rsub__(self, other: Any) -> Any:
        if (form := _form(other)) is None:
            return NotImplemented
        return self.of._size(added(form, self.form, -1), _value(other) - self.value)

    def __mul__(self, other: Any) -> Any:
        if type(other) is int:
            made = {m: x * other for m, x in self.form.items()}
            return SymInt(self.of, self.value * other, made) if other else 0
        if (form := _form(other)) is None:
            return NotImplemented
        return self.of._size(times(self.form, form), self.value * _value(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if (form := _form(other)) is None:
            return NotImplemented
        if not other:
            raise ZeroDivisionError
        return self.of._over(self.form, form, self.value // _value(other))

    def __rfloordiv__(self, other: Any) -> Any:
        if (form := _form(other)) is None:
            return NotImplemented
        if not self:
            raise ZeroDivisionError
        return self.of._over(form, self.form, _value(other) // self.value)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return other - other // self * self

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __pow__(self, exponent: int) -> Any:
        return math.prod([self] * exponent)

    def bit_length(self) -> Any:
        """As of an integer."""
        return self.of.asked(int.bit_length, (self,))

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> SymInt:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def _compared(self, other: Any, sign: int, more: int) -> Any:
        """Whether sign * (self - other) + more > 0."""
        if isinstance(other, float):
            return sign * (self.pinned() - other) + more / 2 > 0
        found = self.__sub__(other)
        if not isinstance(found, SymInt):
            return found if found is NotImplemented else sign * found + more > 0
        holds = sign * found.value + more > 0
        if not holds:
            sign, more = -sign, 1 - more
        form = found.form if sign > 0 else {m: -x for m, x in found.form.items()}
        self.of.fact(shifted(form, more) if more else form, _POSITIVE)
        return holds

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, -1, 0)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, -1, 1)

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, 1, 0)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, 1, 1)

    def __eq__(self, other: object) -> Any:
        found = self.__sub__(other)
        if not isinstance(found, SymInt):
            return found if found is NotImplemented else found == 0
        self.of.fact(found.form, _ZERO if found.value == 0 else _OTHER)
        return bool(found.value == 0)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def pinned(self) -> int:
        """The value, which is relied on from now."""
        form = shifted(self.form, -self.value)
        if (_key(form), _ZERO) not in self.of.facts:
            self.of.fact(form, _ZERO)
            self.of.pins.append((self.value, _where()))
        return self.value

    def __hash__(self) -> int:
        return hash(self.pinned())

    def __index__(self) -> int:
        return self.pinned()

    def __float__(self) -> float:
        return float(self.pinned())

    def __truediv__(self, other: Any) -> float:
        return self.pinned() / float(other)

    def __rtruediv__(self, other: Any) -> float:
        return float(other) / self.pinned()

    def __and__(self, other: Any) -> Any:
        return self.of.asked(operator.and_, (self, other))

    __rand__ = __and__

    def __rshift__(self, other: Any) -> Any:
        return self.of.asked(operator.rshift, (self, other))

    def __rrshift__(self, other: Any) -> Any:
        return self.of.asked(operator.rshift, (other, self))

    def __lshift__(self, other: Any) -> Any:
        return self.of.asked(operator.lshift, (self, other))

    def __rlshift__(self, other: Any) -> Any:
        return self.of.asked(operator.lshift, (other, self))

    def __repr__(self) -> str:
        return str(self.value)


class Polynomials:
    """Polynomials over the atoms of one trace, to be computed together."""

    def __init__(self, forms: Sequence[Key]) -> None:
        columns: dict[Monomial, int] = {}
        for m, _ in itertools.chain(*forms):
            columns.setdefault(m, len(columns))
        self.matrix = np.zeros((len(forms), len(columns)), np.int64)
        self.weight = max((sum(abs(factor) for _, factor in form) for form in forms), default=0)
        for i, form in enumerate(forms):
            for m, factor in form:
                self.matrix[i, columns[m]] = factor if self.weight < _WIDEST else 0
        width = max(map(len, columns), default=0) or 1
        self.factors = [np.array([m[i] if i < len(m) else 0 for m in columns], np.intp) for i in range(width)]

    def at(self, atoms: np.ndarray) -> np.ndarray | None:
        """Their values, int64, for the values of the atoms; None where a product or a sum is too large."""
        given = atoms.astype(np.float64)
        found = functools.reduce(operator.mul, map(given.take, self.factors))
        most = found @ found
        if most > _LARGEST ** 2 or self.weight >= _WIDEST or self.weight ** 2 * most >= _WIDEST ** 2:
            return None
        return self.matrix @ found.astype(np.int64)


def tracing() -> bool:
    """Whether this thread plans with `SymInt`s."""
    return _thread.tracing > 0


def _where() -> str:
    """Who asked for a plain integer: the innermost frame of another file."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _form(number: Any) -> Form | None:
    if isinstance(number, SymInt):
        return number.form
    if isinstance(number, int | np.integer):
        return {(): int(number)} if number else {}
    return None


def _value(number: Any) -> int:
    return number.value if isinstance(number, SymInt) else int(number)


def _summed(form: Any, values: Sequence[int]) -> int:
    made = 0
    for m, x in form:
        for atom in m:
            x *= values[atom]
        made += x
    return made


def _is(number: int, kind: int) -> bool:
    return number == 0 if kind == _ZERO else number != 0 if kind == _OTHER else number > 0


def has_size(value: Any) -> bool:
    """Whether there is a `SymInt` in a structure of tuples, lists and dataclasses."""
    return next(_sizes(value), None) is not None


def pinned(value: Any) -> Any:
    """A structure with the values of its `SymInt`s, which are relied on."""
    if isinstance(value, SymInt):
        return value.pinned()
    if isinstance(value, dict):
        return {key: pinned(v) for key, v in value.items()}
    if not has_size(value):
        return value
    if isinstance(value, tuple | list):
        return type(value)(map(pinned, value))
    return replace(value, **{each.name: pinned(getattr(value, each.name)) for each in fields(value)})


class _Number:
    """Stands for an integer in the shape of a result, or for a polynomial in arguments."""

    __slots__ = ("key",)

    def __init__(self, key: Key | None = None) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


_NUMBER = _Number()


def _walked(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A structure with `leaf` of each leaf; a dataclass becomes its class and the tuple of its fields."""
    if isinstance(value, tuple | list):
        return type(value)([_walked(v, leaf) for v in value])
    if _opens(value):
        return _Object(type(value), tuple(_walked(getattr(value, each.name), leaf) for each in fields(value)))
    return leaf(value)


class _Object(tuple[Any, ...]):
    """A dataclass and its fields."""

    def __new__(cls, kind: type, parts: tuple[Any, ...]) -> _Object:
        return super().__new__(cls, (kind, parts))


def _taken(result: Any, numbers: list[int]) -> Any:
    """The shape of a result, its integers appended to `numbers`."""
    def leaf(value: Any) -> Any:
        if type(value) is not int:
            return value
        numbers.append(value)
        return _NUMBER
    return _walked(result, leaf)


def formed(args: Sequence[Any]) -> Any:
    """Arguments with polynomials in the place of `SymInt`s, for `filled`."""
    return tuple(_walked(a, _polynomial) if has_size(a) else a for a in args)


def _polynomial(value: Any) -> Any:
    return _Number(_key(value.form)) if isinstance(value, SymInt) else value


def _put_back(shape: Any, number: Callable[[_Number], Any]) -> Any:
    """A structure with `number` of each thing that stands for one."""
    if isinstance(shape, _Object):
        kind, parts = shape
        made = object.__new__(kind)
        for each, part in zip(fields(kind), parts, strict=True):
            object.__setattr__(made, each.name, _put_back(part, number))
        return made
    if isinstance(shape, tuple | list):
        return type(shape)([_put_back(part, number) for part in shape])
    return number(shape) if isinstance(shape, _Number) else shape


def filled(given: Any, values: Sequence[int]) -> Any:
    """Arguments as they were, with integers in the place of polynomials over atoms of these `values`."""
    return _put_back(given, lambda number: _summed(number.key, values))


def memo(size: int = 1 << 10) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Remember the results of a function of hashable things; a trace goes through it."""
    def around(function: Callable[P, R]) -> Callable[P, R]:
        cached: Any = functools.lru_cache(size)(function)

        @functools.wraps(function)
        def remembered(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **kwargs) if _thread.tracing else cached(*args, **kwargs)
        return remembered
    return around


def choice(size: int = 1 << 10) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `memo`, for a function that decides by more than polynomials of its sizes: a trace asks it again
    whenever these are others."""
    def around(function: Callable[P, R]) -> Callable[P, R]:
        cached: Any = functools.lru_cache(size)(function)

        @functools.wraps(function)
        def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _thread.tracing:
                return cached(*args, **kwargs)
            everything = *args, *kwargs.values()
            found = next(_sizes(everything), None)
            if found is None:
                return cached(*args, **kwargs)
            return found.of.asked(_Call(cached, tuple(kwargs)), everything)
        return chosen
    return around


class _Call:
    """A function whose last arguments are those with names."""

    def __init__(self, function: Callable[..., Any], names: tuple[str, ...]) -> None:
        self.function, self.names = function, names

    def __call__(self, *args: Any) -> Any:
        plain = len(args) - len(self.names)
        return self.function(*args[:plain], **dict(zip(self.names, args[plain:], strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and (self.function, self.names) == (other.function, other.names)

    def __hash__(self) -> int:
        return hash((self.function, self.names))


def _sizes(value: Any) -> Iterator[SymInt]:
    if isinstance(value, SymInt):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _sizes(part)
    elif _opens(value):
        for each in fields(value):
            yield from _sizes(getattr(value, each.name))


def _opens(value: Any) -> bool:
    """Whether it is a dataclass whose fields may be sizes."""
    return is_dataclass(value) and not isinstance(value, type) and not getattr(value, "sizeless", False)
