"""Operators that a user wrote in Triton's language, on emulated GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from emulated_gpu import compare, on_gpu
from onnx import helper

import orthrus as ort
from orthrus.errors import EPFail

tl: Any = None
"""The name of Triton's language, which functions are compiled with."""


def bend(x, y, slope):  # type: ignore[no-untyped-def]
    return tl.where(x > 0, x * y, x * slope)


def softmax(x, size):  # type: ignore[no-untyped-def]
    inside = tl.arange(0, x.shape[0]) < size
    e = tl.where(inside, tl.exp(x - tl.max(tl.where(inside, x, float("-inf")), 0)), 0.0)
    total = tl.sum(e, 0)
    return e / total, e


@pytest.fixture
def defined() -> Iterator[None]:
    @ort.op("mine::Bend", result="same", triton=bend)
    def Bend(x, y, *, slope: float = 0.5):  # type: ignore[no-untyped-def]
        return np.where(x > 0, x * y, x * slope).astype(x.dtype)

    @ort.op("mine::Soft", infer=lambda x: [x.type, x.type], outputs=2, triton=softmax, rows=True)
    def Soft(x):  # type: ignore[no-untyped-def]
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True), e
    yield
    for name in ("mine::Bend", "mine::Soft"):
        ort.unregister_op(name)


def _model(node: Any, shapes: dict[str, tuple[int, ...]], results: tuple[str, ...] = ("y",)) -> Any:
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, 1, None) for name in results])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("mine", 1)], ir_version=10)


@pytest.mark.needs("AMD tables", "Triton")
def test_elements(defined: None) -> None:
    random = np.random.default_rng(0)
    shapes = {"x": (3, 1, 37), "y": (5, 1)}
    made = _model(helper.make_node("Bend", ["x", "y"], ["y_"], domain="mine", slope=0.25), shapes, ("y_",))
    compare(made, {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()})


@pytest.mark.needs("AMD tables", "Triton")
@pytest.mark.slow
def test_rows(defined: None) -> None:
    x = np.random.default_rng(0).standard_normal((2, 7, 33)).astype(np.float32)
    compare(_model(helper.make_node("Soft", ["x"], ["y", "e"], domain="mine"), {"x": x.shape}, ("y", "e")),
            {"x": x})


@pytest.mark.needs("AMD tables", "Triton")
def test_what_triton_refuses_is_told() -> None:
    @ort.op("mine::Wrong", result="same", triton="def wrong(x):\n    return x + nobody_knows")
    def Wrong(x):  # type: ignore[no-untyped-def]
        return x + 1
    x = np.ones((2, 3), np.float32)
    made = _model(helper.make_node("Wrong", ["x"], ["y"], domain="mine"), {"x": x.shape})
    with pytest.raises(EPFail, match="nobody_knows"):
        on_gpu(made).run(None, {"x": x})
    ort.unregister_op("mine::Wrong")


@pytest.mark.parametrize("body, why", [
    (lambda z: z, "cannot be read|one function|parameters"), ("def f(x, other):\n    return x", "other"),
    ("x + 1", "one function"), ("def f(*x):\n    return x", "named parameters"), (len, "cannot be read")])
def test_a_function_that_does_not_fit_is_refused(body: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        @ort.op("mine::Odd", result="same", triton=body)
        def Odd(x):  # type: ignore[no-untyped-def]
            return x
    with pytest.raises(ValueError, match="not defined"):
        ort.unregister_op("mine::Odd")
