"""Random valid applications of operators, family by family; each family is a function from `Draw` to a `Case`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from oracle import Case

F16, F32, F64, BF16 = np.float16, np.float32, np.float64, ml_dtypes.bfloat16
SIGNED, UNSIGNED = (np.int8, np.int16, np.int32, np.int64), (np.uint8, np.uint16, np.uint32, np.uint64)
INTS, FLOATS = (*SIGNED, *UNSIGNED), (F32, F64, F16, BF16)
NUMBERS = (*INTS, *FLOATS)
ANY = (*NUMBERS, np.bool_, np.complex64, object)


class Draw:
    """Draws of one case: hypothesis chooses the structure, a generator seeded by it the elements."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))

    def int(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def one(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def yes(self) -> bool:
        return self.draw(st.booleans())

    def shape(self, low: int = 0, high: int = 4, least: int = 0, most: int = 5) -> tuple[int, ...]:
        """A shape; a dimension of 0 is rare."""
        sizes = [max(least, n) for n in (*range(1, most + 1), *range(1, most + 1), 0)]
        return tuple(self.one(sizes) for _ in range(self.int(low, high)))

    def broadcastable(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        return tuple(1 if self.int(0, 3) == 0 else d for d in shape[self.int(0, len(shape)):])

    def axis(self, rank: int) -> int:
        return self.int(-rank, rank - 1)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        chosen = [a for a in range(rank) if self.yes()]
        if len(chosen) < least:
            chosen = list(range(min(rank, least)))
        return [a - rank if self.yes() else a for a in self.rng.permutation(chosen).tolist()]

    def array(self, shape: tuple[int, ...], dtype: Any = F32, low: float = -5, high: float = 6) -> np.ndarray:
        """Small values with repeats; for ints, of the whole range now and then."""
        dtype = np.dtype(dtype)
        if dtype.kind == "O":
            return np.asarray(self.rng.choice(np.array(["", "a", "bc", "ä€", "B"], object), shape), object)
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) > 0.5)
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            return np.asarray(self.rng.integers(max(int(low), bounds.min), min(int(high), bounds.max), shape,
                                                dtype=np.int64)).astype(dtype)
        if dtype.kind == "c":
            return np.asarray(self.rng.normal(size=shape) + 1j * self.rng.normal(size=shape)).astype(dtype)
        return np.asarray(self.rng.uniform(low, high, shape).round(2)).astype(dtype)

    def wild(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Values from the ends of the type's range, infinities and NaN among them."""
        dtype = np.dtype(dtype)
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            return np.asarray(self.rng.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True))
        x = self.array(shape, dtype)
        if dtype.kind in "fV":
            odd = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-5, 300.0, -300.0]).astype(dtype)
            return np.asarray(np.where(self.rng.random(shape) < 0.3, self.rng.choice(odd, shape), x)).astype(dtype)
        return x


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def positive(a: int, rank: int) -> int:
    return a % rank if rank else 0


# elementwise

_ARITHMETIC: dict[str, Any] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum,
    "Equal": np.equal, "Less": np.less, "Greater": np.greater, "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal, "Div": None, "Mod": None, "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor, "And": np.logical_and, "Or": np.logical_or,
    "Xor": np.logical_xor}


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
            wide = [[int(v) for v in np.broadcast_to(x, np.broadcast_shapes(a.shape, b.shape)).ravel()] for x in (a, b)]
            low, bits = int(np.iinfo(dtype).min), dtype.itemsize * 8
            y = np.array([((abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)) - low) % (1 << bits) + low
                          for p, q in zip(*wide, strict=True)], dtype).reshape(np.broadcast_shapes(a.shape, b.shape))
        elif dtype.kind == "V" or dtype == F16:
            wide = [x.astype(F32) for x in (a, b)]
            fn = {"Div": np.divide, "Mod": np.fmod}.get(op) or _ARITHMETIC[op]
            y = np.asarray(fn(*wide))
            y = y if y.dtype == bool else y.astype(dtype)
        else:
            fn = {"Div": np.divide, "Mod": np.fmod if attrs.get("fmod") else np.mod}.get(op) or _ARITHMETIC[op]
            y = np.asarray(fn(a, b))
            y = y.astype(bool) if y.dtype == object else y
    return Case(op, [a, b], attrs, opset=d.one([19, 21, 24]), expected=[y], open_shapes=d.yes())


_UNARY = ("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos",
          "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf", "Sigmoid", "Relu", "LeakyRelu", "Elu",
          "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Reciprocal", "Gelu",
          "Mish", "IsNaN", "IsInf", "Not", "BitwiseNot", "Shrink", "Identity")
_ALPHA = {"LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu"}


def unary(d: Draw) -> Case:
    op = d.one(_UNARY)
    types: Any = {"Not": (np.bool_,), "BitwiseNot": INTS, "Abs": (*INTS, F32, F64), "Neg": (*SIGNED, F32, F64),
                  "Sign": (*INTS, F32, F64), "Relu": (*SIGNED, F32, F64), "Identity": ANY}.get(op, (F32, F64))
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
    return Case(op, [d.array(d.broadcastable(shape), dtype) for _ in range(d.int(1, 4))], opset=d.one([13, 21]))


