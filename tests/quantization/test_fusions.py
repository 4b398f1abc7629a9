"""Fusions before quantization: onnxruntime's on the same models, up to names; what they must not take; the
interface for those who write their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from same_graphs import difference

import orthrus
from orthrus.quantization.execution_providers.qnn.fusion_lpnorm import FusionLpNormalization
from orthrus.quantization.execution_providers.qnn.fusion_spacetodepth import FusionSpaceToDepth
from orthrus.quantization.fusions import (
    Fusion,
    FusionGelu,
    FusionLayerNormalization,
    ReplaceUpsampleWithResize,
)
from orthrus.quantization.onnx_model import ONNXModel

FLOAT = TensorProto.FLOAT


class Draft:
    """A model in the making: `draft.Mul(x, 0.5)` adds a node and gives the name of its result."""

    def __init__(self, shape: tuple[int | str, ...], opset: int = 17, constants: bool = False) -> None:
        self.shape, self.opset, self.constants = shape, opset, constants
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, value: Any) -> str:
        name = f"c{len(self.weights) + len(self.nodes)}"
        array = value if isinstance(value, np.ndarray) else np.asarray(value, np.float32)
        tensor = numpy_helper.from_array(array, name)
        if self.constants:
            self.nodes.append(helper.make_node("Constant", [], [name], f"n_{name}", value=tensor))
        else:
            self.weights.append(tensor)
        return name

    def __getattr__(self, kind: str) -> Callable[..., str]:
        def add(*inputs: Any, **attributes: Any) -> str:
            names = [v if isinstance(v, str) else self.constant(v) for v in inputs]
            result = f"v{len(self.nodes)}"
            self.nodes.append(helper.make_node(kind, names, [result], f"n{len(self.nodes)}", **attributes))
            return result
        return add

    def model(self, *outputs: str) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("x", FLOAT, self.shape)
        made = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", [given], made, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def pytorch(d: Draft, half_first: bool = True, root: float = 2 ** 0.5) -> str:
    e = d.Add(d.Erf(d.Div("x", root)), 1.0)
    return d.Mul(d.Mul("x", 0.5), e) if half_first else d.Mul(d.Mul("x", e), 0.5)


def keras(d: Draft, computed: bool) -> str:
    root = d.Sqrt(2.0) if computed else 1.4142
    return d.Mul("x", d.Mul(0.5, d.Add(1.0, d.Erf(d.Div("x", root)))))


def tensorflow(d: Draft) -> str:
    return d.Mul(d.Mul(d.Add(d.Erf(d.Mul(0.70710677, "x")), 1.0), 0.5), "x")


GELUS: dict[str, Callable[[Draft], str]] = {
    "pytorch": pytorch, "half last": lambda d: pytorch(d, False),
    "few digits": lambda d: pytorch(d, root=1.4142),
    "keras": lambda d: keras(d, False), "computed root": lambda d: keras(d, True), "tensorflow": tensorflow,
    "two": lambda d: d.Add(pytorch(d), tensorflow(d)), "another root": lambda d: pytorch(d, root=1.5),
    "another half": lambda d: d.Mul(d.Mul("x", 0.4), d.Add(d.Erf(d.Div("x", 1.4142135)), 1.0)),
    "no erf": lambda d: d.Mul("x", d.Tanh("x"))}


def layer_norm(d: Draft, square: str = "Pow", cast: bool = False, twice: bool = False, epsilon: float = 1e-5,
               axis: int = -1, weight: Any = None, **more: Any) -> str:
    axes: dict[str, Any] = {} if d.opset >= 18 else {"axes": [axis]}
    along = [np.array([axis])] if d.opset >= 18 else []
    mean = d.ReduceMean("x", *along, **axes, **more)
    low = d.Sub("x", mean)
    top = d.Sub("x", mean) if twice else low
    low = d.Cast(low, to=1) if cast else low
    squared = d.Pow(low, 2.0) if square == "Pow" else d.Mul(low, low)
    root = d.Sqrt(d.Add(d.ReduceMean(squared, *along, **axes, **more), epsilon))
    weight = np.linspace(0.5, 2, 4, dtype=np.float32) if weight is None else weight
    return d.Add(d.Mul(d.Div(top, root), weight), np.linspace(-1, 1, 4, dtype=np.float32))


NORMS: dict[str, Callable[[Draft], str]] = {
    "pow": layer_norm, "mul": lambda d: layer_norm(d, "Mul"), "cast": lambda d: layer_norm(d, cast=True),
    "twice": lambda d: layer_norm(d, twice=True),
    "twice and cast": lambda d: layer_norm(d, twice=True, cast=True),
    "large epsilon": lambda d: layer_norm(d, epsilon=1e-3), "last by number": lambda d: layer_norm(d, axis=2),
    "scale of rank 2": lambda d: layer_norm(d, weight=np.ones((1, 4), np.float32))}


def lp_norm(d: Draft, epsilon: float = 1e-12, axis: int = -1, largest: float | None = None) -> str:
    axes: dict[str, Any] = {} if d.opset >= 18 else {"axes": [axis]}
    along = [np.array([axis])] if d.opset >= 18 else []
    length = d.ReduceL2("x", *along, keepdims=1, **axes)
    bounds = [epsilon] if largest is None else [epsilon, largest]
    return d.Div("x", d.Expand(d.Clip(length, *bounds), np.array([2, 3, 4])))


LENGTHS: dict[str, Callable[[Draft], str]] = {
    "last": lp_norm, "last by number": lambda d: lp_norm(d, axis=2),
    "another axis": lambda d: lp_norm(d, axis=1),
    "large epsilon": lambda d: lp_norm(d, 1e-6), "bounded above": lambda d: lp_norm(d, largest=5.0)}


def space_to_depth(d: Draft, perm: tuple[int, ...] = (0, 2, 1, 3, 4)) -> str:
    n, c, h, w, b = 1, 3, 4, 6, 2
    y = d.Transpose(d.Reshape("x", np.array([n, c, h // b, b, w // b, b])), perm=[0, 1, 2, 4, 3, 5])
    y = d.Transpose(d.Reshape(y, np.array([n, c, h // b * w // b, b * b])), perm=[0, 1, 3, 2])
    y = d.Transpose(d.Reshape(y, np.array([n, c, b * b, h // b, w // b])), perm=list(perm))
    return d.Reshape(y, np.array([n, b * b * c, h // b, w // b]))


BLOCKS: dict[str, Callable[[Draft], str]] = {
    "yolo": space_to_depth, "another order": lambda d: space_to_depth(d, (0, 1, 2, 3, 4))}

CASES = [pytest.param(kind, build, shape, fused, id=f"{kind.__name__}-{name}")
         for kind, builds, shape, left in (
             (FusionGelu, GELUS, (2, 3, 4), ("another root", "another half", "no erf")),
             (FusionLayerNormalization, NORMS, (2, 3, 4), ("large epsilon", "scale of rank 2")),
             (FusionLpNormalization, LENGTHS, (2, 3, 4), ("another axis", "large epsilon", "bounded above")),
             (FusionSpaceToDepth, BLOCKS, (1, 3, 4, 6), ("another order",)))
         for name, build in builds.items() for fused in [name not in left]]


def theirs(kind: type) -> Any:
    """Onnxruntime's class of the same name, and its model."""
    pytest.importorskip("onnxruntime")
    import importlib

    module = importlib.import_module(kind.__module__.replace("orthrus", "onnxruntime"))
    models = importlib.import_module("onnxruntime.quantization.onnx_model")
    return getattr(module, kind.__name__), models.ONNXModel


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    other = onnx.ModelProto()
    other.CopyFrom(model)
    return other


