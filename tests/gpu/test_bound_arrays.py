"""Results of an emulated GPU that are bound to memory which others are in: caches, and each other's."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import test_rocm
from onnx import TensorProto, helper, numpy_helper
from test_rocm import on_device, session, x_of

import orthrus as ort

pytestmark = pytest.mark.needs("AMD tables", "Triton")
emulated = test_rocm.driver


@pytest.mark.parametrize("read_twice", [False, True])
def test_a_cache_bound_as_input_and_output_grows_in_place(emulated: Any, read_twice: bool) -> None:
    """Keys and values are appended to the memory they are in; where something else reads it, it is copied."""
    names, held = ("keys", "values"), 24
    nodes = [helper.make_node("GroupQueryAttention", ["q", "k", "v", *names, "ends", "total"],
                              ["y", "new_keys", "new_values"], domain="com.microsoft", num_heads=4,
                              kv_num_heads=2)]
    shapes = {"q": [1, 1, 32], "k": [1, 1, 16], "v": [1, 1, 16], **dict.fromkeys(names, [1, 2, held, 8])}
    outputs = {"y": [1, 1, 32], **{f"new_{name}": shapes[name] for name in names}}
    if read_twice:
        nodes.append(helper.make_node("Sub", ["new_keys", "keys"], ["grown"]))
        outputs["grown"] = shapes["keys"]
    info, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    made = session(helper.make_model(helper.make_graph(
        nodes, "g", [*(info(name, kind, shape) for name, shape in shapes.items()),
                     info("ends", TensorProto.INT32, [1])],
        [info(name, kind, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.int32(held), "total")]), opset_imports=[
            helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8).SerializeToString(), enable_hip_graph="1")
    rng = np.random.default_rng(3)
    kept = {name: rng.standard_normal(shapes[name]).astype(np.float32) for name in names}
    bound = {name: ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0) for name, array in kept.items()}
    feeds = {name: ort.OrtValue.ortvalue_from_numpy(np.zeros(shapes[name], np.float32), "gpu", 0)
             for name in "qkv"} | {"ends": ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.int32), "gpu", 0)}
    given = {name: ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "gpu", 0)
             for name, shape in outputs.items() if not name.startswith("new_")}
    binding = made.io_binding()
    for name, value in {**feeds, **bound}.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_ortvalue_output(name, bound[name[4:]] if name.startswith("new_") else given[name])
    for length in range(5, 9):
        arrays = {name: rng.standard_normal(shapes[name]).astype(np.float32) for name in "qkv"}
        for name, array in (arrays | {"ends": np.array([length], np.int32)}).items():
            feeds[name].update_inplace(array)
        wanted = dict(zip(outputs, ort.InferenceSession(
            made._sess._source, providers=["CPUExecutionProvider"]).run(
                None, {**arrays, **kept, "ends": np.array([length], np.int32)}), strict=True))
        before = emulated.counts["copy"]
        made.run_with_iobinding(binding)
        assert emulated.counts["copy"] - before <= 1 + read_twice, "a cache was copied"
        for name, want in wanted.items():
            value = bound[name[4:]] if name.startswith("new_") else given[name]
            np.testing.assert_allclose(value.numpy(), want, rtol=1e-4, atol=1e-5)
        kept = {name: wanted[f"new_{name}"] for name in names}


def test_results_bound_to_one_array(emulated: Any) -> None:
    """What reads the first of them reads it before the second is written there."""
    shape, (info, kind) = [1, 8], (helper.make_tensor_value_info, TensorProto.FLOAT)
    nodes = [helper.make_node("Softmax", ["x"], ["a"]), helper.make_node("Softmax", ["a"], ["b"]),
             helper.make_node("Sub", ["a", "b"], ["c"]), helper.make_node("Softmax", ["c"], ["d"])]
    made = session(helper.make_model(helper.make_graph(
        nodes, "g", [info("x", kind, shape)], [info(name, kind, shape) for name in "abd"]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8).SerializeToString())
    wanted = made.run(None, {"x": x_of(1)})
    one, own = (ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "gpu", 0) for _ in range(2))
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", on_device(1))
    for name, value in (("a", one), ("b", one), ("d", own)):
        binding.bind_ortvalue_output(name, value)
    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(own.numpy(), wanted[2])


def test_a_run_on_the_same_arrays_takes_few_calls(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done besides replaying a graph and waiting for it, in calls of functions of Python's or C's:
    each takes about a tenth of a microsecond, whatever else the machine does."""
    replays, calls = list[Any](), list[str]()
    monkeypatch.setattr(emulated, "launch_graph", lambda *given: replays.append(given))
    monkeypatch.setattr(emulated, "synchronize", lambda *given: None)
    made = session(enable_hip_graph="1")
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", on_device(3))
    binding.bind_ortvalue_output("y", on_device(3))
    for _ in range(6):
        made.run_with_iobinding(binding)
    before = len(replays)

    def noted(frame: Any, event: str, given: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(frame.f_code.co_name)
    sys.setprofile(noted)
    try:
        made.run_with_iobinding(binding)
    finally:
        sys.setprofile(None)
    assert len(replays) == before + 1 and len(calls) < 85, calls
