"""MIGraphXExecutionProvider against the record of the real library: what it gets wrong, refuses or dies of
is refused before it is asked; ONNX's own cases are right; the kit for providers has nothing to say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

import onnx
import pytest
from benchmarks.cases import Case, cases, compare
from foreign import reasons
from migraphx_kit import NAME, REF, taken
from skips import needs

import orthrus as ort
from orthrus.load import load
from orthrus.providers.base import GraphView
from orthrus.providers.migraphx import MIGraphXExecutionProvider as Provider
from orthrus.providers.migraphx.table import OPERATORS, REFUSED
from orthrus.testing import provider_tests
from orthrus.testing.samples import samples

RECORD: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "data" / "migraphx_cases.json").read_text(encoding="utf-8"))["cases"]
KINDS = ("node", "node_expanded", "simple", "pytorch-converted", "pytorch-operator")
FEW = (r"^test_(add|argmax_d|averagepool_2d|cast_|concat_1|conv|cumsum|dropout|gather|gemm|lstm|maxpool|pad"
       r"|reduce_l1|reshape|scatternd|slice|softmax|topk|unique|nonzero|AvgPool|operator_add|sce_mean)")
NO_SAMPLES = ("Constant", "Scatter", "Upsample")
TOO_LARGE = ("test_MaxPool2d_stride_padding_dilation",)
"""Right, but not within the time of a case."""


@cache
def found(pattern: str = "", kinds: Sequence[str] = KINDS) -> list[Case]:
    return cases(kinds, pattern)


def wrongly_claimed(chosen: Sequence[Case]) -> dict[str, str]:
    """Cases of one node that the record has as failed, and the provider takes as they are."""
    provider, seen = Provider(REF), {}
    for case in chosen:
        outcome, words = RECORD.get(case.name, ("pass", ""))
        alone = len(case.model.graph.node) == 1 and case.name not in TOO_LARGE
        if outcome == "pass" or "cast" in outcome or not alone:
            continue
        graph = load(case.model)
        view = GraphView(graph, list(graph.nodes))
        if provider.get_capability(view):
            seen[case.name] = f"{outcome}: {words}"
        elif not all(view.refusals.get(node) for node in graph.nodes):
            seen[case.name] = "refused without a reason"
    return seen


@pytest.mark.slow
def test_all_that_failed_is_refused_before_the_library_is_asked() -> None:
    assert not wrongly_claimed(found())


def swept(chosen: Sequence[Case], options: dict[str, str]) -> tuple[dict[str, str], Counter[str]]:
    """Cases that are wrong and why, and how many nodes ran where."""
    wrong, nodes = {}, Counter[str]()
    for case in chosen:
        try:
            made = ort.InferenceSession(case.model.SerializeToString(), providers=[(NAME, options)],
                                        enable_fallback=0)
            made.disable_fallback()
            nodes["all"] += len(made.explain())
            nodes[NAME] += len(taken(made))
            if " failed: " in reasons(made):
                wrong[case.name] = reasons(made)
            for (_, wanted), feed in zip(case.data, case.feeds(), strict=True):
                compare(wanted, made.run(None, feed), case.rtol, case.atol, values=not case.random)
        except Exception as error:
            wrong[case.name] = f"{type(error).__name__}: {error}"
    return wrong, nodes


@pytest.mark.parametrize("pattern", [pytest.param(FEW, marks=pytest.mark.slow),
                                     pytest.param("", marks=pytest.mark.thorough)])
def test_onnxs_cases_are_right(pattern: str) -> None:
    wrong, nodes = swept(found(pattern), REF)
    assert not wrong and nodes[NAME] > 0.4 * nodes["all"], nodes


@pytest.mark.slow
def test_a_network() -> None:
    """The one of those with weights that are all alike which rounding does not change."""
    wrong, nodes = swept(found("^test_shufflenet$", ("real",)), REF)
    assert not wrong and nodes[NAME] > 0.9 * nodes["all"]


def test_the_table_is_whole() -> None:
    """Every operator exists, no operator is in the table and refused, and what it demands are inputs."""
    assert not OPERATORS.keys() & REFUSED.keys() and len(OPERATORS) > 120
    for name, row in OPERATORS.items():
        domain, _, op = name.rpartition("::")
        if not domain:
            schema = onnx.defs.get_schema(op)
            assert all(i < max(1, schema.max_input) for i in row.constant), name



test_kit_in_short = provider_tests(Provider, options=REF, operators=["Add", "Conv", "Reshape", "Div"],
                                   types=["float", "int64"], only=["options", "interface", "errors"])


class TestKit:
    """The whole kit, on every fourth operator of the table and on each."""

    operators: ClassVar = [name for name in OPERATORS if name not in NO_SAMPLES]
    types: ClassVar = ["float", "int64", "bool", "uint8"]
    test_kit = pytest.mark.slow(staticmethod(provider_tests(
        Provider, options=REF, operators=operators[::4], types=types)))
    test_kit_of_all = pytest.mark.thorough(staticmethod(provider_tests(
        Provider, options=REF, operators=operators, types=types)))
    test_kit_of_other_types = pytest.mark.thorough(staticmethod(provider_tests(
        Provider, options=REF, types=["float16", "int8"],
        operators=sorted(OPERATORS.keys() & {s.kind for s in samples(types=["float16", "int8"])}))))


@needs("MIGraphX")
@pytest.mark.slow
class TestRealLibrary:
    """The same on the library itself, with its target ref."""

    def test_all_of_onnxs_cases_are_right(self) -> None:
        wrong, nodes = swept([c for c in found() if c.name not in TOO_LARGE], {"target": "ref"})
        assert not wrong and nodes[NAME] > 0.4 * nodes["all"], nodes

    def test_times_are_read(self) -> None:
        from migraphx_kit import perceptron, rows

        made = ort.InferenceSession(perceptron(2).SerializeToString(), providers=[(NAME, {"target": "ref"})])
        with made.profile() as profile:
            made.run(None, rows(2))
        assert "ref::" in str(profile)


