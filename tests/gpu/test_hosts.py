"""CUDAExecutionProvider and ROCMExecutionProvider: what is missing, what they can be told, what they say."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from driver_double import CUDA_HEADER, HIP_HEADER, DriverDouble
from lazy_driver import LazyDriver
from onnx import TensorProto, helper

import orthrus as ort
from orthrus import knobs
from orthrus.codegen.triton import compile as compiling
from orthrus.demo import MODEL
from orthrus.errors import InvalidArgument
from orthrus.ir import No
from orthrus.providers import known
from orthrus.providers.cuda import CUDAExecutionProvider
from orthrus.providers.cuda import driver as cuda
from orthrus.providers.gpu import hip as rocm
from orthrus.providers.gpu.library import Finding
from orthrus.providers.rocm import ROCMExecutionProvider

KINDS: dict[str, Any] = {"CUDA": (CUDAExecutionProvider, cuda.CUDA, cuda.FUNCTIONS, CUDA_HEADER),
                         "ROCM": (ROCMExecutionProvider, rocm.HIP, rocm.FUNCTIONS, HIP_HEADER)}
GUIDE = {"device_id": 0, "arena_extend_strategy": "kNextPowerOfTwo", "gpu_mem_limit": 2 * 1024**3,
         "cudnn_conv_algo_search": "EXHAUSTIVE", "do_copy_in_default_stream": True}


_RELU = helper.make_model(helper.make_graph(
    [helper.make_node("Relu", ["x"], ["y"])], "relu",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]),
    opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


class Found:
    """In the place of a `Finding`: this driver."""

    def __init__(self, driver: Any) -> None:
        self.driver = self.made = lambda: driver


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def with_library(kind: str, monkeypatch: pytest.MonkeyPatch, double: DriverDouble | OSError) -> Any:
    """The provider's class on a double of its driver's library."""
    cls, real, table, _ = KINDS[kind]

    def open_double(names: Any) -> Any:
        if isinstance(double, OSError):
            raise double
        return double
    monkeypatch.setattr(cls, "finding", Finding(real.kind, table, real.names, real.least, real.install,
                                                open_double))
    return cls


def doubled(kind: str, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Any:
    _, _, table, header = KINDS[kind]
    return with_library(kind, monkeypatch, DriverDouble(table, header, **given))


def test_a_machine_without_a_driver(kind: str, monkeypatch: pytest.MonkeyPatch,
                                    caplog: pytest.LogCaptureFixture) -> None:
    cls = with_library(kind, monkeypatch, OSError("libgpu.so.1: cannot open shared object file"))
    why = cls.probe()
    assert isinstance(why, No)
    assert "libgpu.so.1" in why.reason and f"pip install orthrus-runtime[{kind.lower()}]" in why.reason
    assert cls.name not in ort.get_available_providers() and cls.name in ort.get_all_providers()
    with pytest.warns(UserWarning, match=f"'{cls.name}' is not in available provider names"):
        session = ort.InferenceSession(str(MODEL), providers=[(cls.name, GUIDE), "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    report = session.explain()
    assert report.absent == {cls.name: why.reason}
    assert f"without {cls.name}: {why.reason}" in str(report) and report.plain()["absent"] == report.absent


def test_a_machine_with_a_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = doubled(kind, monkeypatch)
    assert cls.probe() is None and cls.name in ort.get_available_providers()
    provider = cls({"device_id": 1})
    assert provider.target.arch == {"CUDA": "sm_90", "ROCM": "gfx942"}[kind]
    assert provider.device is cls({"device_id": "1"}).device and provider.device.index == 1


def test_a_device_there_are_no_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = doubled("ROCM", monkeypatch, architecture=b"gfx803")
    why = cls.probe()
    assert isinstance(why, No) and "gfx803" in why.reason and "gfx1100" in why.reason
    assert "sm_90" not in why.reason


def test_a_device_that_is_not_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = doubled(kind, monkeypatch, devices=1)
    for index in (1, -1):
        said = rf"Invalid device ID: {index}, must be between 0 \(inclusive\) and 1 \(exclusive\)"
        with pytest.raises(InvalidArgument, match=said):
            ort.InferenceSession(str(MODEL), providers=[(cls.name, {"device_id": index})])


def test_the_guides_options(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    provider = KINDS[kind][0](GUIDE)
    assert provider.settings["gpu_mem_limit"] == 1 << 31
    assert provider.settings["do_copy_in_default_stream"] is True
    assert provider.given["do_copy_in_default_stream"] == "1" and provider.given["device_id"] == "0"
    assert provider.given["gpu_mem_limit"] == "2147483648"
    assert not caplog.records


def test_every_option_is_given_back_as_onnxruntime_writes_it(kind: str) -> None:
    provider = KINDS[kind][0]()
    assert provider.given.keys() == provider.options.keys()
    assert provider.given["gpu_mem_limit"] == "18446744073709551615"
    assert KINDS[kind][0](provider.given).settings == provider.settings
    if kind == "CUDA":
        assert provider.given["use_tf32"] == "1" and provider.given["enable_cuda_graph"] == "0"


@pytest.mark.parametrize("name, value", [
    ("device_id", "one"), ("device_id", "1.0"), ("device_id", " 1"), ("device_id", ""),
    ("device_id", "\u0661"), ("device_id", 1 << 31), ("gpu_mem_limit", -1), ("gpu_mem_limit", 1 << 64),
    ("do_copy_in_default_stream", "on"), ("do_copy_in_default_stream", "TRUE"),
    ("arena_extend_strategy", "kNextPowerOf2"),
    ("cudnn_conv_algo_search", "exhaustive"), ("tunable_op_enable", 2)])
def test_values_that_cannot_be_read(kind: str, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"option '{name}'"):
        KINDS[kind][0]({name: value})


def test_an_unknown_option_is_told_the_known_ones(kind: str) -> None:
    other = {"CUDA": "enable_hip_graph", "ROCM": "enable_cuda_graph"}[kind]
    with pytest.raises(InvalidArgument) as error:
        KINDS[kind][0]({other: 1})
    assert "gpu_mem_limit" in str(error.value) and f"'{other}'" in str(error.value)


def test_options_without_meaning_are_remarked_on_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    other = {"CUDA": "prefer_nhwc", "ROCM": "miopen_conv_exhaustive_search"}[kind]
    with caplog.at_level(logging.WARNING, "orthrus"):
        KINDS[kind][0]({"cudnn_conv_algo_search": "HEURISTIC", other: "1", "tunable_op_enable": "1"})
    (record,) = caplog.records
    assert "cudnn_conv_algo_search=HEURISTIC has no effect: " in record.getMessage()
    assert f"{other}=1 has no effect: " in record.getMessage()
    assert "tunable_op_enable" not in record.getMessage()


def test_providers_come_in_onnxruntimes_order() -> None:
    names = list(known())
    order = [name for name in ort.get_all_providers() if name in names]
    ours = [name for name in names if name in ("CUDAExecutionProvider", "ROCMExecutionProvider",
                                               "DnnlExecutionProvider", "CPUExecutionProvider")]
    assert ours == [name for name in order if name in ours]


def test_a_lost_driver_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(LazyDriver):
        def properties(self, index: int) -> Any:
            self._called("properties")
            return super().properties(index)

    driver = Broken()
    monkeypatch.setattr(ROCMExecutionProvider, "finding", Found(driver))
    assert ROCMExecutionProvider.probe() is None
    driver.lost = True
    why = ROCMExecutionProvider.probe()
    assert isinstance(why, No) and "launch failure" in why.reason
    session = ort.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0]
    assert session.run(None, {feed.name: np.zeros([d if isinstance(d, int) else 1 for d in feed.shape],
                                                  np.float32)})


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    driver = LazyDriver()
    monkeypatch.setattr(ROCMExecutionProvider, "finding", Found(driver))
    monkeypatch.setattr(compiling, "compiler", lambda: "")
    monkeypatch.setattr(compiling, "_known", {})
    with knobs.setting(CACHE_DIR=str(tmp_path)):
        session = ort.InferenceSession(_RELU, providers=["ROCMExecutionProvider"])
    assert session.get_providers() == ["ROCMExecutionProvider", "CPUExecutionProvider"]
    (node,) = session.explain().nodes
    assert node.provider == "CPUExecutionProvider"
    assert any("orthrus-runtime[rocm]" in str(refusal) for refusal in node.refusals), node
    np.testing.assert_array_equal(session.run(None, {"x": np.array([-1, 2], np.float32)})[0], [0, 2])
