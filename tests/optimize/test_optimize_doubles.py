"""Every rule's graphs in float64: what a rewrite makes of them agrees to float64's accuracy, with constants
in full and with constants that were rounded to float32 and so are not the numbers a fusion stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_optimize_rules
from support_graphs import Net, evaluate, feeds
from test_optimize_rules import BATCH, FIRES, SPARES

from orthrus.ir import Graph, Value
from orthrus.optimize import optimize

FLOAT, DOUBLE = 1, 11


class Wide(Net):
    """Every float32 of a graph in float64, with its value; attributes stay float32, as in a model."""

    def input(self, name: str, *shape: Any, dtype: Any = np.float32) -> Value:
        return super().input(name, *shape, dtype=np.float64 if dtype == np.float32 else dtype)

    def constant(self, array: Any) -> Value:
        array = np.asarray(array)
        return super().constant(array.astype(np.float64) if array.dtype == np.float32 else array)

    def node(self, domain: str, name: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Any:
        attrs = {k: DOUBLE if k in ("to", "dtype") and v == FLOAT else
                 float(np.float32(v)) if isinstance(v, float) else v for k, v in attrs.items()}
        return super().node(domain, name, *inputs, outputs=outputs, **attrs)


def built(build: Callable[[Net], Any], opset: int | None) -> Graph:
    test_optimize_rules.RNG = np.random.default_rng(7)
    net = Wide(opset)
    return net.outputs(*build(net))


def difference(build: Callable[[Net], Any], opset: int | None) -> float:
    """How far the results are apart, relative to the largest; 0 where the definitions do not take float64."""
    before, after = built(build, opset), built(build, opset)
    given = feeds(before, **BATCH)
    try:
        expected = evaluate(before, given)
    except (TypeError, ValueError, AssertionError):
        return 0.0
    optimize(after)
    worst = 0.0
    for a, b in zip(expected, evaluate(after, given), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype == np.float64 and a.size:
            gap = np.abs(np.where(a == b, 0, a - b))
            worst = max(worst, float(gap.max() / max(np.abs(a).max(), 1e-300)))
        elif a.dtype != np.float64:
            np.testing.assert_allclose(np.asarray(b, np.float64), np.asarray(a, np.float64), rtol=1e-5)
    return worst


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rule", sorted({*FIRES, *SPARES}))
def test_a_rewrite_keeps_the_accuracy_of_float64(rule: str) -> None:
    for build, opset, _ in [*FIRES.get(rule, ()), *SPARES.get(rule, ())]:
        assert difference(build, opset) < 1e-12


def _gelu(root: float) -> Callable[[Net], Any]:
    def build(n: Net) -> Any:
        x = n.input("x", 2, 3, dtype=np.float64)
        return [n.Mul(n.Mul(x, n.Add(n.Erf(n.Div(x, np.float64(root))), np.float64(1))), np.float64(0.5))]
    return build


@pytest.mark.parametrize(("root", "kinds"), [(2 ** 0.5, ["Gelu"]), (float(np.float32(2 ** 0.5)), None)])
def test_a_constant_in_full_fuses_and_a_rounded_one_does_not(root: float, kinds: list[str] | None) -> None:
    graph = built(_gelu(root), None)
    optimize(graph)
    assert ([node.op_type for node in graph.nodes] == ["Gelu"]) == (kinds is not None)
    assert difference(_gelu(root), None) < 1e-14
