"""A part that a GPU's kernels compute: one plan per tuple of input shapes, arrays of the device in and out.

Kernels are launched one behind the other on the device's stream; nothing waits for them, unless the host has
a step, or a kernel may say that it gave up. What no kernel computes is a step of the host's between copies,
with the reason in the plan.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import numpy as np

from ... import knobs
from ...codegen.triton.targets import Target
from ...kernels import (
    HOST,
    Contents,
    Device,
    DeviceArray,
    Memory,
    Part,
    Stream,
    copied,
    fill,
    ordered,
    working,
)
from ...limits import HARMLESS, reserve
from ...locks import lock
from ...records import dataclass
from ...shapes.symbolic import Sizes
from ..contents import inputs_of
from ..formula import opened
from ..interpret import Note, Reference, Watch
from ..report import contents, finished
from ..shaped_part import Key, Kinds, ShapedPart
from ..step import KernelStep
from ..tensor import Tensor, numpy_type
from .formula import FormedPlan, GpuFormula, OpenGpu
from .graphs import Graphs
from .lower import GpuLowering
from .plan import ALIGN, Constants, GpuPlan, Launch, LoweredPlan
from .tuning import Tuner

log = logging.getLogger("orthrus")

_GROW = 1 << 20
"""Bytes by whose multiples a part's arena grows."""


