"""The floating types that are narrower than float32."""

from __future__ import annotations

from .types import ElementType

HALF = frozenset(e.numpy for e in ElementType if e.floating and e.numpy.itemsize < 4)
"""Reference bodies compute them in float32."""
