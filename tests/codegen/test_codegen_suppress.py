"""Suppression of overlapping boxes: the generated comparison gives what the definition gives."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("native")

from draws import draws
from graphs import info, model
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import native
import orthrus as ort
from orthrus.codegen.kernels import nms
from orthrus.codegen.machines import machine
from orthrus.codegen.machines.detect import host
from orthrus.ops.nn import sampling


def boxes(rng: np.random.Generator, count: int, kind: str) -> np.ndarray:
    """[count, 4]: low corners, then high ones, of boxes that overlap; some without area, or equal."""
    low = rng.uniform(0, 6, (count, 2))
    sides = rng.uniform(-1 if kind == "odd" else 0.5, 4, (count, 2))
    made = np.concatenate([low, low + sides], 1).astype(np.float32)
    if kind == "grid":
        made = np.round(made)
    if kind == "odd" and count:
        made[rng.integers(0, count, count // 4)] = rng.choice([np.nan, np.inf, 0.0], 4)
    return made


def scores(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Of any size; with `grid` few different ones, with `odd` of both signs of zero, infinite, NaN."""
    made = rng.uniform(-1, 1, shape).astype(np.float32)
    if kind == "grid":
        made = np.round(2 * made)
    if kind == "odd":
        odd = rng.random(shape) < 0.4
        made[odd] = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -np.nan], np.float32), odd.sum())
    return made


@draws(80)
@given(st.integers(1, 2), st.integers(1, 3), st.one_of(st.integers(1, 70), st.integers(200, 400)),
       st.integers(1, 40), st.sampled_from((0.0, 0.25, 0.5, 1.0)),
       st.sampled_from((None, -2.0, 0.0, 0.5, 1.0)), st.sampled_from(("plain", "grid", "odd")), st.booleans(),
       st.integers(0, 999), st.sampled_from((None, machine.AVX2, machine.SSE2)))
def test_lists(images: int, classes: int, total: int, most: int, limit: float, least: float | None, kind: str,
               centered: bool, seed: int, target: machine.Machine | None) -> None:
    rng = np.random.default_rng(seed)
    given_boxes = np.stack([boxes(rng, total, kind) for _ in range(images)])
    given_scores = scores(rng, (images, classes, total), kind)
    rows = native.guarded(np.full((images * classes, most, 3), -7, np.int64))
    counts = native.guarded(np.zeros(images * classes, np.int64))
    lanes = (target or host()).lanes()
    native.run(nms.suppressed(centered=centered, bounded=least is not None), native.guarded(given_boxes),
               native.guarded(given_scores), total, classes, most, float(limit), float(least or 0), rows,
               counts, items=images * classes, scratch=nms.scratch(total, most, lanes), machine=target,
               splits=(1,))
    with np.errstate(all="ignore"):
        expected = sampling.NonMaxSuppression(
            given_boxes, given_scores, np.array([most]), np.array([limit], np.float32),
            None if least is None else np.array([least], np.float32), center_point_box=int(centered))
    got = [row for found, count in zip(rows, counts, strict=True) for row in found[:count].tolist()]
    assert got == expected.tolist()


@pytest.mark.parametrize("centred", (0, 1))
@pytest.mark.parametrize("given_scores", (True, False))
def test_sessions(centred: int, given_scores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(centred)
    feeds = {"b": np.stack([boxes(rng, 3000, "plain") for _ in range(2)]),
             "s": rng.random((2, 4, 3000)).astype(np.float32)}
    weights = {"most": np.array([50]), "iou": np.array([0.4], np.float32),
               "score": np.array([0.3], np.float32)}
    inputs = ["b", "s", "most", "iou", *(["score"] * given_scores)]
    made = model([helper.make_node("NonMaxSuppression", inputs, ["y"], name="nms", center_point_box=centred)],
                 [info("b", shape=(2, "n", 4)), info("s", shape=(2, 4, "n"))],
                 [info("y", TensorProto.INT64, ("k", 3))], weights).SerializeToString()
    s = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
    plain = ort.InferenceSession(made, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    assert "generated" in str(s.explain()["nms"]) and "reference" in str(plain.explain()["nms"])
    (got,) = s.run(None, feeds)
    monkeypatch.setattr(sampling, "_CANDIDATES", 1 << 20)
    (expected,) = plain.run(None, feeds)
    np.testing.assert_array_equal(got, expected)
    assert 100 < len(got) <= 400 and got.dtype == np.int64
    s.run(None, {"b": feeds["b"][:, ::-3][:, :7], "s": feeds["s"][:, :, ::2][:, :, :7]})
    np.testing.assert_array_equal(s.run(None, feeds)[0], expected)
    nothing = {"b": feeds["b"][:, :0], "s": feeds["s"][:, :, :0]}
    assert s.run(None, nothing)[0].shape == (0, 3)
