"""Products and convolutions of bytes whose second factor is computed, against their definitions bit for bit:
signs, zero points known and computed, odd sizes, batches, layouts; and attention over such a projection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import helper
from test_int8_models import MACHINES, codes, definition, model, on, run

import orthrus

MS = "com.microsoft"
QUICK = draws(12, suppress_health_check=list(HealthCheck))
SHAPES = st.sampled_from([((3, 5), (5, 7)), ((17, 40), (40, 33)), ((1, 64), (64, 96)), ((5, 1), (1, 4)),
                          ((1, 37), (37, 70)), ((1, 1, 300), (300, 129)), ((9,), (9, 33)), ((1, 5), (5, 1)),
                          ((1, 1), (1, 3)), ((2, 6, 9), (9, 50)), ((3, 4, 20), (3, 20, 17)),
                          ((2, 1, 4, 8), (1, 3, 8, 5)),
                          ((4, 8), (2, 8, 16)), ((6, 1, 12), (6, 12, 34)), ((2, 3, 7, 5), (2, 3, 5, 64))])


def machines() -> Any:
    return pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")


@machines()
@QUICK
@given(seed=st.integers(0, 2**32), shapes=SHAPES, signs=st.tuples(st.booleans(), st.booleans()),
       zeros=st.sampled_from(["none", "known", "fed", "columns"]), turned=st.booleans())
def test_sums(target: Any, seed: int, shapes: Any, signs: tuple[bool, bool], zeros: str, turned: bool
              ) -> None:
    """`turned`: B comes of a Transpose, so that it lies the other way. One row is read along with B."""
    rng = np.random.default_rng(seed)
    a_type, b_type = (np.int8 if s else np.uint8 for s in signs)
    a, b = codes(rng, a_type, *shapes[0]), codes(rng, b_type, *shapes[1])
    parts = (b.shape[-1],) if zeros == "columns" else ()
    given = {} if zeros == "none" else {"za": np.asarray(codes(rng, a_type, 1)[0]),
                                        "zb": np.asarray(codes(rng, b_type, *parts))}
    feeds = {"a": a, "b": np.ascontiguousarray(b.swapaxes(-1, -2)) if turned else b}
    nodes = [helper.make_node("MatMulInteger", ["a", "t" if turned else "b", *given], ["y"])]
    if turned:
        order = [*range(b.ndim - 2), b.ndim - 1, b.ndim - 2]
        nodes.insert(0, helper.make_node("Transpose", ["b"], ["t"], perm=order))
    feeds, held = ({**feeds, **given}, {}) if zeros == "fed" else (feeds, given)
    plain = b.ndim == 2 and a.size == a.shape[-1] and (zeros != "columns" or b.shape[1] == 1)
    way = "int8_pack" if not plain or (turned and b.size > 1 and b.shape[0] > 1) else "reduce_axes"
    with on(target):
        got = run(model(nodes, feeds, held, {"y": np.int32}), feeds, (way, "int8_few"))[0]
    np.testing.assert_array_equal(got, definition("MatMulInteger", a, b, *given.values()), strict=True)


@draws(40, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), turned=st.booleans())
def test_batches_of_any_rank(seed: int, turned: bool) -> None:
    """Axes of one element count: the result has as many axes as the factor that has more."""
    rng = np.random.default_rng(seed)
    common = rng.integers(1, 4, 3)
    m, k, n = (int(d) for d in rng.integers(1, 20, 3))
    lead = [[int(d) if rng.random() < 0.5 else 1 for d in common[3 - int(rng.integers(4)):]] for _ in "ab"]
    a, b = codes(rng, np.uint8, *lead[0], m, k), codes(rng, np.int8, *lead[1], k, n)
    given = {"za": np.uint8(rng.integers(256)), "zb": codes(rng, np.int8, n)}
    feeds = {"a": a, "b": np.ascontiguousarray(b.swapaxes(-1, -2)) if turned else b, **given}
    nodes = [helper.make_node("MatMulInteger", ["a", "t" if turned else "b", *given], ["y"])]
    if turned:
        order = [*range(b.ndim - 2), b.ndim - 1, b.ndim - 2]
        nodes.insert(0, helper.make_node("Transpose", ["b"], ["t"], perm=order))
    row = a.size == k and b.ndim == 2 and n == 1
    got = run(model(nodes, feeds, {}, {"y": np.int32}), feeds, None if row else ("int8_pack", "int8_few"))[0]
    np.testing.assert_array_equal(got, definition("MatMulInteger", a, b, *given.values()), strict=True)


@machines()
@pytest.mark.parametrize("kind", ["QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm"])
def test_scaled_products(target: Any, kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    order = {"QLinearMatMul": "a as az b bs bz ys yz", "MatMulIntegerToFloat": "a b as bs az bz bias",
             "DynamicQuantizeMatMul": "a b bs bz bias", "QGemm": "a as az b bs bz c ys yz"}[kind].split()
    for dtype in (np.int8, np.uint8):
        every = {"a": codes(rng, np.uint8, 9, 21), "b": codes(rng, dtype, 21, 37), "az": np.uint8(3),
                 "bz": np.asarray(7, dtype), "as": np.float32(0.02), "ys": np.float32(3), "yz": np.uint8(99),
                 "bs": (rng.random(37) * 0.01).astype(np.float32),
                 "c": codes(rng, np.int8, 37).astype(np.int32),
                 "bias": rng.standard_normal(37).astype(np.float32)}
        if kind == "DynamicQuantizeMatMul":
            every["a"] = rng.standard_normal((9, 21)).astype(np.float32)
        feeds = {n: every[n] for n in ("a", "b")}
        held = {n: np.asarray(every[n]) for n in order if n not in feeds}
        domain = MS if kind != "QLinearMatMul" else ""
        wanted = definition(kind, *(np.asarray(every[n]) for n in order), domain=domain)
        node = helper.make_node(kind, order, ["y"], domain=domain)
        with on(target):
            got = run(model([node], feeds, held, {"y": wanted.dtype}), feeds, "int8_pack")[0]
        if wanted.dtype == np.float32:
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        else:
            assert np.abs(got.astype(int) - wanted).max() <= (kind == "QGemm")


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 8, 9, 8), (16, 8, 3, 3), {"pads": [1] * 4}), ((2, 5, 11, 7), (33, 5, 1, 1), {"strides": [2, 1]}),
    ((1, 3, 13, 12), (20, 3, 5, 2), {"strides": [2, 2], "pads": [2, 0, 1, 1]}),
    ((1, 16, 9, 9), (8, 16, 3, 3), {"dilations": [2, 2]}), ((2, 7, 19), (9, 7, 3), {"pads": [1, 1]}),
    ((1, 32, 6, 5), (32, 16, 3, 3), {"group": 2, "pads": [1] * 4}),
]


@machines()
@pytest.mark.parametrize("case", range(len(CONVS)))
def test_convolutions(target: Any, case: int) -> None:
    shape, of_weights, attrs = CONVS[case]
    rng = np.random.default_rng(case)
    for signs, computed in (((np.uint8, np.int8), False), ((np.int8, np.uint8), True)):
        zero = 128 if signs[1] == np.uint8 else 0
        x, w = codes(rng, signs[0], *shape), codes(rng, signs[1], *of_weights)
        low = np.full((), zero, signs[1]) if "group" in attrs else codes(rng, signs[1], of_weights[0])
        given = {"xz": np.asarray(codes(rng, signs[0], 1)[0]), "wz": low}
        fed = {"x": x, "w": w} | ({"wz": low} if computed and "group" not in attrs else {})
        held = {k: v for k, v in given.items() if k not in fed}
        node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **attrs)
        with on(target):
            got = run(model([node], fed, held, {"y": np.int32}), fed, "int8_pack")[0]
        np.testing.assert_array_equal(got, definition("ConvInteger", x, w, given["xz"], low, **attrs))


BY_CHANNEL: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 24, 9, 8), (24, 1, 3, 3), {"pads": [1] * 4, "strides": [1, 2]}),
    ((1, 7, 12), (7, 1, 5), {"pads": [2, 2]}), ((1, 40, 6, 6), (40, 1, 2, 2), {})]


@machines()
@pytest.mark.parametrize("case", range(len(CONVS) + len(BY_CHANNEL)))
def test_convolutions_whose_zero_point_is_computed(target: Any, case: int) -> None:
    """As `quantize_dynamic` writes them: padding is the zero point of the run."""
    shape, of_weights, attrs = [*CONVS, *BY_CHANNEL][case]
    attrs = {"group": of_weights[0], **attrs} if case >= len(CONVS) else attrs
    rng = np.random.default_rng(case)
    for signs in ((np.uint8, np.int8), (np.int8, np.uint8)):
        w, low = codes(rng, signs[1], *of_weights), codes(rng, signs[1], of_weights[0])
        node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **attrs)
        fed = {"x": codes(rng, signs[0], *shape), "xz": np.asarray(codes(rng, signs[0], 1)[0])}
        made = model([node], fed, {"w": w, "wz": low}, {"y": np.int32})
        with on(target):
            for point in (fed["xz"], np.asarray(np.iinfo(signs[0]).min, signs[0])):
                got = run(made, {**fed, "xz": point}, "int8_")[0]
                np.testing.assert_array_equal(
                    got, definition("ConvInteger", fed["x"], w, point, low, **attrs))


@machines()
@pytest.mark.parametrize("known", [True, False])
def test_quantized_convolution(target: Any, known: bool) -> None:
    """With channels behind, and a bias."""
    rng = np.random.default_rng(4)
    x, w = codes(rng, np.uint8, 2, 9, 8, 12), codes(rng, np.int8, 20, 12, 3, 3)
    every = {"x": x, "xs": np.float32(0.02), "xz": np.uint8(120), "w": w, "ws": np.float32(0.01),
             "wz": np.int8(0), "ys": np.float32(2), "yz": np.uint8(120),
             "b": rng.integers(-9999, 9999, 20, np.int32)}
    attrs = {"channels_last": 1, "pads": [1] * 4}
    fed = {n: v for n, v in every.items() if n == "x" or (n in "wb" and not known)}
    held = {n: np.asarray(v) for n, v in every.items() if n not in fed}
    node = helper.make_node("QLinearConv", [*every], ["y"], domain=MS, **attrs)
    with on(target):
        got = run(model([node], fed, held, {"y": np.uint8}), fed, "int8_")[0]
    wanted = definition("QLinearConv", *(np.asarray(v) for v in every.values()), domain=MS, **attrs)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("case", range(4))
def test_attention(case: int) -> None:
    """Weights known or computed, masked, causal, with a past."""
    rng = np.random.default_rng(case)
    batch, rows, heads, size = 2, 7, 3, 8
    width = heads * size
    every: dict[str, np.ndarray] = {
        "x": codes(rng, np.uint8, batch, rows, width), "w": codes(rng, np.int8, width, 3 * width),
        "b": rng.standard_normal(3 * width).astype(np.float32), "xs": np.float32(0.01),
        "ws": np.float32(0.002), "m": np.array([5, 7], np.int32), "xz": np.uint8(128), "wz": np.int8(case),
        "p": rng.standard_normal((2, batch, heads, 4, size)).astype(np.float32)}
    absent = {0: "mp", 1: "p", 2: "m", 3: "mp"}[case]
    names = [n if n not in absent else "" for n in every]
    fed = {n: v for n, v in every.items() if n in names and n in ("x", "p", *(["w"] if case == 3 else []))}
    held = {n: np.asarray(v) for n, v in every.items() if n in names and n not in fed}
    attrs = {"num_heads": heads, "unidirectional": int(case == 2)}
    node = helper.make_node("QAttention", names, ["y", "present"], domain=MS, **attrs)
    got = run(model([node], fed, held, {"y": np.float32, "present": np.float32}), fed, None)
    inputs = [np.asarray(every[n]) if n else None for n in names]
    wanted = definition("QAttention", *inputs, domain=MS, **attrs)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_open_dimensions() -> None:
    """One session, many sizes: the second and third follow from a formula or a new plan alike."""
    rng = np.random.default_rng(5)
    node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    held = {"za": np.uint8(3), "zb": np.uint8(100)}
    first = {"a": codes(rng, np.uint8, 2, 3, 5), "b": codes(rng, np.uint8, 2, 5, 7)}
    made = model([node], first, {k: np.asarray(v) for k, v in held.items()}, {"y": np.int32})
    for value in made.graph.input:
        for i, d in enumerate(value.type.tensor_type.shape.dim):
            d.dim_param = f"{value.name}{i}" if i == 2 and value.name == "b" else "nmk"[i] if (
                value.name == "a") else "nk"[i]
    s = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, m, k, wide in ((2, 3, 5, 7), (1, 9, 16, 48), (4, 1, 33, 3), (2, 6, 64, 100), (3, 2, 1, 1)):
        a, b = codes(rng, np.uint8, n, m, k), codes(rng, np.uint8, n, k, wide)
        got = s.run(None, {"a": a, "b": b})[0]
        np.testing.assert_array_equal(got, definition("MatMulInteger", a, b, *held.values()))


@QUICK
@given(seed=st.integers(0, 2**32), axes=st.integers(1, 3), signs=st.tuples(st.booleans(), st.booleans()),
       zeros=st.sampled_from(["absent", "empty", "held", "fed"]), groups=st.sampled_from([1, 1, 2]))
def test_open_sizes_of_weights(seed: int, axes: int, signs: tuple[bool, bool], zeros: str, groups: int
                               ) -> None:
    """One session whose weights are fed too, sizes that change from run to run."""
    rng = np.random.default_rng(seed)
    x_type, w_type = (np.int8 if s else np.uint8 for s in signs)
    given = {} if zeros in ("absent", "empty") else {
        "xz": np.asarray(codes(rng, x_type, 1)[0]), "wz": np.asarray(codes(rng, w_type, 1)[0])}
    attrs = {"group": groups} if groups > 1 else {}
    inputs = ["x", "w", *(["", ""] if zeros == "empty" else given)]
    node, session = helper.make_node("ConvInteger", inputs, ["y"], **attrs), None
    for _ in range(4):
        n, each, outs = (int(v) for v in rng.integers(1, 4, 3))
        kernel = rng.integers(1, 4, axes)
        x = codes(rng, x_type, n, each * groups, *(int(k + v) for k, v in zip(
            kernel, rng.integers(0, 9, axes), strict=True)))
        w = codes(rng, w_type, outs * groups, each, *map(int, kernel))
        feeds = {"x": x, "w": w} | (given if zeros == "fed" else {})
        if session is None:
            made = model([node], feeds, given if zeros == "held" else {}, {"y": np.int32})
            for value in made.graph.input:
                for i, d in enumerate(value.type.tensor_type.shape.dim):
                    d.dim_param = f"{value.name}{i}"
            session = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = definition("ConvInteger", x, w, *given.values(), **attrs)
        np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)
