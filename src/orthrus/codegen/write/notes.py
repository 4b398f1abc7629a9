"""What kernels that look where they read and write (`bounds`) are given to do so, and what they say.

Such a kernel finds in front of its arguments' cells, going backwards: the address of `NOTED` cells that are 0
until something is noted, the bytes of scratch, and for each argument where its memory ends and where it
begins, 0 and 0 where it is no address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ... import knobs
from ...errors import EPFail
from ..machines.machine import Machine

_BEFORE = 2
"""Cells in front of the arguments', besides two for each."""

NOTED = 5
"""Cells of a note: which argument and how many bytes (`ARGUMENT`), the address, those of the argument's
memory, that of the arguments' cells."""

ARGUMENT = 1 << 32
SCRATCH, OWN, ANY = 1 << 16, (1 << 16) + 1, (1 << 16) + 2
"""In the place of an argument's number."""


def cells(args: Sequence[Any], edges: Sequence[tuple[Any, Any]], scratch: int, note: Any) -> list[Any]:
    """What stands in front of `args`, and they. `edges`: where the memory of each begins and ends; `note`:
    the address of `NOTED` cells."""
    before = [note, scratch, *(at for begin, end in edges for at in (end, begin))]
    return [*reversed(before), *args]


def front(count: int) -> int:
    """How many cells stand in front of those of `count` arguments."""
    return _BEFORE + 2 * count


def edge(number: int) -> int:
    """Which cell, counted from the arguments', says where the memory of argument `number` begins; the next
    one says where it ends."""
    return -2 - _BEFORE - 2 * number


def described(note: np.ndarray, args: Sequence[Any] = ()) -> str:
    """What a note says; `args`: what to call the arguments."""
    what, at, begin, end = (int(x) for x in note[:4])
    number, size = divmod(what, ARGUMENT)
    named = {SCRATCH: "its scratch", OWN: "an array of its own", ANY: "any of its arguments"}
    name = named.get(number, f"argument {number}" + (f", {args[number]}" if number < len(args) else ""))
    where = f" at {at - begin} of the {end - begin}" if end else ""
    return f"{size} bytes{where} of {name}"


def refuse(note: np.ndarray, kernel: str, node: object, args: Sequence[Any] = ()) -> None:
    """Raise EPFail where something is noted, and forget it."""
    if note[0]:
        said = described(note, args)
        note[:] = 0
        raise EPFail(f"the kernel {kernel} reads or writes outside of its arguments", node=node, found=said,
                     expected="each argument's own memory",
                     cure="a fault of this package: mend the kernel or the rule that made its arguments; "
                          "ORTHRUS_INTERPRET names nodes for numpy to run meanwhile")


def checking(machine: Machine) -> Machine:
    """The same machine, its kernels checked if `ORTHRUS_CHECK` says so."""
    return replace(machine, checked=True) if knobs.CHECK >= 3 else machine
