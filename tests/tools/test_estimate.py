"""Estimates for SpacemiT's chips: instructions are counted as an emulator counts them, what the vendor
publishes comes out of the core descriptions, and the command says what it found."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("llvmlite")

from planted import commands
from skips import needs

import orthrus as ort
from orthrus.codegen.emulate.emulator import Call, Calls, Worker
from orthrus.codegen.emulate.shared import CODE, Shared
from orthrus.codegen.object.build import assemble
from orthrus.codegen.object.riscv_cost import Instruction
from orthrus.codegen.write import spacemit_matrix
from orthrus.codegen.write.body import Body
from orthrus.codegen.write.emit import F32, I8, I32, V, vec
from orthrus.codegen.write.spec import Spec
from orthrus.codegen.write.template import template
from orthrus.errors import InvalidArgument
from orthrus.lowering.plans import Stepped
from orthrus.lowering.tensor import Tensor
from orthrus.providers.spacemit import cycles, cycles_code, cycles_timing, cycles_walk, estimate
from orthrus.tools.cli.estimate import Planned
from orthrus.tools.cli.estimate import estimate as estimated

emulated = needs("emulator")
TARGETS = ("spacemit-k1", "spacemit-k3")
ARRAY = 1 << 42


def network() -> onnx.ModelProto:
    """A small model with kernels of most families."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, name)
               for name, shape in {"w1": (20, 3, 3, 3), "b1": (20,), "w2": (20, 1, 3, 3),
                                   "w3": (24, 20, 1, 1), "w4": (24, 24, 5, 5), "w5": (10, 24),
                                   "b5": (10,)}.items()]
    steps = [("Conv", ["x", "w1", "b1"], "a", {"pads": [1] * 4, "strides": [2, 2]}),
             ("Sigmoid", ["a"], "s", {}), ("Mul", ["a", "s"], "b", {}),
             ("Conv", ["b", "w2"], "c", {"group": 20, "pads": [1] * 4}), ("Conv", ["c", "w3"], "d", {}),
             ("Relu", ["d"], "e", {}), ("Conv", ["e", "w4"], "f", {"pads": [2] * 4}),
             ("MaxPool", ["f"], "g", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
             ("GlobalAveragePool", ["g"], "h", {}), ("Flatten", ["h"], "i", {}),
             ("Gemm", ["i", "w5", "b5"], "j", {"transB": 1}), ("Softmax", ["j"], "y", {"axis": -1})]
    nodes = [helper.make_node(op, given, [made], made, **attrs) for op, given, made, attrs in steps]
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 22, 22])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def small() -> bytes:
    return network().SerializeToString()


def followed(spec: Spec, target: str, cells: list[int], items: int = 1, **changes: Any) -> cycles_walk.Tally:
    """What a walk through a kernel finds on one core, whose description may be changed."""
    chip, machine = cycles.chip(target), estimate.machine_of(target)
    chip = replace(chip, core=replace(chip.core, **changes))
    return cycles_walk.Walk(cycles_code.read(spec.text(machine), machine), chip).run(cells, 0, items)


@template("rounds:i64 at:ptr")
def estimate_chains(f: Body, rounds: V, at: V, *, chains: int) -> None:
    """Chains of multiply-adds that do not wait for each other."""
    ty = vec(F32, f.machine.lanes())
    x = f.load(ty, at)
    sums = f.loop(0, rounds, 1, [x] * chains, lambda _, *s: [f.fma(y, x, x) for y in s])
    for i, y in enumerate(sums):
        f.store(y, at, i * f.machine.lanes())


@template("rounds:i64 at:ptr")
def estimate_products(f: Body, rounds: V, at: V) -> None:
    """Fourteen chains of the matrix instruction."""
    m, n, k = f.machine.matrix or (1, 1, 1)
    a, b = f.load(vec(I8, m * k), at), f.load(vec(I8, n * k), at, m * k)
    zero = f.zero(vec(I32, m * n))
    sums = f.loop(0, rounds, 1, [zero] * 14, lambda _, *s: [
        spacemit_matrix.multiply(f, c, a, b, True, True) for c in s])
    for i, y in enumerate(sums):
        f.store(y, at, i * m * n)


@template("x:ptr y:ptr rows:i64 columns:i64 tail:i64")
def estimate_ragged(f: Body, x: V, y: V, rows: V, columns: V, tail: V) -> None:
    """Rows whose last one is shorter; every third element is divided once more."""
    lanes = f.machine.lanes()

    def row(r: V) -> None:
        width = f.select(r.eq(rows - 1), tail, columns)
        source, target = f.gep(x, r * columns, F32), f.gep(y, r * columns, F32)

        def block(i: V) -> None:
            v = f.load(vec(F32, lanes), source, i)
            f.when((i % (3 * lanes)).eq(0), lambda: f.store(v / 3.0, target, i),
                   lambda: f.store(v, target, i))
        f.loop(0, width, lanes, [], block)
    f.loop(0, rows, 1, [], row)


