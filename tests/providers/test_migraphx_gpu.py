"""MIGraphXExecutionProvider on a GPU's memory: a driver that does as little as it may, and the library's
double, whose work waits in that driver's streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import info, model
from lazy_driver import LazyDriver
from migraphx_kit import DOUBLE, NAME, perceptron, rows
from onnx import TensorProto, helper

import orthrus as ort
from orthrus.errors import EPFail, InvalidArgument
from orthrus.providers.gpu import device as devices
from orthrus.providers.migraphx import MIGraphXExecutionProvider as Provider
from orthrus.providers.migraphx import compiler
from orthrus.providers.migraphx import module as library
from orthrus.providers.rocm import ROCMExecutionProvider

GPU = {"target": "gpu", "module_path": DOUBLE}


class Found:
    """In the place of a `Finding`: this driver."""

    def __init__(self, driver: Any) -> None:
        self.driver = self.made = lambda: driver


@pytest.fixture(scope="module", autouse=True)
def compiling() -> Iterator[None]:
    """The compiling process has a GPU as well. What is imported here has read the environment before."""
    asked = library.found(DOUBLE)._ASKED
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIGRAPHX_DOUBLE", "gpu=1")
        patch.setitem(asked, "gpu", "1")
        compiler._process.stop()
        yield
    compiler._process.stop()
    compiler._tracing.stop()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> LazyDriver:
    found = LazyDriver()
    for cls in (Provider, ROCMExecutionProvider):
        monkeypatch.setattr(cls, "finding", Found(found))
    monkeypatch.setattr(devices, "_shared", {})
    monkeypatch.setattr(library.found(DOUBLE), "STREAMS", found._ask)
    return found


def session(proto: Any, **options: Any) -> ort.InferenceSession:
    made = ort.InferenceSession(proto.SerializeToString(), providers=[(NAME, {**GPU, **options})],
                                enable_fallback=0)
    made.disable_fallback()
    assert NAME in {node.provider for node in made.explain()}, made.explain()
    return made


def plain(proto: Any, feed: dict[str, np.ndarray]) -> list[Any]:
    return ort.InferenceSession(proto.SerializeToString()).run(None, feed)


@pytest.mark.parametrize("n", [1, 3])
def test_results_come_from_the_device(driver: LazyDriver, n: int) -> None:
    made, feed = session(perceptron()), rows(n)
    for _ in range(3):
        np.testing.assert_allclose(made.run(None, feed)[0], plain(perceptron(), feed)[0], 1e-5)
    assert driver.counts["allocate"]


def test_parts_and_the_host_take_turns(driver: LazyDriver) -> None:
    """Every other node is the CPU provider's: values cross both ways, streams in order."""
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("BitShift", ["u", "u"], ["v"],
                                                                     direction="LEFT"),
             helper.make_node("Cast", ["v"], ["f"], to=TensorProto.FLOAT), helper.make_node("Add",
                                                                                            ["a",
                                                                                             "f"], ["b"]),
             helper.make_node("Cast", ["b"], ["i"], to=TensorProto.UINT8),
             helper.make_node("BitShift", ["i", "u"], ["j"], direction="LEFT"),
             helper.make_node("Cast", ["j"], ["k"], to=TensorProto.FLOAT), helper.make_node("Mul",
                                                                                            ["k",
                                                                                             "a"], ["y"])]
    proto = model(nodes, [info("x"), info("u", TensorProto.UINT8)], [info("y")])
    feed = {"x": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3), "u": np.ones((2, 3), np.uint8)}
    made = session(proto)
    assert len({node.provider for node in made.explain()}) == 2
    np.testing.assert_allclose(made.run(None, feed)[0], plain(proto, feed)[0], 1e-5)


def test_types_and_scalars(driver: LazyDriver) -> None:
    import ml_dtypes

    proto = model([helper.make_node("Transpose", ["x"], ["t"]),
                   helper.make_node("Concat", ["t", "t"], ["y"], axis=0),
                   helper.make_node("Neg", ["s"], ["z"])],
                  [info("x", TensorProto.BFLOAT16, [2, 3]), info("s", shape=[])],
                  [info("y", TensorProto.BFLOAT16, [6, 2]), info("z", shape=[])])
    feed = {"x": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16), "s": np.array(3, np.float32)}
    for right, got in zip(plain(proto, feed), session(proto).run(None, feed), strict=True):
        assert right.dtype == got.dtype and right.shape == got.shape
        np.testing.assert_array_equal(right.astype(np.float32), got.astype(np.float32))


def test_batches_are_padded(driver: LazyDriver) -> None:
    made = session(perceptron(), compile_batches="4")
    for n in (1, 3, 4, 0):
        feed = rows(n)
        np.testing.assert_allclose(made.run(None, feed)[0], plain(perceptron(), feed)[0], 1e-5)


def test_bound_values_stay_on_the_device(driver: LazyDriver) -> None:
    made, feed = session(perceptron(2)), rows(2)
    binding = made.io_binding()
    binding.bind_cpu_input("x", feed["x"])
    binding.bind_output("y", "gpu", 0)
    made.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    assert value.device_name() != "cpu"
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], plain(perceptron(2), feed)[0], 1e-5)


def test_the_host_where_it_is_asked_for(driver: LazyDriver) -> None:
    made, feed = session(perceptron(2), offload_copy="1"), rows(2)
    np.testing.assert_allclose(made.run(None, feed)[0], plain(perceptron(2), feed)[0], 1e-5)
    assert not driver.counts["allocate"]


@pytest.mark.slow
def test_profiles(driver: LazyDriver) -> None:
    made, feed = session(perceptron(2)), rows(2)
    with made.profile() as profile:
        got = made.run(None, feed)[0]
    assert "ref::softmax" in str(profile)
    np.testing.assert_allclose(got, plain(perceptron(2), feed)[0], 1e-5)


def test_devices_there_are(driver: LazyDriver) -> None:
    assert Provider({**GPU, "device_id": "1"}).device.index == 1
    with pytest.raises(InvalidArgument, match=r"Invalid device ID: 2, must be between 0 \(inclusive\) and 2"):
        _ = Provider({**GPU, "device_id": "2"}).device


def test_compiled_models_say_where_arguments_lie(driver: LazyDriver, tmp_path: Path) -> None:
    chosen = ort.SessionOptions()
    chosen.add_provider(NAME, GPU)
    path = tmp_path / "made.onnx"
    ort.ModelCompiler(chosen, perceptron(2).SerializeToString()).compile_to_file(str(path))
    feed = rows(2)
    made = ort.InferenceSession(path, providers=[(NAME, GPU)], trust=True)
    np.testing.assert_allclose(made.run(None, feed)[0], plain(perceptron(2), feed)[0], 1e-5)
    with pytest.raises(EPFail, match="it takes arrays of a device"):
        ort.InferenceSession(path, providers=[(NAME, {**GPU, "offload_copy": "1"})], trust=True)


