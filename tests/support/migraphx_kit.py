"""What tests of the MIGraphX provider share: the double's folder, sessions on it, and what they tell."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import onnx
from graphs import info, model
from onnx import helper

import orthrus as ort

NAME, CPU = "MIGraphXExecutionProvider", "CPUExecutionProvider"
DOUBLE = str(Path(__file__).with_name("migraphx_double"))
REF = {"target": "ref", "module_path": DOUBLE}
RNG = np.random.default_rng(0)


def perceptron(batch: Any = "N", opset: int = 17) -> onnx.ModelProto:
    """y = softmax(relu(x w + b)), x [N, 8]."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
             helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
             helper.make_node("Relu", ["a"], ["r"], name="relu"),
             helper.make_node("Softmax", ["r"], ["y"], name="softmax")]
    weights = {"w": np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5),
               "b": np.linspace(0, 1, 5, dtype=np.float32)}
    return model(nodes, [info("x", shape=[batch, 8])], [info("y", shape=[batch, 5])], weights, opset=opset)


def rows(n: int) -> dict[str, np.ndarray]:
    """A feed of `perceptron`."""
    return {"x": RNG.standard_normal((n, 8)).astype(np.float32)}


def session(proto: Any, fallback: str = "allow", **options: Any) -> ort.InferenceSession:
    """A session on the double's `ref`. What fails is an error."""
    raw = proto.SerializeToString() if hasattr(proto, "graph") else proto
    made = ort.InferenceSession(raw, providers=[(NAME, {**REF, **options}), CPU], fallback=fallback,
                                enable_fallback=0)
    made.disable_fallback()
    return made


taken, whole = partial(foreign.taken, provider=NAME), partial(foreign.whole, provider=NAME)


def check(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], rtol: float = 1e-5, **options: Any
          ) -> ort.InferenceSession:
    """A session on MIGraphX alone that gives what the CPU provider gives."""
    made = session(proto, **options)
    foreign.agrees(made, NAME, proto, feeds, rtol)
    return made
