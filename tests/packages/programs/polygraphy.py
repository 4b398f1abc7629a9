# /// script
# dependencies = ["polygraphy"]
# ///
"""A model by polygraphy's runner and loaders for onnxruntime, with inputs of its own drawing."""

import onnx
from onnx import TensorProto, helper
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator

nodes = [helper.make_node("Gemm", ["x", "w"], ["g"]), helper.make_node("Gelu", ["g"], ["y"])]
x, w, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
           for name, shape in (("x", ["N", 4]), ("w", [4, 6]), ("y", ["N", 6])))
model = helper.make_model(helper.make_graph(nodes, "small", [x, w], [y]),
                          opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
onnx.checker.check_model(model)
found = Comparator.run([OnnxrtRunner(SessionFromOnnx(model.SerializeToString()))])
runs = found[0][1][0]
results = dict(runs)
