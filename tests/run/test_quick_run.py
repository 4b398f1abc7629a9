"""Runs that are one call of generated code: results as on the long way, and the long way for all else."""

import contextlib
import copy
import gc
import inspect
import pickle
import re
import sys
import threading
import tracemalloc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, Machine
from orthrus.codegen.runtime import units
from orthrus.errors import Fail, InvalidArgument
from orthrus.limits import Limits
from orthrus.run.engine import Engine
from orthrus.run.shortest import Shortest

pytestmark = needs("door")

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = np.linspace(-1, 1, 4, dtype=np.float32)


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    return helper.make_node(op, inputs, outputs, **attrs)


def pair(dims: Any = ("n", 4)) -> bytes:
    """sum = x + y and double = sum·2, the outputs in the other order."""
    nodes = [node("Add", ["x", "y"], ["sum"]), node("Add", ["sum", "sum"], ["double"])]
    made: bytes = model(nodes, [info("x", shape=dims), info("y", shape=[4])],
                        [info("double", shape=None), info("sum", shape=None)]).SerializeToString()
    return made


def session(**keywords: Any) -> ort.InferenceSession:
    return ort.InferenceSession(pair(), **keywords)


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """How many runs go the long way, meanwhile."""
    count, ordinary = [0], Engine.run

    def run(self: Engine, *args: Any, **keywords: Any) -> list[Any]:
        count[0] += 1
        return ordinary(self, *args, **keywords)
    made = pytest.MonkeyPatch()
    made.setattr(Engine, "run", run)
    yield count
    made.undo()


@pytest.fixture
def long() -> Iterator[list[int]]:
    with counted() as count:
        yield count


def check(found: Any, x: Any = X, y: Any = Y) -> None:
    double, total = found
    assert type(found) is list and type(double) is type(total) is np.ndarray
    np.testing.assert_array_equal(total, np.asarray(x) + np.asarray(y))
    np.testing.assert_array_equal(double, total * 2)
    assert all(a.flags.carray and a.base.flags.owndata and a.base.base is None for a in found)


def test_the_second_run_is_quick(long: list[int]) -> None:
    s = session()
    for _ in range(50):
        check(s.run(None, {"x": X, "y": Y}))
        check(s.run(["double", "sum"], {"y": Y, "x": X}))
        check(s.run(output_names=None, input_feed={"x": X, "y": Y}, run_options=None))
    assert long == [1]
    check(s.run(["".join(["dou", "ble"]), "sum"], {"".join(["", "x"]): X, "y": Y}))
    assert long == [1]


def test_results_belong_to_the_caller() -> None:
    s = session()
    kept = [s.run(None, {"x": X + i, "y": Y}) for i in range(20)]
    for i, made in enumerate(kept):
        check(made, X + i)
        made[0][...] = -1
    check(s.run(None, {"x": X, "y": Y}))


def test_results_of_some_size_begin_at_a_line() -> None:
    made = model([node("Neg", ["x"], ["y"]), node("Concat", ["x", "x"], ["z"], axis=0)],
                 [info("x", shape=("n", 3))], [info("y", shape=None), info("z", shape=None)])
    for count in (1, 300, 341, 342, 5000, 0):
        s, x = ort.InferenceSession(made.SerializeToString()), np.full((count, 3), 2, np.float32)
        s.run(None, {"x": x})
        kept = [s.run(None, {"x": x + i}) for i in range(9)]
        for i, results in enumerate(kept):
            for each, wanted in zip(results, (-x - i, np.concatenate([x + i, x + i])), strict=True):
                np.testing.assert_array_equal(each, wanted, strict=True)
                assert each.flags.carray and not each.flags.owndata and type(each) is np.ndarray
                assert each.nbytes < 4096 or each.ctypes.data % 64 == 0
                assert each.base.base is None and each.dtype is x.dtype


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "int8", "bool"])
def test_every_type(dtype: str, long: list[int]) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    op = ("Not", ["x"]) if dtype == "bool" else ("Add", ["x", "x"])
    for shape in ([], [1], [5], [2, 3, 4], [1, 2, 1, 2, 1, 2]):
        s = ort.InferenceSession(model([node(*op, ["y"])], [info("x", kind, shape)], [info("y", kind, None)])
                                 .SerializeToString())
        x = np.ones(shape, dtype)
        expected = ~x if dtype == "bool" else x + x
        for _ in range(4):
            (y,) = s.run(None, {"x": x})
            np.testing.assert_array_equal(y, expected, strict=True)


