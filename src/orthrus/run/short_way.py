"""The short way of a run: a program of few steps, from feeds to results, without what only many steps need.

In: the program, and the checks of its inputs. Out: `run(names, feeds)`, which gives the results and raises
what `Engine.run` raises, or None where that has to be gone, before anything was done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context as Variables
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import knobs
from ..kernels import HOST, DeviceArray, plain
from ..limits import OWNERS, Limits, held, over, swap
from ..plan import Call, Code, Program
from .dimensions import agree
from .executor import Context, execute, failure
from .fast_way import FastWay, Shapes
from .results import results

if TYPE_CHECKING:
    from .joining import Joining

Checks = Mapping[str, tuple[int, Callable[[Any], Any]]]
Work = tuple[Program, Call | None, Code, list[Any]]
"""A program, its only step, its code, and what a run begins with."""
FEW = 12
"""Steps of a program that is run so; memory planned ahead is worth its while for more."""


class ShortWay:
    """Runs of few steps on the host, or of none where the results are constants or what is fed. `entries`: by
    input its slot and its check; `shared`: see `agree`; `fast`: a way for arrays such as those of the runs
    that it is told of. `when_served`: told of the shapes of a program without a fast way, as that tells;
    `joining`: what makes it one part for such, where control flow keeps it from being one.

    This package's own code runs where limits are set and numpy is quiet already: `idle` are such places, each
    for one run at a time, with the account of that."""

    def __init__(self, program: Program, entries: Checks, shared: Sequence[Any], names: Sequence[str],
                 constants: frozenset[int], limits: Limits, fast: FastWay | None) -> None:
        calls = program.calls
        step = calls[0] if len(calls) == 1 else None
        self.shared, self.names, self.constants = list(shared), list(names), constants
        self.limits, self.fast, self.count = limits, fast, len(entries)
        reads = range(len(program.template)) if step is None else step.reads
        template = [program.template[slot] for slot in reads]
        self.work: Work | None = (program, step, program.code, template)
        where: dict[int, list[int]] = {}
        for place, slot in enumerate(reads):
            where.setdefault(slot, []).append(place)
        self.entries = [(name, check, where.get(slot, [])) for name, (slot, check) in entries.items()]
        self.places = program.outputs if step is None else [step.writes.index(s) for s in program.outputs]
        self.single = step is not None and len(step.writes) == len(self.places) == 1 and not step.bodies
        self.apart = all(call.kernel.own for call in calls) and _apart()
        self.idle: list[tuple[Variables, Context]] = []
        self.when_served: Callable[[None, Shapes], bool] | None = None
        self._told: Shapes | None = None
        self.joining: Joining | None = None

    @classmethod
    def of(cls, program: Program, entries: Checks, shared: Sequence[Any], names: Sequence[str],
           constants: frozenset[int], limits: Limits, fast: FastWay | None) -> ShortWay | None:
        """That of a program; None where it has many steps or one that is not on the host."""
        calls = program.calls
        if len(calls) > FEW or any(call.device is not HOST for call in calls) or any(
                v.default is not None for v in program.graph.inputs):
            return None
        if len(calls) > 1 and any(call.kernel.takes_out for call in calls):
            return None
        if len(calls) == 1 and not (
                set(program.outputs).issubset(calls[0].writes)
                and {*program.inputs, *program.constants, 0}.issuperset(calls[0].reads)):
            return None
        return cls(program, entries, shared, names, constants, limits, fast)

    def run(self, names: Any, feeds: Any) -> list[Any] | None:
        """The results; None where it does not serve."""
        joined = joining.run if (joining := self.joining) is not None else None
        if joined is not None and (made := joined(names, feeds)) is not None:
            return made
        # whatever a step needs stays until it is done
        work = self.work
        if (feeds.__class__ is not dict or len(feeds) != self.count or knobs.DEBUG.value or knobs.CHECK.value
                or work is None or (names is not None and names != self.names)):
            return None
        given, fed, as_fed = work[3].copy(), [], True
        for name, check, places in self.entries:
            if name not in feeds:
                return None
            asked = feeds[name]
            value = check(asked)
            if type(value) is DeviceArray:
                return None
            as_fed &= value is asked
            fed.append(value)
            for place in places:
                given[place] = value
        if self.shared and not agree(self.shared, feeds):
            return None
        if not as_fed and self.fast is not None:
            made = self.fast.run(None, dict(zip([name for name, *_ in self.entries], fed, strict=True)))
            if made is not None:
                return made
        if not self.apart:
            return self._within(work, given, fed)
        try:
            variables, context = self.idle.pop()
        except IndexError:
            variables, context = self._new()
        context.room, context.end = self.limits.max_total_bytes, monotonic() + context.seconds
        try:
            return variables.run(self._made, work, given, fed, context)
        finally:
            self.idle.append((variables, context))

    def _made(self, work: Work, given: list[Any], fed: Sequence[Any], context: Context) -> list[Any]:
        program, step, code, _ = work
        if step is None:
            begun = [] if self.fast is None else [given[slot] for slot in program.calls[0].reads]
            execute(code, given, context)
            if self.fast is not None:
                self.fast.learn(program.calls[0], begun)
            out = results([given[place] for place in self.places], fed, self.constants, None)
            self._tell(fed, out)
            return out
        try:
            made = step.run(context, *given) if step.bodies else step.run(*given)
            if self.single and type(made) is np.ndarray:
                values: Sequence[Any] = (made,)
            else:
                values = self._values(made, step)
            for value in values:
                if type(value) is not np.ndarray:
                    context.room -= held(value)
                elif value.base is None or id(value) in OWNERS:
                    context.room -= value.nbytes
            if context.room < 0:
                raise over()
        except Exception as error:
            raise failure(step, error, given) from error
        out = results(values, fed, self.constants, None)
        if self.fast is not None:
            self.fast.learn(step, given)
        self._tell(fed, out)
        return out

    def _tell(self, fed: Sequence[Any], out: Sequence[Any]) -> None:
        if (joining := self.joining) is not None:
            joining.told(fed, out)
        if self.when_served is not None and all(type(value) is np.ndarray for value in fed):
            shapes = tuple([value.shape for value in fed])
            if shapes != self._told:
                again, self._told = self.when_served(None, shapes), shapes
                if not again:
                    self.when_served = None

    def _values(self, made: Any, step: Call) -> list[Any]:
        """The program's outputs, from what the kernel gave."""
        count = len(step.writes)
        if type(made) is not tuple:
            made = tuple(made) if isinstance(made, list) and (count > 1 or step.bodies) else (made,)
        if len(made) < count:
            raise ValueError(f"the kernel gave {len(made)} outputs, the node has {count}")
        return [v if type(v := made[place]) is np.ndarray else plain(v) for place in self.places]

    def _within(self, work: Work, given: list[Any], fed: Sequence[Any]) -> list[Any]:
        """`_made` for code that may be somebody else's."""
        limits = self.limits
        context = Context(limits.max_total_bytes, limits.run_timeout)
        before = swap(limits, context)
        try:
            with np.errstate(all="ignore"):
                return self._made(work, given, fed, context)
        finally:
            swap(*before)

    def _new(self) -> tuple[Variables, Context]:
        limits, made = self.limits, Variables()
        context = Context(limits.max_total_bytes, limits.run_timeout)
        made.run(functools.partial(np.seterr, all="ignore"))
        made.run(swap, limits, context)
        return made, context

    def close(self) -> None:
        """Serve nothing from now on."""
        self.work = self.when_served = None
        joining, self.joining = self.joining, None
        if joining is not None:
            joining.close()


@functools.cache
def _apart() -> bool:
    """Whether what numpy is to say is a variable of the context, as it is from numpy 2.0 on."""
    with np.errstate(all="warn"):
        Variables().run(functools.partial(np.seterr, all="ignore"))
        return np.geterr()["over"] == "warn"
