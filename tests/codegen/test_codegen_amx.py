"""Float32 products on a matrix unit, or its double: right within their error whatever the shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from draws import draws
from graphs import info, model
from hypothesis import given
from hypothesis import strategies as st
from matrix_unit_double import matrix_unit, why_none
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus.codegen.kernels import amx
from orthrus.codegen.machines.detect import host
from orthrus.ir import element_of
from orthrus.lowering.native import Native

MACHINE = host()
needs_unit = needs("matrix unit")
ERROR = 3e-5


@pytest.fixture(autouse=True, scope="module")
def unit() -> Iterator[None]:
    if why_none():
        yield
        return
    with matrix_unit():
        yield


def session(proto: onnx.ModelProto, **options: str) -> ort.InferenceSession:
    return ort.InferenceSession(proto.SerializeToString(), providers=[("CPUExecutionProvider", options)])


def templates(s: ort.InferenceSession) -> set[str]:
    """The kernels of the session's parts."""
    parts = [step.kernel.run for step in s._sess._engine.program.calls if isinstance(step.kernel.run, Native)]
    return {step.spec.template for part in parts for plan in part.plans.values() if plan is not None
            for step in plan.steps if step.spec is not None}


def product(m: int, k: int, n: int, rng: np.random.Generator
            ) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    w = rng.standard_normal((k, n)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["c"]),
             helper.make_node("Relu", ["c"], ["y"])]
    bias = rng.standard_normal(n).astype(np.float32)
    made = model(nodes, [info("x", shape=[m, k])], [info("y", shape=[m, n])],
                 {"w": w, "b": bias})
    x = rng.standard_normal((m, k)).astype(np.float32)
    return made, x, np.maximum(x.astype(np.float64) @ w + bias, 0)


@needs_unit
@draws(15)
@given(st.integers(16, 150), st.integers(120, 400), st.integers(100, 300), st.integers(0, 99))
def test_products(m: int, k: int, n: int, seed: int) -> None:
    made, x, expected = product(m, k, n, np.random.default_rng(seed))
    s = session(made, float32_precision="fast")
    assert m * n * k < 2_000_000 or "tiles" in templates(s)
    np.testing.assert_allclose(s.run(None, {"x": x})[0], expected, rtol=0,
                               atol=ERROR * np.abs(expected).max())


@needs_unit
@pytest.mark.parametrize("to", ["float16", "bool", "int8", "int32", "int64", "float64"])
@pytest.mark.parametrize("n", [96, 101])
def test_results_of_every_width(to: str, n: int) -> None:
    """A cast behind the product is part of its kernel, which stores elements of that size."""
    rng = np.random.default_rng(3)
    w, x = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((400, n), (70, 400)))
    elem = int(element_of(np.dtype(to)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=elem)]
    made = model(nodes, [info("x", shape=[70, 400])], [info("y", elem, [70, n])], {"w": w})
    s = session(made, float32_precision="fast")
    assert "tiles" in templates(s)
    got = s.run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, session(made, use_codegen="0").run(None, {"x": x})[0])


@needs_unit
@draws(12)
@given(st.integers(1, 2), st.sampled_from([32, 40, 64]), st.integers(24, 70), st.integers(9, 24),
       st.integers(9, 24), st.sampled_from([(1, 1), (3, 3), (1, 3), (5, 5)]), st.sampled_from([1, 2, 3]),
       st.sampled_from([1, 2]), st.integers(0, 2), st.integers(0, 99))
def test_convolutions(batch: int, cin: int, cout: int, high: int, wide: int, kernel: tuple[int, int],
                      stride: int, dilation: int, pad: int, seed: int) -> None:
    if min(high, wide) + 2 * pad < (max(kernel) - 1) * dilation + 1:
        return
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((cout, cin, *kernel)).astype(np.float32)
    attrs: dict[str, Any] = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [pad] * 4}
    made = model([helper.make_node("Conv", ["x", "w"], ["y"], **attrs)],
                 [info("x", shape=[batch, cin, high, wide])],
                 [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                 {"w": w})
    x = rng.standard_normal((batch, cin, high, wide)).astype(np.float32)
    expected = session(made, use_codegen="0").run(None, {"x": x})[0]
    got = session(made, float32_precision="fast").run(None, {"x": x})[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=ERROR * np.abs(expected).max())


@needs_unit
def test_what_is_not_finite_shows() -> None:
    """An infinite factor gives NaN or infinity where float32 gives them (after Relu, which keeps NaN)."""
    made, x, _ = product(128, 256, 128, np.random.default_rng(0))
    x[3, 5], x[4, 6] = np.inf, np.nan
    got = session(made, float32_precision="fast").run(None, {"x": x})[0]
    exact = session(made, float32_precision="exact").run(None, {"x": x})[0]
    assert not np.isfinite(got[~np.isfinite(exact)]).any() and np.isnan(got[4]).all()
    np.testing.assert_allclose(got[5:], exact[5:], rtol=0, atol=ERROR * exact[5:].max())


@needs_unit
def test_packed_and_split_halves_add_up() -> None:
    assert MACHINE is not None
    rng = np.random.default_rng(2)
    for k, n, strided in ((70, 50, False), (33, 16, True), (1, 1, False)):
        b = rng.standard_normal((1, k, n)).astype(np.float32)
        given_ = np.asfortranarray(b[0])[None] if strided else b
        packed = amx.pack(given_, MACHINE).reshape(-1, -(-k // 32), 2, 2, 16, 16, 2)
        floats = (packed.astype(np.uint32) << 16).view(np.float32)
        total = floats.sum(axis=2)  # (panel, chunk, tile, pair, column, one of the pair)
        whole = total.transpose(1, 3, 5, 0, 2, 4).reshape(-1, total.shape[0] * 32)
        np.testing.assert_allclose(whole[:k, :n], b[0], rtol=2e-5)
        assert not whole[k:].any() and not whole[:, n:].any()


def test_the_option_is_read() -> None:
    made, _, _ = product(3, 4, 5, np.random.default_rng(0))
    with pytest.raises(Exception, match="auto, fast or exact"):
        session(made, float32_precision="sloppy")
