"""Shapes whose dimensions are computed, operator by operator.

In: a node's `Facts`: the dimensions of its inputs and the elements that are known of them. Out: the shapes of
its outputs, a dimension None where it depends on data. Operators that only pass dimensions on have no rule
here: those of `ops` serve them. The invariant: no rule looks at a size that is a name as if it were a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .axes import normalized, normalized_axis, places
from .expression import Dim, Expr, bounds, ceil_div, ceiling, floor_div, greatest, least, quotient
from .facts import Context, Facts, Shapes, elementwise
from .polynomial import ratio
from .products import attention, dft, einsum, gemm, linear_attention, matmul, stft
from .windows import (
    affine_grid,
    causal_conv,
    center_crop_pad,
    col_to_im,
    conv,
    conv_transpose,
    depth_to_space,
    max_unpool,
    pool,
    resize,
    space_to_depth,
)


def _expand(f: Facts) -> Shapes:
    told, x = f.vector(1), f.shape(0)
    rank = max(len(told), len(x))
    out: list[Dim | None] = []
    for i in range(rank):
        a = x[len(x) - rank + i] if len(x) - rank + i >= 0 else 1
        b = told[len(told) - rank + i] if len(told) - rank + i >= 0 else 1
        out.append(None if b is None else f.context.wider([a, b]))
    return [out]


def _reshape(f: Facts) -> Shapes:
    told: list[Dim | None] = f.vector(1) if f.has(1) else list(f.attribute("shape") or [])
    x = f.shapes[0]
    out, copied = list(told), set[int]()
    for i, d in enumerate(told):
        if isinstance(d, int) and d < -1 or x is not None and d == 0 and i >= len(x):
            raise ValueError(f"{d} at {i} is no dimension to reshape to")
        if d is None or d == -1:
            out[i] = None
        elif d == 0 and not f.attribute("allowzero"):
            out[i] = x[i] if x is not None else None
            copied.add(i)
        elif bounds(d)[0] < 0:
            out[i] = None
    left = [i for i, d in enumerate(out) if d is None]
    if told.count(-1) > 1:
        raise ValueError("-1 stands for two dimensions")
    if len(left) == 1 and x is not None:
        out[left[0]] = _remaining(*([d for i, d in enumerate(dims) if i not in copied and d is not None]
                                    for dims in (x, out)))
    return [out]


def _remaining(x: list[Dim], told: list[Dim]) -> Dim:
    """The dimension that those of `x` leave beside those that are `told`."""
    many: list[Dim] = [*x]
    rest: Dim = 1
    for d in told:
        if d in many and d != 0:
            many.remove(d)
        else:
            rest = rest * d
    total = math.prod(many)
    if rest == 0 or isinstance(total, int) and isinstance(rest, int) and total % rest:
        raise ValueError(f"{told} elements are not among {x}")
    return floor_div(total, rest)


def _flatten(f: Facts) -> Shapes:
    x = f.shape(0)
    axis = normalized_axis(f.attribute("axis"), len(x), inclusive=True)
    return [[math.prod(x[:axis]), math.prod(x[axis:])]]


def _squeeze(f: Facts) -> Shapes:
    x = f.shape(0)
    if f.has(1) and f.numbers(1) is None:
        return [[None] * (len(x) - len(f.vector(1)))]
    axes = f.axes()
    gone = places(axes, len(x)) if axes is not None else [
        i for i, d in enumerate(x) if f.context.is_one(d)]
    if any(isinstance(d := x[i], int) and d != 1 for i in gone):
        raise ValueError(f"axes {axes} of {x} are to be 1")
    return [[d for i, d in enumerate(x) if i not in gone]]


def _unsqueeze(f: Facts) -> Shapes:
    x = f.shape(0)
    if f.has(1) and f.numbers(1) is None:
        return [[None] * (len(x) + len(f.vector(1)))]
    axes = f.axes() or []
    out: list[Dim | None] = [*x]
    for place in sorted(places(axes, len(x) + len(axes))):
        out.insert(place, 1)
    return [out]


def concat(f: Facts, first: int = 0, step: int = 1) -> Shapes:
    shapes = [f.shape(i) for i in range(first, len(f.node.inputs), step)]
    axis, = places([f.attribute("axis")], len(shapes[0]))
    return [[sum(dims, start=0) if i == axis else f.context.same(dims)
             for i, dims in enumerate(zip(*shapes, strict=True))]]


def _split(f: Facts) -> Shapes:
    x, count = f.shape(0), len(f.node.outputs)
    axis, = places([f.attribute("axis")], len(x))
    parts: list[Dim | None]
    if f.has(1):
        parts = f.vector(1)
    elif f.attribute("split"):
        parts = f.attribute("split")
    else:
        length = ceil_div(x[axis], count)
        last = x[axis] - length * (count - 1) if f.node.version >= 18 else quotient(x[axis], count)
        if quotient(x[axis], count) is not None or last is None:
            parts = [quotient(x[axis], count) or length] * count
        else:
            parts = [*[length] * (count - 1), last]
    return [[*x[:axis], p, *x[axis + 1:]] for p in parts]


def _slice(f: Facts) -> Shapes:
    x = f.shape(0)
    out: list[Dim | None] = list(x)
    given: list[list[Dim | None]]
    if f.node.version < 10:
        starts, ends = f.attribute("starts"), f.attribute("ends")
        axes = f.attribute("axes") or list(range(len(starts)))
        given = [starts, ends, [1] * len(starts)]
    else:
        axes = f.axes(3) if f.has(3) else None
        begin, end = f.vector(1), f.vector(2)
        steps: list[Dim | None] = f.vector(4) if f.has(4) else [1] * len(begin)
        axes = list(range(len(begin))) if axes is None else axes
        given = [begin, end, steps]
    for axis, start, stop, step in zip(places(axes, len(x)), *given, strict=True):
        out[axis] = _sliced(x[axis], start, stop, step, f.context)
    return [out]


def _sliced(size: Dim, start: Dim | None, stop: Dim | None, step: Dim | None, context: Context
            ) -> Dim | None:
    """How many elements a slice has, None where that depends on data."""
    if step == 0:
        raise ValueError("a slice of step 0")
    if start is None or stop is None or step is None:
        return None
    least_step, most_step = bounds(step)
    if least_step <= 0 <= most_step:
        return None
    forward, int_max = least_step > 0, context.int_max
    if context.long_enough and isinstance(size, Expr) and isinstance(start, int) and isinstance(stop, int) \
            and isinstance(step, int):
        if max(start, stop) < 0 and min(start, stop) > -int_max:
            return max(0, -((start - stop) // step))
        if forward and 0 <= start < int_max and -int_max < stop < 0:
            return ceil_div(size + (stop - start), step)
        if forward and -int_max < start < 0 and stop >= int_max:
            return ceil_div(-start, step)
    low = 0 if forward else -1
    first, last = _clamped(start, size, low, int_max), _clamped(stop, size, low, int_max)
    if first is None or last is None:
        return None
    if not forward and bounds(start)[1] < 0:
        first = greatest(first, least(size - 1, 0))
    span = last - first if forward else first - last
    if bounds(span)[0] < 0 and not _ordered(start, stop, forward):
        span = span - least(span, 0)
    return ceil_div(span, abs(step)) if isinstance(step, int) else quotient(span, step if forward else -step)


def _clamped(at: Dim, size: Dim, low: int, int_max: int) -> Dim | None:
    """A bound of a slice between `low` and size + low, as numpy takes it. max(low, size - k) is written
    with Min, so that the parts a dimension is cut into add up to it again."""
    bottom, top = bounds(at)
    if isinstance(at, int) and abs(at) >= int_max:
        return size + low if at > 0 else low
    if bottom >= 0:
        return least(at, size + low)
    return size - least(size - low, -at) if top < 0 else None


def _ordered(start: Dim, stop: Dim, forward: bool) -> bool:
    """Whether the bounds are in order whatever the size: then their clamped forms are too."""
    a, b = (start, stop) if forward else (stop, start)
    same_end = (bounds(a)[0] >= 0 and bounds(b)[0] >= 0) or (bounds(a)[1] < 0 and bounds(b)[1] < 0)
    return bool((same_end and bounds(b - a)[0] >= 0) or a == 0
                or (isinstance(b, int) and b >= (1 << 31) - 1))


def _pad(f: Facts) -> Shapes:
    x = f.shape(0)
    pads = f.vector(1) if f.node.version >= 11 or f.node.domain else \
        f.attribute("pads") or f.attribute("paddings")
    axes = f.axes(3) if f.has(3) else None
    places = [a % len(x) for a in axes] if axes is not None else list(range(len(x)))
    out: list[Dim | None] = list(x)
    for place, before, after in zip(places, pads[:len(places)], pads[len(places):], strict=True):
        out[place] = x[place] + before + after if before is not None and after is not None else None
    return [out]


def _tile(f: Facts) -> Shapes:
    x, times = f.shape(0), f.vector(1)
    return [[d * t if t is not None else None for d, t in zip(x, times, strict=True)]]


def same(f: Facts) -> Shapes:
    return [[*f.shape(0)]]


def _layer_norm(f: Facts) -> Shapes:
    """The second and third output have a number for each row."""
    x = f.shape(0)
    at = normalized_axis(f.attribute("axis"), len(x))
    rows: list[Dim | None] = [*x[:at], *[1] * (len(x) - at)]
    return [[*x], rows, rows]


def _along(f: Facts) -> Shapes:
    places([f.attribute("axis")], len(f.shape(0)))
    return same(f)


def _dims(f: Facts) -> Shapes:
    return [[None if f.shapes[0] is None else len(f.shape(0)[f.attribute("start"):f.attribute("end")])]]


def _transpose(f: Facts) -> Shapes:
    x, order = f.shape(0), f.attribute("perm")
    if order is None:
        return [[*reversed(x)]]
    if sorted(order) != list(range(len(x))):
        raise ValueError(f"perm {order} does not order {len(x)} dimensions")
    return [[x[i] for i in order]]


def _gather(f: Facts) -> Shapes:
    x = f.shape(0)
    axis, = places([f.attribute("axis")], len(x))
    return [[*x[:axis], *f.shape(1), *x[axis + 1:]]]


def _told(f: Facts) -> Shapes:
    return [f.vector(0)]


def _range(f: Facts) -> Shapes:
    start, limit, delta = (*(f.vector(i)[0] for i in range(2)), f.vector(2)[0] if f.has(2) else 1)
    if start is None or limit is None or not delta or isinstance(delta, Expr):
        return [[None]]
    return [[greatest(ceiling((limit - start) * ratio(1, delta)), 0)]]


def _top_k(f: Facts) -> Shapes:
    x = f.shape(0)
    k = f.vector(1)[0] if f.has(1) else f.attribute("k")
    axis = f.attribute("axis") % len(x)
    shape = [*x[:axis], k, *x[axis + 1:]]
    return [shape, shape]


def _one_hot(f: Facts) -> Shapes:
    x, depth = f.shape(0), f.vector(1)[0]
    axis = f.attribute("axis") % (len(x) + 1)
    return [[*x[:axis], depth, *x[axis:]]]


def _reduced(f: Facts) -> Shapes:
    x, keep = f.shape(0), f.attribute("keepdims")
    listed = f.has(1) and f.numbers(1) is None
    if listed and f.vector(1):
        if not keep and len(f.vector(1)) > 1:
            raise LookupError("an axis may be named twice")
        return [[None] * (len(x) - (not keep))]
    axes = None if listed else f.axes()
    if not axes:
        if f.attribute("noop_with_empty_axes"):
            return [list(x)]
        return [[1] * len(x) if keep else []]
    gone = normalized(axes, len(x))
    return [[1 if i in gone else d for i, d in enumerate(x) if keep or i not in gone]]


def _best(f: Facts) -> Shapes:
    x, keep = f.shape(0), f.attribute("keepdims")
    [at] = places([f.attribute("axis")], len(x))
    return [[1 if i == at else d for i, d in enumerate(x) if keep or i != at]]


def _whole(f: Facts) -> Shapes:
    """Windows as large as the image."""
    x = f.shape(0)
    return [[*x[:2], *[1] * (len(x) - 2)]]


def _recurrent(f: Facts) -> Shapes:
    """All steps' states, the last one's, and cells of the size of these."""
    x, w, r = f.shape(0), f.shape(1), f.shape(2)
    if not len(x) == len(w) == len(r) == 3:
        raise ValueError("X, W and R have three dimensions")
    last = bool(f.attribute("layout")) if "layout" in f.node.attrs else False
    steps, batch = (x[1], x[0]) if last else (x[0], x[1])
    directions: Dim = 2 if f.attribute("direction") == "bidirectional" else 1
    hidden: Dim = f.attribute("hidden_size") or r[2]
    state: list[Dim | None] = [batch, directions, hidden] if last else [directions, batch, hidden]
    every = [batch, steps, *state[1:]] if last else [steps, *state]
    return [every, state, state]


def _of_length(f: Facts) -> Shapes:
    return [[f.vector(0)[0]]]


def _picked(f: Facts) -> Shapes:
    x = f.shape(0)
    return [[*(x[:-1] if len(x) > 1 else [1]), math.prod(f.shape(1))]]


RULES: dict[str, Callable[[Facts], Shapes]] = {
    "Expand": _expand, "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze, "Concat": concat, "Transpose": _transpose,
    "Gather": _gather, "GatherElements": lambda f: [[*f.shape(1)]], "Split": _split, "Slice": _slice,
    "Pad": _pad, "Tile": _tile,
    "ConstantOfShape": _told, "Range": _range, "Conv": conv(1), "ConvInteger": conv(1),
    "QLinearConv": conv(3), "DeformConv": conv(1), "MaxPool": pool, "AveragePool": pool, "LpPool": pool,
    "ConvTranspose": conv_transpose, "Resize": resize, "Upsample": resize,
    "SpaceToDepth": space_to_depth, "DepthToSpace": depth_to_space, "Gemm": gemm, "Einsum": einsum,
    "MatMul": matmul(),
    "MatMulInteger": matmul(), "QLinearMatMul": matmul(0, 3), "TopK": _top_k, "OneHot": _one_hot,
    "CenterCropPad": center_crop_pad, "STFT": stft, "DFT": dft, "HannWindow": _of_length,
    "HammingWindow": _of_length, "BlackmanWindow": _of_length, "Col2Im": col_to_im,
    "StringConcat": elementwise, "AffineGrid": affine_grid, "MaxUnpool": max_unpool,
    "Attention": attention, "LinearAttention": linear_attention,
    "LayerNormalization": _layer_norm, "SimplifiedLayerNormalization": _layer_norm,
    "CausalConvWithState": causal_conv,
    "ArgMax": _best, "ArgMin": _best, "DynamicQuantizeLinear": lambda f: [[*f.shape(0)], [], []],
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _whole),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(("Bernoulli", "CumProd", "RandomNormalLike", "RandomUniformLike", "ReverseSequence",
                     "Scatter", "ScatterElements", "ScatterND", "TensorScatter"), same),
    **dict.fromkeys(("BatchNormalization", "Cast", "CastLike", "CumSum", "DequantizeLinear",
                     "GroupNormalization", "Identity", "InstanceNormalization",
                     "LRN", "LpNormalization", "MeanVarianceNormalization",
                     "QuantizeLinear", "RotaryEmbedding", "Trilu"), same),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "RMSNormalization", "Softmax"), _along), "Shape": _dims,
    "Dropout": lambda f: [[*f.shape(0)]] * 2, "Size": lambda f: [[]],
    "NonZero": lambda f: [[len(f.shape(0)), None]],
    "NonMaxSuppression": lambda f: [[None, 3]],
    **{f"Reduce{k}": _reduced for k in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum",
                                        "LogSumExp", "SumSquare")},
}

ML: dict[str, Callable[[Facts], Shapes]] = {"ArrayFeatureExtractor": _picked}
