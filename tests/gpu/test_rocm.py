"""ROCMExecutionProvider on an emulated GPU: its options at work, graphs, sessions side by side."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import orthrus as ort
from orthrus.codegen.triton import compile as compiling
from orthrus.errors import DeviceReset, EPFail, Fail, InvalidArgument
from orthrus.ir import No
from orthrus.kernels import Part, Stored, Stream
from orthrus.load import load
from orthrus.lowering.gpu.package import GpuPackage, _check
from orthrus.lowering.package.loaded import Package
from orthrus.providers.gpu import device as devices
from orthrus.providers.gpu.driver import DriverError
from orthrus.providers.rocm import ROCMExecutionProvider
from orthrus.tools.cli.main import app

pytestmark = pytest.mark.needs("AMD tables", "Triton")
NAME = "ROCMExecutionProvider"
B = np.linspace(-1, 1, 8, dtype=np.float32)


def model(rows: Any = "n", *nodes: Any, kind: int = TensorProto.FLOAT) -> bytes:
    made = nodes or (helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"]))
    return helper.make_model(helper.make_graph(
        list(made), "g", [helper.make_tensor_value_info("x", kind, [rows, 8])],
        [helper.make_tensor_value_info("y", kind, [rows, 8])],
        [numpy_helper.from_array(B.astype(helper.tensor_dtype_to_np_dtype(kind)), "b")]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def x_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x + B, 0)


class Found:
    """In the place of a `Finding`: this driver."""

    def __init__(self, driver: Any) -> None:
        self.driver = self.made = lambda: driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from gfx.driver import EmulatedDriver

    found = EmulatedDriver("gfx1100", devices=2, most=1 << 26)
    monkeypatch.setattr(ROCMExecutionProvider, "finding", Found(found))
    monkeypatch.setattr(devices, "_shared", {})
    yield found


def session(proto: bytes | None = None, **options: Any) -> ort.InferenceSession:
    made = ort.InferenceSession(proto or model(), providers=[(NAME, options)])
    assert made.get_providers()[0] == NAME
    return made


def test_the_provider_computes(driver: Any) -> None:
    made = session()
    for rows in (1, 3, 70):
        np.testing.assert_array_equal(made.run(None, {"x": x_of(rows)})[0], expected(x_of(rows)))
    assert {node.provider for node in made.explain().nodes if "Memcpy" not in node.op_type} == {NAME}
    assert driver.counts["launch"] == 3
    assert made.get_provider_options()[NAME]["device_id"] == "0"
    assert NAME in ort.get_available_providers()


def test_the_guides_session(driver: Any) -> None:
    made = ort.InferenceSession(model(), providers=[("CPUExecutionProvider")])
    made.set_providers([NAME], [{
        "device_id": 1, "arena_extend_strategy": "kNextPowerOfTwo", "gpu_mem_limit": 2 * 1024**3,
        "cudnn_conv_algo_search": "EXHAUSTIVE", "do_copy_in_default_stream": True}])
    assert made.get_providers() == [NAME, "CPUExecutionProvider"]
    told = made.get_provider_options()[NAME]
    assert told["device_id"] == "1" and told["gpu_mem_limit"] == "2147483648"
    np.testing.assert_array_equal(made.run(["y"], {"x": x_of(3)})[0], expected(x_of(3)))


def test_another_device(driver: Any) -> None:
    made = [session(device_id=i) for i in (0, 1, 1)]
    for each in made:
        np.testing.assert_array_equal(each.run(None, {"x": x_of(2)})[0], expected(x_of(2)))
    kinds = {repr(p.device) for each in made for p in each._sess._engine.providers if p.name == NAME}
    assert kinds == {"gpu:0", "gpu:1"}


def test_runs_are_recorded_by_shape_and_replayed(driver: Any) -> None:
    made = session(enable_hip_graph="1")
    for turn in range(5):
        for rows in (2, 5):
            x = x_of(rows, turn)
            np.testing.assert_array_equal(made.run(None, {"x": x})[0], expected(x))
    assert driver.counts["begin_capture"] == driver.counts["end_capture"] == 2
    assert driver.counts["launch_graph"] == 8 and driver.counts["launch"] == 4
    replayed = driver.counts["launch_graph"]
    off = ort.RunOptions()
    off.add_run_config_entry("gpu_graph_id", "-1")
    np.testing.assert_array_equal(made.run(None, {"x": x_of(2)}, off)[0], expected(x_of(2)))
    assert driver.counts["launch_graph"] == replayed and driver.counts["launch"] == 5
    named = ort.RunOptions()
    named.add_run_config_entry("gpu_graph_id", "7")
    for _ in range(3):
        np.testing.assert_array_equal(made.run(None, {"x": x_of(2)}, named)[0], expected(x_of(2)))
    assert driver.counts["launch_graph"] > replayed
    del made
    assert not driver.graphs


def test_a_device_that_records_nothing(driver: Any, caplog: pytest.LogCaptureFixture,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(index: int, stream: int) -> int:
        driver.recording.pop(stream)
        raise DriverError("end_capture", 900, "not permitted")
    monkeypatch.setattr(driver, "end_capture", refused)
    made = session(enable_hip_graph="1")
    for i in range(4):
        np.testing.assert_array_equal(made.run(None, {"x": x_of(4, i)})[0], expected(x_of(4, i)))
    assert driver.counts["begin_capture"] == 1 and "is not recorded as a graph" in caplog.text


def test_no_more_than_some_graphs_are_kept(driver: Any) -> None:
    made, kept = session(enable_hip_graph="1"), []
    x = ort.OrtValue.ortvalue_from_numpy(x_of(2), "gpu", 0)
    for _ in range(12):
        y = ort.OrtValue.ortvalue_from_shape_and_type([2, 8], np.float32, "gpu", 0)
        kept.append(y)
        for _ in range(2):
            binding = made.io_binding()
            binding.bind_ortvalue_input("x", x)
            binding.bind_ortvalue_output("y", y)
            made.run_with_iobinding(binding)
    for y in kept:
        np.testing.assert_array_equal(y.numpy(), expected(x_of(2)))
    assert len(driver.graphs) <= 8


def on_device(rows: int, seed: int = 0) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(x_of(rows, seed), "gpu", 0)


class Bound:
    """A session's binding of x and y on the device, whose runs are to be short ones, or whole."""

    def __init__(self, made: ort.InferenceSession, monkeypatch: pytest.MonkeyPatch, rows: int = 3) -> None:
        self.session, self.binding, self.whole = made, made.io_binding(), 0
        engine = made._sess._engine
        run = engine.run

        def counted(*given: Any, **more: Any) -> Any:
            self.whole += 1
            return run(*given, **more)
        monkeypatch.setattr(engine, "run", counted)
        self.bind(on_device(rows), on_device(rows))

    def bind(self, x: ort.OrtValue, y: ort.OrtValue) -> None:
        self.x, self.y = x, y
        self.binding.bind_ortvalue_input("x", x)
        self.binding.bind_ortvalue_output("y", y)

    def run(self, seed: int = 0, options: Any = None) -> int:
        """How many runs were whole; the result is looked at."""
        x, before = x_of(self.x.shape()[0], seed), self.whole
        self.x.update_inplace(x)
        self.y.update_inplace(np.full_like(x, np.nan))
        self.session.run_with_iobinding(self.binding, options)
        np.testing.assert_array_equal(self.y.numpy(), expected(x))
        np.testing.assert_array_equal(self.binding.copy_outputs_to_cpu()[0], expected(x))
        return self.whole - before

    def settled(self) -> None:
        """Run until runs are short ones."""
        assert [self.run(i) for i in range(5)][-2:] == [0, 0]