@template("x:ptr y:ptr n:i64 times:i64")
def estimate_copies(f: Body, x: V, y: V, n: V, times: V) -> None:
    """The same n elements copied so many times."""
    ty = vec(F32, 4 * f.machine.lanes())
    f.loop(0, times, 1, [], lambda _: f.loop(0, n, 4 * f.machine.lanes(), [],
                                             lambda i: f.store(f.load(ty, x, i), y, i)) and None)


# what is published comes out

@pytest.mark.parametrize(("target", "published"), [("spacemit-k1", 32.0), ("spacemit-k3", 64.0),
                                                   ("spacemit-k3-x100", 38.4)])
def test_vectors_reach_the_published_peak(target: str, published: float) -> None:
    """32 GFLOP/s of float32 a core of K1 at 2 GHz; the others by their widths at their clocks."""
    rounds, lanes = 1000, estimate.machine_of(target).lanes()
    tally = followed(estimate_chains(chains=12), target, [rounds, ARRAY])
    clock = 2.0 if target == "spacemit-k1" else cycles.chip(target).core.clock
    assert 2 * lanes * 12 * rounds / tally.cycles * clock == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize(("target", "published"), [("spacemit-k1", 0.512), ("spacemit-k3", 4.096)])
def test_matrices_reach_the_published_peak(target: str, published: float) -> None:
    """0.5 TOPS a core of K1. A K3 has 15 TOPS for eight cores that share a unit by twos: 3.75 a unit."""
    rounds, (m, n, k) = 1000, estimate.machine_of(target).matrix or (0, 0, 0)
    tally = followed(estimate_products(), target, [rounds, ARRAY])
    tops = 2 * m * n * k * 14 * rounds / tally.cycles * 2.0 / 1000
    assert tops == pytest.approx(published, rel=0.1)
    assert cycles.chip(target).matrix(8) == cycles.chip(target).core.sharing


def test_results_are_waited_for() -> None:
    one, many = (followed(estimate_chains(chains=n), "spacemit-k1", [1000, ARRAY]) for n in (1, 8))
    assert one.cycles == pytest.approx(5000, rel=0.05)
    assert many.cycles == pytest.approx(8000, rel=0.1)
    out_of_order = followed(estimate_chains(chains=1), "spacemit-k1", [1000, ARRAY], window=64, width=4)
    assert out_of_order.cycles == pytest.approx(5000, rel=0.05)


@pytest.mark.parametrize(("text", "width", "group", "x60", "a100"), [
    ("vfadd.vv v8, v16, v24", 32, 1, 1, 2), ("vfadd.vv v8, v16, v24", 32, 4, 4, 8),
    ("vfadd.vv v8, v16, v24, v0.t", 32, 2, 4, 4), ("vadd.vv v8, v16, v24", 8, 8, 8, 16),
    ("vor.vv v8, v16, v24", 32, 2, 4, 4), ("vwmacc.vx v8, a0, v16", 16, 1, 2, 4),
    ("vnsra.wi v8, v16, 3", 16, 1, 2, 4), ("vmacc.vv v8, v16, v24", 32, 4, 5, 16),
    ("vrgather.vv v8, v16, v24", 32, 2, 16, 16), ("vslideup.vi v8, v16, 3", 32, 1, 2, 8),
    ("vmflt.vv v0, v16, v24", 32, 1, 2, 2), ("vle32.v v8, (a0)", 32, 1, 2, 2.5),
    ("vlse32.v v8, (a0), a1", 32, 1, 8, 33.92), ("vle32.v v8, (a0), v0.t", 32, 1, 4, 4.5)])
def test_instructions_cost_what_was_measured(text: str, width: int, group: float, x60: float,
                                             a100: float) -> None:
    op, _, rest = text.partition(" ")
    made = Instruction(op, tuple(rest.split(", ")))
    for target, size, expected in (("spacemit-k1", 32, x60), ("spacemit-k3", 128, a100)):
        length = int(8 * size * group / width)
        found = cycles_timing.vector(made, cycles.chip(target).core, size, width, group, length, 1.0)
        assert found.busy == pytest.approx(expected, rel=0.05), target


