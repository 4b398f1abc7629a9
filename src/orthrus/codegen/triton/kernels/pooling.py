"""Pooling: one number for each window of each channel, with a tree at the end.

In: an image and a result of any strides. A block has a tile of pixels by channels, and goes through the taps
of their windows one by one. Out: the largest element and where it is, the mean or a norm. Means and norms of
half precision are float32; a window without elements gives the type's lowest number, or 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..epilogue import Closing, Index
from ..windows import Slide, Sliding, through
from ..write import Writer, kernel
from .products import Tile

LOWEST = {"int8": -128, "uint8": 0}
"""Integers that have windows with a largest element, and what is below them all."""


def summed(kind: str, dtype: str) -> str:
    """The type of what a window gives."""
    return dtype if dtype == "float64" or kind == "max" else "float32"


_STEPS = {"average": "value", "l1": "tl.abs(value)", "l2": "value * value",
          "lp": "libdevice.pow(tl.abs(value), p + tl.zeros_like(value))"}
_ENDS = {"average": "{quotient}", "l1": "total", "l2": "tl.sqrt(total)",
         "lp": "libdevice.pow(total, 1 / p + tl.zeros_like(total))"}


@kernel
def pooling(k: Writer, *, kind: str, dtype: str, slide: Slide, taps: tuple[int, ...], near: bool, tile: Tile,
            closing: Closing, places: tuple[Closing, Slide] | None = None) -> None:
    """`kind`: max, average, l1, l2 or lp. `taps`: of a window along each axis that has some; `near`: whether
    the image's channels lie next to each other. `places`: how the largest elements' places are written, and
    the slide that counts these."""
    x = k.pointer("x", dtype)
    close = closing.declare(k)
    window = slide.declare(k)
    rows, channels = k.count("rows", closing.walk.near(0)), k.size("channels")
    x_c = "1" if near else k.size("x_c")
    long = ".to(tl.int64)" if slide.wide else ""
    work = k.typed(summed(kind, dtype))
    frame(k, tile, channels, long)
    window.stand(f"tl.minimum(m, {rows} - 1)[:, None]")
    indices: list[Index] = [("m[:, None]", f"m[:, None] < {rows}"), ("c[None, :]", "counts")]
    least = str(LOWEST[dtype]) if dtype in LOWEST else 'float("-inf")'
    start = least if kind == "max" else "0"
    k.text(f"total = tl.full(({tile.m}, {tile.n}), {start}, {work})")
    if places is not None:
        _largest_with_places(k, x, window, taps, x_c, long, tile, indices, least, places, rows)
        close.store("total", indices)
        return
    if kind == "average":
        window.count(taps)
    if kind == "lp":
        k.number("p")
    with k.block(through(math.prod(taps))):
        at, inside = window.at(window.places("tap", taps))
        mask = f"({inside}) & counts" if inside else "counts"
        value = k.load(x, f"({at} + c{long}[None, :] * {x_c})", mask, start)
        if kind == "max":
            k.text(f"total = tl.where(({value} > total) | ({value} != {value}), {value}, total)")
        else:
            k.text(f"""
                value = {value}.to({work})
                total += {_STEPS[kind]}
            """)
    quotient = f"total / count.to({work})" if dtype == "float64" else "tl.div_rn(total, count.to(tl.float32))"
    k.text(f"total = {_ENDS[kind].format(quotient=quotient)}" if kind != "max" else "")
    close.store("total", indices)


def frame(k: Writer, tile: Tile, channels: str, long: str) -> None:
    """Which pixels `m` and channels `c` a block has; `counts`: which of these there are."""
    k.text(f"""
        across = tl.cdiv({channels}, {tile.n})
        c = tl.program_id(0) % across * {tile.n} + tl.arange(0, {tile.n})
        m = (tl.program_id(0) // across){long} * {tile.m} + tl.arange(0, {tile.m})
        counts = (c < {channels})[None, :]
    """)
    k.warps, k.stages = tile.warps, 1


def _largest_with_places(k: Writer, x: str, window: Sliding, taps: tuple[int, ...], x_c: str, long: str,
                         tile: Tile, indices: Sequence[Index], least: str,
                         places: tuple[Closing, Slide], rows: str) -> None:
    closing, slide = places
    close, counter = closing.declare(k, "places"), slide.declare(k, "place")
    plane = k.size("plane")
    k.text(f"chosen = tl.full(({tile.m}, {tile.n}), -1, tl.int64)")
    counter.stand(f"tl.minimum(m, {rows} - 1)[:, None]")
    with k.block(through(math.prod(taps))):
        tapped = window.places("tap", taps)
        at, inside = window.at(tapped)
        where, _ = counter.at(tapped)
        mask = f"({inside}) & counts" if inside else "counts"
        value = k.load(x, f"({at} + c{long}[None, :] * {x_c})", mask, least)
        k.text(f"""
            better = (({value} > total) | (chosen < 0) | (({value} != {value}) & (total == total)))
            better = better & ({inside or "counts"})
            total = tl.where(better, {value}, total)
            chosen = tl.where(better, ({where}) + c[None, :].to(tl.int64) * {plane}, chosen)
        """)
    close.store("chosen", indices)


@kernel
def response_norm(k: Writer, *, dtype: str, slide: Slide, near: bool, tile: Tile, closing: Closing) -> None:
    """Each number over a power of the squares of those in the channels around it."""
    x = k.pointer("x", dtype)
    close = closing.declare(k)
    window = slide.declare(k)
    rows, channels = k.count("rows", closing.walk.near(0)), k.size("channels")
    x_c = "1" if near else k.size("x_c")
    reach, bias, alpha, beta = k.size("reach"), k.number("bias"), k.number("alpha"), k.number("beta")
    long = ".to(tl.int64)" if slide.wide else ""
    work = k.typed(summed("average", dtype))
    frame(k, tile, channels, long)
    window.stand(f"tl.minimum(m, {rows} - 1)[:, None]")
    k.text(f"total = tl.zeros(({tile.m}, {tile.n}), {work})")
    with k.block(f"for i in range({reach}):"):
        k.text(f"near = c + i - ({reach} - 1) // 2")
        value = k.load(x, f"({window.base} + near{long}[None, :] * {x_c})",
                       f"((near >= 0) & (near < {channels}))[None, :]")
        k.text(f"total += {value}.to({work}) * {value}.to({work})")
    value = k.load(x, f"({window.base} + c{long}[None, :] * {x_c})", "counts")
    k.text(f"total = {value}.to({work}) / libdevice.pow({bias} + {alpha} * total, {beta} + total * 0)")
    close.store("total", [("m[:, None]", f"m[:, None] < {rows}"), ("c[None, :]", "counts")])
