"""Sampling: each pixel of the result the weighted sum of a few pixels of an image, with a tree at the end.

In: an image and a result of any strides, and either tables that say for each axis by itself which places each
element reads and with which weights, or a grid that says where in the image each pixel lies. Out: sums in
float32; what reads but one place copies elements of any type.
"""

from __future__ import annotations

import itertools
from math import prod

from ..epilogue import Closing
from ..windows import decoded
from ..write import Writer, kernel
from .pooling import frame
from .products import Tile

_WRITTEN_OUT = 16
"""Places of a pixel up to which each is written out."""


@kernel
def resize(k: Writer, *, dtype: str, taps: tuple[int, ...], near: bool, wide: bool, tile: Tile,
           closing: Closing) -> None:
    """`taps`: for each axis of the pixels, outermost first, how many places an element reads, 0 where the
    axis is kept; those with several have weights. `near`: whether the channels lie next to each other."""
    x = k.pointer("x", dtype)
    tables = [(k.pointer(f"places{i}", "int32"), k.pointer(f"weights{i}", "float32") if count > 1 else "")
              if count else None for i, count in enumerate(taps)]
    close = closing.declare(k)
    sizes, steps = k.sizes("n", len(taps) - 1), k.sizes("step", len(taps))
    rows, channels = k.count("rows", closing.walk.near(0)), k.size("channels")
    x_c = "1" if near else k.size("x_c")
    long = ".to(tl.int64)" if wide else ""
    work = k.typed("float32" if max(taps) > 1 else dtype)
    frame(k, tile, channels, long)
    places = decoded(k, f"tl.minimum(m, {rows} - 1)[:, None]", sizes)
    still = [f"{place} * {step}" for place, step, count in zip(places, steps, taps, strict=True) if not count]
    k.text(f"""
        base = {' + '.join([f"c{long}[None, :] * {x_c}", *still])}
        total = tl.zeros(({tile.m}, {tile.n}), {work})
    """)
    loop = "tl.static_range" if prod(count or 1 for count in taps) <= _WRITTEN_OUT else "range"

    def along(axis: int, at: str, weight: str) -> None:
        if axis == len(taps):
            value = k.load(x, f"({at})", "counts")
            k.text(f"total += {value}.to({work}) * {weight}" if weight else f"total = {value}")
            return
        table, count = tables[axis], taps[axis]
        if table is None:
            along(axis + 1, at, weight)
        elif count == 1:
            place = k.load(table[0], places[axis])
            along(axis + 1, k.let(f"{at} + {place}{long} * {steps[axis]}", "at"), weight)
        else:
            with k.block(f"for tap{axis} in {loop}({count}):"):
                which = k.let(f"{places[axis]} * {count} + tap{axis}", "which")
                place, share = k.load(table[0], which), k.load(table[1], which)
                along(axis + 1, k.let(f"{at} + {place}{long} * {steps[axis]}", "at"),
                      k.let(f"{weight} * {share}" if weight else share, "weight"))
    along(0, "base", "")
    close.store("total", [("m[:, None]", f"m[:, None] < {rows}"), ("c[None, :]", "counts")])


NEAREST, LINEAR, CUBIC = "nearest", "linear", "cubic"
ZEROS, BORDER, REFLECTION = "zeros", "border", "reflection"

_FAR = 1e9
"""Pixels outside of an image beyond which a coordinate need not be exact."""

_STEPS = {NEAREST: (0,), LINEAR: (0, 1), CUBIC: (-1, 0, 1, 2)}


