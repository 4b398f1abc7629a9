"""Float32 sums of hostile numbers against float64's: within the bound of any order, whatever the kernel.

In: operators over numbers of one kind each: huge, denormal, whole, cancelling, looked up, of mixed size, not
finite. The bound of an element is n eps sum |a||b|: where that passes the largest float32, any order may
overflow, and nothing is asked; whole numbers below 2 ** 24 are exact; NaN is where every order has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from matrix_unit_double import matrix_unit
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus.lowering.package import ahead as packages
from orthrus.lowering.package.loaded import Package
from orthrus.lowering.package.store import pack
from orthrus.ops import find

F = np.float32
MOST, LEAST, EPS = float(np.finfo(F).max), 2.0 ** -149, 2.0 ** -24
OPTIONS: list[dict[str, str]] = [{}, {"float32_precision": "exact"}]
Pair = tuple[np.ndarray, np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape).astype(F)


def sprinkled(rng: np.random.Generator, x: np.ndarray, *values: float) -> np.ndarray:
    """`x` with some of `values` in a few places."""
    flat = x.reshape(-1)
    flat[rng.integers(0, flat.size, 3)] = rng.choice(values, 3)
    return x


def huge(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    return sprinkled(rng, normal(rng, a), 1e38, -2e38, MOST, -MOST), normal(rng, b) * F(1e-3)


def lowest(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    """What a mask of the lowest float leaves."""
    return np.where(rng.random(a) < 0.02, F(-MOST), normal(rng, a)), normal(rng, b) * F(1e-4)


def denormal(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    return normal(rng, a) * F(1e-40), normal(rng, b)


def denormal_products(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    return normal(rng, a) * F(1e-19), normal(rng, b) * F(1e-20)


def whole(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    return rng.integers(-9, 10, a).astype(F), rng.integers(-99, 100, b).astype(F)


def looked_up(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    made = np.zeros(a, F)
    axis = 1 if len(a) > 3 else -1
    np.put_along_axis(made, rng.integers(0, a[axis], np.delete(a, axis).tolist()).reshape(
        [1 if i == axis % len(a) else d for i, d in enumerate(a)]), 1, axis)
    return made, rng.integers(0, 1 << 22, b).astype(F)


def cancelling(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    x, axis = normal(rng, a), 1 if len(a) > 3 else len(a) - 1
    x, y = np.moveaxis(x, axis, -1), normal(rng, b)
    even = x.shape[-1] // 2 * 2
    x[..., 1:even:2] = x[..., :even:2] * F(-1 - 2.0 ** -12)
    return np.ascontiguousarray(np.moveaxis(x, -1, axis)), y


def mixed(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    return sprinkled(rng, normal(rng, a), 1e30, -1e25, 1e-30), sprinkled(rng, normal(rng, b), 1e-30, 1e-38)


def infinite(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    return sprinkled(rng, normal(rng, a), np.inf, -np.inf), sprinkled(rng, normal(rng, b), 0.0)


def not_numbers(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    return sprinkled(rng, normal(rng, a), np.nan, np.inf), normal(rng, b)


def infinite_weights(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...]) -> Pair:
    return normal(rng, a), sprinkled(rng, normal(rng, b), np.inf, -np.inf, np.nan)


KINDS: tuple[Callable[..., Pair], ...] = (
    huge, lowest, denormal, denormal_products, whole, looked_up, cancelling, mixed, infinite, not_numbers,
    infinite_weights)


def sums(op: Callable[[np.ndarray, np.ndarray], np.ndarray], a: np.ndarray, b: np.ndarray) -> Pair:
    """The exact result, and the sum of the products' sizes; NaN and infinity as IEEE has them."""
    with np.errstate(all="ignore"):
        return op(a.astype(float), b.astype(float)), op(np.abs(a).astype(float), np.abs(b).astype(float))


def check(got: np.ndarray, exact: np.ndarray, total: np.ndarray, terms: int, whole_numbers: bool = False
          ) -> None:
    """`exact`: the results in float64; `total`: per result the sum of its `terms` products' sizes."""
    assert got.dtype == F and got.shape == exact.shape
    finite = np.isfinite(exact) & np.isfinite(total)
    asked = finite & (total < MOST)
    assert np.isfinite(got[asked]).all(), "not finite though every sum is"
    bound = np.zeros_like(exact) if whole_numbers else terms * EPS * total + terms * LEAST
    if whole_numbers:
        asked &= total < 1 << 24
    wrong = (np.abs(got.astype(float)[asked] - exact[asked]) > bound[asked]).sum()
    assert not wrong, f"{wrong} of {exact.size} beyond the bound of float32"
    np.testing.assert_array_equal(np.isnan(got[~finite]), np.isnan(exact[~finite]))
    known = np.isinf(exact) & np.isinf(total)
    np.testing.assert_array_equal(got[known], exact[known].astype(F))


