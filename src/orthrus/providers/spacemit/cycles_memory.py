"""Which bytes a kernel touches, as a range for each of its instructions.

In: the addresses of loads and stores, as a walk comes by them. Out: how many different bytes they are. A
range is where the first and the last byte are, and how many of those between are touched; that instructions
touch the same bytes is seen where their ranges meet.
"""

from __future__ import annotations

Ranges = dict[int, list[int]]
"""By instruction: begin, end, bytes touched between them."""

LINE = 64


def add(ranges: Ranges, at: int, low: int, high: int, size: int) -> None:
    """Instruction `at` touched `size` bytes from `low` to `high`: those it touched before, or others."""
    entry = ranges.get(at)
    if entry is None:
        ranges[at] = [low, high, size]
    elif entry[0] == low and entry[1] == high:
        entry[2] = max(entry[2], size)
    else:
        entry[0], entry[1] = min(entry[0], low), max(entry[1], high)
        entry[2] = min(entry[1] - entry[0], entry[2] + size)


def add_all(ranges: Ranges, others: Ranges) -> None:
    """All that `others` hold."""
    for at, (low, high, size) in others.items():
        add(ranges, at, low, high, size)


def stride(ranges: Ranges, last: Ranges, before: Ranges, turns: int) -> None:
    """What `turns` iterations touch that move on as the `last` one did from the one `before`."""
    for at, (low, high, size) in last.items():
        step = low - before[at][0] if at in before else 0
        if step:
            entry = ranges[at]
            entry[0], entry[1] = min(entry[0], low + turns * step), max(entry[1], high + turns * step)
            entry[2] = min(entry[1] - entry[0], entry[2] + turns * size)


def size(ranges: Ranges) -> int:
    """The bytes of all ranges; of those that overlap or are a line apart, no more than lie between the ends.
    """
    total, begin, end, touched = 0, 0, -1, 0
    for low, high, count in sorted(tuple(entry) for entry in ranges.values()):
        if end < 0 or low > end + LINE:
            total += min(touched, end - begin) if end >= 0 else 0
            begin, end, touched = low, high, count
        else:
            touched += count if (low, high) != (begin, end) else max(0, count - touched)
            end = max(end, high)
    return total + (min(touched, end - begin) if end >= 0 else 0)
