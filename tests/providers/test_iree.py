"""IREEExecutionProvider: parts against the CPU provider, what it refuses, and what happens where IREE fails.

Everything here compiles small models, half a second each the first time; compiled parts are kept in the
cache of generated code. `test_iree_models.py` has the longer runs.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import foreign
import ml_dtypes
import numpy as np
import onnx
import pytest
from foreign import reasons
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus import knobs, providers
from orthrus.codegen.machines import detect, machine
from orthrus.errors import EPFail, Fail, InvalidArgument
from orthrus.ir import ElementType, No
from orthrus.providers.foreign import kept, process
from orthrus.providers.iree import IREEExecutionProvider, claims, compiler, settings

pytestmark = needs("IREE")

NAME = "IREEExecutionProvider"
CPU = "CPUExecutionProvider"
RNG = np.random.default_rng(0)


def perceptron() -> onnx.ModelProto:
    """y = softmax(relu(x w + b)), x [N, 8]."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
             helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
             helper.make_node("Relu", ["a"], ["r"], name="relu"),
             helper.make_node("Softmax", ["r"], ["y"], name="softmax")]
    weights = {"w": np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5),
               "b": np.linspace(0, 1, 5, dtype=np.float32)}
    return model(nodes, [info("x", shape=["N", 8])], [info("y", shape=["N", 5])], weights, opset=17)


def session(proto: Any, fallback: str = "allow", **options: str) -> ort.InferenceSession:
    return ort.InferenceSession(proto.SerializeToString() if hasattr(proto, "graph") else proto,
                                providers=[(NAME, options), CPU], fallback=fallback)


on_iree, whole = partial(foreign.taken, provider=NAME), partial(foreign.whole, provider=NAME)


def check(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], rtol: float = 1e-5, **options: str
          ) -> ort.InferenceSession:
    """A session on IREE alone that gives what the CPU provider gives."""
    made = session(proto, **options)
    foreign.agrees(made, NAME, proto, feeds, rtol)
    return made


@pytest.fixture
def anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim every node, as if the table knew all operators."""
    monkeypatch.setattr(claims, "judged", lambda node, sized=False: None)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[str]:
    """A cache folder of this test's own, and a compiler that starts anew."""
    yield str(tmp_path / "cache")
    compiler._worker.stop()


# results

def test_one_part_for_any_batch() -> None:
    made = session(perceptron())
    assert len({node.part for node in made.explain()}) == 1
    for n in (1, 2, 5, 0):
        check(perceptron(), {"x": RNG.standard_normal((n, 8)).astype(np.float32)})


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_devices(device: str) -> None:
    check(perceptron(), {"x": RNG.standard_normal((3, 8)).astype(np.float32)}, device=device)


@pytest.mark.parametrize("elem", [ElementType.FLOAT16, ElementType.BFLOAT16, ElementType.DOUBLE,
                                  ElementType.INT8, ElementType.UINT8, ElementType.INT64])
def test_types(elem: ElementType) -> None:
    proto = model([helper.make_node("Mul", ["x", "x"], ["y"])], [info("x", int(elem), [2, 3])],
                  [info("y", int(elem), [2, 3])])
    check(proto, {"x": np.arange(6).reshape(2, 3).astype(elem.numpy)})


@pytest.mark.parametrize("elem", [ElementType.FLOAT8E4M3FN, ElementType.FLOAT8E5M2])
def test_float8_comes_in(elem: ElementType) -> None:
    proto = model([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
                  [info("x", int(elem), [6])], [info("y", shape=[6])])
    check(proto, {"x": np.linspace(-3, 3, 6).astype(elem.numpy)})


def test_int8_products() -> None:
    a, b = (RNG.integers(0, 256, shape).astype(np.uint8) for shape in ((4, 16), (16, 8)))
    zeros = {"za": np.array(12, np.uint8), "zb": np.array(3, np.uint8)}
    proto = model([helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])],
                  [info("a", TensorProto.UINT8, [4, 16])], [info("y", TensorProto.INT32, [4, 8])],
                  {"b": b, **zeros})
    check(proto, {"a": a}, rtol=0)


