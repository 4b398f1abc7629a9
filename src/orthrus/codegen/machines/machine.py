"""Descriptions of machines: what a kernel needs to know to be written well for one.

Kernels ask a `Machine` for its vector width, its registers and its caches, never for its name; a further
architecture is one more description.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...records import cached_property, dataclass


@dataclass(frozen=True)
class Machine:
    """One kind of processor. `vector`: bytes of a vector register, `registers`: how many there are;
    `l1`, `l2`: bytes of cache per core; `features`: LLVM's, sorted. `group`: how many neighbouring registers
    one instruction can work on, in as much time as one for each takes. `matrix`: (M, N, K) of an instruction
    that adds A (M, K) times B (N, K) transposed, 8-bit integers, to C (M, N) of 32 bits; None without one.
    `checked`: its kernels look where they read and write (`bounds`)."""

    sizeless: ClassVar[bool] = True

    arch: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    vector: int
    registers: int
    l1: int = 32 << 10
    l2: int = 1 << 20
    group: int = 1
    matrix: tuple[int, int, int] | None = None
    checked: bool = False

    def __hash__(self) -> int:
        return self._hashed

    @cached_property
    def _hashed(self) -> int:
        return hash((self.triple, self.cpu, self.features, self.vector, self.registers, self.checked))

    @property
    def told(self) -> list[tuple[str, Any]]:
        """All of it, in an order that is the same in every process."""
        return sorted((name, value) for name, value in vars(self).items() if name != "_hashed")

    def lanes(self, elem_bytes: int = 4) -> int:
        """Elements of that size in a vector register."""
        return self.vector // elem_bytes

    def has(self, feature: str) -> bool:
        return feature in self.features

    def runs(self, code: Machine) -> bool:
        """Whether code made for the machine `code` runs on this one."""
        needed = {feature for feature in code.features if not feature.startswith("zvl")}
        return (code.triple == self.triple and code.vector <= self.vector and needed <= set(self.features)
                and code.matrix in (None, self.matrix) and code.checked == self.checked)

    @property
    def feature_text(self) -> str:
        return ",".join("+" + f for f in self.features)

    @property
    def label(self) -> str:
        """For people: the architecture and what matters most of the rest."""
        return f"{self.arch} with vectors of {8 * self.vector} bits"


AVX512 = Machine(
    "x86_64", "x86_64-unknown-linux-gnu", "x86-64",
    ("avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "bmi", "bmi2", "f16c", "fma",
     "lzcnt", "popcnt", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3"), 64, 32)
AVX2 = Machine(
    "x86_64", "x86_64-unknown-linux-gnu", "x86-64",
    ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "popcnt", "sse2", "sse3", "sse4.1", "sse4.2",
     "ssse3"), 32, 16)
SSE2 = Machine("x86_64", "x86_64-unknown-linux-gnu", "x86-64", ("sse2",), 16, 16)
NEON = Machine("aarch64", "aarch64-unknown-linux-gnu", "generic", ("neon",), 16, 32)
DARWIN = "arm64-apple-darwin-elf"
"""The triple of code for ARM under macOS, which has register x18 for itself, in objects that `link` reads."""


def rvv(bits: int) -> Machine:
    """RISC-V with vectors (RV64GCV) whose registers hold `bits` bits; its kernels are also right where they
    hold more, then with vectors cut to `bits`."""
    if bits not in (128, 256, 512, 1024):
        raise ValueError(f"no vector register of {bits} bits")
    return Machine("riscv64", "riscv64-unknown-linux-gnu", "generic-rv64",
                   tuple(sorted(("a", "c", "d", "f", "m", "v", f"zvl{bits}b"))), bits // 8, 32, group=4)


RVV128, RVV256, RVV512, RVV1024 = (rvv(bits) for bits in (128, 256, 512, 1024))

HALF = ("zfh", "zvfh")
"""RISC-V's arithmetic with float16, of numbers and of vectors."""
BITS = ("zba", "zbb", "zbs")
"""RISC-V's instructions for addresses and bits."""
TILES = {32: (4, 4, 8), 128: (8, 8, 16)}
"""By bytes of a vector register: `Machine.matrix` of SpacemiT's instruction, whose A and B are a register
each and whose C is two."""


def spacemit(bits: int, l2: int, matrix: bool = True) -> Machine:
    """One of SpacemiT's cores with vector registers of `bits` bits, with or without the matrix instruction.
    LLVM's feature for that names SiFive's, which has the same operands; `ime` says how it becomes SpacemiT's.
    """
    base = rvv(bits)
    own = ("xsfvqmaccqoq",) if matrix else ()
    return Machine(base.arch, base.triple, base.cpu, tuple(sorted({*base.features, *HALF, *BITS, *own})),
                   base.vector, base.registers, base.l1, l2, base.group,
                   TILES[bits // 8] if matrix else None)


SPACEMIT = {"spacemit_k1": spacemit(256, 128 << 10), "spacemit_k3": spacemit(1024, 512 << 10),
            "spacemit_k3_x100": spacemit(256, 1 << 20, matrix=False)}
"""The cores of K1 (cluster 0, whose four cores share 512 KB) and of K3: those for matrices and the general
ones. The caches of K3's cores are not published per core; theirs are assumed."""
SPACEMIT_K1, SPACEMIT_K3, SPACEMIT_K3_X100 = SPACEMIT.values()


FORCED = {"sse2": SSE2, "avx2": AVX2, "avx512": AVX512, "neon": NEON,
          **{f"rvv{8 * m.vector}": m for m in (RVV128, RVV256, RVV512, RVV1024)}, **SPACEMIT}
"""The machines that a process can be told to write kernels for, by name."""
BEYOND = {"avx512": ("avx512vnni", "avx512bf16", "avx512fp16", "avx512vbmi", "avx512vbmi2", "avxvnni",
                     "amx-tile", "amx-bf16", "amx-int8"),
          "avx2": ("avxvnni",), "neon": ("dotprod",)}
"""Features that kernels may use where a machine has more than its name says."""


def target(name: str, bits: int = 256) -> Machine:
    """The machine of that name: one of `SPACEMIT`, or "generic", RISC-V with vectors of `bits` bits and
    nothing beyond RV64GCV. Raises ValueError that lists the names."""
    if name == "generic":
        return rvv(bits)
    if name not in SPACEMIT:
        raise ValueError(f"no machine is named {name!r}; there are {', '.join((*SPACEMIT, 'generic'))}")
    return SPACEMIT[name]