def test_a_group_is_read_and_written_whole() -> None:
    core = cycles.chip("spacemit-k1").core
    wide = Instruction("vfwmacc.vf", ("v8", "fa0", "v16"))
    found = cycles_timing.vector(wide, core, 32, 16, 2.0, 32, 1.0)
    assert found.writes == (72, 73, 74, 75) and {80, 81, 42, *found.writes} == set(found.reads)
    tile = Instruction("sf.vqmacc.4x8x4", ("v4", "v9", "v10"))
    matrix = cycles_timing.vector(tile, core, 32, 8, 1.0, 32, 1.0)
    assert matrix.unit == cycles_timing.MATRIX and matrix.writes == (68, 69)


# counting

@pytest.mark.parametrize(("rows", "columns", "tail"), [(7, 640, 640), (200, 64, 8), (60, 1600, 800),
                                                       (1, 8, 8)])
@pytest.mark.parametrize("target", TARGETS)
def test_strides_count_as_steps_do(target: str, rows: int, columns: int, tail: int,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = estimate.machine_of(target).lanes()
    cells = [ARRAY, 2 * ARRAY, rows, columns * lanes // 8, tail * lanes // 8]
    fast = followed(estimate_ragged(), target, cells)
    monkeypatch.setattr(cycles_walk.Walk, "_turns", lambda *_: 0)
    slow = followed(estimate_ragged(), target, cells)
    assert (fast.instructions, fast.moved) == (slow.instructions, slow.moved)
    assert fast.cycles == pytest.approx(slow.cycles, rel=0.05)
    assert (fast.near, fast.far) == pytest.approx((slow.near, slow.far), rel=0.02)


def test_a_loop_without_end_is_refused() -> None:
    with pytest.raises(cycles_walk.TooLong):
        chip, machine = cycles.chip("spacemit-k1"), estimate.machine_of("spacemit-k1")
        code = cycles_code.read(estimate_ragged().text(machine), machine)
        cycles_walk.Walk(code, chip, most=50).run([ARRAY, ARRAY, 9, 99, 99], 0, 1)


@pytest.mark.parametrize(("size", "times", "near", "far"), [
    (8 << 10, 10, 16 << 10, 16 << 10), (128 << 10, 10, 2560 << 10, 256 << 10),
    (1 << 20, 3, 6 << 20, 6 << 20)])
def test_what_fits_a_cache_comes_once(size: int, times: int, near: int, far: int) -> None:
    """In 32 KB and 512 KB: arrays read and written so many times."""
    tally = followed(estimate_copies(), "spacemit-k1", [ARRAY, 2 * ARRAY, size // 4, times])
    assert tally.moved == 2 * size * times
    assert (tally.near, tally.far) == pytest.approx((near, far), rel=0.02)


def counted(plan: Stepped, vlen: int, folder: Path,
            monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(kernel, instructions that qemu executes, that a walk counts) of the steps of a plan on zeros."""
    log = folder / "log"
    for name, value in (("SINGLESTEP", "1"), ("LOG", "exec,nochain"), ("LOG_FILENAME", str(log))):
        monkeypatch.setenv(f"QEMU_{name}", value)
    shared, machine = Shared("riscv64"), plan.code.device.machine
    worker = Worker(shared, vlen, seconds=60)
    places: dict[int, int] = {}
    arena, scratch = (shared.array((size + 4096,), "uint8") for size in (plan.size, plan.scratch))
    found = []
    for step in plan.steps:
        assert step.spec is not None
        row = []
        for a in step.args:
            if isinstance(a, Tensor):
                b = a.buffer
                if b.kind == "arena":
                    row.append(arena.ctypes.data + b.offset + a.byte_offset)
                    continue
                if id(b) not in places:
                    held = b.array if b.array is not None else np.zeros(1 << 16, np.uint8)
                    there = shared.array((held.nbytes + 64,), "uint8")
                    there[:held.nbytes] = held.reshape(-1).view(np.uint8)
                    places[id(b)] = there.ctypes.data
                row.append(places[id(b)] + a.byte_offset)
            else:
                row.append(struct.unpack("<i", struct.pack("<f", a))[0] if isinstance(a, float) else int(a))
        cells = shared.array((len(row) + 1,), "int64")
        cells[:len(row)] = row
        (code,) = shared.load([bytes(assemble(step.spec.text(machine), machine))])  # type: ignore[arg-type]
        log.unlink(missing_ok=True)
        worker.run(Calls(shared, [Call(code["kernel"], cells.ctypes.data, 0, step.items,
                                       scratch.ctypes.data + -scratch.ctypes.data % 64, str(step.spec))]))
        worker.close()
        at = [int(line, 16) for line in re.findall(r"\[[0-9a-f]+/([0-9a-f]+)/", log.read_text())]
        executed = sum(shared.address <= where < shared.address + CODE for where in at)
        memory = estimate._Memory()
        given = [memory.cell(a) for a in step.args]
        read = cycles_code.read(step.spec.text(machine), machine)
        tally = cycles_walk.Walk(read, cycles.chip("spacemit-k1")).run(given, 0, step.items, memory.look)
        found.append((step.spec.template, executed, tally.instructions))
    shared.close()
    return found


@emulated
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_instructions_are_those_an_emulator_executes(target: str, small: bytes, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Planned(small, target)
    vlen = 8 * estimate.machine_of(target).vector
    rows = [row for native in planned.natives for plan in native.plans.values() if plan is not None
            for row in counted(plan, vlen, tmp_path, monkeypatch)]
    assert len(rows) > 8 and sum(executed for _, executed, _ in rows) > 100_000
    assert [r for r in rows if abs(r[1] - r[2]) > 0.02 * r[1]] == []
    assert sum(executed == counted for _, executed, counted in rows) >= len(rows) - 3


# models

@pytest.mark.parametrize("target", (*TARGETS, "spacemit-k3-x100"))
def test_every_node_is_in_an_estimate_once(target: str, small: bytes) -> None:
    found = estimated(small, target, vary=True)
    named = [name for node in found.nodes for name in node.fused]
    assert sorted(named) == sorted(set(named)) and {"a", "c", "f", "g", "j", "y"} <= set(named)
    assert found.milliseconds == pytest.approx(sum(n.milliseconds for n in found.nodes))
    assert found.host == 0 and all(n.milliseconds > 0 and n.instructions > 0 for n in found.nodes)
    assert max(found.nodes, key=lambda n: n.milliseconds).node == "f"
    assert set(found.varied) == set(cycles.VARIATIONS)
    assert found.varied["serial"] >= found.milliseconds >= found.varied["clock"]
    assert found.varied["dram"] >= found.milliseconds


def test_more_cores_are_faster(small: bytes) -> None:
    planned = Planned(small, "spacemit-k1", 4)
    one, two, four = (planned.estimate(n).milliseconds for n in (1, 2, 4))
    assert one > two > four > one / 5


def test_a_session_can_be_estimated(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(small)
    session = ort.InferenceSession(path)
    assert estimated(session).milliseconds == pytest.approx(estimated(path).milliseconds)


def test_what_is_not_known_is_refused(small: bytes) -> None:
    with pytest.raises(InvalidArgument, match="spacemit-k1, spacemit-k3"):
        estimated(small, "generic")
    with pytest.raises(ValueError, match="has 4 cores"):
        estimated(small, "spacemit-k1", 5)


def test_steps_of_numpy_are_a_guess() -> None:
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"], "odd")], "odd",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
                              [helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])])
    found = estimated(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                                        ir_version=8).SerializeToString())
    assert [n.bound for n in found.nodes] == ["host"] and found.host == found.milliseconds > 0


@pytest.fixture
def invoke(tmp_path: Path, small: bytes, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    (tmp_path / "small.onnx").write_bytes(small)
    return commands(tmp_path, monkeypatch)


def test_the_command_says_where_time_goes(invoke: Callable[..., str]) -> None:
    said = invoke("estimate", "small.onnx", "--target", "spacemit-k3", "--cores", 8, "--vary", "--most", 2)
    assert "8 cores of K3 (A100)" in said and "an estimate" in said
    assert "conv_tiles" in said and "more nodes" in said and "half the bandwidth to DRAM" in said
    made = json.loads(invoke("estimate", "small.onnx", "--json"))
    assert made["cores"] == 1 and made["target"] == "spacemit-k1" and len(made["nodes"]) > 5


def test_the_command_refuses_what_it_cannot_mean(invoke: Callable[..., str]) -> None:
    assert "spacemit-k3-x100" in invoke("estimate", "small.onnx", "--target", "k9", code=1)
    assert "has 4 cores" in invoke("estimate", "small.onnx", "--cores", 9, code=1)
    assert "NAME=SIZE" in invoke("estimate", "small.onnx", "--dim", "n", code=2)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_models_of_the_table_mean_the_same_in_every_precision(precision: str) -> None:
    from benchmarks.spacemit_models import half, quantized, vision_transformer

    def output(model: onnx.ModelProto) -> np.ndarray:
        session = ort.InferenceSession(model.SerializeToString())
        kind = np.float16 if session.get_inputs()[0].type == "tensor(float16)" else np.float32
        x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(kind)
        return session.run(None, {"input": x})[0].astype(np.float32)

    def made() -> onnx.ModelProto:
        return vision_transformer(64, 1, 2, 32, 8)
    exact = output(made())
    found = output({"float16": half, "int8": quantized}[precision](made()))
    assert np.abs(found - exact).max() < (0.01 if precision == "float16" else 0.1) * np.abs(exact).max()
