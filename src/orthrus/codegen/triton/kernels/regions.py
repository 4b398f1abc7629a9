"""Pooling over regions: bilinear samples of a feature map in the bins of boxes.

In: a map (N, C, H, W) of any strides, boxes, and the image of each. Out: the mean of each bin's samples, or
the largest of their weighted corners, with a tree at the end. Places of samples are float64, so that which
of them lie on the map is what the definition says.
"""

from __future__ import annotations

from ..epilogue import Closing
from ..windows import decoded
from ..write import Writer, kernel


@kernel
def region_bins(k: Writer, *, dtype: str, index: str, kind: str, half: bool, closing: Closing, block: int
                ) -> None:
    """A block of bins by their number. `kind`: average or max; `half`: boxes are shifted by half a pixel, and
    may be smaller than one. `status` is set where a box names no image."""
    k.pointer("x", dtype)
    k.pointer("boxes", dtype)
    k.pointer("images", index)
    k.pointer("status", "int64")
    close = closing.declare(k)
    for name in ("count", "many", "channels", "rows", "columns", "height", "width", "x_n", "x_c", "x_h",
                 "x_w", "box_r", "box_i", "image_r", "ratio"):
        k.size(name)
    k.number("scale")
    k.text(f"""
        i = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})
        inside = i < count
    """)
    box, channel, row, column = decoded(k, "i", ["channels", "rows", "columns"])
    image = k.load("images", f"{box} * image_r", "inside")
    k.text(f"""
        named = ({image} >= 0) & ({image} < many)
        some = tl.sum((inside & (named == 0)).to(tl.int32)) > 0
        tl.store(status + tl.arange(0, 1), tl.full((1,), 1, tl.int64), mask=some)
        plane = tl.where(named, {image}, 0).to(tl.int64) * x_n + {channel} * x_c
        finite = inside & named
    """)
    ends = [k.let(f"{k.load('boxes', f'{box} * box_r + {i} * box_i', 'inside')}.to(tl.float32) * scale"
                  f"{' - 0.5' if half else ''}", "end") for i in range(4)]
    k.text("\n".join(f"finite = finite & (tl.abs({end}) < float('inf'))" for end in ends))
    _along(k, "y", ends[1], ends[3], "rows", "height", row, half)
    _along(k, "x", ends[0], ends[2], "columns", "width", column, half)
    start = "0.0" if kind == "average" else 'float("-inf")'
    k.text(f"""
        total = tl.full(({block},), {start}, tl.float32)
        most_y = tl.max(tl.where(finite, behind_y - first_y, 0), 0)
        most_x = tl.max(tl.where(finite, behind_x - first_x, 0), 0)
        seen = tl.zeros(({block},), tl.int64)
    """)
    with k.block("for step_y in range(0, most_y):"):
        _sample(k, "y", "height")
        with k.block("for step_x in range(0, most_x):"):
            _sample(k, "x", "width")
            k.text("met = met_y & met_x\nseen += met.to(tl.int64)")
            for y in ("low", "high"):
                for x in ("low", "high"):
                    value = k.load("x", f"(plane + {y}_y * x_h + {x}_x * x_w)", "met")
                    k.text(f"corner = {value}.to(tl.float32) * ({y}_part_y * {x}_part_x).to(tl.float32)")
                    k.text("total += tl.where(met, corner, 0)" if kind == "average" else
                           "total = tl.where(met & ((corner > total) | (corner != corner)), corner, total)")
    k.text("""
        all_of = per_y * per_x
        total = tl.where(all_of > 0, total / tl.maximum(all_of, 1).to(tl.float32), 0)
    """ if kind == "average" else """
        total = tl.where((seen < tl.maximum(per_y * per_x, 1)) & (total < 0), 0.0, total)
    """)
    k.text("total = tl.where(finite, total, 0.0)")
    close.store("total", [("i", "inside")])
    k.warps, k.stages = max(1, block // k.target.warp), 1


_MOST = 1 << 52
"""Samples along an axis beyond which their places are no distinct numbers; such a box is empty."""


def _along(k: Writer, axis: str, low: str, high: str, bins: str, size: str, place: str, half: bool) -> None:
    """Of a bin's samples along an axis: how many there are (`per`), which of the box's are the `first` and
    the one `behind` the last that may lie on the map, and how far (`step_of`) they are apart from `start` on.
    """
    least = "" if half else f"\nlength_{axis} = tl.maximum(length_{axis}, 1.0)"
    k.text(f"length_{axis} = {high} - {low}{least}")
    k.text(f"""
        finite = finite & (tl.abs(length_{axis}) < float('inf'))
        length_{axis} = tl.where(finite, length_{axis}, 0.0)
        fitting = tl.maximum(tl.ceil(tl.div_rn(length_{axis}, tl.zeros_like(length_{axis}) + {bins})), 0.0)
        few = fitting.to(tl.float64) * {bins} <= {float(_MOST)}
        per_{axis} = tl.where(few, fitting, 0.0).to(tl.int64)
        per_{axis} = tl.where(ratio > 0, ratio + per_{axis} * 0, per_{axis})
        start_{axis} = tl.where(finite, {low}, 0.0).to(tl.float64)
        apart = tl.maximum(per_{axis} * {bins}, 1).to(tl.float64)
        step_of_{axis} = length_{axis}.to(tl.float64) / apart
        first_{axis} = {place}.to(tl.int64) * per_{axis}
        behind_{axis} = first_{axis} + per_{axis}
        moves = step_of_{axis} > 0
        by = tl.where(moves, step_of_{axis}, 1.0)
        left = tl.ceil((-1.0 - start_{axis}) / by - 0.5) - 1.0
        right = tl.floor(({size} - start_{axis}) / by - 0.5) + 2.0
        left = tl.minimum(tl.maximum(left, 0.0), {float(_MOST)}).to(tl.int64)
        right = tl.minimum(tl.maximum(right, 0.0), {float(_MOST)}).to(tl.int64)
        first_{axis} = tl.where(moves, tl.maximum(first_{axis}, left), first_{axis})
        behind_{axis} = tl.where(moves, tl.minimum(behind_{axis}, right), behind_{axis})
    """)


def _sample(k: Writer, axis: str, size: str) -> None:
    """The pixels beside a bin's next sample along an axis, and the parts they have in it."""
    k.text(f"""
        sample = first_{axis} + step_{axis}
        at = start_{axis} + (sample.to(tl.float64) + 0.5) * step_of_{axis}
        met_{axis} = finite & (sample < behind_{axis}) & (at >= -1.0) & (at <= {size})
        at = tl.where(met_{axis}, tl.maximum(at, 0.0), 0.0)
        low_{axis} = tl.minimum(at.to(tl.int64), {size} - 1)
        high_{axis} = tl.minimum(low_{axis} + 1, {size} - 1)
        high_part_{axis} = tl.where(low_{axis} == {size} - 1, 0.0, at - low_{axis}.to(tl.float64))
        low_part_{axis} = 1.0 - high_part_{axis}
    """)