def ternary(d: Draw) -> Case:
    kind = d.one(["Where", "Clip", "PRelu", "Pow", "BitShift"])
    shape = d.shape()
    dtype = d.one((F32, F64, np.int32, np.int64, np.uint8, object))
    if kind == "Where":
        shapes = [d.broadcastable(shape) for _ in range(3)]
        return Case("Where", [d.array(shapes[0], bool), *(d.array(s, dtype) for s in shapes[1:])], opset=16)
    if kind == "Clip":
        dtype = F32 if dtype is object else dtype
        bounds = [d.array((), dtype, 0, 3) if d.yes() else None, d.array((), dtype, 0, 5) if d.yes() else None]
        return Case("Clip", [d.array(shape, dtype), *bounds], opset=13)
    if kind == "PRelu":
        dtype = d.one((F32, F64, np.int32))
        return Case("PRelu", [d.array(shape, dtype), d.array(d.broadcastable(shape), dtype)], opset=16)
    if kind == "Pow":
        base, power = d.one((F32, F64, np.int32, np.int64)), d.one((F32, F64, np.int32, np.int64))
        return Case("Pow", [d.array(shape, base, 1, 5), d.array(d.broadcastable(shape), power, 0, 4)], opset=15,
                    rtol=1e-4)
    dtype = d.one((np.uint8, np.uint32, np.uint64))
    return Case("BitShift", [d.wild(shape, dtype), d.array(d.broadcastable(shape), dtype, 0, 7)],
                {"direction": d.one(["LEFT", "RIGHT"])}, opset=11)


def cast(d: Draw) -> Case:
    types = (*INTS, F32, F64, F16, np.bool_)
    source, target = d.one(types), d.one(types)
    x = d.array(d.shape(), source, 0, 100)
    to = {np.int8: 3, np.int16: 5, np.int32: 6, np.int64: 7, np.uint8: 2, np.uint16: 4, np.uint32: 12, np.uint64: 13,
          F32: 1, F64: 11, F16: 10, np.bool_: 9}[target]
    return Case("Cast", [x], {"to": to}, opset=d.one([13, 19, 21]), expected=[x.astype(target)])


# reductions

_REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
           "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")


def reduction(d: Draw) -> Case:
    op = d.one(_REDUCE)
    dtype = d.one((F32, F64, np.int32, np.int64) if op not in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
                  else (F32, F64))
    shape = tuple(max(1, n) for n in d.shape(0, 5, most=4)) if op not in ("ReduceSum", "ReduceProd") else \
        d.shape(0, 5, most=4)
    x = d.array(shape, dtype, 1 if "Log" in op and op != "ReduceLogSumExp" else -3, 4)
    axes = sorted(d.axes(x.ndim), key=lambda a: a % x.ndim)
    attrs: dict[str, Any] = {}
    if d.yes():
        attrs["keepdims"] = d.int(0, 1)
    if d.yes():
        opset = 13
        if op == "ReduceSum":
            return Case(op, [x, ints(*axes)] if axes else [x], attrs, opset=opset, rtol=1e-4,
                        expected=_folded(op, x, axes, attrs))
        return Case(op, [x], {**attrs, **({"axes": axes} if axes else {})}, opset=opset, rtol=1e-4,
                    expected=_folded(op, x, axes, attrs))
    given = d.int(0, 2)
    if given == 0:
        attrs["noop_with_empty_axes"] = d.int(0, 1)
    inputs = [x, ints(*axes)] if given == 2 else [x, ints()] if given == 1 else [x]
    expected = None if attrs.get("noop_with_empty_axes") else _folded(op, x, axes if given == 2 else [], attrs)
    return Case(op, inputs, attrs, opset=18, rtol=1e-4, open_shapes=d.yes(), expected=expected)


def _folded(op: str, x: np.ndarray, axes: list[int], attrs: dict[str, Any]) -> list[Any] | None:
    """What numpy says of a sum or a product, which onnxruntime misjudges where a dimension is 0."""
    fold = {"ReduceSum": np.sum, "ReduceProd": np.prod}.get(op)
    if fold is None:
        return None
    return [np.asarray(fold(x, axis=tuple(axes) or None, keepdims=bool(attrs.get("keepdims", 1)), dtype=x.dtype))]


def arg_reduction(d: Draw) -> Case:
    op = d.one(["ArgMax", "ArgMin"])
    x = d.array(d.shape(1, 4, least=1), d.one((F32, F64, np.int32, np.int8)), -2, 3)
    return Case(op, [x], {"axis": d.axis(x.ndim), "keepdims": d.int(0, 1), "select_last_index": d.int(0, 1)}, opset=13)


def along_axis(d: Draw) -> Case:
    op = d.one(["Softmax", "LogSoftmax", "Hardmax", "CumSum", "LpNormalization", "Softmax", "LogSoftmax"])
    x = d.array(d.shape(1, 4), d.one((F32, F64)))
    axis = d.axis(x.ndim)
    if op == "CumSum":
        return Case(op, [x, np.array(axis, d.one((np.int32, np.int64)))],
                    {"exclusive": d.int(0, 1), "reverse": d.int(0, 1)}, opset=14, rtol=1e-4)
    if op == "LpNormalization":
        return Case(op, [x], {"axis": axis, "p": d.int(1, 2)}, opset=1, rtol=1e-4)
    return Case(op, [x], {"axis": axis}, opset=d.one([11, 13, 21]))


