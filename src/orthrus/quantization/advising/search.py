"""Which nodes to leave in float, so that a quantized model is as accurate as asked for.

In: nodes, and a function that says how accurate the model is with some of them left in float. Out: the
fewest that suffice, as far as a greedy search finds them: nodes are tried one by one, each as the only
quantized one, and the most sensitive stay in float first. What was measured is kept in a file, so that a
search that was broken off goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ...records import dataclass

Measure = Callable[[Sequence[str]], float]
"""How accurate the model is with these nodes left in float; higher is better."""


@dataclass(frozen=True)
class Tried:
    """A step of a search: how accurate the model was with these nodes left in float."""

    left: tuple[str, ...]
    accuracy: float


class Memory:
    """What was measured for a setting, in a JSON file; one that is for another setting is begun anew."""

    def __init__(self, path: Path, setting: str) -> None:
        self._path, self._setting = path, setting
        self._known: dict[str, float] = {}
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            if read["setting"] == setting:
                self._known = {str(key): float(value) for key, value in read["measured"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass

    def ask(self, key: Sequence[str], measure: Callable[[], float]) -> float:
        """The figure of `key`, measured where it is not known."""
        name = json.dumps(sorted(key))
        if name not in self._known:
            self._known[name] = measure()
            beside = self._path.with_suffix(".new")
            beside.write_text(json.dumps({"setting": self._setting, "measured": self._known}, indent=1),
                              encoding="utf-8")
            os.replace(beside, self._path)
        return self._known[name]


def search(nodes: Sequence[str], target: float, measure: Measure, memory: Memory,
           tell: Callable[[Tried], None] = lambda _: None) -> list[Tried]:
    """The steps of the search; the last one reaches `target`, with the fewest nodes in float that were found
    to, or leaves all in float. `tell` gets each step as it is done."""
    steps: list[Tried] = []

    def accuracy(left: Sequence[str]) -> float:
        steps.append(Tried(tuple(left), memory.ask(left, lambda: measure(left))))
        tell(steps[-1])
        return steps[-1].accuracy
    if accuracy(()) >= target:
        return steps
    alone = {node: accuracy([other for other in nodes if other != node]) for node in nodes}
    ranked = sorted(nodes, key=lambda node: alone[node])
    few, enough = 0, 1
    while enough < len(ranked) and accuracy(ranked[:enough]) < target:
        few, enough = enough, min(2 * enough, len(ranked))
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if accuracy(ranked[:middle]) >= target else (middle, enough)
    if steps[-1].left != tuple(ranked[:enough]):
        accuracy(ranked[:enough])
    return steps
