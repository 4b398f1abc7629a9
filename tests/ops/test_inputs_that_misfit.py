"""Inputs whose shapes do not go together are InvalidArgument where a node runs, as in onnxruntime, whose
programs catch that; an attribute that no input could do with is Fail, whether the definition or generated
code would compute the node."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from oracle import Case, session

import orthrus as ort
from orthrus.errors import Fail, InvalidArgument, InvalidGraph, NotImplemented
from orthrus.testing.samples import Sample, samples

OPERATORS = {
    "RotaryEmbedding": (0,), "GRU": (1,), "LSTM": (1,), "RNN": (1,), "ReverseSequence": (1,),
    "ScatterElements": (1,), "Range": (1,), "InstanceNormalization": (1,),
    "com.microsoft::Attention": (0,),
    "com.microsoft::GroupQueryAttention": (0,), "com.microsoft::MultiHeadAttention": (0,),
    "com.microsoft::MRotaryEmbedding": (0, 2), "com.microsoft::RotaryEmbedding": (0, 2),
    "com.microsoft::MoE": (1,), "com.microsoft::MatMulBnb4": (1, 2), "com.microsoft::QGemm": (3,),
    "com.microsoft::CausalConvWithState": (3,)}
"""Which inputs are given without elements, or with dimensions too many."""
TAKEN_DEEP = {"Range", "InstanceNormalization", "com.microsoft::MatMulBnb4", "com.microsoft::QGemm"}
"""What is as good with more dimensions."""

KNOWN = {(s.kind, i): s for s in reversed(list(samples()))
         for i in OPERATORS.get(s.kind, ()) if i < len(s.model().graph.node[0].input)
         and s.model().graph.node[0].input[i]}


def changed(sample: Sample, which: int, how: str) -> tuple[bytes, dict[str, np.ndarray]]:
    """The sample's model with shapes that are open, and its feeds with one of another rank."""
    model = onnx.ModelProto.FromString(sample.model().SerializeToString())
    model.ir_version = min(model.ir_version, 10)
    for opset in model.opset_import:
        opset.version = min(opset.version, 26) if not opset.domain else opset.version
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    feeds = dict(sample.feeds)
    name = model.graph.node[0].input[which]
    given = np.asarray(feeds[name])
    feeds[name] = given.reshape(-1)[:0] if how == "empty" else given[None, None, None]
    return model.SerializeToString(), feeds


@pytest.mark.parametrize("how", ["empty", "deep"])
@pytest.mark.parametrize(("kind", "which"), KNOWN)
@pytest.mark.parametrize("codegen", ["0", "1"])
def test_it_is_an_invalid_argument(kind: str, which: int, how: str, codegen: str) -> None:
    model, feeds = changed(KNOWN[kind, which], which, how)
    made = ort.InferenceSession(model, provider_options=[{"use_codegen": codegen}],
                                providers=["CPUExecutionProvider"])
    if how == "deep" and kind in TAKEN_DEEP:
        made.run(None, feeds)
        return
    with pytest.raises(InvalidArgument, match="Non-zero status code returned while running"):
        made.run(None, feeds)


def test_all_operators_have_their_samples() -> None:
    assert {kind for kind, _ in KNOWN} == set(OPERATORS)


def ones(*dims: int) -> np.ndarray:
    return np.ones(dims, np.float32)


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


MS = "com.microsoft::"
MISFITS: list[tuple[str, dict[str, Any], list[np.ndarray], type[Exception]]] = [
    ("MatMul", {}, [ones(2, 3), ones(4, 5)], Fail),
    (f"{MS}FusedMatMul", {}, [ones(2, 3), ones(4, 5)], Fail),
    ("Gemm", {}, [ones(2, 3), ones(4, 5)], InvalidArgument),
    (f"{MS}Attention", {"num_heads": 2}, [ones(2, 3, 8), ones(7, 24), ones(24)], InvalidArgument),
    ("Conv", {}, [ones(1, 3, 2, 2), ones(4, 3, 3, 3)], InvalidArgument),
    ("Conv", {"dilations": [3, 1]}, [ones(1, 3, 2, 2), ones(4, 3, 2, 2)], InvalidArgument),
    ("ConvTranspose", {"pads": [4, 0, 4, 0]}, [ones(1, 3, 2, 2), ones(3, 4, 3, 3)], InvalidArgument),
    ("Gather", {}, [ones(2, 3), whole(5)], InvalidArgument),
    ("Unsqueeze", {}, [ones(2, 3), whole(0, -4)], InvalidArgument),
    ("Unsqueeze", {}, [ones(2, 3), whole(9)], Fail),
    ("Slice", {}, [ones(2, 3), whole(0), whole(1), whole(5)], InvalidArgument),
    ("Slice", {}, [ones(2, 3), whole(0, 0), whole(1, 1), whole(1, -1)], InvalidArgument),
    ("ConstantOfShape", {}, [whole(2, -1)], Fail),
    (f"{MS}SkipLayerNormalization", {}, [ones(2, 3, 8), ones(2, 3, 7), ones(8)], InvalidArgument),
    (f"{MS}SkipLayerNormalization", {}, [ones(2, 3, 8), ones(2, 3, 8), ones(8), ones(7)], InvalidArgument),
    (f"{MS}SkipSimplifiedLayerNormalization", {}, [ones(2, 3, 8), ones(2, 3, 8), ones(7)], InvalidArgument),
]
"""An operator, its attributes and inputs, and what onnxruntime raises."""


