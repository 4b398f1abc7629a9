"""OrtValues, bindings and DLPack on devices: what lies on one stays there, and what waits, waits for
enough."""

import gc
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import helper
from streamed_device import StreamedDevice, gpus

import orthrus as ort
from orthrus.errors import DeviceReset, Fail, InvalidArgument
from orthrus.kernels import HOST, Allocator, Stream, copied, dlpack
from orthrus.run.engine import Engine

pytestmark = pytest.mark.usefixtures("quick_collection")

X = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
W = np.arange(6, dtype=np.float32).reshape(2, 3)
NAME = "SimulatedGPUExecutionProvider"
WANT = np.maximum(X, 0) + W
CHAIN = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Add", ["a", "w"], ["y"])]


class GPU(StreamedDevice):
    name, kind, vendor = "cuda", 1, 4098


@pytest.fixture
def devices() -> Iterator[list[GPU]]:
    """Two GPUs of a registered provider."""
    made = [GPU(0, seed=1), GPU(1, seed=2)]
    ort.register_execution_provider(gpus(made, ["Relu", "Add"], NAME))
    yield made
    ort.unregister_execution_provider_library(NAME)


def session(nodes: Any = CHAIN, outputs: Any = ("y",), **options: Any) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = model(list(nodes), [info("x", shape=["n", 3])], [info(o, shape=["n", 3]) for o in outputs],
                  {"w": W})
    return ort.InferenceSession(proto.SerializeToString(), settings, providers=[(NAME, options)],
                                enable_fallback=0)


def test_a_value_on_a_device(devices: list[GPU]) -> None:
    for name, index in (("cuda", 0), ("cuda", 1), ("rocm", 0), ("hip", 1), ("gpu", 0)):
        value = ort.OrtValue.ortvalue_from_numpy(X, name, index)
        assert value.device_name() == "cuda" and value._ortvalue._placed.device is devices[index]
        assert value.data_ptr() % 256 == 0 and value.shape() == [2, 3] and value.is_tensor()
        np.testing.assert_array_equal(value.numpy(), X)
        value.update_inplace(-X)
        np.testing.assert_array_equal(value.numpy(), -X)
        other = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, name, index)
        assert not other.numpy().any()
        ort.copy_tensors([value], [other])
        np.testing.assert_array_equal(other.numpy(), -X)
        other.update_inplace(ort.OrtValue.ortvalue_from_numpy(W, "cuda", 1 - index))
        np.testing.assert_array_equal(other.numpy(), W)
    for name, index in (("cuda", 2), ("npu", 0), ("dml", 0)):
        with pytest.raises(RuntimeError, match="Can't allocate"):
            ort.OrtValue.ortvalue_from_numpy(X, name, index)
    with pytest.raises(TypeError):
        value.update_inplace([1])
    with pytest.raises(RuntimeError, match="does not match"):
        value.update_inplace(np.zeros(7, np.float32))


@pytest.mark.parametrize("read", [
    lambda b: b.synchronize_outputs(), lambda b: b.copy_outputs_to_cpu(),
    lambda b: b.get_outputs()[0].numpy(), lambda b: b.get_outputs(),
    lambda b: np.from_dlpack(ort.OrtValue.ortvalue_from_numpy(X))])
@pytest.mark.parametrize("place", [False, True])
def test_many_runs_take_no_more_than_few(devices: list[GPU], read: Any, place: bool) -> None:
    """However results are looked at, the same memory and as few events serve later runs."""
    device = devices[0]
    binding = session().io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0))
    if place:
        binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(W, "cuda", 0))
    else:
        binding.bind_output("y", "cuda")
    taken = list[tuple[int, int]]()
    for _ in range(60):
        before = len(device.events)
        binding._session.run_with_iobinding(binding)
        read(binding)
        taken.append((len(device.events) - before, sum(each["TotalAllocated"] for each in device.usage())))
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], WANT)
    assert max(taken[10:]) == max(taken[-10:]) and taken[-1][0] <= 3, taken
    waits = [len(each.events) for a in gc.get_objects() if isinstance(a, Allocator) and repr(device) in a.name
             for each in a._chunks.values()]
    assert max(waits) <= 4, waits


