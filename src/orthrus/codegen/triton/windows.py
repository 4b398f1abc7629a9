"""Windows that slide over images: where the taps of each lie.

In: a `Slide`, which says for every axis of a result's pixels whether its windows have taps along it. Images
are such an axis too, one without. Out: in a kernel, for pixels by their number and taps by their place in the
window, the offsets of elements, and the mask of those that lie inside the image.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...records import dataclass
from .write import Writer

STILL, INSIDE, BOUNDED = "still", "inside", "bounded"
"""What windows do along an axis: have no taps there; have some, all of them inside the image; or some that
may lie beside it."""

_NUMBERS = {STILL: ("step",), INSIDE: ("step", "tap"), BOUNDED: ("step", "tap", "margin", "size", "stride")}
_OF_ELEMENTS = {STILL: ("step",), INSIDE: ("step", "tap"), BOUNDED: ("stride",)}

_WRITTEN_OUT = 49
"""Taps of a window up to which each is written out."""


def through(count: int) -> str:
    """The head of a loop over the taps of a window."""
    return f"for tap in {'tl.static_range' if count <= _WRITTEN_OUT else 'range'}({count}):"


@dataclass(frozen=True)
class Slide:
    """`axes`: of a result's pixels, outermost first, one of STILL, INSIDE, BOUNDED. `wide`: whether offsets
    need 64 bits."""

    axes: tuple[str, ...]
    wide: bool = False

    def declare(self, k: Writer, name: str = "x") -> Sliding:
        """Declare the image and the windows: per axis the size of the result, but for the first; the step
        from one window to the next and, where there are taps, from tap to tap, both in elements of the image.
        In a BOUNDED axis these are in pixels, and behind them come the margin before the image, the image's
        size and the elements from pixel to pixel."""
        sizes = [k.count(f"{name}_n{i}") for i in range(1, len(self.axes))]
        return Sliding(k, self, sizes, [
            [k.count(f"{name}_{part}{i}", part in _OF_ELEMENTS[kind]) for part in _NUMBERS[kind]]
            for i, kind in enumerate(self.axes)])


class Sliding:
    """A slide whose arguments are declared."""

    def __init__(self, k: Writer, slide: Slide, sizes: Sequence[str], numbers: Sequence[Sequence[str]]
                 ) -> None:
        self.k, self.slide, self.sizes, self.numbers = k, slide, sizes, numbers
        self.base = "0"
        self.starts: list[str] = []

    def stand(self, pixel: str) -> None:
        """From now on taps are those of the windows of these pixels, a Triton expression of any shape, which
        must not be negative."""
        k, terms, self.starts = self.k, list[str](), []
        places = decoded(k, f"({pixel}).to(tl.int64)" if self.slide.wide else pixel, self.sizes)
        for kind, place, numbers in zip(self.slide.axes, places, self.numbers, strict=True):
            if kind == BOUNDED:
                step, _, margin, _, stride = numbers
                start = k.let(f"{place} * {step} - {margin}", "start")
                self.starts.append(start)
                terms.append(f"{start} * {stride}")
            else:
                terms.append(f"{place} * {numbers[0]}")
        self.base = k.let(" + ".join(terms), "base")

    def at(self, taps: Sequence[str]) -> tuple[str, str | None]:
        """Offsets of the taps with these places in the window, one for each axis that has taps, and the mask
        of those inside the image, None where all are."""
        terms, masks, left = [self.base], list[str](), list(taps)
        starts = list(self.starts)
        for kind, numbers in zip(self.slide.axes, self.numbers, strict=True):
            if kind == STILL:
                continue
            tap = left.pop(0)
            away = f"({tap} + tl.zeros((), tl.int64))" if self.slide.wide else tap
            away = f"{away} * {numbers[1]}"
            if kind == BOUNDED:
                *_, size, stride = numbers
                place = f"({starts.pop(0)} + {away})"
                masks += [f"({place} >= 0)", f"({place} < {size})"]
                away = f"{away} * {stride}"
            terms.append(away)
        return " + ".join(terms), " & ".join(masks) or None

    def count(self, counts: Sequence[int]) -> None:
        """Declare, for each BOUNDED axis, the first pixel that counts and the one behind the last, and put
        into the variable `count` how many of a window's taps do, one at least along each axis."""
        k, terms, starts, left = self.k, list[str](), list(self.starts), list(counts)
        for i, (kind, numbers) in enumerate(zip(self.slide.axes, self.numbers, strict=True)):
            if kind == STILL:
                continue
            taps = left.pop(0)
            if kind == INSIDE:
                terms.append(str(taps))
                continue
            low, high, start, step = k.count(f"low{i}"), k.count(f"high{i}"), starts.pop(0), numbers[1]
            first = f"tl.maximum(({low} - {start} + {step} - 1) // {step}, 0)"
            behind = f"tl.minimum(({high} - {start} + {step} - 1) // {step}, {taps})"
            terms.append(k.let(f"tl.maximum({behind} - {first}, 1)", "many"))
        k.text(f"count = tl.zeros((), tl.int32) + {' * '.join(terms) or 1}")

    def places(self, tap: str, counts: Sequence[int]) -> list[str]:
        """The places of the `tap`-th tap of a window with `counts` of them along the axes that have taps."""
        return decoded(self.k, tap, [str(count) for count in counts[1:]]) if counts else []


def decoded(k: Writer, number: str, sizes: Sequence[str]) -> list[str]:
    """Places along axes, outermost first, by the number of an element; `sizes`: of all axes but the first."""
    found, rest = list[str](), number if not sizes else k.let(number, "rest")
    for size in reversed(sizes):
        found.append(k.let(f"{rest} % {size}", "place"))
        rest = k.let(f"{rest} // {size}", "rest")
    return [rest, *reversed(found)]
