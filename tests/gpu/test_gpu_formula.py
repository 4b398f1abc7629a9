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
@pytest.mark.parametrize("target", AMD)
def test_images_of_other_sizes(target: str) -> None:
    """Convolutions of every kind, pools and resizes, of batches and sizes that nobody lowered."""
    def drawn(*shape: int) -> np.ndarray:
        return np.random.default_rng(shape).normal(size=shape).astype(np.float32)
    nodes = [
        node("Conv", "x w0", "a", pads=[1] * 4, strides=[2, 2]), node("Relu", "a", "b"),
        node("Conv", "b w1", "c", group=4, auto_pad="SAME_UPPER"), node("Add", "c b", "d"),
        node("Conv", "d w2", "e", group=16, pads=[1] * 4), node("MaxPool", "e", "f", kernel_shape=[2, 2]),
        node("AveragePool", "f", "g", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        node("ConvTranspose", "g w3", "h", strides=[2, 2], pads=[1] * 4),
        node("Resize", "g - twice", "i", mode="nearest"), node("Resize", "g - twice", "j", mode="cubic"),
        node("Concat", "i j", "k", axis=1), node("Conv", "k w4", "l")]
    session = on_gpu(model(
        nodes, {"x": ["n", 3, "h", "w"]}, ["h", "k", "l"], w0=drawn(16, 3, 3, 3), w1=drawn(16, 4, 3, 3),
        w2=drawn(16, 1, 3, 3), w3=drawn(16, 8, 4, 4), w4=drawn(8, 32, 1, 1),
        twice=np.array([1, 1, 2, 2], np.float32)), target, alone=True)
    used = [agree(session, {"x": drawn(n, 3, h, w)}) for n, h, w in (
        (2, 24, 20), (2, 26, 20), (3, 26, 22), (3, 27, 21))]
    assert used == [[False], [True], [True], [True]], [part.learner.unlearnt for part in parts(session)]


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
