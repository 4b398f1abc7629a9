"""Weights of few bits in blocks: kernels against float64, whatever bits, blocks, zero points, types and
sizes, with room for rounding to eight bits only where the accuracy level gives it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from few_bits_cases import MS, ROUNDED, Product, model, packed
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import orthrus
from orthrus.errors import InvalidArgument
from orthrus.providers import ExecutionProvider, unregister


def session(made: bytes, generated: bool = True, **options: Any) -> orthrus.InferenceSession:
    s = orthrus.InferenceSession(made, providers=[("CPUExecutionProvider", options)])
    assert not generated or not s.explain().numpy
    return s


@given(seed=st.integers(0, 999), bits=st.sampled_from([2, 4, 8]), block=st.sampled_from([16, 32, 64, 256]),
       n=st.sampled_from([1, 3, 17, 33, 70]), k=st.sampled_from([5, 16, 40, 128, 257, 700]),
       zeros=st.sampled_from(["", "codes", "floats"]), level=st.sampled_from([0, 1, 4]),
       dtype=st.sampled_from(["float32", "float32", "float16", "bfloat16"]), bias=st.booleans(),
       groups=st.booleans(), rows=st.sampled_from([(1,), (2,), (3,), (7,), (8,), (33,), (2, 3), (2, 3, 4)]))
@draws(20)
def test_products(seed: int, bits: int, block: int, n: int, k: int, zeros: str, level: int, dtype: str,
                  bias: bool, groups: bool, rows: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    made = Product(rng, n, k, bits, block, zeros, dtype, level, bias, groups)
    a = rng.standard_normal((*rows, k)).astype(dtype)
    made.close(a, session(made.model(a.shape)).run(None, {"a": a})[0])


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("zeros", ["", "codes"])
@pytest.mark.parametrize("level", [0, 4])
def test_as_accurate_as_onnxruntime(level: int, zeros: str, rows: int) -> None:
    peer = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(9)
    made = Product(rng, 96, 512, 4, 32, zeros, level=level)
    a = rng.standard_normal((rows, 512)).astype(np.float32)
    given = model([made.node], made.fixed, {"a": ("float32", a.shape)}, "float32")
    theirs = peer.InferenceSession(given, providers=["CPUExecutionProvider"])
    wanted = a.astype(np.float64) @ made.matrix.T
    mine, other = (np.sqrt(np.square(s.run(None, {"a": a})[0] - wanted).mean())
                   for s in (session(made.model(a.shape)), theirs))
    assert mine <= 1.25 * other


@pytest.mark.parametrize("level", [0, 4])
def test_one_packing_serves_all_numbers_of_rows(level: int) -> None:
    """A decoder's prompt and its tokens, by one session whose weights are packed once, no larger than they
    came but for the last panel."""
    rng = np.random.default_rng(1)
    made = Product(rng, 192, 256, 4, 32, "codes", level=level)
    s = session(made.model(("m", 256)))
    for m in (1, 40, 2, 7, 1, 3, 100):
        a = rng.standard_normal((m, 256)).astype(np.float32)
        made.close(a, s.run(None, {"a": a})[0])
    (part,) = s.explain().parts
    assert part.packed <= 1.02 * sum(a.nbytes for a in made.fixed.values())


def test_what_follows_is_computed_before_it_is_stored() -> None:
    """A bias, a residual of any layout and an activation join the kernel, whatever the number of rows."""
    rng = np.random.default_rng(2)
    for rows, level in ((1, 0), (5, 4), (20, 0)):
        made = Product(rng, 40, 64, 4, 32, level=level)
        nodes = [made.node, helper.make_node("Add", ["y", "other"], ["sum"]),
                 helper.make_node("Transpose", ["sum"], ["turned"], perm=[1, 0]),
                 helper.make_node("Relu", ["turned"], ["z"])]
        nodes[-1].output[0], nodes[0].output[0] = "y", "product"
        nodes[1].input[0] = "product"
        s = session(model(nodes, made.fixed, {"a": ("float32", (rows, 64)), "other": ("float32", (rows, 1))},
                          "float32"))
        a, other = (rng.standard_normal((rows, k)).astype(np.float32) for k in (64, 1))
        y = s.run(None, {"a": a, "other": other})[0]
        np.testing.assert_allclose(y, np.maximum(a @ made.matrix.T + other, 0).T, atol=0.2 if level else 1e-4)


@pytest.mark.parametrize("rows", [1, 2, 20])
@pytest.mark.parametrize("zeros", ["", "codes"])
@pytest.mark.parametrize("level", [0, 4])
def test_hostile_numbers(rows: int, zeros: str, level: int) -> None:
    """What is not finite stays in its row and is not lost there; scales of 0 and tiny rows are themselves."""
    rng = np.random.default_rng(3)
    made = Product(rng, 20, 70, 4, 16, zeros, level=level)
    made.fixed["scales"][3] = 0
    made.matrix[3] = 0
    s = session(made.model((rows, 70)))
    a = rng.standard_normal((rows, 70)).astype(np.float32)
    plain = s.run(None, {"a": a})[0]
    made.close(a, plain)
    assert not plain[:, 3].any()
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = a.copy()
        spoiled[0, 65] = bad
        y = s.run(None, {"a": spoiled})[0]
        assert not np.isfinite(y[0]).any()
        if level == 0 and np.isinf(bad):
            with np.errstate(invalid="ignore"):
                wanted = spoiled[0].astype(np.float64) @ made.matrix.T
            np.testing.assert_array_equal(y[0], wanted)
        np.testing.assert_array_equal(y[1:], plain[1:])
    for size in (0.0, 1e-40, 1e-30, 1e30):
        scaled = (a * size).astype(np.float32)
        made.close(scaled, s.run(None, {"a": scaled})[0] + np.float32(0))


KINDS = {"uint4": (4, ml_dtypes.uint4, 0), "int4": (4, ml_dtypes.int4, 8), "uint8": (8, np.uint8, 0),
         "int8": (8, np.int8, 128)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["MatMul", "Transpose", "Gemm"])
@pytest.mark.parametrize("level", ["0", "4"])
def test_dequantized_by_blocks(kind: str, form: str, level: str) -> None:
    """DequantizeLinear of blocks along k before a product: no weight is unpacked to memory."""
    rng, n, k, block = np.random.default_rng(4), 48, 96, 32
    bits, dtype, middle = KINDS[kind]
    axis = 0 if form == "MatMul" else 1
    shape, by = ((k, n), (k // block, n)) if axis == 0 else ((n, k), (n, k // block))
    codes, zeros = (rng.integers(0, 1 << bits, s) for s in (shape, by))
    scales = rng.uniform(0.01, 0.03, by).astype(np.float32)
    matrix = (codes - np.repeat(zeros, block, axis)) * np.repeat(scales.astype(np.float64), block, axis)
    fixed = {"x": (codes - middle).astype(np.int16).astype(dtype), "scales": scales,
             "zeros": (zeros - middle).astype(np.int16).astype(dtype),
             "c": rng.standard_normal(n).astype(np.float32)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "scales", "zeros"], ["w"], axis=axis,
                              block_size=block)]
    if form == "Gemm":
        nodes.append(helper.make_node("Gemm", ["a", "w", "c"], ["y"], transB=1, alpha=0.5))
    else:
        if form == "Transpose":
            nodes.append(helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]))
        nodes += [helper.make_node("MatMul", ["a", nodes[-1].output[0]], ["p"]),
                  helper.make_node("Add", ["p", "c"], ["y"])]
    right = (matrix if axis == 0 else matrix.T) * (0.5 if form == "Gemm" else 1)
    for m in (1, 3, 24):
        made = model(nodes, fixed, {"a": ("float32", (m, k))}, "float32")
        s = session(made, qdq_matmulnbits_accuracy_level=level)
        a = rng.standard_normal((m, k)).astype(np.float32)
        error = np.abs(s.run(None, {"a": a})[0] - (a @ right + fixed["c"]))
        rounded = np.abs(a).max(1) * np.abs(right).sum(0).max() / 254 if level == "4" else np.zeros(m)
        assert (error <= ROUNDED["float32"] * (np.abs(a) @ np.abs(right) + 3) + rounded[:, None]).all()
        (part,) = s.explain().parts
        assert part.packed < 2 * (n * k * bits // 8 + 5 * scales.size) + 4 * n


def test_the_session_sets_the_level_of_dequantized_products() -> None:
    """As onnxruntime does; the provider's own option comes first, and another number is an error."""
    key, rng = "session.qdq_matmulnbits_accuracy_level", np.random.default_rng(5)
    fixed = {"x": rng.integers(-8, 8, (64, 16)).astype(np.int8).astype(ml_dtypes.int4),
             "scales": np.full((2, 16), 0.1, np.float32)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "scales"], ["w"], axis=0, block_size=32),
             helper.make_node("MatMul", ["a", "w"], ["y"])]
    made, a = model(nodes, fixed, {"a": ("float32", (1, 64))}, "float32"), rng.standard_normal((1, 64))

    def run(level: str | None, *providers: Any) -> np.ndarray:
        options = orthrus.SessionOptions()
        if level is not None:
            options.add_session_config_entry(key, level)
        s = orthrus.InferenceSession(made, options, providers=list(providers))
        return np.asarray(s.run(None, {"a": a.astype(np.float32)})[0])
    named, other = "CPUExecutionProvider", "NothingExecutionProvider"
    exact = run("0", named)
    np.testing.assert_array_equal(run("4", (named, {key.partition(".")[2]: "1"})), exact)
    np.testing.assert_array_equal(run(None, named), exact)
    orthrus.register_execution_provider(type(other, (ExecutionProvider,), {"name": other}))
    try:
        for providers in ((named,), (other, named), (other,)):
            assert (run("4", *providers) != exact).any()
            with pytest.raises(InvalidArgument, match=key):
                run("5", *providers)
    finally:
        unregister(other)


