"""The k best along an axis in whole models: every type, ties, NaN and infinities, views."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("native")

from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from test_codegen_reduce import session

from orthrus.ops.define import find

DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
          "uint64")


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, kind: str) -> np.ndarray:
    """Many equal ones, all different, rising, or with NaN, infinities and zeros of both signs."""
    if kind == "rising":
        return np.broadcast_to(np.arange(shape[-1]) % 120, shape).astype(dtype)
    if "int" in dtype:
        info = np.iinfo(dtype)
        low, high = (0, 4) if kind == "ties" else (info.min, info.max)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    x = rng.integers(-2, 3, shape).astype(np.float64) if kind == "ties" else rng.normal(size=shape)
    if kind == "odd":
        x = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], shape)
    return x.astype(dtype)


@draws(60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.sampled_from((1, 2, 15, 16, 17, 64, 130, 400)),
       st.integers(0, 3), st.integers(0, 1 << 20), st.permutations(range(4)), st.sampled_from(DTYPES),
       st.sampled_from(("ties", "plain", "rising", "odd")), st.booleans())
def test_every_type_and_layout(short: list[int], long: int, at: int, pick: int, order: list[int], dtype: str,
                               kind: str, largest: bool) -> None:
    shape = (*short, long)
    x = numbers(np.random.default_rng(pick), shape, dtype, kind)
    perm = [a for a in order if a < len(shape)]
    y = x.transpose(perm)
    axis = at % len(shape)
    count = np.array([1 + pick % y.shape[axis]])
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=perm),
             helper.make_node("TopK", ["t", "k"], ["v", "i"], axis=axis - len(shape), largest=int(largest))]
    found = session(nodes, {"x": x}, {"k": count}, ["v", "i"]).run(None, {"x": x})
    wanted = find("", "TopK", 11).bind({"axis": axis, "largest": int(largest)}, 2)(y, count)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
