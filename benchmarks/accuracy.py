"""Errors against float64 of long sums of positive float32 numbers, engine beside engine.

    python -m benchmarks.accuracy

Positive terms are where rounding adds up: every partial sum is large, and what is added to it loses digits.
Given is the largest error of a result as a part of the largest result. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

Case = tuple[str, NodeProto, dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]


def _positive(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).random(shape, np.float32)


def _wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


def cases() -> Iterator[Case]:
    """What it is, the node, what is fed, what is constant, and the true result."""
    for k in (1024, 4096, 32768):
        for m in (1, 8, 40):
            a, b = _positive(m, k), _positive(k, 64)
            x, y = _wide(a, b)
            node = helper.make_node("MatMul", ["a", "b"], ["y"])
            yield f"{m} x {k} by weights", node, {"a": a}, {"b": b}, x @ y
            yield f"{m} x {k} by a computed matrix", node, {"a": a, "b": b}, {}, x @ y
    for keys in (1024, 4096, 100_000):
        for queries in (1, 14):
            q, k, v = _positive(1, queries, 64), _positive(1, keys, 64), _positive(1, keys, 64)
            x, y, z = _wide(q, k, v)
            weights = np.exp(x @ y.transpose(0, 2, 1) / 8)
            node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft",
                                    num_heads=1)
            yield (f"attention of {queries} queries over {keys} keys", node, {"q": q, "k": k, "v": v}, {},
                   weights @ z / weights.sum(-1, keepdims=True))
    x, w = _positive(1, 4096, 8, 8), _positive(24, 4096, 1, 1)
    given, known = _wide(x, w[:, :, 0, 0])
    yield ("convolution of 4096 channels", helper.make_node("Conv", ["x", "w"], ["y"]), {"x": x}, {"w": w},
           np.tensordot(known, given, (1, 1)).transpose(1, 0, 2, 3))
    many = _positive(1_000_000, 4)
    for op, truth in (("ReduceSum", _wide(many)[0].sum(0)), ("CumSum", _wide(many)[0].cumsum(0))):
        yield (f"{op} of a million, the first axis", helper.make_node(op, ["x", "axis"], ["y"], **(
            {"keepdims": 0} if op == "ReduceSum" else {})), {"x": many}, {
            "axis": np.array([0] if op == "ReduceSum" else 0, np.int64)}, truth)


def error(engine: Any, case: Case) -> float:
    """The largest difference from the true result, as a part of the largest result."""
    _, node, fed, known, truth = case
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in fed.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in known.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    (y,) = engine.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, fed)
    return float(np.abs(y - truth).max() / np.abs(truth).max())


def main() -> None:
    import onnxruntime

    import orthrus
    print("| | onnxruntime | Orthrus |\n|---|---|---|")
    for case in cases():
        print(f"| {case[0]} | {error(onnxruntime, case):.1e} | {error(orthrus, case):.1e} |", flush=True)


if __name__ == "__main__":
    main()
