"""Operators with hostile inputs: (operator, inputs, attributes, expected, options), by number of the
checklist.

`expected`: "refused", None for a typed error or any answer, or the answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

F32, I64 = np.float32, np.int64
LOW, HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max
LOW32 = np.iinfo(np.int32).min
X = np.arange(12, dtype=F32).reshape(3, 4)
IMAGE = np.ones((1, 1, 4, 4), F32)
KERNEL = np.ones((1, 1, 3, 3), F32)
NAN, INF = np.float32("nan"), np.float32("inf")
OPERATORS: dict[str, list[tuple[Any, ...]]] = {}


def ints(*values: int) -> np.ndarray:
    return np.array(values, I64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, F32)


def add(
    number: str,
    op_type: str,
    *inputs: Any,
    expected: Any = "refused",
    attributes: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    OPERATORS.setdefault(number, []).append((op_type, inputs, attributes or {}, expected, options))


def empty(*shape: int) -> np.ndarray:
    return np.zeros(shape, F32)


add("27", "MatMul", empty(3, 0), empty(0, 4), expected=empty(3, 4))
add("27", "Gemm", empty(3, 0), empty(0, 4), expected=empty(3, 4))
add("27", "Conv", empty(0, 1, 4, 4), KERNEL, expected=empty(0, 1, 2, 2))
add("27", "ReduceSum", empty(3, 0), ints(1), expected=empty(3, 1))
add("27", "ReduceMax", empty(3, 0), ints(1), expected=None)
add("27", "ReduceMean", empty(3, 0), ints(1), expected=None)
add("27", "Concat", empty(0, 4), empty(0, 4), attributes={"axis": 0}, expected=empty(0, 4))
add("27", "Softmax", empty(0, 4), expected=empty(0, 4))
add("27", "Softmax", empty(4, 0), expected=empty(4, 0))
add("27", "ArgMax", empty(3, 0), attributes={"axis": 1}, expected=None)
add("27", "MaxPool", empty(0, 1, 4, 4), attributes={"kernel_shape": [2, 2]}, expected=empty(0, 1, 3, 3))
add("27", "TopK", empty(3, 0), ints(0), outputs=2, expected=None)
add("27", "Gather", empty(0, 4), np.zeros((0,), I64), expected=empty(0, 4))
add("27", "Transpose", empty(0, 3), expected=empty(3, 0))
add("27", "NonZero", empty(0, 3), expected=np.zeros((2, 0), I64))
add("27", "Unique", empty(0), outputs=4, expected=None)
add("27", "Einsum", empty(3, 0), empty(0, 4), attributes={"equation": "ij,jk->ik"}, expected=empty(3, 4))
add("27", "LayerNormalization", empty(0, 4), np.ones(4, F32), expected=empty(0, 4))
add("27", "Resize", empty(0, 1, 2, 2), None, floats(1, 1, 2, 2), expected=empty(0, 1, 4, 4))
add("28", "Relu", np.float32(-1), expected=np.float32(0))
add("28", "Relu", np.ones((1,) * 20, F32), expected=np.ones((1,) * 20, F32))
add("28", "Transpose", np.ones((1, 2) * 6, F32), expected=np.ones((2, 1) * 6, F32))
add("28", "ReduceSum", np.ones((1,) * 33, F32), expected=np.ones((1,) * 33, F32))
add("28", "Add", np.ones((2,) * 12, F32), np.float32(1), expected=np.full((2,) * 12, 2, F32))
add("28", "Softmax", np.float32(1), expected=None)
add("28", "MatMul", np.float32(1), np.float32(1))
add("28", "Concat", np.float32(1), np.float32(1), attributes={"axis": 0})

BIG = 1 << 40
for shape in ([BIG, BIG], [-2, 3], [BIG], [1 << 62, 4], [HIGH]):
    add("43", "ConstantOfShape", ints(*shape))
    add("43", "Expand", np.ones((1,) * len(shape), F32), ints(*shape))
    add("43", "Reshape", X, ints(*shape))
    add("43", "RandomNormal", attributes={"shape": shape})
    add("43", "RandomUniform", attributes={"shape": shape})
add("43", "Reshape", X, ints(-1, -1))
add("43", "Reshape", X, ints(-1, 0, 5))
add("43", "Tile", X, ints(BIG, BIG))
add("43", "Tile", X, ints(-1, 1))
add("43", "Tile", X, ints(1 << 62, 4))
for limits in ((0, HIGH, 1), (LOW, HIGH, 1), (0, 1, 0), (0, 10, LOW)):
    add("43", "Range", *(np.array(v, I64) for v in limits), expected=None if limits[2] == LOW else "refused")
for limits in ((0, 1e30, 1), (0, np.inf, 1), (0, np.nan, 1), (0, 1, 1e-30), (0, 1, 0)):
    add(
        "43",
        "Range",
        *(np.array(v, F32) for v in limits),
        expected=None if np.isnan(limits[1]) else "refused",
    )
add("43", "OneHot", ints(1, 2), np.array(BIG, I64), floats(0, 1))
add("43", "OneHot", ints(1, 2), np.array(-3, I64), floats(0, 1))
add("43", "OneHot", ints(1, 2), np.array(3, I64), floats(0, 1), attributes={"axis": 9})
add("43", "Pad", X, ints(0, BIG, 0, BIG))
add("43", "Pad", X, ints(-9, -9, -9, -9), expected=None)
add("43", "Pad", X, ints(LOW, 0, HIGH, 0), expected=None)
add("43", "Pad", X, ints(9, 9, 9, 9), attributes={"mode": "reflect"}, expected=None)
add("43", "Pad", X, ints(1, 1))
add("43", "Pad", X, ints(HIGH, HIGH, HIGH, HIGH))
for mode in ("nearest", "linear", "cubic"):
    add("43", "Resize", IMAGE, None, floats(1, 1, 1e12, 1e12), attributes={"mode": mode})
    add("43", "Resize", IMAGE, None, floats(1, 1, -1, 2), attributes={"mode": mode})
    add("43", "Resize", IMAGE, None, floats(1, 1, np.nan, np.inf), attributes={"mode": mode})
    add("43", "Resize", IMAGE, None, floats(1, 1, 0, 0), attributes={"mode": mode}, expected=None)
    add("43", "Resize", IMAGE, None, None, ints(1, 1, BIG, BIG), attributes={"mode": mode})
    add("43", "Resize", IMAGE, None, None, ints(1, 1, -4, 4), attributes={"mode": mode})
add("43", "EyeLike", np.zeros((1 << 20, 0), F32), expected=None)
add("43", "NonZero", np.float32(0), expected=None)
add("43", "GridSample", IMAGE, np.full((1, 2, 2, 2), np.nan, F32), expected=None)
add("43", "GridSample", IMAGE, np.full((1, 2, 2, 2), 1e38, F32), expected=None)
add("43", "GridSample", IMAGE, np.full((1, 2, 2, 3), 0, F32))
add("43", "Col2Im", np.ones((1, 4, 4), F32), ints(BIG, BIG), ints(2, 2))
add("43", "Col2Im", np.ones((1, 4, 4), F32), ints(4, 4), ints(0, 0))
add("43", "Col2Im", np.ones((1, 4, 4), F32), ints(-4, 4), ints(2, 2))
add(
    "43",
    "MaxUnpool",
    np.ones((1, 1, 2, 2), F32),
    np.full((1, 1, 2, 2), 99, I64),
    attributes={"kernel_shape": [2, 2]},
)
add("43", "MaxUnpool", np.ones((1, 1, 2, 2), F32), np.zeros((1, 1, 2, 2), I64), ints(1, 1, BIG, BIG),
    attributes={"kernel_shape": [2, 2]})
add(
    "43",
    "MaxUnpool",
    np.ones((1, 1, 2, 2), F32),
    np.full((1, 1, 2, 2), -1, I64),
    attributes={"kernel_shape": [2, 2]},
)
add("43", "SplitToSequence", X, np.array(0, I64))
add("43", "SplitToSequence", X, ints(-1, 4))
add("43", "Split", X, ints(0, 0, 0), outputs=3)
add("43", "Split", X, ints(HIGH, 4), outputs=2)
add("43", "MelWeightMatrix", *(np.array(v, I64) for v in (BIG, BIG, 8000)), np.float32(0), np.float32(4000))
add("43", "MelWeightMatrix", *(np.array(v, I64) for v in (-1, 16, 0)), np.float32(0), np.float32(4000))
add("43", "MelWeightMatrix", *(np.array(v, I64) for v in (8, 16, 8000)), NAN, INF, expected=None)
for window in ("HannWindow", "HammingWindow", "BlackmanWindow"):
    add("43", window, np.array(BIG, I64))
    add("43", window, np.array(-1, I64))
    add("43", window, np.array(0, I64), expected=None)
add("43", "DFT", np.ones((1, 8, 1), F32), np.array(BIG, I64), opset=20)
add("43", "DFT", np.ones((1, 8, 1), F32), np.array(-8, I64), opset=20)
add("43", "DFT", np.ones((1, 8, 3), F32), opset=20)
add("43", "STFT", np.ones((1, 8, 1), F32), np.array(0, I64), None, np.array(4, I64))
add("43", "STFT", np.ones((1, 8, 1), F32), np.array(-1, I64), None, np.array(4, I64))
add("43", "STFT", np.ones((1, 8, 1), F32), np.array(1, I64), None, np.array(BIG, I64))
add("43", "CenterCropPad", X, ints(BIG, BIG))
add("43", "CenterCropPad", X, ints(-1, 2))
add("43", "DepthToSpace", IMAGE, attributes={"blocksize": 0})
add("43", "DepthToSpace", IMAGE, attributes={"blocksize": 1 << 31})
add("43", "SpaceToDepth", IMAGE, attributes={"blocksize": -2})
add("43", "Upsample", IMAGE, floats(1, 1, 1e12, 1e12), opset=9)
add("43", "AffineGrid", np.ones((1, 2, 3), F32), ints(1, 1, BIG, BIG))
add("43", "Bernoulli", np.full((4,), np.nan, F32), expected=None)
add("43", "Multinomial", np.ones((1, 4), F32), attributes={"sample_size": 1 << 40})
add("43", "Multinomial", np.ones((1, 4), F32), attributes={"sample_size": -1})
add("43", "Shape", X, attributes={"start": LOW, "end": HIGH}, expected=ints(3, 4))

for index in (3, -4, HIGH, LOW):
    add("44", "Gather", X, ints(index))
    add("44", "GatherElements", X, np.full((1, 4), index, I64))
    add("44", "GatherND", X, np.full((1, 1), index, I64))
    add("44", "ScatterElements", X, np.full((1, 1), index, I64), np.ones((1, 1), F32))
    add("44", "ScatterND", X, np.full((1, 1), index, I64), np.ones((1, 4), F32))
    add("44", "Scatter", X, np.full((1, 1), index, I64), np.ones((1, 1), F32), opset=10)
add("44", "ScatterND", X, np.zeros((2, 3), I64), np.ones((2,), F32))
add("44", "ScatterND", X, np.zeros((2, 1), I64), np.ones((3, 4), F32))
add("44", "ScatterND", X, np.zeros((2, 1), I64), np.ones((2, 4), F32), attributes={"reduction": "nonsense"})
add("44", "ScatterElements", X, np.zeros((5, 5), I64), np.ones((5, 5), F32))
add("44", "ScatterElements", X, np.zeros((2, 1), I64), np.ones((1, 2), F32))
add("44", "GatherND", X, np.zeros((2, 3), I64))
add("44", "GatherND", X, np.zeros((3, 1), I64), attributes={"batch_dims": 9})
add("44", "GatherND", X, np.zeros((3, 1), I64), attributes={"batch_dims": -1})
add("44", "Slice", X, ints(0), ints(9), ints(0), ints(0))
add("44", "Slice", X, ints(LOW), ints(HIGH), ints(0), ints(1), expected=X)
add("44", "Slice", X, ints(HIGH), ints(LOW), ints(0), ints(LOW), expected=None)
add("44", "Slice", X, ints(-1), ints(LOW), ints(0), ints(-1), expected=X[::-1])
add("44", "Slice", X, ints(0), ints(2), ints(7))
add("44", "Slice", X, ints(0, 0), ints(2, 2), ints(0, 0))
add("44", "Slice", X, ints(0, 1), ints(2))
for k in (-1, BIG, 5, LOW):
    add("44", "TopK", X, ints(k), outputs=2)
add("44", "TopK", X, ints(1, 2), outputs=2)
add("44", "TopK", X, ints(1), outputs=2, attributes={"axis": 5})
BOXES = np.array([[[0, 0, 1, 1], [0, 0, np.nan, np.inf]]], F32)
add("44", "NonMaxSuppression", BOXES, np.ones((1, 1, 2), F32), ints(HIGH), expected=None)
add("44", "NonMaxSuppression", BOXES, np.ones((1, 1, 2), F32), ints(-1), expected=None)
add("44", "NonMaxSuppression", BOXES, np.ones((1, 1, 5), F32), ints(1))
add("44", "NonMaxSuppression", BOXES[..., :3], np.ones((1, 1, 2), F32), ints(1))
add("44", "Compress", X, np.ones(99, bool), expected=None)
add("44", "Compress", X, np.ones(3, bool), attributes={"axis": 8})
add("44", "ReverseSequence", X, ints(1, 99, 1, 1))
add("44", "ReverseSequence", X, ints(1, -1, 1, 1))
add("44", "ReverseSequence", X, ints(1))
add("44", "ReverseSequence", X, ints(1, 1, 1), attributes={"batch_axis": 0, "time_axis": 9})
for index in (-1, 4, BIG, LOW):
    add("44", "ArrayFeatureExtractor", X, ints(index), domain="ai.onnx.ml")
add("44", "ArrayFeatureExtractor", X, np.zeros((0,), I64), domain="ai.onnx.ml", expected=None)
add("44", "GatherElements", X, np.zeros((9, 9), I64))
add("44", "TensorScatter", np.ones((1, 2, 4), F32), np.ones((1, 9, 4), F32), ints(0), opset=24)
add("44", "TensorScatter", np.ones((1, 4, 4), F32), np.ones((1, 1, 4), F32), ints(-7), opset=24)
TREE = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
    "n_targets": 1,
}
add("44", "TreeEnsembleRegressor", X, attributes=TREE, domain="ai.onnx.ml", expected=floats(1, 2, 2)[:, None])
for change in (
    {"nodes_truenodeids": [0, 0, 0]},
    {"nodes_truenodeids": [9, 0, 0]},
    {"nodes_truenodeids": [-1, 0, 0]},
    {"nodes_featureids": [99, 0, 0]},
    {"nodes_featureids": [-5, 0, 0]},
    {"target_ids": [7, 0]},
    {"target_nodeids": [77, 2]},
    {"nodes_modes": ["BRANCH_LEQ", "NONSENSE", "LEAF"]},
    {"nodes_nodeids": [0, 1, 1]},
    {"nodes_values": [0.5]},
    {"nodes_falsenodeids": [0, 0, 0]},
    {"n_targets": -1},
    {"n_targets": 1 << 40},
):
    add(
        "44",
        "TreeEnsembleRegressor",
        X,
        attributes={**TREE, **change},
        domain="ai.onnx.ml",
        expected=None
        if 0 in (change.get("nodes_truenodeids", [9])[0], change.get("nodes_falsenodeids", [9])[0])
        else "refused",
    )

add("45", "Div", ints(LOW), ints(-1), expected=ints(LOW))
add("45", "Div", np.array([LOW32], np.int32), np.array([-1], np.int32), expected=np.array([LOW32], np.int32))
add("45", "Div", np.array([-128], np.int8), np.array([-1], np.int8), expected=np.array([-128], np.int8))
add("45", "Mod", ints(LOW), ints(-1), expected=ints(0))
add("45", "Mod", ints(LOW), ints(-1), attributes={"fmod": 1}, expected=ints(0))
add("45", "Mod", np.array([LOW32], np.int32), np.array([-1], np.int32), expected=np.array([0], np.int32))
add("45", "Div", ints(5), ints(0))
add("45", "Mod", ints(5), ints(0))
add("45", "Mod", ints(5), ints(0), attributes={"fmod": 1})
add("45", "Div", np.array([5], np.uint8), np.array([0], np.uint8))
add("45", "Div", floats(1, -1, 0), floats(0, 0, 0), expected=floats(np.inf, -np.inf, np.nan))
add("45", "Abs", ints(LOW), expected=ints(LOW))
add("45", "Neg", ints(LOW), expected=ints(LOW))
add("45", "Mul", ints(LOW), ints(-1), expected=ints(LOW))
add("45", "Add", ints(HIGH), ints(1), expected=ints(LOW))
for shift in (64, 200, 63):
    add(
        "45",
        "BitShift",
        np.array([1], np.uint64),
        np.array([shift], np.uint64),
        attributes={"direction": "LEFT"},
        expected=np.array([1 << 63 if shift == 63 else 0], np.uint64),
    )
    add(
        "45",
        "BitShift",
        np.array([1], np.uint8),
        np.array([shift], np.uint8),
        attributes={"direction": "RIGHT"},
        expected=np.array([0], np.uint8),
    )
add("45", "Pow", ints(2), ints(-1), expected=None)
add("45", "Pow", ints(0), ints(-1), expected=None)
add("45", "Pow", ints(3), ints(HIGH), expected=None)
add("45", "Cast", floats(np.nan, np.inf, -np.inf, 1e30), attributes={"to": 7}, expected=None)
add("45", "Cast", floats(np.nan, np.inf, -np.inf, 1e30), attributes={"to": 2}, expected=None)
add("45", "Cast", floats(np.nan, 1e30), attributes={"to": 999})
add("45", "Cast", np.array(["1e999", "x", ""], object), attributes={"to": 7})
add("45", "ReduceProd", ints(*[1 << 40] * 4), expected=None)
add("45", "CumSum", ints(HIGH, HIGH), np.array(0, I64), expected=ints(HIGH, -2))
add("45", "MatMul", np.full((2, 2), HIGH), np.full((2, 2), HIGH), expected=None)

for name, value in (
    ("strides", [0, 0]),
    ("dilations", [0, 0]),
    ("group", 0),
    ("group", -1),
    ("group", 7),
    ("kernel_shape", [0, 0]),
    ("kernel_shape", [5, 5]),
    ("pads", [-9, -9, -9, -9]),
    ("pads", [1]),
    ("strides", [-1, -1]),
    ("strides", [1]),
    ("dilations", [BIG, BIG]),
    ("pads", [BIG] * 4),
    ("auto_pad", "NONSENSE"),
    ("strides", [HIGH, HIGH]),
    ("pads", [HIGH] * 4),
):
    refusable = "refused" if name != "strides" or value != [HIGH, HIGH] else None
    if name == "auto_pad":
        refusable = None
    add("46", "Conv", IMAGE, KERNEL, attributes={name: value}, expected=refusable)
    add("46", "ConvTranspose", IMAGE, KERNEL, attributes={name: value}, expected=None)
    if name != "group":
        pooled = {"kernel_shape": [3, 3], name: value}
        add("46", "MaxPool", IMAGE, attributes=pooled, expected=None if value == [5, 5] else refusable)
        add("46", "AveragePool", IMAGE, attributes=pooled, expected=None)
        add("46", "LpPool", IMAGE, attributes=pooled, expected=None)
add("46", "Conv", IMAGE, np.ones((1, 2, 3, 3), F32))
add("46", "Conv", IMAGE, KERNEL, np.ones(5, F32))
add("46", "Conv", np.ones((1, 4), F32), KERNEL)
add("46", "ConvTranspose", IMAGE, KERNEL, np.ones(5, F32))
add("46", "ConvTranspose", IMAGE, KERNEL, np.ones(0, F32))
add("46", "Conv", IMAGE, KERNEL, np.ones(0, F32))
add("46", "ConvTranspose", IMAGE, KERNEL, attributes={"output_shape": [BIG, BIG]})
add("46", "ConvTranspose", IMAGE, KERNEL, attributes={"output_padding": [-5, -5]}, expected=None)
add(
    "46",
    "MaxPool",
    IMAGE,
    attributes={"kernel_shape": [3, 3], "ceil_mode": 1, "pads": [2, 2, 2, 2]},
    expected=None,
)
add("46", "MaxPool", IMAGE, attributes={"kernel_shape": [3, 3], "pads": [3, 3, 3, 3]}, expected=None)
add(
    "46",
    "MaxRoiPool",
    IMAGE,
    floats(0, -9, -9, 99, 99)[None],
    attributes={"pooled_shape": [2, 2]},
    expected=None,
)
add("46", "MaxRoiPool", IMAGE, floats(7, 0, 0, 1, 1)[None], attributes={"pooled_shape": [2, 2]})
add("46", "RoiAlign", IMAGE, floats(0, 0, 1, 1)[None], ints(7))
add("46", "RoiAlign", IMAGE, floats(np.nan, -1e30, 1e30, np.inf)[None], ints(0), expected=None)
add(
    "46",
    "RoiAlign",
    IMAGE,
    floats(0, 0, 1, 1)[None],
    ints(0),
    attributes={"output_height": 1 << 30, "output_width": 1 << 30},
)
add(
    "46",
    "RoiAlign",
    IMAGE,
    floats(0, 0, 1e9, 1e9)[None],
    ints(0),
    attributes={"sampling_ratio": 0},
    expected=None,
)

for axis in (9, -9, HIGH, LOW):
    add("47", "Softmax", X, attributes={"axis": axis})
    add("47", "Concat", X, X, attributes={"axis": axis})
    add("47", "ReduceSum", X, ints(axis))
    add("47", "ArgMax", X, attributes={"axis": axis})
    add("47", "Unsqueeze", X, ints(axis))
    add("47", "Squeeze", X, ints(axis))
    add("47", "Gather", X, ints(0), attributes={"axis": axis})
    add("47", "Split", X, attributes={"axis": axis, "num_outputs": 2}, outputs=2)
    add("47", "Flatten", X, attributes={"axis": axis})
    add("47", "CumSum", X, np.array(axis, I64))
    add("47", "LayerNormalization", X, np.ones(4, F32), attributes={"axis": axis})
    add("47", "Transpose", X, attributes={"perm": [0, axis]})
    add("47", "Hardmax", X, attributes={"axis": axis})
    add("47", "Unique", X, attributes={"axis": axis}, outputs=4)
    add("47", "TopK", X, ints(1), attributes={"axis": axis}, outputs=2)
for axis in (1 << 31, -(1 << 31), (1 << 31) - 1, 1 << 32, -(1 << 40)):
    add("47", "LayerNormalization", X, np.ones(4, F32), attributes={"axis": axis}, outputs=3)
    add("47", "RMSNormalization", X, np.ones(4, F32), attributes={"axis": axis}, opset=23)
    add("47", "GatherND", X, np.zeros((3, 1), I64), attributes={"batch_dims": axis})
add("47", "Transpose", X, attributes={"perm": [0, 0]})
add("47", "Transpose", X, attributes={"perm": [0]})
add("47", "ReduceSum", X, ints(0, 0), expected=X.sum(0, keepdims=True))
add("47", "ReduceSum", X, np.zeros((1, 1), I64), expected=None)
add("47", "Unsqueeze", X, ints(0, 0))
add("47", "Squeeze", X, ints(0))
add("47", "Split", X, attributes={"num_outputs": 0}, outputs=1)
add("47", "Split", X, attributes={"num_outputs": 1 << 40}, outputs=1)

U8 = np.array([1, 2, 3, 255], np.uint8)
for scale in (0.0, -1.0, np.nan, np.inf):
    add("48", "QuantizeLinear", floats(1, 2), np.float32(scale), np.uint8(3), expected=None)
    add("48", "DequantizeLinear", U8, np.float32(scale), np.uint8(3), expected=None)
add("48", "QuantizeLinear", floats(np.nan, np.inf, -np.inf, 1e30), np.float32(1), np.uint8(3), expected=None)
add("48", "DequantizeLinear", U8, np.float32(1), np.int8(3))
add("48", "DequantizeLinear", U8, np.ones(3, F32))
add("48", "DequantizeLinear", U8[None], np.ones((1, 2), F32), attributes={"block_size": 0}, expected=None)
add("48", "DequantizeLinear", U8[None], np.ones((1, 2), F32), attributes={"block_size": -2})
add("48", "DequantizeLinear", U8[None], np.ones((1, 2), F32), attributes={"block_size": BIG}, expected=None)
add("48", "MatMulInteger", U8[None], U8[:, None], np.ones(9, np.uint8))
add(
    "48",
    "QLinearMatMul",
    U8[None],
    np.float32(0),
    np.uint8(0),
    U8[:, None],
    np.float32(0),
    np.uint8(0),
    np.float32(0),
    np.uint8(0),
    expected=None,
)
add("48", "DynamicQuantizeLinear", floats(np.nan, np.inf), outputs=3, expected=None)
add("48", "DynamicQuantizeLinear", empty(0), outputs=3, expected=None)

add("49", "TopK", floats(np.nan, 1, np.inf), ints(2), outputs=2, expected=None)
add("49", "ArgMax", floats(np.nan, 1), expected=None)
add("49", "Max", floats(np.nan, 1), floats(0, np.nan), expected=floats(np.nan, np.nan))
add("49", "Clip", floats(1, 5, 9), np.float32(7), np.float32(3), expected=floats(3, 3, 3))
add("49", "Softmax", floats(-np.inf, -np.inf)[None], expected=None)
add("49", "Softmax", floats(np.inf, 1)[None], expected=None)
add(
    "49",
    "LayerNormalization",
    np.ones((2, 4), F32),
    np.ones(4, F32),
    attributes={"epsilon": 0.0},
    expected=None,
)
add("49", "BatchNormalization", np.ones((1, 2, 3), F32), *[np.ones(5, F32)] * 4)
add("49", "Log", floats(0, -1), expected=floats(-np.inf, np.nan))
add("49", "Sqrt", floats(-1), expected=floats(np.nan))
add("49", "Unique", floats(np.nan, np.nan, 1), outputs=4, expected=None)
add("49", "NonZero", floats(np.nan, 0), expected=ints(0)[None])

LONG = np.array(["a" * 20_000 + "!"], object)
for pattern in ("(a+)+$", "(a|a)*$", "(.*)*b", "(a*)*$", "((a?){20}){20}a"):
    add("50", "RegexFullMatch", LONG, attributes={"pattern": pattern}, expected=None)
for pattern in ("(", "[", "*", "a{999999999}", "(?P<x", "\\", "(" * 5000, "a{1000}{1000}{1000}"):
    add("50", "RegexFullMatch", np.array(["a"], object), attributes={"pattern": pattern}, expected=None)
add("50", "StringSplit", LONG, attributes={"delimiter": "a"}, outputs=2, expected=None)
add(
    "50",
    "StringSplit",
    np.array(["a b"], object),
    attributes={"delimiter": "", "maxsplit": -5},
    outputs=2,
    expected=None,
)
add("50", "StringConcat", np.array(["a"], object), np.array(["b", "c", "d"], object), expected=None)
POOL = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
        "ngram_indexes": [0, 1], "pool_int64s": [1, 2]}
add("50", "TfIdfVectorizer", ints(1, 2, 1), attributes=POOL, expected=floats(2, 1))
for change in (
    {"ngram_counts": [99]},
    {"ngram_counts": [-1]},
    {"ngram_indexes": [0]},
    {"ngram_indexes": [-1, 1]},
    {"ngram_indexes": [0, 1 << 40]},
    {"min_gram_length": -1},
    {"max_gram_length": 1 << 40},
    {"max_skip_count": 1 << 40},
    {"mode": "NONSENSE"},
    {"pool_int64s": []},
    {"min_gram_length": 5},
    {"weights": [1.0]},
    {"ngram_counts": []},
):
    add("50", "TfIdfVectorizer", ints(1, 2, 1), attributes={**POOL, **change}, expected=None)

for junk in (
    b"",
    b"no image",
    b"\x89PNG\r\n\x1a\n" + b"\0" * 30,
    b"BM" + b"\xff" * 60,
    b"P6 1000000000 1000000000 255\n",
):
    add("51", "ImageDecoder", np.frombuffer(junk, np.uint8), opset=20)
add("51", "ImageDecoder", np.zeros(9, np.uint8), attributes={"pixel_format": "NONSENSE"}, opset=20)

for equation in (
    "",
    "ij",
    "ij,jk",
    "ij,jk->",
    "ij,jk->zz",
    "i,j->ij",
    "...ij,jk->",
    "ij,jk->ik->",
    "i1,jk->ik",
    "ij,,jk",
    "->",
    "ii,jj->",
    "ij,jk->iik",
    "é,jk->k",
    "." * 100,
    "ij, jk -> ik",
    "a" * 3000 + ",jk->k",
):
    add("52", "Einsum", X, X.T, attributes={"equation": equation}, expected=None)
add("52", "Einsum", X, X.T, attributes={"equation": "....->..."})
add("52", "Einsum", X, X, attributes={"equation": "ij,jk->ik"})
letters = "abcdefghijklmnopqrstuvwxyz"
add(
    "52",
    "Einsum",
    *[np.ones(64, F32)] * 13,
    attributes={"equation": ",".join(letters[:13]) + "->" + letters[:13]},
)

add("53", "Add", X, np.ones((5, 4), F32))
add("53", "Where", np.ones((2,), bool), X, np.ones((9,), F32))
add("53", "MatMul", X, X)
add("53", "MatMul", X, np.ones((3, 4, 5, 6), F32))
add("53", "Gemm", X, X)
add("53", "PRelu", X, np.ones((9,), F32))
add("53", "Concat", X, np.ones((2, 9), F32), attributes={"axis": 0})
add("53", "Expand", X, ints(3, 9))
add("53", "Sum", X, X.T, X)
add("53", "Gemm", X, X.T, np.ones((7, 7), F32))

STEP, GATES, RECUR = np.ones((3, 2, 4), F32), np.ones((1, 8, 4), F32), np.ones((1, 8, 2), F32)
LENGTHS = [np.array(v, np.int32) for v in ([99, 1], [-1, 2], [1], [1, 2, 3], [LOW32, 1])]
for lengths in LENGTHS:
    add("54", "LSTM", STEP, GATES, RECUR, None, lengths, attributes={"hidden_size": 2}, outputs=3)
for hidden in (0, -1, 5, 1 << 40):
    add("54", "LSTM", STEP, GATES, RECUR, attributes={"hidden_size": hidden}, outputs=3,
        expected="refused" if hidden else None)
add("54", "LSTM", STEP, np.ones((1, 7, 4), F32), RECUR, attributes={"hidden_size": 2}, outputs=3)
add("54", "LSTM", STEP, GATES, np.ones((1, 8, 9), F32), attributes={"hidden_size": 2}, outputs=3)
add("54", "LSTM", STEP, GATES, RECUR, attributes={"hidden_size": 2, "direction": "NONSENSE"}, outputs=3)
add(
    "54",
    "LSTM",
    STEP,
    GATES,
    RECUR,
    attributes={"hidden_size": 2, "activations": ["Nonsense", "Tanh", "Tanh"]},
    outputs=3,
)
add(
    "54",
    "GRU",
    STEP,
    np.ones((1, 6, 4), F32),
    np.ones((2, 6, 2), F32),
    attributes={"hidden_size": 2},
    outputs=2,
)
add(
    "54",
    "RNN",
    STEP,
    np.ones((1, 2, 9), F32),
    np.ones((1, 2, 2), F32),
    attributes={"hidden_size": 2},
    outputs=2,
)
add(
    "54",
    "RNN",
    np.ones((0, 2, 4), F32),
    np.ones((1, 2, 4), F32),
    np.ones((1, 2, 2), F32),
    attributes={"hidden_size": 2},
    outputs=2,
    expected=None,
)
