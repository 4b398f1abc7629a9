"""One set of rules for shapes: on numbers they say what the definitions give, on names the same."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from orthrus.ir import Node, TensorType, Value, element_of
from orthrus.ops import find
from orthrus.ops.nn.geometry import window
from orthrus.shapes import elements, windows
from orthrus.shapes.by_operator import rule_of
from orthrus.shapes.expression import Dim, Expr, greatest, named, put
from orthrus.shapes.facts import Facts, Shapes
from orthrus.shapes.rules import RULES
from orthrus.testing.samples import Sample, samples


class Asked:
    """What answers the rules here: nothing but what follows from the dimensions."""

    int_max = (1 << 31) - 1
    long_enough = False

    def wider(self, dims: Sequence[Dim]) -> Dim:
        left = list(dict.fromkeys(d for d in dims if d != 1)) or [1]
        return next((d for d in left if isinstance(d, int)), None) or greatest(*left)

    def same(self, dims: Sequence[Dim]) -> Dim:
        return dims[0]

    def is_one(self, dim: Dim) -> bool:
        return dim == 1

    def unknown(self, node: Node, index: int) -> None:
        return None


@functools.cache
def drawn() -> dict[str, list[Sample]]:
    """Samples by operator, in the first type that each has."""
    found: dict[str, list[Sample]] = {}
    for sample in samples():
        mine = found.setdefault(sample.kind, [])
        if not mine or mine[0].type == sample.type:
            mine.append(sample)
    return found


def node_of(sample: Sample) -> Node:
    values = [None if a is None else Value(f"i{k}", TensorType(element_of(a.dtype), a.shape))
              for k, a in enumerate(sample.inputs)]
    node = Node(sample.op, sample.domain, sample.schema.version,
                find(sample.domain, sample.op, sample.version), values, dict(sample.attrs), "sample", 0)
    for k, made in enumerate(sample.reference()):
        kind = TensorType(element_of(made.dtype), None) if isinstance(made, np.ndarray) else None
        node.outputs.append(Value(f"o{k}", kind))
    return node


def symbol(size: int) -> Dim:
    """A name for a dimension; 0 and 1, which rules look at, stay."""
    return named(f"n{size}", 1) if size > 1 else size


def said(sample: Sample, dim: Any) -> tuple[Node, list[Any], list[Any]]:
    shapes = [None if a is None else list(map(dim, a.shape)) for a in sample.inputs]
    return node_of(sample), shapes, [elements.of_constant(a) for a in sample.inputs]


def ruled(sample: Sample, dim: Any) -> Shapes:
    node, shapes, given = said(sample, dim)
    rule = rule_of(node)
    assert rule is not None
    try:
        return rule(Facts(node, shapes, given, Asked()))
    except LookupError:
        return []


NAMES = {f"n{size}": size for size in range(2, 1 << 12)}
RULED = sorted(kind for kind, found in drawn().items() if found and rule_of(node_of(found[0])) is not None)
FOLLOWED = sorted(kind for kind, found in drawn().items() if found and elements.follows(node_of(found[0])))


@pytest.mark.parametrize("kind", RULED)
def test_a_rule_says_with_names_what_it_says_with_numbers_and_both_are_so(kind: str) -> None:
    told = 0
    for sample in drawn()[kind]:
        with_names, with_numbers = ruled(sample, symbol), ruled(sample, int)
        for array, named_dims, dims in zip(sample.reference(), with_names, with_numbers, strict=False):
            if not isinstance(array, np.ndarray) or named_dims is None or dims is None:
                continue
            assert len(named_dims) == len(dims) == array.ndim, sample
            assert not any(isinstance(d, Expr) for d in dims), sample
            told += not array.ndim
            for size, a, b in zip(array.shape, named_dims, dims, strict=True):
                assert a is None or put(a, NAMES) == size, sample
                assert b is None or b == size, sample
                told += a is not None
    assert told, "no sample of it is told anything"


@pytest.mark.parametrize("kind", FOLLOWED)
def test_elements_that_are_not_known_are_not_taken_for_absent(kind: str) -> None:
    for sample in drawn()[kind]:
        array = sample.reference()[0]
        node, shapes, given = said(sample, int)
        for i in range(len(given)):
            found = elements.follow(node, [None if i == k else e for k, e in enumerate(given)], shapes)
            for mine, theirs in zip([] if found is None else found.ravel(), array.ravel(), strict=False):
                assert mine is None or np.isclose(float(mine), float(theirs), rtol=1e-5), (sample, i)


def test_slices_of_whatever_bounds_are_those_of_a_run() -> None:
    size = named("n", 0)
    bounds = (-(1 << 63), -4, -3, -2, -1, 0, 1, 2, 3, (1 << 63) - 1)
    for start, end, step in itertools.product(bounds, bounds, (-2, -1, 1, 2)):
        given = [elements.of_constant(np.array([v])) for v in (start, end, 0, step)]
        for length in range(5):
            x = np.arange(length)
            values = [Value("x", TensorType(element_of(x.dtype), x.shape)), *(Value("i") for _ in given)]
            node = Node("Slice", "", 13, find("", "Slice", 13), values, {})
            node.outputs.append(Value("o"))
            made = node.op.bind({})(x, *(np.array([v]) for v in (start, end, 0, step)))
            case = length, start, end, step
            for dim in (length, size):
                told = RULES["Slice"](Facts(node, [[dim], *[[1]] * 4], [None, *given], Asked()))
                assert told[0] is None or put(told[0][0], {"n": length}) == len(made), (case, told)
            found = elements.follow(node, [elements.of_constant(x), *given], [[length], *[[1]] * 4])
            assert found is None or found.tolist() == made.tolist(), case


@pytest.mark.parametrize("pooled", (False, True))
def test_as_many_windows_are_told_as_stand_on_whatever_axis(pooled: bool) -> None:
    """Also on one without elements, over which none stands; a size below zero is refused as a run is."""
    paddings = ((auto, p) for auto in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
                for p in itertools.product(range(3), repeat=2) if auto == "NOTSET" or p == (0, 0))
    for (auto, pads), kernel, stride, dilation, up in itertools.product(
            paddings, range(1, 4), range(1, 4), (1, 2), range(1 + pooled)):
        if pooled and max(pads) > (kernel - 1) * dilation:
            continue  # which the operators refuse
        for size in range(6):
            told = windows.fitting(size, kernel, stride, dilation, *pads, auto, bool(up))
            case = size, kernel, stride, dilation, pads, auto, up
            try:
                made = window([size], [kernel], [stride], [dilation], pads, auto, up, short=pooled).out
            except ValueError:
                assert told < 0 or not pooled, (case, told)
            else:
                assert made == (told,), case


@pytest.mark.parametrize("kind", FOLLOWED)
def test_elements_that_are_followed_are_those_of_a_run(kind: str) -> None:
    for sample in drawn()[kind]:
        array = sample.reference()[0]
        for dim in (int, symbol):
            node, shapes, given = said(sample, dim)
            found = elements.follow(node, given, shapes)
            if found is None:
                continue
            assert found.shape == array.shape, sample
            for mine, theirs in zip(found.ravel().tolist(), array.ravel().tolist(), strict=True):
                assert mine is None or np.isclose(float(put(mine, NAMES)), float(theirs), rtol=1e-5), sample
