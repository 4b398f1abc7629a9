"""Convolutions, normalizations and recurrent layers whose weights are known in a run only: generated, and as
defined."""

from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

from orthrus.ops.define import find
from orthrus.run.config import Config
from orthrus.run.engine import Engine


def outputs(node: Any, *arrays: np.ndarray | None) -> tuple[np.ndarray, ...]:
    op = find("", node.op_type, 21)
    assert op is not None
    attrs = {a.name: plain(helper.get_attribute_value(a)) for a in node.attribute}
    made = op.bind(attrs, len(node.output))(*arrays)
    return made if isinstance(made, tuple) else (made,)


def plain(value: Any) -> Any:
    """An attribute as definitions take it."""
    if isinstance(value, list):
        return [*map(plain, value)]
    return value.decode() if isinstance(value, bytes) else value


def defined(node: Any, *arrays: np.ndarray | None) -> np.ndarray:
    return np.asarray(outputs(node, *arrays)[0])


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


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(rng: np.random.Generator, op: str) -> tuple[Any, dict[str, np.ndarray]]:
    """A node and its inputs."""
    gates, hidden, features = GATES[op], int(rng.choice([1, 3, 8, 16, 17, 40, 64])), int(rng.integers(1, 20))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    ways, steps = 1 + (direction == "bidirectional"), int(rng.choice([1, 1, 2, 3, 4]))
    batch, layout = int(rng.integers(1, 9)), int(rng.random() < 0.3)
    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    shapes = {"x": (batch, steps, features) if layout else (steps, batch, features),
              "w": (ways, gates * hidden, features), "r": (ways, gates * hidden, hidden),
              "b": (ways, 2 * gates * hidden), "n": (batch,), "h": state}
    if op == "LSTM":
        shapes |= {"c": state, "p": (ways, 3 * hidden)}
    rare = {"n", "p"} if steps == 1 else set[str]()
    given = {name: numbers(rng, *shape) for name, shape in shapes.items()
             if name in "xwr" or rng.random() < (0.1 if name in rare else 0.6)}
    if "n" in given:
        given["n"] = rng.integers(0, steps + 1, batch).astype(np.int32)
    for name in rng.choice(["x", "w", "r"], int(rng.integers(0, 2)), replace=False):
        odd = rng.choice(np.array([np.nan, np.inf, np.finfo(np.float32).max], np.float32))
        given[name][tuple(rng.integers(0, given[name].shape))] = odd
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction, "layout": layout}
    if rng.random() < 0.3:
        names = ["Tanh", "Sigmoid", "HardSigmoid", "Softsign"]
        attrs["activations"] = [*rng.choice(names, {"RNN": 1, "GRU": 2, "LSTM": 3}[op])] * ways
    if op == "GRU":
        attrs["linear_before_reset"] = int(rng.integers(2))
    results = ["y", "last", "cell"][:3 if op == "LSTM" else 2]
    return helper.make_node(op, [n if n in given else "" for n in shapes], results, **attrs), given


@pytest.mark.parametrize("op", GATES)
def test_recurrent_weights_of_a_run(op: str) -> None:
    rng = np.random.default_rng(len(op) + 7)
    for turn in range(32):
        node, given = recurrent(rng, op)
        wanted = outputs(node, *(given.get(n) for n in node.input))
        held = {name for name in "wrbp" if name in given and rng.random() < 0.3}
        turned = [name for name in sorted({*"wrbp"} & {*given} - held) if rng.random() < 0.5]
        views, fed = [], {name: a for name, a in given.items() if name not in held}
        for name in turned:
            order = [int(a) for a in rng.permutation(given[name].ndim)]
            fed[name + "_turned"] = np.ascontiguousarray(fed.pop(name).transpose(np.argsort(order)))
            views.append(helper.make_node("Transpose", [name + "_turned"], [name], perm=order))
        inputs = [info(name, helper.np_dtype_to_tensor_dtype(a.dtype),
                       [None] * a.ndim if turn % 2 else list(a.shape)) for name, a in fed.items()]
        proto = model([*views, node], inputs, [info(name, 1, None) for name in node.output],
                      {name: given[name] for name in sorted(held)})
        engine = Engine(proto.SerializeToString(), Config())
        for _ in range(2):
            for found, each in zip(engine.run(None, fed), wanted, strict=True):
                np.testing.assert_allclose(found, each, 1e-4, 1e-4)
        assert "reference" not in str(engine.explain()), node
