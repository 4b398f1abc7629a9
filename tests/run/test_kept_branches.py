"""Models that branch, at random: a session that was kept gives what the first one did, whichever way it is
run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from control_models import branching, counting, drawn
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.run.kept import Kept

pytestmark = needs("generated code")

TOLERANCE = 1e-6
"""Of floats: a session folds constants by numpy, a package by its kernels."""


def bodies(graph: onnx.GraphProto) -> set[str]:
    """The operators that have any."""
    found = set[str]()
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= {node.op_type, *bodies(attribute.g)}
    return found


def kept(source: bytes, feeds: dict[str, Any]) -> ort.InferenceSession:
    """The third session of a model that was run with `feeds`."""
    for _ in range(2):
        ort.InferenceSession(source).run(None, feeds)
        for thread in threading.enumerate():
            if thread.name == "orthrus-keep":
                thread.join()
    return ort.InferenceSession(source)


def check(made: onnx.ModelProto, feeds: list[dict[str, Any]], folder: Path) -> bool:
    """Compare; whether it was kept."""
    source = made.SerializeToString()
    with knobs.setting(CACHE=1, CACHE_DIR=str(folder), CACHE_SESSIONS=64):
        with knobs.setting(CACHE_SESSIONS=0):
            plain = ort.InferenceSession(source)
        session = kept(source, feeds[0])
        was = isinstance(session._sess._engine, Kept)
        names = [v.name for v in session.get_outputs()]
        for fed in feeds:
            want = plain.run(None, fed)
            for got in (session.run(None, fed), session.run(None, fed, ort.RunOptions()),
                        session.run(names[::-1], fed)[::-1]):
                for a, b in zip(got, want, strict=True):
                    np.testing.assert_allclose(a, b, TOLERANCE, TOLERANCE)
    return was


@pytest.mark.parametrize("seed", range(12))
def test_conditions_that_are_fed(seed: int, tmp_path: Path) -> None:
    assert check(*branching(seed), tmp_path)


def test_turns_that_are_fed(tmp_path: Path) -> None:
    assert check(*counting(), tmp_path)


def test_some_control_flow(tmp_path: Path) -> None:
    assert sum([check(*drawn(seed), tmp_path) for seed in range(12)]) >= 3


def test_an_operator_of_a_type_that_no_kernel_is_for(tmp_path: Path) -> None:
    """Pools float64 as ever, where all else of the model is kept."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 2, 6, 6]) for name in "xy")
    pooled, negated = (helper.make_graph([helper.make_node(op, ["x"], ["y"], **more)], op, [], [y])
                       for op, more in (("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
                                        ("Neg", {})))
    truth = helper.make_tensor_value_info("truth", TensorProto.BOOL, [])
    node = helper.make_node("If", ["truth"], ["y"], then_branch=pooled, else_branch=negated)
    made = helper.make_model(helper.make_graph([node], "g", [truth, x], [y]),
                             opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"truth": np.array(True), "x": np.random.default_rng(0).standard_normal((1, 2, 6, 6))}
    with knobs.setting(CACHE=1, CACHE_DIR=str(tmp_path), CACHE_SESSIONS=64):
        first = ort.InferenceSession(made.SerializeToString()).run(None, feeds)[0]
        again = kept(made.SerializeToString(), feeds).run(None, feeds)[0]
    np.testing.assert_allclose(again, first, rtol=1e-13)


@pytest.mark.parametrize("seeds", [pytest.param(range(60, 160), marks=pytest.mark.slow),
                                   pytest.param(range(160, 1000), marks=pytest.mark.thorough)])
def test_any_control_flow(tmp_path: Path, seeds: range) -> None:
    assert sum([check(*drawn(seed), tmp_path) for seed in seeds]) >= 0.15 * len(seeds)
