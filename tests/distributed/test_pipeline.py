"""Pipelines: what is cut where, and that stages together are the model."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from skips import needs

import orthrus as ort
from orthrus import errors
from orthrus.demo import MODEL, samples
from orthrus.distributed import Pipeline
from orthrus.distributed.stages import balanced, stages_of

pytestmark = needs("Linux")
IMAGES, _ = samples()
WANT = ort.InferenceSession(MODEL).run(None, {"image": IMAGES})


@pytest.fixture(scope="module")
def two() -> Iterator[Pipeline]:
    with Pipeline(MODEL, {"image": IMAGES[:16]}, 2, micro_batches=3, time_limit=60) as pipeline:
        yield pipeline


def right(got: list[Any], first: int, last: int) -> None:
    np.testing.assert_array_equal(got[0], WANT[0][first:last])
    np.testing.assert_allclose(got[1], WANT[1][first:last], rtol=1e-4, atol=1e-6)


def dearest(weights: list[float], cuts: tuple[int, ...]) -> float:
    ends = [0, *cuts, len(weights)]
    return max(sum(weights[a:b]) for a, b in zip(ends, ends[1:], strict=False))


def test_cuts_are_the_best_there_are() -> None:
    drawn = random.Random(3)
    for total in (1, 2, 5, 9):
        weights = [drawn.random() for _ in range(total)]
        for count in range(1, min(total, 4) + 1):
            found = tuple(balanced(weights, count))
            assert len(found) == count - 1 and list(found) == sorted(set(found))
            least = min(dearest(weights, cuts) for cuts in combinations(range(1, total), count - 1))
            assert dearest(weights, found) == pytest.approx(least)


def test_results_are_the_models(two: Pipeline) -> None:
    for count in (1, 2, 3, 7, 64, len(IMAGES)):
        right(two.run(None, {"image": IMAGES[:count]}), 0, count)
    [label] = two.run(["label"], {"image": IMAGES[4:9]})
    np.testing.assert_array_equal(label, WANT[0][4:9])
    for i, got in enumerate(two.map(None, ({"image": IMAGES[i:i + 2]} for i in range(20)))):
        right(got, i, i + 2)
    assert "% of the cost" in two.explain() and "reach it" in two.explain()


def test_errors_and_lost_processes(two: Pipeline) -> None:
    with pytest.raises(ValueError, match="did you mean image"):
        two.run(None, {"imagee": IMAGES})
    with pytest.raises(errors.InvalidArgument, match="invalid dimensions"):
        two.run(None, {"image": IMAGES[:, :, :3]})
    with pytest.raises(errors.InvalidArgument, match="Invalid output name"):
        two.run(["nothing"], {"image": IMAGES})
    for crew in two._crews:
        pid = crew.replicas[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        right(two.run(None, {"image": IMAGES[:30]}), 0, 30)
    with pytest.raises(errors.InvalidArgument, match="cannot be cut into 500 stages"):
        Pipeline(MODEL, {"image": IMAGES[:1]}, 500)


def branched(folder: Path) -> Path:
    """Values that skip stages, outputs of early stages, sizes that travel, weights beside the model, control
    flow that reads what is made outside."""
    drawn = np.random.default_rng(4)
    weights = {"w": drawn.standard_normal((6, 40)).astype(np.float32),
               "v": drawn.standard_normal((40, 6)).astype(np.float32), "minus": np.array([-1], np.int64)}
    info = helper.make_tensor_value_info
    branches = {f"{way}_branch": helper.make_graph([helper.make_node(op, ["r", "x"], [f"o{op}"])], way, [],
                                                   [info(f"o{op}", TensorProto.FLOAT, None)])
                for way, op in (("then", "Add"), ("else", "Sub"))}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["early"]),
             helper.make_node("Shape", ["x"], ["s"]), helper.make_node("MatMul", ["early", "v"], ["b"]),
             helper.make_node("Tanh", ["b"], ["t"]), helper.make_node("Reshape", ["t", "minus"], ["flat"]),
             helper.make_node("Reshape", ["flat", "s"], ["r"]),
             helper.make_node("If", ["c"], ["y"], **branches)]
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, ["N", 6]), info("c", TensorProto.BOOL, [])],
        [info("y", TensorProto.FLOAT, ["N", 6]), info("early", TensorProto.FLOAT, ["N", 40])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.bin", size_threshold=100)
    return path


def test_every_cut_of_a_branched_model(tmp_path: Path) -> None:
    path = branched(tmp_path)
    whole = ort.InferenceSession(path)
    example = {"x": np.ones((2, 6), np.float32), "c": np.array(True)}
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    for count in range(1, 9):
        stages = stages_of(str(path), example, count)
        assert sum(s.nodes for s in stages) == 8 and sum(s.share for s in stages) == pytest.approx(1)
        sessions = [ort.InferenceSession(s.model, options) for s in stages]
        for rows, way in ((2, True), (5, False), (1, True)):
            fed = {"x": np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32),
                   "c": np.array(way)}
            values: dict[str, Any] = dict(fed)
            for stage, session in zip(stages, sessions, strict=True):
                made = session.run(list(stage.makes), {n: values[n] for n in stage.reads})
                values.update(zip(stage.makes, made, strict=True))
            for name, want in zip(("y", "early"), whole.run(None, fed), strict=True):
                np.testing.assert_allclose(values[name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_branched_model_in_processes(tmp_path: Path) -> None:
    path = branched(tmp_path)
    whole = ort.InferenceSession(path)
    example = {"x": np.ones((2, 6), np.float32), "c": np.array(True)}
    with Pipeline(path, example, 3) as pipeline:
        for rows in (1, 4, 9):
            fed = {"x": np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32),
                   "c": np.array(False)}
            for got, want in zip(pipeline.run(None, fed), whole.run(None, fed), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
