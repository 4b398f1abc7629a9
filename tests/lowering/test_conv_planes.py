"""Convolutions to few channels and of one tap, plane by plane: in sessions, whatever lies around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

import orthrus

pytest.importorskip("native")


def expected(x: np.ndarray, w: np.ndarray, pads: list[int], stride: int, spread: int, group: int
             ) -> np.ndarray:
    """By definition, in float64: (N, C, H, W), pads and spread alike along both axes."""
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    kh, kw = w.shape[2:]
    rows, columns = ((n - (k - 1) * spread - 1) // s + 1 for n, k, s in zip(
        wide.shape[2:], (kh, kw), (stride, 1), strict=True))
    n, count = x.shape[0], w.shape[0] // group
    out = np.zeros((n, group, count, rows, columns))
    for i in range(kh):
        for j in range(kw):
            part = wide[:, :, i * spread:i * spread + (rows - 1) * stride + 1:stride,
                        j * spread:j * spread + columns]
            out += np.einsum("ngchw,goc->ngohw", part.reshape(n, group, -1, rows, columns),
                             w[:, :, i, j].reshape(group, count, -1))
    return out.reshape(n, -1, rows, columns)


@pytest.mark.parametrize("behind", ("nothing", "channel", "plane", "image", "itself", "convolution", "uint8",
                                    "float16", "float64"))
@pytest.mark.parametrize("last", (False, True))
@pytest.mark.parametrize("group", (1, 3))
@pytest.mark.parametrize("pointwise", (False, True))
def test_what_lies_around(pointwise: bool, group: int, last: bool, behind: str) -> None:
    """Images whose channels come last, in turn with other sizes, and what follows elementwise."""
    rng = np.random.default_rng(group)
    draw = rng.standard_normal
    kernel, pads, stride, spread = ((1, 1), [0] * 4, 1, 1) if pointwise else ((3, 4), [1, 2, 0, 3], 2, 2)
    w, b = draw((2 * group, 5, *kernel), np.float32), draw(2 * group, np.float32)
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])] if last else []
    out = "y" if behind == "nothing" else "c"
    nodes.append(helper.make_node("Conv", ["t" if last else "x", "w", "b"], [out], group=group,
                                  pads=pads, dilations=[spread] * 2, strides=[stride, 1]))
    constants: dict[str, Any] = {"w": w, "b": b}
    if behind == "itself":
        nodes += [helper.make_node("Sigmoid", ["c"], ["s"]), helper.make_node("Mul", ["c", "s"], ["y"])]
    elif behind == "convolution":
        constants["v"] = draw((16, 2 * group, 1, 1), np.float32)
        nodes.append(helper.make_node("Conv", ["c", "v"], ["y"]))
    elif behind[-1].isdigit():
        to = helper.np_dtype_to_tensor_dtype(np.dtype(behind))
        nodes += [helper.make_node("Abs", ["c"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=to)]
    elif behind != "nothing":
        shape = {"channel": (2 * group, 1, 1), "plane": (1, 1, 1, 1), "image": (2, 1, 1, 1)}[behind]
        constants["z"] = draw(shape, np.float32)
        if behind == "plane":
            nodes.append(helper.make_node("ReduceMean", ["c"], ["m"], axes=[1]))
        nodes.append(helper.make_node("Add", ["c", "m" if behind == "plane" else "z"], ["y"]))
    type_ = np.dtype(behind if behind[-1].isdigit() else "float32")
    made = model(nodes, [info("x", shape=[None] * 4)],
                 [info("y", helper.np_dtype_to_tensor_dtype(type_), None)], constants, opset=17)
    session = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for high, wide in ((9, 40), (16, 7), (9, 40)):
        x = draw((2, 5 * group, high, wide), np.float32)
        (y,) = session.run(None, {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x})
        c = expected(x, w, pads, stride, spread, group) + b[:, None, None]
        want = c
        if behind == "convolution":
            want = np.einsum("nchw,oc->nohw", c, constants["v"][:, :, 0, 0])
        elif behind[-1].isdigit():
            assert y.dtype == behind
            near = float(behind == "uint8")
            np.testing.assert_allclose(y.astype(np.float64), np.abs(c), rtol=1e-3, atol=near)
            continue
        elif behind != "nothing":
            want = (c / (1 + np.exp(-c)) if behind == "itself" else
                    c + (c.mean(1, keepdims=True) if behind == "plane" else constants["z"]))
        np.testing.assert_allclose(y, want, rtol=0, atol=3e-6 * np.abs(want).max())
