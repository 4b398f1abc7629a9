"""The k best of rows: those of a stable sort, whatever values the rows have in common."""

import itertools
from typing import Any
from unittest import mock

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

from orthrus.codegen.kernels import top_k
from orthrus.codegen.machines import detect
from orthrus.codegen.machines.machine import AVX2, SSE2, Machine
from orthrus.run.config import Config
from orthrus.run.engine import Engine


def rows(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], span: int) -> np.ndarray:
    """Numbers of which all but `span` values are alike in their upper bits."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low = int(rng.choice([limits.min, limits.max - span, 0, -span if limits.min else span]))
        low = min(max(low, limits.min), limits.max - span)
        return rng.integers(0, span + 1, shape).astype(dtype) + dtype.type(low)
    made = (rng.integers(0, span + 1, shape) * rng.choice([1.0, -1.0, 1e-3])).astype(dtype)
    for special in (np.nan, np.inf, -np.inf, -0.0):
        made[rng.random(shape) < 0.1] = special
    return made


def expected(x: np.ndarray, k: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    order = np.lexsort((np.broadcast_to(np.arange(x.shape[-1]), x.shape), wide))
    if largest:
        ranks = np.unique(np.where(np.isnan(wide), np.inf, wide) if x.dtype.kind == "f" else wide,
                          return_inverse=True)[1].reshape(x.shape).astype(np.int64)
        if x.dtype.kind == "f":
            ranks[np.isnan(wide)] = ranks.max() + 1
        order = np.argsort(-ranks, axis=-1, kind="stable")
    return np.take_along_axis(x, order[..., :k], -1), order[..., :k]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64",
                                   "uint64"])
def test_they_are_those_of_a_stable_sort(dtype: str) -> None:
    rng = np.random.default_rng(len(dtype) + ord(dtype[0]))
    for largest in (1, 0):
        for length in (1, 7, 16, 61, 300):
            for k in sorted({1, min(5, length), length}):
                node = helper.make_node("TopK", ["x", "k"], ["y", "i"], largest=largest)
                kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
                made = model([node], [info("x", kind, ["N", length])],
                             [info("y", kind, None), info("i", 7, None)], {"k": np.array([k])})
                engine = Engine(made.SerializeToString(), Config())
                for n, span in ((3, 0), (3, 1), (2, 100), (1, 120)):
                    x = rows(rng, dtype, (n, length), span)
                    y, i = engine.run(None, {"x": x})
                    wanted, at = expected(x, k, bool(largest))
                    np.testing.assert_array_equal(y, wanted)
                    assert np.array_equal(i, at), (x, i, at)


@pytest.mark.parametrize("machine", (detect.host(), AVX2, SSE2))
@pytest.mark.parametrize("dtype", ("float32", "float64", "float16", "int8", "uint32", "int64"))
def test_short_rows_side_by_side(machine: Machine | None, dtype: str) -> None:
    """Rows of which a vector's lanes hold one each, the last vector fewer; along each of the axes; as many
    asked for as are kept in registers, and one more; most rows along any dimension."""
    rng = np.random.default_rng(len(dtype))
    cases = itertools.product((2, 9, 18, top_k.SHORT + 1), (1, 3, top_k.MOST, top_k.MOST + 1), (8, 17, 33),
                              (0, 1, 2))
    with mock.patch.object(detect, "host", lambda: machine):
        for length, k, n, axis in itertools.islice(cases, len(dtype) % 7, None, 7):
            k, largest = min(k, length), (length + n) % 2
            node = helper.make_node("TopK", ["x", "k"], ["y", "i"], largest=largest, axis=axis)
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            made = model([node], [info("x", kind, [None] * 4)], [info("y", kind, None), info("i", 7, None)],
                         {"k": np.array([k])}, opset=24)
            x = rows(rng, dtype, [(2, n, 3, length), (n, 2, 3, length), (2, 1, n, length)][n % 3], 3)
            y, i = Engine(made.SerializeToString(), Config()).run(None, {"x": np.moveaxis(x, -1, axis)})
            wanted, at = expected(x, k, bool(largest))
            np.testing.assert_array_equal(np.moveaxis(y, axis, -1), wanted)
            np.testing.assert_array_equal(np.moveaxis(i, axis, -1), at)


@pytest.mark.parametrize("machine", (detect.host(), AVX2, SSE2))
@pytest.mark.parametrize("dtype", ("float32", "float64", "float16", "int8", "int32", "uint32", "int64"))
def test_long_rows(machine: Machine | None, dtype: str) -> None:
    """Rows of which only some are looked at: in any order, of few values, the best of them at either end; and
    those of which too many would have to be."""
    rng = np.random.default_rng(len(dtype))
    with mock.patch.object(detect, "host", lambda: machine):
        for length, k in ((4096, 1), (4099, 32), (9000, 17), (20001, 150)):
            largest = (length + k) % 2
            node = helper.make_node("TopK", ["x", "k"], ["y", "i"], largest=largest)
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            made = model([node], [info("x", kind, [None, length])],
                         [info("y", kind, None), info("i", 7, None)], {"k": np.array([k])})
            engine = Engine(made.SerializeToString(), Config())
            found = rows(rng, dtype, (8, length), 100)
            found[1] = np.sort(found[1])
            found[2] = np.sort(found[2])[::-1]
            found[3] = rows(rng, dtype, (length,), 0)
            found[4] = rows(rng, dtype, (length,), 1)
            found[5] = 0 if largest else 101
            found[5, :length // 3] = 1 + np.arange(length // 3) % 100
            if np.dtype(dtype).kind == "f":
                found[6] = rng.standard_normal(length)
                found[7] = np.linspace(-1, 1, length) * (1 - 2 * largest)
            y, i = engine.run(None, {"x": found})
            wanted, at = expected(found, k, bool(largest))
            np.testing.assert_array_equal(y, wanted)
            assert np.array_equal(i, at)


def test_few_of_long_rows_are_looked_at() -> None:
    assert top_k.is_long(16, 1 << 16, 500) and not top_k.is_long(16, 1 << 16, 1000)
