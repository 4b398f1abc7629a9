"""What calls into a library have in common: its answers as errors, and what it made as objects of ours."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ALL, EPFail
from ...ir import Node
from . import abi

_CLASSES: dict[int, Any] = {getattr(kind, "code", 0): kind for kind in ALL}


class Owned:
    """What a library made: given back with its last reference, and what it needs, `keeps`, not before; not at
    all once the interpreter ends."""

    def __init__(self, handle: int | None, release: Callable[[int | None], None], *keeps: object) -> None:
        self.handle = handle
        weakref.finalize(self, _give_back, release, handle, keeps).atexit = False


def _give_back(release: Callable[[int | None], None], handle: int | None, keeps: object) -> None:
    release(handle)


def blank() -> abi.Error:
    """What a library writes its error to."""
    return abi.Error(ctypes.sizeof(abi.Error), -1)


def text_of(error: abi.Error, otherwise: str) -> str:
    """What a library wrote, or `otherwise`."""
    text: bytes = error.text
    return text.decode("utf-8", "replace").strip() or otherwise


def node_of(error: abi.Error, nodes: Sequence[Node]) -> Node | None:
    """The node a library blames, by its number among `nodes`."""
    return nodes[error.node] if 0 <= error.node < len(nodes) else None


def blamed(error: abi.Error, code: int, nodes: Sequence[Node], call: str) -> Exception:
    """The error that an answer to `call` is; EPFail for a code that there is not."""
    text = text_of(error, f"{call} answered {code}, and gave no text")
    if code in _CLASSES:
        made: Exception = _CLASSES[code](text, node=node_of(error, nodes))
        return made
    return EPFail(text, node=node_of(error, nodes), found=f"{call} answered {code}",
                  expected="ORTHRUS_OK or another code of orthrus_provider.h")
