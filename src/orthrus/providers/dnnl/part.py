"""A part at run time: one plan per tuple of input shapes, each a list of primitives over one block of memory.

A plan's memory serves one run at a time; a second run at the same moment gets memory of its own. The number
of OpenMP threads is set for the calling thread around what runs here, for primitives are made for a number.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import EPFail
from ...ir import ElementType, TensorType, Type, Value, element_of, in_memory
from ...kernels import Contents, Part, Work, readable
from ...limits import HARMLESS, reserve
from ...lowering import memory
from ...lowering.interpret import Note, Reference, Watch
from ...lowering.shaped_part import Key, Kinds, ShapedPart, Unfit
from ...memory import take
from . import rules as _rules  # noqa: F401
from .binding import SCRATCHPAD, Argument, Library, failure
from .constants import Constants
from .generated import GeneratedCode, Runner
from .lower import Lowering
from .objects import Memory
from .report import contents
from .step import DnnlStep
from .tensor import Joined, Tensor

log = logging.getLogger("orthrus")

_IDLE = 4
"""Idle blocks of memory a plan keeps."""


def _dtype(name: str) -> np.dtype[Any]:
    return ElementType.BFLOAT16.numpy if name == "bfloat16" else np.dtype(name)


class DnnlPlan:
    """A lowered part; `take()` gives the memory of one run."""

    definitions = False

    def __init__(self, lowering: Lowering, outputs: Sequence[Value], threads: int) -> None:
        self.lib, self.steps = lowering.lib, lowering.steps
        self.runner = Runner(lowering.lib.openmp, threads)
        self.runner.bring([step.code for step in self.steps if step.code is not None])
        touching: Any = self.steps
        self.size = memory.plan(touching, [])
        self.outputs = [(lowering.outputs[v].shape, _dtype(lowering.outputs[v].dtype)) for v in outputs]
        self.bytes = self.size + sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.outputs)
        self.kinds: dict[Value, Type] = {}
        self.held: dict[Value, Tensor] = {}
        made = {id(t.buffer): i for i, step in enumerate(self.steps) for t in step.outs}
        self.after: list[list[tuple[Value, Tensor]]] = [[] for _ in range(len(self.steps) + 1)]
        for value, found in lowering.env.items():
            if isinstance(found, Joined):
                continue
            t = found if isinstance(found, Tensor) else found.tensor
            if isinstance(found, Tensor):
                self.kinds[value] = TensorType(element_of(_dtype(t.dtype) if value.elem is None
                                                          else value.elem.numpy), t.shape)
            if isinstance(found, Tensor) and value.node is not None and t.desc.strides is not None \
                    and value.elem is not None and _dtype(t.dtype).itemsize == value.elem.numpy.itemsize:
                self.held[value] = t
                if t.buffer.kind != "const":
                    self.after[made.get(id(t.buffer), -1) + 1].append((value, t))
        for step in self.steps:
            for t in step.tensors():
                if t.buffer.kind == "const":
                    t.buffer.array = np.ascontiguousarray(in_memory(t.buffer.array))
        self.seconds = 0.0
        self.idle: list[Instance] = []

    def take(self) -> Instance:
        """Memory nobody uses."""
        try:
            return self.idle.pop()
        except IndexError:
            return Instance(self)

    def give(self, instance: Instance) -> None:
        """Keep the memory for the next run."""
        if len(self.idle) < _IDLE:
            self.idle.append(instance)


class Instance:
    """The memory of one run, the memory objects over it, each primitive's arguments, and a function for each
    step of generated code."""

    def __init__(self, plan: DnnlPlan) -> None:
        self.lib, self.steps = plan.lib, plan.steps
        self.block = take(plan.size)
        self.base = self.block.ctypes.data
        self.moving: list[tuple[str, int, int, int]] = []
        self.patched: list[tuple[str, np.ndarray, int, int, int]] = []
        self.known: dict[tuple[int, int, int], Memory] = {}
        self.calls: list[tuple[Any, int, Any]] = []
        for step in plan.steps:
            if step.code is not None:
                self.calls.append((None, 0, self._bound(plan.runner, step.code)))
                continue
            if step.primitive is None:
                self.calls.append((None, 0, None))
                continue
            args = step.args if step.scratch is None else [*step.args, (SCRATCHPAD, step.scratch)]
            cells = (Argument * len(args))(*[Argument(arg, self._object(t).handle) for arg, t in args])
            self.calls.append((step.primitive.handle, len(args), cells))

    def _address(self, t: Tensor) -> int:
        """Where a tensor is; 0 for one whose place each run decides."""
        b = t.buffer
        if b.kind == "const":
            assert b.array is not None
            return b.array.ctypes.data + t.offset
        return self.base + b.offset + t.offset if b.kind == "arena" else 0

    def _object(self, t: Tensor) -> Memory:
        key = id(t.buffer), t.offset, id(t.desc)
        if key not in self.known:
            made = self.known[key] = Memory(t.desc, self._address(t))
            if t.buffer.kind in ("input", "output"):
                self.moving.append((t.buffer.kind, made.handle, t.buffer.index, t.offset))
        return self.known[key]

    def _bound(self, runner: Runner, code: GeneratedCode) -> Callable[[], None]:
        cells = np.array([c if isinstance(c, int) else self._address(c) for c in code.cells], np.int64)
        for at, c in enumerate(code.cells):
            if not isinstance(c, int) and c.buffer.kind in ("input", "output"):
                self.patched.append((c.buffer.kind, cells, at, c.buffer.index, c.offset))
        return runner.bound(code, cells)

    def aim(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Let whatever reads inputs and writes outputs use these arrays."""
        at = {"input": [a.ctypes.data for a in inputs], "output": [a.ctypes.data for a in outputs]}
        for kind, handle, index, offset in self.moving:
            self.lib.set_handle(handle, at[kind][index] + offset)
        for kind, cells, place, index, offset in self.patched:
            cells[place] = at[kind][index] + offset

    def view(self, t: Tensor, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> np.ndarray:
        """A strided tensor as a numpy array."""
        dtype, b = _dtype(t.dtype), t.buffer
        assert t.desc.strides is not None
        strides = tuple(s * dtype.itemsize for s in t.desc.strides[:len(t.shape)])
        if b.kind == "arena":
            return np.ndarray(t.shape, dtype, self.block.data, b.offset + t.offset, strides)
        whole = inputs[b.index] if b.kind == "input" else outputs[b.index] if b.kind == "output" else b.array
        assert whole is not None
        flat = np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
        return np.ndarray(t.shape, dtype, flat.data, t.offset, strides)


class Fused(ShapedPart[DnnlPlan]):
    """A part by oneDNN, on `threads` threads. `arena`: whether memory is kept between runs."""

    def __init__(self, part: Part, lib: Library, reference: Reference, threads: int, arena: bool,
                 fpmath: str = "strict", winograd: bool = False, strict: bool = False) -> None:
        super().__init__(part, reference, threads, strict)
        self.lib, self.arena, self.fpmath, self.winograd = lib, arena, fpmath, winograd
        self.constants = Constants(lib)
        shapes = {n.inputs[1] for n in part.nodes if n.op_type == "Reshape" and len(n.inputs) > 1}
        self.deciding = [i for i, v in enumerate(part.inputs) if v in shapes]

    def describe(self) -> Contents:
        """What was made by now."""
        return contents(self)

    def stepwise(self, arrays: Sequence[np.ndarray], note: Note | None, watch: Watch | None = None,
                 check: Callable[[], None] | None = None) -> Any:
        """As a call, step by step; see `Kernel`. Values in blocked layouts are not shown to `watch`."""
        clock = time.perf_counter_ns
        began = clock()
        arrays = self.gate(arrays)
        plan = self.plan(arrays)
        if plan is None:
            return self.interpret(arrays, note, watch, check)

        def run(instance: Instance, given: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
            for i in range(-1, len(plan.steps)):
                start = clock()
                if i >= 0:
                    self._one(instance, i, given, outputs)
                end = clock()
                if note is not None:
                    note(None if i < 0 else self.work(plan, plan.steps[i]), began if i < 0 else start, end)
                if watch is not None:
                    for value, t in plan.after[i + 1]:
                        watch(value, instance.view(t, given, outputs))
                if check is not None and i >= 0:
                    check()
        try:
            return self._entered(plan, arrays, run)
        except Unfit as why:
            self.unfit(why)
            return self.interpret(arrays, note, watch, check)

    def _entered(self, plan: DnnlPlan, arrays: Sequence[np.ndarray], run: Callable[..., None]) -> Any:
        if plan.bytes > HARMLESS:
            reserve(plan.bytes, str(self.part))
        given = readable(arrays)
        outputs = [np.empty(shape, dtype) for shape, dtype in plan.outputs]
        instance = plan.take()
        instance.aim(given, outputs)
        try:
            with self.lib.openmp.threads(self.threads):
                run(instance, given, outputs)
        finally:
            if self.arena:
                plan.give(instance)
        return outputs[0] if self.single else tuple(outputs)

    def _run(self, instance: Instance, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        execute, stream = self.lib.execute, self.lib.stream
        for i, (primitive, count, cells) in enumerate(instance.calls):
            if primitive is None or execute(primitive, stream, count, cells):
                self._one(instance, i, arrays, outputs)

    def _one(self, instance: Instance, index: int, arrays: Sequence[np.ndarray],
             outputs: Sequence[np.ndarray]) -> None:
        """Run one step. Raises EPFail with its node where oneDNN answers with a failure."""
        step, (primitive, count, cells) = instance.steps[index], instance.calls[index]
        if step.code is not None:
            cells()
        elif primitive is None:
            self._host(step, step.reads, instance, arrays, outputs)
        elif status := self.lib.execute(primitive, self.lib.stream, count, cells):
            error: Any = failure(f"dnnl_primitive_execute of {step.kernel}", status)
            raise EPFail(getattr(error, "text", str(error)), node=step.node)

    def work(self, plan: DnnlPlan, step: DnnlStep) -> Work:
        """What a step does, for profiles."""
        own = set(step.nodes)
        given = {v: None for n in step.nodes for v in n.inputs if v is not None and v.node not in own}
        results = [v for n in step.nodes for v in n.outputs
                   if v is not None and (v.graph_outputs or set(v.uses) - own)]
        turns = [s for s in plan.steps if s.node is step.node]
        types = {v: plan.kinds.get(v) or v.type for v in (*given, *results)}
        return Work(step.node, step.kernel, step.nodes, tuple(given), tuple(results),
                    {v: k for v, k in types.items() if k is not None}, turns.index(step) + 1, len(turns))

    def lower(self, key: Key, kinds: Kinds) -> DnnlPlan:
        part, lib = self.part, self.lib
        inputs = [(v, shape, dtype) for v, (shape, dtype) in zip(part.inputs, kinds, strict=True)]
        looked = {part.inputs[i]: np.array(values, np.int64)
                  for i, values in zip(self.deciding, key[len(inputs):], strict=True)}
        with lib.openmp.lock, lib.openmp.threads(self.threads):
            with lib.multiplying(self.fpmath):
                lowering = Lowering(lib, part.nodes, inputs, part.outputs, self.constants, self.reference,
                                    self.winograd, looked)
            made = DnnlPlan(lowering, part.outputs, self.threads)
        for node, why in lowering.why.items():
            log.info("%s: %s runs by its definition for %s: %s", part, node.label, key, why)
        return made