class Arena:
    """Memory of one run at a time: that which has `lock` asks the device for work. What was asked for is done
    in order, so that the next run need not wait for the end of it."""

    def __init__(self, device: Device) -> None:
        self.device, self.lock = device, lock()
        self.memory: Memory | None = None
        self.size = 0

    def at_least(self, size: int, stream: Stream | None = None) -> int:
        """The address of so many bytes, for `stream`, or that which this thread works on, behind what earlier
        runs do with them. Raises MemoryError."""
        if self.memory is None or self.size < size:
            self.memory = None
            wanted = -(-max(size, 1) // _GROW) * _GROW
            self.memory, self.size = Memory(self.device, wanted), wanted
        if self.device.streams:
            self.memory.writing(stream or working(self.device))
        return int(self.memory.handle)


@dataclass(eq=False)
class Instance:
    """One run of a plan, while the device is asked for its work."""

    plan: GpuPlan
    base: int
    packed: bytes

    def tensor(self, t: Tensor, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> int:
        """The address of a tensor's first element, on the device."""
        buffer = t.buffer
        if buffer.kind == "arena":
            return self.base + buffer.offset + t.byte_offset
        held = inputs if buffer.kind == "input" else outputs
        return int(held[buffer.index].handle) + t.byte_offset


class GpuPart(ShapedPart[GpuPlan]):
    """A part on `device`, whose kernels are compiled for `target`. `settings`: of the provider's, that rules
    go by. `graphs`: whether runs are recorded; `tuner`: what knows tiles."""

    def __init__(self, part: Part, device: Device, target: Target, reference: Reference,
                 settings: dict[str, Any] | None = None, strict: bool = False, graphs: bool = False,
                 tuner: Tuner | None = None) -> None:
        super().__init__(part, reference, 1, strict)
        self.graphs, self.tuner = graphs, tuner
        if tuner is not None:
            tuner.parts.add(self)
        self.device, self.target, self.settings = device, target, settings or {}
        self.constants: dict[Hashable, Tensor] = {}
        self.held = Constants(device)
        self.deciding = inputs_of(part.nodes, part.inputs)
        self.arena = Arena(device)
        self.open = any(v.shape is None or any(not isinstance(d, int) for d in v.shape) for v in part.inputs)

    def lower(self, key: Key, kinds: Kinds) -> GpuPlan:
        values = self.part.inputs
        inputs = [(v, shape, dtype) for v, (shape, dtype) in zip(values, kinds, strict=True)]
        lowering = GpuLowering(self.part.nodes, inputs, self.part.outputs, self.target, self.constants,
                               self.reference, self.settings, self.given(key, kinds), self._tuned())
        return LoweredPlan(lowering, self.part.outputs, len(inputs), self.device, self.held)

    def _new(self, key: Key, kinds: Kinds) -> GpuPlan | None:
        made = super()._new(key, kinds)
        if made is not None:
            self.recorded(made)
        return made

    def finder(self, key: Key, kinds: Kinds) -> Callable[[], Any] | None:
        """Where sizes are open, from the second tuple of shapes on, and no tile depends on these alone."""
        needed = self.open and self.plans and knobs.SHAPES and not self.deciding and self._tuned() is None
        return functools.partial(self._formula, key, kinds) if needed else None

    def _formula(self, key: Key, kinds: Kinds) -> GpuFormula:
        """What computes plans for shapes like these. Raises what lowering them raises, LookupError too."""
        with Sizes() as sizes:
            shapes, dims = opened(list(zip([v.shape for v in self.part.inputs], key, strict=True)), sizes)
            inputs = [(v, shape, dtype)
                      for v, shape, (_, dtype) in zip(self.part.inputs, shapes, kinds, strict=True)]
            lowering = OpenGpu(lambda: self.learner.closed, self.part.nodes, inputs, self.part.outputs,
                               self.target, self.constants, self.reference, self.settings)
            made = GpuFormula(lowering, sizes, dims, self.part.outputs, self.device, self.held)
            lowering.let_go()
        log.debug("%s: a formula for shapes like %s, %d facts", self.part, key, len(sizes.facts))
        return made

    def _tuned(self) -> Tuner | None:
        """What knows tiles, if plans go by it."""
        return self.tuner if self.tuner is not None and self.tuner.enabled else None

    def prepare(self) -> None:
        """Not where tiles are measured: for shapes that come, when they come."""
        if self.tuner is None or not self.tuner.measures:
            super().prepare()

    def recorded(self, plan: GpuPlan) -> None:
        """Let runs of a plan be recorded, where they are to be and can be."""
        if self.graphs and plan.hosted:
            log.warning("%s is not recorded as a graph: the host computes %s", self.part,
                        ", ".join(plan.hosted))
        elif self.graphs:
            plan.graphs = Graphs(self.device, str(self.part))

    def exact(self, key: Key) -> GpuPlan | None:
        """The plan for inputs of these shapes, and such elements where they decide, that a lowering of them
        makes; None without one."""
        kinds = [(shape, v.elem.numpy.name) for shape, v in zip(key, self.part.inputs, strict=False)]
        made = self._made(key, kinds)
        if isinstance(made, FormedPlan):
            made = self.plans[key] = self.lower(key, kinds)
            self.recorded(made)
        return made

    def into(self, arrays: Sequence[Any], targets: Sequence[DeviceArray | None]) -> Any:
        """As a call; a result is its target, where that is of its shape and type, and in memory of its own,
        or in that of the cache it is."""
        arrays = self.gate(arrays)
        plan = self.plan(arrays)
        return self.interpret(arrays) if plan is None else self._entered(
            plan, arrays, self._run, targets)

    def again(self, arrays: Sequence[Any], targets: Sequence[DeviceArray]) -> Callable[[], bool] | None:
        """Replays the graph of a call of `into`, while there is one; None where there is none yet. It is
        False where the call has to be made: the arena lies elsewhere, or a kernel gave up."""
        if not all(type(a) is DeviceArray and a.handle % ALIGN == 0 for a in (*arrays, *targets)):
            return None
        plan = self.plans.get(self.key(arrays))
        if plan is None or plan.graphs is None or not all(
                _fits(plan, i, arrays, targets) for i in range(len(targets))):
            return None
        graphs, device, arena, size, status = plan.graphs, self.device, self.arena, plan.size, plan.status
        with arena.lock:
            base = arena.at_least(size)
            packed = plan.packed_for(base, np.array([a.handle for a in (*arrays, *targets)], np.int64))
        if packed not in graphs:
            return None

        def replay() -> bool:
            with arena.lock:
                stream = working(device)
                ordered(stream, arrays, targets)
                return (arena.at_least(size, stream) == base and graphs.replayed(packed, stream)
                        and (status < 0 or not self._status(base + status)))
        return replay

    def _entered(self, plan: GpuPlan, arrays: Sequence[Any], run: Callable[..., None],
                 targets: Sequence[DeviceArray | None] = ()) -> Any:
        if plan.bytes > HARMLESS:
            reserve(plan.bytes, str(self.part))
        arrays = [a if isinstance(a, np.ndarray) else self._aligned(a) for a in arrays]
        fitting = [i < len(targets) and _fits(plan, i, arrays, targets) for i in range(len(plan.outputs))]
        outputs = [cast(DeviceArray, targets[i]) if fits else self.device.array(*plan.outputs[i])
                   for i, fits in enumerate(fitting)]
        if self.device.streams:
            for target in (target for target, fits in zip(outputs, fitting, strict=True) if fits):
                target.memory.writing(working(self.device))
        addresses = np.array([0 if isinstance(a, np.ndarray) else a.handle for a in (*arrays, *outputs)],
                             np.int64)
        with self.arena.lock:
            base = self.arena.at_least(plan.size)
            run(Instance(plan, base, plan.packed_for(base, addresses)), arrays, outputs)
            status = 0 if plan.status < 0 else self._status(base + plan.status)
        if status:
            return self.interpret(arrays)
        return outputs[0] if self.single else tuple(outputs)

    def _aligned(self, array: DeviceArray) -> DeviceArray:
        """`array`, or a copy of it where kernels read it as fast as they are compiled for."""
        if array.handle % ALIGN == 0:
            return array
        made = self.device.array(array.shape, array.dtype)
        fill(made, array)
        return made

    def _status(self, address: int) -> int:
        """What kernels left there; waits for them."""
        word = np.zeros(1, np.int64)
        self._get(address, word)
        return int(word[0])

    def _get(self, address: int, array: np.ndarray) -> None:
        """Fill `array`; waits for it."""
        self.device.copy_out(address, array)
        self.device.synchronize(self.device.stream)

    def _run(self, instance: Instance, arrays: Sequence[Any], outputs: Sequence[Any]) -> None:
        graphs = instance.plan.graphs
        if graphs is None:
            self._launched(instance, arrays, outputs)
        else:
            graphs.run(instance.packed, lambda: self._launched(instance, arrays, outputs))

    def _launched(self, instance: Instance, arrays: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._begin(instance)
        for step, launches in instance.plan.parts:
            if step is not None:
                self._on_host(step, instance, arrays, outputs)
            for launch in launches:
                self._launch(launch, instance.packed)

    def _begin(self, instance: Instance) -> None:
        """Nothing has given up yet."""
        if instance.plan.status >= 0:
            self.device.clear(instance.base + instance.plan.status, 8)

    def _launch(self, it: Launch, packed: bytes) -> None:
        self.device.launch(it.function, it.blocks, it.threads, it.shared, packed[it.begin:it.end])

    def _on_host(self, step: KernelStep, instance: Instance, arrays: Sequence[DeviceArray],
                 outputs: Sequence[DeviceArray]) -> None:
        """A step that the host computes by the node's definition, between copies."""
        held = dict[int, np.ndarray]()

        class Fetched:
            """What a step reads and writes, on the host."""

            def view(_, t: Tensor, inputs: Any, results: Any) -> np.ndarray:
                if id(t) not in held:
                    held[id(t)] = self._fetched(t, instance, arrays, outputs)
                return held[id(t)]
        for out in step.outs:
            held[id(out)] = np.empty(out.shape, numpy_type(out.dtype))
        self._host(step, step.args, Fetched(), (), ())
        for out in step.outs:
            if out.size:
                self.device.copy_in(held[id(out)], instance.tensor(out, arrays, outputs))
        self.device.synchronize(self.device.stream)

    def _fetched(self, t: Tensor, instance: Instance, arrays: Sequence[DeviceArray],
                 outputs: Sequence[DeviceArray]) -> np.ndarray:
        """A tensor's elements, on the host."""
        if t.buffer.array is not None:
            flat = t.buffer.array.reshape(-1)
            return np.lib.stride_tricks.as_strided(flat[t.offset:], t.shape, [
                s * t.itemsize for s in t.strides])
        dtype = numpy_type(t.dtype)
        low = sum((d - 1) * s for d, s in zip(t.shape, t.strides, strict=True) if s < 0)
        high = sum((d - 1) * s for d, s in zip(t.shape, t.strides, strict=True) if s > 0)
        flat = np.empty(high - low + 1 if t.size else 0, dtype)
        if t.size:
            self._get(instance.tensor(t, arrays, outputs) + low * t.itemsize, flat)
        return np.lib.stride_tricks.as_strided(flat[-low:], t.shape, [s * t.itemsize for s in t.strides])

    def stepwise(self, arrays: Sequence[Any], note: Note | None, watch: Watch | None = None,
                 check: Callable[[], None] | None = None) -> Any:
        """As a call, each step by itself, with its end waited for; see `Kernel`. `watch` gets copies. Where
        nobody looks on, it is a call between two checks, as nothing waits for the kernels in it."""
        if note is None and watch is None:
            made = self(*arrays)
            if check is not None:
                check()
            return made
        clock = time.perf_counter_ns
        began = clock()
        arrays = self.gate(arrays)
        plan = self.exact(self.key(arrays))
        if plan is None:
            if note is not None:
                note(None, began, clock())
            return self.interpret(arrays, note, watch, check)

        def run(instance: Instance, arrays: Sequence[Any], outputs: Sequence[Any]) -> None:
            done = plan.works(self.part) if note is not None else []
            ready = iter(finished(plan) if watch is not None else ())

            def show() -> None:
                for value, t in next(ready, ()):
                    assert watch is not None
                    watch(value, self._fetched(t, instance, arrays, outputs))
            self.device.synchronize(self.device.stream)
            self._begin(instance)
            marks = [began, clock()]
            if watch is not None:
                for value, elements in plan.trail.known.items():
                    watch(value, elements)
            show()
            for step, launch in zip(plan.steps, plan.launches, strict=True):
                marks.append(clock())
                if launch is None:
                    self._on_host(step, instance, arrays, outputs)
                else:
                    self._launch(launch, instance.packed)
                self.device.synchronize(self.device.stream)
                marks.append(clock())
                show()
                if check is not None:
                    check()
            if note is not None:
                for work, start, end in zip((None, *done), marks[::2], marks[1::2], strict=True):
                    note(work, start, end)
                note(None, marks[-1], clock())
        return self._entered(plan, arrays, run)

    def interpret(self, arrays: Sequence[Any], note: Note | None = None, watch: Watch | None = None,
                  check: Callable[[], None] | None = None) -> Any:
        """By the definitions, on the host; the results are on the device."""
        made = super().interpret([copied(a, HOST) for a in arrays], note, watch, check)
        several = (made,) if self.single else made
        moved = tuple(copied(np.asarray(array), self.device) for array in several)
        return moved[0] if self.single else moved

    def describe(self) -> Contents | None:
        """What was compiled by now."""
        return contents(self)


def _fits(plan: GpuPlan, i: int, arrays: Sequence[Any], targets: Sequence[DeviceArray | None]) -> bool:
    """Whether kernels that read `arrays`, and write others of `targets`, can write result `i` to its own."""
    target, (shape, dtype) = targets[i], plan.outputs[i]
    if target is None or target.shape != shape or target.dtype != dtype or target.handle % ALIGN:
        return False
    others = [a for j, a in enumerate(arrays) if (j, i) not in plan.appends or not _same(a, target)]
    return not any(isinstance(a, DeviceArray) and a.memory is target.memory
                   for a in (*others, *targets[:i], *targets[i + 1:]))


def _same(a: Any, b: DeviceArray) -> bool:
    return isinstance(a, DeviceArray) and (a.handle, a.shape, a.dtype) == (b.handle, b.shape, b.dtype)
