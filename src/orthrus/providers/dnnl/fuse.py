"""The primitive of a node with the nodes behind it as its post-ops.

In: how to make the primitive for a destination and attributes. Out: a step, and the last node's value bound
to what it writes. Whatever oneDNN does not take as a post-op stays a node of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...ir import Node
from ...lowering.tensor import Buffer
from .binding import DST, POST_OP, SCALES, SRC_1, ZERO_POINTS, Refused
from .lower import Lowering
from .objects import Attr, Binary, Desc, Eltwise, PostOp, Primitive, Scaling, Sum, open_layout, strided
from .step import LINKS, Chain, Link
from .tensor import Argument, Tensor


def finish(lo: Lowering, node: Node, shape: Sequence[int], dtype: str,
           make: Callable[[Desc, Attr], Primitive], reads: Callable[[Primitive], Sequence[Argument]], *,
           inner: Sequence[int] | None = None, layout: Desc | None = None, fuse: bool = True,
           first: Sequence[tuple[PostOp, Tensor | None]] = (), scalings: Sequence[Scaling] = (),
           integer: bool = False, linear_end: bool = False, over: Tensor | None = None) -> None:
    """Make the primitive of `node` with as many of the nodes behind it as post-ops as oneDNN takes, write
    its step, and bind the last value.

    `make(desc, attr)`: the primitive for a destination that lies as `desc` says, `reads(primitive)`: its
    arguments but the destination. `inner`: the destination's shape as the primitive has it, where ONNX
    has another. `layout`: how the destination is to lie; oneDNN chooses where it is None. `first`:
    post-ops that come before those of other nodes. `over`: what the result is added to, in memory that
    nobody else needs. `integer`: a QuantizeLinear may end the chain;
    `linear_end`: as a linear post-op, for a primitive that has no destination scale. Raises Refused.
    """
    shape, inside = tuple(shape), tuple(shape if inner is None else inner)
    behind = chained(lo, node, shape, inside, dtype, integer, layout, over is not None) if fuse else Chain()
    for chain in [behind, Chain()] if behind else [behind]:
        try:
            _finish(lo, node, chain, shape, inside, dtype, make, reads, layout, first, scalings, linear_end,
                    over)
            return
        except Refused:
            if not chain:
                raise


def _finish(lo: Lowering, node: Node, chain: Chain, shape: tuple[int, ...], inner: tuple[int, ...],
            dtype: str, make: Callable[[Desc, Attr], Primitive],
            reads: Callable[[Primitive], Sequence[Argument]], layout: Desc | None,
            first: Sequence[tuple[PostOp, Tensor | None]], scalings: Sequence[Scaling], linear_end: bool,
            over: Tensor | None) -> None:
    lib, end = lo.lib, chain.quantizes
    dtype = chain.dtype or dtype
    operands: list[tuple[PostOp, Tensor | None]] = [
        *([] if over is None else [(Sum(), over)]), *first,
        *((link.post, link.operand) for link in chain if link.post is not None)]
    scalings, args = list(scalings), list[Argument]()
    if end is not None and linear_end:
        operands.append((Eltwise("linear", 1 / end.scale, float(end.zero)), None))
    elif end is not None:
        scalings.append(Scaling(DST, "scales"))
        args.append((SCALES | DST, lo.number(end.scale)))
        if end.zero:
            scalings.append(Scaling(DST, "zero_points"))
            args.append((ZERO_POINTS | DST, lo.number(end.zero, "int32")))
    if layout is None:
        target = open_layout(lib, inner, dtype)
    else:
        target = layout if layout.dtype == dtype else strided(lib, inner, dtype, layout.strides)
    primitive = make(target, Attr(lib, [post for post, _ in operands], scalings))
    desc = primitive.desc(DST, inner, dtype)
    args[:0] = reads(primitive)
    last = chain[-1].node.output if chain else node.output
    sum_of = next((t for post, t in operands if isinstance(post, Sum)), None)
    out: Tensor
    if sum_of is not None:
        out = _summed(lo, sum_of, inner, desc, sum_of is over)
    elif last in lo.finals and Tensor(inner, desc, Buffer("output", 0)).plain:
        out = lo.output(last, inner, dtype)
    else:
        out = lo.new(inner, desc)
    for i, (post, operand) in enumerate(operands):
        if isinstance(post, Binary):
            assert operand is not None
            arg = POST_OP * (i + 1) | SRC_1
            if post.desc.strides is None:
                operand = lo.laid(operand, primitive.desc(arg, operand.shape, operand.dtype))
            args.append((arg, operand))
    nodes = (node, *(link.node for link in chain))
    lo.step(primitive, [*args, (DST, out)], [out], nodes)
    for link in chain:
        lo.read(link.node)
    result = out if inner == shape else lo.view(out, shape)
    if out.buffer.kind == "output":
        lo.outputs[last] = result
    lo.bind(last, result)


def _summed(lo: Lowering, operand: Tensor, shape: tuple[int, ...], desc: Desc, free: bool) -> Tensor:
    """Where a result that is added to `operand` goes: onto it, where that is `free` or nobody else needs it,
    and lies alike."""
    if (free or alone(lo, operand)) and operand.desc == desc:
        lo.copies.pop(id(operand.buffer), None)
        return Tensor(shape, desc, operand.buffer)
    out = lo.new(shape, desc)
    lo.reorder(operand, out)
    return out


def alone(lo: Lowering, t: Tensor) -> bool:
    """Whether the reader at hand is the last that needs the memory of `t`, which may be written then."""
    values = lo.sharing.get(id(t.buffer), [])
    return t.buffer.kind == "arena" and not t.offset and sum(lo.left.get(v, 0) for v in values) == 1 \
        and not any(v in lo.outputs for v in values)


def chained(lo: Lowering, node: Node, shape: tuple[int, ...], inner: tuple[int, ...], dtype: str,
            integer: bool, layout: Desc | None, added: bool = False) -> Chain:
    """The nodes behind `node`, one after another, that can be post-ops of its primitive, whose result is
    of `shape` and has `inner` inside the primitive. `added`: whether it is added to something already."""
    found, value = Chain(), node.output
    while True:
        reader = lo.only_reader(value)
        rule = None if reader is None else LINKS.get((reader.domain, reader.op_type))
        if reader is None or rule is None:
            return found
        if (dtype == "int32") != (reader.op_type == "Cast" and not found):
            return found
        if reader.op_type == "QuantizeLinear" and not integer:
            return found
        if dtype == "int32":
            dtype = "float32"
        link = rule(lo, reader, value, shape)
        if link is None:
            return found
        if link.operand is not None and link.post is not None:
            fitted = _fitted(lo, link.operand, shape, inner)
            full = isinstance(link.post, Binary) and fitted is not None and fitted.shape == inner
            if fitted is None or (full and added) or _misread(fitted.shape, inner):
                return found
            post: PostOp = link.post
            assert isinstance(post, Binary)
            if full and post.name == "add" and alone(lo, fitted):
                post, added = Sum(), True
            elif full:
                open_ = open_layout if layout is None else strided
                post = Binary(post.name, open_(lo.lib, inner, fitted.dtype))
                fitted = fitted if layout is None else lo.plain(fitted)
            else:
                fitted = lo.plain(fitted)
                post = Binary(post.name, fitted.desc)
            link = Link(link.node, post, fitted)
        found.append(link)
        if link.node.op_type == "QuantizeLinear":
            return found
        value = reader.output


def _misread(operand: Sequence[int], inner: Sequence[int]) -> bool:
    """Whether some primitives of oneDNN 3.2 take a post-op's operand for one number: it goes by channel, and
    images have one pixel."""
    return inner[0] > 1 and len(inner) > 2 and all(d == 1 for d in inner[2:]) and (
        operand[0] == 1 and operand[1] > 1)


def _fitted(lo: Lowering, t: Tensor, shape: tuple[int, ...], inner: tuple[int, ...]) -> Tensor | None:
    """`t`, which broadcasts to `shape`, as it broadcasts to `inner`; None where it does not."""
    if t.shape == inner:
        return t
    if t.size == math.prod(shape):
        return lo.reshaped(t, inner)
    if inner == shape:
        return lo.reshaped(t, (1,) * (len(inner) - len(t.shape)) + t.shape)
    if t.size == 1 or (inner and t.size == inner[-1] == t.shape[-1]):
        return lo.reshaped(t, (1,) * (len(inner) - 1) + (t.size,))
    return None
