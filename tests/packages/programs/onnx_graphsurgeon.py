# /// script
# dependencies = ["onnx-graphsurgeon"]
# ///
"""A graph built and folded: constants are folded by onnxruntime."""

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime

draw = np.random.default_rng(0)
x = gs.Variable("x", np.float32, ("N", 4))
w, b, half, m, y = (
    gs.Constant("w", draw.standard_normal((4, 3)).astype(np.float32)),
    gs.Constant("b", draw.standard_normal(3).astype(np.float32)),
    gs.Variable("half", np.float32), gs.Variable("m", np.float32), gs.Variable("y", np.float32))
graph = gs.Graph([gs.Node("Add", inputs=[b, b], outputs=[half]),
                  gs.Node("MatMul", inputs=[x, w], outputs=[m]),
                  gs.Node("Add", inputs=[m, half], outputs=[y])], [x], [y], opset=17, ir_version=9)
graph.fold_constants().cleanup().toposort()
model = gs.export_onnx(graph)
[found] = onnxruntime.InferenceSession(model.SerializeToString()).run(
    None, {"x": draw.standard_normal((5, 4)).astype(np.float32)})
results = {"y": found, "nodes": np.array([node.op_type for node in model.graph.node])}
