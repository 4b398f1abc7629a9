"""Operators that no generated kernel is for, by their types or at all, in parts of whole graphs, which nobody
claims node by node: what the definition computes comes out, in its type, and between jumps there are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from skips import needs

from orthrus.ir import No
from orthrus.load import load
from orthrus.lowering.claims import refusal
from orthrus.lowering.native import Native
from orthrus.providers import CPUExecutionProvider
from orthrus.testing.closeness import difference
from orthrus.testing.samples import Sample, samples

pytestmark = needs("generated code")

TURNS = 2
PROVIDER = CPUExecutionProvider()


def refused() -> Iterator[Sample]:
    """Samples for which there is no kernel, whatever the sizes and the elements."""
    for sample in samples():
        node = load(sample.model()).nodes[0] if sample.loads else None
        why = None if node is None or not isinstance(PROVIDER.lookup(node), No) else refusal(node)
        if isinstance(why, No) and why.reason.startswith("no generated kernel"):
            yield sample


CASES = {f"{sample}-{sample.index}": sample for sample in refused()}


def looped(sample: Sample) -> onnx.ModelProto:
    """The sample in each turn of a Loop, which gathers what that gives."""
    model = sample.model()
    graph = model.graph
    going = [helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []) for name in ("going", "on")]
    number = helper.make_tensor_value_info("number", onnx.TensorProto.INT64, [])
    body = helper.make_graph([*graph.node, helper.make_node("Identity", ["going"], ["on"])], "body",
                             [number, going[0]], [going[1], *graph.output])
    turns = numpy_helper.from_array(np.array(TURNS), "turns")
    del graph.node[:], graph.output[:]
    rows = [f"{v.name}_rows" for v in body.output[1:]]
    graph.node.append(helper.make_node("Loop", ["turns", ""], rows, body=body))
    graph.initializer.append(turns)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in rows)
    return model


def whole(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[Native, list[np.ndarray]]:
    """All of a model as one part, and what is fed to that."""
    graph = load(model)
    native = PROVIDER.entire(graph, PROVIDER._device(PROVIDER._machine()))
    assert not isinstance(native, No), native.reason
    return native, [feeds[v.name] for v in graph.inputs]


def listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("case", CASES)
def test_a_whole_graph(case: str) -> None:
    native, given = whole(CASES[case].model(), CASES[case].feeds)
    assert difference(listed(native(*given)), CASES[case].reference()) is None


@pytest.mark.parametrize("case", CASES)
def test_between_jumps(case: str) -> None:
    native, given = whole(looped(CASES[case]), CASES[case].feeds)
    plan = native.plan_for([a.shape for a in given])
    assert plan is None or not plan.hosts
    if plan is not None:
        assert difference(listed(native(*given)), [np.stack([a] * TURNS) for a in CASES[case].reference()]
                          ) is None
