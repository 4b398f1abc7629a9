"""Single operators where onnxruntime runs what one might refuse, or where numbers leave their type: random
attributes and extreme values against onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graphs import model
from onnx import helper

import orthrus as ort

F = np.float32


def both(op: str, arrays: list[np.ndarray], opset: int, **attrs: Any) -> tuple[Any, Any]:
    """What onnxruntime and Orthrus give; an Exception where one of them refuses. Orthrus's is of the declared
    shape."""
    peer = pytest.importorskip("onnxruntime")
    options = peer.SessionOptions()
    options.log_severity_level = 4
    names = [f"i{k}" for k in range(len(arrays))]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in zip(names, arrays, strict=True)]
    data = model([helper.make_node(op, names, ["y"], **attrs)], infos,
                 [helper.make_empty_tensor_value_info("y")], opset=opset, ir_version=8).SerializeToString()
    feeds, found = dict(zip(names, arrays, strict=True)), list[Any]()
    for make in (lambda: peer.InferenceSession(data, options), lambda: ort.InferenceSession(data)):
        try:
            session = make()
            found.append(session.run(None, feeds)[0])
        except Exception as error:
            found.append(error)
    assert isinstance(found[1], Exception) or session.get_outputs()[0].shape in ([], list(found[1].shape))
    return found[0], found[1]


def pools(seed: int) -> tuple[str, list[int], int, dict[str, Any]]:
    rng = np.random.default_rng(seed)

    def one(values: Any) -> Any:
        return values[int(rng.integers(len(values)))]
    op, n, opset = one(("MaxPool", "AveragePool", "LpPool")), one((1, 2, 2, 3)), one((11, 13, 18, 19, 22))
    shape = [one((1, 2)), one((1, 2, 3)), *(int(rng.integers(1, 6)) for _ in range(n))]
    attrs: dict[str, Any] = {"kernel_shape": [int(rng.integers(1, 8)) for _ in range(n)]}
    if one((0, 1)):
        attrs["strides"] = [int(rng.integers(1, 4)) for _ in range(n)]
    padding = one(("none", "given", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if padding == "given":
        attrs["pads"] = [int(rng.integers(0, 3)) for _ in range(2 * n)]
    elif padding != "none":
        attrs["auto_pad"] = padding
    if (op != "LpPool" or opset >= 18) and one((0, 1)):
        attrs["ceil_mode"] = 1
    spread = op == "MaxPool" or opset >= 19 or op == "LpPool" and opset >= 18
    if spread and not padding.startswith("SAME") and one((0, 0, 1)):
        attrs["dilations"] = [int(rng.integers(1, 3)) for _ in range(n)]
    if op == "AveragePool" and opset >= 19 and one((0, 1)):
        attrs["count_include_pad"] = 1
    if op == "LpPool":
        attrs["p"] = one((1, 2, 3))
    return op, shape, opset, attrs


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))])
def test_pools_whose_windows_may_be_larger_than_the_axis(part: int) -> None:
    """onnxruntime ignores dilations with SAME padding, and counts the padding of short windows otherwise
    before version 19; neither is drawn."""
    compared = empty = 0
    for seed in range(part, 600, 4):
        op, shape, opset, attrs = pools(seed)
        x = np.random.default_rng(seed).normal(size=shape).astype(F)
        theirs, ours = both(op, [x], opset, **attrs)
        if isinstance(theirs, Exception):
            continue
        assert not isinstance(ours, Exception), f"{op}-{opset} of {shape} {attrs}: {ours}"
        compared, empty = compared + 1, empty + (not ours.size)
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5, err_msg=f"{op}-{opset} of {shape} {attrs}")
    assert compared > 50 and empty > 5, (compared, empty)


@pytest.mark.parametrize("opset", [18, 20, 21])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_normalization(opset: int, groups: int) -> None:
    rng = np.random.default_rng(0)
    size = groups if opset < 21 else 4
    arrays = [rng.normal(size=shape).astype(F) for shape in ((2, 4, 3, 5), (size,), (size,))]
    theirs, ours = both("GroupNormalization", arrays, opset, num_groups=groups)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


WHOLE = (0, 1, -1, 2, -2, 3, 7, 10, -10, 100, 46341, 2**31 - 1, -2**31, 2**33, 2**62, 2**63 - 1, -2**63)
REAL = (0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, 1.5, -1.5, 10, 31, 32, 63, 64, 100, 300.7, 1e10, -1e10, 1e30,
        2.999, np.inf, -np.inf, np.nan)


def extremes(dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.array(REAL).astype(kind)
    held = np.iinfo(kind)
    return np.array([v for v in WHOLE if held.min <= v <= held.max], kind)


def pairs() -> Iterator[Any]:
    for base in ("int32", "int64", "float32", "float64"):
        for exponent in ("float16", "float32", "float64", "int32", "int64"):
            yield pytest.param(base, exponent, id=f"{base}-{exponent}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("base", "exponent"), list(pairs()))
def test_powers_at_the_extremes(base: str, exponent: str) -> None:
    """Of two integers Orthrus's powers are exact and wrap, onnxruntime's are float64's; where those are exact
    and fit, both are the same."""
    x, y = (v.ravel() for v in np.meshgrid(extremes(base), extremes(exponent)))
    theirs, ours = both("Pow", [x, y], 17)
    if "float" in base:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        return
    if "int" in exponent:
        real = np.power(x.astype(float), y.astype(float))
        exact = (np.abs(real) <= min(2**53, np.iinfo(base).max)) & (y < 2**53) | (x == 0)
        x, y, theirs, ours = (v[exact] for v in (x, y, theirs, ours))
    wrong = theirs != ours
    assert not wrong.any(), list(zip(x[wrong], y[wrong], theirs[wrong], ours[wrong], strict=True))[:8]