def session(proto: onnx.ModelProto, options: dict[str, str]) -> ort.InferenceSession:
    return ort.InferenceSession(proto.SerializeToString(), providers=[("CPUExecutionProvider", options)])


def run(node: onnx.NodeProto, a: np.ndarray, b: np.ndarray, constant: bool, options: dict[str, str],
        **more: np.ndarray) -> np.ndarray:
    known = {**({"b": b} if constant else {}), **more}
    given = {"a": a, **({} if constant else {"b": b})}
    made = model([node], [info(n, shape=v.shape) for n, v in given.items()], [info("y", shape=None)], known)
    return np.asarray(session(made, options).run(None, given)[0])


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Product by product: a library's would be another order of NaN."""
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("m, k, n", [(1, 300, 40), (3, 7, 5), (37, 129, 65)])
def test_matmul(m: int, k: int, n: int, constant: bool, kind: Any, options: dict[str, str]) -> None:
    a, b = kind(np.random.default_rng(m + k), (m, k), (k, n))
    got = run(helper.make_node("MatMul", ["a", "b"], ["y"]), a, b, constant, options)
    check(got, *sums(matmul, a, b), k, kind in (whole, looked_up))


@needs("matrix unit")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_matmul_beside_a_matrix_unit(kind: Any, options: dict[str, str]) -> None:
    a, b = kind(np.random.default_rng(6), (64, 256), (256, 160))
    with matrix_unit():
        got = run(helper.make_node("MatMul", ["a", "b"], ["y"]), a, b, True, options)
    check(got, *sums(matmul, a, b), 256, kind in (whole, looked_up))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 3, 20, 64), (1, 1, 9, 300)])
def test_batches(shape: tuple[int, ...], kind: Any) -> None:
    a, b = kind(np.random.default_rng(5), shape, (*shape[:2], shape[3], 31))
    got = run(helper.make_node("MatMul", ["a", "b"], ["y"]), a, b, False, {})
    check(got, *sums(matmul, a, b), shape[-1], kind in (whole, looked_up))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 1)])
def test_gemm(turned: tuple[int, int], kind: Any) -> None:
    a, b = kind(np.random.default_rng(2), (33, 140), (140, 50))
    c = np.arange(50, dtype=F)
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"], transA=turned[0], transB=turned[1])
    given = [np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), turned, strict=True)]
    got = run(node, given[0], given[1], True, {}, c=c)
    exact, total = sums(matmul, a, b)
    check(got, exact + c, total + c, 141, kind in (whole, looked_up))


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "stem": ((2, 3, 21, 23), (20, 3, 5, 5), {"strides": [2, 2], "pads": [2] * 4}),
    "pointwise": ((1, 40, 9, 7), (24, 40, 1, 1), {}),
    "strided": ((1, 24, 12, 13), (20, 24, 3, 3), {"strides": [2, 1], "pads": [1] * 4}),
    "depthwise": ((1, 20, 12, 13), (20, 1, 3, 3), {"group": 20, "pads": [1] * 4}),
    "groups": ((2, 12, 9, 11), (8, 3, 3, 3), {"group": 4, "pads": [1] * 4}),
    "groups of one tap": ((1, 8, 13, 5), (4, 4, 1, 1), {"group": 2}),
    "groups of long sums": ((1, 60, 7, 9), (6, 30, 3, 3), {"group": 2, "pads": [1] * 4}),
    "line": ((1, 20, 33), (18, 20, 3), {"pads": [1, 1]}),
    "tiles of 2": ((1, 32, 26, 27), (40, 32, 3, 3), {"pads": [1] * 4}),
    "tiles of 4": ((1, 64, 30, 29), (64, 64, 3, 3), {"pads": [1] * 4}),
    "whole phases": ((1, 128, 27, 25), (128, 128, 3, 3), {"pads": [1] * 4}),
}


CONV = find("", "Conv", 21)
TRANSFORMS = ("tiles of 2", "tiles of 4", "whole phases")


def spread(total: np.ndarray, far: int) -> np.ndarray:
    """The largest of what lies up to `far` pixels away: an error of a transform is one of its whole tile."""
    for axis in (2, 3):
        pads = [(far, far) if i == axis else (0, 0) for i in range(4)]
        total = np.lib.stride_tricks.sliding_window_view(np.pad(total, pads), 2 * far + 1, axis).max(-1)
    return total


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, kind: Any, options: dict[str, str]) -> None:
    """Where what is not finite or beyond 2 ** 40 is met, no transform is used, and none for whole numbers. An
    infinite weight meets no margins: whether it makes NaN of zeros there is left open."""
    shape, kernel, attrs = CONVOLUTIONS[name]
    rank = len(shape) - 2
    attrs = {"strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank, "group": 1, **attrs}
    if kind is infinite_weights:
        attrs["pads"] = [0] * 2 * rank
    a, b = kind(np.random.default_rng(7), shape, kernel)
    got = run(helper.make_node("Conv", ["a", "b"], ["y"], **attrs), a, b, True, options)
    exact, total = sums(functools.partial(CONV.body, **attrs), a, b)
    exactly = kind in (whole, looked_up)
    if name in TRANSFORMS and not exactly and np.isfinite(total).all() and total.max() < 2.0 ** 40:
        total = spread(total, 3)
    check(got, exact, total, int(np.prod(kernel[1:])), exactly)


@needs("generated code")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_used(name: str) -> None:
    shape, kernel, attrs = CONVOLUTIONS[name]
    made = model([helper.make_node("Conv", ["a", "b"], ["y"], **attrs)], [info("a", shape=shape)],
                 [info("y", shape=None)], {"b": normal(np.random.default_rng(0), kernel)})
    (step,) = session(made, {})._sess._engine.program.calls
    (plan,) = step.kernel.run.lowered()
    used = {each.spec.template for each in plan.steps}
    assert "winograd_give" in used or (name != "whole phases" and "winograd_blocks" in used)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 9, 40])
