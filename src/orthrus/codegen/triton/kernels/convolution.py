"""Convolutions: sums of products over the taps of windows, with a tree at the end.

In: images, weights and a result of any strides. A result is a matrix of pixels, those of all images, by the
channels of a group; its depth is taps by channels, tap by tap. Out: `convolution` multiplies tiles of what
its pixels' windows meet, which is nowhere in memory, by tiles of the weights, where the GPU has one by its
matrix unit; `depthwise` is for groups of one channel, where there is nothing to multiply tiles of. Sums of
half precision are float32, those of bytes less their zero points int32; beside an image is its zero point.
"""

from __future__ import annotations

import math

from ....records import dataclass
from ..epilogue import Closing
from ..parts import Parts
from ..windows import Slide, through
from ..write import Writer, kernel
from .pooling import frame
from .products import MARGIN, MIDDLE, ONE, Numbers, Sums, Tile, lying


@dataclass(frozen=True)
class Pair(Numbers):
    """Image and weights; of zero points the image has but one number."""

    dtypes: tuple[str, str]
    precision: str = "ieee"
    zeros: tuple[str | None, str | None] = (None, None)


@kernel
def convolution(k: Writer, *, numbers: Pair, slide: Slide, taps: tuple[int, ...], kinds: str, whole: bool,
                few: int, even: bool, grouped: bool, merged: int, inner: bool, cut: bool, tile: Tile,
                closing: Closing) -> None:
    """A tile of the result of one group. `taps`: of a window along each axis that has some. `kinds`: whether
    the stride of the image's channels, and of the weights' outputs, inputs and taps, is 1 or another.
    `whole`: a step stays within a tap, and is full of channels if `even`; else there are but a `few` of them,
    by which places are divided at every step. `merged`: so many groups are one, whose weights are 0 for each
    other's channels: sums that are not finite are added up again, group by group, as 0 times infinity is NaN.
    `inner`: nothing is multiplied by what stands beside the image, not even infinity, so that such sums are
    added up again by one product after the other. `cut`: a block adds but some of the products."""
    x, w = (k.pointer(name, "int8" if "int8" in dtype else dtype)
            for name, dtype in zip("xw", numbers.dtypes, strict=True))
    zeros = numbers.points(k)
    parts = Parts(k, numbers.total, cut)
    close = closing.declare(k)
    window = slide.declare(k)
    rows = k.count("rows", any(map(closing.walk.near, range(len(closing.walk.kinds) - 1))))
    cin, cout = k.count("cin", not even) if whole else str(few), k.size("cout")
    strides = [k.size(name) if kind == "s" else "1"
               for name, kind in zip(("x_c", "w_o", "w_i", "w_t"), kinds, strict=True)]
    x_c, w_o, w_i, w_t = strides
    long = ".to(tl.int64)" if slide.wide else ""
    k.warps, k.stages = tile.warps, tile.stages
    cells = "tl.num_programs(0)"
    if cut:
        each = k.count("each")
        cells = k.let(f"tl.num_programs(0) // {k.count('many')}", "cells")
    k.text(f"""
        across = tl.cdiv({cout}, {tile.n})
        rest = tl.program_id(0) % {cells} // across
        n = tl.program_id(0) % across * {tile.n} + tl.arange(0, {tile.n})
    """)
    x_at = w_at = out_at = ""
    if grouped:
        groups, w_g = k.count("groups"), k.size("w_g")
        k.text(f"""
            group = rest % {groups}
            rest = rest // {groups}
            first_x = (group * {cin}){long} * {x_c}
            first_w = group * {w_g}
            first_out = group * {cout}
        """)
        x_at, w_at, out_at = "first_x + ", "first_w + ", "first_out + "
    count = math.prod(taps)
    steps = f"{count} * tl.cdiv({cin}, {tile.k})" if whole else f"tl.cdiv({count} * {cin}, {tile.k})"
    k.text(f"first, end = 0, {steps}")
    if cut:
        k.text(f"""
            first = tl.program_id(0) // {cells} * {each}
            end = tl.minimum(end, first + {each})
        """)
    k.text(f"""
        m = rest{long} * {tile.m} + tl.arange(0, {tile.m})
        count = 0
    """)
    sums, (lack_x, lack_w) = Sums(k, numbers, tile), numbers.lacks
    margin = _margin(k, numbers, zeros[0])
    window.stand(f"tl.minimum(m, {rows} - 1)[:, None]")

    def tiles(own: str) -> tuple[str, str]:
        """A step's tiles of both, channels of the image where they are `own`."""
        if whole:
            k.text(f"""
                chunks = tl.cdiv({cin}, {tile.k})
                tap = step // chunks
                c = step % chunks * {tile.k} + tl.arange(0, {tile.k})
                counts = c < {cin}
            """)
            row, column = "tap", "tap"
        else:
            k.text(f"""
                place = step * {tile.k} + tl.arange(0, {tile.k})
                tap = place // {cin}
                c = place % {cin}
                counts = tap < {count}
            """)
            row, column = "tap[None, :]", "tap[:, None]"
        at, inside = window.at(window.places(row, taps))
        masks = [f"({inside})"] if inside else []
        masks += [f"({own})[None, :]"] if own else []
        masks += [] if even else ["counts[None, :]"]
        a = k.load(x, f"({x_at}{at} + c{long}[None, :] * {x_c})", " & ".join(masks) or None, margin)
        kept = f"(n < {cout})[None, :]" if even else f"counts[:, None] & (n < {cout})[None, :]"
        b = k.load(w, f"({w_at}{column} * {w_t} + c[:, None] * {w_i} + n[None, :] * {w_o})", kept,
                   str(-lack_w))
        return a, b
    with k.block("for step in range(first, end):"):
        a, b = (k.let(f"{value} ^ -128") if lack else value
                for value, lack in zip(tiles(""), (lack_x, lack_w), strict=True))
        if numbers.subtracts[1] and not even:
            a = k.let(f"tl.where(counts[None, :], {a}, 0).to(tl.int8)")
        if all(numbers.subtracts):
            k.text("count += tl.sum(counts.to(tl.int32))")
        sums.add(a, b)
    unusual = 'tl.min((tl.abs(acc) < float("inf")).to(tl.int32)) == 0'
    if inner:
        with k.rarely(unusual):
            k.text("alone = tl.zeros_like(acc)")
            with k.block(f"for spot in tl.range(first * {tile.k}, end * {tile.k}, num_stages=1):"):
                k.text(f"""
                    chunks = tl.cdiv({cin}, {tile.k})
                    tap = spot // {tile.k} // chunks
                    c = spot // {tile.k} % chunks * {tile.k} + spot % {tile.k}
                    counts = c < {cin}
                """ if whole else f"""
                    tap = spot // {cin}
                    c = spot % {cin}
                    counts = tap < {count}
                """)
                at, inside = window.at(window.places("tap", taps))
                met = k.let(f"{inside or 'm[:, None] >= 0'} & counts", "met")
                own = k.let(f"(n < {cout}) & counts", "own")
                a = k.load(x, f"({x_at}{at} + c{long} * {x_c})", met)
                b = k.load(w, f"({w_at}tap * {w_t} + c * {w_i} + n * {w_o})", own)
                if merged > 1:
                    own = f"{own} & (c // ({cin} // {merged}) == n // ({cout} // {merged}))"
                k.text(f"""
                    product = {a}.to({k.typed(numbers.total)}) * {b}.to({k.typed(numbers.total)})[None, :]
                    alone += tl.where({met} & ({own})[None, :], product, 0.0)
                """)
            k.text("acc = alone")
    elif merged > 1 and "float" in numbers.total:
        with k.rarely(unusual), k.block(f"for one in range({merged}):"):
            k.text("alone = tl.zeros_like(acc)")
            with k.block("for step in tl.range(first, end, num_stages=1):"):
                sums.add(*tiles(f"c // ({cin} // {merged}) == one"), "alone")
            k.text(f"acc = tl.where((n // ({cout} // {merged}) == one)[None, :], alone, acc)")
    value = sums.less(zeros, ("m", ""), (f"({out_at}n)", f"n < {cout}"), "count")
    with parts.last("tl.program_id(0)", cells, [value], *lying(tile)) as (value,):
        close.store(value, [("m[:, None]", f"m[:, None] < {rows}"),
                            (f"({out_at}n)[None, :]", f"(n < {cout})[None, :]")])



