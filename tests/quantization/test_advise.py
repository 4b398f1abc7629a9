"""`advise` and `orthrus quantize`: recipes are tried, nothing slower is proposed, nodes stay in float."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

import orthrus as ort
from orthrus.errors import InvalidArgument
from orthrus.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    advise,
    quantize_dynamic,
    quantize_static,
)
from orthrus.quantization.advising import advice as module
from orthrus.quantization.advising.accuracy import Comparing
from orthrus.quantization.advising.errors_by_node import errors_by_node
from orthrus.quantization.advising.search import Memory, search
from orthrus.tools.cli.main import app


def network(path: Path, layers: int = 3, harmed: int | None = None, wide: int = 32) -> Path:
    """A chain of MatMul and Relu. One weight of layer `harmed` is so large that the others are few
    steps of the tensor's; it stands where what comes in is 0."""
    rng = np.random.default_rng(3)
    nodes: list[Any] = []
    weights, name = {}, "x"
    for i in range(layers):
        w = rng.standard_normal((wide, wide)).astype(np.float32) / 6
        if harmed is not None and i == harmed - 1:
            w[:, 0] = 0
        if i == harmed:
            w[0, 0] = 30
        weights[f"w{i}"] = w
        nodes += [helper.make_node("MatMul", [name, f"w{i}"], [f"m{i}"], f"product_{i}"),
                  helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"relu_{i}")]
        name = f"r{i}"
    ends = [[graphs.info(end, shape=["n", wide])] for end in ("x", name)]
    onnx.save(graphs.model(nodes, *ends, weights), path)
    return path


