"""How windows lie over an image of any strides: what `codegen.triton.windows` writes the offsets of taps of.

In: an image (N, C, spatial...) and its windows. Out: the kernel's parameters, and its arguments in the order
in which the kernel declares them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.triton.kernels.products import Tile
from ...codegen.triton.windows import BOUNDED, INSIDE, STILL, Slide
from ...records import dataclass
from ..tensor import Tensor, extent
from .walks import LONG

Spans = Sequence[int]
"""One number for each spatial axis."""


@dataclass(frozen=True)
class Windows:
    """Per spatial axis the taps of a window, the pixels from window to window and from tap to tap, the margin
    before the image, and how many windows there are."""

    taps: Spans
    strides: Spans
    dilations: Spans
    margins: Spans
    out: Spans


@dataclass(frozen=True)
class Slid:
    """Windows over one image: the kernel's parameters `slide` and `taps`, the numbers it takes, the image
    from where the first window starts, and the spatial axes along which windows may leave it."""

    slide: Slide
    taps: tuple[int, ...]
    numbers: list[int]
    image: Tensor
    bounded: tuple[int, ...]


def slid(image: Tensor, windows: Windows) -> Slid:
    """Windows over `image`."""
    axes: list[tuple[str, int, list[int]]] = [(STILL, image.shape[0], [image.strides[0]])]
    taps, bounded, first = list[int](), list[int](), image
    for axis, (k, s, d, p, o) in enumerate(zip(windows.taps, windows.strides, windows.dilations,
                                               windows.margins, windows.out, strict=True), 2):
        size, each = image.shape[axis], image.strides[axis]
        inside = p <= 0 and (o - 1) * s - p + (k - 1) * d < size
        if k > 1 or not inside:
            taps.append(k)
            bounded += [] if inside else [axis - 2]
            axes.append((INSIDE, o, [s * each, d * each]) if inside else (BOUNDED, o, [s, d, p, size, each]))
        else:
            axes.append((STILL, o, [s * each]))
        if inside:
            first = first.slice(axis, -p, size + p)
    kept = _merged(axes)
    numbers = [count for _, count, _ in kept[1:]] + [number for *_, own in kept for number in own]
    wide = extent(image.shape, [abs(s) for s in image.strides]) >= LONG
    return Slid(Slide(tuple(kind for kind, *_ in kept), wide), tuple(taps), numbers, first,
                tuple(bounded))


def _merged(axes: Sequence[tuple[str, int, list[int]]]) -> list[tuple[str, int, list[int]]]:
    """`axes` without those of one still window, and as one where nothing slides and they lie behind each
    other."""
    kept = list[tuple[str, int, list[int]]]()
    for kind, count, numbers in axes:
        if kind == STILL and count == 1:
            continue
        if kept and kind == STILL == kept[-1][0] and kept[-1][2][0] == count * numbers[0]:
            kept[-1] = STILL, kept[-1][1] * count, numbers
        else:
            kept.append((kind, count, numbers))
    return kept or [(STILL, 1, [0])]


def tile_of(rows: int, channels: int, last: bool) -> Tile:
    """Pixels by channels of a kernel that goes through an image's taps, whose channels are `last` or not:
    long along what lies together."""
    if last:
        columns = min(64, max(4, 1 << (channels - 1).bit_length()))
        return Tile(max(1, min(512 // columns, 1 << (rows - 1).bit_length())), columns, 1)
    high = min(256, max(4, 1 << (rows - 1).bit_length()))
    return Tile(high, max(1, min(512 // high, 1 << (channels - 1).bit_length())), 1)
