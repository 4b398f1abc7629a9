"""Normalizations of images: per instance, per group of channels, and over neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.kernels import norm
from ...codegen.write.expr import Expr
from ...ir import No, Node
from ..lower import Lowering, Pending, lowers
from ..rule_sets import GPU_RULES
from ..tensor import Tensor
from .pool import framed, pixels
from .rows import FLOATS, REALS, Norm, Reads, affine, computed, finished, reading


@lowers("InstanceNormalization", "GroupNormalization", types=FLOATS, sets=(GPU_RULES,))
@lowers("InstanceNormalization", "GroupNormalization", types=REALS)
def group_norm(lo: Lowering, node: Node) -> Pending | No:
    """Per instance and group of channels; a group is one channel for InstanceNormalization."""
    x, scale, bias = node.inputs
    assert x is not None and scale is not None and bias is not None and node.op is not None
    shape, attrs = lo.shape(x), node.attributes
    if len(shape) < 2:
        return No("it has no channels")
    groups = attrs.get("num_groups", shape[1])
    per_group = node.op_type == "GroupNormalization" and node.op.since < 21
    count = groups if per_group else shape[1]
    if groups < 1 or shape[1] % groups or any(
            lo.shape(v) != (count,) or lo.dtype(v) not in REALS for v in (scale, bias)):
        return No("its scale and bias do not fit")
    each = shape[1] // groups
    walked = (shape[0], groups, each, *shape[2:])

    def split(t: Tensor) -> Tensor:
        return t.view((*t.shape[:1], groups, each, *t.shape[2:]),
                      (t.strides[0], t.strides[1] * each, *t.strides[1:]))

    def operand(t: Tensor) -> Tensor:
        step = t.strides[0]
        inner = (step, 0) if per_group else (step * each, step)
        return t.view(walked, (0, *inner, *(0,) * (len(shape) - 2)))
    operands = [operand(lo.tensor(v)) for v in (scale, bias)]
    dtype = lo.dtype(x)
    reads = reading(lo, x)
    first = reads.tensors[0]
    if each > 1 and first.strides[-1] != 1:
        reads = Reads(Expr.leaf(0, dtype).cast(computed(dtype)), [lo.contiguous(lo.tensor(x))])
    return finished(lo, reads, range(2, len(walked)), dtype, Norm("layer", attrs["epsilon"]),
                    affine(operands, dtype, computed(dtype)), operands, split)


@lowers("LRN", types=FLOATS)
def response_norm(lo: Lowering, node: Node) -> Pending | No:
    """Each channel over a power of the squares around it."""
    (x,) = node.inputs
    assert x is not None
    attrs, shape = node.attributes, lo.shape(x)
    if len(shape) < 3 or attrs["size"] < 1 or 0 in shape:
        return No("it has no pixels")
    t = lo.channels_last(lo.tensor(x))

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        frame = framed(lo, t, out, tree, operands)
        reach = min(attrs["size"], 2 * shape[1] - 1)
        spec = norm.response_norm(size=reach, beta=attrs["beta"], **frame.params)
        lo.step(spec, [*frame.cells, t, *frame.walked(t), attrs["bias"], attrs["alpha"] / attrs["size"]],
                frame.items, frame.grain)
    return pixels(shape, lo.dtype(x), t, emit)