def of_one_node(op_type: str, about: dict[str, Any], given: list[np.ndarray], opset: int = 17
                ) -> tuple[bytes, dict[str, Any]]:
    """A model of one node whose shapes are open, and its feeds."""
    helper, feeds = onnx.helper, {f"x{n}": value for n, value in enumerate(given)}
    domain, _, op_type = op_type.rpartition("::")
    outputs = ["y", "z"] if op_type == "LinearClassifier" else ["y"]
    whole = {name: value for name, value in about.items() if isinstance(value, onnx.AttributeProto)}
    node = helper.make_node(op_type, list(feeds), outputs, domain=domain,
                            **{name: value for name, value in about.items() if name not in whole})
    node.attribute.extend(whole.values())
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype),
                                            [f"{name}{n}" for n in range(value.ndim)])
              for name, value in feeds.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1),
              helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(), feeds


@pytest.mark.parametrize("codegen", ["0", "1"])
@pytest.mark.parametrize("case", range(len(MISFITS)))
def test_the_error_is_of_onnxruntimes_class(case: int, codegen: str) -> None:
    op_type, about, given, kind = MISFITS[case]
    model, feeds = of_one_node(op_type, about, given)
    made = ort.InferenceSession(model, provider_options=[{"use_codegen": codegen}],
                                providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="Non-zero status code returned while running") as raised:
        made.run(None, feeds)
    assert type(raised.value) is kind
    theirs = pytest.importorskip("onnxruntime")
    with pytest.raises(Exception, match="Non-zero status code") as raised:
        theirs.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    assert type(raised.value).__name__ == kind.__name__


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_a_condition_of_any_rank_is_read_in_order(axis: int | None) -> None:
    draw = np.random.default_rng(3)
    for rank in (0, 1, 2, 3):
        x, condition = draw.normal(size=(4, 6)).astype(np.float32), draw.random((1, 2, 2)[:rank]) < 0.6
        model, feeds = of_one_node("Compress", {} if axis is None else {"axis": axis},
                                   [x, np.asarray(condition, np.bool_)])
        [y] = ort.InferenceSession(model).run(None, feeds)
        np.testing.assert_array_equal(y, np.compress(np.ravel(condition), x, axis))


ODD: dict[str, Any] = {"STRING": "no such word", "INTS": []}
"""Values that few attributes have a meaning for, by their kind."""
ATTRIBUTES = {(s.kind, name): s for s in reversed(list(samples()))
              for name, (kind, _) in s.schema.attributes.items() if kind in ODD}


def odd(name: str, kind: str) -> onnx.AttributeProto:
    number = onnx.AttributeProto.AttributeType.Value(kind)
    return onnx.helper.make_attribute(name, ODD[kind], attr_type=number)


def with_attribute(sample: Sample, name: str, how: str) -> bytes:
    """The sample's model with an odd value for an attribute, and names for dimensions, or all inputs but the
    first as constants."""
    model = onnx.ModelProto.FromString(sample.model().SerializeToString())
    model.ir_version = min(model.ir_version, 10)
    (node,) = (n for n in model.graph.node if n.op_type == sample.op)
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, odd(name, sample.schema.attributes[name][0])])
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    inputs = model.graph.input
    if how == "constants":
        held = [onnx.numpy_helper.from_array(np.asarray(sample.feeds[v.name]), v.name) for v in inputs[1:]]
        model.graph.initializer.extend(held)
        del inputs[1:]
    for value in inputs if how == "names" else ():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}{axis}"
    return model.SerializeToString()


def outcome(model: bytes, feeds: dict[str, Any], codegen: str) -> list[Any] | str:
    """The results, or the message of a typed error."""
    try:
        return ort.InferenceSession(model, provider_options=[{"use_codegen": codegen}],
                                    providers=["CPUExecutionProvider"]).run(None, feeds)
    except (Fail, InvalidArgument, InvalidGraph, NotImplemented) as error:
        return str(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["constants", "names"])
@pytest.mark.parametrize(("kind", "name"), ATTRIBUTES)
def test_generated_code_refuses_what_the_definition_refuses(kind: str, name: str, how: str) -> None:
    sample = ATTRIBUTES[kind, name]
    model = with_attribute(sample, name, how)
    feeds = {v.name: sample.feeds[v.name] for v in onnx.ModelProto.FromString(model).graph.input}
    meant, made = outcome(model, feeds, "0"), outcome(model, feeds, "1")
    assert isinstance(made, str) == isinstance(meant, str), (made, meant)


