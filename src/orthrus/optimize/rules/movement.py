"""Movement: what cancels, what merges, and transposes on their way to where they cancel."""

from __future__ import annotations

import numpy as np

from ...ir import ElementType, No
from ...ops.index import ELEMENTWISE
from ..pattern import rule
from .facts import array, ints, inverse, permutation, positive, rank


@rule(lambda op, x, p, q: op.Transpose(op.Transpose(x, perm=p), perm=q), shared=True)
def merge_transposes(op, x, p, q):
    n = len(p or q or x.shape or ())
    p, q = (list(range(n))[::-1] if perm is None else perm for perm in (p, q))
    if len(p) != len(q):
        return No("the permutations contradict")
    perm = [p[i] for i in q]
    return x if perm == sorted(perm) else op.Transpose(x, perm=perm)


_E = ElementType
_WIDER = {
    _E.FLOAT16: {_E.FLOAT, _E.DOUBLE}, _E.BFLOAT16: {_E.FLOAT, _E.DOUBLE}, _E.FLOAT: {_E.DOUBLE},
    _E.UINT8: {_E.UINT16, _E.INT16, _E.UINT32, _E.INT32, _E.UINT64, _E.INT64, _E.FLOAT, _E.DOUBLE},
    _E.INT8: {_E.INT16, _E.INT32, _E.INT64, _E.FLOAT, _E.DOUBLE},
    _E.UINT16: {_E.UINT32, _E.INT32, _E.UINT64, _E.INT64, _E.FLOAT, _E.DOUBLE},
    _E.INT16: {_E.INT32, _E.INT64, _E.FLOAT, _E.DOUBLE}, _E.INT32: {_E.INT64, _E.DOUBLE},
    _E.UINT32: {_E.UINT64, _E.INT64, _E.DOUBLE},
    _E.BOOL: {_E.UINT8, _E.INT8, _E.INT32, _E.INT64, _E.FLOAT16, _E.FLOAT, _E.DOUBLE},
}
_PLAIN = {*_WIDER, _E.DOUBLE, _E.INT64, _E.UINT64}


@rule(lambda op, x, a, b: op.Cast(op.Cast(x, to=a), to=b), shared=True)
def merge_casts(op, x, a, b):
    """A first cast that loses nothing need not happen."""
    if x.elem is None or a not in _WIDER.get(x.elem, ()) or b not in _PLAIN:
        return No("the first cast may lose something")
    return x if b == x.elem else op.Cast(x, to=int(b))


@rule(lambda op, s, a: op.Cast(op.ConstantOfShape(s), to=a))
def merge_cast_fill(op, s, a, root):
    """Filled with a number of the type that is asked for in the end"""
    fill = root.inputs[0].node.attrs.get("value")
    fill = np.zeros(1, np.float32) if fill is None else np.asarray(fill).reshape(-1)
    kind = ElementType(a).numpy
    if {kind.kind, fill.dtype.kind} - set("iufb") or fill.size != 1:
        return No("the number is of a rare type")
    if kind.kind in "iu" and not np.iinfo(kind).min <= fill[0] <= np.iinfo(kind).max:
        return No("the number is none of the other type")
    with np.errstate(over="ignore"):
        return op.ConstantOfShape(s, value=fill.astype(kind))


@rule(lambda op, x: op.Shape(op.Cast(x)), lambda op, x: op.Size(op.Cast(x)), shared=True)
def drop_cast_before_shape(op, x, root):
    return op.again(root, x)


@rule(
    lambda op, x, s: [
        op.Reshape(inner, s)
        for inner in (op.Reshape(x, ...), op.Flatten(x), op.Squeeze(x, ...), op.Unsqueeze(x, ...))
    ],
    shared=True,
)
def merge_reshapes(op, x, s, root):
    """Only the last of two reshapings tells the shape."""
    told = ints(s)
    if told is None:
        return No("the shape is not constant")
    if 0 in told:
        inner = root.inputs[0].shape
        if root.attrs.get("allowzero") or inner is None or 0 in told[len(inner):]:
            return No("a dimension of 0 refers to the first result")
        for i, d in enumerate(told):
            if d == 0 and isinstance(inner[i], int) and inner[i] > 0:
                told[i] = inner[i]
            elif d == 0 and not (x.shape is not None and i < len(x.shape) and inner[i] is not None
                                 and x.shape[i] == inner[i] and inner[i] != 0):
                return No("a dimension of 0 refers to the first result")
    return op.Reshape(x, op.ints(told), allowzero=root.attrs.get("allowzero"))


