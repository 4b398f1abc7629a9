"""If, Loop and Scan in packages: what a session computes, bit for bit, or a refusal that names a node."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_models import drawn
from evil_packages import sealed
from graphs import info, model
from native_packages import (
    BAD_INDEX,
    DAMAGED,
    SHAPE,
    SOURCES,
    STOPPED,
    CContext,
    CModel,
    Refused,
    compiled,
    runtime,
)
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus.codegen.machines.machine import FORCED
from orthrus.codegen.runtime.cells import JUMP
from orthrus.errors import NotImplemented as NotImplementedFail
from orthrus.kernels import Part
from orthrus.load import load
from orthrus.lowering.memory import plan
from orthrus.lowering.package import layout
from orthrus.lowering.package.loaded import Package
from orthrus.lowering.step import KernelStep
from orthrus.lowering.tensor import Buffer, Tensor
from orthrus.native.compile import machine_named, package
from orthrus.providers import CPUExecutionProvider

pytestmark = [needs("generated code"), needs("C compiler")]

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Feeds = list[dict[str, np.ndarray]]


def data_of(source: Any, sizes: Any = None, machine: Any = None) -> bytes:
    return b"".join(map(bytes, package(source, [machine or machine_named("host")], sizes).whole()))


def same(got: list[np.ndarray], want: list[Any]) -> bool:
    return all((a.shape, a.dtype, a.tobytes()) == (np.shape(b), np.asarray(b).dtype, np.asarray(b).tobytes())
               for a, b in zip(got, want, strict=True))


def step_by_step(source: bytes, data: bytes, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What a package gives in Python, where something is looked at between its steps."""
    whole, looks, notes = load(source), [], list[Any]()
    part = Part("CPUExecutionProvider", list(whole.nodes), list(whole.inputs), list(whole.outputs), "turns",
                whole.info, weakref.ref(whole))
    made: Any = CPUExecutionProvider().kernel_of(part, Package(data))
    given = made.run.stepwise(arrays, lambda *note: notes.append(note), None, lambda: looks.append(0))
    assert len(notes) == len(looks) + 2
    return list(given) if isinstance(given, tuple) else [given]


def compare(source: bytes, feeds: Feeds, sizes: Any = None) -> None:
    """Twice each of `feeds` in one context, on one thread and on two: the session's bytes, nothing else is
    written to. And once step by step in Python."""
    session, data = ort.InferenceSession(source), data_of(source, sizes)
    opened = CModel(data)
    wanted = [session.run(None, fed) for fed in feeds]
    for fed, want in zip(feeds, wanted, strict=True):
        assert same(step_by_step(source, data, [np.asarray(fed[v.name]) for v in session.get_inputs()]), want)
    for threads in (1, 2):
        context = CContext(opened, threads)
        for fed, want in list(zip(feeds, wanted, strict=True)) * 2:
            before = {name: array.copy() for name, array in fed.items()}
            assert same(context(*(fed[v.name] for v in session.get_inputs())), want)
            assert all(array.tobytes() == before[name].tobytes() for name, array in fed.items())
        context.destroy()
    opened.close()


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


