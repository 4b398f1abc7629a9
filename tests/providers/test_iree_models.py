"""IREEExecutionProvider on whole models, on ONNX's backend cases, and under the kit for authors of providers.

The slow tests take a sample and what compiles fast; the thorough ones, by hand, all there is: the full run of
the backend cases compiles two thousand models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.cases import KINDS, Case, cases
from benchmarks.conformance import check
from benchmarks.engines import Worker
from benchmarks.zoo import build, feeds
from benchmarks.zoo import cases as zoo
from skips import needs

import orthrus as ort
from orthrus.providers.iree import IREEExecutionProvider
from orthrus.testing import checks, provider_tests

pytestmark = [pytest.mark.slow, needs("IREE")]
BOTH = ["IREEExecutionProvider", "CPUExecutionProvider"]
EVERY = 180
"""One case of so many is in the sample."""

QUICK = ("resnet18", "bilstm_tagger")
BOUND = 1e-4
"""Of the largest output."""
SAMPLES = ("Add", "MatMul", "Transpose", "Softmax")


def failures(chosen: Sequence[Case]) -> tuple[list[str], int]:
    """The cases that fail, and how many IREE computed a node of."""
    computed = 0
    with Worker("orthrus", timeout=120.0, providers=BOTH) as worker:
        failed = []
        for case in chosen:
            found = check(case, worker, draws=False)
            computed += BOTH[0] in found.computed
            if found.status != "pass":
                failed.append(f"{found.status} {found.name}: {found.reason}")
    return failed, computed


def test_a_sample_of_the_backend_cases() -> None:
    """No case fails that passes on the CPU provider, on which all pass."""
    failed, computed = failures(cases()[::EVERY])
    assert not failed, "\n".join(failed)
    assert computed >= 5


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_all_backend_cases(kind: str) -> None:
    chosen = cases([kind])
    failed, computed = failures(chosen)
    print(f"{kind}: IREE computed a node of {computed} of {len(chosen)} cases")
    assert not failed, "\n".join(failed)


def agrees(name: str, tmp_path: Path) -> None:
    """A model of the zoo within its bound of the CPU provider, in few parts."""
    path = tmp_path / f"{name}.onnx"
    onnx.save(build(name), path)
    inputs = feeds(name)
    made = ort.InferenceSession(path, providers=[(BOTH[0], {"shapes": "fixed"}), BOTH[1]])
    taken = [node for node in made.explain() if node.provider == BOTH[0]]
    assert taken, [str(r) for node in made.explain() for r in node.refusals][:3]
    want = ort.InferenceSession(path).run(None, inputs)
    for right, got in zip(want, made.run(None, inputs), strict=True):
        assert right.shape == got.shape
        assert np.abs(right.astype(np.float64) - got).max() <= BOUND * max(np.abs(right).max(), 1e-30)


@pytest.mark.parametrize("name", QUICK)
def test_models(name: str, tmp_path: Path) -> None:
    agrees(name, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [n for n in zoo() if not n.endswith("_int8") and n not in QUICK])
def test_all_models(name: str, tmp_path: Path) -> None:
    agrees(name, tmp_path)


LONG = ("random_graphs", "older_versions")
test_the_kit = provider_tests(IREEExecutionProvider, options={"device": "local-sync"}, operators=SAMPLES,
                              types=("float",), only=[c.name for c in checks() if c.name not in LONG])
test_what_takes_long_of_the_kit = pytest.mark.thorough(provider_tests(
    IREEExecutionProvider, options={"device": "local-sync"}, operators=SAMPLES, types=("float",), only=LONG))
test_the_kit_of_integers = pytest.mark.thorough(provider_tests(
    IREEExecutionProvider, options={"device": "local-sync"}, operators=("Add", "MatMul", "Transpose"),
    types=("int64",)))