# movement

def slice_(d: Draw) -> Case:
    opset = d.one([10, 13])
    x = d.array(d.shape(1, 4, most=6), d.one([t for t in ANY if opset > 10 or t is not BF16]))
    axes = d.axes(x.ndim, 1)
    starts, ends, steps = [], [], []
    for a in axes:
        n = x.shape[a]
        step = d.one([1, 1, 1, 2, 3, -1, -2])
        starts.append(d.one([0, 1, n, -n - 1, n + 3, -1, 2]))
        ends.append(d.one([n, 0, n + 5, 1 << 40 if step > 0 else 9, -1, 3, -(1 << 40), -n - 2]))
        steps.append(step)
    kind = d.one((np.int32, np.int64))
    if kind == np.int32:
        ends = [max(min(e, (1 << 31) - 1), -(1 << 31)) for e in ends]
    inputs = [x, *(np.array(v, kind) for v in (starts, ends, axes, steps))]
    return Case("Slice", inputs, opset=opset, open_shapes=d.yes())


def gather(d: Draw) -> Case:
    x = d.array(d.shape(1, 4, least=1), d.one(ANY))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    if d.yes():
        index = d.array(d.shape(0, 3), d.one((np.int32, np.int64)), -n, n)
        return Case("Gather", [x, index], {"axis": axis}, opset=13, open_shapes=d.yes(),
                    expected=[np.asarray(np.take(x, index, axis), x.dtype)])
    shape = tuple(d.int(1, s) for s in x.shape)
    shape = tuple(d.int(0, 4) if i == positive(axis, x.ndim) else s for i, s in enumerate(shape))
    index = d.array(shape, d.one((np.int32, np.int64)), -n, n)
    return Case("GatherElements", [x, index], {"axis": axis}, opset=13, open_shapes=d.yes())


def gather_nd(d: Draw) -> Case:
    x = d.array(d.shape(1, 4, least=1), d.one((F32, F64, np.int64, bool, object)))
    batch = d.int(0, x.ndim - 1)
    last = d.int(1, x.ndim - batch)
    shape = (*x.shape[:batch], *d.shape(0, 2, most=3), last)
    bounds = x.shape[batch:batch + last]
    index = np.stack([d.array(shape[:-1], np.int64, -b, b) for b in bounds], -1)
    return Case("GatherND", [x, index], {"batch_dims": batch}, opset=13)


def scatter(d: Draw) -> Case:
    dtype = d.one((F32, F64, np.int64, np.int32, bool, object))
    x = d.array(d.shape(1, 4, least=1), dtype)
    how = d.one(["none", "add", "mul", "max", "min"]) if dtype not in (bool, object) else "none"
    opset = 18 if how in ("max", "min") else 16
    if d.yes():
        axis = d.axis(x.ndim)
        shape = tuple(d.int(0, s) for s in x.shape)
        index = d.array(shape, np.int64, -x.shape[axis], x.shape[axis])
        if how == "none":
            index = np.argsort(d.array(shape, F32), positive(axis, x.ndim)).astype(np.int64)
        return Case("ScatterElements", [x, index, d.array(shape, dtype)], {"axis": axis, "reduction": how}, opset=opset)
    last = d.int(1, x.ndim)
    outer = d.shape(1, 2, most=3)
    index = np.stack([d.array(outer, np.int64, -b, b) for b in x.shape[:last]], -1)
    updates = d.array((*outer, *x.shape[last:]), dtype)
    if how == "none":
        updates = np.broadcast_to(d.array((1,) * updates.ndim, dtype), updates.shape).copy()
    return Case("ScatterND", [x, index, updates], {"reduction": how}, opset=opset)


def pad(d: Draw) -> Case:
    x = d.array(d.shape(1, 4, least=1), d.one((F32, F64, np.int32, np.int64, np.uint8, np.int8, bool)))
    mode = d.one(["constant", "constant", "reflect", "edge", "wrap"])
    opset = d.one([13, 18, 19, 21]) if mode != "wrap" else 19
    axes = d.axes(x.ndim, 1) if opset >= 18 and d.yes() else None
    sizes = [x.shape[a] for a in axes] if axes is not None else list(x.shape)
    most = [n - 1 if mode == "reflect" else n if mode == "wrap" else 3 for n in sizes]
    least = [-(n // 2) if mode == "constant" else 0 for n in sizes]
    pads = [d.int(least[i % len(most)], most[i % len(most)]) for i in range(2 * len(most))]
    inputs: list[Any] = [x, ints(*pads), d.array((), x.dtype) if mode == "constant" and d.yes() else None]
    if axes is not None:
        inputs.append(ints(*axes))
    return Case("Pad", inputs, {"mode": mode}, opset=opset)


def joined(d: Draw) -> Case:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape))
    dtype = d.one(ANY)
    parts = [d.array(tuple(d.int(0, 3) if i == positive(axis, len(shape)) else s for i, s in enumerate(shape)), dtype)
             for _ in range(d.int(1, 4))]
    return Case("Concat", parts, {"axis": axis}, opset=13, expected=[np.concatenate(parts, axis)])


