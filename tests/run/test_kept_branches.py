"""Models that branch, at random: a session that was kept gives what the first one did, whichever way it is
run."""

from __future__ import annotations

import itertools
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from control_models import drawn
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.run.kept import Kept

pytestmark = needs("generated code")

CONDITIONS = 3
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


def branching(seed: int) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """Ifs one after another and in each other, whose conditions are fed; feeds of all of them."""
    draw, names = random.Random(seed), itertools.count()

    def chain(nodes: list[onnx.NodeProto], value: str, deep: int) -> str:
        """A value that the nodes to which some are added make of `value`."""
        for _ in range(draw.randint(1, 3)):
            made = f"v{next(names)}"
            if deep and draw.random() < 0.6:
                bodies = dict[str, onnx.GraphProto]()
                for which in ("then_branch", "else_branch"):
                    inner = list[onnx.NodeProto]()
                    end = chain(inner, draw.choice([value, "x"]), deep - 1)
                    bodies[which] = helper.make_graph(inner, which, [], [info(end, shape=None)])
                nodes.append(helper.make_node("If", [f"c{draw.randrange(CONDITIONS)}"], [made], **bodies))
            else:
                op = draw.choice(["Neg", "Abs", "Add", "Softmax", "Relu"])
                nodes.append(helper.make_node(op, [value, "x"] if op == "Add" else [value], [made]))
            value = made
        return value
    nodes = list[onnx.NodeProto]()
    end = chain(nodes, "x", 2)
    if {node.op_type for node in nodes}.isdisjoint({"If"}):
        return branching(seed + 1000)
    conditions = [info(f"c{i}", TensorProto.BOOL, ()) for i in range(CONDITIONS)]
    made = model(nodes, [info("x", shape=(3, 5)), *conditions], [end])
    x = np.random.default_rng(seed).standard_normal((3, 5)).astype(np.float32)
    return made, [{"x": x, **{f"c{i}": np.array(c) for i, c in enumerate(fed)}}
                  for fed in itertools.product((True, False), repeat=CONDITIONS)]


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
    turn = helper.make_graph(
        [helper.make_node("Less", ["v", "most"], ["c2"]), helper.make_node("Add", ["v", "v"], ["w"])], "turn",
        [info("n", TensorProto.INT64, ()), info("c", TensorProto.BOOL, ()), info("v", shape=None)],
        [info("c2", TensorProto.BOOL, ()), info("w", shape=None)])
    made = model([helper.make_node("Loop", ["m", "c", "x"], ["y"], body=turn)],
                 [info("m", TensorProto.INT64, ()), info("c", TensorProto.BOOL, ()), info("x", shape=(1,)),
                  info("most", shape=(1,))], ["y"])
    fed = [{"m": np.array(m), "c": np.array(c), "x": np.ones(1, "f"), "most": np.array([f], "f")}
           for m in (10, 0, 1, -1, np.iinfo(np.int64).max) for c in (True, False) for f in (0, 1, 100, 1e30)]
    assert check(made, fed, tmp_path)


def test_some_control_flow(tmp_path: Path) -> None:
    assert sum([check(*drawn(seed), tmp_path) for seed in range(12)]) >= 3


@pytest.mark.parametrize("seeds", [pytest.param(range(60, 160), marks=pytest.mark.slow),
                                   pytest.param(range(160, 1000), marks=pytest.mark.thorough)])
def test_any_control_flow(tmp_path: Path, seeds: range) -> None:
    assert sum([check(*drawn(seed), tmp_path) for seed in seeds]) >= 0.15 * len(seeds)
