"""Outputs of a run, as rows for people, as plain data for programs, and as files.

In: names and values as `session.run` gives them. Out: `Row`s, or .npz and .npy files. A sequence becomes one
file entry per element (`name.0`), a map two (`name.keys`, `name.values`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...ir import TensorType, type_of
from ...records import dataclass

HEAD = 6


@dataclass(frozen=True)
class Row:
    """One output: its name, ONNX type, shape (None for what is no tensor) and first values."""

    name: str
    type: str
    shape: list[int] | None
    head: list[Any]
    minimum: float | None = None
    maximum: float | None = None

    @property
    def values(self) -> str:
        """The first values as text."""
        size = 1 if self.shape is None else int(np.prod(self.shape))
        shown = ", ".join(v if isinstance(v, str) else f"{v:.6g}" if isinstance(v, float) else str(v)
                          for v in self.head)
        return shown + (", ..." if size > len(self.head) else "")

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def summarized(names: Sequence[str], outputs: Sequence[Any], declared: Mapping[str, str]) -> list[Row]:
    """A row per output. `declared`: types by name, for values in which Python does not say them."""
    return [_row(name, value, declared.get(name)) for name, value in zip(names, outputs, strict=True)]


def _row(name: str, value: Any, declared: str | None) -> Row:
    if value is None:
        return Row(name, "none", None, [])
    kind = type_of(value)
    if not isinstance(kind, TensorType):
        items = [_short(v) for v in value] if isinstance(value, list | dict) else []
        return Row(name, declared or str(kind), None, items[:HEAD])
    array = np.asarray(value)
    low, high = _range(array)
    return Row(name, str(kind), list(array.shape), [_scalar(v) for v in array.ravel()[:HEAD]], low, high)


def _scalar(value: Any) -> Any:
    if isinstance(value, str | bool | np.bool_):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, complex | np.complexfloating):
        return str(value)
    number = float(value)
    return number if np.isfinite(number) else str(number)


def _range(array: np.ndarray) -> tuple[float | None, float | None]:
    if not array.size or array.dtype == object or array.dtype.kind in "cb":
        return None, None
    wide = array if array.dtype.kind in "iu" else array.astype(np.float64)
    low, high = float(wide.min()), float(wide.max())
    return (low, high) if np.isfinite(low) and np.isfinite(high) else (None, None)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def flattened(names: Sequence[str], outputs: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Every array there is to write, with its name; strings become numpy text arrays."""
    for name, value in zip(names, outputs, strict=True):
        if value is None:
            continue
        if isinstance(value, dict):
            yield f"{name}.keys", np.array(list(value))
            yield f"{name}.values", np.array(list(value.values()))
        elif isinstance(value, list):
            yield from flattened([f"{name}.{i}" for i in range(len(value))], value)
        else:
            array = np.asarray(value)
            yield name, array.astype(str) if array.dtype == object else array


def write_npz(path: Path, names: Sequence[str], outputs: Sequence[Any]) -> list[Path]:
    """All outputs in one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = dict(flattened(names, outputs))
    np.savez(path, **arrays)
    return [path if path.suffix == ".npz" else path.with_name(path.name + ".npz")]


def write_folder(folder: Path, names: Sequence[str], outputs: Sequence[Any]) -> list[Path]:
    """A .npy file per output; characters that a file name should not have become `_`."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, array in flattened(names, outputs):
        stem = re.sub(r"[^\w.-]", "_", name).lstrip(".")[:120] or "output"
        path = folder / f"{stem}.npy"
        if path in written:
            path = folder / f"{stem}_{len(written)}.npy"
        np.save(path, array)
        written.append(path)
    return written
