"""Values, devices, bindings, sparse tensors, adapters and the compiler."""

from __future__ import annotations

import contextlib
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import api_models
import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus.api import adapter as adapters
from orthrus.capi import onnxruntime_pybind11_state as state

CPU = ort.OrtDevice.make("cpu", 0)
NO_DEVICE = "Can't allocate memory on the"


@pytest.fixture
def session() -> ort.InferenceSession:
    return ort.InferenceSession(api_models.add())


def sample() -> np.ndarray:
    return np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_value_from_an_array() -> None:
    a = sample()
    v = ort.OrtValue.ortvalue_from_numpy(a)
    assert v.data_ptr() == a.ctypes.data and np.shares_memory(v.numpy(), a)
    assert (v.data_type(), v.element_type(), v.shape(), v.device_name()) == ("tensor(float)", 1, [2, 3],
                                                                             "cpu")
    assert v.tensor_size_in_bytes() == 24 and v.has_value() and v.is_tensor()
    assert not v.is_sparse_tensor() and not v.is_tensor_sequence()
    with pytest.raises(RuntimeError, match="does not contain SparseTensor"):
        v.as_sparse_tensor()
    with pytest.raises(ValueError, match="Provided ortvalue"):
        ort.OrtValue(3)  # type: ignore[arg-type]


def test_arrays_that_are_copied() -> None:
    a = sample()
    for given in (a.T, a[:, ::2], a.astype(">f4")):
        v = ort.OrtValue.ortvalue_from_numpy(given)
        assert v.numpy().tolist() == given.tolist() and v.numpy().dtype == np.float32


def test_arrays_of_every_kind() -> None:
    for a in (np.array(["a", "b"], object), np.array(["a", "b"])):
        v = ort.OrtValue.ortvalue_from_numpy(a)
        assert v.data_type() == "tensor(string)" and v.numpy().tolist() == ["a", "b"]
        for ask in (v.data_ptr, v.tensor_size_in_bytes):
            with pytest.raises(RuntimeError, match="tensor of strings"):
                ask()
    for dtype, number in ((ml_dtypes.bfloat16, 16), (np.complex64, 14), (ml_dtypes.float8_e4m3fn, 17),
                          (np.bool_, 9)):
        assert ort.OrtValue.ortvalue_from_numpy(np.zeros(3, dtype)).element_type() == number
    for wrong in ([1], 1.0, None, np.array([1, "a"], object), np.zeros(2, "M8[s]"), np.ma.array([1.0])):
        with pytest.raises(RuntimeError):
            ort.OrtValue.ortvalue_from_numpy(wrong)  # type: ignore[arg-type]


def test_devices() -> None:
    with pytest.raises(Exception, match="Unsupported device type: xpu"):
        ort.OrtValue.ortvalue_from_numpy(sample(), "xpu")
    with pytest.raises(RuntimeError, match=NO_DEVICE):
        ort.OrtValue.ortvalue_from_numpy(sample(), "cuda", 0)
    with pytest.raises(RuntimeError, match=NO_DEVICE):
        ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, "cuda")
    assert (CPU.device_type(), CPU.device_id(), CPU.device_mem_type(), CPU.device_vendor_id()) == (0, 0, 0, 0)
    peer = pytest.importorskip("onnxruntime").OrtDevice
    for name in ("cpu", "cuda", "gpu", "npu", "cann", "dml", "webgpu"):
        ours, theirs = ort.OrtDevice.make(name, 1), peer.make(name, 1)
        assert (ours.device_type(), ours.device_vendor_id()) == (theirs.device_type(),
                                                                 theirs.device_vendor_id()), name
    assert ort.OrtDevice.make("gpu", 1, ort.OrtDeviceVendorId.AMD).device_vendor_id() == 4098
    with pytest.raises(ValueError, match="OrtDevice"):
        ort.OrtDevice(3)  # type: ignore[arg-type]


