"""What goes along rows and is no reduction: running totals, the k best, the largest as ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from ....codegen.triton.kernels.rows import Tile
from ....codegen.triton.kernels.scans import running_rows
from ....codegen.triton.kernels.selection import best_pieces, best_rows, ranked_rows
from ....codegen.write.expr import BYTES, Expr
from ....ir import No, Node, Value
from ....ops.define import normalized_axis
from ...rules import rows as shared
from ...rules.reduce import TYPES, Folded
from ...rules.rows import FLOATS, lying
from ...tensor import Tensor, c_strides
from ..elements import power, several
from ..lower import GpuLowering, Lazy, Out, Pending, lowers, writes
from ..normal import FEW, multiplied_alone
from ..rows import fold, groups, tile
from ..walks import closed, read

PIECE = 1 << 11
"""Elements that are sorted at once, at most."""

MOST = 1 << 9
"""The k best of rows that are longer, at most, which are sorted."""

RANKED = 64
"""Elements of a row whose places are counted at once."""


@lowers("CumSum", "CumProd", types=tuple(t for t in TYPES if t != "bool"))
def running(lo: GpuLowering, node: Node) -> Pending | No:
    """Totals so far along a known axis."""
    vx, va = node.inputs
    known, attrs = lo.known(va), node.attributes
    if known is None or known.size != 1 or not lo.shape(vx) or 0 in lo.shape(vx):
        return No("its axis is not known, or it is empty")
    t = lo.tensor(vx)
    axis = normalized_axis(known.item(), t.rank)
    work = "float32" if t.dtype in FLOATS else t.dtype
    kind = "sum" if node.op_type == "CumSum" else "prod"

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        kept, along, count, length = groups(t, [axis])
        form = tile(t, kept, along, False)
        reading, cells = read(Expr.leaf(0, t.dtype).cast(work), [t], [kept, along])
        own = Expr.leaf(0, work).cast(t.dtype)
        whole = own if tree is None else tree.substitute(lambda leaf: own if leaf.value == 0 else leaf)
        closing, more = closed(out, whole, operands, work, [kept, along])
        spec = running_rows(reading=reading, closing=closing, tile=form, kind=kind,
                            exclusive=bool(attrs.get("exclusive")), reverse=bool(attrs.get("reverse")))
        lo.step(spec, [*cells, *more, count, length], -(-count // form.rows))
    return Pending(t.shape, t.dtype, emit, lying(t))


@writes(shared.summed_first)
def summed_first(lo: GpuLowering, node: Node, values: Sequence[Value | None]) -> Tensor | None:
    """Of a few rows one of which a kernel still makes, which adds the others: products normalize what they
    read. Rows that are centred are added up in float32, since their deviations may be small beside them."""
    given = [v for v in values if v is not None]
    shape, dtype = lo.shape(given[0]), lo.dtype(given[0])
    waits = [v for v in given if lo.left[v] <= 1 and isinstance(found := lo.env.get(v), Lazy) and (
        found.source is not None and found.source.tensor is None)]
    if not waits or math.prod(shape[:-1]) > FEW or any(lo.shape(v) != shape for v in waits):
        return None
    value, normal = node.outputs[3], node.outputs[0]
    assert value is not None
    work = dtype
    if node.op_type == "SkipLayerNormalization":
        if normal is None or not multiplied_alone(lo, normal):
            return None
        work = "float32"
    if work != dtype:
        if value in lo.finals:
            return None
        value = Value(value.name)
        lo.left[value] = 1

    def total(dtypes: Sequence[str]) -> Expr:
        first, *rest = (Expr.leaf(i, t).cast("float32") for i, t in enumerate(dtypes))
        return functools.reduce(lambda a, b: Expr("add", (a, b), "float32"), rest, first).cast(work)
    made = lo.elementwise(given, total)
    if isinstance(made, No) or made.shape != shape:
        return None
    lo.bind(value, made)
    for v in waits:
        lo.left[v] -= 1
    whole = lo.tensor(value)
    for v in waits:
        lo.left[v] += 1
    return whole


@lowers("Hardmax", types=FLOATS)
def hardmax(lo: GpuLowering, node: Node) -> Lazy | No:
    """A comparison of each place with that of the largest."""
    (vx,) = node.inputs
    shape = lo.shape(vx)
    if not shape or 0 in shape:
        return No("a scalar, or empty")
    assert node.op is not None
    axis = normalized_axis(node.attributes["axis"], len(shape))
    t, form = lo.tensor(vx), shape
    if node.op.since < 13:
        form = (math.prod(shape[:axis]), math.prod(shape[axis:]))
        t, axis = lo.contiguous(t).view(form, (form[1], 1)), 1
    what = Folded("arg max", Expr.leaf(0, t.dtype).cast("float32"), [t], (axis,))
    best = lo.new(what.short, "int64")
    fold(lo, what, best, None, [])
    lines = [d if a == axis else 1 for a, d in enumerate(form)]
    places = lo.counted(0, form[axis]).view(lines, [int(a == axis) for a in range(len(form))])
    one, zero = (Expr.const(v, "float32").cast(t.dtype) for v in (1.0, 0.0))
    same = Expr("eq", (Expr.leaf(0, "int64"), Expr.leaf(1, "int64")), "bool")
    tree = Expr("where", (same, one, zero), t.dtype)
    if form == shape:
        return Lazy(shape, tree, [best, places])
    out = lo.new(form, t.dtype)
    lo.store(out, tree, [best, places])
    return Lazy(shape, Expr.leaf(0, t.dtype), [out.view(shape, c_strides(shape))])


@lowers("TopK", types=tuple(t for t in TYPES if t != "bool"))
def top_k(lo: GpuLowering, node: Node) -> tuple[Tensor, Tensor] | No:
    """Values and their indices, best first."""
    vx, attrs = node.inputs[0], node.attributes
    shape, k = lo.shape(vx), attrs.get("k")
    if len(node.inputs) > 1:
        known = lo.known(node.inputs[1])
        k = None if known is None or known.size != 1 else known.item()
    if k is None or not shape or 0 in shape:
        return No("its k is not known, or it is empty")
    axis = normalized_axis(attrs["axis"], len(shape))
    if not 1 <= k <= shape[axis]:
        return No("its k is out of range")
    t = lo.tensor(vx)
    small = tuple(k if a == axis else d for a, d in enumerate(shape))
    values, places = lo.new(small, t.dtype), lo.new(small, "int64")
    work = "float32" if t.dtype in FLOATS else t.dtype
    tree, least = Expr.leaf(0, t.dtype).cast(work), attrs.get("largest") == 0
    kept, along, count, length = groups(t, [axis])
    reading, cells = read(tree, [t], [kept, along])
    own = Expr.leaf(0, work)
    first, more = closed(values, own, [], work, [kept, [axis]])
    second, others = closed(places, None, [], "int64", [kept, [axis]])
    if BYTES[work] == 8 or (length > PIECE and k > MOST):
        block = min(RANKED, max(16, power(length)))
        ranked = ranked_rows(reading=reading, values=first, places=second, block=block, least=least)
        lo.step(ranked, [*cells, *more, *others, length, k], count * -(-length // block))
        return values, places
    held = None
    if length > PIECE:
        held, length = _best(lo, best_pieces(reading=reading, columns=PIECE, kept=power(k), least=least),
                             cells, count, length, power(k))
    while length > PIECE:
        again = best_pieces(reading=None, columns=PIECE, kept=power(k), least=least)
        held, length = _best(lo, again, [held], count, length, power(k))
    columns = power(length)
    form = Tile(several(count, PIECE // 2 // columns), columns, True)
    spec = best_rows(reading=reading, values=first, places=second, tile=form, least=least,
                     sorted_pieces=held is not None)
    lo.step(spec, [*cells, *more, *others, *([] if held is None else [held]), count, length, k],
            -(-count // form.rows))
    return values, places


def _best(lo: GpuLowering, spec: object, given: Sequence[object], count: int, length: int, kept: int
          ) -> tuple[Tensor, int]:
    """The best of each piece of rows, and how many there are of a row."""
    pieces = -(-length // PIECE)
    out = lo.new((count, pieces * kept), "int64")
    lo.step(spec, [*given, Out(out), length], count * pieces)
    return out, pieces * kept