def test_pinned_memory_is_the_hosts(devices: list[GPU]) -> None:
    info = ort.OrtMemoryInfo("CudaPinned", ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0,
                             ort.OrtMemType.DEFAULT)
    value = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, memory_info=info)
    value.update_inplace(X)
    assert value.device_name() == "cpu" and (value.numpy() == X).all()
    assert any(start <= value.data_ptr() for start in devices[0].hosts)
    info = ort.OrtMemoryInfo("CudaPinned", ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 7,
                             ort.OrtMemType.DEFAULT)
    with pytest.raises(RuntimeError, match="No shared allocator found"):
        ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, memory_info=info)


@pytest.mark.parametrize("synchronize", ["0", "1"])
@pytest.mark.parametrize("options", [{}, {"do_copy_in_default_stream": 1}])
def test_a_bound_run_copies_nothing_by_way_of_the_host(devices: list[GPU], options: dict[str, Any],
                                                       synchronize: str) -> None:
    """Inputs and outputs as OrtValues, and as addresses."""
    s, run = session(**options), ort.RunOptions()
    run.add_run_config_entry("disable_synchronize_execution_providers", synchronize)
    x, y = (ort.OrtValue.ortvalue_from_numpy(a, "cuda", 0) for a in (X, W))
    by_value, by_address = s.io_binding(), s.io_binding()
    by_value.bind_ortvalue_input("x", x)
    by_value.bind_ortvalue_output("y", y)
    by_address.bind_input("x", "cuda", 0, np.float32, [2, 3], x.data_ptr())
    by_address.bind_output("y", "cuda", 0, np.float32, [2, 3], y.data_ptr())
    s.run_with_iobinding(by_value)
    for binding in (by_value, by_address) * 3:
        y.update_inplace(np.zeros_like(W))
        before = devices[0].copies
        binding.synchronize_inputs()
        s.run_with_iobinding(binding, run)
        binding.synchronize_outputs()
        assert devices[0].copies == before
        np.testing.assert_array_equal(y.numpy(), WANT)
        assert binding.get_outputs()[0].data_ptr() == y.data_ptr()
    np.testing.assert_array_equal(by_address.copy_outputs_to_cpu()[0], WANT)


def test_writing_over_what_an_unfinished_run_reads() -> None:
    """The run has its inputs as they were, and whoever reads a result that is written again has the first."""
    for seed in range(12):
        device = GPU(0, seed=seed)
        ort.register_execution_provider(gpus([device], ["Relu", "Add"], NAME))
        try:
            s, run = session(), ort.RunOptions()
            run.add_run_config_entry("disable_synchronize_execution_providers", "1")
            x, y, twin = (ort.OrtValue.ortvalue_from_numpy(a, "cuda", 0) for a in (X, W, W))
            binding = s.io_binding()
            binding.bind_ortvalue_input("x", x)
            binding.bind_ortvalue_output("y", y)
            s.run_with_iobinding(binding, run)
            ort.copy_tensors([y], [twin])
            x.update_inplace(-X)
            s.run_with_iobinding(binding, run)
            np.testing.assert_array_equal(twin.numpy(), WANT)
            np.testing.assert_array_equal(y.numpy(), np.maximum(-X, 0) + W)
        finally:
            ort.unregister_execution_provider_library(NAME)


def test_a_session_gives_back_its_memory(devices: list[GPU]) -> None:
    s, before = session(), set(devices[0].live)
    result = s.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(X)})
    s.close()
    del s, result
    gc.collect()
    assert set(devices[0].live) <= before and not devices[0].queues.keys() - {
        stream.handle for stream in devices[0].ordinary().streams}


def test_outputs_left_on_the_device(devices: list[GPU]) -> None:
    s = session()
    s.run(None, {"x": X})
    binding = s.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cuda", 0)
    results = list[Any]()
    for _ in range(3):
        before = devices[0].copies
        s.run_with_iobinding(binding)
        assert devices[0].copies == (before[0] + 1, before[1], before[2])
        results += binding.get_outputs()
    assert len({value.data_ptr() for value in results}) == 3
    s.close()
    del s, binding
    gc.collect()
    for value in results:
        assert value.device_name() == "cuda"
        np.testing.assert_array_equal(value.numpy(), WANT)


