"""Direct convolution: how `conv_tiles` does a geometry, and how weights are packed for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ....records import dataclass
from ....shapes.symbolic import choice
from ...machines.machine import Machine
from ...runtime.call_kernel import aligned
from ...write.expr import BYTES, Expr
from ...write.spec import Spec
from ...write.tile import Operand, shapes
from .geometry import CHUNK, Geometry, chunk_of, merged, split, tile_cols
from .tiles import TileForm, conv_tiles


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """How `conv_tiles` does a geometry: its parameters and the cells that divide the work."""

    geometry: Geometry
    merge: int
    heights: tuple[int, ...]
    cols: int
    panels: int
    rolled: tuple[int, int]
    even: bool
    trims: bool
    edges: bool
    ahead: int
    share: int
    tiles: int
    per_row: int
    full: int
    per_block: int
    width: int
    lanes: int
    parts: str
    chunk: int
    dtype: str

    @property
    def blocks(self) -> int:
        return -(-self.tiles // self.per_block)

    @property
    def items(self) -> int:
        g = self.geometry
        return g.batch * g.out[0] * self.blocks * g.groups * self.panels

    @property
    def scratch(self) -> int:
        return self.geometry.cin * 4 if self.edges else 0

    def spec(self, tree: Expr | None, operands: Sequence[Operand]) -> Spec:
        form = TileForm(self.dtype, self.heights, self.cols, self.rolled, self.even, self.trims, self.edges,
                    self.geometry.cout % (self.cols * self.lanes) != 0, self.ahead, self.share, self.parts,
                    self.merge > 1)
        return conv_tiles(form=form, tree=tree, operands=tuple(operands))

    def cells(self, x_strides: Sequence[int], y_strides: Sequence[int]) -> list[int]:
        """The cells behind x, w and y. Strides in elements: (image, depth, row, pixel)."""
        g = self.geometry
        xn, xd, xh, xw = x_strides
        steps = [d * s for d, s in zip(g.dilations, (xd, xh, xw), strict=True)]
        return [self.panels, g.groups, self.blocks, self.per_block, self.tiles, self.per_row, self.full,
                g.out[0], self.width,
                g.size[1], g.size[2], g.size[0], *g.kernel, g.cin, *g.strides, *g.dilations, *g.pads, g.cout,
                xn, xd, xh, xw, g.cin, *steps, *y_strides, self.chunk]

    @property
    def panelled(self) -> tuple[int, int, int, str]:
        """What `pack` is told of weights: groups, how many are merged, channels of a panel, type."""
        return self.geometry.groups * self.merge, self.merge, self.cols * self.lanes, self.dtype

    def pack(self, w: np.ndarray) -> np.ndarray:
        """The panels of weights [Cout, Cin per group, spatial...] (before merging groups)."""
        return pack(w, *self.panelled)


def pack(w: np.ndarray, groups: int, merge: int, wide: int, dtype: str = "float32") -> np.ndarray:
    """Weights [Cout, Cin / groups, spatial...] as panels [group][panel][spatial...][cin][wide], zeros behind
    the last channel. `merge` groups become one, its weights a block diagonal."""
    w = np.asarray(w, np.float32)
    cout, cin = w.shape[0] // groups, w.shape[1]
    w = w.reshape(groups // merge, merge, cout, cin, *w.shape[2:])
    joined = np.zeros((groups // merge, merge, cout, merge, cin, *w.shape[4:]), np.float32)
    for i in range(merge):
        joined[:, i, :, i] = w[:, i]
    panels = -(-cout * merge // wide)
    out = np.zeros((groups // merge, panels * wide, merge * cin, *w.shape[4:]), np.float32)
    out[:, :cout * merge] = joined.reshape(groups // merge, merge * cout, merge * cin, *w.shape[4:])
    out = out.reshape(groups // merge, panels, wide, *out.shape[2:])
    moved = np.moveaxis(out, (2, 3), (-1, -2))
    packed = aligned(moved.shape, dtype)
    packed[...] = moved
    return packed


@choice()
def plan(g: Geometry, machine: Machine, flat: bool = False, rolled: tuple[int, int] = (0, 0),
         ahead: int | None = None, share: int | None = None, block: int | None = None,
         cols: int | None = None, dtype: str = "float32", apart: bool = False) -> ConvPlan:
    """A plan for `g` with images and weights of `dtype`. `flat`: the pixels of input and output lie evenly in
    a plane, so that a 1x1 kernel of stride 1 that crops none may count them as one row. `apart`: every group
    is computed by itself. The rest overrides what is chosen."""
    lanes = machine.lanes(4)
    merge = 1 if apart else merged(g, machine)
    if merge > 1:
        g = Geometry(g.batch, g.groups // merge, g.cin * merge, g.cout * merge, g.size, g.kernel, g.strides,
                     g.dilations, g.pads, g.out)
    edges = g.leaves
    cols = cols or tile_cols(machine, g.cout)
    pixels = g.out[1] * g.out[2]
    taps = prod(g.kernel)
    alike = g.out[1] == 1 or g.out[2] == g.size[2]
    width = pixels if flat and taps == 1 and alike and not edges else g.out[2]
    most = shapes(machine)[cols]
    heights, per_row, full = split(width, most)
    trims = edges and _misses(g) != (0, 0)
    even = width == pixels and not edges or not (trims and (max(_misses(g)) > 1 or heights[-1] < 2 or (
        (width - 1) * g.strides[2] >= g.size[2]))) and (heights[-1] * 2 > most or not edges and g.cin < 16)
    tiles = per_row * (pixels // width)
    if not even:
        heights, tiles, full = split(pixels, most)
        per_row, trims = tiles, False
    panels = -(-g.cout // (cols * lanes))
    panel = taps * g.cin * cols * lanes * BYTES[dtype]
    weights = panel * panels * g.groups
    row = g.cin * BYTES[dtype] * g.strides[1] * g.strides[2] * heights[0]
    streamed = weights >= machine.l2 // 8
    if block is None:
        block = machine.l2 // 2 if streamed else machine.l1 * 2 // 3
    per_block = max(1, min(tiles, block // max(row, 1)))
    per_block = -(-tiles // -(-tiles // per_block))
    if share is None:
        share = 1 + min(per_block.bit_length() - 1, 3) if streamed and g.groups == 1 else 0
    if ahead is None:
        ahead = 0 if panel <= machine.l1 * 2 // 3 or (taps == 1 and share) else 32 if taps == 1 else 16
    parts = "none" if rolled[0] or taps * g.cin <= CHUNK * 3 // 2 else (
        "row" if 1 < g.kernel[2] * g.cin <= CHUNK else "chunk")
    return ConvPlan(g, merge, heights, cols, panels, rolled, even, trims, edges, ahead, share, tiles, per_row,
                full, per_block, width, lanes, parts, chunk_of(g.cin, CHUNK), dtype)


def _misses(g: Geometry) -> tuple[int, int]:
    """How many pixels of an output row have a tap outside the image: at its beginning, at its end."""
    k, s, d, p, o, n = g.kernel[2], g.strides[2], g.dilations[2], g.pads[2], g.out[2], g.size[2]
    begin = min(o, max(0, -(-p // s)))
    end = sum((o - 1 - i) * s - p + (k - 1) * d >= n for i in range(min(o, 3)))
    return begin, end


@dataclass(frozen=True, slots=True)
class Stem:
    """A convolution with few input channels: the image is copied with its margins, each channel a plane, and
    the taps of a kernel row are one run. `planes` (images times channels), `rows` and `pitch` size the
    copy."""

    plan: ConvPlan
    planes: int
    rows: int
    pitch: int
    channels: int
    high: int
    wide: int
    top: int
    left: int

    def copy_cells(self, x_plane: int, x_row: int) -> list[int]:
        """The cells of `pad_rows` behind x and y: the source's elements between planes and between rows."""
        return [self.rows, self.high, self.wide, self.top, self.left, self.pitch, x_plane, x_row]

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """The copy's strides as `ConvPlan.cells` wants them."""
        plane = self.rows * self.pitch
        return self.channels * plane, plane, self.pitch, 1

    def pack(self, w: np.ndarray) -> np.ndarray:
        return self.plan.pack(np.moveaxis(w, -1, 1)[..., None])


@choice()
def plan_stem(g: Geometry, machine: Machine, dtype: str = "float32") -> Stem:
    """The plan for one group, no depth, and a kernel that is not spread along rows."""
    _, kh, kw = g.kernel
    _, oh, ow = g.out
    _, sh, sw = g.strides
    rows, pitch = max((oh - 1) * sh + (kh - 1) * g.dilations[1] + 1, 1), (ow - 1) * sw + kw
    inner = Geometry(g.batch, 1, kw, g.cout, (g.cin, rows, pitch), (g.cin, kh, 1), (1, sh, sw),
                     (1, g.dilations[1], 1), (0, 0, 0), g.out)
    rolled = (kh, kw) if kh * kw <= 9 else (0, 0)
    left = min(g.pads[2], pitch)
    return Stem(plan(inner, machine, rolled=rolled, dtype=dtype), g.batch * g.cin, rows, pitch,
                g.cin, g.size[1], min(g.size[2], pitch - left), g.pads[1], left)
