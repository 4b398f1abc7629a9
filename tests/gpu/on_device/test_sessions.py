"""Sessions on the device: whole models, bound arrays, graphs, options, tuning, arrays of torch's."""

from __future__ import annotations

import threading
from typing import Any

import exported
import numpy as np
import pytest
from gpu_models import model, node

import orthrus as ort
from orthrus.errors import Fail

W = np.random.default_rng(1).standard_normal((64, 48)).astype(np.float32)
MODEL = model([node("MatMul", "x w", "p"), node("Relu", "p", "y")], {"x": ("n", 64)}, ["y"], w=W)


def x_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 64)).astype(np.float32)


def check(got: Any, x: np.ndarray) -> None:
    np.testing.assert_allclose(got, np.maximum(x @ W, 0), 1e-4, 1e-3)


@pytest.mark.parametrize("name", ("bert.script", "gpt2_past.script", "llama_gqa_past.script", "vit.script"))
def test_a_network(gpu: Any, name: str) -> None:
    if not gpu.real and name != "gpt2_past.script":
        pytest.skip("an emulated GPU runs the others in test_networks")
    made, feeds = exported.model(name), exported.feeds(name)
    session = gpu.session(made)
    on_cpu = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = on_cpu.run(None, feeds)
    for _ in range(2):
        for got, expected in zip(session.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(got, expected, 1e-3, 1e-3 * max(1.0, float(np.abs(expected).max())))


def test_shapes_that_change(gpu: Any) -> None:
    session = gpu.session(MODEL)
    for rows in (1, 2, 5, 16, 17, 64, 5, 1):
        check(session.run(None, {"x": x_of(rows, rows)})[0], x_of(rows, rows))


@pytest.mark.parametrize("graphs", (False, True))
def test_bound_arrays(gpu: Any, graphs: bool) -> None:
    session = gpu.session(MODEL, **({gpu.graphs: 1} if graphs else {}))
    x, y = gpu.value(x_of(9)), ort.OrtValue.ortvalue_from_shape_and_type([9, 48], np.float32, gpu.device, 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    for seed in range(6):
        x.update_inplace(x_of(9, seed))
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        check(y.numpy(), x_of(9, seed))
        check(binding.copy_outputs_to_cpu()[0], x_of(9, seed))
    other = session.io_binding()
    other.bind_cpu_input("x", x_of(4))
    other.bind_output("y", gpu.device)
    session.run_with_iobinding(other)
    assert other.get_outputs()[0].device_name() == gpu.device
    check(other.copy_outputs_to_cpu()[0], x_of(4))


def test_graphs_by_shape(gpu: Any) -> None:
    session = gpu.session(MODEL, **{gpu.graphs: 1})
    for seed in range(4):
        for rows in (3, 8):
            check(session.run(None, {"x": x_of(rows, seed)})[0], x_of(rows, seed))


def test_options(gpu: Any) -> None:
    for options in ({"do_copy_in_default_stream": 0}, {"arena_extend_strategy": "kSameAsRequested"},
                    {"gpu_mem_limit": 1 << 24}, {"device_id": 0}):
        check(gpu.session(MODEL, **options).run(None, {"x": x_of(5)})[0], x_of(5))
    small = gpu.session(MODEL, gpu_mem_limit=1 << 21, arena_extend_strategy="kSameAsRequested")
    with pytest.raises(Fail):
        small.run(None, {"x": x_of(1 << 16)})
    check(small.run(None, {"x": x_of(5)})[0], x_of(5))


def test_a_stream_of_the_callers(gpu: Any) -> None:
    device = gpu.own
    stream = device.create_stream()
    session = gpu.session(MODEL, user_compute_stream=stream)
    for rows in (3, 7):
        check(session.run(None, {"x": x_of(rows)})[0], x_of(rows))
    del session
    device.synchronize(stream)
    device.destroy_stream(stream)


def test_sessions_side_by_side(gpu: Any) -> None:
    sessions, failed = [gpu.session(MODEL) for _ in range(2)], list[BaseException]()

    def work(i: int) -> None:
        try:
            for turn in range(4):
                check(sessions[i % 2].run(None, {"x": x_of(6, i + turn)})[0], x_of(6, i + turn))
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_tuning(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.lowering.gpu import tuning

    if not gpu.real:
        for name, value in {"MOST": 3, "_LAUNCHES": 1, "_ROUNDS": 1}.items():
            monkeypatch.setattr(tuning, name, value)
    session = gpu.session(MODEL, tunable_op_enable=1, tunable_op_tuning_enable=1,
                          tunable_op_max_tuning_duration_ms=5)
    check(session.run(None, {"x": x_of(40)})[0], x_of(40))
    (entry,) = session.get_tuning_results()
    assert entry["ep"] == gpu.provider and entry["results"]
    print(entry)
    other = gpu.session(MODEL)
    other.set_tuning_results([entry], error_on_invalid=True)
    check(other.run(None, {"x": x_of(40)})[0], x_of(40))


@pytest.mark.needs("torch")
def test_arrays_of_torch(gpu: Any) -> None:
    import torch

    if not gpu.real:
        pytest.skip("an emulated GPU is none of torch's")
    session = gpu.session(MODEL)
    x = torch.from_numpy(x_of(11)).cuda()
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.from_dlpack(x))
    y = torch.full((11, 48), torch.nan, device="cuda")
    binding.bind_ortvalue_output("y", ort.OrtValue.from_dlpack(y))
    for seed in range(4):
        x.copy_(torch.from_numpy(x_of(11, seed)))
        torch.cuda.synchronize()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        check(y.cpu().numpy(), x_of(11, seed))
    out = torch.from_dlpack(gpu.value(x_of(3)))
    assert out.is_cuda
    np.testing.assert_array_equal(out.cpu().numpy(), x_of(3))
    on_torchs = gpu.session(MODEL, user_compute_stream=torch.cuda.current_stream().cuda_stream or 1)
    check(on_torchs.run(None, {"x": x_of(3)})[0], x_of(3))


def test_what_is_lost_of_a_device_is_told(gpu: Any) -> None:
    """A kernel that writes where it must not, in a process of its own: that ends the device for it."""
    import subprocess
    import sys

    if not gpu.real:
        pytest.skip("an emulated GPU is not lost to one process")
    done = subprocess.run([sys.executable, "-c", _FAULT, gpu.provider], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0 and "survived" in done.stdout, done.stdout + done.stderr


_FAULT = """
import sys
import numpy as np
import onnx
from onnx import helper, TensorProto
import orthrus as ort
from orthrus.providers import known

name = sys.argv[1]
kind = known((name,))[name]
device = kind.devices()[0]
made = helper.make_model(helper.make_graph(
    [helper.make_node("Neg", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [4])],
    [helper.make_tensor_value_info("y", 1, [4])]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
session = ort.InferenceSession(made.SerializeToString(), providers=[name, "CPUExecutionProvider"])
x = np.ones(4, np.float32)
assert (session.run(None, {"x": x})[0] == -1).all()
part = next(p for p in __import__("gc").get_objects() if type(p).__name__ == "GpuPart")
plan = next(iter(part.plans.values()))
plan.packed = plan.packed.copy()
plan.packed_for = lambda arena, addresses: bytes(len(plan.packed))
try:
    again = session.run(None, {"x": x})[0]
    assert (again == -1).all(), again
except Exception as error:
    print("told:", type(error).__name__, error)
assert (session.run(None, {"x": x})[0] == -1).all()
print("survived")
"""
