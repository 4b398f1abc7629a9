"""Operators between quantized tensors against their definitions: signs, odd sizes, layouts, parameters that
are known or computed, on each machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from test_int8_models import MACHINES, codes, definition, model, on, run

import orthrus

MS = "com.microsoft"
POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("QLinearSigmoid", (3, 7, 33), {}), ("QLinearLeakyRelu", (1,), {"alpha": 0.3}),
    ("QLinearSigmoid", (5, 20000), {}), ("QLinearLeakyRelu", (2, 64), {}),
    ("QLinearSoftmax", (3, 4, 35), {"axis": 1, "opset": 13}), ("QLinearSoftmax", (3, 4, 5), {"opset": 12}),
    ("QLinearSoftmax", (2, 3, 4), {"axis": 1, "opset": 12}),
    ("QLinearAveragePool", (2, 5, 9, 8), POOL), ("QLinearAveragePool", (1, 2, 7, 6), POOL),
    ("QLinearAveragePool", (2, 9, 8, 35), {**POOL, "channels_last": 1, "count_include_pad": 1}),
    ("QLinearAveragePool", (1, 3, 21), {"kernel_shape": [4], "auto_pad": "SAME_UPPER"}),
    ("QLinearGlobalAveragePool", (2, 5, 9, 8), {}), ("QLinearGlobalAveragePool", (3, 7, 17), {}),
    ("QLinearGlobalAveragePool", (2, 9, 8, 5), {"channels_last": 1}),
]


def numbers(rng: np.random.Generator, names: str, dtype: Any) -> dict[str, np.ndarray]:
    """A scale and a zero point for each name."""
    made = {}
    for name in names.split():
        made[name + "s"] = np.asarray(rng.random() * 0.03 + 0.005, np.float32)
        made[name + "z"] = np.asarray(codes(rng, dtype, 1)[0], dtype)
    return made


def close(got: np.ndarray, wanted: np.ndarray, within: float = 0.0) -> None:
    """Equal but for a share of elements that are one apart: means and quotients that fall between two."""
    apart = np.abs(got.astype(int) - wanted.astype(int))
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    assert apart.max(initial=0) <= (within > 0) and (apart > 0).mean() <= within


@pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")
@pytest.mark.parametrize("case", range(len(CASES)))
def test_one_input(target: Any, case: int) -> None:
    kind, shape, attrs = CASES[case]
    rng = np.random.default_rng(case)
    for dtype, known in ((np.int8, True), (np.uint8, case % 3 > 0)):
        x, given = codes(rng, dtype, *shape), numbers(rng, "x y", dtype)
        if kind == "QLinearSoftmax":
            given["ys"][...] = 1 / 256
        feeds, held = ({"x": x}, given) if known else ({"x": x, **given}, {})
        node = helper.make_node(kind, ["x", *given], ["y"], domain=MS, **attrs)
        with on(target):
            got = run(model([node], feeds, held, {"y": dtype}), feeds, None)[0]
        with np.errstate(all="ignore"):
            wanted = definition(kind, x, *given.values(), domain=MS, **attrs)
        close(got, wanted, 0.01 if "Pool" in kind or kind == "QLinearSoftmax" or not known else 0)


@pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")
def test_largest_of_windows_with_channels_behind(target: Any) -> None:
    rng = np.random.default_rng(0)
    for dtype, shape, attrs in ((np.int8, (2, 9, 8, 35), POOL), (np.uint8, (1, 7, 6, 3), POOL),
                                (np.uint8, (2, 30, 5), {"kernel_shape": [3], "dilations": [2]})):
        x = codes(rng, dtype, *shape)
        node = helper.make_node("NhwcMaxPool", ["x"], ["y"], domain=MS, **attrs)
        with on(target):
            got = run(model([node], {"x": x}, {}, {"y": dtype}), {"x": x}, "pool")[0]
        np.testing.assert_array_equal(got, definition("NhwcMaxPool", x, domain=MS, **attrs))


@pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenation(target: Any, axis: int) -> None:
    """One input is quantized as the whole is, one is of the other sign, one is empty."""
    rng = np.random.default_rng(axis + 1)
    shapes = [[3, 5, 7] for _ in range(4)]
    for i, shape in enumerate(shapes):
        shape[axis] = (4, 9, 0, 130)[i]
    parameters = numbers(rng, "y b c", np.uint8) | numbers(rng, "d", np.int8)
    feeds = {name: codes(rng, np.int8 if name == "d" else np.uint8, *shape)
             for name, shape in zip("abcd", shapes, strict=True)}
    names = ["ys", "yz", *(n for a, p in zip("abcd", "ybcd", strict=True) for n in (a, p + "s", p + "z"))]
    node = helper.make_node("QLinearConcat", names, ["out"], domain=MS, axis=axis)
    with on(target):
        got = run(model([node], feeds, parameters, {"out": np.uint8}), feeds, "bytes_by_table")[0]
    every = feeds | parameters
    np.testing.assert_array_equal(got, definition("QLinearConcat", *(every[n] for n in names), domain=MS,
                                                  axis=axis))


TIES: dict[str, Callable[[np.random.Generator], Any]] = {
    "powers of two": lambda rng: 2.0 ** rng.integers(-8, 0, 3), "any": lambda rng: rng.uniform(1e-3, 0.1, 3),
    "fractions": lambda rng: rng.integers(1, 20, 3) / 128}
"""Scales with which many results lie just between two codes."""


def ties(kind: str, scales: str) -> Iterator[tuple[onnx.NodeProto, dict[str, np.ndarray]]]:
    """Nodes and all their inputs: every pair of codes, or a product of some."""
    rng = np.random.default_rng(2)
    for trial in range(6):
        dtype = (np.int8, np.uint8)[trial % 2]
        info = np.iinfo(dtype)
        if kind == "QGemm":
            inputs = {"a": codes(rng, dtype, 64, 16), "b": codes(rng, dtype, 16, 96)}
        else:
            every = np.arange(info.min, info.max + 1).astype(dtype)
            inputs = dict(zip("ab", np.meshgrid(every, every), strict=True))
        by = dict(zip(("as", "bs", "ys"), map(np.float32, TIES[scales](rng)), strict=True))
        zeros = {n: codes(rng, dtype, 1)[0] for n in ("az", "bz", "yz")}
        names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
        given = {n: np.asarray(v) for n, v in (by | zeros).items()}
        if kind == "QGemm":
            names.insert(6, "c")
            inputs["c"] = rng.integers(-999, 999, 96).astype(np.int32)
        yield helper.make_node(kind, names, ["y"], domain=MS), inputs | given


@pytest.mark.parametrize("scales", TIES)
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul", "QGemm"])
def test_kernels_round_ties_as_definitions_do(kind: str, scales: str) -> None:
    for node, every in ties(kind, scales):
        wanted = definition(kind, *(every[n] for n in node.input), domain=MS)
        for fed in ("a", "a ys", " ".join(every)):
            if kind == "QGemm" and len(fed) > 4:
                continue
            feeds = {n: every[n] for n in fed.split()}
            held = {n: v for n, v in every.items() if n not in feeds}
            made = model([node], feeds, held, {"y": wanted.dtype})
            np.testing.assert_array_equal(run(made, feeds, None)[0], wanted)


@pytest.mark.parametrize("scales", TIES)
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul", "QGemm"])
def test_definitions_round_ties_as_onnxruntime_does(kind: str, scales: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    for node, every in ties(kind, scales):
        wanted, feeds = definition(kind, *(every[n] for n in node.input), domain=MS), {"a": every["a"]}
        made = model([node], feeds, {n: v for n, v in every.items() if n != "a"}, {"y": wanted.dtype})
        s = peer.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(s.run(None, feeds)[0], wanted)


@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
def test_two_inputs(kind: str) -> None:
    rng = np.random.default_rng(1)
    for dtype, known in ((np.int8, True), (np.uint8, False)):
        inputs = {"a": codes(rng, dtype, 3, 5, 33), "b": codes(rng, dtype, 5, 1)}
        given = numbers(rng, "a b y", dtype)
        feeds, held = (inputs, given) if known else ({**inputs, **given}, {})
        names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
        node = helper.make_node(kind, names, ["y"], domain=MS)
        got = run(model([node], feeds, held, {"y": dtype}), feeds, None)[0]
        every = inputs | given
        close(got, definition(kind, *(every[n] for n in names), domain=MS))


@pytest.mark.parametrize("group", [1, 2, 4])
def test_sums_of_32_bits_wrap(group: int) -> None:
    """A bias near the ends of int32, known and fed: kernels, the definition and exact sums, wrapped."""
    rng = np.random.default_rng(group)
    for dtype, kernel in ((np.uint8, 1), (np.uint8, 3), (np.int8, 3)):
        x, w = codes(rng, dtype, 1, 2 * group, 5, 5), codes(rng, np.int8, 3 * group, 2, kernel, kernel)
        info = np.iinfo(np.int32)
        b = rng.choice([info.max, info.min, info.max - 1000, info.min + 1000, 0, 1 << 30], 3 * group)
        given = {"x": x, "xs": np.float32(0.01), "xz": dtype(3), "w": w, "ws": np.float32(0.01),
                 "wz": np.int8(0), "ys": np.float32(200), "yz": dtype(100), "b": b.astype(np.int32)}
        margin = kernel // 2
        attrs: dict[str, Any] = {"group": group, "pads": [margin] * 4}
        padded = np.pad(x.astype(np.int64) - 3, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))
        sums = np.concatenate([np.einsum("bcijhw,ochw->boij", *parts) for parts in zip(
            np.split(windows, group, 1), np.split(w.astype(np.int64), group), strict=True)], 1)
        whole = (sums + b.reshape(-1, 1, 1)).astype(np.int32)
        codes_of = np.rint(whole.astype(np.float32) * np.float32(1e-4 / 200)) + 100
        wanted = codes_of.clip(np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
        close(definition("QLinearConv", *given.values(), **attrs), wanted, 0.01)
        for fed in (["x"], ["x", "b"]):
            node = helper.make_node("QLinearConv", list(given), ["y"], **attrs)
            feeds = {name: given[name] for name in fed}
            held = {name: np.asarray(a) for name, a in given.items() if name not in fed}
            made = model([node], feeds, held, {"y": dtype}).SerializeToString()
            close(orthrus.InferenceSession(made).run(None, feeds)[0], wanted, 0.01)
