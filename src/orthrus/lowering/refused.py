"""Shapes that a part was not lowered for, and whose fault that is.

In: what lowering raised. Out: the reasons, for reports. A part whose definitions then compute what its rules
raised for has met a fault of those rules: it runs many times slower, so that is told, once.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Hashable
from typing import Any

from ..errors import ALL, EPFail
from ..kernels import Part

log = logging.getLogger("orthrus")


class Refused(dict[Any, str]):
    """By shapes, why there is no plan. `strict`: what runs by its definitions for a rule's fault is an error.
    Errors themselves are not kept: their frames would hold the part and its weights.
    """

    def __init__(self, part: Part, strict: bool) -> None:
        super().__init__()
        self.part, self.strict = part, strict
        self._faults: dict[Hashable, str] = {}
        self._told: set[str] = set()

    def note(self, key: Hashable, error: Exception) -> None:
        """Lowering for these shapes raised."""
        self[key] = f"{type(error).__name__}: {error}"
        if not isinstance(error, ALL):
            last = traceback.extract_tb(error.__traceback__)[-1:]
            self._faults[key] = "".join(f"{frame.filename}:{frame.lineno}" for frame in last)

    def forget(self, key: Hashable) -> None:
        """The shapes' plan is not kept any more."""
        self.pop(key, None)
        self._faults.pop(key, None)

    def answered(self, key: Hashable) -> None:
        """The definitions computed what was refused. Raises EPFail where that is an error."""
        place = self._faults.get(key)
        if place is None:
            return
        if self.strict:
            raise EPFail(f"{self.part} cannot be compiled for these shapes, and fallback is 'error'",
                         node=self.part, found=f"{self[key]} at {place}",
                         expected="rules that lower a node or decline it with a reason",
                         cure="fallback='allow', or mend the rule")
        if place not in self._told:
            self._told.add(place)
            log.warning("%s runs by its nodes' definitions, which is slow: %s at %s", self.part, self[key],
                        place)
