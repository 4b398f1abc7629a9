"""Softmax, layer normalization and their like: what a row kernel reads, how it walks and where it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...codegen.kernels import rows
from ...codegen.kernels.norm import norm_rows
from ...codegen.kernels.softmax import hardmax_rows, softmax_rows
from ...codegen.write.expr import Expr
from ...codegen.write.spec import Spec
from ...ir import No, Node, Value
from ...ops.define import normalized_axis
from ...records import dataclass
from ..lower import Lazy, Lowering, Out, Pending, lowers, varied
from ..rule_sets import GPU_RULES, RULES
from ..tensor import Tensor
from ..walk import Walked, order_like

FLOATS = ("float32", "float16", "bfloat16")
REALS = (*FLOATS, "float64")
"""What vector machines compute with: half precision in float32, float64 as it is."""
F = "float32"
View = Callable[[Tensor], Tensor]
Kernel = Callable[[rows.RowForm, tuple[rows.Read, ...], Expr, "Reads"], tuple[Spec, list[Any]]]
"""(form, tensors, closing tree, what is read) to the kernel and its arguments behind the tensors."""


@dataclass(eq=False)
class Reads:
    """What a row kernel reads: a `tree`, float32 or float64, over views of one shape, the first of which is
    not broadcast."""

    tree: Expr
    tensors: list[Tensor]


def computed(dtype: str) -> str:
    """The type in which numbers of `dtype` are computed."""
    return dtype if dtype == "float64" else F


def lying(t: Tensor) -> tuple[int, ...]:
    """Dense strides in the order in which `t` lies."""
    return order_like(t, t)


def reading(lo: Lowering, value: Value) -> Reads:
    """`value` for a row kernel: with the elementwise operations that make it, where nobody else reads it."""
    lazy = lo.lazy(value)
    tensors = [t.expand(lazy.shape) for t in lazy.operands if isinstance(t, Tensor)]
    whole = next((i for i, t in enumerate(tensors) if _whole(t)), None)
    if lazy.source is not None or lo.left[value] > 1 or whole is None or not lazy.tree.size():
        t = lo.tensor(value)
        return Reads(Expr.leaf(0, t.dtype).cast(computed(t.dtype)), [t])
    order = [whole, *(i for i in range(len(tensors)) if i != whole)]
    tree = lazy.tree.substitute(lambda leaf: Expr.leaf(order.index(leaf.value), leaf.dtype))
    return Reads(tree.cast(computed(tree.dtype)), [tensors[i] for i in order])


def _whole(t: Tensor) -> bool:
    """Whether no axis is broadcast."""
    return all(s or d == 1 for s, d in zip(t.strides, t.shape, strict=True))


@dataclass(eq=False)
class RowWork:
    """What is asked of a row kernel; see `finished`."""

    reads: Reads
    reduced: Sequence[int]
    kernel: Kernel
    closing: Expr
    operands: Sequence[Tensor]
    view: View
    kept: Tensor | None
    exponentials: bool

    def closed(self, tree: Expr | None) -> Expr:
        """`tree` behind the operator's own closing tree, whose operands come first."""
        own, count = self.closing, len(self.operands)
        return own if tree is None else tree.substitute(
            lambda leaf: own if leaf.value == 0 else Expr.leaf(leaf.value + count, leaf.dtype))


