"""Compiled models as somebody who means harm would make them: the machine code of a package replaced by code
that ends the process, and everything about the package in order again, its digest included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import onnx

from orthrus.codegen.machines.detect import host
from orthrus.codegen.object.build import assemble
from orthrus.lowering.described import _HEAD, _MAGIC, _SIZE
from orthrus.memory import LINE

FUNCTIONS = ("kernel", "drive", "work", "pauses", "run", "quick")


def trap() -> bytes:
    """An object that has every function a package's objects have; each ends the process by a signal."""
    machine = host()
    assert machine is not None
    bodies = "\n".join(f"define void @{name}() {{\n call void @llvm.trap()\n unreachable\n}}"
                       for name in FUNCTIONS)
    made = assemble(f'target triple = "{machine.triple}"\ndeclare void @llvm.trap()\n{bodies}', machine)
    assert isinstance(made, bytes)
    return made


def attribute(model: onnx.ModelProto, name: str = "ep_cache_context") -> onnx.AttributeProto:
    """An attribute of the first compiled part."""
    node = next(node for node in model.graph.node if node.op_type == "EPContext")
    return next(a for a in node.attribute if a.name == name)


def changed(package: bytes, change: Callable[[dict[str, Any]], bytes]) -> bytes:
    """A package whose description `change` has changed; what that answers comes behind the blobs."""
    begin = _HEAD + int.from_bytes(package[_HEAD - _SIZE:_HEAD], "little")
    about, blobs = json.loads(package[_HEAD:begin]), package[begin:]
    about["end"] = len(blobs)
    blobs += change(about)
    description = json.dumps(about).encode()
    description += b" " * (-(_HEAD + len(description)) % LINE)
    size = len(description).to_bytes(_SIZE, "little")
    return _MAGIC + hashlib.sha256(description + blobs).digest() + size + description + blobs


def evil(model: bytes) -> bytes:
    """A compiled model all of whose code is `trap`."""
    def replace(about: dict[str, Any]) -> bytes:
        code = trap()
        for unit in about["units"]:
            unit["at"] = [about["end"], len(code)]
        return code
    made = onnx.ModelProto.FromString(model)
    part = attribute(made)
    part.s = changed(part.s, replace)
    return bytes(made.SerializeToString())
