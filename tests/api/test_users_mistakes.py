"""Slips that users make: each an error of onnxruntime's class that names what is wrong and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.errors import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile

A = np.ones((2, 3), np.float32)


def session(model: Any = None, **given: Any) -> Any:
    made = graphs.add() if model is None else model
    data = made.SerializeToString() if isinstance(made, onnx.ModelProto) else made
    return ort.InferenceSession(data, providers=["CPUExecutionProvider"], **given)


def run(a: Any, b: Any = A, **more: Any) -> Any:
    return session().run(None, {"a": a, "b": b, **more})


def node_model(op_type: str, *shapes: Any, kind: int = TensorProto.FLOAT, constant: Any = None,
               opset: int = 17, ir: int = 8, outputs: int = 1, domain: str = "",
               **attrs: Any) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(shapes))]
    initial = [] if constant is None else [numpy_helper.from_array(constant, "k")]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, [*names, *(t.name for t in initial)], results, name="here",
                            domain=domain, **attrs)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, kind, s) for n, s in zip(names, shapes, strict=True)],
        [helper.make_tensor_value_info(n, kind, None) for n in results], initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def fed(model: onnx.ModelProto, *arrays: Any) -> Any:
    return session(model).run(None, {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)})


def external(keep: int) -> None:
    """A model whose data file is missing (`keep` below 0) or is cut after so many bytes."""
    model = node_model("Add", [1000], constant=np.ones(1000, np.float32))
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    if keep < 0:
        os.remove("m.data")
    else:
        Path("m.data").write_bytes(b"0" * keep)
    session("m.onnx")


def bound(*names: str, output: bool = True) -> None:
    it = session()
    binding = it.io_binding()
    for name in names:
        binding.bind_cpu_input(name, A)
    if output:
        binding.bind_output("c")
    it.run_with_iobinding(binding)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


SLIPS: dict[str, tuple[Callable[[], Any], type[BaseException], tuple[str, ...]]] = {
    "double": (lambda: run(A.astype(np.float64)),
               InvalidArgument, ("input a", "a as array.astype('float32')")),
    "whole numbers": (lambda: run(A.astype(np.int64)), InvalidArgument, ("input a", "astype('float32')")),
    "objects": (lambda: run(A.astype(object)), InvalidArgument, ("input a", "astype('float32')")),
    "half": (lambda: run(A.astype(np.float16)), InvalidArgument, ("input a", "astype('float32')")),
    "rank": (lambda: run(A[None]), InvalidArgument, ("input: a", "Got: 3 Expected: 2", "get_inputs()")),
    "shape": (lambda: run(ones(2, 4)),
              InvalidArgument, ("input: a", "index: 1 Got: 4 Expected: 3", "declared")),
    "missing": (lambda: session().run(None, {"a": A}), ValueError, ("['b']", "['a']")),
    "misspelt": (lambda: session(node_model("Relu", [3])).run(None, {"x_0": ones(3)}), ValueError,
                 ("did you mean x0",)),
    "one too many": (lambda: run(A, z=A), InvalidArgument, ("name: z", "a, b", "get_inputs()")),
    "no such output": (lambda: session().run(["cc"], {"a": A, "b": A}), InvalidArgument,
                       ("cc", "get_outputs()")),
    "outputs as text": (lambda: session().run("c", {"a": A, "b": A}), TypeError, ("Sequence[str]",)),
    "None": (lambda: run(None), InvalidArgument, ("input a", "only an optional may be None")),
    "a number": (lambda: run(1.0), RuntimeError, ("float",)),
    "a list of feeds": (lambda: session().run(None, [A, A]), AttributeError, ("keys",)),
    "dates": (lambda: run(np.zeros((2, 3), "M8[D]")), RuntimeError, ("MLDataType",)),
    "path": (lambda: session("nothing.onnx"), NoSuchFile, ("nothing.onnx", "working directory")),
    "folder": (lambda: session("."), InvalidProtobuf, ("a directory", "regular file")),
    "no model": (lambda: ort.InferenceSession(3),
                 TypeError, ("Unable to load from type",)),  # type: ignore[arg-type]
    "empty": (lambda: session(b""), InvalidArgument, ("No graph", "0 bytes")),
    "noise": (lambda: session(b"\0\1noise" * 10), InvalidProtobuf, ("no ONNX ModelProto", "check what")),
    "LFS": (lambda: session(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
            InvalidProtobuf, ("Git LFS", "git lfs pull")),
    "page": (lambda: session(b"<!DOCTYPE html><html></html>"), InvalidProtobuf, ("HTML", "download")),
    "zip": (lambda: session(b"PK\3\4" + b"x" * 100), InvalidProtobuf, ("ZIP", "torch.onnx.export")),
    "JSON": (lambda: session(b'{"a": 1}'), InvalidProtobuf, ("JSON", "convert the model")),
    "cut": (lambda: session(node_model("Add", [999], constant=ones(999)).SerializeToString()[:2000]),
            InvalidProtobuf, ("end early", "download or copy")),
    "data file missing": (lambda: external(-1), Fail, ("m.data", "next to the model")),
    "data file cut": (lambda: external(100), Fail, ("m.data", "100 bytes", "download or copy")),
    "options as a dict": (lambda: session(sess_options={"log_id": "x"}), TypeError, ("SessionOptions",)),
    "option's type": (lambda: setattr(ort.SessionOptions(), "intra_op_num_threads", "3"),
                      TypeError, ("'3'",)),
    "option's name": (lambda: setattr(ort.SessionOptions(), "intra_op_threads", 3), AttributeError,
                      ("intra_op_threads",)),
    "opset to come": (lambda: session(node_model("Relu", [3], opset=99)),
                      Fail, ("Opset 99", "is till opset")),
    "IR to come": (lambda: session(node_model("Relu", [3], ir=99)), Fail, ("99", "export the model")),
    "operator": (lambda: session(node_model("Rellu", [3])), InvalidGraph, ("here", "did you mean Relu?")),
    "domain": (lambda: session(node_model("Relu", [3], domain="my")), InvalidGraph,
               ("here", "opset_import for 'my'")),
    "attribute": (lambda: session(node_model("Relu", [3], alpah=1.0)), InvalidGraph, ("here", "alpah")),
    "types at odds": (lambda: session(node_model("Add", [3], constant=np.ones(3, np.int64))), Fail,
                      ("here", "tensor(int64)", "Cast")),
    "index": (lambda: fed(node_model("Gather", [2], constant=np.array([7])), ones(2)), InvalidArgument,
              ("here", "idx=7", "[-2,1]")),
    "reshape": (lambda: fed(node_model("Reshape", ["n"], constant=np.array([2, 3])), ones(5)), Fail,
                ("here", "[5]", "[2, 3]")),
    "concat": (lambda: fed(node_model("Concat", ["n", "m"], ["k", "l"], axis=0), ones(2, 3), ones(2, 4)),
               Fail,
               ("here", "[2, 3]", "[2, 4]")),
    "broadcast": (lambda: fed(node_model("Add", ["n"], ["m"]), ones(2), ones(3)), Fail,
                  ("here", "(2,)", "(3,)")),
    "channels": (lambda: fed(node_model("Conv", ["n", "c", "h", "w"], constant=ones(2, 3, 3, 3)),
                             ones(1, 4, 8, 8)), Fail, ("here", "4 channels", "expects 3")),
    "split": (lambda: fed(node_model("Split", ["n"], constant=np.array([2, 2]), outputs=2), ones(5)), Fail,
              ("here", "[5]", "4")),
    "bound name": (lambda: bound("zz"), RuntimeError, ("zz",)),
    "bound too few": (lambda: bound("a"), RuntimeError, ("Missing Input: b", "get_inputs()")),
    "bound no output": (lambda: bound("a", "b", output=False), RuntimeError, ("one output",)),
    "device": (lambda: ort.OrtValue.ortvalue_from_numpy(A, "gpuu"), Exception, ("gpuu",)),
    "provider": (lambda: session().set_providers(["Foo"]), RuntimeError, ("Foo",)),
    "library": (lambda: ort.SessionOptions().register_custom_ops_library("no.so"), Fail, ("no.so",)),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_named_with_its_cure(slip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    act, kind, says = SLIPS[slip]
    with pytest.raises(kind) as caught:
        act()
    assert [part for part in says if part not in str(caught.value)] == []


@pytest.mark.parametrize("given", [
    A.tolist(), A.T.copy().T, np.ones((4, 6), np.float32)[::2, ::2], A.astype(">f4"), np.asfortranarray(A)])
def test_what_is_no_slip_is_taken(given: Any) -> None:
    np.testing.assert_array_equal(run(given)[0], A + A)


@pytest.mark.parametrize(("op_type", "opset", "cure"), [
    ("Gelu", 17, "import opset 20 of domain 'ai.onnx'"), ("Attention", 9, "import opset 23 "),
    ("Rellu", 17, "did you mean Relu?"), ("Zzz", 17, None)])
def test_an_operator_that_the_opset_lacks(op_type: str, opset: int, cure: str | None) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "g", [x], [y]),
                              opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidGraph, match="No Op registered") as raised:
        ort.InferenceSession(model.SerializeToString())
    assert (cure in str(raised.value)) if cure else ("cure" not in str(raised.value))