@rule(lambda op, x, a, b: op.Squeeze(op.Unsqueeze(x, a), b), shared=True)
def merge_squeeze(op, x, a, b, root):
    """Squeezing what was just unsqueezed."""
    n = rank(root.inputs[0])
    if positive(ints(a), n) is None or positive(ints(a), n) != positive(ints(b), n):
        return No("the axes differ")
    return x


@rule(lambda op, x, a, b: op.Unsqueeze(op.Squeeze(x, a), b), shared=True)
def merge_unsqueeze(op, x, a, b):
    """Unsqueezing what was just squeezed."""
    n = rank(x)
    if positive(ints(a), n) is None or positive(ints(a), n) != positive(ints(b), n):
        return No("the axes differ")
    return x


@rule(lambda op, x, a, b: op.Unsqueeze(op.Unsqueeze(x, a), b))
def merge_unsqueezes(op, x, a, b, root):
    n = rank(root.inputs[0])
    inner, outer = positive(ints(a), n), positive(ints(b), None if n is None else n + len(ints(b) or ()))
    if inner is None or outer is None:
        return No("the axes or the rank are not known")
    kept = [i for i in range(n + len(outer)) if i not in outer]
    return op.Unsqueeze(x, op.ints(sorted([*outer, *(kept[i] for i in inner)])))


@rule(lambda op, x, a, b: op.Squeeze(op.Squeeze(x, a), b))
def merge_squeezes(op, x, a, b):
    n = rank(x)
    inner = positive(ints(a), n)
    outer = None if inner is None else positive(ints(b), n - len(inner))
    if inner is None or outer is None:
        return No("the axes or the rank are not known")
    kept = [i for i in range(n) if i not in inner]
    return op.Squeeze(x, op.ints(sorted([*inner, *(kept[i] for i in outer)])))


@rule(lambda op, x, s, t: op.Reshape(op.Transpose(op.Reshape(x, s), perm=[0, 2, 1]), t))
def merge_batched_transpose(op, x, root):
    """[a, b, c, d] to [a * b, c, d], its last two exchanged, to [a, b, d, c]: one Transpose."""
    mid = root.inputs[0].node.inputs[0]
    a, m, y = x.shape, mid.shape, root.output.shape
    if a is None or m is None or y is None or len(a) != 4 or len(m) != 3 or len(y) != 4:
        return No("it is no batched transpose of a tensor of rank 4")
    if None in (*a, *y, *m[1:]) or y != (a[0], a[1], a[3], a[2]) or m[1:] != a[2:]:
        return No("the dimensions do not exchange")
    return op.Transpose(x, perm=[0, 1, 3, 2])


@rule(lambda op: op.Concat(...))
def merge_concats(op, root):
    """Concats inside a Concat on the same axis, at any depth: the outermost takes all of them at once."""
    n = rank(root.output)
    axis = positive([int(root.attribute("axis"))], n)

    def inside(value):
        inner = op.maker(value, "Concat")
        return inner if inner is not None and positive([int(inner.attribute("axis"))], n) == axis else None

    reader = next((op.maker(user.output, "Concat", alone=False) for user in root.output.uses), None)
    if axis is None or (reader is not None and inside(root.output) is not None
                        and positive([int(reader.attribute("axis"))], rank(reader.output)) == axis):
        return None
    flat, waiting = [], root.inputs[::-1]
    while waiting:
        inner = inside(value := waiting.pop())
        if inner is None:
            flat.append(value)
        else:
            waiting += inner.inputs[::-1]
    return op.again(root, *flat) if len(flat) > len(root.inputs) else None


@rule(lambda op, c, a, b: op.Where(op.Not(c), a, b), shared=True)
def merge_not_where(op, c, a, b):
    return op.Where(c, b, a)


UNARY, BINARY = [*ELEMENTWISE[1].split(), "Cast"], ELEMENTWISE[2].split()


