"""Models on several devices and machines: `Replicas` and `Pipeline` on those of one machine,
`orthrus.distributed.ray` on a cluster of Ray's.

In: models and rows. Out: rows, every one once. Everything here stands on the public API; nothing below knows
of it, and no engine is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..later import later

if TYPE_CHECKING:
    from .crew import Replica
    from .pipeline import Pipeline
    from .replicas import Replicas

__all__ = ["Pipeline", "Replica", "Replicas"]

__getattr__ = later(__name__, {"crew": ("Replica",), "pipeline": ("Pipeline",), "replicas": ("Replicas",)})
