"""com.microsoft's EmbedLayerNormalization: ids of words, positions and segments in, the normalized sum of
their rows out."""

from __future__ import annotations

from typing import Any

from ....codegen.write.expr import Expr
from ....ir import No, Node, Value
from ...lower import Lowering, lowers
from ...tensor import Tensor
from ..attention import MS, inputs_of
from ..gather import INDICES, gathered
from ..rows import FLOATS, F, Norm, Reads, affine, alive, finished, now

_BEYOND = 1 << 30
"""An index that no table has, in the place of one below 0."""


def _looked_up(lo: Lowering, table: Tensor, ids: Value) -> Tensor:
    """Rows (B, S, H) of a table."""
    t = lo.tensor(ids)
    leaf = Expr.leaf(0, t.dtype)
    below = Expr("lt", (leaf, Expr.const(0, t.dtype)), "bool")
    held = lo.new(t.shape, t.dtype)
    lo.store(held, Expr("where", (below, Expr.const(_BEYOND, t.dtype), leaf), t.dtype), [t])
    made = lo.new((*t.shape, table.shape[1]), table.dtype)
    rows = made.view((t.size, table.shape[1]), (table.shape[1], 1))
    gathered(lo, table, held.view((t.size,), (1,)), rows, 0, 1, 1, False)
    return made


@lowers(MS + "EmbedLayerNormalization", types=INDICES)
def embed(lo: Lowering, node: Node) -> Any:
    """The layer normalization of the sum of word, position and segment embeddings, and that sum."""
    ids, segments, *tables, gamma, beta, mask, places = inputs_of(node, 9)
    words, positions, kinds = tables
    assert ids is not None
    shape = lo.shape(ids)
    if words is None or positions is None or gamma is None or beta is None or len(shape) != 2 or 0 in shape:
        return No("a table is missing, or its ids are no matrix")
    dtype, size = lo.dtype(words), lo.shape(words)[-1]
    given = [t for t in (words, positions, kinds) if t is not None]
    if dtype not in FLOATS or any(len(lo.shape(t)) != 2 or lo.shape(t)[1] != size or lo.dtype(t) != dtype
                                  for t in given) or 0 in lo.shape(words):
        return No("its tables do not fit")
    if alive(lo, node, 1) and mask is not None:
        return No("its mask is counted")
    if any(lo.shape(v) != (size,) or lo.dtype(v) not in FLOATS for v in (gamma, beta)) or any(
            v is not None and lo.shape(v) != shape for v in (segments, places)) or (
            places is None and lo.shape(positions)[0] < shape[1]):
        return No("its gamma, beta or ids do not fit")
    total = [_looked_up(lo, lo.tensor(words), ids)]
    if places is None:
        rows = lo.tensor(positions).slice(0, 0, shape[1])
        total.append(rows.view((*shape, size), (0, *rows.strides)))
    else:
        total.append(_looked_up(lo, lo.tensor(positions), places))
    if kinds is not None and segments is not None:
        total.append(_looked_up(lo, lo.tensor(kinds), segments))
    tree = Expr.leaf(0, dtype).cast(F)
    for i, t in enumerate(total[1:], 1):
        tree = Expr("add", (tree, Expr.leaf(i, t.dtype).cast(F)), F)
    operands = [lo.tensor(v).expand((*shape, size)) for v in (gamma, beta)]
    kept = lo.new((*shape, size), dtype) if alive(lo, node, 2) else None
    kernel = Norm("layer", node.attributes["epsilon"], kept is not None)
    made = finished(lo, Reads(tree, total), (2,), dtype, kernel, affine(operands, dtype), operands, kept=kept)
    count = None
    if alive(lo, node, 1):
        count = lo.new(shape[:1], "int32")
        lo.store(count, Expr.const(0, "int32"), [])
    return now(lo, made, count, kept) if kept is not None or count is not None else made
