"""Normalizations on emulated GPUs of rows whose mean is far larger than their deviation: what rounding takes
from the mean does not show in the results, however many elements a program or several have of a row."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import on_gpu
from gpu_models import by_turns, model, node

pytestmark = pytest.mark.needs("AMD tables", "Triton")

MOST = 1.5e-6
"""Of the largest result; with the mean as it is rounded it is 3e-5 and more."""


@pytest.mark.parametrize("mean", [1000.0, -30000.0])
@pytest.mark.parametrize("shape, axes", [((3, 96), [1]), ((2, 5000), [1]), ((40, 5, 9), [0]),
                                         ((2, 18000), [1])])
def test_far_means(shape: tuple[int, ...], axes: list[int], mean: float) -> None:
    x = (mean + np.random.default_rng(shape).normal(size=shape)).astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(tuple(axes), keepdims=True)
    nodes = [node("MeanVarianceNormalization", "x", "y", axes=axes)]
    wanted = [centred / np.sqrt((centred ** 2).mean(tuple(axes), keepdims=True))]
    if axes == [len(shape) - 1]:
        nodes.append(node("LayerNormalization", "x s", "z m i", epsilon=0.0))
        wanted += [wanted[0], wide.mean(1, keepdims=True), wanted[0][:, :1] / centred[:, :1]]
    made = model(nodes, {"x": shape}, ["y", "z", "m", "i"][:len(wanted)], s=np.ones(shape[-1], np.float32))
    (target,) = by_turns(shape, mean)
    for found, at in zip(on_gpu(made, target, alone=True).run(None, {"x": x}), wanted, strict=True):
        assert np.abs(found - at).max() <= MOST * np.abs(at).max()


def test_rows_of_one_number() -> None:
    x = np.full((2, 1500), 12345.678, np.float32)
    made = model([node("LayerNormalization", "x s", "y")], {"x": x.shape}, ["y"], s=np.ones(1500, np.float32))
    assert np.abs(on_gpu(made, alone=True).run(None, {"x": x})[0]).max() <= MOST
