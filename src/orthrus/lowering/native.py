"""The parts that generated kernels run: a plan is entered with one native call, and formulas compute further
ones."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from .. import knobs
from ..codegen.kernels import amx
from ..codegen.runtime.fastcall import FastRun
from ..codegen.write.template import OUTSIDE
from ..errors import pass_on
from ..kernels import Contents, Part, readable
from ..limits import HARMLESS, reserve
from ..memory import handed_out
from ..shapes.symbolic import Sizes
from . import control as _control  # noqa: F401
from .device import PartDevice
from .formula import Formula, Open, opened
from .instance import Instance, Plan, entered
from .interpret import Note, Reference, Watch
from .lower import Lowering
from .plans import Lowered, Stepped, code_of
from .precision import Trial
from .report import contents, finished
from .shaped_part import Key, Kinds, ShapedPart
from .step import KernelStep
from .tensor import Tensor

log = logging.getLogger("orthrus")


class Elsewhere(Exception):
    """What is not for a part that is assumed."""


class Native(ShapedPart[Plan]):
    """A part on a device. `matrix_unit`: whether float32 products may be computed by one; None to find out,
    see `precision`; `tried`: what was found out, by the inputs' shapes. `half_epilogue`: whether what sums of
    bytes stand for may be rounded to float16; `transforms`: whether convolutions may go by way of transforms,
    or several groups as one; `direct`: the same part without these, once it was needed. `accuracy_level`: of
    products with weights dequantized by blocks. `served`: the shapes of the last program, which are used
    without a call from then on. `assumed`: whether its nodes hold for some runs only: instead of what they
    say, `Elsewhere` is raised.
    """

    half_epilogue = False
    assumed = False
    transforms = True
    accuracy_level = 0
    direct: Native | None = None

    def __init__(self, part: Part, device: PartDevice, reference: Reference, threads: int,
                 matrix_unit: bool | None = False, strict: bool = False) -> None:
        super().__init__(part, reference, min(threads or device.capacity, device.capacity), strict)
        self.device, self.machine, self.matrix_unit = device, device.machine, matrix_unit
        if any(node.watched for node in part.nodes):
            self.transforms = False
        self.constants: dict[Hashable, Tensor] = {}
        self.learner.background = not device.apart
        self.open = any(v.shape is None or any(not isinstance(d, int) for d in v.shape) for v in part.inputs)
        self.trial = Trial(part, self.machine) if matrix_unit is None else None
        self.tried: dict[Key, bool] = {}
        self.served: Key = ()

    def into(self, arrays: Sequence[np.ndarray], targets: Sequence[np.ndarray | None]) -> Any:
        """As a call; a result is its target, where that is of its shape and type, in C order, and in memory
        of its own, or in that of the cache it is."""
        arrays = self.gate(arrays)
        plan = self.plan(arrays)
        if plan is None or plan.definitions:
            return self(*arrays)
        return self._entered(plan, arrays, self._run, targets)

    @property
    def quick(self) -> Callable[[Sequence[np.ndarray]], FastRun | None] | None:
        """See `Kernel`; None where kernels can only touch memory of their own."""
        return None if self.device.apart else self._program

    def _program(self, arrays: Sequence[np.ndarray]) -> FastRun | None:
        """What does the same as a call with such arrays, all in generated code; None where numpy has a step,
        or before there was such a call."""
        key = self.key(arrays)
        plan = self.plans.get(key)
        if plan is None or not plan.native or not plan.idle:
            return None
        self.served = key
        return entered(plan, [(a.shape, a.dtype) for a in arrays])

    def stepwise(self, arrays: Sequence[np.ndarray], note: Note | None, watch: Watch | None = None,
                 check: Callable[[], None] | None = None) -> Any:
        """As a call, each step by itself; see `Kernel`. The first note is of no work, the time that it took
        to get ready, and so is the last, that of the notes. A step ends where the next one begins, unless
        something is called between them. `watch` gets each value that is in memory, as soon as it is whole: a
        view that holds until it returns."""
        clock = time.perf_counter_ns
        began = clock()
        arrays = self.gate(arrays)
        plan = self.exact(self.key(arrays))
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
            ready = iter(finished(plan) if watch is not None and not plan.jumps else ())

            def show() -> None:
                for value, t in next(ready, ()):
                    assert watch is not None
                    watch(value, instance.view(t, arrays, outputs))
            if watch is not None:
                for value, elements in plan.trail.known.items():
                    watch(value, elements)
            show()
            apart = watch is not None or check is not None
            ran = list[int]()
            for i in instance.order([*arrays, *outputs]) if plan.jumps else range(len(calls)):
                step, call = plan.steps[i], calls[i]
                ran.append(i)
                marks.append(clock() if apart else marks[-1])
                if call is not None:
                    call(*arrays, *outputs)
                else:
                    self._host(step, step.args, instance, arrays, outputs)
                marks.append(clock())
                if watch is not None:
                    show()
                if check is not None:
                    check()
            if note is not None:
                for work, start, end in zip((None, *(done[i] for i in ran)), marks[::2], marks[1::2],
                                            strict=True):
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
            outputs = [handed_out(shape, dtype) for shape, dtype in plan.outputs] if not targets else [
                t if t is not None and _takes(t, shape, dtype, (
                    *(a for j, a in enumerate(arrays) if (j, i) not in plan.code.appends or not _same(a, t)),
                    *targets[:i], *targets[i + 1:]))
                else handed_out(shape, dtype)
                for i, (t, (shape, dtype)) in enumerate(zip(targets, plan.outputs, strict=True))]
        try:
            instance = plan.take()
        except RuntimeError as error:
            return self._without(arrays, error)
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

    def _without(self, arrays: Sequence[np.ndarray], error: RuntimeError) -> Any:
        """The results without the plan for such arrays, which was guessed and whose kernels LLVM refuses."""
        key = self.key(arrays)
        self.refused.note(key, error)
        with self.plans.lock:
            self.plans[key] = None
        return self.interpret(arrays)

    def without_transforms(self, arrays: Sequence[np.ndarray], made: Any) -> Any:
        """The results where convolutions by way of transforms or of several groups as one, which gave `made`,
        met numbers that are not for these."""
        with self.plans.lock:
            if self.direct is None:
                self.direct = Native(self.part, self.device, self.reference, self.threads, False,
                                     self.refused.strict)
                self.direct.half_epilogue, self.direct.transforms = self.half_epilogue, False
                self.direct.accuracy_level = self.accuracy_level
        return self.direct(*arrays)

    def _run(self, instance: Instance, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for call, step in instance.parts:
            if call is not None:
                call(*arrays, *outputs)
            if step is not None:
                self._host(step, step.args, instance, arrays, outputs)

    def _new(self, key: Key, kinds: Kinds) -> Plan | None:
        if self.served in self.plans:
            self.plans.move_to_end(self.served)
        return super()._new(key, kinds)

    def interpret(self, arrays: Sequence[np.ndarray], note: Note | None = None, watch: Watch | None = None,
                  check: Callable[[], None] | None = None) -> Any:
        if self.assumed:
            raise Elsewhere
        return super().interpret(arrays, note, watch, check)

    def exact(self, key: Key) -> Stepped | None:
        """The plan for inputs of these shapes, with all that their lowering knew; None without one."""
        kinds = self.kinds(key[:len(self.part.inputs)])
        plan = self._made(key, kinds)
        if plan is None or isinstance(plan, Stepped):
            return plan
        with self.plans.lock:
            made = self.plans[key] = self.lower(key, kinds)
        return made

    def lowered(self) -> list[Stepped]:
        """The plans there are, each with all that its lowering knew."""
        return [plan for key in list(self.plans) if (plan := self.exact(key)) is not None]

    def finder(self, key: Key, kinds: Kinds) -> Callable[[], Formula] | None:
        needed = self.open and self.plans and knobs.SHAPES and not self.deciding
        return functools.partial(self._formula, key, kinds) if needed else None

    def _formula(self, key: Key, kinds: Kinds) -> Formula:
        """What computes plans for shapes like these. Raises what lowering them raises, LookupError too."""
        with Sizes() as sizes:
            declared = [v.shape for v in self.part.inputs]
            shapes, dims = opened(list(zip(declared, key, strict=True)), sizes)
            inputs = [(v, shape, dtype)
                      for v, shape, (_, dtype) in zip(self.part.inputs, shapes, kinds, strict=True)]
            lowering = Open(lambda: self.learner.closed, self.part.nodes, inputs, self.part.outputs,
                            self.machine, self.constants, self.reference,
                            self.tried.get(key, self.matrix_unit is not False), self.half_epilogue,
                            self.transforms, self.accuracy_level)
            if self.trial is not None and _products(lowering.steps):
                raise LookupError("its products on the matrix unit are tried for each shape")
            made = Formula(lowering, sizes, dims, self.part.outputs, lambda steps: code_of(
                steps, len(inputs), self.device, self.threads).ready())
            lowering.let_go()
        log.debug("%s: a formula for shapes like %s, %d facts", self.part, key, len(sizes.facts))
        return made

    def lower(self, key: Key, kinds: Kinds) -> Stepped:
        before = set(self.constants)
        try:
            made = self._best(key, kinds)
            if key not in self.guessed:
                made.code.ready()
            return made
        except Exception:
            for packed in set(self.constants) - before:
                del self.constants[packed]
            raise

    def _best(self, key: Key, kinds: Kinds) -> Stepped:
        """The plan with the matrix unit or without, as is allowed, or was tried."""
        if self.matrix_unit is not None:
            return self._lowered(key, kinds, self.matrix_unit)
        fast = self._lowered(key, kinds, True)
        if not (products := _products(fast.steps)):
            return fast
        if key not in self.tried:
            self.tried[key] = self._fast_enough(key, kinds, products)
        if self.tried[key]:
            return fast
        for packed in [key for key in self.constants if isinstance(key, tuple) and key[0] == amx.PACKED]:
            del self.constants[packed]
        return self._lowered(key, kinds, False)

    def _lowered(self, key: Key, kinds: Kinds, matrix_unit: bool) -> Stepped:
        part = self.part
        inputs = [(v, shape, dtype) for v, (shape, dtype) in zip(part.inputs, kinds, strict=True)]
        lowering = Lowering(part.nodes, inputs, part.outputs, self.machine, self.constants,
                            self.reference, matrix_unit, self.half_epilogue, self.transforms,
                            self.accuracy_level, self.given(key, kinds))
        return Lowered(lowering, len(inputs), part.outputs, self.device, self.threads)

    def _fast_enough(self, key: Key, kinds: Kinds, products: int) -> bool:
        """Whether the plan for these inputs, with so many products on the matrix unit, is as good."""
        def prepared(part: Part, fast: bool) -> Native | None:
            other = Native(part, self.device, self.reference, self.threads, fast)
            other.accuracy_level = self.accuracy_level
            if fast:
                other.constants = self.constants
            plan = other.plans[key] = other.lower(key, kinds)
            return other if _products(plan.steps) == (products if fast else 0) else None
        assert self.trial is not None
        try:
            return self.trial(kinds, prepared)
        except MemoryError:
            raise
        except Exception as error:
            pass_on(error)
            log.debug("%s is exact, the trial failed: %s: %s", self.part, type(error).__name__, error)
            return False

    def describe(self) -> Contents | None:
        """What was compiled by now."""
        return contents(self)

    def close(self) -> None:
        super().close()
        if self.direct is not None:
            self.direct.close()


def _products(steps: Sequence[KernelStep]) -> int:
    """How many steps compute products on the matrix unit."""
    return sum(s.spec is not None and s.spec.template == "tiles" for s in steps)


def _takes(target: np.ndarray, shape: tuple[int, ...], dtype: np.dtype,
           others: Sequence[np.ndarray | None]) -> bool:
    """Whether a result may be written to `target` while `others` are read and written."""
    return (target.shape == shape and target.dtype == dtype and target.flags.carray
            and not any(other is not None and np.may_share_memory(target, other) for other in others))


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.ctypes.data == b.ctypes.data and a.shape == b.shape and a.flags.c_contiguous