def finished(lo: Lowering, reads: Reads, reduced: Sequence[int], dtype: str, kernel: Kernel,
             after: Expr | None = None, operands: Sequence[Tensor] = (), view: View = lambda t: t,
             kept: Tensor | None = None, exponentials: bool = False) -> Pending | No:
    """The pending result of a row kernel over the axes `reduced` of `reads`. `after`, over the kernel's value
    and `operands`, belongs to the operator and gives `dtype`. `view` makes of a tensor of the operator's
    shape what the kernel walks; `operands` and `kept`, to which the kernel writes what it read, are walked as
    they are."""
    own = reads.tensors[0].shape
    if 0 in own:
        return No("empty")
    reads, operands = walkable(lo, reads, reduced, operands, view)
    wanted = lying(reads.tensors[0])
    closing = after if after is not None else Expr.leaf(0, reads.tree.dtype).cast(dtype)
    work = RowWork(reads, reduced, kernel, closing, operands, view, kept, exponentials)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, more: list[Tensor]) -> None:
        if rows_to(lo, work, out, tree, more):
            return
        plain = lo.new(own, dtype, wanted)
        rows_to(lo, work, plain, None, [])
        if tree is None:
            lo.copy(plain, out)
        else:
            lo.store(out, tree, [plain, *more])

    rows_to = lo.rules.steps["rows"]
    if lo.rules is RULES and plan(lo, work, Tensor(dtype, own, wanted, reads.tensors[0].buffer)) is None:
        return No("its rows lie in too many pieces")
    return Pending(own, dtype, emit, wanted, what=work)


def walkable(lo: Lowering, reads: Reads, reduced: Sequence[int], operands: Sequence[Tensor] = (),
             view: View = lambda t: t) -> tuple[Reads, list[Tensor]]:
    """What a row kernel reads, copied where a vector machine has no walk over what lies so."""
    first = reads.tensors[0]
    out = first.view(first.shape, lying(first))
    tensors = [*map(view, reads.tensors), *operands, view(out)]
    if lo.rules is not RULES or rows.plan(lo.machine, tensors[0].shape, reduced, [_steps(t) for t in tensors],
                                          reads.tree.dtype) is not None:
        return reads, list(operands)
    return Reads(reads.tree, [_packed(lo, t) for t in reads.tensors]), [_packed(lo, t) for t in operands]


def _packed(lo: Lowering, t: Tensor) -> Tensor:
    """`t` with its elements in C order, none of them more than once."""
    once = t.view([d if s else 1 for s, d in zip(t.strides, t.shape, strict=True)], t.strides)
    return lo.contiguous(once).expand(t.shape)


def _walked(work: RowWork, out: Tensor, more: Sequence[Tensor]) -> list[Tensor]:
    extra = [] if work.kept is None else [work.kept]
    return [*map(work.view, work.reads.tensors), *work.operands, *map(work.view, more), *extra,
            work.view(out)]


def plan(lo: Lowering, work: RowWork, out: Tensor, more: Sequence[Tensor] = ()) -> rows.RowWalk | None:
    """How a vector machine walks the rows; None where it cannot."""
    tensors = _walked(work, out, more)
    walk = rows.plan(lo.machine, tensors[0].shape, work.reduced, [_steps(t) for t in tensors],
                     work.reads.tree.dtype)
    return None if walk is not None and walk.form.segments and work.kernel is _first_largest else walk


def write(lo: Lowering, work: RowWork, out: Tensor, tree: Expr | None, more: Sequence[Tensor]) -> bool:
    """Append a vector machine's step that writes `tree`, or none, over the rows' values and `more` into
    `out`; False where there is no walk."""
    tensors, walk = _walked(work, out, more), plan(lo, work, out, more)
    if walk is None:
        return False
    spec, cells = work.kernel(walk.form, rows.tensors_of([t.dtype for t in tensors], walk),
                              work.closed(tree), work.reads)
    written = len(tensors) - 1 - (work.kept is not None)
    scratch = walk.scratch if work.exponentials or not rows.plain(work.reads.tree) else 0
    met = [Walked(t, *walk.loops(i), i >= written) for i, t in enumerate(tensors)]
    lo.step(spec, [*walk.cells(met), *cells], walk.items, walk.grain, scratch)
    return True


RULES.steps["rows"] = write


def _steps(t: Tensor) -> tuple[int, ...]:
    return tuple([s if d != 1 else 0 for s, d in zip(t.strides, t.shape, strict=True)])


def spread(lo: Lowering, value: Value | None, shape: tuple[int, ...]) -> Tensor | None:
    """An operand broadcast to `shape`; None where it does not fit or is of a type kernels do not compute
    with."""
    return lo.tensor(value).expand(shape) if value is not None and _spreads(lo, value, shape) else None


