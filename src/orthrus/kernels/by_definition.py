"""The kernel that a node's definition is: its numpy body with the attributes bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import seeds
from ..errors import NotImplemented as NotImplementedFail
from ..ir import HALF, Node
from ..limits import HARMLESS, bounded
from .gate import vetted
from .kernel import Kernel, OpKernelInfo


def reference(node: Node) -> Kernel:
    """The kernel that `node`'s definition is: its numpy body with the attributes bound."""
    op = node.op
    if op is None:
        raise NotImplementedFail(f"Could not find an implementation for {node.op_type}({node.version}) "
                                 f"node with name '{node.name}'", node=node,
                                 cure="register it with @orthrus.op")
    dtypes = OpKernelInfo(node, None).input_dtypes  # type: ignore[arg-type]
    if op.ufunc is not None and _exact(node, dtypes):
        elementwise = op.ufunc.signature is None
        run = _broadcasting(op.ufunc) if elementwise and op.ufunc.nin == 2 else op.ufunc
        return Kernel(run, f"numpy.{op.ufunc.__name__}", takes_out=True, in_place=elementwise, own=True)
    rng = seeds.generator(node.attrs.get("seed"), node.index) if "rng" in op.runtime else None
    run = op.bind(node.attrs, len(node.outputs), rng, dtypes)
    return Kernel(run if op.own else vetted(run, node), f"reference {op.name}", own=op.own)


def _broadcasting(function: np.ufunc) -> Callable[..., Any]:
    """`function`, once a result larger than both operands is known to be within limits."""
    def run(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> Any:
        if a.nbytes * b.size > HARMLESS and a.shape != b.shape:
            bounded(np.broadcast_shapes(a.shape, b.shape), a.dtype)
        return function(a, b, out)
    return run


def _exact(node: Node, dtypes: list[np.dtype | None]) -> bool:
    """Whether numpy's function alone gives the node's result, type included."""
    out = node.outputs[0]
    if None in dtypes or len(set(dtypes)) != 1 or dtypes[0] in HALF or len(node.outputs) != 1 or out is None:
        return False
    return out.elem is not None and (out.elem.numpy == dtypes[0]) and len(dtypes) == node.op.ufunc.nin