def graph(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    return helper.make_graph(nodes, "body", inputs, outputs)


def loop(nodes: list[Any], results: list[Any], trips: str = "n", shape: Any = (4,),
         inputs: list[Any] | None = None, outputs: str = "y") -> bytes:
    """A Loop over the state `a`, whose body has `i` and `t` and gives the condition, `a` and more."""
    body = graph(nodes, [info("i", INT, []), info("t", B, []), info("a", F, shape)], results)
    return bytes(model([helper.make_node("Loop", [trips, "", "x"], outputs.split(), "turns", body=body)],
                       [info("x", F, shape), *(inputs if inputs is not None else [info("n", INT, [])])],
                       [info(name, F, None) for name in outputs.split()]).SerializeToString())


def endless() -> bytes:
    return loop([node("Identity", "t", "go"), node("Tanh", "a", "b")], [info("go", B, []), info("b", F, [4])])


SEEDS = [range(30), pytest.param(range(30, 400), marks=pytest.mark.slow),
         pytest.param(range(1000, 4000), marks=pytest.mark.thorough)]


@pytest.mark.parametrize("seeds", SEEDS)
def test_random_control_flow(seeds: range) -> None:
    refused = 0
    for seed in seeds:
        made, feeds = drawn(seed)
        try:
            compare(made.SerializeToString(), feeds)
        except NotImplementedFail as error:
            assert "how many turns there are" in str(error), seed
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert refused < len(seeds) // 4


def test_every_size_of_a_range() -> None:
    """Turns over the rows of an input, an If in each of them, over several sizes in any order."""
    branch = {"then_branch": graph([node("Exp", "r", "p")], [], [info("p", F, [5])]),
              "else_branch": graph([node("Neg", "w", "q")], [], [info("q", F, [5])])}
    body = graph([node("Add", "h r", "s"), node("Tanh", "s", "h2"), node("ReduceMax", "r", "m", keepdims=0),
                  node("Greater", "m zero", "c"), helper.make_node("If", ["c"], ["z"], **branch)],
                 [info("h", F, [5]), info("r", F, [5])], [info("h2", F, [5]), info("z", F, [5])])
    source = model([node("Scan", "h0 x", "h z", body=body, num_scan_inputs=1)],
                   [info("h0", F, [5]), info("x", F, ["N", 5]), info("w", F, [5])],
                   [info("h", F, [5]), info("z", F, ["N", 5])], {"zero": np.float32(0)}).SerializeToString()
    rng = np.random.default_rng(0)
    feeds = [{"h0": rng.standard_normal(5, np.float32), "w": rng.standard_normal(5, np.float32),
              "x": rng.standard_normal((n, 5), np.float32) - 1} for n in (3, 1, 7, 2, 2, 0, 6, 5, 4, 7)]
    compare(source, feeds, {"N": range(8)})


def test_how_many_turns_is_the_caller_s_to_say() -> None:
    source = endless()
    feeds = [{"x": np.linspace(-3, 3, 4, dtype=np.float32), "n": np.array(n)} for n in (0, 1, 5, -2, 1000, 2)]
    compare(source, feeds)
    body = [node("Add", "a a", "b"), node("ReduceMax", "b", "m", keepdims=0), node("Less", "m last", "go")]
    ending = loop(body, [info("go", B, []), info("b", F, [4])], "", inputs=[info("last", F, [])])
    compare(ending, [{"x": np.float32([1, 2, 3, 4]), "last": np.float32(last)} for last in (0, 9, 1e30, 1)])


@pytest.mark.parametrize("make,said", [
    (lambda: loop([node("Identity", "t", "go"), node("Identity", "a", "b"), node("Neg", "a", "g")],
                  [info("go", B, []), info("b", F, [4]), info("g", F, [4])], outputs="y z"),
     "turns: how many turns there are is known only at run time"),
    (lambda: loop([node("Identity", "t", "go"), node("Concat", "a a", "b", axis=0)],
                  [info("go", B, []), info("b", F, [None])], shape=[None]), "turns: .* after a turn"),
    (lambda: loop([node("Identity", "t", "go"), node("Compress", "a t", "u"), node("Add", "a u", "v")],
                  [info("go", B, []), info("v", F, [4])]), "type of u does not follow from shapes"),
    (lambda: bytes(model([helper.make_node(
        "If", ["c"], ["y"], "fork", then_branch=graph([node("Neg", "x", "p")], [], [info("p", F, [4])]),
        else_branch=graph([node("Concat", "x x", "q", axis=0)], [], [info("q", F, [8])]))],
        [info("x", F, [4]), info("c", B, [])], [info("y", F, None)]).SerializeToString()),
     "fork: a result is float32\\[4\\] by one branch and float32\\[8\\]"),
    (lambda: bytes(model([helper.make_node(
        "If", ["c"], ["y"], "fork", then_branch=graph(
            [node("Compress", "x c", "p")], [], [info("p", F, [None])]),
        else_branch=graph([node("Neg", "x", "q")], [], [info("q", F, [4])]))],
        [info("x", F, [4]), info("c", B, [])], [info("y", F, None)]).SerializeToString()),
     "type of p does not follow from shapes"),
    (lambda: bytes(model([helper.make_node(
        "SequenceMap", ["x"], ["y"], "each", body=graph(
            [node("Neg", "i", "o")], [info("i", F, [2])], [info("o", F, [2])]))],
        [helper.make_tensor_sequence_value_info("x", F, [2])],
        [helper.make_tensor_sequence_value_info("y", F, [2])], opset=18).SerializeToString()), "each"),
])
def test_what_stays_out_is_named(make: Any, said: str) -> None:
    with pytest.raises(NotImplementedFail, match=said):
        data_of(make(), {"x:0": [4]} if "after" in said else None)


def test_a_branch_that_takes_no_such_shape() -> None:
    """It is a status where the data choose it, and nothing where they do not."""
    wrong = graph([node("Reshape", "x five", "p")], [], [info("p", F, [5])])
    source = model([helper.make_node("If", ["c"], ["y"], then_branch=wrong, else_branch=graph(
        [node("Neg", "x", "q")], [], [info("q", F, [None])]))], [info("x", F, ["N"]), info("c", B, [])],
        [info("y", F, None)], {"five": np.array([5])}).SerializeToString()
    opened = CModel(data_of(source, {"N": [4, 5]}))
    context = CContext(opened)
    for _ in range(2):
        for n, c in ((5, True), (4, False), (5, False)):
            x = np.arange(n, dtype=np.float32)
            assert same(context(x, np.array(c)), [x if c else -x])
        with pytest.raises(Refused, match="choose a branch") as found:
            context(np.ones(4, np.float32), np.array(True))
        assert found.value.status == SHAPE
    context.destroy()
    opened.close()


def test_an_index_out_of_range_ends_the_turns() -> None:
    source = loop([node("Identity", "t", "go"), node("Gather", "rows i", "r"), node("Add", "a r", "b")],
                  [info("go", B, []), info("b", F, [4])],
                  inputs=[info("n", INT, []), info("rows", F, [7, 4])])
    opened = CModel(data_of(source))
    context, x, rows = CContext(opened), np.zeros(4, np.float32), np.ones((7, 4), np.float32)
    for _ in range(2):
        assert same(context(x, np.array(7), rows), [np.full(4, 7, np.float32)])
        with pytest.raises(Refused) as found:
            context(x, np.array(1 << 60), rows)
        assert found.value.status == BAD_INDEX
    context.destroy()
    opened.close()


def test_endless_turns_end_where_they_are_told_to() -> None:
    source = endless()
    opened = CModel(data_of(source))
    context, stop, status = CContext(opened), np.zeros(1, np.int64), list[int]()
    runtime().orthrus_stop_at(context.address, ctypes.c_void_p(stop.ctypes.data))
    x, out = np.ones(4, np.float32), np.empty(4, np.float32)
    context.reshape([(4,), ()])
    thread = threading.Thread(target=lambda: status.append(context.run([x, np.array(1 << 60)], [out])))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    stop[0] = 1
    thread.join(60)
    assert status == [STOPPED]
    context.destroy()
    opened.close()


def test_damaged_jumps_are_refused() -> None:
    """Whatever their targets say, and though digests are in order."""
    source = endless()
    data = np.frombuffer(data_of(source), np.uint8).copy()
    words = data[:len(data) // 8 * 8].view(np.int64)
    row = words[words[words[layout.Head.TARGETS] + layout.Target.PLANS]:][:layout.Plan.WORDS]
    steps, values = row[layout.Plan.STEPS], words[row[layout.Plan.VALUES]:]
    work = words[row[layout.Plan.WORK]:][:2 * steps].reshape(-1, 2)
    begins = words[row[layout.Plan.BEGINS]:][:steps]
    jumps = begins[work[:, 0] == JUMP] + 1
    assert len(jumps) == 2
    for at in jumps:
        for target in (-1, 0, int(steps), int(steps) + 1, 1 << 40):
            good = 0 <= target <= steps
            kept, values[at] = values[at], target
            opened = CModel(sealed(data))
            try:
                CContext(opened).destroy()
                assert good
            except Refused as refused:
                assert (good, refused.status) == (False, DAMAGED) and "a jump" in refused.args[1]
            opened.close()
            values[at] = kept


@pytest.mark.parametrize("seed", range(30))
def test_memory_lives_as_long_as_the_turns_that_need_it(seed: int) -> None:
    """Random programs with loops in each other, run by hand: what is read is what was written last."""
    rng = np.random.default_rng(seed)
    steps: list[KernelStep] = []
    loops: list[tuple[int, int]] = []
    kept: list[Buffer] = []

    def add(reads: list[Buffer], write: Buffer) -> None:
        given = [Tensor("uint8", (b.size,), (1,), b) for b in (*reads, write)]
        steps.append(KernelStep(None, given, 1, 1, 0, None, given[-1:]))  # type: ignore[arg-type]

    def block(depth: int, known: list[Buffer]) -> None:
        known = list(known)
        for _ in range(rng.integers(1, 6)):
            if depth and rng.random() < 0.35:
                state = Buffer("arena", int(rng.integers(1, 500)))
                add(some(known), state)
                begin = len(steps)
                block(depth - 1, [*known, state])
                add([state, *some(known)], state)
                loops.append((begin, len(steps) - 1))
                known.append(state)
            else:
                known.append(Buffer("arena", int(rng.integers(1, 500))))
                add(some(known[:-1]), known[-1])
        if depth == 3:
            kept.extend(some(known))

    def some(known: list[Buffer]) -> list[Buffer]:
        return [known[i] for i in rng.integers(0, len(known), 2)] if known else []
    block(3, [])
    add(kept, Buffer("arena", 8))
    size = plan(steps, [], loops)
    memory = np.zeros(size, np.int64)
    written: dict[int, int] = {}
    clock = 0
    at, left = 0, {end: 2 for _, end in loops}
    while at < len(steps):
        *reads, write = (t.buffer for t in steps[at].args)
        for b in reads:
            if id(b) in written:
                assert (memory[b.offset:b.offset + b.size] == written[id(b)]).all(), (seed, at)
        clock += 1
        memory[write.offset:write.offset + write.size] = written[id(write)] = clock
        back = next((begin for begin, end in loops if end == at and left[end] > 0), None)
        if back is None:
            left[at] = 2
            at += 1
        else:
            left[at] -= 1
            at = back


SANITIZERS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread", "valgrind": ""}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs("valgrind")) if kind == "valgrind" else kind
                                  for kind in SANITIZERS])