def _spreads(lo: Lowering, value: Value, shape: tuple[int, ...]) -> bool:
    """Whether an operand broadcasts to `shape`, and is of a type kernels compute with."""
    own = lo.shape(value)
    return lo.dtype(value) in REALS and len(own) <= len(shape) and all(
        d in (1, e) for d, e in zip(own[::-1], shape[::-1], strict=False))


def affine(operands: Sequence[Tensor], dtype: str, total: str = F) -> Expr:
    """The closing tree: a number of type `total` times the first operand, plus the second if there is one."""
    leaves = [Expr.leaf(0, total), *(Expr.leaf(i + 1, t.dtype).cast(total) for i, t in enumerate(operands))]
    return Expr("fma" if len(operands) == 2 else "mul", tuple(leaves), total).cast(dtype)


def alive(lo: Lowering, node: Node, index: int) -> bool:
    """Whether somebody reads an output."""
    v = node.outputs[index] if index < len(node.outputs) else None
    return v is not None and lo.left.get(v, 0) > 0


@lowers("Softmax", "LogSoftmax", types=FLOATS, sets=(GPU_RULES,))
@lowers("Softmax", "LogSoftmax", types=REALS)
def softmax(lo: Lowering, node: Node) -> Pending | Lazy | No:
    """Along one axis, or in the older form over all from an axis on. Of one element it is 1, and its
    logarithm 0, where that is finite."""
    (x,) = node.inputs
    assert x is not None and node.op is not None
    shape = lo.shape(x)
    axis = node.attributes["axis"]
    if not -len(shape) <= axis < len(shape):
        return No("its axis is out of range")
    axis = normalized_axis(axis, len(shape))
    reduced = (axis,) if node.op.since >= 13 else tuple(range(axis, len(shape)))
    dtype, log = lo.dtype(x), node.op_type == "LogSoftmax"
    if math.prod(shape[a] for a in reduced) == 1:
        return of_one(lo, x, log)
    steps = dtype if not log and dtype in FLOATS[1:] and node.op.since >= 13 else ""
    return softmax_rows_of(lo, reading(lo, x), reduced, dtype, log, steps)


def of_one(lo: Lowering, x: Value, log: bool = False) -> Lazy | No:
    """The softmax of each number by itself, or its logarithm."""
    def tree(dtypes: list[str]) -> Expr:
        leaf, total = Expr.leaf(0, dtypes[0]), computed(dtypes[0])
        none = Expr("sub", (leaf.cast(total), leaf.cast(total)), total)
        return (none if log else Expr("add", (none, Expr.const(1.0, total)), total)).cast(leaf.dtype)
    return lo.elementwise([x], tree)


def softmax_rows_of(lo: Lowering, reads: Reads, reduced: Sequence[int], dtype: str, log: bool = False,
                    steps: str = "") -> Pending | No:
    """The softmax of what is read along `reduced`, or its logarithm; `steps`: see `Softmax`."""
    return finished(lo, reads, reduced, dtype, Softmax(log, steps), exponentials=True)


@lowers("Hardmax", types=REALS)
def hardmax(lo: Lowering, node: Node) -> Pending | Lazy | No:
    """1 at the first largest element along one axis, or in the older form over all from an axis on."""
    (x,) = node.inputs
    assert x is not None and node.op is not None
    shape, axis = lo.shape(x), node.attributes["axis"]
    if not -len(shape) <= axis < len(shape):
        return No("its axis is out of range")
    axis = normalized_axis(axis, len(shape))
    reduced = range(axis, axis + 1 if node.op.since >= 13 else len(shape))
    length = math.prod(shape[a] for a in reduced)
    if length == 1:
        return Lazy(shape, Expr.const(1.0, lo.dtype(x)), [])
    if length >= rows.COUNTED:
        return No("its rows are longer than float32 can count")
    reads = reading(lo, x)
    if len(reduced) > 1:
        t = lo.contiguous(lo.tensor(x))
        reads = Reads(Expr.leaf(0, t.dtype).cast(computed(t.dtype)), [t])
    return finished(lo, reads, reduced, lo.dtype(x), _first_largest, exponentials=True)


