"""Convolutions of one tap among what moves images and what follows elementwise, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort

pytestmark = needs("generated code")


def drawn(seed: int) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """A model, its feeds, and what it gives."""
    rng = np.random.default_rng(seed)
    axes = int(rng.integers(1, 4))
    batch, cin, cout = int(rng.choice([1, 2, 3])), int(rng.integers(3, 40)), int(rng.integers(1, 50))
    size = [int(n) for n in rng.integers(1, 9, axes)]

    def numbers(*shape: int) -> np.ndarray:
        made = rng.standard_normal(shape).astype(np.float32)
        if made.size and rng.random() < 0.1:
            made[tuple(rng.integers(0, shape))] = rng.choice([np.nan, np.inf, 1e-40])
        return made
    whole = numbers(batch, cin + 3, *size)
    w, b = numbers(cout, cin, *[1] * axes), numbers(cout)
    nodes, fed = [], {"whole": whole}
    x, first = whole, "whole"
    nodes.append(helper.make_node("Slice", ["whole", "begin", "end", "axis"], ["x"]))
    held = {"begin": np.array([2]), "end": np.array([2 + cin]), "axis": np.array([1])}
    x, first = whole[:, 2:2 + cin], "x"
    if rng.random() < 0.3:
        order = [0, 1, *(2 + rng.permutation(axes))]
        nodes.append(helper.make_node("Transpose", [first], ["t"], perm=[int(a) for a in order]))
        x, first = x.transpose(order), "t"
    for name, value in (("w", w), ("b", b)):
        (held if rng.random() < 0.6 else fed)[name] = value
    biased = rng.random() < 0.6
    nodes.append(helper.make_node("Conv", [first, "w", *["b"] * biased], ["y"]))
    y = np.einsum("nc...,oc->no...", x.astype(np.float64), w.reshape(cout, cin).astype(np.float64))
    if biased:
        y = y + b.reshape(-1, *[1] * axes)
    else:
        fed.pop("b", None)
        held.pop("b", None)
    last = "y"
    if rng.random() < 0.4:
        fed["z"] = numbers(*(y.shape if rng.random() < 0.5 else (cout, *[1] * axes)))
        nodes.append(helper.make_node("Add", ["z", last], ["sum"]))
        y, last = y + fed["z"], "sum"
    if rng.random() < 0.4:
        nodes.append(helper.make_node("Relu", [last], ["r"]))
        y, last = np.where(np.isnan(y), y, np.maximum(y, 0)), "r"
    if rng.random() < 0.4:
        axis = int(rng.integers(1, y.ndim))
        nodes.append(helper.make_node("Concat", [last, last], ["both"], axis=axis))
        y, last = np.concatenate([y, y], axis), "both"
    kinds = [info(name, TensorProto.FLOAT, a.shape) for name, a in fed.items()]
    return model(nodes, kinds, [info(last, shape=None)], held), fed, y


@pytest.mark.parametrize("seeds", [range(60), range(60, 120)])
def test_among_others(seeds: range) -> None:
    for seed in seeds:
        made, fed, wanted = drawn(seed)
        session = ort.InferenceSession(made.SerializeToString())
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, fed)[0], wanted, 1e-4, 1e-4, err_msg=str(seed))
