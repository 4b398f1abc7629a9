"""What a part holds, for people: its plans in, `Contents` out, which refers to no array and no node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...kernels import Contents, Packed, PlanReport, StepReport
from ...lowering.report import inputs_of, places

if TYPE_CHECKING:
    from .part import DnnlPlan, Fused


def contents(fused: Fused) -> Contents:
    """What `fused` has made by now."""
    with fused.plans.lock:
        plans, refused = dict(fused.plans), dict(fused.refused)
        packed = [made for forms in fused.constants.packed.values() for *_, made in forms]
    names = fused.constants.names
    constants = [Packed(names.get(id(t.buffer), ""), "reordered", t.desc.size) for t in packed]
    reports = tuple(_plan(fused, key, plan, refused.get(key, "")) for key, plan in plans.items())
    return Contents(reports, tuple(sorted(constants, key=lambda c: -c.bytes)), fused.threads)


def _plan(fused: Fused, key: tuple[Any, ...], plan: DnnlPlan | None, reason: str) -> PlanReport:
    inputs = inputs_of(fused.part, key)
    if plan is None:
        return PlanReport(inputs, key in fused.guessed, interpreted=reason)
    steps = tuple(StepReport(s.kernel, s.node.label, tuple(n.label for n in s.nodes), 1,
                             "" if s.kernel.startswith("reference") else s.kernel, s.reason)
                  for s in plan.steps)
    done = {n for s in plan.steps for n in s.nodes}
    views = tuple(n.label for n in fused.part.nodes if n not in done)
    return PlanReport(inputs, key in fused.guessed, steps, plan.size, 0,
                      tuple(places(fused.part, plan.steps, plan.held)), views, seconds=plan.seconds)
