"""Every operator that gives samples, in every type its schema allows, against onnxruntime; the type table.

A difference that is meant is a line in `EXPECTED` with its reason; it excuses one sample.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import model
from onnx import helper, numpy_helper

import orthrus as ort
from orthrus.ir import HALF, ElementType, Node, TensorType, Value, element_of, parse_type
from orthrus.ops import defined, find
from orthrus.ops.infer import InferenceError, infer_node
from orthrus.ops.schema import lookup, newest_opset

PEER_OPSET = 26
_UNINITIALIZED = "onnxruntime leaves the result of an inner dimension of 0 uninitialized"
EXPECTED = {"MatMulInteger-int8-2": _UNINITIALIZED, "MatMulInteger-uint8-2": _UNINITIALIZED}
"""Samples, by their id, whose result is not onnxruntime's, and why."""
NEWEST = sorted({(o.domain, o.name) for o in defined() if o.domain == ""})


def types_of(domain: str, name: str) -> list[np.dtype]:
    """Element types that the newest schema allows for the first input."""
    schema = lookup(domain, name, newest_opset(domain))
    if not schema or not schema.inputs:
        return []
    found = []
    for text in sorted(schema.inputs[0].types):
        kind = parse_type(text)
        if hasattr(kind, "shape"):
            found.append(kind.elem.numpy)
    return found


def cases():
    for domain, name in NEWEST:
        op = find(domain, name, 1 << 20)
        for dtype in types_of(domain, name):
            for i, _ in enumerate(op.samples(np.random.default_rng(0), dtype)):
                marks = [pytest.mark.slow] if i and dtype != np.float32 else []
                yield pytest.param(name, dtype, i, id=f"{name}-{dtype.name}-{i}", marks=marks)


def one_node(name, arrays, attrs, opset):
    schema = lookup("", name, opset)
    inputs = [helper.make_tensor_value_info(f"i{k}", int(element_of(a.dtype)), a.shape)
              for k, a in enumerate(arrays) if a is not None]
    names = ["" if a is None else f"i{k}" for k, a in enumerate(arrays)]
    node = helper.make_node(name, names, ["y"], **attrs)
    proto = model([node], inputs, [helper.make_empty_tensor_value_info("y")], opset=opset, ir_version=14)
    assert schema
    return proto


@pytest.mark.parametrize("name, dtype, index", list(cases()))
def test_sample(name, dtype, index):
    op = find("", name, 1 << 20)
    arrays, attrs = list(op.samples(np.random.default_rng(0), dtype))[index]
    arrays = [None if a is None else np.asarray(a) for a in arrays]
    proto = one_node(name, arrays, attrs, newest_opset(""))
    feeds = {f"i{k}": a for k, a in enumerate(arrays) if a is not None}
    session = ort.InferenceSession(proto.SerializeToString())
    (got,) = session.run(None, feeds)
    declared = session.get_outputs()[0]
    assert declared.type == f"tensor({element_of(got.dtype).text})", "declared and computed type differ"
    assert declared.shape == [] or len(declared.shape) == got.ndim, "[] also stands for an unknown rank"
    if dtype in HALF and got.dtype in HALF:
        check_narrow(op, arrays, attrs, got)
    else:
        check_peer(proto, feeds, got, f"{name}-{dtype.name}-{index}")


def check_narrow(op, arrays, attrs, got):
    """A half-precision result is the float64 result, rounded once or a few times."""
    wide = [a.astype(np.float64) if a is not None and a.dtype in HALF else a for a in arrays]
    with np.errstate(all="ignore"):
        exact = np.asarray(op.bind(attrs)(*wide)).astype(np.float64)
    step = float(ml_dtypes.finfo(got.dtype).eps)
    np.testing.assert_allclose(got.astype(np.float64), exact.astype(got.dtype).astype(np.float64),
                               rtol=4 * step, atol=4 * step)


def check_peer(proto, feeds, got, case):
    peer = pytest.importorskip("onnxruntime")
    proto.ir_version = 13
    proto.opset_import[0].version = PEER_OPSET
    try:
        theirs = peer.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        (expected,) = theirs.run(None, feeds)
    except Exception as error:
        pytest.skip(f"onnxruntime does not run it: {str(error)[:80]}")
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if case in EXPECTED:
        return
    if got.dtype.kind in "fc":
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
    else:
        np.testing.assert_array_equal(got, expected)


def test_what_is_excused_is_a_sample():
    assert EXPECTED.keys() <= {case.id for case in cases()}


MEANT = {
    ("GridSample", "mode"): "bilinear was renamed to linear at version 20, and both are taken",
    ("GRU", "direction"): "the first schema misspells forward",
    ("RNN", "activations"): "None stands for Tanh in each direction",
}
TABLE = {"float16": "f16", "bfloat16": "bf16", "double": "f64", "int8": "i8", "uint8": "u8", "int16": "i16",
         "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64"}
ROWS = ("Add", "Mul", "Div", "MatMul", "Max", "Erf", "Cos", "Sigmoid", "Tanh", "Softmax", "Relu", "Abs",
        "Neg", "Sign", "ReduceSum", "ArgMax", "Clip", "Equal", "Less", "Pow", "Mod")


