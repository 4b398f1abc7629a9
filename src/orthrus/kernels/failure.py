"""What a kernel's exception becomes: an error of ours that names the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import errors
from ..ir import Node, shape_text, type_of
from .device import DeviceArray

_KEPT = tuple(kind for kind in errors.ALL if kind is not errors.Fail)


def failed(node: Node, error: Exception, inputs: Sequence[Any], name: str) -> Exception:
    """The same class where `error` is one of ours, InvalidArgument for inputs that do not go together, else
    Fail, and the node named; `name` is the node's, or that of the part it was fused into. What has been
    through here before stays as it is. Raises `error` itself where it is a signal's."""
    errors.pass_on(error)
    text = getattr(error, "text", None)
    if text is not None and text.startswith(("Exiting", "Non-zero status code")):
        return error
    if isinstance(error, MemoryError):
        text = f"Failed to allocate memory: {error}"
    message = (f"Non-zero status code returned while running {node.op_type} node. Name:'{name}' "
               f"Status Message: {text if text is not None else str(error) or type(error).__name__}")
    found = getattr(error, "found", None) or ", ".join(map(_described, inputs))
    kind: Any = errors.InvalidArgument if isinstance(error, errors.Unfit) else errors.Fail
    kind = type(error) if isinstance(error, _KEPT) else kind
    return kind(message, node=node, found=found, expected=getattr(error, "expected", None),
                cure=getattr(error, "cure", None))


def _described(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, DeviceArray):
        return repr(value)
    try:
        return shape_text(type_of(value))
    except TypeError:
        return type(value).__name__
