"""How many examples a random test draws."""

from __future__ import annotations

import os
from typing import Any

import hypothesis

ALL = os.environ.get("DRAWS") == "all"
"""Whether a random test draws as many examples as it names; otherwise it draws the first of them, a third."""


def draws(examples: int, **options: Any) -> hypothesis.settings:
    """Hypothesis's settings for a test that draws at most `examples`, without a limit of time."""
    some = examples if ALL else min(examples, 6 + examples // 3)
    return hypothesis.settings(max_examples=some, deadline=None, **options)