@pytest.mark.parametrize("name", ROWS)
def test_type_table_has_no_hole(name):
    """Every type the schema allows runs, and gives what float64 or int64 arithmetic gives."""
    schema = lookup("", name, 23)
    for text in TABLE:
        if f"tensor({text})" not in schema.inputs[0].types:
            continue
        dtype = parse_type(f"tensor({text})").elem.numpy
        a = np.array([[1, 2, 3], [4, 5, 6]], np.float64)
        count = 2 if schema.min_input == 2 or name == "Max" else 1
        second = a.T if name == "MatMul" else a
        arrays = [a.astype(dtype), second.astype(dtype)][:count]
        attrs = {"fmod": 1} if name == "Mod" and np.issubdtype(np.dtype(dtype), np.inexact) or (
            name == "Mod" and dtype in HALF) else {}
        session = ort.InferenceSession(one_node(name, arrays, attrs, 23).SerializeToString())
        (got,) = session.run(None, {f"i{k}": v for k, v in enumerate(arrays)})
        op = find("", name, 23)
        wide = [a, second][:count]
        exact = np.asarray(op.bind(attrs)(*wide) if name != "Div" or dtype.kind not in "iu" else (a // a))
        np.testing.assert_allclose(got.astype(np.float64), exact.astype(np.float64), rtol=0.02,
                                   err_msg=f"{name} {text}")


def test_older_forms_are_found_by_version():
    assert find("", "Softmax", 11) is not find("", "Softmax", 13)
    assert find("", "Softmax", 0) is None
    assert find("", "NoSuchOperator", 30) is None


def test_every_operator_of_the_standard_runs():
    """Each schema, at each version, has a definition, a function body, or is written out at load."""
    missing = []
    for schema in onnx.defs.get_all_schemas_with_history():
        has_body = schema.has_function or schema.has_context_dependent_function
        if schema.name != "Gradient" and not schema.deprecated and not has_body \
                and find(schema.domain, schema.name, schema.since_version) is None:
            missing.append(f"{schema.domain}::{schema.name}-{schema.since_version}")
    assert missing == []


def test_definitions_take_what_the_schemas_say():
    """A definition's inputs and attributes cover the schema's at every version, defaults included."""
    wrong = []
    for schema in onnx.defs.get_all_schemas_with_history():
        op = find(schema.domain, schema.name, schema.since_version)
        if op is None or schema.deprecated:
            continue
        if not op.variadic and len(op.inputs) < min(schema.max_input, 64):
            wrong.append(f"{schema.name}-{schema.since_version} takes {len(op.inputs)} inputs")
        for key, attribute in schema.attributes.items():
            default = attribute.default_value
            if key not in op.attributes or default.type in (0, onnx.AttributeProto.TENSOR):
                continue
            value = onnx.helper.get_attribute_value(default)
            value = value.decode() if isinstance(value, bytes) else value
            if isinstance(value, list):
                value = [v.decode() if isinstance(v, bytes) else v for v in value]
            ours = op.attributes[key]
            same = ours == value or (isinstance(value, float) and ours == pytest.approx(value, rel=1e-6))
            same |= (schema.name, key) in MEANT
            if not same and not (isinstance(value, list) and list(ours or []) == list(value)):
                wrong.append(f"{schema.name}-{schema.since_version}.{key}: {ours!r}, the schema {value!r}")
    assert wrong == []


def test_gradient_is_written_out():
    nodes = [helper.make_node("Mul", ["a", "b"], ["c"]), helper.make_node("Tanh", ["c"], ["d"]),
             helper.make_node("MatMul", ["d", "w"], ["e"]),
             helper.make_node("ReduceMean", ["e"], ["y"], keepdims=0),
             helper.make_node("Gradient", ["a", "b", "w"], ["da", "db", "dw"], xs=["a", "b", "w"], y="y",
                              domain="ai.onnx.preview.training")]
    shapes = {"a": (2, 3), "b": (1, 3), "w": (3, 4)}
    made = {"y": (), **{f"d{n}": s for n, s in shapes.items()}}
    proto = model(nodes, [helper.make_tensor_value_info(n, 11, s) for n, s in shapes.items()],
                  [helper.make_tensor_value_info(n, 11, s) for n, s in made.items()],
                  domains={"ai.onnx.preview.training": 1})
    rng = np.random.default_rng(0)
    at = {n: rng.normal(size=s) for n, s in shapes.items()}
    session = ort.InferenceSession(proto.SerializeToString())
    y, *gradients = session.run(None, at)
    for name, found in zip(shapes, gradients, strict=True):
        for index in np.ndindex(*shapes[name]):
            moved = {**at, name: at[name].copy()}
            moved[name][index] += 1e-6
            slope = (session.run(["y"], moved)[0] - y) / 1e-6
            assert found[index] == pytest.approx(slope, abs=1e-5)


def test_initializers_of_every_width_survive():
    """Types of four, two and eight bits go through a model and come out as they went in."""
    for elem in (21, 22, 23, 24, 25, 26, 17, 18, 19, 20, 16):
        dtype = helper.tensor_dtype_to_np_dtype(elem)
        array = np.array([0, 1, 1, 0, 1], np.float32).astype(dtype)
        if elem == 24:
            array = np.array([1, 2, 4, 0.5, 1], np.float32).astype(dtype)
        proto = model([helper.make_node("Identity", ["w"], ["y"])], [],
                      [helper.make_tensor_value_info("y", elem, [5])], {}, opset=25, ir_version=13)
        proto.graph.initializer.append(numpy_helper.from_array(array, "w"))
        (got,) = ort.InferenceSession(proto.SerializeToString()).run(None, {})
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got.astype(np.float32), array.astype(np.float32))


@pytest.mark.parametrize("domain, op, version", [
    ("", "Nope", 17), ("", "Swish", 13), ("ai.onnx.ml", "Scaler", 0)])
def test_inference_of_an_operator_that_onnx_does_not_have(domain: str, op: str, version: int) -> None:
    value = Value("x", TensorType(ElementType.FLOAT, (2,)))
    node = Node(op, domain, version, None, [value], {})
    with pytest.raises(InferenceError, match=f"ONNX has no .*{op} of version {version}"):
        infer_node(node, [value], {"": 17})