def results(model: onnx.ModelProto, shape: tuple[int, ...]) -> list[np.ndarray]:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return orthrus.InferenceSession(model).run(None, {"x": x})


@pytest.mark.parametrize("constants", [False, True], ids=["initializers", "constants"])
@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(("kind", "build", "shape", "fused"), CASES)
def test_a_fusion_does_what_theirs_does(kind: Any, build: Any, shape: Any, fused: bool, opset: int,
                                        constants: bool) -> None:
    draft = Draft(shape, opset, constants)
    model = draft.model(build(draft))
    ours, peer = copied(model), copied(model)
    assert kind(ONNXModel(ours)).apply() is fused
    fusion, holder = theirs(kind)
    assert fusion(holder(peer)).apply() is fused
    assert difference(ours, peer) == ""
    assert {n.name for n in ours.graph.node} == {n.name for n in peer.graph.node}


@pytest.mark.parametrize(("kind", "build", "shape"), [case.values[:3] for case in CASES if case.values[3]],
                         ids=[case.id for case in CASES if case.values[3]])
def test_a_fused_model_computes_the_same(kind: Any, build: Any, shape: Any) -> None:
    draft = Draft(shape)
    model = draft.model(build(draft))
    before = results(model, shape)
    assert kind(ONNXModel(model)).apply()
    for expected, found in zip(before, results(model, shape), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


FUSED = {"gelu": (FusionGelu, pytorch, (2, 3, 4)), "norm": (FusionLayerNormalization, layer_norm, (2, 3, 4)),
         "length": (FusionLpNormalization, lp_norm, (2, 3, 4)),
         "blocks": (FusionSpaceToDepth, space_to_depth, (1, 3, 4, 6))}


def reading(name: str) -> onnx.NodeProto:
    """An If whose branches read `name` from outside."""
    made = helper.make_tensor_value_info("inner", FLOAT, None)
    body = helper.make_graph([helper.make_node("Abs", [name], ["inner"])], "body", [], [made])
    return helper.make_node("If", ["x_is"], ["chosen"], "if", then_branch=body, else_branch=body)


@pytest.mark.parametrize("name", FUSED)
def test_a_value_that_is_read_elsewhere_stays(name: str) -> None:
    kind, build, shape = FUSED[name]
    draft = Draft(shape)
    last = build(draft)
    inner = [v for node in draft.nodes for v in node.output if v != last]
    for value in inner:
        output = copied(draft.model(last, value))
        assert not kind(ONNXModel(output)).apply(), f"{value} is an output"
        body = copied(draft.model(last))
        body.graph.initializer.append(numpy_helper.from_array(np.array(True), "x_is"))
        body.graph.node.append(reading(value))
        body.graph.output.add(name="chosen")
        assert not kind(ONNXModel(body)).apply(), f"{value} is read in a body"


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_a_mean_along_another_axis_is_no_layer_normalization(axis: int) -> None:
    draft = Draft((4, 4, 4))
    model = draft.model(layer_norm(draft, axis=axis))
    assert not FusionLayerNormalization(ONNXModel(model)).apply()


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 8, 9])
def test_upsample_written_as_resize_computes_the_same(opset: int, mode: str) -> None:
    scales = [1.0, 1.0, 2.0, 3.0]
    draft = Draft((1, 2, 3, 2), opset)
    told: Any = {"scales": scales} if opset < 9 else {}
    made = draft.Upsample("x", *[scales][:opset > 8], mode=mode, **told)
    model = draft.model(draft.Relu(made))
    expected = results(model, draft.shape)
    assert ReplaceUpsampleWithResize(ONNXModel(model), opset).apply()
    assert [n.op_type for n in model.graph.node if n.op_type != "Constant"] == ["Resize", "Relu"]
    model.opset_import[0].version = 11
    onnx.checker.check_model(model)
    np.testing.assert_array_equal(results(model, draft.shape)[0], expected[0])


