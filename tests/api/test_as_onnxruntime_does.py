"""Small matters in which programs and models written for onnxruntime rely on what it does."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.errors import InvalidArgument

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


@pytest.mark.parametrize("in_body", [False, True])
def test_an_attribute_of_a_constant_that_is_overlooked(in_body: bool) -> None:
    one = numpy_helper.from_array(np.float32([1, 2]))
    nodes = [helper.make_node("Constant", [], ["c"], value=one), helper.make_node("Add", ["x", "c"], ["y"])]
    nodes[0].attribute.append(helper.make_attribute("unknown", 1))
    if in_body:
        body = helper.make_graph(nodes, "body", [], [VALUE("y", TensorProto.FLOAT, None)])
        yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
        nodes = [yes, helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=body)]
    np.testing.assert_array_equal(session(nodes, [FLOAT]).run(None, {"x": X})[0], X + np.float32([1, 2]))


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


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("features", [0, 1, 4])
@pytest.mark.parametrize("targets", [1, 2, 3])
def test_what_a_regressor_has_too_much_of(rows: int, features: int, targets: int) -> None:
    rng = np.random.default_rng(rows + 10 * features)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    weights = rng.normal(size=targets * features + 3).astype(np.float32)
    for extra, shifts in ((0, 0), (0, targets), (3, targets), (1, 1), (2, targets + 1)):
        held = weights[:targets * features + extra]
        if not held.size:
            continue
        attrs: dict[str, Any] = {"coefficients": held.tolist()}
        if shifts:
            attrs["intercepts"] = [1.5] * shifts
        attrs["targets"] = targets
        node = helper.make_node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attrs)
        given = VALUE("x", TensorProto.FLOAT, [None, None])
        y = session([node], [given], (("", 17), ("ai.onnx.ml", 1))).run(None, {"x": x})[0]
        wanted = x @ held[:targets * features].reshape(targets, features).T + 1.5 * (shifts == targets)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (0, 0, 4), (1, 1, 4)])
@pytest.mark.parametrize("axis", [-1, 2])
def test_normalization_of_no_rows(op_type: str, shape: tuple[int, ...], axis: int) -> None:
    node = helper.make_node(op_type, ["x", "s"], ["y"], axis=axis)
    given = [VALUE("x", TensorProto.FLOAT, [None] * 3), VALUE("s", TensorProto.FLOAT, [4])]
    x, scale = np.ones(shape, np.float32), np.ones(4, np.float32)
    assert session([node], given).run(None, {"x": x, "s": scale})[0].shape == shape


def test_a_sparse_constant_may_be_called_a_value() -> None:
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.array([1., 2.], np.float32), "v"),
                                       numpy_helper.from_array(np.array([0, 1])), [2])
    attribute = helper.make_attribute("sparse_value", sparse)
    attribute.name = "value"
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(attribute)
    made = session([constant, helper.make_node("Mul", ["x", "c"], ["y"])], [FLOAT])
    assert (made.run(None, {"x": X})[0] == X * [1, 2]).all()


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 1, 2, 2, 3), (1, 3, 1, 2)])
@pytest.mark.parametrize("across", [0, 1])
@pytest.mark.parametrize("normalize", [0, 1])
def test_normalization_of_the_first_versions(shape: tuple[int, ...], across: int, normalize: int) -> None:
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], across_channels=across,
                            normalize_variance=normalize)
    x = np.random.default_rng(3).normal(2, 3, shape).astype(np.float32)
    axes = tuple(a for a in ((0, 1, 2, 3) if across else (0, 2, 3)) if a < x.ndim)
    expected = x - x.mean(axes, keepdims=True, dtype=np.float64)
    if normalize:
        expected /= x.std(axes, keepdims=True, dtype=np.float64)
    made = session([node], [VALUE("x", TensorProto.FLOAT, shape)], (("", 8),))
    np.testing.assert_allclose(made.run(None, {"x": x})[0], expected, 1e-5, 1e-5)


def test_thresholded_relu_of_the_first_versions() -> None:
    made = session([helper.make_node("ThresholdedRelu", ["x"], ["y"], alpha=2.5)], [FLOAT], (("", 8),))
    assert (made.run(None, {"x": X})[0] == X * (X > 2.5)).all()


def with_a_map(keys: int, **vocabulary: Any) -> ort.InferenceSession:
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **vocabulary)
    x = helper.make_value_info("x", helper.make_map_type_proto(
        keys, helper.make_tensor_type_proto(TensorProto.FLOAT, None)))
    graph = helper.make_graph([node], "g", [x], [VALUE("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)])
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("given", "message"), [
    ({1: 1., "a": 2.}, "Unexpected key type  <class 'str'>, it cannot be linked to C type int64_t"),
    ({1.5: 1.}, "Unexpected key type  <class 'float'>"), ({2 ** 70: 1.}, "Unexpected key type"),
    ({1: "b"}, "Unexpected value type  <class 'str'>"), ({1: None}, "Unexpected value type"),
    ({1: [1.]}, "Unexpected value type"), ({}, "Size of dictionary is empty")])
def test_what_does_not_fit_into_a_map(given: dict[Any, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        with_a_map(TensorProto.INT64, int64_vocabulary=[1, 2]).run(None, {"x": given})


@pytest.mark.parametrize(("keys", "vocabulary", "given"), [
    (TensorProto.INT64, {"int64_vocabulary": [1, 2]}, {"a": 1.}),
    (TensorProto.STRING, {"string_vocabulary": ["a"]}, {1: 1.})])
def test_a_map_of_other_keys(keys: int, vocabulary: dict[str, Any], given: dict[Any, Any]) -> None:
    with pytest.raises(InvalidArgument, match="Unexpected input data type"):
        with_a_map(keys, **vocabulary).run(None, {"x": given})


def test_what_low_level_calls_give() -> None:
    state = ort.capi.onnxruntime_pybind11_state
    made = session([helper.make_node("Relu", ["x"], ["y"])], [FLOAT])
    value = ort.OrtValue.ortvalue_from_numpy(X)
    got = made._sess.run_with_ort_values({"x": value._get_c_value()}, ["y"], ort.RunOptions())
    assert isinstance(got, state.OrtValueVector) and (got[0].numpy() == X).all()
    capsule = value._get_c_value().to_dlpack()
    assert not state.is_dlpack_uint8_tensor(capsule)
    assert state.OrtValue.from_dlpack(capsule, False).data_ptr() == value.data_ptr()


def test_views_of_sparse_tensors_are_only_read() -> None:
    device = ort.OrtDevice.make("cpu", 0)
    rows = ort.SparseTensor.sparse_csr_from_numpy([2, 3], np.ones(2, np.float32), np.array([1, 2]),
                                                  np.array([0, 1, 2]), device)
    places = ort.SparseTensor.sparse_coo_from_numpy([9], np.array(["a", "b"]), np.array([1, 8]), device)
    assert places.values().dtype == object and places.data_type() == "sparse_tensor(string)"
    for view in (rows.values(), rows.as_csrc_view().inner(), rows.as_csrc_view().outer(), places.values(),
                 places.as_coo_view().indices()):
        assert not view.flags.writeable


def test_what_a_write_function_raises() -> None:
    def refuse(data: bytes) -> None:
        raise ValueError("no room")

    node = helper.make_node("Relu", ["x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", [FLOAT], [VALUE("y", TensorProto.FLOAT, None)]),
                              ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    compiler = ort.ModelCompiler(ort.SessionOptions(), model.SerializeToString())
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="ValueError: no room"):
        compiler.compile_to_stream(refuse)


def saved(nodes: list[Any], inputs: list[Any], outputs: list[Any], **more: Any) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, **more)
    raw: bytes = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)]
                                   ).SerializeToString()
    return raw


def test_casts_that_lose_nothing_are_merged_above_basic() -> None:
    to = TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT32, TensorProto.INT64
    casts = [helper.make_node("Cast", [f"v{n}"], [f"v{n + 1}"], to=to[n]) for n in range(4)]
    model = saved(casts, [VALUE("v0", TensorProto.FLOAT, [3])], [VALUE("v4", TensorProto.INT64, [3])])
    found = []
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
                  ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED):
        compiler = ort.ModelCompiler(ort.SessionOptions(), model, graph_optimization_level=level)
        made = compiler.compile_to_bytes()
        found.append([node.attribute[0].i for node in onnx.ModelProto.FromString(made).graph.node])
        [y] = ort.InferenceSession(made).run(None, {"v0": np.array([1.6, -0.6, -2.3], np.float32)})
        assert y.tolist() == [1, 0, -2]
    assert found == [[*to], [to[0], to[1], to[3]], [to[1], to[3]]]


@pytest.mark.parametrize("shape", [(2,), (0,), (3, 4), (300, 300)])
@pytest.mark.parametrize("op_type", ["Relu", "Identity", "Cast"])
def test_results_are_views_of_their_memory(op_type: str, shape: tuple[int, ...]) -> None:
    about = {"to": TensorProto.FLOAT} if op_type == "Cast" else {}
    made = session([helper.make_node(op_type, ["x"], ["y"], **about)], [VALUE("x", TensorProto.FLOAT, None)])
    x, seen = np.ones(shape, np.float32), []
    for _ in range(4):
        [y] = made.run(None, {"x": x})
        assert y.base is not None and y.flags.writeable and not y.flags.owndata
        assert not np.shares_memory(x, y)
        seen.append(y)
        y[...] = 7
        [again] = made.run(None, {"x": y})
        assert (again == 7).all() and not np.shares_memory(again, y)
    assert all(not np.shares_memory(a, b) for i, a in enumerate(seen) for b in seen[:i])


def test_each_node_of_the_cpu_is_assigned_by_itself() -> None:
    x = VALUE("x", TensorProto.FLOAT, [2])
    nodes = [helper.make_node(op, [a, "x"], [b], name=b) for op, a, b in
             (("Add", "x", "s"), ("Mul", "s", "p"), ("Add", "p", "y"))]
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    model = saved(nodes, [x], [VALUE("y", TensorProto.FLOAT, [2])])
    parts = ort.InferenceSession(model, options).get_provider_graph_assignment_info()
    assert [[(n.op_type, n.name) for n in part.get_nodes()] for part in parts] == [
        [("Add", "s")], [("Mul", "p")], [("Add", "y")]]


@pytest.mark.parametrize("flat", [True, False])
def test_a_sparse_initializer_is_handed_out_as_it_is(flat: bool) -> None:
    places = np.array([2, 3, 5]) if flat else np.array([[0, 2], [1, 0], [1, 2]])
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.array([1, 2, 3], np.float32), "s"),
                                       numpy_helper.from_array(places), [3, 3])
    declared = helper.make_sparse_tensor_value_info("s", TensorProto.FLOAT, [3, 3])
    made = ort.InferenceSession(saved([], [], [declared], sparse_initializer=[sparse]))
    [found] = made.run_with_ort_values(["s"], {})
    tensor = found.as_sparse_tensor()
    assert tensor.dense_shape() == [3, 3] and tensor.values().tolist() == [1, 2, 3]
    assert (tensor.as_coo_view().indices() == places).all()
    assert isinstance(made.run(None, {})[0], ort.SparseTensor)


@pytest.mark.parametrize("arena", [True, False])
def test_of_whom_host_memory_is(arena: bool) -> None:
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = arena
    model = saved([helper.make_node("Relu", ["x"], ["y"])], [FLOAT], [VALUE("y", TensorProto.FLOAT, None)])
    made = ort.InferenceSession(model, options)
    wanted = (ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR)[arena]
    assert [i.allocator_type for i in (*made.get_input_memory_infos(), *made.get_output_memory_infos())] == [
        wanted, wanted]


def test_objects_become_text() -> None:
    made = session([helper.make_node("Identity", ["x"], ["y"])], [VALUE("x", TensorProto.STRING, [None, 2])])
    x = np.array([["a", 1], [2.5, None], [True, np.float32(3)]], object)
    [y] = made.run(None, {"x": x})
    assert y.tolist() == [["a", "1"], ["2.5", "None"], ["True", "3.0"]] and x[0, 1] == 1


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_four_bits_from_packed_bytes(count: int) -> None:
    for kind, given, wanted in ((TensorProto.INT4, np.int8, [1, -1, 2, -8, 3, 0]),
                                (TensorProto.UINT4, np.uint8, [1, 15, 2, 8, 3, 0])):
        packed = np.array([0xF1, 0x82, 0x03, 9, 9, 9], np.uint8)[:count].view(given)
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(packed, kind)
        assert value.element_type() == kind and value.shape() == [count]
        assert value.numpy().astype(int).tolist() == wanted[:count]


def test_what_is_no_dlpack_capsule() -> None:
    for take in (ort.OrtValue.from_dlpack, ort.capi.onnxruntime_pybind11_state.OrtValue.from_dlpack):
        for given in (3, None, "x", [1.0]):
            with pytest.raises(TypeError, match="expected a valid DLPack capsule named 'dltensor'"):
                take(given)


def test_where_initializers_lie_before_they_are_placed(tmp_path: Path) -> None:
    weights = {"w": np.arange(60, dtype=np.float32), "b": np.ones(1, np.float32)}
    nodes = [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    x = VALUE("x", TensorProto.FLOAT, [60])
    model = onnx.load_from_string(saved(nodes, [x], [VALUE("y", TensorProto.FLOAT, [60])], initializer=[
        numpy_helper.from_array(array, name) for name, array in weights.items()]))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=100)
    told: dict[str, Any] = {}

    def keep(name: str, value: ort.OrtValue, place: Any) -> Any:
        assert (value.numpy() == weights[name]).all()
        told[name] = place
        return place

    ort.ModelCompiler(ort.SessionOptions(), tmp_path / "m.onnx", get_initializer_location_func=keep
                      ).compile_to_file(tmp_path / "c.onnx")
    assert told["b"] is None
    assert (told["w"].filepath, told["w"].byte_size) == ("m.bin", 240)
    [y] = ort.InferenceSession(tmp_path / "c.onnx").run(None, {"x": np.ones(60, np.float32)})
    assert (y == weights["w"] + 1).all()


@pytest.mark.parametrize("shape", [(2, 2), (3, 2)])
def test_bound_memory_fits_what_an_output_is_declared(shape: tuple[int, ...]) -> None:
    """Where nothing but the declaration says how large it is."""
    peer = pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    x, y = (VALUE(n, TensorProto.FLOAT, s) for n, s in (("x", ["N", 2]), ("y", [3, 2])))
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    for runtime in (ort, peer):
        it = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
        assert it.get_outputs()[0].shape == [3, 2]
        binding = it.io_binding()
        binding.bind_cpu_input("x", np.ones(shape, np.float32))
        bound = runtime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        binding.bind_ortvalue_output("y", bound)
        if shape == (3, 2):
            it.run_with_iobinding(binding)
            assert (bound.numpy() == 2).all()
            continue
        with pytest.raises(RuntimeError, match=r"Got invalid dimensions for output: y"):
            it.run_with_iobinding(binding)


@pytest.mark.parametrize("sizes", [{}, {"N": 4}, {"N": 4, "M": 4}])
def test_outputs_keep_the_names_of_their_sizes(sizes: dict[str, int]) -> None:
    """Where the model gives a size another name than follows from its inputs, programs look for that name."""
    peer = pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Concat", ["x", "z"], ["w"], axis=0),
             helper.make_node("Add", ["x", "z"], ["v"])]
    given = [VALUE("x", TensorProto.FLOAT, ["N", 3]), VALUE("z", TensorProto.FLOAT, ["M", 3])]
    made = [VALUE(name, TensorProto.FLOAT, dims) for name, dims in (("y", ["A", "B"]), ("w", ["C", "D"]),
                                                                    ("v", ["A", None]), ("x", ["N", 3]))]
    model = helper.make_model(helper.make_graph(nodes, "g", given, made), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    shapes = []
    for runtime in (ort, peer):
        options = runtime.SessionOptions()
        for name, size in sizes.items():
            options.add_free_dimension_override_by_name(name, size)
        it = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        shapes.append([each.shape for each in it.get_outputs()])
    assert shapes[0] == shapes[1]


def test_an_optional_input_may_be_left_out() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    yes = helper.make_graph([helper.make_node("OptionalGetElement", ["o"], ["a"])], "yes", [],
                            [VALUE("a", TensorProto.FLOAT, [2])])
    no = helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "no", [],
                           [VALUE("b", TensorProto.FLOAT, [2])])
    nodes = [helper.make_node("OptionalHasElement", ["o"], ["has"]),
             helper.make_node("If", ["has"], ["y"], then_branch=yes, else_branch=no)]
    graph = helper.make_graph(nodes, "g", [helper.make_value_info("o", kind), VALUE("x", 1, [2])],
                              [VALUE("y", TensorProto.FLOAT, [2]), VALUE("has", TensorProto.BOOL, [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    made = ort.InferenceSession(model.SerializeToString())
    x, other = np.float32([1, 2]), np.float32([3, 4])
    for feed, wanted, has in (({"x": x}, x, False), ({"x": x, "o": None}, x, False),
                              ({"x": x, "o": other}, other, True), ({"x": x}, x, False)):
        y, flag = made.run(None, feed)
        assert y.tolist() == wanted.tolist() and bool(flag) is has
        y, flag = made._sess.run(None, feed)
        assert y.tolist() == wanted.tolist() and bool(flag) is has
    with pytest.raises(ValueError, match=r"Required inputs \(\['x'\]\) are missing from input feed"):
        made.run(None, {"o": None})


@pytest.mark.parametrize("given", [[[1, 2], [3]], [1, [2]], ["a", "b"]])
def test_lists_that_are_no_tensor(given: Any) -> None:
    made = session([helper.make_node("Relu", ["x"], ["y"])], [VALUE("x", TensorProto.FLOAT, None)])
    with pytest.raises(RuntimeError, match="Could not create tensor from given input list") as raised:
        made.run(None, {"x": given})
    assert isinstance(raised.value, InvalidArgument)


@pytest.mark.parametrize("given", [[np.float32([1]), np.float64([1])], [np.float64([1])], [None]])
def test_sequences_of_other_tensors(given: Any) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    node = helper.make_node("SequenceLength", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", kind)], [VALUE("y", 7, [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = ort.InferenceSession(model.SerializeToString())
    with pytest.raises(RuntimeError):
        made.run(None, {"x": given})


def test_names_of_feeds_that_are_none() -> None:
    made = session([helper.make_node("Relu", ["x"], ["y"])], [FLOAT])
    with pytest.raises(ValueError, match="Required inputs"):
        made.run(None, {1: X})


def relu() -> onnx.ModelProto:
    return onnx.load_from_string(saved([helper.make_node("Relu", ["x"], ["y"])], [FLOAT],
                                       [VALUE("y", TensorProto.FLOAT, None)]))


@pytest.mark.parametrize(("said", "kept"), [
    ("{}", {}), ("[]", {}), ("3", {}), ('{"session_options": 3}', {}),
    ('{"session_options": {"other": 1}}', {}),
    ('{"session_options": {"intra_op_num_threads": 3, "enable_profiling": 0}}', {"intra_op_num_threads": 3}),
    ('{"session_options": {"execution_mode": 1}}', {"execution_mode": ort.ExecutionMode.ORT_PARALLEL}),
    *((f'{{"session_options": {{"{name}": {value}}}}}', None) for name, value in (
        ("intra_op_num_threads", "-1"), ("intra_op_num_threads", "1.0"), ("inter_op_num_threads", '"2"'),
        ("enable_profiling", "true"), ("enable_profiling", "2"), ("execution_mode", "2"),
        ("graph_optimization_level", "55"))),
    ("", None), ("no JSON", None)])
def test_what_a_model_says_of_its_options(said: str, kept: dict[str, Any] | None) -> None:
    model = relu()
    helper.set_model_props(model, {"ort_config": said})

    def made() -> ort.InferenceSession:
        return ort.InferenceSession(model.SerializeToString(), read_config_from_model=1, enable_fallback=0)
    if kept is None:
        for kind in (RuntimeError, InvalidArgument):
            with pytest.raises(kind, match="ort_config"):
                made()
        return
    found, usual = made().get_session_options(), ort.SessionOptions()
    for name in ("intra_op_num_threads", "inter_op_num_threads", "enable_profiling", "execution_mode",
                 "graph_optimization_level"):
        assert getattr(found, name) == kept.get(name, getattr(usual, name)), name


@pytest.mark.parametrize(("listed", "refused"), [
    ("cpu:0", ""), ("cpu:0;gpu:0", ""), ("cpu:0;cpu:1;gpu:1", ""), ("cpu:0;cpu", ""), ("", ""),
    ("gpu:0;cpu:0", "Did not find"), ("cpu:1", "Did not find"), ("gpu:0", "Did not find"),
    ("cpu:0;npu:0", "Unsupported device specified"), ("CPU:0", "Unsupported device specified"),
    ("cpu:0;gpu:x", "Unsupported device id")])
def test_which_arenas_are_to_be_shrunk(listed: str, refused: str) -> None:
    made, run = ort.InferenceSession(relu().SerializeToString()), ort.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", listed)
    if not refused:
        assert made.run(None, {"x": X}, run)[0].tolist() == X.tolist()
        return
    with pytest.raises(InvalidArgument, match=refused):
        made.run(None, {"x": X}, run)


@pytest.mark.parametrize(("setting", "value", "kept"), [
    ("enable_mem_pattern", False, True), ("enable_mem_reuse", False, True),
    ("execution_mode", ort.ExecutionMode.ORT_PARALLEL, True), ("enable_cpu_mem_arena", False, False)])
def test_which_sessions_have_an_arena(setting: str, value: Any, kept: bool) -> None:
    options, run = ort.SessionOptions(), ort.RunOptions()
    setattr(options, setting, value)
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    made = ort.InferenceSession(relu().SerializeToString(), options)
    with contextlib.nullcontext() if kept else pytest.raises(InvalidArgument, match="Did not find"):
        assert made.run(None, {"x": X}, run)[0].tolist() == X.tolist()


@pytest.mark.parametrize("given", [[1], [], [{1: 1.}], 3, "a", np.ones(2, np.float32)])
@pytest.mark.parametrize("kind", [RuntimeError, InvalidArgument])
def test_what_is_no_map(given: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="Unexpected input data type"):
        with_a_map(TensorProto.INT64, int64_vocabulary=[1, 2]).run(None, {"x": given})


@pytest.mark.parametrize(("least", "beside"), [("1", ["w", "b"]), ("100", ["w"]), ("1000", [])])
def test_a_data_file_is_written_where_something_lies_in_it(least: str, beside: list[str], tmp_path: Path
                                                           ) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    model = saved(nodes, [VALUE("x", TensorProto.FLOAT, [60])], [VALUE("y", TensorProto.FLOAT, [60])],
                  initializer=[numpy_helper.from_array(np.arange(60, dtype=np.float32), "w"),
                               numpy_helper.from_array(np.ones(1, np.float32), "b")])
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in (("file_name", "o.bin"), ("min_size_in_bytes", least)):
        options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
    ort.InferenceSession(model, options)
    graph = onnx.load(tmp_path / "o.onnx", load_external_data=False).graph
    assert [t.name for t in graph.initializer if t.external_data] == beside
    assert (tmp_path / "o.bin").exists() == bool(beside)
    [y] = ort.InferenceSession(tmp_path / "o.onnx").run(None, {"x": np.ones(60, np.float32)})
    assert y.tolist() == list(range(1, 61))


def test_where_no_file_can_be_put(tmp_path: Path) -> None:
    model, options = relu().SerializeToString(), ort.SessionOptions()
    for where, why in ((tmp_path / "none" / "m.onnx", "No such file"), (tmp_path, "Is a directory")):
        options.optimized_model_filepath = str(where)
        with pytest.raises(InvalidArgument, match=f"^.*open file .* failed: {why}"):
            ort.InferenceSession(model, options)
        for more in ({}, {"get_initializer_location_func": lambda name, value, place: None}):
            with pytest.raises(InvalidArgument, match=why):
                ort.ModelCompiler(ort.SessionOptions(), model, **more).compile_to_file(where)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidArgument, match="Input model path does not exist"):
        ort.ModelCompiler(ort.SessionOptions(), tmp_path / "none.onnx").compile_to_bytes()


@pytest.mark.parametrize("place", [lambda name, value, place: 5, lambda name: None])
def test_a_function_that_gives_no_place(place: Any) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = saved(nodes, [FLOAT], [VALUE("y", TensorProto.FLOAT, None)],
                  initializer=[numpy_helper.from_array(np.ones(2, np.float32), "w")])
    compiler = ort.ModelCompiler(ort.SessionOptions(), model, get_initializer_location_func=place)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="OrtExternalInit|TypeError"):
        compiler.compile_to_bytes()


@pytest.mark.parametrize("shape", [[None, 3], ["N", 3], [], None])
def test_an_optional_tensor_has_the_shape_of_its_tensor(shape: Any) -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g",
                              [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    made = ort.InferenceSession(model.SerializeToString())
    assert [each.shape for each in (*made.get_inputs(), *made.get_outputs())] == [shape or []] * 2


@pytest.mark.parametrize("optional", [False, True])
def test_a_sequence_has_the_element_type_of_its_tensors(optional: bool) -> None:
    x = np.float32([1])
    kinds = [helper.make_tensor_sequence_value_info(name, kind, None) for name, kind in
             (("one", TensorProto.FLOAT), ("none", TensorProto.DOUBLE))]
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["one"]),
             helper.make_node("SequenceEmpty", [], ["none"], dtype=TensorProto.DOUBLE)]
    if optional:
        nodes = [*nodes, *(helper.make_node("Optional", [kind.name], ["o" + kind.name]) for kind in kinds)]
        kinds = [helper.make_value_info("o" + kind.name, helper.make_optional_type_proto(kind.type))
                 for kind in kinds]
    graph = helper.make_graph(nodes, "g", [VALUE("x", TensorProto.FLOAT, [None])], kinds)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    made = ort.InferenceSession(model.SerializeToString())
    values = made.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(x)})
    assert [each.element_type() for each in values] == [TensorProto.FLOAT, TensorProto.DOUBLE]
