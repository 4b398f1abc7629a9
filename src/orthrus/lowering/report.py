"""What a compiled part holds, for people: its plans in, `Contents` out, which refers to no array and no node.

A plan forgets its lowering; what a report needs of that, `Trail` keeps: references that cost a plan next to
nothing. Nothing here is called by a run, but for `finished`, by one that is watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codegen.object import override
from ..ir import Node, TensorType, Value, shape_text
from ..kernels import Contents, Packed, Part, PlanReport, Span, StepReport
from .lower import Lowering
from .step import KernelStep
from .tensor import Buffer, Tensor

if TYPE_CHECKING:
    from .gpu.part import GpuPart
    from .gpu.plan import GpuPlan
    from .native import Native
    from .plans import Stepped


class Trail:
    """What a lowering knew: `held`, the tensors of the values that are in memory; `why`, per node that it
    left to numpy; `known`, the elements of watched values that follow from shapes."""

    __slots__ = ("held", "known", "why")

    def __init__(self, lowering: Lowering | None = None) -> None:
        self.held: dict[Value, Tensor] = {}
        self.why: dict[Node, str] = {}
        self.known: dict[Value, np.ndarray] = {}
        if lowering is not None:
            self.held = {value: found for value, found in lowering.env.items()
                         if isinstance(found, Tensor) and (found.buffer.kind != "const" or value.watched)}
            self.why = lowering.why
            self.known = {value: elements for value in (*lowering.host, *lowering.later)
                          if value.watched and (elements := lowering.known(value)) is not None}


def contents(native: Native | GpuPart) -> Contents:
    """What `native` has compiled by now."""
    with native.plans.lock:
        shapes, refused = list(native.plans), dict(native.refused)
        constants = list(native.constants.items())
    plans = {key: native.exact(key) for key in shapes}
    reports = [_plan(native, key, plans.get(key), refused.get(key, "")) for key in {**refused, **plans}]
    names = {id(v): v.name for node in native.part.nodes for v in node.inputs if v is not None}
    names.update((id(node), node.label) for node in native.part.nodes)
    packed = [_constant(key, tensor, names) for key, tensor in constants]
    return Contents(tuple(reports), tuple(sorted(packed, key=lambda c: -c.bytes)), native.threads)


def inputs_of(part: Part, key: tuple[Any, ...]) -> tuple[tuple[str, str], ...]:
    """The names of a part's inputs, each with its type, by the key of a plan."""
    return tuple((v.name, shape_text(TensorType(v.elem, tuple(shape))))
                 for v, shape in zip(part.inputs, key, strict=False))


def _plan(native: Native | GpuPart, key: tuple[Any, ...], plan: Stepped | GpuPlan | None, reason: str
          ) -> PlanReport:
    inputs = inputs_of(native.part, key)
    guessed = key in native.guessed
    if plan is None:
        return PlanReport(inputs, guessed, interpreted=reason)
    known = tuple(node.label for node in native.part.nodes
                  if all(v is None or v in plan.folded for v in node.outputs))
    steps = tuple(_step(step, work.nodes, plan.trail.why)
                  for step, work in zip(plan.steps, plan.works(native.part), strict=True))
    return PlanReport(inputs, guessed, steps, plan.size, plan.scratch,
                      tuple(places(native.part, plan.steps, plan.trail.held, plan.status)), known,
                      seconds=plan.seconds)


def _step(step: KernelStep, nodes: tuple[Node, ...], why: dict[Node, str]) -> StepReport:
    labels = tuple(node.label for node in nodes)
    if step.spec is None:
        return StepReport(f"reference {step.node.op_type}", step.node.label, labels, 1,
                          reason=why.get(step.node, ""))
    return StepReport(step.spec.template, step.node.label, labels, step.items,
                      override.file_name(step.spec), edited=override.edited(step.spec))


def places(part: Part, steps: Sequence[Any], held: Mapping[Value, Any], status: int = -1) -> Iterator[Span]:
    """The arena's rows, by step and offset: a buffer goes by the first value that is `held` in it. `status`:
    the offset of that of the kernels."""
    names: dict[int, str] = {}
    for value, tensor in held.items():
        names.setdefault(id(tensor.buffer), value.name)
    found: dict[int, Buffer] = {}
    for step in steps:
        for tensor in step.tensors():
            if tensor.buffer.kind == "arena" and id(tensor.buffer) not in found:
                found[id(tensor.buffer)] = tensor.buffer
                names.setdefault(id(tensor.buffer), f"(made for {step.node.label})")
    names.update((i, "(status)") for i, b in found.items() if b.offset == status)
    for b in sorted(found.values(), key=lambda b: (b.first, b.offset)):
        yield Span(part.name, names[id(b)], b.offset, b.size, b.first, b.last)


def _constant(key: Any, tensor: Tensor, names: dict[int, str]) -> Packed:
    parts = list(_flat(key))
    value = next((names[part] for part in parts if type(part) is int and part in names), "")
    how = " ".join(part for part in parts if isinstance(part, str))
    return Packed(value, "as it is" if how == "value" else how or "packed", tensor.buffer.size)


def _flat(key: Any) -> Iterator[Any]:
    if isinstance(key, tuple | list | frozenset):
        for part in key:
            yield from _flat(part)
    else:
        yield key


def finished(plan: Stepped | GpuPlan) -> list[list[tuple[Value, Tensor]]]:
    """Per step of `plan` the values that are whole in memory behind it, and no longer for certain behind the
    next one; first of all those that are there before any step, views of inputs and constants. A value that
    a kernel applies in registers is in none of these lists."""
    last: dict[int, int] = {}
    for i, step in enumerate(plan.steps):
        for tensor in step.outs:
            last[id(tensor.buffer)] = i
    found: list[list[tuple[Value, Tensor]]] = [[] for _ in range(len(plan.steps) + 1)]
    for value, tensor in plan.trail.held.items():
        if value.node is not None and (tensor.buffer.kind in ("input", "const")
                                       or id(tensor.buffer) in last):
            found[last.get(id(tensor.buffer), -1) + 1].append((value, tensor))
    return found