def _margin(k: Writer, numbers: Pair, zero: str | None) -> str:
    """What stands beside an image, as its elements lie in memory."""
    if zero is not None:
        return k.let(f"{k.load(zero, '0')}.to(tl.int8, bitcast=True)", "margin")
    return "-128" if numbers.zeros[0] == MIDDLE else "0"


@kernel
def depthwise(k: Writer, *, numbers: Pair, slide: Slide, taps: tuple[int, ...], kinds: str, several: bool,
              inner: bool, tile: Tile, closing: Closing) -> None:
    """A tile of the result, each channel from one channel of the image. `kinds`: whether the stride of the
    image's channels, and of the weights' channels and taps, is 1 or another. `several`: channels that are
    made from the same one lie next to each other. `inner`: as of `convolution`."""
    x, w = (k.pointer(name, dtype) for name, dtype in zip("xw", numbers.dtypes, strict=True))
    zeros = numbers.points(k)
    close = closing.declare(k)
    window = slide.declare(k)
    rows, channels = k.count("rows", closing.walk.near(0)), k.size("channels")
    x_c, w_c, w_t = (k.size(name) if kind == "s" else "1"
                     for name, kind in zip(("x_c", "w_c", "w_t"), kinds, strict=True))
    total = k.typed(numbers.total)
    source = f"c // {k.size('several')}" if several else "c"
    long = ".to(tl.int64)" if slide.wide else ""
    frame(k, tile, channels, long)
    k.text(f"""
        source = ({source}){long}[None, :] * {x_c}
        total = tl.zeros(({tile.m}, {tile.n}), {total})
    """)
    window.stand(f"tl.minimum(m, {rows} - 1)[:, None]")
    less = [_less(k, numbers, i, zero, channels) for i, zero in enumerate(zeros)]
    with k.block(through(math.prod(taps))):
        at, inside = window.at(window.places("tap", taps))
        mask = f"({inside}) & counts" if inside else "counts"
        a = f"({k.load(x, f'({at} + source)', mask)}.to({total}){less[0]})"
        b = f"({k.load(w, f'(tap * {w_t} + c[None, :] * {w_c})', 'counts')}.to({total}){less[1]})"
        product = f"{f'tl.where({mask}, {a}, 0)' if less[0] else a} * {b}"
        k.text(f"total += {f'tl.where({mask}, {product}, 0.0)' if inner else product}")
    close.store("total", [("m[:, None]", f"m[:, None] < {rows}"), ("c[None, :]", "counts")])


def _less(k: Writer, numbers: Pair, i: int, zero: str | None, channels: str) -> str:
    """What is subtracted from an element of the image, or of the weights of the channels `c`."""
    how = numbers.zeros[i]
    if zero is None:
        return " - 128" if how == MIDDLE else ""
    value = k.load(zero, "0") if how in (ONE, MARGIN) else k.load(zero, "c", f"c < {channels}") + "[None, :]"
    return f" - {value}.to(tl.int32)"
