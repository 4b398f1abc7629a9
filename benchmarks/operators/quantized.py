"""Quantized operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from .arrays import I8, I16, SHAPES, U8, U16, F, case, floats, whole
from .measuring import MS, Case


def codes(dtype: Any, *shape: int) -> np.ndarray:
    """Whole numbers over all that a type can say."""
    info = np.iinfo(dtype)
    return whole(info.max + 1, *shape, dtype=dtype, low=info.min)


def _node(
    kind: str,
    fed: dict[str, Any],
    held: dict[str, Any],
    order: str,
    outputs: int = 1,
    domain: str = MS,
    **attrs: Any,
) -> Case:
    return case(kind, fed, held, order, outputs, domain, **attrs)


def _scaled(*names: str, dtype: Any = U8) -> dict[str, Any]:
    """A scale and a zero point for each name."""
    made: dict[str, Any] = {}
    for i, name in enumerate(names):
        made |= {f"{name}s": F(0.02 + 0.01 * i), f"{name}z": dtype(100 + i)}
    return made


def lstm(large: bool, dtype: Any) -> Case:
    steps, features, hidden = (100, 256, 256) if large else (8, 16, 16)
    held = {
        "w": codes(dtype, 1, features, 4 * hidden),
        "r": codes(dtype, 1, hidden, 4 * hidden),
        "b": floats(1, 8 * hidden),
        "ws": floats(1) ** 2 * F(0.001),
        "wz": codes(dtype, 1) * 0,
        "rs": floats(1) ** 2 * F(0.001),
        "rz": codes(dtype, 1) * 0,
    }
    held["wz"][:] = held["rz"][:] = 0 if dtype is I8 else 127
    return _node(
        "DynamicQuantizeLSTM",
        {"x": floats(steps, 1, features)},
        held,
        "x w r b - - - - ws wz rs rz",
        3,
        hidden_size=hidden,
    )


def attention(large: bool, _: Any) -> Case:
    rows, width, heads = (128, 768, 12) if large else (8, 64, 4)
    held = {
        "w": codes(I8, width, 3 * width),
        "b": floats(3 * width),
        "xs": F(0.02),
        "ws": F(0.001),
        "xz": U8(120),
        "wz": I8(0),
    }
    return _node("QAttention", {"x": codes(U8, 1, rows, width)}, held, "x w b xs ws - xz wz", num_heads=heads)


def product(kind: str, domain: str, order: str) -> Callable[[bool, Any], Case]:
    def case(large: bool, dtype: Any) -> Case:
        m, k, n = (128, 768, 768) if large else (8, 16, 16)
        fed = {"a": floats(m, k) if kind.startswith("Dyn") else codes(U8, m, k), "b": codes(dtype, k, n)}
        held = _scaled("a", "y") | _scaled("b", dtype=dtype)
        held = {name: v for name, v in held.items() if name in order.split()}
        return _node(kind, fed, held, order, domain=domain)

    return case


def batched(large: bool, dtype: Any) -> Case:
    shape = (12, 128, 64) if large else (2, 4, 8)
    fed = {"a": codes(dtype, *shape), "b": codes(dtype, shape[0], shape[2], shape[1])}
    return _node(
        "QLinearMatMul",
        fed,
        _scaled("a", "b", "y", dtype=dtype),
        "a as az b bs bz y ys yz".replace(" y ", " "),
        domain="",
    )


def convolution(kind: str, order: str, domain: str = "") -> Callable[[bool, Any], Case]:
    def case(large: bool, dtype: Any) -> Case:
        c, size = (64, 28) if large else (8, 7)
        fed = {"x": codes(U8, 1, c, size, size), "w": codes(dtype, c, c, 3, 3)}
        held = _scaled("x", "y") | {"ws": F(0.01), "wz": dtype(0 if dtype is I8 else 128)}
        held = {name: v for name, v in held.items() if name in order.split()}
        return _node(kind, fed, held, order, domain=domain, pads=[1] * 4)

    return case


def image(kind: str, order: str = "x xs xz ys yz", **attrs: Any) -> Callable[[bool, Any], Case]:
    def case(large: bool, dtype: Any) -> Case:
        c, size = (64, 56) if large else (8, 7)
        shape = (
            (1, size, size, c)
            if attrs.get("channels_last") or kind.startswith("Nhwc")
            else (1, c, size, size)
        )
        held = _scaled("x", "y", dtype=dtype) if "xs" in order else {}
        return _node(kind, {"x": codes(dtype, *shape)}, held, order, **attrs)

    return case


def softmax(large: bool, dtype: Any) -> Case:
    shape = (512, 1024) if large else (4, 16)
    held = {"xs": F(0.02), "xz": dtype(3), "ys": F(1 / 256), "yz": dtype(0)}
    return _node("QLinearSoftmax", {"x": codes(dtype, *shape)}, held, "x xs xz ys yz", axis=-1, opset=13)


def concat(large: bool, dtype: Any) -> Case:
    c, size = (32, 56) if large else (4, 7)
    fed = {"x": codes(dtype, 1, c, size, size), "w": codes(dtype, 1, c, size, size)}
    return _node("QLinearConcat", fed, _scaled("x", "w", "y", dtype=dtype), "ys yz x xs xz w ws wz", axis=1)


def pair(kind: str) -> Callable[[bool, Any], Case]:
    def case(large: bool, dtype: Any) -> Case:
        shape = (1, 64, 56, 56) if large else (4, 16)
        fed = {"a": codes(dtype, *shape), "b": codes(dtype, *shape)}
        return _node(kind, fed, _scaled("a", "b", "y", dtype=dtype), "a as az b bs bz ys yz")

    return case


def gemm(large: bool, dtype: Any) -> Case:
    m, k, n = (128, 768, 768) if large else (8, 16, 16)
    held = _scaled("a", "b", "y") | {
        "b": codes(dtype, k, n),
        "bz": dtype(0 if dtype is I8 else 128),
        "c": codes(I8, n).astype(np.int32),
    }
    return _node("QGemm", {"a": codes(U8, m, k)}, held, "a as az b bs bz c ys yz")


def quantize(kind: str, form: str) -> Callable[[bool, Any], Case]:
    """`form`: "tensor", "axis", "block" along the last axis, "lines": blocks along the first."""

    def case(large: bool, dtype: Any) -> Case:
        shape = (512, 2048) if large else (8, 64)
        axis = 0 if form in ("axis", "lines") else 1
        parts = {
            "tensor": (),
            "axis": shape[:1],
            "block": (shape[0], shape[1] // 32),
            "lines": (shape[0] // 8, shape[1]),
        }[form]
        attrs = {} if form == "tensor" else {"axis": axis}
        if form in ("block", "lines"):
            attrs["block_size"] = 32 if form == "block" else 8
        held = {"s": np.abs(floats(*parts)) * F(0.01) + F(0.001), "z": codes(dtype, *parts)}
        x = floats(*shape) if kind == "QuantizeLinear" else codes(dtype, *shape)
        return _node(kind, {"x": x}, held, "x s z", domain="", **attrs)

    return case


def cast(source: Any, target: int) -> Callable[[bool, Any], Case]:
    def case(large: bool, _: Any) -> Case:
        shape = (512, 2048) if large else (8, 64)
        x = (np.abs(floats(*shape)) * F(30)).astype(source)
        return _node("Cast", {"x": x}, {}, "x", domain="", to=target)

    return case


def quotient(large: bool, dtype: Any) -> Case:
    shape = (512, 2048) if large else (8, 64)
    b = codes(dtype, *shape)
    b[b == 0] = 3
    return _node("Div", {"x": codes(dtype, *shape), "b": b}, {}, "x b", domain="")


def transpose(*perm: int) -> Callable[[bool, Any], Case]:
    def case(large: bool, dtype: Any) -> Case:
        shape = (64, 64, 96) if large else (2, 7, 9)
        return _node("Transpose", {"x": codes(dtype, *shape)}, {}, "x", domain="", perm=list(perm))

    return case


def nearest(factor: float) -> Callable[[bool, Any], Case]:
    def case(large: bool, dtype: Any) -> Case:
        shape = (1, 64, 56, 56) if large else (1, 3, 8, 8)
        scales = np.array([1, 1, factor, factor], F)
        return _node(
            "Resize",
            {"x": codes(dtype, *shape)},
            {"s": scales},
            "x - s",
            domain="",
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )

    return case


CASES: dict[str, tuple[Callable[[bool, Any], Case], tuple[Any, ...]]] = {
    "DynamicQuantizeLSTM": (lstm, (I8, U8)),
    "QuantizeLinear": (quantize("QuantizeLinear", "tensor"), (U8, I8, U16, I16)),
    "QuantizeLinear axis": (quantize("QuantizeLinear", "axis"), (U8, U16)),
    "QuantizeLinear block": (quantize("QuantizeLinear", "block"), (U8, I16)),
    "QuantizeLinear lines": (quantize("QuantizeLinear", "lines"), (I8, U16)),
    "DequantizeLinear": (quantize("DequantizeLinear", "tensor"), (U8, U16, I16)),
    "DequantizeLinear axis": (quantize("DequantizeLinear", "axis"), (U8, U16)),
    "DequantizeLinear block": (quantize("DequantizeLinear", "block"), (U8, I16)),
    "DequantizeLinear lines": (quantize("DequantizeLinear", "lines"), (I8, U16)),
    "Cast float32 to uint8": (cast(F, TensorProto.UINT8), (F,)),
    "Cast float32 to int8": (cast(F, TensorProto.INT8), (F,)),
    "Cast float32 to uint16": (cast(F, TensorProto.UINT16), (F,)),
    "Cast float32 to int32": (cast(F, TensorProto.INT32), (F,)),
    "Cast float32 to int64": (cast(F, TensorProto.INT64), (F,)),
    "Cast float16 to int64": (cast(np.float16, TensorProto.INT64), (F,)),
    "QLinearConcat": (concat, (U8, I8)),
    "QLinearSigmoid": (image("QLinearSigmoid"), (U8, I8)),
    "QLinearLeakyRelu": (image("QLinearLeakyRelu"), (U8, I8)),
    "QLinearSoftmax": (softmax, (U8, I8)),
    "QLinearAveragePool": (image("QLinearAveragePool", kernel_shape=[3, 3], strides=[2, 2]), (U8, I8)),
    "QLinearAveragePool last": (
        image("QLinearAveragePool", kernel_shape=[3, 3], strides=[2, 2], channels_last=1),
        (U8,),
    ),
    "QLinearGlobalAveragePool": (image("QLinearGlobalAveragePool"), (U8, I8)),
    "QLinearGlobalAveragePool last": (image("QLinearGlobalAveragePool", channels_last=1), (U8,)),
    "QLinearAdd": (pair("QLinearAdd"), (U8, I8)),
    "QLinearMul": (pair("QLinearMul"), (U8, I8)),
    "NhwcMaxPool": (image("NhwcMaxPool", "x", kernel_shape=[3, 3], strides=[2, 2]), (U8, I8)),
    "MatMulInteger": (product("MatMulInteger", "", "a b az bz"), (U8, I8)),
    "QLinearMatMul": (product("QLinearMatMul", "", "a as az b bs bz ys yz"), (U8, I8)),
    "QLinearMatMul batch": (batched, (I8,)),
    "MatMulIntegerToFloat": (product("MatMulIntegerToFloat", MS, "a b as bs az bz"), (U8, I8)),
    "DynamicQuantizeMatMul": (product("DynamicQuantizeMatMul", MS, "a b bs bz"), (U8, I8)),
    "ConvInteger": (convolution("ConvInteger", "x w xz wz"), (U8,)),
    "QLinearConv": (convolution("QLinearConv", "x xs xz w ws wz ys yz"), (U8, I8)),
    "QGemm": (gemm, (U8, I8)),
    "QAttention": (attention, (I8,)),
    "Div": (quotient, (U8, I8)),
    "Transpose (0, 2, 1)": (transpose(0, 2, 1), (U8,)),
    "Transpose (2, 0, 1)": (transpose(2, 0, 1), (U8,)),
    "Transpose (1, 2, 0)": (transpose(1, 2, 0), (U8,)),
    "Resize nearest 2": (nearest(2), (U8, I8)),
    "Resize nearest 1.5": (nearest(1.5), (U8,)),
    "Resize nearest 0.7": (nearest(0.7), (U8,)),
}


def quantized() -> Iterator[tuple[str, Case]]:
    """Each of `CASES`, for its types and both sizes."""
    for name, (make, dtypes) in CASES.items():
        for dtype in dtypes:
            for size in SHAPES:
                yield f"{name} {np.dtype(dtype).name} {size}", make(size == "large", dtype)
