"""Arrays and nodes that cases are made of, from one seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from .measuring import Case

F, H, D = np.float32, np.float16, np.float64
I8, U8, I16, U16, I32, I64 = np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64
SHAPES = {"small": (8, 16), "large": (512, 2048)}

_RNG = np.random.default_rng(0)


def floats(*shape: int, dtype: Any = F) -> np.ndarray:
    """Standard normal numbers."""
    return np.asarray(_RNG.standard_normal(shape)).astype(dtype)


def whole(high: int, *shape: int, dtype: Any = I64, low: int = 0) -> np.ndarray:
    """Whole numbers from `low` to `high - 1`."""
    return np.asarray(_RNG.integers(low, high, shape)).astype(dtype)


def mixed(*shape: int, dtype: Any = F) -> np.ndarray:
    """Numbers of any type: floats around 0, small whole ones, booleans."""
    if np.dtype(dtype).kind == "f":
        return floats(*shape, dtype=dtype)
    if dtype == np.bool_:
        return whole(2, *shape).astype(bool)
    return whole(100, *shape, dtype=dtype, low=0 if np.dtype(dtype).kind == "u" else -100)


def words(*shape: int, kinds: int = 50) -> np.ndarray:
    """Words of some `kinds`."""
    return np.array([f"word{each}" for each in whole(kinds, *shape).ravel()], object).reshape(shape)


def case(
    kind: str,
    fed: dict[str, Any],
    held: dict[str, Any] | None = None,
    order: str = "",
    outputs: int = 1,
    domain: str = "",
    **attrs: Any,
) -> Case:
    """`order`: the names of the inputs, "-" for one that is absent; by default all that is fed and held."""
    names = ["" if name == "-" else name for name in (order.split() or [*fed, *(held or {})])]
    node = helper.make_node(
        kind, names, [f"out{i}" for i in range(outputs)], name=kind, domain=domain, **attrs
    )
    return node, fed, {name: np.asarray(array) for name, array in (held or {}).items()}
