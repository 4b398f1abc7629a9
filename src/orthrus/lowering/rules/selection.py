"""What is chosen by value or by place: the k best, one-hot rows, triangles."""

from __future__ import annotations

import math

from ...codegen.kernels import loops
from ...codegen.kernels import top_k as kernels
from ...codegen.write.expr import BYTES, LLVM, Expr
from ...ir import ElementType, No, Node
from ...ops.define import normalized_axis
from ..lower import BOTH, Lazy, Lowering, Out, lowers
from ..tensor import Tensor

GRAIN = 1 << 12


@lowers("TopK", types=tuple(t for t in LLVM if t != "bool"))
def top_k(lo: Lowering, node: Node) -> tuple[Tensor, Tensor] | No:
    """Values and their indices, best first."""
    x, attrs = node.inputs[0], node.attributes
    assert x is not None
    shape = lo.shape(x)
    k = attrs.get("k")
    if len(node.inputs) > 1:
        known = lo.known(node.inputs[1])
        k = None if known is None or known.size != 1 else known.item()
    if k is None or not shape or 0 in shape:
        return No("its k is not known, or it is empty")
    axis = normalized_axis(attrs["axis"], len(shape))
    length = shape[axis]
    if not 1 <= k <= length:
        return No("its k is out of range")
    t = lo.tensor(x)
    small = tuple(k if a == axis else d for a, d in enumerate(shape))
    values, places = lo.new(small, t.dtype), lo.new(small, "int64")
    every = (values, places, t)
    others = [a for a in range(t.rank) if a != axis]
    made = loops.nest([shape[a] for a in others], [[v.strides[a] for a in others] for v in every])
    sizes, strides = made.sizes or (1,), [s or (0,) for s in made.strides]
    least, lanes = attrs.get("largest") == 0, lo.machine.lanes(BYTES[kernels.working(t.dtype)])
    if 2 * sizes[-1] < lanes:  # lanes are rows along the last dimension: the longest is to be that
        longest = max(range(len(sizes)), key=lambda i: sizes[i])
        sizes, *strides = ((*s[:longest], *s[longest + 1:], s[longest]) for s in (sizes, *strides))
    lines = [v for t_, s in zip(every, strides, strict=True) for v in (*s, t_.strides[axis])]
    beside = lines[-2] == 1
    if (beside or length <= kernels.SHORT) and k <= kernels.MOST and 2 * sizes[-1] >= lanes:
        spec = kernels.best_of_short_rows(dtype=t.dtype, outer=len(sizes), k=k, least=least,
                                          beside=beside)
        lo.step(spec, [Out(values), Out(places), t, length, sizes[-1], *sizes[1:-1], *lines],
                math.prod(sizes[:-1]) * -(-sizes[-1] // lanes), max(1, GRAIN // (length * lanes)))
        return values, places
    unit = t.strides[axis] == 1
    far = unit and kernels.is_long(lanes, length, k)
    spec = kernels.best_of_rows(dtype=t.dtype, outer=len(sizes), least=least, unit=unit, far=far)
    lo.step(spec, [Out(values), Out(places), t, length, k, (k - 1).bit_length(), *sizes[1:], *lines],
            math.prod(sizes), max(1, GRAIN // length), kernels.scratch(lo.machine, t.dtype, length, k, far))
    return values, places


@lowers("OneHot", types=tuple(t for t in LLVM if t not in ("bool", "float16", "bfloat16")),
        sets=BOTH)
def one_hot(lo: Lowering, node: Node) -> Lazy | No:
    """A comparison with the numbers along the new axis."""
    vi, vd, vv = node.inputs
    assert vi is not None and node.op is not None
    depth, values = lo.known(vd), lo.known(vv)
    if depth is None or values is None or values.shape != (2,) or depth.size != 1 or (
            values.dtype.name not in LLVM):
        return No("its depth or values are not known")
    size, t = depth.item(), lo.tensor(vi)
    size = int(size) if isinstance(size, float) else size
    axis = node.attributes["axis"]
    axis = axis + t.rank + 1 if axis < 0 else axis
    if not 0 <= axis <= t.rank or size < 1 or t.dtype == "uint64":
        return No("its axis is out of range, or nothing is asked for")
    shape = (*t.shape[:axis], size, *t.shape[axis:])
    index = Expr.leaf(0, t.dtype).cast("int64")
    if node.op.since >= 11:
        back = Expr("lt", (index, Expr.const(0, "int64")), "bool")
        forward = Expr("add", (index, Expr.const(size, "int64")), "int64")
        index = Expr("where", (back, forward, index), "int64")
    if t.dtype.startswith("float"):
        high = Expr("abs", (Expr.leaf(0, t.dtype),), t.dtype)
        near = Expr("lt", (high, Expr.const(2.0 ** 62, t.dtype)), "bool")
        index = Expr("where", (near, index, Expr.const(-1, "int64")), "int64")
    dtype = values.dtype.name
    off, on = (Expr.const(v.item(), dtype) for v in values)
    places = lo.counted(0, size).view((1,) * axis + (size,) + (1,) * (t.rank - axis),
                                    (0,) * axis + (1,) + (0,) * (t.rank - axis))
    tree = Expr("where", (Expr("eq", (index, Expr.leaf(1, "int64")), "bool"), on, off), dtype)
    spread = t.view((*t.shape[:axis], 1, *t.shape[axis:]), (*t.strides[:axis], 0, *t.strides[axis:]))
    return Lazy(shape, tree, [spread, places])


@lowers("EyeLike", sets=BOTH)
def eye_like(lo: Lowering, node: Node) -> Lazy | No:
    """1 where the column is the row's, moved by `k`."""
    x, k = node.inputs[0], node.attribute("k")
    assert x is not None
    shape, asked = lo.shape(x), node.attribute("dtype")
    dtype = lo.dtype(x) if asked is None else ElementType(asked).numpy.name
    if len(shape) != 2 or 0 in shape or dtype not in LLVM:
        return No("no matrix, empty, or of a type that kernels do not compute with")
    rows, columns = shape
    k = max(-rows, min(columns, k))
    places = _places(lo, rows, columns, k)
    row, column = (Expr.leaf(i, t.dtype) for i, t in enumerate(places))
    return Lazy(shape, Expr("eq", (row, column), "bool").cast(dtype), [*places])


def _places(lo: Lowering, rows: int, columns: int, k: int) -> list[Tensor]:
    """The number of each row, and of the row in which the diagonal meets each column."""
    kind = "int32" if rows + columns < 1 << 31 else "int64"
    return [lo.counted(0, rows, dtype=kind).view((rows, 1), (1, 0)), lo.counted(-k, columns, dtype=kind)]


@lowers("Trilu", "com.microsoft::Trilu", types=tuple(LLVM), sets=BOTH)
def trilu(lo: Lowering, node: Node) -> Lazy | No:
    """The element where its column is on the right side of its row, else zero."""
    x = node.inputs[0]
    assert x is not None
    known = lo.known(node.inputs[1]) if len(node.inputs) > 1 else None
    if known is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        return No("its diagonal is not known")
    shape, dtype = lo.shape(x), lo.dtype(x)
    if len(shape) < 2 or 0 in shape or (known is not None and known.size != 1):
        return No("no matrix, or empty")
    rows, columns = shape[-2:]
    k = 0 if known is None else max(-rows, min(columns, known.item()))
    lazy = lo.lazy(x)
    places = _places(lo, rows, columns, k)
    row, column = (Expr.leaf(i, t.dtype) for i, t in enumerate(places, len(lazy.operands)))
    inside = Expr("ge" if node.attributes["upper"] else "le", (column, row), "bool")
    zero = Expr.const(0, "bool" if dtype == "bool" else dtype)
    tree = Expr("where", (inside, lazy.tree, zero), dtype)
    return Lazy(shape, tree, [*lazy.operands, *places])
