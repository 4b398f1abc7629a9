"""Transposed convolutions to few channels over drawn sizes, pads, groups and what follows, on two shapes in
turn, against sums written out; what is not finite shows where it is added, and nowhere else."""

from __future__ import annotations

from itertools import product as indices
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.lowering.rules import conv_columns


def written_out(x: np.ndarray, w: np.ndarray, group: int, strides: list[int], pads: list[int],
                more: list[int]) -> np.ndarray:
    rank, kernel = x.ndim - 2, w.shape[2:]
    full = [(d - 1) * s + k for d, s, k in zip(x.shape[2:], strides, kernel, strict=True)]
    y = np.zeros((x.shape[0], w.shape[1] * group, *(f + o for f, o in zip(full, more, strict=True))))
    cin, cout = x.shape[1] // group, w.shape[1]
    for g in range(group):
        part, weights = x[:, g * cin:(g + 1) * cin].astype(np.float64), w[g * cin:(g + 1) * cin]
        for tap in indices(*map(range, kernel)):
            at = tuple(slice(t, t + (d - 1) * s + 1, s)
                       for t, d, s in zip(tap, x.shape[2:], strides, strict=True))
            y[:, g * cout:(g + 1) * cout, *at] += np.einsum("nc...,co->no...", part, weights[:, :, *tap])
    ends = [n - e for n, e in zip(y.shape[2:], pads[rank:], strict=True)]
    return y[:, :, *(slice(b, e) for b, e in zip(pads[:rank], ends, strict=True))]


@pytest.mark.parametrize("seed", range(30))
def test_few_channels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    came = []
    plain = conv_columns.write
    monkeypatch.setattr(conv_columns, "write", lambda *a: (came.append(1), plain(*a)))
    rng = np.random.default_rng([11, seed])

    def several(low: int, high: int, count: int) -> list[int]:
        return [int(v) for v in rng.integers(low, high, count)]
    rank, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2]))
    cin, cout = group * int(rng.integers(8, 12)), int(rng.integers(1, 8))
    kernel = several(1, 10 if rank == 1 else 4, rank)
    strides = [int(rng.integers(max(1, k // 2), k + 2)) for k in kernel]
    pads = [min(p, k // 2) for p, k in zip(several(0, 3, 2 * rank), kernel * 2, strict=True)]
    attrs: dict[str, Any] = {"strides": strides, "group": group, "pads": pads}
    more = [0] * rank
    if seed % 3 == 0:
        more = [int(rng.integers(0, s)) for s in strides]
        attrs["output_padding"] = more
    w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((cin, cout, *kernel), (cout * group,)))
    nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"][:2 + seed % 2], ["c"], **attrs),
             helper.make_node("Relu", ["c"], ["r"]), helper.make_node("Add", ["r", "s"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, cin, *[None] * rank])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in (
            ("w", w), ("b", bias), ("s", np.ones((cout * group, *[1] * rank), np.float32)))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1 + seed % 2
    session = ort.InferenceSession(model.SerializeToString(), options)
    least = [b + e for b, e in zip(pads[:rank], pads[rank:], strict=True)]
    for images in (1, 3, 2):
        sizes = [1 + m + n for m, n in zip(least, several(0, 5, rank), strict=True)]
        x = rng.standard_normal((images, cin, *sizes)).astype(np.float32)
        if images == 2:
            x.reshape(-1)[rng.integers(0, x.size, 2)] = np.inf, np.nan
        with np.errstate(invalid="ignore"):
            want = written_out(x, w, group, strides, pads, more)
        want = np.maximum(want + (bias if seed % 2 else 0 * bias).reshape(-1, *[1] * rank), 0) + 1
        [y] = session.run(None, {"x": x})
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    assert came or any(more)
