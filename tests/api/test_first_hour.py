"""What somebody sees in a first hour: slips are named, and what is shown in a notebook can be read."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import orthrus as ort
from orthrus.demo import MODEL


def one_node(op_type: str, domain: str = "") -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], domain=domain)], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model.SerializeToString()


@pytest.mark.parametrize(("begin", "said"), [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
    (b"\n<!DOCTYPE html><html></html>", "HTML"), (b'{"error": "Not Found"}', "JSON"),
    (b"PK\x03\x04" + bytes(80), "ZIP"), (b"\x1f\x8b\x08" + bytes(40), "gzip"),
    (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"), (b"\x20\0\0\0TFL3" + b"\xff" * 30, "TensorFlow Lite"),
    (b"", "No graph")])
def test_a_file_that_is_no_model_is_called_what_it_is(begin: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(begin)
    for given in (str(path), begin):
        with pytest.raises(Exception, match=said) as caught:
            ort.InferenceSession(given)
        assert isinstance(caught.value, ort.errors.ALL)


def test_a_cut_file_is_called_so() -> None:
    whole = Path(str(MODEL)).read_bytes()
    found = []
    for share in (0.1, 0.5, 0.9, 0.99):
        with pytest.raises(ort.errors.ALL) as caught:
            ort.InferenceSession(whole[:int(share * len(whole))])
        found.append("end early" in str(caught.value))
    assert all(found)


@pytest.mark.parametrize(("op_type", "domain", "meant"), [
    ("Rellu", "", "Relu"), ("Sotfmax", "", "Softmax"), ("FastGleu", "com.microsoft", "FastGelu")])
def test_an_operator_that_was_misspelt(op_type: str, domain: str, meant: str) -> None:
    with pytest.raises(ort.errors.ALL, match=f"did you mean {meant}"):
        ort.InferenceSession(one_node(op_type, domain))


def test_slips_in_a_call(recwarn: Any) -> None:
    session = ort.InferenceSession(one_node("Relu"), providers="CPUExecutionProvider")
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert [str(w.message) for w in recwarn] == [
        "providers is a text, taken for ['CPUExecutionProvider']; give a list"]
    with pytest.warns(UserWarning, match="did you mean sess_options"):
        ort.InferenceSession(one_node("Relu"), sess_option=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ort.InferenceSession(one_node("Relu"), enable_fallback=0, trust=None)


def test_an_input_that_was_misspelt() -> None:
    session = ort.InferenceSession(str(MODEL))
    with pytest.raises(ValueError, match="'imagee': did you mean image") as caught:
        session.run(None, {"imagee": np.zeros((1, 1, 8, 8), np.float32)})
    assert str(caught.value).startswith("Required inputs (['image']) are missing from input feed")


def test_a_session_shows_itself() -> None:
    session = ort.InferenceSession(str(MODEL))
    assert repr(session).startswith("<InferenceSession (image tensor(float)['N', 1, 8, 8]) -> (label ")
    explained = session.explain()
    count = len(explained)
    assert repr(explained) == f"<Explanation {count} nodes: {count} on CPUExecutionProvider>"
    with session.profile() as profile:
        session.run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})
    assert "1 runs" in repr(profile)
    for each in (session, explained, profile):
        assert each._repr_html_().startswith("<") and "<script>alert" not in each._repr_html_()


def test_names_out_of_a_model_are_no_html() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="<script>alert(1)</script>")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]),
                              opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    session = ort.InferenceSession(model.SerializeToString())
    assert "<script>alert" not in session.explain()._repr_html_()


def test_the_package_lists_no_private_names() -> None:
    """Neither of its own, nor of what it imports, whatever has been imported by now."""
    assert sorted(name for name in dir(ort) if not name.startswith("__")) == sorted(
        name for name in ort.__all__ if not name.startswith("__"))