def test_it_is_clean(kind: str, tmp_path: Path) -> None:
    """Random models, threads, contexts and a fork, watched; valgrind knows no AVX-512."""
    flags = [SANITIZERS[kind]] if SANITIZERS[kind] else []
    program = compiled(*flags, f"-I{SOURCES}", SOURCES / "runtime.c", Path(__file__).parent / "harness.c",
                       out=tmp_path / "harness")
    watch = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full",
             "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"] if kind == "valgrind" else []
    here = machine_named("host")
    for seed in (0, 2, 3, 4):
        made, feeds = drawn(seed)
        source = made.SerializeToString()
        data = data_of(source, None, FORCED["avx2"] if here.runs(FORCED["avx2"]) else here)
        (tmp_path / "package").write_bytes(data)
        opened = CModel(data)
        context = CContext(opened)
        given = [feeds[0][v.name] for v in ort.InferenceSession(source).get_inputs()]
        results = context(*given)
        context.destroy()
        opened.close()
        (tmp_path / "data").write_bytes(b"".join(a.tobytes() for a in (*given, *results)))
        done = subprocess.run(
            [*watch, program, "run", tmp_path / "package", tmp_path / "data", "2", "3", "4"],
            capture_output=True, text=True, check=False, timeout=400,
            env={**os.environ, "TSAN_OPTIONS": "die_after_fork=0"})
        assert not done.returncode and not done.stderr, (seed, done.stderr[-4000:])
