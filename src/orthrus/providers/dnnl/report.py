"""What a part holds, for people: its plans in, `Contents` out, which refers to no array and no node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...ir import TensorType, shape_text
from ...kernels import Contents, Packed, Place, PlanReport, StepReport

if TYPE_CHECKING:
    from .part import Fused, Plan


def contents(fused: Fused) -> Contents:
    """What `fused` has made by now."""
    with fused.plans.lock:
        plans, refused = dict(fused.plans), dict(fused.refused)
        packed = [made for forms in fused.constants.packed.values() for *_, made in forms]
    names = fused.constants.names
    constants = [Packed(names.get(id(t.buffer), ""), "reordered", t.desc.size) for t in packed]
    reports = tuple(_plan(fused, key, plan, refused.get(key, "")) for key, plan in plans.items())
    return Contents(reports, tuple(sorted(constants, key=lambda c: -c.bytes)), fused.threads)


def _plan(fused: Fused, key: tuple[Any, ...], plan: Plan | None, reason: str) -> PlanReport:
    inputs = tuple((v.name, shape_text(TensorType(v.elem, tuple(shape))))
                   for v, shape in zip(fused.part.inputs, key, strict=False))
    if plan is None:
        return PlanReport(inputs, key in fused.guessed, interpreted=reason)
    steps = tuple(StepReport(s.kernel, s.node.label, tuple(n.label for n in s.nodes), 1,
                             "" if s.kernel.startswith("reference") else s.kernel, s.reason)
                  for s in plan.steps)
    done = {n for s in plan.steps for n in s.nodes}
    views = tuple(n.label for n in fused.part.nodes if n not in done)
    return PlanReport(inputs, key in fused.guessed, steps, plan.size, 0, tuple(_places(fused, plan)), views,
                      seconds=plan.seconds)


def _places(fused: Fused, plan: Plan) -> Iterator[Place]:
    names: dict[int, str] = {}
    for value, t in plan.held.items():
        names.setdefault(id(t.buffer), value.name)
    seen = set()
    for step in plan.steps:
        for t in step.tensors():
            b = t.buffer
            if b.kind == "arena" and id(b) not in seen:
                seen.add(id(b))
                name = names.get(id(b), f"(made for {step.node.label})")
                yield Place(fused.part.name, name, b.offset, b.size, b.first, b.last)
