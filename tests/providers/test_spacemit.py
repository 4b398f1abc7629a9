"""The provider for SpacemiT's processors: what it takes, what each option does, and that sessions survive
their workers."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("llvmlite")

from graphs import info, model
from skips import needs

import orthrus as ort
from orthrus import errors
from orthrus.codegen.emulate import emulator
from orthrus.codegen.machines import machine
from orthrus.codegen.machines.detect import host
from orthrus.ir import OWN
from orthrus.lowering.native import Native
from orthrus.providers.spacemit import claims, device, options, provider, targets, team

emulated = needs("emulator")
NAME, CPU = "SpaceMITExecutionProvider", "CPUExecutionProvider"
PREFIX = options.PREFIX
RNG = np.random.default_rng(7)


def node(op_type: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    name = attrs.pop("name", outputs)
    """A node; `-` is an input that is absent."""
    given = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op_type, given, outputs.split(), name=name, **attrs)


def small() -> onnx.ModelProto:
    """Two convolutions, a pool and a product: ten thousand multiplications."""
    weights = {"w1": RNG.standard_normal((8, 3, 3, 3)), "b1": RNG.standard_normal(8),
               "w2": RNG.standard_normal((8, 8, 1, 1)), "w3": RNG.standard_normal((8, 5))}
    nodes = [node("Conv", "x w1 b1", "c1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Relu", "c1", "r1"),
             node("Conv", "r1 w2", "c2", kernel_shape=[1, 1]), node("Add", "c2 r1", "a1"),
             node("GlobalAveragePool", "a1", "p1"), node("Flatten", "p1", "f1"),
             node("MatMul", "f1 w3", "m1"), node("Softmax", "m1", "y")]
    return model(nodes, [info("x", shape=(1, 3, 10, 10))], [info("y", shape=(1, 5))],
                 {k: v.astype(np.float32) for k, v in weights.items()})


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is run by definitions because it does not lower."""
    def interpret(self: Native, *_: Any) -> Any:
        raise AssertionError(f"{self.part} is interpreted: {list(self.refused.values())}")
    monkeypatch.setattr(Native, "interpret", interpret)


X = {"x": RNG.standard_normal((1, 3, 10, 10)).astype(np.float32)}


def session(made: onnx.ModelProto | str | Path, threads: int = 1, trust: bool = False, **given: Any
            ) -> ort.InferenceSession:
    """A session with the provider first; options in capitals lose their prefix."""
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    named = {PREFIX + k if k.isupper() else k: str(v) for k, v in given.items()}
    source = made.SerializeToString() if isinstance(made, onnx.ModelProto) else str(made)
    return ort.InferenceSession(source, settings, providers=[(NAME, named), CPU], trust=trust)


