"""ONNX's protobuf messages without the rest of the onnx package, which takes longer to import than a small
model's session to make.

Out: the module of the messages. Its classes are those of `onnx` itself, whichever of the two is there first:
protobuf keeps one class for each message.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import Any

_MODULE = "onnx.onnx_ml_pb2"


@functools.cache
def messages() -> Any:
    """What has `ModelProto` and the others. Raises ImportError where there is no onnx."""
    if "onnx" not in sys.modules:
        package = importlib.util.find_spec("onnx")
        for folder in (package and package.submodule_search_locations) or ():
            spec = importlib.util.spec_from_file_location(_MODULE, f"{folder}/onnx_ml_pb2.py")
            if spec is not None and spec.loader is not None:
                made = importlib.util.module_from_spec(spec)
                try:
                    spec.loader.exec_module(made)
                except FileNotFoundError:
                    break
                return made
    import onnx

    return onnx
