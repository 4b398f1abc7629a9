"""Shortcuts of type inference against ONNX's own: whatever a shortcut says, the schema inference says too, or
says nothing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orthrus.ir import ElementType, No, Node, TensorType, Value
from orthrus.ops import find, infer
from orthrus.ops.fast_type_rules import _RULES, shortcut

DIMS = st.one_of(st.integers(0, 6), st.sampled_from(["N", "M", None]), st.sampled_from([1, 2, 4]))
SHAPES = st.lists(DIMS, max_size=4).map(tuple)


def tensor(shape: Any, elem: ElementType = ElementType.FLOAT) -> Value:
    return Value("x", TensorType(elem, shape))


def ints(values: list[int]) -> Value:
    array = np.array(values, np.int64)
    return Value("i", TensorType(ElementType.INT64, array.shape), None, array)


@st.composite
def cases(draw: Any) -> tuple[str, int, list[Value | None], dict[str, Any]]:
    name = draw(st.sampled_from(sorted(_RULES)))
    version = draw(st.sampled_from([1, 11, 13, 18]))
    shape, few = draw(SHAPES), st.lists(st.integers(-5, 6), max_size=4)
    x, attrs = tensor(shape), {}
    inputs: list[Value | None] = [x]
    if name == "Transpose" and draw(st.booleans()):
        attrs["perm"] = draw(st.permutations(range(len(shape))))
    elif name in ("Softmax", "LogSoftmax", "Gather", "Concat"):
        attrs["axis"] = draw(st.integers(-5, 4))
    if name == "Cast":
        attrs["to"] = draw(st.sampled_from([1, 7, 10, 9, 99]))
    if name == "Shape" and draw(st.booleans()):
        attrs.update(start=draw(st.integers(-5, 5)), end=draw(st.integers(-5, 5)))
    if name == "MatMul":
        inputs.append(tensor(draw(SHAPES)))
    if name == "Gather":
        inputs.append(tensor(draw(SHAPES), ElementType.INT64))
    if name == "Concat":
        other = list(shape)
        for i in draw(st.lists(st.integers(0, 3), max_size=1)):
            if i < len(other):
                other[i] = draw(DIMS)
        inputs.append(tensor(tuple(other)))
    if name in ("Squeeze", "Unsqueeze"):
        if version >= 13:
            inputs.append(ints(draw(few)))
        else:
            attrs["axes"] = draw(few)
    if name == "Reshape":
        inputs.append(ints(draw(st.lists(st.integers(-1, 6), max_size=4))))
        version = max(version, 5)
    if name == "Slice":
        n = draw(st.integers(1, 2))
        version = max(version, 10)
        inputs += [ints(draw(st.lists(st.integers(-8, 8), min_size=n, max_size=n))) for _ in range(2)]
        inputs.append(ints(draw(st.lists(st.integers(-4, 3), min_size=n, max_size=n))))
        inputs.append(ints(draw(st.lists(st.integers(-2, 3), min_size=n, max_size=n))))
    return name, version, inputs, attrs


@settings(max_examples=1000, deadline=None)
@given(cases())
def test_a_shortcut_says_what_onnx_says(case: Any) -> None:
    name, opset, inputs, attrs = case
    schema = infer.schemas.lookup("", name, opset)
    if isinstance(schema, No):
        return
    node = Node(name, "", schema.version, None, inputs, attrs)
    node.outputs = [Value("y", None, node)]
    quick = shortcut(node, inputs)
    if quick is not None:
        said = infer._by_schema(node, inputs, {"": opset})
        assert said in ([quick], [None], [TensorType(quick.elem, None)]), node


@pytest.mark.parametrize("name", sorted(_RULES))
def test_every_shortcut_is_taken(name: str) -> None:
    x, attrs = tensor((2, "N", 1)), {}
    more: dict[str, list[Value]] = {"MatMul": [tensor((1, 4))], "Gather": [tensor((), ElementType.INT64)],
                                    "Concat": [tensor((3, "N", 1))], "Reshape": [ints([2, -1, 1])],
                                    "Squeeze": [ints([2])], "Unsqueeze": [ints([0])],
                                    "Slice": [ints([0]), ints([1]), ints([0])]}
    if name == "Reshape":
        x = tensor((2, 3, 1))
    if name in ("Concat", "Cast"):
        attrs = {"axis": 0} if name == "Concat" else {"to": 7}
    inputs = [x, *more.get(name, [])]
    node = Node(name, "", 13, find("", name, 13), inputs, attrs)
    node.outputs = [Value("y", None, node)]
    assert shortcut(node, inputs) is not None