def numpy_results(made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    plain = ort.InferenceSession(made.SerializeToString(), providers=[(CPU, {"use_codegen": "0"})])
    return plain.run(None, feeds)


def placed(s: ort.InferenceSession) -> dict[str, str]:
    """The provider of each node."""
    return {p.node: p.provider for p in s.explain().nodes}


# what it takes


def test_the_operators_are_those_listed() -> None:
    made_by_us = {k for k in claims.CLAIMS
                  if k.startswith((f"{OWN}::", "com.microsoft::")) and "Dynamic" not in k}
    assert len(claims.CLAIMS) - len(made_by_us) == 84
    assert {k.split("::")[0] for k in made_by_us} == {OWN, "com.microsoft"}


REFUSED = {
    "kernel_shape": ([node("Conv", "x w", "y")], (1, 1, 4, 4), {"w": np.ones((1, 1, 1, 1), np.float32)},
                     "kernel_shape"),
    "computed weights": ([node("Abs", "x", "a"), node("Conv", "x a", "y", kernel_shape=[4, 4])],
                         (1, 1, 4, 4), {}, "neither constant"),
    "a deep kernel": ([node("MaxPool", "x", "y", kernel_shape=[1, 2, 2])], (1, 1, 2, 4, 4), {},
                      "3 dimensions"),
    "alpha": ([node("Gemm", "x w", "y", alpha=2.0)], (2, 2), {"w": np.ones((2, 2), np.float32)},
              "alpha is 2"),
    "padding": ([node("AveragePool", "x", "y", kernel_shape=[2, 2], pads=[1, 1, 1, 1])], (1, 1, 4, 4), {},
                "does not count"),
    "another operator": ([node("CumSum", "x i", "y")], (2, 2), {"i": np.array(0)}, "not among"),
    "a type": ([node("Cast", "x", "d", to=TensorProto.DOUBLE), node("Abs", "d", "e"),
                node("Cast", "e", "y", to=TensorProto.FLOAT)], (2, 2), {}, "float64"),
    "coordinates": ([node("Resize", "x - s", "y", mode="linear",
                          coordinate_transformation_mode="align_corners")],
                    (1, 1, 4, 4), {"s": np.array([1, 1, 2, 2], np.float32)}, "align_corners"),
}


@pytest.mark.parametrize("case", REFUSED)
@emulated
def test_a_refusal_has_its_reason(case: str) -> None:
    nodes, shape, weights, reason = REFUSED[case]
    made = model(nodes, [info("x", shape=shape)], [info("y", shape=None)], weights)
    s = session(made, target="generic")
    why = [str(r) for p in s.explain().nodes for r in p.refusals if p.provider == CPU]
    assert any(reason in text and NAME in text for text in why), why


@emulated
@pytest.mark.parametrize("target", targets.TARGETS)
def test_a_network_is_one_part_and_right(target: str) -> None:
    made = small()
    s = session(made, target=target)
    assert set(placed(s).values()) == {NAME}
    assert len({p.part for p in s.explain().nodes}) == 1
    (got,), (expected,) = s.run(None, X), numpy_results(made, X)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@emulated
def test_a_part_has_the_name_that_tools_look_for() -> None:
    (name,) = {p.part for p in session(small()).explain().nodes}
    head, _, numbers = name.partition("_SpineSubgraph_")
    assert head == NAME and len(numbers.split("_")) == 3


@emulated
def test_sizes_known_at_run_time() -> None:
    made = model([node("MatMul", "x w", "m"), node("Relu", "m", "y")], [info("x", shape=("n", 6))],
                 [info("y", shape=("n", 4))], {"w": RNG.standard_normal((6, 4)).astype(np.float32)})
    s = session(made, target="generic")
    for n in (1, 5, 33, 5):
        x = RNG.standard_normal((n, 6)).astype(np.float32)
        np.testing.assert_allclose(s.run(None, {"x": x})[0], numpy_results(made, {"x": x})[0], 1e-5, 1e-6)


# options


@emulated
def test_filters_move_nodes() -> None:
    made = small()
    assert placed(session(made, DISABLE_OP_TYPE_FILTER="Conv;Softmax"))["c1"] == CPU
    found = placed(session(made, DISABLE_OP_NAME_FILTER="c2;m1"))
    assert {k for k, v in found.items() if v == CPU} == {"c2", "m1"}


@emulated
def test_environment_variables_stand_for_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "DISABLE_OP_TYPE_FILTER", "Conv")
    monkeypatch.setenv("SPERT_BACKEND", "spacemit-k1")
    s = session(small())
    assert placed(s)["c1"] == CPU
    (p,) = [p for p in s._sess._engine.providers if p.name == NAME]
    assert p.machine == machine.SPACEMIT_K1
    assert placed(session(small(), DISABLE_OP_TYPE_FILTER=""))["c1"] == NAME, "an option goes before it"


@emulated
@pytest.mark.parametrize("threads, given, expected", [
    (1, {}, 1), (3, {}, 3), (1, {"INTRA_THREAD_NUM": 2}, 2), (2, {"INTRA_THREAD_AFFINITY": "0"}, 1)])
def test_threads(threads: int, given: dict[str, Any], expected: int) -> None:
    made = small()
    s = session(made, threads, **given)
    np.testing.assert_allclose(s.run(None, X)[0], numpy_results(made, X)[0], 1e-5, 1e-6)
    (p,) = [p for p in s._sess._engine.providers if p.name == NAME]
    (group,) = p.runs_on.teams.all
    assert len([w for w in group.workers if w.pid is not None]) == expected
    if "INTRA_THREAD_AFFINITY" in given:
        assert os.sched_getaffinity(group.workers[0].pid) == {0}


