"""Einsum of two operands as a MatMul: the projections and products of attention as TensorFlow writes them.

In: a product that keeps or sums over whole axes. Out: ONNX's MatMul between movements, in the places where
the rules of attention look for them.
"""

from __future__ import annotations

import math

from ...ir import No
from ...optimize.pattern import number, rule
from ...optimize.rules.facts import array, rank
from ...shapes.products import parsed_equation


@rule(lambda op, x, y: op.Einsum(x, y))
def expand_einsum(op, x, y, root):
    """A product with constant weights, or one in batches of matrices, as a MatMul"""
    try:
        (a, b), out = parsed_equation(root.attribute("equation"))
    except ValueError as error:
        return No(str(error))
    if out is None or any(not letters.isalpha() or len({*letters}) < len(letters) for letters in (a, b, out)):
        return No("an axis has no letter, or several have one")
    if (len(a), len(b)) != (rank(x), rank(y)):
        return No("the ranks are not known")
    gone = "".join(c for c in a if c in b and c not in out)
    kept, free = ("".join(c for c in out if c not in other) for other in (b, a))
    if not gone or {*a} - {*b} - {*kept} or {*b} - {*a} - {*free}:
        return No("it is not a sum over axes that both have")
    if any(_repeated(x.shape[a.index(c)], y.shape[b.index(c)]) for c in gone):
        return No("an axis of one element may be repeated")
    weights = array(y)
    if weights is not None and out == kept + free and a == kept + gone:
        return _projected(op, x, weights.transpose([b.index(c) for c in gone + free]), len(gone))
    if weights is not None or array(x) is not None or len(gone) > 1 or len(kept) != 1 or len(free) != 1:
        return No("it is no product of matrices, and none with constant weights")
    batch = "".join(c for c in out if c not in kept + free)
    (x, by_x), (y, by_y) = (_unscaled(op, value) for value in (x, y))
    if out.index(free) < out.index(kept):
        x, y, a, b, kept, free = y, x, b, a, free, kept
    made = op.MatMul(_turned(op, x, a, batch + kept + gone), _turned(op, y, b, batch + gone + free))
    if by_x * by_y != 1:
        made = op.Mul(made, by_x * by_y)
    return _turned(op, made, batch + kept + free, out)


def _repeated(m, n):
    """Whether an axis that is summed over may have one element in one operand and more in the other. Two
    names are taken for one size: a mask of another input's length than the keys' is as long as they are."""
    return m != n and (None in (m, n) or 1 in (m, n) or (isinstance(m, int) and isinstance(n, int)))


def _projected(op, x, weights, gone):
    """x times weights, of which the first `gone` axes are the last of x and go."""
    outer, sizes = [0] * (rank(x) - gone), weights.shape[gone:]
    width = math.prod(weights.shape[:gone])
    if gone > 1:
        x = op.Reshape(x, op.ints([*outer, width]))
    made = op.MatMul(x, op.constant(weights.reshape(width, -1), name="weight"))
    return made if len(sizes) == 1 else op.Reshape(made, op.ints([*outer, *sizes]))


def _unscaled(op, value):
    """`value` before it was multiplied by a number, and the number."""
    node = op.maker(value, "Mul", "Div")
    if node is None:
        return value, 1.0
    for inner, by in (node.inputs, node.inputs[::-1]) if node.kind == "Mul" else (node.inputs,):
        factor = number(by)
        if factor and by.const.ndim <= rank(inner):
            return inner, factor if node.kind == "Mul" else 1 / factor
    return value, 1.0


def _turned(op, value, letters, wanted):
    return value if letters == wanted else op.Transpose(value, perm=[letters.index(c) for c in wanted])


@rule(lambda op, x, s, b: op.Add(op.Reshape(x, s), op.constant(b)))
def push_bias_before_heads(op, x, s, b, root):
    """A bias of each head's elements is one of the axis that was split into heads."""
    y, given = root.output.shape, array(b)
    if given is None or given.ndim != 2 or rank(x) != 3 or y is None or len(y) != 4 or \
            y[2:] != given.shape or x.shape[2] != given.size:
        return No("the addend is no bias of heads")
    return op.Reshape(op.Add(x, op.constant(given.reshape(-1), name="bias")), s)


EINSUM = (expand_einsum, push_bias_before_heads)
