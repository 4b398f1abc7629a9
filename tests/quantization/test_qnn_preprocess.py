"""A model made ready for QNN: onnxruntime's on the same models, up to names; inputs and outputs
channel-last; files that are whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from same_graphs import difference

import orthrus
from orthrus.errors import InvalidArgument
from orthrus.quantization.execution_providers.qnn.preprocess import (
    qnn_preprocess_model,
    update_io_to_channel_last,
)

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(3)


def network(opset: int = 17, batch: int | str = 1, named: bool = True, weight_as_input: bool = False,
            norm: bool = False) -> onnx.ModelProto:
    """A convolution, a Gelu in parts and, if `norm`, a LayerNormalization in parts."""
    weights = {"w": RNG.normal(size=(4, 3, 3, 3)), "root": np.sqrt(2), "one": 1.0, "half": 0.5, "two": 2.0,
               "eps": 1e-5, "scale": RNG.normal(size=8), "bias": RNG.normal(size=8)}
    axes: dict[str, Any] = {"axes": [-1]}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
             helper.make_node("Div", ["c", "root"], ["d"]), helper.make_node("Erf", ["d"], ["e"]),
             helper.make_node("Add", ["e", "one"], ["f"]), helper.make_node("Mul", ["c", "half"], ["h"]),
             helper.make_node("Mul", ["h", "f"], ["g" if norm else "y"])]
    if norm:
        nodes += [helper.make_node("ReduceMean", ["g"], ["m"], **axes),
                  helper.make_node("Sub", ["g", "m"], ["s"]), helper.make_node("Pow", ["s", "two"], ["p"]),
                  helper.make_node("ReduceMean", ["p"], ["v"], **axes),
                  helper.make_node("Add", ["v", "eps"], ["a"]), helper.make_node("Sqrt", ["a"], ["r"]),
                  helper.make_node("Div", ["s", "r"], ["n"]), helper.make_node("Mul", ["n", "scale"], ["t"]),
                  helper.make_node("Add", ["t", "bias"], ["y"])]
    for index, node in enumerate(nodes if named else ()):
        node.name = f"n{index}"
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in weights.items() if k in used]
    inputs = [helper.make_tensor_value_info("x", FLOAT, [batch, 3, 6, 8])]
    if weight_as_input:
        inputs.append(helper.make_tensor_value_info("w", FLOAT, [4, 3, 3, 3]))
    outputs = [helper.make_tensor_value_info("y", FLOAT, [batch, 4, 6, 8])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}), "older": ({"opset": 13}, {}), "nameless": ({"named": False}, {}),
    "input last": ({}, {"inputs_to_make_channel_last": ["x"]}),
    "both last": ({}, {"inputs_to_make_channel_last": ["x"], "outputs_to_make_channel_last": ["y"]}),
    "fixed": ({"batch": "n"}, {"dynamic_input_shapes": [("x", "2,3,6,8")]}),
    "weight is an input": ({"weight_as_input": True}, {"exclude_initializer_from_input": True}),
    "norm": ({"norm": True}, {"fuse_layernorm": True}),
    "norm too old": ({"norm": True, "opset": 13}, {"fuse_layernorm": True}),
}


def small(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without what onnxruntime writes out: domains that no node is of, attributes that say their
    default."""
    used = {node.domain for node in model.graph.node}
    versions = {entry.domain: entry.version for entry in model.opset_import if entry.domain in used}
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, versions[domain]) for domain in sorted(versions))
    for node in model.graph.node:
        if onnx.defs.has(node.op_type, versions[node.domain], node.domain):
            schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
            defaults = {name: kind.default_value for name, kind in schema.attributes.items()}
            said = [a for a in node.attribute if not defaults[a.name].type
                    or helper.get_attribute_value(a) != helper.get_attribute_value(defaults[a.name])]
            kept = onnx.NodeProto(attribute=said)
            del node.attribute[:]
            node.attribute.extend(kept.attribute)
    return model


