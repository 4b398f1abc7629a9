"""A family of cases of `gpu_grid` for each file of GPUs' kernels, and for what rules make of several."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from gpu_grid import FAMILIES, FLOATS, INTS, SIZES, WIDE, Case, Draw, family, numpy_type

__all__ = ["FAMILIES"]
MS = "com.microsoft::"
F = ("float32", "float16")
WHOLE = ("Abs", "Neg", "Sign")
CURVES = ("Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Erf", "Sin", "Cos", "Atan", "Floor", "Ceil",
          "Round", "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid",
          "HardSwish", "Gelu", "Mish", "ThresholdedRelu", "Sinh", "Cosh", "Asinh", "Tan", "Shrink", "Swish",
          "IsNaN", "IsInf")


def held(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@family
def unary(d: Draw) -> Case:
    op, rank = d.one_of(*CURVES, *WHOLE), d.one_of(0, 1, 2, 3, 4)
    kinds = (*WIDE, "int8", "int16", "int32", "int64") if op in WHOLE else (*FLOATS, "float64")
    if op in ("HardSwish", "Swish", "Mish", "Celu"):
        kinds = ("float32", "float16") if op != "Celu" else ("float32",)
    return Case(op, [d.values(d.shape(rank), d.one_of(*kinds))], slack=4)


@family
def binary(d: Draw) -> Case:
    op = d.one_of("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Mod", "PRelu", "Equal", "Less",
                  "GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseXor", "BitShift", "Where",
                  "Sum", "Mean", "Clip")
    kinds: tuple[str, ...] = (*WIDE, *INTS)
    if op in ("And", "Or", "Xor"):
        kinds = ("bool",)
    elif op.startswith("Bitwise"):
        kinds = INTS
    elif op == "BitShift":
        kinds = ("uint8", "uint16", "uint32", "uint64")
    elif op in ("Sum", "Mean"):
        kinds = WIDE
    elif op == "PRelu":
        kinds = (*WIDE, "int32", "int64", "uint32", "uint64")
    elif op == "Pow":
        kinds = WIDE
    dtype, rank, attrs = d.one_of(*kinds), d.one_of(0, 1, 2, 3, 4), dict[str, Any]()
    shape = d.shape(rank)
    count = 3 if op in ("Where", "Sum", "Mean") else 2
    spreads = d.spreads(rank, count)
    if op == "PRelu":
        spreads[0] = [False] * rank, 0
    inputs = [d.values(d.spread(shape, *spread), dtype) for spread in spreads]
    if op == "Where":
        inputs[0] = d.values(inputs[0].shape, "bool")
    elif op == "Clip":
        low, high = sorted(d.values((2,), dtype).tolist(), key=lambda v: (v != v, v))
        inputs = [d.values(shape, dtype), *(np.array(v, numpy_type(dtype)) for v in (low, high))]
    elif op in ("Div", "Mod") and dtype in INTS:
        inputs[1] = np.where(inputs[1] == 0, 1, inputs[1]).astype(inputs[1].dtype)
        if dtype.startswith("int"):
            inputs[0] = np.where(inputs[0] == np.iinfo(dtype).min, 5, inputs[0]).astype(inputs[0].dtype)
    elif op == "BitShift":
        attrs["direction"] = d.one_of("LEFT", "RIGHT")
        inputs[1] = d.turn.integers(0, np.iinfo(dtype).bits, inputs[1].shape).astype(dtype)
    elif op == "Pow":
        inputs[1] = np.round(inputs[1].astype(np.float64)).clip(-3, 3).astype(inputs[1].dtype)
    if op == "Mod" and dtype in WIDE:
        attrs["fmod"] = 1
    return Case(op, list(inputs), attrs, own=op in ("Mod", "Pow"), slack=4 if op == "Pow" else 1)


@family
def cast(d: Draw) -> Case:
    kinds = (*FLOATS, "float64", *INTS, "bool")
    source, target = d.one_of(*kinds), d.one_of(*kinds)
    x = d.values(d.shape(d.one_of(0, 1, 2, 3)), source)
    if source in WIDE and target not in (*WIDE, "bool"):
        info = np.iinfo(target)
        x = np.nan_to_num(x.astype(np.float64), nan=1, posinf=3, neginf=-3)
        x = x.clip(max(info.min, -60000), min(info.max, 60000)).astype(numpy_type(source))
    from onnx import helper

    return Case("Cast", [x], {"to": helper.np_dtype_to_tensor_dtype(numpy_type(target))}, own=True)


@family
def reductions(d: Draw) -> Case:
    op = d.one_of("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
    rank = d.one_of(1, 2, 3, 4)
    kinds = (*WIDE, "int8", "uint8", "int32", "int64") if op in ("Max", "Min") else (*WIDE, "int32", "int64")
    if op in ("LogSum", "LogSumExp", "L2", "Mean"):
        kinds = WIDE
    dtype, keep = d.one_of(*kinds), d.one_of(0, 1)
    axes = [a - d.one_of(0, rank) for a in range(rank) if d.chance(0.5)]
    shape = d.shape(rank)
    if op in ("Max", "Min", "Prod", "Mean", "LogSum", "LogSumExp"):
        shape = [max(1, s) for s in shape]
    if op == "Prod":
        shape = [min(s, 7) for s in shape]
    x = d.values(shape, dtype)
    x = np.abs(x) if op == "LogSum" else x
    return Case(f"Reduce{op}", [x, held(*axes) if axes else None], {"keepdims": keep}, held={1},
                slack=8 if op == "Prod" else 2)


@family
def places(d: Draw) -> Case:
    op, rank = d.one_of("ArgMax", "ArgMin"), d.one_of(1, 2, 3)
    dtype = d.one_of(*WIDE, "int8", "uint8", "int32", "int64")
    attrs = {"axis": d.one_of(*range(-rank, rank)), "keepdims": d.one_of(0, 1),
             "select_last_index": d.one_of(0, 1)}
    return Case(op, [d.values([max(1, s) for s in d.shape(rank)], dtype)], attrs)


@family
def rows(d: Draw) -> Case:
    op = d.one_of("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "InstanceNormalization",
                  "GroupNormalization", "LpNormalization", "MeanVarianceNormalization", "Hardmax",
                  MS + "SkipLayerNormalization", MS + "SkipSimplifiedLayerNormalization")
    dtype, rank = d.one_of(*FLOATS), d.one_of(1, 2, 3, 4)
    if op in ("Softmax", "LogSoftmax", "Hardmax"):
        x = d.values([max(1, s) for s in d.shape(rank)], dtype)
        if op == "Hardmax":
            x = np.nan_to_num(x.astype(np.float64), nan=1).astype(x.dtype)
        return Case(op, [x], {"axis": d.one_of(*range(-rank, rank))}, slack=2)
    d.hostile = False
    if op == "LpNormalization":
        return Case(op, [d.values(d.shape(rank), dtype)],
                    {"axis": d.one_of(*range(-rank, rank)), "p": d.one_of(1, 2)}, slack=2)
    if op == "MeanVarianceNormalization":
        return Case(op, [d.values([max(1, s) for s in d.shape(4)], dtype)],
                    {"axes": d.one_of([0, 2, 3], [0, 1, 2, 3], [1])}, slack=4)
    if op in ("InstanceNormalization", "GroupNormalization"):
        group = d.one_of(1, 2, 3) if op[0] == "G" else 1
        channels, rank = d.channels() * group, max(rank, 3)
        shape = [max(1, s) for s in d.shape(rank, 4096)]
        x = d.values([d.size(1, 2, 3), channels, *shape[2:]], dtype)
        given = [x, d.constant([channels], dtype), d.constant([channels], dtype)]
        return Case(op, list(given), {"num_groups": group} if op[0] == "G" else {}, held={1, 2}, slack=8)
    size = d.one_of(*SIZES)
    lead = [max(1, s) for s in d.shape(rank - 1, 512)]
    if op.startswith(MS):
        lead = [*lead, 1, 1][:2]
        x = d.values([*lead, size], dtype)
        return Case(op, [x, d.values([*lead, size], dtype), d.constant([size], dtype),
                         *([d.constant([size], dtype)] if "Simplified" not in op else [])],
                    {"epsilon": 1e-5}, held={2, 3}, slack=8)
    scale, bias = d.constant([size], dtype), d.constant([size], dtype)
    x = d.values([*lead, size], dtype)
    return Case(op, [x, scale, *([bias] if op[0] == "L" and d.chance(0.7) else [])], {"axis": -1},
                held={1, 2}, slack=8)


@family
def products(d: Draw) -> Case:
    d.hostile = False
    op, dtype = d.one_of("MatMul", "MatMul", "Gemm", MS + "FusedMatMul"), d.one_of(*FLOATS)
    fixed = d.chance(0.6)
    k, n = (d.one_of(*SIZES) for _ in range(2)) if fixed else (d.size(), d.size())
    m = d.size()
    if op == "Gemm":
        attrs = {"transA": d.one_of(0, 1), "transB": d.one_of(0, 1), "alpha": d.one_of(1.0, 0.5),
                 "beta": d.one_of(1.0, 2.0)}
        shape_a, shape_b = [k, m] if attrs["transA"] else [m, k], [n, k] if attrs["transB"] else [k, n]
        b = d.constant(shape_b, dtype) if fixed else d.values(shape_b, dtype)
        which = d.one_of(0, 1, 2, 3, 4)
        c = [[], [], [[n]], [[1, n]], [[m, 1]]][which]
        return Case(op, [d.values(shape_a, dtype), b, *(d.values(s, dtype) for s in c)], attrs,
                    held={1} if fixed else set(), slack=4)
    batch, left, right = d.one_of(0, 0, 1, 2), *(d.one_of(0, 1, 2) for _ in range(2))
    outer = [d.size(1, 2, 3) for _ in range(batch)]
    attrs = {}
    lead_a = [1 if left == 1 and i == 0 else s for i, s in enumerate(outer)]
    lead_b = [] if right == 2 or fixed else [1 if right == 1 and i == 0 and left != 1 else s
                                             for i, s in enumerate(outer)]
    a_shape, b_shape = [*lead_a, m, k], [*lead_b, k, n]
    if op != "MatMul":
        attrs = {"transA": d.one_of(0, 1), "transB": d.one_of(0, 1), "alpha": d.one_of(1.0, 0.25)}
        if attrs["transA"]:
            a_shape[-2:] = k, m
        if attrs["transB"]:
            b_shape[-2:] = n, k
    elif batch == 0 and d.chance(0.2):
        a_shape = [k]
    elif d.chance(0.1):
        b_shape = [k]
    b = d.constant(b_shape, dtype) if fixed else d.values(b_shape, dtype)
    return Case(op, [d.values(a_shape, dtype), b], attrs, held={1} if fixed else set(), slack=4)


@family
def products_of_bytes(d: Draw) -> Case:
    a, b = d.one_of("int8", "uint8"), d.one_of("int8", "uint8")
    k, n, m = d.one_of(*SIZES), d.one_of(*SIZES), d.size()
    x = d.turn.integers(np.iinfo(a).min, np.iinfo(a).max + 1, (m, k)).astype(a)
    w = d.kind.integers(np.iinfo(b).min, np.iinfo(b).max + 1, (k, n)).astype(b)
    zero_a, zero_b = d.values([], a), d.constant([n] if d.chance(0.5) else [], b)
    if d.chance(0.5):
        return Case("MatMulInteger", [x, w, zero_a, zero_b], held={1, 3}, fixed={2})
    scales = [np.array(0.05, np.float32), np.full(zero_b.shape, 0.02, np.float32), np.array(0.4, np.float32)]
    out = d.one_of("int8", "uint8")
    zero_a = d.constant([], a)
    return Case("QLinearMatMul", [x, scales[0], zero_a, w, scales[1], zero_b, scales[2], d.constant([], out)],
                held={1, 2, 3, 4, 5, 6, 7}, own=True)


def _window(d: Draw, rank: int) -> tuple[dict[str, Any], list[int], list[int]]:
    """A window's attributes, its taps, and sizes of images that it fits."""
    taps = [d.one_of(1, 2, 3, 5) for _ in range(rank)]
    attrs: dict[str, Any] = {"strides": [d.one_of(1, 1, 2, 3) for _ in range(rank)],
                             "dilations": [d.one_of(1, 1, 1, 2) for _ in range(rank)]}
    if d.chance(0.25):
        attrs["auto_pad"] = d.one_of("SAME_UPPER", "SAME_LOWER", "VALID")
    elif d.chance(0.8):
        attrs["pads"] = [int(d.kind.integers(0, t)) for t in (*taps, *taps)]
    least = [(t - 1) * s + 1 for t, s in zip(taps, attrs["dilations"], strict=True)]
    return attrs, taps, [e + d.size(*(0, 1, 2, 5, 8, 13)[:3 if rank == 3 else 6]) for e in least]


