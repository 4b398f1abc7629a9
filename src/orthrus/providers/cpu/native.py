"""A compiled part at run time: one plan per tuple of input shapes, entered with one native call.

A plan is a lowering's steps as native memory: a table of kernels, the cells of their arguments, and an arena.
Such an instance serves one run at a time; a second run at the same moment gets an instance of its own.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import struct
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ...codegen import drive
from ...codegen.quick import Program
from ...errors import Fail
from ...ir import ElementType, TensorType, Type, Value, element_of, in_memory, likely_shapes, type_of
from ...kernels import Work, failed
from ...limits import bounded
from ..base import Part
from ..interpret import Note, Reference, Watch, interpret
from .device import Device
from .lower import Lowering, Step
from .memory import ALIGN, plan
from .precision import Kinds, fast_enough, verdict
from .report import Trail, finished
from .tensor import Buffer, Tensor
from .works import places, works

log = logging.getLogger("orthrus")

PLANS = 64
"""Input-shape tuples a part keeps a plan for; the least recently used goes first."""

IDLE_BYTES = 1 << 28
"""Bytes of idle instances kept for shapes other than the last new one."""

_IDLE = 4
"""Idle instances a plan keeps."""

_FLOAT, _BITS = struct.Struct("<f"), struct.Struct("<i")


def numpy_type(name: str) -> np.dtype[Any]:
    """The type that kernels call so."""
    return np.dtype(name) if name != "bfloat16" else ElementType.BFLOAT16.numpy


class Plan:
    """The steps of a part for one tuple of input shapes, with arena offsets: `take()` gives the memory of one
    run. `size`, `scratch`: bytes of the arena, and for each thread behind it; `status`: where in the arena a
    kernel says that it gave up."""

    def __init__(self, steps: list[Step], n_inputs: int, outputs: list[tuple[tuple[int, ...], np.dtype]],
                 size: int, scratch: int, status: int, device: Device, threads: int) -> None:
        self.steps, self.n_inputs, self.outputs = steps, n_inputs, outputs
        self.size, self.scratch, self.status = size, scratch, status
        self.device, self.threads = device, threads
        self.trail, self.folded, self.seconds = Trail(), frozenset[Value](), 0.0
        native = [s for s in self.steps if s.spec is not None]
        self.kernels = device.addresses([s.spec for s in native if s.spec is not None])
        self.cells = Cells(self)
        self.small = len(native) < 4 and all(s.items <= s.grain for s in native)
        self.native = len(native) == len(self.steps) > 0
        self.idle: list[Instance] = []

    def works(self, part: Part) -> list[Work]:
        """What each step does, and for which nodes of `part`."""
        return [Work(s.node, s.spec.template if s.spec else s.node.op_type, (s.node,), (), (), {})
                for s in self.steps]

    @functools.cached_property
    def appends(self) -> frozenset[tuple[int, int]]:
        """An input and an output each that may be the same memory: a cache that rows are appended to, and
        that nothing else reads."""
        readers = Counter(index for step in self.steps for index in {
            a.buffer.index for a in step.args if isinstance(a, Tensor) and a.buffer.kind == "input"})
        pairs = [(step.args[0], step.args[2]) for step in self.steps
                 if step.spec is not None and step.spec.template == "append_rows"]
        return frozenset((old.buffer.index, out.buffer.index) for old, out in pairs
                         if (old.buffer.kind, out.buffer.kind) == ("input", "output")
                         and readers[old.buffer.index] == 1 and old.byte_offset == out.byte_offset == 0)

    def take(self) -> Instance:
        """An instance nobody uses, in an arena that no run uses."""
        for instance in self.idle:
            if instance.arena.lock.acquire(blocking=False):
                with contextlib.suppress(ValueError):
                    self.idle.remove(instance)
                return instance
        return Instance(self)

    def give(self, instance: Instance) -> None:
        if len(self.idle) < _IDLE:
            self.idle.append(instance)
        instance.arena.lock.release()


class Lowered(Plan):
    """The plan that a lowering makes, and what it knew of values."""

    def __init__(self, lowering: Lowering, n_inputs: int, outputs: Sequence[Value], device: Device,
                 threads: int) -> None:
        steps = lowering.steps
        size = plan(steps, [lowering.status.buffer])
        scratch = -(-max((s.scratch for s in steps), default=0) // ALIGN) * ALIGN
        made = [(t.shape, numpy_type(t.dtype)) for t in (lowering.outputs[v] for v in outputs)]
        self.kinds = {v: (found.dtype if isinstance(found, Tensor) else found.tree.dtype, found.shape)
                      for v, found in lowering.env.items() if found is not None}
        self.kinds.update((v, (array.dtype.name, array.shape)) for v, array in lowering.host.items())
        self.placed = places(lowering)
        trail, folded = Trail(lowering), frozenset(lowering.host)
        self._works: list[Work] | None = None
        lowering.env.clear()
        super().__init__(steps, n_inputs, made, size, scratch, lowering.status.buffer.offset, device, threads)
        self.trail, self.folded = trail, folded

    def works(self, part: Part) -> list[Work]:
        if self._works is None:
            known: dict[Value, Type] = {v: TensorType(element_of(numpy_type(dtype)), shape)
                                        for v, (dtype, shape) in self.kinds.items()}
            known.update((v, type_of(v.const)) for node in part.nodes for v in node.inputs
                         if v is not None and v not in known and isinstance(v.const, np.ndarray))
            self._works = works(part, self.steps, self.placed, self.folded, known)
        return self._works


class Cells:
    """The arguments of a plan's kernels, without what depends on where its arena and its arrays lie: 0 in
    `values`, and a row in `arena`, of a cell and an offset, or in `arrays`, of an array's index, a cell and
    bytes into the array. `begins`: the first cell of each kernel's step. `kept` owns what is pointed to."""

    def __init__(self, made: Plan) -> None:
        values: list[int] = []
        arena: list[tuple[int, int]] = []
        arrays: list[tuple[int, int, int]] = []
        self.begins: list[int] = []
        self.kept: dict[int, np.ndarray] = {}
        for step in made.steps:
            if step.spec is None:
                for a in step.args:
                    if isinstance(a, Tensor) and a.buffer.array is not None:
                        self._laid(a.buffer, made.device)
                continue
            self.begins.append(len(values))
            for a in step.args:
                if type(a) is int:
                    cell = a
                elif not isinstance(a, Tensor):
                    cell = _BITS.unpack(_FLOAT.pack(a))[0] if isinstance(a, float) else int(a)
                elif a.buffer.array is not None:
                    cell = self._laid(a.buffer, made.device) + a.byte_offset
                else:
                    cell, buffer, offset = 0, a.buffer, a.byte_offset
                    if buffer.kind == "arena":
                        arena.append((len(values), buffer.offset + offset))
                    else:
                        index = buffer.index + (made.n_inputs if buffer.kind == "output" else 0)
                        arrays.append((index, len(values), offset))
                values.append(cell)
        self.values = np.array(values, np.int64)
        self.arena = np.array(arena, np.int64).reshape(-1, 2)
        self.arrays = np.array(arrays, np.int64).reshape(-1, 3)

    def _laid(self, buffer: Buffer, device: Device) -> int:
        """The address of a constant."""
        if not buffer.address:
            buffer.array = device.constant(in_memory(buffer.array))
            buffer.address = buffer.array.ctypes.data
        assert buffer.array is not None
        self.kept[buffer.address] = buffer.array
        return buffer.address


