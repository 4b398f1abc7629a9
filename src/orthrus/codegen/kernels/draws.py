"""Classes drawn with given probabilities."""

from __future__ import annotations

import math

from ..machines.machine import Machine
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import F64, I64, V, vec
from ..write.expr import LLVM
from ..write.template import template
from ..write.vmath import exp


def scratch(machine: Machine, classes: int) -> int:
    """Bytes that a thread needs."""
    lanes = machine.lanes(8)
    return -(-classes // lanes) * lanes * 8


@template("x:ptr draws:ptr out:ptr classes:i64 samples:i64")
def drawn_classes(f: Body, x: V, draws: V, out: V, classes: V, samples: V, *, dtype: str,
                  result: str) -> None:
    """An item is a row: for each of `samples` draws, float64 from 0 to 1, the first of `classes` at which the
    sum of the exponentials of x, that of all being 1, is above it; the last where none is, as in a row with
    NaN. Scratch: see `scratch`."""
    stored, lanes = LLVM[dtype], f.machine.lanes(8)
    ty, room = vec(F64, lanes), (classes + (lanes - 1)) & -lanes

    def row(item: V) -> None:
        given = f.gep(x, item * classes, stored)

        def taken(c: V, most: V) -> V:
            have = f.load_masked(vec(stored, lanes), given, c, f.mask(lanes, classes - c), -math.inf)
            wide = convert(f, have, dtype, "float64")
            f.store(wide, f.scratch, c)
            return f.maximum(most, wide)
        (most,) = f.loop(0, room, lanes, [f.const(ty, -math.inf)], taken)
        top = f.splat(f.reduce(most, f.maximum), lanes)
        f.loop(0, room, lanes, [], lambda c: f.store(exp(f, f.load(ty, f.scratch, c) - top), f.scratch, c))

        def summed(c: V, total: V) -> V:
            total = total + f.load(F64, f.scratch, c)
            f.store(total, f.scratch, c)
            return total
        (total,) = f.loop(0, room, 1, [f.const(F64, 0.0)], summed)

        def sample(s: V) -> None:
            at = item * samples + s
            wanted = f.splat(f.load(F64, draws, at) * total, lanes)

            def below(c: V, count: V) -> V:
                return count + f.cast(~(f.load(ty, f.scratch, c) > wanted), I64, unsigned=True)
            (count,) = f.loop(0, room, lanes, [f.zero(vec(I64, lanes))], below)
            found = f.minimum(f.reduce(count, lambda a, b: a + b), classes - 1)
            f.store(f.cast(found, LLVM[result]), out, at)
        f.loop(0, samples, 1, [], sample)
    f.loop(f.lo, f.hi, 1, [], row)