@family
def convolution(d: Draw) -> Case:
    d.hostile = False
    rank, dtype, group = d.one_of(1, 2, 2, 3), d.one_of(*FLOATS), d.one_of(1, 1, 1, 2, 3)
    attrs, taps, sizes = _window(d, rank)
    channels, made = d.channels(), d.one_of(1, 2, 3, 5, 17)
    if d.chance(0.25):
        group, channels = d.one_of(3, 5, 8), 1
    if d.chance(0.1):
        channels, made = d.one_of(16, 24), d.one_of(16, 33)
    batch = d.size(1, 2, 3)
    x = d.values([batch, channels * group, *sizes], dtype)
    w = d.constant([made * group, channels, *taps], dtype)
    bias = [d.constant([made * group], dtype)] if d.chance(0.5) else []
    fixed = {1, 2} if d.chance(0.8) else set()
    return Case("Conv", [x, w, *bias], {**attrs, "group": group}, held=fixed, slack=4)


@family
def transposed_convolution(d: Draw) -> Case:
    d.hostile = False
    rank, dtype, group = d.one_of(1, 2, 2, 3), d.one_of(*FLOATS), d.one_of(1, 1, 2, 3)
    taps = [d.one_of(1, 2, 3) for _ in range(rank)]
    attrs = {"strides": [d.one_of(1, 2, 3) for _ in range(rank)],
             "dilations": [d.one_of(1, 1, 2) for _ in range(rank)], "group": group}
    if d.chance(0.4):
        attrs["pads"] = [int(d.kind.integers(0, t)) for t in (*taps, *taps)]
    if d.chance(0.4):
        attrs["output_padding"] = [int(d.kind.integers(0, max(s, e))) for s, e in
                                   zip(attrs["strides"], attrs["dilations"], strict=True)]
    channels, made = d.channels(), d.one_of(1, 2, 3, 5)
    x = d.values([d.size(1, 2, 3), channels * group, *(d.size(2, 3, 5, 8, 11) for _ in taps)], dtype)
    w = d.constant([channels * group, made, *taps], dtype)
    bias = [d.constant([made * group], dtype)] if d.chance(0.5) else []
    return Case("ConvTranspose", [x, w, *bias], attrs, held={1, 2}, slack=4)


