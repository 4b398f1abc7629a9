"""Small matters in which programs and models written for onnxruntime rely on what it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort

VALUE = helper.make_tensor_value_info


def session(nodes: list[Any], inputs: list[Any], opsets: tuple[tuple[str, int], ...] = (("", 17),)
            ) -> ort.InferenceSession:
    graph = helper.make_graph(nodes, "g", inputs, [VALUE("y", inputs[0].type.tensor_type.elem_type, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*each) for each in opsets])
    model.ir_version = 9
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


FLOAT = VALUE("x", TensorProto.FLOAT, [2, 2, 2])
X = np.arange(8, dtype=np.float32).reshape(2, 2, 2)


@pytest.mark.parametrize("op_type", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_an_attribute_that_is_overlooked(op_type: str) -> None:
    node = helper.make_node(op_type, ["x", "s"], ["y"], unknown=1)
    made = session([node], [FLOAT, VALUE("s", TensorProto.FLOAT, [2])])
    assert np.isfinite(made.run(None, {"x": X, "s": np.ones(2, np.float32)})[0]).all()


@pytest.mark.parametrize(("op_type", "domain"), [("Relu", ""), ("Gelu", "com.microsoft")])
def test_an_attribute_that_is_refused(op_type: str, domain: str) -> None:
    node = helper.make_node(op_type, ["x"], ["y"], domain=domain, unknown=1)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidGraph, match="Unrecognized attribute"):
        session([node], [FLOAT], (("", 17), ("com.microsoft", 1)))


@pytest.mark.parametrize("domain", ["com.microsoft", "com.microsoft.unknown", "elsewhere"])
def test_an_operator_nobody_has(domain: str) -> None:
    node = helper.make_node("Unheard", ["x"], ["y"], domain=domain)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="is not a registered function/op"):
        session([node], [FLOAT], (("", 17), (domain, 1)))


@pytest.mark.parametrize("values", [(1, 2), (2, 1), (1, 2, 3)])
def test_of_constants_with_one_name_the_last_counts(values: tuple[float, ...]) -> None:
    nodes = [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(v)))
             for v in values]
    made = session([*nodes, helper.make_node("Mul", ["x", "c"], ["y"])], [FLOAT])
    assert (made.run(None, {"x": X})[0] == X * values[-1]).all()


def test_another_node_does_not_define_a_name_again() -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(1)))
    again = helper.make_node("Relu", ["x"], ["c"])
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="Duplicate definition"):
        session([constant, again, helper.make_node("Add", ["x", "c"], ["y"])], [FLOAT])


@pytest.mark.parametrize("versions", [(17, 11), (11, 17)])
def test_of_two_imports_of_a_domain_the_last_counts(versions: tuple[int, int]) -> None:
    made = session([helper.make_node("Softmax", ["x"], ["y"])], [FLOAT], tuple(("", v) for v in versions))
    axes = -1 if versions[-1] >= 13 else (1, 2)
    np.testing.assert_allclose(made.run(None, {"x": X})[0].sum(axes), 1, rtol=1e-6)


def test_text_comes_as_bytes_of_either_kind() -> None:
    made = session([helper.make_node("Identity", ["x"], ["y"])], [VALUE("x", TensorProto.STRING, [2])])
    for given, wanted in ((np.array([b"ab", b"c"]), ["ab", "c"]),
                          (np.array([b"ab", "ö".encode()]).astype("V2"), ["ab", "ö"])):
        assert made.run(None, {"x": given})[0].tolist() == wanted
    for kind in ("S2", "V2"):
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="no text"):
            made.run(None, {"x": np.array([b"ab", b"\xff\xfe"]).astype(kind)})


@pytest.mark.parametrize("name", ["GraphOptimizationLevel", "ExecutionMode", "OrtMemType"])
def test_classes_of_numbers_have_properties(name: str) -> None:
    kind = getattr(ort, name)
    assert type(kind.name) is type(kind.value) is property
    for member in kind:
        assert kind.name.fget(member) == member.name and kind.value.fget(member) == member.value


def test_the_build_is_described() -> None:
    assert "Build Info" in ort.get_build_info()


def test_coefficients_beyond_those_of_the_classes() -> None:
    rows = [1.0, 2.0, -3.0, 4.0]
    made = {}
    for extra in ([], [5.0], [5.0, -6.0, 7.0]):
        node = helper.make_node("LinearClassifier", ["x"], ["l", "y"], domain="ai.onnx.ml",
                                coefficients=rows + extra, intercepts=[0.5, 0.25], classlabels_ints=[4, 5])
        x = VALUE("x", TensorProto.FLOAT, [None, 2])
        made[len(extra)] = session([node], [x], (("", 17), ("ai.onnx.ml", 1))).run(
            None, {"x": np.array([[1, 2], [3, -4]], np.float32)})[0]
    assert made[0].tolist() == [[5.5, 5.25], [-4.5, -24.75]]
    assert all((found == made[0]).all() for found in made.values())
