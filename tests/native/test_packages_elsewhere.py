"""Trained and benchmark models as packages for other processors, run in C under emulation: what a session
whose kernels run on such a processor computes, bit for bit, on one thread to four."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from unittest import mock

import board
import numpy as np
import onnx
import pytest
from benchmarks import zoo
from native_packages import SOURCES
from skips import MODELS, needs
from test_packages_of_models import Feeds, settled

import orthrus as ort
from orthrus.codegen.machines.machine import FORCED
from orthrus.native.ahead import toolchain
from orthrus.native.compile import machine_named, package

pytestmark = [pytest.mark.thorough, needs("generated code"), needs("zig")]

HARNESS = Path(__file__).parent / "harness.c"
RUNNERS = {"neon": ("aarch64", "qemu-aarch64", "-cpu", "cortex-a57"),
           "rvv256": ("riscv64", "qemu-riscv64", "-cpu", "rv64,v=true,vlen=256,vext_spec=v1.0")}
"""The architecture, and the emulator of a processor that has nothing beyond the target."""
PATIENCE = 3000
"""Seconds for one step of a model, here and in the emulated C program for all of it: the largest convolutions
take minutes under emulation."""


@functools.cache
def harness(arch: str) -> Path:
    made = Path(tempfile.mkdtemp(prefix="orthrus-harness-"))
    tools = toolchain.find(arch, static=True)
    tools.run([*tools.cc, "-std=c11", "-O2", "-static", f"-I{SOURCES}", HARNESS, SOURCES / "runtime.c", "-o",
               "harness", "-pthread"], made)
    return made / "harness"


def compare(given: onnx.ModelProto, feeds: Feeds, target: str, folder: Path) -> None:
    arch, *runner = RUNNERS[target]
    if shutil.which(runner[0]) is None:
        pytest.skip("no qemu-riscv64 on PATH, and no xuantie-qemu: apt-get install qemu-user")
    source = settled(given, feeds).SerializeToString()
    with board.on(FORCED[target]), mock.patch.object(board.worker(FORCED[target]), "seconds", PATIENCE):
        session = ort.InferenceSession(source)
        names = [each.name for each in session.get_inputs()]
        wanted = session.run(None, {name: feeds[name] for name in names})
    (folder / "package").write_bytes(b"".join(map(bytes, package(source, [machine_named(target)]).whole())))
    arrays = [*(feeds[name] for name in names), *map(np.asarray, wanted)]
    (folder / "data").write_bytes(b"".join(array.tobytes() for array in arrays))
    for threads in ("1", "2", "3", "4"):
        command = [*runner, harness(arch), "run", folder / "package", folder / "data", threads, "1", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]


@needs("models")
@pytest.mark.parametrize("target", RUNNERS)
@pytest.mark.parametrize("name", sorted(path.parent.name for path in MODELS.glob("*/meta.json")))
def test_trained_models_elsewhere(name: str, target: str, tmp_path: Path) -> None:
    case = json.loads((MODELS / name / "meta.json").read_text())["cases"][0]
    with np.load(MODELS / name / case["file"]) as arrays:
        feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
    compare(onnx.load(MODELS / name / "model.onnx"), feeds, target, tmp_path)


@pytest.mark.parametrize("target", RUNNERS)
@pytest.mark.parametrize("name", zoo.cases())
def test_benchmark_models_elsewhere(name: str, target: str, tmp_path: Path) -> None:
    compare(zoo.build(name), zoo.feeds(name), target, tmp_path)