@family
def convolution_of_bytes(d: Draw) -> Case:
    rank, group = d.one_of(1, 2, 2), d.one_of(1, 1, 2, 3)
    a, b = d.one_of("int8", "uint8"), d.one_of("int8", "uint8")
    attrs, taps, sizes = _window(d, rank)
    channels, made = d.channels(), d.one_of(1, 2, 3, 5)
    shape = [d.size(1, 2), channels * group, *sizes]
    x = d.turn.integers(np.iinfo(a).min, np.iinfo(a).max + 1, shape).astype(a)
    w = d.kind.integers(np.iinfo(b).min, np.iinfo(b).max + 1, [made * group, channels, *taps]).astype(b)
    attrs["group"] = group
    if d.chance(0.5):
        return Case("ConvInteger", [x, w, d.constant([], a), d.constant([], b)], attrs, held={1, 2, 3})
    per = [made * group] if d.chance(0.5) else []
    out = d.one_of("int8", "uint8")
    given = [x, np.array(0.05, np.float32), d.constant([], a), w, np.full(per, 0.02, np.float32),
             np.zeros(per, b), np.array(0.5, np.float32), d.constant([], out)]
    if d.chance(0.5):
        given.append(d.kind.integers(-999, 999, made * group).astype(np.int32))
    return Case("QLinearConv", list(given), attrs, held=set(range(1, 9)), own=True)


