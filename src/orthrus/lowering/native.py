"""A compiled part at run time: one plan per tuple of input shapes, entered with one native call."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from .. import knobs
from ..codegen.kernels import amx
from ..codegen.runtime.fastcall import Program
from ..codegen.write.template import OUTSIDE
from ..errors import Fail
from ..ir import likely_shapes
from ..kernels import Contents, Gate, Part, failed, readable
from ..limits import HARMLESS, Limits, current, reserve, using
from ..locks import lock
from ..shapes.symbolic import Sizes
from .device import Device
from .formula import Formula, Open, opened
from .interpret import Note, Reference, Watch, interpret
from .lower import Lowering, Step
from .plans import Code, Instance, Lowered, Plan, Stepped
from .precision import Kinds, Trial
from .refused import Refused
from .report import contents, finished
from .tensor import Tensor

log = logging.getLogger("orthrus")

FORMULAS = 16
"""Formulas a part keeps at most."""

_ENOUGH, _SELDOM = 8, 16
"""Formulas that served nothing yet, or could not be found, with which a part looks for more seldom."""

_PATIENCE = 2.0
"""Seconds that closing waits for what looks for a formula to notice, between two of the part's nodes."""

_learners: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

PLANS = 64
"""Input-shape tuples a part keeps a plan for; the least recently used goes first."""

IDLE_BYTES = 1 << 28
"""Bytes of idle instances kept for shapes other than the last new one."""


def _settle() -> None:
    """Wait for threads that learn: a lock that one holds would be held in a forked process for good."""
    for thread in list(_learners):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_settle)


