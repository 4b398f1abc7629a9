"""What a compiled part holds, as plain data: what `Kernel.describe` answers with.

In: nothing but what a provider kept of its own work. Out: `Contents`, which refers to no graph, no array and
no code, so that it may be kept, printed and written as JSON. Sizes are in bytes, times in seconds.
"""

from __future__ import annotations

from ..records import dataclass


@dataclass(frozen=True)
class StepReport:
    """One step of a plan. `kernel`: its template, or `reference Op` where numpy computes `node`; `reason`
    then says why. `node`: the one whose result it stores; `nodes`: all whose work it does. `items`: the work
    items it is divided into. `file`: the name of its code among dumped kernels, "" on numpy; `edited`: that
    code came from such a file."""

    kernel: str
    node: str
    nodes: tuple[str, ...]
    items: int
    file: str = ""
    reason: str = ""
    edited: bool = False


@dataclass(frozen=True)
class KernelUse:
    """How often a plan calls a kernel, and over how many work items in all."""

    name: str
    count: int
    items: int


@dataclass(frozen=True)
class Span:
    """Where a value lies: bytes of `part`'s arena from `offset` on, from the plan's step `first` to its step
    `last`. `part` is empty for the arena of what runs outside of compiled parts."""

    part: str
    value: str
    offset: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Packed:
    """A constant in the form kernels read: `how` is what was made of `value`, "as it is" where nothing was;
    `value` is empty for a table that belongs to no initializer."""

    value: str
    how: str
    bytes: int


@dataclass(frozen=True)
class PlanReport:
    """What a part does for one tuple of input shapes.

    `inputs`: (name, type). `guessed`: made before any run, with a guess for each open dimension. `steps` in
    their order; `arena` and, for each thread, `scratch`: the memory of a run; `places`: what lies where in
    the arena. `known`: nodes whose results follow from shapes alone, which cost a run nothing. `interpreted`:
    why there are no steps and the nodes' definitions run instead, "" where there are. `seconds`: what making
    the plan took, compiling included.
    """

    inputs: tuple[tuple[str, str], ...]
    guessed: bool = False
    steps: tuple[StepReport, ...] = ()
    arena: int = 0
    scratch: int = 0
    places: tuple[Span, ...] = ()
    known: tuple[str, ...] = ()
    interpreted: str = ""
    seconds: float = 0.0

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The kernels by name, most used first; numpy's steps among them."""
        found: dict[str, list[int]] = {}
        for step in self.steps:
            found.setdefault(step.kernel, []).append(step.items)
        return tuple(sorted((KernelUse(name, len(items), sum(items)) for name, items in found.items()),
                            key=lambda use: (-use.count, use.name)))

    @property
    def numpy(self) -> dict[str, str]:
        """The nodes that numpy computes inside this part, and why."""
        return {step.node: step.reason for step in self.steps if not step.file}


@dataclass(frozen=True)
class Contents:
    """A part's plans, the newest last, and the constants that all of them read. `threads`: how many a run may
    use."""

    plans: tuple[PlanReport, ...]
    constants: tuple[Packed, ...]
    threads: int = 1
