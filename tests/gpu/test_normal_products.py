"""Products of a few rows that normalize what they read, alone and two that are one, as AMD machine code:
against the definitions, whatever the norm, its type, what it adds, the numbers and how long rows are."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
from decoder_layers import MS, Layers, gpt2, llama
from emulated_gpu import fenced, on_gpu
from gpu_models import by_turns, defined, numpy_type
from test_decoder_layers import asked, steps_of

from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.targets import TARGETS
from orthrus.lowering.gpu.plan import hints

pytestmark = pytest.mark.needs("AMD tables", "Triton")
BOUNDS = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}
NORMS = ("LayerNormalization", "LayerNormalization without a bias", "SimplifiedLayerNormalization",
         "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")


def drawn(seed: int) -> tuple[Layers, str]:
    """A norm of one to four rows, and one to three products of it."""
    draw = np.random.default_rng(seed)

    def one(*given: Any) -> Any:
        return given[draw.integers(len(given))]
    dtype = ("float32", "float16", "float32", "bfloat16")[seed % 4]
    rows, k = one(1, 1, 2, 3, 4), one(5, 16, 48, 130, 600)
    few = k % 16 == 0 and dtype != "bfloat16" and one(True, False)
    m, kind = Layers(str(dtype) if dtype != "bfloat16" else "float32", seed), NORMS[seed % len(NORMS)]
    m.dtype = numpy_type(dtype)
    m.kind = onnx.helper.np_dtype_to_tensor_dtype(m.dtype)
    shape = one((rows, k), (1, rows, k), (rows, 1, k))
    x, affine = m.input("x", *shape), [m.numbers("g", k)]
    affine += [m.numbers("b", k)] if kind in ("LayerNormalization", "SkipLayerNormalization") else []
    if kind.startswith("Skip"):
        x = m.add("MatMul", f"{x} {m.numbers('before', k, k, scale=k ** -0.5)}", "made")
        normal = m.add(MS + kind, f"{x} {m.input('skip', *shape)} {' '.join(affine)}", "n - - sum",
                       epsilon=1e-5)
        m.results.append(m.add("Tanh", "sum", "more") if one(True, False) else "sum")
    else:
        normal = m.add(kind.split()[0], f"{x} {' '.join(affine)}", "n", epsilon=1e-5, axis=-1)
    n, made = one(3, 17, 64, 200), []
    for i in range(one(1, 2, 2, 3)):
        name = f"p{i}"
        if few:
            made.append(m.few_bits(normal, n, k, name, 16))
        elif one(True, True, False):
            made.append(m.dense(normal, n, k, name))
        else:
            made.append(m.add("Gemm", f"{normal} {m.numbers(f'{name}.w', n, k, scale=k ** -0.5)}", name,
                              transB=1) if len(shape) == 2 else m.dense(normal, n, k, name))
    whole = made[0]
    for i, other in enumerate(made[1:]):
        whole = m.add("Mul", f"{m.add('Sigmoid', whole, f's{i}')} {other}", f"y{i}")
    m.results.append(whole)
    return m, dtype


def check(made: Layers, dtype: str, feeds: dict[str, np.ndarray], target: str) -> None:
    model = made.model()
    with fenced():
        found = on_gpu(model, target, alone=True).run(None, feeds)
    for a, b in zip(found, defined(model, feeds), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a.astype(float), b.astype(float), BOUNDS[dtype], BOUNDS[dtype])


@pytest.mark.parametrize("seed", [
    seed if seed in (0, 1, 6) else pytest.param(seed, marks=pytest.mark.slow) for seed in range(40)])
def test_products_of_what_is_normalized(seed: int) -> None:
    made, dtype = drawn(seed)
    (target,) = by_turns(seed)
    kernels = [each for launch in asked(made, target) for each in launch]
    assert "norm_rows" not in kernels or "sum" in made.results, kernels
    check(made, dtype, made.feeds(0), target)


def gated(k: int, rows: int = 2, dtype: str = "float32", n: int = 40, few: bool = False) -> Layers:
    """Two products of rows that are centred."""
    m = Layers(dtype, k)
    normal = m.add("LayerNormalization", f"{m.input('x', rows, k)} {m.numbers('g', k)} {m.numbers('b', k)}",
                   "n", epsilon=1e-5)
    one, two = ((m.few_bits(normal, n, k, name, 32) if few else m.dense(normal, n, k, name))
                for name in ("one", "two"))
    m.results.append(m.add("Mul", f"{one} {two}", "y"))
    return m


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("spoiled", [np.inf, -np.inf, np.nan, 3e19])
def test_rows_that_are_not_finite(spoiled: float, few: bool) -> None:
    made = gated(96, few=few)
    feeds = made.feeds(0)
    feeds["x"][-1, 3] = spoiled
    check(made, "float32", feeds, *by_turns(spoiled, few))


@pytest.mark.parametrize("few", [False, True])
def test_rows_far_from_zero(few: bool) -> None:
    """Whose deviations are small beside their means."""
    made = gated(96, few=few)
    feeds = {"x": made.feeds(0)["x"] / 16 + np.float32([[3000.0], [-700.0]])}
    check(made, "float32", feeds, *by_turns(few))


def test_weights_that_are_not_finite() -> None:
    """Infinities among them, of columns that others have no part in."""
    made = gated(64)
    made.held["one.w"][5, 3], made.held["two.w"][9, 4] = np.inf, np.nan
    check(made, "float32", made.feeds(0), "gfx942")


@pytest.mark.slow
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("k", [2048, 9000, 16384])
def test_long_rows(k: int, few: bool) -> None:
    """Held at once or met in pieces, their products shared out among programs."""
    k -= k % 32 if few else 0
    made = gated(k, 1, "float16" if k < 9000 else "float32", 20, few)
    check(made, "float16" if k < 9000 else "float32", made.feeds(0), *by_turns(k, few))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("made", [
    functools.partial(gpt2, 1, 768, 12), functools.partial(llama, 1, 2048, dense=True, inner=5632)],
    ids=["GPT-2", "Llama-like"])
def test_nvidias_kernels_spill_nothing(made: Any, target: str) -> None:
    for step in steps_of(made(), target):
        if "rows" in step.spec.template or step.spec.template == "together":
            text = compiling.text_of(step.spec, TARGETS[target], hints(step, TARGETS[target]), "ptx")
            assert ".local" not in text, step.spec


def test_a_norm_that_is_read_otherwise_is_written() -> None:
    """Once, for all that read it."""
    made = gated(48)
    made.results.append(made.add("Tanh", "n", "z"))
    kernels = [each for launch in asked(made, "gfx1100") for each in launch]
    assert kernels.count("norm_rows") == 1
    check(made, "float32", made.feeds(0), "gfx1100")
