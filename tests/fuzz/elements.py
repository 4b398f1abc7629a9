"""Random valid applications of elementwise operators, casts and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle import Case

from fuzz.draw import (
    ANY,
    F16,
    F32,
    F64,
    INTS,
    NUMBERS,
    SIGNED,
    Draw,
    ints,
)

# elementwise

_ARITHMETIC: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
    "Div": None,
    "Mod": None,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}


def binary(d: Draw) -> Case:
    op = d.one(sorted(_ARITHMETIC))
    types = INTS if op.startswith("Bitwise") else (np.bool_,) if op in ("And", "Or", "Xor") else NUMBERS
    if op == "Equal":
        types = (*NUMBERS, np.bool_, object)
    dtype = np.dtype(d.one(types))
    shape = d.shape()
    a, b = (d.wild(s, dtype) if d.yes() else d.array(s, dtype) for s in (shape, d.broadcastable(shape)))
    attrs = {}
    if op in ("Div", "Mod") and dtype.kind in "iu":
        b = np.where(b == 0, dtype.type(1), b).astype(dtype)
    if op == "Mod":
        attrs["fmod"] = 1 if dtype.kind not in "iu" else d.int(0, 1)
    if d.yes() and op not in ("Div", "Mod"):
        a, b = b, a
    with np.errstate(all="ignore"):
        if op == "Div" and dtype.kind in "iu":
            wide = [
                [int(v) for v in np.broadcast_to(x, np.broadcast_shapes(a.shape, b.shape)).ravel()]
                for x in (a, b)
            ]
            low, bits = int(np.iinfo(dtype).min), dtype.itemsize * 8
            y = np.array(
                [
                    ((abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)) - low) % (1 << bits) + low
                    for p, q in zip(*wide, strict=True)
                ],
                dtype,
            ).reshape(np.broadcast_shapes(a.shape, b.shape))
        elif dtype.kind == "V" or dtype == F16:
            wide = [x.astype(F32) for x in (a, b)]
            fn = {"Div": np.divide, "Mod": np.fmod}.get(op) or _ARITHMETIC[op]
            y = np.asarray(fn(*wide))
            y = y if y.dtype == bool else y.astype(dtype)
        else:
            fn = {"Div": np.divide, "Mod": np.fmod if attrs.get("fmod") else np.mod}.get(op) or _ARITHMETIC[
                op
            ]
            y = np.asarray(fn(a, b))
            y = y.astype(bool) if y.dtype == object else y
    return Case(op, [a, b], attrs, opset=d.one([19, 21, 24]), expected=[y], open_shapes=d.yes())


_UNARY = (
    "Abs",
    "Neg",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Sqrt",
    "Exp",
    "Log",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Erf",
    "Sigmoid",
    "Relu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "Softplus",
    "Softsign",
    "HardSigmoid",
    "HardSwish",
    "ThresholdedRelu",
    "Reciprocal",
    "Gelu",
    "Mish",
    "IsNaN",
    "IsInf",
    "Not",
    "BitwiseNot",
    "Shrink",
    "Identity",
)
_ALPHA = {"LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu"}


def unary(d: Draw) -> Case:
    op = d.one(_UNARY)
    types: Any = {
        "Not": (np.bool_,),
        "BitwiseNot": INTS,
        "Abs": (*INTS, F32, F64),
        "Neg": (*SIGNED, F32, F64),
        "Sign": (*INTS, F32, F64),
        "Relu": (*SIGNED, F32, F64),
        "Identity": ANY,
    }.get(op, (F32, F64))
    dtype = d.one(types)
    x = d.wild(d.shape(), dtype) if d.yes() else d.array(d.shape(), dtype)
    attrs: dict[str, Any] = {}
    if op in _ALPHA and d.yes():
        attrs["alpha"] = d.one([0.1, 0.5, 1.5])
    if op == "Gelu" and d.yes():
        attrs["approximate"] = "tanh"
        x = x.astype(F32)
    if op == "IsInf":
        attrs = {"detect_negative": d.int(0, 1), "detect_positive": d.int(0, 1)}
    if op == "Shrink":
        x = d.array(x.shape, F32)
        attrs = {"lambd": 1.5, "bias": d.one([0.0, 0.5])}
    return Case(op, [x], attrs, opset=22, open_shapes=d.yes(), rtol=1e-4, atol=1e-6)


def variadic(d: Draw) -> Case:
    op = d.one(["Sum", "Mean", "Max", "Min"])
    shape = d.shape()
    dtype = d.one((F32, F64) if op in ("Sum", "Mean") else (F32, F64, np.int32, np.int64, np.uint8))
    return Case(
        op, [d.array(d.broadcastable(shape), dtype) for _ in range(d.int(1, 4))], opset=d.one([13, 21])
    )


def ternary(d: Draw) -> Case:
    kind = d.one(["Where", "Clip", "PRelu", "Pow", "BitShift"])
    shape = d.shape()
    dtype = d.one((F32, F64, np.int32, np.int64, np.uint8, object))
    if kind == "Where":
        shapes = [d.broadcastable(shape) for _ in range(3)]
        return Case("Where", [d.array(shapes[0], bool), *(d.array(s, dtype) for s in shapes[1:])], opset=16)
    if kind == "Clip":
        dtype = F32 if dtype is object else dtype
        bounds = [
            d.array((), dtype, 0, 3) if d.yes() else None,
            d.array((), dtype, 0, 5) if d.yes() else None,
        ]
        return Case("Clip", [d.array(shape, dtype), *bounds], opset=13)
    if kind == "PRelu":
        dtype = d.one((F32, F64, np.int32))
        return Case("PRelu", [d.array(shape, dtype), d.array(d.broadcastable(shape), dtype)], opset=16)
    if kind == "Pow":
        base, power = d.one((F32, F64, np.int32, np.int64)), d.one((F32, F64, np.int32, np.int64))
        return Case(
            "Pow",
            [d.array(shape, base, 1, 5), d.array(d.broadcastable(shape), power, 0, 4)],
            opset=15,
            rtol=1e-4,
        )
    dtype = d.one((np.uint8, np.uint32, np.uint64))
    return Case(
        "BitShift",
        [d.wild(shape, dtype), d.array(d.broadcastable(shape), dtype, 0, 7)],
        {"direction": d.one(["LEFT", "RIGHT"])},
        opset=11,
    )


def cast(d: Draw) -> Case:
    types = (*INTS, F32, F64, F16, np.bool_)
    source, target = d.one(types), d.one(types)
    x = d.array(d.shape(), source, 0, 100)
    to = {
        np.int8: 3,
        np.int16: 5,
        np.int32: 6,
        np.int64: 7,
        np.uint8: 2,
        np.uint16: 4,
        np.uint32: 12,
        np.uint64: 13,
        F32: 1,
        F64: 11,
        F16: 10,
        np.bool_: 9,
    }[target]
    return Case("Cast", [x], {"to": to}, opset=d.one([13, 19, 21]), expected=[x.astype(target)])


# reductions

_REDUCE = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)


def reduction(d: Draw) -> Case:
    op = d.one(_REDUCE)
    dtype = d.one(
        (F32, F64, np.int32, np.int64)
        if op not in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
        else (F32, F64)
    )
    shape = (
        tuple(max(1, n) for n in d.shape(0, 5, most=4))
        if op not in ("ReduceSum", "ReduceProd")
        else d.shape(0, 5, most=4)
    )
    x = d.array(shape, dtype, 1 if "Log" in op and op != "ReduceLogSumExp" else -3, 4)
    axes = sorted(d.axes(x.ndim), key=lambda a: a % x.ndim)
    attrs: dict[str, Any] = {}
    if d.yes():
        attrs["keepdims"] = d.int(0, 1)
    if d.yes():
        opset = 13
        if op == "ReduceSum":
            return Case(
                op,
                [x, ints(*axes)] if axes else [x],
                attrs,
                opset=opset,
                rtol=1e-4,
                expected=_folded(op, x, axes, attrs),
            )
        return Case(
            op,
            [x],
            {**attrs, **({"axes": axes} if axes else {})},
            opset=opset,
            rtol=1e-4,
            expected=_folded(op, x, axes, attrs),
        )
    given = d.int(0, 2)
    if given == 0:
        attrs["noop_with_empty_axes"] = d.int(0, 1)
    inputs = [x, ints(*axes)] if given == 2 else [x, ints()] if given == 1 else [x]
    expected = (
        None if attrs.get("noop_with_empty_axes") else _folded(op, x, axes if given == 2 else [], attrs)
    )
    return Case(op, inputs, attrs, opset=18, rtol=1e-4, open_shapes=d.yes(), expected=expected)


def _folded(op: str, x: np.ndarray, axes: list[int], attrs: dict[str, Any]) -> list[Any] | None:
    """What numpy says of a sum or a product, which onnxruntime misjudges where a dimension is 0."""
    fold = {"ReduceSum": np.sum, "ReduceProd": np.prod}.get(op)
    if fold is None:
        return None
    return [
        np.asarray(fold(x, axis=tuple(axes) or None, keepdims=bool(attrs.get("keepdims", 1)), dtype=x.dtype))
    ]


def arg_reduction(d: Draw) -> Case:
    op = d.one(["ArgMax", "ArgMin"])
    x = d.array(d.shape(1, 4, least=1), d.one((F32, F64, np.int32, np.int8)), -2, 3)
    return Case(
        op, [x], {"axis": d.axis(x.ndim), "keepdims": d.int(0, 1), "select_last_index": d.int(0, 1)}, opset=13
    )


def along_axis(d: Draw) -> Case:
    op = d.one(["Softmax", "LogSoftmax", "Hardmax", "CumSum", "LpNormalization", "Softmax", "LogSoftmax"])
    x = d.array(d.shape(1, 4), d.one((F32, F64)))
    axis = d.axis(x.ndim)
    if op == "CumSum":
        return Case(
            op,
            [x, np.array(axis, d.one((np.int32, np.int64)))],
            {"exclusive": d.int(0, 1), "reverse": d.int(0, 1)},
            opset=14,
            rtol=1e-4,
        )
    if op == "LpNormalization":
        return Case(op, [x], {"axis": axis, "p": d.int(1, 2)}, opset=1, rtol=1e-4)
    return Case(op, [x], {"axis": axis}, opset=d.one([11, 13, 21]))
