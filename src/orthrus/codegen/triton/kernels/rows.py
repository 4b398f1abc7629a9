"""Softmax, normalizations and their like: rows of strided tensors in, each changed by numbers that the whole
row gives, out.

A block has a tile of rows by columns. Rows that fit are held in registers; longer ones are met in pieces,
once for each number and once more to write. Arithmetic is float32. Behind what reads and writes, kernels take
how many rows there are, and how long each is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ....records import dataclass
from ..epilogue import Closer, Closing, Index, Reader, Reading
from ..trees import TYPES
from ..write import Writer, kernel

PER_THREAD = 16
"""Elements of a tile for each thread, about."""


@dataclass(frozen=True)
class Tile:
    """How a block meets rows: so many of them and columns at once; `whole`: all columns at once."""

    rows: int
    columns: int
    whole: bool

    @property
    def elements(self) -> int:
        return self.rows * self.columns


class Rows:
    """The rows of a block: `r`, a column of their numbers, and inside of `columns` `c`, a row of places.
    `near`: whether elements of neighbouring rows lie next to each other."""

    def __init__(self, k: Writer, tile: Tile, near: bool) -> None:
        self.k, self.tile = k, tile
        self.count, self.length = k.count("count", near), k.size("length")
        self.inside = f"(c < {self.length})"
        self.mask = None if tile.rows == 1 else f"r < {self.count}"
        k.text(f"r = (tl.program_id(0) * {tile.rows} + tl.arange(0, {tile.rows}))[:, None]")
        k.warps, k.stages = warps(k, tile.elements), 2

    @property
    def indices(self) -> list[Index]:
        return [("r", self.mask), ("c", self.inside)]

    @contextlib.contextmanager
    def columns(self) -> Iterator[None]:
        """What is added inside is done for all columns."""
        every = f"tl.arange(0, {self.tile.columns})[None, :]"
        if self.tile.whole:
            self.k.text(f"c = {every}")
            yield
            return
        with self.k.block(f"for start in range(0, {self.length}, {self.tile.columns}):"):
            self.k.text(f"c = start + {every}")
            yield

    def full(self, name: str, value: str, dtype: str = "tl.float32") -> str:
        """A tile of one number, named so."""
        self.k.text(f"{name} = tl.full(({self.tile.rows}, {self.tile.columns}), {value}, {dtype})")
        return name

    def only(self, x: str, other: str) -> str:
        """`x`, but `other` behind the row's end."""
        return self.k.let(f"tl.where({self.inside}, {x}, {other})")

    def total(self, x: str) -> str:
        """The sum of each row, a column."""
        return f"tl.sum({x}, 1, keep_dims=True)"


