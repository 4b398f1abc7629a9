"""What load makes of a model: values, versions, attributes, bodies, functions, every element type; and save
brings it back."""

from __future__ import annotations

import glob
import os
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from counting import counted
from load_cases import model, nested_functions, node, relu, tensor, weight
from onnx import TensorProto, helper, numpy_helper

from orthrus import errors
from orthrus.ir import ElementType, Graph, SparseArray, TensorType, verify
from orthrus.limits import Limits
from orthrus.load import expand, load, save, to_model_proto

BOOL = TensorProto.BOOL
IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]


def loaded(made: onnx.ModelProto, **options: Any) -> Graph:
    graph = load(made.SerializeToString(), **options)
    verify(graph)
    return graph


def test_inputs_initializers_and_outputs() -> None:
    graph = loaded(model([node("Add", ["a", "w"], ["c"], name="ad")], initializers=[weight()]))
    assert [v.name for v in graph.inputs] == ["a"] and list(graph.initializers) == ["w"]
    only, = graph.nodes
    assert (only.op_type, only.domain, only.version, only.name, only.index) == ("Add", "", 14, "ad", 0)
    assert graph.outputs[0].node is only and graph.outputs[0].type == TensorType(ElementType.FLOAT, (2, 3))
    assert graph.initializers["w"].uses == {only: 1}


def test_an_initializer_that_is_an_input_can_be_fed_from_ir_4_on() -> None:
    both = [tensor("a"), tensor("w")]
    graph = loaded(model([node("Add", ["a", "w"], ["c"])], both, initializers=[weight()]))
    assert [v.name for v in graph.inputs] == ["a", "w"] and graph.inputs[1].default is not None
    assert graph.inputs[1].const is None
    assert graph.initializers["w"] is graph.inputs[1]
    graph = loaded(model([node("Add", ["a", "w"], ["c"])], both, initializers=[weight()], ir=3))
    assert [v.name for v in graph.inputs] == ["a"]


def test_given_initializers_replace_and_define() -> None:
    w = np.full((2, 3), 7, np.float32)
    graph = loaded(model([node("Add", ["a", "w"], ["c"])], initializers=[weight()]), initializers={"w": w})
    assert graph.initializers["w"].const is w
    graph = loaded(model([node("Add", ["a", "w"], ["c"])]), initializers={"w": w})
    assert graph.initializers["w"].const is w
    with pytest.raises(errors.Fail, match="Shape of initializer w does not match"):
        loaded(model([node("Add", ["a", "w"], ["c"])], initializers=[weight()]), initializers={"w": w[:1]})


def test_opset_imports_in_any_order_and_spelling() -> None:
    made = relu()
    del made.opset_import[:]
    for domain, version in (
        ("org.pytorch.aten", 1),
        ("com.microsoft.nchwc", 1),
        ("ai.onnx", 13),
        ("", 13),
        ("x", 9),
    ):
        made.opset_import.add(domain=domain, version=version)
    graph = loaded(made)
    assert graph.nodes[0].version == 13 and graph.info.opsets[""] == 13


@pytest.mark.parametrize("ir", range(3, 15))
def test_every_ir_version(ir: int) -> None:
    made = relu()
    made.ir_version = ir
    assert loaded(made).info.ir_version == ir


def test_nodes_in_any_order() -> None:
    graph = loaded(model([node("Relu", ["y"], ["c"]), node("Abs", ["x"], ["y"]), node("Neg", ["a"], ["x"])]))
    assert [n.op_type for n in graph.nodes] == ["Neg", "Abs", "Relu"]
    assert [n.index for n in graph.nodes] == [2, 1, 0]


def test_absent_optional_inputs_and_outputs_are_none() -> None:
    graph = loaded(model([node("Clip", ["a", "", "m"], ["c"])],
                         initializers=[helper.make_tensor("m", 1, [], [1.0])]))
    assert graph.nodes[0].inputs[1] is None and graph.nodes[0].inputs[2] is not None
    graph = loaded(model([node("Dropout", ["a", "", ""], ["c", ""])]))
    assert len(graph.nodes[0].inputs) == 1 and graph.nodes[0].outputs[1] is None