@emulated
def test_threads_and_runs_have_a_bound() -> None:
    """A worker is a process: as many as somebody says may be more than the machine bears."""
    for threads, given in ((5000, {}), (1, {"INTRA_THREAD_NUM": 5000, "INTER_THREAD_NUM": 2})):
        s = session(small(), threads, **given)
        (p,) = [p for p in s._sess._engine.providers if p.name == NAME]
        assert p.runs_on.capacity == max(16, len(os.sched_getaffinity(0)))


@emulated
def test_threads_change_no_bit() -> None:
    made = small()
    first, *others = (session(made, n).run(None, X)[0] for n in (1, 2, 3))
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("given, said", [
    ({"INTRA_THREAD_AFFINITY": "0;1", "INTRA_THREAD_NUM": 3}, "2 processors for 3 threads"),
    ({"INTRA_THREAD_AFFINITY": "4095"}, "may not use"), ({"INTRA_THREAD_NUM": "many"}, "whole number"),
    ({"DENSE_ACCURACY_LEVEL": "x"}, "whole number"), ({"target": "k9"}, "no such target"),
    ({"DISABLE_PASSES_FILTER": "a"}, "disabled_optimizers"), ({"PLUGIN_LIB": "a.so"}, "@orthrus.op"),
    ({"INTER_THREAD_NUM": 10**9}, "between 1 and 1024"), ({"NO_SUCH": "1"}, "has no option")])
@emulated
def test_what_cannot_be_followed_is_an_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.ALL) as caught:
        session(small(), **given)
    assert said in str(caught.value)


@emulated
def test_hints_are_taken() -> None:
    s = session(small(), ENABLE_BLOCKLAYOUT=1, ENABLE_DMA=1, DISABLE_TLS_RELEASE=1, PERFER_CORE_ARCH="0x5064")
    (p,) = [p for p in s._sess._engine.providers if p.name == NAME]
    assert p.machine == machine.SPACEMIT_K3_X100


