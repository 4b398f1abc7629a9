"""Places in one arena for the buffers of a part: bytes are shared by buffers never alive together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .lower import Step
from .tensor import Buffer, Tensor

ALIGN = 64

_STAGGER = 4096
"""Sizes that are multiples of this are made a little longer, lest equal offsets in neighbouring buffers fall
into one set of the cache."""


def tensors(step: Step) -> Iterable[Tensor]:
    """Every tensor that `step` touches."""
    for a in step.args:
        if isinstance(a, Tensor):
            yield a
    yield from step.outs


def plan(steps: Sequence[Step], always: Sequence[Buffer]) -> int:
    """Give every arena buffer its offset; returns the arena's bytes. Buffers of `always` live throughout."""
    buffers: dict[int, Buffer] = {}
    for i, step in enumerate(steps):
        for t in tensors(step):
            b = t.buffer
            if b.kind == "arena":
                if id(b) not in buffers:
                    buffers[id(b)] = b
                    b.first = i
                b.last = i
    for b in always:
        if b.kind == "arena":
            buffers[id(b)] = b
            b.first, b.last = 0, len(steps)
    ending: dict[int, list[Buffer]] = {}
    for b in buffers.values():
        ending.setdefault(b.last, []).append(b)
    starting: dict[int, list[Buffer]] = {}
    for b in buffers.values():
        starting.setdefault(b.first, []).append(b)
    free: list[tuple[int, int]] = []
    top = 0
    for i in range(len(steps) + 1):
        for b in sorted(starting.get(i, ()), key=lambda b: -b.size):
            size = _rounded(b.size)
            fits = [j for j, (_, room) in enumerate(free) if room >= size]
            if fits:
                j = min(fits, key=lambda j: free[j][1])
                at, room = free.pop(j)
                if room > size:
                    free.append((at + size, room - size))
            else:
                last = max(free, default=None)
                if last is not None and last[0] + last[1] == top:
                    free.remove(last)
                    at = last[0]
                else:
                    at = top
                top = at + size
            b.offset = at
        for b in ending.get(i, ()):
            _give(free, b.offset, _rounded(b.size))
    return top


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
