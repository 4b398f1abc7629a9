"""Mixtures of experts: which experts a token goes to, tokens in the order of their experts, products of each
expert with its tokens alone, and the sum of what comes back.

In: scores (tokens, experts). Out of `choose_experts`: (tokens, k) indices and what was given for them; of
`sort_by_expert`: which token each row is, where each token's rows went, and where each expert's begin. All
are int64 but for the numbers, which are float32.
"""

from __future__ import annotations

import math
from functools import partial

from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import F32, I64, V, vec
from ..write.expr import Expr
from ..write.template import template
from ..write.tile import Corner, Operand, TileEpilogue, long_tile, shapes
from .few_bits.layout import Blocks, Panel
from .few_bits.rows import most, tile_of
from .gemm import columns


@template("scores:ptr given:ptr experts:ptr weights:ptr count:i64 k:i64")
def choose_experts(f: Body, scores: V, given: V, experts: V, weights: V, count: V, k: V) -> None:
    """The `k` best of `count` scores of each token, of equal ones the last first, NaN the best of all, and
    the numbers `given` in their places. An item is a token."""
    endless = f.const(F32, math.inf)

    def token(t: V) -> None:
        row, numbers = f.gep(scores, t * count, F32), f.gep(given, t * count, F32)
        to, chosen = f.gep(experts, t * k, I64), f.gep(weights, t * k, F32)

        def one(j: V, before: V, last: V) -> list[V]:
            """The best below `before`, or as good and in front of `last`."""
            def better(e: V, best: V, at: V) -> list[V]:
                x = f.load(F32, row, e)
                x = f.select(x.eq(x), x, endless)
                free = (x < before) | (x.eq(before) & (e < last))
                wins = free & ((x >= best) | (at < 0))
                return [f.select(wins, x, best), f.select(wins, e, at)]
            best, at = f.loop(0, count, 1, [-endless, f.i64(-1)], better)
            f.store(at, to, j)
            f.store(f.load(F32, numbers, at), chosen, j)
            return [best, at]
        f.loop(0, k, 1, [endless, count], one)
    f.loop(f.lo, f.hi, 1, [], token)


@template("experts:ptr order:ptr place:ptr starts:ptr rows:i64 k:i64 count:i64")
def sort_by_expert(f: Body, experts: V, order: V, place: V, starts: V, rows: V, k: V, count: V) -> None:
    """`order` (rows): the token of each row; `place` (tokens, k): the row of each choice; `starts`
    (count + 1): where the rows of an expert begin. One item."""
    def all_of_it(_: V) -> None:
        f.loop(0, count + 1, 1, [], lambda e: f.store(f.i64(0), starts, e))

        def counted(r: V) -> None:
            e = f.load(I64, experts, r)
            f.store(f.load(I64, starts, e) + 1, starts, e)
        f.loop(0, rows, 1, [], counted)

        def ended(e: V, total: V) -> V:
            total = total + f.load(I64, starts, e)
            f.store(total, starts, e)
            return total
        f.loop(0, count + 1, 1, [f.i64(0)], ended)

        def put(i: V) -> None:
            r = rows - 1 - i
            e = f.load(I64, experts, r)
            at = f.load(I64, starts, e) - 1
            f.store(at, starts, e)
            f.store(r // k, order, at)
            f.store(at, place, r)
        f.loop(0, rows, 1, [], put)
    f.loop(f.lo, f.hi, 1, [], all_of_it)


def tallest(machine: Machine, cols: int, how: Blocks | None) -> int:
    """Rows of a tile."""
    return shapes(machine)[cols] if how is None else most(machine, cols)


@template("a:ptr b:ptr bias:ptr c:ptr starts:ptr n:i64 k:i64 a_row:i64 panels:i64 size:i64")
def expert_products(f: Body, a: V, b: V, bias: V, c: V, starts: V, n: V, k: V, a_row: V, panels: V, size: V,
                    *, how: Blocks | None, cols: int, tail: bool, biased: bool) -> None:
    """C (rows, n) = A·Bᵀ + bias, where the rows from starts[e] on are for expert e. B is packed by expert,
    `size` bytes each, as float32 or as `how` says; a bias (experts, n). An item is a panel of an expert."""
    lanes = f.machine.lanes()
    wide, full = cols * lanes, tallest(f.machine, cols, how)
    tree = Expr("add", (Expr.leaf(0, "float32"), Expr.leaf(1, "float32")), "float32") if biased else None
    operands = (Operand("float32", False, True),) if biased else ()
    finish = TileEpilogue(f, tree, operands)
    ty = vec(F32, lanes)
    room = f.alloca(ty, full * cols)

    def item(i: V) -> None:
        expert = i // panels
        p = i - expert * panels
        col, mine = p * wide, f.gep(b, expert * size, "i8")
        begin, end = f.load(I64, starts, expert), f.load(I64, starts, expert + 1)
        masks = [f.mask(lanes, n - col - j * lanes) if tail else None for j in range(cols)]
        sides = [Corner(f.gep(bias, expert * n + col, F32), f.i64(0))] if biased else []

        def some(first: V, rows: int) -> None:
            at = f.gep(a, first * a_row, F32)
            if how is None:
                sums = long_tile(f, rows, cols, at, a_row, f.gep(mine, p * k * wide, F32), wide, k, ty, room,
                                 prefetch=16)
            else:
                sums = tile_of(f, Panel(f, how, mine, p, k, cols, lanes), at, a_row, rows)
            finish.store(sums, cols, Corner(f.gep(c, first * n + col, F32), n), sides, masks)
        whole = begin + (end - begin) // full * full
        f.loop(begin, whole, full, [], lambda first: some(first, full))
        for rows in range(1, full):
            f.when((end - whole).eq(rows), partial(some, whole, rows))
    f.loop(f.lo, f.hi, 1, [], item)


def divided(machine: Machine, n: int) -> tuple[int, int, int]:
    """Vectors of a panel, its columns, and how many there are for `n`."""
    cols = columns(machine, n)
    wide = cols * machine.lanes()
    return cols, wide, -(-n // wide)


@template("rows:ptr place:ptr weights:ptr out:ptr n:i64 k:i64")
def weigh_rows(f: Body, rows: V, place: V, weights: V, out: V, n: V, k: V) -> None:
    """out[t] is the sum of weights[t, j] times the row at place[t, j], float32. An item is a token."""
    lanes = f.machine.lanes()
    floats = vec(F32, lanes)

    def token(t: V) -> None:
        to = f.gep(out, t * n, F32)

        def sum_at(col: V, mask: V | None) -> V:
            def one(j: V, total: V) -> V:
                row = f.gep(rows, (f.load(I64, place, t * k + j) * n) + col, F32)
                x = f.load_masked(floats, row, 0, mask)
                return f.fma(x, f.splat(f.load(F32, weights, t * k + j), lanes), total)
            (total,) = f.loop(0, k, 1, [f.zero(floats)], one)
            return total
        whole = n & -lanes
        f.loop(0, whole, lanes, [], lambda col: f.store(sum_at(col, None), to, col))

        def rest() -> None:
            mask = f.mask(lanes, n - whole)
            f.store_masked(sum_at(whole, mask), to, whole, mask)
        f.when(whole < n, rest)
    f.loop(f.lo, f.hi, 1, [], token)
