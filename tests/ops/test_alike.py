"""Elementwise operators whose inputs have one shape: nothing is broadcast, in generated code neither."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import model
from onnx import helper

import orthrus as ort
from orthrus.ir import ElementType, TensorType, Type, Value
from orthrus.ops.define import Op, defined

OPERATORS = [op for op in defined() if op.alike]
SHAPES = [((2, 3), (2, 1)), ((2, 1), (2, 3)), ((1, 3), (2, 3)), ((1, 1), (1, 2)), ((2, 3), (3, 2))]


def test_who_they_are() -> None:
    assert {op.name for op in OPERATORS} >= {"SwiGLU"} and all(op.broadcasts for op in OPERATORS)


@pytest.mark.parametrize("declared", [None, ["N", "M"]], ids=["nothing known", "names"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a part"])
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_what_would_broadcast_is_refused(op: Op, alone: bool, declared: list[str] | None) -> None:
    nodes = [helper.make_node(op.name, ["a", "b"], ["y" if alone else "t"], domain=op.domain)]
    nodes += [] if alone else [helper.make_node("Relu", ["t"], ["y"])]
    a, b, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, declared if name != "y" else None)
               for name in "aby")
    made = model(nodes, [a, b], [y], opset=onnx.defs.onnx_opset_version(), ir_version=13)
    session = ort.InferenceSession(made.SerializeToString())
    for first, second in SHAPES * 2:
        one, two = (np.ones(shape, np.float32) for shape in (first, second))
        assert session.run(None, {"a": one, "b": one})[0].shape == first
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="of one shape") as raised:
            session.run(None, {"a": one, "b": two})
        assert str(first) in str(raised.value) and str(second) in str(raised.value)


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize(("first", "second"), [((2, 3), (2, 1)), ((2, None), (3, None)), ((2,), (1, 2))])
def test_types_say_so_as_far_as_they_are_known(op: Op, first: tuple[int | None, ...],
                                               second: tuple[int | None, ...]) -> None:
    def value(name: str, shape: tuple[int | None, ...] | None) -> Value:
        kind: Type = TensorType(ElementType.FLOAT, shape)
        return Value(name, kind)

    with pytest.raises(ValueError, match="of one shape"):
        op.infer([value("a", first), value("b", second)], {})
    assert op.infer([value("a", None), value("b", second)], {}) == [TensorType(ElementType.FLOAT, second)]
