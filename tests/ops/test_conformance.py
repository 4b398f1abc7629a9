"""All of ONNX's backend test data through Orthrus. A case that may fail is a line in `EXCUSED`, with its
reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cases import KINDS, Case, cases
from benchmarks.conformance import check
from benchmarks.engines import Worker

EXCUSED: dict[str, str] = {}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("orthrus", timeout=60.0) as started:
        yield started


@pytest.fixture(scope="module")
def by_kind() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {kind: [] for kind in KINDS}
    for case in cases():
        found[case.kind].append(case)
    return found


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[pytest.mark.slow] * (kind in ("node_expanded", "real"))) for kind in KINDS])
def test_every_case_passes(kind: str, worker: Worker, by_kind: dict[str, list[Case]]) -> None:
    results = [check(case, worker, draws=False) for case in by_kind[kind]]
    failed = {r.name: r for r in results if r.status != "pass"}
    lines = [f"{r.status} {name}: {r.reason}" for name, r in failed.items() if name not in EXCUSED]
    assert results
    assert not lines, f"{len(lines)} of {len(results)}:\n" + "\n".join(lines)
    assert not [r.name for r in results if r.name in EXCUSED and r.status == "pass"], "excused for nothing"
