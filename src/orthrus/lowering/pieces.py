"""Trees over more operands than one kernel takes, in pieces.

In: the inputs of an elementwise node and its tree. Out: fewer inputs, some of them pieces in memory, and the
tree over these. A piece has the type its operations have, so nothing is rounded sooner than in one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..codegen.write.expr import Expr
from ..ir import Value
from .pending import Lazy

if TYPE_CHECKING:
    from .lower import Lowering


def in_pieces(lo: Lowering, inputs: Sequence[Value], tree: Expr, most: int) -> tuple[list[Value], Expr]:
    """`inputs` and `tree` with whatever reads more than `most` inputs computed and stored."""
    values = list(inputs)
    made: dict[int, Expr] = {}
    stack = [tree]
    while stack:
        it = stack[-1]
        if missing := [a for a in it.args if id(a) not in made]:
            stack += missing
            continue
        stack.pop()
        args = tuple([made[id(a)] for a in it.args])
        piece = Expr(it.op, args, it.dtype, it.value) if args else it
        if it is not tree and len(piece.leaves()) > most:
            values.append(_stored(lo, values, piece))
            piece = Expr.leaf(len(values) - 1, it.dtype)
        made[id(it)] = piece
    return _over(values, made[id(tree)])


def _stored(lo: Lowering, values: Sequence[Value], piece: Expr) -> Value:
    """What `piece` makes of `values`, in memory."""
    made = Value("piece of a tree")
    inputs, tree = _over(values, piece)
    found = lo.elementwise(inputs, lambda _: tree)
    assert isinstance(found, Lazy)
    lo.bind(made, found)
    lo.left[made] = 1
    lo.tensor(made)
    return made


def _over(values: Sequence[Value], tree: Expr) -> tuple[list[Value], Expr]:
    """The values that `tree` reads, and the tree over them alone."""
    leaves = tree.leaves()
    place = {leaf.value: i for i, leaf in enumerate(leaves)}
    return ([values[leaf.value] for leaf in leaves],
            tree.substitute(lambda leaf: Expr.leaf(place[leaf.value], leaf.dtype)))
