"""Whole files in the cache: what was written comes back, and nothing that was damaged does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from orthrus import knobs
from orthrus.codegen.object import cache

CHUNK = cache._Chunks.LENGTH
NAME = "0" * 64


@pytest.fixture(autouse=True)
def file(tmp_path: Path) -> Iterator[Path]:
    with knobs.setting(CACHE=1, CACHE_DIR=str(tmp_path)):
        yield tmp_path / "whole" / NAME


def pieces(rng: np.random.Generator, size: int) -> list[np.ndarray]:
    """So many bytes, in arrays of several lengths and types, some of them empty."""
    data = rng.integers(0, 256, size, np.uint8)
    cuts = np.sort(rng.integers(0, size + 1, int(rng.integers(0, 6))))
    made = np.split(data, cuts)
    return [each.view(np.int64) if len(each) and not len(each) % 8 else each for each in made]


def flip(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1:]


def damages(rng: np.random.Generator, data: bytes) -> dict[str, bytes]:
    """The same file damaged in many ways."""
    size = len(data)
    places = sorted({0, size - 33, size - 32, size - 1, *map(int, rng.integers(0, size, 6))})
    made = {f"bit at {at} of {size}": flip(data, at, int(rng.integers(8))) for at in places}
    made |= {"cut": data[:-1], "short": data[:size // 2], "longer": data + b"\0", "empty": b"",
             "zeros": bytes(size), "zero in front": b"\0" + data[:-1]}
    if size > 8192 + 32:
        made["swapped words"] = data[8:16] + data[:8] + data[16:]
        made["swapped blocks"] = data[4096:8192] + data[:4096] + data[8192:]
    if size > 2 * CHUNK + 32:
        made["swapped chunks"] = data[CHUNK:2 * CHUNK] + data[:CHUNK] + data[2 * CHUNK:]
    return {how: each for how, each in made.items() if each != data}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("size", [1, 7, 8, 4095, 4096, 4097, 99_991, CHUNK - 1, CHUNK, CHUNK + 1,
                                  2 * CHUNK + 12_345])
def test_a_whole_file_comes_back_and_a_damaged_one_does_not(size: int, quick: bool, file: Path) -> None:
    rng = np.random.default_rng(size)
    given = pieces(rng, size)
    cache.write_whole(NAME, given, "whole", 1 << 30, quick)
    read: Callable[[], np.ndarray | None] = lambda: cache.read_whole(NAME, "whole", quick)  # noqa: E731
    back = read()
    assert back is not None and back.tobytes() == b"".join(each.tobytes() for each in given)
    assert back.ctypes.data % 64 == 0 or size < 64
    assert cache.read_whole(NAME, "whole", not quick) is None
    whole = file.read_bytes()
    for how, damaged in damages(rng, whole).items():
        file.write_bytes(damaged)
        assert read() is None, how
    file.write_bytes(whole)
    assert read() is not None


def test_a_file_says_the_same_however_its_bytes_are_cut(file: Path) -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, CHUNK + 70_000, np.uint8)
    told = set()
    for cut in (0, 1, 4096, CHUNK - 5, CHUNK, len(data)):
        cache.write_whole(NAME, [data[:cut], data[cut:]], "whole", 1 << 30, quick=True)
        told.add(file.read_bytes())
    assert len(told) == 1


@pytest.mark.parametrize("quick", [False, True])
def test_another_files_content_is_not_believed(quick: bool, file: Path) -> None:
    """Whole and undamaged as it is: it was kept under another name."""
    data = np.arange(999)
    cache.write_whole(NAME, [data], "whole", 1 << 30, quick)
    other = file.with_name("1" * 64)
    other.write_bytes(file.read_bytes())
    other.chmod(0o600)
    assert cache.read_whole(other.name, "whole", quick) is None
    assert cache.read_whole(NAME, "whole", quick) is not None
