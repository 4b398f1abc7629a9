"""The shipped model and the demo around it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from orthrus.demo import FOLDER, MODEL, samples
from orthrus.tools.demo.digits import classify, drawing

ROOT = Path(__file__).resolve().parents[2]


def test_the_package_stays_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("digits.*")) < 200_000


def test_most_digits_are_right() -> None:
    outcome = classify(["CPUExecutionProvider"])
    assert len(outcome.labels) == 360
    assert outcome.accuracy >= 0.97
    assert outcome.accuracy == pytest.approx(float(_metadata()["accuracy"]), abs=0.003)
    np.testing.assert_allclose(outcome.probabilities.sum(axis=1), 1, rtol=1e-5)
    assert set(outcome.report.providers) == {"CPUExecutionProvider"}
    assert 0 < outcome.per_image_in_batch < 1 and 0 < outcome.one_image < 1


def test_the_training_script_computes_what_the_model_does() -> None:
    script = _script()
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(MODEL).graph.initializer}
    images, _ = samples()
    scores, _ = script.forward(weights, images / 16)
    np.testing.assert_array_equal(scores.argmax(axis=1), classify([]).predictions)


def test_the_gradient_is_the_slope() -> None:
    script, rng = _script(), np.random.default_rng(0)
    weights = {k: v.astype(np.float64) for k, v in script.initial(rng).items()}
    x, labels = rng.random((3, 1, 8, 8)), np.array([1, 5, 9])
    _, gradient = script.gradients(weights, x, labels)
    for name, value in weights.items():
        at = tuple(int(rng.integers(0, d)) for d in value.shape)
        loss = []
        for step in (1e-5, -1e-5):
            moved = {**weights, name: value.copy()}
            moved[name][at] += step
            loss.append(script.gradients(moved, x, labels)[0])
        assert (loss[0] - loss[1]) / 2e-5 == pytest.approx(gradient[name][at], rel=1e-3, abs=1e-6), name


def test_drawing() -> None:
    image = np.zeros((8, 8), np.float32)
    image[2, 3], image[7, 7] = 16, 8
    lines = drawing(image)
    assert [len(line) for line in lines] == [16] * 8
    assert lines[2] == " " * 6 + "██" + " " * 8 and lines[7].endswith("▒▒") and not lines[0].strip()


def _metadata() -> dict[str, str]:
    return {p.key: p.value for p in onnx.load(MODEL).metadata_props}


def _script() -> object:
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("train_digits", ROOT / "examples" / "train_digits.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
