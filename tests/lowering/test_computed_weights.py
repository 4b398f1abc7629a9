"""Convolutions and normalizations whose weights are known in a run only: generated, and as defined."""

from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

from orthrus.ops.define import find
from orthrus.run.config import Config
from orthrus.run.engine import Engine


def defined(node: Any, *arrays: np.ndarray) -> np.ndarray:
    op = find("", node.op_type, 21)
    assert op is not None
    made = op.bind({a.name: helper.get_attribute_value(a) for a in node.attribute})(*arrays)
    return np.asarray(made[0] if isinstance(made, tuple) else made)


def numbers(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def convolved(rng: np.random.Generator, op: str) -> tuple[Any, list[np.ndarray]]:
    """A node and its inputs."""
    axes, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3, 8]))
    cin, cout = int(rng.choice([1, 2, 3, 5, 16])), int(rng.choice([1, 2, 3, 7, 16, 17, 40]))
    kernel, strides, spread = ([int(n) for n in rng.choice(few, axes)]
                               for few in ((1, 2, 3, 4), (1, 2, 3), (1, 1, 2)))
    size, pads = [int(n) for n in rng.integers(8, 12, axes)], [int(n) for n in rng.integers(0, 2, 2 * axes)]
    dtype = np.float16 if op == "Conv" and rng.random() < 0.2 else np.float32
    lead = (groups * cout, cin) if op == "Conv" else (groups * cin, cout)
    node = helper.make_node(op, ["x", "w", "b"], ["y"], group=groups, strides=strides, dilations=spread,
                            pads=pads)
    return node, [numbers(rng, int(rng.integers(1, 4)), groups * cin, *size, dtype=dtype),
                  numbers(rng, *lead, *kernel, dtype=dtype), numbers(rng, groups * cout, dtype=dtype)]


def normalized(rng: np.random.Generator) -> tuple[Any, list[np.ndarray]]:
    shape = [int(n) for n in rng.integers(1, 9, int(rng.integers(2, 5)))]
    rest = [numbers(rng, shape[1]) for _ in range(4)]
    rest[-1] = np.square(rest[-1])
    node = helper.make_node("BatchNormalization", ["x", "w", "b", "mean", "var"], ["y"], epsilon=0.01)
    return node, [numbers(rng, *shape), *rest]


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "BatchNormalization"])
def test_weights_of_a_run(op: str) -> None:
    rng = np.random.default_rng(len(op))
    for turn in range(14):
        node, arrays = normalized(rng) if op == "BatchNormalization" else convolved(rng, op)
        kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        order = [int(a) for a in rng.permutation(arrays[1].ndim)]
        given = dict(zip(node.input, arrays, strict=True))
        given["v"] = np.ascontiguousarray(given.pop("w").transpose(np.argsort(order)))
        view = helper.make_node("Transpose", ["v"], ["w"], perm=order)
        open_shapes = turn % 2 == 0
        proto = model([view, node], [info(name, kind, [None] * a.ndim if open_shapes else list(a.shape))
                                     for name, a in given.items()], [info("y", kind, None)])
        engine = Engine(proto.SerializeToString(), Config())
        wanted = defined(node, *arrays)
        for _ in range(2):
            found, = engine.run(None, given)
            close = 2e-2 if found.dtype == np.float16 else 1e-4
            np.testing.assert_allclose(found, wanted, close, close * np.abs(wanted).max(initial=1))
        assert "reference" not in str(engine.explain()), node
