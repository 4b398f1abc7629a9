"""Convolutions in numbers: geometry, transposed ones as plain ones, how sums and rows are divided."""

from __future__ import annotations

from math import gcd, prod

from ....records import dataclass
from ...machines.machine import Machine

CHUNK = 128
"""Products that are summed one after another, at most: half of `tile.LONG_SUM`, in no more time."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution in numbers: always three spatial axes, leading ones 1. Channels are counted per group;
    `pads` are those before the image, `out` the output's size, which says how far it goes behind."""

    batch: int
    groups: int
    cin: int
    cout: int
    size: tuple[int, int, int]
    kernel: tuple[int, int, int]
    strides: tuple[int, int, int]
    dilations: tuple[int, int, int]
    pads: tuple[int, int, int]
    out: tuple[int, int, int]

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.batch * self.groups * self.cin * self.cout * prod(self.kernel) * prod(self.out)

    def within(self, size: tuple[int, int, int]) -> Geometry:
        """The same over an image of `size`, which has its margins."""
        return Geometry(self.batch, self.groups, self.cin, self.cout, size, self.kernel, self.strides,
                        self.dilations, (0, 0, 0), self.out)

    @property
    def leaves(self) -> bool:
        """Whether any tap falls outside the image."""
        return any(p > 0 or (o - 1) * s - p + (k - 1) * d >= n for n, k, s, d, p, o in zip(
            self.size, self.kernel, self.strides, self.dilations, self.pads, self.out, strict=True))


def tile_cols(machine: Machine, cout: int) -> int:
    """Registers of output channels a tile has: the fewest idle lanes, narrow tiles counted as slower."""
    vectors = -(-cout // machine.lanes(4))
    slower = {1: 1.25, 2: 1.06, 4: 1.0} if machine.group > 1 else {1: 1.25, 2: 1.0, 3: 1.03}
    return min((c for c in slower if c <= vectors), key=lambda c: (-(-vectors // c) * c * slower[c], -c))


def split(pixels: int, most: int) -> tuple[tuple[int, ...], int, int]:
    """Divide `pixels` into tiles of at most `most`, as even as can be: heights, tiles, how many are of the
    first."""
    tiles = -(-pixels // most)
    low = pixels // tiles
    more = pixels - tiles * low
    return ((low + 1, low), tiles, more) if more else ((low,), tiles, tiles)


def merged(g: Geometry, machine: Machine) -> int:
    """How many groups are computed as one: small ones fill a vector together."""
    best = 1
    for m in range(2, g.groups + 1):
        if g.groups % m == 0 and m * g.cout <= machine.lanes(4):
            best = m
    return best


def chunk_of(run: int, most: int) -> int:
    """The length of the parts that a sum of `run` products is made of, at most `most`, which 4 divides."""
    return -(-run // -(-run // most) // 4) * 4


def preferred_pitch(channels: int) -> int:
    """Elements from pixel to pixel that keep neighbouring pixels off the same cache sets."""
    return channels + 16 if channels * 4 % 2048 == 0 else channels


@dataclass(frozen=True, slots=True)
class Phase:
    """Every stride-th output along one axis of a transposed convolution, from `start` on: a plain convolution
    of the taps that `pick` takes, in its order."""

    kernel: int
    dilation: int
    pad: int
    out: int
    pick: slice
    start: int


def _phases(k: int, s: int, d: int, p: int, o: int) -> list[Phase]:
    """The phases along an axis of kernel `k`, stride `s`, dilation `d`, `p` cut off before it, output `o`."""
    step, made = s // gcd(s, d), []
    for start in range(min(s, o)):
        taps = [j for j in range(min(step, k)) if (start + p - j * d) % s == 0]
        out = -(-(o - start) // s)
        if not taps:
            made.append(Phase(0, 1, 0, out, slice(0, 0), start))
            continue
        count = len(range(taps[0], k, step))
        last = taps[0] + (count - 1) * step
        made.append(Phase(count, d * step // s, -((start + p - last * d) // s), out,
                          slice(last, taps[0] - 1 if taps[0] else None, -step), start))
    return made


def phases(g: Geometry) -> list[tuple[Geometry, tuple[slice, slice, slice], tuple[int, int, int]]]:
    """A transposed convolution as plain ones, one per phase of its output: the geometry, which taps it has
    and the first output pixel. `g` is the transposed one: `strides` and `dilations` as given, `out` its full
    output, `pads` what is cut off before it."""
    deep, high, wide = (_phases(*axis) for axis in zip(g.kernel, g.strides, g.dilations, g.pads, g.out,
                                                       strict=True))
    return [(Geometry(g.batch, g.groups, g.cin, g.cout, g.size, (z.kernel, y.kernel, x.kernel), (1, 1, 1),
                      (z.dilation, y.dilation, x.dilation), (z.pad, y.pad, x.pad), (z.out, y.out, x.out)),
             (z.pick, y.pick, x.pick), (z.start, y.start, x.start))
            for z in deep for y in high for x in wide]