def warps(k: Writer, elements: int) -> int:
    """Of a block with a tile of so many elements."""
    return max(1, min(8, elements // (PER_THREAD * k.target.warp)))


@kernel
def softmax_rows(k: Writer, *, reading: Reading, closing: Closing, tile: Tile, log: bool, steps: str = ""
                 ) -> None:
    """exp(x - max) over its sum, or with `log` the logarithm of that; NaN along rows without a finite
    element. `steps`: the type that exponentials and sums are rounded to, where they are."""
    read, close = reading.declare(k), closing.declare(k)
    rows = Rows(k, tile, reading.walk.near(0) or closing.walk.near(0))

    def rounded(value: str) -> str:
        return f"({value}).to({TYPES[steps]}).to(tl.float32)" if steps else value

    def entered() -> str:
        return rows.only(read.load(rows.indices), 'float("-inf")')
    if tile.whole:
        with rows.columns():
            x = entered()
            k.text(f"""
                most = tl.max({x}, 1, keep_dims=True)
                e = {rounded(f"libdevice.exp({x} - most)")}
                total = {rounded(rows.total("e"))}
            """)
            _share(close, rows, x, log, "e")
        return
    (_met_twice if steps else _met_once)(rows, entered, rounded)
    with rows.columns():
        x = read.load(rows.indices)
        _share(close, rows, x, log, rounded(f"libdevice.exp({x} - most)"))


def _met_once(rows: Rows, entered: Callable[[], str], _: Callable[[str], str]) -> None:
    """Find `most` and `total` of each row, the total growing with the largest so far."""
    k = rows.k
    rows.full("highest", 'float("-inf")')
    rows.full("sums", "0.0")
    with rows.columns():
        x = entered()
        k.text(f"""
            higher = tl.maximum(highest, {x})
            from_here = tl.where(higher == float("-inf"), 0.0, higher)
            sums = sums * libdevice.exp(highest - from_here) + libdevice.exp({x} - from_here)
            highest = higher
        """)
    k.text(f"""
        most = tl.max(highest, 1, keep_dims=True)
        most = tl.where(most == float("-inf"), 0.0, most)
        total = {rows.total("sums * libdevice.exp(highest - most)")}
    """)


def _met_twice(rows: Rows, entered: Callable[[], str], rounded: Callable[[str], str]) -> None:
    """Find `most` and then `total` of each row."""
    k = rows.k
    rows.full("highest", 'float("-inf")')
    with rows.columns():
        k.text(f"highest = tl.maximum(highest, {entered()})")
    k.text("most = tl.max(highest, 1, keep_dims=True)")
    rows.full("sums", "0.0")
    with rows.columns():
        k.text(f"sums += {rounded(f'libdevice.exp({entered()} - most)')}")
    k.text(f"total = {rounded(rows.total('sums'))}")


def _share(close: Closer, rows: Rows, x: str, log: bool, e: str) -> None:
    value = f"{x} - most - libdevice.log(total)" if log else f"{e} / total"
    close.store(rows.k.let(value), rows.indices)


@kernel
def norm_rows(k: Writer, *, reading: Reading, closing: Closing, tile: Tile, kind: str,
              keep: Closing | None = None, mean: bool = False, inverse: bool = False) -> None:
    """Rows divided by their size: `layer` (x - mean) / sqrt(variance + epsilon), `rms` x / sqrt(mean square +
    epsilon), `deviation` (x - mean) / (sqrt(variance) + epsilon), `l1` and `l2` x over its norm, 0 where that
    is 0. The variance is that of the centred values, whose own mean, what rounding took from the first, is
    met in the same pass and taken off too. `keep` gets x itself.

    Arguments behind those of `keep`: epsilon, then where asked for each row's mean and factor.
    """
    read, close = reading.declare(k), closing.declare(k)
    rows = Rows(k, tile, reading.walk.near(0) or closing.walk.near(0))
    kept = None if keep is None else keep.declare(k, "kept")
    epsilon = k.number("epsilon")
    statistics = [(k.pointer(name, "float32"), name) for name, asked in (
        ("middle", mean), ("factor", inverse)) if asked]
    centred = kind in ("layer", "deviation")
    x = _sized(read, rows, kept, kind, centred)
    k.text(f"spread = power / {rows.length}")
    if centred:
        k.text(f"""
            rest = rest / {rows.length}
            rest = tl.where(tl.abs(rest) < float("inf"), rest, 0.0)
            spread -= rest * rest
            spread = tl.where(spread < 0, 0.0, spread)
        """)
    factor = {"l1": "power", "l2": "tl.sqrt_rn(power)", "deviation": f"1 / (tl.sqrt_rn(spread) + {epsilon})"
              }.get(kind, f"1 / tl.sqrt_rn(spread + {epsilon})")
    k.text(f"row_factor = {factor}")
    for pointer, name in statistics:
        k.store(pointer, "r", "row_middle + rest" if name == "middle" else "row_factor", rows.mask)
    if tile.whole:
        _divided(close, rows, k.let(f"{x} - rest") if centred else x, kind)
        return
    with rows.columns():
        x = read.load(rows.indices)
        _divided(close, rows, k.let(f"{x} - row_middle - rest") if centred else x, kind)


def _sized(read: Reader, rows: Rows, kept: Closer | None, kind: str, centred: bool) -> str:
    """Find `row_middle`, `rest`, the sum of what is centred, and `power`, of each row; where rows are whole,
    also what is centred."""
    k, whole = rows.k, rows.tile.whole

    def entered() -> str:
        x = read.load(rows.indices)
        if kept is not None:
            kept.store(x, rows.indices)
        return rows.only(x, "0.0")

    def square(x: str) -> str:
        return f"tl.abs({x})" if kind == "l1" else f"{x} * {x}"
    if whole:
        with rows.columns():
            x = entered()
            if centred:
                k.text(f"row_middle = {rows.total(x)} / {rows.length}")
                x = rows.only(f"{x} - row_middle", "0.0")
                k.text(f"rest = {rows.total(x)}")
            k.text(f"power = {rows.total(square(x))}")
        return x
    if centred:
        rows.full("sums", "0.0")
        with rows.columns():
            k.text(f"sums += {entered()}")
        k.text(f"row_middle = {rows.total('sums')} / {rows.length}")
        rows.full("rests", "0.0")
    rows.full("powers", "0.0")
    with rows.columns():
        x = rows.only(f"{read.load(rows.indices)} - row_middle", "0.0") if centred else entered()
        k.text(f"powers += {square(x)}")
        if centred:
            k.text(f"rests += {x}")
    k.text(f"power = {rows.total('powers')}")
    if centred:
        k.text(f"rest = {rows.total('rests')}")
    return ""


def _divided(close: Closer, rows: Rows, x: str, kind: str) -> None:
    value = (f"tl.where(row_factor == 0, 0.0, {x} / row_factor)" if kind in ("l1", "l2")
             else f"{x} * row_factor")
    close.store(rows.k.let(value), rows.indices)
