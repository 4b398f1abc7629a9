"""Copies whose innermost runs are a few bytes long, which are moved as wider integers, in any order and from
any place, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

from orthrus.lowering import elements
from orthrus.run.config import Config
from orthrus.run.engine import Engine

TYPES = (np.bool_, np.uint8, np.int8, np.float16, np.int16, np.float32, np.int32, np.int64)


def moved(rng: np.random.Generator, x: np.ndarray) -> tuple[bytes, np.ndarray]:
    """A model that turns x, takes some of it from somewhere on, and puts it behind itself; and the result."""
    order = [int(a) for a in rng.permutation(x.ndim)]
    if rng.integers(2):
        order = [*(a for a in order if a != x.ndim - 1), x.ndim - 1]
    steps = [int(s) for s in rng.choice([1, 1, 1, 2, -1, 3], x.ndim)]
    picks = []
    for size, step in zip((x.shape[a] for a in order), steps, strict=True):
        first, last = sorted(int(n) for n in rng.integers(0, size, 2))
        picks.append((first, last + 1) if step > 0 else (last, first - 1 if first else -size - 1))
    starts, ends = (np.array(side, np.int64) for side in zip(*picks, strict=True))
    axis = int(rng.integers(x.ndim))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = model([helper.make_node("Transpose", ["x"], ["t"], perm=order),
                   helper.make_node("Slice", ["t", "starts", "ends", "axes", "steps"], ["s"]),
                   helper.make_node("Concat", ["s", "s"], ["y"], axis=axis)],
                  [info("x", kind, x.shape)], [info("y", kind, [None] * x.ndim)],
                  {"starts": starts, "ends": ends, "axes": np.arange(x.ndim), "steps": np.array(steps)})
    taken = x.transpose(order)[tuple(slice(b, None if e < -d else e, s) for (b, e), s, d in zip(
        picks, steps, (x.shape[a] for a in order), strict=True))]
    return graph.SerializeToString(), np.concatenate([taken, taken], axis)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
def test_they_are_what_numpy_makes(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    widened, came = elements._widened, []

    def noted(*given: object) -> object:
        came.append(made := widened(*given))
        return made
    monkeypatch.setattr(elements, "_widened", noted)
    rng = np.random.default_rng(len(dtype.__name__))
    for _ in range(60):
        shape = (*rng.integers(1, 8, rng.integers(1, 4)), int(rng.choice([1, 2, 3, 4, 6, 8, 16])))
        x = rng.integers(0, 100, shape).astype(dtype)
        proto, wanted = moved(rng, x)
        [y] = Engine(proto, Config()).run(None, {"x": x})
        np.testing.assert_array_equal(y, wanted)
    assert any(made is not None for made in came) == (np.dtype(dtype).itemsize < 8)
