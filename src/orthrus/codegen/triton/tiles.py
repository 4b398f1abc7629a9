"""Which tiles a product is computed by: what a target's programs take, from counts of bytes and operations.

In: a target, and a product's sizes and types. Out: tiles, the one that is expected to be fastest first. The
model counts for one tile the cycles of its multiplications, of the bytes it reads from the second-level
cache and of waiting for them, the most of which counts for the most, and how often all units of the chip have
to take tiles until there are none left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...records import dataclass
from ...shapes.symbolic import choice
from .kernels.products import Tile
from .targets import CUDA, Target


@dataclass(frozen=True)
class Chip:
    """What one chip of a generation does each cycle. `units`: its multiprocessors; `half`: products of
    float16 that one of them adds up, `single`: of float32 by itself, `exact`: of float64; `cache`: bytes
    that it gets from the second-level cache; `memory`: bytes that all get from memory."""

    units: int
    half: int
    single: int
    exact: int
    cache: int
    memory: int


_CHIPS = {
    "sm_75": Chip(40, 512, 64, 2, 32, 201),
    "sm_80": Chip(108, 1024, 64, 64, 48, 1446),
    "sm_86": Chip(84, 512, 128, 2, 32, 552),
    "sm_89": Chip(128, 512, 128, 2, 32, 400),
    "sm_90": Chip(132, 2048, 128, 128, 48, 1830),
    "sm_100": Chip(148, 4096, 128, 64, 64, 4100),
    "sm_103": Chip(148, 4096, 128, 8, 64, 4100),
    "sm_120": Chip(170, 1024, 128, 2, 48, 740),
    "gfx90a": Chip(104, 512, 128, 128, 64, 963),
    "gfx942": Chip(304, 1024, 128, 128, 32, 2520),
    "gfx950": Chip(256, 2048, 128, 64, 32, 3330),
    "gfx1100": Chip(96, 256, 128, 4, 64, 384),
    "gfx1101": Chip(60, 256, 128, 4, 64, 250),
    "gfx1102": Chip(32, 256, 128, 4, 64, 110),
    "gfx1151": Chip(40, 256, 128, 4, 64, 88),
    "gfx1200": Chip(32, 512, 128, 4, 64, 110),
    "gfx1201": Chip(64, 512, 128, 4, 64, 216),
}
"""From the vendors' data sheets: peak rate / (units x boost clock), and memory bandwidth / boost clock.
`cache` is what papers on the architectures say is reached. On an H200 the times of 17 to 40 tiles of six
products of float16 correlated with the model's by 0.81 to 0.99; the tile it expects most of took 1.0 to 1.37
times as long as the fastest, twice within 2 %."""

_START = 1500
"""Cycles until a program's first tile of a factor is there."""

_LATENCY = 700
"""Cycles from asking memory for a tile until it is there."""

_ISSUED = 60
"""Cycles that a step takes beside all that: addresses, a barrier, the loop."""

_SHARED = 128
"""Bytes that a unit's threads get from its shared memory in a cycle."""

_LINE = 64
"""Bytes in a row of a factor that are read at once."""

FULL = 16
"""Channels from which on a tap's products fill a step of a matrix unit."""

_QUARTERS = 4
"""Parts of a unit that multiply by themselves, each the tiles of other warps."""

_DETACHED = ("wgmma", "tcgen05")
"""Matrix units that read factors where these lie in shared memory, given four warps and 64 rows; with fewer
products take three times as long on an H200."""

_REGISTERS = 96
"""What a thread holds of sums and factors, at most: the rest of its 255 registers are addresses and what is
on the way. Where the matrix unit is `mfma` there are twice as many."""


def chip(target: Target) -> Chip:
    """What is known of a target's largest chip."""
    return _CHIPS[target.arch]


