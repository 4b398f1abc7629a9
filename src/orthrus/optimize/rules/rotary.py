"""Rotary positions: x * cos + rotate(x) * sin, where cos and sin hold each angle twice, half apart."""

from __future__ import annotations

import numpy as np

from ...ir import No
from ..pattern import number, rule
from .facts import array, ints, positive, rank

_TRACE = 32


def _turned(op, x, a, b, axis, s, e, t, u, p=None, q=None):
    return op.Concat(op.Neg(op.Slice(x, a, b, s, p)), op.Slice(x, t, u, e, q), axis=axis)


@rule(lambda op, x, c, d, a, b, s, e, t, u, axis, p=None, q=None:
      op.Add(op.Mul(x, c), op.Mul(_turned(op, x, a, b, axis, s, e, t, u, p, q), d)))
def fuse_rotary_embedding(op, x, c, d, a, b, s, e, t, u, axis, p, q):
    """x * cos + concat(-x[half:], x[:half]) * sin, of x [batch, heads, sequence, size]"""
    n = rank(x)
    size = x.shape[-1] if n == 4 else None
    if not isinstance(size, int) or size % 2:
        return No("it is no tensor of rank 4 with a known head size")
    half = size // 2
    if any(positive(ints(v), n) != [n - 1] for v in (s, e)) or axis not in (-1, n - 1):
        return No("the last axis is not the one that turns")
    if (
        ints(a) != [half]
        or (ints(b) or [0])[0] < size
        or ints(t) not in ([0], [-size])
        or ints(u) not in ([half], [-half])
    ):
        return No("it does not turn by half of the head")
    if any(v is not None and ints(v) != [1] for v in (p, q)):
        return No("a slice has steps")
    return _rotary(op, x, c, d, half)


@rule(lambda op, x, c, d, axis, by, sizes=None: op.Add(op.Mul(x, c), op.Mul(
    op.Concat(op.Neg(op.Split(x, sizes, axis=by)[1]), op.Split(x, sizes, axis=by), axis=axis), d)))
def fuse_rotary_embedding_split(op, x, c, d, axis, by, sizes):
    """The same, with the halves from a Split."""
    n = rank(x)
    size = x.shape[-1] if n == 4 else None
    if not isinstance(size, int) or size % 2 or axis not in (-1, 3) or by not in (-1, 3):
        return No("it is no tensor of rank 4 that turns along a known last axis")
    if sizes is not None and ints(sizes) != [size // 2] * 2:
        return No("it does not turn by half of the head")
    return _rotary(op, x, c, d, size // 2)


def _rotary(op, x, cos, sin, half):
    caches = []
    for value in (cos, sin):
        if not _repeats(value, half):
            return No("cos and sin are not known to hold each angle twice")
        flat = _flat(op, value)
        if flat is None:
            return No("cos and sin are not the same for every head")
        part = op.Slice(flat, op.ints([0]), op.ints([half]), op.ints([2]))
        if flat.shape[0] != x.shape[0] or flat.shape[0] is None:
            if flat.shape[0] != 1:
                return No("the batch of cos and sin is not known to be that of x")
            part = op.Expand(part, op.Concat(op.Shape(x, start=0, end=1), op.ints([1, 1]), axis=0))
        caches.append(part)
    return op.RotaryEmbedding(x, *caches)


def _flat(op, value):
    """[batch, 1, sequence, size] without its second axis."""
    made = op.maker(value, "Unsqueeze", alone=False)
    if made is not None and rank(made.inputs[0]) == 3 and positive(ints(made.inputs[1]), 4) == [1]:
        return made.inputs[0]
    if rank(value) == 4 and value.shape[1] == 1:
        return op.Squeeze(value, op.ints([1]))
    return None


def _repeats(value, half):
    """Whether the two halves of the last axis are equal: a constant, or one Concat of a value with itself,
    whatever elementwise operators stand between."""
    for _ in range(_TRACE):
        known = array(value)
        if known is not None:
            return known.shape[-1:] == (2 * half,) and np.array_equal(known[..., :half], known[..., half:])
        node = value.node
        if node is None or node.domain:
            return False
        if node.op_type == "Concat":
            axis = positive([int(node.attrs["axis"])], rank(value))
            return (
                len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and axis == [len(value.shape) - 1]
            )
        if node.op_type in ("Cos", "Sin", "Cast", "Unsqueeze", "Identity"):
            if node.op_type == "Unsqueeze" and rank(value) - 1 in (
                positive(ints(node.inputs[1]), rank(value)) or [rank(value) - 1]
            ):
                return False
            value = node.inputs[0]
        elif node.op_type in ("Mul", "Div") and number(node.inputs[1]) is not None:
            value = node.inputs[0]
        elif node.op_type == "Mul" and number(node.inputs[0]) is not None:
            value = node.inputs[1]
        elif node.op_type == "Gather" and not node.attribute("axis") and (rank(node.inputs[0]) or 0) >= 2:
            value = node.inputs[0]
        else:
            return False
    return False


EXTENDED = (fuse_rotary_embedding, fuse_rotary_embedding_split)
