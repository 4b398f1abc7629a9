"""Transposed convolutions to few channels over drawn sizes, pads, groups and what follows, on two shapes in
turn, against sums written out; what is not finite shows where it is added, and nowhere else. With steps as
products of columns, without them plane by plane."""

from __future__ import annotations

from itertools import product as indices
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.lowering.rules import conv_columns, conv_planes


def written_out(x: np.ndarray, w: np.ndarray, group: int, strides: list[int], pads: list[int],
                more: list[int], spread: int = 1) -> np.ndarray:
    rank, kernel = x.ndim - 2, w.shape[2:]
    full = [(d - 1) * s + (k - 1) * spread + 1 for d, s, k in zip(x.shape[2:], strides, kernel, strict=True)]
    y = np.zeros((x.shape[0], w.shape[1] * group, *(f + o for f, o in zip(full, more, strict=True))))
    cin, cout = x.shape[1] // group, w.shape[1]
    for g in range(group):
        part, weights = x[:, g * cin:(g + 1) * cin].astype(np.float64), w[g * cin:(g + 1) * cin]
        for tap in indices(*map(range, kernel)):
            at = tuple(slice(t * spread, t * spread + (d - 1) * s + 1, s)
                       for t, d, s in zip(tap, x.shape[2:], strides, strict=True))
            y[:, g * cout:(g + 1) * cout, *at] += np.einsum("nc...,co->no...", part, weights[:, :, *tap])
    ends = [n - e for n, e in zip(y.shape[2:], pads[rank:], strict=True)]
    return y[:, :, *(slice(b, e) for b, e in zip(pads[:rank], ends, strict=True))]


@pytest.mark.parametrize("seed", range(60))
def test_few_channels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    came = []
    plain = conv_columns.write
    monkeypatch.setattr(conv_columns, "write", lambda *a: (came.append(1), plain(*a)))
    monkeypatch.setattr(conv_columns, "pays", lambda *_: True)
    rng = np.random.default_rng([11, seed])

    def several(low: int, high: int, count: int) -> list[int]:
        return [int(v) for v in rng.integers(low, high, count)]
    rank, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2]))
    cin, cout = group * int(rng.integers(1, 12)), int(rng.integers(1, 12))
    kernel = several(1, {1: 20, 2: 7, 3: 5}[rank], rank)
    strides = [int(rng.integers(1, k + 2)) for k in kernel]
    pads = [min(p, k // 2) for p, k in zip(several(0, 3, 2 * rank), kernel * 2, strict=True)]
    attrs: dict[str, Any] = {"strides": strides, "group": group, "pads": pads}
    more = [0] * rank
    if seed % 3 == 0:
        more = [int(rng.integers(0, s)) for s in strides]
        attrs["output_padding"] = more
    check(rng, seed, (cin, cout, *kernel), attrs, more)
    assert came or any(more)


@pytest.mark.parametrize("shape, strides, ways", [
    ((64, 4, 4, 4), [1, 1], 1), ((64, 3, 5, 5), [2, 2], 1), ((24, 2, 5, 5, 5), [2, 2, 2], 1),
    ((32, 1, 4, 4, 4), [1, 1, 1], 1), ((64, 32, 4, 4), [2, 2], 4)])
def test_which_way(shape: tuple[int, ...], strides: list[int], ways: int) -> None:
    """One product where few channels are made of many, and a convolution per phase where many are."""
    w, rank = np.ones(shape, np.float32), len(strides)
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=strides)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, shape[0], *[6] * rank])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    text = str(ort.InferenceSession(model.SerializeToString()).explain())
    assert ("conv_tiles" in text) == (ways > 1), text


@pytest.mark.parametrize("seed", range(30))
def test_without_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    came = []
    plain = conv_planes.Planes.write
    monkeypatch.setattr(conv_planes.Planes, "write", lambda *a: (came.append(1), plain(*a)))
    monkeypatch.setattr(conv_columns, "pays", lambda *_: False)
    rng = np.random.default_rng([12, seed])
    rank, spread = int(rng.integers(1, 3)), int(rng.choice([1, 1, 2, 3]))
    cin, cout = int(rng.choice([1, 2, 3, 5, 16])), int(rng.integers(1, 5))
    kernel = [int(v) for v in rng.integers(2, 34 if rank == 1 else 8, rank)]
    pads = [int(rng.integers(0, min(3, (k - 1) * spread + 1))) for k in kernel * 2]
    check(rng, seed, (cin, cout, *kernel), {"dilations": [spread] * rank, "pads": pads}, [0] * rank, spread)
    assert came


@pytest.mark.parametrize("steps", [[1, 1], [2, 3], [1, 2]])
@pytest.mark.parametrize("cin, cout", [(3, 2), (9, 2), (8, 16), (5, 11)])
def test_infinite_weights(steps: list[int], cin: int, cout: int) -> None:
    """No pixel lies beside an image, and nothing times such a weight."""
    rng = np.random.default_rng(cin)
    w = rng.standard_normal((cin, cout, 4, 3)).astype(np.float32)
    w[1, 0, 2, 1], w[0, 1, 0, 0] = np.inf, np.nan
    check(rng, 1, w.shape, {"strides": steps}, [0, 0], w=w)


def check(rng: np.random.Generator, seed: int, shape: tuple[int, ...], attrs: dict[str, Any], more: list[int],
          spread: int = 1, w: np.ndarray | None = None) -> None:
    """A model of the operator, its weights of `shape`, and what follows, on three shapes."""
    (cin, cout, *_), rank, group = shape, len(shape) - 2, attrs.get("group", 1)
    strides, pads = attrs.get("strides", [1] * rank), attrs.get("pads", [0] * 2 * rank)
    w = rng.standard_normal(shape).astype(np.float32) if w is None else w
    bias = rng.standard_normal(cout * group).astype(np.float32)
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
        sizes = [1 + m + int(rng.integers(0, 5)) for m in least]
        x = rng.standard_normal((images, cin, *sizes)).astype(np.float32)
        if images == 2:
            x.reshape(-1)[rng.integers(0, x.size, 2)] = np.inf, np.nan
        with np.errstate(invalid="ignore"):
            want = written_out(x, w, group, strides, pads, more, spread)
        want = np.maximum(want + (bias if seed % 2 else 0 * bias).reshape(-1, *[1] * rank), 0) + 1
        [y] = session.run(None, {"x": x})
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
