"""Plans of GPUs by formula: for shapes that nobody lowered, what a lowering of them gives, bit for bit, as
AMD machine code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from emulated_gpu import fenced, on_gpu
from gpu_kernels import AMD
from gpu_models import model, node
from test_formula import Feeds, open_feeds, transformer

import orthrus as ort
from fuzz import graphs as random_graphs
from orthrus import errors, knobs
from orthrus.lowering.gpu.formula import FormedPlan
from orthrus.lowering.gpu.part import GpuPart

pytestmark = pytest.mark.needs("AMD tables", "Triton")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.SHAPES, "value", 2)


def parts(session: ort.InferenceSession) -> Iterator[GpuPart]:
    """What the GPU computes of a session."""
    for step in session._sess._engine.program.calls:
        if isinstance(step.kernel.run, GpuPart):
            yield step.kernel.run


def agree(session: ort.InferenceSession, feeds: Feeds) -> list[bool]:
    """Run once with the plans there are and once with those that a lowering makes; per part, whether the
    first was by formula."""
    found, by_formula = session.run(None, feeds), []
    for part in parts(session):
        if part.plans:
            key = next(reversed(part.plans))
            by_formula.append(isinstance(part.plans[key], FormedPlan))
            assert not isinstance(part.exact(key), FormedPlan)
    for one, other in zip(found, session.run(None, feeds), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return by_formula


@pytest.mark.parametrize("target", AMD)
def test_a_decoder_is_lowered_twice(target: str) -> None:
    """Once for the guess at its creation, once for its first token."""
    proto, feeds = transformer()
    session = on_gpu(proto, target)
    known = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for past in (20, 21, 22):
        given = feeds(1, 1, past)
        assert agree(session, given)[0] == (past > 20), [part.learner.unlearnt for part in parts(session)]
        for y, wanted in zip(session.run(None, given), known.run(None, given), strict=True):
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


def test_other_multiples_have_other_kernels() -> None:
    """What is compiled for rows of a multiple of 16 serves no others, whose formula comes with them."""
    session = on_gpu(model([node("Softmax", "x", "y")], {"x": ["n", "m"]}, ["y"]))
    used = [agree(session, {"x": np.random.default_rng(m).normal(size=(n, m)).astype(np.float32)})[0]
            for n, m in ((5, 48), (6, 48), (7, 48), (5, 33), (6, 37), (8, 48), (7, 35))]
    assert used == [False, True, True, False, True, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(seed: int) -> None:
    proto, _ = random_graphs.build(seed)
    rng = np.random.default_rng(seed)
    session = on_gpu(proto, AMD[seed % 2])
    with fenced():
        for n, s in ((2, 3), (5, 6), (7, 4), (3, 9), (6, 5)):
            feeds = open_feeds(proto, {"N": n, "S": s, "T": 1, "C": 4}, rng)
            if feeds is None:
                break
            try:
                session.run(None, feeds)
            except (errors.Fail, errors.InvalidArgument):
                continue
            agree(session, feeds)
