"""Fewer kernels: steps that need nothing of each other are one launch.

In: the steps of a lowering, before memory is planned. Out: steps in an order that means the same, of which
some are several: products of one input, appends of keys and of values. They are of one template, so few
programs that the GPU has room for all, and of one number of warps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...codegen.triton import tiles
from ...codegen.triton.kernels.together import together
from ...codegen.triton.targets import Target
from ...kernels import Work
from ...records import dataclass
from ..step import KernelStep
from ..tensor import Buffer, Tensor, extent

MOST = 4
"""Steps of one launch, at most."""

ROOM = 4
"""Programs to a multiprocessor of one step, at most."""

_FAR = 32
"""Launches that a step may move forward by."""

_BYTES = 1 << 20
"""Of what a step makes for other steps, at most: that lives longer where it moves forward."""


@dataclass(eq=False)
class Merged(KernelStep):
    """A launch of several steps."""

    members: Sequence[KernelStep] = ()


def merged(steps: Sequence[KernelStep], target: Target, status: Buffer) -> list[KernelStep]:
    """`steps` with those merged that can be. `status`: what steps may write in any order."""
    made = list[_Launch]()
    for step in steps:
        launch = _Launch(step, status)
        partner = _partner(made, launch, target)
        if partner is None:
            made.append(launch)
        else:
            partner.take(launch)
    return [launch.step(target) for launch in made]


class _Launch:
    """Steps that are asked for as one, and the buffers that they read and write."""

    def __init__(self, step: KernelStep, status: Buffer) -> None:
        self.members = [step]
        self.writes, self.reads = dict[Buffer, list[Tensor]](), dict[Buffer, list[Tensor]]()
        for kept, tensors in ((self.writes, step.outs), (self.reads, step.tensors())):
            for t in tensors:
                if t.buffer is not status:
                    kept.setdefault(t.buffer, []).append(t)
        self.made = sum(b.size for b in self.writes if b.kind == "arena")

    def take(self, other: _Launch) -> None:
        self.members += other.members
        for kept, more in ((self.writes, other.writes), (self.reads, other.reads)):
            for buffer, tensors in more.items():
                kept[buffer] = [*kept.get(buffer, ()), *tensors]

    def meets(self, other: _Launch) -> bool:
        """Whether the order of the two is of meaning."""
        return any(a.buffer is b.buffer and not _apart(a, b)
                   for ours, theirs in ((self.writes, other.reads), (self.reads, other.writes))
                   for buffer in ours.keys() & theirs.keys() for a in ours[buffer] for b in theirs[buffer])

    def small(self, target: Target) -> bool:
        """Whether the first step leaves room for others, of programs and of memory."""
        step = self.members[0]
        return (step.spec is not None and step.items <= ROOM * tiles.chip(target).units
                and self.made <= _BYTES and not step.spec.written(target).functions)

    def like(self, other: _Launch, target: Target) -> bool:
        """Whether both may be one."""
        one, two = self.members[0].spec, other.members[0].spec
        if one is None or two is None or one.template != two.template or len(self.members) >= MOST:
            return False
        first, second = one.written(target), two.written(target)
        return (first.warps, first.stages, first.options) == (second.warps, second.stages, second.options)

    def step(self, target: Target) -> KernelStep:
        """The step that asks for all."""
        if len(self.members) == 1:
            return self.members[0]
        args, last = list[object](), self.members[-1]
        for step in self.members:
            args += [*([] if step is last else [step.items]), *step.args]
        first = self.members[0]
        return Merged(together(specs=tuple(step.spec for step in self.members)), args,
                      sum(step.items for step in self.members), 1, 0, first.node,
                      [t for step in self.members for t in step.outs], None, self.members)


def _apart(a: Tensor, b: Tensor) -> bool:
    """Whether tensors of one buffer lie one behind the other."""
    (first, end), (begin, last) = _span(a), _span(b)
    return bool(end <= begin or last <= first)


def _span(t: Tensor) -> tuple[int, int]:
    """The bytes from a tensor's first element to its last, of no matter which type."""
    if any(s < 0 for s in t.strides):
        return 0, t.buffer.size
    return t.byte_offset, t.byte_offset + extent(t.shape, t.strides) * t.itemsize


def _partner(made: Sequence[_Launch], launch: _Launch, target: Target) -> _Launch | None:
    """The last of the launches that this one may be part of."""
    for other in made[:-_FAR - 1:-1]:
        if other.members[0].spec is None or other.meets(launch):
            return None
        if other.like(launch, target) and launch.small(target) and other.small(target):
            return other
    return None


def single(steps: Sequence[KernelStep]) -> list[KernelStep]:
    """The steps that these were."""
    return [each for step in steps for each in (step.members if isinstance(step, Merged) else [step])]


def joined(works: Sequence[Work], steps: Sequence[KernelStep]) -> list[Work]:
    """What each of `steps` does, of the works of the steps that they were."""
    left, made = iter(works), list[Work]()
    for step in steps:
        first, *others = (next(left) for _ in single([step]))
        own = [first, *others]
        made.append(first if not others else replace(
            first, kernel=step.spec.template, nodes=_once(n for work in own for n in work.nodes),
            inputs=_once(v for work in own for v in work.inputs),
            outputs=_once(v for work in own for v in work.outputs)))
    return made


def _once(given: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(given))
