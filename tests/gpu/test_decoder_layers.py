"""A decoder's layer for one token on GPUs: how many kernels are asked for, and that those which do the work
of several give what the CPU provider gives, as AMD machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decoder_layers import Layers, bert, gpt2, llama
from emulated_gpu import compare
from gpu_models import by_turns

from orthrus import optimize
from orthrus.codegen.triton.targets import TARGETS
from orthrus.kernels import reference
from orthrus.load import load
from orthrus.lowering.gpu import rules  # noqa: F401 - they are registered
from orthrus.lowering.gpu.lower import GpuLowering
from orthrus.lowering.gpu.merging import merged, single

pytestmark = pytest.mark.needs("AMD tables", "Triton")


def steps_of(made: Layers, target: str) -> list[Any]:
    """Launches."""
    graph = load(made.model().SerializeToString())
    optimize.optimize(graph)
    inputs: list[Any] = [(v, made.given[v.name][1], v.elem.numpy.name) for v in graph.inputs]
    lo = GpuLowering(graph.nodes, inputs, graph.outputs, TARGETS[target], {}, lambda n: reference(n).run)
    assert not lo.why
    return list(merged(lo.steps, lo.target, lo.status.buffer))


def asked(made: Layers, target: str) -> list[list[str]]:
    """The kernels of each launch."""
    return [[each.spec.template for each in single([step])] for step in steps_of(made, target)]


def per_layer(make: Any, target: str, **sizes: Any) -> int:
    """Launches of a layer more."""
    return len(asked(make(3, **sizes), target)) - len(asked(make(2, **sizes), target))


@pytest.mark.parametrize("target", ["sm_90", "gfx942", "gfx1100"])
def test_a_layer_asks_for_few_kernels(target: str) -> None:
    small: dict[str, Any] = {"hidden": 512, "heads": 8}
    few = {**small, "shared": 2, "inner": 1024, "cache": 64}
    assert per_layer(llama, target, **few) <= 5
    assert per_layer(llama, target, **few, packed=True) <= 5
    assert per_layer(llama, target, **few, dense=True) <= 5
    assert per_layer(llama, target, **few, dense=True, packed=True) <= 5
    assert per_layer(gpt2, target, **small, past=31) <= 5
    assert per_layer(gpt2, target, **small, past=31, dtype="float32") <= 5
    assert per_layer(bert, target, **small) <= 7


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))])
def test_layers_that_share_keys(seed: int) -> None:
    draw = np.random.default_rng(seed)
    dtype = ("float32", "float16")[seed % 2]
    shared, group = draw.choice([1, 2]), draw.choice([1, 2, 3])
    made = llama(1 + seed % 2, int(draw.choice([48, 80, 128])), int(shared * group), int(shared),
                 int(draw.choice([16, 24])), int(draw.choice([40, 96])), dtype, int(draw.choice([9, 33])),
                 int(draw.choice([16, 32])), bool(draw.integers(2)), seed, bool(seed // 2 % 2))
    bound = 1e-4 if dtype == "float32" else 2e-2
    compare(made.model(), made.feeds(int(draw.integers(0, 8))), by_turns(seed), bound, bound)


@pytest.mark.slow
def test_layers_of_half_precision() -> None:
    for i, made in enumerate((gpt2(2, 48, 3, past=5), gpt2(1, 32, 2, "float32", 17), bert(1, 48, 3))):
        bound = 1e-4 if made.dtype == np.float32 else 2e-2
        compare(made.model(), made.feeds(0), by_turns(i), bound, bound)


def _gated(seed: int, twice: bool) -> Layers:
    """Two products of one normalized row, and a tree over both; `twice`: one of them is read again."""
    draw = np.random.default_rng(seed)
    rows, k, n = int(draw.choice([1, 2, 4])), int(draw.choice([48, 200])), int(draw.choice([33, 70]))
    m = Layers(("float32", "float16")[seed % 2], seed)
    x = m.input("x", rows, k)
    normal = m.add("SimplifiedLayerNormalization", f"{x} {m.numbers('g', k)}", "n", epsilon=1e-6, axis=-1)
    one, two = (m.few_bits(normal, n, k, name, 16) for name in ("one", "two"))
    y = m.add("Mul", f"{m.add('Tanh', one, 't')} {two}", "u")
    y = m.add("Add", f"{y} {m.numbers('b', n)}", "v")
    m.results.append(m.add("Add", f"{y} {one}", "w") if twice else y)
    return m


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 6))])
def test_a_tree_over_two_products_is_at_the_end_of_both(seed: int) -> None:
    for twice in (False, True):
        made = _gated(seed, twice)
        bound = 1e-4 if seed % 2 == 0 else 1e-2
        compare(made.model(), made.feeds(0), by_turns(seed, twice), bound, bound)
    kernels = [each for launch in asked(_gated(seed, False), "gfx942") for each in launch]
    assert kernels.count("few_bits_rows") == 1 and "norm_rows" not in kernels


@pytest.mark.parametrize("spoiled", [np.inf, np.nan, 3e19])
def test_rows_that_are_not_finite(spoiled: float) -> None:
    """What a normalization makes of infinite numbers, and of such whose squares are."""
    made = _gated(2, False)
    feeds = made.feeds(0)
    feeds["x"][-1, 3] = spoiled
    compare(made.model(), feeds, by_turns(spoiled), 1e-4, 1e-4)


@pytest.mark.slow
def test_long_rows_are_shared_out() -> None:
    """Sums that are cut among programs carry the sums of squares along."""
    m = Layers("float32", 1)
    normal = m.add("SimplifiedLayerNormalization",
                   f"{m.input('x', 1, 4096)} {m.numbers('g', 4096)}", "n", epsilon=1e-6, axis=-1)
    one, two = (m.few_bits(normal, 40, 4096, name, 32) for name in ("one", "two"))
    m.results.append(m.add("Mul", f"{one} {two}", "y"))
    kernels = asked(m, "gfx1100")
    assert [each for launch in kernels for each in launch].count("few_bits_rows") == 1
    compare(m.model(), m.feeds(0), ("gfx1100",), 1e-4, 1e-4)
