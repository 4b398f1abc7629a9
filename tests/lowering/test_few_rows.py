"""Products of few rows, and of a matrix that lies along its columns and a vector, both computed: over sizes,
batches, types and what follows, on one thread and two, against numpy in wider types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import orthrus as ort

TYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.uint32)


def model(a: Any, b: Any, after: str, transposed: bool) -> bytes:
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    attrs = {"transA": 1} if transposed else {}
    nodes = [helper.make_node("Gemm" if transposed else "MatMul", ["a", "b"], ["p"], **attrs)]
    if after:
        nodes.append(helper.make_node(after, ["p", "c"] if after == "Add" else ["p"], ["y"]))
    infos = [helper.make_tensor_value_info(n, kind, [None] * t.ndim) for n, t in (("a", a), ("b", b))]
    infos += [helper.make_tensor_value_info("c", kind, None)] * (after == "Add")
    result = helper.make_tensor_value_info(nodes[-1].output[0], kind, None)
    graph = helper.make_graph(nodes, "g", infos, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                             ir_version=8).SerializeToString()


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 50, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def close(y: np.ndarray, a: np.ndarray, b: np.ndarray, c: Any, after: str) -> None:
    if y.dtype.kind in "iu":
        want = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(y, (want if c is None else want + c).astype(y.dtype))
        return
    wide = [t.astype(np.float64) for t in (a, b)]
    want, bound = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    want = want if c is None else want + c.astype(np.float64)
    want = np.maximum(want, 0) if after == "Relu" else want
    eps = float(ml_dtypes.finfo(y.dtype).eps)
    assert np.all(np.abs(y.astype(np.float64) - want) <= (
        eps * (np.abs(want) + 1) + 2e-6 * bound if y.dtype != np.float64 else 1e-13 * (bound + 1)))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: np.dtype(t).name)
def test_few_rows(dtype: Any) -> None:
    rng = np.random.default_rng([7, TYPES.index(dtype)])
    for case in range(6):
        m, k = int(rng.integers(1, 9)), int(rng.integers(1, 90))
        batch = [(), (3,), (2, 1)][case % 3]
        floats = np.dtype(dtype).kind not in "iu"
        after = ["", "Relu", "Add"][int(rng.integers(3))] if floats else ""
        turned = case == 5 and floats
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1 + case % 2
        session = None
        for n in (int(rng.integers(1, 40)), int(rng.integers(250, 600)), 1):
            a, b = drawn(rng, (m, k), dtype), drawn(rng, (*batch, k, n), dtype)
            if turned:
                a, b = drawn(rng, (k, 7 * m), dtype), drawn(rng, (k, 1), dtype)
            session = session or ort.InferenceSession(model(a, b, after, turned), options)
            feeds = {"a": a, "b": b}
            if after == "Add":
                feeds["c"] = drawn(rng, (1, b.shape[-1]), dtype)
            [y] = session.run(None, feeds)
            close(y, a.T if turned else a, b, feeds.get("c"), after)
