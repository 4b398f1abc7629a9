"""Groups of a convolution as AMD machine code: what is not finite in one stays in it, whoever shares its
products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_lowered import defined, lowered, ran
from gpu_models import by_turns
from image_models import Images

pytestmark = pytest.mark.needs("AMD tables", "Triton")

FORMS: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "few channels": ("Conv", 4, 3, 2, {"pads": [1] * 4, "strides": [2, 1]}),
    "steps within a tap": ("Conv", 4, 8, 2, {"pads": [1, 0, 1, 0]}),
    "one tap": ("Conv", 2, 40, 5, {}),
    "long sums": ("Conv", 2, 70, 3, {"pads": [1] * 4}),
    "more channels out": ("Conv", 6, 2, 3, {"dilations": [2, 1]}),
    "depthwise": ("Conv", 6, 1, 2, {"pads": [1] * 4}),
    "phases": ("ConvTranspose", 4, 3, 2, {"strides": [2, 1], "pads": [1] * 4}),
    "phases of one tap": ("ConvTranspose", 4, 3, 2, {"strides": [3, 3]}),
    "transposed depthwise": ("ConvTranspose", 6, 1, 2, {"strides": [1, 2]}),
}
"""Operator, groups, channels in and out of each, attributes."""


def _placed(name: str, dtype: str, spoiled: float) -> tuple[Images, str, int]:
    """A convolution whose second group meets such a number, and how many channels out a group has."""
    op, groups, cin, cout, attrs = FORMS[name]
    m = Images(len(name), dtype)
    kernel = [1, 1] if name == "one tap" else [3, 3]
    x = m.numbers((2, groups * cin, 6, 5))
    x[1, cin, 2, 3] = spoiled
    shape = (groups * cout, cin) if op == "Conv" else (groups * cin, cout)
    y = m.node(op, m.given(x), m.constant(m.numbers((*shape, *kernel))), m.constant(m.numbers(groups * cout)),
               group=groups, **attrs)
    return m, m.node("Relu", m.node("Neg", y)), cout


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("name", FORMS)
def test_what_is_not_finite_stays_in_its_group(name: str, spoiled: float) -> None:
    for dtype in ("float32", "float16") if spoiled != 3e38 else ("float32", "bfloat16"):
        m, y, cout = _placed(name, dtype, spoiled)
        model = m.model(y, opset=22)
        (target,) = by_turns(name, spoiled, dtype)
        got, wanted = ran(model, m.feeds, target).outputs[0], defined(model, m.feeds)[0]
        others = np.delete(got, range(cout, 2 * cout), 1)
        assert np.isfinite(others).all() and np.isfinite(got[0]).all(), f"{target} {dtype}: {m.said}"
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), 1e-2, 1e-2,
                                   err_msg=f"{target} {dtype}: {m.said}")


@pytest.mark.slow
def test_sums_that_are_cut_are_apart() -> None:
    """Few pixels over many products: programs share a sum, each its part."""
    m = Images(3)
    x = m.numbers((1, 2 * 400, 3, 3))
    x[0, 700, 1, 1] = np.inf
    y = m.node("Conv", m.given(x), m.constant(m.numbers((2 * 3, 400, 3, 3))), group=2)
    model = m.model(y, opset=22)
    steps: list[Any] = [step.spec for step in lowered(model, m.feeds, "gfx942").steps]
    (spec,) = [spec for spec in steps if spec.template == "convolution"]
    assert dict(spec.params)["cut"] and dict(spec.params)["merged"] > 1
    got, wanted = ran(model, m.feeds, "gfx942").outputs[0], defined(model, m.feeds)[0]
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-4)
