"""Operators between DequantizeLinear and QuantizeLinear, done on bytes: by tables, by moving them, by integer
products; against the definitions, which go by way of floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from test_int8_models import MACHINES, codes, definition, model, on, parts_of, run

import orthrus

Step = tuple[str, tuple[str, ...], str, dict[str, Any]]
X = {"xs": np.float32(0.05), "xz": 117, "ys": np.float32(0.02), "yz": 9}

CHAINS: dict[str, list[Step]] = {
    "sigmoid": [("Sigmoid", ("d",), "f", {})],
    "swish": [("Sigmoid", ("d",), "s", {}), ("Mul", ("d", "s"), "f", {})],
    "tanh of a scaled one": [("Mul", ("d", "half"), "s", {}), ("Tanh", ("s",), "f", {})],
    "gelu": [("Gelu", ("d",), "f", {"approximate": "tanh"})],
    "clip": [("Clip", ("d", "low", "half"), "f", {})],
}
MOVES: dict[str, tuple[list[Step], str]] = {
    "gather": ([("Gather", ("d", "rows"), "f", {"axis": 1})], "gather"),
    "gather elements": ([("GatherElements", ("d", "places"), "f", {"axis": 0})], ""),
    "transpose": ([("Transpose", ("d",), "f", {"perm": [2, 0, 1]})], "turned"),
    "split": ([("Split", ("d",), "f g", {"axis": 2, "num_outputs": 2})], "loop"),
    "resize": ([("Resize", ("d", "", "factors"), "f", {"mode": "nearest"})], "resize_nearest"),
}
HELD = {"half": np.float32(0.5), "low": np.float32(-1), "rows": np.array([2, 0, -1]),
        "factors": np.array([1, 2, 1.5], np.float32),
        "places": np.array([[[1] * 8] * 3, [[0] * 8] * 3])}


def machines() -> Any:
    return pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")


def unit(steps: list[Step], x: np.ndarray, alike: bool
         ) -> tuple[Any, dict[str, np.ndarray], list[np.ndarray]]:
    """The model, what it is fed and what it should give; `alike`: quantized as x is."""
    dtype = x.dtype.type
    first = np.asarray(X["xs"]), np.asarray(X["xz"] % 128, dtype)
    last = first if alike else (np.asarray(X["ys"]), np.asarray(X["yz"], dtype))
    used = {n for _, inputs, *_ in steps for n in inputs}
    held = dict(zip(("xs", "xz", "ys", "yz"), (*first, *last), strict=True)) | {
        k: np.asarray(v) for k, v in HELD.items() if k in used}
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["d"])]
    made: dict[str, Any] = {**held, "": None, "d": definition("DequantizeLinear", x, *first)}
    for kind, inputs, outputs, attrs in steps:
        nodes.append(helper.make_node(kind, list(inputs), outputs.split(), **attrs))
        given = {} if kind == "Split" else attrs
        results = np.array_split(made["d"], 2, 2) if kind == "Split" else [
            definition(kind, *(made[n] for n in inputs), **given)]
        made |= dict(zip(outputs.split(), results, strict=True))
    ends = steps[-1][2].split()
    nodes += [helper.make_node("QuantizeLinear", [n, "ys", "yz"], [n + "q"]) for n in ends]
    wanted = [definition("QuantizeLinear", made[n], *last) for n in ends]
    return model(nodes, {"x": x}, held, {n + "q": dtype for n in ends}), {"x": x}, wanted


@machines()
@pytest.mark.parametrize("name", CHAINS)
def test_chains(target: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    for dtype, shape in ((np.uint8, (3, 5, 67)), (np.int8, (300,))):
        made, feeds, wanted = unit(CHAINS[name], codes(rng, dtype, *shape), False)
        with on(target):
            got = run(made, feeds, None)
        apart = np.abs(got[0].astype(int) - wanted[0].astype(int))
        assert apart.max() <= (name == "clip") and apart.mean() < 0.2


def test_chains_are_looked_up() -> None:
    x = codes(np.random.default_rng(1), np.uint8, 4, 70)
    for name in ("sigmoid", "swish", "gelu"):
        made, feeds, wanted = unit(CHAINS[name], x, False)
        np.testing.assert_array_equal(run(made, feeds, "bytes_by_table")[0], wanted[0])


@pytest.mark.parametrize("name", ("resize", "concat"))
def test_what_is_moved_is_written_once(name: str) -> None:
    """Straight into the output, quantized as it is."""
    steps: list[Step] = {**MOVES, "concat": ([("Concat", ("d", "d"), "f", {"axis": 1})], "")}[name][0]
    made, feeds, wanted = unit(steps, codes(np.random.default_rng(3), np.uint8, 2, 3, 8), True)
    s = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(s.run(None, feeds)[0], wanted[0])
    (part,) = parts_of(s)
    (plan,) = part.plans.values()
    assert [step.node.op_type for step in plan.steps] == [steps[0][0]] * (2 if name == "concat" else 1)


@machines()
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", MOVES)
def test_moves(target: Any, name: str, alike: bool) -> None:
    steps, kernel = MOVES[name]
    made, feeds, wanted = unit(steps, codes(np.random.default_rng(2), np.uint8, 2, 3, 8), alike)
    with on(target):
        got = run(made, feeds, kernel if alike else None)
    for a, b in zip(got, wanted, strict=True):
        assert np.abs(a.astype(int) - b.astype(int)).max() <= (not alike)


@machines()
@pytest.mark.parametrize("signs", [(np.uint8, np.uint8), (np.int8, np.uint8), (np.uint8, np.int8)])
def test_products_of_two(target: Any, signs: Any) -> None:
    rng = np.random.default_rng(3)
    feeds = {"a": codes(rng, signs[0], 3, 9, 33), "b": codes(rng, signs[1], 3, 33, 20)}
    held = {"as": np.float32(0.02), "az": signs[0](5), "bs": np.float32(0.01), "bz": signs[1](100),
            "ys": np.float32(1), "yz": np.uint8(128)}
    held = {k: np.asarray(v) for k, v in held.items()}
    nodes = [*(helper.make_node("DequantizeLinear", [n, n + "s", n + "z"], [n + "d"]) for n in "ab"),
             helper.make_node("MatMul", ["ad", "bd"], ["f"]),
             helper.make_node("QuantizeLinear", ["f", "ys", "yz"], ["y"])]
    with on(target):
        got = run(model(nodes, feeds, held, {"y": np.uint8}), feeds, "int8_pack")[0]
    real = [(feeds[n].astype(float) - int(held[n + "z"])) * float(held[n + "s"]) for n in "ab"]
    wanted = np.clip(np.rint(real[0] @ real[1]) + 128, 0, 255)
    assert np.abs(got - wanted).max() <= 1 and (got != wanted).mean() < 0.01
