"""The normalized sum of word, position and segment embeddings as com.microsoft's EmbedLayerNormalization."""

from __future__ import annotations

import numpy as np

from ...ir import ElementType, No, Value
from ...optimize.pattern import rule
from ...optimize.rules.facts import array, ints, positive, rank
from ...records import dataclass

_FLOATS = (ElementType.FLOAT, ElementType.FLOAT16)


@dataclass(frozen=True)
class _Lookup:
    """Rows of a constant matrix, chosen by ids."""

    table: Value
    ids: Value

    @property
    def rows(self) -> int:
        return int(self.table.shape[0])

    @property
    def shared(self) -> bool:
        """Whether all texts have the same ids."""
        known = array(self.ids)
        return len(self.ids.shape) == 1 or self.ids.shape[0] == 1 or \
            (known is not None and bool((known == known[:1]).all()))

    def fits(self, words: Value) -> bool:
        """Whether ids that are constant are as many as the words, in one text or in as many."""
        return self.ids.const is None or (self.ids.shape[-1] == words.shape[1] and (
            len(self.ids.shape) == 1 or self.ids.shape[0] in (1, words.shape[0])))


@rule(lambda op, x, y, s, g, b=None: op.LayerNormalization(op.keep(op.Add(x, y), s), op.constant(g), b))
def fuse_embed_layer_normalization(op, x, y, s, g, b, root):
    """The LayerNormalization of two or three rows of tables, looked up by ids"""
    if rank(s) != 3 or root.attribute("axis") not in (-1, 2):
        return No("it is not normalized along the last axis")
    if root.attribute("stash_type") != 1 or len(root.outputs) > 1:
        return No("its statistics are read, or not float")
    read = any(user is not root for user in s.uses) or s.graph_outputs
    return _embedded(op, x, y, g, b, root, s if read else None)


@rule(lambda op, x, y, g, b=None: op("com.microsoft::SkipLayerNormalization")(x, y, op.constant(g), b))
def fuse_embed_skip_layer_normalization(op, x, y, g, b, root):
    """The same, where a model has the sum and its normalization as one operator"""
    if rank(x) != 3 or rank(y) != 3:
        return No("the terms are no rows [batch, sequence, width]")
    if any(v is not None and not v.dead for v in root.outputs[1:3]):
        return No("its statistics are read")
    total = root.outputs[3] if len(root.outputs) > 3 else None
    return _embedded(op, x, y, g, b, root, None if total is None or total.dead else total)


def _embedded(op, x, y, g, b, root, s):
    """`s`: the sum, where it is read too."""
    found = [*_lookups(op, x), *_lookups(op, y)]
    if None in found or len(found) not in (2, 3):
        return No("it is no sum of two or three embeddings")
    b = op.constant(np.zeros_like(array(g)), name="beta") if b is None else b
    if g.elem not in _FLOATS or rank(g) != 1 or array(b) is None:
        return No("it is not normalized along the last axis")
    word, position, segment = _roles(found)
    if rank(word.ids) != 2 or word.ids.const is not None:
        return No("the words have no ids [batch, sequence]")
    if not all(it.fits(word.ids) for it in found):
        return No("the positions are constant, and not known to be as many as the words")
    counted = _counted(position.ids, word.ids)
    places = None if counted else _places(op, position.ids)
    kinds = None if segment is None else _int32(op, _of_rows(op, segment.ids, word.ids))
    given = (_int32(op, word.ids), kinds, word.table, position.table,
             None if segment is None else segment.table, g, b, None, places)
    epsilon = root.attribute("epsilon")
    kind = op("com.microsoft::EmbedLayerNormalization")
    if s is not None:
        made, _, total = kind(*given, epsilon=epsilon, outputs=3)
        return {root.output: made, s: total}
    made, _ = kind(*given, epsilon=epsilon, outputs=2)
    return made


def _lookups(op, value):
    """The embeddings that a value is the sum of; None among them for what is none."""
    node = op.maker(value, "Add")
    if node is not None:
        return [it for v in node.inputs for it in _lookups(op, v)]
    if (rows := _folded(op, value)) is not None:
        return [rows]
    node = op.maker(value, "Gather", alone=False)
    if node is None or node.attribute("axis") or array(node.inputs[0]) is None or rank(node.inputs[0]) != 2:
        return [None]
    table, ids = node.inputs
    whole = ids.elem in (ElementType.INT32, ElementType.INT64) and rank(ids) in (1, 2) and \
        table.elem in _FLOATS
    return [_Lookup(table, ids)] if whole else [None]


def _folded(op, value):
    """A constant [batch, sequence, width] as the rows of a table, one after the other, those that all texts
    share once; None for anything else."""
    known = array(value)
    if known is None or known.ndim != 3 or 0 in known.shape or known.shape[1] < 2 or \
            value.elem not in _FLOATS:
        return None
    batch, length, width = known.shape
    alike = bool((known == known[:1]).all())
    ids = np.resize(np.arange(length if alike else batch * length), (batch, length))
    rows = known[0] if alike else known.reshape(-1, width)
    return _Lookup(op.constant(rows, name="position_embedding"), op.constant(ids if batch > 1 else ids[0]))


def _roles(found):
    """Words, positions and segments: words have no constant ids, their own in each text, and most rows,
    positions the same ids in all texts or more rows than segments, which may be missing."""
    word = max(found, key=lambda it: (it.ids.const is None, not it.shared, it.ids.node is None, it.rows))
    rest = sorted((it for it in found if it is not word), key=lambda it: (it.shared, it.rows))
    return word, rest[-1], rest[0] if len(rest) == 2 else None


def _counted(ids, words):
    """Whether the ids are 0, 1, 2 ... as many as there are words."""
    known, length = array(ids), words.shape[1]
    if known is not None:
        return known.shape[-1] == length and bool((known == np.arange(length)).all())
    node = ids.node
    if node is None or node.domain or node.op_type != "Slice" or array(node.inputs[0]) is None:
        return False
    source, end = array(node.inputs[0]), node.inputs[2]
    axes = positive(ints(node.inputs[3]) if len(node.inputs) > 3 else [0], source.ndim)
    steps = ints(node.inputs[4]) if len(node.inputs) > 4 else [1]
    from_start = ints(node.inputs[1]) == [0] and axes == [source.ndim - 1] and steps == [1]
    counts = np.array_equal(source.ravel(), np.arange(source.size))
    to_length = end is not None and end.content is not None and end.content[0] == length is not None
    return from_start and counts and bool(to_length)


def _places(op, ids):
    return _int32(op, ids if rank(ids) == 2 else op.Unsqueeze(ids, op.ints([0])))


def _of_rows(op, ids, words):
    """The ids for every text, where all texts share them."""
    known = rank(ids) == 2 and (ids.shape == words.shape or (ids.node is None and ids.const is None))
    return ids if known else op.Expand(ids, op.Shape(words))


def _int32(op, ids):
    return ids if ids.elem == ElementType.INT32 else op.Cast(ids, to=int(ElementType.INT32))
