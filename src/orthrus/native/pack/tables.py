"""Small models and single operators: classical ones over tables, and what stands alone between others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ...ops import defined
from .net import OPSET, Net

ML = "ai.onnx.ml"
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd")


def forest(rows: int | str, width: int, trees: int, classes: int, depth: int = 4, only: int | None = None
           ) -> onnx.ModelProto:
    """Trees behind a scaler; `classes` 0: a regression; `only`: the one class that leaves speak for."""
    net = Net()
    net.ml = True
    x = net.input(rows, width)
    x = net.add("Scaler", x, domain=ML, offset=[0.5] * width, scale=[2.0] * width)
    size, inner = 2 ** (depth + 1) - 1, 2 ** depth - 1
    nodes = [(t, i) for t in range(trees) for i in range(size)]
    leaf = [(t, i) for t, i in nodes if i >= inner]
    about: dict[str, Any] = {"nodes_treeids": [t for t, _ in nodes], "nodes_nodeids": [i for _, i in nodes],
             "nodes_featureids": [(t + i) % width if i < inner else 0 for t, i in nodes],
             "nodes_modes": ["BRANCH_LEQ" if i < inner else "LEAF" for _, i in nodes],
             "nodes_values": [float(net.drawn.normal()) if i < inner else 0.0 for _, i in nodes],
             "nodes_truenodeids": [2 * i + 1 if i < inner else 0 for _, i in nodes],
             "nodes_falsenodeids": [2 * i + 2 if i < inner else 0 for _, i in nodes]}
    kind = "class" if classes else "target"
    several = range(max(classes, 1)) if only is None else [only]
    about |= {f"{kind}_treeids": [t for t, _ in leaf for _ in several],
              f"{kind}_nodeids": [i for _, i in leaf for _ in several],
              f"{kind}_ids": [c for _ in leaf for c in several],
              f"{kind}_weights": [float(net.drawn.uniform()) for _ in leaf for _ in several]}
    if not classes:
        return net.model(net.add("TreeEnsembleRegressor", x, domain=ML, n_targets=1, **about))
    label, scores = net.add("TreeEnsembleClassifier", x, domain=ML, outputs=2,
                            classlabels_int64s=[*range(classes)], **about)
    return net.model(label, scores)


def fitted(rows: int | str, width: int, classes: int) -> onnx.ModelProto:
    """A linear model behind a scaler, as scikit-learn's are converted."""
    net = Net()
    net.ml = True
    x = net.add("Scaler", net.input(rows, width), domain=ML, offset=[0.5] * width, scale=[2.0] * width)
    if not classes:
        return net.model(net.add("LinearRegressor", x, domain=ML, coefficients=[0.5] * width,
                                 intercepts=[0.1]))
    label, scores = net.add("LinearClassifier", x, domain=ML, outputs=2, classlabels_ints=[*range(classes)],
                            coefficients=[0.1] * (classes * width), intercepts=[0.1] * classes,
                            multi_class=1, post_transform="SOFTMAX" if classes > 2 else "LOGISTIC")
    return net.model(label, net.add("Normalizer", scores, domain=ML, norm="L1"))


def _elementwise(count: int) -> Iterator[str]:
    """The operators of numbers one by one that take so many."""
    for name in dict.fromkeys(op.name for op in defined() if op.broadcasts and not op.domain):
        with contextlib.suppress(onnx.defs.SchemaError):
            given = [each for each in onnx.defs.get_schema(name, OPSET).inputs
                     if each.option != each.option.Optional]
            needed = sum(2 if each.option == each.option.Variadic else 1 for each in given)
            if "tensor(float)" in given[0].types and needed == count and name != "Mod":
                yield name


def alone() -> Iterator[onnx.ModelProto]:
    """Operators by themselves, on usual shapes."""
    for op in _elementwise(1):
        for rows, width in ((256, 256), (1, 16)):
            net = Net()
            yield net.model(net.add(op, net.input(rows, width)))
    pairs = (((256, 256), (256, 256)), ((64, 256), (256,)), ((64, 256), ()), ((64, 256), (64, 1)),
             ((1, 16), (1, 16)), ((2, 8, 16, 16), (8, 1, 1)))
    for op in _elementwise(2):
        for a, b in pairs:
            net = Net()
            yield net.model(net.add(op, net.input(*a), net.input(*b)))
    for op in REDUCTIONS:
        for axis in (-1, 1, 0):
            net = Net()
            x = net.input(8, 32, 64)
            yield net.model(net.add(op, x, net.const([axis], np.int64)) if op == "ReduceSum"
                            else net.add(op, x, axes=[axis]))
    for op in ("Softmax", "LogSoftmax", "ArgMax", "ArgMin", "CumSum"):
        for axis in (-1, 1):
            for shape in ((8, 32, 64), (1, 10, 1000)):
                net = Net()
                x = net.input(*shape)
                yield net.model(net.add(op, x, net.const(axis, np.int64)) if op == "CumSum"
                                else net.add(op, x, axis=axis))
    moves: Any = (((1, 0), (64, 256)), ((0, 2, 1), (2, 64, 48)), ((0, 2, 1, 3), (1, 64, 8, 64)),
                  ((0, 3, 1, 2), (1, 32, 32, 3)), ((0, 2, 3, 1), (1, 3, 32, 32)))
    for perm, shape in moves:
        net = Net()
        yield net.model(net.add("Transpose", net.input(*shape), perm=perm))
    for kind in (TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL,
                 TensorProto.FLOAT16, TensorProto.DOUBLE):
        for a, b in ((kind, TensorProto.FLOAT), (TensorProto.FLOAT, kind)):
            net = Net()
            yield net.model(net.add("Cast", net.input(64, 64, kind=a), to=b))
    net = Net()
    x = net.input(4, 64, 64)
    yield net.model(net.add("Gather", x, net.input(8, kind=TensorProto.INT64), axis=1),
                    net.add("Slice", x, *[net.const([n], np.int64) for n in (1, 60, 1)]),
                    net.add("Pad", x, net.const([0, 1, 1, 0, 1, 1], np.int64)),
                    net.add("Concat", x, x, axis=2),
                    net.add("Expand", x, net.const([2, 4, 64, 64], np.int64)),
                    net.add("Where", net.add("Greater", x, net.const(0.0)), x, net.const(0.0)))