@pytest.mark.parametrize("bits, dtype, middle", [
    (4, ml_dtypes.uint4, 0), (4, ml_dtypes.int4, 8), (2, np.uint8, 0), (4, np.uint8, 0), (8, np.uint8, 0)])
@pytest.mark.parametrize("zeros", [False, True])
def test_gathered_rows(bits: int, dtype: Any, middle: int, zeros: bool) -> None:
    rng, size, k, block = np.random.default_rng(6), 30, 148, 32
    codes, zero = rng.integers(0, 1 << bits, (size, k)), rng.integers(0, 1 << bits, (size, -(-k // block)))
    scales = rng.uniform(0.01, 0.03, zero.shape).astype(np.float32)

    def stored(x: np.ndarray) -> np.ndarray:
        return packed(x, bits) if dtype is np.uint8 else (x - middle).astype(np.int8).astype(dtype)
    fixed = {"x": stored(codes), "scales": scales, **({"zeros": stored(zero)} if zeros else {})}
    default = 1 << (bits - 1) if dtype is np.uint8 else middle
    node = helper.make_node("GatherBlockQuantized", ["x", "i", *[*fixed][1:]], ["y"], domain=MS, bits=bits,
                            block_size=block, gather_axis=0, quantize_axis=1)
    zero = zero if zeros else np.full(zero.shape, default)
    low, by = (np.repeat(t, block, 1)[:, :k] for t in (zero, scales))
    for count in (0, 5, 1):
        s = session(model([node], fixed, {"i": ("int64", (2, count))}, "float32"))
        i = rng.integers(-size, size, (2, count))
        np.testing.assert_array_equal(s.run(None, {"i": i})[0], ((codes - low).astype(np.float32) * by)[i])
    with pytest.raises(InvalidArgument, match="out of data bounds"):
        s.run(None, {"i": np.full((2, 1), size)})


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_floats_of_four_bits(kind: int, rows: int) -> None:
    rng, n, k, block = np.random.default_rng(7), 33, 64, 32
    fixed = {"b": rng.integers(0, 256, n * k // 2).astype(np.uint8),
             "absmax": rng.uniform(0.5, 2, n * k // block).astype(np.float32)}
    node = helper.make_node("MatMulBnb4", ["a", "b", "absmax"], ["y"], domain=MS, K=k, N=n, block_size=block,
                            quant_type=kind)
    made = model([node], fixed, {"a": ("float32", (rows, k))}, "float32")
    a = rng.standard_normal((rows, k)).astype(np.float32)
    wanted = session(made, False, use_codegen="0").run(None, {"a": a})[0]
    np.testing.assert_allclose(session(made).run(None, {"a": a})[0], wanted, rtol=1e-5, atol=2e-5)
