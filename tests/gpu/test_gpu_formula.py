"""Plans of GPUs by formula: for shapes that nobody lowered, what a lowering of them gives, bit for bit, as
AMD machine code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from emulated_gpu import fenced, on_gpu
from gpu_kernels import AMD
from gpu_models import model, node
from test_formula import Feeds, open_feeds, transformer

import orthrus as ort
from fuzz import graphs as random_graphs
from orthrus import errors, knobs
from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.targets import TARGETS
from orthrus.kernels import reference
from orthrus.load import load
from orthrus.lowering.formula import opened
from orthrus.lowering.gpu import rules  # noqa: F401 - they are registered
from orthrus.lowering.gpu.formula import FormedPlan, OpenGpu
from orthrus.lowering.gpu.merging import merged
from orthrus.lowering.gpu.part import GpuPart
from orthrus.lowering.gpu.plan import hints
from orthrus.shapes.symbolic import Sizes

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


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


MS = "com.microsoft::"
ALIKE: dict[str, tuple[Any, tuple[int, ...], dict[str, np.ndarray]]] = {
    "Softmax": (node("Softmax", "x", "y"), (128,), {}),
    "Softmax of heads": (node("Softmax", "x", "y"), (12, 64, 64), {}),
    "Softmax of long rows": (node("Softmax", "x", "y"), (9000,), {}),
    "LayerNormalization": (node("LayerNormalization", "x s", "y"), (7, 64), {"s": drawn(64)}),
    "ReduceMean": (node("ReduceMean", "x a", "y"), (7, 64), {"a": np.array([2])}),
    "ReduceMax of another axis": (node("ReduceMax", "x a", "y"), (40, 16), {"a": np.array([1])}),
    "GlobalAveragePool": (node("GlobalAveragePool", "x", "y"), (16, 28, 28), {}),
    "ArgMax": (node("ArgMax", "x", "y", axis=1), (64,), {}),
    "TopK": (node("TopK", "x k", "y i"), (100,), {"k": np.array([3])}),
    "CumSum": (node("CumSum", "x k", "y"), (100,), {"k": np.array(1)}),
    "Add": (node("Add", "x b", "y"), (64,), {"b": drawn(64)}),
    "Relu": (node("Relu", "x", "y"), (7, 64), {}),
    "Transpose": (node("Transpose", "x", "y", perm=[0, 2, 1]), (64, 33), {}),
    "Gather": (node("Gather", "x w", "y", axis=1), (64, 48), {"w": np.arange(7)}),
    "MatMul": (node("MatMul", "x w", "y"), (16, 128), {"w": drawn(128, 256)}),
    "Attention": (node(MS + "MultiHeadAttention", "x x x", "y", num_heads=2), (17, 64), {}),
}
"""Operators over x, its shape but for the batch, constants."""


def of_batch(name: str, batch: int, target: str = "gfx942") -> tuple[Sizes, list[Any]]:
    """What a formula made for a batch is good for, and its kernels."""
    made, shape, held = ALIKE[name]
    graph = load(model([made], {"x": ["n", *shape]}, [made.output[0]], **held))
    (x,) = graph.inputs
    with Sizes() as sizes:
        (given,), _ = opened([(("n", *shape), (batch, *shape))], sizes)
        lo = OpenGpu(lambda: False, graph.nodes, [(x, given, "float32")], graph.outputs, TARGETS[target], {},
                     lambda node: reference(node).run)
        kernels = [(step.spec, hints(step, lo.target))
                   for step in merged(lo.steps, lo.target, lo.status.buffer)]
    return sizes, kernels


@pytest.mark.parametrize("name", ALIKE)
def test_a_batch_of_any_size_has_one_formula(name: str) -> None:
    """From two on, and the kernels are those that a lowering of another batch makes."""
    batches = (2, 3, 5, 8, 13, 16, 32)
    made = [of_batch(name, batch) for batch in batches]
    for batch, (sizes, kernels) in zip(batches, made, strict=True):
        assert kernels == made[0][1], batch
        assert [n for n in batches if sizes.at([n]) is None] == [], batch


def test_few_rows_share_kernels() -> None:
    """Products of three rows and of four, and all that are more."""
    shape = ALIKE["MatMul"][1]
    try:
        ALIKE["MatMul"] = ALIKE["MatMul"][0], shape[1:], ALIKE["MatMul"][2]
        served = {n: [m for m in range(1, 18) if of_batch("MatMul", n)[0].at([m]) is not None]
                  for n in (1, 2, 3, 4, 5, 16)}
    finally:
        ALIKE["MatMul"] = ALIKE["MatMul"][0], shape, ALIKE["MatMul"][2]
    assert served == {1: [1], 2: [2], 3: [3, 4], 4: [3, 4], 5: [*range(5, 18)], 16: [*range(5, 18)]}


@pytest.mark.parametrize("target", AMD)
def test_new_batches_compile_nothing(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    code = compiling.codes

    def codes(requests: Any) -> Any:
        asked.extend(repr((spec, given)) for spec, _, given in requests)
        return code(requests)
    nodes = [node("Softmax", "x", "a"), node("LayerNormalization", "a s", "b"), node("MatMul", "b w", "c"),
             node("TopK", "c k", "d i", axis=1), node("ReduceMax", "d axes", "y")]
    session = on_gpu(model(nodes, {"x": ["n", 9, 40]}, ["y"], s=drawn(40), w=drawn(40, 32),
                           k=np.array([3]), axes=np.array([1])), target, alone=True)
    monkeypatch.setattr(compiling, "codes", codes)
    seen = list[int]()
    for n in (3, 2, 5, 8, 16, 13):
        agree(session, {"x": drawn(n, 9, 40)})
        seen.append(len(set(asked)))
    assert len(set(seen)) == 1, seen


WINDOWS: dict[str, tuple[dict[str, Any], tuple[int, ...] | None]] = {
    "Conv": ({"pads": [1] * 4, "strides": [2, 1]}, (16, 8, 3, 3)),
    "Conv of one tap": ({}, (16, 8, 1, 1)),
    "Conv of groups": ({"pads": [1] * 4, "group": 4}, (16, 2, 3, 3)),
    "Conv of channels": ({"dilations": [1, 2], "group": 8}, (8, 1, 3, 3)),
    "ConvTranspose": ({"pads": [1] * 4, "strides": [2, 2]}, (8, 4, 4, 4)),
    "ConvTranspose of one tap": ({"strides": [2, 2]}, (8, 4, 2, 2)),
    "MaxPool": ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, None),
    "AveragePool": ({"kernel_shape": [3, 2], "pads": [1, 0, 1, 0]}, None),
    "Resize": ({"mode": "nearest"}, None),
    "Resize between": ({"mode": "linear"}, None),
}
"""Operators, their attributes, and their weights' shape."""


