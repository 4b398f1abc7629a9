"""Suppression of overlapping boxes: the generated comparison gives what the definition gives."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("native")

from graphs import info, model
from hypothesis import given, settings
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


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 70), min_size=1, max_size=5), st.integers(1, 40),
       st.sampled_from((0.0, 0.25, 0.5, 1.0)), st.sampled_from(("plain", "grid", "odd")), st.integers(0, 999),
       st.sampled_from((None, machine.AVX2, machine.SSE2)))
def test_lists(lengths: list[int], most: int, limit: float, kind: str, seed: int,
               target: machine.Machine) -> None:
    rng = np.random.default_rng(seed)
    lists = [boxes(rng, n, kind) for n in lengths]
    starts, total = np.cumsum([0, *lengths]).astype(np.int64), sum(lengths)
    given_boxes = native.guarded(np.ascontiguousarray(np.concatenate(lists).T))
    chosen = native.guarded(np.full(total, -7, np.int64))
    counts = native.guarded(np.zeros(len(lists), np.int64))
    lanes = (target or host()).lanes()
    native.run(nms.suppressed(), given_boxes, total, native.guarded(starts), most, float(limit), chosen,
               counts, items=len(lists), scratch=nms.scratch(most, lanes), machine=target, splits=(1,))
    with np.errstate(all="ignore"):
        expected = [sampling._suppressed(b[:, :2], b[:, 2:], most, limit) for b in lists]
    for begin, count, wanted in zip(starts, counts, expected, strict=False):
        assert chosen[begin:begin + count].tolist() == wanted


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
    nothing = {"b": feeds["b"][:, :0], "s": feeds["s"][:, :, :0]}
    assert s.run(None, nothing)[0].shape == (0, 3)
