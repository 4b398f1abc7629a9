"""Copies of images of bytes with margins, as products of bytes read them.

In: an image (images, rows, cols, count) whose `count` channels are adjacent. Out: (images, phases, high,
wide, pitch): row r of phase i is the image's row r * `down` + i - `top`, `left` pixels from the left; what is
outside the image is the byte at `fill`.
"""

from __future__ import annotations

from collections.abc import Callable

from ...write.body import Body
from ...write.emit import I8, V, vec
from ...write.template import template

_SHORT = 16
"""Bytes of the vectors that short pieces are copied with."""


@template("x:ptr out:ptr phases:i64 high:i64 wide:i64 count:i64 pitch:i64 image_step:i64 row_step:i64 "
          "col_step:i64 rows:i64 cols:i64 down:i64 top:i64 left:i64 fill:ptr")
def int8_margins(f: Body, x: V, out: V, phases: V, high: V, wide: V, count: V, pitch: V, image_step: V,
                 row_step: V, col_step: V, rows: V, cols: V, down: V, top: V, left: V, fill: V, *,
                 dense: bool) -> None:
    """An item is a row of the copy; `cols`: how many of the image's pixels it takes. `dense`: pixels lie
    next to each other in both."""
    lanes = f.machine.lanes(1)
    byte = f.load(I8, fill)
    filler = f.splat(byte, lanes)
    margin = wide - left - cols

    def item(i: V) -> None:
        rest = i // high
        image = rest // phases
        y = (i - rest * high) * down + (rest - image * phases) - top
        target = f.gep(out, i * wide * pitch, I8)

        def inside() -> None:
            _fill(f, target, left * pitch, filler, byte)
            to = f.gep(target, left * pitch, I8)
            source = f.gep(x, image * image_step + y * row_step, I8)
            if dense:
                _copy(f, source, to, cols * count, lanes)
            else:
                f.loop(0, cols, 1, [source, to], lambda _, a, b: _pixel(f, a, b, count, lanes, col_step,
                                                                        pitch))
            _fill(f, f.gep(to, cols * pitch, I8), margin * pitch, filler, byte)
        f.when((y >= 0) & (y < rows), inside, lambda: _fill(f, target, wide * pitch, filler, byte))
    f.loop(f.lo, f.hi, 1, [], item)


def _pixel(f: Body, source: V, to: V, count: V, lanes: int, col_step: V, pitch: V) -> list[V]:
    _copy(f, source, to, count, lanes)
    return [f.gep(source, col_step, I8), f.gep(to, pitch, I8)]


def _copy(f: Body, source: V, to: V, size: V, lanes: int) -> None:
    """`size` bytes, the last vector over again what the one before it wrote."""
    def move(ty: str, i: V) -> None:
        f.store(f.load(ty, source, i), to, i)
    _covered(f, size, lanes, lambda wide, i: move(vec(I8, wide), i))


def _fill(f: Body, to: V, size: V, filler: V, byte: V) -> None:
    def put(wide: int, i: V) -> None:
        f.store(byte if wide == 1 else f.splat(byte, wide) if wide < filler.lanes else filler, to, i)
    _covered(f, size, filler.lanes, put)


def _covered(f: Body, size: V, lanes: int, each: Callable[[int, V], None]) -> None:
    """`each` of pieces that cover `size` bytes: the widest that fit, the last one perhaps twice."""
    if lanes == 1:
        f.loop(0, size, 1, [], lambda i: each(1, i))
        return
    f.when(size >= lanes,
           lambda: f.loop(0, size, lanes, [], lambda i: each(lanes, f.fast_min(i, size - lanes))),
           lambda: _covered(f, size, _SHORT if lanes > _SHORT else 1, each))
