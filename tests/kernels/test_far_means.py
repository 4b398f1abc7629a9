"""Normalizations of rows whose mean is far larger than their deviation, or that are constant: what rounding
takes from the mean does not show in the results, whichever way the rows lie."""

from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

import orthrus as ort
from orthrus.ops import find

MOST = 1e-6
"""Of the largest result: some roundings. With the mean as it is rounded it is 2e-5 and more, for rows of one
number up to 1."""
MS = "com.microsoft"
CONSTANT = 12345.678


def rows(*shape: int) -> np.ndarray:
    """Around 1000, each row around another number, with deviations of about 1."""
    rng = np.random.default_rng(shape)
    return (1000 + rng.normal(size=shape) + 10 * rng.normal(size=shape[:1] + (1,) * (len(shape) - 1))).astype(
        np.float32)


def results(name: str, inputs: list[np.ndarray], attrs: dict[str, Any], outputs: int = 1, domain: str = ""
            ) -> list[tuple[np.ndarray, np.ndarray]]:
    """What generated code gives, and what the definition gives in float64."""
    ins, outs = [f"i{k}" for k in range(len(inputs))], [f"o{k}" for k in range(outputs)]
    node = helper.make_node(name, ins, outs, domain=domain, **attrs)
    proto = model([node], [info(k, shape=v.shape) for k, v in zip(ins, inputs, strict=True)],
                  [info(k, shape=None) for k in outs], domains={MS: 1})
    session = ort.InferenceSession(proto.SerializeToString(), fallback="error")
    got = session.run(None, dict(zip(ins, inputs, strict=True)))
    op = find(domain, name, 1 if domain else 21)
    assert op is not None
    wanted = op.bind(attrs, outputs)(*(v.astype(np.float64) for v in inputs))
    return list(zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=False))


def told(found: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for got, wanted in found:
        assert np.abs(got - wanted).max() <= MOST * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("constant", (False, True), ids=("spread", "constant"))
@pytest.mark.parametrize("size", (5, 32, 300, 5000, 70_000))
def test_rows_next_to_each_other(size: int, constant: bool) -> None:
    x = np.full((3, size), CONSTANT, np.float32) if constant else rows(3, size)
    scale, bias = np.linspace(0.5, 2, size, dtype=np.float32), np.linspace(-1, 1, size, dtype=np.float32)
    told(results("LayerNormalization", [x, scale, bias], {}))
    told(results("LayerNormalization", [x, scale, bias], {}, 3))
    told(results("SkipLayerNormalization", [x[None], x[None], scale, bias], {}, domain=MS))


@pytest.mark.parametrize("constant", (False, True), ids=("spread", "constant"))
@pytest.mark.parametrize("shape", ((2, 6, 3, 5), (1, 4, 70, 80), (3, 8, 9)))
def test_images(shape: tuple[int, ...], constant: bool) -> None:
    x = np.full(shape, CONSTANT, np.float32) if constant else rows(*shape)
    scale, bias = np.linspace(0.5, 2, shape[1], dtype=np.float32), np.zeros(shape[1], np.float32)
    told(results("InstanceNormalization", [x, scale, bias], {}))
    told(results("GroupNormalization", [x, scale, bias], {"num_groups": 2}))
    if len(shape) == 4:
        last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        told(results("GroupNorm", [last, scale, bias], {"groups": 2, "activation": 0}, domain=MS))


@pytest.mark.parametrize("axes", ([0], [1], [3], [0, 2, 3], [1, 2]))
def test_axes(axes: list[int]) -> None:
    told(results("MeanVarianceNormalization", [rows(30, 20, 7, 9)], {"axes": axes}))
