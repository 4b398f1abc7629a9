"""Trees over float64: each test says of a number what its definition says, next to the threshold too."""

from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import TensorProto, helper

from orthrus.run.config import Config
from orthrus.run.engine import Engine

THRESHOLDS = np.array([0, -0.0, 0.1, -0.1, 1.5, 1e-45, -1e-45, 3e38, -3e38, 0.3], np.float32)


def forest(rng: np.random.Generator, modes: list[str], trees: int, depth: int) -> dict[str, Any]:
    inner, made = 2**depth - 1, dict[str, list[Any]]()
    nodes = np.arange(2 * inner + 1)
    leaf = nodes >= inner
    for tree in range(trees):
        for name, values in (("nodes_treeids", [tree] * len(nodes)), ("nodes_nodeids", nodes.tolist()),
                             ("nodes_featureids", rng.integers(0, 4, len(nodes)).tolist()),
                             ("nodes_values", rng.choice(THRESHOLDS, len(nodes)).tolist()),
                             ("nodes_modes", np.where(leaf, "LEAF", rng.choice(modes, len(nodes))).tolist()),
                             ("nodes_truenodeids", np.where(leaf, 0, 2 * nodes + 1).tolist()),
                             ("nodes_falsenodeids", np.where(leaf, 0, 2 * nodes + 2).tolist()),
                             ("target_treeids", [tree] * leaf.sum()),
                             ("target_nodeids", nodes[leaf].tolist()),
                             ("target_ids", [0] * leaf.sum()),
                             ("target_weights", rng.standard_normal(leaf.sum()).tolist())):
            made.setdefault(name, []).extend(values)
    return made | {"n_targets": 1}


def features(rng: np.random.Generator, rows: int) -> np.ndarray:
    x = rng.choice(THRESHOLDS, (rows, 4)).astype(np.float64)
    how = rng.integers(0, 5, x.shape)
    x = np.where(how == 0, np.nextafter(x, np.inf), np.where(how == 1, np.nextafter(x, -np.inf), x))
    x = np.where(how == 2, x * (1 + 1e-9), x)
    for special in (np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-300, -1e-300):
        x[rng.random(x.shape) < 0.02] = special
    return x


@pytest.mark.parametrize("modes", [["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_GT", "BRANCH_LEQ"], ["BRANCH_GTE"],
                                   ["BRANCH_EQ"], ["BRANCH_LEQ", "BRANCH_LT"]], ids="+".join)
def test_next_to_thresholds(modes: list[str]) -> None:
    rng = np.random.default_rng(len(modes[0]))
    for trees, depth in ((1, 1), (5, 3), (20, 4)):
        node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml",
                                **forest(rng, modes, trees, depth))
        written = model([node], [info("x", TensorProto.DOUBLE, ["N", 4])], [info("y", 1, None)],
                        domains={"ai.onnx.ml": 3})
        engine = Engine(written.SerializeToString(), Config())
        for rows in (1, 2, 700):
            x = features(rng, rows)
            wanted = node_definition(node)(x)
            np.testing.assert_allclose(engine.run(None, {"x": x})[0], wanted, rtol=1e-5, atol=1e-5)


def node_definition(node: Any) -> Any:
    from orthrus.ops.define import find

    op = find("ai.onnx.ml", node.op_type, 3)
    assert op is not None
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attrs["nodes_modes"] = [m.decode() for m in attrs["nodes_modes"]]
    return op.bind(attrs)
