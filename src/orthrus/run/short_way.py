"""The short way of a run: a program of one step at most, from feeds to results, without what only several
steps need.

In: the program, and the checks of its inputs. Out: `run(names, feeds)`, which gives the results and raises
what `Engine.run` raises, or None where that has to be gone, before anything was done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context as Variables
from typing import Any

import numpy as np

from .. import knobs
from ..kernels import HOST, DeviceArray, plain
from ..limits import Limits, held, over, swap
from ..plan import Call, Program
from .dimensions import agree
from .executor import Context, failure
from .results import results

Checks = Mapping[str, tuple[int, Callable[[Any], Any]]]
After = Callable[[Call, Sequence[Any]], None]


class ShortWay:
    """Runs of one step on the host, or of none where the results are constants or what is fed. `entries`: by input its slot and its check; `shared`: see `agree`;
    `after`: is told of the step and of what it was run with.

    This package's own code runs where limits are set and numpy is quiet already: `idle` are such places, each
    for one run at a time, with the account of that."""

    def __init__(self, program: Program, entries: Checks, shared: Sequence[Any], names: Sequence[str],
                 constants: frozenset[int], limits: Limits, after: After | None) -> None:
        step = program.calls[0] if program.steps else None
        self.step, self.open = step, True
        self.shared, self.names, self.constants, self.limits, self.after = (
            shared, list(names), constants, limits, after)
        self.count = len(entries)
        reads = program.outputs if step is None else step.reads
        self.template = [program.template[slot] for slot in reads]
        where: dict[int, list[int]] = {}
        for place, slot in enumerate(reads):
            where.setdefault(slot, []).append(place)
        self.entries = [(name, check, where.get(slot, [])) for name, (slot, check) in entries.items()]
        self.places = [] if step is None else [step.writes.index(slot) for slot in program.outputs]
        self.single = step is not None and len(step.writes) == len(self.places) == 1 and not step.bodies
        self.apart = (step is None or (step.kernel.own and not step.bodies)) and _apart()
        self.idle: list[tuple[Variables, Context]] = []

    @classmethod
    def of(cls, program: Program, entries: Checks, shared: Sequence[Any], names: Sequence[str],
           constants: frozenset[int], limits: Limits, after: After | None) -> ShortWay | None:
        """That of a program; None where it is more than one step on the host, or gives other things than that
        step makes of its inputs and constants."""
        if len(program.steps) > 1:
            return None
        step = program.calls[0] if program.steps else None
        known = {*program.inputs, *program.constants, 0}
        if (not known.issuperset(program.outputs if step is None else step.reads)
                or (step is not None and (step.device is not HOST
                                          or not set(program.outputs).issubset(step.writes)))
                or any(v.default is not None for v in program.graph.inputs)):
            return None
        return cls(program, entries, shared, names, constants, limits, after)

    def run(self, names: Any, feeds: Any) -> list[Any] | None:
        """The results; None where it does not serve."""
        step = self.step
        if (feeds.__class__ is not dict or len(feeds) != self.count or knobs.DEBUG.value or knobs.CHECK.value
                or not self.open or (names is not None and names != self.names)):
            return None
        given, fed = self.template.copy(), []
        for name, check, places in self.entries:
            if name not in feeds:
                return None
            value = check(feeds[name])
            if type(value) is DeviceArray:
                return None
            fed.append(value)
            for place in places:
                given[place] = value
        if self.shared and not agree(self.shared, feeds):
            return None
        if not self.apart:
            return self._within(step, given, fed)
        try:
            variables, context = self.idle.pop()
        except IndexError:
            variables, context = self._new()
        context.room = self.limits.max_total_bytes
        try:
            return variables.run(self._made, step, given, fed, context)
        finally:
            self.idle.append((variables, context))

    def _made(self, step: Call | None, given: Sequence[Any], fed: Sequence[Any], context: Context) -> list[Any]:
        if step is None:
            return results(given, fed, self.constants, None)
        try:
            made = step.run(context, *given) if step.bodies else step.run(*given)
            if self.single and type(made) is np.ndarray:
                values: Sequence[Any] = (made,)
            else:
                values = self._values(made, step)
            for value in values:
                context.room -= value.nbytes if type(value) is np.ndarray and value.base is None and (
                    not value.dtype.hasobject) else held(value)
            if context.room < 0:
                raise over()
        except Exception as error:
            raise failure(step, error, list(given)) from error
        out = results(values, fed, self.constants, None)
        if self.after is not None:
            self.after(step, given)
        return out

    def _values(self, made: Any, step: Call) -> list[Any]:
        """The program's outputs, from what the kernel gave."""
        count = len(step.writes)
        if type(made) is not tuple:
            made = tuple(made) if isinstance(made, list) and (count > 1 or step.bodies) else (made,)
        if len(made) < count:
            raise ValueError(f"the kernel gave {len(made)} outputs, the node has {count}")
        return [v if type(v := made[place]) is np.ndarray else plain(v) for place in self.places]

    def _within(self, step: Call | None, given: Sequence[Any], fed: Sequence[Any]) -> list[Any]:
        """`_made` for code that may be somebody else's, or that needs the run's context."""
        limits = self.limits
        context = Context(limits.max_total_bytes, limits.run_timeout)
        before = swap(limits, context)
        try:
            with np.errstate(all="ignore"):
                return self._made(step, given, fed, context)
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
        self.open = False


@functools.cache
def _apart() -> bool:
    """Whether what numpy is to say is a variable of the context, as it is from numpy 2.0 on."""
    with np.errstate(all="warn"):
        Variables().run(functools.partial(np.seterr, all="ignore"))
        return np.geterr()["over"] == "warn"