def items(count: int = 8, wide: int = 32) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [{"x": rng.standard_normal((4, wide)).astype(np.float32)} for _ in range(count)]


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How many times as fast as float a recipe is, by the beginning of its name; 2 where nothing is said."""
    planned: dict[str, float] = {}
    tried = module._Run._tried

    def raced(self: Any, session: Any) -> tuple[float, float, float, float]:
        ratio = planned.get(self.now, 2.0)
        return 1e-3 / ratio, ratio, ratio * 0.99, ratio * 1.01

    def noting(self: Any, recipe: Any, left: Any = ()) -> Any:
        self.now = next((name for name in planned if recipe.name.startswith(name)), "")
        return tried(self, recipe, left)
    monkeypatch.setattr(module._Run, "_raced", raced)
    monkeypatch.setattr(module._Run, "_tried", noting)
    return planned


# accuracy


def compared(*pairs: tuple[Any, Any], **more: Any) -> Any:
    comparing = Comparing(**more)
    for trusted, doubted in pairs:
        comparing.add([np.asarray(trusted)], [np.asarray(doubted)])
    return comparing.result()


def test_accuracy_is_that_of_all_items_together() -> None:
    x, y = np.array([[3.0, 4.0]], np.float32), np.array([[3.0, 4.5]], np.float32)
    found = compared((x, x), (x, y))
    assert found.sqnr == pytest.approx(10 * math.log10(50 / 0.25))
    assert found.cosine == pytest.approx((25 + 27) / math.sqrt(50 * (25 + 29.25)))
    assert found.agreement == 1.0
    assert compared((x, x[:, ::-1])).agreement == 0.0
    assert compared((x, x)).sqnr == math.inf
    assert compared((x, x), score=lambda kept: float(len(kept))).score == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_on_one_side_alone_is_all_noise(value: float) -> None:
    x = np.array([[1.0, 2.0]], np.float32)
    y = np.array([[value, 2.0]], np.float32)
    assert compared((x, y)).sqnr == -math.inf and compared((x, y)).cosine == 0.0
    assert compared((y, y)).sqnr == math.inf


def test_whole_numbers_agree_or_do_not() -> None:
    found = compared((np.array([1, 2, 3, 4]), np.array([1, 2, 0, 4])))
    assert found.agreement == 0.75 and found.sqnr == math.inf
    with pytest.raises(ValueError, match="output 0 has shape"):
        compared((np.zeros((2, 2), np.float32), np.zeros((2, 3), np.float32)))


# searching


@pytest.mark.parametrize("bad", [[], [3], [0, 7], [1, 2, 5, 6], list(range(8))])
def test_a_search_leaves_the_fewest_nodes_in_float(bad: list[int], tmp_path: Path) -> None:
    nodes = [f"n{i}" for i in range(8)]
    harm = {f"n{i}": 10.0 + i for i in bad}

    def measure(left: Any) -> float:
        return -sum(value for name, value in harm.items() if name not in left)
    steps = search(nodes, -0.5, measure, Memory(tmp_path / "s.json", "a"))
    assert set(steps[-1].left) == set(harm) and steps[-1].accuracy >= -0.5


def test_a_search_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    nodes, asked = [f"n{i}" for i in range(6)], []

    def measure(left: Any) -> float:
        asked.append(tuple(sorted(left)))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return -1.0 if "n2" not in left else 0.0
    path = tmp_path / "s.json"
    with pytest.raises(KeyboardInterrupt):
        search(nodes, 0.0, measure, Memory(path, "a"))
    first = asked[:3]
    steps = search(nodes, 0.0, measure, Memory(path, "a"))
    assert steps[-1].left == ("n2",) and not set(first) & set(asked[4:])
    count = len(asked)
    search(nodes, 0.0, measure, Memory(path, "another setting"))
    assert len(asked) > count
    path.write_text("{")
    assert search(nodes, 0.0, measure, Memory(path, "a"))[-1].left == ("n2",)


# advising


def test_the_fastest_that_is_accurate_enough_is_proposed(tmp_path: Path, speeds: dict[str, float]) -> None:
    speeds.update({"weights 8": 3.0, "static int8 minmax": 2.5})
    path, out = network(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    advice = advise(path, out, items(), folder=tmp_path / "kept")
    tried = {o.recipe: o for o in advice.outcomes}
    assert all(o.accuracy is not None for o in advice.outcomes), [o.note for o in advice.outcomes]
    assert advice.best is tried["weights 8 bits"] and advice.measure == "agreement"
    assert advise(path, None, items(), target_accuracy=math.inf, recipes=["static"]).best is None
    assert tried["weights 4 bits"].size < tried["weights 8 bits"].size < advice.float_model.size
    x = items()[0]
    for o in advice.outcomes:
        assert o.accuracy is not None and o.accuracy.sqnr > 10, o
    want, got = (np.asarray(ort.InferenceSession(each).run(None, x)[0]) for each in (path, out))
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()
    text = str(advice)
    assert "take this" in text and f"take {advice.best.recipe}" in text and "product_" in text
    assert json.loads(json.dumps(advice.plain()))["best"]["recipe"] == advice.best.recipe


def test_nothing_slower_is_proposed(tmp_path: Path, speeds: dict[str, float]) -> None:
    path, out = network(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    speeds.update({"": 0.9})
    advice = advise(path, out, items())
    assert advice.best is None and not out.exists() and "keep it as it is" in str(advice)
    speeds.clear()
    speeds.update({"static": 0.9, "float16": 0.9, "weights": 0.9, "dynamic": 1.5})
    best = advise(path, out, items()).best
    assert best is not None and best.recipe.startswith("dynamic") and out.exists()


@pytest.mark.usefixtures("speeds")
def test_nodes_are_left_in_float_until_it_is_accurate_enough(tmp_path: Path) -> None:
    path = network(tmp_path / "m.onnx", layers=4, harmed=2)
    told: list[str] = []
    plain = advise(path, None, items(), recipes=["dynamic int8"])
    assert plain.outcomes[0].accuracy is not None and plain.outcomes[0].accuracy.sqnr < 25
    advice = advise(path, tmp_path / "q.onnx", items(), recipes=["dynamic int8"], target_accuracy=25.0,
                    measure="sqnr", folder=tmp_path / "kept", tell=told.append)
    assert advice.best is not None and advice.best.left == ("product_2",) and advice.best.accuracy is not None
    assert advice.best.accuracy.sqnr >= 25.0
    assert any("nodes in float" in text for text in told) and "1 nodes left in float" in advice.verdict
    kinds = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    assert kinds.count("MatMul") == 1 and kinds.count("MatMulInteger") == 3


def test_the_nodes_that_cost_most_are_named(tmp_path: Path, speeds: dict[str, float]) -> None:
    path = network(tmp_path / "m.onnx", layers=4, harmed=1)
    advice = advise(path, None, items(), recipes=["dynamic int8"], folder=tmp_path / "kept")
    worst = max(advice.errors, key=lambda e: e.added)
    assert worst.node == "product_1" and "product_1" in str(advice)
    kept = Path(advice.float_model.model or "")
    found = errors_by_node(kept, kept, items(1))
    assert found and all(e.noise == 0 and e.largest == 0 for e in found)
    page = tmp_path / "page.html"
    advice.write_page(page)
    assert "product_1" in page.read_text() and '"checked":true' in page.read_text()


@pytest.mark.usefixtures("speeds")
def test_what_was_kept_of_other_data_is_not_used(tmp_path: Path) -> None:
    path, kept = network(tmp_path / "m.onnx"), tmp_path / "kept"
    larger = [{"x": 100 * item["x"]} for item in items()]
    advise(path, None, items(), recipes=["static int8 minmax"], folder=kept)
    again, fresh = (advise(path, None, larger, recipes=["static int8 minmax"], folder=folder).outcomes[0]
                    for folder in (kept, tmp_path / "fresh"))
    assert again.accuracy == fresh.accuracy


def test_without_data_inputs_are_random_and_it_says_so(tmp_path: Path, speeds: dict[str, float]) -> None:
    advice = advise(network(tmp_path / "m.onnx"))
    tried = {o.recipe: o for o in advice.outcomes}
    assert tried["static int8 minmax"].note == "needs data" and tried["dynamic int8"].accuracy is not None
    assert any("random" in note for note in advice.notes)


def test_a_model_without_weights_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(graphs.chain(2), path)
    advice = advise(path, tmp_path / "q.onnx")
    assert advice.best is None and all(o.note for o in advice.outcomes)


@pytest.mark.parametrize(("more", "said"), [
    ({"recipes": ["int3"]}, "no such recipes"), ({"measure": "loss"}, "not measured in 'loss'"),
    ({"data": []}, "no item")])
def test_what_cannot_be_meant_is_refused(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=said):
        advise(network(tmp_path / "m.onnx"), **more)


def sums(path: Path, feeds: list[dict[str, Any]], wanted: list[Any]) -> Any:
    s, comparing = ort.InferenceSession(path), Comparing()
    for feed, trusted in zip(feeds, wanted, strict=True):
        comparing.add(trusted, s.run(None, feed))
    return comparing.result()


@pytest.mark.usefixtures("speeds")
@pytest.mark.parametrize("harmed", [None, 1])
def test_some_recipe_is_no_larger_and_as_accurate_as_each_of_the_tools(harmed: int | None, tmp_path: Path
                                                                       ) -> None:
    path, data = network(tmp_path / "m.onnx", harmed=harmed, wide=160), items(wide=160)
    out, s = tmp_path / "q.onnx", ort.InferenceSession(path)
    wanted = [s.run(None, item) for item in data]
    advice = advise(path, None, data, evaluation=data)
    for how, given in every_tool():
        if how is quantize_static:
            given = {"calibration_data_reader": Rows(data), **given}
        how(path, out, **given)
        size, found = out.stat().st_size, sums(out, data, wanted)
        assert any(o.accuracy is not None and o.size <= 1.02 * size + 2048 and
                   o.accuracy.sqnr >= found.sqnr - 0.1 and o.accuracy.agreement >= found.agreement
                   for o in advice.outcomes), (how, given, found)


class Rows(CalibrationDataReader):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = iter(rows)

    def get_next(self) -> Any:
        return next(self.rows, None)


def every_tool() -> Iterator[tuple[Any, dict[str, Any]]]:
    for channel in (False, True):
        for weight in (QuantType.QInt8, QuantType.QUInt8):
            yield quantize_dynamic, {"per_channel": channel, "weight_type": weight}
        for form in QuantFormat:
            for method in ("MinMax", "Entropy", "Percentile"):
                yield quantize_static, {"per_channel": channel, "quant_format": form,
                                        "calibrate_method": CalibrationMethod[method],
                                        "activation_type": QuantType.QUInt8}


# the command


def test_the_command(tmp_path: Path, speeds: dict[str, float]) -> None:
    path, out, page = network(tmp_path / "m.onnx"), tmp_path / "q.onnx", tmp_path / "p.html"
    folder = tmp_path / "data"
    folder.mkdir()
    for i, item in enumerate(items()):
        np.savez(folder / f"{i}.npz", **item)
    run = CliRunner().invoke
    done = run(app, ["quantize", str(path), str(out), "--data", str(folder), "--json", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["best"] and out.exists() and page.exists()
    done = run(app, ["quantize", str(path), "--recipe", "dynamic", "--data", str(folder / "0.npz")])
    assert done.exit_code == 0 and "dynamic int8" in done.stdout and "speedup" in done.stdout
    speeds.update({"": 0.5})
    done = run(app, ["quantize", str(path), str(tmp_path / "none.onnx"), "--recipe", "dynamic"])
    assert done.exit_code == 1 and not (tmp_path / "none.onnx").exists()
    done = run(app, ["quantize", str(path), "--data", str(tmp_path)])
    assert done.exit_code == 1 and "no .npy" in done.output
