"""Tiles that are measured: chosen by the device's clock, whose times the tests choose, run for real, handed
around in onnxruntime's form."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gpu_models import model, node, of_arrays

import orthrus as ort
from orthrus.codegen.triton import tiles
from orthrus.codegen.triton.targets import TARGETS
from orthrus.errors import Fail
from orthrus.lowering.gpu import tuning
from orthrus.providers.gpu import device as devices
from orthrus.providers.gpu import tuned
from orthrus.providers.rocm import ROCMExecutionProvider
from orthrus.tools import offline_tuning

pytestmark = pytest.mark.needs("AMD tables", "Triton")
NAME = "ROCMExecutionProvider"
M, N, K = 48, 40, 64
TUNED = {"tunable_op_enable": 1, "tunable_op_tuning_enable": 1, "tunable_op_max_tuning_duration_ms": 1}
PRODUCT = tiles.Problem(M, N, K, 1, "float32")
WAYS = tiles.candidates(TARGETS["gfx1100"], PRODUCT)[:4]


def grid(way: tuning.Way) -> tuple[int, int]:
    """Blocks and threads of the product by this way."""
    tile, parts = way
    return -(-M // tile.m) * -(-N // tile.n) * parts, tile.warps * 32


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU whose launches take the milliseconds that `costs` has by blocks and threads, else 5. `spoils`:
    such launches whose results are wrong. No other test's results are its own."""
    from gfx.driver import EmulatedDriver

    class Timed(EmulatedDriver):
        costs: dict[tuple[int, int], float] = {}
        spoils: set[tuple[int, int]] = set()

        def _launch(self, function: int, blocks: int, threads: int, shared: int, arguments: bytes) -> None:
            super()._launch(function, blocks, threads, shared, arguments)
            self.clock += int(1e6 * self.costs.get((blocks, threads), 5))
            if (blocks, threads) in self.spoils:
                address = int.from_bytes(arguments[16:24], "little")
                room, at = self.found(address) or pytest.fail("no result")
                room[at:at + 4].view(np.float32)[...] += 1e3

        def properties(self, index: int) -> Any:
            return replace(super().properties(index), name=model_name)

    class Found:
        driver = made = staticmethod(lambda: found)
    model_name = f"emulated {uuid.uuid4()}"
    found = Timed("gfx1100", most=1 << 26)
    monkeypatch.setattr(ROCMExecutionProvider, "finding", Found)
    monkeypatch.setattr(devices, "_shared", {})
    monkeypatch.setattr(tuning, "MOST", len(WAYS))
    return found


def product(**metadata: str) -> bytes:
    b = np.random.default_rng(1).standard_normal((K, N)).astype(np.float32)
    made = onnx.load_from_string(model([node("MatMul", "x b", "y")], {"x": ("n", K)}, ["y"], b=b))
    onnx.helper.set_model_props(made, metadata)
    return bytes(made.SerializeToString())


X = np.random.default_rng(0).standard_normal((M, K)).astype(np.float32)


def session(proto: bytes | None = None, **options: Any) -> ort.InferenceSession:
    return ort.InferenceSession(proto or product(), providers=[(NAME, options), "CPUExecutionProvider"])


def check(made: ort.InferenceSession) -> None:
    b = onnx.numpy_helper.to_array(onnx.load_from_string(product()).graph.initializer[0])
    np.testing.assert_allclose(made.run(None, {"x": X})[0], X @ b, 1e-5, 1e-5)


def chosen(made: ort.InferenceSession) -> int:
    """The only result there is."""
    (entry,) = made.get_tuning_results()
    ((_, found),) = entry["results"].items()
    ((parameters, way),) = found.items()
    assert parameters == f"{M}x{N}x{K}x1"
    return int(way)


@pytest.fixture
def other(driver: Any) -> tuning.Way:
    """A way that is not the model's first, and now the fastest."""
    way = next(way for way in WAYS[1:] if all(grid(way) != grid(w) for w in WAYS if w != way))
    driver.costs = {grid(way): 1}
    return way


