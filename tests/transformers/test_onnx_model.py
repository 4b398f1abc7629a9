"""OnnxModel: what its searches find and its edits change, as onnxruntime's does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from encoders import Encoder
from graphs import info, model
from onnx import TensorProto, helper, numpy_helper

import orthrus
from orthrus.quantization.refused import Failed, InvalidValue
from orthrus.transformers import onnx_utils
from orthrus.transformers.fusion.base import Fusion
from orthrus.transformers.fusion.classes import AttentionMask, FusionAttention, FusionGelu
from orthrus.transformers.fusion.fusion_utils import FusionUtils
from orthrus.transformers.model.onnx_model import OnnxModel
from orthrus.transformers.model.shape_infer_helper import SymbolicShapeInferenceHelper

node = helper.make_node


def small(kind: Any = OnnxModel) -> Any:
    nodes = [node("MatMul", ["x", "w"], ["a"], "mm"), node("Add", ["a", "b"], ["c"], "add"),
             node("Cast", ["c"], ["d"], "c1", to=10), node("Cast", ["d"], ["e"], "c2", to=1),
             node("Relu", ["e"], ["y"], "r"), node("Relu", ["c"], ["z"], "r2")]
    made = model(nodes, [info("x", shape=("N", 4))], [info(n, shape=("N", 4)) for n in "yz"],
                 {"w": np.eye(4, dtype=np.float32), **{b: np.ones(4, np.float32) for b in ("b", "b2")}},
                 opset=17, ir_version=8)
    return kind(made)


def theirs() -> Any:
    return pytest.importorskip("onnxruntime.transformers.onnx_model").OnnxModel


def shown(value: Any) -> Any:
    """A result with nodes, tensors and values as their names."""
    if isinstance(value, list | tuple):
        return [shown(v) for v in value]
    if isinstance(value, dict):
        return {k: shown(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    name = getattr(value, "name", value)
    return name if isinstance(name, str | int | float | bool | None) else value


def by_name(it: Any) -> dict[str, Any]:
    return {n.name: n for n in it.nodes()}


QUESTIONS: dict[str, Any] = {
    "readers": lambda m, n: m.input_name_to_nodes(), "makers": lambda m, n: m.output_name_to_node(),
    "inputs": lambda m, n: (m.get_graphs_input_names(), m.get_graphs_output_names()),
    "graph": lambda m, n: (m.get_graph_by_node(n["r"]), m.get_graph_by_name("none")),
    "insert": lambda m, n: [m.get_topological_insert_id(m.graph(), [v]) for v in ("c", "none")],
    "initializer": lambda m, n: (m.get_initializer("w"), m.get_initializer("none")),
    "children": lambda m, n: (m.get_children(n["add"]), m.get_children(n["add"], output_index=0)),
    "parents": lambda m, n: (m.get_parents(n["add"]), [m.get_parent(n["add"], i) for i in (0, 1, 9)]),
    "first parent": lambda m, n: [m.match_first_parent(n["r2"], k, m.output_name_to_node())
                                  for k in ("Add", "Mul")],
    "parent": lambda m, n: [m.match_parent(n["r2"], "Add", i) for i in (None, 0, 5)],
    "path": lambda m, n: [m.match_parent_path(n["r2"], t, i) for t, i in (
        (["Add", "MatMul"], [0, None]), (["Add", "Mul"], [0, 0]), (["Add"], None))],
    "paths": lambda m, n: [m.match_parent_paths(n["r2"], p, m.output_name_to_node()) for p in (
        [(["Mul"], [0]), (["Add"], [None])], [(["Mul"], [0])])],
    "all paths": lambda m, n: m.match_parent_paths_all(n["r2"], [(["Mul"], [0]), (["Add"], [None])],
                                                       m.output_name_to_node()),
    "child": lambda m, n: [m.find_first_child_by_type(n["mm"], "Relu", recursive=r) for r in (True, False)],
    "ancestor": lambda m, n: [m.find_first_parent_by_type(n["r"], "MatMul", recursive=r)
                              for r in (True, False)],
    "child path": lambda m, n: [m.match_child_path(n["mm"], ["Add", "Cast"], e) for e in (
        None, [(0, 0), (0, 0)], [(0, 1), (0, 0)])],
    "constants": lambda m, n: (m.get_constant_value("b"), m.get_constant_value("x"),
                               m.get_constant_input(n["add"]), m.find_constant_input(n["add"], 1.0),
                               m.is_constant_with_specified_dimension("b", 1, "b")),
    "between": lambda m, n: (m.get_children_subgraph_nodes(n["mm"], [n["c2"]]),
                             m.get_parent_subgraph_nodes(n["r"], [n["mm"]])),
    "types": lambda m, n: [(m.get_dtype(v), m.get_shape(v)) for v in ("b", "x", "a")],
    "attribute": lambda m, n: (m.get_node_attribute(n["c1"], "to"), m.get_node_attribute(n["c1"], "none")),
    "names": lambda m, n: [m.create_node_name("Relu"), m.create_node_name("Relu"),
                           m.create_node_name("Relu", "P_")],
    "found": lambda m, n: (m.find_graph_input("x"), m.find_graph_output("y"), m.get_graph_inputs(n["mm"]),
                           m.get_graph_inputs(n["r"], True), m.input_index("b", n["add"])),
    "safe": lambda m, n: [m.is_safe_to_fuse_nodes([n["mm"], n["add"]], [k], m.input_name_to_nodes(),
                                                  m.output_name_to_node()) for k in ("c", "none")],
    "statistics": lambda m, n: (m.get_operator_statistics(), m.get_operator_statistics(True),
                                m.get_opset_version(), m.use_float16()),
    "equal": lambda m, n: [m.has_same_value(*map(m.get_initializer, k)) for k in (("b", "b2"), ("b", "w"))],
}

EDITS: dict[str, Any] = {
    "duplicates": lambda m, n: m.remove_duplicated_initializer(None),
    "unused": lambda m, n: m.remove_unused_constant(),
    "cascaded": lambda m, n: m.remove_cascaded_cast_nodes(),
    "useless": lambda m, n: (m.remove_cascaded_cast_nodes(), m.remove_useless_cast_nodes()),
    "prune": lambda m, n: m.prune_graph(["z"]), "update": lambda m, n: m.update_graph(),
    "prefix": lambda m, n: m.add_prefix_to_names("p_"),
    "input type": lambda m, n: m.change_graph_input_type(m.graph().input[0], 10),
    "rename": lambda m, n: m.rename_graph_output("y", "yy"),
    "replace": lambda m, n: (m.replace_input_of_all_nodes("c", "q"),
                             m.replace_output_of_all_nodes("a", "q2")),
    "remove": lambda m, n: (m.remove_nodes([n["mm"], n["add"]]),
                            m.remove_initializer(m.get_initializer("w"))),
    "add": lambda m, n: (m.add_node(node("Neg", ["c"], ["n"], "neg")),
                         m.add_initializer(numpy_helper.from_array(np.ones(1), "q")),
                         m.add_input(info("k", shape=(1,)))),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_finds_what_onnxruntimes_finds(question: str) -> None:
    ours, other = small(), small(theirs())
    found, expected = (shown(QUESTIONS[question](it, by_name(it))) for it in (ours, other))
    assert found == expected


@pytest.mark.parametrize("edit", EDITS)
def test_it_changes_what_onnxruntimes_changes(edit: str) -> None:
    ours, other = small(), small(theirs())
    for it in (ours, other):
        EDITS[edit](it, by_name(it))
    a, b = ours.model.graph, other.model.graph
    assert (a.node, a.input, a.output) == (b.node, b.input, b.output)
    kept = [{t.name for t in g.initializer} for g in (a, b)]
    read = {name for node in a.node for name in node.input}
    assert kept[0] & read == kept[1] & read, "weights that nothing reads may go earlier or later"


def test_an_output_of_another_type_is_cast_once() -> None:
    it = small()
    cast = it.change_graph_output_type(it.graph().output[0], TensorProto.FLOAT16)
    assert cast is not None
    assert it.output_name_to_node()["y"] == cast
    assert it.change_graph_output_type(it.graph().output[0], TensorProto.FLOAT16) is None
    onnx.checker.check_model(it.model, full_check=True)


def test_files_are_whole_and_the_model_keeps_its_weights(tmp_path: Path) -> None:
    it = small()
    it.graph().node.insert(0, it.graph().node.pop())
    weight = numpy_helper.to_array(it.get_initializer("w"))
    it.save_model_to_file(tmp_path / "m.onnx", use_external_data_format=True, size_threshold=1)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
    np.testing.assert_array_equal(numpy_helper.to_array(it.get_initializer("w")), weight)
    back = onnx.load(tmp_path / "m.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(back.graph.initializer[0]), weight)
    onnx.checker.check_model(back)
    it.save_model_to_file(tmp_path / "each.onnx", True, all_tensors_to_one_file=False, size_threshold=1)
    assert onnx.load(tmp_path / "each.onnx").graph.node == it.graph().node


def test_wrong_names_and_circles_are_refused() -> None:
    it = small()
    with pytest.raises(InvalidValue, match="output"):
        it.prune_graph(["none"])
    with pytest.raises(InvalidValue, match="graph"):
        it.add_node(node("Neg", ["c"], ["n"]), "none")
    it.graph().node[0].input[0] = "z"
    with pytest.raises(Failed, match="circle"):
        it.topological_sort()


@pytest.mark.parametrize("by_name", [False, True])
def test_nodes_stand_in_onnxruntimes_order(by_name: bool) -> None:
    """Also where they are in an order of their own already: scripts compare sorted models node by node."""
    for seed in range(20):
        draw = random.Random(seed)
        names = draw.sample(range(100), 12)
        nodes = [node("Sum", draw.sample([f"v{n}" for n in names[:i]] or ["x"], min(i, 2) or 1), [f"v{name}"],
                      name=f"n{draw.choice(names)}_{i}") for i, name in enumerate(names)]
        if seed % 2:
            draw.shuffle(nodes)
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
        graph = helper.make_graph(nodes, "g", [given], [])
        made = []
        for kind in (OnnxModel, theirs()):
            it = kind(helper.make_model(graph))
            it.topological_sort(is_deterministic=by_name)
            made.append([n.name for n in it.model.graph.node])
        assert made[0] == made[1]


def test_weights_apart_are_values_of_the_runtime() -> None:
    weight = numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    graph = helper.make_graph([node("Neg", ["w"], ["y"])], "g", [],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])], [weight])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    names, values = onnx_utils.extract_raw_data_from_model(model)
    assert onnx_utils.has_external_data(model)
    options = orthrus.SessionOptions()
    options.add_external_initializers(list(names), list(values))
    found = orthrus.InferenceSession(model.SerializeToString(), options).run(None, {})[0]
    np.testing.assert_array_equal(found, [0, -1, -2])


def test_shapes_for_sizes() -> None:
    helped = small().infer_runtime_shape({"N": 3})
    assert helped.get_edge_shape("a") == [3, 4]
    helped = SymbolicShapeInferenceHelper(small().model)
    assert helped.infer({})
    assert helped.get_edge_shape("c") == ["N", 4]
    assert helped.compare_shape("a", "c")
    with pytest.raises(KeyError):
        helped.compare_shape("a", "none")


def test_float16() -> None:
    it = small()
    it.convert_float_to_float16(keep_io_types=False)
    assert it.use_float16()
    assert it.get_dtype("w") == TensorProto.FLOAT16


def test_fusions_one_by_one() -> None:
    it = OnnxModel(Encoder().model())
    gelu = FusionGelu(it)
    gelu.apply()
    assert gelu.fused_count == {"Gelu": 2}
    attention = FusionAttention(it, 8, 2, AttentionMask(it))
    attention.apply()
    assert attention.fused_count == {"Attention": 2}


def test_a_fusion_of_ones_own() -> None:
    class DropReluCast(Fusion):
        def fuse(self, node: Any, input_name_to_nodes: Any, output_name_to_node: Any) -> None:
            path = self.model.match_parent_path(node, ["Cast", "Cast"], [0, 0], output_name_to_node)
            if path is not None:
                self.add_nodes_to_remove([node, *path])
                self.nodes_to_add.append(helper.make_node("Relu", [path[-1].input[0]], node.output, "made"))
                self.node_name_to_graph_name["made"] = self.this_graph_name or ""
                self.increase_counter("Relu")

    it = small()
    own = DropReluCast(it, "Relu", "Relu")
    own.apply()
    assert own.fused_count == {"Relu": 1}
    assert it.get_operator_statistics() == {"MatMul": 1, "Add": 1, "Relu": 2}
    onnx.checker.check_model(it.model, full_check=True)


def test_small_edits() -> None:
    it = small()
    edits = FusionUtils(it)
    assert edits.cast_graph_input_to_int32("x") == (True, "x_int32")
    edits.remove_cast_int32("x")
    assert "x_int32" not in it.output_name_to_node()
    edits.remove_cascaded_cast_nodes()
    edits.remove_useless_cast_nodes()
    assert it.get_operator_statistics() == {"MatMul": 1, "Add": 1, "Relu": 2}
    assert FusionUtils.check_node_attribute(node("Softmax", ["x"], ["y"]), "axis", -1, -1)
    assert edits.check_node_input_value(it.nodes()[1], 1, [1.0] * 4)
