"""What follows a kernel and is computed in it, and windows of all attributes, against the definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import epilogue_cases
import numpy as np
import pytest
import window_cases
from epilogue_cases import KERNELS, TYPES, Branches, faults, operand_shapes, resized, shape_faults
from skips import needs

from orthrus.codegen.machines.detect import host
from orthrus.codegen.machines.machine import (
    AVX2,
    AVX512,
    NEON,
    RVV128,
    SPACEMIT_K1,
    SPACEMIT_K3,
    SSE2,
    Machine,
)
from orthrus.kernels import reference
from orthrus.load import load
from orthrus.lowering.lower import Lowering
from orthrus.lowering.step import KernelStep
from orthrus.lowering.tensor import Buffer, Tensor
from orthrus.lowering.walk import Walked, readable, within

pytestmark = needs("generated code")

SIZE = (2, 3, 2, 5)
AMX = replace(AVX512, features=tuple(sorted((*AVX512.features, "amx-bf16", "amx-int8", "amx-tile"))))
MACHINES = (AVX512, AVX2, SSE2, NEON, RVV128, SPACEMIT_K1, SPACEMIT_K3, AMX)
SOME = tuple(dict.fromkeys(("MaxPool", "Resize linear", "Conv 1x1", "Conv stem", "MatMul", "Softmax 1",
                            "ReduceMean 23 kept", "ConvInteger", "Gather", "Concat", *list(KERNELS)[::3])))
"""Of each kind of kernel, one or two."""
OTHERS = ((3, 3, 2, 5), (1, 3, 2, 5), (2, 3, 5, 3), (2, 3, 1, 5), (5, 2, 3, 2), (1, 1, 1, 1))


@pytest.mark.parametrize("name", SOME)
def test_operands_of_every_shape(name: str) -> None:
    assert not faults(epilogue_cases.build(len(name), name, most=2, size=SIZE))


@pytest.mark.parametrize("seeds", [pytest.param(range(1), marks=pytest.mark.slow),
                                   pytest.param(range(1, 4), marks=pytest.mark.thorough)])
@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("level", ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"))
@pytest.mark.parametrize("name,dtype", [(n, d) for n in KERNELS for d in ("float32", *TYPES[n])])
def test_operands_of_every_shape_and_size(name: str, dtype: str, level: str, threads: int, seeds: range
                                          ) -> None:
    for seed in seeds:
        assert not faults(epilogue_cases.build(seed, name, dtype), level, threads), seed


def _shapes(name: str, shapes: int, most: int) -> list[str]:
    first = epilogue_cases.build(len(name), name, most=most, size=SIZE, constant=False)
    others = [epilogue_cases.build(len(name), name, most=most, size=size, constant=False) for size in OTHERS]
    return shape_faults(first, [other for other in others if resized(first, other)], shapes)


@pytest.mark.parametrize("name", SOME[:10])
def test_operands_whose_shapes_change(name: str) -> None:
    assert not _shapes(name, 2, 2)


@pytest.mark.parametrize("shapes", [pytest.param(0, marks=pytest.mark.thorough),
                                    pytest.param(1, marks=pytest.mark.thorough),
                                    pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KERNELS)
def test_operands_of_every_shape_that_changes(name: str, shapes: int) -> None:
    assert not _shapes(name, shapes, 20)


def _windows(kind: str, dtype: str, seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        b = window_cases.build(seed, kind, dtype)
        if window_cases.defined_for(b):
            found += [f"seed {seed}: {fault}" for fault in faults(b)]
    return found


@pytest.mark.parametrize("kind", window_cases.KINDS)
def test_windows(kind: str) -> None:
    assert not _windows(kind, "float32", range(8))


@pytest.mark.parametrize("seeds", [pytest.param(range(100, 110), marks=pytest.mark.slow),
                                   pytest.param(range(110, 300), marks=pytest.mark.thorough)])
@pytest.mark.parametrize("dtype", ("float32", "float16", "float64"))
@pytest.mark.parametrize("kind", window_cases.KINDS)
def test_windows_of_every_kind(kind: str, dtype: str, seeds: range) -> None:
    assert not _windows(kind, dtype, seeds)


def _lowered(b: Branches, machine: Machine, matrix_unit: bool = False) -> list[KernelStep]:
    """The steps for a machine; what they walk is checked as they are written."""
    graph = load(b.model().SerializeToString())
    inputs = [(v, v.shape, v.elem.numpy.name) for v in graph.inputs]
    return Lowering(graph.nodes, inputs, graph.outputs, machine, {}, reference, matrix_unit).steps


@pytest.mark.parametrize("name", SOME)
def test_walks_on_registers_of_many_lanes(name: str) -> None:
    assert _lowered(epilogue_cases.build(1, name, most=3, size=(2, 3, 9, 17)), SPACEMIT_K3)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.label)
@pytest.mark.parametrize("name", KERNELS)
def test_walks_on_every_machine(name: str, machine: Machine) -> None:
    for size in (SIZE, (3, 2, 9, 17), (2, 5, 40, 36)):
        assert _lowered(epilogue_cases.build(1, name, most=12, size=size), machine)


@pytest.mark.parametrize("kernel", (1, 3))
def test_walks_on_a_matrix_unit(kernel: int) -> None:
    machine = host()
    if machine is None or not machine.has("avx512f"):
        pytest.skip("the processor here has no AVX-512, with which weights for it are packed")
    b, shape = Branches(0), (2, 64, 24, 24)
    x, w = b.given(b.values(shape)), b.held(b.values((64, 64, kernel, kernel)))
    for own in operand_shapes(shape):
        made = b.node("Conv", x, w, pads=[kernel // 2] * 4)
        b.end(epilogue_cases.follow(b, made, own, "Add", True, False), str(own))
    found = [step.spec.template for step in _lowered(b, machine, True) if step.spec is not None]
    assert found.count("tiles") == len(b.outputs)


def _tensor(shape: tuple[int, ...], strides: tuple[int, ...], size: int = 1000) -> Tensor:
    return Tensor("float32", shape, strides, Buffer("arena", 4 * size))


@pytest.mark.parametrize("sizes,strides", [
    ((2, 3, 4, 5), (60, 20, 5, 1)), ((6, 4, 5), (20, 5, 1)), ((120,), (1,)), ((2, 3, 20, 1), (60, 20, 1, 0))])
def test_a_walk_over_the_whole_tensor(sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    Walked(_tensor((2, 3, 4, 5), (60, 20, 5, 1)), sizes, strides, True)


@pytest.mark.parametrize("shape,lying,sizes,strides", [
    ((2, 3, 4, 5), (0, 1, 0, 0), (6, 4, 5), (1, 0, 0)),
    ((2, 3, 4, 5), (1, 0, 0, 0), (6, 4, 5), (0, 0, 0)),
    ((2, 3, 4, 5), (0, 0, 0, 1), (6, 20), (0, 1)),
    ((2, 3, 4, 5), (120, 20, 5, 1), (6, 20), (20, 1)),
    ((2, 3, 4, 5), (60, 1, 15, 3), (2, 3, 4, 5), (60, 15, 3, 1))])
def test_a_walk_past_its_tensor_is_refused(shape: Any, lying: Any, sizes: Any, strides: Any) -> None:
    with pytest.raises(AssertionError):
        Walked(_tensor(shape, lying), sizes, strides)


def test_a_result_is_written_once() -> None:
    with pytest.raises(AssertionError):
        Walked(_tensor((2, 3), (0, 1)), (2, 3), (0, 1), True)


def test_a_view_past_its_buffer_is_refused() -> None:
    within(_tensor((2, 3), (3, 1), 6))
    for shape, strides in (((2, 4), (3, 1)), ((2, 3), (-3, 1))):
        with pytest.raises(AssertionError):
            within(_tensor(shape, strides, 6))


@pytest.mark.parametrize("mask", range(16))
def test_an_operand_is_spread_until_the_kernel_reads_it(mask: int) -> None:
    shape = (2, 3, 4, 5)
    own = tuple(d if mask >> a & 1 else 1 for a, d in enumerate(shape))
    out = _tensor(shape, (60, 20, 5, 1))
    t = _tensor(own, tuple(int(s) // 4 for s in np.zeros(own, np.float32).strides))
    found = readable(t, out, lambda t: t.joined(0, 2) is not None)
    wide, strides = found or (t, t.strides)
    assert Tensor("float32", wide.shape, tuple(strides), t.buffer).expand(shape).joined(0, 2) is not None
    assert wide.size <= max(t.size, 2 * 3 * t.size)
