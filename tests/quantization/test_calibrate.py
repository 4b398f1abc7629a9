"""Calibration: ranges are those onnxruntime finds for the same arrays, and memory stays that of a run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus
from orthrus.errors import InvalidArgument
from orthrus.quantization import calibrate
from orthrus.quantization.calibrate import CalibrationMethod, create_calibrator
from orthrus.run.watch import Showing

METHODS = list(CalibrationMethod)


class Items(calibrate.CalibrationDataReader):
    """Gives `items` one by one."""

    def __init__(self, items: list[Any]) -> None:
        self.items = iter(items)

    def get_next(self) -> Any:
        return next(self.items, None)


def exact() -> onnx.ModelProto:
    """A model whose operators are exact: every engine computes the same bits."""
    node = helper.make_node
    nodes = [node("Relu", ["x"], ["a"], name="relu"), node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2]),
             node("Transpose", ["b"], ["c"], perm=[0, 2, 3, 1]), node("Mul", ["x", "half"], ["d"]),
             node("Neg", ["d"], ["e"]), node("Concat", ["d", "e"], ["f"], axis=1),
             node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["t"], to=1), node("Mul", ["t", "zero"], ["u"]),
             node("Constant", [], ["k"], value_floats=[-3.0, 5.0]), node("Identity", ["k"], ["l"])]
    return model(nodes, [info("x", shape=["n", 3, 6, 7])],
                 [info(n, shape=None) for n in "cful"], {"half": np.float32(0.5), "zero": np.float32(0)})


def images(count: int, seed: int = 0, batch: int = 2) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": (rng.standard_normal((batch, 3, 6, 7)) * (1 + i)).astype(np.float32)} for i in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    onnx.save(exact(), tmp_path / "exact.onnx")
    return str(tmp_path / "exact.onnx")


def theirs() -> Any:
    """onnxruntime's module; a test that asks for it is skipped without it."""
    return pytest.importorskip("onnxruntime.quantization.calibrate")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        yield


