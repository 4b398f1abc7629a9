"""Places in one arena for the buffers of a part: bytes are shared by buffers never alive together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..memory import LINE
from ..records import dataclass
from .step import KernelStep
from .tensor import Buffer, Tensor

ALIGN = LINE

_STAGGER = 4096
"""Sizes that are multiples of this are made a little longer, lest equal offsets in neighbouring buffers fall
into one set of the cache."""


@dataclass(frozen=True)
class Lives:
    """Which arena buffers there are, and by step which ones begin and end there; a step behind the last is
    for those that live throughout."""

    buffers: list[Buffer]
    starting: list[list[int]]
    ending: list[list[int]]

    @staticmethod
    def of(steps: Sequence[KernelStep], always: Sequence[Buffer],
           loops: Sequence[tuple[int, int]] = ()) -> Lives:
        """The lives of what `steps` touch. Buffers of `always` live throughout. `loops`: the first and last
        of steps that are done again and again: what others touch as well lives as long as these."""
        first: dict[Buffer, int] = {}
        last: dict[Buffer, int] = {}
        for i, step in enumerate(steps):
            for t in step.tensors():
                if t.buffer.kind == "arena":
                    first.setdefault(t.buffer, i)
                    last[t.buffer] = i
        for begin, end in loops:
            inside = _touched(steps[begin:end + 1])
            for b in inside & _touched([*steps[:begin], *steps[end + 1:]]):
                first[b], last[b] = min(first[b], begin), max(last[b], end)
        for b in always:
            if b.kind == "arena":
                first[b], last[b] = 0, len(steps)
        starting: list[list[int]] = [[] for _ in range(len(steps) + 1)]
        ending: list[list[int]] = [[] for _ in range(len(steps) + 1)]
        for at, (b, i) in enumerate(first.items()):
            b.first, b.last = i, last[b]
            starting[i].append(at)
            ending[b.last].append(at)
        return Lives(list(first), starting, ending)

    def placed(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """An offset for each buffer, whose bytes are `sizes`, and the arena's bytes."""
        offsets = [0] * len(sizes)
        rounded = [_rounded(size) for size in sizes]
        free: list[tuple[int, int]] = []
        top = 0
        for starting, ending in zip(self.starting, self.ending, strict=True):
            for b in sorted(starting, key=lambda b: -sizes[b]):
                size = rounded[b]
                best = min([place for place in free if place[1] >= size], key=_room, default=None)
                if best is not None:
                    free.remove(best)
                    at, room = best
                    if room > size:
                        free.append((at + size, room - size))
                else:
                    highest = max(free, default=None)
                    if highest is not None and highest[0] + highest[1] == top:
                        free.remove(highest)
                        at = highest[0]
                    else:
                        at = top
                    top = at + size
                offsets[b] = at
            for b in ending:
                _give(free, offsets[b], rounded[b])
        return offsets, top


def _touched(steps: Sequence[KernelStep]) -> set[Buffer]:
    return {t.buffer for step in steps for t in step.tensors() if t.buffer.kind == "arena"}


def plan(steps: Sequence[KernelStep], always: Sequence[Buffer], loops: Sequence[tuple[int, int]] = ()) -> int:
    """Give every arena buffer its offset; returns the arena's bytes. See `Lives.of`."""
    lives = Lives.of(steps, always, loops)
    offsets, size = lives.placed([b.size for b in lives.buffers])
    for b, offset in zip(lives.buffers, offsets, strict=True):
        b.offset = offset
    return size


def appends(steps: Sequence[KernelStep]) -> frozenset[tuple[int, int]]:
    """An input and an output each that may be the same memory: a cache that rows are appended to, and that
    nothing else reads."""
    pairs = [pair for step in steps for pair in _grown(step)]
    if not pairs:
        return frozenset()
    readers = Counter(index for step in steps for index in {
        a.buffer.index for a in step.args if isinstance(a, Tensor) and a.buffer.kind == "input"})
    return frozenset((old.buffer.index, out.buffer.index) for old, out in pairs
                     if (old.buffer.kind, out.buffer.kind) == ("input", "output")
                     and readers[old.buffer.index] == 1 and old.byte_offset == out.byte_offset == 0)


def _grown(step: KernelStep) -> list[tuple[Any, Any]]:
    """Caches that a step reads, and what they become."""
    kernel, args = "" if step.spec is None else step.spec.template, step.args
    if kernel == "append_rows":
        return [(args[0], args[2])]
    form = dict(step.spec.params).get("form") if kernel == "attend" else None
    return [(args[3], args[1]), (args[4], args[2])] if getattr(form, "grown", None) is not None else []


def _room(place: tuple[int, int]) -> int:
    return place[1]


def _rounded(size: int) -> int:
    size = -(-max(size, 1) // ALIGN) * ALIGN
    return size + ALIGN if size % _STAGGER == 0 else size


def _give(free: list[tuple[int, int]], at: int, size: int) -> None:
    """Return a range, joined with free neighbours."""
    for j, (start, room) in enumerate(free):
        if start + room == at:
            free.pop(j)
            _give(free, start, room + size)
            return
        if at + size == start:
            free.pop(j)
            _give(free, at, size + room)
            return
    free.append((at, size))