@pytest.mark.parametrize("name", OPTIONS)
def test_the_model_is_theirs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from onnxruntime.quantization.execution_providers.qnn import qnn_preprocess_model as theirs

    made, options = OPTIONS[name]
    model = network(**made)
    onnx.save(model, tmp_path / "model.onnx")
    assert qnn_preprocess_model(tmp_path / "model.onnx", tmp_path / "ours.onnx", **options)
    assert theirs(tmp_path / "model.onnx", tmp_path / "theirs.onnx", **options)
    ours, peer = onnx.load(tmp_path / "ours.onnx"), onnx.load(tmp_path / "theirs.onnx")
    onnx.checker.check_model(ours)
    assert difference(small(ours), small(peer)) == ""
    assert all(node.name for node in ours.graph.node)
    assert [p.key for p in ours.metadata_props] == [p.key for p in peer.metadata_props]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_model_computes_the_same(name: str, tmp_path: Path) -> None:
    made, options = OPTIONS[name]
    model = network(**made)
    assert qnn_preprocess_model(model, tmp_path / "m.onnx", **options)
    x = RNG.normal(size=(2 if "dynamic_input_shapes" in options else 1, 3, 6, 8)).astype(np.float32)
    [expected] = orthrus.InferenceSession(model).run(None, {"x": x})
    moved = x.transpose(0, 2, 3, 1) if options.get("inputs_to_make_channel_last") else x
    [found] = orthrus.InferenceSession(tmp_path / "m.onnx").run(None, {"x": moved})
    if options.get("outputs_to_make_channel_last"):
        found = found.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_nothing_is_written_where_nothing_is_to_do(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], "relu")
    infos = [helper.make_tensor_value_info(name, FLOAT, [2]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]), ir_version=8)
    assert not qnn_preprocess_model(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("one_file", [True, False])
def test_weights_beside_the_model(one_file: bool, tmp_path: Path) -> None:
    for _ in range(2):
        assert qnn_preprocess_model(network(), tmp_path / "m.onnx", save_as_external_data=True,
                                    all_tensors_to_one_file=one_file, external_data_size_threshold=0,
                                    external_data_location="w.bin" if one_file else None)
        files = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
        assert ("w.bin" in files) is one_file and "m.onnx" in files
        assert sum(size for name, size in files.items() if name != "m.onnx") == 4 * 4 * 27
    onnx.checker.check_model(str(tmp_path / "m.onnx"))
    orthrus.InferenceSession(tmp_path / "m.onnx")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"inputs_to_make_channel_last": ["z"]}, "z is not a graph input"),
    "no output": ({"outputs_to_make_channel_last": ["x"]}, "x is not a graph output"),
    "no shape": ({"dynamic_input_shapes": [("x", "1,3,a,b")]}, "the shape of input 'x' cannot be fixed"),
    "another rank": ({"dynamic_input_shapes": [("x", "1,3")]}, "Rank mismatch"),
    "another size": ({"dynamic_input_shapes": [("x", "1,4,6,8")]}, "fixed size of 3"),
    "unknown": ({"dynamic_input_shapes": [("z", "1,4,6,8")]}, "was not found"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_a_typed_error(name: str, tmp_path: Path) -> None:
    options, text = WRONG[name]
    with pytest.raises(ValueError, match=text) as error:
        qnn_preprocess_model(network(), tmp_path / "m.onnx", **options)
    assert isinstance(error.value, InvalidArgument)
    assert not list(tmp_path.iterdir())


def test_a_low_rank_cannot_be_channel_last() -> None:
    model = helper.make_model(helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", FLOAT, None)]), ir_version=8)
    before = model.SerializeToString()
    for given, text in ((["x"], None), "rank >= 3"), ((None, ["y"]), "with a shape"):
        with pytest.raises(ValueError, match=text):
            update_io_to_channel_last(model, *given)
    assert model.SerializeToString() == before


def test_a_body_reads_the_input_inside() -> None:
    """An input that is channel-last outside is read as it was in a branch too, under a name that is free."""
    out = helper.make_tensor_value_info("b", FLOAT, None)
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "body", [], [out])
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
             helper.make_node("Abs", ["x"], ["x_channel_first_4"]),
             helper.make_node("Abs", ["x_channel_first_4"], ["z"])]
    model = helper.make_model(helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [1, 2, 3, 4])],
        [helper.make_tensor_value_info(n, FLOAT, [1, 2, 3, 4]) for n in "yz"],
        [numpy_helper.from_array(np.array(True), "flag")]), ir_version=8)
    update_io_to_channel_last(model, ["x"], [])
    assert [n.name for n in model.graph.node][-1] == "Transpose_channel_0"
    nodes = [model.graph.node[-1], *model.graph.node[:-1]]
    assert list(nodes[0].output) == ["x_channel_first_5"]
    ordered = onnx.GraphProto(node=nodes)
    model.graph.ClearField("node")
    model.graph.node.extend(ordered.node)
    x = RNG.normal(size=(1, 3, 4, 2)).astype(np.float32)
    y, z = orthrus.InferenceSession(model).run(None, {"x": x})
    np.testing.assert_array_equal(y, -x.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(z, abs(x.transpose(0, 3, 1, 2)))
