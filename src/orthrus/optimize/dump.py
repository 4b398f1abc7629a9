"""Graphs on disk while they are optimized: each as text to read and as a model to run.

In: a graph after a pass, and the pass's name. Out: `NNN_name.txt` and `NNN_name.onnx` in one folder, numbered
from 000, the graph as it was loaded. The models share one file of weights, in which each array stands once
however many of them hold it. A graph that no model file can hold is written as text alone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..ir import Graph
from ..load.write import External, to_model_proto

log = logging.getLogger("orthrus")

WEIGHTS = "weights.data"
_LARGE = 1024


class _Weights(External):
    """A data file to which an array goes only once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.name, _LARGE, [])
        self.path = path
        self.places: dict[bytes, int] = {}
        path.write_bytes(b"")

    def take(self, tensor: Any, size: int, make: Callable[[], bytes]) -> bool:
        if size < self.threshold:
            return False
        raw = make()
        key = hashlib.sha256(raw).digest()
        offset = self.places.get(key)
        if offset is None:
            offset = self.places[key] = -(-self.end // 64) * 64
            with self.path.open("r+b") as file:
                file.seek(offset)
                file.write(raw)
            self.end = offset + size
        tensor.data_location = 1
        for name, value in (("location", self.name), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=name, value=str(value))
        return True


class Graphs:
    """One folder of graphs. What lay there of an earlier dump is removed first."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("[0-9][0-9][0-9]_*"):
            if old.suffix in (".txt", ".onnx"):
                old.unlink()
        self.weights = _Weights(self.folder / WEIGHTS)
        self.count = 0

    def write(self, name: str, graph: Graph) -> None:
        """Write `graph` as it is after the pass `name`."""
        stem = f"{self.count:03d}_{name[:100]}"
        self.count += 1
        (self.folder / f"{stem}.txt").write_text(str(graph), encoding="utf-8", errors="replace")
        try:
            model = to_model_proto(graph, self.weights)
            (self.folder / f"{stem}.onnx").write_bytes(model.SerializeToString())
        except Exception as error:
            log.warning("the graph after %s is dumped as text only: %s", name, error)
