"""What a mask says of its elements, followed from the mask back to the model's inputs.

In: the value that is added to attention's scores, or selects among them. Out: a number where all elements are
the same; a `Flag` where an element depends on one element of a matrix of flags only; None for anything else.
The invariant: the answer holds for every shape. A matrix of integers that is calculated with is taken to hold
zeros and ones.

Axes are counted from the end, -1 the last, so that broadcasting does not move them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ir import ElementType, Node, Value
from ...optimize.pattern import number
from ...optimize.rules.facts import array, ints, positive, rank
from ...records import dataclass

_DEPTH = 60


@dataclass(frozen=True)
class Flag:
    """Elements that are `zero` where source[i, j] is 0 and `one` where it is not, i and j the positions along
    two axes."""

    source: Value
    row: int
    column: int
    zero: Any
    one: Any


@dataclass(frozen=True)
class Position:
    """Elements that are the sum of positions along axes, each times a size: {axis: 1, or a dimension}."""

    strides: tuple[tuple[int, Any], ...]


@dataclass(frozen=True)
class Flat:
    """A matrix of flags with its rows one after another."""

    source: Value


Fact = Flag | Position | Flat | float | bool | int
Rule = Callable[[Node, int], Fact | None]


def meaning(value: Value | None, depth: int = _DEPTH) -> Fact | None:
    """What is known of every element of a value, None for nothing."""
    if value is None or depth < 0:
        return None
    known = array(value)
    if known is not None:
        same = known.size and known.dtype.kind in "biufV" and np.all(known == known.flat[0])
        return known.flat[0].item() if same else None
    node = value.node
    rule = _RULES.get(node.op_type) if node is not None and not node.domain else None
    found = rule(node, depth - 1) if rule is not None and node is not None else None
    return found if found is not None else _source(value)


def _source(value: Value) -> Fact | None:
    """A matrix that is no result of arithmetic is one of flags."""
    if rank(value) != 2 or value.elem is None:
        return None
    if value.elem == ElementType.BOOL:
        return Flag(value, -2, -1, False, True)
    if value.node is None and value.elem.numpy.kind in "iuf":
        return Flag(value, -2, -1, 0, 1)
    return None


def _applied(function: Callable[..., Any], facts: Sequence[Fact | None]) -> Fact | None:
    """An elementwise function of numbers and flags of one source."""
    if any(f is None or isinstance(f, Position | Flat) for f in facts):
        return None
    flags = [f for f in facts if isinstance(f, Flag)]
    if len({(f.source, f.row, f.column) for f in flags}) > 1:
        return None
    zero, one = (function(*(getattr(f, side) if isinstance(f, Flag) else f for f in facts))
                 for side in ("zero", "one"))
    return replace(flags[0], zero=zero, one=one) if flags else zero


def _compute(function: Callable[..., Any]) -> Rule:
    return lambda node, depth: _applied(function, _facts(node, depth))


def _facts(node: Node, depth: int) -> list[Fact | None]:
    return [meaning(v, depth) for v in node.inputs]


def _logical(function: Callable[..., Any], absorbing: bool) -> Rule:
    def rule(node: Node, depth: int) -> Fact | None:
        a, b = _facts(node, depth)
        for fact, other in ((a, b), (b, a)):
            if isinstance(fact, bool):
                return absorbing if fact is absorbing else other
        return _applied(function, (a, b))
    return rule


def _compare(function: Callable[..., Any], always: Callable[[Any], bool] = lambda c: False,
             never: Callable[[Any], bool] = lambda c: False) -> Rule:
    """A comparison; `always`, `never`: whether it holds of every position, or of none, beside this number.
    What compares integers of an input with anything but 0 is a matrix of flags by itself."""
    def rule(node: Node, depth: int) -> Fact | None:
        a, b = _facts(node, depth)
        if isinstance(a, Position):
            known = isinstance(b, int | float)
            return True if known and always(b) else False if known and never(b) else None
        if isinstance(a, Flag) and a.source.elem != ElementType.BOOL and _plain(a) and b != 0:
            return None
        return _applied(function, (a, b))
    return rule


def _plain(flag: Flag) -> bool:
    return (flag.zero, flag.one) == (0, 1) and not isinstance(flag.zero, bool)


def _cast(node: Node, depth: int) -> Fact | None:
    fact = meaning(node.inputs[0], depth)
    kind = ElementType(node.attrs["to"]).numpy.kind
    change = {"b": bool, "i": int, "u": int}.get(kind, float)
    if isinstance(fact, Flag):
        return replace(fact, zero=change(fact.zero), one=change(fact.one))
    return change(fact) if isinstance(fact, int | float | bool) else fact


def _moved(fact: Fact | None, where: Callable[[int], int | None]) -> Fact | None:
    """A fact whose axes have gone to other places."""
    if isinstance(fact, Flag):
        row, column = where(fact.row), where(fact.column)
        return None if row is None or column is None else replace(fact, row=row, column=column)
    if isinstance(fact, Position):
        moved = [(where(axis), stride) for axis, stride in fact.strides]
        return None if any(a is None for a, _ in moved) else Position(tuple(moved))  # type: ignore[arg-type]
    return None if isinstance(fact, Flat) else fact


def _unsqueeze(node: Node, depth: int) -> Fact | None:
    n, axes = rank(node.output), positive(ints(node.inputs[1]), rank(node.output))
    if n is None or axes is None:
        return None
    kept = [axis - n for axis in range(n) if axis not in axes]
    return _moved(meaning(node.inputs[0], depth), lambda axis: kept[axis])


def _squeeze(node: Node, depth: int) -> Fact | None:
    n = rank(node.inputs[0])
    axes = positive(ints(node.inputs[1]), n) if len(node.inputs) > 1 else None
    if n is None or axes is None:
        return None
    kept = [axis - n for axis in range(n) if axis not in axes]
    return _moved(meaning(node.inputs[0], depth),
                  lambda axis: kept.index(axis) - len(kept) if axis in kept else None)


def _same(node: Node, depth: int) -> Fact | None:
    return meaning(node.inputs[0], depth)


def _reshape(node: Node, depth: int) -> Fact | None:
    """A matrix laid flat; or one shape with other ones in it, through any shapes between."""
    x = node.inputs[0]
    if x is None or x.shape is None or node.output.shape is None:
        return None
    start, n = x, len(node.output.shape)
    while start.node is not None and start.node.op_type == "Reshape" and not start.node.domain \
            and start.node.inputs[0] is not None:
        start = start.node.inputs[0]
    if start.shape is None:
        return None
    if len(start.shape) == 2 and node.output.shape[1:] in ((), (1,)):
        flags = meaning(start, depth)
        return Flat(flags.source) if isinstance(flags, Flag) and (flags.row, flags.column) == (-2, -1) \
            and bool(flags.one) and not flags.zero else None
    before = [i - len(start.shape) for i, d in enumerate(start.shape) if d != 1]
    after = [i - n for i, d in enumerate(node.output.shape) if d != 1]
    if [start.shape[i] for i in before] != [node.output.shape[i] for i in after] or None in start.shape:
        return None
    return _moved(meaning(start, depth), lambda axis: after[before.index(axis)] if axis in before else None)


def _range(node: Node, depth: int) -> Fact | None:
    if number(node.inputs[0]) == 0 and number(node.inputs[2]) == 1:
        return Position(((-1, 1),))
    return None


def _add(node: Node, depth: int) -> Fact | None:
    facts = _facts(node, depth)
    strides = [f.strides for f in facts if isinstance(f, Position)]
    return Position(tuple(sorted(strides[0] + strides[1]))) if len(strides) == 2 else \
        _applied(lambda a, b: a + b, facts)


def _mul(node: Node, depth: int) -> Fact | None:
    facts = _facts(node, depth)
    for fact, size in zip(facts, node.inputs[::-1], strict=True):
        if isinstance(fact, Position) and len(fact.strides) == 1 and fact.strides[0][1] == 1:
            told = size.content if size is not None else None
            known = ints(size) or (list(told) if told is not None else None)
            return Position(((fact.strides[0][0], known[0]),)) if known and len(known) == 1 else None
    return _applied(lambda a, b: a * b, facts)


def _gather(node: Node, depth: int) -> Fact | None:
    """flat[row * columns + column]"""
    flat, at = meaning(node.inputs[0], depth), meaning(node.inputs[1], depth)
    if not isinstance(flat, Flat) or not isinstance(at, Position) or node.attribute("axis") or \
            len(at.strides) != 2:
        return None
    size = flat.source.shape[1]
    rows = [axis for axis, stride in at.strides if stride == size and stride != 1]
    columns = [axis for axis, stride in at.strides if stride == 1]
    more = (rank(node.inputs[0]) or 1) - 1
    if len(rows) != 1 or len(columns) != 1 or size is None:
        return None
    return Flag(flat.source, rows[0] - more, columns[0] - more, False, True)


def _gather_nd(node: Node, depth: int) -> Fact | None:
    """flags[row, column], the positions joined along the last axis"""
    flags, joined = meaning(node.inputs[0], depth), node.inputs[1]
    made = joined.node if joined is not None else None
    if made is None or made.op_type != "Concat" or node.attribute("batch_dims"):
        return None
    if made.attrs.get("axis") not in (-1, (rank(joined) or 0) - 1):
        return None
    if not isinstance(flags, Flag) or (flags.row, flags.column) != (-2, -1):
        return None
    at = [meaning(v, depth) for v in made.inputs]
    axes = [f.strides[0][0] + 1 for f in at
            if isinstance(f, Position) and len(f.strides) == 1 and f.strides[0][1] == 1]
    if len(axes) != 2 or len(at) != 2:
        return None
    return replace(flags, row=axes[0], column=axes[1])


_RULES: dict[str, Rule] = {
    "Cast": _cast, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Expand": _same, "Reshape": _reshape,
    "Flatten": _reshape, "Range": _range, "Add": _add, "Mul": _mul, "Gather": _gather, "GatherND": _gather_nd,
    "And": _logical(lambda a, b: bool(a and b), False), "Or": _logical(lambda a, b: bool(a or b), True),
    "Not": _compute(lambda a: not a), "Sub": _compute(lambda a, b: a - b), "Neg": _compute(lambda a: -a),
    "Div": _compute(lambda a, b: a / b if b else np.nan),
    "Where": _compute(lambda c, a, b: a if c else b), "Identity": _same,
    "Equal": _compare(lambda a, b: a == b),
    "Greater": _compare(lambda a, b: a > b, lambda c: c < 0),
    "GreaterOrEqual": _compare(lambda a, b: a >= b, lambda c: c <= 0),
    "Less": _compare(lambda a, b: a < b, never=lambda c: c <= 0),
    "LessOrEqual": _compare(lambda a, b: a <= b, never=lambda c: c < 0),
}
