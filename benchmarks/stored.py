"""Models in a folder with inputs of their own: each `NAME/model.onnx`, with arrays called `in:INPUT` in
`NAME/io.npz`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def models(folder: str | Path) -> dict[str, Path]:
    """Name -> the model's file."""
    return {path.parent.name: path for path in sorted(Path(folder).glob("*/model.onnx"))}


def feeds(model: Path) -> dict[str, Any]:
    """A model's inputs, text as objects."""
    with np.load(model.parent / "io.npz", allow_pickle=True) as arrays:
        found = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
    return {name: value.astype(object) if value.dtype.kind == "U" else value for name, value in found.items()}
