"""Models lowered for a GPU without a session: each step is executed on the emulator, over memory of its own
with guards, and what it gave is compared with what the operators' definitions give."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its types by name then
import numpy as np
from gpu_kernels import AMD
from onnx import ModelProto

import orthrus
from gfx import machine
from orthrus import knobs
from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.targets import TARGETS
from orthrus.codegen.triton.write import NUMBER, SIZE
from orthrus.ir import in_memory
from orthrus.kernels import reference
from orthrus.load import load
from orthrus.lowering.gpu.lower import GpuLowering
from orthrus.lowering.gpu import rules  # noqa: F401 - they are registered
from orthrus.lowering.tensor import Buffer, Tensor

__all__ = ["AMD", "Ran", "defined", "lowered", "ran"]


@dataclass
class Ran:
    """What a model's steps gave, the kernels they called, how often which instruction ran, and the nodes that
    were left to numpy, with the reasons."""

    outputs: list[np.ndarray]
    kernels: list[str]
    opcodes: collections.Counter[str]
    why: dict[str, str]

    def count(self, prefix: str) -> int:
        """How many instructions of such a name were executed."""
        return sum(n for name, n in self.opcodes.items() if name.lower().startswith(prefix))


def lowered(model: ModelProto, feeds: dict[str, np.ndarray], target: str, **settings: Any) -> GpuLowering:
    """The model's steps for these inputs."""
    graph = load(model.SerializeToString())
    inputs = [(v, feeds[v.name].shape, feeds[v.name].dtype.name) for v in graph.inputs if v.name in feeds]
    return GpuLowering(graph.nodes, inputs, graph.outputs, TARGETS[target], {}, lambda n: reference(n).run,
                       settings)


def ran(model: ModelProto, feeds: dict[str, np.ndarray], target: str, seed: int = 1, **settings: Any) -> Ran:
    """Lower and execute. Raises machine.MachineError."""
    lo = lowered(model, feeds, target, **settings)
    arrays = {i: feeds[v.name] for i, v in enumerate(load(model.SerializeToString()).inputs) if v.name in feeds}
    memory: dict[int, np.ndarray] = {}

    def held(buffer: Buffer) -> np.ndarray:
        """The elements of a buffer as bytes; what was never written is NaN."""
        if id(buffer) not in memory:
            if buffer.kind == "const":
                given = np.ascontiguousarray(in_memory(buffer.array))
            elif buffer.kind == "input":
                given = np.ascontiguousarray(arrays[buffer.index])
            else:
                given = np.full(buffer.size, 0xFF, np.uint8)
            memory[id(buffer)] = given.reshape(-1).view(np.uint8)
        return memory[id(buffer)]

    def seen(t: Tensor) -> np.ndarray:
        dtype = np.dtype(t.dtype)
        return np.lib.stride_tricks.as_strided(held(t.buffer)[t.byte_offset:].view(np.uint8)[:0].view(dtype) if
                                               t.size == 0 else _from(held(t.buffer), t, dtype), t.shape,
                                               tuple(s * dtype.itemsize for s in t.strides))

    def _from(raw: np.ndarray, t: Tensor, dtype: np.dtype[Any]) -> np.ndarray:
        rest = raw[t.byte_offset:]
        return rest[:len(rest) // dtype.itemsize * dtype.itemsize].view(dtype)

    opcodes, kernels = collections.Counter[str](), list[str]()
    for step in lo.steps:
        if step.spec is None:
            made = step.host(*[None if t is None else seen(t) for t in step.args])
            for t, value in zip(step.outs, made if isinstance(made, tuple) else (made,), strict=False):
                seen(t)[...] = value
            continue
        written = step.spec.written(lo.target)
        assert len(written.arguments) == len(step.args), (written.arguments, step.args)
        hints, given = [], []
        for (name, kind), value in zip(written.arguments, step.args, strict=True):
            if isinstance(value, Tensor):
                hints.append("16" if value.byte_offset % 16 == 0 else "")
                given.append(held(value.buffer)[value.byte_offset:])
            elif kind == SIZE:
                hints.append("" if value % 16 else "16")
                given.append(np.int32(value))
            else:
                assert kind == NUMBER, (name, value)
                hints.append("")
                given.append(float(value))
        code = compiling.code(step.spec, lo.target, tuple(hints))
        kernels.append(step.spec.template)
        opcodes += machine.run(machine.CodeObject(code.data), code.name, (step.items, 1, 1), given,
                               threads=code.threads, shared=code.shared, seed=seed).opcodes
    outputs = [seen(lo.outputs[v]).copy() for v in load_outputs(lo)]
    return Ran(outputs, kernels, opcodes, {n.op_type: why for n, why in lo.why.items()})


def load_outputs(lo: GpuLowering) -> list[Any]:
    """The values whose memory is the caller's, in the model's order."""
    return sorted(lo.outputs, key=lambda v: lo.outputs[v].buffer.index)


def defined(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the operators' definitions give."""
    options = orthrus.SessionOptions()
    options.graph_optimization_level = orthrus.GraphOptimizationLevel.ORT_DISABLE_ALL
    with knobs.setting(CODEGEN=0):
        session = orthrus.InferenceSession(model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))