def test_attributes_become_python_values() -> None:
    made = model([node("Conv", ["a", "w"], ["c"], pads=[1, 1, 1, 1], auto_pad="NOTSET", group=1)],
                 [tensor("a", (1, 1, 4, 4)), tensor("w", (1, 1, 3, 3))])
    attrs = loaded(made).nodes[0].attrs
    assert attrs == {"pads": [1, 1, 1, 1], "auto_pad": "NOTSET", "group": 1}
    made = model([node("ConstantOfShape", ["s"], ["c"], value=helper.make_tensor("v", 1, [1], [2.0]))],
                 [tensor("s", (2,), 7)])
    np.testing.assert_array_equal(loaded(made).nodes[0].attrs["value"], np.array([2], np.float32))


def test_constant_nodes_become_initializers() -> None:
    sparse = onnx.SparseTensorProto(dims=[2, 3])
    sparse.values.CopyFrom(helper.make_tensor("v", 1, [2], [5.0, 6.0]))
    sparse.indices.CopyFrom(helper.make_tensor("i", 7, [2, 2], [0, 1, 1, 2]))
    nodes = [
        node("Constant", [], ["t"], value=weight()),
        node("Constant", [], ["f"], value_float=1.5),
        node("Constant", [], ["i"], value_ints=[1, 2]),
        node("Constant", [], ["s"], value_string="x"),
        node("Constant", [], ["z"], value_strings=["x", "y"]),
        node("Constant", [], ["p"], sparse_value=sparse),
        node("Add", ["a", "t"], ["c"]),
    ]
    graph = loaded(model(nodes))
    assert [n.op_type for n in graph.nodes] == ["Add"]
    const = {name: v.const for name, v in graph.initializers.items()}
    assert const["f"].dtype == np.float32 and const["f"].shape == () and const["i"].dtype == np.int64
    assert const["s"].shape == () and const["s"].item() == "x" and list(const["z"]) == ["x", "y"]
    np.testing.assert_array_equal(const["p"], [[0, 5, 0], [0, 0, 6]])


def test_bodies_read_outer_values() -> None:
    branch = helper.make_graph([node("Relu", ["h"], ["t"])], "b", [], [tensor("t", None)])
    graph = loaded(
        model(
            [node("If", ["k"], ["c"], then_branch=branch, else_branch=branch), node("Neg", ["a"], ["h"])],
            [tensor("a"), tensor("k", (), BOOL)],
        )
    )
    neg, decision = graph.nodes
    assert (neg.op_type, decision.op_type) == ("Neg", "If")
    body = decision.attrs["then_branch"]
    assert isinstance(body, Graph) and body.outer is graph and body.nodes[0].inputs[0] is neg.outputs[0]
    assert body.nodes[0] in neg.output.uses and body.captures() == [neg.outputs[0]]


def test_a_cycle_through_a_body() -> None:
    branch = helper.make_graph([node("Relu", ["c"], ["t"])], "b", [], [tensor("t", None)])
    with pytest.raises(errors.Fail, match="the graph is not acyclic"):
        load(
            model([node("If", ["k"], ["c"], then_branch=branch, else_branch=branch)], [tensor("k", (), BOOL)])
        )


def function(
    name: str, nodes: list[Any], inputs: list[str], outputs: list[str], **rest: Any
) -> onnx.FunctionProto:
    return helper.make_function("f", name, inputs, outputs, nodes, IMPORTS, **rest)


def with_functions(nodes: list[Any], *functions: onnx.FunctionProto, **rest: Any) -> onnx.ModelProto:
    return model(nodes, opsets={"": 17, "f": 1}, functions=functions, **rest)


