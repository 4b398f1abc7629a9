"""Random valid applications of operators that move, select and find elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from oracle import Case

from fuzz.draw import (
    ANY,
    BF16,
    F32,
    F64,
    Draw,
    ints,
    positive,
)

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
        return Case(
            "Gather",
            [x, index],
            {"axis": axis},
            opset=13,
            open_shapes=d.yes(),
            expected=[np.asarray(np.take(x, index, axis), x.dtype)],
        )
    shape = tuple(d.int(1, s) for s in x.shape)
    shape = tuple(d.int(0, 4) if i == positive(axis, x.ndim) else s for i, s in enumerate(shape))
    index = d.array(shape, d.one((np.int32, np.int64)), -n, n)
    return Case("GatherElements", [x, index], {"axis": axis}, opset=13, open_shapes=d.yes())


def gather_nd(d: Draw) -> Case:
    x = d.array(d.shape(1, 4, least=1), d.one((F32, F64, np.int64, bool, object)))
    batch = d.int(0, x.ndim - 1)
    last = d.int(1, x.ndim - batch)
    shape = (*x.shape[:batch], *d.shape(0, 2, most=3), last)
    bounds = x.shape[batch : batch + last]
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
        return Case(
            "ScatterElements",
            [x, index, d.array(shape, dtype)],
            {"axis": axis, "reduction": how},
            opset=opset,
        )
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
    parts = [
        d.array(
            tuple(d.int(0, 3) if i == positive(axis, len(shape)) else s for i, s in enumerate(shape)), dtype
        )
        for _ in range(d.int(1, 4))
    ]
    return Case("Concat", parts, {"axis": axis}, opset=13, expected=[np.concatenate(parts, axis)])


def split(d: Draw) -> Case:
    shape = d.shape(1, 4)
    axis, dtype = d.axis(len(shape)), d.one(ANY)
    if d.yes():
        sizes = [d.int(0, 3) for _ in range(d.int(1, 4))]
        x = d.array(
            tuple(sum(sizes) if i == positive(axis, len(shape)) else s for i, s in enumerate(shape)), dtype
        )
        expected = [v.copy() for v in np.split(x, np.cumsum(sizes)[:-1], axis)]
        return Case(
            "Split", [x, ints(*sizes)], {"axis": axis}, opset=13, outputs=len(sizes), expected=expected
        )
    count = d.int(1, 3)
    n = d.int(count, 7)
    x = d.array(tuple(n if i == positive(axis, len(shape)) else s for i, s in enumerate(shape)), dtype)
    size = -(-n // count)
    if (count - 1) * size > n:
        count = 1
    return Case("Split", [x], {"axis": axis, "num_outputs": count}, opset=18, outputs=count)


def reshaped(d: Draw) -> Case:
    kind = d.one(
        [
            "Transpose",
            "Reshape",
            "Expand",
            "Tile",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "DepthToSpace",
            "SpaceToDepth",
            "Trilu",
            "Shape",
            "Size",
            "ReverseSequence",
            "EyeLike",
        ]
    )
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
        shape = [d.int(1, 3) for _ in range(d.int(0, 2))] + [
            d.one([n, 1]) if n != 1 else d.int(1, 3) for n in x.shape
        ]
        return Case(
            kind,
            [x, ints(*shape)],
            opset=13,
            expected=[np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))).copy()],
        )
    if kind == "Tile":
        repeats = [d.int(0, 3) for _ in x.shape]
        return Case(kind, [x, ints(*repeats)], opset=13, expected=[np.tile(x, repeats)])
    if kind == "Flatten":
        axis = d.int(-x.ndim, x.ndim)
        cut = axis + x.ndim if axis < 0 else axis
        return Case(
            kind,
            [x],
            {"axis": axis},
            opset=13,
            expected=[x.reshape(math.prod(x.shape[:cut]), math.prod(x.shape[cut:]))],
        )
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
        shape = (
            d.int(1, 2),
            d.int(1, 2) * (b * b if deep else 1),
            *(d.int(1, 3) * (1 if deep else b) for _ in "hw"),
        )
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
    kind = d.one(
        ["TopK", "Unique", "OneHot", "NonZero", "Compress", "NonMaxSuppression", "Range", "ConstantOfShape"]
    )
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
        rest = [ints(d.int(0, 4)), d.array((1,), F32, 0, 1), d.array((1,), F32, 0, 1)][: d.int(1, 3)]
        scores = d.rng.permutation(batch * classes * boxes).reshape(batch, classes, boxes).astype(F32) / 48
        return Case(kind, [corners, scores, *rest], {"center_point_box": d.int(0, 1)}, opset=11)
    if kind == "Range":
        dtype = d.one((F32, F64, np.int64, np.int32))
        step = d.one([1, 2, -1, 3, -2])
        return Case(kind, [np.array(v, dtype) for v in (d.int(-5, 5), d.int(-5, 12), step)], opset=11)
    return Case(kind, [ints(*d.shape())], opset=9)
