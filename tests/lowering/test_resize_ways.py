"""Resizing pixel by pixel and axis by axis: both as the operator's definition, whichever a layout takes."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

import orthrus
from orthrus.lowering.rules import resize
from orthrus.ops.define import find

pytest.importorskip("native")


@pytest.mark.parametrize("mode", ("linear", "cubic"))
@pytest.mark.parametrize("last", (False, True))
@pytest.mark.parametrize("channels", (1, 3, 16, 37))
def test_every_way_is_the_definition(channels: int, last: bool, mode: str, monkeypatch: pytest.MonkeyPatch
                                     ) -> None:
    """Images of one to three axes that grow, shrink, and do both, with something elementwise behind."""
    rng, taken = np.random.default_rng(channels), set[bool]()
    decide = resize._better_by_axes
    monkeypatch.setattr(resize, "_better_by_axes",
                        lambda *given: taken.add(answer := decide(*given)) or answer)
    for size, scales, way in (((23,), (2.0,), "half_pixel"), ((9, 31), (1.7, 2.0), "align_corners"),
                              ((40, 33), (0.3, 0.3), "asymmetric"), ((8, 21), (3.0, 0.4), "half_pixel"),
                              ((4, 6, 5), (1.5, 1.0, 2.0), "half_pixel")):
        if mode == "cubic" and len(size) == 3:
            continue
        attrs = {"mode": mode, "coordinate_transformation_mode": way}
        x = rng.standard_normal((2, channels, *size), np.float32)
        x.flat[rng.integers(x.size)] = np.inf
        turn = [0, len(size) + 1, *range(1, len(size) + 1)]
        nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=turn)] if last else []
        nodes += [helper.make_node("Resize", ["t" if last else "x", "", "s"], ["r"], **attrs),
                  helper.make_node("Neg", ["r"], ["y"])]
        given = np.array([1, 1, *scales], np.float32)
        fed = np.moveaxis(x, 1, -1).copy() if last else x
        made = model(nodes, [info("x", shape=fed.shape)], [info("y", shape=None)], {"s": given}, opset=19)
        session = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        (y,) = session.run(None, {"x": fed})
        op = find("", "Resize", 19)
        assert op is not None
        with np.errstate(invalid="ignore"):
            want = -op.bind(attrs)(x, None, given)
        np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-5)
    assert taken == ({False} if last and channels > 1 else {True} if channels < 16 else {True, False})