def test_where_inputs_and_outputs_lie(devices: list[GPU]) -> None:
    for index in (0, 1):
        s = session(device_id=index)
        (x,), (y,) = s.get_input_memory_infos(), s.get_output_memory_infos()
        for each in (x, y):
            assert (each.name, each.device_id, each.device_vendor_id) == ("Hip", index, 4098)
        assert [device.ep_name for device in s.get_input_epdevices()] == [NAME]
    nodes = [*CHAIN, helper.make_node("Neg", ["x"], ["z"])]
    s = session(nodes, ("y", "z"))
    assert [i.name for i in s.get_input_memory_infos()] == ["Cpu"]
    assert [i.name for i in s.get_output_memory_infos()] == ["Hip", "Cpu"]


def test_addresses_that_are_refused(devices: list[GPU]) -> None:
    binding = session().io_binding()
    with pytest.raises(ValueError, match="no address"):
        binding.bind_input("x", "cuda", 0, np.float32, [2, 3], 0)
    with pytest.raises(RuntimeError, match="no data transfer"):
        binding.bind_output("y", "cuda", 5, np.float32, [2, 3], 4096)
    with pytest.raises(RuntimeError, match="Size"):
        binding.bind_input("x", "cuda", 0, np.float32, [-2, 3], 4096)


def test_a_bound_output_that_does_not_fit(devices: list[GPU]) -> None:
    s = session()
    binding = s.io_binding()
    binding.bind_cpu_input("x", X)
    for wrong in (np.zeros((3, 3), np.float32), np.zeros((2, 3), np.float64)):
        binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(wrong, "cuda", 0))
        with pytest.raises(RuntimeError, match="Got invalid dimensions|Unexpected output"):
            s.run_with_iobinding(binding)


def test_sessions_of_several_devices(devices: list[GPU]) -> None:
    """A value of one device is fed to a session on the other; two sessions share a device."""
    one, two, same = session(device_id=0), session(device_id=1), session(device_id=0)
    x = ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    run = ort.RunOptions()
    run.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for _ in range(4):
        value = x
        for s, index in ((one, 0), (same, 0), (two, 1), (one, 0)):
            binding = s.io_binding()
            binding.bind_ortvalue_input("x", value)
            binding.bind_output("y", "cuda", index)
            s.run_with_iobinding(binding, run)
            (value,) = binding.get_outputs()
        np.testing.assert_array_equal(value.numpy(), np.maximum(X, 0) + 4 * W)
    (y,) = two.run_with_ort_values(None, {"x": x})
    np.testing.assert_array_equal(y.numpy(), WANT)


def test_dlpack_of_a_device(devices: list[GPU]) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X, "cuda", 1)
    assert value.__dlpack_device__() == (dlpack.ROCM, 1)
    again = ort.OrtValue.from_dlpack(value)
    assert again.data_ptr() == value.data_ptr() and again.shape() == [2, 3]
    address = value.data_ptr()
    del value
    gc.collect()
    np.testing.assert_array_equal(again.numpy(), X)
    again.update_inplace(W)
    third = ort.OrtValue.from_dlpack(again.__dlpack__(stream=None))
    assert third.data_ptr() == address and (third.numpy() == W).all()
    assert (np.from_dlpack(_Host(third)) == W).all()
    with pytest.raises(BufferError):
        third.__dlpack__(dl_device=(dlpack.CUDA, 0))
    s = session(device_id=1)
    np.testing.assert_array_equal(s.run(None, {"x": _Foreign(third)})[0], 2 * W)
    del third, again
    gc.collect()
    assert not dlpack._given


class _Foreign:
    """What a package that knows nothing of us gives."""

    def __init__(self, value: ort.OrtValue) -> None:
        self.value = value

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.value.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.value.__dlpack_device__()


