"""Control flow within a program: jumps from row to row, the numbers of turns, and rows of what is scanned."""

from __future__ import annotations

from ..write.body import Body
from ..write.emit import I8, I64, V, vec
from ..write.template import NO_BRANCH, OUTSIDE, template

BLOCK = 1 << 15
"""Bytes that an item copies."""


@template("truth:ptr target:i64 wanted:i64")
def jump(f: Body, truth: V, target: V, wanted: V) -> None:
    """Nothing: `drive` makes the jump, to row `target` where the byte `truth` is false and `wanted` is 0, or
    it is true and `wanted` is 1."""


@template("number:ptr going:ptr end:ptr truth:ptr status:ptr")
def count_turn(f: Body, number: V, going: V, end: V, truth: V, status: V, *, first: bool) -> None:
    """The number of the `first` turn, or of the next one, and whether it is made: where that is less than
    `end`, `truth` says so, and no kernel gave up."""
    now = f.i64(0) if first else f.load(I64, number) + 1
    f.store(now, number)
    said = f.load(I64, status)
    more = f.load(I8, truth).ne(0) & (now < f.load(I64, end)) & (said.eq(0) | said.eq(OUTSIDE))
    f.store(f.select(more, f.const(I8, 1), f.const(I8, 0)), going)


@template("status:ptr")
def no_branch(f: Body, status: V) -> None:
    """Say that a branch was taken which cannot be computed."""
    f.store(f.i64(NO_BRANCH), status)


@template("to:ptr source:ptr number:ptr to_step:i64 source_step:i64 count:i64")
def copy_row(f: Body, to: V, source: V, number: V, to_step: V, source_step: V, count: V) -> None:
    """`count` bytes of the row of a number to another: rows are so many bytes apart. An item is a BLOCK of
    them."""
    row = f.load(I64, number)
    to, source = f.gep(to, row * to_step, I8), f.gep(source, row * source_step, I8)
    lanes = f.machine.lanes(1)

    def item(i: V) -> None:
        begin = i * BLOCK
        end = f.minimum(begin + BLOCK, count)
        whole = begin + ((end - begin) & -lanes)
        f.loop(begin, whole, lanes, [], lambda at: f.store(f.load(vec(I8, lanes), source, at), to, at))
        f.loop(whole, end, 1, [], lambda at: f.store(f.load(I8, source, at), to, at))
    f.loop(f.lo, f.hi, 1, [], item)