@dataclass(frozen=True)
class Problem:
    """A product of `count` pairs of matrices, of `dtype` and `precision`. `elements`: of all A in memory,
    where windows overlap there; `run`: how many of k lie together, a tap's channels."""

    m: int
    n: int
    k: int
    count: int
    dtype: str
    precision: str = "ieee"
    elements: int = 0
    run: int = 0

    @property
    def shared(self) -> float:
        """How many of A's elements are the same one in memory."""
        return max(1.0, self.m * self.k * self.count / self.elements) if self.elements else 1.0

    def suits(self, tile: Tile) -> bool:
        """Whether steps of a tile stay within a run, and are full, where runs are long enough."""
        run = self.run
        return run < FULL or (tile.k <= run if run % FULL else run % tile.k == 0)

    @property
    def itemsize(self) -> int:
        return {"float64": 8, "float32": 4, "int8": 1, "uint8": 1}.get(self.dtype, 2)

    def on_matrix_unit(self, target: Target) -> bool:
        """Whether something multiplies tiles of such numbers."""
        if self.dtype == "float32":
            return self.precision != "ieee" or target.matrix == "mfma"
        if self.dtype == "float64":
            return target.arch in ("sm_80", "sm_90", "sm_100") or target.matrix == "mfma"
        return True

    def rate(self, target: Target) -> int:
        """Products that a unit adds up in a cycle."""
        it = chip(target)
        if self.dtype == "float64":
            return it.exact
        if self.dtype == "float32":
            return {"tf32": it.half // 2, "tf32x3": it.half // 6}.get(self.precision, it.single)
        return it.half * (2 if self.itemsize == 1 else 1)


def candidates(target: Target, it: Problem) -> list[tuple[Tile, int]]:
    """Tiles and into how many parts k is cut, the fastest first by the model."""
    found = {(tile, parts): cycles(target, it, tile, parts)
             for tile in _tiles(target, it) for parts in _parts(target, it, tile)}
    known = sorted(found, key=lambda made: found[made])
    return [way for way in known if it.suits(way[0])] or known[:1]


@choice(1 << 12)
def best(target: Target, it: Problem) -> tuple[Tile, int]:
    """The first of them."""
    return candidates(target, it)[0]


def cycles(target: Target, it: Problem, tile: Tile, parts: int) -> float:
    """How long the product takes."""
    have = chip(target)
    deep = -(-it.k // parts)
    steps = -(-deep // tile.k)
    tiles = -(-it.m // tile.m) * -(-it.n // tile.n) * it.count * parts
    together = min(_resident(target, it, tile), -(-tiles // have.units))
    one = steps * _step(target, it, tile, together) + _START / together
    moved = it.count * it.itemsize * (it.m / it.shared + it.n) * it.k + 4 * it.count * it.m * it.n * (
        1 if parts == 1 else 2 * parts)
    again = 0 if parts == 1 else 2 * _START
    less, more = sorted((-(-tiles // have.units) * one, moved / have.memory))
    return more + less / min(together, 3) + again


def _step(target: Target, it: Problem, tile: Tile, together: int) -> float:
    """Cycles of one step along k, of which a unit has so many running."""
    have, row = chip(target), tile.k * it.itemsize
    detached = target.matrix in _DETACHED and it.on_matrix_unit(target)
    whole = not detached or (tile.m >= 64 and tile.warps >= 4)
    multiply = tile.m * tile.n * tile.k / it.rate(target) / min(1, together * tile.warps / _QUARTERS)
    multiply *= 1 if whole else 3
    read = (tile.m + tile.n) * max(row, _LINE) / have.cache
    high = min(tile.m, max(16, int((tile.m * tile.n / tile.warps) ** 0.5)))
    fragments = tile.warps * (high + tile.m * tile.n / tile.warps / high)
    if detached and tile.m >= 64:
        fragments = tile.m + tile.n
    waited = (_LATENCY + (multiply if target.api == CUDA else 0)) / (tile.stages - 1) / together
    return _overlapped(multiply, read, fragments * row / _SHARED, waited) + _ISSUED / together


def _overlapped(*cycles: float) -> float:
    """What goes on at the same time takes little longer than what takes longest."""
    return sum(each ** 4 for each in cycles) ** 0.25


def _resident(target: Target, it: Problem, tile: Tile) -> int:
    """How many programs a unit has at a time."""
    shared = tile.stages * (tile.m + tile.n) * tile.k * it.itemsize
    most = 2048 if target.api == CUDA else 16 * target.warp * 2
    registers = tile.m * tile.n + 64 * tile.warps * target.warp
    return max(1, min(target.shared // shared, most // (tile.warps * target.warp), 65536 // registers, 16))


def _tiles(target: Target, it: Problem) -> Iterator[Tile]:
    """Those that fit a target, and a product no larger than they are."""
    unit = it.on_matrix_unit(target)
    least = 32 if it.itemsize == 1 else 16
    sides = (16, 32, 64, 128, 256) if unit else (16, 32, 64, 128)
    depths = [d for d in ((least, 2 * least, 4 * least) if unit else (16, 32)) if d <= max(least, 2 * it.k)]
    for m, n, k in product(_fitting(sides, it.m), _fitting(sides, it.n), depths):
        for warps in (1, 2, 4, 8):
            if not m * n // (warps * target.warp) >= 4 or _held(target, it, m, n, k, warps) > (
                    2 * _REGISTERS if target.matrix == "mfma" else _REGISTERS):
                continue
            for stages in (2, 3, 4) if target.api == CUDA and unit else (2,):
                if stages * (m + n) * k * it.itemsize <= target.shared:
                    yield Tile(m, n, k, 8, warps, stages)


def _held(target: Target, it: Problem, m: int, n: int, k: int, warps: int) -> float:
    """Registers that a thread needs for sums and for what it multiplies."""
    threads = warps * target.warp
    sums = m * n * (2 if it.itemsize == 8 else 1) / threads
    if target.matrix in _DETACHED and it.on_matrix_unit(target) and m >= 64 and warps >= 4:
        return sums / 2
    deep = k * it.itemsize / (4 * target.warp)
    wide = max(m, n) / warps + min(m, n)
    return sums + (wide * min(deep, 1) if it.on_matrix_unit(target) else wide)


def _fitting(sides: tuple[int, ...], size: int) -> list[int]:
    return [s for s in sides if s == sides[0] or s < 2 * size]


def _parts(target: Target, it: Problem, tile: Tile) -> list[int]:
    """Into how many parts k may be cut: where there are fewer tiles than units."""
    tiles = -(-it.m // tile.m) * -(-it.n // tile.n) * it.count
    most = min(chip(target).units // max(tiles, 1), it.k // (4 * tile.k), 32)
    return [p for p in (1, 2, 4, 8, 16, 32) if p == 1 or p <= most]
