"""Ready-made kernels: who gets them, that they are what would be compiled, and that nothing else is taken."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

pytest.importorskip("llvmlite")

from skips import lacking

from orthrus.codegen.machines.detect import host
from orthrus.codegen.machines.machine import Machine
from orthrus.codegen.machines.questions import Questioned, agrees
from orthrus.codegen.object import cache, pack
from orthrus.codegen.object.build import assemble
from orthrus.codegen.object.library import Unit
from orthrus.lowering.package.loaded import beside
from orthrus.native.compile import machine_named
from orthrus.native.pack import forms, sequences, tables, vision
from orthrus.native.pack.build import COMMON, asked, build, compared, made

HOST = host()
if why := lacking("generated code"):
    pytest.skip(why, allow_module_level=True)
assert HOST is not None
NETS: list[Callable[[], onnx.ModelProto]] = [
    partial(vision.separable, (32, 32), "hardswish"), partial(sequences.recurrent, "LSTM", 5, 16, 16, True),
    partial(sequences.encoder, 8, 32, 2, "gelu"), partial(tables.forest, 3, 4, 2, 3),
    partial(forms.convolved, (3,), (3,), ("relu",), (8,), (24,)), partial(forms.narrow, 4, 3, "sigmoid"),
    partial(forms.multiplied, 3, ("",), (8,), (10,)), partial(forms.blended, (2, 8), (8,))]


@pytest.fixture(scope="module")
def units() -> dict[str, Unit]:
    """What some networks ask for here, and what runs every one."""
    found: dict[str, Unit] = {repr(unit): unit for unit in beside()}
    for net in NETS:
        found |= asked(net(), HOST)
    return found


@pytest.fixture(scope="module")
def content(units: dict[str, Unit]) -> bytes:
    return build([(HOST, units)])


@pytest.fixture
def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Lets bytes be the pack of this process."""
    def place(data: bytes) -> None:
        file = tmp_path / hashlib.sha256(data).hexdigest()
        file.write_bytes(data)
        monkeypatch.setattr(pack, "PLACE", str(file))
    yield place
    pack.opened.cache_clear()


def test_it_is_made_again_byte_by_byte(units: dict[str, Unit], content: bytes,
                                       placed: Callable[[bytes], None]) -> None:
    assert build([(HOST, units)], processes=1) == content
    placed(content)
    some = list(units.values())[::7]
    found = pack.find(some, HOST)
    for i, unit in enumerate(some):
        assert found[i] == made(unit, HOST).data == assemble(unit.text(HOST), HOST)


FRESH = """
import sys
from functools import partial
from orthrus.native.pack import build, tables, vision
build.networks = lambda: [partial(vision.separable, (32, 32), "hardswish"),
                          partial(tables.forest, 3, 4, 2, 3)]
data, count = build.whole(())
assert count > 15
open(sys.argv[1], "wb").write(data)
"""


def test_a_process_that_imported_no_kernel_makes_it(tmp_path: Path) -> None:
    """Networks are lowered in processes that are forked off, which import what they need."""
    file = tmp_path / "kernels.pack"
    subprocess.run([sys.executable, "-c", FRESH, str(file)], check=True)
    there = pack.opened(str(file))
    assert there is not None
    found = {key: unit for net in NETS[:4:3] for key, unit in asked(net(), HOST).items()}
    assert len(there.find(dict(enumerate(found)), HOST)) == len(found) > 10


def test_a_release_compares_it(content: bytes, placed: Callable[[bytes], None],
                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orthrus.native.pack.build.networks", lambda: NETS)
    placed(content)
    assert compared(1) > 20
    there = pack.opened(pack.PLACE)
    assert there is not None
    monkeypatch.setattr(there, "find", lambda units, machine: dict.fromkeys(units, b"another"))
    with pytest.raises(ValueError, match="made otherwise"):
        compared(1)
    placed(b"")
    assert compared(1) == 0


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow][:i % 4])
                                  for i, name in enumerate(COMMON)])
