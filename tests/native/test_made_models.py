"""Models put together through the C interface, models compiled ahead, adapters, and what a session
tells of its devices and nodes: as onnxruntime's own library does it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dropin
import numpy as np
import onnx
import pytest
from c_interface import Interface, Refused
from onnx import TensorProto, helper, numpy_helper
from skips import needs

from orthrus.native.dropin import build

pytestmark = [pytest.mark.slow, needs("generated code", "Linux", "C compiler")]
INT, INTS, FLOAT, FLOATS, STRING, STRINGS = 1, 2, 3, 4, 5, 6
Made = tuple[int, list[str], dict[str, Any]]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interface]:
    built = build.build(tmp_path_factory.mktemp("capi"))
    before = dict(os.environ)
    os.environ.update(dropin.surroundings())
    yield Interface(built / "lib" / build.SONAME)
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def theirs() -> Interface:
    peer = pytest.importorskip("onnxruntime")
    return Interface(next(Path(peer.__file__).parent.glob("capi/libonnxruntime.so*")))


def _attribute(api: Interface, name: str, value: Any) -> int:
    data: Any
    if isinstance(value, str):
        data, count, kind = value.encode(), len(value.encode()), STRING
    elif isinstance(value, float):
        data, count, kind = api.kept(ctypes.c_float(value)), 1, FLOAT
    elif isinstance(value, int):
        data, count, kind = api.kept(ctypes.c_int64(value)), 1, INT
    elif value and isinstance(value[0], str):
        data, count, kind = api.array([v.encode() for v in value], ctypes.c_char_p), len(value), STRINGS
    elif value and isinstance(value[0], float):
        data, count, kind = api.array(value, ctypes.c_float), len(value), FLOATS
    else:
        data, count, kind = api.array(value, ctypes.c_int64), len(value), INTS
    at = data if isinstance(data, bytes) else ctypes.addressof(data)
    made: int = api.made("CreateOpAttr", name.encode(), at, count, kind)
    return made


def _info(api: Interface, value: onnx.ValueInfoProto) -> int:
    tensor = value.type.tensor_type
    shape = api.made("CreateTensorTypeAndShapeInfo")
    api.call("SetTensorElementType", shape, tensor.elem_type)
    dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
    api.call("SetDimensions", shape, api.array(dims, ctypes.c_int64), len(dims))
    api.call(
        "SetSymbolicDimensions",
        shape,
        api.array([d.dim_param.encode() for d in tensor.shape.dim], ctypes.c_char_p),
        len(dims),
    )
    kind = api.made("CreateTensorTypeInfo", shape)
    made: int = api.made("CreateValueInfo", value.name.encode(), kind)
    api.call("ReleaseTypeInfo", kind)
    api.call("ReleaseTensorTypeAndShapeInfo", shape)
    return made


def _put_together(api: Interface, model: onnx.ModelProto) -> int:
    """The model, made call by call."""
    graph = api.made("CreateGraph")
    for name, values in (("SetGraphInputs", model.graph.input), ("SetGraphOutputs", model.graph.output)):
        api.call(name, graph, api.array([_info(api, each) for each in values]), len(values))
    for each in model.graph.initializer:
        array = numpy_helper.to_array(each)
        large = array.nbytes > 127
        api.call(
            "AddInitializerToGraph",
            graph,
            each.name.encode(),
            api.tensor(array) if large else api.own_tensor(array),
            large,
        )
    for node in model.graph.node:
        attributes = [_attribute(api, a.name, _plain(helper.get_attribute_value(a))) for a in node.attribute]
        texts = [
            api.array([n.encode() for n in names], ctypes.c_char_p) for names in (node.input, node.output)
        ]
        api.call(
            "AddNodeToGraph",
            graph,
            api.made(
                "CreateNode",
                node.op_type.encode(),
                node.domain.encode(),
                node.name.encode(),
                texts[0],
                len(node.input),
                texts[1],
                len(node.output),
                api.array(attributes),
                len(attributes),
            ),
        )
    domains = [each.domain.encode() for each in model.opset_import]
    versions = [each.version for each in model.opset_import]
    made: int = api.made(
        "CreateModel", api.array(domains, ctypes.c_char_p), api.array(versions, ctypes.c_int), len(versions)
    )
    api.call("AddGraphToModel", made, graph)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return [_plain(each) for each in value] if not isinstance(value, int | float | str) else value


def _random(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A graph of a few operators with all kinds of attributes, initializers, an open size."""
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    weights = rng.standard_normal((columns, int(rng.integers(1, 5)))).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="g", alpha=float(rng.integers(1, 4))),
        helper.make_node("LeakyRelu", ["a"], ["b"], alpha=0.5),
        helper.make_node("Transpose", ["b"], ["c"], name="", perm=[1, 0]),
        helper.make_node("Add", ["c", "k"], ["d"]),
        helper.make_node("Constant", [], ["f"], value_floats=[1.5]),
        helper.make_node("Mul", ["d", "f"], ["e"]),
        helper.make_node("Einsum", ["e", "e"], ["y"], equation="ij,kj->ik"),
    ]
    graph = helper.make_graph(
        nodes[: int(rng.integers(2, 8))],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", columns])],
        [],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.float32([2]), "k")],
    )
    last = next(node for node in reversed(graph.node) if node.op_type != "Constant")
    graph.output.append(helper.make_tensor_value_info(last.output[0], TensorProto.FLOAT, [None, None]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, {"x": rng.standard_normal((rows, columns)).astype(np.float32)}


@pytest.mark.parametrize("seed", range(6))
def test_a_model_put_together_runs(seed: int, ours: Interface, theirs: Interface) -> None:
    model, feeds = _random(seed)
    names = [each.name for each in model.graph.output]
    found = []
    for api in (ours, theirs):
        made = _put_together(api, model)
        session = api.made("CreateSessionFromModel", api.env, made, None)
        found.append(api.run(session, feeds, names))
        api.call("ReleaseSession", session)
        api.call("ReleaseModel", made)
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_models_that_are_not_whole_are_refused(ours: Interface) -> None:
    model = ours.made("CreateModel", ours.array([b""], ctypes.c_char_p), ours.array([21], ctypes.c_int), 1)
    with pytest.raises(Refused, match="has no graph"):
        ours.made("CreateSessionFromModel", ours.env, model, None)
    ours.call("ReleaseModel", model)
    with pytest.raises(Refused, match="inputs must not be null"):
        ours.made(
            "CreateNode",
            b"Relu",
            b"",
            b"",
            ours.array([None]),
            1,
            ours.array([b"y"], ctypes.c_char_p),
            1,
            None,
            0,
        )


# Compiled ahead ---------------------------------------------------------------------------------------


def _options(api: Interface, *settings: tuple[Any, ...]) -> int:
    session_options = api.made("CreateSessionOptions")
    made: int = api.made("CreateModelCompilationOptionsFromSessionOptions", api.env, session_options)
    api.call("ReleaseSessionOptions", session_options)
    for name, *arguments in settings:
        api.call(f"ModelCompilationOptions_{name}", made, *arguments)
    return made


def _compiled(api: Interface, *settings: tuple[Any, ...]) -> None:
    options = _options(api, *settings)
    try:
        api.call("CompileModel", api.env, options)
    finally:
        api.call("ReleaseModelCompilationOptions", options)


@pytest.mark.parametrize("which", ["ours", "theirs"])
def test_models_are_compiled_ahead(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    api: Interface = request.getfixturevalue(which)
    model, feeds = _random(5)
    names = [each.name for each in model.graph.output]
    data = model.SerializeToString()
    onnx.save(model, path := tmp_path / "m.onnx")
    expected = _run_bytes(api, data, feeds, names)
    inputs: list[tuple[Any, ...]] = [
        ("SetInputModelPath", str(path).encode()),
        ("SetInputModelFromBuffer", data, len(data)),
        ("SetInputModel", _put_together(api, model)),
    ]
    written: list[bytes] = []

    def write(state: int, buffer: int, size: int) -> None:
        written.append(ctypes.string_at(buffer, size))

    function = api.kept(
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(write)
    )
    for given in inputs:
        _compiled(api, given, ("SetOutputModelPath", str(tmp_path / "out.onnx").encode()))
        buffer, size = ctypes.c_void_p(), ctypes.c_size_t()
        _compiled(
            api, given, ("SetOutputModelBuffer", api.allocator, ctypes.byref(buffer), ctypes.byref(size))
        )
        written.clear()
        _compiled(
            api,
            given,
            ("SetOutputModelWriteFunc", ctypes.cast(function, ctypes.c_void_p), None),
            ("SetGraphOptimizationLevel", 1),
        )
        for made in (
            (tmp_path / "out.onnx").read_bytes(),
            ctypes.string_at(buffer.value or 0, size.value),
            b"".join(written),
        ):
            assert all(map(np.allclose, _run_bytes(api, made, feeds, names), expected))
    _compiled(api, inputs[0], ("SetOutputModelExternalInitializersFile", b"w.bin", 0), ("SetFlags", 0))
    assert (tmp_path / "m_ctx.onnx").exists() and (tmp_path / "w.bin").exists()


def _run_bytes(
    api: Interface, data: bytes, feeds: dict[str, np.ndarray], names: Sequence[str]
) -> list[np.ndarray]:
    session = api.made("CreateSessionFromArray", api.env, data, len(data), None)
    made = api.run(session, feeds, names)
    api.call("ReleaseSession", session)
    return made


def test_what_cannot_be_compiled_is_refused_as_theirs_is(
    ours: Interface, theirs: Interface, tmp_path: Path
) -> None:
    model, _ = _random(1)
    onnx.save(model, path := tmp_path / "m.onnx")
    data, there = model.SerializeToString(), ("SetInputModelPath", str(path).encode())
    buffer, size = ctypes.c_void_p(), ctypes.c_size_t()
    out = ("SetOutputModelBuffer", ours.allocator, ctypes.byref(buffer), ctypes.byref(size))
    for settings in (
        [],
        [("SetInputModelFromBuffer", data, len(data))],
        [out],
        [("SetInputModelPath", b"/nowhere/m.onnx"), out],
        [("SetInputModelPath", b"")],
        [("SetInputModelFromBuffer", data, 0)],
        [("SetFlags", 64)],
        [("SetOutputModelPath", b"")],
        [("SetInputModelFromBuffer", b"nonsense", 8), out],
        [there, ("SetFlags", 1)],
        [there, ("SetFlags", 2), ("SetOutputModelPath", str(path).encode())],
    ):
        codes = []
        for api in (ours, theirs):
            with pytest.raises(Refused) as refused:
                _compiled(api, *settings)
            codes.append(refused.value.code)
        assert codes[0] == codes[1], (settings, refused.value)


# Adapters, and what a session tells -------------------------------------------------------------------


def _adapted() -> onnx.ModelProto:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["t"]),
            helper.make_node("MatMul", ["t", "b"], ["u"]),
            helper.make_node("Add", ["x", "u"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [4, "r"]),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, ["r", 4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [
            numpy_helper.from_array(np.zeros((4, 0), np.float32), "a"),
            numpy_helper.from_array(np.zeros((0, 4), np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_adapters_are_fed(ours: Interface, theirs: Interface, tmp_path: Path) -> None:
    import orthrus as ort

    rng = np.random.default_rng(0)
    x, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4, 2), (2, 4)))
    adapter = ort.AdapterFormat()
    adapter.set_parameters(
        {"a": ort.OrtValue.ortvalue_from_numpy(a), "b": ort.OrtValue.ortvalue_from_numpy(b)}
    )
    adapter.export_adapter(str(path := tmp_path / "adapter"))
    data, model = path.read_bytes(), _adapted().SerializeToString()
    for api in (ours, theirs):
        session = api.made("CreateSessionFromArray", api.env, model, len(model), None)
        assert np.array_equal(api.run(session, {"x": x}, ["y"])[0], x)
        for made in (
            api.made("CreateLoraAdapter", str(path).encode(), None),
            api.made("CreateLoraAdapterFromArray", data, len(data), None),
        ):
            options = api.made("CreateRunOptions")
            api.call("RunOptionsAddActiveLoraAdapter", options, made)
            np.testing.assert_allclose(
                api.run(session, {"x": x}, ["y"], options)[0], x + x @ a @ b, rtol=1e-4
            )
            api.call("ReleaseRunOptions", options)
            api.call("ReleaseLoraAdapter", made)
        assert np.array_equal(api.run(session, {"x": x}, ["y"])[0], x)
        for wrong in (b"", b"nonsense", data[: len(data) // 2]):
            with pytest.raises(Refused):
                api.made("CreateLoraAdapterFromArray", wrong or b"x", len(wrong), None)
        with pytest.raises(Refused):
            api.made("CreateLoraAdapter", b"/nowhere", None)
        api.call("ReleaseSession", session)


def _told(
    api: Interface, data: bytes, *entries: tuple[bytes, bytes]
) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Which provider got which nodes."""
    options = api.made("CreateSessionOptions")
    for entry in entries:
        api.call("AddSessionConfigEntry", options, *entry)
    session = api.made("CreateSessionFromArray", api.env, data, len(data), options)
    subgraphs, count, found = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t(), []
    try:
        for _ in range(2):
            api.call(
                "Session_GetEpGraphAssignmentInfo", session, ctypes.byref(subgraphs), ctypes.byref(count)
            )
        for i in range(count.value):
            nodes, number = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
            api.call("EpAssignedSubgraph_GetNodes", subgraphs[i], ctypes.byref(nodes), ctypes.byref(number))
            found.append(
                (
                    api.made("EpAssignedSubgraph_GetEpName", subgraphs[i], kind=ctypes.c_char_p).decode(),
                    [
                        tuple(
                            api.made(f"EpAssignedNode_Get{what}", nodes[k], kind=ctypes.c_char_p).decode()
                            for what in ("Domain", "OperatorType", "Name")
                        )
                        for k in range(number.value)
                    ],
                )
            )
    finally:
        api.call("ReleaseSession", session)
        api.call("ReleaseSessionOptions", options)
    return found


def test_a_session_tells_who_got_its_nodes(ours: Interface, theirs: Interface) -> None:
    data = dropin.models()["two"][0].SerializeToString()
    asked = (b"session.record_ep_graph_assignment_info", b"1"), (b"session.disable_cpu_ep_fallback", b"0")
    for api in (ours, theirs):
        with pytest.raises(Refused, match="must be set") as refused:
            _told(api, data)
        assert refused.value.code == 1
    mine, other = _told(ours, data, *asked), _told(theirs, data, *asked)
    assert {name for name, _ in mine} == {name for name, _ in other} == {"CPUExecutionProvider"}
    assert sorted(node[1] for _, nodes in mine for node in nodes) == sorted(
        node[1] for _, nodes in other for node in nodes
    )


def test_tensors_are_copied_and_devices_told(ours: Interface, theirs: Interface) -> None:
    data = dropin.models()["two"][0].SerializeToString()
    for api in (ours, theirs):
        session = api.made("CreateSessionFromArray", api.env, data, len(data), None)
        for which, count in (("Inputs", 2), ("Outputs", 2)):
            found = api.array([None] * count)
            api.call(f"SessionGetEpDeviceFor{which}", session, found, count)
            assert all(api.call("EpDevice_EpName", each) == b"CPUExecutionProvider" for each in found if each)
        api.call(
            "SetEpDynamicOptions",
            session,
            api.array([b"k"], ctypes.c_char_p),
            api.array([b"v"], ctypes.c_char_p),
            1,
        )
        api.call("ReleaseSession", session)
    source, target = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    values = ours.array([ours.tensor(source), ours.tensor(np.arange(3))]), ours.array([ours.tensor(target)])
    ours.call("CopyTensors", ours.env, values[0], values[1], None, 1)
    assert np.array_equal(ours.numbers(values[1][0]), source)
    with pytest.raises(Refused, match="same type and size"):
        ours.call("CopyTensors", ours.env, ours.array(values[0][1:]), values[1], None, 1)


def test_compatibility_is_read_from_a_model(ours: Interface, theirs: Interface, tmp_path: Path) -> None:
    model = dropin.models()["two"][0]
    model.metadata_props.add(key="ep_compatibility_info.SomeProvider", value="v1;x")
    onnx.save(model, path := tmp_path / "m.onnx")
    data = path.read_bytes()
    for api in (ours, theirs):
        for provider, said in ((b"SomeProvider", b"v1;x"), (b"Other", None)):
            assert (
                api.made(
                    "GetCompatibilityInfoFromModel",
                    str(path).encode(),
                    provider,
                    api.allocator,
                    kind=ctypes.c_char_p,
                )
                == said
            )
            assert (
                api.made(
                    "GetCompatibilityInfoFromModelBytes",
                    data,
                    len(data),
                    provider,
                    api.allocator,
                    kind=ctypes.c_char_p,
                )
                == said
            )
        with pytest.raises(Refused):
            api.made("GetCompatibilityInfoFromModel", b"/nowhere/m.onnx", b"Other", api.allocator)


# Sparse tensors -------------------------------------------------------------------------------------------


def _product() -> bytes:
    dense = TensorProto.FLOAT, ["N", "M"]
    graph = helper.make_graph(
        [helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft")],
        "g",
        [helper.make_sparse_tensor_value_info("a", TensorProto.FLOAT, [4, 5]),
         helper.make_tensor_value_info("b", *dense)],
        [helper.make_tensor_value_info("y", *dense)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def _sparse(api: Interface, dense: np.ndarray, form: str) -> int:
    """The matrix in one of the forms that there are."""
    dims, (rows, columns) = api.array(dense.shape, ctypes.c_int64), np.nonzero(dense)
    value: int = api.made("CreateSparseTensorAsOrtValue", api.allocator, dims, 2, 1)
    numbers = api.kept(np.ascontiguousarray(dense[rows, columns]))
    count = api.array([len(rows)], ctypes.c_int64)
    given = (value, api.memory, count, 1, numbers.ctypes.data)
    if form == "csr":
        outer = np.searchsorted(rows, np.arange(len(dense) + 1)).astype(np.int64)
        inner = columns.astype(np.int64)
        api.call("FillSparseTensorCsr", *given, api.kept(inner).ctypes.data, len(inner),
                 api.kept(outer).ctypes.data, len(outer))
        return value
    places = rows * dense.shape[1] + columns if form == "linear" else np.stack([rows, columns], 1)
    places = api.kept(np.ascontiguousarray(places, np.int64))
    api.call("FillSparseTensorCoo", *given, places.ctypes.data, places.size)
    return value


def _multiplied(api: Interface, session: int, sparse: int, dense: np.ndarray) -> np.ndarray:
    outputs = api.array([None])
    api.call("Run", session, None, api.array([b"a", b"b"], ctypes.c_char_p),
             api.array([sparse, api.tensor(dense)]), 2, api.array([b"y"], ctypes.c_char_p), 1, outputs)
    return api.numbers(outputs[0])


@pytest.mark.parametrize("form", ["linear", "pairs", "csr"])
def test_sparse_tensors_are_fed(form: str, ours: Interface, theirs: Interface) -> None:
    rng, data = np.random.default_rng(3), _product()
    sessions = [(api, api.made("CreateSessionFromArray", api.env, data, len(data), None))
                for api in (ours, theirs) if api is ours or form != "linear"]  # which theirs refuses
    for filled in (0.1, 0.5, 1.0):
        a = (rng.random((4, 5)) * (rng.random((4, 5)) < filled)).astype(np.float32)
        a[0, 0] = 1
        b = rng.random((5, 3), np.float32)
        for api, session in sessions:
            value = _sparse(api, a, form)
            np.testing.assert_allclose(_multiplied(api, session, value, b), a @ b, rtol=1e-5)
            api.call("ReleaseValue", value)


def test_sparse_indices_that_do_not_fit_are_refused(ours: Interface) -> None:
    data, numbers = _product(), np.ones(2, np.float32)
    session = ours.made("CreateSessionFromArray", ours.env, data, len(data), None)
    dims, count = ours.array([4, 5], ctypes.c_int64), ours.array([2], ctypes.c_int64)
    for places in ([0, 20], [-1, 3], [0, 0, 4, 0], [0, 0, 0, -1], [0, 5, 0, 0]):
        value = ours.made("CreateSparseTensorAsOrtValue", ours.allocator, dims, 2, 1)
        ours.call("FillSparseTensorCoo", value, ours.memory, count, 1, numbers.ctypes.data,
                  ours.array(places, ctypes.c_int64), len(places))
        with pytest.raises(Refused, match="do not fit"):
            _multiplied(ours, session, value, np.ones((5, 2), np.float32))
    value = ours.made("CreateSparseTensorAsOrtValue", ours.allocator, dims, 2, 1)
    with pytest.raises(Refused, match="has to be filled"):
        _multiplied(ours, session, value, np.ones((5, 2), np.float32))


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_results_are_handed_out(flat: bool, ours: Interface) -> None:
    places = np.array([2, 3, 5]) if flat else np.array([[0, 2], [1, 0], [1, 2]])
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.float32([1, 2, 3]), "s"),
                                       numpy_helper.from_array(places), [3, 3])
    declared = helper.make_sparse_tensor_value_info("s", TensorProto.FLOAT, [3, 3])
    graph = helper.make_graph([], "g", [], [declared])
    graph.sparse_initializer.append(sparse)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = model.SerializeToString()
    session = ours.made("CreateSessionFromArray", ours.env, data, len(data), None)
    outputs = ours.array([None])
    ours.call("Run", session, None, None, None, 0, ours.array([b"s"], ctypes.c_char_p), 1, outputs)
    assert ours.made("IsSparseTensor", outputs[0], kind=ctypes.c_int) == 1
    count = ctypes.c_size_t()
    indices = ctypes.c_void_p()
    ours.call("GetSparseTensorIndices", outputs[0], 0, ctypes.byref(count), ctypes.byref(indices))
    found = np.ctypeslib.as_array(ctypes.cast(indices, ctypes.POINTER(ctypes.c_int64)), (count.value,))
    assert found.tolist() == [0, 2, 1, 0, 1, 2]
    numbers = ctypes.cast(ours.made("GetSparseTensorValues", outputs[0]), ctypes.POINTER(ctypes.c_float))
    assert [numbers[i] for i in range(3)] == [1, 2, 3]
