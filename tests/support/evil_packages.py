"""Compiled models as somebody who means harm would make them: the machine code of a package replaced by code
that ends the process, and everything about the package in order again, its digest included.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from orthrus.lowering.package.layout import DIGEST, Head, Target, digest

TRAP = b"\xcc" * 64
"""What every byte of evil code is: an instruction that ends a process by a signal."""


def attribute(model: onnx.ModelProto, name: str = "ep_cache_context") -> onnx.AttributeProto:
    """An attribute of the first compiled part."""
    node = next(node for node in model.graph.node if node.op_type == "EPContext")
    return next(a for a in node.attribute if a.name == name)


def sealed(package: np.ndarray) -> bytes:
    """A package whose digests are again those of what it holds, as far as that lies within it."""
    words = package[:len(package) // 8 * 8].view(np.int64)
    head = words[:Head.WORDS].tolist()
    count = max(0, min(head[Head.TARGETS_COUNT], 16))
    targets = [head[Head.TARGETS] + i * Target.WORDS for i in range(count)]
    for at, where in ((int(Head.CONSTANTS_DIGEST), int(Head.CONSTANTS)),
                      *((t + Target.CODE_DIGEST, t + Target.CODE) for t in targets)):
        if where >= 0 and at + DIGEST <= len(words):
            begin, size = words[where:where + 2].tolist()
            if 0 <= begin <= begin + size <= len(package):
                words[at:at + DIGEST] = digest([package[begin:begin + size]])
    size = head[Head.SIZE]
    if 8 * Head.SIZE <= size <= len(package):
        words[Head.DIGEST:Head.SIZE] = digest([package[8 * Head.SIZE:size]])
    return package.tobytes()


def about_of(package: bytes) -> dict[str, Any]:
    """A package's description for Python."""
    head = np.frombuffer(package, np.int64, Head.WORDS)
    at, size = int(head[Head.ABOUT]), int(head[Head.ABOUT_SIZE])
    made: dict[str, Any] = json.loads(package[at:at + size])
    return made


def changed(package: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A package whose description `change` has changed, behind everything else, with a head as long as that
    takes; code and constants are again behind it."""
    about = about_of(package)
    change(about)
    description = json.dumps(about).encode()
    old = np.frombuffer(package, np.uint8)
    head = old[:8 * Head.WORDS].view(np.int64)
    size = int(head[Head.SIZE])
    grown = -(-len(description) // 4096) * 4096
    made = np.concatenate([old[:size], np.zeros(grown, np.uint8), old[size:]])
    made[size:size + len(description)] = np.frombuffer(description, np.uint8)
    words = made[:size].view(np.int64)
    words[Head.ABOUT], words[Head.ABOUT_SIZE], words[Head.SIZE] = size, len(description), size + grown
    words[Head.WHOLE] += grown
    words[Head.CONSTANTS] += grown
    for i in range(words[Head.TARGETS_COUNT]):
        words[words[Head.TARGETS] + i * Target.WORDS + Target.CODE] += grown
    return sealed(made)


def evil(model: bytes) -> bytes:
    """A compiled model all of whose code is `TRAP`."""
    made = onnx.ModelProto.FromString(model)
    part = attribute(made)
    package = np.frombuffer(part.s, np.uint8).copy()
    head = package[:8 * Head.WORDS].view(np.int64)
    first, count = int(head[Head.TARGETS]), int(head[Head.TARGETS_COUNT])
    for i in range(count):
        at = 8 * (first + i * Target.WORDS + Target.CODE)
        begin, size = package[at:at + 16].view(np.int64).tolist()
        package[begin:begin + size] = TRAP[0]
    part.s = sealed(package)
    return bytes(made.SerializeToString())