class Array(np.ndarray):
    pass


class Loud(str):
    def __hash__(self) -> int:
        return hash("x")

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("compared")


class Fed(dict[str, Any]):
    pass


STRANGE: dict[str, Callable[[], Any]] = {
    "an unknown name": lambda: {"x": X, "z": Y},
    "one too many": lambda: {"x": X, "y": Y, "z": Y},
    "one too few": lambda: {"x": X},
    "none": dict,
    "another type": lambda: {"x": X.astype(np.float64), "y": Y},
    "another rank": lambda: {"x": X[0], "y": Y},
    "a wrong dimension": lambda: {"x": X, "y": np.ones(5, np.float32)},
    "another length": lambda: {"x": X[:2].copy(), "y": Y},
    "no elements": lambda: {"x": X[:0].copy(), "y": Y},
    "turned": lambda: {"x": np.asfortranarray(X), "y": Y},
    "strided": lambda: {"x": np.repeat(X, 2, 1)[:, ::2], "y": Y},
    "spread": lambda: {"x": np.broadcast_to(Y, (3, 4)), "y": Y},
    "askew": lambda: {"x": np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4), "y": Y},
    "the other byte order": lambda: {"x": X.astype(">f4"), "y": Y},
    "read only": lambda: {"x": np.frombuffer(X.tobytes(), np.float32).reshape(3, 4), "y": Y},
    "a subclass": lambda: {"x": X.view(Array), "y": Y},
    "masked": lambda: {"x": np.ma.masked_array(X, X > 2), "y": Y},
    "a list": lambda: {"x": X.tolist(), "y": Y},
    "a number": lambda: {"x": 3, "y": Y},
    "a text": lambda: {"x": "x", "y": Y},
    "nothing": lambda: {"x": None, "y": Y},
    "an OrtValue": lambda: {"x": ort.OrtValue.ortvalue_from_numpy(X), "y": Y},
    "an object": lambda: {"x": object(), "y": Y},
    "objects": lambda: {"x": X.astype(object), "y": Y},
    "an unpickled type": lambda: {"x": X.astype(pickle.loads(pickle.dumps(X.dtype))), "y": Y},
    "a number as name": lambda: {1: X, "y": Y},
    "a name that cannot be compared": lambda: {Loud("x"): X, "y": Y},
    "a dict of another class": lambda: Fed(x=X, y=Y),
    "an ordered dict": lambda: OrderedDict(x=X, y=Y),
    "no dict": lambda: [X, Y],
    "None": lambda: None,
}
NAMES: dict[str, Any] = {"empty": [], "some": ["sum"], "others": ["sum", "double"], "unknown": ["no", "sum"],
                         "a tuple": ("double", "sum"), "a text": "sum", "a number": 3, "numbers": [1, 2],
                         "twice": ["sum", "sum"], "loud": [Loud("double"), "sum"]}


