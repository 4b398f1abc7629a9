"""Operators whose attributes or constants contradict their definitions end in a result or a typed error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from skips import lacking

import orthrus as ort
from orthrus.errors import ALL, Fail

if why := lacking("Linux"):
    pytest.skip(why, allow_module_level=True)

HERE = Path(__file__).parents[1] / "support"


def bad(count: int, seed: int, *patterns: str, **env: str) -> list[tuple[str, str]]:
    """The operators, of all or of these names, of which one of `count` mutations ended badly, with how."""
    paths = [str(HERE), *(p for p in sys.path if p)]
    done = subprocess.run([sys.executable, str(HERE / "mutated_operators.py"), str(count), str(seed),
                           *patterns],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **env})
    assert done.returncode == 0, done.stderr
    *found, (_, models) = map(json.loads, done.stdout.splitlines())
    assert models > (len(patterns) or 200) * count
    return found


@pytest.mark.slow
def test_attributes_and_constants_that_are_wrong() -> None:
    """Those that were once found wrong, and their like."""
    assert not bad(4, 0, "Slice", "TfIdfVectorizer", "Pad", "Resize*", "StringNormalizer", "Conv*", "Split*",
                   ORTHRUS_CODEGEN="0")


@pytest.mark.parametrize("codegen, count", [
    pytest.param("0", 6, marks=pytest.mark.slow), pytest.param("1", 2, marks=pytest.mark.slow),
    pytest.param("0", 20, marks=pytest.mark.thorough), pytest.param("1", 20, marks=pytest.mark.thorough)])
def test_every_operator(codegen: str, count: int) -> None:
    assert not bad(count, 1, ORTHRUS_CODEGEN=codegen)


def test_contradictory_grams_name_their_node() -> None:
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], "grams", mode="TF", min_gram_length=1,
                            max_gram_length=2, max_skip_count=0, ngram_counts=[0, 1], ngram_indexes=[0, 1],
                            pool_int64s=[1, 2, 3, 4])
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 7, [4])],
                              [helper.make_tensor_value_info("y", 1, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(Fail, match="no multiple of 2") as told:
        ort.InferenceSession(made.SerializeToString())
    assert "grams" in str(told.value) and isinstance(told.value.__cause__, ValueError)


@pytest.mark.parametrize("which", ["starts", "ends", "axes", "steps"])
def test_constants_of_slice_that_are_no_vectors(which: str) -> None:
    values = {"starts": [0], "ends": [9], "axes": [0], "steps": [1]}
    weights = [numpy_helper.from_array(np.array(v[0] if name == which else v), name)
               for name, v in values.items()]
    graph = helper.make_graph([helper.make_node("Slice", ["x", *values], ["y"])], "g",
                              [helper.make_tensor_value_info("x", 1, [4])],
                              [helper.make_tensor_value_info("y", 1, None)], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ALL):
        ort.InferenceSession(made.SerializeToString()).run(None, {"x": np.ones(4, np.float32)})


def test_a_mistake_of_a_pass_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.optimize import cleanup

    def mistaken(node: object) -> None:
        raise IndexError("tuple index out of range")
    monkeypatch.setitem(cleanup._SAME, "Relu", mistaken)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "rectifier")], "g",
                              [helper.make_tensor_value_info("x", 1, [4])],
                              [helper.make_tensor_value_info("y", 1, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(Fail, match="tuple index out of range") as told:
        ort.InferenceSession(made.SerializeToString())
    assert "rectifier" in str(told.value.node) and "IndexError" in str(told.value.found)
    assert isinstance(told.value.__cause__, IndexError)
