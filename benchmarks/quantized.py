"""Quantized operators, each a model of one node, against onnxruntime on one thread in one process.

    taskset -c 0 python -m benchmarks.quantized [--only LSTM,QAttention] [--seconds 0.4]

The engines take turns; given are the fastest run of each in microseconds, the ratio (above 1: faster than
onnxruntime), the largest difference of the results and, where a node runs by its definition in numpy, which.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import orthrus

MS = "com.microsoft"
SIZES = ("small", "large")
U8, I8, U16, I16, F = np.uint8, np.int8, np.uint16, np.int16, np.float32

Case = tuple[onnx.NodeProto, dict[str, np.ndarray], dict[str, np.ndarray]]
"""A node, what it is fed and what its model holds."""

_RNG = np.random.default_rng(0)


def codes(dtype: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return _RNG.integers(info.min, info.max + 1, shape, dtype)


def floats(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(F)


def _node(kind: str, fed: dict[str, Any], held: dict[str, Any], order: str, outputs: int = 1,
          domain: str = MS, **attrs: Any) -> Case:
    """`order`: the names of the inputs; "-" for one that is absent."""
    names = ["" if name == "-" else name for name in order.split()]
    node = helper.make_node(kind, names, [f"out{i}" for i in range(outputs)], domain=domain, **attrs)
    return node, {k: np.asarray(v) for k, v in fed.items()}, {k: np.asarray(v) for k, v in held.items()}


def _scaled(*names: str, dtype: Any = U8) -> dict[str, Any]:
    """A scale and a zero point for each name."""
    made: dict[str, Any] = {}
    for i, name in enumerate(names):
        made |= {f"{name}s": F(0.02 + 0.01 * i), f"{name}z": dtype(100 + i)}
    return made


def lstm(large: bool, dtype: Any) -> Case:
    steps, features, hidden = (100, 256, 256) if large else (8, 16, 16)
    held = {"w": codes(dtype, 1, features, 4 * hidden), "r": codes(dtype, 1, hidden, 4 * hidden),
            "b": floats(1, 8 * hidden), "ws": floats(1) ** 2 * F(0.001), "wz": codes(dtype, 1) * 0,
            "rs": floats(1) ** 2 * F(0.001), "rz": codes(dtype, 1) * 0}
    held["wz"][:] = held["rz"][:] = 0 if dtype is I8 else 127
    return _node("DynamicQuantizeLSTM", {"x": floats(steps, 1, features)}, held,
                 "x w r b - - - - ws wz rs rz", 3, hidden_size=hidden)


def attention(large: bool, _: Any) -> Case:
    rows, width, heads = (128, 768, 12) if large else (8, 64, 4)
    held = {"w": codes(I8, width, 3 * width), "b": floats(3 * width), "xs": F(0.02), "ws": F(0.001),
            "xz": U8(120), "wz": I8(0)}
    return _node("QAttention", {"x": codes(U8, 1, rows, width)}, held, "x w b xs ws - xz wz",
                 num_heads=heads)


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
    return _node("QLinearMatMul", fed, _scaled("a", "b", "y", dtype=dtype), "a as az b bs bz y ys yz".replace(
        " y ", " "), domain="")


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
        shape = (1, size, size, c) if attrs.get("channels_last") or kind.startswith("Nhwc") else (1, c, size,
                                                                                                 size)
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
    held = _scaled("a", "b", "y") | {"b": codes(dtype, k, n), "bz": dtype(0 if dtype is I8 else 128),
                                     "c": codes(I8, n).astype(np.int32)}
    return _node("QGemm", {"a": codes(U8, m, k)}, held, "a as az b bs bz c ys yz")


def quantize(kind: str, form: str) -> Callable[[bool, Any], Case]:
    """`form`: "tensor", "axis", "block" along the last axis, "lines": blocks along the first."""
    def case(large: bool, dtype: Any) -> Case:
        shape = (512, 2048) if large else (8, 64)
        axis = 0 if form in ("axis", "lines") else 1
        parts = {"tensor": (), "axis": shape[:1], "block": (shape[0], shape[1] // 32),
                 "lines": (shape[0] // 8, shape[1])}[form]
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
        return _node("Resize", {"x": codes(dtype, *shape)}, {"s": scales}, "x - s", domain="", mode="nearest",
                     coordinate_transformation_mode="asymmetric", nearest_mode="floor")
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
    "QLinearAveragePool last": (image("QLinearAveragePool", kernel_shape=[3, 3], strides=[2, 2],
                                      channels_last=1), (U8,)),
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


def model(case: Case) -> bytes:
    node, fed, held = case
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
              for k, v in fed.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "g", inputs, outputs,
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21),
                                                                  helper.make_opsetid(MS, 1)])
    return bytes(made.SerializeToString())


def _runs(runtime: Any, made: bytes) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(made, options, providers=["CPUExecutionProvider"])


def _turn(run: Callable[[], Any], seconds: float) -> float:
    """The fastest of the runs that fit into `seconds`, one at least."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def measured(case: Case, seconds: float, rounds: int = 8) -> tuple[float, float, float, str]:
    """Seconds of onnxruntime and of Orthrus, the largest difference and what runs by its definition."""
    made, feeds = model(case), case[1]
    theirs, ours = _runs(onnxruntime, made), _runs(orthrus, made)
    wanted, got = theirs.run(None, feeds), ours.run(None, feeds)
    apart = max(float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0))
                for a, b in zip(wanted, got, strict=True))
    best = [float("inf")] * 2
    for _ in range(rounds):
        for i, session in enumerate((theirs, ours)):
            best[i] = min(best[i], _turn(lambda session=session: session.run(None, feeds),  # type: ignore[misc]
                                         seconds / 2 / rounds))
    return best[0], best[1], apart, ", ".join(_by_definition(ours))


def _by_definition(session: Any) -> Iterator[str]:
    for step in session._sess._engine.program.calls:
        for plan in getattr(step.kernel.run, "plans", {}).values():
            for each in plan.steps if plan is not None else ():
                if each.spec is None:
                    yield each.node.op_type


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=0.4)
    asked = parser.parse_args()
    for name, (make, dtypes) in CASES.items():
        if asked.only and not any(part in name for part in asked.only.split(",")):
            continue
        for dtype in dtypes:
            for size in SIZES:
                label = f"{name} {np.dtype(dtype).name} {size}"
                theirs, ours, apart, how = measured(make(size == "large", dtype), asked.seconds)
                print(f"{label:46} {1e6 * theirs:10.1f} {1e6 * ours:10.1f} {theirs / ours:7.2f}  {apart:.2g}"
                      f"  {how}", flush=True)


if __name__ == "__main__":
    main()
