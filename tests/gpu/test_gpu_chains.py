"""Random networks, graphs and operators as AMD machine code against the definitions: several sizes in turn in
one session, numbers that are not finite at times, kernels that may touch their tensors only.

More of it, from any seed and for as long as one likes: `python -m tests.fuzz --on gfx942 --minutes 60`.
"""

from __future__ import annotations

from typing import Any

import pytest
from gpu_models import by_turns

from fuzz import chains, judge, known, search, small

pytestmark = pytest.mark.needs("AMD tables", "Triton")
MAKERS = {"chain": chains.chain, "graph": small.graph, "operator": small.operator}


@pytest.fixture(scope="module")
def peer() -> Any:
    pytest.importorskip("onnxruntime")
    return search.peer()


def examined(kind: str, seed: int, peer: Any) -> None:
    """onnxruntime, which some operators end, is asked of networks alone."""
    subject, (target,) = MAKERS[kind](seed, False), by_turns(kind, seed)
    found = judge.examine(subject, peer if kind == "chain" else None, target)
    assert found is None or found.kind == "differs" or known.excused(found, subject), (target, found)


@pytest.mark.parametrize("kind, seed", [("chain", 54), ("chain", 221), ("graph", 3), ("operator", 8)])
def test_a_few(kind: str, seed: int, peer: Any) -> None:
    examined(kind, seed, peer)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_chains(seed: int, peer: Any) -> None:
    examined("chain", seed, peer)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, 400, 20))
@pytest.mark.parametrize("kind", MAKERS)
def test_many(kind: str, first: int, peer: Any) -> None:
    for seed in range(first, first + 20):
        examined(kind, seed, peer)