@pytest.mark.parametrize("name", WINDOWS)
def test_what_slides_has_one_formula_for_many_sizes(name: str) -> None:
    attrs, shape = WINDOWS[name]
    op = name.split()[0]
    held = {"w": np.ones(shape, np.float32)} if shape else {}
    held |= {"s": np.array([1, 1, 2, 2], np.float32)} if op == "Resize" else {}
    inputs = "x - s" if op == "Resize" else "x w" if shape else "x"
    graph = load(model([node(op, inputs, "y", **attrs)], {"x": ["n", 8, "h", "w"]}, ["y"], **held))
    (x,) = graph.inputs
    with Sizes() as sizes:
        ((n, c, h, w),), _ = opened([(("n", 8, "h", "w"), (2, 8, 40, 36))], sizes)
        OpenGpu(lambda: False, graph.nodes, [(x, (n, c, h, w), "float32")], graph.outputs,
                TARGETS["gfx1100"], {}, lambda node: reference(node).run)
    for other in ((2, 41, 36), (3, 40, 36), (2, 40, 38), (2, 39, 35)):
        assert sizes.at(other) is not None, (other, sizes.pins)


@pytest.mark.slow
@pytest.mark.parametrize("target", AMD)
def test_images_of_other_sizes(target: str) -> None:
    """Convolutions of every kind, pools and resizes, of batches and sizes that nobody lowered."""
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
        (3, 26, 22), (3, 27, 21), (3, 26, 21), (3, 27, 22))]
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
