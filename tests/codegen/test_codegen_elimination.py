"""Determinants and inverses: generated code beside numpy, over random, singular and infinite matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("native")

from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import native
import orthrus as ort
from orthrus.codegen.kernels import elimination
from orthrus.codegen.machines import detect, machine


def matrices(rng: np.random.Generator, count: int, n: int, kind: str, dtype: Any) -> np.ndarray:
    made = rng.standard_normal((count, n, n))
    if kind == "permuted":
        made = np.stack([np.eye(n)[rng.permutation(n)] * rng.uniform(1, 2, n) for _ in range(count)])
    if kind == "scaled":
        made *= 10.0 ** rng.integers(-12, 12, (count, 1, 1))
    return made.astype(dtype)


def run(x: np.ndarray, inverse: bool, target: Any, splits: tuple[int, ...] = ()) -> tuple[np.ndarray, int]:
    count, n, _ = x.shape
    out = native.guarded(np.full(x.shape if inverse else count, 7, x.dtype))
    status = native.guarded(np.zeros(1, np.int64))
    native.run(elimination.eliminated(dtype=x.dtype.name, inverse=inverse), native.guarded(x), out, status, n,
               items=count, scratch=elimination.scratch(target or detect.host(), n, inverse), machine=target,
               splits=splits)
    return out, int(status[0])


@draws(60)
@given(st.integers(1, 5), st.integers(1, 34), st.sampled_from(("plain", "permuted", "scaled")),
       st.sampled_from((np.float32, np.float64)), st.booleans(), st.integers(0, 999),
       st.sampled_from((None, machine.AVX2, machine.SSE2)))
def test_matrices(count: int, n: int, kind: str, dtype: Any, inverse: bool, seed: int, target: Any) -> None:
    x = matrices(np.random.default_rng(seed), count, n, kind, dtype)
    with np.errstate(all="ignore"):
        wanted = np.linalg.inv(x) if inverse else np.linalg.det(x)
        far = np.linalg.cond(x.astype(np.float64)) * n * 2.0 ** -50
    found, status = run(x, inverse, target, (count // 2,))
    if status:
        least = np.finfo(dtype).tiny if dtype == np.float32 else 1e-250
        assert not np.isfinite(wanted).all() or not inverse and abs(wanted).min() < least or far.max() > 1e-3
        return
    rounding = np.finfo(dtype).eps
    for a, b, near in zip(found, wanted, far, strict=True):
        np.testing.assert_allclose(a, b, rtol=near + rounding, atol=abs(b).max() * (near + rounding))


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_left_to_the_caller(dtype: Any, inverse: bool) -> None:
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 7, 16, 31):
        for odd in ("zero", "equal rows", "sum of rows", "nan", "inf", "far"):
            x = rng.integers(-9, 10, (3, n, n)).astype(dtype)
            if odd == "zero" or n == 1 and odd.endswith("rows"):
                x[1] = 0
            elif odd == "equal rows":
                x[1, -1] = x[1, 0]
            elif odd == "sum of rows":
                x[1, -1] = x[1, :-1].sum(0)
            elif odd != "far":
                x[1, rng.integers(n), rng.integers(n)] = dtype(odd)
            else:
                x[1] = np.eye(n) * (np.finfo(dtype).tiny / 1024 if inverse or n < 2 else np.finfo(dtype).max)
            _, status = run(x, inverse, None)
            assert status or odd == "far" and n < 2 and not inverse and dtype == np.float32, (odd, n)


def session(kind: str, dtype: Any, threads: int, how: str) -> ort.InferenceSession:
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node(kind, ["x"], ["y"], domain="" if kind == "Det" else "com.microsoft")
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", elem, None)],
                              [helper.make_tensor_value_info("y", elem, None)])
    source = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]).SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(source, options, providers=[("CPUExecutionProvider", {"use_codegen": how})])


def outcome(made: ort.InferenceSession, x: np.ndarray) -> Any:
    try:
        return made.run(None, {"x": x})[0]
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("kind", ["Det", "Inverse"])
def test_sessions(kind: str, dtype: Any, threads: int) -> None:
    """As the definition has it, which computes matrices that are odd, and refuses what is none."""
    rng = np.random.default_rng(threads)
    made, defined = (session(kind, dtype, threads, how) for how in "10")
    for shape in ((3, 3), (2, 5, 5), (600, 4, 4), (4, 0, 3, 3), (0, 0), (2, 40, 40), (2, 3, 1, 1), (2, 3, 4),
                  (5,), (70, 9, 9), (3, 3)):
        for odd in (None, 0.0, np.nan, np.inf, -0.0):
            x = rng.standard_normal(shape).astype(dtype)
            if odd is not None and x.ndim > 1 and x.size:
                x[..., :1, :] = odd
            a, b = outcome(made, x), outcome(defined, x)
            if isinstance(b, tuple):
                assert a == b
                continue
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-4 if dtype == np.float32 else 1e-7 if dtype == np.float64
                                       else 0)