@family
def pooling(d: Draw) -> Case:
    op, rank = d.one_of("MaxPool", "MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool",
                        "LRN"), d.one_of(1, 2, 2, 3)
    dtype = d.one_of(*FLOATS, *(("int8", "uint8", "float64") if op == "MaxPool" else ()))
    d.hostile = d.hostile and op in ("MaxPool", "GlobalMaxPool")
    batch, channels = d.size(1, 2, 3), d.channels()
    if op == "LRN" or op.startswith("Global"):
        x = d.values([batch, channels, *(max(1, s) for s in d.shape(rank, 2048))],
                     dtype if op != "LRN" else "float32")
        return Case(op, [x], {"size": d.one_of(1, 2, 3, 5)} if op == "LRN" else {}, slack=4)
    attrs, taps, sizes = _window(d, rank)
    attrs["kernel_shape"] = taps
    if "auto_pad" not in attrs:
        attrs["ceil_mode"] = d.one_of(0, 1)
    if op == "AveragePool":
        attrs["count_include_pad"] = d.one_of(0, 1)
    if op == "LpPool":
        attrs["p"] = d.one_of(1, 2, 3)
    x = d.values([batch, channels, *sizes], dtype)
    return Case(op, [x], attrs, outputs=1 if op != "MaxPool" or d.chance(0.6) else 2, slack=4)


