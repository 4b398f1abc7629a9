"""Whole parts on emulated GPUs, against the CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_gpu import compare, driver, on_gpu
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.needs("AMD tables", "Triton")


def model(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], **constants: np.ndarray) -> Any:
    """`inputs`: shapes, of float32; the outputs' types are inferred."""
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    given = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return helper.make_model(helper.make_graph(nodes, "g", kinds, made, given),
                             opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


CHAIN = model([node("Add", "x b", "a"), node("Relu", "a", "r"), node("Transpose", "r", "t", perm=[1, 0, 2]),
               node("Sigmoid", "t", "s"), node("Concat", "s s", "y", axis=1)], {"x": ["n", 7, 33]}, ["y"],
              b=np.linspace(-1, 1, 33, dtype=np.float32))


@pytest.mark.slow
def test_a_part_for_several_shapes() -> None:
    for n in (5, 64, 1):
        compare(CHAIN, {"x": np.random.default_rng(n).standard_normal((n, 7, 33), np.float32)})


def test_a_part_is_one() -> None:
    session = on_gpu(CHAIN, alone=True)
    x = np.ones((2, 7, 33), np.float32)
    session.run(None, {"x": x})
    counts = driver(session).counts["launch"]
    session.run(None, {"x": x})
    assert driver(session).counts["launch"] - counts == 3
