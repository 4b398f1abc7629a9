"""What is read of a definition: its parameters, and types that classifiers tell before they run."""

from __future__ import annotations

import functools
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

from orthrus.ir import ElementType, TensorType, Value
from orthrus.ops import defined, find
from orthrus.ops.define import Op, _parameters, define, forget, versions

ML = "ai.onnx.ml"


def told(function: Any) -> list[tuple[Any, ...]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default, p.annotation) for p in found]


def same(function: Any) -> bool:
    found, wanted = _parameters(function), told(function)
    return len(found) == len(wanted) and all(
        a[:2] == b[:2] and (a[2] is b[2] or a[2] == b[2]) and a[3] == b[3]
        for a, b in zip(found, wanted, strict=True))


def test_parameters_are_those_of_every_definition() -> None:
    checked = [f for op in defined() for f in (op.body, op._prepare) if f is not None]
    assert len(checked) > 300 and all(map(same, checked))


def test_parameters_of_functions_of_any_form() -> None:
    def wrapped(x, *, a: int = 1): ...

    @functools.wraps(wrapped)
    def outer(*args, **named): ...

    def both(x, y=None, *more, a, b: float = 0.5, **rest): ...

    def before(x, /, y, *, a=2): ...

    def several(*xs, a=(), b): ...

    for function in (wrapped, outer, both, before, several, lambda: 0, lambda x, y=1: x,
                     functools.partial(both, 3), functools.partial(wrapped, a=2)):
        assert same(function), function


def test_docs_are_read_when_asked_for() -> None:
    def Body(x, *, alpha: float = 0.1):
        """What it is

        and more."""
    op = Op(Body)
    assert op.doc == "What it is\n\nand more." and op.defaults == {"alpha": float(np.float32(0.1))}


@pytest.mark.parametrize("strings", (False, True))
@pytest.mark.parametrize("count,shifts", [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 3)])
def test_linear_classifiers_tell_their_types(count: int, shifts: int, strings: bool) -> None:
    op = find(ML, "LinearClassifier", 1)
    assert op is not None
    attrs: dict[str, Any] = {"coefficients": [0.5] * (4 * max(count, shifts)), **(
        {"classlabels_strings": [*"abc"[:count]]} if strings else {"classlabels_ints": [7, 8, 9][:count]})}
    if shifts:
        attrs["intercepts"] = [0.25] * shifts
    for shape in ((5, 4), (4,)):
        x = np.linspace(-1, 1, 20, dtype=np.float32)[:np.prod(shape)].reshape(shape)
        made = op.bind(attrs)(x)
        found = op.infer([Value("x", TensorType(ElementType.FLOAT, shape))], attrs)
        for kind, array in zip(found, made, strict=True):
            assert isinstance(kind, TensorType) and kind.shape == array.shape
            assert kind.elem == (ElementType.FLOAT if array.dtype == np.float32
                                 else ElementType.STRING if strings else ElementType.INT64)


def test_forests_import_no_masked_arrays() -> None:
    program = """
import sys
import numpy as np
from orthrus.ops import find
op = find("ai.onnx.ml", "TreeEnsembleRegressor", 1)
forest = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3,
          "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0],
          "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
          "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [2.0, 3.0], "n_targets": 1}
y = op.bind(forest)(np.array([[0.0], [1.0]], np.float32))
print(y.reshape(-1).tolist(), "numpy.ma" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[2.0, 3.0] False"


IMPORTED = """
import importlib, pkgutil, sys
for name in ("codegen", "lowering", "ops", "optimize", "plan", "run"):
    package = importlib.import_module("orthrus." + name)
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
import orthrus as ort
ort.InferenceSession(bytes.fromhex(sys.argv[1]))
print([name for name in ("onnx", "ml_dtypes") if name in sys.modules])
"""


@pytest.mark.parametrize("kind", ["quantized", "recurrent"])
def test_first_sessions_import_no_package_that_takes_long(kind: str) -> None:
    """ml_dtypes 0.7 takes half a second, and onnx brings it in."""
    node = helper.make_node
    if kind == "quantized":
        nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                 node("DequantizeLinear", ["q", "s", "z"], ["d"]), node("MatMul", ["d", "w"], ["y"])]
        constants = {"s": np.float32(0.1), "z": np.uint8(7), "w": np.ones((4, 2), np.float32)}
    else:
        nodes = [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2)]
        constants = {"w": np.ones((1, 8, 4), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    x = info("x", shape=[None, 4] if kind == "quantized" else None)
    text = model(nodes, [x], [info("y", shape=None)], constants, 21).SerializeToString()
    done = subprocess.run([sys.executable, "-c", IMPORTED, text.hex()], capture_output=True, text=True,
                          check=True)
    assert done.stdout == "[]\n"


MODULE = """
from orthrus.ops.define import elementwise, op, reduction

@op(domain="interrupted")
def First(x):
    return x

@elementwise(domain="interrupted")
def Second(x):
    return x

@reduction(domain="interrupted")
def Third(x, axes, keepdims):
    return x.sum(axes, keepdims=keepdims)

import interrupting

@op(domain="interrupted")
def Fourth(x):
    return x
"""


def test_an_interrupted_import_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C while the first session of a process is made."""
    (tmp_path / "interrupted_operators.py").write_text(MODULE, "utf-8")
    (tmp_path / "interrupting.py").write_text("raise KeyboardInterrupt", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("First", "Second", "Third", "Fourth")
    try:
        with pytest.raises(KeyboardInterrupt):
            importlib.import_module("interrupted_operators")
        monkeypatch.setitem(sys.modules, "interrupting", sys)
        made = importlib.import_module("interrupted_operators")
        for name in names:
            found = versions("interrupted", name)
            assert found[-1] is getattr(made, name)
            assert len({op.since for op in found}) == len(found) == (2 if name == "Third" else 1)
        with pytest.raises(ValueError, match="defined twice"):
            define(made.First.body, domain="interrupted")
    finally:
        sys.modules.pop("interrupted_operators", None)
        for name in names:
            forget("interrupted", name)
