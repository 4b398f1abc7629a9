"""Matrix products on GPUs: kernels as AMD machine code over shapes, strides and types, and what NVIDIA's
assembler is given."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulated_gpu import compare
from gpu_kernels import AMD, hints
from gpu_steps import Steps
from onnx import helper

from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton import tiles
from orthrus.codegen.triton.kernels.products import Tile
from orthrus.codegen.triton.targets import TARGETS
from orthrus.codegen.write.expr import Expr
from orthrus.lowering.gpu import products, walks
from orthrus.lowering.gpu.products import write

pytestmark = pytest.mark.needs("AMD tables", "Triton")

TYPES = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-14}
"""How far a sum may be off, in parts of the sum of the products' sizes."""

WORD = {"float32": ("v_fma", "v_mfma_f32"), "float16": ("v_wmma_f32_16x16x16_f16", "v_mfma_f32"),
        "bfloat16": ("v_wmma_f32_16x16x16_bf16", "v_mfma_f32"), "float64": ("v_fma_f64", "v_mfma_f64")}
"""What multiplies tiles on the targets of `AMD`."""

_BIAS = Expr("add", (Expr.leaf(0, "float32"), Expr.leaf(1, "float32")), "float32")
_RELU = Expr("maximum", (_BIAS, Expr.const(0.0, "float32")), "float32")


