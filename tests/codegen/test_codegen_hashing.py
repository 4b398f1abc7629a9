"""Hashes and scores of repeated n-grams as kernels give what their definitions give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("native")

from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import orthrus
from orthrus.errors import InvalidArgument

MS = "com.microsoft"


def run(name: str, feeds: dict[str, np.ndarray], codegen: bool = True, **attrs: Any) -> np.ndarray:
    node = helper.make_node(name, list(feeds), ["y"], name="only", domain=MS, **attrs)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                      for n, a in feeds.items()], [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = orthrus.InferenceSession(
        made, providers=[("CPUExecutionProvider", {"use_codegen": str(int(codegen))})])
    assert ("generated for" in str(session.explain()["only"])) == codegen
    (y,) = session.run(None, feeds)
    return y


def same(name: str, feeds: dict[str, np.ndarray], **attrs: Any) -> None:
    got, wanted = (run(name, feeds, codegen, **attrs) for codegen in (True, False))
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@draws(30)
@given(st.sampled_from(("int32", "uint32", "int64", "uint64")), st.lists(st.integers(0, 40), max_size=3),
       st.booleans(), st.integers(-(1 << 31), (1 << 31) - 1))
def test_hashes(dtype: str, shape: list[int], positive: bool, seed: int) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(seed & 99).integers(info.min, info.max, shape, dtype, endpoint=True)
    same("MurmurHash3", {"x": x}, positive=int(positive), seed=seed)


@draws(40)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 6), st.integers(1, 30), st.integers(0, 999))
def test_repetitions(batch: int, length: int, size: int, words: int, seed: int) -> None:
    """Of few words, so that n-grams come again; scores that are no numbers too."""
    rng = np.random.default_rng(seed)
    ids, scores = rng.integers(0, min(words, 3), (batch, length)), rng.standard_normal((batch, words))
    scores[rng.random(scores.shape) < 0.2] = rng.choice([np.nan, np.inf, -np.inf])
    if size <= length:
        same("NGramRepeatBlock", {"i": ids, "s": scores.astype(np.float32)}, ngram_size=size)


@pytest.mark.parametrize("token", (-1, 7, 1 << 40))
def test_tokens_without_a_score(token: int) -> None:
    ids = np.array([[1, token, 2, 1]])
    with pytest.raises(InvalidArgument, match="outside"):
        run("NGramRepeatBlock", {"i": ids, "s": np.zeros((1, 7), np.float32)}, ngram_size=2)
