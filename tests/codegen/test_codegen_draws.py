"""Classes drawn with given probabilities: generated code finds those that the definition finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("native")

from draws import draws as examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import native
import orthrus as ort
from orthrus.codegen.kernels import draws
from orthrus.codegen.machines import machine
from orthrus.codegen.machines.detect import host

ODD = (0.0, np.nan, np.inf, -np.inf, 1000.0, -1000.0)


def classes_of(x: np.ndarray, drawn: np.ndarray) -> list[list[int]]:
    """As the definition has them."""
    made = []
    with np.errstate(all="ignore"):
        for row, each in zip(x.astype(np.float64), drawn, strict=True):
            ends = np.exp(row - row.max()).cumsum()
            made.append(np.minimum(ends.searchsorted(each * ends[-1], "right"), len(row) - 1).tolist())
    return made


@examples(60)
@given(st.integers(1, 5), st.integers(1, 70), st.integers(1, 40),
       st.sampled_from(("float16", "float32", "float64")), st.sampled_from(("int32", "int64")),
       st.sampled_from((None, *ODD)), st.integers(0, 999),
       st.sampled_from((None, machine.AVX2, machine.SSE2)))
def test_classes(rows: int, count: int, samples: int, dtype: str, result: str, odd: float | None, seed: int,
                 target: machine.Machine | None) -> None:
    rng = np.random.default_rng(seed)
    x = (4 * rng.standard_normal((rows, count))).astype(dtype)
    if odd is not None:
        x[rng.random(x.shape) < 0.2] = odd
        x[0] = odd
    drawn = rng.random((rows, samples))
    out = native.guarded(np.full((rows, samples), -7, result))
    native.run(draws.drawn_classes(dtype=dtype, result=result), native.guarded(x), native.guarded(drawn), out,
               count, samples, items=rows, scratch=draws.scratch(target or host(), count), machine=target,
               splits=(rows // 2,))
    assert out.tolist() == classes_of(x, drawn)


def session(of: str, threads: int, how: str, **attributes: Any) -> ort.InferenceSession:
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(of))
    graph = helper.make_graph(
        [helper.make_node("Multinomial", ["x"], ["y"], seed=3.0, **attributes)], "g",
        [helper.make_tensor_value_info("x", elem, None)],
        [helper.make_tensor_value_info("y", attributes.get("dtype", 6), None)])
    source = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21)]).SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(source, options, providers=[("CPUExecutionProvider", {"use_codegen": how})])


def outcome(made: ort.InferenceSession, x: np.ndarray) -> Any:
    try:
        return made.run(None, {"x": x})[0]
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("attributes", [{}, {"sample_size": 20, "dtype": 7}, {"sample_size": 0}])
def test_sessions(attributes: dict[str, int], dtype: str, threads: int) -> None:
    """The same numbers for the same seed, run after run, whoever computes a run."""
    rng = np.random.default_rng(5)
    made, defined = (session(dtype, threads, how, **attributes) for how in "10")
    for shape in ((2, 3), (2, 3), (0, 3), (3, 0), (5,), (300, 60), (1, 5000), (2, 3), (7, 1), (64, 300)):
        for odd in (None, *ODD):
            x = rng.standard_normal(shape).astype(dtype)
            if odd is not None and x.size:
                x[..., -1:] = odd
            a, b = outcome(made, x), outcome(defined, x)
            assert type(a) is type(b)
            if isinstance(b, tuple):
                assert a == b
            else:
                assert a.dtype == b.dtype and a.tolist() == b.tolist()