def test_memory_infos() -> None:
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    assert (info.name, info.allocator_type, info.device_id, info.mem_type, info.device_mem_type) == (
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT,
        ort.OrtDeviceMemoryType.DEFAULT)
    with pytest.raises(RuntimeError, match="Try CreateMemoryInfo_V2"):
        ort.OrtMemoryInfo("foo", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    made = ort.OrtMemoryInfo.create_v2("foo", ort.OrtMemoryInfoDeviceType.CPU, 7, 0,
                                       ort.OrtDeviceMemoryType.DEFAULT, 0,
                                       ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR)
    assert (made.name, made.device_vendor_id) == ("foo", 7)
    assert ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, memory_info=info).shape() == [2]
    arena = ort.OrtArenaCfg(1, 2, 3, 4)
    assert (arena.max_mem, arena.arena_extend_strategy, arena.initial_chunk_size_bytes,
            arena.max_dead_bytes_per_chunk, arena.initial_growth_chunk_size_bytes) == (1, 2, 3, 4, -1)
    assert ort.OrtArenaCfg({"max_mem": 5}).max_mem == 5
    with pytest.raises(RuntimeError, match="Invalid OrtArenaCfg option: foo"):
        ort.OrtArenaCfg({"foo": 5})
    ort.create_and_register_allocator(info, arena)
    ort.create_and_register_allocator_v2("CPUExecutionProvider", info, {}, arena)


def test_a_value_of_a_shape() -> None:
    make = ort.OrtValue.ortvalue_from_shape_and_type
    assert make([2, 3], np.float32).shape() == [2, 3]
    assert make([2, 3], "float32").data_type() == "tensor(float)"
    bf16 = make([2, 3], TensorProto.BFLOAT16)
    assert (bf16.data_type(), bf16.element_type(), bf16.numpy().dtype) == ("tensor(bfloat16)", 16,
                                                                           ml_dtypes.bfloat16)
    with pytest.raises(RuntimeError, match="must|>=0"):
        make([-2, 3], np.float32)
    with pytest.raises(RuntimeError, match="tensor type 99 is not supported"):
        make([2], 99)
    with pytest.raises(MemoryError):
        make([1 << 40, 1 << 20], np.float32)


def test_a_value_with_an_onnx_type() -> None:
    make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
    bits = np.array([0x3F80, 0x4000], np.uint16)
    v = make(bits, TensorProto.BFLOAT16)
    assert v.data_type() == "tensor(bfloat16)" and v.numpy().astype(np.float32).tolist() == [1, 2]
    assert np.shares_memory(v.numpy(), bits)
    assert make(np.zeros(3, np.uint8), TensorProto.FLOAT8E4M3FN).shape() == [3]
    with pytest.raises(RuntimeError, match="Items size in the incoming array: 2 specified by onnxtype: 4"):
        make(bits, TensorProto.FLOAT)
    with pytest.raises(RuntimeError, match="Not a valid ONNX Tensor data type: 99"):
        make(bits, 99)


def test_update_in_place() -> None:
    a = sample()
    v = ort.OrtValue.ortvalue_from_numpy(a)
    v.update_inplace(np.ones((2, 3), np.float32))
    assert (a == 1).all()
    v.update_inplace(np.full(6, 0x40000000, np.int32))
    assert (a == 2).all()
    v.update_inplace(ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32)))
    assert (a == 0).all()
    with pytest.raises(RuntimeError, match="The input size of numpy arrays does not match the size of the "
                       "OrtValue."):
        v.update_inplace(np.zeros((3, 3), np.float32))
    with pytest.raises(TypeError, match="data must be a numpy.ndarray or an OrtValue."):
        v.update_inplace([1])
    a.flags.writeable = False
    with pytest.raises(RuntimeError, match="read-only"):
        ort.OrtValue.ortvalue_from_numpy(a).update_inplace(np.ones((2, 3), np.float32))


def test_dlpack() -> None:
    a = sample()
    v = ort.OrtValue.ortvalue_from_numpy(a)
    assert v.__dlpack_device__() == (1, 0)
    assert np.shares_memory(np.from_dlpack(v), a)
    assert np.shares_memory(ort.OrtValue.from_dlpack(a).numpy(), a)
    assert np.shares_memory(ort.OrtValue.from_dlpack(v).numpy(), a)
    assert state.OrtValue.from_dlpack(a.__dlpack__()).shape() == [2, 3]
    assert ort.OrtValue.from_dlpack(np.array([True])).data_type() == "tensor(bool)"
    assert state.OrtValue.from_dlpack(np.array([1], np.uint8).__dlpack__(),
                                      True).data_type() == "tensor(bool)"
    assert state.is_dlpack_uint8_tensor(np.array([1], np.uint8).__dlpack__())
    with pytest.raises(RuntimeError, match="DLPack"):
        ort.OrtValue.ortvalue_from_numpy(np.zeros(2, ml_dtypes.int4)).__dlpack__()


