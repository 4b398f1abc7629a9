"""The GPUs that kernels are compiled for, by the names that compilers give them."""

from __future__ import annotations

from ...records import dataclass

CUDA, HIP = "cuda", "hip"


@dataclass(frozen=True)
class Target:
    """One generation of GPUs. `api`: CUDA or HIP; `arch`: `sm_90`, `gfx942`; `warp`: lanes that run
    together; `shared`: bytes of memory that the threads of a block may share; `matrix`: what multiplies
    tiles, of `mma`, `wgmma`, `tcgen05`, `mfma`, `wmma`; `float8`: whether that takes float8; `dies`: how many
    have second-level caches of their own, which programs are dealt to in turn."""

    api: str
    arch: str
    warp: int
    shared: int
    matrix: str
    float8: bool = False
    dies: int = 1

    def __str__(self) -> str:
        return self.arch


_KIB = 1 << 10
TARGETS = {target.arch: target for target in (
    Target(CUDA, "sm_75", 32, 64 * _KIB, "mma"),
    Target(CUDA, "sm_80", 32, 163 * _KIB, "mma"),
    Target(CUDA, "sm_86", 32, 99 * _KIB, "mma"),
    Target(CUDA, "sm_89", 32, 99 * _KIB, "mma", True),
    Target(CUDA, "sm_90", 32, 227 * _KIB, "wgmma", True),
    Target(CUDA, "sm_100", 32, 227 * _KIB, "tcgen05", True),
    Target(CUDA, "sm_103", 32, 227 * _KIB, "tcgen05", True),
    Target(CUDA, "sm_120", 32, 99 * _KIB, "mma", True),
    Target(HIP, "gfx90a", 64, 64 * _KIB, "mfma"),
    Target(HIP, "gfx942", 64, 64 * _KIB, "mfma", True, 8),
    Target(HIP, "gfx950", 64, 160 * _KIB, "mfma", True, 8),
    Target(HIP, "gfx1100", 32, 64 * _KIB, "wmma"),
    Target(HIP, "gfx1101", 32, 64 * _KIB, "wmma"),
    Target(HIP, "gfx1102", 32, 64 * _KIB, "wmma"),
    Target(HIP, "gfx1151", 32, 64 * _KIB, "wmma"),
    Target(HIP, "gfx1200", 32, 64 * _KIB, "wmma", True),
    Target(HIP, "gfx1201", 32, 64 * _KIB, "wmma", True),
)}
"""Every generation there are kernels for."""


def named(arch: str) -> Target | None:
    """The target that compilers call `arch`: `gfx942:sramecc+:xnack-` is `gfx942`, and a CUDA device of a
    minor version in between is the next lower one of its major version. None where there is none."""
    plain = arch.partition(":")[0]
    if plain in TARGETS or not plain.startswith("sm_"):
        return TARGETS.get(plain)
    number = plain.removeprefix("sm_").rstrip("af")
    if not number.isdecimal():
        return None
    lower = [t for t in TARGETS if t.startswith("sm_") and int(t[3:]) // 10 == int(number) // 10
             and int(t[3:]) <= int(number)]
    return TARGETS[max(lower, key=lambda t: int(t[3:]))] if lower else None
