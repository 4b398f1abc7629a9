"""Definitions add up many numbers without losing digits: of float32 they give what they give of float64, but
for a few roundings, along whatever axis they add. Sums outside their type's range are infinite, or wrap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from orthrus.ops import find

N = 1 << 18
MS, ML, LATEST = "com.microsoft", "ai.onnx.ml", 1 << 20
AXES = {"first": ((N, 2), 0), "middle": ((2, N, 2), 1), "last": ((2, N), 1)}
REDUCTIONS = ("Sum", "Mean", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")
BOUND = 4e-7
"""Of the largest result: some three roundings of float32."""

Made = tuple[np.ndarray, ...]


def drawn(*shape: int, above: float = 0) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).random(shape, np.float32) + np.float32(above)


def made(name: str, *inputs: np.ndarray | None, domain: str = "", version: int = LATEST, outputs: int = 1,
         **attrs: Any) -> Made:
    op = find(domain, name, version)
    assert op is not None
    with np.errstate(all="ignore"):
        y = op.bind(attrs, outputs)(*inputs)
    return tuple(v for v in (y if isinstance(y, tuple) else (y,)) if v is not None)


def of(name: str, *inputs: Any, above: float = 0, **more: Any) -> Callable[[Any], Made]:
    """The definition of an operator, whose floats have the type it is called with. Tuples are shapes of such
    inputs; `above` is added to the first."""
    def run(kind: Any) -> Made:
        given = (drawn(*x, above=0 if i else above) if type(x) is tuple else x for i, x in enumerate(inputs))
        return made(name, *(x.astype(kind) if x is not None and x.dtype == np.float32 else x for x in given),
                    **more)
    return run


Cases = Iterator[tuple[str, Callable[[Any], Made]]]


def along_axes() -> Cases:
    for where, (shape, axis) in AXES.items():
        for name in REDUCTIONS:
            yield f"Reduce{name}-{where}", of(f"Reduce{name}", shape, np.array([axis]))
        for bits in range(4):
            yield f"CumSum-{where}-{bits}", of(
                "CumSum", shape, np.array(axis), exclusive=bits & 1, reverse=bits >> 1)
        for name in ("Softmax", "LogSoftmax"):
            yield f"{name}-{where}", of(name, shape, axis=axis)
        for p in (1, 2):
            yield f"LpNormalization-{where}-{p}", of("LpNormalization", shape, axis=axis, p=p)
        for mean in (0, 1000):
            yield f"MeanVarianceNormalization-{where}-{mean}", of(
                "MeanVarianceNormalization", shape, axes=[axis], above=mean)


def norms() -> Cases:
    four = (2,), (2,), (2,), (2,)
    for mean in (0, 1000):
        for shape in ((N, 2), (512, 2, 512)):
            yield f"BatchNormalization-{shape}-{mean}", of(
                "BatchNormalization", shape, *four, above=mean, outputs=3, training_mode=1)
            yield f"BatchNormalization-9-{shape}-{mean}", of(
                "BatchNormalization", shape, *four, above=mean, outputs=5, version=9)
        yield f"InstanceNormalization-{mean}", of("InstanceNormalization", (1, 2, N), (2,), (2,), above=mean)
        yield f"GroupNormalization-{mean}", of(
            "GroupNormalization", (1, 4, N), (4,), (4,), num_groups=2, above=mean)
        yield f"GroupNorm-{mean}", of(
            "GroupNorm", (1, 256, 1024, 4), (4,), (4,), domain=MS, groups=2, activation=0, above=mean)
        yield f"LayerNormalization-{mean}", of(
            "LayerNormalization", (2, 512, 512), (512, 512), axis=1, outputs=3, above=mean)
    yield "RMSNormalization", of("RMSNormalization", (2, N), (N,))
    yield "SkipLayerNormalization", of("SkipLayerNormalization", (2, 1, N), (2, 1, N), (N,), domain=MS)
    yield "SimplifiedLayerNormalization", of("SimplifiedLayerNormalization", (2, N), (N,))


def windows() -> Cases:
    yield "GlobalAveragePool", of("GlobalAveragePool", (1, 2, 512, 512))
    yield "GlobalLpPool", of("GlobalLpPool", (1, 2, N))
    for size, kernel in ((N, N), (30000, 10000)):
        for name in ("AveragePool", "LpPool"):
            yield f"{name}-{kernel}", of(name, (1, 2, size), kernel_shape=[kernel], strides=[5000])
    yield "LRN", of("LRN", (1, 10000, 5), size=10000, alpha=1.0)
    yield "Conv-depthwise", of("Conv", (1, 2, 20003), (2, 1, 20000), group=2)
    yield "ConvTranspose", of("ConvTranspose", (1, 2, 3000), (2, 1, 3000))
    yield "CausalConvWithState", of("CausalConvWithState", (1, 2, 5000), (2, 1, 5000))
    yield "Col2Im", of("Col2Im", (1, 3000, 3000), np.array([5999]), np.array([3000]))
    yield "Resize", of(
        "Resize", (1, 1, 200000), None, None, np.array([1, 1, 100]), mode="linear", antialias=1)


def others() -> Cases:
    labels, places = np.arange(N) % 3, np.arange(N) % 2
    for reduction in ("sum", "mean"):
        for name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
            yield f"{name}-{reduction}", of(name, (N, 3), labels, (3,), reduction=reduction)
    yield "SoftmaxCrossEntropyLoss-classes", of(
        "SoftmaxCrossEntropyLoss", (1, N, 2), np.array([[5, 6]]), outputs=2)
    for equation, *shapes in (("ij->j", (N, 2)), ("aib->ab", (2, N, 2)), ("ij->", (N, 2)),
                              ("ii->", (2000, 2000)), ("ij,j->j", (N, 2), (2,)),
                              ("aib,bc->ac", (2, N, 2), (2, 3)), ("ib,ib->b", (N, 2), (N, 2)),
                              ("...i,...i->...", (2, N), (2, N))):
        yield f"Einsum-{equation}", of("Einsum", *shapes, equation=equation)
    yield "ScatterElements", of("ScatterElements", (2,), places, (N,), reduction="add")
    yield "ScatterND", of("ScatterND", (2, 2), places[:, None], (N, 2), reduction="add")
    yield "BiasSoftmax", of("BiasSoftmax", (2, N), (1, N), domain=MS, is_inner_broadcast=0)


ALL = dict(many for family in (along_axes, norms, windows, others) for many in family())


def told(narrow: Made, wide: Made) -> None:
    assert len(narrow) == len(wide)
    for got, want in zip(narrow, wide, strict=True):
        assert got.shape == want.shape
        off = np.abs(got.astype(np.float64) - want).max() / np.abs(want.astype(np.float64)).max()
        assert off <= BOUND, off


@pytest.mark.parametrize("name", ALL)
def test_float32_loses_no_digits(name: str) -> None:
    narrow = ALL[name](np.float32)
    assert all(y.dtype != np.float64 for y in narrow)
    told(narrow, ALL[name](np.float64))


def test_rows_of_any_layout() -> None:
    x = np.asfortranarray(drawn(2, N))
    wide = x.astype(np.float64)
    for norm, size in (("L1", wide.sum(-1)), ("L2", np.sqrt((wide * wide).sum(-1)))):
        told(made("Normalizer", x, domain=ML, norm=norm), (x / size[:, None],))
    told(made("BiasSoftmax", x, x, domain=MS, is_inner_broadcast=0),
         made("Softmax", 2 * np.ascontiguousarray(wide)))


def test_taps_of_microsoft() -> None:
    x, w = drawn(1, 2, 5000), drawn(2, 1, 5000)
    told(made("CausalConvWithState", x, w, domain=MS),
         made("CausalConvWithState", x.astype(np.float64), w.astype(np.float64)))


@pytest.mark.parametrize("domain", ("", MS))
def test_states_add_up_every_token(domain: str) -> None:
    q, k, v = drawn(1, 20000, 4), drawn(1, 20000, 4), drawn(1, 20000, 2)
    heads = {"kv_num_heads": 1, "q_num_heads": 1, "update_rule": "linear", "scale": 1.0}
    state = np.cumsum(k[0, :, :, None].astype(np.float64) * v[0, :, None], 0)
    told(made("LinearAttention", q, k, v, domain=domain, outputs=2, **heads),
         ((q[0, :, None].astype(np.float64) @ state)[None, :, 0], state[None, None, -1]))


@pytest.mark.parametrize("kind", (np.float16, ml_dtypes.bfloat16))
@pytest.mark.parametrize("name", ("Mean", "L2", "LogSumExp"))
def test_halves_are_rounded_once(name: str, kind: Any) -> None:
    x = drawn(N, 2).astype(kind)
    (got,), (want,) = (made(f"Reduce{name}", y, np.array([0])) for y in (x, x.astype(np.float64)))
    assert got.dtype == kind
    np.testing.assert_allclose(got.astype(np.float64), want, float(ml_dtypes.finfo(kind).eps) / 1.9)


INF, NAN, MOST = np.inf, np.nan, float(np.finfo(np.float32).max)


@pytest.mark.parametrize("given, total", (
    ([INF, 1], INF), ([-INF, INF], NAN), ([NAN, INF], NAN), ([MOST, MOST], INF), ([-MOST, -MOST], -INF),
    ([MOST] * 100, INF), ([], 0)))
def test_sums_outside_the_range(given: list[float], total: float) -> None:
    x = np.array(given, np.float32)
    column = x[:, None].repeat(2, 1)
    for y in (*made("ReduceSum", x), *made("ReduceSum", column, np.array([0]), keepdims=0),
              *made("ReduceMean", x), *made("ReduceMean", column, np.array([0])),
              *made("Einsum", column, equation="ij->j")):
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y, np.full(y.shape, total, np.float32))


def test_integers_wrap() -> None:
    x = np.full((100, 2), 127, np.int8)
    for kind in (np.int32, np.int64, np.uint32, np.uint64):
        many = np.full((5, 2), np.iinfo(kind).max, kind)
        want = np.sum(many, 0, kind)
        (running,) = made("CumSum", many, np.array(0))
        for y in (*made("ReduceSum", many, np.array([0]), keepdims=0), running[-1]):
            assert y.dtype == kind
            np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(made("ReduceSum", x, np.array([0]), keepdims=0)[0], np.sum(x, 0, np.int8))


def test_running_totals_outside_the_range() -> None:
    x = np.ones((70000, 2), np.float32)
    x[0, 0], x[69000] = -0.0, INF
    (y,) = made("CumSum", x, np.array(0))
    assert np.signbit(y[0, 0]) and np.isinf(y[69000:]).all() and np.isfinite(y[:69000]).all()


def test_moments_that_overflow() -> None:
    x = np.full((1, 64), MOST, np.float32)
    y, mean, inverse = made("LayerNormalization", x, np.ones(64, np.float32), outputs=3)
    assert np.isnan(y).all() and np.isposinf(mean).all() and not inverse.any()