def _first_largest(form: rows.RowForm, tensors: tuple[rows.Read, ...], after: Expr, reads: Reads
                   ) -> tuple[Spec, list[Any]]:
    return hardmax_rows(form=form, tensors=tensors, reads=len(reads.tensors), tree=reads.tree,
                        after=after), []


@dataclass(frozen=True)
class Softmax:
    """The kernel of a softmax, or of its logarithm. `steps`: the type that exponentials and their sums are
    rounded to, where they are."""

    log: bool = False
    steps: str = ""

    def __call__(self, form: rows.RowForm, tensors: tuple[rows.Read, ...], after: Expr, reads: Reads
                 ) -> tuple[Spec, list[Any]]:
        return softmax_rows(form=form, tensors=tensors, reads=len(reads.tensors), tree=reads.tree,
                            after=after, log=self.log, steps=self.steps), []


@dataclass(frozen=True)
class Norm:
    """The kernel of a normalization of `kind`; `mean` and `inverse`: where the rows' numbers go."""

    kind: str
    epsilon: float = 0.0
    keeps: bool = False
    mean: Tensor | None = None
    inverse: Tensor | None = None

    def __call__(self, form: rows.RowForm, tensors: tuple[rows.Read, ...], after: Expr, reads: Reads
                 ) -> tuple[Spec, list[Any]]:
        spec = norm_rows(form=form, tensors=tensors, reads=len(reads.tensors), tree=reads.tree, after=after,
                         kind=self.kind, keeps=self.keeps, mean=self.mean is not None,
                         inverse=self.inverse is not None)
        return spec, [rows.number_cell(self.epsilon, form.dtype),
                      *(Out(t) for t in (self.mean, self.inverse) if t is not None)]


@lowers("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", types=FLOATS,
        sets=(GPU_RULES,))
@lowers("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", types=REALS)
def layer_norm(lo: Lowering, node: Node) -> Any:
    """Over the axes from one on, times a scale and plus a bias."""
    x, attrs = node.inputs[0], node.attributes
    assert x is not None
    shape, axis = lo.shape(x), attrs["axis"]
    if not -len(shape) <= axis < len(shape):
        return No("its axis is out of range")
    axis = normalized_axis(axis, len(shape))
    centred = node.op_type == "LayerNormalization"
    given = [v for v in node.inputs[1:3 if centred else 2] if v is not None]
    operands = [spread(lo, v, shape) for v in given]
    if any(t is None for t in operands) or not operands:
        return No("its scale or bias does not fit")
    tensors = [t for t in operands if t is not None]
    extra = [alive(lo, node, i) for i in range(1, len(node.outputs))]
    dtype = lo.dtype(x) if centred else tensors[0].dtype
    kind, along = "layer" if centred else "rms", range(axis, len(shape))
    if not any(extra):
        return finished(lo, reading(lo, x), along, dtype, Norm(kind, attrs["epsilon"]),
                        affine(tensors, dtype, computed(lo.dtype(x))), tensors)
    if attrs["stash_type"] != 1 or lo.dtype(x) not in FLOATS:
        return No("its statistics are not float32")
    per_row = (*shape[:axis], *(1,) * (len(shape) - axis))
    statistics = [lo.new(per_row, F) for _ in extra]
    kernel = Norm(kind, attrs["epsilon"], mean=statistics[0] if centred else None,
                  inverse=statistics[-1] if len(extra) == 2 or not centred else None)
    reads = Reads(Expr.leaf(0, lo.dtype(x)).cast(F), [lo.contiguous(lo.tensor(x))])
    made = finished(lo, reads, along, dtype, kernel, affine(tensors, dtype), tensors)
    return now(lo, made, *statistics)


