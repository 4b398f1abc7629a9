"""A compiled part at run time: one plan per tuple of input shapes, whoever makes and runs the plans.

In: a part, and in a subclass how it is lowered for shapes and how a plan is run. Out: what a kernel is called
by. Plans are kept for the shapes used last. Shapes that do not lower run by the nodes' definitions, with the
reason in `refused`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ..errors import EPFail, Fail, pass_on
from ..ir import Value, likely_shapes
from ..kernels import Gate, Part, failed
from ..limits import current
from ..memory import making
from ..recent import Recent
from .interpret import Note, Reference, Watch, interpret
from .learner import Learner
from .refused import Refused

log = logging.getLogger("orthrus")

PLANS = 64
"""Input-shape tuples a part keeps a plan for; the least recently used goes first."""

IDLE_BYTES = 1 << 28
"""Bytes of idle instances kept for shapes other than the last new one."""

Key = tuple[Any, ...]
Kinds = Sequence[tuple[tuple[int, ...], str]]


class Unfit(Exception):
    """What a run found in its data that its plan does not compute as ONNX says: the definitions do."""


class Shaped(Protocol):
    """A plan: `size` bytes for each of the instances that lie `idle`; `seconds` that it took to make."""

    size: int
    seconds: float
    idle: list[Any]

    @property
    def definitions(self) -> bool:
        """Whether those of the nodes do all of it."""
        ...


P = TypeVar("P", bound=Shaped)


class ShapedPart(ABC, Generic[P]):
    """The kernel of a fused part: called with arrays it gives arrays. `strict`: what runs by definitions for
    a fault of a rule is an error. `deciding`: inputs whose elements are shapes, or numbers of turns: they
    choose the plan as the arrays' shapes do."""

    deciding: Sequence[int] = ()

    def __init__(self, part: Part, reference: Reference, threads: int, strict: bool) -> None:
        self.part, self.reference, self.threads = part, functools.cache(reference), threads
        self.refused = Refused(part, strict)
        self.plans: Recent[Key, P | None] = Recent(PLANS, self.refused.forget)
        self.guessed: set[Key] = set()
        self.learner = Learner(str(part))
        self.single = len(part.outputs) == 1
        self.gate = Gate(part.inputs)

    @abstractmethod
    def lower(self, key: Key, kinds: Kinds) -> P:
        """The plan for inputs of these shapes and types. Raises what a rule raises."""

    @abstractmethod
    def _entered(self, plan: P, arrays: Sequence[np.ndarray], run: Callable[..., None]) -> Any:
        """The results, after `run(instance, arrays, outputs)` in an instance of `plan`. Raises Unfit."""

    @abstractmethod
    def _run(self, instance: Any, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """All steps of a plan."""

    def finder(self, key: Key, kinds: Kinds) -> Callable[[], Any] | None:
        """What finds a formula of plans for shapes like these, None where there is nothing to find."""
        return None

    def __call__(self, *given: Any) -> Any:
        arrays = self.gate(given)
        plan = self.plan(arrays)
        if plan is not None and plan.definitions:
            return interpret(self.part, self.reference, arrays)
        if plan is not None:
            try:
                return self._entered(plan, arrays, self._run)
            except Unfit as why:
                self.unfit(why)
        return self.interpret(arrays)

    def unfit(self, why: Unfit) -> None:
        """A run is computed by the definitions."""
        log.info("%s runs by its nodes' definitions this time: %s", self.part, why)

    def key(self, arrays: Sequence[np.ndarray]) -> Key:
        """What chooses the plan for `arrays`."""
        shapes = tuple([a.shape for a in arrays])
        return (*shapes, *[tuple(arrays[i].ravel().tolist()) for i in self.deciding]) if self.deciding \
            else shapes

    def given(self, key: Key, kinds: Kinds) -> dict[Value, np.ndarray]:
        """The inputs whose elements are part of a key, with these."""
        values = self.part.inputs
        return {values[i]: np.array(elements, kinds[i][1]).reshape(kinds[i][0])
                for i, elements in zip(self.deciding, key[len(values):], strict=True)}

    def plan(self, arrays: Sequence[np.ndarray]) -> P | None:
        """The plan for `arrays`, None where they are interpreted."""
        key = self.key(arrays)
        try:
            return self.plans.used(key)
        except KeyError:
            return self._made(key, [(a.shape, a.dtype.name) for a in arrays])

    def plan_for(self, shapes: Sequence[tuple[int, ...]]) -> P | None:
        """The plan for inputs of these shapes, None where there is none."""
        return self._made(tuple(shapes), self.kinds(shapes))

    def kinds(self, shapes: Sequence[tuple[int, ...]]) -> Kinds:
        """Shapes of the inputs, and their types."""
        return [(shape, v.elem.numpy.name) for shape, v in zip(shapes, self.part.inputs, strict=True)]

    def _made(self, key: Key, kinds: Kinds) -> P | None:
        return self.plans.kept(key, functools.partial(self._new, key, kinds))

    def _new(self, key: Key, kinds: Kinds) -> P | None:
        start = time.perf_counter()
        made: Any = self.learner.plan(key)
        if made is None:
            try:
                with making():
                    made = self.lower(key, kinds)
            except (MemoryError, EPFail):
                raise
            except Exception as error:
                pass_on(error)
                log.debug("%s is interpreted for %s: %s: %s", self.part, key, type(error).__name__, error)
                self.refused.note(key, error)
                return None
            find = self.finder(key, kinds)
            if find is not None:
                self.learner.learn(find)
        made.seconds = time.perf_counter() - start
        self._spare()
        return made

    def _spare(self) -> None:
        """Keep no more idle instances than IDLE_BYTES hold, those of the plans used last."""
        kept = 0
        for plan in list(reversed(self.plans.values())):
            if plan is not None:
                kept += plan.size * len(plan.idle)
                if kept > IDLE_BYTES:
                    plan.idle.clear()

    def prepare(self) -> None:
        """Lower ahead of the first run, so that the session's creation pays for compiling and packing: for
        the inputs' shapes, with a guess in the place of each open dimension. Not where computed shapes
        decide, nor for inputs that nobody can feed, as tables for them may be as large."""
        kinds = [(v.shape, v.elem.numpy.name) for v in self.part.inputs]
        if self.deciding or any(shape is None for shape, _ in kinds):
            return
        cached = any("past" in v.name for v in self.part.inputs)
        key = tuple(likely_shapes([shape for shape, _ in kinds], cached))
        sizes = [v.elem.numpy.itemsize * math.prod(g) for v, g in zip(self.part.inputs, key, strict=True)]
        if max(sizes, default=0) > current().max_tensor_bytes:
            return
        exact = all(isinstance(d, int) for shape, _ in kinds for d in shape)
        if not exact:
            self.guessed.add(key)
        with contextlib.suppress(MemoryError):
            made = self._made(key, [(g, dtype) for g, (_, dtype) in zip(key, kinds, strict=True)])
            if made is None and not exact:
                del self.plans[key]

    def _host(self, step: Any, reads: Sequence[Any], instance: Any, arrays: Sequence[np.ndarray],
              outputs: Sequence[np.ndarray]) -> None:
        """A step that numpy computes from the tensors it `reads`, None for one that is absent."""
        given = [None if t is None else instance.view(t, arrays, outputs) for t in reads]
        while given and given[-1] is None:
            given.pop()
        try:
            made = step.host(*given)
        except Unfit:
            raise
        except Exception as error:
            raise failed(step.node, error, given, step.node.name) from error
        results = made if isinstance(made, tuple) else (made,)
        kept = [r for v, r in zip(step.node.outputs, results, strict=False) if v is not None]
        for t, result in zip(step.outs, kept, strict=True):
            if np.shape(result) != t.shape:
                raise Fail(f"{step.node.label} gave another shape than its type says", node=step.node,
                           found=str(np.shape(result)), expected=str(t.shape))
            instance.view(t, arrays, outputs)[...] = result

    def interpret(self, arrays: Sequence[np.ndarray], note: Note | None = None, watch: Watch | None = None,
                  check: Callable[[], None] | None = None) -> Any:
        """The part by its definitions, node by node: for shapes that do not lower, and to find which node
        fails. Raises EPFail where that is for a fault of a rule, and an error."""
        made = interpret(self.part, self.reference, arrays, note, watch, check)
        self.refused.answered(self.key(arrays))
        return made

    def close(self) -> None:
        """There will be no more runs: what looks for a formula ends, and lets go of the part."""
        self.learner.close()
