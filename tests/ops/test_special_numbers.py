"""What becomes of NaN and infinities in operators that choose among numbers, in rows of a few elements and of
many, along every axis: generated code as defined, and as onnxruntime where its result does not depend on the
order in which it looks at them.

Onnxruntime passes NaN over, or keeps it, by its place in a row in ReduceMax, ArgMax, TopK, Hardmax, MaxPool
and recurrent layers; here NaN is larger and smaller than any number. It holds infinities back where Clip
lacks a bound and in MaxPool; here they pass.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from oracle import Case, check

from fuzz import judge

SIZES = (1, 3, 17, 64, 1000)
NAN, INFINITE = (np.nan,), (np.inf, -np.inf)
BOTH = (*NAN, *INFINITE, 0.0, -0.0)
ALIKE = ("Relu", "Max", "Min", "Clip")
"""Of which NaN is onnxruntime's too, infinities are in all but the pools."""
CHOOSING = (*ALIKE, "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "Hardmax", "TopK")
POOLS = ("MaxPool", "GlobalMaxPool")
LAYERS = ("RNN", "GRU", "LSTM")
IMAGES = ("AveragePool", "LpPool", "GridSample", "Resize", "RoiAlign")
"""Of which each result looks at few numbers."""


def salted(rng: np.random.Generator, shape: tuple[int, ...], special: tuple[float, ...],
           dtype: Any = np.float32) -> np.ndarray:
    """Numbers of which few, many or all are special; no two of the others are the same."""
    plain = rng.permutation(int(np.prod(shape))).reshape(shape) / 16 - 2
    share = rng.choice((0.05, 0.5, 1.0))
    return np.where(rng.random(shape) < share, rng.choice(special, shape), plain).astype(dtype)


def choosing(op: str, seed: int, special: tuple[float, ...]) -> Case:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    n, rank = r.choice(SIZES), r.randint(1, 3)
    axis = r.randrange(rank)
    shape = tuple(n if i == axis else r.choice((1, 2, 5)) for i in range(rank))
    x = salted(rng, shape, special, np.float32 if op in ("Hardmax", "ArgMax", "ArgMin") else
               r.choice((np.float32, np.float64)))
    at = axis - rank * r.randint(0, 1)
    if op == "Relu":
        return Case(op, [x])
    if op in ("Max", "Min"):
        shapes = [r.choice((shape, shape[-1:], (1,))) for _ in range(r.randint(0, 2))]
        others = [salted(rng, s, special, x.dtype) for s in shapes]
        return Case(op, [x, *others])
    if op == "Clip":
        return Case(op, [x, x.dtype.type(r.choice((-1, 0))), x.dtype.type(r.choice((1, 6)))])
    if op in ("ReduceMax", "ReduceMin"):
        return Case(op, [x, np.array([at])], opset=18, held=frozenset({1}))
    if op in ("ArgMax", "ArgMin"):
        return Case(op, [x], {"axis": at, "select_last_index": r.randint(0, 1)})
    if op == "Hardmax":
        return Case(op, [x], {"axis": at})
    k = np.array([r.choice((1, min(3, n), n))])
    return Case(op, [x, k], {"axis": at, "largest": r.randint(0, 1)}, outputs=2)


def pooled(op: str, seed: int, special: tuple[float, ...]) -> Case:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    n = r.choice(SIZES)
    x = salted(rng, (1, r.choice((1, 3)), n, *r.choice(((), (3,)))), special)
    if op == "GlobalMaxPool":
        return Case(op, [x])
    kernel = [min(3, n), 2][:x.ndim - 2]
    attrs = {"kernel_shape": kernel, "strides": [r.randint(1, 2) for _ in kernel]}
    return Case(op, [x], attrs | ({"pads": [1] * 2 * len(kernel)} if n > 2 and r.random() < 0.5 else {}))


def layer(op: str, seed: int, special: tuple[float, ...]) -> Case:
    """A recurrent layer with one special number."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    hidden, gates = r.choice((1, 3, 5, 17)), {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    shapes = ((3, 2, 4), (1, gates * hidden, 4), (1, gates * hidden, hidden), (1, 2 * gates * hidden))
    given = [rng.normal(size=s).astype(np.float32) / 2 for s in shapes]
    place = r.choice(given[:2])
    place.reshape(-1)[r.randrange(place.size)] = r.choice(special)
    attrs: dict[str, Any] = {"hidden_size": hidden} | ({"clip": 1.5} if r.random() < 0.5 else {})
    return Case(op, given, attrs, outputs=2, rtol=1e-4, atol=1e-5)


def seen(op: str, seed: int, special: tuple[float, ...]) -> Case:
    """Means, samples and interpolations of an image."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    shape, kind = (1, 2, r.choice((1, 5, 9)), r.choice((4, 17))), r.choice((np.float32, np.float64))
    x, mode = salted(rng, shape, special, kind), r.choice(("nearest", "linear", "cubic"))
    if op == "RoiAlign":
        boxes = np.sort(rng.uniform(-1, 17, (3, 2, 2)), axis=1).reshape(3, 4).astype(x.dtype)
        return Case(op, [x, boxes, np.zeros(3, np.int64)], {
            "output_height": r.randint(1, 3), "output_width": 2, "sampling_ratio": r.randint(0, 2)})
    if op == "GridSample":
        grid = rng.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(x.dtype)
        return Case(op, [x, grid], {"mode": mode, "align_corners": r.randint(0, 1)})
    if op == "Resize":
        scales = np.array([1, 1, *(r.choice((0.5, 1.0, 1.7, 3.0)) for _ in range(2))], np.float32)
        return Case(op, [x, None, scales], {"mode": mode}, held=frozenset({2}))
    attrs: dict[str, Any] = {"kernel_shape": [min(2, x.shape[2]), 3], "strides": [1, r.randint(1, 3)]}
    attrs["ceil_mode"] = r.randint(0, 1)
    return Case(op, [x], attrs | ({"p": r.randint(1, 2)} if op == "LpPool" else {}))


def made(op: str, seed: int, special: tuple[float, ...]) -> Case:
    make = pooled if op in POOLS else layer if op in LAYERS else seen if op in IMAGES else choosing
    return make(op, seed, special)


@pytest.mark.parametrize("op", (*CHOOSING, *POOLS, *LAYERS, *IMAGES))
def test_as_defined(op: str) -> None:
    for seed in range(30):
        case = made(op, seed, (NAN, INFINITE, BOTH)[seed % 3])
        wanted = judge.Oracle(case.model(), None).definitions(case.feeds)
        assert isinstance(wanted, list), wanted
        case.expected = wanted
        assert (found := check(case)) is None, found


@pytest.mark.parametrize("op", (*CHOOSING, *LAYERS))
def test_as_onnxruntime(op: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    for seed in range(30):
        case = made(op, seed, BOTH if op in ALIKE else INFINITE)
        assert (found := check(case, peer)) is None, found