def own_fusion(base: Any) -> Any:
    """A fusion as people write them: a product by two numbers becomes one by theirs."""
    class FusionProducts(base):
        def __init__(self, model: Any) -> None:
            super().__init__(model, "Mul", "Mul")

        def fuse(self, node: Any, input_name_to_nodes: Any, output_name_to_node: Any) -> None:
            path = self.match_parent_path(node, ["Mul"], [0], output_name_to_node)
            place, factor = self.get_constant_input(node)
            if path is None or place != 1 or not self.is_safe_to_fuse_nodes(
                    [node, path[0]], node.output, input_name_to_nodes, output_name_to_node):
                return
            _, first = self.get_constant_input(path[0])
            name = self.create_unique_node_name()
            self.model.add_initializer(numpy_helper.from_array(first * factor, f"{name}_b"))
            self.nodes_to_remove.extend([node, path[0]])
            self.nodes_to_add.append(helper.make_node("Mul", [path[0].input[0], f"{name}_b"], node.output,
                                                      name))
    return FusionProducts


def test_a_fusion_of_a_user_works_on_both() -> None:
    draft = Draft((2,))
    model = draft.model(draft.Mul(draft.Mul("x", 2.0), 3.0), draft.Mul(draft.Relu("x"), 4.0))
    ours, peer = copied(model), copied(model)
    base, holder = theirs(Fusion)
    for each, model_of, kind in ((ours, ONNXModel, Fusion), (peer, holder, base)):
        assert own_fusion(kind)(model_of(each)).apply()
    assert difference(ours, peer) == ""
    assert [n.name for n in ours.graph.node] == [n.name for n in peer.graph.node]