class _Host(_Foreign):
    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        return self.value.__dlpack__(dl_device=(dlpack.CPU, 0), max_version=(1, 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0


@pytest.mark.parametrize("version", [None, (1, 0)])
@pytest.mark.parametrize("kind", [np.bool_, np.uint16, np.int64, np.float16, np.complex64, ml_dtypes.bfloat16,
                                  ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2fnuz])
def test_dlpack_types(kind: Any, version: Any) -> None:
    for shape in ((2, 3), (), (0, 4), (1, 1)):
        array = np.ones(shape, kind)
        value = ort.OrtValue.ortvalue_from_numpy(array)
        made = ort.OrtValue.from_dlpack(value.__dlpack__(max_version=version)).numpy()
        assert made.dtype == array.dtype and made.shape == shape and (made == array).all()
        assert not array.size or np.shares_memory(made, array)


def test_capsules_are_let_go_of_once() -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    unused, used = value.__dlpack__(), value.__dlpack__(max_version=(1, 1))
    assert len(dlpack._given) == 2
    del unused
    taken = ort.OrtValue.from_dlpack(used)
    with pytest.raises(RuntimeError, match="used before"):
        ort.OrtValue.from_dlpack(used)
    del value, used
    gc.collect()
    assert len(dlpack._given) == 1 and (taken.numpy() == X).all()
    del taken
    gc.collect()
    assert not dlpack._given
    frozen = X.copy()
    frozen.flags.writeable = False
    value = ort.OrtValue.ortvalue_from_numpy(frozen)
    assert not ort.OrtValue.from_dlpack(value).numpy().flags.writeable
    with pytest.raises(RuntimeError, match="read-only"):
        value.__dlpack__()
    for strided in (X.T, X[:, ::2]):
        np.testing.assert_array_equal(ort.OrtValue.from_dlpack(strided).numpy(), strided)
    with pytest.raises(RuntimeError, match="negative"):
        ort.OrtValue.from_dlpack(X[::-1])


def test_cuda_array_interface(devices: list[GPU]) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    told = value.__cuda_array_interface__
    assert told["data"] == (value.data_ptr(), False) and told["shape"] == (2, 3) and told["typestr"] == "<f4"

    class Array:
        __cuda_array_interface__ = told
    np.testing.assert_array_equal(session().run(None, {"x": Array()})[0], WANT)
    assert ort.OrtValue.from_dlpack(Array()).data_ptr() == value.data_ptr()
    Array.__cuda_array_interface__ = {**told, "strides": (4, 8)}
    with pytest.raises(InvalidArgument, match="C order"):
        session().run(None, {"x": Array()})
    assert not hasattr(ort.OrtValue.ortvalue_from_numpy(X), "__cuda_array_interface__")


def test_a_users_stream(devices: list[GPU]) -> None:
    """All work is asked of it; what is left unsynchronized is found by whom waits for it."""
    theirs = Stream(devices[0])
    s = session(user_compute_stream=theirs.handle)
    run = ort.RunOptions()
    run.add_run_config_entry("disable_synchronize_execution_providers", "1")
    binding = s.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0))
    binding.bind_output("y", "cuda", 0)
    launched = devices[0].counts["launched"]
    for _ in range(3):
        s.run_with_iobinding(binding, run)
    assert devices[0].counts["launched"] == launched + 6
    (value,) = binding.get_outputs()
    del binding
    s.close()
    del theirs
    np.testing.assert_array_equal(value.numpy(), WANT)


def test_memory_limit_and_shrinking(devices: list[GPU]) -> None:
    s = session(gpu_mem_limit=1 << 20)
    big = np.ones((1 << 18, 3), np.float32)
    with pytest.raises(Fail, match="gpu_mem_limit is 1048576"):
        s.run(None, {"x": big})
    np.testing.assert_array_equal(s.run(None, {"x": X})[0], WANT)
    held = sum(map(len, devices[0].live.values()))
    run = ort.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0;gpu:0")
    s.run(None, {"x": X}, run)
    assert sum(map(len, devices[0].live.values())) <= held
    for wrong, why in (("gpu:1", "Did not find"), ("tpu:0", "Unsupported device specified"),
                       ("gpu:a", "Unsupported device id")):
        run.add_run_config_entry("memory.enable_memory_arena_shrinkage", wrong)
        with pytest.raises(InvalidArgument, match=why):
            s.run(None, {"x": X}, run)


def test_a_device_lost_in_the_middle(devices: list[GPU]) -> None:
    """The session says so, falls back where it may, and everything else goes on."""
    s, other = session(), session(device_id=1)
    value = ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    s.run(None, {"x": X})
    devices[0].lost = True
    for _ in range(2):
        with pytest.raises(DeviceReset, match="answers no more"):
            s.run(None, {"x": X})
    with pytest.raises(DeviceReset):
        value.numpy()
    del value
    np.testing.assert_array_equal(other.run(None, {"x": X})[0], WANT)
    s.enable_fallback()
    np.testing.assert_array_equal(s.run(None, {"x": X})[0], WANT)
    assert s.get_providers() == ["CPUExecutionProvider"]
    devices[0].lost = False