def test_numbers_of_ways_are_all_different() -> None:
    problems = [tiles.Problem(m, n, k, 1, dtype) for m in (1, 16, 500, 4096) for n in (8, 512, 4096)
                for k in (16, 4096) for dtype in ("float16", "float32", "int8")]
    for target in ("sm_90", "gfx942", "gfx1100"):
        for problem in problems:
            ways = tiles.candidates(TARGETS[target], problem)
            assert len({tuning.number(way) for way in ways}) == len(ways)


def test_nothing_is_measured_unless_asked_for(driver: Any, other: tuning.Way) -> None:
    for options in ({}, {"tunable_op_enable": 1}, {"tunable_op_tuning_enable": 1}):
        made = session(**options)
        check(made)
        (entry,) = made.get_tuning_results()
        assert entry["ep"] == NAME and entry["results"] == {}
    assert driver.launched == {"products": 3}


def test_the_fastest_is_chosen_and_kept(driver: Any, other: tuning.Way) -> None:
    made = session(**TUNED)
    assert not driver.launched
    check(made)
    assert chosen(made) == tuning.number(other)
    driver.launched.clear()
    check(made)
    assert driver.launched == {"products": 1}
    driver.costs, driver.launched = {}, type(driver.launched)()
    again = session(tunable_op_enable=1)
    check(again)
    assert chosen(again) == tuning.number(other), "not read from the disk"
    assert driver.launched == {"products": 1}
    unasked = session()
    check(unasked)
    assert unasked.get_tuning_results()[0]["results"] == {}


def test_the_models_choice_stays_where_nothing_is_faster(driver: Any) -> None:
    made = session(**TUNED)
    check(made)
    assert chosen(made) == tuning.number(WAYS[0])


def test_a_tile_with_other_results_is_left_out(driver: Any, other: tuning.Way,
                                              caplog: pytest.LogCaptureFixture) -> None:
    driver.spoils = {grid(other)}
    made = session(**TUNED)
    check(made)
    assert chosen(made) != tuning.number(other)
    assert "left out: its results differ" in caplog.text


def test_results_are_set(driver: Any, other: tuning.Way) -> None:
    first = session(**TUNED)
    check(first)
    results = json.loads(json.dumps(first.get_tuning_results()))
    ((operator, ways),) = results[0]["results"].items()
    forget(driver)
    made = session(tunable_op_enable=1)
    before = _grids(driver, made)
    made.set_tuning_results(results, error_on_invalid=True)
    assert chosen(made) == tuning.number(other)
    assert _grids(driver, made) == [grid(other)] != before
    ways[f"{M}x{N}x{K}x1"] = 12345678
    made.set_tuning_results(results)
    assert _grids(driver, made) == before, "a tile that no product has"


def forget(driver: Any) -> None:
    """Whatever lies on the disk is not found any more."""
    tuned.cache.store({tuned._file(tuned.validators(ROCMExecutionProvider())): b"no results"})


def _grids(driver: Any, made: ort.InferenceSession) -> list[tuple[int, int]]:
    """What a run launches."""
    found = []
    launch = type(driver)._launch

    def noted(self: Any, function: int, blocks: int, threads: int, *rest: Any) -> None:
        found.append((blocks, threads))
        launch(self, function, blocks, threads, *rest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(driver), "_launch", noted)
        check(made)
    return found


def test_results_in_a_model(driver: Any, other: tuning.Way, tmp_path: Path) -> None:
    first = session(**TUNED)
    check(first)
    results = first.get_tuning_results()
    plain, told, model = tmp_path / "m.onnx", tmp_path / "r.json", tmp_path / "tuned.onnx"
    plain.write_bytes(product())
    told.write_text(json.dumps(results))
    assert offline_tuning.main(["embed", str(model), str(plain), str(told)]) == 0
    forget(driver)
    made = session(model.read_bytes())
    assert chosen(made) == tuning.number(other)
    assert _grids(driver, made) == [grid(other)]
    on_cpu = ort.InferenceSession(model.read_bytes(), providers=["CPUExecutionProvider"])
    assert on_cpu.get_tuning_results() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ("convolution", "grouped convolution", "batched product", "bytes"))