def split(d: Draw) -> Case:
    shape = d.shape(1, 4)
    axis, dtype = d.axis(len(shape)), d.one(ANY)
    if d.yes():
        sizes = [d.int(0, 3) for _ in range(d.int(1, 4))]
        x = d.array(tuple(sum(sizes) if i == positive(axis, len(shape)) else s for i, s in enumerate(shape)), dtype)
        expected = [v.copy() for v in np.split(x, np.cumsum(sizes)[:-1], axis)]
        return Case("Split", [x, ints(*sizes)], {"axis": axis}, opset=13, outputs=len(sizes), expected=expected)
    count = d.int(1, 3)
    n = d.int(count, 7)
    x = d.array(tuple(n if i == positive(axis, len(shape)) else s for i, s in enumerate(shape)), dtype)
    size = -(-n // count)
    if (count - 1) * size > n:
        count = 1
    return Case("Split", [x], {"axis": axis, "num_outputs": count}, opset=18, outputs=count)


def reshaped(d: Draw) -> Case:
    kind = d.one(["Transpose", "Reshape", "Expand", "Tile", "Flatten", "Squeeze", "Unsqueeze", "DepthToSpace",
                  "SpaceToDepth", "Trilu", "Shape", "Size", "ReverseSequence", "EyeLike"])
    x = d.array(d.shape(0, 4), d.one(ANY))
    if kind == "Transpose":
        perm = d.rng.permutation(x.ndim).tolist()
        given = {"perm": perm} if perm and d.yes() else {}
        return Case(kind, [x], given, opset=13, expected=[x.transpose(perm if given else None).copy()])
    if kind == "Reshape":
        sizes = _factors(d, x.size)
        shape = list(sizes)
        if shape and x.size and d.yes():
            shape[d.int(0, len(shape) - 1)] = -1
        zero = int(0 in shape)
        return Case(kind, [x, ints(*shape)], {"allowzero": zero}, opset=14, expected=[x.reshape(sizes)])
    if kind == "Expand":
        shape = [d.int(1, 3) for _ in range(d.int(0, 2))] + [d.one([n, 1]) if n != 1 else d.int(1, 3) for n in x.shape]
        return Case(kind, [x, ints(*shape)], opset=13,
                    expected=[np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))).copy()])
    if kind == "Tile":
        repeats = [d.int(0, 3) for _ in x.shape]
        return Case(kind, [x, ints(*repeats)], opset=13, expected=[np.tile(x, repeats)])
    if kind == "Flatten":
        axis = d.int(-x.ndim, x.ndim)
        cut = axis + x.ndim if axis < 0 else axis
        return Case(kind, [x], {"axis": axis}, opset=13,
                    expected=[x.reshape(math.prod(x.shape[:cut]), math.prod(x.shape[cut:]))])
    if kind in ("Squeeze", "Unsqueeze"):
        extra = d.int(0 if kind == "Squeeze" else 1, 2)
        places = sorted(d.rng.permutation(x.ndim + extra)[:extra].tolist())
        wide = np.expand_dims(x, tuple(places))
        axes = [p - wide.ndim if d.yes() else p for p in places]
        source, target = (wide, x) if kind == "Squeeze" else (x, wide)
        if kind == "Squeeze" and not axes:
            return Case(kind, [x], opset=13, expected=[x.reshape([n for n in x.shape if n != 1])])
        return Case(kind, [source, ints(*axes)], opset=13, expected=[target])
    if kind in ("DepthToSpace", "SpaceToDepth"):
        b = d.int(1, 3)
        deep = kind == "DepthToSpace"
        shape = (d.int(1, 2), d.int(1, 2) * (b * b if deep else 1), *(d.int(1, 3) * (1 if deep else b) for _ in "hw"))
        attrs = {"blocksize": b, **({"mode": d.one(["DCR", "CRD"])} if deep else {})}
        return Case(kind, [d.array(shape)], attrs, opset=13)
    if kind == "Trilu":
        x = d.array(d.shape(2, 4), d.one((F32, F64, np.int64, bool)))
        k = [ints(d.int(-4, 4)).reshape(())] if d.yes() else []
        return Case(kind, [x, *k], {"upper": d.int(0, 1)}, opset=14)
    if kind == "Shape":
        start, end = d.int(-5, 5), d.int(-5, 5)
        return Case(kind, [x], {"start": start, "end": end}, opset=15)
    if kind == "ReverseSequence":
        x = d.array(d.shape(2, 4, least=1), d.one((F32, np.int64, object)))
        axis = d.int(0, 1)
        lengths = d.array((x.shape[1 - axis],), np.int64, 1, x.shape[axis] + 1)
        return Case(kind, [x, lengths], {"time_axis": axis, "batch_axis": 1 - axis}, opset=10)
    if kind == "EyeLike":
        x = d.array(d.shape(2, 2), d.one((F32, F64, np.int32, np.int64)))
        return Case(kind, [x], {"k": d.int(-3, 3)}, opset=9)
    return Case("Size", [x], opset=13, expected=[np.array(x.size, np.int64)])


def _factors(d: Draw, size: int) -> tuple[int, ...]:
    out, left = [], size
    for _ in range(d.int(0 if size == 1 else 1, 3)):
        divisors = [k for k in range(1, 7) if left and left % k == 0] or [0, 1, 2]
        out.append(d.one(divisors))
        left = left // out[-1] if out[-1] else 0
    if math.prod(out) != size:
        out.append(left)
    return tuple(out) if math.prod(out) == size else (size,)


