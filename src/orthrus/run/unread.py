"""Inputs that no step reads: fed like the others, checked like them, and given to nobody.

In: a run that knows the other inputs only, and these. Out: a run that knows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..ir import TensorType, Value

Run = Callable[[Any, Any], list[Any] | None]


def past(run: Run, unread: Sequence[Value], most: int) -> Run:
    """`run(names, feeds)` for feeds that have `unread` too, tensors of `most` bytes at most; None where it
    gives None, and where one of them is not a plain array as it is declared."""
    if not unread:
        return run
    from .feeds import entry

    checks = [(v.name, entry(v, most)) for v in unread]

    def checked(names: Any, feeds: Any) -> list[Any] | None:
        if type(feeds) is not dict:
            return None
        read = feeds.copy()
        for name, check in checks:
            given = read.pop(name, None)
            if type(given) is not np.ndarray:
                return None
            try:
                check(given)
            except (InvalidArgument, RuntimeError):
                return None
        return run(names, read)
    return checked


def anything(unread: Sequence[Value]) -> Mapping[str, np.ndarray]:
    """Arrays that these take, whatever is in them."""
    made = {}
    for value in unread:
        assert isinstance(value.type, TensorType) and value.type.elem is not None
        shape = [d if isinstance(d, int) else 1 for d in value.type.shape or ()]
        made[value.name] = np.zeros(shape, value.type.elem.numpy)
    return made
