"""Elementwise operators that are more than a tree."""

from __future__ import annotations

from ....codegen.triton.kernels.elementwise import none_zero
from ....ir import No, Node
from ...rules.elementwise import divided
from ...tensor import Tensor
from ..elements import BLOCK
from ..lower import GpuLowering, Lazy, Out, lowers


@lowers("Div", "Mod")
def division(lo: GpuLowering, node: Node) -> Lazy | No:
    """A quotient or what it leaves."""
    def check(lo: GpuLowering, t: Tensor) -> None:
        lo.step(none_zero(dtype=t.dtype, block=BLOCK), [t, Out(lo.status), t.size], -(-t.size // BLOCK))
    return divided(lo, node, check)
