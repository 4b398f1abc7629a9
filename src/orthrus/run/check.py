"""Every step against its definition: what a provider's kernel gives has to be what the operators mean.

In: a run that is watched, as the switch CHECK=2 asks for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import EPFail
from ..ir import HALF, Node, Value
from ..kernels import HOST, DeviceArray, copied
from ..plan import TRASH, Call
from .executor import Watcher

_RTOL = {np.dtype(np.float64): 1e-9}
_DEFAULT_RTOL = 1e-4
_HALF_RTOL = 2e-2
_ROUNDED_RTOL = 5e-2
"""Where a factor of products may be rounded to eight bits, which definitions do not do."""


class Checking(Watcher):
    """Raises EPFail for the first step whose result differs from its nodes' definitions."""

    def before(self, call: Call, slots: list[Any]) -> Any:
        return [_readable(slots[i]) for i in call.reads]

    def after(self, call: Call, slots: list[Any], seen: Any) -> None:
        if not call.bodies and all(n.op is not None and "rng" not in n.op.runtime for n in call.part.nodes):
            for (name, expected), i in zip(_defined(call, seen), call.writes, strict=False):
                if i > TRASH:
                    _compare(call, name, _readable(slots[i]), expected)


def _readable(value: Any) -> Any:
    return copied(value, HOST) if isinstance(value, DeviceArray) else value


def _defined(step: Call, given: list[Any]) -> list[tuple[str, Any]]:
    """What the definitions of the step's nodes give for `given`: a name and a value per output."""
    part = step.part
    inputs = part.inputs if part.fused else part.nodes[0].inputs
    known: dict[Value | None, Any] = {None: None, **dict(zip(inputs, given, strict=False))}
    for node in part.nodes:
        arrays = [known.get(v) if v is None or v.const is None else v.const for v in node.inputs]
        made = node.op.bind(node.attrs, len(node.outputs))(*arrays)
        known.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False))
    outputs = part.outputs if part.fused else part.nodes[0].outputs
    return [("" if v is None else v.name, known.get(v)) for v in outputs]


def _rounds(node: Node) -> bool:
    """Whether the node, or the reader of its weights, may be computed at the accuracy of eight bits."""
    return (node.op_type == "DequantizeLinear" and bool(node.attrs.get("block_size"))) or (
        node.op_type == "MatMulNBits" and node.attrs.get("accuracy_level") == 4)


def _compare(step: Call, name: str, got: Any, expected: Any) -> None:
    if not isinstance(expected, np.ndarray | np.generic) or not isinstance(got, np.ndarray):
        return
    expected = np.asarray(expected)
    same = got.shape == expected.shape and got.dtype == expected.dtype
    if same and got.dtype.kind in "fcV":
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        rtol = _HALF_RTOL if got.dtype in HALF else _RTOL.get(got.dtype, _DEFAULT_RTOL)
        rtol = _ROUNDED_RTOL if any(map(_rounds, step.part.nodes)) else rtol
        a, b = got.astype(wide), expected.astype(wide)
        finite = b[np.isfinite(b)]
        same = np.allclose(a, b, rtol, rtol * (np.abs(finite).max() if finite.size else 1), equal_nan=True)
    elif same:
        same = bool((got == expected).all())
    if not same:
        raise EPFail(f"{step.part.provider} computes %{name} otherwise than its definition", node=step.part,
                     found=f"{got.dtype}{list(got.shape)} {got.ravel()[:4]}",
                     expected=f"{expected.dtype}{list(expected.shape)} {expected.ravel()[:4]}",
                     cure="mend the kernel, or decline the node with a reason")