def test_functions_are_written_out() -> None:
    inner = node("LeakyRelu", ["x"], ["y"])
    reference = inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    assert reference.ref_attr_name == "slope"
    leaky = function("Leaky", [inner], ["x"], ["y"], attributes=["slope"])
    outer_call = node("Leaky", ["x"], ["t"], domain="f")
    outer_call.attribute.add(name="slope", ref_attr_name="k", type=onnx.AttributeProto.FLOAT)
    outer = function("Outer", [outer_call, node("Add", ["t", "x"], ["y"])], ["x"], ["y"],
                     attribute_protos=[helper.make_attribute("k", 0.25)])
    graph = loaded(with_functions([node("Outer", ["a"], ["b"], domain="f", name="one"),
                                   node("Outer", ["b"], ["c"], domain="f", name="two", k=0.5)], leaky, outer))
    assert [n.op_type for n in graph.nodes] == ["LeakyRelu", "Add", "LeakyRelu", "Add"]
    assert [n.attrs.get("alpha") for n in graph.nodes[::2]] == [0.25, 0.5]
    assert len({v.name for n in graph.nodes for v in n.outputs}) == 4
    assert graph.nodes[0].label.startswith("one/")


def test_an_attribute_reference_without_a_value_is_left_out() -> None:
    inner = node("LeakyRelu", ["x"], ["y"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    made = with_functions([node("F", ["a"], ["c"], domain="f")], function("F", [inner], ["x"], ["y"]))
    assert loaded(made).nodes[0].attrs == {}


@pytest.mark.parametrize(("declared", "default", "given", "slope"), [
    ([], None, {"other": 1}, None), ([], None, {"slope": 0.5, "other": [1]}, 0.5),
    (["slope"], None, {}, None),
    (["slope"], None, {"slope": 0.5, "other": helper.make_graph([], "empty", [], [])}, 0.5),
    (["slope"], 0.25, {}, 0.25), ([], 0.25, {"other": "text"}, 0.25),
    (["other"], 0.25, {"slope": 0.5}, 0.5)])
def test_a_call_may_give_attributes_that_its_function_lacks_and_leave_out_those_it_has(
        declared: list[str], default: float | None, given: dict[str, Any], slope: float | None) -> None:
    inner = node("LeakyRelu", ["x"], ["y"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    defaults = [] if default is None else [helper.make_attribute("slope", default)]
    leaky = function("F", [inner], ["x"], ["y"], attributes=declared, attribute_protos=defaults)
    outer = function("G", [node("F", ["x"], ["y"], domain="f", **given)], ["x"], ["y"])
    for name in "FG":
        call = node(name, ["a"], ["c"], domain="f", **(given if name == "F" else {}))
        assert loaded(with_functions([call], leaky, outer)).nodes[0].attrs.get("alpha") == slope


def test_a_call_without_an_attribute_that_a_node_inside_needs() -> None:
    inner = node("Cast", ["x"], ["y"])
    inner.attribute.add(name="to", ref_attr_name="to", type=onnx.AttributeProto.INT)
    made = with_functions([node("F", ["a"], ["c"], domain="f", name="call")],
                          function("F", [inner], ["x"], ["y"], attributes=["to"]))
    with pytest.raises(errors.InvalidGraph, match="Required attribute 'to' is missing.") as raised:
        load(made)
    assert "call" in str(raised.value)


def test_a_function_in_a_body_and_a_body_in_a_function() -> None:
    branch = helper.make_graph([node("G", ["x"], ["t"], domain="f")], "b", [], [tensor("t", None)])
    choose = function(
        "F", [node("If", ["k"], ["y"], then_branch=branch, else_branch=branch)], ["k", "x"], ["y"]
    )
    twice = function("G", [node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])], ["x"], ["y"])
    graph = loaded(with_functions([node("F", ["k", "a"], ["c"], domain="f")], choose, twice,
                                  inputs=[tensor("a"), tensor("k", (), BOOL)]))
    body = graph.nodes[0].attrs["else_branch"]
    assert [n.op_type for n in body.nodes] == ["Relu", "Neg"] and body.nodes[0].inputs[0] is graph.inputs[0]


def test_a_function_wins_over_an_operator_of_its_name() -> None:
    made = model([node("Relu", ["a"], ["c"])], functions=[helper.make_function(
        "", "Relu", ["x"], ["y"], [node("Neg", ["x"], ["y"])], IMPORTS[:1])])
    assert [n.op_type for n in loaded(made).nodes] == ["Neg"]


def test_a_function_that_returns_its_input_and_one_output_twice() -> None:
    made = with_functions([node("F", ["a"], ["b", "c", "d"], domain="f")],
                          function("F", [node("Relu", ["x"], ["y"])], ["x"], ["x", "y", "y"]),
                          outputs=[tensor(n, None) for n in "bcd"])
    assert sorted(n.op_type for n in loaded(made).nodes) == ["Identity", "Identity", "Relu"]


def test_an_input_left_out_in_a_call_is_absent_inside() -> None:
    made = with_functions([node("F", ["a"], ["c"], domain="f")],
                          function("F", [node("Clip", ["x", "low"], ["y"])], ["x", "low"], ["y"]))
    assert loaded(made).nodes[0].inputs == [loaded(made).inputs[0]] or len(loaded(made).nodes[0].inputs) == 1


def test_functions_with_their_own_opset() -> None:
    old = helper.make_function("f", "F", ["x"], ["y"], [node("Squeeze", ["x"], ["y"], axes=[0])],
                               [helper.make_opsetid("", 11)])
    made = with_functions([node("F", ["a"], ["c"], domain="f")], old, inputs=[tensor("a", (1, 3))])
    graph = loaded(made)
    assert graph.nodes[0].version == 11
    again = load(save(graph))
    assert again.nodes[0].version == 11 and again.nodes[0].attrs == {"axes": [0]}


def test_a_chain_of_thousands_of_functions() -> None:
    functions = [function("F0", [node("Relu", ["x"], ["y"])], ["x"], ["y"])]
    functions += [
        function(f"F{i}", [node(f"F{i - 1}", ["x"], ["y"], domain="f")], ["x"], ["y"]) for i in range(1, 3000)
    ]
    assert len(loaded(with_functions([node("F2999", ["a"], ["c"], domain="f")], *functions)).nodes) == 1


def test_functions_that_explode_are_refused_fast() -> None:
    for levels in (25, 60):
        raw = nested_functions(levels).SerializeToString()
        with counted() as count, pytest.raises(errors.Fail, match="expand to too many nodes"):
            load(raw)
        assert count.calls < 20_000
    assert len(load(nested_functions(4)).nodes) == 16
    with pytest.raises(errors.Fail):
        load(nested_functions(4), limits=Limits(max_nodes=10))


def test_mutual_recursion() -> None:
    made = with_functions([node("F", ["a"], ["c"], domain="f")],
                          function("F", [node("G", ["x"], ["y"], domain="f")], ["x"], ["y"]),
                          function("G", [node("F", ["x"], ["y"], domain="f")], ["x"], ["y"]))
    with pytest.raises(errors.InvalidGraph, match="must not be recursive"):
        load(made)


def chain(count: int) -> bytes:
    made = relu()
    del made.graph.node[:]
    for i in range(count):
        made.graph.node.add(op_type="Relu", input=["a" if not i else f"v{i}"],
                            output=["c" if i == count - 1 else f"v{i + 1}"])
    return made.SerializeToString()


@pytest.mark.parametrize("length", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_long_chain(length: int) -> None:
    raw = chain(length)
    assert len(load(raw).nodes) == length
    with pytest.raises(errors.Fail, match="too many nodes"):
        load(raw, limits=Limits(max_nodes=1000))


def test_each_node_is_loaded_with_the_same_work() -> None:
    counts: dict[int, int] = {}
    for length in (1_000, 2_000, 4_000):
        raw = chain(length)
        with counted() as count:
            load(raw)
        counts[length] = count.calls
    assert counts[4_000] - counts[2_000] < 2.1 * (counts[2_000] - counts[1_000])


def test_deep_bodies_are_limited() -> None:
    inner = helper.make_graph([node("Relu", ["a"], ["t"])], "b", [], [tensor("t", None)])
    for _ in range(10):
        inner = helper.make_graph([node("If", ["k"], ["t"], then_branch=inner, else_branch=inner)], "b", [],
                                  [tensor("t", None)])
    made = model(
        [node("If", ["k"], ["c"], then_branch=inner, else_branch=inner)], [tensor("a"), tensor("k", (), BOOL)]
    )
    with pytest.raises(errors.Fail, match="nests graphs too deeply"):
        load(made, limits=Limits(max_depth=5))


RAW_TYPES = [e for e in ElementType if e is not ElementType.STRING]


@pytest.mark.parametrize("element", RAW_TYPES, ids=lambda e: e.text)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_element_type_as_raw_data(element: ElementType, count: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, count * element.numpy.itemsize, dtype=np.uint8)
    if element.bits < 8:
        codes &= (1 << element.bits) - 1
        if element.name.startswith("INT"):
            codes = ((codes ^ (1 << (element.bits - 1))) - (1 << (element.bits - 1))).astype(np.int8)
        array = codes.view(np.uint8).view(element.numpy) if element.floating else codes.astype(element.numpy)
    else:
        array = (codes & 1).view(bool) if element is ElementType.BOOL else codes.view(element.numpy)
    if element.name.startswith("FLOAT6"):
        assert array.dtype in (ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)
    proto = numpy_helper.from_array(array, "w")
    found = loaded(model([], outputs=[tensor("w", (count,), int(element))], initializers=[proto]))
    const = found.initializers["w"].const
    assert const.dtype == element.numpy and const.tobytes() == array.tobytes()
    again = load(save(found)).initializers["w"].const
    assert again.dtype == element.numpy and again.tobytes() == array.tobytes()
    assert to_model_proto(found).graph.initializer[0].raw_data == proto.raw_data


TYPED = [
    (e, v)
    for e, v in [
        (1, [1.5, -2.0, 3.0]),
        (2, [1, 2, 255]),
        (3, [-1, 2, -128]),
        (4, [1, 65535, 3]),
        (5, [-5, 6, 7]),
        (6, [1, -2, 3]),
        (7, [1 << 62, -1, 0]),
        (8, ["a", "b", "ü"]),
        (9, [True, False, True]),
        (10, [1.5, -2.0, 3.0]),
        (11, [1.5, -2.0, 1e300]),
        (12, [1, 2, (1 << 32) - 1]),
        (13, [1, 2, (1 << 64) - 1]),
        (14, [1 + 2j, 0, -1j]),
        (15, [1 + 2j, 0, -1j]),
        (16, [1.5, -2.0, 3.0]),
        (17, [1.5, -2.0, 3.0]),
        (18, [1.5, -2.0, 3.0]),
        (19, [1.5, -2.0, 3.0]),
        (20, [1.5, -2.0, 3.0]),
        (21, [1, 15, 3]),
        (22, [-8, 7, 1]),
        (23, [1.5, -2.0, 3.0]),
        (25, [1, 3, 0]),
        (26, [-2, 1, 0]),
    ]
]


@pytest.mark.parametrize(("element", "values"), TYPED, ids=[ElementType(e).text for e, _ in TYPED])
def test_every_element_type_in_typed_fields(element: int, values: list[Any]) -> None:
    proto = helper.make_tensor("w", element, [3], values)
    assert not proto.HasField("raw_data")
    found = (
        loaded(model([], outputs=[tensor("w", (3,), element)], initializers=[proto])).initializers["w"].const
    )
    expected = numpy_helper.to_array(proto)
    assert found.dtype == ElementType(element).numpy
    assert found.tolist() == expected.tolist()


BAD_TENSORS: dict[str, dict[str, Any]] = {
    "raw too short": {"raw_data": b"123"},
    "raw too long": {"raw_data": b"\0" * 28},
    "no data": {},
    "typed too long": {"float_data": [0.0] * 7},
    "typed too short": {"float_data": [0.0] * 5},
    "both": {"raw_data": b"\0" * 24, "float_data": [0.0] * 6},
    "wrong field": {"int32_data": [0] * 6},
    "negative": {"raw_data": b"\0" * 24, "dims": [-2, -3]},
    "overflow": {"dims": [1 << 40, 1 << 40]},
    "over the budget": {"dims": [1 << 50]},
    "undefined type": {"raw_data": b"\0" * 24, "data_type": 0},
    "unknown type": {"raw_data": b"\0" * 24, "data_type": 99},
    "strings in raw": {"raw_data": b"\0" * 24, "data_type": 8},
    "segment": {"raw_data": b"\0" * 24, "segment": TensorProto.Segment(begin=0, end=1)},
    "external entries": {
        "raw_data": b"\0" * 24,
        "external_data": [onnx.StringStringEntryProto(key="location", value="x")],
    },
}


@pytest.mark.parametrize("case", BAD_TENSORS)
@pytest.mark.parametrize("place", ["initializer", "Constant"])
def test_bad_tensors(case: str, place: str) -> None:
    proto = TensorProto(**{"name": "w", "data_type": 1, "dims": [2, 3], **BAD_TENSORS[case]})
    made = model([node("Add", ["a", "w"], ["c"])], initializers=[proto]) if place == "initializer" else \
        model([node("Constant", [], ["w"], value=proto), node("Add", ["a", "w"], ["c"])])
    with pytest.raises(errors.Fail):
        load(made.SerializeToString())


def sparse_model(values: list[float], indices: Any, dims: list[int]) -> onnx.ModelProto:
    made = model([node("Identity", ["w"], ["c"])])
    sparse = made.graph.sparse_initializer.add(dims=dims)
    sparse.values.CopyFrom(helper.make_tensor("w", 1, [len(values)], values))
    array = np.asarray(indices, np.int64)
    sparse.indices.CopyFrom(numpy_helper.from_array(array, "i"))
    return made


def test_sparse_initializers_are_made_dense() -> None:
    for indices in ([1, 5], [[0, 1], [1, 2]]):
        const = loaded(sparse_model([7.0, 8.0], indices, [2, 3])).initializers["w"].const
        np.testing.assert_array_equal(const, [[0, 7, 0], [0, 0, 8]])
    for indices in ([5, 1, 3], [[1, 2], [0, 1], [1, 0]]):
        const = loaded(sparse_model([7.0, 8.0, 9.0], indices, [2, 3])).initializers["w"].const
        np.testing.assert_array_equal(const, [[0, 8, 0], [9, 0, 7]])


@pytest.mark.parametrize(
    ("indices", "dims"),
    [
        ([1, 6], [2, 3]),
        ([-1, 2], [2, 3]),
        ([1, 1], [2, 3]),
        ([[1, 2], [1, 2]], [2, 3]),
        ([[0, 1], [2, 0]], [2, 3]),
        ([[0, 1, 0], [1, 2, 0]], [2, 3]),
        ([1], [2, 3]),
        ([1, 2], [-2, 3]),
        ([1, 2], []),
        ([1, 2], [1 << 40, 1 << 40]),
        ([1, 2], [1 << 30, 1 << 15]),
    ],
)
def test_bad_sparse_initializers(indices: Any, dims: list[int]) -> None:
    with pytest.raises(errors.Fail):
        load(sparse_model([7.0, 8.0], indices, dims))


def test_operators_without_a_definition_run_by_their_function_body(monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.load import versions

    real = versions.find
    monkeypatch.setattr(
        versions, "find", lambda d, n, v: None if n in ("LayerNormalization", "Celu") else real(d, n, v)
    )
    made = model(
        [node("LayerNormalization", ["a", "s"], ["b"], name="ln"), node("Celu", ["b"], ["c"], alpha=2.0)],
        [tensor("a"), tensor("s", (3,))],
        opsets={"": 20},
    )
    graph = loaded(made)
    assert "LayerNormalization" not in [n.op_type for n in graph.nodes] and len(graph.nodes) > 10
    assert all(v.type is not None for n in graph.nodes for v in n.outputs if v is not None)
    assert graph.outputs[0].type == TensorType(ElementType.FLOAT, (2, 3))


def test_no_definition_and_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.load import versions

    monkeypatch.setattr(versions, "find", lambda d, n, v: None)
    with pytest.raises(errors.NotImplemented) as caught:
        load(model([node("Abs", ["a"], ["c"], name="x")]))
    assert caught.value.text == "Could not find an implementation for Abs(13) node with name 'x'"
    assert caught.value.cure and expand


def structure(graph: Graph) -> Any:
    """What has to survive a round trip."""
    def attribute(value: Any) -> Any:
        if isinstance(value, Graph):
            return structure(value)
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.shape, value.tolist() if value.dtype == object else value.tobytes()
        if isinstance(value, SparseArray):
            return attribute(value.values), attribute(value.indices), value.shape
        return value

    return (
        [(v.name, v.type) for v in graph.inputs],
        [(v.name, v.type) for v in graph.outputs],
        {n: attribute(v.const) for n, v in graph.initializers.items()},
        [
            (
                n.op_type,
                n.domain,
                n.version,
                n.name,
                n.metadata,
                [v and v.name for v in n.inputs],
                [v and v.name for v in n.outputs],
                {k: attribute(v) for k, v in n.attrs.items()},
            )
            for n in graph.nodes
        ],
    )


DATA = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data")
MODELS = sorted(glob.glob(f"{DATA}/simple/*/model.onnx") + glob.glob(f"{DATA}/pytorch-*/*/model.onnx")
                + glob.glob(f"{DATA}/light/*.onnx"))


@pytest.mark.parametrize("path", MODELS, ids=[p[len(DATA) + 1:].removesuffix("/model.onnx") for p in MODELS])
def test_round_trip(path: str) -> None:
    graph = load(path)
    raw = save(graph)
    again = load(raw)
    verify(graph), verify(again)
    assert structure(again) == structure(graph)
    assert again.info.metadata == graph.info.metadata and again.info.opsets == graph.info.opsets
    onnx.checker.check_model(onnx.ModelProto.FromString(raw))


def test_round_trip_of_bodies_and_metadata() -> None:
    branch = helper.make_graph(
        [node("Constant", [], ["k2"], value_float=2.0), node("Mul", ["a", "k2"], ["t"])],
        "b",
        [],
        [tensor("t", None)],
    )
    made = model(
        [node("If", ["k"], ["c"], then_branch=branch, else_branch=branch)],
        [tensor("a"), tensor("k", (), BOOL)],
    )
    made.metadata_props.add(key="author", value="me")
    made.producer_name, made.model_version, made.doc_string = "p", 7, "doc"
    made.graph.node[0].metadata_props.add(key="x", value="y")
    graph = loaded(made)
    again = load(save(graph))
    assert structure(again.nodes[0].attrs["then_branch"])[3][0][:3] == ("Mul", "", 14)
    assert (
        again.info.metadata == {"author": "me"}
        and again.info.model_version == 7
        and again.info.doc_string == "doc"
    )
    assert again.nodes[0].metadata == {"x": "y"}


def test_saving_to_a_file(tmp_path: Any) -> None:
    graph = loaded(model([node("Add", ["a", "w"], ["c"])], initializers=[weight()]))
    raw = save(graph, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == raw and os.listdir(tmp_path) == ["m.onnx"]


def test_large_weights_are_aligned_and_not_writable(tmp_path: Any) -> None:
    array = np.arange(10_007, dtype=np.float32)
    made = model(
        [node("Add", ["a", "w"], ["c"])],
        [tensor("a", (10_007,))],
        initializers=[numpy_helper.from_array(array, "w")],
    )
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    for source in (made.SerializeToString(), tmp_path / "m.onnx", made):
        const = load(source).initializers["w"].const
        np.testing.assert_array_equal(const, array)
        assert not const.flags.writeable and (
            isinstance(source, onnx.ModelProto) or const.ctypes.data % 64 == 0
        )
