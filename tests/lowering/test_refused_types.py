"""Operators of types that no generated kernel is for, in parts of whole graphs, which nobody claims node by
node: what the definition computes comes out, in its type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from skips import needs

from orthrus.ir import No
from orthrus.load import load
from orthrus.lowering.claims import refusal
from orthrus.providers import CPUExecutionProvider
from orthrus.testing.closeness import difference
from orthrus.testing.samples import Sample, samples

pytestmark = needs("generated code")


def refused() -> Iterator[Sample]:
    """Samples of which the type of the first input is the reason that there is no kernel."""
    for sample in samples():
        if sample.loads:
            why = refusal(load(sample.model()).nodes[0])
            if isinstance(why, No) and why.reason.startswith("no generated kernel") and " for " in why.reason:
                yield sample


CASES = {f"{sample}-{sample.index}": sample for sample in refused()}


@pytest.mark.parametrize("case", CASES)
def test_a_whole_graph(case: str) -> None:
    sample = CASES[case]
    graph = load(sample.model())
    provider = CPUExecutionProvider()
    native = provider.entire(graph, provider._device(provider._machine()))
    assert not isinstance(native, No), native.reason
    made = native(*(np.ascontiguousarray(sample.feeds[v.name]) for v in graph.inputs))
    assert difference(made if isinstance(made, tuple) else (made,), sample.reference()) is None