def test_whatever_has_tiles_is_tuned(name: str, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, asked = np.random.default_rng(2), list[tuple[str, list[tuning.Way]]]()
    best = tuning.Tuner.best

    def noted(self: tuning.Tuner, lo: Any, task: tuning.Task, ways: list[tuning.Way]) -> tuning.Way:
        asked.append((task.operator, ways[:3]))
        return best(self, lo, task, ways)
    monkeypatch.setattr(tuning.Tuner, "best", noted)
    monkeypatch.setattr(tuning, "MOST", 3)
    if "convolution" in name:
        groups = 2 if "grouped" in name else 1
        w = rng.standard_normal((32, 32 // groups, 3, 3)).astype(np.float32)
        proto, feeds = of_arrays("Conv", [rng.standard_normal((1, 32, 6, 5)).astype(np.float32), w],
                                 group=groups, pads=[1, 1, 0, 0])
    elif name == "batched product":
        proto, feeds = of_arrays("MatMul", [rng.standard_normal(s).astype(np.float16)
                                            for s in ((2, 1, 20, 33), (3, 33, 24))])
    else:
        proto, feeds = of_arrays("MatMulInteger", [rng.integers(0, 255, (20, 40)).astype(np.uint8),
                                                   rng.integers(-99, 99, (40, 24)).astype(np.int8),
                                                   np.array(7, np.uint8), np.array(-3, np.int8)])
    made = session(proto, **TUNED)
    found = made.run(None, feeds)[0]
    expected = ort.InferenceSession(proto, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), 1e-2, 1e-3)
    ((operator, ways),) = asked
    ((parameters, _),) = made.get_tuning_results()[0]["results"][operator].items()
    for way in ways[1:]:
        results = made.get_tuning_results()
        results[0]["results"] = {operator: {parameters: tuning.number(way)}}
        made.set_tuning_results(results, error_on_invalid=True)
        again = made.run(None, feeds)[0]
        np.testing.assert_allclose(again.astype(np.float64), expected.astype(np.float64), 1e-2, 1e-3)


def test_results_that_do_not_hold(driver: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = session(tunable_op_enable=1)
    (good,) = made.get_tuning_results()
    made.set_tuning_results([good], error_on_invalid=True)
    holds = good["validators"]
    assert {"ORT_VERSION", "ORT_GIT_COMMIT", "ORT_BUILD_CONFIG", "DEVICE_MODEL"} == holds.keys()
    wrong = {
        "Cannot find execution provider X": {"ep": "X"},
        "does not support TunableOp": {"ep": "CPUExecutionProvider"},
        '"DEVICE_MODEL" differs': {"validators": {**holds, "DEVICE_MODEL": "another"}},
        '"ORT_VERSION" is missing': {"validators": {k: v for k, v in holds.items() if k != "ORT_VERSION"}},
        '"MORE" is not known': {"validators": {**holds, "MORE": "1"}},
        "no map of texts to integers": {"results": {"products": {"1": "2"}}}}
    for told, change in wrong.items():
        with pytest.raises(RuntimeError, match=told):
            made.set_tuning_results([{**good, **change}], error_on_invalid=True)
        made.set_tuning_results([{**good, **change}])
        assert told in caplog.text
    for missing in ("ep", "validators", "results"):
        with pytest.raises(KeyError, match=missing):
            made.set_tuning_results([{k: v for k, v in good.items() if k != missing}])
    with pytest.raises(TypeError):
        made.set_tuning_results({})  # type: ignore[arg-type]


def test_metadata_that_is_no_list_of_results() -> None:
    for text in ("x", "{}", '[{"ep": "X"}]', "[1]"):
        with pytest.raises(Fail, match="Tuning results stored in the model"):
            ort.InferenceSession(product(tuning_results=text), providers=["CPUExecutionProvider"])
    ort.InferenceSession(product(tuning_results="[]"), providers=["CPUExecutionProvider"])
