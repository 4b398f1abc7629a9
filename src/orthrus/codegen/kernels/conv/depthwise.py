"""Depthwise convolution: every channel with its own small kernel, over channels-last images.

In: an image (N, C, H, W) of float32, or of float16 where an instruction widens it, whose channels are
adjacent, any pitch; weights of the same type packed by `direct.pack`; an elementwise tree over the float32
sums with its operands. Out: an image of the same kind. Some neighbouring pixels of an output row are summed
at once, vector by vector of their channels; each input vector is loaded once per kernel row and added to
every sum it belongs to. Taps outside the image are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import F32, I8, V, vec
from ...write.expr import BYTES, LLVM, Expr
from ...write.spec import Spec
from ...write.template import template
from ...write.tile import Operand, Rows, added
from .epilogue import PixelEpilogue, inside
from .geometry import Geometry

DEPTHWISE_CELLS = (
    "x:ptr w:ptr y:ptr rows:i64 width:i64 channels:i64 high:i64 wide:i64 kh:i64 sh:i64 dh:i64 ph:i64 pw:i64 "
    "xn:i64 xh:i64 xw:i64 yn:i64 yh:i64 yw:i64")

WRITTEN_OUT, SPAN = 16, 8
"""Taps along rows up to which all are written out, and how many are where there are more."""
PART = 32
"""Spans whose sum is added to that of the others, so that errors of long sums stay small."""


@template(DEPTHWISE_CELLS)
def depthwise_rows(f: Body, x: V, w: V, y: V, rows: V, width: V, channels: V, high: V, wide: V, kh: V, sh: V,
                   dh: V,
                   ph: V, pw: V, xn: V, xh: V, xw: V, yn: V, yh: V, yw: V, *, pixels: int, kw: int,
                   stride: int, dilation: int, lanes: int, dtype: str, tail: bool, tree: Expr | None,
                   operands: tuple[Operand, ...]) -> None:
    """Item image·rows + row of the output. `pixels` of a row are summed at once, `lanes` channels of them;
    `kw`, `stride` and `dilation` are those along rows."""
    elem, ty = LLVM[dtype], vec(F32, lanes)
    stored, each = vec(elem, lanes), BYTES[dtype]
    finish = PixelEpilogue(f, tree, operands, len(DEPTHWISE_CELLS.split()))
    size = BYTES[finish.dtype]
    spans, rest = divmod(kw, SPAN) if kw > WRITTEN_OUT else (0, kw)
    reach = (pixels - 1) * stride + (kw - 1) * dilation

    def item(i: V) -> None:
        image = i // rows
        oy = i - image * rows
        from_y, to_y = inside(f, oy * sh - ph, dh, kh, high)
        top = f.gep(x, image * xn + (oy * sh - ph + from_y * dh) * xh - pw * xw, elem)
        target = f.gep(y, (image * yn + oy * yh) * size, I8)

        def block(ox: V, careful: bool) -> None:
            start = f.gep(top, ox * stride * xw, elem)
            first = ox * stride - pw
            out = Rows(f, f.gep(target, ox * yw * size, I8), yw * size, pixels)

            def vector(c: V) -> None:
                mask = f.mask(lanes, channels - c) if tail else None
                here = f.gep(start, c, elem)
                taps = f.gep(w, c * (kh * kw) + from_y * (kw * lanes), elem)

                def span(count: int, here: V, taps: V, first: V, sums: Sequence[V]) -> list[V]:
                    now, columns = list(sums), _columns(pixels, stride, count, dilation)
                    weights = [f.load(stored, taps, b * lanes) for b in range(count)]
                    lines = Rows(f, here, xw * each, max(columns) + 1)
                    for column in sorted(columns):
                        def add(column: int = column) -> list[V]:
                            value = f.load_masked(stored, lines.at(lines.bases, column, 0), 0, mask)
                            return [added(f, now[n], value, weights[b]) for n, b in columns[column]]

                        def keep(column: int = column) -> list[V]:
                            return [now[n] for n, _ in columns[column]]
                        ix = first + column
                        made = f.when((ix >= 0) & (ix < wide), add, keep) if careful else add()
                        for (place, _), total in zip(columns[column], made, strict=True):
                            now[place] = total
                    return now

                def row(_line: V, here: V, taps: V, *sums: V) -> list[V]:
                    def moved(t: V) -> tuple[V, V, V]:
                        pixel = t * (SPAN * dilation)
                        return (f.gep(here, pixel * xw, elem), f.gep(taps, t * (SPAN * lanes), elem),
                                first + pixel)
                    now = list(sums)
                    def part(begin: V | int, end: V | int, s: Sequence[V]) -> list[V]:
                        return f.loop(begin, end, 1, s, lambda t, *s: span(SPAN, *moved(t), s))

                    if spans > PART:
                        zeros = [f.zero(ty)] * pixels
                        now = f.loop(0, spans, PART, now, lambda t, *total: [
                            a + b for a, b in zip(total, part(t, f.minimum(t + PART, spans), zeros),
                                                  strict=True)])
                    elif spans:
                        now = part(0, spans, now)
                    if rest:
                        now = span(rest, *(moved(f.i64(spans)) if spans else (here, taps, first)), now)
                    return [f.gep(here, dh * xh, elem), f.gep(taps, kw * lanes, elem), *now]
                sums = f.loop(from_y, to_y, 1, [here, taps, *[f.zero(ty)] * pixels], row)[2:]
                sides = finish.place(image, f.i64(0), c)
                fixed = finish.fixed(sides, lanes, [mask])
                bases = [f.gep(b, c * size, I8) for b in out.bases]

                def put(n: int) -> None:
                    given = finish.at(sides, oy, ox + n)
                    finish.pixel([sums[n]], fixed, given, out.at(bases, n, 0), [mask])
                for place in range(pixels):
                    if careful and place:
                        f.when(ox + place < width, partial(put, place))
                    else:
                        put(place)
            f.loop(0, channels, lanes, [], vector)

        def any_block(ox: V) -> None:
            first = ox * stride - pw
            plain = (first >= 0) & (first + reach < wide) & (ox + pixels <= width)
            f.when(plain, lambda: block(ox, False), lambda: block(ox, True))
        f.loop(0, width, pixels, [], any_block)
    f.loop(f.lo, f.hi, 1, [], item)


def _columns(pixels: int, stride: int, taps: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """By column of the image, counted from the first, the pixels of the output and the taps that meet there.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for n in range(pixels):
        for b in range(taps):
            found.setdefault(n * stride + b * dilation, []).append((n, b))
    return found


