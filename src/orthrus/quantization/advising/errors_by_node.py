"""Which nodes of a quantized model its error comes from.

In: the float model, a quantized one and feeds. Out: per value of the float model that the quantized one has
too, under the same name, how far it is off, and what its node adds to what came in. Memory: the float model's
values of one feed, in portions of `PORTION` bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...records import dataclass
from ..calibration.activations import plain_session
from .accuracy import Decibels

PORTION = 1 << 28
"""Bytes of values that are compared at a time."""


@dataclass(frozen=True)
class NodeError:
    """A node's result: `noise`, the noise in it over its signal, as a ratio of amplitudes, gathered from the
    model's inputs on; `added`: by how much that is more than in what the node reads; `largest`: absolute
    difference."""

    node: str
    op_type: str
    value: str
    noise: float
    added: float
    largest: float


def errors_by_node(trusted: Path, doubted: Path, feeds: Sequence[Mapping[str, Any]],
                   providers: Sequence[Any] | None = None) -> list[NodeError]:
    """In the float model's order. Values that the quantized model lost, by fusing, are not among them."""
    graphs = [onnx.load_model(os.fspath(path), load_external_data=False).graph for path in (trusted, doubted)]
    both = set.intersection(*({name for node in graph.node for name in node.output if name}
                              for graph in graphs))
    makers = {name: node for node in graphs[0].node for name in node.output if name in both}
    sums = {name: Decibels() for name in makers}
    largest = dict.fromkeys(makers, 0.0)
    sessions = [plain_session(os.fspath(path), providers, list(makers)) for path in (trusted, doubted)]
    for feed in feeds:
        for names in _portions(sessions[0], makers, feed):
            _compare(sessions, names, feed, sums, largest)
    noise = {name: _amplitude(each) for name, each in sums.items() if each.signal or each.noise}
    return [NodeError(node.name, node.op_type, name, noise[name],
                      max(0.0, noise[name] - max((noise.get(i, 0.0) for i in node.input), default=0.0)),
                      largest[name])
            for name, node in makers.items() if name in noise]


def _amplitude(sums: Decibels) -> float:
    return math.inf if sums.sqnr == -math.inf else 10 ** (-sums.sqnr / 20)


def _portions(session: Any, names: Mapping[str, Any], feed: Mapping[str, Any]) -> Iterator[set[str]]:
    """The names of values with numbers, in portions that are small enough to be kept."""
    sizes: dict[str, int] = {}

    def see(name: str, array: Any) -> None:
        if isinstance(array, np.ndarray) and array.dtype.kind in "fV":
            sizes[name] = array.nbytes
    with session.watch(see):
        session.run(None, dict(feed))
    portion: set[str] = set()
    held = 0
    for name, size in sizes.items():
        if portion and held + size > PORTION:
            yield portion
            portion, held = set(), 0
        portion.add(name)
        held += size
    if portion:
        yield portion


def _compare(sessions: Sequence[Any], names: set[str], feed: Mapping[str, Any], sums: dict[str, Decibels],
             largest: dict[str, float]) -> None:
    kept: dict[str, np.ndarray] = {}

    def keep(name: str, array: Any) -> None:
        if name in names:
            kept[name] = array.copy()

    def compare(name: str, array: Any) -> None:
        trusted = kept.pop(name, None)
        if trusted is None or np.shape(array) != trusted.shape or not trusted.size:
            return
        sums[name].add(trusted, array)
        apart = np.abs(trusted.astype(np.float64) - array.astype(np.float64)).max()
        largest[name] = max(largest[name], float(apart))
    for session, see in zip(sessions, (keep, compare), strict=True):
        with session.watch(see), np.errstate(all="ignore"):
            session.run(None, dict(feed))
