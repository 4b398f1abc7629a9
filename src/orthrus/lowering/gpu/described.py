"""Packages for GPUs: a description in JSON, and bytes that follow it, each beginning at a cache line.

In: a description and the code objects and constants that it names. Out: bytes; and from those bytes what was
put in. They may be damaged: what does not hold is a ValueError. Whoever opens one trusts its code as a shared
library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...codegen.write.spec import Spec
from ...ir import Node
from ...kernels import Part
from ...memory import LINE
from ..package.opened import at_line
from ..step import KernelStep
from ..tensor import Buffer, Tensor, numpy_type

FORMAT = 2
_MAGIC = b"orthrus\2"
_SIZE = 8
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size + _SIZE
"""Bytes in front of the description: what this is, the digest of all that follows it, and the description's
length."""


class Blobs:
    """Bytes that follow a description, each beginning at a cache line."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.end = 0

    def add(self, data: Any) -> list[int]:
        """Where `data` lies, from the first blob on, and how long it is."""
        begin, size = self.end, len(data)
        padding = -size % LINE
        self.all += [data, bytes(padding)]
        self.end += size + padding
        return [begin, size]

    def pieces(self, description: bytes) -> list[Any]:
        """The whole package."""
        description += b" " * (-(_HEAD + len(description)) % LINE)
        digest = hashlib.sha256(description)
        for piece in self.all:
            digest.update(piece)
        return [_MAGIC, digest.digest(), len(description).to_bytes(_SIZE, "little"), description, *self.all]


def cell(arg: Any, constants: dict[int, np.ndarray], numbers: dict[int, int]) -> Any:
    """An argument as JSON: a number, or a buffer's kind, which one, and bytes into it."""
    if not isinstance(arg, Tensor):
        return {"float": arg} if isinstance(arg, float) else int(arg)
    buffer = arg.buffer
    if buffer.array is not None:
        constants.setdefault(id(buffer.array), buffer.array)
        return ["const", numbers.setdefault(id(buffer.array), len(numbers)), arg.byte_offset]
    return [buffer.kind, buffer.offset if buffer.kind == "arena" else buffer.index, arg.byte_offset]


class Opened:
    """A package, opened. Raises ValueError for anything else. `data` is kept where it begins at a cache line,
    and copied where it does not; `kept`: whether it is this user's own, from the cache, and so undamaged and
    made by this package."""

    def __init__(self, data: bytes | np.ndarray, kept: bool = False) -> None:
        self.bytes, self.kept = at_line(data), kept
        try:
            head, size = self.bytes[:_HEAD].tobytes(), len(_MAGIC)
            if head[:size] != _MAGIC:
                raise ValueError(f"no package of a compiled part, or not of format {FORMAT}")
            begin = _HEAD + int.from_bytes(head[-_SIZE:], "little")
            self.digest = head[size:-_SIZE].hex()
            if not kept and hashlib.sha256(self.bytes[_HEAD:].data).hexdigest() != self.digest:
                raise ValueError("a damaged package")
            self.about: dict[str, Any] = json.loads(self.bytes[_HEAD:begin].tobytes())
            self.blobs = self.bytes[begin:]
            self.objects = [self._blob(unit["at"]).tobytes() for unit in self.about["units"]]
            self.constants = [self._blob(at).view(numpy_type(name)) for name, at in self.about["constants"]]
            self._look()
        except (KeyError, TypeError, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"no package of a compiled part: {error}") from None

    def _look(self) -> None:
        """Read what packages of its kind hold besides."""

    def _blob(self, at: Sequence[int]) -> np.ndarray:
        begin, size = at
        if not 0 <= begin <= begin + size <= len(self.blobs):
            raise ValueError(f"a damaged package: {begin} + {size} of {len(self.blobs)} bytes")
        return self.blobs[begin:begin + size]

    def expected(self, part: Part) -> list[tuple[tuple[int, ...], str]]:
        """The inputs it was compiled for, of the `part` that stands for it. Raises ValueError for a part of
        other types."""
        kinds, outputs = self.about["inputs"], self.about["outputs"]
        if len(kinds) != len(part.inputs) or len(outputs) != len(part.outputs):
            raise ValueError("a package of another part: the numbers of inputs or outputs differ")
        for value, (_, name) in zip((*part.inputs, *part.outputs), (*kinds, *outputs), strict=True):
            if value.elem is None or value.elem.numpy.name != name:
                raise ValueError(f"a package of another part: {value.name} is {value.type}, not {name}")
        return [(tuple(shape), name) for shape, name in kinds]


def steps_of(package: Opened) -> Iterator[KernelStep]:
    """The steps of a package's plan. Raises ValueError."""
    about, constants = package.about, package.constants
    buffers: dict[tuple[str, int], Buffer] = {}
    limits = {"arena": about["arena"] + 1, "input": len(about["inputs"]), "output": len(about["outputs"]),
              "const": len(constants)}

    def argument(plain: Any) -> Any:
        if isinstance(plain, dict):
            return float(plain["float"])
        if isinstance(plain, int):
            return plain
        kind, which, offset = plain
        if not 0 <= which < limits[kind]:
            raise ValueError(f"a damaged package: {kind} {which}")
        if (kind, which) not in buffers:
            array = constants[which] if kind == "const" else None
            buffers[kind, which] = Buffer(kind, 0, -1 if kind == "arena" else which, array,
                                          offset=which if kind == "arena" else -1)
        return Tensor("uint8", (1,), (1,), buffers[kind, which], offset)

    for row in about["steps"]:
        which = int(row["kernel"])
        if not 0 <= which < len(package.objects):
            raise ValueError(f"a damaged package: unit {which}")
        spec = Spec(_word(row["name"]), ())
        node = Node(row["op_type"], "", 1, None, (), {}, row["node"])
        yield KernelStep(spec, [argument(a) for a in row["args"]], row["items"], row["grain"], 0, node, [])


def _word(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a damaged package: no kernel is called {name!r}")
    return name
