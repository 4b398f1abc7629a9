# /// script
# dependencies = ["spox"]
# ///
"""A graph built by spox, whose values are propagated by onnxruntime."""

import numpy as np
import onnxruntime
import spox.opset.ai.onnx.v17 as op
from spox import Tensor, argument, build

draw = np.random.default_rng(0)
x = argument(Tensor(np.float32, ("N", 5)))
weight = op.constant(value=draw.standard_normal((5, 3)).astype(np.float32))
y = op.softmax(op.matmul(x, weight), axis=-1)
best, where = op.top_k(y, op.constant(value_ints=[2]))
model = build({"x": x}, {"y": y, "best": best, "where": where})
session = onnxruntime.InferenceSession(model.SerializeToString())
found = session.run(None, {"x": draw.standard_normal((4, 5)).astype(np.float32)})
results = dict(zip(("y", "best", "where"), found, strict=True))
