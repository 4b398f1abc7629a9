"""What a model's kernels would take on a GPU that nobody here has, from the code that would run there.

In: a part that a `Planner` claimed, a target. Out: a `StepTime` for each of its steps. Kernels are compiled,
not run. A step takes as long as what it needs most of: its instructions, its matrix products, its bytes of
shared memory, of the second-level cache, of memory, or the waits of a program for what it reads, at the rates
of the chip's data sheet. Nothing in it was measured.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from ...codegen.triton import targets
from ...codegen.triton.compile import Hints, text_of
from ...codegen.triton.counts import Tally, tally
from ...codegen.triton.targets import CUDA, Target
from ...codegen.triton.tiles import chip
from ...errors import InvalidArgument
from ...ir import Node
from ...kernels import KernelRegistryManager, Part, reference
from ...lowering.attribution import Account
from ...lowering.gpu.lower import GpuLowering
from ...lowering.gpu.plan import hints
from ...lowering.memory import plan
from ...lowering.step import KernelStep
from ...records import dataclass
from .provider import GpuProvider

CHIPS = {"gfx942": ("MI300X", 2.1e9), "gfx1100": ("RX 7900 XTX", 2.5e9), "sm_90": ("H100 SXM", 1.83e9),
         "sm_80": ("A100", 1.41e9), "gfx90a": ("MI250X, one die", 1.7e9), "gfx1201": ("RX 9070 XT", 2.97e9)}
"""The chips that estimates are for, and their boost clocks in hertz, by target."""

LAUNCH = 2e-6
"""Seconds from the end of a kernel to the begin of the next, in a graph. Assumed."""

HOST = 50e-6
"""Seconds that a node takes which the host computes, copies included. Assumed."""

_WAIT, _SHARED = 700, 128
"""Cycles until what a program asks of memory is there; bytes that a unit's threads get of shared memory in
one."""

_RESIDENT = 2048
"""Threads that a unit has at a time."""

_QUARTERS = 4
"""Instructions that a unit begins in a cycle, of different warps."""


@dataclass(frozen=True)
class StepTime:
    """One step. `bound`: what it needs most of: "issue", "vector", "matrix", "shared", "L2", "memory",
    "wait", or "host"; `instructions`, `near`, `far`: of all its programs, and bytes from the second-level
    cache and from memory."""

    node: Node
    kernel: str
    milliseconds: float
    cycles: float
    bound: str
    instructions: int
    near: float
    far: float


class Planner(GpuProvider):
    """A provider of a target, on paper."""

    def __init__(self, target: Target) -> None:
        self.api = target.api  # type: ignore[misc]
        name = "CUDAExecutionProvider" if target.api == CUDA else "ROCMExecutionProvider"
        self.name = name  # type: ignore[misc]
        super().__init__()
        self.on_paper = target
        self.registries = KernelRegistryManager(())
        self.registries.register(self.name, self.kernels)

    @property
    def target(self) -> Target:
        """What it is for."""
        return self.on_paper


def named(target: str) -> Target:
    """The target that there are estimates for. Raises InvalidArgument."""
    if target not in CHIPS:
        raise InvalidArgument("there are no estimates for that target", found=target,
                              expected=", ".join(CHIPS), cure="name one of these with --target")
    return targets.TARGETS[target]


def estimated(part: Part, target: Target) -> list[StepTime]:
    """The time of each step of a part. Raises InvalidArgument where a size of an input is open, EPFail where
    nothing can be compiled."""
    for value in part.inputs:
        if value.shape is None or any(not isinstance(d, int) for d in value.shape):
            raise InvalidArgument("the model leaves sizes open", found=f"{value.name}: {value.type}",
                                  expected="every size", cure="--dim NAME=SIZE")
    inputs = [(value, value.shape, value.elem.numpy.name) for value in part.inputs]
    lowering = GpuLowering(part.nodes, inputs, part.outputs, target, {}, lambda node: reference(node).run, {})
    plan(lowering.steps, [])
    works = Account(lowering).works(part, lowering.steps)
    known: dict[Any, Tally] = {}
    return [_time(step, work.node or step.node, target, known)
            for step, work in zip(lowering.steps, works, strict=True)]


def on_host(node: Node) -> StepTime:
    """A node that no kernel computes."""
    return StepTime(node, f"reference {node.op_type}", 1e3 * HOST, 0, "host", 0, 0, 0)


def _time(step: KernelStep, node: Node, target: Target, known: dict[Any, Tally]) -> StepTime:
    if step.spec is None:
        return on_host(node)
    written, about = step.spec.written(target), hints(step, target)
    arguments = {name: given for (name, _), given in zip(written.arguments, step.args, strict=True)
                 if isinstance(given, int)}
    key = step.spec, about, tuple(arguments.items()), step.items
    if key not in known:
        known[key] = tally(_listed(step.spec, target, about), written.text, arguments, step.items, target)
    clock = CHIPS[target.arch][1]
    work, far, warps = known[key], _far(step), written.warps * step.items
    cycles, bound = cost(work, written.warps, step.items, far, target)
    return StepTime(node, step.spec.template, 1e3 * (cycles / clock + LAUNCH), cycles, bound,
                    round(work.instructions * warps), work.near * warps, far)


def cost(work: Tally, warps: int, programs: int, far: float, target: Target) -> tuple[float, str]:
    """Cycles of so many programs of so many warps, each of this work, that touch `far` bytes of memory; and
    what they need most of."""
    have = chip(target)
    lanes = have.single if target.api == CUDA else have.single // 2
    each = math.ceil(programs / have.units) * warps
    resident = max(1, min(16, _RESIDENT // (warps * target.warp)))
    plain = work.vector + work.doubles * max(0.0, have.single / max(1, have.exact) - 1)
    needs = {
        "issue": each * work.instructions / _QUARTERS,
        "vector": each * plain * target.warp / lanes,
        "matrix": each * work.matrix,
        "shared": each * work.shared / _SHARED,
        "L2": each * work.near / have.cache,
        "memory": far / have.memory,
        "wait": math.ceil(programs / have.units / resident) * work.rounds * _WAIT,
    }
    bound = max(needs, key=lambda name: needs[name])
    return needs[bound], bound


def _far(step: KernelStep) -> float:
    """Bytes that a step reads and writes, each once."""
    seen = {(id(t.buffer), t.byte_offset): t for t in step.tensors()}
    return float(sum(t.size * t.itemsize for t in seen.values()))


@functools.lru_cache(1 << 10)
def _listed(spec: Any, target: Target, about: Hints) -> str:
    """A kernel's assembly, or what comes nearest to it."""
    return text_of(spec, target, about, "ptx" if target.api == CUDA else "amdgcn")
