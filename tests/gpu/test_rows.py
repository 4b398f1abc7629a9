"""Softmax and normalizations on emulated GPUs, against the CPU provider: axes, shapes, types, long rows,
operands behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_gpu import compare
from gpu_models import model, node, numpy_type

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]

RNG = np.random.default_rng(0)
FORMS = {
    "rows": ((5, 33), -1), "columns": ((2, 37, 3), 1), "outermost": ((7, 2, 5), 0), "one": ((1, 1), -1),
    "long": ((3, 9001), -1), "long columns": ((1100, 40), 0), "empty rows": ((3, 1, 4), 1)}
TYPES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize("op", ("Softmax", "LogSoftmax"))
@pytest.mark.parametrize("form", FORMS)
def test_softmax(op: str, form: str) -> None:
    shape, axis = FORMS[form]
    made = model([node("Mul", "x two", "m"), node(op, "m", "s", axis=axis), node("Add", "s b", "y")],
                 {"x": shape, "b": shape[-1:]}, ["y"], two=np.array(2, np.float32))
    compare(made, {"x": RNG.normal(size=shape).astype(np.float32) * 4,
                   "b": RNG.normal(size=shape[-1:]).astype(np.float32)})


def of_type(shape: tuple[int, ...], dtype: str = "float32", scale: float = 1.0) -> np.ndarray:
    return (RNG.normal(size=shape) * scale).astype(numpy_type(dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape, axis", (((4, 3, 65), -1), ((3, 2, 9), 1), ((2, 8300), -1)))
def test_layer_norms(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    """With scale and bias, their statistics read and not."""
    scale, bias = of_type(shape[axis:], dtype), of_type(shape[axis:], dtype)
    made = model([node("LayerNormalization", "x s b", "y m i", axis=axis),
                  node("LayerNormalization", "x s", "z", axis=axis),
                  node("RMSNormalization", "x s", "w", axis=axis)],
                 {"x": shape}, ["y", "m", "i", "z", "w"], dtype, 23, s=scale, b=bias)
    compare(made, {"x": of_type(shape, dtype, 3)}, rtol=TYPES[dtype], atol=TYPES[dtype])


@pytest.mark.parametrize("dtype", ("float32", "float16"))
@pytest.mark.parametrize("shape", ((2, 3, 70), (2, 9000)))
def test_norms_of_sums(dtype: str, shape: tuple[int, ...]) -> None:
    """x + skip + bias, which is read too."""
    one = {name: of_type(shape[-1:], dtype) for name in "gab"}
    made = model([node("com.microsoft::SkipLayerNormalization", "x skip g b a", "y - - t"),
                  node("com.microsoft::SkipSimplifiedLayerNormalization", "x skip g", "z")],
                 {"x": shape, "skip": shape}, ["y", "t", "z"], dtype, **one)
    compare(made, {"x": of_type(shape, dtype), "skip": of_type(shape, dtype)}, rtol=TYPES[dtype],
            atol=TYPES[dtype])


@pytest.mark.parametrize("shape", ((2, 6, 5, 7), (1, 4, 33), (1, 4, 120, 90)))
def test_norms_of_images(shape: tuple[int, ...]) -> None:
    channels = {name: of_type(shape[1:2]) for name in "sb"}
    made = model([node("InstanceNormalization", "x s b", "a"),
                  node("GroupNormalization", "x s b", "c", num_groups=2), node("Relu", "c", "d"),
                  node("MeanVarianceNormalization", "x", "e", axes=[0, 2]),
                  node("LpNormalization", "x", "f", axis=1, p=1), node("LpNormalization", "x", "g", p=2)],
                 {"x": shape}, ["a", "d", "e", "f", "g"], **channels)
    compare(made, {"x": of_type(shape)}, rtol=2e-5, atol=2e-5)


def test_rows_of_special_values() -> None:
    """Rows of infinities, NaN, zeros and huge numbers."""
    x = np.array([[1, 2, np.nan], [-np.inf, -np.inf, -np.inf], [np.inf, 1, 2], [-np.inf, 0, 1], [0, 0, 0],
                  [3e38, 3e38, -3e38]], np.float32)
    made = model([node("Softmax", "x", "a"), node("LogSoftmax", "x", "b"), node("LpNormalization", "x", "c"),
                  node("LayerNormalization", "x s", "d")], {"x": (6, None)}, ["a", "b", "c", "d"],
                 s=np.ones(1, np.float32))
    with np.errstate(all="ignore"):
        compare(made, {"x": x})
        compare(made, {"x": np.repeat(x, 3000, 1)})


@pytest.mark.parametrize("dtype", ("float32", "float16"))
@pytest.mark.parametrize("last", (0, 1))
def test_norms_of_diffusion(dtype: str, last: int) -> None:
    """Channels in front and behind, sums that are read, gates."""
    shape = (2, 5, 6, 8) if last else (2, 8, 5, 6)
    vectors = {name: of_type((8,), "float32") for name in "gb"} | {"c": of_type((8,), dtype)}
    attrs = {"groups": 4, "channels_last": last}
    made = model([node("com.microsoft::GroupNorm", "x g b", "y", activation=1, **attrs),
                  node("com.microsoft::SkipGroupNorm", "x g b skip c", "z t", activation=0, **attrs),
                  node("com.microsoft::SkipGroupNorm", "x g b one", "w", activation=1, **attrs),
                  node("com.microsoft::BiasAdd", "x d x", "v"),
                  node("com.microsoft::BiasSplitGelu", "x d", "u")],
                 {"x": shape, "skip": shape, "one": (2, 8), "d": shape[-1:]}, list("yztwvu"), dtype,
                 **vectors)
    compare(made, {"x": of_type(shape, dtype), "skip": of_type(shape, dtype), "one": of_type((2, 8), dtype),
                   "d": of_type(shape[-1:], dtype)}, rtol=TYPES[dtype], atol=TYPES[dtype])