def test_many_threads_on_one_session(devices: list[GPU]) -> None:
    s, wrong = session(), list[Any]()

    def work(k: int) -> None:
        x = np.full((2, 3), k, np.float32)
        for _ in range(4):
            if not (s.run(None, {"x": x})[0] == np.maximum(x, 0) + W).all():
                wrong.append(k)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _in_child(s: ort.InferenceSession, value: ort.OrtValue, pipe: Any) -> None:
    told = []
    for ask in (lambda: s.run(None, {"x": X}), value.numpy,
                lambda: ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)):
        try:
            ask()
            told.append("")
        except Fail as error:
            told.append(str(error))
    del value
    gc.collect()
    told.append(str(ort.InferenceSession(model(CHAIN, ["x"], ["y"], {"w": W}).SerializeToString()).run(
        None, {"x": X})[0].sum()))
    pipe.send(told)


@pytest.mark.needs("POSIX")
def test_a_forked_process(devices: list[GPU]) -> None:
    """It is told, and computes on the host; the parent goes on."""
    s, value = session(), ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    s.run(None, {"x": X})
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(s, value, theirs))
    child.start()
    assert ours.poll(60)
    told = ours.recv()
    child.join()
    assert child.exitcode == 0
    assert all("before this process was forked" in text for text in told[:3]), told
    assert float(told[3]) == pytest.approx(float(WANT.sum()))
    np.testing.assert_array_equal(value.numpy(), X)
    np.testing.assert_array_equal(s.run(None, {"x": X})[0], WANT)


def test_copies_overlap(devices: list[GPU]) -> None:
    """What comes in and goes out is not asked of the stream that computes, and inputs go first."""
    nodes = [*CHAIN, helper.make_node("Neg", ["a"], ["h"]), helper.make_node("Relu", ["h"], ["z"])]
    s = session(nodes, ("y", "z"))
    engine: Engine = s._sess._engine
    order = [call.kernel.name for call in engine.program.calls]
    assert order[0] == "copy to cuda:0" and order[2] == "copy to cpu:0", order
    assert order.index("copy to cpu:0") < order.index("end of the copy to cpu:0"), order
    assert order[-1] == "end of the copy to cpu:0"
    for got, want in zip(s.run(None, {"x": X}), (WANT, np.zeros_like(X)), strict=True):
        np.testing.assert_array_equal(got, want)
    assert copied(copied(X, devices[1]), HOST).tolist() == X.tolist()


@pytest.mark.needs("torch")
def test_torch_tensors() -> None:
    """Fed as they are, in types numpy has none for too; given back over the same memory."""
    import torch

    for kind in (torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.float8_e4m3fn, torch.int64):
        tensor = torch.ones(2, 3).to(kind)
        value = ort.OrtValue.from_dlpack(tensor)
        again = torch.from_dlpack(value)
        assert again.dtype == kind and again.data_ptr() == tensor.data_ptr() == value.data_ptr()
        assert torch.utils.dlpack.from_dlpack(value.__dlpack__()).data_ptr() == tensor.data_ptr()
    del value, again
    gc.collect()
    assert not dlpack._given
    identity = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [
        helper.make_tensor_value_info("x", onnx.TensorProto.BFLOAT16, [2, 3])], [
        helper.make_tensor_value_info("y", onnx.TensorProto.BFLOAT16, [2, 3])])
    s = ort.InferenceSession(helper.make_model(identity, opset_imports=[helper.make_opsetid("", 17)],
                                               ir_version=8).SerializeToString())
    fed = {"x": torch.full((2, 3), 1.5, dtype=torch.bfloat16)}
    assert (s.run(None, fed)[0].astype(np.float32) == 3).all()
    assert torch.from_dlpack(s.run_with_ort_values(None, {
        "x": ort.OrtValue.from_dlpack(fed["x"])})[0]).tolist() == [[3.0] * 3] * 2
    with pytest.raises((InvalidArgument, RuntimeError)):
        s.run(None, {"x": torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)})
