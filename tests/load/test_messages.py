"""ONNX's messages without the onnx package: the classes are its own, whichever comes first."""

import subprocess
import sys

import pytest
from graphs import info, model
from onnx import helper

PROGRAM = """
import sys
from orthrus.load.messages import messages
first = sys.argv[1] == "ours"
if first:
    ours = messages()
    assert "onnx" not in sys.modules and ours.ModelProto.__module__ == "onnx.onnx_ml_pb2"
import onnx
if not first:
    ours = messages()
for name in ("ModelProto", "GraphProto", "NodeProto", "TensorProto", "TypeProto", "FunctionProto"):
    assert getattr(ours, name) is getattr(onnx, name), name
made = onnx.helper.make_tensor("t", ours.TensorProto.FLOAT, [2], [1.0, 2.0])
again = ours.TensorProto.FromString(made.SerializeToString())
assert again == made and isinstance(again, onnx.TensorProto)
assert onnx.numpy_helper.to_array(again).tolist() == [1.0, 2.0]
"""


@pytest.mark.parametrize("first", ["ours", "onnx"])
@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_they_are_those_of_the_package(first: str, implementation: str) -> None:
    program = ("import os\n"
               f"os.environ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION'] = {implementation!r}\n" + PROGRAM)
    subprocess.run([sys.executable, "-c", program, first], check=True)


def test_a_small_model_is_loaded_without_the_package() -> None:
    program = """
import sys
import orthrus as ort
from orthrus.load import load
assert "onnx" not in sys.modules
graph = load(bytes.fromhex(sys.argv[1]))
assert [node.op_type for node in graph.nodes] == ["Relu"] and "onnx" not in sys.modules
"""
    text = model([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")]).SerializeToString()
    subprocess.run([sys.executable, "-c", program, text.hex()], check=True)