@emulated
def test_runs_at_the_same_time() -> None:
    made, results = small(), []
    s = session(made, 1, INTER_THREAD_NUM=2)
    feeds = [{"x": RNG.standard_normal((1, 3, 10, 10)).astype(np.float32)} for _ in range(6)]

    def some(mine: list[dict[str, np.ndarray]]) -> None:
        results.extend((f, s.run(None, f)[0]) for f in mine)
    threads = [threading.Thread(target=some, args=(feeds[i::3],)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 6
    for given, got in results:
        np.testing.assert_allclose(got, numpy_results(made, given)[0], 1e-5, 1e-6)
    (p,) = [p for p in s._sess._engine.providers if p.name == NAME]
    assert 1 <= sum(w.pid is not None for group in p.runs_on.teams.all for w in group.workers) <= 2


@emulated
def test_sessions_share_threads_when_told_to() -> None:
    made = small()
    one, two = (session(made, 1, USE_GLOBAL_INTRA_THREAD=1) for _ in range(2))
    for s in (one, two, one):
        np.testing.assert_allclose(s.run(None, X)[0], numpy_results(made, X)[0], 1e-5, 1e-6)
    teams = {id(p.runs_on.teams) for s in (one, two) for p in s._sess._engine.providers if p.name == NAME}
    assert len(teams) == 1
    own = session(made, 1)
    assert id(own._sess._engine.providers[0].runs_on.teams) not in teams


@emulated
def test_subgraphs_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = small()
    session(made, DUMP_SUBGRAPHS=1)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith(f"{NAME}_SpineSubgraph_") and file.name.endswith("_shape1_3_10_10__.onnx")
    part = onnx.load(file)
    np.testing.assert_allclose(numpy_results(part, X)[0], numpy_results(made, X)[0], 1e-5)


@emulated
def test_tensors_are_written(tmp_path: Path) -> None:
    made = small()
    s = session(made, DUMP_TENSORS=tmp_path / "made" / "here")
    (y,) = s.run(None, X)
    found = {p.stem: np.load(p) for p in (tmp_path / "made" / "here").iterdir()}
    np.testing.assert_array_equal(found["y"], y)
    assert "p1" in found or "f1" in found


@emulated
def test_a_profile_that_cannot_be_written_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for prefix in ("/no/such/folder/spine", "a\0b"):
        s = session(small(), DEBUG_PROFILE=prefix)
        s.run(None, X)
        del s
        gc.collect()
    said = [each.getMessage() for each in caplog.records if "profile is not written" in each.getMessage()]
    assert len(said) == 2 and "/no/such/folder" in said[0] and "SPACEMIT_EP_DEBUG_PROFILE" in said[1]


@emulated
def test_a_profile_has_each_node_on_each_thread(tmp_path: Path) -> None:
    s = session(small(), 2, DEBUG_PROFILE=tmp_path / "spine")
    s.run(None, X)
    s.run(None, X)
    del s
    gc.collect()
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("spine_") and file.suffix == ".json"
    events = json.loads(file.read_text())["traceEvents"]
    conv = [e for e in events if "Conv" in e["args"]["op_name"]]
    assert {e["tid"] for e in conv} == {0, 1} and all(e["ph"] == "X" and e["dur"] >= 0 for e in events)
    assert sum(e["name"] == "y" for e in events) >= 2, "both runs"


def quantized_product(dynamic: bool) -> onnx.ModelProto:
    """(x w) (x w)' where the first product is quantized by its range at run time."""
    w = RNG.integers(-127, 128, (16, 16)).astype(np.int8)
    first = [node("DynamicQuantizeLinear", "x", "q s z"), node("MatMulInteger", "q w z", "i"),
             node("Cast", "i", "f", to=TensorProto.FLOAT), node("Mul", "f s", "g")] if dynamic else [
        node("MatMul", "x v", "g")]
    nodes = [*first, node("Transpose", "g", "t", perm=[1, 0]), node("MatMul", "g t", "y", name="online")]
    return model(nodes, [info("x", shape=(16, 16))], [info("y", shape=(16, 16))],
                 {"w": w} if dynamic else {"v": w.astype(np.float32)})


@emulated
def test_levels_of_accuracy() -> None:
    x = {"x": RNG.standard_normal((16, 16)).astype(np.float32) / 100}
    made = quantized_product(True)
    (exact,) = numpy_results(made, x)

    def error(**given: Any) -> float:
        return float(np.abs(session(made, target="spacemit-k1", **given).run(None, x)[0] - exact).max()
                     / np.abs(exact).max())
    full, half, codes = (error(DENSE_ACCURACY_LEVEL=level) for level in (2, 1, 0))
    assert error() == error(DENSE_ACCURACY_LEVEL=7) == full < 1e-5
    assert 1e-5 < half < 2e-3 < codes < 5e-2
    plain = quantized_product(False)
    got = session(plain, target="spacemit-k1", DENSE_ACCURACY_LEVEL=0).run(None, x)[0]
    np.testing.assert_allclose(got, numpy_results(plain, x)[0], 1e-4, 1e-4, err_msg="only quantized models")


# workers


def pids(s: ort.InferenceSession) -> list[int]:
    return [w.pid for p in s._sess._engine.providers if p.name == NAME
            for group in p.runs_on.teams.all for w in group.workers if w.pid is not None]


@emulated
@pytest.mark.parametrize("threads", [1, 2])
def test_a_killed_worker_is_an_error_and_the_session_recovers(threads: int) -> None:
    made = small()
    s = session(made, threads)
    (expected,) = s.run(None, X)
    killed = pids(s)[-1]
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    try:
        s.run(None, X)
    except errors.ALL as error:
        assert "worker" in str(error)
    np.testing.assert_array_equal(s.run(None, X)[0], expected)
    assert killed not in pids(s)


@emulated
def test_a_hanging_worker_is_an_error_and_the_session_recovers() -> None:
    made = small()
    s = session(made, 2, emulator_timeout=1)
    (expected,) = s.run(None, X)
    for pid in pids(s):
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(errors.Fail, match="did not end in 1 seconds"):
        s.run(None, X)
    np.testing.assert_array_equal(s.run(None, X)[0], expected)


@emulated
def test_nothing_is_left() -> None:
    before = set(os.listdir("/dev/shm"))
    s = session(small(), 2)
    s.run(None, X)
    workers = pids(s)
    del s
    gc.collect()
    assert len(workers) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert set(os.listdir("/dev/shm")) == before


@emulated
def test_memory_is_given_back_whenever_it_is_collected() -> None:
    shared = device.memory()
    kept = [device.Emulated(machine.RVV128, None).room(100) for _ in range(50)]  # type: ignore[arg-type]
    taken = {int(a.ctypes.data) for a in kept}
    assert len(taken) == 50
    del kept
    gc.collect()
    device.Emulated(machine.RVV128, None).room(1)  # type: ignore[arg-type]
    assert not taken - {int(device.Emulated(machine.RVV128, None).room(1).ctypes.data)} & set(shared._taken)


@emulated
def test_a_child_process_has_workers_and_memory_of_its_own() -> None:
    s = session(small(), 2)
    (expected,) = s.run(None, X)
    other = {"x": X["x"] + 1}
    workers, (wanted,) = pids(s), s.run(None, other)
    pid = os.fork()
    if pid == 0:
        same = all(np.array_equal(s.run(None, other)[0], wanted) for _ in range(2))
        os._exit(0 if same and not set(pids(s)) & set(workers) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    np.testing.assert_array_equal(s.run(None, X)[0], expected)
    assert pids(s) == workers, "they are the parent's"


def test_the_emulator_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(emulator.importlib.util, "find_spec", lambda _: None)
    why = provider.SpaceMITExecutionProvider.probe()
    assert why is not None and "apt-get install qemu-user" in why.reason and "xuantie-qemu" in why.reason


def test_shares_are_whole_grains() -> None:
    for items in (0, 1, 7, 64, 1000):
        for grain in (1, 3, 64):
            for workers in (1, 2, 5):
                found = team.shares(items, grain, workers)
                assert found[0][0] == 0 and found[-1][1] == items
                assert all(a[1] == b[0] and a[1] % grain in (0, items % grain) for a, b in
                           zip(found, found[1:], strict=False))


# on a board


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is the board: everything but the instructions is as there."""
    monkeypatch.setattr(provider, "on_board", lambda: True)
    yield


def test_on_a_board_parts_run_in_this_process(board: None, tmp_path: Path) -> None:
    made = small()
    s = session(made, 2, DEBUG_PROFILE=tmp_path / "p")
    np.testing.assert_allclose(s.run(None, X)[0], numpy_results(made, X)[0], 1e-5, 1e-6)
    (p,) = [p for p in s._sess._engine.providers if p.name == NAME]
    assert p.machine is host() and p.runs_on.pool.capacity == 2
    del s, p
    gc.collect()
    (file,) = tmp_path.iterdir()
    said = " ".join(e["args"]["op_name"] for e in json.loads(file.read_text())["traceEvents"])
    assert "Conv" in said and "Softmax" in said


def test_on_a_board_sessions_share_threads_when_told_to(board: None) -> None:
    found = [session(small(), 2, USE_GLOBAL_INTRA_THREAD=1)._sess._engine.providers[0].runs_on.pool
             for _ in range(2)]
    assert found[0] is found[1] is not session(small(), 2)._sess._engine.providers[0].runs_on.pool


# compiled ahead

RUN = """
import sys, numpy as np
sys.path[:0] = {path!r}
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "llvmlite" else real(name, *rest)
sys.modules["llvmlite"] = None
import orthrus as ort
s = ort.InferenceSession({model!r}, providers=["{name}", "CPUExecutionProvider"], trust=True)
np.save({out!r}, s.run(None, {{"x": np.load({feed!r})}})[0])
"""


@emulated
def test_a_model_compiled_ahead_runs_without_a_compiler(tmp_path: Path) -> None:
    made, target = small(), "spacemit-k1"
    onnx.save(made, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", X["x"])
    command = "from orthrus.tools.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "compile", "m.onnx", "--provider", "spacemit", "--target", target,
         "-o", "c.onnx"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (only,) = onnx.load(tmp_path / "c.onnx").graph.node
    assert only.op_type == "EPContext"
    script = RUN.format(path=sys.path, model=str(tmp_path / "c.onnx"), name=NAME, out=str(tmp_path / "y.npy"),
                        feed=str(tmp_path / "x.npy"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                          env={**os.environ, "ORTHRUS_CACHE": "0"})
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), numpy_results(made, X)[0], 1e-5, 1e-6)
    with pytest.raises(errors.Fail, match="machine code"):
        session(tmp_path / "c.onnx")
    with pytest.raises(errors.ALL, match="spacemit-k1"):
        session(tmp_path / "c.onnx", trust=True, target="spacemit-k3")


def test_names_of_targets() -> None:
    assert targets.label(machine.SPACEMIT_K3) == "spacemit-k3"
    assert targets.label(machine.rvv(512)) == "generic, vectors of 512 bits"
    assert machine.SPACEMIT_K1.runs(machine.rvv(128))
    assert not machine.SPACEMIT_K3_X100.runs(machine.SPACEMIT_K1)


LONG = """
import sys, numpy as np
sys.path[:0] = {path!r}
import test_spacemit as t
s = t.session(t.many_steps())
s.run(None, {{"x": t.LARGE}})
print(t.pids(s)[0], flush=True)
while True:
    s.run(None, {{"x": t.LARGE}})
"""
LARGE = np.ones((1, 8, 128, 128), np.float32)


def many_steps() -> onnx.ModelProto:
    """Some dozen steps of some tens of milliseconds."""
    nodes = [node("Softmax", f"v{i}" if i else "x", f"v{i + 1}", axis=1 + i % 3) for i in range(40)]
    return model(nodes, [info("x", shape=LARGE.shape)], [info("v40", shape=LARGE.shape)])


@emulated
def test_a_worker_ends_with_its_process() -> None:
    """Also in the middle of a list of calls."""
    child = subprocess.Popen([sys.executable, "-c", LONG.format(path=sys.path)], stdout=subprocess.PIPE,
                             text=True)
    assert child.stdout is not None
    worker = int(child.stdout.readline())
    child.kill()
    child.wait()
    child.stdout.close()
    for _ in range(300):
        if not Path(f"/proc/{worker}").exists():
            return
        time.sleep(0.05)
    pytest.fail("it is still there")


@emulated
def test_no_worker_waits_for_one_that_ended_with_the_process() -> None:
    """One of three is stopped, so that the others wait for it; then the process ends, and it."""
    text = LONG.format(path=sys.path).replace("many_steps()", "many_steps(), 3").replace(")[0]", ")")
    child = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    workers = json.loads(child.stdout.readline())
    assert len(workers) == 3
    os.kill(workers[1], signal.SIGSTOP)
    time.sleep(1)
    child.kill()
    child.wait()
    child.stdout.close()
    os.kill(workers[1], signal.SIGKILL)
    for _ in range(300):
        left = [pid for pid in workers if Path(f"/proc/{pid}").exists()]
        if not left:
            return
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    pytest.fail(f"{len(left)} are still there")


def quantized_chain() -> onnx.ModelProto:
    """A product between bytes with scales that are no powers of two, as floats and as bytes."""
    w = RNG.integers(-127, 128, (32, 16)).astype(np.int8)
    weights = {"w": w, "sx": np.array(0.0171, np.float32), "zx": np.array(117, np.uint8),
               "sw": np.array(0.0123, np.float32), "zw": np.array(0, np.int8)}
    nodes = [node("QuantizeLinear", "x sx zx", "q"), node("DequantizeLinear", "q sx zx", "d"),
             node("DequantizeLinear", "w sw zw", "v"), node("MatMul", "d v", "y")]
    return model(nodes, [info("x", shape=(8, 32))], [info("y", shape=(8, 16))], weights)


@emulated
def test_the_epilogue_of_quantized_products_is_in_float16_where_the_target_has_it() -> None:
    made, x = quantized_chain(), {"x": RNG.standard_normal((8, 32)).astype(np.float32)}
    (exact,) = numpy_results(made, x)

    def got(**given: Any) -> np.ndarray:
        return session(made, **given).run(None, x)[0]
    for target in ("spacemit-k1", "spacemit-k3"):
        half = got(target=target)
        np.testing.assert_array_equal(half, half.astype(np.float16).astype(np.float32))
        assert 1e-5 < np.abs(half - exact).max() / np.abs(exact).max() < 1e-3
        np.testing.assert_allclose(got(target=target, DISABLE_FLOAT16_EPILOGUE=1), exact, 1e-6, 1e-6)
    np.testing.assert_array_equal(got(target="generic"), got(target="generic", DISABLE_FLOAT16_EPILOGUE=1))
