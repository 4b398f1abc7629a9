"""Where a QDQ model loses accuracy: pairs and errors are those that onnxruntime finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import helper, numpy_helper

from orthrus.quantization import qdq_loss_debug, quantize_static
from orthrus.quantization.qdq_loss_debug import (
    collect_activations,
    compute_activation_error,
    compute_signal_to_quantization_noice_ratio,
    compute_weight_error,
    create_activation_matching,
    create_weight_matching,
    modify_model_output_intermediate_tensors,
)


class Items:
    """Gives the same three items to everyone who asks."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.items = iter([{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(3)])

    def get_next(self) -> Any:
        return next(self.items, None)

    def __iter__(self) -> Any:
        return self.items


@pytest.fixture(scope="module", params=[False, True], ids=["per tensor", "per channel"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model and its QDQ model, and both with their tensors as outputs."""
    made = tmp_path_factory.mktemp("loss")
    rng, node = np.random.default_rng(1), helper.make_node
    weights = {"w": rng.standard_normal((4, 3, 3, 3)), "b": rng.standard_normal(4),
               "v": rng.standard_normal((64, 5))}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1] * 4, strides=[2, 2]),
             node("Relu", ["c"], ["r"], name="relu"), node("Flatten", ["r"], ["f"], name="flatten"),
             node("MatMul", ["f", "v"], ["y"], name="product")]
    onnx.save(model(nodes, [info("x", shape=[1, 3, 8, 8])], [info("y", shape=[1, 5])],
                    {name: array.astype(np.float32) for name, array in weights.items()}), made / "float.onnx")
    quantize_static(str(made / "float.onnx"), str(made / "qdq.onnx"), Items(), per_channel=request.param)
    for name in ("float", "qdq"):
        modify_model_output_intermediate_tensors(made / f"{name}.onnx", made / f"{name}_all.onnx")
    return made


def activations(folder: Path, name: str) -> dict[str, list[np.ndarray]]:
    return collect_activations(str(folder / f"{name}_all.onnx"), Items())


def peer() -> Any:
    return pytest.importorskip("onnxruntime.quantization.qdq_loss_debug")


def test_activations_are_matched_as_theirs_are(folder: Path, tmp_path: Path) -> None:
    it = peer()
    it.modify_model_output_intermediate_tensors(folder / "qdq.onnx", tmp_path / "all.onnx")
    theirs = it.collect_activations(str(tmp_path / "all.onnx"), Items())
    ours = activations(folder, "qdq")
    assert ours.keys() == theirs.keys()
    for name, arrays in theirs.items():
        assert [a.shape for a in ours[name]] == [a.shape for a in arrays]
        scale = max(np.abs(a).max() for a in arrays)
        np.testing.assert_allclose(ours[name], arrays, atol=0.02 * scale, err_msg=name)
    floats = activations(folder, "float")
    matched, expected = (m.create_activation_matching(ours, floats) for m in (qdq_loss_debug, it))
    assert matched.keys() == expected.keys() and {"x", "y"} <= matched.keys()
    for name, pair in expected.items():
        assert matched[name].keys() == pair.keys() == {"pre_qdq", "post_qdq", "float"}
        for kind, arrays in pair.items():
            np.testing.assert_array_equal(matched[name][kind], arrays)
    found, known = (m.compute_activation_error(expected) for m in (qdq_loss_debug, it))
    assert found == known and all(each["xmodel_err"] > 30 for each in found.values())
    assert found["x"]["xmodel_err"] < 100


def test_weights_are_matched_as_theirs_are(folder: Path) -> None:
    paths = str(folder / "float.onnx"), str(folder / "qdq.onnx")
    ours, theirs = create_weight_matching(*paths), peer().create_weight_matching(*paths)
    assert ours.keys() == theirs.keys() == {"w", "b", "v"}
    for name, pair in theirs.items():
        for kind, array in pair.items():
            assert ours[name][kind].shape == array.shape
            np.testing.assert_allclose(ours[name][kind], array, rtol=1e-6, atol=1e-7)
    errors = compute_weight_error(ours)
    assert errors.keys() == ours.keys() and min(errors.values()) > 30
    assert compute_weight_error(ours, lambda a, b: a.size)["v"] == 320


def test_without_the_float_model_and_with_other_measures(folder: Path) -> None:
    matched = create_activation_matching(activations(folder, "qdq"))
    errors = compute_activation_error(matched, lambda a, b: float(len(a)))
    assert errors and all(each == {"qdq_err": 3.0} for each in errors.values())


def test_weights_by_other_names_are_left_out_aloud(folder: Path, tmp_path: Path,
                                                   caplog: pytest.LogCaptureFixture) -> None:
    made = onnx.load(folder / "qdq.onnx")
    for tensor in made.graph.initializer:
        if tensor.name == "w_quantized":
            tensor.name = "codes"
    for node in made.graph.node:
        node.input[:] = ["codes" if name == "w_quantized" else name for name in node.input]
    onnx.save(made, tmp_path / "renamed.onnx")
    assert create_weight_matching(folder / "float.onnx", tmp_path / "renamed.onnx").keys() == {"b", "v"}
    assert "codes has no name that the quantizer gives" in caplog.text
    other = onnx.load(folder / "float.onnx")
    kept = [tensor for tensor in other.graph.initializer if tensor.name != "w"]
    del other.graph.initializer[:]
    other.graph.initializer.extend([*kept, numpy_helper.from_array(np.zeros(1, np.float32), "u")])
    other.graph.input.add(name="w").type.CopyFrom(info("w", shape=[4, 3, 3, 3]).type)
    onnx.save(other, tmp_path / "fed.onnx")
    assert create_weight_matching(tmp_path / "fed.onnx", folder / "qdq.onnx").keys() == {"b", "v"}
    assert "has no weight w" in caplog.text


def test_noise_is_measured_in_decibels() -> None:
    x = np.array([3.0, 4.0], np.float32)
    ratio = compute_signal_to_quantization_noice_ratio
    assert ratio(x, x * np.float32(0.9)) == pytest.approx(20, abs=1e-4)
    assert ratio([x, x], [x, x * np.float32(0.9)]) == pytest.approx(20 + 10 * np.log10(2), abs=1e-4)
    assert ratio(x, x) > 300 and ratio(x * 0, x) < 0
    assert ratio(np.float32(2) * np.ones(()), np.float32(1.8) * np.ones(())) == pytest.approx(20, abs=1e-4)
    with pytest.raises(RuntimeError, match="Unequal number"):
        ratio([x], [x, x])


def test_a_reader_that_gives_nothing_is_refused(folder: Path) -> None:
    reader = Items()
    list(reader)
    with pytest.raises(RuntimeError, match="No data is collected"):
        collect_activations(str(folder / "qdq_all.onnx"), reader)