REFUSED: list[tuple[str, dict[str, Any], list[np.ndarray]]] = [
    *(("ai.onnx.ml::LinearClassifier", {"post_transform": "NO", "coefficients": [1.0] * 3 * max(1, n - 1),
                                        "intercepts": [0.0] * max(1, n - 1), "classlabels_ints": [*range(n)]},
       [ones(2, 3)]) for n in (1, 2, 3)),
    *((op_type, {"kernel_shape": odd("kernel_shape", "INTS")}, [ones(1, 1, 4, 4)])
      for op_type in ("MaxPool", "AveragePool", "LpPool")),
    *(("QuantizeLinear", {"output_dtype": asked}, [ones(2, 3), ones(), np.uint8(3)])
      for asked in (1, 3, 99)),
]
"""An operator, attributes of a value that cannot be meant, and inputs."""


@pytest.mark.parametrize("codegen", ["0", "1"])
@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_cannot_be_meant_is_refused(case: int, codegen: str) -> None:
    model, feeds = of_one_node(*REFUSED[case], opset=21)
    assert isinstance(outcome(model, feeds, codegen), str)
    theirs = pytest.importorskip("onnxruntime")
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        theirs.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)


def test_an_attribute_that_fits_nothing_fails() -> None:
    helper = onnx.helper
    x = helper.make_tensor_value_info("x", 1, None)
    graph = helper.make_graph([helper.make_node("Concat", ["x", "x"], ["y"], axis=7)], "g", [x],
                              [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(Fail, match="axis 7 is out of range"):
        ort.InferenceSession(model.SerializeToString()).run(None, {"x": np.ones((2, 3), np.float32)})


UNIT, UNIT_SIGNED = ((np.float32(0.5), kind(0)) for kind in (np.uint8, np.int8))
UNFILLED = [
    Case("Split", [ones(5, 2)], opset=11, outputs=2),
    Case("Split", [ones(5, 2)], opset=13, outputs=2),
    Case("Split", [ones(5, 2)], {"split": [2, 2, 1]}, opset=11, outputs=2),
    Case("Split", [ones(5, 2), whole(2, 2, 1)], opset=13, outputs=2, held=frozenset({1})),
    Case("Split", [ones(5, 2), whole(6, -1)], opset=13, outputs=2, held=frozenset({1})),
    Case("Split", [ones(1, 2)], {"num_outputs": 3}, opset=18, outputs=3),
    Case("Split", [ones(5, 2)], {"num_outputs": 4}, opset=18, outputs=4),
    Case("Slice", [ones(5, 6), whole(1, 1), whole(4, 4), whole(1, -1)], held=frozenset({1, 2, 3})),
    Case("Slice", [ones(5, 6), whole(1, 1), whole(4, 4), whole(0, 1), whole()], held=frozenset({1, 2, 3, 4})),
    Case("Slice", [ones(5, 6), whole(1, 1), whole(4)], held=frozenset({1, 2})),
    Case("Tile", [ones(2, 3), whole(2, 2)[None]], opset=13, held=frozenset({1})),
    Case("Pad", [ones(2, 3), whole(1, 2, 3, 4), None, whole(1, -1)], held=frozenset({1, 3})),
    *(Case("QLinearConv", [np.ones((1, 3, 6, 6), np.uint8), *UNIT, np.ones((4, 3, 3, 3), np.int8),
                           *UNIT_SIGNED, *UNIT, np.ones(count, np.int32)], held=frozenset(range(1, 9)))
      for count in (1, 5)),
    *(Case("MoE", [ones(5, 8), ones(5, scored), ones(first, 6, 8), None, ones(4, 8, 6), ones(biases, 8)],
           {"k": 2}, domain="com.microsoft", held=frozenset({2, 4, 5}))
      for scored, first, biases in ((5, 4, 4), (4, 3, 4), (4, 4, 1))),
    Case("Einsum", [ones(3, 1)], {"equation": "ii"}),
    Case("Einsum", [ones(2, 1, 3), ones(3)], {"equation": "iij,j->i"}),
]


@pytest.mark.parametrize(("open_shapes", "level"), [(True, "ORT_DISABLE_ALL"), (False, "ORT_ENABLE_ALL"),
                                                    (True, "ORT_ENABLE_ALL")])
@pytest.mark.parametrize("case", UNFILLED, ids=str)
def test_no_kernel_computes_what_does_not_go_together(case: Case, open_shapes: bool, level: str) -> None:
    case = dataclasses.replace(case, open_shapes=open_shapes)
    with pytest.raises((Fail, InvalidArgument)):
        session(ort, case.model(), level).run(None, case.feeds)


@pytest.mark.parametrize(("op", "x", "lengths"), [
    ("Reshape", ones(2, 3), 6), ("Expand", ones(1), 3), ("Split", ones(5, 2), 5)])
def test_one_length_need_be_no_vector(op: str, x: np.ndarray, lengths: int) -> None:
    """The definition computes it, and no rule falls over."""
    model = Case(op, [x, np.array(lengths)], opset=13, held=frozenset({1})).model()
    made = ort.InferenceSession(model.SerializeToString(), fallback="error")
    assert np.size(made.run(None, {"i0": x})[0]) == max(lengths, x.size)