def _lying(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Random numbers whose axes lie in any order, with gaps, spread over axes of one element."""
    order = random.permutation(len(shape))
    whole = tuple(int(shape[a]) + int(random.integers(0, 3)) for a in order)
    lying = random.standard_normal(whole).astype(dtype)
    return lying.transpose(np.argsort(order))[tuple(slice(d) for d in shape)]


def _multiplied(target: str, a: np.ndarray, b: np.ndarray, **options: Any) -> tuple[Steps, np.ndarray]:
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    out = np.full(shape, -7, a.dtype)
    steps = Steps(target)
    write(steps, steps.over(a), steps.over(b), steps.over(out), None, [], **options)
    steps.execute()
    return steps, out


def _near(found: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    first, second = a.astype(np.float64), b.astype(np.float64)
    most = np.abs(first) @ np.abs(second) + 1e-30
    assert (np.abs(found.astype(np.float64) - first @ second) / most).max() < TYPES[a.dtype.name]


@pytest.mark.parametrize("target", AMD)
def test_a_product_with_bias_and_relu(target: str) -> None:
    random = np.random.default_rng(1)
    a, b, c = (random.standard_normal(s).astype(np.float16) for s in ((33, 50), (50, 24), (24,)))
    out, steps = np.zeros((33, 24), np.float32), Steps(target)
    row = steps.over(c.astype(np.float32)).expand(out.shape)
    write(steps, steps.over(a), steps.over(b), steps.over(out), _RELU, [row])
    steps.execute()
    assert steps.ran(WORD["float16"][AMD.index(target)])
    expected = np.maximum(a.astype(np.float32) @ b.astype(np.float32) + c.astype(np.float32), 0)
    np.testing.assert_allclose(out, expected, 1e-4, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("target, dtype", [*((t, d) for t in AMD for d in TYPES), ("gfx1201", "float16")])
def test_tiles_over_shapes_and_strides(target: str, dtype: str) -> None:
    random = np.random.default_rng(len(dtype))
    kind = np.dtype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16)
    found: set[str] = set()
    for batch, other, m, n, k, tile in (
            ((), (), 40, 37, 33, (Tile(16, 32, 16, 2, 1, 2), 1)), ((), (), 16, 16, 64, (Tile(16, 16, 16), 3)),
            ((3, 1), (2,), 17, 5, 9, None), ((2,), (), 19, 64, 16, None),
            ((), (2,), 1, 70, 40, (Tile(32, 32, 32), 1))):
        a, b = _lying(random, (*batch, m, k), kind), _lying(random, (*other, k, n), kind)
        steps, out = _multiplied(target, a, b, tile=tile)
        _near(out, a, b)
        found |= {name.lower() for name in steps.opcodes}
    if target in AMD:
        assert any(name.startswith(WORD[dtype][AMD.index(target)]) for name in found)


@pytest.mark.slow
@pytest.mark.parametrize("target", AMD)
@pytest.mark.parametrize("dtype", TYPES)
def test_few_rows_or_columns(target: str, dtype: str) -> None:
    random = np.random.default_rng(len(dtype))
    kind = np.dtype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16)
    for a_shape, b_shape in (((1, 300), (300, 70)), ((2, 1, 50), (50, 33)), ((3, 65), (2, 65, 17)),
                             ((70, 50), (50, 1)), ((2, 3, 1, 20), (3, 20, 40)), ((1, 1), (1, 1))):
        a, b = _lying(random, a_shape, kind), _lying(random, b_shape, kind)
        steps, out = _multiplied(target, a, b)
        assert steps.steps[0][0].template == "product_rows"
        _near(out, a, b)


@pytest.mark.parametrize("target", [
    pytest.param(target, marks=[pytest.mark.thorough][:target == "gfx942"]) for target in AMD])
def test_the_last_of_several_programs_adds_up_what_all_have_summed(target: str) -> None:
    random = np.random.default_rng(3)
    for m, n, k, tile in ((2, 80, 8192, None), (5, 40, 1500, (Tile(16, 32, 16), 9)),
                          (70, 33, 333, (Tile(32, 16, 32, 2), 3))):
        a, b = random.standard_normal((2, m, k), np.float32), random.standard_normal((2, k, n), np.float32)
        bits = set()
        for seed in (1, 2, 3):
            steps, out = Steps(target), np.zeros((2, m, n), np.float32)
            write(steps, steps.over(a), steps.over(b), steps.over(out), None, [], tile=tile)
            for _ in range(2):
                steps.execute(seed)
            assert [dict(spec.params)["cut"] for spec, _, _ in steps.steps] == [True]
            bits.add(out.tobytes())
        assert len(bits) == 1
        _near(out, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("target", AMD)
def test_offsets_of_64_bits(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (walks, products):
        monkeypatch.setattr(module, "LONG", 1)
    random = np.random.default_rng(5)
    for m in (2, 20):
        a, b = _lying(random, (2, m, 40), "float32"), _lying(random, (2, 40, 17), "float32")
        steps, out = _multiplied(target, a, b)
        assert dict(steps.steps[0][0].params)["factors"].walk.wide
        _near(out, a, b)


def _built(target: str, dtype: Any, tile: Any = None, **settings: Any) -> Any:
    """What the compiler makes of a product of two large matrices."""
    steps = Steps(target, **settings)
    t = steps.over(np.zeros((1, 1), dtype)).view((1024, 1024), (1024, 1))
    write(steps, t, t, t, None, [], tile=tile)
    spec, args, _ = steps.steps[0]
    made = hints(spec, target, tuple(np.zeros(1) if a is t or hasattr(a, "buffer") else a for a in args))
    return compiling._built(spec.written(TARGETS[target]), TARGETS[target], made)


@pytest.mark.slow
@pytest.mark.parametrize("target, dtype, word", [
    ("sm_80", "float16", "mma.sync"), ("sm_80", "bfloat16", "mma.sync"),
    ("sm_80", "float32", "mma.sync.*tf32"),
    ("sm_80", "float64", "mma.sync.*f64"), ("sm_90", "float16", "wgmma"), ("sm_90", "bfloat16", "wgmma"),
    ("sm_90", "float32", "wgmma.*tf32"), ("sm_100", "float16", "tcgen05.mma")])
def test_matrix_units_of_nvidia(target: str, dtype: str, word: str) -> None:
    made = _built(target, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert re.search(word, made.asm["ptx"])
    assert "cp.async" in made.asm["ptx"] and not re.search(r"\.local", made.asm["ptx"])


@pytest.mark.slow
def test_float32_is_exact_where_that_is_asked() -> None:
    for target in ("sm_80", "sm_90"):
        text = _built(target, np.float32, use_tf32=False).asm["ptx"]
        assert "mma" not in text and "fma.rn.f32" in text


def test_tiles_fit_every_target() -> None:
    for target in TARGETS.values():
        for dtype in (*TYPES, "int8"):
            for m, n, k in ((1, 1, 1), (5, 4096, 4096), (4096, 4096, 4096), (64, 64, 100000), (700, 9, 30)):
                problem = tiles.Problem(m, n, k, 1, dtype)
                tile, parts = tiles.best(target, problem)
                assert tile.stages * (tile.m + tile.n) * tile.k * problem.itemsize <= target.shared
                assert parts == 1 or parts * tile.k <= k


CASES = [
    ("MatMul", "", {}, [(2, 9, 20), (20, 33)]), ("MatMul", "", {}, [(20,), (20, 33)]),
    ("MatMul", "", {}, [(3, 9, 20), (20,)]), ("MatMul", "", {}, [(20,), (20,)]),
    ("MatMul", "", {}, [(3, 0), (0, 5)]), ("MatMul", "", {}, [(0, 4), (4, 5)]),
    ("Gemm", "", {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}, [(20, 9), (30, 20), (30,)]),
    ("Gemm", "", {"transB": 1}, [(9, 20), (30, 20), (9, 1)]),
    ("Gemm", "", {"beta": 0.0}, [(9, 4), (4, 5), (9, 5)]),
    ("FusedGemm", "com.microsoft", {"activation": "LeakyRelu", "activation_alpha": 0.1},
     [(9, 20), (20, 30), (30,)]),
    ("FusedMatMul", "com.microsoft", {"transA": 1, "transBatchA": 1, "alpha": 0.25}, [(9, 2, 8), (2, 9, 5)]),
    ("TransposeMatMul", "com.microsoft", {"transB": 1}, [(2, 9, 8), (2, 5, 8)]),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_operators_as_the_cpu_computes_them(dtype: Any) -> None:
    random = np.random.default_rng(0)
    for op, domain, attrs, shapes in CASES:
        if dtype == np.float64 and domain:
            continue
        compare(_model(op, domain, attrs, dtype, len(shapes)),
                {f"x{i}": random.standard_normal(s).astype(dtype) for i, s in enumerate(shapes)},
                rtol=1e-3 if dtype == np.float16 else 1e-5, atol=1e-2 if dtype == np.float16 else 1e-5)


def _model(op: str, domain: str, attrs: dict[str, Any], dtype: Any, count: int) -> Any:
    names = [f"x{i}" for i in range(count)]
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], domain=domain, **attrs)], "g",
        [helper.make_tensor_value_info(name, elem, None) for name in names],
        [helper.make_tensor_value_info("y", elem, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(
        "com.microsoft", 1)], ir_version=8)
