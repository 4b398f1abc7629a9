"""Which RISC-V machine this is: what Linux says about its cores -> a `Machine`.

The cores a process may run on need not be alike. What is described is what all of them have, so that a kernel
runs on whichever it lands: a process that wants K1's matrix instruction restricts itself to the four cores
that have it, one that wants K3's to that chip's matrix cores.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ...processors import usable
from .executable import CodePages
from .machine import BITS, HALF, SPACEMIT_K1, SPACEMIT_K3, SPACEMIT_K3_X100, Machine, rvv

_CORES = {"x60": SPACEMIT_K1, "a100": SPACEMIT_K3, "x100": SPACEMIT_K3_X100}
"""SpacemiT's cores by what `model name` or `uarch` ends with."""
_VLENB = struct.pack("<II", 0xC2202573, 0x00008067)
"""csrr a0, vlenb; ret"""


def host() -> Machine | None:
    """This machine, None where its cores have no vectors or nothing says so. Only to be asked on riscv64."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    return described(text, usable(), _has_matrix, vector_bytes)


def described(cpuinfo: str, cores: Collection[int], has_matrix: Callable[[int], bool],
              length: Callable[[], int]) -> Machine | None:
    """The machine whose `/proc/cpuinfo` that is, as `cores` of it have it in common. `has_matrix`: of a core;
    `length`: the bytes of a vector register, asked where neither the name nor the isa string says it."""
    found = [_core(block, has_matrix(int(block["processor"])), length) for block in _blocks(cpuinfo)
             if int(block["processor"]) in cores]
    if not found or any(m is None for m in found):
        return None
    every = [m for m in found if m is not None]
    least = min(every, key=lambda m: (m.vector, m.matrix is not None, len(m.features)))
    alike = all(m.matrix == least.matrix for m in every)
    common = set(least.features).intersection(*({*m.features, f"zvl{8 * least.vector}b"} for m in every))
    return replace(least, features=tuple(sorted(common)), matrix=least.matrix if alike else None)


def _blocks(cpuinfo: str) -> list[dict[str, str]]:
    made = []
    for part in re.split(r"\n\s*\n", cpuinfo.strip()):
        rows = (line.partition(":") for line in part.splitlines())
        block = {name.strip(): value.strip() for name, colon, value in rows if colon}
        if "processor" in block and ("isa" in block or "hart isa" in block):
            made.append(block)
    return made


def _core(block: dict[str, str], matrix: bool, length: Callable[[], int]) -> Machine | None:
    letters, *names = (block.get("hart isa") or block["isa"]).lower().split("_")
    if not letters.startswith("rv64") or "v" not in letters[4:]:
        return None
    label = re.split(r"[\s,]+", (block.get("uarch") or block.get("model name", "")).lower())[-1]
    known = _CORES.get(label)
    if known is not None and (matrix or known.matrix is None):
        return known
    if known is not None:
        own = tuple(name for name in known.features if not name.startswith("x"))
        return replace(known, features=own, matrix=None)
    stated = [int(m.group(1)) for name in names if (m := re.fullmatch(r"zvl(\d+)b", name))]
    base = rvv(min(1024, max(stated) if stated else 8 * length()))
    extra = {name for name in (*HALF, *BITS) if name in names} | (set(BITS) if "b" in letters[4:] else set())
    return replace(base, features=tuple(sorted({*base.features, *extra})))


def _has_matrix(core: int) -> bool:
    """Whether the device tree calls a core one for matrices."""
    try:
        return Path(f"/proc/device-tree/cpus/cpu@{core:x}/cpu-ai").read_bytes().startswith(b"true")
    except OSError:
        return False


def vector_bytes() -> int:
    """What this core says: `vlenb`."""
    block = CodePages(len(_VLENB))
    block.bytes[:len(_VLENB)] = _VLENB
    block.seal()
    return int(ctypes.CFUNCTYPE(ctypes.c_long)(block.address)())
