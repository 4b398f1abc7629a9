"""What a process and its replica say to each other: lines of JSON, files beside them, values as trees.

In: feeds and results, which are arrays, texts, lists, maps or None. Out: trees that JSON holds, whose numbers
lie in a block. The invariant: nothing that comes over the line becomes code, and what a tree says of a block
is checked against its size.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .. import errors
from ..errors import Fail
from ..locks import lock
from .blocks import LINE

_FILES, _LONGEST = 16, 1 << 30


class Line:
    """One end of a pair of sockets. `send` and `receive` raise OSError where the other end is gone, and
    TimeoutError where nothing came within `limit` seconds."""

    def __init__(self, end: socket.socket) -> None:
        self.end, self._sending = end, lock()

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Say `message`; `files` are handed over with it, in order."""
        text = json.dumps(message).encode()
        head = len(text).to_bytes(8, "little") + len(files).to_bytes(8, "little")
        with self._sending:
            for first in range(0, len(files), _FILES):
                socket.send_fds(self.end, [head], list(files[first : first + _FILES]))
                head = b"+" if first + _FILES < len(files) else b""
            self.end.sendall(head + text)

    def receive(self, limit: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """The next message, and the files that came with it."""
        self.end.settimeout(limit)
        files: list[int] = []
        head = self._exactly(16, files)
        size, count = (int.from_bytes(head[i : i + 8], "little") for i in (0, 8))
        for _ in range(_FILES, count, _FILES):
            self._exactly(1, files)
        if size > _LONGEST:
            raise OSError(f"a message of {size} bytes")
        return json.loads(self._exactly(size, files)), files

    def _exactly(self, size: int, files: list[int]) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece, more, _, _ = socket.recv_fds(self.end, min(size - len(found), 1 << 20), _FILES)
            files += more
            if not piece:
                raise OSError("the other process has ended")
            found += piece
        return bytes(found)

    def close(self) -> None:
        self.end.close()


_ERRORS = {kind.__name__: kind for kind in (*errors.ALL, ValueError, TypeError, RuntimeError, MemoryError)}


def said(error: Exception) -> dict[str, Any]:
    """An error as a message; one of a class that is not onnxruntime's or Python's is Fail."""
    name = type(error).__name__
    if isinstance(error, errors.ALL):
        facts: Any = error
        return {
            "failed": name,
            "text": facts.text,
            "rows": [facts.node, facts.found, facts.expected, facts.cure],
        }
    if name in _ERRORS:
        return {"failed": name, "text": str(error), "rows": None}
    return {"failed": "Fail", "text": f"{name}: {error}", "rows": [None] * 4}


def raised(message: dict[str, Any]) -> Exception:
    """The error that a message tells of."""
    kind: Any = _ERRORS[message["failed"]]
    if message["rows"] is None:
        return kind(message["text"])
    return kind(
        message["text"], **dict(zip(("node", "found", "expected", "cure"), message["rows"], strict=True))
    )


def plain(value: Any) -> Any:
    """`value` with arrays for numpy's numbers."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def arrays_of(value: Any) -> list[np.ndarray]:
    """The arrays of numbers in a value, in the order in which `tree` meets them."""
    if isinstance(value, np.ndarray):
        return [] if value.dtype.kind in "OUS" else [value]
    if isinstance(value, list | tuple):
        return [array for each in value for array in arrays_of(each)]
    if isinstance(value, dict):
        return [array for each in value.values() for array in arrays_of(each)]
    return []


def room(arrays: Sequence[np.ndarray]) -> tuple[int, list[int]]:
    """Bytes for arrays one behind the other, and where each begins."""
    places, size = [], 0
    for array in arrays:
        places.append(size)
        size += -(-array.nbytes // LINE) * LINE
    return size, places


def tree(value: Any, place: Callable[[np.ndarray], int]) -> Any:
    """`value` as JSON holds it; `place` says where an array of numbers lies in its block."""
    if value is None or isinstance(value, bool | int | float | str):
        return {"v": value}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OUS":
            return {"s": [tree(each, place) for each in value.reshape(-1).tolist()], "shape": value.shape}
        return {"t": value.dtype.name, "shape": value.shape, "at": place(value)}
    if isinstance(value, list | tuple):
        return {"l": [tree(each, place) for each in value]}
    if isinstance(value, dict):
        return {"m": [[tree(key, place), tree(each, place)] for key, each in value.items()]}
    raise Fail(
        f"a value of {type(value).__name__} cannot be handed to another process",
        expected="arrays, texts, numbers, lists, maps or None",
        cure="feed an array on the host, as OrtValue.numpy() gives it",
    )


def value_of(made: Any, array: Callable[[np.dtype, tuple[int, ...], int], np.ndarray]) -> Any:
    """The value that a tree stands for; `array` gives one over the block."""
    if "v" in made:
        return made["v"]
    if "b" in made:
        return bytes.fromhex(made["b"])
    if "s" in made:
        out = np.empty(len(made["s"]), object)
        out[:] = [value_of(each, array) for each in made["s"]]
        return out.reshape(made["shape"])
    if "t" in made:
        return array(dtype_of(made["t"]), tuple(made["shape"]), made["at"])
    if "l" in made:
        return [value_of(each, array) for each in made["l"]]
    return {value_of(key, array): value_of(each, array) for key, each in made["m"]}


def dtype_of(name: str) -> np.dtype:
    """The numpy type of that name, ml_dtypes' too."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def fits(dtype: np.dtype, shape: tuple[int, ...], at: int, size: int) -> None:
    """Raise OSError where an array does not lie within a block of `size` bytes."""
    if at < 0 or any(d < 0 for d in shape) or at + math.prod(shape) * dtype.itemsize > size:
        raise OSError(f"an array of {dtype} {shape} at {at} in a block of {size} bytes")