@rule(lambda op, x: [getattr(op, name)(op.Transpose(x)) for name in UNARY])
def push_transpose_unary(op, x, root):
    return op.Transpose(op.again(root, x), perm=permutation(root.inputs[0].node))


@rule(lambda op, x, low=None, high=None: op.Clip(op.Transpose(x), low, high))
def push_transpose_clip(op, x, low, high, root):
    return op.Transpose(op.again(root, x, low, high), perm=permutation(root.inputs[0].node))


@rule(lambda op, x, y: [getattr(op, name)(op.Transpose(x), op.Transpose(y)) for name in BINARY])
def push_transposes_binary(op, x, y, root):
    p, q = (permutation(v.node) for v in root.inputs)
    if p is None or p != q:
        return No("the permutations differ")
    return op.Transpose(op.again(root, x, y), perm=p)


@rule(lambda op, x, c: [getattr(op, name)(op.Transpose(x), op.constant(c)) for name in BINARY],
      lambda op, x, c: [getattr(op, name)(op.constant(c), op.Transpose(x)) for name in BINARY])
def push_transpose_constant(op, x, c, root):
    """A constant beside a Transpose is transposed back instead, once."""
    at = 0 if root.inputs[1] is c else 1
    perm, given = permutation(root.inputs[at].node), array(c)
    if perm is None or given is None or given.ndim > len(perm):
        return No("the constant does not follow the permutation")
    moved = c
    if given.size != 1:
        full = given.reshape((1,) * (len(perm) - given.ndim) + given.shape)
        moved = op.constant(np.ascontiguousarray(full.transpose(inverse(perm))))
    return op.Transpose(op.again(root, *((x, moved) if at == 0 else (moved, x))), perm=perm)


@rule(lambda op: op.Concat(...))
def push_transposes_concat(op, root):
    makers = [op.maker(v, "Transpose") for v in root.inputs]
    perms = [permutation(m) if m is not None else None for m in makers]
    if not makers or any(p is None or p != perms[0] for p in perms):
        return None
    axis = int(root.attrs["axis"])
    moved = op.again(root, *(m.inputs[0] for m in makers), axis=perms[0][axis])
    return op.Transpose(moved, perm=perms[0])


@rule(lambda op, x: op.Softmax(op.Transpose(x)), lambda op, x: op.LogSoftmax(op.Transpose(x)))
def push_transpose_softmax(op, x, root):
    perm = permutation(root.inputs[0].node)
    if root.version < 13 or perm is None:
        return No("the older form flattens")
    return op.Transpose(op.again(root, x, axis=perm[int(root.attribute("axis"))]), perm=perm)


@rule(lambda op, x, pads, v=None: op.Pad(op.Transpose(x), pads, v))
def push_transpose_pad(op, x, pads, v, root):
    perm, told = permutation(root.inputs[0].node), ints(pads)
    if perm is None or told is None or len(told) != 2 * len(perm):
        return No("the pads or the permutation are not known")
    n, back = len(perm), inverse(perm)
    return op.Transpose(
        op.again(root, x, op.ints([told[h * n + back[i]] for h in (0, 1) for i in range(n)]), v), perm=perm
    )


REDUCE = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare")


@rule(lambda op, x, a: [getattr(op, name)(op.Transpose(x), a, keepdims=1) for name in REDUCE])
def push_transpose_reduce(op, x, a, root):
    perm = permutation(root.inputs[0].node)
    axes = positive(ints(a), None if perm is None else len(perm))
    if axes is None or not axes:
        return No("the axes are not known")
    return op.Transpose(op.again(root, x, op.ints(perm[i] for i in axes)), perm=perm)


BASIC = (
    merge_transposes,
    merge_cast_fill,
    drop_cast_before_shape,
    merge_reshapes,
    merge_squeeze,
    merge_unsqueeze,
    merge_unsqueezes,
    merge_squeezes,
    merge_batched_transpose,
    merge_concats,
    merge_not_where,
)
EXTENDED = (merge_casts,)
LAYOUT = (
    merge_transposes,
    push_transpose_unary,
    push_transpose_clip,
    push_transposes_binary,
    push_transpose_constant,
    push_transposes_concat,
    push_transpose_softmax,
    push_transpose_pad,
    push_transpose_reduce,
)
