"""Pooling, resizing and sampling as AMD machine code, against the operators' definitions, over shapes drawn
at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_lowered import AMD, defined, ran
from image_models import Images
from test_convolutions import followed, near, shape_of

from orthrus.lowering.gpu import slides, walks
from orthrus.lowering.gpu.rules import resize

pytestmark = pytest.mark.needs("AMD tables", "Triton")


def image(m: Images, rank: int, least: int = 1, most: int = 10) -> np.ndarray:
    size = [int(m.rng.integers(least, most)) for _ in range(rank)]
    return m.numbers((m.chosen(1, 2), m.chosen(1, 3, 4, 16, 20), *size))


def given(m: Images, x: np.ndarray) -> str:
    """An input, its channels last at times."""
    if m.chosen(0, 1) and x.ndim > 2:
        last = m.given(np.ascontiguousarray(np.moveaxis(x, 1, -1)))
        return str(m.node("Transpose", last, perm=[0, x.ndim - 1, *range(1, x.ndim - 1)]))
    return m.given(x)


def pools(m: Images) -> list[str]:
    rank = m.chosen(1, 2, 2, 3)
    kernel = [m.chosen(1, 2, 3, 4) for _ in range(rank)]
    op = m.chosen("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool")
    op = op if "float" in m.dtype else "MaxPool"
    dilations = [m.chosen(1, 1, 2) for _ in range(rank)]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": [m.chosen(1, 2, 3) for _ in range(rank)],
                             "ceil_mode": m.chosen(0, 1), "dilations": dilations}
    if m.chosen(0, 0, 1):
        attrs["auto_pad"] = m.chosen("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attrs["pads"] = [int(m.rng.integers(0, (k - 1) // 2 + 1)) for k in kernel * 2]
    if op == "AveragePool":
        attrs["count_include_pad"] = m.chosen(0, 1)
    if op == "LpPool":
        attrs["p"] = m.chosen(1, 2, 3 if m.dtype != "float64" else 2)
    x = image(m, rank, max((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)))
    if "float" in m.dtype and op == "MaxPool" and m.chosen(0, 1):
        x.reshape(-1)[m.rng.integers(0, x.size, 3)] = [np.nan, -np.inf, np.inf]
    if op == "MaxPool" and m.chosen(0, 1):
        made = m.node(op, given(m, x), outputs=2, storage_order=m.chosen(0, 1), **attrs)
        return list(made)
    y = m.node(op, given(m, x), **attrs)
    return [y if "int" in m.dtype else followed(m, y, shape_of(m, y))]


def globals_(m: Images) -> list[str]:
    x = image(m, m.chosen(1, 2, 3))
    op = m.chosen("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
    y = m.node(op, given(m, x), **({"p": m.chosen(1, 2)} if op == "GlobalLpPool" else {}))
    return [followed(m, y, (*x.shape[:2], *(1,) * (x.ndim - 2)))]


def norms(m: Images) -> list[str]:
    x = image(m, m.chosen(0, 1, 2, 3))
    y = m.node("LRN", given(m, x), size=m.chosen(1, 2, 3, 5, 40), alpha=0.25, beta=0.75, bias=1.5)
    return [followed(m, y, x.shape) if x.ndim > 2 else y]


def sizes(m: Images) -> list[str]:
    rank = m.chosen(1, 2, 2, 3)
    x = image(m, rank, 2, 7)
    nearest = "float" not in m.dtype or m.chosen(0, 1)
    attrs: dict[str, Any] = {"mode": "nearest" if nearest else m.chosen("linear", "linear", "cubic"),
                             "coordinate_transformation_mode": m.chosen(
                                 "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
                                 "half_pixel_symmetric")}
    if nearest:
        attrs["nearest_mode"] = m.chosen("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    elif m.chosen(0, 1):
        attrs["antialias"] = 1
    if attrs["mode"] == "cubic" and rank == 3:
        attrs["mode"] = "linear"
    if m.chosen(0, 1):
        scales = [1.0, 1.0, *(m.chosen(1.0, 2.0, 0.6, 1.7) for _ in range(rank))]
        y = m.node("Resize", given(m, x), "", m.constant(np.array(scales, np.float32)), **attrs)
    else:
        size = [*x.shape[:2], *(int(m.rng.integers(1, 9)) for _ in range(rank))]
        y = m.node("Resize", given(m, x), "", "", m.constant(np.array(size)), **attrs)
    return [y if "int" in m.dtype else followed(m, y, shape_of(m, y))]


def grids(m: Images) -> list[str]:
    rank = m.chosen(1, 2, 2, 3)
    x = image(m, rank)
    places = m.rng.uniform(-1.6, 1.6, (x.shape[0], *(int(m.rng.integers(1, 8)) for _ in range(rank)), rank))
    y = m.node("GridSample", given(m, x), m.given(places.astype(x.dtype)),
               mode=m.chosen("linear", "linear", "nearest", "cubic"), align_corners=m.chosen(0, 1),
               padding_mode=m.chosen("zeros", "border", "reflection"))
    return [followed(m, y, shape_of(m, y))]


KINDS: dict[str, tuple[Callable[[Images], list[str]], tuple[str, ...]]] = {
    "pools": (pools, ("float32", "float16", "int8", "uint8", "float64", "bfloat16")),
    "sizes": (sizes, ("float32", "float16", "int32", "uint8")),
    "grids": (grids, ("float32", "float16")),
    "globals": (globals_, ("float32", "float16", "float64")),
    "norms": (norms, ("float32", "float16")),
}


def check(kind: str, seed: int, dtype: str, target: str) -> None:
    m = Images(seed, dtype)
    outputs = KINDS[kind][0](m)
    model = m.model(*outputs, opset=22)
    got, expected = ran(model, m.feeds, target, seed), defined(model, m.feeds)
    assert not got.why, (got.why, m.said)
    for a, b in zip(got.outputs, expected, strict=True):
        said = f"{kind} {target} {dtype} {seed}: {m.said}"
        if a.dtype.kind in "iu":
            np.testing.assert_array_equal(a, b, said)
        else:
            wild = ~np.isfinite(b.astype(np.float64))
            np.testing.assert_array_equal(a[wild].astype(np.float64), b[wild].astype(np.float64), said)
            near(np.where(wild, 0, a).astype(a.dtype), np.where(wild, 0, b).astype(b.dtype), dtype, said)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(7))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", AMD)
def test_kinds(kind: str, seed: int, target: str) -> None:
    types = KINDS[kind][1]
    check(kind, seed, types[seed % len(types)], target)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_offsets_of_64_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (slides, walks, resize):
        monkeypatch.setattr(module, "LONG", 1)
    check(kind, 3, "float32", "gfx1100")
