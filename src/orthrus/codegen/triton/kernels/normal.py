"""Rows that are normalized as they enter a product of few rows.

In: rows as they lie before a normalization, its gain and what it adds. Out: elements of what it gives, and
what sums are multiplied by at the end. Root mean squares are summed beside the products, which are divided
by them; where rows are centred, all that a row takes is found before its products, as `norm_rows` does it.
"""

from __future__ import annotations

from collections.abc import Callable

from ....records import dataclass
from ..write import Writer

RMS, LAYER = "rms", "layer"

_EACH = 16
"""Elements of a thread, of those of a row that are met at once, at most."""


@dataclass(frozen=True)
class Normal:
    """A normalization of `kind`; the type of its `gain`, and of what it adds, empty for nothing. `whole`: no
    row has more elements than that, a power of two, or 0 where some may."""

    kind: str
    gain: str
    shift: str = ""
    whole: int = 0


class Entering:
    """A normalization whose arguments are declared: pointers here, `numbers` behind sizes."""

    def __init__(self, k: Writer, normal: Normal) -> None:
        self.k, self.normal = k, normal
        self.gain = k.pointer("gain", normal.gain)
        self.shift = k.pointer("shift", normal.shift) if normal.shift else None
        self.centred = normal.kind == LAYER

    def numbers(self) -> None:
        """Declare epsilon."""
        self.epsilon = self.k.number("epsilon")

    def begin(self, r: int, depth: str, load: Callable[[str, str], str], wide: int) -> None:
        """What a row needs before its products. `load`: its elements at places, where a mask says so; `wide`:
        elements that are multiplied at once."""
        k, whole = self.k, self.normal.whole
        if not self.centred:
            k.text(f"squares{r} = tl.zeros(({wide},), tl.float32)")
            return
        size = min(whole or 1 << 30, _EACH * 32 * k.warps)
        if whole == size:
            k.text(f"every = tl.arange(0, {size})")
            k.text(f"met = {load('every', f'every < {depth}')}.to(tl.float32)")
            k.text(f"mean{r} = tl.sum(met) / {depth}")
            k.text(f"met = tl.where(every < {depth}, met - mean{r}, 0.0)")
            k.text(f"rest{r} = tl.sum(met) / {depth}")
            k.text(f"spread = tl.sum(met * met) / {depth}")
        else:
            k.text(f"sums = tl.zeros(({size},), tl.float32)")
            with k.block(f"for start in range(0, {depth}, {size}):"):
                k.text(f"every = start + tl.arange(0, {size})")
                k.text(f"sums += {load('every', f'every < {depth}')}.to(tl.float32)")
            k.text(f"""
                mean{r} = tl.sum(sums) / {depth}
                sums = tl.zeros(({size},), tl.float32)
                powers = tl.zeros(({size},), tl.float32)
            """)
            with k.block(f"for start in range(0, {depth}, {size}):"):
                k.text(f"every = start + tl.arange(0, {size})")
                k.text(f"met = {load('every', f'every < {depth}')}.to(tl.float32)")
                k.text(f"""
                    met = tl.where(every < {depth}, met - mean{r}, 0.0)
                    sums += met
                    powers += met * met
                """)
            k.text(f"rest{r} = tl.sum(sums) / {depth}")
            k.text(f"spread = tl.sum(powers) / {depth}")
        k.text(f"""
            rest{r} = tl.where(tl.abs(rest{r}) < float("inf"), rest{r}, 0.0)
            spread -= rest{r} * rest{r}
            spread = tl.where(spread < 0, 0.0, spread)
            factor{r} = 1 / tl.sqrt_rn(spread + {self.epsilon})
        """)

    def affine(self, place: str, inside: str | None) -> tuple[str, str | None]:
        """The gains of elements of a row, and what is added to them."""
        k = self.k
        gain = k.let(f"{k.load(self.gain, place, inside)}.to(tl.float32)", "gain")
        if self.shift is None:
            return gain, None
        return gain, k.let(f"{k.load(self.shift, place, inside)}.to(tl.float32)", "shift")

    def entered(self, x: str, r: int, affine: tuple[str, str | None], inside: str | None) -> str:
        """Elements of row `r`, normalized but for what the sums are multiplied by; 0 where not `inside`."""
        k, (gain, shift) = self.k, affine
        x = k.let(f"{x}.to(tl.float32)", "x")
        if not self.centred:
            k.text(f"squares{r} = tl.fma({x}, {x}, squares{r})")
            return k.let(f"{x} * {gain}", "x")
        x = k.let(f"({x} - mean{r} - rest{r}) * factor{r}", "x")
        x = k.let(f"{x} * {gain}" if shift is None else f"tl.fma({x}, {gain}, {shift})", "x")
        return x if inside is None else k.let(f"tl.where({inside}, {x}, 0.0)", "x")

    @property
    def kept(self) -> bool:
        """Whether sums of squares go with those of products."""
        return not self.centred

    def squares(self, rows: int, columns: int) -> list[str]:
        """The sums of squares, each as often as there are columns."""
        return [f"tl.zeros(({columns},), tl.float32) + tl.sum(squares{r})" for r in range(rows)]

    def finished(self, values: list[str], squares: str, depth: str) -> list[str]:
        """The sums of a row's products with all that they are multiplied by."""
        k = self.k
        factor = k.let(f"1 / tl.sqrt_rn({squares} / {depth} + {self.epsilon})", "factor")
        return [k.let(f"{value} * {factor}") for value in values]
