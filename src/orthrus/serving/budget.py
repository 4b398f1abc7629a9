"""How many bytes of requests a server holds at once, whichever protocol they came by.

In: bytes that are about to be held, and those let go. Out: a Refusal where there would be more than there may
be. One thread takes and gives.
"""

from __future__ import annotations

from .refusals import Kind, Refusal


class Budget:
    """`most`: bytes of all requests at once."""

    __slots__ = ("held", "most")

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def take(self, size: int) -> None:
        """Raises Refusal."""
        if self.held + size > self.most:
            raise Refusal(Kind.FULL, f"{self.held} bytes of requests are held and {size} more would be over "
                                     f"the {self.most} that may be", 1.0)
        self.held += size

    def give(self, size: int) -> None:
        self.held -= size


class Share:
    """What one request holds of a budget."""

    __slots__ = ("budget", "held")

    def __init__(self, budget: Budget) -> None:
        self.budget, self.held = budget, 0

    def take(self, size: int) -> None:
        """Hold so many bytes in all, or what is held already. Raises Refusal."""
        if size > self.held:
            self.budget.take(size - self.held)
            self.held = size

    def give(self) -> None:
        """Let go of all."""
        self.budget.give(self.held)
        self.held = 0
