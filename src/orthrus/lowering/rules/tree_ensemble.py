"""Tree ensembles: the prepared forest packed for its kernel, base values, labels and post transforms."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...codegen.kernels.tree_ensemble import packing, scores
from ...codegen.write.expr import Expr
from ...ir import No, Node
from ...ops.ml.linear import TRANSFORMS
from ..elements import store
from ..lower import Lowering, Out, lowers
from ..tensor import Tensor

TYPES = ("float32", "float64", "int32", "int64")
F, D = "float32", "float64"
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_made: WeakKeyDictionary[Node, tuple[dict[str, Any], packing.Packed | str]] = WeakKeyDictionary()


def _packed(lo: Lowering, node: Node, aggregate: str) -> tuple[dict[str, Any], packing.Packed | str]:
    """What the definition prepares of the node's attributes, with the number of `targets` for the forest, and
    the forest packed: made once."""
    if node not in _made:
        assert node.op is not None
        prepared = node.op.prepare(node.attrs)
        forest = prepared.pop("forest")
        prepared |= {"targets": forest.targets, "rounded": _rounded(forest)}
        _made[node] = prepared, packing.plan(lo.machine, forest, aggregate)
    return _made[node]


def _rounded(forest: Any) -> str:
    """Which way float64 may be rounded to float32, so that every test says the same of it; or nothing."""
    if (forest.weight.astype(np.float32) != forest.weight).any():
        return ""
    ways = {"up": (0, 3), "down": (1, 2)}
    return next((way for way, modes in ways.items() if np.isin(forest.mode, modes).all()), "")


def _narrow(lo: Lowering, x: Tensor, way: str) -> Tensor:
    """The float32 next to each float64, `up` or `down`, if not itself."""
    given = Expr.leaf(0, D)
    turned = given if way == "up" else Expr("neg", (given,), D)
    near = turned.cast(F)
    above = Expr("where", (Expr("lt", (near.cast(D), turned), "bool"), Expr("next_up", (near,), F), near), F)
    made = lo.new(x.shape, F)
    store(lo, made, above if way == "up" else Expr("neg", (above,), F), [x])
    return made


def _scores(lo: Lowering, node: Node, packed: packing.Packed, start: np.ndarray) -> Tensor | No:
    """The step of the trees: [rows, targets] float32, plus `start`."""
    assert node.inputs[0] is not None
    x = lo.tensor(node.inputs[0])
    if x.dtype == D:
        way = _made[node][0]["rounded"]
        if not way or not x.size:
            return No("tests of float64 that float32 does not pass alike")
        x = _narrow(lo, x, way)
    if x.rank != 2 or x.strides[1] != 1:
        x = lo.contiguous(x)
    rows = x.shape[0] if x.rank > 1 else 1
    features = x.size // rows if rows else 0
    if features < packed.inputs:
        return No(f"{features} features, but a tree reads feature {packed.inputs - 1}")
    contents = {**packed.arrays, "start": start.astype(np.float32)}
    arrays = {name: lo.constant((id(node), name), partial(np.asarray, a)) for name, a in contents.items()}
    y, block = lo.new((rows, len(start)), "float32"), packed.block(rows)
    row = x.strides[0] if x.rank == 2 else features
    lo.step(packed.spec(x.dtype), packed.cells(x, row, rows, block, Out(y), arrays), -(-rows // block),
            packed.grain(block), packed.scratch(block))
    return y


def close_scores(lo: Lowering, y: Tensor, transform: str, choice: str = "none", names: Tensor | None = None,
           pair: scores.Pair | None = None, base: tuple[float, float] = (0.0, 0.0)) -> Tensor:
    """The step of a post transform on the scores `y` and of the labels, which it gives."""
    rows, classes = y.shape
    labels = y if names is None else lo.new((rows,), "int64")
    if choice != "none" or transform != "NONE":
        lo.step(scores.tree_scores(transform=transform, choice=choice, pair=pair),
                [Out(y), rows, classes, Out(labels), names or y, *base], -(-rows // lo.machine.lanes(4)), 64)
    return labels


def _targets(lo: Lowering, node: Node, aggregate: str, transform: str) -> Tensor | No:
    """A regressor: base values for targets that some leaf spoke to, or for the only one."""
    prepared, packed = _packed(lo, node, aggregate)
    if isinstance(packed, str):
        return No(packed)
    targets, base = prepared["targets"], prepared.get("base", np.zeros(0))
    if transform == "PROBIT":
        return No("the post transform PROBIT")
    apart = aggregate in ("MIN", "MAX") or (base.size > 0 and targets > 1)
    if (apart and (packed.spoken != packed.mentioned).any()) or (
            aggregate in ("MIN", "MAX") and not packed.spoken.all()):
        return No("whether a target gets a value depends on the row")
    start = np.zeros(targets)
    if base.size:
        start[:] = np.where(packed.spoken | (targets == 1), base, 0)
    y = _scores(lo, node, packed, start)
    if not isinstance(y, No) and targets > 1:
        close_scores(lo, y, transform)
    return y


@lowers("ai.onnx.ml::TreeEnsembleRegressor", types=TYPES)
def tree_ensemble_regressor(lo: Lowering, node: Node) -> Tensor | No:
    return _targets(lo, node, node.attribute("aggregate_function"),
                    node.attribute("post_transform"))


@lowers("ai.onnx.ml::TreeEnsemble", types=("float32",))
def tree_ensemble(lo: Lowering, node: Node) -> Tensor | No:
    return _targets(lo, node, AGGREGATES[node.attribute("aggregate_function")],
                    TRANSFORMS[node.attribute("post_transform")])


@lowers("ai.onnx.ml::TreeEnsembleClassifier", types=TYPES)
def tree_ensemble_classifier(lo: Lowering, node: Node) -> tuple[Tensor, Tensor] | No:
    prepared, packed = _packed(lo, node, "SUM")
    transform = node.attribute("post_transform")
    if isinstance(packed, str):
        return No(packed)
    labels, base = prepared["labels"], prepared["base"]
    if transform == "PROBIT" or labels.dtype != np.int64:
        return No("string labels, or the post transform PROBIT")
    if (packed.spoken != packed.mentioned).any() or (
            len(labels) > 2 and not base.size and not packed.spoken.all()):
        return No("whether a class gets a score depends on the row")
    names = lo.constant((id(node), "names"), lambda: labels)
    if len(labels) == 2:
        pair = scores.Pair((bool(packed.spoken[0]), bool(packed.spoken[1])), base.size,
                          prepared["only"] is not None, prepared["positive"])
        y = _scores(lo, node, packed, np.zeros(2))
        first, second = (*(float(b) for b in base), 0.0, 0.0)[:2]
        return y if isinstance(y, No) else (
            close_scores(lo, y, transform, "pair", names, pair, (first, second)), y)
    y = _scores(lo, node, packed, np.zeros(len(labels)) + (base if base.size else 0))
    if isinstance(y, No):
        return y
    if len(labels) == 1:
        return close_scores(lo, y, "NONE", "only", names), y
    return close_scores(lo, y, transform, "most", names), y
