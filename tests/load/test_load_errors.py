"""A model that breaks a rule ends in onnxruntime's class and leading text: facts §5.7, rows 1 to 34, and
what follows them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import onnx
import pytest
from load_cases import model, nested_functions, node, relu, tensor, weight
from onnx import TensorProto, TypeProto, helper
from skips import needs

from orthrus import errors
from orthrus.limits import Limits
from orthrus.load import load

IN = ('This is an invalid model. In Node, ("{0}", {1}, "{2}", -1) : ("a": tensor(float),) -> ("c": '
      'tensor(float),) , Error ')
OUT = [tensor("c", (2, 3))]


def changed(made: onnx.ModelProto, change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    change(made)
    return made


def declared_twice() -> onnx.ModelProto:
    return model([node("Add", ["a", "a"], ["c"], name="ad"), node("Relu", ["a"], ["c"])])


ROWS: dict[int, tuple[type[Exception], str, Callable[[], onnx.ModelProto]]] = {
    10: (
        errors.Fail,
        "Missing opset in the model. All ModelProtos MUST have at least one entry that specifies which "
        "version of the ONNX OperatorSet is being imported.",
        lambda: changed(relu(), lambda m: m.ClearField("opset_import")),
    ),
    11: (
        errors.Fail,
        "Missing model IR version.",
        lambda: changed(relu(), lambda m: m.ClearField("ir_version")),
    ),
    12: (
        errors.Fail,
        "Unsupported model IR version: 99, max supported IR version: ",
        lambda: changed(relu(), lambda m: setattr(m, "ir_version", 99)),
    ),
    13: (
        errors.Fail,
        "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset "
        "versions. Opset 99 is under development and support for this is limited. The operator schemas "
        "and or other functionality may change before next ONNX release and in this",
        lambda: model([node("Relu", ["a"], ["c"])], opsets={"": 99}),
    ),
    16: (
        errors.InvalidGraph,
        IN.format("foo", "FooBar", "") + "No Op registered for FooBar with domain_version of 17",
        lambda: model([node("FooBar", ["a"], ["c"], name="foo")], outputs=OUT),
    ),
    17: (
        errors.Fail,
        "Fatal error: my.dom:FooBar(-1) is not a registered function/op",
        lambda: model(
            [node("FooBar", ["a"], ["c"], name="foo", domain="my.dom")], opsets={"": 17, "my.dom": 1}
        ),
    ),
    18: (
        errors.InvalidGraph,
        IN.format("foo", "FooBar", "my.dom") + "No opset import for domain 'my.dom'",
        lambda: model([node("FooBar", ["a"], ["c"], name="foo", domain="my.dom")], outputs=OUT),
    ),
    19: (
        errors.InvalidGraph,
        IN.format("ge", "Gelu", "") + "No Op registered for Gelu with domain_version of 17",
        lambda: model([node("Gelu", ["a"], ["c"], name="ge")], outputs=OUT),
    ),
    21: (
        errors.InvalidGraph,
        "This is an invalid model. Type Error: Type 'tensor(int32)' of input parameter (a) of operator "
        "(Conv) in node (cv) is invalid.",
        lambda: model(
            [node("Conv", ["a", "w"], ["c"], name="cv")],
            [tensor("a", (1, 1, 4, 4), 6), tensor("w", (1, 1, 2, 2), 6)],
            [tensor("c", None, 6)],
        ),
    ),
    22: (
        errors.Fail,
        "Type Error: Type parameter (T) of Optype (Add) bound to different types (tensor(int32) and "
        "tensor(float) in node (ad).",
        lambda: model([node("Add", ["a", "b"], ["c"], name="ad")], [tensor("a", (2,), 6), tensor("b", (2,))]),
    ),
    23: (
        errors.Fail,
        "Type Error: Type (tensor(int64)) of output arg (c) of node (ad) does not match expected type "
        "(tensor(float)).",
        lambda: model([node("Add", ["a", "a"], ["c"], name="ad")], outputs=[tensor("c", (2, 3), 7)]),
    ),
    25: (
        errors.InvalidArgument,
        "Invalid model. Node input 'zz' is not a graph input, initializer, or output of a previous node.",
        lambda: model([node("Add", ["a", "zz"], ["c"], name="ad")]),
    ),
    26: (
        errors.Fail,
        "This is an invalid model. Graph output (q) does not exist in the graph.",
        lambda: model([node("Relu", ["a"], ["c"])], outputs=[tensor("q")]),
    ),
    27: (errors.Fail, "This is an invalid model. Error: Duplicate definition of name (c).", declared_twice),
    28: (
        errors.Fail,
        "This is an invalid model. Error: the graph is not acyclic.",
        lambda: model([node("Add", ["a", "d"], ["c"]), node("Relu", ["c"], ["d"])]),
    ),
    29: (
        errors.InvalidGraph,
        IN.format("ad", "Add", "") + "Node(ad) with schema(::Add:14) has input size 1 not in range "
        "[min=2, max=2].",
        lambda: model([node("Add", ["a"], ["c"], name="ad")], outputs=OUT),
    ),
    30: (
        errors.InvalidGraph,
        IN.format("ad", "Relu", "") + "Unrecognized attribute: foo for operator Relu",
        lambda: model([node("Relu", ["a"], ["c"], name="ad", foo=1)], outputs=OUT),
    ),
    31: (
        errors.InvalidGraph,
        IN.format("ad", "Cast", "") + "Required attribute 'to' is missing.",
        lambda: model([node("Cast", ["a"], ["c"], name="ad")], outputs=OUT),
    ),
    32: (
        errors.Fail,
        "Node (mm) Op (MatMul) [ShapeInferenceError] Incompatible dimensions for matrix multiplication",
        lambda: model([node("MatMul", ["a", "b"], ["c"], name="mm")], [tensor("a"), tensor("b", (4, 5))]),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_row_of_facts(row: int) -> None:
    kind, text, make = ROWS[row]
    with pytest.raises(kind) as caught:
        load(make().SerializeToString())
    assert type(caught.value) is kind
    assert caught.value.text.startswith(text)  # type: ignore[attr-defined]
    assert str(caught.value).startswith(f"[ONNXRuntimeError] : {kind.code} : {kind.status} : {text}")


def test_missing_file_row_1(tmp_path: Any) -> None:
    path = str(tmp_path / "x.onnx")
    with pytest.raises(errors.NoSuchFile) as caught:
        load(path)
    assert caught.value.text == f"Load model from {path} failed:Load model {path} failed. File doesn't exist"


def test_directory_row_3(tmp_path: Any) -> None:
    with pytest.raises(errors.InvalidProtobuf) as caught:
        load(str(tmp_path))
    assert caught.value.text == f"Load model from {tmp_path} failed:Protobuf parsing failed."


@pytest.mark.parametrize(
    "source", [bytearray(b"x"), 3, None, ["x"]], ids=["bytearray", "int", "None", "list"]
)
def test_source_of_another_kind_rows_4_and_5(source: Any) -> None:
    with pytest.raises(TypeError, match="Unable to load from type"):
        load(source)


def test_bad_protobuf_rows_6_and_7(tmp_path: Any) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"this is no model")
    with pytest.raises(errors.InvalidProtobuf) as caught:
        load(path)
    assert caught.value.text == f"Load model from {path} failed:Protobuf parsing failed."
    with pytest.raises(errors.InvalidProtobuf) as caught:
        load(b"this is no model")
    assert caught.value.text == "Failed to load model because protobuf parsing failed."


def test_empty_rows_8_and_9(tmp_path: Any) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    with pytest.raises(errors.InvalidArgument) as caught:
        load(b"")
    assert caught.value.text == "No graph was found in the protobuf."
    with pytest.raises(errors.InvalidArgument) as caught:
        load(path)
    assert caught.value.text == f"Load model from {path} failed:No graph was found in the protobuf."


@pytest.mark.parametrize(("opset", "op_type"), [(1, "Add"), (6, "Add")])
def test_old_opsets_rows_14_and_15_load(opset: int, op_type: str) -> None:
    """onnxruntime has no kernels for these; here every schema version has a meaning."""
    made = load(model([node(op_type, ["a", "a"], ["c"])], opsets={"": opset}).SerializeToString())
    assert made.nodes[0].version == opset


def test_wrong_declared_shape_row_24_is_a_warning() -> None:
    made = load(model([node("Relu", ["a"], ["c"])], outputs=[tensor("c", (7, 7))]).SerializeToString())
    assert any("c is declared" in w for w in made.info.warnings)
    with pytest.raises(errors.Fail):
        load(
            model([node("Relu", ["a"], ["c"])], outputs=[tensor("c", (7, 7))]).SerializeToString(),
            strict=True,
        )


def test_impossible_reshape_row_33_is_a_warning() -> None:
    shape = helper.make_tensor("s", TensorProto.INT64, [2], [4, 5])
    load(model([node("Reshape", ["a", "s"], ["c"])], initializers=[shape]).SerializeToString())


def test_missing_external_data_row_34(tmp_path: Any) -> None:
    made = weight()
    made.ClearField("raw_data")
    made.data_location = TensorProto.EXTERNAL
    made.external_data.add(key="location", value="gone.bin")
    path = tmp_path / "m.onnx"
    path.write_bytes(model([node("Add", ["a", "w"], ["c"])], initializers=[made]).SerializeToString())
    with pytest.raises(errors.Fail) as caught:
        load(path)
    assert caught.value.text.startswith("External data path validation failed for initializer: w. Error: ")
    assert f'External data path does not exist: "{tmp_path / "gone.bin"}' in caught.value.text


_TENSOR = TypeProto(tensor_type=TypeProto.Tensor())
HOLDS = {
    "a tensor": _TENSOR,
    "an optional": TypeProto(optional_type=TypeProto.Optional()),
    "a sequence": TypeProto(sequence_type=TypeProto.Sequence(elem_type=_TENSOR)),
    "a map": TypeProto(map_type=TypeProto.Map(key_type=TensorProto.INT64, value_type=_TENSOR)),
    "a sequence of maps": TypeProto(
        sequence_type=TypeProto.Sequence(elem_type=TypeProto(map_type=TypeProto.Map(key_type=TensorProto.INT64)))
    ),
}
MORE: dict[str, tuple[type[Exception], str, Callable[[], onnx.ModelProto]]] = {
    "too many outputs": (
        errors.InvalidGraph,
        "output size 2 not in range",
        lambda: model([node("Relu", ["a"], ["c", "d"])]),
    ),
    "required input left out": (
        errors.InvalidGraph,
        "input 0 is marked single but has an empty string in the graph",
        lambda: model([node("Add", ["", "a"], ["c"])]),
    ),
    "attribute of another kind": (
        errors.InvalidGraph,
        "Mismatched attribute type in ' : axis'. Expected: 'INT', actual: 'FLOAT'",
        lambda: model([node("Softmax", ["a"], ["c"], axis=1.0)]),
    ),
    "attribute twice": (
        errors.InvalidGraph,
        "Attribute 'axis' appeared multiple times.",
        lambda: changed(
            model([node("Softmax", ["a"], ["c"], axis=1)]),
            lambda m: m.graph.node[0].attribute.append(helper.make_attribute("axis", 1)),
        ),
    ),
    "deprecated operator": (
        errors.InvalidGraph,
        "Op registered for Upsample is deprecated in domain_version of 17",
        lambda: model([node("Upsample", ["a", "a"], ["c"])]),
    ),
    "no operator name": (
        errors.InvalidGraph,
        "Field 'op_type' of 'node' is required to be non-empty.",
        lambda: model([node("", ["a"], ["c"])]),
    ),
    "opset 0": (
        errors.InvalidGraph,
        "No Op registered for Relu with domain_version of 0",
        lambda: model([node("Relu", ["a"], ["c"])], opsets={"": 0}),
    ),
    "opset -1": (
        errors.InvalidGraph,
        "No Op registered for Relu with domain_version of -1",
        lambda: model([node("Relu", ["a"], ["c"])], opsets={"": -1}),
    ),
    "input without a type": (
        errors.Fail,
        "Model input (a) does not have type information.",
        lambda: changed(relu(), lambda m: m.graph.input[0].ClearField("type")),
    ),
    **{
        f"input that is {held} of no type": (
            errors.Fail,
            "Model input (a) does not have type information.",
            lambda held=held: changed(relu(), lambda m: m.graph.input[0].type.CopyFrom(HOLDS[held])),
        )
        for held in HOLDS
    },
    "input twice": (
        errors.Fail,
        "Error: Duplicate definition-site for (a).",
        lambda: changed(relu(), lambda m: m.graph.input.append(m.graph.input[0])),
    ),
    "initializer made by a node": (
        errors.Fail,
        "Duplicate definition of name (w).",
        lambda: model([node("Add", ["a", "w"], ["c"]), node("Relu", ["a"], ["w"])], initializers=[weight()]),
    ),
    "initializer of another type": (
        errors.Fail,
        "Type Error: Data in initializer 'w' has element type tensor(float) but usage "
        "of initializer in graph expects tensor(int64)",
        lambda: model(
            [node("Add", ["a", "w"], ["c"])], [tensor("a"), tensor("w", (2, 3), 7)], initializers=[weight()]
        ),
    ),
    "initializer of another shape": (
        errors.Fail,
        "Type Error: Shape of initializer w does not match. {2,4} != {2,3}",
        lambda: model(
            [node("Add", ["a", "w"], ["c"])], [tensor("a"), tensor("w", (2, 4))], initializers=[weight()]
        ),
    ),
    "recursive function": (
        errors.InvalidGraph,
        "Model local function definitions must not be recursive",
        lambda: model(
            [node("F", ["a"], ["c"], domain="f")],
            opsets={"": 17, "f": 1},
            functions=[
                helper.make_function(
                    "f",
                    "F",
                    ["x"],
                    ["y"],
                    [node("F", ["x"], ["y"], domain="f")],
                    [helper.make_opsetid("f", 1)],
                )
            ],
        ),
    ),
    "functions that explode": (
        errors.Fail,
        "the model's functions expand to too many nodes",
        lambda: nested_functions(25),
    ),
    "branches of different types": (
        errors.Fail,
        "Op (If)",
        lambda: model(
            [
                node(
                    "If",
                    ["k"],
                    ["c"],
                    then_branch=helper.make_graph([node("Relu", ["a"], ["t"])], "t", [], [tensor("t", None)]),
                    else_branch=helper.make_graph(
                        [node("Cast", ["a"], ["e"], to=7)], "e", [], [tensor("e", None, 7)]
                    ),
                )
            ],
            [tensor("a"), tensor("k", (), TensorProto.BOOL)],
        ),
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_other_rules(name: str) -> None:
    kind, text, make = MORE[name]
    with pytest.raises(kind) as caught:
        load(make().SerializeToString())
    assert text in caught.value.text  # type: ignore[attr-defined]


def test_an_error_names_node_found_expected_and_cure() -> None:
    with pytest.raises(errors.Fail) as caught:
        load(ROWS[22][2]().SerializeToString())
    assert caught.value.node == "ad" and caught.value.cure and "tensor(int32)" in (caught.value.found or "")
    assert "\n  node: ad" in str(caught.value)


@needs("POSIX")
def test_pipes_and_devices_are_refused_at_once(tmp_path: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", "/dev/null"):
        with pytest.raises(errors.InvalidProtobuf, match="Protobuf parsing failed"):
            load(path)


def test_a_model_over_the_limit(tmp_path: Any) -> None:
    with pytest.raises(errors.Fail, match="larger than the limit"):
        load(relu().SerializeToString(), limits=Limits(max_model_bytes=10))


def test_released_opsets_only() -> None:
    newest = onnx.defs.onnx_opset_version()
    load(model([node("Relu", ["a"], ["c"])], opsets={"": newest}, ir=onnx.IR_VERSION), released_only=True)
    with pytest.raises(errors.Fail, match="is under development"):
        load(model([node("Relu", ["a"], ["c"])], opsets={"": newest + 1}), released_only=True)
