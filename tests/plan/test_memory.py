"""No model takes much more memory than `Limits.max_total_bytes`: measured for each operator whose results, or
what it needs on the way to them, are larger than what it reads, generated and interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_cases import CASES, LIMITS, MIB, SIZES, model, node, ones
from skips import lacking

import orthrus as ort
from orthrus import errors, limits

if why := lacking("Linux"):
    pytest.skip(why, allow_module_level=True)

MOST = 2 * LIMITS.max_total_bytes + 40 * MIB
"""What a run may take: results and copies within the limit, what numpy needs between two steps, and LLVM
where a kernel is not in the cache yet."""
QUICK = ("NonZero", "EyeLike", "Cast to text", "Add", "MatMul, then ReduceMax", "many results",
         "many interpreted results", "folded NonZero", "a_loop_gathers_several", "a_loop_fills_a_sequence",
         "OneHot double", "Gelu")


def swept(names: list[str]) -> None:
    here = Path(__file__).resolve().parents[1] / "support"
    paths = [str(here.parents[1] / "src"), str(here), *(p for p in sys.path if p)]
    ran = subprocess.run([sys.executable, str(here / "memory_cases.py"), *names], capture_output=True,
                         text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    assert len(rows) == 2 * len(SIZES) * len(names), ran.stderr[-2000:]
    wrong = ["  ".join(row) for row in rows
             if int(row[0]) > MOST or not row[-1].startswith(("ran", "refused"))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_memory_of_what_was_found_wrong() -> None:
    swept(list(QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("names", [list(CASES)[i::8] for i in range(8)], ids=range(8))
def test_memory_of_every_operator_that_can_grow(names: list[str]) -> None:
    swept(names)


def run(made: Any, **bounds: int) -> list[Any]:
    data, feeds = made
    return ort.InferenceSession(data.SerializeToString(), limits=ort.Limits(**bounds)).run(None, feeds)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
def test_a_tensor_is_bounded_in_bytes(dtype: Any) -> None:
    made = model([node("Add", ["a", "b"], ["y"])],
                 {"a": np.ones((2048, 1), dtype), "b": np.ones((1, 2048), dtype)})
    size = 2048 * 2048 * np.dtype(dtype).itemsize
    assert run(made, max_tensor_bytes=size)[0].nbytes == size
    with pytest.raises(errors.Fail, match="would take"):
        run(made, max_tensor_bytes=size - 1)


def test_all_that_a_part_takes_is_asked_for_at_once() -> None:
    scaled = [node("Mul", ["q", f"c{i}"], [f"y{i}"]) for i in range(8)]
    made = model([node("Add", ["a", "b"], ["q"]), *scaled],
                 {"a": ones(1024, 1), "b": ones(1, 1024)}, {f"c{i}": ones(1) for i in range(8)},
                 outputs=[f"y{i}" for i in range(8)])
    assert len(run(made, max_total_bytes=48 * MIB)) == 8
    with pytest.raises(errors.Fail, match="more memory than it may"):
        run(made, max_total_bytes=31 * MIB)


def test_a_feed_over_the_limit_is_refused() -> None:
    made = model([node("Relu", ["x"], ["y"])], {"x": ones(1024)})
    assert run(made, max_tensor_bytes=4096)[0].shape == (1024,)
    with pytest.raises(errors.InvalidArgument, match="over the limit"):
        run(made, max_tensor_bytes=4095)


def test_what_a_value_holds() -> None:
    word = "w" * 1000
    assert limits.held(ones(10)) == 40 and limits.held(ones(10)[2:]) == 0
    text = np.array([word, word, word + "x"], object)
    exactly = sys.getsizeof(word) + sys.getsizeof(word + "x")
    assert text.nbytes + exactly <= limits.held(text) < 1 << 24
    many = np.array([word * 10, word + "x"] * 2000, object)
    assert limits.held(many) == many.nbytes + sys.getsizeof(word * 10) + sys.getsizeof(word + "x")
    assert limits.held([ones(10), ones(5)]) == 60 and limits.held(None) == 0


def test_an_account_is_kept_by_the_thread() -> None:
    class Account:
        room = 100
    account = Account()
    with limits.using(ort.Limits(max_tensor_bytes=1000), account):
        assert limits.bounded((25,), np.float32) == (25,)
        limits.charge(60)
        with pytest.raises(errors.Fail, match="41 bytes more"):
            limits.bounded((41,), np.uint8)
        limits.charge(-60)
        limits.reserve(100)
    assert account.room == 100
