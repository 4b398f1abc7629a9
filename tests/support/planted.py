"""Faults put into Orthrus on purpose, and the model they are looked for in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from commands import invoking
from onnx import helper

import orthrus as ort
from orthrus.codegen.object import library
from orthrus.codegen.write.expr import Expr
from orthrus.codegen.write.spec import Spec
from orthrus.optimize import PASSES, Pass
from orthrus.optimize import pattern as patterns
from orthrus.tools.cli.main import app

FEEDS = {"x": np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)}


def network() -> onnx.ModelProto:
    """Three Gemms with a Relu, a sigmoid gate and a Softmax behind them: gemm1 relu1 gemm2 gate swish gemm3
    softmax."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": (rng.standard_normal(shape) * 0.3).astype(np.float32)
               for i, shape in enumerate([(16, 16), (16, 16), (16, 8)], 1)}
    nodes = [helper.make_node("Gemm", ["x", "w1"], ["g1"], name="gemm1"),
             helper.make_node("Relu", ["g1"], ["r1"], name="relu1"),
             helper.make_node("Gemm", ["r1", "w2"], ["g2"], name="gemm2"),
             helper.make_node("Sigmoid", ["g2"], ["s2"], name="gate"),
             helper.make_node("Mul", ["g2", "s2"], ["m2"], name="swish"),
             helper.make_node("Gemm", ["m2", "w3"], ["g3"], name="gemm3"),
             helper.make_node("Softmax", ["g3"], ["y"], name="softmax", axis=-1)]
    return graphs.model(nodes, [graphs.info("x", shape=["N", 16])], [graphs.info("y", shape=["N", 8])],
                        weights, opset=17, ir_version=8)


def other_code(monkeypatch: pytest.MonkeyPatch, template: str, change: Any) -> None:
    """Let the kernels of a template be those for parameters that `change` returns, None to leave them."""
    plain = library.kernels

    def kernels(specs: Any, machine: Any) -> list[int]:
        wrong = []
        for spec in specs:
            changed = change(dict(spec.params)) if spec.template == template else None
            wrong.append(spec if changed is None else Spec(template, tuple(sorted(changed.items()))))
        return plain(wrong, machine)
    monkeypatch.setattr(library, "kernels", kernels)


def wrong_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated Softmax gives its logarithm."""
    other_code(monkeypatch, "softmax_rows", lambda params: {**params, "log": True})


def wrong_when_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that a Relu was fused into gives a quarter too much; alone both are right."""
    def change(params: dict[str, Any]) -> dict[str, Any] | None:
        tree = params["tree"]
        if tree is None or tree.op != "maximum":
            return None
        return {**params, "tree": Expr("add", (tree, Expr.const(0.25, "float32")), "float32")}
    other_code(monkeypatch, "gemm", change)


def wrong_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that takes x * sigmoid(x) for a hard swish."""
    @patterns.rule(lambda op, x: op.Mul(x, op.Sigmoid(x)))
    def fuse_wrong_swish(op: Any, x: Any) -> Any:
        return op.HardSwish(x)
    monkeypatch.setattr("orthrus.optimize.PASSES", (Pass(1, fuse_wrong_swish, -1), *PASSES))


@contextmanager
def wrong_provider() -> Iterator[str]:
    """The name of a provider whose Sigmoid is a hundredth too large."""
    class Doubtful(ort.ExecutionProvider):
        name = "DoubtfulExecutionProvider"

    @Doubtful.kernel("Sigmoid")
    def sigmoid(info: Any) -> Any:
        return lambda x: (1 / (1 + np.exp(-x)) + 0.01).astype(x.dtype)
    ort.register_execution_provider(Doubtful)
    try:
        yield "doubtful"
    finally:
        ort.unregister_execution_provider(Doubtful.name)


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command of `orthrus` in `folder`, holds it to an exit code, and gives what it printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")

    invoke = invoking(app)
    return lambda *words, **code: invoke(*words, **code).output
