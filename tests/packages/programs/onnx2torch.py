# /// script
# dependencies = ["torch==2.13.*", "onnx"]
# [tool.pip]
# alone = ["onnx2torch"]
# ///
"""A network through ONNX and back to PyTorch, as its own tests compare it."""

import io
import sys
import types

import numpy as np
import onnx
import onnxruntime
import torch

# It takes boxes' operators from torchvision, which nothing here needs.
for name in ("torchvision", "torchvision.ops"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torchvision.ops"].roi_align = None

from onnx2torch import convert  # noqa: E402

torch.manual_seed(0)
network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(8 * 8 * 8, 10), torch.nn.Softmax(-1)).eval()
x = torch.randn(2, 3, 16, 16)
file = io.BytesIO()
torch.onnx.export(network, (x,), file, input_names=["x"], dynamo=False)
[here] = onnxruntime.InferenceSession(file.getvalue()).run(None, {"x": x.numpy()})
with torch.no_grad():
    back = convert(onnx.load_from_string(file.getvalue()))(x).numpy()
np.testing.assert_allclose(here, back, atol=1e-5)
results = {"here": here, "back": back}