def test_int4_weights_have_an_answer() -> None:
    """Four bits inside of a part: computed where the table speaks for it, refused with a reason where not."""
    proto = model([helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
                   helper.make_node("Add", ["x", "d"], ["y"])],
                  [info("x", shape=[6])], [info("y", shape=[6])],
                  {"w": np.arange(6).astype(ml_dtypes.int4), "s": np.array(0.5, np.float32)})
    made = ort.InferenceSession(proto.SerializeToString(), providers=[NAME, CPU],
                                disabled_optimizers=["ConstantFolding"])
    np.testing.assert_array_equal(made.run(None, {"x": np.zeros(6, np.float32)})[0], np.arange(6) / 2)
    assert whole(made) or "int4" in reasons(made)


def test_dimensions_that_may_be_stretched() -> None:
    """IREE takes two open dimensions for equal: such a node is its own only where they are known."""
    proto = model([helper.make_node("Mul", ["x", "s"], ["y"])], [info("x", shape=["N", 4]),
                                                                 info("s", shape=["N", "M"])],
                  [info("y", shape=["N", "K"])])
    feeds = {"x": RNG.standard_normal((3, 4)).astype(np.float32), "s": np.full((3, 1), 2, np.float32)}
    made = session(proto)
    assert "could be 1 or not" in reasons(made)
    np.testing.assert_array_equal(made.run(None, feeds)[0], feeds["x"] * 2)
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("M", 1)
    fixed = ort.InferenceSession(proto.SerializeToString(), options, providers=[NAME])
    assert whole(fixed), reasons(fixed)
    np.testing.assert_array_equal(fixed.run(None, feeds)[0], feeds["x"] * 2)


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_fixed_shapes(device: str) -> None:
    """A module for each tuple of input shapes; nothing is ambiguous then."""
    nodes = [helper.make_node("Mul", ["x", "s"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    proto = model(nodes, [info("x", shape=["N", 4]), info("s", shape=["N", "M"])],
                  [info("y", shape=["N", "K"])])
    made = session(proto, shapes="fixed", device=device)
    assert whole(made), reasons(made)
    assert "compiled for each shape" in made.explain().nodes[0].kernel
    plain = ort.InferenceSession(proto.SerializeToString())
    for n, m in ((3, 1), (3, 4), (1, 4), (0, 1), (3, 1)):
        feeds = {"x": RNG.standard_normal((n, 4)).astype(np.float32),
                 "s": RNG.standard_normal((n, m)).astype(np.float32)}
        np.testing.assert_allclose(made.run(None, feeds)[0], plain.run(None, feeds)[0], 1e-5)
    with pytest.raises(Fail):
        made.run(None, {"x": np.ones((3, 4), np.float32), "s": np.ones((3, 3), np.float32)})


def test_fixed_shapes_that_do_not_compile(fresh: str, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """The session goes on with the next provider and says so, or raises where that is not wanted."""
    monkeypatch.setattr(process.Process, "_line", staticmethod(lambda process, timeout: b""))
    x = {"x": np.ones((2, 8), np.float32)}
    made = session(perceptron(), shapes="fixed", cache_folder=fresh)
    made.disable_fallback()
    with pytest.raises(EPFail, match="does not compile a part for these shapes"):
        made.run(None, x)
    other = session(perceptron(), shapes="fixed", cache_folder=fresh)
    assert other.run(None, x)[0].shape == (2, 5) and "Falling back" in capsys.readouterr().out
    monkeypatch.undo()
    assert made.run(None, x)[0].shape == (2, 5)
    assert on_iree(made) and not on_iree(other)


def test_int4_does_not_cross_a_border() -> None:
    proto = model([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
                  [info("x", TensorProto.INT4, [4])], [info("y", shape=[4])])
    made = session(proto)
    assert "int4" in reasons(made) and not on_iree(made)
    np.testing.assert_array_equal(made.run(None, {"x": np.arange(4).astype(ml_dtypes.int4)})[0], range(4))


def test_results_are_the_callers_own() -> None:
    proto = model([helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", shape=[2, 32])],
                  [info("y", shape=[64])], {"s": np.array([64])})
    x = RNG.standard_normal((2, 32)).astype(np.float32)
    before = x.copy()
    (y,) = session(proto).run(None, {"x": x})
    y += 1
    np.testing.assert_array_equal(x, before)


def test_operators_that_write_in_place_leave_inputs_alone() -> None:
    from orthrus.providers.iree.program import aligned

    proto = model([helper.make_node("ScatterND", ["x", "i", "u"], ["y"])], [info("x", shape=[5, 2])],
                  [info("y", shape=[5, 2])], {"i": np.array([[0], [3]]), "u": np.ones((2, 2), np.float32)})
    x = aligned(np.zeros((5, 2), np.float32))
    made = check(proto, {"x": x})
    assert made.run(None, {"x": x})[0].any() and not x.any()


def test_aligned_inputs_are_not_copied() -> None:
    import iree.runtime as rt

    from orthrus.providers.iree.program import LoadedModule, aligned, opened

    program = object.__new__(LoadedModule)
    program.rt, program.host, program.device = rt, True, opened("local-sync", 1)
    program.updates = False
    x = aligned(np.arange(64, dtype=np.float32))
    assert program._view(x, ElementType.FLOAT)[0] is x or np.shares_memory(
        program._view(x, ElementType.FLOAT)[0], x)
    odd = np.concatenate([np.zeros(1, np.float32), x])[1:]
    assert odd.ctypes.data % 64 and not np.shares_memory(program._view(odd, ElementType.FLOAT)[0], odd)


# shapes

def test_a_contradiction_is_an_error_and_no_result() -> None:
    """A batch that the model's own constants forbid: IREE alone would answer with another shape."""
    nodes = [helper.make_node("Reshape", ["x", "s"], ["t"], name="fixed"),
             helper.make_node("Relu", ["t"], ["y"], name="relu")]
    proto = model(nodes, [info("x", shape=["N", 4])], [info("y", shape=[1, 4])],
                  {"s": np.array([1, 4])}, opset=17)
    made = session(proto)
    assert made.run(None, {"x": np.ones((1, 4), np.float32)})[0].shape == (1, 4)
    with pytest.raises(Fail):
        made.run(None, {"x": np.ones((2, 4), np.float32)})


def test_a_wrong_shape_is_an_error() -> None:
    from orthrus.kernels import Part
    from orthrus.load import load
    from orthrus.providers.foreign.shapes import Shapes

    graph = load(perceptron())
    shapes = Shapes(Part(NAME, graph.nodes, graph.inputs, graph.outputs, "part", graph.info), "IREE")
    x = np.zeros((3, 8), np.float32)
    expected = shapes.expected([x])
    assert expected == [(3, 5)]
    shapes.check([np.zeros((3, 5), np.float32)], expected, [x])
    with pytest.raises(EPFail, match="wrong shape"):
        shapes.check([np.zeros((1, 5), np.float32)], expected, [x])


# runs under way

def test_runs_begin_without_waiting() -> None:
    made = session(perceptron(), device="local-task")
    feeds = [{"x": RNG.standard_normal((2, 8)).astype(np.float32)} for _ in range(24)]
    begun = [made._sess._engine.begin(None, feed) for feed in feeds]
    assert all(begun)
    for feed, finish in zip(reversed(feeds), reversed(begun), strict=True):
        np.testing.assert_allclose(finish()[0], made.run(None, feed)[0], 1e-6)


def test_run_async_gives_every_result_and_error() -> None:
    made = session(perceptron(), device="local-task")
    feeds = [{"x": np.full((2, 8), i, np.float32)} for i in range(16)]
    got: dict[int, Any] = {}
    ready = threading.Semaphore(0)

    def callback(results: Any, number: int, error: str) -> None:
        got[number] = error or results[0]
        ready.release()

    for i, feed in enumerate(feeds):
        made.run_async(None, feed, callback, i)
    made.run_async(None, {"x": np.zeros((2, 7), np.float32)}, callback, -1)
    for _ in range(17):
        assert ready.acquire(timeout=60)
    assert "Got invalid dimensions" in got[-1] or "x" in got[-1]
    for i, feed in enumerate(feeds):
        np.testing.assert_allclose(got[i], made.run(None, feed)[0], 1e-6)


def test_a_session_on_this_thread_alone_has_nothing_to_begin() -> None:
    made = session(perceptron(), device="local-sync")
    assert made._sess._engine.begin(None, {"x": np.zeros((1, 8), np.float32)}) is None


# claims

def test_the_table_is_of_the_installed_version() -> None:
    table = claims.table()
    assert table["iree"] == compiler.installed(compiler.COMPILER)
    assert len(table["operators"]) > 140
    for key, entry in table["operators"].items():
        assert entry["tried"] >= entry["passed"], key
        assert ("refused" in entry) != ("works" in entry), key
        assert ("refused" in entry) or entry["passed"], key
        assert ("refused" in entry) or all(len(pair) == 3 for pair in entry["together"]), key


def test_refusals_have_reasons() -> None:
    proto = model([helper.make_node("StringNormalizer", ["x"], ["y"], name="text")],
                  [info("x", TensorProto.STRING, [2])], [info("y", TensorProto.STRING, [2])])
    told = reasons(session(proto))
    assert told.startswith(f"{NAME}: ") and "IREE 3.13" in told


def one(operator: str, *shapes: list[int], constants: dict[str, Any] | None = None) -> onnx.ModelProto:
    """One node of float inputs of these shapes, and of constants."""
    given = {k: np.array(v) for k, v in (constants or {}).items()}
    names = [f"x{i}" for i in range(len(shapes))]
    fed = [info(name, shape=shape) for name, shape in zip(names, shapes, strict=True)]
    return model([helper.make_node(operator, [*names, *given], ["y"])], fed, [info("y", shape=None)], given,
                 opset=17)


@pytest.mark.parametrize(("proto", "told"), [
    (one("MatMul", [4], [2, 4, 3]), "a vector times matrices"),
    (one("Pad", [4, 5], constants={"p": [0, -1, 0, 1]}), "pads that cut"),
    (one("Slice", [4, 5], constants={"s": [3], "e": [0], "a": [0], "t": [-1]}), "steps back")])
def test_refusals_by_content(proto: onnx.ModelProto, told: str) -> None:
    assert told in reasons(session(proto))


def test_what_is_like_them_is_taken() -> None:
    x = RNG.standard_normal((4, 5)).astype(np.float32)
    check(one("MatMul", [4], [4, 5]), {"x0": x[:, 0].copy(), "x1": x})
    check(one("Pad", [4, 5], constants={"p": [0, 0, 0, 1]}), {"x0": x})
    check(one("Slice", [4, 5], constants={"s": [0], "e": [3], "a": [0], "t": [2]}), {"x0": x})


@pytest.mark.parametrize(("option", "value"), [
    ("device", "abacus"), ("opt_level", "O9"), ("data_tiling", "perhaps"), ("compile_timeout", "-1"),
    ("no_such_option", "1")])
def test_wrong_options(option: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=option):
        providers.create(NAME, {option: value})


def test_flags_follow_from_options_and_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    def flags(nodes: Any = (), **given: str) -> list[str]:
        made = IREEExecutionProvider(given)
        return [" ".join(each) for _, each in settings.trials(made.settings, made.runs_on, nodes)]

    assert "stack-allocation-limit" in flags()[0] and "im2col" not in flags()[0]
    monkeypatch.setattr(detect, "host", lambda: machine.AVX2)
    conv = [type("N", (), {"op_type": "Conv", "inputs": (), "outputs": ()})()]
    first, second, third = flags(conv)
    assert "im2col" in first and "im2col" not in second
    assert "data-tiling" in second and "data-tiling" not in third
    monkeypatch.setattr(detect, "host", lambda: machine.AVX512)
    assert "conv_nchwc" in flags(conv)[0] and len(flags(conv)) == 4
    assert len(flags(conv, convolutions="im2col", data_tiling="1")) == 1
    assert not any("conv_nchwc" in each for each in flags(conv, target_triple="aarch64-linux-gnu"))
    assert "riscv64" in flags(target_triple="riscv64-unknown-linux-gnu")[0]
    assert "--iree-cuda-target=sm_80" in flags(device="cuda")[0]
    assert flags(compiler_flags="--a --b=c")[0].endswith("--a --b=c")
    with pytest.raises(InvalidArgument, match="hip"):
        flags(device="hip")


# where IREE fails

def failing() -> onnx.ModelProto:
    """An operator that IREE's compiler has no lowering for, behind one that it has."""
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="relu"),
             helper.make_node("LpPool", ["r"], ["y"], name="pool", kernel_shape=[2, 2], strides=[2, 2])]
    return model(nodes, [info("x", shape=[1, 1, 4, 4])], [info("y", shape=[1, 1, 2, 2])], opset=17)


X3 = np.full((1, 1, 4, 4), 2, np.float32)


@pytest.mark.usefixtures("anything")
def test_what_does_not_compile_goes_to_the_next_provider(tmp_path: Path, fresh: str) -> None:
    with knobs.setting(REPRODUCE=str(tmp_path / "kept")):
        made = session(failing(), cache_folder=fresh)
    assert not on_iree(made)
    assert "failed: " in reasons(made) and "reproducer: " in reasons(made)
    np.testing.assert_allclose(made.run(None, {"x": X3})[0], 4, 1e-6)
    (folder,) = (tmp_path / "kept").iterdir()
    assert {p.name for p in folder.iterdir()} >= {"part.onnx", "flags.txt", "message.txt"}
    onnx.checker.check_model(str(folder / "part.onnx"))
    assert "LpPool" in (folder / "message.txt").read_text() + (folder / "part.mlir").read_text()
    assert "--iree-llvmcpu-stack-allocation-limit" in (folder / "flags.txt").read_text()


@pytest.mark.usefixtures("anything")
def test_a_failure_is_an_error_where_fallback_is_one(fresh: str) -> None:
    with pytest.raises(Fail, match="2 of 2 nodes fell back"):
        session(failing(), fallback="error", cache_folder=fresh)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's process takes its job and does not begin it, however slow or quick the machine is."""
    real = process.Process._running

    def stopping(self: Any, flags: list[str], environment: dict[str, str]) -> Any:
        process = real(self, flags, environment)
        process.send_signal(signal.SIGSTOP)
        return process

    monkeypatch.setattr(process.Process, "_running", stopping)


@pytest.mark.usefixtures("stopped")
def test_a_killed_compiler(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = process.Process._line

    def killed(process: subprocess.Popen[bytes], timeout: float) -> bytes | None:
        process.kill()
        return real(process, timeout)

    monkeypatch.setattr(process.Process, "_line", staticmethod(killed))
    made = session(perceptron(), cache_folder=fresh)
    assert not on_iree(made) and "ended by signal 9" in reasons(made)
    monkeypatch.undo()
    assert whole(session(perceptron(), cache_folder=fresh))


@pytest.mark.usefixtures("stopped")
def test_a_compiler_that_takes_too_long(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(perceptron(), cache_folder=fresh, compile_timeout="0.001")
    assert not on_iree(made) and "did not end within" in reasons(made)
    monkeypatch.undo()
    assert whole(session(perceptron(), cache_folder=fresh))


def test_a_compiler_that_ends_just_behind_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is late, though by the time its end is looked at it has ended with status 0."""
    (tmp_path / "late.py").write_text("import sys; sys.stdin.readline(); sys.stdin.readline()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    serving = process.Process("late")
    real = serving._line

    def late(process: subprocess.Popen[bytes], timeout: float) -> bytes | None:
        assert process.stdin is not None
        assert (line := real(process, timeout)) is None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.wait()
        return line

    monkeypatch.setattr(serving, "_line", late)
    reply, _ = serving.compile({}, [], 0.01)
    assert "did not end within 0.01 s" in reply["message"]
    monkeypatch.setattr(serving, "_line", lambda process, timeout: (process.stdin.write(b"\n"),
                                                                    process.stdin.flush(),
                                                                    real(process, 60.0))[-1])
    reply, _ = serving.compile({}, [], 0.01)
    assert "ended with status 0" in reply["message"]


def test_a_full_disk(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler can write no file of more than a hundred bytes. Once it can, the part is tried again."""
    real = process.Process._running

    def limited(self: Any, flags: list[str], environment: dict[str, str]) -> Any:
        process = real(self, flags, environment)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100, 100))
        return process

    monkeypatch.setattr(process.Process, "_running", limited)
    made = session(perceptron(), cache_folder=fresh)
    assert not on_iree(made) and "compile failed" in reasons(made)
    monkeypatch.undo()
    compiler._worker.stop()
    assert whole(session(perceptron(), cache_folder=fresh))


def test_a_cache_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = session(perceptron(), cache_folder=str(tmp_path / "file" / "cache"))
    assert not on_iree(made) and "cannot be written" in reasons(made)


def test_a_damaged_module_is_compiled_anew(fresh: str) -> None:
    session(perceptron(), cache_folder=fresh)
    (module,) = Path(fresh).glob("*.vmfb")
    module.write_bytes(module.read_bytes()[:100])
    made = session(perceptron(), cache_folder=fresh)
    assert whole(made) and module.stat().st_size > 1000


def test_old_modules_make_room(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LIMIT", 1000)
    session(perceptron(), cache_folder=fresh)
    session(perceptron(), cache_folder=fresh, opt_level="O1")
    assert len(list(Path(fresh).glob("*.vmfb"))) == len(list(Path(fresh).glob("*.digest"))) == 1


@pytest.mark.parametrize(("package", "found", "told"), [
    (compiler.RUNTIME, None, "is not installed"), (compiler.RUNTIME, "2.0.0", "tried was 3.13"),
    (compiler.COMPILER, "4.0.0", "tried was 3.13")])
def test_a_missing_or_other_version(package: str, found: str | None, told: str,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    real = compiler.installed
    monkeypatch.setattr("orthrus.providers.iree.installed", lambda p: found if p == package else real(p))
    why = IREEExecutionProvider.probe()
    assert isinstance(why, No) and told in why.reason
    with pytest.raises(EPFail, match="cannot work on this machine"):
        providers.create(NAME)
    assert NAME not in ort.get_available_providers()


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = ("import sys, orthrus as ort; ort.get_available_providers(); import orthrus.providers.iree; "
            "sys.exit(any(m == 'iree' or m.startswith('iree.') for m in sys.modules))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_kept_of_a_compilation(tmp_path: Path) -> None:
    made = session(perceptron(), save_temps=str(tmp_path / "temps"))
    assert whole(made)
    (folder,) = (tmp_path / "temps").iterdir()
    assert {"part.onnx", "part.mlir", "part.vmfb", "flags.txt", "kernels"} <= {
        p.name for p in folder.iterdir()}
