"""Rotary positions: pairs of features turned by angles. A pair lies half a head apart, or side by side
(interleaved); cos and sin hold each angle once, or twice, as the pairs lie.

The target is ONNX's RotaryEmbedding: of [batch, heads, sequence, size], or of [batch, sequence, features]
with the heads side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ir import No, Value
from ..pattern import number, rule
from .facts import array, differ, ints, positive, rank

_TRACE = 32


class _Part(NamedTuple):
    """Some of the features of `x`: range(start, stop, step) of its last axis."""

    x: Value
    start: int
    stop: int
    step: int


def _halves(op, a, b, axis):
    return op.Concat(a, b, axis=axis)


def _pairs(op, a, b, axis, i, j, s):
    return op.Reshape(_halves(op, op.Unsqueeze(a, i), op.Unsqueeze(b, j), axis), s)


@rule(lambda op, x, c, d, a, b, axis: op.Add(op.Mul(x, c), op.Mul(_halves(op, op.Neg(b), a, axis), d)))
def fuse_rotary_embedding(op, x, c, d, a, b, axis):
    """x * cos + concat(-x[half:], x[:half]) * sin"""
    return _doubled(op, (x, c), a, b, axis, d, False)


@rule(lambda op, x, c, d, a, b, axis, s: op.Add(
    op.Mul(x, c), op.Mul(op.Reshape(_halves(op, b, a, axis), s), d)))
def fuse_rotary_embedding_pairs(op, x, c, d, a, b, axis):
    """x * cos + stack(-x[1::2], x[::2]) * sin"""
    negated = b.node
    if negated is not None and negated.op_type == "Unsqueeze" and _one_wide(b):
        negated = negated.inputs[0].node
    if negated is None or negated.op_type != "Neg" or not _one_wide(a) or not _one_wide(b):
        return None
    return _doubled(op, (x, c), a, negated.inputs[0], axis, d, True)


def _turned(op, form, a, b, c, d, *more):
    return form(op, op.Sub(op.Mul(a, c), op.Mul(b, d)), op.Add(op.Mul(b, c), op.Mul(a, d)), *more)


@rule(lambda op, a, b, c, d, axis: _turned(op, _halves, a, b, c, d, axis))
def fuse_rotary_embedding_parts(op, a, b, c, d, axis):
    """concat(a * cos - b * sin, b * cos + a * sin)"""
    return _single(op, (a, b), (c, d), axis, False)


@rule(lambda op, a, b, c, d, axis, i, j, s: _turned(op, _pairs, a, b, c, d, axis, i, j, s))
def fuse_rotary_embedding_parts_pairs(op, a, b, c, d, axis, i, j):
    """stack(a * cos - b * sin, b * cos + a * sin)"""
    if any(positive(ints(axes), 5) != [4] for axes in (i, j)):
        return No("the pairs do not lie side by side")
    return _single(op, (a, b), (c, d), axis, True)


def _one_wide(value):
    """Whether a tensor of rank 5 has a last axis of 1, and if it got that by an Unsqueeze, that one."""
    node = value.node
    if rank(value) != 5 or value.shape[-1] != 1 or node is None:
        return False
    return node.op_type != "Unsqueeze" or positive(ints(node.inputs[1]), 5) == [4]


def _doubled(op, factors, a, b, axis, sin, interleaved):
    """cos and sin hold each angle twice; one of the two `factors` is what turns, the other is cos."""
    first = part_of(a)
    if first is None or not any(x is first.x for x in factors):
        return No("the pairs are not features of what is multiplied by cos")
    cos = factors[1] if factors[0] is first.x else factors[0]
    return _rotary(op, a, b, axis, (cos, sin), interleaved, True)


def _single(op, one, other, axis, interleaved):
    """Each angle comes once; the halves of what turns and (cos, sin) may have matched either way round."""
    parts = [part_of(value) for value in one]
    if None in parts or parts[0].x is not parts[1].x:
        one, other = other, one
    return _rotary(op, *one, axis, other, interleaved, False)


def _rotary(op, a, b, axis, angles, interleaved, doubled):
    """The features of which `a` and `b` are the first and the second ones of every pair, turned."""
    first, second = part_of(a), part_of(b)
    if first is None or second is None or first.x is not second.x:
        return No("the pairs are not features of one tensor")
    x = first.x
    size = x.shape[-1] if rank(x) == 4 else None
    if not isinstance(size, int) or size % 2 or axis not in (-1, 4 if interleaved else 3):
        return No("it is no tensor of rank 4 that turns along a known last axis")
    half = size // 2
    wanted = [(0, size, 2), (1, size, 2)] if interleaved else [(0, half, 1), (half, size, 1)]
    if [first[1:], second[1:]] != wanted:
        return No("it does not turn by half of the head, or by neighbours")
    placed = [_placed(op, value, x, size if doubled else half) for value in angles]
    if None in placed or placed[0][1] != placed[1][1]:
        return No("cos and sin are not the same for every head")
    if doubled and not all(_repeats(value, half, interleaved) for value in angles):
        return No("cos and sin are not known to hold each angle twice")
    by_head, caches = placed[0][1], []
    for flat, _ in placed:
        if doubled:
            flat = op.Slice(flat, op.ints([0]), op.ints([size if interleaved else half]), op.ints([2]),
                            op.ints([2 if interleaved else 1]))
        if flat.shape[0] != x.shape[0] or flat.shape[0] is None:
            if flat.shape[0] != 1:
                return No("the batch of cos and sin is not known to be that of x")
            flat = op.Expand(flat, op.Concat(op.Shape(x, start=0, end=1), op.ints([1, 1]), axis=0))
        caches.append(flat)
    if by_head:
        return op.RotaryEmbedding(x, *caches, interleaved=int(interleaved))
    heads = x.shape[2]
    flat = op.RotaryEmbedding(op.Reshape(x, op.ints([0, 0, heads * size])), *caches, num_heads=heads,
                              interleaved=int(interleaved))
    return op.Reshape(flat, op.ints([0, 0, heads, size]))


def part_of(value):
    """The features that `value` holds, in order; None for what does not choose from a last axis. Of rank 5,
    it holds one of each two neighbours, with a last axis of 1."""
    node = value.node
    if node is None or node.domain:
        return None
    if node.op_type == "Unsqueeze":
        return part_of(node.inputs[0]) if _one_wide(value) else None
    found = None
    if node.op_type == "Slice":
        found = _sliced(node)
    elif node.op_type == "Split":
        found = _split(node, node.outputs.index(value))
    elif node.op_type == "Gather" and node.attrs.get("axis") in (-1, 4):
        index = number(node.inputs[1])
        return None if index is None or rank(value) != 4 else _neighbour(node.inputs[0], int(index) % 2)
    elif node.op_type == "Squeeze" and len(node.inputs) > 1 and rank(value) == 4 and \
            positive(ints(node.inputs[1]), 5) == [4]:
        return part_of(node.inputs[0])
    if found is not None and rank(value) == 5:
        return _neighbour(found.x, found.start) if found.stop - found.start == 1 else None
    return found


def _sliced(node):
    x, start, stop, axes, steps = (*node.inputs, None, None, None)[:5]
    n = rank(x)
    size = x.shape[-1] if n else None
    told = [ints(v) for v in (start, stop)]
    step = [1] if steps is None else ints(steps)
    if not isinstance(size, int) or positive(ints(axes), n) != [n - 1] or None in told or step is None:
        return None
    first, last, by = slice(told[0][0], told[1][0], step[0]).indices(size)
    return _Part(x, first, last, by) if by > 0 else None


def _split(node, index):
    x = node.inputs[0]
    n = rank(x)
    widths = [v.shape[-1] if v is not None and rank(v) else None for v in node.outputs]
    if not n or node.attribute("axis") not in (-1, n - 1) or not all(isinstance(w, int) for w in widths):
        return None
    start = sum(widths[:index])
    return _Part(x, start, start + widths[index], 1)


def _neighbour(apart, index):
    """One of each two neighbours, where `apart` [..., n, 2] is a reshaped [..., 2 * n]."""
    made = apart.node
    if made is None or made.op_type != "Reshape" or made.domain or rank(apart) != 5 or apart.shape[-1] != 2:
        return None
    x = made.inputs[0]
    if rank(x) != 4 or not isinstance(x.shape[-1], int) or 2 * apart.shape[-2] != x.shape[-1]:
        return None
    return _Part(x, index, x.shape[-1], 2)


def _placed(op, value, x, width):
    """`value` as [batch or 1, sequence, width], and whether the heads of x [batch, …, …, size] come before
    its sequence; None where it is not the same for every head."""
    n = rank(value)
    if n is None or not 2 <= n <= 4 or value.shape[-1] != width:
        return None
    shape = (*[1] * (4 - n), *value.shape)
    by_head = shape[1] == 1 and not (shape[2] == 1 and x.shape[2] != 1)
    length = shape[2] if by_head else shape[1]
    if not by_head and (shape[2] != 1 or not isinstance(x.shape[2], int)):
        return None
    if differ(length, x.shape[2 if by_head else 1]):
        return None
    made = op.maker(value, "Unsqueeze", alone=False)
    if made is not None and rank(made.inputs[0]) == 3 and positive(ints(made.inputs[1]), 4) == \
            [1 if by_head else 2]:
        return made.inputs[0], by_head
    if n == 4:
        return op.Squeeze(value, op.ints([1 if by_head else 2])), by_head
    return (value if n == 3 else op.Unsqueeze(value, op.ints([0]))), by_head


def _repeats(value, half, interleaved):
    """Whether a tensor holds every angle twice, as the pairs lie: a constant, one Concat of a value with
    itself, or one repeated along an axis of its own, whatever elementwise operators stand between."""
    for _ in range(_TRACE):
        known = array(value)
        if known is not None:
            pair = (known[..., ::2], known[..., 1::2]) if interleaved else \
                (known[..., :half], known[..., half:])
            return known.shape[-1:] == (2 * half,) and np.array_equal(*pair)
        node = value.node
        if node is None or node.domain:
            return False
        if node.op_type == "Concat":
            return _joins_repeated(node, half, interleaved)
        if node.op_type == "Reshape" and rank(value) == (rank(node.inputs[0]) or 0) - 1:
            return interleaved and _twice(node.inputs[0].node)
        value = _elementwise(node, value)
        if value is None:
            return False
    return False


def _joins_repeated(node, half, interleaved):
    """Whether what a Concat joins makes every angle come twice: each part has whole pairs, or the one is the
    other."""
    n, parts = rank(node.outputs[0]), node.inputs
    if positive([int(node.attrs["axis"])], n) != [n - 1]:
        return False
    if not interleaved:
        return len(parts) == 2 and parts[0] is parts[1]
    return all(isinstance(part.shape[-1], int) and part.shape[-1] % 2 == 0
               and _repeats(part, part.shape[-1] // 2, True) for part in parts)


def _twice(node):
    """Whether a node repeats a last axis of one twice."""
    if node is None or node.domain or node.op_type not in ("Expand", "Tile", "Concat"):
        return False
    x, y = node.inputs[0], node.outputs[0]
    if node.op_type == "Concat" and (len(node.inputs) != 2 or node.inputs[1] is not x):
        return False
    return rank(x) is not None and rank(x) == rank(y) and x.shape[-1] == 1 and y.shape[-1] == 2


def _elementwise(node, value):
    """What a node computes `value` from, feature by feature of the last axis; None where it may not."""
    x = node.inputs[0]
    if node.op_type in ("Cos", "Sin", "Cast", "Identity"):
        return x
    if node.op_type == "Unsqueeze":
        axes, n = positive(ints(node.inputs[1]), rank(value)), rank(value)
        return x if axes is not None and n - 1 not in axes else None
    if node.op_type in ("Mul", "Div") and number(node.inputs[1]) is not None:
        return x
    if node.op_type == "Mul" and number(x) is not None:
        return node.inputs[1]
    if node.op_type == "Gather" and not node.attribute("axis") and (rank(x) or 0) >= 2:
        return x
    return None


@rule(lambda op, a, b, axis: op.Concat(op.RotaryEmbedding(a, ...), b, axis=axis),
      lambda op, a, b, axis, s: op.Concat(
          op.Reshape(op.RotaryEmbedding(op.Reshape(a, s), ...), ...), b, axis=axis))
def fuse_partial_rotary_embedding(op, a, b, axis, root):
    """Only the first features of each head turn."""
    shaped = op.maker(root.inputs[0], "Reshape")
    made = op.maker(shaped.inputs[0] if shaped is not None else root.inputs[0], "RotaryEmbedding")
    turned, rest = part_of(a), part_of(b)
    if made is None or turned is None or rest is None or turned.x is not rest.x or rank(turned.x) != 4:
        return No("what turns and what does not are not features of one tensor")
    x, size = turned.x, turned.x.shape[-1]
    if turned[1:] != (0, rest.start, 1) or rest[2:] != (size, 1) or axis not in (-1, 3):
        return No("what turns and what does not are not neighbours")
    if made.attrs.get("rotary_embedding_dim"):
        return No("it turns in part already")
    if shaped is None:
        return op.again(made, x, *made.inputs[1:], rotary_embedding_dim=rest.start)
    heads = made.attrs.get("num_heads")
    if x.shape[2] != heads or root.output.shape is None or root.output.shape[2:] != x.shape[2:]:
        return No("the heads do not lie side by side")
    flat = op.Reshape(x, op.ints([0, 0, heads * size]))
    return op.Reshape(op.again(made, flat, *made.inputs[1:], rotary_embedding_dim=rest.start),
                      op.ints([0, 0, heads, size]))


EXTENDED = (fuse_rotary_embedding, fuse_rotary_embedding_pairs, fuse_rotary_embedding_parts,
            fuse_rotary_embedding_parts_pairs, fuse_partial_rotary_embedding)
