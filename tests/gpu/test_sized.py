"""Results whose size only elements tell, on emulated GPUs: what reads them, who computes them, and what is
left to others."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx
import pytest
from emulated_gpu import driver, fenced, nodes, on_gpu

import orthrus as ort
from orthrus.codegen.triton import compile as compiling
from orthrus.errors import EPFail, Fail

pytestmark = [pytest.mark.needs("AMD tables", "Triton")]

MASKED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n, m] x) => (float[k] y) <float zero = {0}, float two = {2}>
{
    positive = Greater(x, zero)
    places = NonZero(positive)
    tuples = Transpose <perm = [1, 0]> (places)
    picked = GatherND(x, tuples)
    y = Mul(picked, two)
}"""

COUNTED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n, m] x) => (float[n, m] y) <int64[1] last = {-1}>
{
    shape = Shape(x)
    ones = ConstantOfShape <value = float[1] {1.0}> (shape)
    places = NonZero(ones)
    row = ReduceMax <keepdims = 0> (places)
    part = Cast <to = 1> (row)
    y = Add(x, part)
}"""


def of_text(text: str) -> bytes:
    data: bytes = onnx.parser.parse_model(text).SerializeToString()
    return data


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx1100", "gfx942"])
def test_what_is_chosen_is_read_on_the_gpu(target: str) -> None:
    """Sizes that nobody knew, none and one of them, in one session."""
    rng = np.random.default_rng(0)
    with fenced():
        session = on_gpu(of_text(MASKED), target, alone=True)
        for shape in ((3, 5), (40, 70), (1, 1), (2, 1024), (0, 4)):
            for x in (rng.standard_normal(shape), -np.ones(shape), np.full(shape, np.nan)):
                x = x.astype(np.float32)
                np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x[x > 0])


def test_chosen_places() -> None:
    x = np.array([[0, -0.0, np.nan], [np.inf, 1e-45, 3]], np.float32)
    session = on_gpu(of_text(MASKED), alone=True)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x[x > 0])
    assert driver(session).launched["nonzero_places"] == 1


def test_what_follows_from_sizes_is_the_hosts() -> None:
    """Inside of the part that reads it."""
    session = on_gpu(of_text(COUNTED))
    x = np.zeros((3, 4), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 3)
    assert not driver(session).launched["nonzero_places"]


def test_without_a_compiler_the_next_provider_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise EPFail("no Triton here")
    monkeypatch.setattr(compiling, "code", missing)
    session = on_gpu(of_text(MASKED))
    assert ("NonZero", "CPUExecutionProvider") in nodes(session)
    assert "no Triton here" in str([e.refusals for e in session.explain().nodes])
    x = np.array([[1, -1]], np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], [2])


def test_threads_share_a_node() -> None:
    session, wrong = on_gpu(of_text(MASKED), alone=True), list[Any]()

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((7, 9 + seed)).astype(np.float32)
        for _ in range(5):
            if not np.array_equal(session.run(None, {"x": x})[0], 2 * x[x > 0]):
                wrong.append(seed)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_a_short_memory_is_an_error_and_the_session_goes_on() -> None:
    session = on_gpu(of_text(MASKED), alone=True)
    x = np.ones((64, 64), np.float32)
    session.run(None, {"x": x})
    held, driver(session).most = driver(session).most, 0
    with pytest.raises(Fail):
        session.run(None, {"x": np.ones((900, 900), np.float32)})
    driver(session).most = held
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.full(4096, 2, np.float32))


DETECTED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[b, n, 4] boxes, float[b, c, n] scores) => (float[k, 4] y)
<int64 most = {20}, float limit = {0.5}, float least = {0.3}, int64[1] last = {2}, int64[1] first = {0}>
{
    kept = NonMaxSuppression <center_point_box = 1> (boxes, scores, most, limit, least)
    image = Gather <axis = 1> (kept, first)
    box = Gather <axis = 1> (kept, last)
    tuples = Concat <axis = 1> (image, box)
    y = GatherND(boxes, tuples)
}"""


def test_detections_stay_on_the_gpu() -> None:
    """As detectors end: boxes of several images and classes, as many as there are."""
    rng, data = np.random.default_rng(0), of_text(DETECTED)
    with fenced():
        session, other = on_gpu(data, alone=True), ort.InferenceSession(data)
        for images, classes, count in ((1, 3, 150), (3, 2, 40), (2, 1, 1), (1, 1, 0)):
            corners, sizes = rng.uniform(0, 9, (images, count, 2)), rng.uniform(0, 5, (images, count, 2))
            feeds = {"boxes": np.concatenate([corners, sizes], 2).astype(np.float32),
                     "scores": rng.random((images, classes, count)).astype(np.float32)}
            found = session.run(None, feeds)[0]
            np.testing.assert_array_equal(found, other.run(None, feeds)[0])
    assert driver(session).launched["kept_rows"] == 3