@kernel
def grid_sample(k: Writer, *, dtype: str, grid: str, rank: int, mode: str, padding: str, aligned: bool,
                near: bool, wide: bool, tile: Tile, closing: Closing) -> None:
    """Coordinates from -1 to 1, those of the last axis first, are the image's edges, or if `aligned` the
    centres of its corners' pixels. Outside lies 0, the nearest pixel, or the image reflected."""
    x, where = k.pointer("x", dtype), k.pointer("grid", grid)
    close = closing.declare(k)
    counts, lengths = k.sizes("n", rank), k.sizes("size", rank)
    steps, strides = k.sizes("step", rank + 1), k.sizes("grid_step", rank + 2)
    rows, channels = k.count("rows", closing.walk.near(0)), k.size("channels")
    x_c = "1" if near else k.size("x_c")
    long = ".to(tl.int64)" if wide else ""
    frame(k, tile, channels, long)
    places = decoded(k, f"tl.minimum(m, {rows} - 1)[:, None]", counts)
    k.text(f"""
        base = {places[0]} * {steps[0]} + c{long}[None, :] * {x_c}
        line = {' + '.join(f'{place} * {stride}' for place, stride in zip(places, strides, strict=False))}
        total = tl.zeros(({tile.m}, {tile.n}), {k.typed('float32' if mode != NEAREST else dtype)})
    """)
    axes = []
    for axis in range(rank):
        at = k.load(where, f"line + {rank - 1 - axis} * {strides[-1]}")
        axes.append(_taps(k, f"{at}.to(tl.float32)", lengths[axis], mode, padding, aligned))
    for chosen in itertools.product(*axes):
        at = " + ".join(["base", *(f"{place}{long} * {step}" for (place, *_), step in zip(
            chosen, steps[1:], strict=True))])
        inside = " & ".join(["counts", *(mask for *_, mask in chosen if mask)])
        value = k.load(x, f"({at})", inside)
        share = " * ".join(weight for _, weight, _ in chosen if weight)
        k.text(f"total += {value}.to(tl.float32) * ({share})" if share else f"total = {value}")
    close.store("total", [("m[:, None]", f"m[:, None] < {rows}"), ("c[None, :]", "counts")])


def _taps(k: Writer, at: str, length: str, mode: str, padding: str, aligned: bool
          ) -> list[tuple[str, str, str]]:
    """What a coordinate reads along an axis: places, weights, empty where there are none, and masks."""
    size = k.let(f"({length} + tl.zeros((), tl.int32)).to(tl.float32)", "size")
    at = k.let(at, "coordinate")
    spread = f"* 0.5 * ({size} - 1.0)" if aligned else f"* {size} * 0.5 - 0.5"
    at = k.let(f"({at} + 1.0) {spread}", "at")
    at = k.let(f"tl.where({at} != {at}, -1.0 - {size}, {at})", "at")
    at = k.let(f"tl.minimum(tl.maximum({at}, -{_FAR} - {size}), {_FAR} + {size})", "at")
    if mode == NEAREST:
        at = k.let(f"libdevice.rint({at})", "at")
    elif mode == LINEAR and padding != ZEROS:
        at = _reflected(k, at, size, aligned) if padding == REFLECTION else at
        at = k.let(f"tl.minimum(tl.maximum({at}, 0.0), {size} - 1.0)", "at")
    low = k.let(f"libdevice.floor({at})", "low")
    part = k.let(f"{at} - {low}", "part")
    found = []
    for step in _STEPS[mode]:
        place = k.let(f"{low} + {float(step)}", "spot")
        if padding == REFLECTION:
            place = _reflected(k, place, size, aligned)
        inside = k.let(f"({place} >= 0.0) & ({place} <= {size} - 1.0)", "inside") if padding == ZEROS else ""
        held = f"tl.minimum(tl.maximum(libdevice.rint({place}), 0.0), {size} - 1.0).to(tl.int32)"
        found.append((k.let(held, "held"), _weight(k, part, step, mode), inside))
    return found


def _weight(k: Writer, part: str, step: int, mode: str) -> str:
    if mode == NEAREST:
        return ""
    if mode == LINEAR:
        return k.let(f"1.0 - {part}" if step == 0 else f"{part} + 0.0", "share")
    away = k.let(f"tl.abs({part} - {float(step)})", "away")
    if step in (0, 1):
        return k.let(f"(1.25 * {away} - 2.25) * {away} * {away} + 1.0", "share")
    return k.let(f"((-0.75 * {away} + 3.75) * {away} - 6.0) * {away} + 3.0", "share")


def _reflected(k: Writer, at: str, size: str, aligned: bool) -> str:
    """A coordinate outside as one inside, mirrored at the edges, or at the corner pixels' centres if
    `aligned`."""
    low = "0.0" if aligned else "-0.5"
    span = k.let(f"{size} - 1.0" if aligned else f"{size} + 0.0", "span")
    away = k.let(f"tl.abs({at} - {low})", "away")
    rest = k.let(f"libdevice.fmod({away}, {away} * 0.0 + 2.0 * {span})", "rest")
    made = f"tl.where({rest} > {span}, 2.0 * {span} - {rest}, {rest}) + {low}"
    return k.let(f"tl.where({span} <= 0.0, {low}, {made})", "at")
