"""Places in one arena for the buffers of a part: bytes are shared by buffers never alive together."""

from __future__ import annotations

from collections.abc import Sequence

from .lower import Step
from .tensor import Buffer, Tensor

ALIGN = 64

_STAGGER = 4096
"""Sizes that are multiples of this are made a little longer, lest equal offsets in neighbouring buffers fall
into one set of the cache."""


def tensors(step: Step) -> list[Tensor]:
    """Every tensor that `step` touches."""
    return [*[a for a in step.args if isinstance(a, Tensor)], *step.outs]


def plan(steps: Sequence[Step], always: Sequence[Buffer]) -> int:
    """Give every arena buffer its offset; returns the arena's bytes. Buffers of `always` live throughout."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for i, step in enumerate(steps):
        for t in tensors(step):
            if t.buffer.kind == "arena":
                first.setdefault(t.buffer, i)
                last[t.buffer] = i
    for b in always:
        if b.kind == "arena":
            first[b], last[b] = 0, len(steps)
    starting: list[list[Buffer]] = [[] for _ in range(len(steps) + 1)]
    ending: list[list[Buffer]] = [[] for _ in range(len(steps) + 1)]
    for b, i in first.items():
        b.first, b.last = i, last[b]
        starting[i].append(b)
        ending[b.last].append(b)
    free: list[tuple[int, int]] = []
    top = 0
    for i in range(len(steps) + 1):
        for b in sorted(starting[i], key=lambda b: -b.size):
            size = _rounded(b.size)
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
            b.offset = at
        for b in ending[i]:
            _give(free, b.offset, _rounded(b.size))
    return top


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