class Native:
    """The kernel of a fused part. Called with arrays it gives arrays; what it cannot lower it interprets.

    `matrix_unit`: whether float32 products may be computed by one; None to find out, see `precision`;
    `tried`: what was found out, by the inputs' shapes. `half_epilogue`: whether what sums of bytes stand for
    may be rounded to float16; `transforms`: whether convolutions may go by way of transforms; `direct`: the
    same part without these, once it was needed."""

    half_epilogue = False
    transforms = True
    direct: Native | None = None

    def __init__(self, part: Part, device: Device, reference: Reference, threads: int,
                 matrix_unit: bool | None = False, strict: bool = False) -> None:
        self.part, self.device, self.machine = part, device, device.machine
        self.reference, self.matrix_unit = reference, matrix_unit
        self.threads = min(threads or device.capacity, device.capacity)
        self.constants: dict[Hashable, Tensor] = {}
        self.plans: OrderedDict[tuple[Any, ...], Plan | None] = OrderedDict()
        self.refused = Refused(part, strict)
        self.guessed: set[tuple[Any, ...]] = set()
        self.formulas: list[Formula] = []
        self.unlearnt: list[str] = []
        self.learning = self.missed = 0
        self.learner: threading.Thread | None = None
        self.open = any(v.shape is None or any(not isinstance(d, int) for d in v.shape) for v in part.inputs)
        self.trial = Trial(part, self.machine) if matrix_unit is None else None
        self.tried: dict[tuple[Any, ...], bool] = {}
        self.lock = lock()
        self.closed = False
        self.single = len(part.outputs) == 1
        self.gate = Gate(part.inputs)

    def __call__(self, *given: Any) -> Any:
        arrays = self.gate(given)
        key = tuple([a.shape for a in arrays])
        try:
            plan = self.plans[key]
            self.plans.move_to_end(key)
        except KeyError:
            plan = self._made(key, [(a.shape, a.dtype.name) for a in arrays])
        if plan is None:
            return self.interpret(arrays)
        return self._entered(plan, arrays, self._run)

    def into(self, arrays: Sequence[np.ndarray], targets: Sequence[np.ndarray | None]) -> Any:
        """As a call; a result is its target, where that is of its shape and type, in C order, and in memory
        of its own, or in that of the cache it is."""
        arrays = self.gate(arrays)
        plan = self._made(tuple([a.shape for a in arrays]), [(a.shape, a.dtype.name) for a in arrays])
        return self.interpret(arrays) if plan is None else self._entered(plan, arrays, self._run, targets)

    @property
    def quick(self) -> Callable[[Sequence[np.ndarray]], Program | None] | None:
        """See `Kernel`; None where kernels can only touch memory of their own."""
        return None if self.device.apart else self._program

    def _program(self, arrays: Sequence[np.ndarray]) -> Program | None:
        """What does the same as a call with such arrays, all in generated code; None where numpy has a step,
        or before there was such a call."""
        plan = self.plans.get(tuple([a.shape for a in arrays]))
        if plan is None or not plan.native or not plan.idle:
            return None
        instance = plan.take()
        call: Any = instance.parts[0][0]
        return Program(call.__self__, instance.status, [(a.shape, a.dtype) for a in arrays], plan.outputs,
                       functools.partial(plan.give, instance))

    def stepwise(self, arrays: Sequence[np.ndarray], note: Note | None, watch: Watch | None = None,
                 check: Callable[[], None] | None = None) -> Any:
        """As a call, each step by itself; see `Kernel`. The first note is of no work, the time that it took
        to get ready, and so is the last, that of the notes. A step ends where the next one begins, unless
        something is called between them. `watch` gets each value that is in memory, as soon as it is whole: a
        view that holds until it returns."""
        clock = time.perf_counter_ns
        began = clock()
        arrays = self.gate(arrays)
        plan = self.exact(tuple([a.shape for a in arrays]))
        if plan is None:
            if note is not None:
                note(None, began, clock())
            return self.interpret(arrays, note, watch, check)

        def run(instance: Instance, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
            rows = iter(range(len(instance.table)))
            calls = [instance.single(next(rows)) if step.host is None else None for step in plan.steps]
            done = plan.works(self.part) if note is not None else []
            if not plan.small:
                self.device.ready(self.threads)
            marks = [began, clock()]
            ready = iter(finished(plan) if watch is not None else ())

            def show() -> None:
                for value, t in next(ready, ()):
                    assert watch is not None
                    watch(value, instance.view(t, arrays, outputs))
            show()
            apart = watch is not None or check is not None
            for step, call in zip(plan.steps, calls, strict=True):
                marks.append(clock() if apart else marks[-1])
                if call is not None:
                    call(*arrays, *outputs)
                else:
                    self._host(instance, step, arrays, outputs)
                marks.append(clock())
                if watch is not None:
                    show()
                if check is not None:
                    check()
            if note is not None:
                for work, start, end in zip((None, *done), marks[::2], marks[1::2], strict=True):
                    note(work, start, end)
                note(None, marks[-1], clock())
        return self._entered(plan, arrays, run)

    def _entered(self, plan: Plan, arrays: Sequence[np.ndarray], run: Callable[..., None],
                 targets: Sequence[np.ndarray | None] = ()) -> Any:
        if plan.bytes > HARMLESS:
            reserve(plan.bytes, str(self.part))
        if self.device.apart:
            arrays = [self.device.constant(a) for a in arrays]
            outputs = [self.device.empty(shape, dtype) for shape, dtype in plan.outputs]
        else:
            arrays = readable(arrays)
            outputs = [np.empty(shape, dtype) for shape, dtype in plan.outputs] if not targets else [
                t if t is not None and _takes(t, shape, dtype, (
                    *(a for j, a in enumerate(arrays) if (j, i) not in plan.code.appends or not _same(a, t)),
                    *targets[:i], *targets[i + 1:]))
                else np.empty(shape, dtype)
                for i, (t, (shape, dtype)) in enumerate(zip(targets, plan.outputs, strict=True))]
        instance = plan.take()
        instance.status[:] = 0
        try:
            run(instance, arrays, outputs)
            status = instance.status[0]
            if self.machine.checked:
                instance.look(plan)
        finally:
            plan.give(instance)
        made = outputs[0] if self.single else tuple(outputs)
        if not status:
            return made
        return self.without_transforms(arrays, made) if status == OUTSIDE else self.interpret(arrays)

    def without_transforms(self, arrays: Sequence[np.ndarray], made: Any) -> Any:
        """The results where convolutions by way of transforms, which gave `made`, met numbers that are not
        for these."""
        with self.lock:
            if self.direct is None:
                self.direct = Native(self.part, self.device, self.reference, self.threads, False,
                                     self.refused.strict)
                self.direct.half_epilogue, self.direct.transforms = self.half_epilogue, False
        return self.direct(*arrays)

    def _run(self, instance: Instance, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for call, step in instance.parts:
            if call is not None:
                call(*arrays, *outputs)
            if step is not None:
                self._host(instance, step, arrays, outputs)

    def _host(self, instance: Instance, step: Step, arrays: Sequence[np.ndarray],
              outputs: Sequence[np.ndarray]) -> None:
        assert step.host is not None
        given = [instance.view(t, arrays, outputs) if isinstance(t, Tensor) else None for t in step.args]
        while given and given[-1] is None:
            given.pop()
        try:
            made = step.host(*given)
        except Exception as error:
            raise failed(step.node, error, given, step.node.name) from error
        results = made if isinstance(made, tuple) else (made,)
        kept = [r for v, r in zip(step.node.outputs, results, strict=False) if v is not None]
        for t, result in zip(step.outs, kept, strict=True):
            if np.shape(result) != t.shape:
                raise Fail(f"{step.node.label} gave another shape than its type says", node=step.node,
                           found=str(np.shape(result)), expected=str(t.shape))
            instance.view(t, arrays, outputs)[...] = result

    def exact(self, key: tuple[Any, ...]) -> Stepped | None:
        """The plan for inputs of these shapes, with all that their lowering knew; None without one."""
        plan = self._made(key, kinds := self._kinds(key))
        if plan is None or isinstance(plan, Stepped):
            return plan
        with self.lock:
            made = self.plans[key] = self.lower(kinds)
        return made

    def lowered(self) -> list[Stepped]:
        """The plans there are, each with all that its lowering knew."""
        return [plan for key in list(self.plans) if (plan := self.exact(key)) is not None]

    def _kinds(self, key: tuple[Any, ...]) -> Kinds:
        return [(shape, v.elem.numpy.name) for shape, v in zip(key, self.part.inputs, strict=True)]

    def _made(self, key: tuple[Any, ...], kinds: Kinds) -> Plan | None:
        with self.lock:
            if key in self.plans:
                self.plans.move_to_end(key)
                return self.plans[key]
            made = self._computed(key) or self._lowered_for(key, kinds)
            self.plans[key] = made
            while len(self.plans) > PLANS:
                self.refused.forget(self.plans.popitem(last=False)[0])
            kept = 0
            for other in list(reversed(self.plans.values()))[1:]:
                if other is not None:
                    kept += other.size * len(other.idle)
                    if kept > IDLE_BYTES:
                        other.idle.clear()
            return made

    def _lowered_for(self, key: tuple[Any, ...], kinds: Kinds) -> Plan | None:
        before, start = set(self.constants), time.perf_counter()
        try:
            made = self.lower(kinds)
        except MemoryError:
            raise
        except Exception as error:
            for packed in set(self.constants) - before:
                del self.constants[packed]
            log.debug("%s is interpreted for %s: %s: %s", self.part, key, type(error).__name__, error)
            self.refused.note(key, error)
            return None
        made.seconds = time.perf_counter() - start
        if self.open and self.plans and knobs.SHAPES:
            self._learn(key, kinds)
        return made

    def _computed(self, key: tuple[Any, ...]) -> Plan | None:
        """The plan by a formula, where one holds for these shapes."""
        start = time.perf_counter()
        for i, formula in enumerate(self.formulas):
            made = formula.plan(key)
            if made is not None:
                formula.served = True
                self.formulas.insert(0, self.formulas.pop(i))
                made.seconds = time.perf_counter() - start
                return made
        return None

    def _learn(self, key: tuple[Any, ...], kinds: Kinds) -> None:
        """Find the formula of these shapes' plan: soon, on a thread of its own, or at once."""
        self.missed += 1
        idle = sum(not formula.served for formula in self.formulas) + len(self.unlearnt)
        if self.closed or self.learning == os.getpid() or (idle >= _ENOUGH and self.missed % _SELDOM):
            return
        del self.formulas[FORMULAS - 1:]
        self.learning = os.getpid()
        if knobs.SHAPES >= 2 or self.device.apart:
            self._learnt(key, kinds, current())
            return
        self.learner = thread = threading.Thread(target=self._learnt, args=(key, kinds, current()),
                                                 name="orthrus formula")
        _learners.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self.unlearnt.append(str(error))
            self.learning = 0

    def _learnt(self, key: tuple[Any, ...], kinds: Kinds, limits: Limits) -> None:
        try:
            with using(limits), np.errstate(all="ignore"), Sizes() as sizes:
                declared = [v.shape for v in self.part.inputs]
                shapes, dims = opened(list(zip(declared, key, strict=True)), sizes)
                inputs = [(v, shape, dtype) for v, shape, (_, dtype) in zip(
                    self.part.inputs, shapes, kinds, strict=True)]
                lowering = Open(lambda: self.closed, self.part.nodes, inputs, self.part.outputs, self.machine,
                                self.constants, self.reference,
                                self.tried.get(key, self.matrix_unit is not False), self.half_epilogue,
                                self.transforms)
                if self.trial is not None and _products(lowering.steps):
                    raise LookupError("its products on the matrix unit are tried for each shape")
                made = Formula(lowering, sizes, dims, self.part.outputs, lambda steps: Code.of(
                    steps, len(inputs), self.device, self.threads))
                lowering.let_go()
            self.formulas.insert(0, made)
            log.debug("%s: a formula for shapes like %s, %d facts", self.part, key, len(sizes.facts))
        except Exception as error:
            self.unlearnt.append(f"{type(error).__name__}: {error}")
            log.debug("%s: no formula for shapes like %s: %s", self.part, key, self.unlearnt[-1])
        finally:
            self.learning, self.learner = 0, None

    def prepare(self) -> None:
        """Lower ahead of the first run, so that the session's creation pays for compiling and packing: for
        the inputs' shapes, with a guess in the place of each symbolic dimension. A kernel serves other sizes
        too."""
        kinds = [(v.shape, v.elem.numpy.name) for v in self.part.inputs]
        if any(shape is None for shape, _ in kinds):
            return
        cached = any("past" in v.name for v in self.part.inputs)
        guessed = likely_shapes([shape for shape, _ in kinds], cached)
        most = current().max_tensor_bytes
        sizes = [v.elem.numpy.itemsize * math.prod(g) for v, g in zip(self.part.inputs, guessed, strict=True)]
        if max(sizes, default=0) > most:
            return  # nobody can feed that, and tables for it may be as large
        key = tuple(guessed)
        exact = all(isinstance(d, int) for shape, _ in kinds for d in shape)
        if not exact:
            self.guessed.add(key)
        with contextlib.suppress(Exception):
            made = self._made(key, [(g, dtype) for g, (_, dtype) in zip(guessed, kinds, strict=True)])
            if made is None and not exact:
                del self.plans[key]

    def lower(self, kinds: Kinds) -> Stepped:
        """The plan for inputs of these shapes and types. Raises what a rule raises."""
        if self.matrix_unit is not None:
            return self._lowered(kinds, self.matrix_unit)
        fast = self._lowered(kinds, True)
        if not (products := _products(fast.steps)):
            return fast
        key = tuple([shape for shape, _ in kinds])
        if key not in self.tried:
            self.tried[key] = self._fast_enough(kinds, products)
        if self.tried[key]:
            return fast
        for packed in [key for key in self.constants if isinstance(key, tuple) and key[0] == amx.PACKED]:
            del self.constants[packed]
        return self._lowered(kinds, False)

    def _lowered(self, kinds: Kinds, matrix_unit: bool) -> Stepped:
        part = self.part
        inputs = [(v, shape, dtype) for v, (shape, dtype) in zip(part.inputs, kinds, strict=True)]
        lowering = Lowering(part.nodes, inputs, part.outputs, self.machine, self.constants,
                            self.reference, matrix_unit, self.half_epilogue, self.transforms)
        return Lowered(lowering, len(inputs), part.outputs, self.device, self.threads)

    def _fast_enough(self, kinds: Kinds, products: int) -> bool:
        """Whether the plan for these inputs, with so many products on the matrix unit, is as good."""
        def prepared(part: Part, fast: bool) -> Native | None:
            other = Native(part, self.device, self.reference, self.threads, fast)
            if fast:
                other.constants = self.constants
            plan = other.lower(kinds)
            other.plans[tuple([shape for shape, _ in kinds])] = plan
            return other if _products(plan.steps) == (products if fast else 0) else None
        assert self.trial is not None
        try:
            return self.trial(kinds, prepared)
        except MemoryError:
            raise
        except Exception as error:
            log.debug("%s is exact, the trial failed: %s: %s", self.part, type(error).__name__, error)
            return False

    def interpret(self, arrays: Sequence[np.ndarray], note: Note | None = None, watch: Watch | None = None,
                  check: Callable[[], None] | None = None) -> Any:
        """The part by its definitions, node by node: for shapes that do not lower, and to find which node
        fails."""
        made = interpret(self.part, self.reference, arrays, note, watch, check)
        self.refused.answered(tuple([a.shape for a in arrays]))
        return made

    def describe(self) -> Contents | None:
        """What was compiled by now."""
        return contents(self)

    def close(self) -> None:
        """There will be no more runs: what looks for a formula ends, and lets go of the part."""
        self.closed = True
        if self.direct is not None:
            self.direct.close()
        thread = self.learner
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)


def _products(steps: Sequence[Step]) -> int:
    """How many steps compute products on the matrix unit."""
    return sum(s.spec is not None and s.spec.template == "tiles" for s in steps)


def _takes(target: np.ndarray, shape: tuple[int, ...], dtype: np.dtype,
           others: Sequence[np.ndarray | None]) -> bool:
    """Whether a result may be written to `target` while `others` are read and written."""
    return (target.shape == shape and target.dtype == dtype and target.flags.carray
            and not any(other is not None and np.may_share_memory(target, other) for other in others))


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.ctypes.data == b.ctypes.data and a.shape == b.shape and a.flags.c_contiguous