def test_machines_that_give_the_same_answers_get_the_same_text(name: str) -> None:
    """Every question counts, also those asked of a machine that another text was written for before."""
    machine = machine_named(name)
    others = [machine_named(each) for each in COMMON] + [
        replace(machine, l1=16 << 10, l2=64 << 10), replace(machine, registers=machine.registers // 2)]
    for net in NETS:
        for unit in asked(net(), machine).values():
            double = Questioned(machine)
            text = unit.text(double)
            assert text == unit.text(machine)
            assert agrees(machine, double.asked)
            for other in others:
                if agrees(other, double.asked):
                    assert unit.text(other) == text


def test_machines_that_lack_something_get_none(units: dict[str, Unit], content: bytes,
                                               placed: Callable[[bytes], None]) -> None:
    placed(content)
    some = list(units.values())
    assert len(pack.find(some, HOST)) == len(some)
    assert len(pack.find(some, replace(HOST, l1=HOST.l1 * 2, l2=HOST.l2 * 4))) == len(some)
    assert pack.find(some, replace(HOST, features=HOST.features[1:])) == {}
    assert pack.find(some, replace(HOST, checked=True)) == {}
    assert pack.find(some, replace(HOST, triple="x86_64-apple-darwin")) == {}


def test_a_damaged_or_foreign_pack_is_ignored(units: dict[str, Unit], content: bytes, tmp_path: Path,
                                              placed: Callable[[bytes], None],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    some = list(units.values())
    placed(content)
    right = pack.find(some, HOST)
    drawn, lost = np.random.default_rng(3), 0
    for at in (places := [*range(0, 48, 5), *drawn.integers(48, len(content), 60).tolist()]):
        placed(content[:at] + bytes([content[at] ^ 1 << int(drawn.integers(8))]) + content[at + 1:])
        found = pack.find(some, HOST)
        assert all(found[i] == right[i] for i in found) and (at >= 48 or len(found) < len(some))
        lost += len(found) < len(some)
    assert lost >= len(places) - 3  # what deflate fills a byte up with says nothing
    for at in (0, 7, 40, len(content) // 2, len(content) - 1):
        placed(content[:at])
        assert all(data == right[i] for i, data in pack.find(some, HOST).items())
    placed(pack.packed([made(some[0], HOST)], "another digest"))
    assert pack.find(some, HOST) == {}
    placed(b"")
    monkeypatch.setattr(pack, "PLACE", str(tmp_path))
    assert pack.find(some, HOST) == {}


class Posing(NamedTuple):
    """Somebody else's unit, which says that it is one of ours."""

    shown: str

    def __repr__(self) -> str:
        return self.shown

    @property
    def origin(self) -> str:
        return __file__

    def text(self, machine: Machine) -> str:
        raise NotImplementedError


def test_what_others_write_is_never_taken_from_the_pack(units: dict[str, Unit], content: bytes,
                                                        placed: Callable[[bytes], None]) -> None:
    placed(content)
    assert pack.find([Posing(key) for key in units], HOST) == {}
    assert all(cache.own(unit.origin) for unit in units.values())


RUN = """
import sys, hashlib
import numpy as np
from orthrus.codegen.object import pack
pack.PLACE = sys.argv[1]
import orthrus as ort
digest = hashlib.sha256()
for path in sys.argv[2:]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    drawn = np.random.default_rng(1)
    feeds = {each.name: drawn.integers(0, 9, each.shape) if "int" in each.type
             else drawn.standard_normal(each.shape).astype(np.float32) for each in session.get_inputs()}
    for result in session.run(None, feeds):
        digest.update(np.asarray(result).tobytes() if not isinstance(result, list) else repr(result).encode())
print(digest.hexdigest(), "llvmlite" in sys.modules)
"""


def _ran(place: Any, models: list[str], work: Path, **more: str) -> list[str]:
    surroundings = {**os.environ, "ORTHRUS_CACHE_DIR": str(work), **more}
    done = subprocess.run([sys.executable, "-c", RUN, str(place), *models], env=surroundings, check=True,
                          capture_output=True, text=True)
    return done.stdout.split()


def test_sessions_of_packed_kernels_need_no_compiler(content: bytes, tmp_path: Path) -> None:
    """Bit by bit what compiled ones give. The compiler that is found cannot be imported."""
    (tmp_path / "kernels.pack").write_bytes(content)
    models = []
    for i, net in enumerate(NETS):
        models.append(str(tmp_path / f"{i}.onnx"))
        onnx.save(net(), models[-1])
    blocked = tmp_path / "blocked" / "llvmlite"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('nobody may import this')\n")
    path = os.pathsep.join([str(blocked.parent), *filter(None, sys.path)])
    packed = _ran(tmp_path / "kernels.pack", models, tmp_path / "one", PYTHONPATH=path)
    compiled = _ran(tmp_path / "none", models, tmp_path / "two")
    assert packed == [compiled[0], "False"] and compiled[1] == "True"