class Instance:
    """Arena, argument cells and step table of one run. `run(inputs, outputs)` fills the outputs."""

    def __init__(self, made: Plan) -> None:
        threads, given = made.threads, made.cells
        bounded((made.size + made.scratch * threads,), np.uint8)
        self.arena = made.device.arena(made.size + made.scratch * threads)
        self.base = self.arena.base
        self._start = self.base - self.arena.room.ctypes.data
        self.status = np.ndarray(1, np.int64, self.arena.room.data, self._start + made.status)
        cells = made.device.room(8 * len(given.values) + 8).view(np.int64)
        cells[:-1] = given.values
        cells[given.arena[:, 0]] = given.arena[:, 1] + self.base
        native = [s for s in made.steps if s.spec is not None]
        self.table = np.empty((len(native), drive.STEP), np.int64)
        self.table[:, 0] = made.kernels
        self.table[:, 1] = given.begins
        self.table[:, 1] *= 8
        self.table[:, 1] += cells.ctypes.data
        self.table[:, 2] = [s.items for s in native]
        self.table[:, 3] = [s.grain for s in native]
        patches = given.arrays.copy()
        patches[:, 1] *= 8
        patches[:, 1] += cells.ctypes.data
        borders: list[tuple[int, int, Step | None]] = []
        first = row = 0
        for step in made.steps:
            if step.spec is None:
                borders.append((first, row, step))
                first = row
            else:
                row += 1
        borders.append((first, row, None))
        self.names = [step.node.label for step in native]
        self._alone: dict[int, Callable[..., None]] = {}
        self._program = functools.partial(
            made.device.program, arrays=made.n_inputs + len(made.outputs), patches=patches, threads=threads,
            scratch=self.base + made.size, scratch_size=made.scratch, hold=made.small,
            keep=(self.arena, cells, given.kept))
        self.parts: list[tuple[Callable[..., None] | None, Step | None]] = [
            (self.program(first, last) if last > first else None, step)
            for first, last, step in borders]

    def program(self, first: int, last: int) -> Callable[..., None]:
        """A function that runs these rows of the table."""
        return self._program(self.table[first:last], self.names[first:last])

    def single(self, row: int) -> Callable[..., None]:
        """A function that runs one row of the table alone."""
        if row not in self._alone:
            self._alone[row] = self.program(row, row + 1)
        return self._alone[row]

    def view(self, t: Tensor, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> np.ndarray:
        """A tensor as a numpy array."""
        b = t.buffer
        dtype = numpy_type(t.dtype)
        strides = tuple(s * dtype.itemsize for s in t.strides)
        if b.kind == "arena":
            at = self._start + b.offset + t.byte_offset
            return np.ndarray(t.shape, dtype, self.arena.room.data, at, strides)
        whole = inputs[b.index] if b.kind == "input" else outputs[b.index] if b.kind == "output" else b.array
        assert whole is not None
        flat = whole.reshape(-1)
        return np.lib.stride_tricks.as_strided(flat[t.offset:], t.shape, strides)


class Native:
    """The kernel of a fused part. Called with arrays it gives arrays; what it cannot lower it interprets.

    `matrix_unit`: whether float32 products may be computed by one; None to find out, see `precision`.
    `half_epilogue`: whether what sums of bytes stand for may be rounded to float16."""

    half_epilogue = False

    def __init__(self, part: Part, device: Device, reference: Reference, threads: int,
                 matrix_unit: bool | None = False) -> None:
        self.part, self.device, self.machine = part, device, device.machine
        self.reference, self.matrix_unit = reference, matrix_unit
        self.threads = min(threads or device.capacity, device.capacity)
        self.constants: dict[Hashable, Tensor] = {}
        self.plans: OrderedDict[tuple[Any, ...], Plan | None] = OrderedDict()
        self.refused: dict[tuple[Any, ...], str] = {}
        self.guessed: set[tuple[Any, ...]] = set()
        self.lock = threading.Lock()
        self.single = len(part.outputs) == 1

    def __call__(self, *arrays: Any) -> Any:
        key = tuple([a.shape for a in arrays])
        try:
            plan = self.plans[key]
        except KeyError:
            plan = self._made(key, [(a.shape, a.dtype.name) for a in arrays])
        if plan is None:
            return self.interpret(arrays)
        return self._entered(plan, arrays, self._run)

    def into(self, arrays: Sequence[np.ndarray], targets: Sequence[np.ndarray | None]) -> Any:
        """As a call; a result is its target, where that is of its shape and type, in C order, and in memory
        of its own, or in that of the cache it is."""
        plan = self._made(tuple([a.shape for a in arrays]), [(a.shape, a.dtype.name) for a in arrays])
        return self.interpret(arrays) if plan is None else self._entered(plan, arrays, self._run, targets)

    def quick(self, arrays: Sequence[np.ndarray]) -> Program | None:
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
        plan = self._made(tuple([a.shape for a in arrays]), [(a.shape, a.dtype.name) for a in arrays])
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
        if self.device.apart:
            arrays = [self.device.constant(a) for a in arrays]
            outputs = [self.device.empty(shape, dtype) for shape, dtype in plan.outputs]
        else:
            arrays = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
            outputs = [np.empty(shape, dtype) for shape, dtype in plan.outputs] if not targets else [
                t if t is not None and _takes(t, shape, dtype, (
                    *(a for j, a in enumerate(arrays) if (j, i) not in plan.appends or not _same(a, t)),
                    *targets[:i], *targets[i + 1:]))
                else np.empty(shape, dtype)
                for i, (t, (shape, dtype)) in enumerate(zip(targets, plan.outputs, strict=True))]
        instance = plan.take()
        instance.status[0] = 0
        try:
            run(instance, arrays, outputs)
            failed = instance.status[0]
        finally:
            plan.give(instance)
        if failed:
            return self.interpret(arrays)
        return outputs[0] if self.single else tuple(outputs)

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

    def _made(self, key: tuple[Any, ...], kinds: Kinds) -> Plan | None:
        with self.lock:
            if key in self.plans:
                return self.plans[key]
            before, start = set(self.constants), time.perf_counter()
            made: Plan | None
            try:
                made = self.lower(kinds)
                made.seconds = time.perf_counter() - start
            except MemoryError:
                raise
            except Exception as error:
                for packed in set(self.constants) - before:
                    del self.constants[packed]
                log.debug("%s is interpreted for %s: %s: %s", self.part, key, type(error).__name__, error)
                self.refused[key] = f"{type(error).__name__}: {error}"
                made = None
            self.plans[key] = made
            while len(self.plans) > PLANS:
                self.refused.pop(self.plans.popitem(last=False)[0], None)
            kept = 0
            for other in list(reversed(self.plans.values()))[1:]:
                if other is not None:
                    kept += other.size * len(other.idle)
                    if kept > IDLE_BYTES:
                        other.idle.clear()
            return made

    def prepare(self) -> None:
        """Lower ahead of the first run, so that the session's creation pays for compiling and packing: for
        the inputs' shapes, with a guess in the place of each symbolic dimension. A kernel serves other sizes
        too."""
        kinds = [(v.shape, v.elem.numpy.name) for v in self.part.inputs]
        if any(shape is None for shape, _ in kinds):
            return
        cached = any("past" in v.name for v in self.part.inputs)
        guessed = likely_shapes([shape for shape, _ in kinds], cached)
        key = tuple(guessed)
        exact = all(isinstance(d, int) for shape, _ in kinds for d in shape)
        if not exact:
            self.guessed.add(key)
        with contextlib.suppress(Exception):
            made = self._made(key, [(g, dtype) for g, (_, dtype) in zip(guessed, kinds, strict=True)])
            if made is None and not exact:
                del self.plans[key]

    def lower(self, kinds: Kinds) -> Plan:
        """The plan for inputs of these shapes and types. Raises what a rule raises."""
        if self.matrix_unit is None:
            self.matrix_unit = verdict(self.part, self.machine)
        if self.matrix_unit is None:
            fast = self._lowered(kinds, True)
            if not any(s.spec is not None and s.spec.template == "tiles" for s in fast.steps):
                return fast
            tried = functools.partial(self._tried, fast)
            self.matrix_unit = fast_enough(self.part, self.machine, kinds, tried)
            if self.matrix_unit:
                return fast
            self.constants.clear()
        return self._lowered(kinds, self.matrix_unit)

    def _lowered(self, kinds: Kinds, matrix_unit: bool) -> Plan:
        part = self.part
        inputs = [(v, shape, dtype) for v, (shape, dtype) in zip(part.inputs, kinds, strict=True)]
        lowering = Lowering(part.nodes, inputs, part.outputs, self.machine, self.constants,
                            self.reference, matrix_unit, self.half_epilogue)
        return Lowered(lowering, len(inputs), part.outputs, self.device, self.threads)

    def _tried(self, plan: Plan, fast: bool, inputs: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The outputs, by `plan` or without the matrix unit, whose packed weights go again."""
        other = Native(self.part, self.device, self.reference, self.threads, False)
        if fast:
            other.plans[tuple([a.shape for a in inputs])] = plan
        made = other(*inputs)
        return (made,) if self.single else made

    def interpret(self, arrays: Sequence[np.ndarray], note: Note | None = None, watch: Watch | None = None,
                  check: Callable[[], None] | None = None) -> Any:
        """The part by its definitions, node by node: for shapes that do not lower, and to find which node
        fails."""
        return interpret(self.part, self.reference, arrays, note, watch, check)


def _takes(target: np.ndarray, shape: tuple[int, ...], dtype: np.dtype,
           others: Sequence[np.ndarray | None]) -> bool:
    """Whether a result may be written to `target` while `others` are read and written."""
    return (target.shape == shape and target.dtype == dtype and target.flags.carray
            and not any(other is not None and np.may_share_memory(target, other) for other in others))


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.ctypes.data == b.ctypes.data and a.shape == b.shape and a.flags.c_contiguous