# selection

def selected(d: Draw) -> Case:
    kind = d.one(["TopK", "Unique", "OneHot", "NonZero", "Compress", "NonMaxSuppression", "Range", "ConstantOfShape"])
    if kind == "TopK":
        x = d.array(d.shape(1, 4, least=1), d.one((F32, F64, np.int64, np.int32)), -3, 3)
        axis = d.axis(x.ndim)
        k = d.int(0, x.shape[axis])
        return Case(kind, [x, ints(k)], {"axis": axis, "largest": d.int(0, 1)}, opset=11, outputs=2)
    if kind == "Unique":
        x = d.array(d.shape(1, 3, least=1), d.one((F32, F64, np.int64, np.int8, object)), -2, 3)
        attrs: dict[str, Any] = {"sorted": d.int(0, 1)}
        if d.yes():
            attrs["axis"] = d.axis(x.ndim)
        return Case(kind, [x], attrs, opset=11, outputs=4)
    if kind == "OneHot":
        index = d.array(d.shape(0, 3), d.one((np.int64, np.int32, F32)), -6, 6)
        if index.dtype == F32:
            index = index.round()
        depth = np.array(d.int(1, 5), d.one((np.int64, np.int32, F32)))
        values = d.array((2,), d.one((F32, np.int64, np.int32)))
        return Case(kind, [index, depth, values], {"axis": d.int(-index.ndim - 1, index.ndim)}, opset=11)
    if kind == "NonZero":
        x = d.array(d.shape(1, 4), d.one((F32, np.int64, np.int32, np.uint8, bool)), -1, 2)
        return Case(kind, [x], opset=13, expected=[np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)])
    if kind == "Compress":
        x = d.array(d.shape(1, 3), d.one((F32, np.int64, object)))
        attrs = {"axis": d.axis(x.ndim)} if d.yes() else {}
        n = x.shape[attrs["axis"]] if attrs else x.size
        return Case(kind, [x, d.array((d.int(0, n),), bool)], attrs, opset=11)
    if kind == "NonMaxSuppression":
        batch, boxes, classes = d.int(1, 2), d.int(1, 8), d.int(1, 3)
        corners = d.array((batch, boxes, 4), F32, 0, 4)
        rest = [ints(d.int(0, 4)), d.array((1,), F32, 0, 1), d.array((1,), F32, 0, 1)][:d.int(1, 3)]
        scores = d.rng.permutation(batch * classes * boxes).reshape(batch, classes, boxes).astype(F32) / 48
        return Case(kind, [corners, scores, *rest], {"center_point_box": d.int(0, 1)}, opset=11)
    if kind == "Range":
        dtype = d.one((F32, F64, np.int64, np.int32))
        step = d.one([1, 2, -1, 3, -2])
        return Case(kind, [np.array(v, dtype) for v in (d.int(-5, 5), d.int(-5, 12), step)], opset=11)
    return Case(kind, [ints(*d.shape())], opset=9)


# contractions

def matmul(d: Draw) -> Case:
    dtype = d.one((F32, F32, F64, np.int32, np.int64, np.uint32))
    batch = d.shape(0, 3, most=3)
    m, k, n = (d.one([1, 2, 3, 5, 7, 0]) for _ in range(3))
    a, b = (*d.broadcastable(batch), m, k), (*d.broadcastable(batch), k, n)
    if d.int(0, 4) == 0:
        a = (k,)
    if d.int(0, 4) == 0:
        b = (k,)
    x, y = d.array(a, dtype), d.array(b, dtype)
    return Case("MatMul", [x, y], opset=13, expected=[np.asarray(np.matmul(x, y))], rtol=1e-4, open_shapes=d.yes())


def gemm(d: Draw) -> Case:
    m, k, n = (d.one([1, 2, 3, 5, 8]) for _ in range(3))
    attrs: dict[str, Any] = {"transA": d.int(0, 1), "transB": d.int(0, 1)}
    if d.yes():
        attrs |= {"alpha": d.one([0.5, 2.0]), "beta": d.one([0.0, 0.25])}
    a, b = (k, m) if attrs["transA"] else (m, k), (n, k) if attrs["transB"] else (k, n)
    dtype = d.one((F32, F64))
    c = [d.array(d.broadcastable((m, n)), dtype)] if d.yes() else []
    return Case("Gemm", [d.array(a, dtype), d.array(b, dtype), *c], attrs, opset=d.one([11, 13]), rtol=1e-4, atol=1e-5)


def einsum(d: Draw) -> Case:
    letters = "abcde"
    sizes = {c: d.int(1, 4) for c in letters}
    terms = []
    for _ in range(d.int(1, 3)):
        terms.append("".join(d.rng.permutation(list(letters))[:d.int(1, 3)]))
    met = sorted(set("".join(terms)))
    out = "".join(d.rng.permutation([c for c in met if d.yes()]).tolist())
    equation = ",".join(terms) + ("->" + out if d.yes() else "")
    arrays = [d.array(tuple(sizes[c] for c in t), F32, -2, 3) for t in terms]
    y = np.einsum(equation, *(a.astype(F64) for a in arrays)).astype(F32)
    return Case("Einsum", arrays, {"equation": equation}, opset=12, rtol=1e-4, atol=1e-4, expected=[np.asarray(y)])


