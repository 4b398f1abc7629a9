"""Sizes that open dimensions are taken for before anybody says: a batch of one, an image, a sentence, one new
token after some.

In: the declared shapes of inputs that go together. Out: shapes without open dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

_SEQUENCE, _IMAGE, _OTHERWISE = 128, 224, 32
_PAST = 31


def likely_shapes(shapes: Sequence[Sequence[int | str | None]], cached: bool) -> list[tuple[int, ...]]:
    """Each of `shapes` with sizes for its names and unknowns. `cached`: keys and values of the past are among
    the inputs, so that dimensions go by their names."""
    first = {shape[0] for shape in shapes if shape}
    sequences = any(len(s) in (2, 3) and any(map(_open, s[1:])) for s in shapes)
    by_rank = {2: _SEQUENCE, 3: _SEQUENCE, 4: _SEQUENCE if sequences else _IMAGE}

    def size(i: int, d: int | str | None, rank: int) -> int:
        if isinstance(d, int) and d >= 0:
            return d
        if i == 0 or (isinstance(d, str) and d in first):
            return 1
        return _by_name(str(d)) if cached else by_rank.get(rank, _OTHERWISE)
    return [tuple(size(i, d, len(shape)) for i, d in enumerate(shape)) for shape in shapes]


def _open(d: int | str | None) -> bool:
    return not isinstance(d, int) or d < 0


def _by_name(name: str) -> int:
    if "total" in name or "+" in name:
        return _PAST + 1
    return _PAST if "past" in name else 1
