"""Text that is not UTF-8, in every field of a model that holds text."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.errors import ALL, InvalidProtobuf
from orthrus.load.text import readable

Path = tuple[tuple[str, int | None], ...]
BAD = b"\xff\xfe\xff\xfe\xff\xfe"
FREE = ("doc_string", "producer_name", "producer_version", "metadata_props")


def base() -> onnx.ModelProto:
    """A model with a body, a function, strings, metadata and a name in every message that has one."""
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["b_out"])], "body", [],
                             [helper.make_tensor_value_info("b_out", 1, None)])
    nodes = [helper.make_node("Add", ["x", "w"], ["a"], name="n1", doc_string="nd"),
             helper.make_node("LeakyRelu", ["a"], ["l"], alpha=.1),
             helper.make_node("If", ["c"], ["i"], then_branch=body, else_branch=body),
             helper.make_node("F", ["l"], ["f"], domain="loc", k=1),
             helper.make_node("Pad", ["f", "p"], ["y"], mode="constant"),
             helper.make_node("StringNormalizer", ["s"], ["t"], stopwords=["a"], locale="C")]
    weights = [numpy_helper.from_array(np.ones(3, np.float32), "w"),
               numpy_helper.from_array(np.array(True), "c"),
               numpy_helper.from_array(np.zeros(4, np.int64), "p"),
               helper.make_tensor("s", 8, [2], ["aa", "bb"])]
    x = helper.make_tensor_value_info("x", 1, ["N", 3], shape_denotation=["D", ""])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, None),
                                                helper.make_tensor_value_info("t", 8, None)], weights, "doc",
                              value_info=[helper.make_tensor_value_info("a", 1, ["N", 3])])
    function = helper.make_function("loc", "F", ["u"], ["v"], [helper.make_node("Relu", ["u"], ["v"])],
                                    [helper.make_opsetid("", 17)], ["k"])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[function],
                             producer_name="p", producer_version="1", domain="d", doc_string="ds")
    made.metadata_props.add(key="mk", value="mv")
    made.graph.node[0].metadata_props.add(key="nk", value="nv")
    made.graph.initializer[0].doc_string = "td"
    return made


def fields(message: Any, path: Path = ()) -> Iterator[Path]:
    """The way to every text in a message."""
    for field, value in message.ListFields():
        many = not isinstance(value, str | bytes) and not hasattr(value, "ListFields")
        for i, each in enumerate(value if many and field.type in (9, 11) else [value]):
            here = (*path, (field.name, i if many else None))
            if field.type == 9:
                yield here
            elif field.type == 11:
                yield from fields(each, here)


def owner(model: Any, path: Path) -> Any:
    for name, i in path[:-1]:
        model = getattr(model, name) if i is None else getattr(model, name)[i]
    return model


def get(model: Any, path: Path) -> str:
    (name, i), at = path[-1], owner(model, path)
    return getattr(at, name) if i is None else getattr(at, name)[i]


def put(model: Any, path: Path) -> None:
    (name, i), at = path[-1], owner(model, path)
    if i is None:
        setattr(at, name, "QQQQQQ")
    else:
        getattr(at, name)[i] = "QQQQQQ"


def texts(session: ort.InferenceSession) -> Iterator[Any]:
    for each in (*session.get_inputs(), *session.get_outputs()):
        yield from (each.name, each.type)
    meta = session.get_modelmeta()
    yield from (meta.description, meta.domain, meta.graph_name, meta.producer_name)
    yield from (text for pair in meta.custom_metadata_map.items() for text in pair)
    yield str(session.explain())


@pytest.mark.parametrize("everywhere", [False, True])
def test_every_text_field(everywhere: bool) -> None:
    """A name is refused and said, a text for people is made readable."""
    feed, ran = np.ones((2, 3), np.float32), 0
    paths = list(fields(base()))
    assert len(paths) > 60
    for path in paths:
        model = base()
        old = get(model, path)
        for other in paths if everywhere and old else [path]:
            if get(base(), other) == old:
                put(model, other)
        data = model.SerializeToString().replace(b"QQQQQQ", BAD)
        try:
            session = ort.InferenceSession(data)
        except ALL as error:
            assert isinstance(error, InvalidProtobuf) and "UTF-8" in str(error)
            assert everywhere or path[-1][0] not in FREE
            continue
        assert all(type(text) is str and text.encode() is not None for text in texts(session))
        session.run(None, {arg.name: feed for arg in session.get_inputs()})
        ran += 1
    assert ran > 8


def test_a_model_that_was_given_is_not_changed() -> None:
    model = base()
    model.doc_string = "QQQQQQ"
    given = onnx.ModelProto.FromString(model.SerializeToString().replace(b"QQQQQQ", BAD))
    made = readable(given, False)
    assert given.doc_string == BAD and made.doc_string == "\ufffd" * 6
    assert readable(base(), False) == base()


def test_data_is_no_text() -> None:
    """Strings in tensors and attributes may hold any bytes."""
    strings = helper.make_tensor("s", TensorProto.STRING, [1], [BAD])
    graph = helper.make_graph([helper.make_node("Identity", ["s"], ["t"])], "g", [],
                              [helper.make_tensor_value_info("t", 8, [1])], [strings])
    session = ort.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                                                     ir_version=8).SerializeToString())
    (made,) = session.run(None, {})
    assert made[0].encode("utf-8", "surrogateescape") == BAD


SLOW_PROTOBUF = """
import sys
import onnx
from google.protobuf.internal import api_implementation
import orthrus as ort
from orthrus.demo import MODEL
from orthrus.errors import InvalidProtobuf
assert api_implementation.Type() == "python"
model = onnx.load(MODEL)
model.producer_name = "made by"
ort.InferenceSession(model.SerializeToString())
for session in (ort.InferenceSession, lambda given: ort.InferenceSession(sys.argv[1])):
    data = model.SerializeToString().replace(b"made by", b"made\\xffby")
    open(sys.argv[1], "wb").write(data)
    try:
        session(data)
    except InvalidProtobuf as error:
        assert "producer_name" in str(error) and "PYTHON_IMPLEMENTATION" in str(error), error
    else:
        raise AssertionError
"""


def test_protobuf_of_python_alone(tmp_path: pathlib.Path) -> None:
    """It takes no text that is not UTF-8, for which protobuf's own errors have no word."""
    given = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = subprocess.run([sys.executable, "-c", SLOW_PROTOBUF, tmp_path / "model.onnx"], env=given,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
