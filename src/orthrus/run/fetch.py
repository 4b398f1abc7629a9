"""One choice of outputs, and of the devices of what comes in and goes out: the steps it needs, and a plan
for each tuple of input shapes that keeps coming.

A plan is an arena and the blocks of it that no run is using. What idle blocks take together is bounded, but
for those of the shapes that came last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ir import TensorType, Type, Value
from ..kernels import HOST, DeviceArray, ordered, working
from ..limits import Limits
from ..locks import lock
from ..plan import Arena, Call, Code, Program, plan_arena, taker

PLANS = 16
"""Input-shape tuples a plan is kept for; the least recently used goes first."""

IDLE_BYTES = 1 << 28
"""Bytes of idle blocks kept for shapes other than those of the last run."""

_BLOCKS = 4


class ArenaPlan:
    """An arena and the blocks that are not in use."""

    __slots__ = ("arena", "idle")

    def __init__(self, arena: Arena) -> None:
        self.arena, self.idle = arena, list[tuple[list[Any], np.ndarray]]()

    def take(self) -> tuple[list[Any], np.ndarray]:
        """A template of slots with views into a block, and the block; this run's until it is given back."""
        try:
            return self.idle.pop()
        except IndexError:
            return self.arena.instance()

    def give(self, instance: tuple[list[Any], np.ndarray]) -> None:
        """Give back what `take` gave."""
        if len(self.idle) < _BLOCKS:
            self.idle.append(instance)


class Fetch:
    """The steps for `outputs`, and their plans by input shapes; `fed` and `wanted` as in `Program.planned`.
    Safe on many threads."""

    __slots__ = ("program", "outputs", "take", "code", "limits", "plans", "seen", "lock")

    def __init__(self, program: Program, outputs: Sequence[int], limits: Limits,
                 fed: Mapping[int, int] | None = None, wanted: Sequence[int] | None = None) -> None:
        self.program, self.limits = program, limits
        self.code: Code = program.code
        self.outputs: Sequence[int] = program.results
        if outputs is not program.outputs or fed or wanted:
            steps, self.outputs = program.planned(outputs, fed, wanted)
            self.code = program.bound(steps)
        self.take = taker(tuple(self.outputs))
        self.plans: OrderedDict[tuple[Any, ...], ArenaPlan | None] = OrderedDict()
        self.seen: tuple[Any, ...] | None = None
        self.lock = lock()

    @property
    def calls(self) -> list[Call]:
        return [entry[4] for entry in self.code]

    def filling(self, steps: Code, targets: Sequence[Any], stepwise: bool) -> Code:
        """`steps` where the arrays among `targets` are filled by the one kernel that gives all results, if it
        can do so. One that is to go step by step, and can do that, is left as it is, but on a device whose
        streams do the work later: there is nothing to stop between the steps."""
        call = steps[0][4] if len(steps) == 1 else None
        if call is None or (into := call.kernel.into) is None or (
                stepwise and call.kernel.stepwise is not None and not call.device.streams):
            return steps
        kind = np.ndarray if call.device is HOST else DeviceArray
        wanted = {slot: target for slot, target in zip(self.outputs, targets, strict=True)
                  if isinstance(target, kind)}

        def run(*given: Any) -> Any:
            if call.device.streams:
                ordered(working(call.device), given, wanted.values())
            return into(given, [wanted.get(slot) for slot in call.writes])
        return [(run, *steps[0][1:])]

    def plan(self, shapes: tuple[Any, ...], feeds: dict[str, Any]) -> ArenaPlan | None:
        """The plan for `shapes`, made when they come a second time in a row; None where there is none."""
        known: Any = self.plans.get(shapes, self)
        if self.seen == shapes:
            return self._made(shapes, feeds) if known is self else known
        self.seen = shapes
        if known is self:
            return None
        with self.lock:
            if shapes in self.plans:
                self.plans.move_to_end(shapes)
            self._trim()
        return known

    def _made(self, shapes: tuple[Any, ...], feeds: dict[str, Any]) -> ArenaPlan | None:
        types: dict[Value, Type] = {}
        for value in self.program.graph.inputs:
            given: Any = feeds.get(value.name)
            if isinstance(value.type, TensorType) and isinstance(given, np.ndarray):
                types[value] = TensorType(value.type.elem, tuple(given.shape))
        arena = plan_arena(self.program, self.code, self.outputs, types)
        fits = arena is not None and arena.size <= self.limits.max_total_bytes
        with self.lock:
            self.plans[shapes] = plan = ArenaPlan(arena) if arena is not None and fits else None
            while len(self.plans) > PLANS:
                self.plans.popitem(last=False)
            self._trim()
        return plan

    def shrink(self) -> None:
        """Let go of the blocks that no run is using."""
        with self.lock:
            for plan in self.plans.values():
                if plan is not None:
                    plan.idle.clear()

    def _trim(self) -> None:
        kept = 0
        for plan in list(reversed(self.plans.values()))[1:]:
            if plan is not None:
                kept += plan.arena.size * len(plan.idle)
                if kept > IDLE_BYTES:
                    plan.idle.clear()
