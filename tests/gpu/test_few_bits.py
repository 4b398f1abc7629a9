"""Weights of few bits on GPUs: kernels as AMD machine code, whatever bits, blocks, zero points and types."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 - numpy knows its types by name then
import numpy as np
import pytest
from emulated_gpu import compare, on_gpu
from few_bits_cases import MS, Product, model
from gpu_kernels import AMD, hints
from gpu_steps import Steps
from onnx import helper

from orthrus.codegen.kernels.few_bits.layout import Blocks
from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.counts import tally
from orthrus.codegen.triton.kernels.few_bits import Codes, pack
from orthrus.codegen.triton.targets import TARGETS
from orthrus.lowering.gpu import few_bits, walks
from orthrus.lowering.gpu.few_bits import write
from orthrus.lowering.rules.few_bits import Weights

pytestmark = pytest.mark.needs("AMD tables", "Triton")

#        rows       n   k    bits block zeros     type        bias   groups
CASES = (((1,), 33, 96, 4, 32, "", "float32", False, False),
         ((2, 3), 70, 257, 4, 16, "codes", "float16", True, True),
         ((2,), 17, 300, 4, 128, "floats", "float16", False, False),
         ((7,), 40, 128, 8, 16, "codes", "bfloat16", True, False),
         ((3,), 5, 40, 8, 256, "", "float32", True, True),
         ((33,), 64, 130, 2, 32, "codes", "float16", False, False),
         ((1,), 64, 130, 2, 16, "floats", "bfloat16", False, False),
         ((5,), 70, 520, 4, 256, "floats", "bfloat16", True, False))


def _check(made: Product, a: np.ndarray, target: str) -> None:
    session = on_gpu(made.model(a.shape), target, alone=True)
    made.close(a, session.run(None, {"a": a})[0])
    assert not session.explain().numpy, session.explain()


@pytest.mark.slow
@pytest.mark.parametrize("target", AMD)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_products(case: int, target: str) -> None:
    rows, n, k, bits, block, zeros, dtype, bias, groups = CASES[case]
    random = np.random.default_rng(case)
    made = Product(random, n, k, bits, block, zeros, dtype, 0, bias, groups)
    a = random.standard_normal((*rows, k)).astype(dtype)
    _check(made, a, target)


@pytest.mark.parametrize("target", ["gfx1100", "interpreted"])
def test_one_row_of_four_bits(target: str) -> None:
    random = np.random.default_rng(1)
    made = Product(random, 33, 96, 4, 32, "codes", "float32")
    a = random.standard_normal((1, 96)).astype(np.float32)
    _check(made, a, target)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 6])
def test_offsets_of_64_bits(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (walks, few_bits):
        monkeypatch.setattr(module, "LONG", 1)
    random = np.random.default_rng(rows)
    made = Product(random, 33, 96, 4, 32, "codes", "float16", groups=True)
    _check(made, random.standard_normal((rows, 96)).astype(np.float16), "gfx942")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("rows", [1, 20])
def test_floats_of_four_bits(kind: int, rows: int) -> None:
    random, n, k, block = np.random.default_rng(7), 33, 64, 32
    fixed = {"b": random.integers(0, 256, n * k // 2).astype(np.uint8),
             "absmax": random.uniform(0.5, 2, n * k // block).astype(np.float32)}
    node = helper.make_node("MatMulBnb4", ["a", "b", "absmax"], ["y"], domain=MS, K=k, N=n, block_size=block,
                            quant_type=kind)
    made = model([node], fixed, {"a": ("float32", (rows, k))}, "float32")
    compare(made, {"a": random.standard_normal((rows, k)).astype(np.float32)}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packed_weights_take_no_more_than_the_models(bits: int) -> None:
    random, n, k, block = np.random.default_rng(bits), 8, 256, 32
    size = k * bits // 8
    codes = random.integers(0, 256, (n, size)).astype(np.uint8)
    scales = random.standard_normal((n, k // block)).astype(np.float16)
    made, by, zeros = pack(Codes(bits, block, "float16", "codes"), codes, scales,
                           random.integers(0, 256, (n, k // block * bits // 8)).astype(np.uint8))
    assert (made.nbytes, by.nbytes) == (codes.nbytes, scales.nbytes)
    assert zeros is not None and zeros.nbytes == n * k // block * bits // 8


@pytest.mark.slow
@pytest.mark.parametrize("target, word", [("sm_80", "mma.sync"), ("sm_90", "mma"), ("gfx942", "v_mfma"),
                                          ("gfx1100", "v_wmma")])
@pytest.mark.parametrize("rows", [1, 512])
def test_large_products_are_multiplied_by_matrix_units(target: str, word: str, rows: int) -> None:
    steps, n, k = Steps(target), 1024, 1024
    random = np.random.default_rng(0)
    weights = Weights(("w",), n, k, Blocks(4, 32, "float16", 8), lambda: (
        random.integers(0, 256, (n, k // 2)).astype(np.uint8),
        np.ones((n, k // 32), np.float16), None))
    a, out = np.zeros((rows, k), np.float16), np.zeros((rows, n), np.float16)
    write(steps, steps.over(a), weights, None, steps.over(out), None, [])
    spec, args, _ = steps.steps[0]
    kind = "ptx" if target.startswith("sm") else "amdgcn"
    made = compiling._built(spec.written(TARGETS[target]), TARGETS[target], hints(spec, target, tuple(
        steps.arguments(args)))).asm[kind]
    assert (word in made) == (rows > 1)
    assert ".local" not in made and "scratch_" not in made
    assert any(wide in made for wide in ("ld.global.v4", "load_b128", "load_dwordx4", "cp.async"))


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("target, most", [("sm_90", 6), ("gfx942", 7), ("gfx1100", 6)])
def test_a_code_takes_few_instructions(target: str, most: int, bits: int) -> None:
    """Else it is these that a product of one row waits for, and not its weights."""
    steps, n, k, block = Steps(target), 64, 1 << 16, 128
    weights = Weights(("w",), n, k, Blocks(bits, block, "float16", 1 << bits - 1), lambda: (
        np.zeros((n, k * bits // 8), np.uint8), np.ones((n, k // block), np.float16), None))
    a, out = np.zeros((1, k), np.float16), np.zeros((1, n), np.float16)
    write(steps, steps.over(a), weights, None, steps.over(out), None, [])
    (spec, args, items), at = steps.steps[0], TARGETS[target]
    listing = compiling.text_of(spec, at, hints(spec, target, tuple(steps.arguments(args))),
                                "ptx" if target.startswith("sm") else "amdgcn")
    written = spec.written(at)
    given = {name: value for (name, _), value in zip(written.arguments, args, strict=True)
             if isinstance(value, int)}
    count = tally(listing, written.text, given, items, at).instructions * written.warps * at.warp * items
    assert count / (n * k) < most