def test_attention(length: int, kind: Any, options: dict[str, str]) -> None:
    """Weights of scores that float32 knows well are right; finite scores give finite results, and what is not
    finite shows in its own rows only."""
    rng = np.random.default_rng(length)
    q, k = kind(rng, (1, 2, length, 16), (1, 2, 16, 33))
    k = np.ascontiguousarray(k.swapaxes(-1, -2))
    v = normal(rng, (1, 2, 33, 16))
    made = model([helper.make_node("Attention", ["q", "k", "v"], ["y"], scale=0.25)],
                 [info(n, shape=x.shape) for n, x in (("q", q), ("k", k), ("v", v))], [info("y", shape=None)],
                 opset=23)
    got = session(made, options).run(None, {"q": q, "k": k, "v": v})[0]
    scores, total = sums(lambda a, b: 0.25 * matmul(a, b.swapaxes(-1, -2)), q, k)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        exact = matmul(weights / weights.sum(-1, keepdims=True), v.astype(float))
    worst = total.max(-1)
    assert np.isfinite(got[worst < MOST / 4]).all()
    np.testing.assert_array_equal(np.isnan(got[worst == np.inf]), np.isnan(exact[worst == np.inf]))
    known = worst * 18 * EPS < 1e-2
    bound = (4 * 18 * EPS * worst + 64 * EPS)[..., None] * np.abs(v).max()
    assert (np.abs(got - exact) <= bound)[known].all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_networks(op: str, gates: int, kind: Any, options: dict[str, str]) -> None:
    """One step from nothing: gates that float32 knows well are right, none is NaN while every sum is finite,
    and what is not a number shows in its own rows."""
    rng, hidden, batch = np.random.default_rng(gates), 24, 5
    x, w = kind(rng, (batch, 60), (60, gates * hidden))
    r = normal(rng, (1, gates * hidden, hidden))
    node = helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=hidden)
    x, w = x[None], np.ascontiguousarray(w.T)[None]
    made = model([node], [info("x", shape=x.shape)], [info("y", shape=None)], {"w": w, "r": r})
    got = session(made, options).run(None, {"x": x})[0][0, 0]
    exact_sums, total = sums(matmul, x[0], w[0].T)
    with np.errstate(all="ignore"):
        exact = find("", op, 21).body(x.astype(float), w.astype(float), r.astype(float), hidden_size=hidden)
    exact = (exact[0] if isinstance(exact, tuple) else exact)[0, 0]
    worst = total.reshape(batch, gates, hidden).max(1)
    asked = worst < MOST
    assert np.isfinite(got[asked]).all() and (np.abs(got[asked]) <= 1).all()
    known = worst * 60 * EPS < 1e-2
    assert (np.abs(got - exact) <= 4 * 60 * EPS * worst + 64 * EPS)[known].all()
    no_number = np.isnan(exact_sums).reshape(batch, gates, hidden).all(1)
    assert np.isnan(got[no_number]).all()


@needs("generated code")
def test_compiled_code_says_what_its_transform_is_not_for(caplog: pytest.LogCaptureFixture) -> None:
    """It holds no other kernel for the convolution."""
    shape, kernel, attrs = CONVOLUTIONS["tiles of 4"]
    x, w = normal(np.random.default_rng(0), shape), normal(np.random.default_rng(1), kernel)
    made = model([helper.make_node("Conv", ["a", "b"], ["y"], **attrs)], [info("a", shape=shape)],
                 [info("y", shape=None)], {"b": w})
    (step,) = session(made, {})._sess._engine.program.calls
    native = step.kernel.run
    packed = pack(native)
    assert isinstance(packed, bytes)
    package = Package(packed)
    assert package.fits(lambda machine: True)
    package.load(native.device, [])
    ahead = packages.kernel(package, native.part, native.device)
    np.testing.assert_array_equal(ahead(x), native(x))
    assert not caplog.records
    x[0, 0, 0, 0] = np.inf
    assert ahead(x).shape == native(x).shape and np.isinf(native(x)).any()
    assert "not finite" in caplog.text
