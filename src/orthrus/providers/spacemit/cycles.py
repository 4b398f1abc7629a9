"""SpacemiT's cores as a cycle model knows them: how many instructions start in a cycle, what each keeps busy
and for how long, and how fast memory answers.

In: the name of a target. Out: a `Chip` with its `Core`. Nothing here was measured by this project. Sources:

[llvm]   LLVM's scheduling models RISCVSchedSpacemitX60.td and X100.td, measured by their authors
[rvv]    camel-cdr's rvv-bench-results, pages bpi_f3, spacemit_x100 and spacemit_a100: cycles per instruction
[k1]     SpacemiT's K1 user manual, CPU system, and its published peaks: 0.5 TOPS int8 by the matrix
         instruction, 0.128 int8, 0.064 float16, 0.032 float32 by vectors, per core
[k3]     SpacemiT's K3 user manual, overview and CPU system: 60 TOPS of sparse int4 for eight A100
[forum]  SpacemiT's forum, topic 935, on the A100: cores share tensor units and local memory
[llama]  bruno.verachten.fr, 2026-03-12: clocks of a K3 board

X60 and A60 (K1). 1.6 GHz on boards [rvv]; the published peaks are those of 2.0 GHz, at one vector instruction
and one matrix instruction of 256 operations a cycle [k1]. In order, two instructions a cycle, a mispredicted
branch costs 9 [llvm]. Vectors of 256 bits: a cycle a register for additions, products and conversions, two
where masked, for logic, shifts, comparisons, moves, merges and slides, 1.25 for 32-bit integer products,
4 times the square of the group for a gather [rvv]. 32 KB L1, 512 KB L2 and 512 KB TCM for four cores [k1].
DRAM: 32 bits of LPDDR4X-2666, 10.7 GB/s [k1]. Assumed: 16 bytes a cycle from L1 by vector loads, 8 from
L2, a core gets 4 GB/s of DRAM, the chip 7.

A100 (K3). 2.0 GHz [llama]. In order, two a cycle [rvv]. Vectors of 1024 bits on 512-bit units: two cycles a
register, twice that for products of 32-bit integers and for float64, eight for slides, an element a cycle
for strided loads, 2.5 cycles for a load of a register, twice that where masked [rvv]. Not measured there and
assumed: float16 at the rate of float32, gathers as on the X60. 32 KB L1, 1 MB L2 and 1.5 MB of local memory
for four cores [k3].
60 TOPS of sparse int4 are 15 of dense int8 [k3]: at 2048 operations an instruction, one instruction a cycle
for every two cores, which share a unit [forum]; a core alone is assumed to get all of it. DRAM 51 GB/s [k3].
Assumed: 32 bytes a cycle from L2, a core gets 8 GB/s of DRAM, the chip 35.

X100 (K3). 2.4 GHz [k3]. Out of order, four a cycle, 64 entries [llvm]; 256-bit units, a cycle a register,
one vector instruction a cycle [rvv]. 64 KB L1 [k3]; 8 MB L2 for eight cores [k3]. No matrix instruction.
Assumed: 32 bytes a cycle from L1, 16 from L2, DRAM as for the A100 but 12 GB/s for a core.

Assumed for all: starting a step on several cores costs 2 microseconds, on one a tenth of that.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import InvalidArgument
from ...records import dataclass


@dataclass(frozen=True)
class Core:
    """One core. `clock` in GHz; `width`: instructions that start in a cycle; `window`: how many may be under
    way out of order, 0 for in order; `branch`: cycles lost by a mispredicted branch.

    `datapath`: bytes of a vector register worked on in a cycle; `slow`: how much longer masked arithmetic,
    logic, moves and comparisons take; `product`: the same for products of 32-bit integers; `gather`: cycles
    for a gather from one register; `slide`: for a slide by one register. `port`: bytes a cycle that vector
    loads and stores move; `start`: cycles a vector load or store costs beside that; `strided`: cycles per
    element of one with a stride. `matrix`: cycles from one matrix instruction to the next, `sharing`: how
    many cores share the unit. `latency`: cycles until a vector result can be used: of additions, products
    and loads.
    """

    name: str
    clock: float
    width: int
    window: int
    branch: int
    datapath: int
    slow: float
    product: float
    gather: float
    slide: float
    port: float
    start: float
    strided: float
    matrix: float
    sharing: int
    latency: tuple[int, int, int]
    l1: int
    l2_rate: float


@dataclass(frozen=True)
class Chip:
    """A core and what its neighbours share with it. `l2`: bytes of cache for `cluster` cores; `dram`: GB/s
    for one core, and for all; `fork`: microseconds that starting a step on several cores costs. `overlapped`:
    whether waiting for memory and computing go on at the same time. `cores`: how many there are."""

    name: str
    core: Core
    cores: int
    l2: int
    cluster: int
    dram: tuple[float, float]
    fork: float = 2.0
    overlapped: bool = True

    def bandwidth(self, cores: int) -> float:
        """Bytes a nanosecond from DRAM for so many cores."""
        return min(self.dram[0] * cores, self.dram[1])

    def matrix(self, cores: int) -> float:
        """Cycles from one matrix instruction of a core to its next while `cores` cores work."""
        return self.core.matrix * min(cores, self.core.sharing) if cores > 1 else self.core.matrix


X60 = Core("X60", 1.6, 2, 0, 9, 32, 2.0, 1.25, 4.0, 2.0, 16, 0.0, 1.0, 1.0, 1, (4, 5, 5), 32 << 10, 8)
A100 = Core("A100", 2.0, 2, 0, 9, 64, 1.0, 2.0, 4.0, 8.0, 64, 0.5, 1.06, 1.0, 2, (4, 5, 6), 32 << 10, 32)
X100 = Core("X100", 2.4, 4, 64, 9, 32, 1.0, 1.0, 2.0, 2.0, 32, 0.0, 1.0, 1.0, 1, (3, 5, 5), 64 << 10, 16)

CHIPS = {
    "spacemit-k1": Chip("K1 (X60)", X60, 4, 512 << 10, 4, (4.0, 7.0)),
    "spacemit-k3": Chip("K3 (A100)", A100, 8, 1 << 20, 4, (8.0, 35.0)),
    "spacemit-k3-x100": Chip("K3 (X100)", X100, 8, 8 << 20, 8, (12.0, 35.0)),
}

VARIATIONS = {
    "clock": "the core's highest published clock instead of its boards': 2.0 GHz of a K1, 2.1 of an A100",
    "serial": "waiting for memory and computing one after the other, instead of at the same time",
    "dram": "half the bandwidth to DRAM",
    "l2": "half the bandwidth to L2",
}
"""Assumptions that an estimate depends on, each with what is assumed instead to see how much."""


def chip(target: str) -> Chip:
    """The chip of that name. Raises InvalidArgument that lists the names."""
    if target not in CHIPS:
        raise InvalidArgument(f"nothing is known of the speed of {target!r}", found=target,
                              expected=", ".join(CHIPS), cure="name one of these")
    return CHIPS[target]


def varied(of: Chip, variation: str) -> Chip:
    """`of` under one of `VARIATIONS`."""
    core = of.core
    if variation == "clock":
        return replace(of, core=replace(core, clock={"X60": 2.0, "A100": 2.1}.get(core.name, core.clock)))
    if variation == "dram":
        return replace(of, dram=(of.dram[0] / 2, of.dram[1] / 2))
    if variation == "l2":
        return replace(of, core=replace(core, l2_rate=core.l2_rate / 2))
    return replace(of, overlapped=False)
