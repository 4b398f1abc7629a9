"""Weights that stay in their file: what they pass for, when they are read, and what a changed file does."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus import memory
from orthrus.capi.onnxruntime_pybind11_state import Fail
from orthrus.ir import LazyArray, in_memory
from orthrus.load import load
from orthrus.modelfile import ModelFile

WEIGHT = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


def product(path: Path, rows: Any = "N") -> Path:
    graph = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", shape=[rows, 256])],
                  [info("y", shape=[rows, 256])], {"w": WEIGHT})
    onnx.save(graph, path)
    return path


def stored(path: Path) -> Any:
    return load(str(path)).initializers["w"].const


def counted(array: np.ndarray, reads: list[tuple[int, int]]) -> Any:
    """`array` as a stored one that notes what is read."""
    def read(start: int, end: int) -> np.ndarray:
        reads.append((start, end))
        return np.frombuffer(array.tobytes()[start:end], np.uint8).copy()
    return LazyArray(array.dtype, array.shape, read)


def test_it_passes_for_the_array_without_being_read() -> None:
    reads: list[tuple[int, int]] = []
    it = counted(WEIGHT, reads)
    assert isinstance(it, np.ndarray) and type(it) is not np.ndarray
    assert (it.shape, it.dtype, it.ndim, it.size, it.nbytes, it.itemsize) == (
        WEIGHT.shape, WEIGHT.dtype, 2, WEIGHT.size, WEIGHT.nbytes, 4)
    assert not reads
    np.testing.assert_array_equal(np.asarray(it), WEIGHT)
    np.testing.assert_array_equal(it + 1, WEIGHT + 1)
    np.testing.assert_array_equal(it.T[3], WEIGHT.T[3])
    assert np.all(it == WEIGHT) and len(it) == 256 and it[2, 1] == WEIGHT[2, 1]
    np.testing.assert_array_equal(np.concatenate([it, it]), np.concatenate([WEIGHT, WEIGHT]))
    np.testing.assert_array_equal(np.asarray(it, np.float64), WEIGHT.astype(np.float64))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(it)), WEIGHT)
    assert not it.array().flags.writeable


def test_it_is_read_again_once_nobody_holds_what_was_read() -> None:
    reads: list[tuple[int, int]] = []
    it = counted(WEIGHT, reads)
    held = in_memory(it)
    assert in_memory(it) is held and len(reads) == 1
    del held
    assert in_memory(it)[0, 0] == WEIGHT[0, 0] and len(reads) == 2


def test_what_is_computed_from_stored_arrays_is_computed_when_looked_at() -> None:
    reads: list[tuple[int, int]] = []
    it = counted(WEIGHT, reads)
    double = LazyArray.computed(lambda: it * 2, it, it)
    assert not reads
    np.testing.assert_array_equal(double, WEIGHT * 2)
    at_once = LazyArray.computed(lambda: WEIGHT * 2, WEIGHT, WEIGHT)
    assert type(at_once) is np.ndarray


def test_large_tensors_of_a_file_are_stored_small_ones_are_arrays(tmp_path: Path) -> None:
    weights = {"w": WEIGHT, "small": np.ones(256, np.float32), "flags": np.zeros(1 << 17, bool)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "small"], ["y"])]
    graph = model(nodes, [info("x", shape=["N", 256])], [info("y", shape=["N", 256])], weights)
    onnx.save(graph, tmp_path / "m.onnx")
    made = load(str(tmp_path / "m.onnx")).initializers
    assert [type(made[n].const) is LazyArray for n in weights] == [True, False, False]
    of_bytes = load((tmp_path / "m.onnx").read_bytes()).initializers
    for name, array in weights.items():
        np.testing.assert_array_equal(made[name].const, array)
        np.testing.assert_array_equal(of_bytes[name].const, array)


@needs("POSIX")
def test_a_session_outlives_its_file(tmp_path: Path) -> None:
    """New shapes and other outputs too."""
    path = product(tmp_path / "m.onnx")
    session = ort.InferenceSession(path)
    path.unlink()
    for rows in (1, 3, 40):
        x = np.ones((rows, 256), np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ WEIGHT, rtol=1e-4, atol=1e-4)


def test_a_file_renamed_over_leaves_the_old_weights(tmp_path: Path) -> None:
    path = product(tmp_path / "m.onnx")
    it = stored(path)
    product(tmp_path / "new.onnx").replace(path)
    path.write_bytes(b"")
    np.testing.assert_array_equal(it, WEIGHT)


@pytest.mark.parametrize("how", ["cut", "overwritten", "grown"])
def test_a_file_written_to_is_told_and_not_believed(how: str, tmp_path: Path) -> None:
    path = product(tmp_path / "m.onnx")
    it, size = stored(path), path.stat().st_size
    with open(path, "r+b") as file:
        if how == "cut":
            file.truncate(100)
        else:
            file.seek(size if how == "grown" else size // 2)
            file.write(b"x" * 64)
    os.utime(path, ns=(1, 1))
    with pytest.raises(Fail, match="has been written to since it was loaded") as told:
        it.array()
    assert str(path) in str(told.value)


def test_bytes_read_once_are_never_others_later(tmp_path: Path) -> None:
    """Whoever changes a byte that was read, with times and size as before, gets an error; a look at others
    goes on."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        path = product(tmp_path / "m.onnx")
        data = path.read_bytes()
        file, status = ModelFile(str(path)), path.stat()
        start, end = sorted(int(i) for i in rng.integers(len(data), size=2))
        assert file.read(start, end).tobytes() == data[start:end]
        at = int(rng.integers(len(data)))
        with open(path, "r+b") as changed:
            changed.seek(at)
            changed.write(bytes([data[at] ^ 1 << int(rng.integers(8))]))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        if start <= at < end:
            with pytest.raises(Fail, match="has been written to"):
                file.read(at, at + 1)
            with pytest.raises(Fail, match="has been written to"):
                file.digest()
        elif at // 4096 not in range(start // 4096, -(-end // 4096)):
            assert file.read(start, end).tobytes() == data[start:end]


