"""Operators that only move elements: views where strides can say it, else copies by oneDNN."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ....ir import ElementType, No, Node, Value
from ....ops.tensor.movement import VIEWS, dimensions
from ..binding import Refused
from ..lower import Lowering
from ..objects import inner, last_strides, strided
from ..step import Link, links, lowers
from ..tensor import Joined, Quantized, Tensor

FREE = VIEWS | {"Transpose", "Dropout", "Slice", "Split"}
"""Operators that cost nothing where they are."""


def through(lo: Lowering, value: Value | None, move: Callable[[Tensor], Tensor]) -> Tensor | Quantized:
    """`value` moved; a quantized one as integers, where one scale holds for all of it."""
    found = lo.quantized(value)
    if found is not None and found.whole:
        return Quantized(move(found.tensor), found.scale, found.zero, found.axis, found.node)
    return move(lo.tensor(value))


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(lo: Lowering, node: Node) -> Tensor | Quantized:
    """The same elements in another shape."""
    shape = _shape(lo, node)
    return through(lo, node.inputs[0], lambda t: lo.regrouped(t, shape))


def _shape(lo: Lowering, node: Node) -> list[int]:
    attrs, old = node.attributes, lo.shape(node.inputs[0])
    if node.op_type == "Flatten":
        axis = attrs["axis"] + (len(old) if attrs["axis"] < 0 else 0)
        return [math.prod(old[:axis]), math.prod(old[axis:])]
    second = lo.known(node.inputs[1]) if len(node.inputs) > 1 else None
    if node.op_type == "Reshape":
        given = attrs.get("shape") if second is None else second
        shape = dimensions(old, [int(d) for d in (given if given is not None else ())],
                           attrs.get("allowzero"))
        if math.prod(shape) != math.prod(old):
            raise ValueError(f"{list(old)} cannot be reshaped to {shape}")
        return shape
    axes = attrs.get("axes") if second is None else second.reshape(-1)
    if node.op_type == "Squeeze":
        gone = {i for i, d in enumerate(old) if d == 1} if axes is None else {int(a) % len(old) for a in axes}
        if any(old[i] != 1 for i in gone):
            raise ValueError(f"axes {sorted(gone)} of {list(old)} are not all one")
        return [d for i, d in enumerate(old) if i not in gone]
    assert axes is not None
    rank = len(old) + len(axes)
    new = {int(a) % rank for a in axes}
    rest = iter(old)
    return [1 if i in new else next(rest) for i in range(rank)]


@lowers("Transpose")
def transpose(lo: Lowering, node: Node) -> Tensor | Quantized:
    """The dimensions in another order."""
    order = node.attributes["perm"]
    rank = len(lo.shape(node.inputs[0]))
    return through(lo, node.inputs[0],
                   lambda t: lo.permuted(t, order if order is not None else range(rank - 1, -1, -1)))


@lowers("Identity", "Dropout")
def identity(lo: Lowering, node: Node) -> Tensor | Quantized:
    """The input itself."""
    return through(lo, node.inputs[0], lambda t: t)


def box(lo: Lowering, t: Tensor, begin: Sequence[int], shape: Sequence[int]) -> Tensor:
    """A box of `t`, in its memory: by strides, or by blocks where it begins and ends at such."""
    if t.desc.strides is None:
        try:
            return Tensor(tuple(shape), inner(t.desc, shape, begin), t.buffer, t.offset)
        except Refused:
            t = lo.plain(t)
    assert t.desc.strides is not None
    return lo.view(t, shape, t.desc.strides, sum(b * s for b, s in zip(begin, t.desc.strides, strict=True)))


@lowers("Slice")
def slices(lo: Lowering, node: Node) -> Tensor | Quantized | No:
    """A box with steps of one."""
    old = lo.shape(node.inputs[0])
    begin, shape = [0] * len(old), list(old)
    if node.version < 10:
        attrs = node.attributes
        starts, ends, axes, steps = attrs["starts"], attrs["ends"], attrs.get("axes"), None
    else:
        given = [None if (known := lo.known(v)) is None else known.reshape(-1) for v in node.inputs[1:]]
        starts, ends, axes, steps = [*given, None, None][:4]
    if steps is not None and (np.asarray(steps) != 1).any():
        return No("a step that is not one")
    for i, (start, stop) in enumerate(zip(starts, ends, strict=True)):
        axis = int(axes[i]) % len(old) if axes is not None else i
        first, last, _ = slice(int(start), int(stop)).indices(old[axis])
        begin[axis], shape[axis] = first, max(last - first, 0)
    if 0 in shape:
        return No("a tensor without elements")
    return through(lo, node.inputs[0], lambda t: box(lo, t, begin, shape))


@lowers("Split")
def split(lo: Lowering, node: Node) -> tuple[Tensor, ...] | No:
    """Boxes along one dimension."""
    attrs = node.attributes
    x = lo.tensor(node.inputs[0])
    axis, count = attrs["axis"] % len(x.shape), len(node.outputs)
    given = lo.known(node.inputs[1]) if len(node.inputs) > 1 else attrs.get("split")
    size = -(-x.shape[axis] // count)
    sizes = [int(s) for s in given] if given is not None else [
        min(size, x.shape[axis] - i * size) for i in range(count)]
    if given is None and node.op.since < 18 and x.shape[axis] % count:
        return No("its axis has no parts of one size")
    if len(sizes) != count or min(sizes) < 1 or sum(sizes) != x.shape[axis]:
        return No("a tensor without elements, or other sizes than the axis has")
    made = []
    for at, length in zip(itertools.accumulate([0, *sizes]), sizes, strict=False):
        begin, shape = [0] * len(x.shape), list(x.shape)
        begin[axis], shape[axis] = at, length
        made.append(box(lo, x, begin, shape))
    return tuple(made)


@lowers("Concat")
def concatenation(lo: Lowering, node: Node) -> Tensor | Quantized | Joined:
    """Tensors one after another along a dimension."""
    axis = node.attributes["axis"] % len(lo.shape(node.inputs[0]))
    found = [lo.quantized(v) for v in node.inputs]
    head = found[0]
    if head is not None and all(head.like(q) for q in found):
        t = lo.concatenated([q.tensor for q in found if q is not None], axis)
        return Quantized(t, head.scale, head.zero, head.axis, head.node)
    parts = [lo.tensor(v) for v in node.inputs]
    if axis == 1 and apart(lo, node, parts):
        return Joined(tuple(parts))
    return lo.concatenated(parts, axis)


_WIDE = 32
"""Channels that a part of an image has at least for a convolution to take it by itself."""


def apart(lo: Lowering, node: Node, parts: Sequence[Tensor]) -> bool:
    """Whether the parts of an image are read by a 1x1 convolution alone, which adds up what it makes of each:
    that reads and writes less than a copy of all of them, and sums in shorter chains."""
    reader = lo.only_reader(node.output)
    if reader is None or reader.op_type != "Conv" or reader.inputs[0] is not node.output:
        return False
    weights = lo.known(reader.inputs[1])
    return (weights is not None and weights.dtype == np.float32 and reader.attributes["group"] == 1
            and math.prod(weights.shape[2:]) == 1
            and all(p.dtype == "float32" and p.shape[1] >= _WIDE and p.desc.strides == last_strides(p.shape)
                    and len(p.shape) == 4 for p in parts))


@lowers("Cast")
def cast(lo: Lowering, node: Node) -> Tensor:
    """Between types that reorders convert."""
    x, target = lo.tensor(node.inputs[0]), ElementType(node.attrs["to"]).numpy.name
    if x.dtype == target:
        return x
    x = lo.plain(x)
    return lo.laid(x, strided(lo.lib, x.shape, target))


@links("Cast")
def cast_link(lo: Lowering, node: Node, value: Value, shape: tuple[int, ...]) -> Link | None:
    """Sums of integers that become float32 as they are stored."""
    return Link(node, None, None, "float32") if ElementType(node.attrs["to"]) is ElementType.FLOAT else None
