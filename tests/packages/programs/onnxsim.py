# /// script
# dependencies = ["onnxsim", "torch==2.13.*"]
# ///
"""A model simplified, with its own check that results stay equal, which onnxruntime does."""

import io

import numpy as np
import onnx
import onnxruntime
import onnxsim
import torch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.LSTM(6, 5, batch_first=True)

    def forward(self, x):
        y, _ = self.inner(x)
        return y.reshape(x.shape[0], -1, 5).transpose(1, 2) + x.shape[1] / 2


torch.manual_seed(0)
x = torch.randn(2, 7, 6)
file = io.BytesIO()
torch.onnx.export(Network().eval(), (x,), file, input_names=["x"], dynamo=False)
simple, right = onnxsim.simplify(onnx.load_from_string(file.getvalue()), check_n=3)
[y] = onnxruntime.InferenceSession(simple.SerializeToString()).run(None, {"x": x.numpy()})
results = {"right": right, "y": y, "nodes": np.array([node.op_type for node in simple.graph.node])}
