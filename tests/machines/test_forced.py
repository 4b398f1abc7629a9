"""`ORTHRUS_MACHINE`: a process whose kernels are written for a lesser processor than the one it runs on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from skips import needs

from orthrus import knobs
from orthrus.codegen.machines import detect
from orthrus.codegen.machines.machine import AVX2, AVX512, DARWIN, FORCED, NEON, SSE2, Machine
from orthrus.codegen.object import cache
from orthrus.errors import InvalidArgument
from orthrus.run import session_key
from orthrus.run.config import Config

TESTS = Path(__file__).parents[1]
CHILD = """
import sys
import numpy as np
from small_networks import SWEEPS
from test_riscv_bytes import integers
import orthrus as ort

def runs(model, feed):
    got, expected = (ort.InferenceSession(model, providers=[("CPUExecutionProvider", {"use_codegen": use})]
                                          ).run(None, feed) for use in ("1", "0"))
    for g, e in zip(got, expected, strict=True):
        if g.dtype.kind == "f":
            np.testing.assert_allclose(g, e, 2e-4, 2e-5)
        else:
            np.testing.assert_array_equal(g, e)

rng = np.random.default_rng(5)
for name in sys.argv[1:]:
    if name in SWEEPS:
        make, feed, sizes = SWEEPS[name]
        for size in (sizes[0], sizes[len(sizes) // 2]):
            runs(make(), feed(rng, *size))
    elif name == "few bits":
        from few_bits_cases import Product
        for bits, rows in ((2, 1), (4, 3), (4, 30), (8, 5)):
            for level in (0, 4):
                made = Product(rng, 33, 100, bits, 32, "codes", level=level)
                a = rng.standard_normal((rows, 100)).astype("float32")
                session = ort.InferenceSession(made.model(a.shape), providers=["CPUExecutionProvider"])
                made.close(a, session.run(None, {"a": a})[0])
    else:
        for kind, w in (("uint8", (70, 33)), ("int8", (70, 40))):
            x, b = rng.integers(0, 256, (9, 70)), rng.integers(-128, 128, w)
            x = x.astype("uint8").view(kind)
            runs(integers("MatMulInteger", x, b.astype("int8"), 3), {"x": x})
        x, w = rng.integers(0, 256, (1, 24, 9, 9)).astype("uint8"), rng.integers(-128, 128, (40, 24, 3, 3))
        runs(integers("ConvInteger", x, w.astype("int8"), 7, pads=[1] * 4), {"x": x})
"""
_WIDE = r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|[23]\d)"
_NEWER = r"^\s+(v\w+ .*%|haddp|pshufb|pmul(ld|hrs)|round[ps]|blend|pmaddub|p?insert|pmov[sz]x|popcnt|lzcnt)"
BEYOND = {"sse2": _NEWER,
          "avx2": rf"{_WIDE}|vpdp", "avx2+avxvnni": _WIDE, "avx512": "vpdp|tdp|bf16"}
"""What no instruction of a machine is, by the text of assembly."""


OTHER = "neon" if platform.machine() == "riscv64" else "rvv128"


def child(machine: str, *models: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A process that runs models on the machine, their code in files below `folder`."""
    paths = (Path(detect.__file__).parents[3], *(TESTS / name for name in ("support", "machines", "codegen")))
    given = {"ORTHRUS_MACHINE": machine, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    if folder is not None:
        given |= {"ORTHRUS_DUMP": str(folder), "ORTHRUS_DUMP_WHAT": "code"}
    return subprocess.run([sys.executable, "-c", CHILD, *models], env=os.environ | given, text=True,
                          capture_output=True, timeout=500, check=False)


def able(name: str) -> pytest.MarkDecorator:
    base, *more = name.split("+")
    here = detect.found()
    fits = here is not None and here.runs(FORCED[base]) and all(map(here.has, more))
    return pytest.mark.skipif(not fits, reason=f"the processor here has no {name}")


@needs("generated code")
@pytest.mark.parametrize("machine,models", [
    pytest.param(machine, models, marks=[able(machine), *marks], id=f"{machine}-{models[0]}")
    for machine in BEYOND for models, marks in (
        (("bytes",), ()), (("few bits",), (pytest.mark.slow,)),
        (("transformer", "network", "recurrence"), (pytest.mark.slow,)))])
def test_models_on_a_lesser_machine(machine: str, models: tuple[str, ...], tmp_path: Path) -> None:
    done = child(machine, *models, folder=tmp_path)
    assert not done.returncode, done.stderr
    text = "\n".join(path.read_text() for path in tmp_path.rglob("*.s"))
    assert text and (found := re.search(BEYOND[machine], text, re.M)) is None, found
    if models == ("bytes",):
        assert ("{vex}\tvpdpbusd" in text) == (machine == "avx2+avxvnni")


@pytest.mark.parametrize("name", ("avx3", "avx2+avx512vnni", OTHER))
def test_another_name_is_an_error(name: str) -> None:
    with knobs.setting(MACHINE=name), pytest.raises(InvalidArgument, match="ORTHRUS_MACHINE") as caught:
        detect.host()
    assert caught.value.found == name and "one of " in caught.value.expected


def test_a_session_says_so() -> None:
    done = child("avx3", "bytes")
    assert done.returncode and "InvalidArgument" in done.stderr and "one of " in done.stderr


@pytest.fixture
def on_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "found", lambda: AVX512)
    monkeypatch.setattr(detect, "_chosen", detect._chosen.__wrapped__)


@pytest.mark.usefixtures("on_avx512")
def test_names_of_code_and_of_sessions_follow() -> None:
    names, keys = set(), set()
    for machine in ("", "avx2", "sse2"):
        with knobs.setting(MACHINE=machine, CACHE_SESSIONS=1):
            here = detect.host()
            assert here is not None
            names.add(cache.name("a kernel", here, detect.__file__))
            keys.add(repr(session_key._made_for(Config())))
    assert len(names) == len(keys) == 3 and None not in names and "None" not in keys


def machine_on(system: str, processor: str, flags: str = "") -> Machine | None:
    with (mock.patch.object(sys, "platform", system),
          mock.patch.object(platform, "machine", lambda: processor),
          mock.patch.object(detect, "_flags", lambda: set(flags.split()))):
        return detect.found.__wrapped__()


def test_what_is_found() -> None:
    every = " ".join(AVX512.features)
    for system, processor, flags, base, more in (
            ("linux", "x86_64", every + " avxvnni", AVX512, {"avxvnni"}),
            ("linux", "x86_64", "sse2", SSE2, set()),
            ("linux", "x86_64", " ".join(AVX2.features) + " avxvnni avx512vnni", AVX2, {"avxvnni"}),
            ("linux", "aarch64", "dotprod fp asimd", NEON, {"dotprod"}),
            ("linux", "aarch64", "", NEON, set()),
            ("darwin", "arm64", "", NEON, {"dotprod"}), ("darwin", "x86_64", "", SSE2, set())):
        made = machine_on(system, processor, flags)
        assert made is not None and (made.vector, made.arch) == (base.vector, base.arch)
        assert set(made.features) == {*base.features, *more}
        assert (made.triple == DARWIN) == ((system, processor) == ("darwin", "arm64"))
    assert machine_on("linux", "ppc64le") is None


def test_register_18_is_macos_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that macOS may interrupt at any moment does not hold a value in x18; other code is not run there,
    however it is asked for."""
    from orthrus.codegen.kernels import gemm
    from orthrus.codegen.object import link
    from orthrus.codegen.object.build import assemble

    mac = machine_on("darwin", "arm64")
    assert mac is not None and not mac.runs(NEON)
    monkeypatch.setattr(detect, "found", lambda: mac)
    forced = detect._chosen.__wrapped__("neon")
    assert forced.triple == DARWIN and forced.features == ("neon",)
    used = {}
    for machine in (NEON, forced):
        text = gemm.plan(machine, 196, 512, 512, 1, "panels", 512).spec(None, []).text(machine)
        used[machine.triple] = bool(re.search(r"\b[xw]18\b", str(assemble(text, machine, listing=True))))
        assert link.image([bytes(assemble(text, machine))], 1 << 20, "aarch64")[1][0]["kernel"]  # type: ignore[arg-type]
    assert used == {NEON.triple: True, DARWIN: False}
