"""Operators with bodies in Triton's language, which `orthrus.op` was given.

In: a definition and its Triton function. Out: a rule by which GPUs run that function over blocks of elements,
or over rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....codegen.triton.kernels.custom import SIZE, Function, custom, function
from ....codegen.triton.write import POINTERS
from ....ir import No, Node
from ....ops.define import Op
from ...lower import GPU_RULES
from ...tensor import Tensor, joint_shape
from ..lower import GpuLowering, lowers
from ..walks import walk

_BLOCK = 1024
_LONGEST = 1 << 15
"""Elements of a row, at most: a block holds them all."""

_bodies: dict[Op, tuple[Function, bool]] = {}


def register(made: Op, body: Callable[..., Any] | str, rows: bool = False) -> None:
    """Let GPUs run `body` where `made` is asked for. Raises ValueError where it does not fit."""
    called = function(body)
    known = {*made.inputs, *made.attributes, *([SIZE] if rows else [])}
    unknown = [name for name in called.parameters if name not in known]
    if unknown or made.variadic or made.n_outputs is None:
        raise ValueError(f"the Triton function of {made.domain}::{made.name} has the parameters "
                         f"{', '.join(unknown) or 'of a list of inputs'}, which are not among "
                         f"{', '.join(sorted(known))}")
    _bodies[made] = called, rows
    lowers(f"{made.domain}::{made.name}")(_run)


def forget(domain: str, name: str) -> None:
    """Let GPUs leave an operator to its definition."""
    for made in [made for made in _bodies if (made.domain, made.name) == (domain, name)]:
        del _bodies[made]
        GPU_RULES.pop((domain, name), None)


def _run(lo: GpuLowering, node: Node) -> tuple[Tensor, ...] | Tensor | No:
    """The function's results, of the inputs' common shape."""
    found = None if node.op is None else _bodies.get(node.op)
    if found is None or node.op is None:
        return No("this version has no body in Triton's language")
    called, rows = found
    kinds = [None if v is None or v.elem is None else v.elem.numpy.name for v in node.outputs]
    given = {name: lo.tensor(v) for name, v in zip(node.op.inputs, node.inputs, strict=False)
             if v is not None}
    if any(kind not in POINTERS for kind in (*kinds, *(t.dtype for t in given.values()))):
        return No("kernels do not know its types; say those of results by result= or infer=")
    shape = joint_shape(*(t.shape for t in given.values()))
    if rows and (not shape or shape[-1] > _LONGEST):
        return No(f"its rows have more than {_LONGEST} elements")
    outs = [lo.new(shape, str(kind)) for kind in kinds]
    if math.prod(shape):
        _step(lo, node, called, rows, outs, given)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _step(lo: GpuLowering, node: Node, called: Function, rows: bool, outs: list[Tensor],
          given: dict[str, Tensor]) -> None:
    shape = outs[0].shape
    lead = [*range(len(shape) - 1)]
    groups = [lead, [len(shape) - 1]] if rows else [[*range(len(shape))]]
    used = {name: t for name, t in given.items() if name in called.parameters}
    form, tensors, numbers = walk([*outs, *(t.expand(shape) for t in used.values())], groups, len(outs))
    size = shape[-1] if rows else math.prod(shape)
    block = min(_LONGEST if rows else _BLOCK, max(32, 1 << (size - 1).bit_length()))
    attributes = [(name, tuple(value) if isinstance(value, list) else value)
                  for name, value in node.attributes.items() if name in called.parameters]
    spec = custom(called=called, results=tuple(t.dtype for t in outs), rows=rows, walk=form, block=block,
                  inputs=tuple((name, t.dtype) for name, t in used.items()), attributes=tuple(attributes))
    lo.step(spec, [*tensors, size, *numbers], math.prod(shape[:-1]) if rows else -(-size // block))