def fits(g: Geometry) -> bool:
    """Whether `depthwise_rows` does this convolution."""
    return (g.cin == 1 and g.cout == 1 and g.size[0] == g.kernel[0] == g.out[0] == 1 and g.pads[0] == 0
            and g.kernel[1] > 0 and g.kernel[2] > 0)


def lanes_of(g: Geometry, machine: Machine) -> int:
    """Channels done at once: those of two registers where an instruction works on both and the sums of eight
    pixels fit beside a row of weights."""
    lanes = machine.lanes(4)
    return 2 * lanes if machine.group > 1 and g.groups > lanes and g.kernel[2] <= 5 else lanes


def spec(g: Geometry, machine: Machine, tree: Expr | None, operands: Sequence[Operand],
         most: int = 8, dtype: str = "float32") -> Spec:
    blocks, lanes = -(-g.out[2] // most), lanes_of(g, machine)
    return depthwise_rows(pixels=-(-g.out[2] // blocks), kw=g.kernel[2], stride=g.strides[2], tree=tree,
                          dilation=g.dilations[2], lanes=lanes, dtype=dtype, operands=tuple(operands),
                          tail=g.groups % lanes != 0)


def cells(g: Geometry, x_strides: Sequence[int], y_strides: Sequence[int]) -> list[int]:
    """The cells behind x, w and y. Strides in elements: (image, depth, row, pixel)."""
    (xn, _, xh, xw), (yn, _, yh, yw) = x_strides, y_strides
    return [g.out[1], g.out[2], g.groups, g.size[1], g.size[2], g.kernel[1], g.strides[1], g.dilations[1],
            g.pads[1], g.pads[2], xn, xh, xw, yn, yh, yw]


def items(g: Geometry) -> int:
    return g.batch * g.out[1]