def test_a_session_does_not_mix_weights_of_before_and_after(tmp_path: Path) -> None:
    path = product(tmp_path / "m.onnx")
    session, x = ort.InferenceSession(str(path)), np.ones((40, 256), np.float32)
    first = session.run(None, {"x": x[:1]})[0]
    status, place = path.stat(), path.read_bytes().index(WEIGHT.tobytes())
    with open(path, "r+b") as file:
        file.seek(place + 4 * 999)
        file.write(np.float32(1000).tobytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for rows in (1, 2, 7, 40):
        try:
            (made,) = session.run(None, {"x": x[:rows]})
        except Fail as error:
            assert "has been written to" in str(error)
        else:
            np.testing.assert_allclose(made, np.repeat(first, rows, 0), rtol=1e-4, atol=1e-4)


def changes(data: bytes) -> dict[str, bytes]:
    """What a simple sum would not tell from `data`."""
    words = np.frombuffer(data[:len(data) // 8 * 8], np.uint64)
    swapped, signs, blocks = words.copy(), words.copy(), words.reshape(-1, 512).copy()
    swapped[[3, 900]] = swapped[[900, 3]]
    signs[[5, 6]] ^= np.uint64(1 << 63)
    blocks[[1, 2]] = blocks[[2, 1]]
    return {"swapped": swapped.tobytes(), "signs": signs.tobytes(), "blocks": blocks.tobytes(),
            "negated": (words ^ np.uint64((1 << 63) | (1 << 31))).tobytes(), "cut": data[:-1],
            "longer": data + b"\0", "zeros": bytes(len(data))}


def test_a_digest_tells_contents_apart(tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal(512 * 40).tobytes()
    path, found = tmp_path / "m", set()
    for content in (data, *changes(data).values()):
        path.write_bytes(content)
        found.add(ModelFile(str(path), b"key").digest())
        assert ModelFile(str(path), b"key").digest() in found
    assert len(found) == 1 + len(changes(data))
    path.write_bytes(data)
    assert ModelFile(str(path), b"another").digest() not in found


@needs("Linux")
def test_the_file_is_closed_with_the_last_weight(tmp_path: Path) -> None:
    path = product(tmp_path / "m.onnx")

    def open_files() -> int:
        return sum(os.path.realpath(f"/proc/self/fd/{n}") == str(path) for n in os.listdir("/proc/self/fd"))
    it = stored(path)
    assert open_files() == 1
    del it
    import gc

    gc.collect()
    assert open_files() == 0


# memory for what stays


def test_pieces_begin_at_a_line_and_hold_their_own() -> None:
    pieces = [memory.take(size) for size in (1, 100, 40_000, 3_000_000, 70 << 20, 40_000)]
    for i, piece in enumerate(pieces):
        assert piece.ctypes.data % memory.LINE == 0
        piece[:] = i
    assert [(int(p[0]), int(p[-1])) for p in pieces] == [(i, i) for i in range(len(pieces))]


@needs("Linux")
def test_a_dropped_piece_gives_its_pages_back_whatever_its_neighbours_do() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    first, middle, last = (memory.take(16 << 20) for _ in range(3))
    for piece in (first, middle, last):
        piece[:] = 1
    before = resident()
    del middle, piece
    assert before - resident() > 12 << 20
    assert first.sum() == last.sum() == 16 << 20
