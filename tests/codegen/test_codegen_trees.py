"""Tree ensembles: packed forests and their kernels against the numpy definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("native")

from draws import draws  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import orthrus  # noqa: E402
from orthrus.codegen.kernels.tree_ensemble import packing, scores  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2, Machine  # noqa: E402
from orthrus.codegen.object import build  # noqa: E402
from orthrus.ops import define  # noqa: E402
from orthrus.ops.ml import trees  # noqa: E402

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
VALUES = np.array([-np.inf, -2, -1, -0.0, 0.0, 0.5, 1, 2, np.inf, np.nan, 3e-45], np.float32)


class Growing:
    """The attribute lists of a random ensemble."""

    def __init__(self, rng: np.random.Generator, features: int, modes: tuple[str, ...], missing: bool
                 ) -> None:
        self.rng, self.features, self.modes, self.missing = rng, features, modes, missing
        self.nodes: dict[str, list[Any]] = {k: [] for k in (
            "treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids",
            "missing_value_tracks_true")}
        self.leaves: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
        self.trees = 0

    def tree(self, depth: int, ragged: float, targets: tuple[int, ...], coarse: bool) -> None:
        """Add a tree; each leaf is for every one of `targets`. `ragged`: how likely a branch ends early."""
        rng, n = self.rng, self.nodes
        count = 0

        def grow(level: int) -> int:
            nonlocal count
            me, count = count, count + 1
            at = len(n["modes"])
            leaf = level == depth or (level > 0 and rng.random() < ragged)
            value = rng.choice(VALUES[1:-2]) if coarse else np.float32(rng.normal())
            for key, entry in (("treeids", self.trees), ("nodeids", me), ("truenodeids", 0),
                               ("falsenodeids", 0), ("values", float(value)),
                               ("featureids", 0 if leaf else int(rng.integers(self.features))),
                               ("modes", "LEAF" if leaf else str(rng.choice(self.modes))),
                               ("missing_value_tracks_true", int(self.missing and rng.random() < .5))):
                n[key].append(entry)
            if leaf:
                for t in targets:
                    for key, entry in (("treeids", self.trees), ("nodeids", me), ("ids", t),
                                       ("weights", float(np.float32(rng.normal())))):
                        self.leaves[key].append(entry)
            else:
                n["truenodeids"][at] = grow(level + 1)
                n["falsenodeids"][at] = grow(level + 1)
            return me
        grow(0)
        self.trees += 1

    def attributes(self, prefix: str) -> dict[str, Any]:
        return {**{f"nodes_{k}": v for k, v in self.nodes.items()},
                **{f"{prefix}_{k}": v for k, v in self.leaves.items()}}


def table(rng: np.random.Generator, rows: int, features: int) -> np.ndarray:
    """Rows of features, many on thresholds, some NaN and infinite."""
    x = rng.normal(size=(rows, features)).astype(np.float32)
    special = rng.random(x.shape) < .4
    x[special] = rng.choice(VALUES, int(special.sum()))
    return x


def run(packed: packing.Packed, x: np.ndarray, start: np.ndarray, machine: Machine | None, block: int,
        splits: tuple[int, ...] = ()) -> np.ndarray:
    arrays = {k: native.guarded(v) for k, v in packed.arrays.items()} | {"start": start.astype(np.float32)}
    y = native.guarded(np.full((len(x), len(start)), np.nan, np.float32))
    cells = packed.cells(native.guarded(x), x.shape[1], len(x), block, y, arrays)
    native.run(packed.spec(x.dtype.name), *cells, items=-(-len(x) // block), scratch=packed.scratch(block),
               machine=machine, splits=splits)
    return y


@st.composite
def forests(draw: st.DrawFn) -> tuple:
    return (draw(st.integers(1, 40)), draw(st.sampled_from((1, 3, 8))), draw(st.sampled_from((0, .1, .4))),
            draw(st.sampled_from((1, 5, 16, 30, 60, 90))), draw(st.sampled_from((1, 1, 2, 5))),
            draw(st.booleans()),
            draw(st.sampled_from((("BRANCH_LEQ",), ("BRANCH_LT", "BRANCH_GTE"), MODES))), draw(st.booleans()),
            draw(st.booleans()), draw(st.integers(0, 1 << 30)))


@draws(60)
@given(forests(), st.sampled_from(("SUM", "AVERAGE", "MIN", "MAX")), st.sampled_from((host(), AVX2, SSE2)),
       st.integers(1, 40), st.sampled_from(("float32", "int32", "int64")),
       st.sampled_from((None, True, False)))
def test_forests(case: tuple, aggregate: str, machine: Machine, rows: int, dtype: str, few: bool | None
                 ) -> None:
    count, depth, ragged, features, targets, alone, modes, missing, coarse, seed = case
    rng = np.random.default_rng(seed)
    made = Growing(rng, features, modes, missing)
    for i in range(count):
        made.tree(depth, ragged, (i % targets,) if alone else tuple(range(targets)), coarse)
    forest = trees.TreeEnsembleRegressor.prepare(made.attributes("target") | {"n_targets": targets})["forest"]
    with pytest.MonkeyPatch.context() as patched:
        if few is not None:
            patched.setattr(packing, "are_few", lambda *_: few)
        packed = packing.plan(machine, forest, aggregate)
    if isinstance(packed, str):
        return
    assert few is None or isinstance(packed, packing.PackedForest) or few
    x = table(rng, rows, features)
    if dtype != "float32":
        x = np.nan_to_num(x, posinf=9, neginf=-9).round().astype(dtype)
    start = rng.normal(size=targets)
    y = run(packed, x, start, machine, 16, (1, 2) if rows > 32 else ())
    expected, spoken = forest.scores(x.astype(np.float32), aggregate)
    assert (packed.mentioned >= packed.spoken).all() and (spoken.all(0) >= packed.spoken).all()
    keep = packed.spoken
    np.testing.assert_allclose(y[:, keep], (expected + start)[:, keep], rtol=2e-6, atol=1e-5)


@pytest.mark.slow
def test_deep_trees_continue_in_links() -> None:
    rng = np.random.default_rng(3)
    made = Growing(rng, 40, ("BRANCH_LEQ",), True)
    for i in range(20):
        made.tree(8 if i % 3 else 24, .02 if i % 3 else .3, (i % 2,), False)
    forest = trees.TreeEnsembleRegressor.prepare(made.attributes("target") | {"n_targets": 2})["forest"]
    x = table(rng, 37, 40)
    for machine in (host(), AVX2):
        packed = packing.plan(machine, forest, "SUM")
        assert isinstance(packed, packing.PackedForest) and dict(packed.params)["chained"]
        y = run(packed, x, np.zeros(2), machine, 24)
        np.testing.assert_allclose(y, forest.scores(x, "SUM")[0], rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("count, kind", [(100, packing.PackedForest), (1, packing.FewTrees)])
def test_division_into_blocks_changes_no_bit(count: int, kind: type) -> None:
    rng = np.random.default_rng(5)
    made = Growing(rng, 20, ("BRANCH_LEQ",), False)
    for _ in range(count):
        made.tree(6, .1, (0,), False)
    forest = trees.TreeEnsembleRegressor.prepare(made.attributes("target"))["forest"]
    packed = packing.plan(host(), forest, "SUM")
    assert isinstance(packed, kind)
    x = table(rng, 53, 20)
    once = run(packed, x, np.zeros(1), None, 56)
    for block, splits in ((1, (7, 30)), (8, (3,)), (24, (1, 2))):
        assert (run(packed, x, np.zeros(1), None, block, splits) == once).all()


@pytest.mark.parametrize("few", [True, False])
def test_shared_branches(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "are_few", lambda *_: few)
    forest = trees.TreeEnsemble.prepare({
        "tree_roots": [0, 1], "nodes_featureids": [0, 1, 2],
        "nodes_splits": np.array([0, .5, -.5], np.float32), "nodes_modes": np.array([0, 1, 5], np.uint8),
        "nodes_truenodeids": [2, 2, 0], "nodes_falsenodeids": [2, 1, 2], "nodes_trueleafs": [0, 0, 1],
        "nodes_falseleafs": [0, 1, 1], "leaf_targetids": [0, 0, 0],
        "leaf_weights": np.array([1, 10, 100], np.float32)})["forest"]
    packed = packing.plan(host(), forest, "SUM")
    assert isinstance(packed, packing.PackedForest | packing.FewTrees)
    x = table(np.random.default_rng(0), 64, 3)
    assert (run(packed, x, np.zeros(1), None, 8) == forest.scores(x, "SUM")[0]).all()


def test_what_is_left_to_numpy() -> None:
    rng = np.random.default_rng(0)
    made = Growing(rng, 3, ("BRANCH_LEQ",), False)
    made.tree(2, 0, (0,), False)
    attributes = made.attributes("target")
    attributes["target_weights"][0] = float("nan")
    for forest in (trees.TreeEnsembleRegressor.prepare(attributes)["forest"],
                   trees.TreeEnsembleRegressor.prepare(made.attributes("target") | {
                       "nodes_values": None, "target_weights": [1.0] * 4,
                       "nodes_values_as_tensor": np.full(7, 1 / 3)})["forest"]):
        assert isinstance(packing.plan(AVX2, forest, "SUM"), str)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("machine", [NEON, RVV256], ids=lambda m: m.arch)
def test_assembles_elsewhere(machine: Machine, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "are_few", lambda *_: few)
    rng = np.random.default_rng(0)
    made = Growing(rng, 30, ("BRANCH_LEQ",), False)
    made.tree(20, .3, (0, 1), False)
    made.tree(13, .0, (0, 1), False)
    forest = trees.TreeEnsembleRegressor.prepare(made.attributes("target") | {"n_targets": 2})["forest"]
    packed = packing.plan(machine, forest, "SUM")
    assert isinstance(packed, packing.FewTrees if few else packing.PackedForest)
    closing = scores.tree_scores(transform="SOFTMAX", choice="most", pair=None)
    for spec in (packed.spec("float32"), closing):
        assert build.assemble(spec.text(machine), machine)


def model(kind: str, attrs: dict[str, Any], features: int) -> bytes:
    """An ensemble as a model."""
    outputs = ["label", "scores"] if kind == "TreeEnsembleClassifier" else ["y"]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x"], outputs, domain="ai.onnx.ml", **attrs)], "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", features])],
        [helper.make_tensor_value_info(o, TensorProto.INT64 if o == "label" else TensorProto.FLOAT, None)
         for o in outputs])
    made = helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)])
    return bytes(made.SerializeToString())


@draws(30)
@given(st.integers(1, 12), st.sampled_from((1, 2, 3)), st.sampled_from(("all", "each", "one")), st.booleans(),
       st.integers(0, 3), st.sampled_from(("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")), st.booleans(),
       st.integers(0, 1 << 30))
def test_sessions(count: int, targets: int, shape: str, positive: bool, base: int, transform: str,
                  classify: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = Growing(rng, 4, ("BRANCH_LEQ", "BRANCH_GT"), True)
    for i in range(count):
        made.tree(3, .2, {"all": tuple(range(targets)), "each": (i % targets,), "one": (targets - 1,)}[shape],
                  False)
    if positive:
        made.leaves["weights"] = [abs(w) for w in made.leaves["weights"]]
    attrs = made.attributes("class" if classify else "target") | {"post_transform": transform}
    if base:
        drawn = rng.normal(size=targets if base == 1 else 1).astype(np.float32)
        attrs["base_values"] = [float(v) for v in drawn]
    attrs |= {"classlabels_int64s": [7, -3, 5][:targets]} if classify else {"n_targets": targets}
    kind = "TreeEnsembleClassifier" if classify else "TreeEnsembleRegressor"
    x = table(rng, 37, 4)
    body = define.find("ai.onnx.ml", kind, 3).bind(attrs, 1 + classify)
    expected = body(x)
    got = orthrus.InferenceSession(model(kind, attrs, 4)).run(None, {"x": x})
    if classify:
        assert (got[0] == expected[0]).mean() > .9
    np.testing.assert_allclose(got[-1], expected[-1] if classify else expected, rtol=1e-5, atol=2e-6)
