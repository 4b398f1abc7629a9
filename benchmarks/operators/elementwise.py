"""Element by element, casts, reductions, normalizations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import helper

from .arrays import I8, I16, I32, I64, SHAPES, U8, U16, D, F, H, case, floats, mixed, whole
from .measuring import MS, Case

Cases = Iterator[tuple[str, Case]]

UNARY = (
    "Abs", "Neg", "Ceil", "Floor", "Round", "Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "Tan", "Asin",
    "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf", "Sigmoid", "Sign", "Relu",
    "LeakyRelu", "Elu", "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid", "HardSwish",
    "ThresholdedRelu", "Gelu", "Mish", "IsNaN", "IsInf", "Identity", "Shrink", "Clip"
)
SIGNED = ["Abs", "Neg", "Sign", "Relu", "Identity", "Clip", "BitwiseNot"]
BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Equal", "Greater", "Less", "GreaterOrEqual",
    "LessOrEqual", "PRelu"
)
WHOLE = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Equal", "Greater", "Less", "BitwiseAnd",
    "BitwiseXor"
)
LOGIC = ["And", "Or", "Xor"]
REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


def _name(dtype: Any) -> str:
    return np.dtype(dtype).name


def unary() -> Cases:
    for size, shape in SHAPES.items():
        for kind in UNARY:
            for dtype in (F, D, H):
                x = mixed(*shape, dtype=dtype)
                if kind in ("Sqrt", "Log", "Acosh", "Reciprocal"):
                    x = np.abs(x) + dtype(1)
                if kind in ("Asin", "Acos", "Atanh"):
                    x = np.tanh(x) * dtype(0.9)
                held = {"low": dtype(-1), "high": dtype(1)} if kind == "Clip" else {}
                yield f"{kind} {_name(dtype)} {size}", case(kind, {"x": x}, held)
        for kind in SIGNED:
            for dtype in (I8, I32, I64, U8):
                held = {"low": dtype(1), "high": dtype(9)} if kind == "Clip" else {}
                yield f"{kind} {_name(dtype)} {size}", case(kind, {"x": mixed(*shape, dtype=dtype)}, held)
        yield f"Not {size}", case("Not", {"x": mixed(*shape, dtype=np.bool_)})
        for kind in ("FastGelu", "QuickGelu", "Gelu"):
            yield f"com.microsoft {kind} {size}", case(kind, {"x": floats(*shape)}, domain=MS)
        yield f"BiasGelu {size}", case("BiasGelu", {"x": floats(*shape)}, {"b": floats(shape[1])}, domain=MS)


def binary() -> Cases:
    for size, shape in SHAPES.items():
        for kind in BINARY:
            for dtype in (F, D, H):
                a, b = mixed(*shape, dtype=dtype), mixed(*shape, dtype=dtype)
                if kind == "Pow":
                    a = np.abs(a)
                yield f"{kind} {_name(dtype)} {size}", case(kind, {"a": a, "b": b})
                if dtype == F:
                    for how, part in (("row", (shape[1],)), ("column", (shape[0], 1)), ("scalar", ())):
                        yield f"{kind} {how} {size}", case(kind, {"a": a, "b": mixed(*part)})
        for kind in WHOLE:
            for dtype in (I8, I32, I64, U8):
                b = mixed(*shape, dtype=dtype)
                b = np.abs(b) % 4 if kind == "Pow" else np.where(b == 0, 3, b)
                yield (
                    f"{kind} {_name(dtype)} {size}",
                    case(kind, {"a": mixed(*shape, dtype=dtype), "b": b.astype(dtype)}),
                )
        for kind in LOGIC:
            yield (
                f"{kind} {size}",
                case(kind, {"a": mixed(*shape, dtype=np.bool_), "b": mixed(*shape, dtype=np.bool_)}),
            )
        yield f"Mod fmod {size}", case("Mod", {"a": floats(*shape), "b": floats(*shape)}, fmod=1)
        yield (
            f"BitShift {size}",
            case(
                "BitShift",
                {"a": whole(99, *shape, dtype=U8), "b": whole(4, *shape, dtype=U8)},
                direction="LEFT",
            ),
        )
        for dtype in (F, D, I64, U8):
            fed = {
                "c": mixed(*shape, dtype=np.bool_),
                "a": mixed(*shape, dtype=dtype),
                "b": mixed(*shape, dtype=dtype),
            }
            yield f"Where {_name(dtype)} {size}", case("Where", fed)
        for kind in ("Sum", "Mean", "Max"):
            yield f"{kind} of three {size}", case(kind, {name: floats(*shape) for name in "abc"})


def casts() -> Cases:
    pairs = [(F, t) for t in (H, D, I8, U8, I16, U16, I32, I64, np.bool_)]
    pairs += [(t, F) for t in (H, D, I8, U8, I32, I64, np.bool_)]
    pairs += [(H, I64), (I64, I32), (I32, I64), (I64, U8), (I64, np.bool_), (D, I64), (I64, D), (U8, I32)]
    for size, shape in SHAPES.items():
        for source, target in pairs:
            x = np.abs(mixed(*shape, dtype=F) * 30).astype(source)
            yield (
                f"Cast {_name(source)} to {_name(target)} {size}",
                case("Cast", {"x": x}, to=helper.np_dtype_to_tensor_dtype(np.dtype(target))),
            )
    for size, shape in {"small": (4, 4), "large": (100, 100)}.items():
        for dtype in (F, I64):
            x = mixed(*shape, dtype=dtype)
            yield f"Cast {_name(dtype)} to text {size}", case("Cast", {"x": x}, to=8)
            yield (
                f"Cast text to {_name(dtype)} {size}",
                case(
                    "Cast",
                    {"x": x.astype(str).astype(object)},
                    to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
                ),
            )


def reductions() -> Cases:
    for size, shape in {"small": (2, 8, 16), "large": (16, 256, 256)}.items():
        for kind in REDUCTIONS:
            for axes in ([2], [0], [1], [0, 1, 2], [1, 2], [0, 2]):
                x = np.abs(floats(*shape)) + F(0.5)
                yield f"Reduce{kind} {axes} {size}", case(f"Reduce{kind}", {"x": x}, {"axes": np.array(axes)})
            for dtype in (D, I32, I64, H):
                x = np.abs(mixed(*shape, dtype=dtype))
                for axis in (2, 1):
                    yield (
                        f"Reduce{kind} {_name(dtype)} [{axis}] {size}",
                        case(f"Reduce{kind}", {"x": x}, {"axes": np.array([axis])}),
                    )
        for kind in ("ArgMax", "ArgMin"):
            for axis in (0, 1, 2):
                for dtype in (F, I32, D, U8):
                    yield (
                        f"{kind} {_name(dtype)} {axis} {size}",
                        case(kind, {"x": mixed(*shape, dtype=dtype)}, axis=axis),
                    )
        for dtype in (F, D, I64, I32):
            for axis in (0, 2):
                yield (
                    f"CumSum {_name(dtype)} {axis} {size}",
                    case("CumSum", {"x": mixed(*shape, dtype=dtype)}, {"axis": np.array(axis)}),
                )


def norms() -> Cases:
    for size, (rows, width) in {"small": (4, 32), "large": (512, 1024)}.items():
        for dtype in (F, D, H):
            x, s, b = (floats(*shape, dtype=dtype) for shape in ((rows, width), (width,), (width,)))
            for kind in ("Softmax", "LogSoftmax", "Hardmax"):
                for axis in (-1, 0):
                    yield f"{kind} {_name(dtype)} {axis} {size}", case(kind, {"x": x}, axis=axis)
            yield (
                f"LayerNormalization {_name(dtype)} {size}",
                case("LayerNormalization", {"x": x}, {"s": s, "b": b}, outputs=1 if dtype != F else 3),
            )
            yield (
                f"SkipLayerNormalization {_name(dtype)} {size}",
                case("SkipLayerNormalization", {"x": x[None], "k": x[None]}, {"s": s, "b": b}, domain=MS),
            )
            yield (
                f"SimplifiedLayerNormalization {_name(dtype)} {size}",
                case("SimplifiedLayerNormalization", {"x": x}, {"s": s}, axis=-1),
            )
            yield f"LpNormalization {_name(dtype)} {size}", case("LpNormalization", {"x": x}, axis=-1)
            image = floats(2, 8, 7, 7, dtype=dtype) if size == "small" else floats(2, 64, 56, 56, dtype=dtype)
            c = image.shape[1]
            held = {name: np.abs(floats(c, dtype=dtype)) + dtype(0.1) for name in "sbmv"}
            yield f"BatchNormalization {_name(dtype)} {size}", case("BatchNormalization", {"x": image}, held)
            held = {name: floats(c, dtype=dtype) for name in "sb"}
            yield (
                f"InstanceNormalization {_name(dtype)} {size}",
                case("InstanceNormalization", {"x": image}, held),
            )
            yield (
                f"GroupNormalization {_name(dtype)} {size}",
                case("GroupNormalization", {"x": image}, held, num_groups=4),
            )
            yield f"LRN {_name(dtype)} {size}", case("LRN", {"x": image}, size=5)
            yield (
                f"MeanVarianceNormalization {_name(dtype)} {size}",
                case("MeanVarianceNormalization", {"x": image}),
            )
        labels = whole(width, rows)
        x = floats(rows, width)
        yield f"SoftmaxCrossEntropyLoss {size}", case("SoftmaxCrossEntropyLoss", {"x": x, "t": labels})
        yield f"NegativeLogLikelihoodLoss {size}", case("NegativeLogLikelihoodLoss", {"x": x, "t": labels})
