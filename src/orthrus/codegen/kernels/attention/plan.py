"""Which attention kernel serves given sizes, how its work is divided into items, and its arguments.

In: a machine, an `AttentionForm` and sizes. Out: an `AttentionPlan`, the same for the same sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....records import dataclass
from ....shapes.symbolic import choice
from ...machines.machine import Machine
from ...write.spec import Spec
from ...write.tile import shapes
from .few import Few, attend_few
from .many import Scratch, attend
from .parts import AttentionForm

FEW_QUERIES = 2
"""Queries per head up to which `attend_few` is the faster one."""


@dataclass(frozen=True)
class AttentionPlan:
    """A kernel, its items and bytes of scratch; `tiling` are the arguments from `tiles` to `per`, None where
    the kernel is `attend_few`."""

    spec: Spec
    items: int
    scratch: int
    tiling: tuple[int, int, int, int] | None


@choice()
def plan(machine: Machine, form: AttentionForm, batch: int, heads: int, kv_heads: int, length: int,
         total: int, threads: int = 1, grown: bool = False) -> AttentionPlan:
    """The kernel for `length` queries per head over `total` keys. `grown`: keys are copied to a cache on the
    way, which only `attend_few` does."""
    group = heads // kv_heads
    if grown or is_few(length):
        few = Few.of(machine, form.size, form.value_size)
        return AttentionPlan(attend_few(grown=grown, **vars(form)), batch * kv_heads,
                             few.bytes(machine, group * length, total), None)
    tiles, rows, tall = _tiling(shapes(machine)[2], length)
    block = block_of(machine, form.size + form.value_size)
    at = Scratch.of(machine, form.size, form.value_size, rows, block)
    most_slots = group * tiles if total <= block else max(machine.l2 // 12 // at.slot, 1)
    chunks = _chunks(batch * kv_heads, group * tiles, threads, most_slots)
    per = -(-group * tiles // chunks)
    chunks = -(-group * tiles // per)
    slots = 1 if total <= block else per
    return AttentionPlan(attend(rows=rows, short=tiles > 1, block=block, **vars(form)),
                         batch * kv_heads * chunks, 4 * (at.state + slots * at.slot),
                         (tiles, tall, chunks, per))


def _tiling(most: int, length: int) -> tuple[int, int, int]:
    """How `length` queries are divided: tiles, rows of the tall ones, how many those are. Beyond one tile the
    kernel is the same for every length: where tiles of two heights do not come out even, the last rows are
    done twice."""
    tiles = -(-length // most)
    if tiles == 1:
        return 1, length, 1
    return tiles, most, length - tiles * (most - 1) if length >= tiles * (most - 1) else tiles


def is_few(length: int, grown: bool = False) -> bool:
    """Whether `attend_few` is the faster kernel for so many queries; a cache it copies on the way pays for
    more."""
    return length <= (FEW_QUERIES + 2 if grown else FEW_QUERIES)


def block_of(machine: Machine, width: int) -> int:
    """Keys per block: as many as fit well into the second cache, a power of two."""
    block = 128
    while 2 * block * width * 4 <= machine.l2 // 2:
        block *= 2
    return block


def _chunks(heads: int, tiles: int, threads: int, most: int) -> int:
    """Into how many items the tiles of a head are divided, `most` tiles each, so that the threads end
    together. Packing keys and values costs about as much as half a tile."""
    best, least_time = 1, math.inf
    for chunks in range(-(-tiles // most), min(tiles, 4 * threads) + 1) or [-(-tiles // most)]:
        per = -(-tiles // chunks)
        time = -(-heads * -(-tiles // per) // threads) * (per + 0.5)
        if time < 0.97 * least_time:
            best, least_time = chunks, time
    return best


def arguments(made: AttentionPlan, tensors: Sequence[Any], strides: Sequence[Sequence[int]], kv_heads: int,
              group: int, length: int, total: int, window: tuple[int, int, int], ends_add: int, scale: float,
              cap: float,
              cache: tuple[Sequence[Any], Sequence[Sequence[int]], int] | None = None) -> list[Any]:
    """A plan's kernel arguments. `tensors`: q, k, v, out, mask, ends, sink, keep, 0 for those absent;
    `strides`: batch, head and position of q, k, v, out, mask and keep. `window`: shift, left, right. `cache`:
    past and present keys and values, their strides, and how many are past."""
    numbers = [*window, ends_add, scale, cap]
    if made.tiling is not None:
        lead, tail = [*tensors, kv_heads, group, length, total, *numbers, *made.tiling], strides
    else:
        arrays, steps, past = cache or ([0] * 4, [(0, 0, 0)] * 4, 0)
        lead, tail = [*tensors, *arrays, kv_heads, group, length, past, total, *numbers], [*strides, *steps]
    return [*lead, *(s for three in tail for s in three)]
