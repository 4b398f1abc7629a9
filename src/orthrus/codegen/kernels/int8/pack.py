"""Second factors of products of bytes that are computed: packed as `products.pack` packs constant ones.

In: matrices B (taps, k, n) of int8 or uint8, elements of a row of n next to each other. Out: per matrix and
panel each tap, `run` elements of K of which `group` together are adjacent, as int8: uint8 less 128; what is
filled up is 0. And the sums of the packed columns, int32, whole panels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...write.body import Body
from ...write.emit import I8, I16, I32, V, vec
from ...write.template import template
from .step import Columns, lanes_of, unit

_CHAINS = 4
"""Sums that a column has side by side."""


@template("b:ptr out:ptr sums:ptr taps:i64 k:i64 n:i64 matrix:i64 tap:i64 row:i64 run:i64 panels:i64")
def int8_pack(f: Body, b: V, out: V, sums: V, taps: V, k: V, n: V, matrix: V, tap: V, row: V, run: V,
              panels: V, *, cols: int, unsigned: bool) -> None:
    """Item matrix * panels + panel; `matrix`, `tap`, `row`: bytes between those of B."""
    mine, lanes = unit(f.machine, cols), lanes_of(f.machine)
    group, panel, ty = mine.group, cols * lanes, vec(I8, lanes)
    whole = k & -group if group > 1 else k
    step = panel * group

    def centred(x: V) -> V:
        return x ^ f.const(x.ty, -128) if unsigned else x

    def vectors(source: V, to: V, first: int, count: int) -> None:
        """All of `count` vectors of columns from `first` on: `source`, `to`: a tap's."""
        def block(at: V, to: V, last: V | None) -> None:
            for c in range(first, first + count):
                rows = []
                for j in range(group):
                    if last is None:
                        rows.append(centred(f.load(ty, at, row * j + c * lanes)))
                        continue
                    x = centred(f.load(ty, at, row * f.fast_min(f.i64(j), last) + c * lanes))
                    rows.append(f.select(last >= j, x, f.zero(ty)))
                f.store(_woven(f, rows), to, c * lanes * group)

        def following(_: V, at: V, to: V) -> list[V]:
            block(at, to, None)
            return [f.gep(at, row * group, I8), f.gep(to, step, I8)]
        after = f.loop(0, whole, group, [source, to], following)
        if group > 1:
            f.when(whole < k, lambda: block(after[0], after[1], k - whole - 1))

    def columns(source: V, to: V, c: int, count: V) -> None:
        """`count` columns of vector `c`, of which it has more, by single bytes."""
        def element(i: V) -> None:
            block = i // group
            place = f.gep(to, block * step + (i - block * group) + c * lanes * group, I8)
            f.loop(0, count, 1, [], lambda j: f.store(
                centred(f.load(I8, source, i * row + c * lanes + j)), place, j * group))
        f.loop(0, k, 1, [], element)

    def item(i: V) -> None:
        of = i // panels
        column = (i - of * panels) * panel
        base = f.gep(b, of * matrix + column, I8)
        made = f.gep(out, i * (taps * run * panel), I8)
        left = n - column

        def each(t: V) -> None:
            source, to = f.gep(base, t * tap, I8), f.gep(made, t * (run * panel), I8)
            filled = (k + (group - 1)) // group * group
            begin = f.select(left < panel, f.i64(0), filled * panel)
            f.loop(begin, run * panel, lanes, [], lambda at: f.store(f.zero(ty), to, at))

            def ragged() -> None:
                for c in range(cols):
                    rest = left - c * lanes
                    f.when(rest >= lanes, partial(vectors, source, to, c, 1),
                           partial(columns, source, to, c, rest))
            f.when(left >= panel, lambda: vectors(source, to, 0, cols), ragged)
        f.loop(0, taps, 1, [], each)
        signed = bool(mine.offset(False))
        ones = f.table(I8 if mine.size == 1 else I16, [1] * 4)

        def added(chains: int) -> Callable[..., list[V]]:
            def steps(_: V, at: V, *total: V) -> list[V]:
                now = list(total)
                for chain in range(chains):
                    across = Columns(f, mine, f.gep(at, chain * step, I8), cols, lanes)
                    one = across.row(ones, signed)
                    for c in range(chain * cols, chain * cols + cols):
                        now[c] = across.add(now[c], one, c % cols)
                return [f.gep(at, chains * step, I8), *now]
            return steps
        size = taps * run
        many = size - size % (_CHAINS * group)
        none = [f.zero(vec(I32, lanes))] * (cols * _CHAINS)
        at, *total = f.loop(0, many, _CHAINS * group, [made, *none], added(_CHAINS))
        _, *first = f.loop(many, size, group, [at, *total[:cols]], added(1))
        for c, x in enumerate(first):
            for chain in range(1, _CHAINS):
                x = x + total[chain * cols + c]
            f.store(x, sums, i * panel + c * lanes)
    f.loop(f.lo, f.hi, 1, [], item)


def _woven(f: Body, rows: list[V]) -> V:
    """Vectors of bytes as one in which their first elements come first."""
    if len(rows) == 1:
        return rows[0]
    lanes = rows[0].lanes
    pairs = []
    for a, b in zip(rows[::2], rows[1::2], strict=True):
        both = f.shuffle(a, b, [i // 2 + lanes * (i % 2) for i in range(2 * lanes)])
        pairs.append(f.bitcast(both, vec(I16, lanes)))
    if len(pairs) == 1:
        return f.bitcast(pairs[0], vec(I8, 2 * lanes))
    made = f.shuffle(pairs[0], pairs[1], [i // 2 + lanes * (i % 2) for i in range(2 * lanes)])
    return f.bitcast(made, vec(I8, 4 * lanes))
