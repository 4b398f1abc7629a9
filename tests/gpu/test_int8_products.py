"""Products of bytes on GPUs: exact sums, whatever signs, zero points and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_gpu import compare
from few_bits_cases import MS, model
from gpu_kernels import AMD, hints
from gpu_steps import Steps
from onnx import helper

from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.kernels.products import MIDDLE, Tile
from orthrus.codegen.triton.targets import TARGETS
from orthrus.lowering.gpu.products import Zeros, write

pytestmark = pytest.mark.needs("AMD tables", "Triton")

_ENDS = {"int8": (-128, 128), "uint8": (0, 256)}


def _bytes(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return random.integers(*_ENDS[dtype], shape).astype(dtype)


def _check(target: str, kinds: tuple[str, str], low: Any, other: Any, shape: tuple[int, int, int],
           tile: Any = None) -> Steps:
    """`low`, `other`: how many numbers are subtracted, 0 for none, or MIDDLE."""
    random, (m, n, k) = np.random.default_rng(sum(shape)), shape
    a, b = _bytes(random, kinds[0], (m, k)), _bytes(random, kinds[1], (n, k)).T
    steps, out = Steps(target), np.zeros((m, n), np.int32)
    points = [None if how == 0 else how if how == MIDDLE else _bytes(random, kind, (how,))
              for how, kind in ((low, kinds[0]), (other, kinds[1]))]
    zeros = Zeros(*(steps.over(p) if isinstance(p, np.ndarray) else p for p in points))
    write(steps, steps.over(a), steps.over(b), steps.over(out), None, [], zeros, tile)
    steps.execute()
    first, second = (0 if p is None else 128 if isinstance(p, str) else p.astype(np.int32) for p in points)
    rows = first[:, None] if isinstance(first, np.ndarray) and first.size > 1 else first
    np.testing.assert_array_equal(out, (a.astype(np.int32) - rows) @ (b.astype(np.int32) - second))
    return steps


@pytest.mark.parametrize("target", AMD)
def test_bytes_with_zero_points(target: str) -> None:
    steps = _check(target, ("uint8", "int8"), 1, 0, (18, 20, 40))
    assert steps.ran({"gfx1100": "v_wmma_i32", "gfx942": "v_mfma_i32"}[target])


@pytest.mark.slow
@pytest.mark.parametrize("target, first, second, low, other", [
    ("gfx1100", "int8", "int8", 0, 33), ("gfx942", "int8", "int8", 0, 0),
    ("gfx1100", "uint8", "int8", 17, 1),
    ("gfx942", "uint8", "int8", MIDDLE, 33), ("gfx1100", "uint8", "uint8", MIDDLE, MIDDLE),
    ("gfx942", "uint8", "uint8", 0, 0), ("gfx942", "int8", "uint8", 17, 33),
    ("gfx1201", "uint8", "int8", 1, 1)])
def test_signs_and_zero_points(target: str, first: str, second: str, low: Any, other: Any) -> None:
    _check(target, (first, second), low, other, (17, 33, 50), (Tile(32, 16, 32, 2, 1, 2), 1))


@pytest.mark.slow
@pytest.mark.parametrize("target", AMD)
def test_cut_sums_subtract_their_own_share(target: str) -> None:
    _check(target, ("uint8", "uint8"), 1, 20, (5, 20, 200), (Tile(16, 16, 32, 8, 1, 2), 3))


@pytest.mark.slow
def test_matrix_units_multiply_bytes() -> None:
    for target, word in (("gfx1100", "v_wmma_i32"), ("gfx942", "v_mfma_i32"), ("sm_80", "mma.sync"),
                         ("sm_90", "wgmma")):
        steps = Steps(target)
        a, out = np.zeros((256, 256), np.int8), np.zeros((256, 256), np.int32)
        write(steps, steps.over(a), steps.over(a).permute((1, 0)), steps.over(out), None, [],
              tile=(Tile(64, 64, 64, 8, 4, 2), 1))
        spec, args, _ = steps.steps[0]
        made = compiling._built(spec.written(TARGETS[target]), TARGETS[target], hints(
            spec, target, tuple(steps.arguments(args)))).asm
        assert word in made["ptx" if target.startswith("sm") else "amdgcn"], target


def _operator(op: str, inputs: str, domain: str = "", **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), ["y"], domain=domain, **attrs)


@pytest.mark.slow
def test_operators_as_the_cpu_computes_them() -> None:
    random = np.random.default_rng(2)
    b = _bytes(random, "int8", (40, 17))
    fixed = {"b": b, "as": np.float32(0.02), "bs": random.uniform(0.01, 0.02, 17).astype(np.float32),
             "az": np.uint8(120), "bz": np.zeros(17, np.int8), "ys": np.float32(0.3), "yz": np.uint8(100),
             "c": random.integers(-500, 500, 17).astype(np.int32),
             "bias": random.standard_normal(17).astype(np.float32)}
    a = _bytes(random, "uint8", (2, 9, 40))

    def check(node: Any, feed: np.ndarray, out: str, more: Any = ()) -> None:
        used = {name for each in (node, *more) for name in each.input}
        made = model([*more, node], {k: np.asarray(v) for k, v in fixed.items() if k in used},
                     {"a": (feed.dtype.name, feed.shape)}, out)
        compare(made, {"a": feed}, rtol=1e-4, atol=1e-4)
    check(_operator("MatMulInteger", "a b az bz"), a, "int32")
    check(_operator("QLinearMatMul", "a as az b bs bz ys yz"), a, "uint8")
    check(_operator("QGemm", "a as az b bs bz c ys yz", MS), a[0], "uint8")
    check(_operator("QGemm", "a as az b bs bz c", MS), a[0], "float32")
    check(_operator("MatMulIntegerToFloat", "a b as bs az bz bias", MS), a, "float32")
    check(_operator("DynamicQuantizeMatMul", "a b bs bz bias", MS),
          random.standard_normal((3, 40)).astype(np.float32), "float32")
    both = [helper.make_node("DequantizeLinear", ["a", "as", "az"], ["x"]),
            helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["w"], axis=1)]
    check(_operator("MatMul", "x w"), a, "float32", both)
    check(_operator("Gemm", "x w bias", alpha=0.5), a[0], "float32", both)