def test_a_value_as_an_array() -> None:
    v = ort.OrtValue.ortvalue_from_numpy(sample())
    assert np.shares_memory(np.asarray(v), v.numpy())
    assert np.array(v, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(v, copy=True), v.numpy())
    with pytest.raises(ValueError, match="Unable to avoid copy"):
        v.__array__(np.float64, copy=False)
    twin = pickle.loads(pickle.dumps(v))
    assert twin.numpy().tolist() == v.numpy().tolist()


def test_copying_tensors() -> None:
    source = ort.OrtValue.ortvalue_from_numpy(sample())
    target = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    ort.copy_tensors([source], [target])
    assert target.numpy().tolist() == sample().tolist()
    with pytest.raises(state.InvalidArgument):
        ort.copy_tensors([source], [ort.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32)])


def test_running_with_values(session: ort.InferenceSession) -> None:
    feeds = {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in api_models.feeds().items()}
    for names in (None, [], ["c"]):
        (c,) = session.run_with_ort_values(names, feeds, ort.RunOptions())
        assert isinstance(c, ort.OrtValue) and (c.numpy() == 3).all()
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_with_ort_values(None, {"a": feeds["a"]})
    with pytest.raises(AttributeError):
        session.run_with_ort_values(None, {**feeds, "b": api_models.feeds()["b"]})  # type: ignore[dict-item]


def test_vectors(session: ort.InferenceSession) -> None:
    vector, out = state.OrtValueVector(), state.OrtValueVector()
    a, b = api_models.feeds().values()
    vector.push_back(ort.OrtValue.ortvalue_from_numpy(a)._ortvalue)
    vector.push_back_batch([b], [b.ctypes.data], [np.float32], [b.shape], [CPU._get_c_device()])
    assert len(vector) == 2 and [v.shape() for v in vector] == [[2, 3], [1, 3]]
    session.run_with_ortvaluevector(ort.RunOptions(), ["a", "b"], vector, ["c"], out, [CPU._get_c_device()])
    assert (out[0].numpy()
            == 3).all() and vector.element_type_at(0) == 1 and vector.bool_tensor_indices() == []
    assert len(vector.to_dlpacks(None)) == 2 and not state.OrtValueVector()
    out[0].numpy()[:] = 0
    session.run_with_ortvaluevector(ort.RunOptions(), ["a", "b"], vector, ["c"], out, [CPU._get_c_device()])
    assert (out[0].numpy() == 3).all()
    with pytest.raises(IndexError, match="range_check"):
        _ = vector[9]
    with pytest.raises(TypeError):
        _ = vector[-1]


def test_binding_and_running(session: ort.InferenceSession) -> None:
    a, b = (v.copy() for v in api_models.feeds().values())
    binding = session.io_binding()
    binding.bind_cpu_input("a", a)
    binding.bind_input("b", "cpu", 0, np.float32, [1, 3], b.ctypes.data)
    binding.bind_output("c")
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert (binding.copy_outputs_to_cpu()[0] == 3).all() and (binding.get_outputs()[0].numpy() == 3).all()
    a[:], b[:] = 5, 6
    session.run_with_iobinding(binding, ort.RunOptions())
    assert (binding.copy_outputs_to_cpu()[0] == 11).all()
    assert (binding.get_outputs_as_ortvaluevector()[0].numpy() == 11).all()
    out = np.zeros((2, 3), np.float32)
    binding.clear_binding_outputs()
    binding.bind_output("c", "cpu", 0, np.float32, [2, 3], out.ctypes.data)
    session.run_with_iobinding(binding)
    assert (out == 11).all() and binding.get_outputs()[0].data_ptr() == out.ctypes.data
    value = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("c", value)
    binding.bind_ortvalue_input("a", ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32)))
    session.run_with_iobinding(binding)
    assert (value.numpy() == 6).all()
    assert isinstance(ort.IOBinding(session), ort.IOBinding)
    session.set_providers(["CPUExecutionProvider"])
    session.run_with_iobinding(binding)


