"""What control flow in a program consists of: numbers of turns, rows copied beside pages nobody may touch."""

from __future__ import annotations

import numpy as np
import pytest

native = pytest.importorskip("native")

from orthrus.codegen.kernels import turns  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, SSE2, Machine  # noqa: E402
from orthrus.codegen.write.template import GAVE_UP, NO_BRANCH, OUTSIDE  # noqa: E402

MACHINES = (host(), AVX2, SSE2)


@pytest.mark.parametrize("machine", MACHINES)
def test_rows(machine: Machine) -> None:
    rng = np.random.default_rng(0)
    sizes = (1, 2, 3, 15, 16, 17, 64, 65, 200, turns.BLOCK - 1, turns.BLOCK, 2 * turns.BLOCK + 5)
    for size in sizes:
        rows = rng.integers(0, 256, (3, size)).astype(np.uint8)
        items = -(-size // turns.BLOCK)
        for number in range(3):
            out, at = native.guarded(np.zeros(size, np.uint8)), np.array(number)
            native.run(turns.copy_row(), out, native.guarded(rows), at, 0, size, size, items=items,
                       machine=machine, splits=(items // 2,))
            np.testing.assert_array_equal(out, rows[number])
            into = native.guarded(rows, True)
            native.run(turns.copy_row(), into[2:], native.guarded(out, True), at, -size, 0, size, items=items,
                       machine=machine)
            np.testing.assert_array_equal(into[2 - number], out)
            assert all((into[i] == rows[i]).all() for i in range(3) if i != 2 - number)


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers(machine: Machine) -> None:
    for first in (True, False):
        for before, end, truth, status in (
                (0, 9, 1, 0), (0, 1, 1, 0), (4, 9, 0, 0), (3, 4, 7, 0), (0, 0, 1, 0), (1, -5, 1, 0),
                (3, 9, 1, GAVE_UP), (3, 9, 1, OUTSIDE), (3, 9, 1, NO_BRANCH)):
            number, going = np.array([before]), np.array([9, 9], np.uint8)
            native.run(turns.count_turn(first=first), number, going, np.array([end]),
                       np.array([truth], np.uint8), np.array([status]), items=1, machine=machine)
            now = 0 if first else before + 1
            assert number[0] == now
            assert going.tolist() == [truth != 0 and now < end and status in (0, OUTSIDE), 9]


@pytest.mark.parametrize("machine", MACHINES)
def test_what_leaves_a_word(machine: Machine) -> None:
    status, truth = np.zeros(2, np.int64), np.ones(1, np.uint8)
    native.run(turns.no_branch(), status, items=1, machine=machine)
    native.run(turns.jump(), truth, 5, 1, items=1, machine=machine)
    assert status.tolist() == [NO_BRANCH, 0] and truth.tolist() == [1]
