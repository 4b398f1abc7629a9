"""Whole parts on emulated GPUs, against the CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_gpu import compare, driver, fenced, on_gpu
from onnx import TensorProto, helper, numpy_helper

from orthrus.errors import DeviceReset
from orthrus.lowering.gpu.lower import GpuLowering

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


def typed(proto: Any, **kinds: int) -> Any:
    """The same with inputs of other types."""
    for each in proto.graph.input:
        if each.name in kinds:
            each.type.tensor_type.elem_type = kinds[each.name]
    return proto


def test_elements_that_decide_shapes_come_to_the_host() -> None:
    """Given ones, what follows from them, and what a part before computes."""
    nodes = [node("Reshape", "x s", "r"), node("Relu", "r", "y")]
    given = typed(model(nodes, {"x": [4, 6], "s": [2]}, ["y"]), s=TensorProto.INT64)
    x = np.arange(-12, 12, dtype=np.float32).reshape(4, 6)
    session = on_gpu(given, alone=True)
    for shape in ([3, 8], [-1, 2], [3, 8]):
        made, = session.run(None, {"x": x, "s": np.array(shape)})
        np.testing.assert_array_equal(made, np.maximum(x, 0).reshape(shape))
    nodes = [node("Add", "n one", "m"), node("Unsqueeze", "m zero", "u"),
             node("Concat", "u five", "s", axis=0), node("Expand", "x s", "e"), node("Neg", "e", "y")]
    follows = typed(model(nodes, {"x": [5], "n": []}, ["y"], one=np.array(1), zero=np.array([0]),
                          five=np.array([5])), n=TensorProto.INT64)
    row = np.arange(5, dtype=np.float32)
    session = on_gpu(follows, alone=True)
    for n in (2, 7):
        made, = session.run(None, {"x": row, "n": np.array(n)})
        np.testing.assert_array_equal(made, -np.tile(row, (n + 1, 1)))
    assert len(session.explain().parts) == 1
    late = model([node("Cast", "x", "i", to=TensorProto.INT64), node("Squeeze", "i one", "a"),
                  node("Abs", "a", "s"), node("Reshape", "w s", "r"), node("Relu", "r", "y")],
                 {"x": [2, 1], "w": [4, 6]}, ["y"], one=np.array([1]))
    session = on_gpu(late, alone=True)
    made, = session.run(None, {"x": np.array([[-3], [8]], np.float32), "w": x})
    np.testing.assert_array_equal(made, np.maximum(x, 0).reshape(3, 8))
    assert len(session.explain().parts) == 2


def test_a_kernel_that_leaves_its_tensors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads and writes there is memory of the same arena."""
    step = GpuLowering.step

    def longer(lo: GpuLowering, spec: Any, args: Any, *rest: Any) -> None:
        step(lo, spec, [*args[:-1], args[-1] + 16 * spec.template.startswith("elementwise")], *rest)
    proto = model([node("Transpose", "x", "t", perm=[1, 0]), node("Reshape", "t s", "r"),
                   node("Softmax", "r", "y")], {"x": [40, 40]}, ["y"], s=np.array([8, 200]))
    x = np.ones((40, 40), np.float32)
    monkeypatch.setattr(GpuLowering, "step", longer)
    with fenced():
        session = on_gpu(proto)
        session.disable_fallback()
        with pytest.raises(DeviceReset, match="which has 6400 bytes"):
            session.run(None, {"x": x})