def now(lo: Lowering, made: Pending | No, *others: Tensor | None) -> Any:
    """The kernel written at once, because it writes more than one result."""
    if isinstance(made, No):
        return made
    out = lo.new(made.shape, made.dtype, made.strides)
    made.emit(lo, out, None, [])
    return (out, *others)


@varied
def summed_first(lo: Lowering, node: Node, values: Sequence[Value | None]) -> Tensor | None:
    """The sum of `values`, the last result of `node`, where kernels add it up before they normalize it; of
    its type, or wider."""
    return None


@lowers("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization",
        types=FLOATS, sets=(GPU_RULES,))
@lowers("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization",
        types=REALS)
def skip_norm(lo: Lowering, node: Node) -> Any:
    """The normalization of x + skip + bias, and where it is read that sum."""
    x, attrs = node.inputs[0], node.attributes
    assert x is not None
    shape, dtype = lo.shape(x), lo.dtype(x)
    centred = node.op_type == "SkipLayerNormalization"
    inputs = [*node.inputs, None, None, None]
    skip, affines, bias = inputs[1], inputs[2:4] if centred else inputs[2:3], inputs[4 if centred else 3]
    terms = [v for v in (skip, bias) if v is not None]
    operands = [spread(lo, v, shape) for v in affines if v is not None]
    if not all(_spreads(lo, v, shape) for v in terms) or None in operands or not shape or not operands:
        return No("its operands do not fit")
    if alive(lo, node, 1) or alive(lo, node, 2):
        return No("its statistics are read")
    tensors = [t for t in operands if t is not None]
    total, keeps = computed(dtype), alive(lo, node, 3)
    kind = "layer" if centred else "rms"
    if keeps and (whole := summed_first(lo, node, [x, skip, bias])) is not None:
        reads = Reads(Expr.leaf(0, whole.dtype).cast(total), [whole])
        made = finished(lo, reads, (len(shape) - 1,), dtype, Norm(kind, attrs["epsilon"]),
                        affine(tensors, dtype, total), tensors)
        return made, None, None, Lazy(shape, Expr.leaf(0, whole.dtype).cast(dtype), [whole])
    reads = Reads(Expr.leaf(0, dtype).cast(total), [
        lo.tensor(x), *(lo.tensor(v).expand(shape) for v in terms)])
    for i, t in enumerate(reads.tensors[1:], 1):
        reads.tree = Expr("add", (reads.tree, Expr.leaf(i, t.dtype).cast(total)), total)
    reads, tensors = walkable(lo, reads, (len(shape) - 1,), tensors)
    kept = lo.new(shape, dtype, lying(reads.tensors[0])) if keeps else None
    kernel = Norm(kind, attrs["epsilon"], keeps)
    made = finished(lo, reads, (len(shape) - 1,), dtype, kernel, affine(tensors, dtype, total), tensors,
                    kept=kept)
    return now(lo, made, None, None, kept) if keeps else made


@lowers("LpNormalization", "MeanVarianceNormalization", types=FLOATS, sets=(GPU_RULES,))
@lowers("LpNormalization", "MeanVarianceNormalization", types=REALS)
def plain_norm(lo: Lowering, node: Node) -> Pending | No:
    """Without scale and bias, over one axis or several."""
    (x,) = node.inputs
    assert x is not None
    attrs, rank = node.attributes, len(lo.shape(x))
    whole = node.op_type == "MeanVarianceNormalization"
    if whole and "axes" not in attrs:
        return No("it is a form of the first versions")
    axes = list(attrs["axes"]) if whole else [attrs["axis"]]
    if not axes or any(not -rank <= a < rank for a in axes) or attrs.get("p") not in (None, 1, 2):
        return No("its axes are out of range")
    kernel = Norm("deviation", 1e-9) if whole else Norm("l1" if attrs["p"] == 1 else "l2")
    return finished(lo, reading(lo, x), [normalized_axis(a, rank) for a in axes], lo.dtype(x), kernel)
