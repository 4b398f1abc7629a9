"""Movement of elements: views wherever strides can say it, copies where they cannot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...ir import No, Node, Value
from ...ops.define import normalized_axis
from ...ops.tensor.movement import dimensions
from ..lower import BOTH, Lazy, Lowering, lowers
from ..tensor import Tensor, joint_shape, last_strides


@lowers("Transpose", sets=BOTH)
def transposed(lo: Lowering, node: Node) -> Tensor | No:
    """A view."""
    t = lo.tensor(node.inputs[0])
    given = node.attrs.get("perm")
    order = tuple(reversed(range(t.rank))) if given is None else given
    if sorted(order) != [*range(t.rank)]:
        return No("perm is no order of its input's axes")
    return t.permute(order)


def reshaped(lo: Lowering, t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`t` under another shape: a view, or of a copy."""
    made = t.reshape(shape)
    if made is None:
        made = lo.contiguous(t).reshape(shape)
    assert made is not None
    return made


@lowers("Reshape", sets=BOTH)
def reshape(lo: Lowering, node: Node) -> Tensor | Lazy | No:
    given, wanted = lo.shape(node.inputs[0]), lo.known(node.inputs[1])
    if wanted is None or wanted.ndim != 1:
        return No("its shape is not known, or no vector")
    shape = tuple(dimensions(given, wanted.tolist(), node.attrs.get("allowzero")))
    if math.prod(shape) != math.prod(given):
        raise ValueError("the sizes differ")
    return lo.unwritten(node.inputs[0], shape) or reshaped(lo, lo.tensor(node.inputs[0]), shape)


@lowers("Squeeze", "Unsqueeze", "Flatten", sets=BOTH)
def same_elements(lo: Lowering, node: Node) -> Tensor | Lazy:
    """The shape that the definition gives an array without elements of its own."""
    rest = [None if v is None else lo.known(v) for v in node.inputs[1:]]
    shape = lo.shape_by(node, lo.shape(node.inputs[0]), rest)
    return lo.unwritten(node.inputs[0], shape) or reshaped(lo, lo.tensor(node.inputs[0]), shape)


@lowers("Expand", sets=BOTH)
def expand(lo: Lowering, node: Node) -> Tensor | No:
    """A view with stride 0."""
    t, wanted = lo.tensor(node.inputs[0]), lo.known(node.inputs[1])
    if wanted is None or wanted.ndim != 1:
        return No("its shape is not known, or no vector")
    return t.expand(joint_shape(t.shape, tuple(wanted.tolist())))


@lowers("Slice", sets=BOTH)
def slice_(lo: Lowering, node: Node) -> Tensor | No:
    """A view; steps backwards too."""
    t = lo.tensor(node.inputs[0])
    if len(node.inputs) > 1:
        given = [None if v is None else lo.known(v) for v in node.inputs[1:]]
        if any(g is None and v is not None for g, v in zip(given, node.inputs[1:], strict=True)):
            return No("its bounds are not known")
        if any(g is not None and g.ndim != 1 for g in given):
            return No("its bounds are no vectors")
        lists = [None if g is None else g.tolist() for g in given]
    else:
        lists = [node.attrs.get(name) for name in ("starts", "ends", "axes")]
    bounds: list[Any] = [*lists, *[None] * (4 - len(lists))]
    starts, ends, axes, steps = bounds
    which = [normalized_axis(a, t.rank) for a in (range(len(starts)) if axes is None else axes)]
    if len(set(which)) < len(which) or any(
            len(g) != len(which) for g in (starts, ends, steps) if g is not None):
        return No("its bounds differ in number, or it names an axis twice")
    for axis, start, end, step in zip(which, starts, ends, steps or [1] * len(which), strict=True):
        low, count = _bounds(start, end, step, t.shape[axis])
        t = t.slice(axis, low, count, step)
    return t


def _bounds(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Where a slice of `size` elements begins, and how many it takes. What begins before the first element
    begins at it, backwards too."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    begin, behind = (min(max(x + size if x < 0 else x, least), high) for x, least in ((start, 0), (end, low)))
    way = behind - begin if step > 0 else begin - behind
    return begin, max(0, -(-way // abs(step)))


@lowers("Split", sets=BOTH)
def split(lo: Lowering, node: Node) -> tuple[Tensor, ...] | No:
    """Views side by side."""
    t = lo.tensor(node.inputs[0])
    axis = normalized_axis(node.attribute("axis"), t.rank)
    sizes = _parts(lo, node, t.shape[axis])
    if isinstance(sizes, No):
        return sizes
    made, at = [], 0
    for size in sizes:
        made.append(t.slice(axis, at, size))
        at += size
    return tuple(made)


def _parts(lo: Lowering, node: Node, length: int) -> Sequence[int] | No:
    """How many of `length` elements each output takes. Before opset 18 parts of no given size are equal."""
    count, sizes = len(node.outputs), node.attrs.get("split") or None
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        known = lo.known(node.inputs[1])
        if known is None or known.ndim != 1:
            return No("its sizes are not known, or no vector")
        sizes = known.tolist()
    if sizes is None:
        each = -(-length // count)
        sizes = [each] * (count - 1) + [length - each * (count - 1)]
        if node.op.since < 18 and sizes[-1] != each:
            return No("its axis has no parts of one size")
    if len(sizes) != count or min(sizes) < 0 or sum(sizes) != length:
        return No("its sizes do not fill the axis, or are not as many as its outputs")
    return sizes


@lowers("Concat", sets=BOTH)
def concat(lo: Lowering, node: Node) -> Tensor | No:
    """Each input straight into its slice; of what is empty along the axis only the rank counts."""
    values = [v for v in node.inputs if v is not None]
    shapes = [lo.shape(v) for v in values]
    axis = normalized_axis(node.attrs["axis"], len(shapes[0]))
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        return No("its inputs differ in rank")
    values = [v for v, shape in zip(values, shapes, strict=True) if shape[axis]] or values[:1]
    shapes = [lo.shape(v) for v in values]
    if any(a != b for shape in shapes
           for i, (a, b) in enumerate(zip(shape, shapes[0], strict=True)) if i != axis):
        return No("its inputs differ beside the axis")
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)
    strides = None
    if len(whole) > 2 and axis == 1 and all(lies_last(lo, v) for v in values):
        strides = last_strides(whole, whole[1])
    out = lo.new(whole, lo.dtype(values[0]), strides)
    at = 0
    for v, shape in zip(values, shapes, strict=True):
        if 0 not in shape:
            lo.into(v, out.slice(axis, at, shape[axis]))
        at += shape[axis]
    return out


def lies_last(lo: Lowering, value: Value) -> bool:
    """Whether `value` lies, or wants to lie, with its channels next to each other."""
    lazy = lo.lazy(value)
    source = lazy.source
    if source is not None:
        strides = source.pending.strides
    else:
        strides = next((o.strides for o in lazy.operands
                        if isinstance(o, Tensor) and o.shape == lazy.shape), None)
    return strides is not None and strides[1] == 1
