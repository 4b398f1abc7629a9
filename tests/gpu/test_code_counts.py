"""How many kernels are compiled: one code for all numbers of rows, others only where elements that lie next
to each other are read several at once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gpu_models import model, node

from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.targets import TARGETS
from orthrus.kernels import reference
from orthrus.load import load
from orthrus.lowering.gpu import rules  # noqa: F401 - they are registered
from orthrus.lowering.gpu.lower import GpuLowering
from orthrus.lowering.gpu.plan import hints
from orthrus.lowering.memory import plan

WIDTH = 64


def requests(nodes: list[object], shapes: dict[str, tuple[int, ...]], **constants: np.ndarray) -> list[Any]:
    """What is asked of the compiler for inputs of these shapes."""
    graph, target = load(model(nodes, shapes, ["y"], **constants)), TARGETS["sm_90"]
    inputs = [(v, shapes[v.name], "float32") for v in graph.inputs]
    lo = GpuLowering(graph.nodes, inputs, graph.outputs, target, {}, lambda n: reference(n).run)
    plan(lo.steps, [])
    return [(s.spec, target, hints(s, target)) for s in lo.steps]


W = np.ones((WIDTH, WIDTH), np.float32)
BLOCKS = {
    "product": ([node("MatMul", "x w", "y")], {"w": W}),
    "norm": ([node("LayerNormalization", "x s", "y", axis=-1)], {"s": W[0]}),
    "softmax": ([node("Softmax", "x", "y", axis=-1)], {}),
    "gathered": ([node("Gather", "x i", "y", axis=2)], {"i": np.arange(WIDTH)}),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_numbers_of_rows_share_code(name: str) -> None:
    nodes, constants = BLOCKS[name]
    found = {str(requests(nodes, {"x": (1, rows, WIDTH)}, **constants)) for rows in (80, 84, 95, 96)}
    assert len(found) == 1, found


def test_what_lies_next_to_each_other_does_not() -> None:
    """Columns of a factor, which several are read of at once where their number allows."""
    nodes = [node("MatMul", "x w", "y")]
    of = {n: str([known for *_, known in requests(nodes, {"x": (96, 80), "w": (80, n)})])
          for n in (80, 84, 96)}
    assert of[80] == of[96] != of[84]


@pytest.mark.slow
@pytest.mark.needs("Triton")
@pytest.mark.parametrize("name", ["product", "norm", "softmax"])
def test_vectors_are_whole_whatever_the_rows(name: str) -> None:
    """Four numbers by one instruction, for rows that are no multiple of anything."""
    nodes, constants = BLOCKS[name]
    for spec, target, known in requests(nodes, {"x": (1, 83, WIDTH)}, **constants):
        text = compiling.text_of(spec, target, known, "ptx")
        assert re.search(r"(ld|st)\.global\S*\.v4\.b32|cp\.async\.cg\S* \[.*\], 0x10", text), spec