def test_bound_runs_become_short_ones(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Bound(session(enable_hip_graph="1"), monkeypatch)
    assert [bound.run(i) for i in range(6)] == [1, 1, 0, 0, 0, 0]
    plain = Bound(session(), monkeypatch)
    assert [plain.run(i) for i in range(6)] == [1] * 6


def test_runs_that_nobody_waits_for_become_short_ones(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Bound(session(enable_hip_graph="1"), monkeypatch)
    later, otherwise, plain = (ort.RunOptions() for _ in range(3))
    later.add_run_config_entry("disable_synchronize_execution_providers", "1")
    assert [bound.run(i, later) for i in range(6)] == [1, 1, 0, 0, 0, 0]
    for options, waits in ((later, False), (None, True), (plain, True)):
        bound.settled()
        before = driver.counts["synchronize"]
        bound.session.run_with_iobinding(bound.binding, options)
        assert (driver.counts["synchronize"] > before) == waits
    otherwise.timeout = 60.0
    assert bound.run(1, otherwise) == 1
    later.terminate = True
    with pytest.raises(RuntimeError, match="terminate"):
        bound.session.run_with_iobinding(bound.binding, later)
    later.terminate = False
    bound.settled()
    assert bound.run(2, later) == 0


def test_a_short_run_notices_what_is_bound_now(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Bound(session(enable_hip_graph="1"), monkeypatch)
    bound.settled()
    old = bound.y
    bound.bind(bound.x, on_device(3))
    bound.settled()
    kept = bound.y.numpy()
    bound.bind(on_device(3), bound.y)
    bound.settled()
    bound.bind(on_device(5), on_device(5))
    bound.settled()
    bound.binding.clear_binding_outputs()
    with pytest.raises(RuntimeError, match="At least one output"):
        bound.session.run_with_iobinding(bound.binding)
    bound.binding.bind_output("y", "gpu", 0)
    for _ in range(4):
        bound.session.run_with_iobinding(bound.binding)
    made = [bound.binding.get_outputs()[0]]
    bound.session.run_with_iobinding(bound.binding)
    assert made[0].data_ptr() != bound.binding.get_outputs()[0].data_ptr()
    bound.bind(bound.x, bound.x)
    bound.session.run_with_iobinding(bound.binding)
    for each, rows, seed in ((old, 3, 4), (made[0], 5, 4)):
        np.testing.assert_array_equal(each.numpy(), expected(x_of(rows, seed)))
    np.testing.assert_array_equal(bound.x.numpy(), expected(x_of(5, 4)))
    assert kept.shape == (3, 8)
    bound.binding.clear_binding_inputs()
    with pytest.raises(RuntimeError, match="Missing Input"):
        bound.session.run_with_iobinding(bound.binding)


def test_whatever_is_bound_anew_is_noticed(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every way to bind, and by nothing else."""
    bound = Bound(session(enable_hip_graph="1"), monkeypatch)
    binding = bound.binding

    def at(value: ort.OrtValue) -> tuple[Any, ...]:
        return "gpu", 0, np.float32, value.shape(), value.data_ptr()

    def anew(name: str, bind: Callable[[ort.OrtValue], None]) -> None:
        bound.settled()
        old = bound.x if name == "x" else bound.y
        new = on_device(3)
        setattr(bound, name, new)
        bind(new)
        old.update_inplace(np.full((3, 8), 77, np.float32))
        bound.x.update_inplace(x_of(3))
        bound.session.run_with_iobinding(binding)
        np.testing.assert_array_equal(bound.y.numpy(), expected(x_of(3)))
        np.testing.assert_array_equal(old.numpy(), np.full((3, 8), 77, np.float32))
        bound.settled()
    anew("x", lambda value: binding.bind_ortvalue_input("x", value))
    anew("y", lambda value: binding.bind_ortvalue_output("y", value))
    anew("x", lambda value: binding.bind_input("x", *at(value)))
    anew("y", lambda value: binding.bind_output("y", *at(value)))
    bound.session.run_with_iobinding(binding)
    binding.bind_cpu_input("x", x_of(3, 9))
    bound.session.run_with_iobinding(binding)
    np.testing.assert_array_equal(bound.y.numpy(), expected(x_of(3, 9)))


def test_memory_is_given_back_once_it_is_bound_no_more(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Bound(session(enable_hip_graph="1"), monkeypatch)
    bound.settled()
    gone = weakref.ref(bound.y._ortvalue._value.memory)
    bound.bind(bound.x, on_device(3))
    bound.settled()
    assert gone() is None


def test_short_runs_where_somebody_looks_on(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Bound(session(enable_hip_graph="1"), monkeypatch)
    bound.settled()
    off = ort.RunOptions()
    off.add_run_config_entry("gpu_graph_id", "-1")
    assert bound.run(1, off) == 1
    assert bound.run(2) == 0
    with bound.session.profile() as profile:
        assert bound.run(3) == 1
    assert profile.runs == 1
    bound.settled()


def test_an_arena_that_grew(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph's addresses are none of a run's any more."""
    nodes = [helper.make_node("Softmax", ["x"], ["p"], axis=0),
             helper.make_node("Softmax", ["p"], ["q"], axis=1), helper.make_node("Add", ["x", "q"], ["r"]),
             helper.make_node("Softmax", ["r"], ["y"], axis=0)]
    made = session(model("n", *nodes), enable_hip_graph="1")
    monkeypatch.setattr("orthrus.lowering.gpu.part._GROW", 256)
    values = on_device(4), on_device(4)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", values[0])
    binding.bind_ortvalue_output("y", values[1])

    def checked() -> None:
        values[1].update_inplace(np.full((4, 8), np.nan, np.float32))
        made.run_with_iobinding(binding)
        np.testing.assert_array_equal(values[1].numpy(), first)
    made.run_with_iobinding(binding)
    first = values[1].numpy()
    for rows in (16, 48):
        for _ in range(4):
            checked()
        assert binding._iobinding._repeat is not None
        made.run(None, {"x": x_of(rows)})
        checked()
        assert binding._iobinding._repeat is None


def test_a_kernel_that_gives_up_in_a_short_run(driver: Any) -> None:
    proto = helper.make_model(helper.make_graph(
        [helper.make_node("Gather", ["w", "i"], ["y"])], "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])], [numpy_helper.from_array(B, "w")]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    made = session(proto, enable_hip_graph="1")
    i = ort.OrtValue.ortvalue_from_numpy(np.array([0, 1, 2]), "gpu", 0)
    y = ort.OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32), "gpu", 0)
    binding = made.io_binding()
    binding.bind_ortvalue_input("i", i)
    binding.bind_ortvalue_output("y", y)
    for turn in range(3):
        for _ in range(4):
            made.run_with_iobinding(binding)
            np.testing.assert_array_equal(y.numpy(), B[i.numpy()])
        assert binding._iobinding._repeat is not None
        i.update_inplace(np.array([0, 8 + turn, 1]))
        with pytest.raises(RuntimeError, match="Error in execution.*Gather"):
            made.run_with_iobinding(binding)
        i.update_inplace(np.array([turn, -1, 5]))


def test_a_closed_session_and_a_lost_device(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = [Bound(session(enable_hip_graph="1"), monkeypatch) for _ in range(2)]
    for bound in bounds:
        bound.settled()
    kernels = [call.kernel for call in bounds[0].session._sess._engine.program.calls]
    gone, = (weakref.ref(kernel.run) for kernel in kernels if kernel.again is not None)
    del kernels
    assert gone() is not None
    bounds[0].session.close()
    assert gone() is None
    with pytest.raises(RuntimeError):
        bounds[0].session.run_with_iobinding(bounds[0].binding)
    driver.lost = "a kernel read where it must not"
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a kernel read where it must not"):
            bounds[1].session.run_with_iobinding(bounds[1].binding)


def test_short_runs_side_by_side(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several bindings of one session, each on a thread of its own, and runs without one beside them."""
    made = session(enable_hip_graph="1")
    bounds = [Bound(made, monkeypatch, rows) for rows in (2, 2, 3)]
    wrong: list[BaseException] = []

    def work(which: int) -> None:
        try:
            for i in range(12):
                if which < len(bounds):
                    bounds[which].run(100 * which + i)
                else:
                    np.testing.assert_array_equal(made.run(None, {"x": x_of(2, i)})[0], expected(x_of(2, i)))
        except BaseException as error:
            wrong.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_short_run_comes_behind_other_streams(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the result, or writes the input, is waited for by the very next run, and by that alone."""
    bound = Bound(session(enable_hip_graph="1"), monkeypatch)
    bound.settled()
    x, y = bound.x._ortvalue._value, bound.y._ortvalue._value

    def waits() -> int:
        before = driver.counts["wait"]
        bound.session.run_with_iobinding(bound.binding)
        return int(driver.counts["wait"] - before)
    assert [waits() for _ in range(3)][1:] == [0, 0]
    other = Stream(x.device)
    for touch in (y.memory.reading, x.memory.writing, y.memory.writing):
        touch(other)
        assert waits() > 0 and waits() == 0


def test_results_that_are_kept_stay_as_they_were(driver: Any) -> None:
    made = session(enable_hip_graph="1")
    kept = [made.run(None, {"x": x_of(4, i)})[0] for i in range(6)]
    for i, y in enumerate(kept):
        np.testing.assert_array_equal(y, expected(x_of(4, i)))


def test_a_part_with_a_step_of_the_hosts_is_not_recorded(driver: Any, caplog: pytest.LogCaptureFixture
                                                         ) -> None:
    made = session(model(4, helper.make_node("Add", ["x", "b"], ["s"]),
                         helper.make_node("NonZero", ["s"], ["i"]),
                         helper.make_node("Relu", ["s"], ["y"])), enable_hip_graph="1")
    for i in range(3):
        np.testing.assert_array_equal(made.run(None, {"x": x_of(4, i)})[0], expected(x_of(4, i)))
    hosted = "is not recorded as a graph" in caplog.text
    assert hosted == (driver.counts["begin_capture"] == 0)


def test_a_stream_of_the_callers(driver: Any) -> None:
    theirs = driver.create_stream(0)
    made = session(user_compute_stream=theirs)
    np.testing.assert_array_equal(made.run(None, {"x": x_of(3)})[0], expected(x_of(3)))
    (provider,) = (p for p in made._sess._engine.providers if p.name == NAME)
    assert provider.lanes().take().compute.handle == theirs


def test_a_limit_of_memory(driver: Any) -> None:
    made = session(gpu_mem_limit=1 << 22, arena_extend_strategy="kSameAsRequested")
    with pytest.raises(Fail, match="gpu_mem_limit"):
        made.run(None, {"x": x_of(1 << 17)})
    np.testing.assert_array_equal(made.run(None, {"x": x_of(3)})[0], expected(x_of(3)))


def test_sessions_and_threads_side_by_side(driver: Any) -> None:
    made = [session(enable_hip_graph="1"), session(do_copy_in_default_stream="0")]
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(6):
                x = x_of(1 + (seed + i) % 3, 10 * seed + i)
                np.testing.assert_array_equal(made[seed % 2].run(None, {"x": x})[0], expected(x))
        except BaseException as error:
            wrong.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_device_that_is_lost(driver: Any) -> None:
    made = session()
    made.run(None, {"x": x_of(2)})
    driver.lost = "a kernel read where it must not"
    made.disable_fallback()
    with pytest.raises(DeviceReset, match="a kernel read where it must not"):
        made.run(None, {"x": x_of(2)})
    made.enable_fallback()
    np.testing.assert_array_equal(made.run(None, {"x": x_of(2)})[0], expected(x_of(2)))
    assert made.get_providers() == ["CPUExecutionProvider"]


def compiled(tmp_path: Path, target: str, proto: bytes | None = None, *arguments: str) -> Path:
    """A model compiled ahead by the command line, as on a machine without a GPU."""
    plain, made = tmp_path / "m.onnx", tmp_path / f"{target}.onnx"
    plain.write_bytes(proto or model(3))
    done = CliRunner().invoke(app, ["compile", str(plain), "--provider", "rocm", "--target", target, "--out",
                                    str(made), *arguments])
    assert done.exit_code == 0, done.output
    return made


def test_a_part_compiled_ahead_runs_without_a_compiler(driver: Any, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ROCMExecutionProvider, "finding", Found(No("no driver")))
    path = compiled(tmp_path, "gfx1100")
    monkeypatch.setattr(ROCMExecutionProvider, "finding", Found(driver))
    monkeypatch.setattr(compiling, "compiler", lambda: "")
    monkeypatch.setattr(compiling, "codes", None)
    made = ort.InferenceSession(str(path), providers=[(NAME, {"enable_hip_graph": 1})], trust=True)
    for i in range(3):
        np.testing.assert_array_equal(made.run(None, {"x": x_of(3, i)})[0], expected(x_of(3, i)))
    assert {n.provider for n in made.explain().nodes if "Memcpy" not in n.op_type} == {NAME}
    with pytest.raises(InvalidArgument, match="(?s)compiled ahead for other shapes|Got invalid dimensions"):
        made.run(None, {"x": x_of(4)})
    with pytest.raises(Fail, match="nobody said that it may run"):
        ort.InferenceSession(str(path), providers=[NAME])


def test_a_part_for_another_target_is_refused(driver: Any, tmp_path: Path) -> None:
    path = compiled(tmp_path, "gfx942")
    with pytest.raises(EPFail, match="it is made for gfx942, and the device is gfx1100"):
        ort.InferenceSession(str(path), providers=[NAME], trust=True)


def test_parts_that_cannot_be_compiled_ahead_say_why(driver: Any, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(model())
    runner = CliRunner()
    for arguments, message in (("gfx1100", "known only at run time"), ("gfx803", "there is no target gfx803"),
                               ("sm_90", "there is no target sm_90; known are gfx")):
        done = runner.invoke(app, ["compile", str(tmp_path / "m.onnx"), "--provider", "rocm", "--target",
                                   arguments, "--out", str(tmp_path / "no.onnx")])
        assert done.exit_code == 1 and message in f"{done.output} {done.exception}", done.output


def test_a_damaged_package_is_refused() -> None:
    for target in ("gfx1100", "sm_90"):
        packed = ROCMExecutionProvider({"target": target}).store(part())
        assert isinstance(packed, Stored) and packed.target == target and "triton" in packed.version
        opened = GpuPackage(packed.data)
        assert opened.target.arch == target
        for at in (0, 20, len(packed.data) // 2, len(packed.data) - 1):
            wrong = bytearray(packed.data)
            wrong[at] ^= 1
            with pytest.raises(ValueError, match="package"):
                GpuPackage(bytes(wrong))
    with pytest.raises(ValueError, match="no package of a compiled part"):
        Package(packed.data)
    with pytest.raises(ValueError, match="other arguments"):
        _check([1, 2], opened.codes[0])
    with pytest.raises(ValueError, match="a package of another part: x is "):
        opened.expected(part(TensorProto.INT32))


def part(kind: int = TensorProto.FLOAT) -> Part:
    graph = load(model(3, kind=kind))
    return Part(NAME, list(graph.nodes), [v for v in graph.inputs if v.const is None], list(graph.outputs),
                "part", graph.info)