def asked(fusion: Any) -> list[Any]:
    """What the questions of a fusion answer of a model of two branches."""
    nodes = {node.op_type: node for node in fusion.model.nodes()}
    add, mul, relu = nodes["Add"], nodes["Mul"], nodes["Relu"]

    def name(found: Any) -> Any:
        return found.name if hasattr(found, "name") else [name(f) for f in found] if isinstance(
            found, list) else found

    open_places: list[Any] = []
    return [
        fusion.find_constant_input(mul, 2.0), fusion.find_constant_input(mul, 2.1),
        fusion.find_constant_input(mul, 2.1, 0.2), fusion.has_constant_input(mul, 2.0),
        fusion.get_constant_input(add), fusion.is_constant_with_specified_rank(mul.input[1], 0),
        fusion.is_constant_with_specified_rank(add.input[0], 1), fusion.input_index(relu.output[0], add),
        fusion.input_index("nothing", add), name(fusion.match_parent(add, "Relu", 1)),
        name(fusion.match_parent(add, "Relu", 0)), name(fusion.match_parent(add, "Relu", 5)),
        name(fusion.match_parent(add, "Mul", return_indice=open_places)), open_places,
        name(fusion.match_parent(add, "Mul", exclude=[mul])),
        name(list(fusion.match_first_parent(add, "Relu"))),
        name(fusion.match_parent_path(add, ["Relu", "Mul"])),
        name(fusion.match_parent_path(add, ["Relu", "Mul"], [0, 0])),
        name(list(fusion.match_parent_paths(add, [(["Mul"], [1]), (["Relu"], [1])],
                                            fusion.model.output_name_to_node()))),
        name(fusion.find_first_child_by_type(mul, "Neg")),
        name(fusion.find_first_child_by_type(mul, "Neg", recursive=False)),
        name(fusion.find_first_child_by_type(mul, "Relu", recursive=False)),
        fusion.get_node_attribute(nodes["Neg"], "nothing"),
        fusion.get_node_attribute(nodes["Concat"], "axis"),
        fusion.tensor_shape_to_list(fusion.model.get_tensor_type("x")), fusion.create_unique_node_name(),
        fusion.create_unique_node_name()]


def test_the_questions_of_a_fusion_answer_as_theirs() -> None:
    draft = Draft((2, "n"))
    product = draft.Mul("x", 2.0)
    total = draft.Neg(draft.Add(product, draft.Relu(product)))
    model = draft.model(draft.Concat(total, total, axis=0))
    base, holder = theirs(Fusion)
    assert asked(Fusion(ONNXModel(model), "A", "B")) == asked(base(holder(model), "A", "B"))