def _window(d: Draw, n: int, least: int = 1) -> tuple[dict[str, Any], list[int], list[int]]:
    """Strides, dilations, pads or auto_pad, the kernel, and sizes it fits in."""
    kernel = [d.int(1, 3) for _ in range(n)]
    attrs: dict[str, Any] = {}
    if d.yes():
        attrs["strides"] = [d.int(1, 3) for _ in range(n)]
    if d.yes():
        attrs["dilations"] = [d.int(1, 2) for _ in range(n)]
    reach = [(k - 1) * e + 1 for k, e in zip(kernel, attrs.get("dilations", [1] * n), strict=True)]
    how = d.one(["pads", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if how == "pads":
        attrs["pads"] = [d.int(0, k - 1) for k in (*kernel, *kernel)]
    elif how != "NOTSET" or d.yes():
        attrs["auto_pad"] = how
    sizes = [d.int(r, r + 4) for r in reach]
    return attrs, kernel, sizes


def conv(d: Draw) -> Case:
    n, group = d.one([1, 2, 2, 3]), d.one([1, 1, 2, 3])
    attrs, kernel, sizes = _window(d, n)
    if attrs.get("auto_pad", "").startswith("SAME") and "dilations" in attrs:
        del attrs["dilations"]
    c, m = d.int(1, 3), d.int(1, 3)
    x = d.array((d.int(1, 2), c * group, *sizes), F32)
    w = d.array((m * group, c, *kernel), F32)
    b = [d.array((m * group,), F32)] if d.yes() else []
    if d.yes():
        attrs["kernel_shape"] = kernel
    return Case("Conv", [x, w, *b], {**attrs, "group": group}, opset=d.one([11, 22]), rtol=1e-4, atol=1e-4,
                open_shapes=d.int(0, 3) == 0)


def conv_transpose(d: Draw) -> Case:
    n, group = d.one([1, 2, 2, 3]), d.one([1, 1, 2])
    attrs, kernel, sizes = _window(d, n)
    strides = attrs.get("strides", [1] * n)
    if d.yes():
        attrs["output_padding"] = [d.int(0, s - 1) for s in strides]
    c, m = d.int(1, 3), d.int(1, 3)
    x = d.array((d.int(1, 2), c * group, *sizes), F32)
    w = d.array((c * group, m, *kernel), F32)
    b = [d.array((m * group,), F32)] if d.yes() else []
    return Case("ConvTranspose", [x, w, *b], {**attrs, "group": group}, opset=d.one([11, 22]), rtol=1e-4, atol=1e-4)


def pool(d: Draw) -> Case:
    op = d.one(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    n = d.one([1, 2, 2, 3])
    attrs, kernel, sizes = _window(d, n)
    x = d.array((d.int(1, 2), d.int(1, 3), *sizes), F32)
    if op.startswith("Global"):
        return Case(op, [x], opset=1 if op != "GlobalLpPool" else 2, rtol=1e-4)
    if d.yes() and op != "LpPool":
        attrs["ceil_mode"] = d.int(0, 1)
    outputs = 1
    if op == "AveragePool":
        attrs["count_include_pad"] = d.int(0, 1)
    elif op == "LpPool":
        attrs["p"] = d.int(1, 3)
    elif d.yes():
        outputs, attrs["storage_order"] = 2, d.int(0, 1)
    if attrs.get("auto_pad", "").startswith("SAME"):
        attrs.pop("dilations", None)
        attrs["strides"] = [min(s, k + 1) for s, k in zip(attrs.get("strides", [1] * n), kernel, strict=True)]
    return Case(op, [x], {**attrs, "kernel_shape": kernel}, opset=22 if op != "LpPool" else 18, outputs=outputs,
                rtol=1e-4, atol=1e-5)


def resize(d: Draw) -> Case:
    n = d.one([1, 2, 2, 3])
    mode = d.one(["nearest", "linear", "cubic"])
    if mode == "cubic":
        n = 2
    x = d.array((1, d.int(1, 2), *(d.int(1, 6) for _ in range(n))), F32)
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": d.one(
        ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric"])}
    if mode == "nearest":
        attrs["nearest_mode"] = d.one(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        attrs |= {"cubic_coeff_a": d.one([-0.75, -0.5]), "exclude_outside": d.int(0, 1)}
    if mode != "nearest" and d.int(0, 3) == 0:
        attrs["antialias"] = 1
    if d.yes():
        whole = attrs["coordinate_transformation_mode"] == "align_corners"
        return Case("Resize", [x, None, np.array([1, 1, *(d.one([1, 2, 3] if whole else [0.5, 0.6, 1, 1.5, 2, 3])
                                                          for _ in range(n))], F32)],
                    attrs, opset=18, rtol=1e-4, atol=1e-4)
    return Case("Resize", [x, None, None, ints(*x.shape[:2], *(d.int(1, 8) for _ in range(n)))], attrs, opset=18,
                rtol=1e-4, atol=1e-4)


def normalization(d: Draw) -> Case:
    kind = d.one(["LayerNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN",
                  "MeanVarianceNormalization", "RMSNormalization"])
    x = d.array((d.int(1, 3), d.one([2, 4]), *d.shape(1, 2, least=1)), F32)
    c = x.shape[1]
    eps = {"epsilon": d.one([1e-5, 1e-3])} if d.yes() else {}
    if kind in ("LayerNormalization", "RMSNormalization"):
        axis = d.axis(x.ndim)
        shape = x.shape[axis:] if axis < 0 else x.shape[positive(axis, x.ndim):]
        dtype = d.one((F32, F64)) if kind == "LayerNormalization" else F32
        bias = [d.array(shape, dtype)] if d.yes() and kind == "LayerNormalization" else []
        return Case(kind, [x.astype(dtype), d.array(shape, dtype), *bias], {"axis": axis, **eps},
                    opset=17 if bias or kind == "LayerNormalization" else 23, rtol=1e-4, atol=1e-4)
    if kind == "BatchNormalization":
        return Case(kind, [x, d.array((c,)), d.array((c,)), d.array((c,)), d.array((c,), F32, 1, 3)], eps, opset=15,
                    rtol=1e-4, atol=1e-5)
    if kind == "InstanceNormalization":
        return Case(kind, [x, d.array((c,)), d.array((c,))], eps, opset=6, rtol=1e-3, atol=1e-3)
    if kind == "GroupNormalization":
        return Case(kind, [x, d.array((c,)), d.array((c,))], {**eps, "num_groups": d.one([1, 2])}, opset=21, rtol=1e-3,
                    atol=1e-3)
    if kind == "LRN":
        x = d.array((2, 4, 3, 3), F32)
        return Case(kind, [x], {"size": d.one([1, 3, 5]), "alpha": 0.01, "bias": 1.5}, opset=13, rtol=1e-4)
    x = d.array((2, 3, 2, 3), F32)
    return Case(kind, [x], {"axes": [0, 2, 3]} if d.yes() else {}, opset=13, rtol=1e-4, atol=1e-4)


def recurrent(d: Draw) -> Case:
    op, gates = d.one([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = d.one(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    steps, batch, size, hidden = d.int(1, 4), d.int(1, 3), d.int(1, 3), d.int(1, 3)
    inputs: list[Any] = [d.array((steps, batch, size), F32, -1, 1), d.array((ways, gates * hidden, size), F32, -1, 1),
                         d.array((ways, gates * hidden, hidden), F32, -1, 1)]
    inputs.append(d.array((ways, 2 * gates * hidden), F32, -1, 1) if d.yes() else None)
    inputs.append(d.array((batch,), np.int32, 1, steps + 1) if d.yes() else None)
    inputs.append(d.array((ways, batch, hidden), F32, -1, 1) if d.yes() else None)
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "LSTM":
        inputs.append(d.array((ways, batch, hidden), F32, -1, 1) if d.yes() else None)
        inputs.append(d.array((ways, 3 * hidden), F32, -1, 1) if d.yes() else None)
        if d.int(0, 3) == 0:
            attrs["input_forget"] = 1
        if d.int(0, 3) == 0:
            attrs["activations"] = ["HardSigmoid", "Relu", "Tanh"] * ways
    elif op == "GRU":
        attrs["linear_before_reset"] = d.int(0, 1)
        if d.int(0, 3) == 0:
            attrs["activations"] = ["HardSigmoid", "Softsign"] * ways
    elif d.int(0, 3) == 0:
        attrs["activations"] = ["Relu"] * ways
    if d.int(0, 3) == 0:
        attrs["clip"] = 0.5
    return Case(op, inputs, attrs, opset=14, outputs=3 if op == "LSTM" else 2, rtol=1e-4, atol=1e-5)


# quantization

def quantized(d: Draw) -> Case:
    kind = d.one(["QuantizeLinear", "DequantizeLinear", "MatMulInteger", "QLinearMatMul", "DynamicQuantizeLinear",
                  "ConvInteger", "QLinearConv", "QuantizeLinear", "DequantizeLinear"])
    dtype = d.one((np.uint8, np.int8))
    if kind in ("QuantizeLinear", "DequantizeLinear"):
        quant = d.one((np.uint8, np.int8, np.int16, np.uint16))
        shape = d.shape(1, 4, least=1)
        how = d.one(["tensor", "axis", "block"])
        axis = d.axis(len(shape))
        n = shape[axis]
        block = d.int(1, n)
        scales: tuple[int, ...] = () if how == "tensor" else (n,) if how == "axis" else tuple(
            -(-s // block) if i == positive(axis, len(shape)) else s for i, s in enumerate(shape))
        attrs = {"axis": axis, **({"block_size": block} if how == "block" else {})}
        scale = d.array(scales, F32, 0.1, 2)
        zero = [d.array(scales, quant, 0, 9)] if d.yes() or kind == "QuantizeLinear" else []
        x = d.array(shape, F32, -300, 300) if kind == "QuantizeLinear" else d.wild(shape, quant)
        return Case(kind, [x, scale, *zero], attrs, opset=21)
    if kind == "DynamicQuantizeLinear":
        return Case(kind, [d.array(d.shape(1, 3, least=1), F32)], opset=11, outputs=3)
    if kind == "MatMulInteger":
        m, k, n = (d.int(1, 5) for _ in range(3))
        other = d.one((np.uint8, np.int8))
        zeros: list[Any] = [d.array((), dtype, 0, 9) if d.yes() else None,
                            d.array(d.one([(), (n,)]), other, 0, 9) if d.yes() else None]
        return Case(kind, [d.wild((*d.shape(0, 1, least=1), m, k), dtype), d.wild((k, n), other), *zeros], opset=10)
    scales = [d.array((), F32, 0.1, 1) for _ in range(3)]
    if kind == "QLinearMatMul":
        m, k, n = (d.int(1, 5) for _ in range(3))
        other = d.one((np.uint8, np.int8)) if dtype == np.uint8 else np.int8
        return Case(kind, [d.array((m, k), dtype, 0, 100), scales[0], d.array((), dtype, 0, 9),
                           d.array((k, n), other, 0, 100), scales[1], d.array((), other, 0, 9),
                           d.array((), F32, 50, 100), d.array((), dtype, 0, 9)], opset=10)
    attrs, kernel, sizes = _window(d, 2)
    if attrs.get("auto_pad", "").startswith("SAME"):
        attrs.pop("dilations", None)
    c, m = d.int(1, 3), d.int(1, 3)
    x, w = d.array((1, c, *sizes), np.uint8, 0, 200), d.array((m, c, *kernel), np.uint8, 0, 200)
    if kind == "ConvInteger":
        return Case(kind, [x, w, d.array((), np.uint8, 0, 9), d.array((), np.uint8, 0, 9)], attrs, opset=10)
    bias = [d.array((m,), np.int32, -100, 100)] if d.yes() else []
    return Case(kind, [x, scales[0], d.array((), np.uint8, 0, 9), w, scales[1], d.array((), np.uint8, 0, 9),
                       d.array((), F32, 20, 50), d.array((), np.uint8, 0, 9), *bias], attrs, opset=10)


def sampled(d: Draw) -> Case:
    if d.yes():
        n = d.one([2, 2, 3])
        x = d.array((d.int(1, 2), d.int(1, 2), *(d.int(1, 5) for _ in range(n))), F32)
        grid = d.array((x.shape[0], *(d.int(1, 3) for _ in range(n)), n), F32, -1.3, 1.3)
        mode = d.one(["linear", "nearest", "cubic"]) if n == 2 else d.one(["linear", "nearest"])
        return Case("GridSample", [x, grid], {"mode": mode, "align_corners": d.int(0, 1), "padding_mode": d.one(
            ["zeros", "border", "reflection"])}, opset=20, rtol=1e-3, atol=1e-3)
    x = d.array((2, 2, d.int(3, 6), d.int(3, 6)), F32)
    rois = np.sort(d.array((3, 2, 2), F32, 0, 5), 1).reshape(3, 4)
    return Case("RoiAlign", [x, rois, d.array((3,), np.int64, 0, 2)], {
        "output_height": d.int(1, 3), "output_width": d.int(1, 3), "sampling_ratio": d.int(0, 2), "mode": d.one(
            ["avg", "max"]), "coordinate_transformation_mode": d.one(["half_pixel", "output_half_pixel"]),
        "spatial_scale": d.one([1.0, 0.5])}, opset=16, rtol=1e-3, atol=1e-3)


def attention(d: Draw) -> Case:
    batch, heads, size, queries, keys = d.int(1, 2), d.one([2, 4]), d.one([2, 4]), d.int(1, 4), d.int(1, 4)
    shared = d.one([1, 2])
    past = d.int(0, 2)
    causal = d.int(0, 1)
    if causal and past:
        keys = queries
    inputs: list[Any] = [d.array((batch, heads, queries, size)), d.array((batch, heads // shared, keys, size)),
                         d.array((batch, heads // shared, keys, size))]
    total = keys + past
    mask = d.one([None, (queries, total), (batch, 1, queries, total), (1, 1, queries, total)])
    inputs.append(None if mask is None else d.array(mask, d.one((bool, F32))))
    if mask is not None and inputs[3].dtype == bool:
        inputs[3][..., 0] = True
    if past:
        inputs += [d.array((batch, heads // shared, past, size)) for _ in range(2)]
    attrs: dict[str, Any] = {"is_causal": causal}
    if d.yes():
        attrs["scale"] = d.one([0.3, 1.0])
    if d.int(0, 3) == 0:
        attrs["softcap"] = 2.0
    return Case("Attention", inputs, attrs, opset=23, outputs=3 if past else 1, rtol=1e-3, atol=1e-4)


FAMILIES: dict[str, Callable[[Draw], Case]] = {f.__name__.rstrip("_"): f for f in (
    binary, unary, variadic, ternary, cast, reduction, arg_reduction, along_axis, slice_, gather, gather_nd, scatter,
    pad, joined, split, reshaped, selected, matmul, gemm, einsum, conv, conv_transpose, pool, resize, normalization,
    recurrent, quantized, sampled, attention)}


def cases(family: Callable[[Draw], Case]) -> st.SearchStrategy[Case]:
    """The cases of a family, for hypothesis."""
    @st.composite
    def make(draw: Callable[[Any], Any]) -> Case:
        return family(Draw(draw))
    return make()
