"""Elements that decide what is computed, fed to parts of whole graphs: what the definition computes of them
comes out, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from first_samples import FIRST, wrong
from skips import needs

from orthrus.ir import No
from orthrus.load import load
from orthrus.lowering.contents import CONTENT
from orthrus.providers import CPUExecutionProvider
from orthrus.testing.samples import Sample

pytestmark = needs("generated code")


def varied(sample: Sample) -> Iterator[Sample]:
    """The sample, and with other elements where they decide, as far as its definition takes these."""
    yield sample
    for by in (1, -1):
        made = sample.changed(_known=[], inputs=tuple(
            a if a is None or k not in CONTENT[sample.op] or a.dtype.kind not in "iu" else
            (a.astype(np.int64) + by).astype(a.dtype) for k, a in enumerate(sample.inputs)))
        try:
            made.reference()
        except Exception:
            continue
        yield made


@pytest.mark.parametrize("kind", [kind for kind in FIRST if kind.split("::")[-1] in CONTENT])
def test_a_whole_graph(kind: str) -> None:
    provider = CPUExecutionProvider()
    for sample in FIRST[kind].values():
        graph = load(sample.model())
        native = provider.entire(graph, provider._device(provider._machine()))
        if isinstance(native, No):
            continue
        for each in varied(sample):
            made = native(*(each.feeds[v.name] for v in graph.inputs))
            found = wrong(kind, made if isinstance(made, tuple) else (made,), each.reference())
            assert not found, (str(each), found)