@family
def resize(d: Draw) -> Case:
    d.hostile = False
    rank, dtype = d.one_of(1, 2, 2, 3), d.one_of(*FLOATS, "uint8", "int8")
    mode = d.one_of("nearest", "linear", "cubic")
    attrs = {"mode": mode, "coordinate_transformation_mode": d.one_of(
        "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")}
    if mode == "nearest":
        attrs["nearest_mode"] = d.one_of("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    elif d.chance(0.3) and dtype in FLOATS:
        attrs["antialias"] = 1
    if mode == "cubic":
        rank = 2
        attrs["exclude_outside"] = d.one_of(0, 1)
        attrs["cubic_coeff_a"] = d.one_of(-0.75, -0.5)
    batch, channels = d.size(1, 2), d.channels()
    x = d.values([batch, channels, *(d.size(1, 2, 3, 5, 8, 13) for _ in range(rank))], dtype)
    if d.chance(0.5):
        scales = np.array([1, 1, *(d.one_of(0.5, 1.0, 1.5, 2.0, 3.0) for _ in range(rank))], np.float32)
        x = np.repeat(x, 2, axis=-1) if x.shape[-1] == 1 else x
        x = np.repeat(x, 2, axis=2) if x.shape[2] == 1 else x
        x = np.repeat(x, 2, axis=3) if rank > 1 and x.shape[3] == 1 else x
        return Case("Resize", [x, None, scales], attrs, held={2}, own=dtype not in FLOATS, slack=4)
    sizes = held(*x.shape[:2], *(d.one_of(1, 2, 3, 7, 12) for _ in range(rank)))
    attrs["axes"] = list(range(2, 2 + rank))
    return Case("Resize", [x, None, None, sizes[2:]], attrs, held={3}, own=dtype not in FLOATS, slack=4)


@family
def sampling(d: Draw) -> Case:
    d.hostile = False
    dtype, rank = d.one_of(*FLOATS), d.one_of(2, 2, 3)
    attrs = {"mode": d.one_of("linear", "nearest") if rank == 3 else d.one_of("linear", "nearest", "cubic"),
             "padding_mode": d.one_of("zeros", "border", "reflection"), "align_corners": d.one_of(0, 1)}
    batch = d.size(1, 2, 3)
    x = d.values([batch, d.channels(), *(d.size(1, 2, 3, 5, 8) for _ in range(rank))], dtype)
    grid = d.turn.uniform(-1.4, 1.4, [batch, *(d.size(1, 2, 3, 5, 8) for _ in range(rank)), rank])
    return Case("GridSample", [x, grid.astype(x.dtype)], attrs, own=True,
                slack=8 if dtype == "float32" else 4)


@family
def gather(d: Draw) -> Case:
    op = d.one_of("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")
    dtype, rank = d.one_of(*WIDE, *INTS, "bool"), d.one_of(1, 2, 3, 4)
    shape = [max(1, s) for s in d.shape(rank, 2048)]
    x, whole = d.values(shape, dtype), d.one_of("int64", "int32")
    if op == "GatherND":
        many, lead = d.one_of(*range(1, rank + 1)), d.one_of(0, 1, 2)
        shown = [d.size(1, 2, 3, 5, 0) for _ in range(lead)]
        at = np.stack([d.turn.integers(-n, n, shown) for n in shape[:many]], -1)
        return Case(op, [x, at.astype(np.int64)])
    if op == "ScatterND":
        many, reduction = d.one_of(*range(1, rank + 1)), d.one_of("none", "add", "max", "min", "mul")
        if dtype == "bool":
            reduction = "none"
        count, total = d.size(1, 2, 5), math.prod(shape[:many])
        flat = d.turn.choice(total, min(count, total), replace=False) if reduction in ("none",) else (
            d.turn.integers(0, total, count))
        at = np.stack(np.unravel_index(flat, shape[:many]), -1).astype(np.int64)
        return Case(op, [x, at, d.values([len(flat), *shape[many:]], dtype)], {"reduction": reduction},
                    own=True, slack=4)
    axis = d.one_of(*range(-rank, rank))
    n = shape[axis]
    if op == "Gather":
        at = d.turn.integers(-n, n, [d.size(0, 1, 2, 3, 5) for _ in range(d.one_of(0, 1, 2))])
        return Case(op, [x, np.asarray(at).astype(whole)], {"axis": axis})
    own = [int(d.turn.integers(1, s + 1)) for s in shape]
    if op == "GatherElements":
        own[axis] = d.size(1, 2, 3, 5, 9)
        return Case(op, [x, d.turn.integers(-n, n, own).astype(whole)], {"axis": axis})
    reduction = d.one_of("none", "add", "max", "min", "mul")
    reduction = "none" if dtype == "bool" else reduction
    at = np.argsort(d.turn.random([*own[:axis % rank], n, *own[axis % rank + 1:]]), axis)
    at = np.take(at, range(own[axis]), axis)
    if reduction != "none":
        at = d.turn.integers(-n, n, own)
    return Case(op, [x, at.astype(whole), d.values(own, dtype)], {"axis": axis, "reduction": reduction},
                own=True, slack=4)


@family
def rows_of_few_bits(d: Draw) -> Case:
    kind, block = d.one_of("uint8", "uint8", "uint4", "int4"), d.one_of(16, 32, 128)
    bits = d.one_of(2, 4, 8) if kind == "uint8" else 4
    each = 8 // bits if kind == "uint8" else 1
    width, kept = -(-d.one_of(1, 16, 31, 40, 130, 600) // each) * each, kind != "uint8" or d.chance(0.5)
    rng = d.kind if kept else d.turn
    size = int(rng.choice((1, 2, 3, 33)))
    blocks = -(-width // block)

    def codes(count: int) -> np.ndarray:
        if kind == "uint8":
            return rng.integers(0, 256, (size, -(-count // each))).astype(np.uint8)
        low = -8 if kind == "int4" else 0
        return rng.integers(low, low + 16, (size, count)).astype(getattr(ml_dtypes, kind))
    at = d.turn.integers(-size, size, [d.size(0, 1, 2, 3, 17) for _ in range(d.one_of(0, 1, 2))])
    given: list[Any] = [codes(width), np.asarray(at, d.one_of("int64", "int32")),
                        d.values((size, blocks), d.one_of(*FLOATS), rng)]
    given += [codes(blocks)] if d.chance(0.5) else []
    return Case(MS + "GatherBlockQuantized", given,
                {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1},
                held={0, 2, 3} if kept else set(), own=True)


@family
def movement(d: Draw) -> Case:
    op = d.one_of("Transpose", "Slice", "Concat", "Pad", "Tile", "Expand", "DepthToSpace", "SpaceToDepth",
                  "Split", "Flatten", "Reshape")
    dtype, rank = d.one_of(*WIDE, *INTS, "bool"), d.one_of(1, 2, 3, 4, 5)
    if op in ("DepthToSpace", "SpaceToDepth"):
        block = d.one_of(1, 2, 3)
        attrs: dict[str, Any] = {"blocksize": block}
        c, h, w = d.channels(), d.size(1, 2, 3, 5), d.size(1, 2, 3, 5)
        if op[0] == "D":
            attrs["mode"] = d.one_of("DCR", "CRD")
            return Case(op, [d.values([d.size(1, 2), c * block * block, h, w], dtype)], attrs)
        return Case(op, [d.values([d.size(1, 2), c, h * block, w * block], dtype)], attrs)
    x = d.values(d.shape(rank, 4096), dtype)
    axis = d.one_of(*range(-rank, rank))
    if op == "Transpose":
        return Case(op, [x], {"perm": [int(a) for a in d.kind.permutation(rank)]})
    if op == "Slice":
        axes = [a for a in range(rank) if d.chance(0.6)] or [0]
        numbers = [[d.one_of(-9, -2, 0, 1, 3) for _ in axes],
                   [d.one_of(-1, 2, 5, 99, -99) for _ in axes], axes,
                   [d.one_of(1, 1, 2, -1, -2) for _ in axes]]
        return Case(op, [x, *(held(*v) for v in numbers)], held={1, 2, 3, 4})
    if op == "Concat":
        others = [d.size(0, 1, 2, 5) for _ in range(d.one_of(1, 2))]
        more = [d.values([n if a == axis % rank else s for a, s in enumerate(x.shape)], dtype)
                for n in others]
        return Case(op, [x, *more], {"axis": axis})
    if op == "Pad":
        mode = d.one_of("constant", "edge", "reflect", "wrap")
        most = 4 if mode == "constant" else 1
        x = d.values([max(2, s) for s in x.shape], dtype) if mode != "constant" else x
        pads = held(*(d.one_of(*range(-1 if mode == "constant" else 0, most)) for _ in range(2 * rank)))
        x = d.values([max(3, s) for s in x.shape], dtype)
        return Case(op, [x, pads, *([d.constant([], dtype)] if mode == "constant" else [])], {"mode": mode},
                    held={1, 2})
    if op == "Tile":
        x = d.values([min(s, 9) for s in x.shape], dtype)
        return Case(op, [x, held(*(d.one_of(1, 2, 3) for _ in range(rank)))], held={1})
    if op == "Expand":
        given = [1 if d.chance(0.5) else 0 for _ in range(rank)]
        shape = [d.one_of(2, 3, 5) if one else 1 for one in given]
        x = d.values([1 if one else s for one, s in zip(given, x.shape, strict=True)], dtype)
        return Case(op, [x, held(*shape)], held={1})
    if op == "Split":
        parts = d.one_of(1, 2, 3)
        x = d.values([parts * s if a == axis % rank else min(s, 16) for a, s in enumerate(x.shape)], dtype)
        return Case(op, [x], {"axis": axis, "num_outputs": parts}, outputs=parts)
    if op == "Flatten":
        return Case(op, [x], {"axis": axis})
    x = d.values([max(1, s) for s in x.shape], dtype)
    return Case(op, [x, held(-1)], held={1})


@family
def chosen(d: Draw) -> Case:
    op, rank = d.one_of("NonZero", "Compress"), d.one_of(1, 2, 3, 4)
    dtype = d.one_of(*WIDE, *INTS, "bool") if op == "NonZero" else d.one_of(*F, "float64", *INTS, "bool")
    shape = d.shape(rank)
    if d.turn.random() < 0.2:
        shape[0] = d.size(1023, 1024, 1025, 2100)
        shape[1:] = [1] * (rank - 1)
    x = d.values(shape, dtype)
    share = d.turn.choice((0, 0.1, 0.5, 1))
    if op == "NonZero":
        return Case(op, [np.where(d.turn.random(shape) < share, x, np.zeros((), x.dtype))])
    axis = d.one_of(None, *range(-rank, rank))
    size = math.prod(shape) if axis is None else shape[axis]
    return Case(op, [x, d.turn.random(max(0, size - d.size(0, 0, 1, 3))) < share],
                {} if axis is None else {"axis": axis}, own=True)


@family
def suppression(d: Draw) -> Case:
    """Boxes on a coarse grid, so that shares of unions and scores are often equal."""
    images, classes, count = d.size(1, 1, 2, 3), d.size(1, 2, 5), d.size(0, 1, 2, 7, 40, 256, 300)
    boxes = d.turn.integers(-3, 9, [images, count, 4]).astype(np.float32) / 2
    scores = np.round(d.turn.normal(size=[images, classes, count]), 1).astype(np.float32)
    if d.hostile:
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38], np.float32)
        for x in (boxes, scores):
            at = d.turn.random(x.shape) < 0.1
            x[at] = d.turn.choice(odd, int(at.sum()))
    most = np.array([d.turn.choice((0, 1, 3, 1000))], np.int64)
    given: list[Any] = [boxes, scores, most]
    given += [np.array(d.turn.choice((0, 0.25, 1 / 3, 0.5, 1)), np.float32)] if d.chance(0.8) else [None]
    given += [np.array(d.turn.choice((-1, 0, 0.5)), np.float32)] if d.chance(0.6) else []
    return Case("NonMaxSuppression", given, {"center_point_box": d.one_of(0, 1)}, fixed={2, 3, 4}, own=True)


@family
def scans(d: Draw) -> Case:
    op, rank, dtype = "CumSum", d.one_of(1, 2, 3), d.one_of(*WIDE, "int32", "int64")
    axis = np.array(d.one_of(*range(-rank, rank)), np.int64)
    d.hostile = False
    x = d.values(d.shape(rank, 4096), dtype)
    return Case(op, [x, axis], {"exclusive": d.one_of(0, 1), "reverse": d.one_of(0, 1)}, held={1}, slack=8)


@family
def selection(d: Draw) -> Case:
    rank, dtype = d.one_of(1, 2, 3), d.one_of(*FLOATS, "int8", "uint8", "int32", "uint16")
    axis = d.one_of(*range(-rank, rank))
    k = d.one_of(1, 2, 5, 17)
    shape = d.shape(rank, 4096)
    shape[axis] = k + d.size(0, 1, 3, 12, 70, 300)
    x = d.values(shape, dtype)
    if dtype in FLOATS:
        x = np.nan_to_num(x.astype(np.float64), nan=2.0, posinf=np.inf, neginf=-np.inf).astype(x.dtype)
    return Case("TopK", [x, held(k)], {"axis": axis, "largest": d.one_of(0, 1), "sorted": 1}, outputs=2,
                held={1})


@family
def attention(d: Draw) -> Case:
    d.hostile = False
    dtype, kv = d.one_of(*FLOATS), d.one_of(1, 2, 3)
    group, size = d.one_of(1, 1, 2, 3), d.one_of(1, 2, 8, 16, 24, 65)
    batch, length, total = d.size(1, 2, 3), d.size(1, 2, 3, 7, 17, 33, 70), d.size(1, 2, 5, 16, 33, 70)
    value = d.one_of(size, size, 3, 20)
    q = d.values([batch, kv * group, length, size], dtype)
    k, v = d.values([batch, kv, total, size], dtype), d.values([batch, kv, total, value], dtype)
    attrs: dict[str, Any] = {"is_causal": d.one_of(0, 1)}
    if d.chance(0.3):
        attrs["scale"] = d.one_of(0.25, 1.0)
    if d.chance(0.3):
        attrs["softcap"] = 2.0
    given: list[Any] = [q, k, v]
    kind = d.one_of("", "bool", "add", "past")
    if kind in ("bool", "add"):
        shape = [length, total] if d.chance(0.5) else [batch, d.one_of(1, kv * group), length, total]
        mask = d.values(shape, "bool" if kind == "bool" else dtype)
        if kind == "bool":
            mask[..., 0] = True
        given.append(mask)
    elif kind == "past":
        held_rows = d.size(1, 3, 16)
        given += [None, d.values([batch, kv, held_rows, size], dtype),
                  d.values([batch, kv, held_rows, value], dtype)]
        return Case("Attention", given, attrs, outputs=3, slack=8)
    return Case("Attention", given, attrs, slack=8)


@family
def rotary(d: Draw) -> Case:
    d.hostile = False
    dtype, size = d.one_of(*FLOATS), 2 * d.one_of(1, 2, 4, 9, 32)
    batch, heads, length = d.size(1, 2, 3), d.channels(), d.size(1, 2, 5, 17)
    turned = d.one_of(0, 2) if size > 2 else 0
    x = d.values([batch, heads, length, size], dtype)
    caches = [d.constant([40, (turned or size) // 2], dtype) for _ in range(2)]
    places = d.turn.integers(0, 40, [batch, length]).astype(np.int64)
    return Case("RotaryEmbedding", [x, *caches, places],
                {"interleaved": d.one_of(0, 1), "rotary_embedding_dim": turned, "num_heads": heads}, slack=4)


@family
def recurrence(d: Draw) -> Case:
    d.hostile = False
    op, dtype = d.one_of("RNN", "GRU", "LSTM"), d.one_of("float32", "float32", "float16")
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    size, hidden = d.one_of(1, 2, 3, 5, 17), d.one_of(1, 2, 3, 5, 16, 19)
    length, batch = d.size(1, 2, 3, 7), d.size(1, 2, 3, 5)
    direction = d.one_of("forward", "reverse", "bidirectional")
    many = 2 if direction == "bidirectional" else 1
    given: list[Any] = [d.values([length, batch, size], dtype),
                        d.constant([many, gates * hidden, size], dtype),
                        d.constant([many, gates * hidden, hidden], dtype),
                        d.constant([many, 2 * gates * hidden], dtype) if d.chance(0.6) else None,
                        d.turn.integers(0, length + 1, batch).astype(np.int32) if d.chance(0.4) else None]
    for i in (1, 2, 3):
        given[i] = None if given[i] is None else (given[i] / 8).astype(given[i].dtype)
    given.append(d.values([many, batch, hidden], dtype) if d.chance(0.5) else None)
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attrs["linear_before_reset"] = d.one_of(0, 1)
    return Case(op, given, attrs, outputs=3 if op == "LSTM" else 2, held={1, 2, 3}, slack=8)


@family
def few_bits(d: Draw) -> Case:
    d.hostile = False
    dtype, bits, block = d.one_of("float32", "float16"), d.one_of(4, 4, 8), d.one_of(16, 32, 64)
    k, n = d.one_of(1, 5, 16, 33, 64, 130), d.one_of(1, 2, 3, 17, 64)
    blocks = -(-k // block)
    x = d.values([d.size(1, 2), d.size(1, 1, 2, 5, 17), k], dtype)
    w = d.kind.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = (d.kind.random((n, blocks)) * 0.1).astype(x.dtype)
    zeros = d.kind.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8) if d.chance(0.5) else None
    return Case(MS + "MatMulNBits", [x, w, scales, *([] if zeros is None else [zeros])],
                {"K": k, "N": n, "bits": bits, "block_size": block}, held={1, 2, 3}, slack=4)


@family
def quantize(d: Draw) -> Case:
    d.hostile = False
    op, rank = d.one_of("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), d.one_of(1, 2, 3)
    kind = d.one_of("int8", "uint8", "int16", "uint16")
    if op == "DynamicQuantizeLinear":
        return Case(op, [d.values([max(1, s) for s in d.shape(rank)], "float32")], outputs=3, own=True)
    per, axis, block = d.one_of("tensor", "axis", "block"), d.one_of(*range(rank)), d.one_of(2, 3)
    many = d.one_of(1, 2, 5, 17)
    along = many * (block if per == "block" else 1)
    shape = [along if a == axis else max(1, s) for a, s in enumerate(d.shape(rank, 4096))]
    shown: list[int] = [] if per == "tensor" else [many]
    attrs: dict[str, Any] = {} if per == "tensor" else {"axis": axis}
    fixed = {1, 2}
    if per == "block":
        shown = [many if a == axis else s for a, s in enumerate(shape)]
        attrs["block_size"], fixed = block, set()
    rng = d.turn if per == "block" else d.kind
    scale = np.asarray(2.0 ** rng.integers(-4, 1, shown)).astype(np.float32)
    zero = np.asarray(rng.integers(0, 9, shown)).astype(kind)
    x = d.values(shape, "float32" if op[0] == "Q" else kind)
    return Case(op, [x, scale, zero], attrs, held=fixed, own=True)
