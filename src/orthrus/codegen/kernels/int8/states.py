"""States of a recurrent layer as bytes: quantized by their own range, multiplied by R of bytes.

In: float32 states, rows of `pitch` elements one after another, 0 where the hidden size ends before; and R as
`products.pack` packs it, whole numbers less a constant for each column. Out: gates' sums of float32, the sum
of products exact before it is scaled. The range is that of all rows, as DynamicQuantizeLinear's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import F32, I8, I16, I32, V, vec
from ...write.expr import Expr, emit
from ...write.tile import Rows
from .products import Packing
from .step import UNROLL, WIDE, Unit, summed, unit

F = "float32"
NUMBERS = 3
"""What each column has beside its elements, each a row of 32 bits: the scale (float32), the sum of its packed
elements, and what each of them lacks of R less its zero point."""


def unit_of(machine: Machine) -> Unit:
    """What a vector of sums is multiplied with."""
    mine = unit(machine, 2)
    return WIDE if mine.kind == "ime" else mine


def packing(machine: Machine, columns: int) -> Packing:
    """How R is packed in panels of `columns`."""
    group = unit_of(machine).group
    return Packing(group, columns, group * UNROLL)


def tallest(machine: Machine, cols: int) -> int:
    """Rows of a tile of `cols` vectors whose sums fit the registers."""
    mine = unit_of(machine)
    return max(1, (machine.registers - mine.temporaries - cols) // cols)


def room(rows: int, pitch: int) -> int:
    """Bytes for the codes of so many rows, with what is read behind them, and their totals."""
    return 2 * rows * pitch + 64 + 4 * rows


def centred(r: np.ndarray) -> np.ndarray:
    """R of int8 or uint8 as int8: as it is, or less 128."""
    return r if r.dtype == np.int8 else (r ^ np.uint8(128)).view(np.int8)


def lacking(r: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """What the elements of `centred(r)` lack of r less `zero`."""
    return (0 if r.dtype == np.int8 else 128) - zero.astype(np.int32)


class States:
    """`rows` rows of states, quantized to `at`, `room` bytes. `shifted`: some column's elements lack
    something."""

    def __init__(self, f: Body, at: V, rows: V, pitch: V, lanes: int, shifted: bool) -> None:
        self.f, self.at, self.rows, self.pitch, self.lanes, self.shifted = f, at, rows, pitch, lanes, shifted
        self.floats, self.ints, self.unit = vec(F32, lanes), vec(I32, lanes), unit_of(f.machine)
        self.elem = I16 if self.unit.size > 1 else I8
        self.totals = f.gep(at, rows * pitch * self.unit.size + 64, I8)

    def quantize(self, source: V) -> None:
        """Make the rows at `source` codes, uint8 or int16 that hold them."""
        f, lanes = self.f, self.lanes
        none = f.zero(self.floats)

        def extremes(i: V, low: V, high: V) -> list[V]:
            x = f.load(self.floats, source, i, 4 * lanes)
            return [f.minimum(low, x), f.maximum(high, x)]
        low, high = f.loop(0, self.rows * self.pitch, lanes, [none, none], extremes)
        low, high = f.reduce(low, f.minimum), f.reduce(high, f.maximum)
        by = (high - low) / 255.0
        self.scale = f.select(by.eq(0.0), f.const(F32, 1.0), by)
        code = emit(f, _code([Expr.const(0.0, F), Expr.const(255.0, F), Expr.const(0, "int32")]),
                    [-low / self.scale])
        self.zero = f.cast(code, I32, unsigned=True)
        shift = f.cast(self.zero, F32)
        given = [f.splat(v, lanes) for v in (-shift, 255.0 - shift, self.zero)]
        tree = _code([Expr.leaf(1, F), Expr.leaf(2, F), Expr.leaf(3, "int32")])

        def row(r: V) -> None:
            first = r * self.pitch

            def vector(i: V, *total: V) -> list[V]:
                x = f.load(self.floats, source, first + i, 4 * lanes) / self.scale
                code = emit(f, tree, [x, *given])
                f.store(f.cast(code, self.elem, unsigned=True), self.at, first + i)
                return [t + (f.cast(code, I32, unsigned=True) - self.zero) for t in total]
            total = f.loop(0, self.pitch, lanes, [f.zero(self.ints)] * self.shifted, vector)
            if self.shifted:
                f.store(f.reduce(total[0], lambda a, b: a + b), self.totals, r)
        f.loop(0, self.rows, 1, [], row)

    def times(self, first: V, count: int, panel: V, run: V, numbers: Sequence[V], sums: Sequence[V]
              ) -> list[V]:
        """`sums`, of `count` rows from row `first` on, plus what these states times the panel of R stand for;
        `numbers`: where the panel's columns begin in each row of `NUMBERS`."""
        f, lanes, cols = self.f, self.lanes, len(sums) // count
        a = Rows(f, f.gep(self.at, first * self.pitch, self.elem), self.pitch * self.unit.size, count)
        whole = summed(f, self.unit, a, panel, run, [f.zero(self.ints)] * len(sums), cols, False)[1:]
        by, columns, lacks = numbers
        totals = [f.load(I32, self.totals, first + r) for r in range(count)] if self.shifted else []
        made = list(sums)
        for c in range(cols):
            scale = f.load(self.floats, by, c * lanes) * self.scale
            less = f.load(self.ints, columns, c * lanes) * (self.zero + self.unit.offset(False))
            more = f.load(self.ints, lacks, c * lanes) if self.shifted else None
            for i in range(c, len(sums), cols):
                x = whole[i] - less
                if more is not None:
                    x = x + more * totals[i // cols]
                made[i] = f.fma(f.cast(x, F32), scale, sums[i])
        return made


def _code(held: Sequence[Expr]) -> Expr:
    return Expr("quantize", (Expr.leaf(0, F), *held), "uint8")
