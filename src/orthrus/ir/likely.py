"""Sizes that open dimensions are taken for before anybody says: a batch of one, an image, a sentence, one new
token after some.

In: the declared shapes of inputs that go together. Out: shapes without open dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

_BY_RANK = {2: 128, 3: 128, 4: 224}
_OTHERWISE = 32
_PAST = 31


def likely_shapes(shapes: Sequence[Sequence[int | str | None]], cached: bool) -> list[tuple[int, ...]]:
    """Each of `shapes` with sizes for its names and unknowns. `cached`: keys and values of the past are among
    the inputs, so that dimensions go by their names."""
    first = {shape[0] for shape in shapes if shape}
    return [tuple(d if isinstance(d, int) and d >= 0 else 1 if d in first and d is not None or not i
                  else _by_name(str(d)) if cached else _BY_RANK.get(len(shape), _OTHERWISE)
                  for i, d in enumerate(shape)) for shape in shapes]


def _by_name(name: str) -> int:
    if "total" in name or "+" in name:
        return _PAST + 1
    return _PAST if "past" in name else 1