def outcome(run: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        return ("gave", *((v.dtype, v.shape, v.tolist()) for v in run()))
    except Exception as error:
        return type(error), re.sub("0x[0-9a-f]+", "0x", str(error))


@pytest.mark.parametrize("what", STRANGE)
def test_strange_feeds_go_the_long_way(what: str) -> None:
    fresh, used = session(), session()
    for _ in range(3):
        used.run(None, {"x": X, "y": Y})
    expected = outcome(lambda: fresh.run(None, STRANGE[what]()))
    for _ in range(4):
        assert outcome(lambda: used.run(None, STRANGE[what]())) == expected
    check(used.run(None, {"x": X, "y": Y}))


@pytest.mark.parametrize("what", NAMES)
def test_strange_names_go_the_long_way(what: str) -> None:
    fresh, used = session(), session()
    used.run(None, {"x": X, "y": Y})
    expected = outcome(lambda: fresh.run(NAMES[what], {"x": X, "y": Y}))
    for _ in range(3):
        assert outcome(lambda: used.run(NAMES[what], {"x": X, "y": Y})) == expected
    check(used.run(None, {"x": X, "y": Y}))


def test_the_quick_shapes_are_those_that_come_again(long: list[int]) -> None:
    s, wide = session(), np.ones((7, 4), np.float32)
    for i in range(20):
        x = wide if i % 2 else X
        check(s.run(None, {"x": x, "y": Y}), x)
    assert long[0] < 16
    for _ in range(20):
        check(s.run(None, {"x": wide, "y": Y}), wide)
    assert long[0] < 18


def test_switches_and_options_go_the_long_way(long: list[int]) -> None:
    s = session()
    s.run(None, {"x": X, "y": Y})
    for values in ({"CHECK": 2}, {"CHECK": 1}, {"DEBUG": 2}):
        before = long[0]
        with knobs.setting(**values):
            check(s.run(None, {"x": X, "y": Y}))
        assert long[0] == before + 1
        check(s.run(None, {"x": X, "y": Y}))
        assert long[0] == before + 1
    before, options = long[0], ort.RunOptions()
    check(s.run(None, {"x": X, "y": Y}, options))
    assert long[0] == before + 1
    options.terminate = True
    with pytest.raises(Fail, match="terminate"):
        s.run(None, {"x": X, "y": Y}, options)


def test_options_that_ask_for_nothing(long: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs too short to be stopped go the quick way with them, for the shapes of which that is known."""
    monkeypatch.setattr(Shortest, "LONGEST", 60.0)
    s, options, other = session(), ort.RunOptions(), ort.RunOptions()
    other.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def longer(x: Any, given: Any) -> int:
        before = long[0]
        for got, want in zip(s.run(None, {"x": x, "y": Y}, given), ((x + Y) * 2, x + Y), strict=True):
            np.testing.assert_array_equal(got, want)
        return long[0] - before
    assert [longer(X, options) for _ in range(4)] == [1, 0, 0, 0]
    assert [longer(X, other) for _ in range(2)] == [0, 0]
    assert longer(X[:2], options) == 1
    quiet = ort.RunOptions()
    quiet.log_severity_level, quiet.only_execute_path_to_fetches, quiet.logid = 3, True, "a"
    assert longer(X, quiet) == 0
    for change in ({"terminate": True}, {"timeout": 60.0}, {"log_severity_level": 1}):
        given = ort.RunOptions()
        for name, value in change.items():
            setattr(given, name, value)
        if "terminate" in change:
            with pytest.raises(Fail, match="terminate"):
                longer(X, given)
        else:
            assert longer(X, given) == 1, change
    shrinking = ort.RunOptions()
    shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert longer(X, shrinking) == 1
    options.terminate = True
    with pytest.raises(Fail, match="terminate"):
        longer(X, options)
    options.terminate = False
    assert longer(X, options) == 0
    with pytest.raises((TypeError, InvalidArgument)):
        s.run(None, {"x": X, "y": Y}, "options")  # type: ignore[arg-type]
    with s.profile() as profile:
        longer(X, options)
    assert profile.runs == 1


@pytest.mark.parametrize("longest", [0.0, 60.0])
def test_runs_that_may_be_long_can_be_stopped(monkeypatch: pytest.MonkeyPatch, longest: float) -> None:
    """One that took long, and one whose loop goes as often as it is told."""
    monkeypatch.setattr(Shortest, "LONGEST", longest)
    loop = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (int64 n, float[4] x) => (float[4] y) '
        "{ c = Constant <value = bool {1}> () y = Loop (n, c, x) <body = b (int64 i, bool go, float[4] v) => "
        "(bool on, float[4] w) { on = Identity (go) w = Cos (v) }> }").SerializeToString()
    made = ort.InferenceSession(loop)
    options, x = ort.RunOptions(), np.ones(4, np.float32)
    for _ in range(3):
        made.run(None, {"n": np.array(3), "x": x}, options)
    threading.Timer(0.3, lambda: setattr(options, "terminate", True)).start()
    with pytest.raises(Fail, match="terminate"):
        made.run(None, {"n": np.array(1 << 40), "x": x}, options)


def test_only_short_runs_are_not_stopped(long: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shortest, "LONGEST", 0.0)
    s, options = session(), ort.RunOptions()
    for _ in range(3):
        before = long[0]
        check(s.run(None, {"x": X, "y": Y}, options))
        assert long[0] == before + 1


def test_some_of_the_outputs(long: list[int]) -> None:
    """By whatever names, in any order: nobody goes the long way for them, or gets another's."""
    s, wanted = session(), {"sum": X + Y, "double": (X + Y) * 2}
    s.run(None, {"x": X, "y": Y})
    before = long[0]
    for names in (["sum"], ["double"], ["sum", "double"], ["double", "sum"], ("sum",), []):
        got = s.run(names, {"x": X, "y": Y})
        for value, name in zip(got, names or ["double", "sum"], strict=True):
            np.testing.assert_array_equal(value, wanted[name])
    assert long[0] == before
    first, second = s.run(["sum", "sum"], {"x": X, "y": Y})
    first[...] = 0
    np.testing.assert_array_equal(second, wanted["sum"])
    for wrong in (["none"], ["sum", "none"], [1], "sum", [["sum"]]):
        with pytest.raises((InvalidArgument, TypeError, ValueError)):
            s.run(wrong, {"x": X, "y": Y})  # type: ignore[arg-type]


def test_steps_that_nobody_asked_for_are_not_run() -> None:
    """Of a program of several steps, one output runs those that it needs."""
    ran = list[str]()

    @ort.op("test.quick::Noted")
    def Noted(x: np.ndarray) -> np.ndarray:
        ran.append("noted")
        return x

    made = ort.InferenceSession(model(
        [node("Add", ["x", "y"], ["sum"]), helper.make_node("Noted", ["sum"], ["late"], domain="test.quick")],
        [info("x", shape=[3, 4]), info("y", shape=[4])], [info("sum", shape=None), info("late", shape=None)],
        domains={"test.quick": 1}).SerializeToString())
    for _ in range(3):
        made.run(None, {"x": X, "y": Y})
    ran.clear()
    for _ in range(3):
        [got] = made.run(["sum"], {"x": X, "y": Y})
        np.testing.assert_array_equal(got, X + Y)
    assert not ran


@pytest.mark.parametrize("seed", range(12))
def test_bindings_of_the_host(seed: int) -> None:
    """Whatever is bound, written to and bound anew in between, and however a run goes: results are those of
    what the arrays hold when it begins."""
    rng = np.random.default_rng(seed)
    s, kept = session(), list[Any]()
    for _ in range(3):
        s.run(None, {"x": X, "y": Y})
    binding, options = s.io_binding(), ort.RunOptions()
    held: dict[str, np.ndarray] = {}

    def given(name: str) -> None:
        shape = (int(rng.choice([3, 3, 3, 5])), 4) if name == "x" else (4,)
        array = rng.standard_normal(shape).astype(np.float32)
        how = rng.integers(5)
        if how == 0:
            binding.bind_cpu_input(name, array)
        elif how == 1:
            value = ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
        elif how == 2:
            binding.bind_input(name, "cpu", 0, np.float32, shape, array.ctypes.data)
        elif how == 3:
            raw = np.zeros(array.nbytes + 1, np.uint8)
            odd = raw[1:].view(np.float32).reshape(shape)
            odd[...] = array
            array = odd
            binding.bind_input(name, "cpu", 0, np.float32, shape, array.ctypes.data)
        else:
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        kept.append(array)
        held[name] = array

    def wanted(name: str) -> None:
        rows = int(rng.choice([3, 3, 3, 5]))
        how = rng.integers(3)
        targets[name] = None
        if how == 0:
            binding.bind_output(name)
            return
        array = np.full((rows, 4), np.nan, np.float32)
        kept.append(array)
        targets[name] = array
        if how == 1:
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
        else:
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    targets: dict[str, np.ndarray | None] = {}
    given("x")
    given("y")
    wanted("sum")
    for _ in range(60):
        action = rng.integers(6)
        if action == 0:
            given(str(rng.choice(["x", "y"])))
        elif action == 1:
            wanted(str(rng.choice(["sum", "double"])))
        elif action == 2:
            held["x"][...] = rng.standard_normal(held["x"].shape)
        elif action == 3 and rng.integers(4) == 0:
            binding.clear_binding_outputs()
            targets.clear()
            wanted("double")
        total = held["x"] + held["y"]
        want = {"sum": total.copy(), "double": total * 2}
        fits = all(t is None or t.shape == total.shape for t in targets.values())
        try:
            s.run_with_iobinding(binding, options if action == 5 else None)
        except RuntimeError:
            assert not fits
            continue
        assert fits
        for name, got, value in zip(targets, binding.copy_outputs_to_cpu(), binding.get_outputs(),
                                    strict=True):
            np.testing.assert_array_equal(got, want[name])
            np.testing.assert_array_equal(value.numpy(), want[name])
            target = targets[name]
            if target is not None:
                np.testing.assert_array_equal(target, want[name])
        held["x"][...] += 1


def test_who_is_not_quick(long: list[int], tmp_path: Any) -> None:
    parallel, profiled = ort.SessionOptions(), ort.SessionOptions()
    parallel.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    profiled.enable_profiling, profiled.profile_file_prefix = True, str(tmp_path / "profile")
    made = [session(sess_options=parallel), session(sess_options=profiled),
            session(limits=Limits(run_timeout=60.0)),
            session(providers=[("CPUExecutionProvider", {"use_codegen": "0"})])]
    for s in made:
        before = long[0]
        for _ in range(4):
            check(s.run(None, {"x": X, "y": Y}))
        assert long[0] == before + 4
    made[1].end_profiling()


def test_a_limit_on_memory_holds() -> None:
    s = session(limits=Limits(max_total_bytes=1000))
    for _ in range(4):
        check(s.run(None, {"x": X, "y": Y}))
    large = np.ones((100, 4), np.float32)
    for _ in range(4):
        with pytest.raises(Fail, match="more memory"):
            s.run(None, {"x": large, "y": Y})


def test_a_failing_step_is_named_every_time(long: list[int]) -> None:
    nodes = [node("Gather", ["x", "i"], ["g"], name="picks"), node("Add", ["g", "g"], ["z"])]
    s = ort.InferenceSession(model(nodes, [info("x", shape=[4, 4]), info("i", TensorProto.INT64, [2])],
                                   [info("z", shape=None)]).SerializeToString())
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    good, bad = np.array([3, -1]), np.array([0, 4])
    for _ in range(3):
        np.testing.assert_array_equal(s.run(None, {"x": x, "i": good})[0], x[good] * 2)
        with pytest.raises(InvalidArgument, match="picks") as first:
            s.run(None, {"x": x, "i": bad})
        with pytest.raises(InvalidArgument) as second:
            s.run(None, {"x": x, "i": bad})
        assert str(first.value) == str(second.value)


def test_a_closed_session_says_so(long: list[int]) -> None:
    s = session()
    for _ in range(3):
        s.run(None, {"x": X, "y": Y})
    inner: Any = s._quick
    s.close()
    assert inner(None, {"x": X, "y": Y}) is None
    with pytest.raises(Fail, match="closed"):
        s.run(None, {"x": X, "y": Y})


def test_new_providers_begin_anew(long: list[int]) -> None:
    s = session()
    s.run(None, {"x": X, "y": Y})
    s.set_providers([("CPUExecutionProvider", {"use_codegen": "0"})])
    for _ in range(3):
        check(s.run(None, {"x": X, "y": Y}))
    assert long == [4]
    s.set_providers(["CPUExecutionProvider"])
    for _ in range(3):
        check(s.run(None, {"x": X, "y": Y}))
    assert long == [5]


class Extended(ort.InferenceSession):
    def run(self, *args: Any, **keywords: Any) -> Any:
        return [v + 1 for v in super().run(*args, **keywords)]


def test_subclasses_and_copies(tmp_path: Any) -> None:
    s = Extended(pair())
    for twin in (s, pickle.loads(pickle.dumps(s)), copy.copy(s), copy.deepcopy(s)):
        for _ in range(3):
            check([(v - 1).view() for v in twin.run(None, {"x": X, "y": Y})])
    assert list(inspect.signature(ort.InferenceSession.run).parameters) == [
        "self", "output_names", "input_feed", "run_options"]


def test_the_inner_function_takes_anything() -> None:
    s = session()
    s.run(None, {"x": X, "y": Y})
    inner: Any = s._quick
    check(inner(None, {"x": X, "y": Y}))
    assert inner() is inner(None) is inner(None, None) is inner(None, {}, 1) is inner(3, 4) is None
    with pytest.raises(TypeError):
        inner(names=None)


@pytest.mark.parametrize("machine", [AVX2, NEON, RVV256], ids=["AVX2", "NEON", "RVV256"])
def test_it_assembles_elsewhere(machine: Machine) -> None:
    from orthrus.codegen.object.build import assemble

    assert assemble(units.Quick(16).text(machine), machine)


def test_on_many_threads() -> None:
    s, failures = session(), list[Any]()

    def work(seed: int) -> None:
        try:
            for i in range(600):
                x = np.full((2 + (i // 50 + seed % 2) % 3, 4), i, np.float32)
                check(s.run(None, {"x": x, "y": Y}), x)
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures and not any(t.is_alive() for t in threads)


def test_large_runs_on_many_threads_and_a_close() -> None:
    nodes = [node("MatMul", ["x", "x"], ["p"]), node("MatMul", ["p", "x"], ["q"]), node("Relu", ["q"], ["y"])]
    proto = model(nodes, [info("x", shape=["n", "n"])], [info("y", shape=None)]).SerializeToString()
    s, failures = ort.InferenceSession(proto), list[Any]()
    x = np.eye(160, dtype=np.float32) * 2

    def work() -> None:
        try:
            while True:
                np.testing.assert_array_equal(s.run(None, {"x": x})[0], x * 4)
        except Fail as error:
            assert "closed" in str(error)
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    threading.Event().wait(0.3)
    s.close()
    for t in threads:
        t.join(60)
    assert not failures and not any(t.is_alive() for t in threads)


def test_a_run_inside_a_run() -> None:
    s = session()
    s.run(None, {"x": X, "y": Y})
    inner = []

    class Name(str):
        def __hash__(self) -> int:
            return hash("x")

        def __eq__(self, other: object) -> bool:
            feeds.clear()
            inner.append(s.run(None, {"x": X, "y": Y}))
            return True
    for _ in range(5):
        feeds: dict[Any, Any] = {"y": Y.copy(), Name("x"): X.copy()}
        with contextlib.suppress(ValueError, RuntimeError, InvalidArgument):
            s.run(None, feeds)
    assert len(inner) >= 5
    for each in inner:
        check(each)


def test_nothing_is_kept() -> None:
    s, x, y = session(), X.copy(), Y.copy()
    feeds: list[Any] = [{"x": x, "y": y}, {"x": x, "y": 1}, {"x": x, "z": y}, {"x": x.T, "y": y},
                        {"y": y, "x": X[:2]}]
    inner: Any = s._quick
    s.run(None, feeds[0])
    watched = [x, y, None, np.dtype(np.float32), inner, *feeds]

    def work(times: int) -> None:
        for _ in range(times):
            for feed in feeds:
                inner(None, feed)
    work(100)
    gc.collect()
    before = [sys.getrefcount(v) for v in watched]
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    work(20_000)
    kept = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert kept < 20_000
    after = [sys.getrefcount(v) for v in watched]
    assert all(abs(a - b) < 50 for a, b in zip(after, before, strict=True)), (before, after)


def test_shapes_that_change_keep_little() -> None:
    s = session()

    def work(times: int) -> None:
        for i in range(times):
            x = np.ones((1 + i // 3 % 5, 4), np.float32)
            check(s.run(None, {"x": x, "y": Y}), x)
    work(60)
    gc.collect()
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    work(600)
    kept = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert kept < 50_000


def test_a_session_goes_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        s = session()
        for _ in range(3):
            s.run(None, {"x": X, "y": Y})
        engine = weakref.ref(s._sess._engine)
        made = s.run(None, {"x": X, "y": Y})
        del s
        assert engine() is None
        check(made)
        check(session().run(None, {"x": X, "y": Y}))
    finally:
        gc.enable()


def test_a_session_that_was_never_initialized() -> None:
    made = ort.capi._pybind_state.InferenceSession(ort.SessionOptions(), pair(), False, False)
    for run in (lambda: made.run(None, {"x": X, "y": Y}, None),
                lambda: made.run_with_ort_values({}, [], None)):
        with pytest.raises(Fail, match="not been initialized"):
            run()


def test_what_a_binding_contradicts_is_an_error_of_the_run() -> None:
    """As everything that fails in a bound run, whichever way it goes."""
    several = model([node("Add", ["x", "x"], ["sum"]), node("Unique", ["sum"], ["some"]),
                     node("Unique", ["y"], ["others"])],
                    [info("x", shape=["n", 4]), info("y", shape=[4])],
                    [info("some", shape=None), info("others", shape=None)]).SerializeToString()
    for source in (pair(), several):
        made = ort.InferenceSession(source)
        made.run(None, {"x": X, "y": Y})
        binding = made.io_binding()
        binding.bind_cpu_input("x", X[:, :3].copy())
        binding.bind_cpu_input("y", Y)
        for each in made.get_outputs():
            binding.bind_output(each.name)
        with pytest.raises(RuntimeError, match="^Error in execution: "):
            made.run_with_iobinding(binding)