def same(found: Any, expected: Any, what: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
    np.testing.assert_array_equal(found, expected, err_msg=str(what))


def same_ranges(found: Any, expected: Any) -> None:
    assert set(found.keys()) == set(expected.keys())
    for name in expected.keys():  # noqa: SIM118
        for side, (a, b) in enumerate(zip(found[name].range_value, expected[name].range_value, strict=True)):
            same(a, b, (name, side))


RANGES = [
    (CalibrationMethod.MinMax, {}), (CalibrationMethod.MinMax, {"symmetric": True}),
    (CalibrationMethod.MinMax, {"moving_average": True, "averaging_constant": 0.3}),
    (CalibrationMethod.Entropy, {}), (CalibrationMethod.Entropy, {"num_bins": 140, "num_quantized_bins": 64}),
    (CalibrationMethod.Percentile, {}), (CalibrationMethod.Percentile, {"percentile": 90.0, "num_bins": 200}),
    (CalibrationMethod.Percentile, {"symmetric": False, "percentile": 99.0}),
    (CalibrationMethod.Distribution, {}), (CalibrationMethod.Distribution, {"scenario": "p3"}),
]


@pytest.mark.parametrize("method, options", RANGES)
def test_ranges_of_an_exact_model_are_theirs(method: CalibrationMethod, options: dict[str, Any], path: str,
                                             tmp_path: Path) -> None:
    ours = create_calibrator(path, calibrate_method=method, extra_options=options)
    other = theirs().create_calibrator(path, augmented_model_path=str(tmp_path / "augmented.onnx"),
                                       calibrate_method=theirs().CalibrationMethod[method.name],
                                       extra_options=options)
    for count, seed in ((3, 0), (4, 1), (1, 2)):
        ours.collect_data(Items(images(count, seed)))
        with quiet():
            other.collect_data(Items(images(count, seed)))
    with quiet():
        expected = other.compute_data()
    found = ours.compute_data()
    assert found.calibration_method.name == expected.calibration_method.name
    same_ranges(found, expected)
    for name in found.keys() if method is CalibrationMethod.Distribution else ():
        same(found[name].avg, expected[name].avg, name)
        if not np.isnan(expected[name].std):
            same(found[name].std, expected[name].std, name)


def test_ranges_by_channel_are_theirs(path: str, tmp_path: Path) -> None:
    """But for tensors of one dimension, for which theirs has no axis to keep, and what they have in several
    collections, which theirs cannot put together."""
    options = {"per_channel": True, "symmetric": True}
    ours = create_calibrator(path, ["MaxPool", "Concat"], extra_options=options)
    other = theirs().create_calibrator(path, ["MaxPool", "Concat"], str(tmp_path / "augmented.onnx"),
                                       extra_options=options)
    ours.collect_data(Items(images(3)))
    other.collect_data(Items(images(3)))
    same_ranges(ours.compute_data(), other.compute_data())
    assert ours.compute_data()["f"].lowest.shape == (6,)
    ours.collect_data(Items(images(2, 7)))
    whole = create_calibrator(path, ["MaxPool", "Concat"], extra_options=options)
    whole.collect_data(Items([*images(3), *images(2, 7)]))
    same_ranges(ours.compute_data(), whole.compute_data())


def collections(dtype: Any) -> list[dict[str, list[np.ndarray]]]:
    """Three collections of arrays of every kind, that grow and that do not."""
    rng, made = np.random.default_rng(0), []
    for scale in (1, 1.5, 1.2):
        plain = [(rng.standard_normal((2, 3, 900)) * scale).astype(dtype) for _ in range(3)]
        made.append({
            "plain": plain, "positive": [np.maximum(array, 0) for array in plain], "zero": [plain[0] * 0] * 2,
            "negative": [-np.abs(plain[1])], "one": [np.full(5, scale, dtype)], "none": [plain[0][:0]],
            "on edges": [np.round(plain[2] * 4).astype(dtype)],
            "turned": [plain[0].transpose(0, 2, 1)], "single": plain[:1],
            "small": [(rng.standard_normal(50) * 1e-4).astype(dtype)]})
    return made


HISTOGRAMS = [("entropy", False, 128, 128, np.float32), ("entropy", True, 141, 64, np.float32),
              ("percentile", True, 2048, 128, np.float32), ("percentile", False, 100, 128, np.float32),
              ("distribution", False, 512, 128, np.float32), ("entropy", False, 128, 128, np.float16),
              ("percentile", True, 64, 128, np.float16), ("percentile", False, 100, 128, np.float16)]


@pytest.mark.parametrize("method, symmetric, bins, quantized, dtype", HISTOGRAMS)
def test_histograms_of_the_same_arrays_are_theirs(method: str, symmetric: bool, bins: int, quantized: int,
                                                  dtype: Any) -> None:
    options = (method, symmetric, bins, quantized, 97.0, "same")
    ours, other = calibrate.HistogramCollector(*options), theirs().HistogramCollector(*options)
    for arrays in collections(dtype):
        if method == "percentile" and symmetric:
            del arrays["none"]  # on which theirs fails
        ours.collect(arrays)
        with quiet():
            other.collect(arrays)
    for name, expected in other.get_histogram_dict().items():
        for part, (a, b) in enumerate(zip(ours.get_histogram_dict()[name], expected, strict=True)):
            same(a, b, (name, part))
    with quiet():
        expected = other.compute_collection_result()
    with np.errstate(all="ignore"):
        found = ours.compute_collection_result()
    for name, result in expected.items():
        pairs = (zip(found[name][:2], result[:2], strict=True) if isinstance(result, tuple)
                 else [(found[name].avg, result.avg), (found[name].lowest, result.lowest)])
        for a, b in pairs:
            same(a, b, name)


def test_entropy_is_theirs() -> None:
    rng = np.random.default_rng(3)
    p, q = rng.random((40, 3)).astype(np.float32), rng.random((40, 3))
    p[5], q[7] = 0, 0
    for base in (None, 2.0):
        with quiet():
            same(calibrate.entropy(p, q, base), theirs().entropy(p, q, base), base)
            same(calibrate.entropy(p[:, 0], q[:, 0], base), theirs().entropy(p[:, 0], q[:, 0], base), base)
    with pytest.raises(ValueError, match="positive base"):
        calibrate.entropy(p, q, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_how_data_is_divided_into_arrays_changes_nothing(method: CalibrationMethod, path: str) -> None:
    """Not even where the arrays differ in shape."""
    whole, split = (create_calibrator(path, ["Concat"], calibrate_method=method) for _ in range(2))
    items = images(1, batch=7)
    whole.collect_data(Items(items))
    split.collect_data(Items([{"x": part} for part in np.split(items[0]["x"], [1, 3])]))
    same_ranges(split.compute_data(), whole.compute_data())


@pytest.mark.parametrize("method", METHODS)
def test_what_was_collected_is_saved_and_gone_on_with(method: CalibrationMethod, path: str, tmp_path: Path
                                                      ) -> None:
    first, resumed = (create_calibrator(path, calibrate_method=method) for _ in range(2))
    first.collect_data(Items(images(2)))
    first.save_collected(tmp_path / "so far.json")
    resumed.load_collected(tmp_path / "so far.json")
    assert resumed.items == 2
    same_ranges(resumed.compute_data(), first.compute_data())
    for each in (first, resumed):
        each.collect_data(Items(images(3, 5)))
    same_ranges(resumed.compute_data(), first.compute_data())
    (tmp_path / "other.json").write_text('{"items": 3}')
    with pytest.raises(ValueError, match="does not hold"):
        first.load_collected(tmp_path / "other.json")
    assert resumed.items == 5


def test_an_interrupted_collection_keeps_the_items_that_were_done(path: str) -> None:
    class Broken(Items):
        def get_next(self) -> Any:
            item = super().get_next()
            if item is None:
                raise KeyboardInterrupt
            return item
    broken, whole = create_calibrator(path), create_calibrator(path)
    with pytest.raises(KeyboardInterrupt):
        broken.collect_data(Broken(images(2)))
    whole.collect_data(Items(images(2)))
    same_ranges(broken.compute_data(), whole.compute_data())


@pytest.mark.parametrize("method", METHODS)
def test_what_providers_do_not_show_is_found_all_the_same(method: CalibrationMethod, path: str,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    seen = create_calibrator(path, calibrate_method=method)
    seen.collect_data(Items(images(3)))
    show = Showing._show
    monkeypatch.setattr(Showing, "_show", lambda self, value, array: (
        None if value.name in ("a", "f", "x", "l") else show(self, value, array)))
    hidden = create_calibrator(path, calibrate_method=method)
    hidden.collect_data(Items(images(3)))
    same_ranges(hidden.compute_data(), seen.compute_data())


@pytest.mark.parametrize("provider", [
    ("CPUExecutionProvider", {"use_codegen": "0"}),
    pytest.param("DnnlExecutionProvider", marks=needs("oneDNN")),
    pytest.param("IREEExecutionProvider", marks=needs("IREE"))])
def test_other_providers_find_the_same(provider: Any, path: str) -> None:
    plain = create_calibrator(path)
    plain.collect_data(Items(images(2)))
    other = create_calibrator(path, providers=[provider])
    other.collect_data(Items(images(2)))
    same_ranges(other.compute_data(), plain.compute_data())


def test_no_more_than_a_few_tensors_are_in_memory(tmp_path: Path) -> None:
    """A chain of tensors of a megabyte, calibrated in an arena of a few."""
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(40)]
    ends = [info(name, shape=[1 << 18]) for name in ("v0", "v40")]
    onnx.save(model(nodes, ends[:1], ends[1:]), tmp_path / "m.onnx")
    it = create_calibrator(str(tmp_path / "m.onnx"))
    it.collect_data(Items([{"v0": np.ones(1 << 18, np.float32)}] * 2))
    assert len(it.compute_data().keys()) == 41
    assert 1 << 20 <= sum(part.arena for part in it.infer_session.explain().parts) < 4 << 20


def test_a_reader_may_fill_one_array_again_and_again(path: str) -> None:
    class Reused(Items):
        array = np.empty((2, 3, 6, 7), np.float32)

        def get_next(self) -> Any:
            item = super().get_next()
            if item is None:
                return None
            self.array[...] = item["x"]
            return {"x": self.array}
    fresh, reused = (create_calibrator(path, calibrate_method=CalibrationMethod.Entropy) for _ in range(2))
    fresh.collect_data(Items(images(4)))
    reused.collect_data(Reused(images(4)))
    same_ranges(reused.compute_data(), fresh.compute_data())


@pytest.mark.parametrize("held", [0, 3000])
def test_items_wait_in_a_file_where_memory_is_short(held: int, path: str, monkeypatch: pytest.MonkeyPatch
                                                    ) -> None:
    plain = create_calibrator(path, calibrate_method=CalibrationMethod.Percentile)
    plain.collect_data(Items(images(4)))
    monkeypatch.setattr("orthrus.quantization.calibration.activations._HELD", held)
    spooled = create_calibrator(path, calibrate_method=CalibrationMethod.Percentile)
    spooled.collect_data(Items(images(4)))
    same_ranges(spooled.compute_data(), plain.compute_data())


BAD = [([], "No data is collected", "fresh reader"), ([{"y": 1}], "item 1 .* does not fit", "expected: x"),
       ([*images(1), [3]], "item 2 .* is no dict", "list"),
       ([*images(1), {"x": np.zeros((1, 2, 6, 7), np.float32)}], "item 2 .* cannot be run", "[1, 2, 6, 7]"),
       ([*images(1), {"x": np.zeros((1, 3, 6, 7))}], "item 2 .* cannot be run", "input x"),
       ([*images(2), {"x": np.full((1, 3, 6, 7), np.nan, np.float32)}], "tensor x has NaN", "126 of 126")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("items, what, more", BAD)
def test_data_that_does_not_fit_is_refused_by_name(method: CalibrationMethod, items: list[Any], what: str,
                                                   more: str, path: str) -> None:
    it = create_calibrator(path, calibrate_method=method)
    with pytest.raises(InvalidArgument, match=what) as error:
        it.collect_data(Items(items))
    assert isinstance(error.value, ValueError | TypeError) and more in str(error.value)
    if method is not CalibrationMethod.MinMax:
        with pytest.raises(ValueError, match="No collector"):
            it.compute_data()


def test_infinite_and_very_large_numbers() -> None:
    """Masks of the lowest number keep their range; no histogram has bins for them."""
    low = np.finfo(np.float32).min
    masks = [np.array([0, low, 0], np.float32), np.array([3, 0], np.float32)]
    for method in ("entropy", "percentile"):
        it = calibrate.HistogramCollector(method, False, 128, 128, 99.0, "same")
        for mask in masks:
            it.collect({"mask": mask})
        assert it.compute_collection_result()["mask"][:2] == (low, 3)
        with pytest.raises(ValueError, match="tensor mask has infinite values"):
            it.collect({"mask": np.array([np.inf], np.float32)})
    with pytest.raises(InvalidArgument, match="fewer bins"):
        calibrate.HistogramCollector("entropy", False, 5000, 8, 0, "same").collect(
            {"half": np.ones(3, np.float16)})


@pytest.mark.parametrize("options, what", [
    ({"method": "median"}, "'entropy', 'percentile' or 'distribution'"), ({"percentile": 101}, "percentile"),
    ({"num_bins": 4, "method": "entropy"}, "fewer bins"), ({"method": "distribution"}, "512 <= num_bins"),
    ({"method": "distribution", "num_bins": 600, "scenario": "p2"}, "scenario")])
def test_options_that_cannot_be_are_refused(options: dict[str, Any], what: str) -> None:
    given = {"method": "percentile", "symmetric": False, "num_bins": 100, "num_quantized_bins": 128,
             "percentile": 99.0, "scenario": "same", **options}
    with pytest.raises(ValueError, match=what):
        it = calibrate.HistogramCollector(**given)
        it.collect({"x": np.arange(5, dtype=np.float32)})
        it.compute_collection_result()


class Reducing(calibrate.MinMaxCalibrater):
    """A user's own augmented model, as onnxruntime's documentation makes it."""

    def augment_graph(self) -> None:
        tensors, stated = self.select_tensors_to_calibrate(self.model)
        for tensor in tensors:
            for op in ("ReduceMin", "ReduceMax"):
                made = f"{tensor}_{op}"
                self.model.graph.node.append(helper.make_node(op, [tensor], [made], keepdims=0))
                self.model.graph.output.append(info(made, stated[tensor].type.tensor_type.elem_type, []))
        onnx.save(self.model, self.augmented_model_path)


class Showy(calibrate.EntropyCalibrater):
    """A user's own augmented model with tensors as outputs, one of which is not to be calibrated."""

    def augment_graph(self) -> None:
        self.tensors_to_calibrate, stated = self.select_tensors_to_calibrate(self.model)
        self.model.graph.output.extend(stated[name] for name in (*self.tensors_to_calibrate, "s")
                                       if name not in self.model_original_outputs)
        onnx.save(self.model, self.augmented_model_path)


@pytest.mark.parametrize("kind, method", [(Reducing, CalibrationMethod.MinMax),
                                          (Showy, CalibrationMethod.Entropy)])
def test_a_subclass_with_an_augmented_model_of_its_own(kind: Any, method: CalibrationMethod, path: str,
                                                       tmp_path: Path) -> None:
    own = kind(path, ["Relu", "Concat"], str(tmp_path / "own.onnx"))
    own.augment_graph()
    own.create_inference_session()
    own.collect_data(Items(images(3)))
    plain = create_calibrator(path, ["Relu", "Concat"], calibrate_method=method)
    plain.collect_data(Items(images(3)))
    found, expected = own.compute_data(), plain.compute_data()
    assert set(found.keys()) == set(expected.keys()) == {"x", "a", "d", "e", "f"}
    for name in expected.keys():  # noqa: SIM118
        for a, b in zip(found[name].range_value, expected[name].range_value, strict=True):
            np.testing.assert_array_equal(np.ravel(a), np.ravel(b))


def test_the_augmented_model_is_written_where_it_is_asked_for(path: str, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create_calibrator(path)
    assert not Path("augmented_model.onnx").exists()
    it = create_calibrator(path, ["Concat"], "other.onnx")
    for made in (onnx.load("other.onnx"), it.get_augment_model()):
        assert {output.name for output in made.graph.output} == {
            "c", "f", "u", "l", *(f"{name}_{op}" for name in it.tensors_to_calibrate
                                  for op in ("ReduceMin", "ReduceMax"))}
    it = create_calibrator(path, ["Concat"], "shown.onnx", CalibrationMethod.Entropy)
    for made in (onnx.load("shown.onnx"), it.get_augment_model()):
        assert {output.name for output in made.graph.output} == {"c", "f", "u", "l", "d", "e"}
    with pytest.raises(ValueError, match="model path"):
        create_calibrator(onnx.load("other.onnx"))  # type: ignore[arg-type]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("opset", [13, 18])
def test_the_augmented_model_gives_the_ranges(opset: int, per_channel: bool, tmp_path: Path) -> None:
    """What a program of its own computes with the augmented model is what the calibrater finds."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], "r"), helper.make_node("Mul", ["a", "x"], ["y"], "m")]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, [2, 3, 4])],
                              [info("y", TensorProto.FLOAT, [2, 3, 4])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8),
              tmp_path / "m.onnx")
    it = create_calibrator(tmp_path / "m.onnx", augmented_model_path=str(tmp_path / "augmented.onnx"),
                           extra_options={"per_channel": per_channel})
    made = it.get_augment_model()
    added = {f"{name}_{op}" for name in "xay" for op in ("ReduceMin", "ReduceMax")}
    assert {output.name for output in made.graph.output} == {"y", *added}
    assert {node.name for node in made.graph.node} == {"r", "m", *added, *(f"{it}_Reshape" for it in added)}
    onnx.checker.check_model(made, full_check=True)
    x = np.random.default_rng(opset).normal(size=(2, 3, 4)).astype(np.float32)
    session = orthrus.InferenceSession(tmp_path / "augmented.onnx")
    names = [output.name for output in session.get_outputs()]
    given = dict(zip(names, session.run(None, {"x": x}), strict=True))
    it.collect_data(Items([{"x": x}]))
    for name, found in it.compute_data().items():
        for op, side in zip(("ReduceMin", "ReduceMax"), found.range_value, strict=True):
            np.testing.assert_array_equal(given[f"{name}_{op}"], np.ravel(side))


def test_averages_and_intermediate_ranges(path: str) -> None:
    """`max_intermediate_outputs` bounds what is kept, and changes no extreme."""
    few = create_calibrator(path, extra_options={"max_intermediate_outputs": 2})
    all_at_once = create_calibrator(path)
    for each in (few, all_at_once):
        each.collect_data(Items(images(5)))
    same_ranges(few.compute_data(), all_at_once.compute_data())
    for options in ({"moving_average": True, "averaging_constant": 1.5}, {"max_intermediate_outputs": 0}):
        with pytest.raises(ValueError, match="averaging constant|number of items"):
            create_calibrator(path, extra_options=options)


def test_nothing_is_printed_where_nobody_sits_at_a_terminal(path: str, capfd: pytest.CaptureFixture[str]
                                                            ) -> None:
    it = create_calibrator(path, calibrate_method=CalibrationMethod.Percentile)
    it.collect_data(Items(images(2)))
    it.compute_data()
    assert capfd.readouterr() == ("", "")
