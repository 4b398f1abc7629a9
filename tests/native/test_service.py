"""The compile service, spoken to as the C library does: every kind of value there and back, packages, errors,
and messages that are none."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import dropin
import ml_dtypes
import numpy as np
import onnx
import pytest
from skips import needs

import orthrus as ort
from orthrus.codegen.object import cache
from orthrus.ir import ElementType
from orthrus.modelfile import content_of
from orthrus.native.dropin import build
from orthrus.native.dropin.models import told_of
from orthrus.native.dropin.service import CANCEL, NOTHING
from orthrus.native.dropin.wire import Reader, Room, Writer

pytestmark = needs("generated code", "Linux")
MODELS = dropin.models()


def _sample(element: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    if element is ElementType.STRING:
        return np.array([f"é{i}" for i in range(int(np.prod(shape)))], object).reshape(shape)
    return np.random.default_rng(1).integers(0, 2, shape).astype(element.numpy)


@pytest.mark.parametrize("element", [e for e in ElementType if e.bits != 6], ids=lambda e: e.name)
def test_tensors_come_back(element: ElementType) -> None:
    for shape in ((), (0, 3), (5,), (3, 4, 5)):
        writer, array = Writer(None), _sample(element, shape)
        writer.value(array)
        assert dropin.same(Reader(writer.whole(), Room(-1)).value(), array), (element, shape)


def test_other_values_come_back() -> None:
    for value in ([], [np.arange(3)], {"a": 1.5, "b": 2.5}, {4: 5}, None, [{"x": 1.0}, {"x": 2.0}]):
        writer = Writer(None)
        writer.value(value)
        assert dropin.same(Reader(writer.whole(), Room(-1)).value(), value)


@pytest.mark.parametrize("name", MODELS)
def test_the_service_answers_as_a_session_does(name: str, tmp_path: Path) -> None:
    model, feeds = MODELS[name]
    onnx.save(model, path := tmp_path / "m.onnx")
    session = ort.InferenceSession(str(path))
    names = [o.name for o in session.get_outputs()]
    with dropin.service() as asker:
        number, _ = asker.open(path)
        for _ in range(2):
            made = asker.run(number, names, feeds)
            assert dropin.same(made, list(session.run(None, feeds))), asker.text
        assert asker.run(number, ["nothing"], feeds) == []
        assert asker.code == 2 and "nothing" in asker.text
        assert not asker.text.startswith("[ONNX")


def test_packages_are_kept_and_further_shapes_join_them(tmp_path: Path) -> None:
    onnx.save(MODELS["shapes"][0], path := tmp_path / "m.onnx")
    model = os.urandom(32).hex()[1:]
    with dropin.service() as asker:
        number, _ = asker.open(path, model + "a")
        first, why, at, _ = asker.package(number, (3, 5))
        assert first and not why and at == -1, why
        assert cache.read_whole(model + "a", "dropin") is not None
        second, _, _, _ = asker.package(number, (4, 5))
        assert second != first and cache.read_whole(first, "dropin") is None
        data = cache.read_whole(second, "dropin")
        assert data is not None and data[:7].tobytes() == b"orthrus"
        told = bytes.fromhex(content_of(data[:-32], cache.secret() or b""))
        assert data[-32:].tobytes() == told_of(second, told)
        number, _ = asker.open(path)
        name, why, at, size = asker.package(number, (3, 5))
        assert name and not why
        assert asker.room.look(at, size)[:7].tobytes() == b"orthrus", "without a name it is in the room"


@needs("C compiler")
def test_contents_are_told_in_c_as_here(tmp_path: Path) -> None:
    program, file = tmp_path / "contents", tmp_path / "data"
    subprocess.run(["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o", program,
                    f"-I{Path(build.__file__).parent}", Path(__file__).with_name("contents.c")], check=True)
    for size in (0, 1, 135, 4095, 4096, 4097, 65536, 65545, 300_001):
        drawn = np.random.default_rng(size)
        data, secret = drawn.integers(0, 256, size, np.uint8), drawn.bytes(32)
        data[size // 2:] |= np.uint8(0xF0)
        data.tofile(file)
        said = subprocess.run([program, file], input=secret, capture_output=True, check=True).stdout
        assert said.decode().split() == [content_of(data, secret)] * 2, size


def test_a_model_that_changed_is_neither_opened_nor_kept(tmp_path: Path) -> None:
    onnx.save(MODELS["native"][0], path := tmp_path / "m.onnx")
    with dropin.service() as asker:
        with pytest.raises(AssertionError, match="written to"):
            asker.open(path, name := os.urandom(32).hex(), "0" * 64)
        assert cache.read_whole(name, "dropin") is None


@pytest.mark.parametrize("name, said", [("strings", "no plain tensors"), ("sequence", "no plain tensors"),
                                        ("map", "no plain tensors"), ("pairs", "NonZero")])
def test_what_is_not_native_says_why(name: str, said: str, tmp_path: Path) -> None:
    onnx.save(MODELS[name][0], path := tmp_path / "m.onnx")
    with dropin.service() as asker:
        number, _ = asker.open(path, kept := os.urandom(32).hex())
        made, why, _, _ = asker.package(number, (3, 2))
        assert not made and said in why
        assert name == "pairs" or cache.read_whole(kept, "dropin") is None


def test_control_flow_is_a_package(tmp_path: Path) -> None:
    onnx.save(MODELS["control"][0], path := tmp_path / "m.onnx")
    with dropin.service() as asker:
        number, _ = asker.open(path)
        made, why, _, _ = asker.package(number, (4,), ())
        assert made and not why


def test_messages_that_are_none_are_refused(tmp_path: Path) -> None:
    onnx.save(MODELS["native"][0], path := tmp_path / "m.onnx")
    rng = random.Random(3)
    with dropin.service() as asker:
        number, _ = asker.open(path)
        writer = Writer(None)
        for each in (3, number, 1, -1):
            writer.number(each)
        writer.text("")
        writer.number(0)
        writer.texts(["y"])
        writer.number(1)
        writer.text("x")
        writer.value(MODELS["native"][1]["x"])
        whole = writer.whole()
        for _ in range(150):
            broken = bytearray(whole[:rng.randrange(len(whole) + 1)])
            for _ in range(rng.randrange(4)):
                if broken:
                    broken[rng.randrange(len(broken))] = rng.randrange(256)
            asker.raw(bytes(broken))
        for numbers in ((), (99,), (2, 12345), (1,), (2, number, 1 << 40), (CANCEL, 5)):
            asker.raw(b"".join(struct.pack("<q", each) for each in numbers))
        asker.raw(struct.pack("<q", NOTHING))
        assert asker.code == 0
        assert dropin.same(asker.run(number, ["y"], MODELS["native"][1]), _plain("native", path))


def _plain(name: str, path: Path) -> list[Any]:
    return list(ort.InferenceSession(str(path)).run(None, MODELS[name][1]))


def test_a_run_that_was_called_off_before_it_came_does_not_begin(tmp_path: Path) -> None:
    onnx.save(MODELS["control"][0], path := tmp_path / "m.onnx")
    with dropin.service() as asker:
        number, _ = asker.open(path)
        asker.raw(struct.pack("<2q", CANCEL, 41))
        assert asker.run(number, ["y"], MODELS["control"][1], 41) == []
        assert "terminate" in asker.text
        assert asker.run(number, ["y"], MODELS["control"][1], 42)


def test_small_types_are_packed_as_in_c() -> None:
    writer = Writer(None)
    writer.value(np.array([1, -2, 3], ml_dtypes.int4))
    reader = Reader(writer.whole(), Room(-1))
    assert [reader.number() for _ in range(6)] == [1, 22, 1, 3, -1, 2]
    assert reader.raw() == b"\xe1\x03"
