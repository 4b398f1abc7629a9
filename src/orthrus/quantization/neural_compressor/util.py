"""Small things of Intel's tool: a progress bar, the item of a name, arrays. None needs more than numpy."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..onnx_model import first_named

logger = logging.getLogger("neural_compressor")
MAXIMUM_PROTOBUF = 2147483648
_WIDTH = 20


def simple_progress_bar(total: int, i: int) -> None:
    """Show on stdout, in one line that is written over, that `i` of `total` are done."""
    done = i / max(1, total)
    bar = "#" * int(_WIDTH * done)
    print(f"\rProgress: [{bar:-<{_WIDTH}}] {done:.2%}", end="", flush=True)


def find_by_name(name: str, item_list: Iterable[Any]) -> Any:
    """The first item of this name, or None."""
    return first_named(name, item_list)


def to_numpy(data: Any) -> np.ndarray:
    """The values of an array, a number, or a tensor of torch; torch's bfloat16 as float32. Raises: TypeError
    for what is none of these."""
    if hasattr(data, "detach"):
        data = data.detach().cpu()
        if str(data.dtype) == "torch.bfloat16":
            data = data.float()
        data = data.numpy()
    found = np.asarray(data)
    if found.dtype == object:
        raise TypeError(f"{type(data).__name__} is no array")
    return found
