"""What a lowering writes: one call of a kernel, or of numpy, with its arguments and how much work it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir import Node
from ..records import dataclass
from .tensor import Tensor


@dataclass(eq=False, slots=True)
class KernelStep:
    """One kernel call, or with `host` a function of numpy arrays: `args` are tensors, ints and floats.
    `spec`: a `Spec` of `codegen.write`, or of `codegen.triton`."""

    spec: Any
    args: list[Any]
    items: int
    grain: int
    scratch: int
    node: Node
    outs: list[Tensor]
    host: Callable[..., Any] | None = None

    def tensors(self) -> list[Tensor]:
        """Every tensor that it touches."""
        return [*[a for a in self.args if isinstance(a, Tensor)], *self.outs]
