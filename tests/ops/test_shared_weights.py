"""Two nodes of an operator that share their weights and differ in one attribute: what is packed for the one
does not serve the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from first_samples import FIRST, wrong
from onnx import TensorProto, helper

import orthrus as ort
from orthrus import knobs
from orthrus.errors import ALL
from orthrus.ops import find
from orthrus.testing.samples import Sample

pytestmark = pytest.mark.slow


def other_values(value: Any) -> Iterator[Any]:
    """Attributes like this one. Most of those that are 0 or 1 are switches."""
    if isinstance(value, bool | int):
        yield 1 - int(value) if value in (0, 1) else value + 1
    elif isinstance(value, float):
        yield from (value * 2 + 0.25, 0.0)
    elif isinstance(value, list | tuple) and value and all(isinstance(v, int) for v in value):
        yield [v + 1 for v in value]
        yield [max(v - 1, 0) for v in value]
        yield [*value[1:], value[0]]
    elif isinstance(value, list | tuple) and value and all(isinstance(v, float) for v in value):
        yield [v * 2 + 0.25 for v in value]


def varied(sample: Sample) -> Iterator[Sample]:
    """The sample with one attribute of another value that its definition takes."""
    op = find(sample.domain, sample.op, sample.version)
    assert op is not None
    for name, default in op.attributes.items():
        for value in other_values(sample.attrs.get(name, default)):
            made = sample.changed(attrs={**sample.attrs, name: value}, _known=[])
            try:
                made.reference()
            except Exception:
                continue
            yield made


SIGNED = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT32)


def both(one: Sample, other: Sample) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of the two nodes, whose inputs are the same, all but the first of them constant, and its feeds.
    Where there is a sign, what is fed is turned once for both, so that they are one part of code."""
    model, second, feeds = one.model(), other.model().graph.node[0], one.feeds
    second.name = "other"
    second.output[:] = [f"{name}_other" for name in second.output]
    nodes = [*model.graph.node, second]
    for value in list(model.graph.input):
        if value.type.tensor_type.elem_type in SIGNED:
            for node in nodes:
                node.input[:] = [f"{name}_turned" if name == value.name else name for name in node.input]
            nodes.insert(0, helper.make_node("Neg", [value.name], [f"{value.name}_turned"]))
            feeds[value.name] = -feeds[value.name]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in second.output)
    assert isinstance(model, onnx.ModelProto)
    return model, feeds


@pytest.mark.parametrize("kind", FIRST)
def test_shared_weights(kind: str) -> None:
    for sample in FIRST[kind].values():
        held = sample.with_constants() or sample
        for other in varied(held):
            with knobs.setting(CHECK=2):
                try:
                    model, feeds = both(held, other)
                    session = ort.InferenceSession(model.SerializeToString(), fallback="error",
                                                   providers=["CPUExecutionProvider"])
                    got = session.run(None, feeds)
                except ALL as error:
                    assert "rules that lower" not in str(error), (str(held), str(other))
                    continue
            found = wrong(kind, got, [*held.reference(), *other.reference()])
            assert not found, (str(held), str(other), found)
