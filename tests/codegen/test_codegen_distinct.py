"""Distinct elements: generated code finds what the definition finds."""

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
from orthrus.codegen.kernels import distinct
from orthrus.codegen.machines import machine
from orthrus.ops.tensor import selection

TYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
         "uint64")


def elements(rng: np.random.Generator, n: int, spread: int, dtype: str) -> np.ndarray:
    """Of which many are equal, or few; floats also infinite, NaN of any bits, zeros of both signs."""
    if not dtype.startswith("float"):
        return (rng.integers(0, spread, n) - spread // 2).astype(dtype)
    x = rng.integers(-spread, spread, n).astype(dtype)
    odd = rng.random(n) < 0.2
    x[odd] = rng.choice(np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], dtype), odd.sum())
    return x


@draws(80)
@given(st.integers(1, 300), st.sampled_from((3, 100, 1 << 40)), st.sampled_from(TYPES), st.booleans(),
       st.integers(0, 1), st.integers(0, 999), st.sampled_from((None, machine.AVX2, machine.SSE2)))
def test_elements(n: int, spread: int, dtype: str, ordered: bool, spare: int, seed: int,
                  target: machine.Machine | None) -> None:
    with np.errstate(over="ignore"):
        x = elements(np.random.default_rng(seed), n, spread, dtype)
    room = n + 9 * spare
    bits = (2 * room - 1).bit_length() + 5 * spare
    bits = max(bits, 6)
    first, inverse, counts = (native.guarded(np.full(size, -7)) for size in (room, n, room))
    sizes = native.guarded(np.array([n, 0]))
    native.run(distinct.distinct_elements(dtype=dtype, ordered=ordered), native.guarded(x), first, inverse,
               counts, sizes, bits, room, items=1, machine=target,
               scratch=distinct.scratch(room, bits, ordered))
    wanted = selection.distinct(selection.sort_keys(x))
    if not ordered:
        wanted = selection.as_met(*wanted)
    found = sizes[1]
    assert found == len(wanted[0])
    for made, want in zip((first[:found], inverse, counts[:found]), wanted, strict=True):
        np.testing.assert_array_equal(made, want)


def session(dtype: Any, domain: str, how: str, **attributes: Any) -> ort.InferenceSession:
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["y", "inverse", "counts"] if domain else ["y", "first", "inverse", "counts"]
    graph = helper.make_graph(
        [helper.make_node("Unique", ["x"], names, domain=domain, **attributes)], "g",
        [helper.make_tensor_value_info("x", elem, None)],
        [helper.make_tensor_value_info(name, elem if name == "y" else 7, None) for name in names])
    source = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]).SerializeToString()
    return ort.InferenceSession(source, providers=[("CPUExecutionProvider", {"use_codegen": how})])


def outcome(made: ort.InferenceSession, x: np.ndarray) -> Any:
    try:
        return made.run(None, {"x": x})
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("domain", "attributes"), [
    ("", {}), ("", {"sorted": 0}), ("", {"axis": 0}), ("com.microsoft", {})])
def test_sessions(domain: str, attributes: dict[str, int], dtype: str) -> None:
    rng = np.random.default_rng(len(dtype))
    if domain and dtype not in ("float16", "float32", "float64", "int64", "int8"):
        return
    made, defined = (session(dtype, domain, how, **attributes) for how in "10")
    for shape in ((5,), (0,), (3, 4), (), (1000,), (5,), (3000,), (40_000,), (70_000,), (6,), (1024,),
                  (1025,)):
        for spread in (5, 1 << 40):
            with np.errstate(over="ignore"):
                x = elements(rng, int(np.prod(shape, dtype=int)), spread, dtype).reshape(shape)
            if len(shape) == 2 and x.size:
                x = x[:, ::-1]
            a, b = outcome(made, x), outcome(defined, x)
            if isinstance(b, tuple):
                assert a == b
                continue
            for found, wanted in zip(a, b, strict=True):
                assert found.dtype == wanted.dtype
                np.testing.assert_array_equal(found, wanted)
                if dtype.startswith("float") and found.dtype == dtype:
                    assert (np.signbit(found) == np.signbit(wanted)).all()
