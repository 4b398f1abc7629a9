"""Numbers that no result depends on, infinities among them: what lies in caches behind a sequence's rows,
and weights of a transposed convolution where they meet no pixel; as AMD machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from emulated_gpu import fenced, on_gpu
from gpu_lowered import lowered, ran
from gpu_models import by_turns, defined
from image_models import TYPES, Images
from stale_caches import CASES

pytestmark = pytest.mark.needs("AMD tables", "Triton")


@pytest.mark.parametrize("case", [
    case if i % 6 == 0 else pytest.param(case, marks=pytest.mark.slow) for i, case in enumerate(CASES)])
def test_what_lies_behind_a_sequence_is_nobodys(case: str) -> None:
    model, feeds = CASES[case](0.0)
    (target,) = by_turns(case)
    with fenced():
        session = on_gpu(model, target, alone=True)
        clean = session.run(None, feeds)[0]
        assert np.isfinite(clean).all()
        for room in (np.nan, np.inf):
            np.testing.assert_array_equal(session.run(None, CASES[case](room)[1])[0], clean)
    wanted = defined(onnx.load_from_string(model), feeds)[0]
    bound = 1e-4 if clean.dtype == np.float32 else 1e-2
    np.testing.assert_allclose(clean.astype(float), wanted.astype(float), bound, bound)


FORMS: dict[str, tuple[int, int, int, tuple[int, ...], dict[str, Any]]] = {
    "steps within a tap": (1, 40, 5, (3, 3), {"pads": [1] * 4}),
    "few channels": (1, 3, 2, (4, 3), {"strides": [2, 1], "dilations": [1, 2]}),
    "groups that are one": (4, 3, 2, (3, 3), {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
    "groups": (2, 40, 20, (2, 3), {}),
    "depthwise": (6, 1, 1, (4, 4), {"strides": [2, 2], "pads": [1] * 4}),
    "several of a channel": (3, 1, 2, (3, 3), {}),
    "a line": (2, 4, 4, (5,), {"strides": [3]}),
    "a volume": (1, 2, 3, (2, 3, 2), {"strides": [1, 2, 1]}),
    "long sums": (1, 300, 3, (3, 3), {}),
}
"""Groups, channels in and out of each, taps, attributes of ConvTranspose."""


@pytest.mark.parametrize("name", [
    name if i in (0, 2, 4) else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(FORMS)])
@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_weights_meet_nothing_beside_an_image(name: str, known: bool) -> None:
    groups, cin, cout, taps, attrs = FORMS[name]
    for dtype, spoiled in (("float32", np.inf), ("float16", -np.inf), ("float32", np.nan)):
        m = Images(len(name), dtype)
        w = m.numbers((groups * cin, cout, *taps))
        for _ in range(2):
            w[tuple(m.rng.integers(0, w.shape))] = spoiled
        size = (2, groups * cin, *((5, 4, 3)[:len(taps)]))
        x = np.abs(m.numbers(size)) + TYPES[dtype][0](0.125)
        y = m.node("ConvTranspose", m.given(x), m.constant(w) if known else m.given(w),
                   m.constant(m.numbers(groups * cout)), group=groups, **attrs)
        model, (target,) = m.model(y, opset=22), by_turns(name, dtype, known)
        got, wanted = ran(model, m.feeds, target).outputs[0], defined(model, m.feeds)[0]
        assert np.isfinite(wanted).any() and not np.isfinite(wanted).all()
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), 1e-2, 1e-2,
                                   err_msg=f"{target} {dtype} {m.said}")


def test_finite_weights_are_asked_for_nothing_more() -> None:
    m = Images(1)
    y = m.node("ConvTranspose", m.given(m.numbers((1, 4, 5, 5))), m.constant(m.numbers((4, 4, 3, 3))),
               strides=[2, 2])
    steps: list[Any] = [step.spec for step in lowered(m.model(y, opset=22), m.feeds, "gfx942").steps]
    assert steps and not any(dict(spec.params)["inner"] for spec in steps)
