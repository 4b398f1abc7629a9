"""Models lowered for a GPU without a session: each step is executed by itself on the emulator, every tensor
in memory of its own that ends where nothing may be read."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its types by name then
import numpy as np
from gpu_kernels import AMD
from gpu_models import defined
from onnx import ModelProto

from gfx import machine
from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.targets import TARGETS
from orthrus.codegen.triton.write import SIZE
from orthrus.ir import in_memory
from orthrus.kernels import reference
from orthrus.load import load
from orthrus.lowering.gpu import rules  # noqa: F401 - they are registered
from orthrus.lowering.gpu.lower import GpuLowering
from orthrus.lowering.step import KernelStep
from orthrus.lowering.tensor import Buffer, Tensor

__all__ = ["AMD", "Ran", "defined", "hinted", "lowered", "ran"]


@dataclass
class Ran:
    """What a model's steps gave, the kernels they called, how often which instruction ran, and the operators
    that were left to numpy, with the reasons."""

    outputs: list[np.ndarray]
    kernels: list[str] = field(default_factory=list)
    opcodes: collections.Counter[str] = field(default_factory=collections.Counter)
    why: dict[str, str] = field(default_factory=dict)

    def count(self, prefix: str) -> int:
        """How many instructions of such a name were executed."""
        return sum(n for name, n in self.opcodes.items() if name.lower().startswith(prefix))


def lowered(model: ModelProto, feeds: dict[str, np.ndarray], target: str, **settings: Any) -> GpuLowering:
    """The model's steps for these inputs, which are all that it has. None writes what runs share: several go
    on at once."""
    graph = load(model.SerializeToString())
    inputs = [(v, feeds[v.name].shape, feeds[v.name].dtype.name) for v in graph.inputs]
    made = GpuLowering(graph.nodes, inputs, graph.outputs, TARGETS[target], {}, lambda n: reference(n).run,
                       settings)
    assert {t.buffer.kind for step in made.steps for t in step.outs} <= {"arena", "output"}
    return made


def hinted(step: KernelStep, lo: GpuLowering) -> tuple[str, ...]:
    """What a plan knows of a step's arguments."""
    spec: Any = step.spec
    declared = spec.written(lo.target).arguments
    assert len(declared) == len(step.args), (declared, step.args)
    return tuple("16" if (isinstance(value, Tensor) and value.byte_offset % 16 == 0)
                 or (kind == SIZE and value % 16 == 0) else ""
                 for (_, kind), value in zip(declared, step.args, strict=True))


class _Memory:
    """Bytes by buffer; what was never written is NaN."""

    def __init__(self, inputs: list[np.ndarray]) -> None:
        self.inputs = inputs
        self.held: dict[int, np.ndarray] = {}

    def __call__(self, buffer: Buffer) -> np.ndarray:
        if id(buffer) not in self.held:
            if buffer.kind in ("const", "input"):
                given = in_memory(buffer.array) if buffer.kind == "const" else self.inputs[buffer.index]
            else:
                given = np.full(buffer.size, 0xFF, np.uint8)
            self.held[id(buffer)] = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
        return self.held[id(buffer)]

    def view(self, t: Tensor) -> np.ndarray:
        """The elements of a tensor."""
        dtype = np.dtype(t.dtype)
        rest = self(t.buffer)[t.byte_offset:]
        whole = rest[:len(rest) // dtype.itemsize * dtype.itemsize].view(dtype)
        return np.lib.stride_tricks.as_strided(whole, t.shape, [s * dtype.itemsize for s in t.strides])


def ran(model: ModelProto, feeds: dict[str, np.ndarray], target: str, seed: int = 1, **settings: Any) -> Ran:
    """Lower and execute. Raises machine.MachineError."""
    lo = lowered(model, feeds, target, **settings)
    memory = _Memory([feeds[v.name] for v in load(model.SerializeToString()).inputs])
    made = Ran([], why={node.op_type: why for node, why in lo.why.items()})
    for step in lo.steps:
        if step.spec is None:
            assert step.host is not None
            results = step.host(*[None if t is None else memory.view(t) for t in step.args])
            results = results if isinstance(results, tuple) else (results,)
            for t, value in zip(step.outs, results, strict=False):
                memory.view(t)[...] = value
            continue
        spec: Any = step.spec
        code = compiling.code(spec, lo.target, hinted(step, lo))
        given = [machine.Address(memory(a.buffer), a.byte_offset) if isinstance(a, Tensor)
                 else np.int32(a) if isinstance(a, int) else float(a) for a in step.args]
        made.kernels.append(spec.template)
        made.opcodes += machine.run(machine.CodeObject(code.data), code.name, (step.items, 1, 1), given,
                                    threads=code.threads, shared=code.shared, seed=seed).opcodes
    made.outputs = [memory.view(t).copy() for t in sorted(lo.outputs.values(), key=lambda t: t.buffer.index)]
    return made
