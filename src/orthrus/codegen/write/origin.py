"""What addresses lead into, followed while a kernel is written.

An address that is read from an argument leads into what that argument is; what is reckoned from it, chosen
among such or carried by a loop leads there too. Nothing of this is in the text: `bounds` asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Origin:
    """What an address leads into: a region, or what the addresses it was made of lead into."""

    __slots__ = ("region", "others")

    def __init__(self, region: Any = None, others: Sequence[Origin | None] = ()) -> None:
        self.region, self.others = region, list(others)

    def regions(self) -> list[Any]:
        """Every region there is behind this."""
        seen, left = {id(self): self}, [self]
        while left:
            for other in left.pop().others:
                if other is not None and id(other) not in seen:
                    seen[id(other)] = other
                    left.append(other)
        return [each.region for each in seen.values() if each.region is not None]


def joint(known: Sequence[Origin]) -> Origin:
    """The origin of what is made of addresses with these, of which there is one at least."""
    different = list(dict.fromkeys(known))
    return Origin(others=different) if len(different) > 1 else different[0]
