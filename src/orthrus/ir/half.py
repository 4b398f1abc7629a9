"""The floating types that are narrower than float32."""

from __future__ import annotations

import functools
from typing import Any

from .types import ElementType


@functools.cache
def _further() -> frozenset[Any]:
    return frozenset(e.numpy for e in ElementType if e.floating and e.numpy.itemsize < 4)


class _Half:
    """numpy's types of them. What `ml_dtypes` has is imported when a type is met that is not numpy's own."""

    def __contains__(self, dtype: Any) -> bool:
        kind = getattr(dtype, "kind", "")
        return kind == "f" and dtype.itemsize < 4 or kind == "V" and dtype in _further()


HALF = _Half()
"""Reference bodies compute them in float32."""