@needs("generated code")
def test_results_are_written_where_they_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated code writes to the memory bound, where a copy would not cost less; where that is an input's
    too, results are copied."""
    from orthrus.api.binding import SessionIOBinding
    nodes = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Mul", ["c", "b"], ["d"])]
    session = ort.InferenceSession(model(
        nodes, [info("a", shape=["n", 3]), info("b", shape=["n", 3])],
        [info("d", shape=["n", 3]), info("c", shape=["n", 3])]).SerializeToString())
    copied = list[str]()
    taken = SessionIOBinding._taken

    def watched(self: Any, name: str, value: Any, kind: Any) -> Any:
        target = self._outputs[name]
        if target is not None and target._value is not value:
            copied.append(name)
        return taken(self, name, value, kind)
    monkeypatch.setattr(SessionIOBinding, "_taken", watched)
    monkeypatch.setattr("orthrus.api.binding._FEW", 0)
    a, b = (np.full((4, 3), v, np.float32) for v in (2, 5))
    apart = np.zeros((2, 4, 3), np.float32)
    cases: list[tuple[Any, Any, list[str]]] = [
        (apart[0], apart[1], []), (apart[0], apart[0], ["d", "c"]), (a, apart[1], ["d"]), (a, b, ["d", "c"])]
    for d, c, expected in cases:
        a[:], b[:] = 2, 5
        copied.clear()
        binding = session.io_binding()
        binding.bind_cpu_input("a", a)
        binding.bind_cpu_input("b", b)
        for name, array in (("d", d), ("c", c)):
            binding.bind_output(name, "cpu", 0, np.float32, [4, 3], array.ctypes.data)
        session.run_with_iobinding(binding)
        assert copied == expected
        assert (c == 7).all() and (np.may_share_memory(d, c) or (d == 35).all())
    binding = session.io_binding()
    for name, array in (("a", np.ones((2, 3), np.float32)), ("b", np.ones((2, 3), np.float32))):
        binding.bind_cpu_input(name, array)
    binding.bind_output("c", "cpu", 0, np.float32, [4, 3], apart[0].ctypes.data)
    with pytest.raises(RuntimeError, match="Got invalid dimensions for output: c"):
        session.run_with_iobinding(binding)


@needs("generated code")
@pytest.mark.parametrize("read_twice", [False, True])
def test_a_cache_bound_as_input_and_output_grows_in_place(read_twice: bool) -> None:
    """Keys and values are appended to the memory they are in; where something else reads it, it is copied."""
    caches = [info(name, shape=[1, 2, 32, 8]) for name in ("keys", "values")]
    nodes = [helper.make_node("Shape", ["seen"], ["length"]),
             helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
             helper.make_node("GroupQueryAttention", ["q", "k", "v", "keys", "values", "ends", "total"],
                              ["y", "new_keys", "new_values"], domain="com.microsoft", num_heads=4,
                              kv_num_heads=2)]
    outputs = [info("y", shape=[1, 1, 32]), info("new_keys", shape=[1, 2, 32, 8]),
               info("new_values", shape=[1, 2, 32, 8])]
    if read_twice:
        nodes.append(helper.make_node("Sub", ["new_keys", "keys"], ["grown"]))
        outputs.append(info("grown", shape=[1, 2, 32, 8]))
    source = model(nodes, [info("q", shape=[1, 1, 32]), info("k", shape=[1, 1, 16]),
                           info("v", shape=[1, 1, 16]), *caches, info("ends", TensorProto.INT32, [1]),
                           info("seen", TensorProto.INT64, ["total"])], outputs,
                   domains={"com.microsoft": 1}).SerializeToString()
    session = ort.InferenceSession(source)
    defined = ort.InferenceSession(source, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    rng = np.random.default_rng(3)
    held = {name: rng.standard_normal((1, 2, 32, 8)).astype(np.float32) for name in ("keys", "values")}
    bound = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in held.items()}
    for length in range(5, 12):
        feeds = {"q": rng.standard_normal((1, 1, 32)).astype(np.float32),
                 "k": rng.standard_normal((1, 1, 16)).astype(np.float32),
                 "v": rng.standard_normal((1, 1, 16)).astype(np.float32),
                 "ends": np.array([length - 1], np.int32), "seen": np.zeros(length, np.int64)}
        wanted = dict(zip([o.name for o in outputs], defined.run(None, {**feeds, **held}), strict=True))
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name, value in bound.items():
            binding.bind_ortvalue_input(name, value)
        for out in outputs:
            same = bound.get(out.name.removeprefix("new_")) if out.name.startswith("new_") else None
            binding.bind_output(out.name) if same is None else binding.bind_ortvalue_output(out.name, same)
        session.run_with_iobinding(binding)
        for out, value in zip(outputs, binding.get_outputs(), strict=True):
            np.testing.assert_allclose(value.numpy(), wanted[out.name], rtol=1e-5, atol=1e-6)
        held = {name: wanted[f"new_{name}"] for name in held}
    (step,) = session._sess._engine.program.calls
    plan = next(reversed(step.kernel.run.plans.values()))
    names = [v.name for v in step.part.inputs]
    assert {names[i] for i, _ in plan.code.appends} == ({"values"} if read_twice else {"keys", "values"})


@pytest.mark.parametrize(("bind", "kind", "text"), [
    (lambda b: b.bind_cpu_input("zz", sample()), RuntimeError,
     "Failed to find NodeArg with name: zz in the def list"),
    (lambda b: b.bind_cpu_input("a", [[1.0]]), RuntimeError,
     "Unable to create OrtValue from the given python object"),
    (lambda b: b.bind_ortvalue_input("zz", ort.OrtValue.ortvalue_from_numpy(sample())), RuntimeError,
     "Failed to find input name in the mapping: zz"),
    (lambda b: b.bind_input("a", "cpu", 0, np.float32, [2, 3], 0), ValueError, "buffer_ptr is 0"),
    (lambda b: b.bind_input("a", "cpu", 0, np.float32, [2, 3], -1), ValueError, "buffer_ptr is -1"),
    (lambda b: b.bind_input("a", "cpu", 0, np.float32, [-2, 3], 8), RuntimeError, "shape.Size"),
    (lambda b: b.bind_input("a", "cpu", 0, np.float32, [1 << 60, 8], 8), ValueError, "no address"),
    (lambda b: b.bind_input("a", "cuda", 0, np.float32, [2, 3], 8), RuntimeError, "no data transfer"),
    (lambda b: b.bind_input("a", "xpu", 0, np.float32, [2, 3], 8), Exception, "Unsupported device type: xpu"),
    (lambda b: b.bind_output("c", buffer_ptr=3), ValueError, "`element_type` and `shape` are to be provided"),
    (lambda b: b.bind_output("c", "cpu", 0, np.float32, [2, 3], 0), ValueError, "buffer_ptr is 0"),
])
def test_bindings_that_are_refused(session: ort.InferenceSession, bind: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        bind(session.io_binding())


def zeros(shape: list[int], dtype: Any) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype)


def bound(b: Any, **changed: Any) -> None:
    for name, array in {**api_models.feeds(), **changed}.items():
        b.bind_cpu_input(name, array)


@pytest.mark.parametrize(("bind", "text"), [
    (bound, "At least one output should be requested."),
    (lambda b: b.bind_output("c"), "Missing Input: a"),
    (lambda b: (bound(b), b.bind_output("zz")), "Invalid output name: zz"),
    (lambda b: (bound(b, a=np.ones((2, 3))), b.bind_output("c")),
     r"Unexpected input data type. Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)"),
    (lambda b: (bound(b, a=np.ones((2, 3, 1), np.float32)), b.bind_output("c")),
     "Invalid rank for input: a Got: 3 Expected: 2 Please fix either the inputs/outputs or the model."),
    (lambda b: (bound(b), b.bind_ortvalue_output("c", zeros([2, 2], np.float32))),
     "Got invalid dimensions for output: c for the following indices\n index: 1 Got: 2 Expected: 3"),
    (lambda b: (bound(b), b.bind_ortvalue_output("c", zeros([1, 3], np.float32))),
     "Got invalid dimensions for output: c for the following indices\n index: 0 Got: 1 Expected: 2"),
    (lambda b: (bound(b), b.bind_ortvalue_output("c", zeros([2, 3], np.float64))),
     r"Unexpected output data type. Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)"),
])
def test_bindings_that_fail_to_run(session: ort.InferenceSession, bind: Any, text: str) -> None:
    binding = session.io_binding()
    bind(binding)
    with pytest.raises(RuntimeError, match=f"Error in execution: {text}"):
        session.run_with_iobinding(binding)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_what_is_declared_a_scalar_may_be_anything(shape: tuple[int, ...]) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    session = ort.InferenceSession(
        model([node], [info("x", shape=[])], [info("y", shape=[])]).SerializeToString())
    value = ort.OrtValue.ortvalue_from_numpy(np.ones(shape, np.float32))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", value)
    for wanted in (-1, 1):
        session.run_with_iobinding(binding)
        assert value.numpy().shape == shape and (value.numpy() == wanted).all()


def test_a_binding_belongs_to_its_session(session: ort.InferenceSession) -> None:
    with pytest.raises(ValueError, match="IOBinding must be used with the session that created it."):
        ort.InferenceSession(api_models.add()).run_with_iobinding(session.io_binding())
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        ort.SessionIOBinding(session)  # type: ignore[arg-type]
    assert ort.SessionIOBinding(session._sess)


def test_sparse_tensors() -> None:
    shape, values = np.array([3, 4]), np.array([1, 2], np.float32)
    flat = ort.SparseTensor.sparse_coo_from_numpy(shape, values, np.array([1, 5]), CPU)
    pairs = ort.SparseTensor.sparse_coo_from_numpy(shape, values, np.array([[0, 1], [1, 1]]), CPU)
    rows = ort.SparseTensor.sparse_csr_from_numpy(shape, values, np.array([1, 1]), np.array([0, 1, 2, 2]),
                                                  CPU)
    for tensor in (flat, pairs, rows):
        assert tensor.dense_shape() == [3, 4] and tensor.values().tolist() == [1, 2]
        assert (tensor.data_type(), tensor.device_name()) == ("sparse_tensor(float)", "cpu")
        dense = tensor._tensor.to_array().dense()
        assert dense[0, 1] == 1 and dense[1, 1] == 2 and dense.sum() == 3
    assert flat.format(
        ) == ort.OrtSparseFormat.ORT_SPARSE_COO and rows.format() == ort.OrtSparseFormat.ORT_SPARSE_CSRC
    assert flat.as_coo_view().indices().tolist() == [1, 5]
    assert rows.as_csrc_view().inner().tolist() == [1, 1] and rows.as_csrc_view().outer().tolist() == [0, 1,
                                                                                                       2, 2]
    for wrong in (flat.as_csrc_view, flat.as_blocksparse_view, rows.as_coo_view):
        with pytest.raises(RuntimeError, match="This sparse tensor does not contain"):
            wrong()
    blocks = state.SparseTensor.blocksparse_from_numpy([4, 4], np.ones((1, 2, 2), np.float32), np.array([[1],
                                                                                                         [
        0]]), CPU._get_c_device())
    assert blocks.to_array().dense()[2:,
                                     :2].sum(
        ) == 4 and blocks.get_blocksparse_data().indices().tolist() == [[1], [0]]
    value = ort.OrtValue.ort_value_from_sparse_tensor(flat)
    assert value.is_sparse_tensor() and value.shape() == [3, 4] and value.element_type() == 1
    assert value.as_sparse_tensor().values().tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="Only OrtValues that are Tensors are convertible to Numpy "
                       "objects"):
        value.numpy()
    with pytest.raises(RuntimeError, match="Cuda is not available"):
        flat.to_cuda(CPU)


@pytest.mark.parametrize("indices", [[1, 5, 6], [1, 50], [-1, 0], [[0, 9], [1, 1]]])
def test_sparse_indices_that_do_not_fit(indices: Any) -> None:
    with pytest.raises(RuntimeError):
        ort.SparseTensor.sparse_coo_from_numpy(np.array([3, 4]), np.array([1, 2], np.float32),
                                               np.array(indices), CPU)


def adapter(path: Path, **parameters: np.ndarray) -> str:
    made = ort.AdapterFormat()
    made.set_adapter_version(3)
    made.set_model_version(4)
    made.set_parameters({k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in parameters.items()})
    made.export_adapter(path)
    return str(path)


def test_adapters(tmp_path: Path) -> None:
    arrays = {"w": np.arange(3, dtype=np.float32), "longer name": np.ones((2, 3, 1), np.int64),
              "half": np.ones((0, 2), np.float16), "one": np.array(7, np.uint8)}
    path = adapter(tmp_path / "a.onnx_adapter", **arrays)
    read = ort.AdapterFormat.read_adapter(path)
    assert (read.get_format_version(), read.get_adapter_version(), read.get_model_version()) == (1, 3, 4)
    for name, array in read.get_parameters().items():
        assert array.numpy().dtype == arrays[name].dtype and array.numpy().tolist() == arrays[name].tolist()
    assert ort.AdapterFormat().get_parameters() == {}
    with pytest.raises(AttributeError):
        ort.AdapterFormat().set_parameters([1])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Invalid fd was supplied"):
        ort.AdapterFormat.read_adapter(tmp_path / "none")


def test_adapters_are_those_of_onnxruntime(tmp_path: Path) -> None:
    peer = pytest.importorskip("onnxruntime")
    arrays = {"w": np.arange(3, dtype=np.float32), "v": np.ones((2, 3), np.float16)}
    theirs = peer.AdapterFormat.read_adapter(adapter(tmp_path / "a.onnx_adapter", **arrays))
    assert {k: v.numpy().tolist() for k, v in theirs.get_parameters().items()} == {k: v.tolist() for k,
                                                                                   v in arrays.items()}
    assert (theirs.get_adapter_version(), theirs.get_model_version()) == (3, 4)
    theirs.export_adapter(str(tmp_path / "b.onnx_adapter"))
    ours = ort.AdapterFormat.read_adapter(tmp_path / "b.onnx_adapter")
    assert {k: v.numpy().tolist() for k, v in ours.get_parameters().items()} == {k: v.tolist() for k,
                                                                                 v in arrays.items()}


def test_broken_adapters(tmp_path: Path) -> None:
    whole = Path(adapter(tmp_path / "a", w=np.arange(3, dtype=np.float32))).read_bytes()
    broken = tmp_path / "b"
    for end in range(len(whole)):
        broken.write_bytes(whole[:end])
        with pytest.raises(RuntimeError, match="is no adapter"):
            ort.AdapterFormat.read_adapter(broken)
    for at in range(0, len(whole), 4):
        broken.write_bytes(whole[:at] + b"\xff\xff\xff\x7f" + whole[at + 4:])
        try:
            ort.AdapterFormat.read_adapter(broken)
        except RuntimeError as error:
            assert "is no adapter" in str(error)


def test_altered_adapters(tmp_path: Path) -> None:
    """Bytes, offsets and lengths at random: an adapter, or the error that says it is none."""
    whole = Path(adapter(tmp_path / "a", w=np.arange(3, dtype=np.float32), v=np.zeros((2, 0), np.int64),
                         c=np.array(3, np.uint8))).read_bytes()
    rng = random.Random(0)
    odd = (0, 1, 4, 7, 8, 16, 20, len(whole), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
    for _ in range(4000):
        altered = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(whole) - 4)
            if rng.random() < 0.5:
                altered[at] = rng.randrange(256)
            else:
                struct.pack_into("<I", altered, at & ~3, rng.choice(odd))
        with contextlib.suppress(RuntimeError):
            adapters._read(bytes(altered))


@pytest.mark.parametrize("names", [["w", "w"], [f"w{i}" for i in range(50)]])
def test_parameters_of_an_adapter_share_no_bytes(names: list[str]) -> None:
    """Else a small file would take any amount of memory."""
    out = adapters._Writer()
    vtable = len(out.data)
    out.data += adapters._VTABLE
    out.align(4)
    struct.pack_into("<I", out.data, 0, len(out.data))
    first = out.table(vtable, 1, 1, 1, 0)
    out.vector(first + 12, len(names), bytes(4 * len(names)), 4)
    slots = len(out.data) - 4 * len(names)
    payloads = []
    for i, name in enumerate(names):
        out.align(4)
        out.point(slots + 4 * i)
        field = out.table(vtable, 0, 0, 2, 0)
        out.vector(field, len(name), name.encode(), 1)
        out.vector(field + 4, 1, struct.pack("<q", 4096), 8)
        payloads.append(field + 12)
    for payload in payloads:
        out.point(payload)
    out.data += struct.pack("<I", 4096) + bytes(4096)
    with pytest.raises(RuntimeError, match="is there twice, or shares its bytes"):
        adapters._read(bytes(out.data))


def test_running_with_an_adapter(tmp_path: Path) -> None:
    session = ort.InferenceSession(api_models.two_outputs())
    lora = ort.LoraAdapter()
    lora.Load(adapter(tmp_path / "a", w=np.array([5], np.float32)))
    options = ort.RunOptions()
    options.add_active_adapter(lora)
    x = np.array([1, 2], np.float32)
    assert session.run(["m"], {"x": x}, options)[0].tolist() == [5, 10]
    assert session.run(["m"], {"x": x})[0].tolist() == [10, 20]
    other = ort.LoraAdapter()
    other.Load(adapter(tmp_path / "b", nobody=np.array([5], np.float32)))
    options = ort.RunOptions()
    options.add_active_adapter(other)
    with pytest.raises(state.InvalidArgument, match="Invalid input name: nobody"):
        session.run(["m"], {"x": x}, options)
    with pytest.raises(RuntimeError, match="Invalid fd"):
        lora.Load("/nope")


def test_the_compiler(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(api_models.two_outputs())
    feed = {"x": np.array([1, 2], np.float32)}
    compiler = ort.ModelCompiler(ort.SessionOptions(), source)
    compiler.compile_to_file()
    pieces: list[bytes] = []
    compiler.compile_to_stream(pieces.append)
    compiler.compile_to_file(str(tmp_path / "o.onnx"))
    outside = ort.ModelCompiler(ort.SessionOptions(), source, external_initializers_file_path="w.bin",
                                external_initializers_size_threshold=0)
    outside.compile_to_file(str(tmp_path / "e.onnx"))
    assert (tmp_path / "w.bin").exists()
    for made in (str(tmp_path / "m_ctx.onnx"), pieces[0], compiler.compile_to_bytes(),
                 str(tmp_path / "o.onnx"), str(tmp_path / "e.onnx")):
        assert ort.InferenceSession(made).run(["m"], feed)[0].tolist() == [10, 20]
    with pytest.raises(state.Fail, match="exists already"):
        ort.ModelCompiler(ort.SessionOptions(), source,
                          flags=ort.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS).compile_to_file(
            str(tmp_path / "o.onnx"))
    with pytest.raises(state.Fail, match="Unable to compile any nodes."):
        ort.ModelCompiler(ort.SessionOptions(), api_models.sequence(),
                          flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED).compile_to_bytes()
    for wrong, kind in ((3, TypeError), (b"", ValueError)):
        with pytest.raises(kind):
            ort.ModelCompiler(ort.SessionOptions(), wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ort.ModelCompiler(None, source)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="with both"):
        ort.ModelCompiler(ort.SessionOptions(), source, external_initializers_file_path="x",
                          get_initializer_location_func=lambda *_: None)


def test_placing_initializers(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def place(name: str, value: ort.OrtValue, external: Any) -> Any:
        seen[name] = value.numpy().copy()
        (tmp_path / "mine.bin").write_bytes(b"head" + value.numpy().tobytes())
        return ort.OrtExternalInitializerInfo("mine.bin", 4, value.tensor_size_in_bytes())
    compiler = ort.ModelCompiler(ort.SessionOptions(), api_models.two_outputs(),
                                 get_initializer_location_func=place)
    compiler.compile_to_file(str(tmp_path / "m.onnx"))
    assert seen["w"].tolist() == [10]
    made = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert made.graph.initializer[0].data_location == 1
    session = ort.InferenceSession(str(tmp_path / "m.onnx"))
    assert session.run(["m"], {"x": np.array([1, 2], np.float32)})[0].tolist() == [10, 20]


def test_what_the_capi_module_lists() -> None:
    kernels = state.get_all_opkernel_def()
    assert {(k.op_name, k.domain, k.provider) for k in kernels} >= {("Relu", "", "CPUExecutionProvider")}
    assert state.get_registered_ep_kernel_defs("NullExecutionProvider") is not None
    assert any(s.name == "Relu" for s in state.get_all_operator_schema())
    assert state.schemadef.OpSchema is onnx.defs.OpSchema and isinstance(kernels[0], state.opkernel.KernelDef)
    assert state.get_hardware_devices()
    assert state.get_compatibility_info_from_model_bytes(api_models.add(), "x") is None
    assert isinstance(state.get_default_session_options(), ort.SessionOptions)
    with pytest.raises(RuntimeError, match="non-CPU device"):
        ort.get_ep_devices()[-1].create_sync_stream()


def test_module_functions(capsys: pytest.CaptureFixture[str]) -> None:
    assert ort.get_available_providers()[-1] == "CPUExecutionProvider"
    assert ort.get_device() in ("CPU", "GPU") and not ort.has_collective_ops()
    assert len(ort.get_all_providers()) >= 21
    peer = pytest.importorskip("onnxruntime")
    assert set(peer.get_all_providers()) <= set(ort.get_all_providers())
    ort.enable_telemetry_events()
    ort.disable_telemetry_events()
    ort.preload_dlls()
    assert capsys.readouterr().out == ""
    ort.print_debug_info()
    assert "onnx" in capsys.readouterr().out
