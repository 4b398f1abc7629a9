"""Modules are imported for the operators that are asked for, and for all of those."""

from __future__ import annotations

import subprocess
import sys

import pytest


def done(program: str) -> str:
    """What a fresh process writes."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_the_tables_are_what_the_modules_register() -> None:
    assert done("""
from orthrus.tools.index import tables
print([path for path, text in tables().items() if path.read_text(encoding="utf-8") != text])
""") == "[]\n", "python -m orthrus.tools.index"


@pytest.mark.parametrize("asked", ["define.find(*key, 1 << 30)", "rule_sets.RULES.get(key)"])
def test_what_one_thread_finds_all_find(asked: str) -> None:
    """Threads that ask at once get what one that asks alone does, whole."""
    assert done(f"""
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from orthrus.lowering import rule_sets
from orthrus.ops import define
keys = sorted(define.INDEX.keys)
start = Barrier(8)
def found(turn):
    start.wait()
    return [({asked}) for key in keys[turn:] + keys[:turn]]
with ThreadPoolExecutor(8) as pool:
    rows = list(pool.map(found, range(0, 8 * 40, 40)))
alone = [({asked}) for key in keys]
print([row == alone[40 * i:] + alone[:40 * i] for i, row in enumerate(rows)].count(True))
""") == "8\n"


@pytest.mark.parametrize("name", ["Einsum", "GatherND", "SequenceMap"])
def test_rules_that_stand_apart_come_with_the_definition(name: str) -> None:
    """onnx's own shape inference of these does not survive hostile attributes."""
    assert done(f"from orthrus.ops import find; print(find('', {name!r}, 1 << 30).inferable)") == "True\n"


def test_a_session_imports_what_its_operators_need() -> None:
    """Neither definitions nor rules of other operators."""
    modules = done("""
import sys
import numpy as np
import orthrus as ort
from onnx import TensorProto, helper
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
node = helper.make_node("Softmax", ["x"], ["y"])
model = helper.make_model(helper.make_graph([node], "g", [x], [y]))
session = ort.InferenceSession(model.SerializeToString())
session.run(None, {"x": np.zeros((2, 3), np.float32)})
print(*sorted(each for each in sys.modules if each.startswith(("orthrus.ops.", "orthrus.lowering.rules."))))
""").split()
    assert "orthrus.ops.nn.activation" in modules
    assert not {"orthrus.ops.nn.conv", "orthrus.ops.ml.trees", "orthrus.ops.contrib.fused",
                "orthrus.lowering.rules.conv", "orthrus.lowering.rules.quantized.int8"} & set(modules)
