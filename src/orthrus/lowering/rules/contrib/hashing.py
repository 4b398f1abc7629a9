"""Hashes of numbers, and scores of tokens that would repeat an n-gram."""

from __future__ import annotations

import numpy as np

from ....codegen.write.expr import BYTES, Expr
from ....ir import No, Node
from ...lower import BOTH, Lazy, Lowering, Pending, lowers
from ...tensor import Tensor
from ..gather import placed, put

WORD, FLOAT, IDS = "uint32", "float32", "int64"
_FACTORS, _ROUND, _LAST = (0xCC9E2D51, 0x1B873593), (5, 0xE6546B64), ((16, 0x85EBCA6B), (13, 0xC2B2AE35))


def _word(number: int) -> Expr:
    return Expr.const(number, WORD)


def _with(op: str, a: Expr, b: Expr) -> Expr:
    return Expr(op, (a, b), WORD)


def _rotated(x: Expr, by: int) -> Expr:
    return _with("or", _with("shift_left", x, _word(by)), _with("shift_right", x, _word(32 - by)))


@lowers("com.microsoft::MurmurHash3", types=("int32", "uint32", "int64", "uint64"), sets=BOTH)
def murmur_hash(lo: Lowering, node: Node) -> Lazy:
    """Each number's words mixed into a state, which is mixed at last."""
    (vx,) = node.inputs
    assert vx is not None
    x, attrs = lo.lazy(vx), node.attributes
    size = BYTES[x.tree.dtype]
    words = [x.tree.cast(WORD)]
    if size == 8:
        half = Expr("shift_right", (x.tree.cast("uint64"), Expr.const(32, "uint64")), "uint64")
        words.append(half.cast(WORD))
    state = _word(attrs["seed"] & 0xFFFFFFFF)
    for word in words:
        mixed = _with("mul", _rotated(_with("mul", word, _word(_FACTORS[0])), 15), _word(_FACTORS[1]))
        state = _rotated(_with("xor", state, mixed), 13)
        state = _with("add", _with("mul", state, _word(_ROUND[0])), _word(_ROUND[1]))
    state = _with("xor", state, _word(size))
    for shift, factor in _LAST:
        state = _with("mul", _with("xor", state, _with("shift_right", state, _word(shift))), _word(factor))
    state = _with("xor", state, _with("shift_right", state, _word(16)))
    return Lazy(x.shape, state if attrs["positive"] else state.cast("int32"), x.operands)


@lowers("com.microsoft::NGramRepeatBlock", types=(IDS,))
def blocked_repetitions(lo: Lowering, node: Node) -> Pending | No:
    """Behind each place where the last tokens stood before, the token's score becomes -inf; behind others
    that of a token which is none."""
    vi, vs = node.inputs
    ids, scores, size = lo.tensor(vi), lo.tensor(vs), node.attributes["ngram_size"]
    if ids.rank != 2 or scores.rank != 2 or ids.shape[0] != scores.shape[0] or scores.dtype != FLOAT or (
            not 1 <= size <= min(ids.shape[1], 16) or 0 in (*ids.shape, *scores.shape)):
        return No("its ids do not fit its scores, or are fewer than an n-gram of up to 16")
    batch, length = ids.shape
    count = length - size + 1
    same = Expr.const(True, "bool")
    operands: list[Tensor] = []
    for i in range(size - 1):
        operands += [ids.slice(1, i, count), ids.slice(1, count + i, 1).expand((batch, count))]
        equal = Expr("eq", (Expr.leaf(2 * i, IDS), Expr.leaf(2 * i + 1, IDS)), "bool")
        same = equal if i == 0 else Expr("and", (same, equal), "bool")
    token, words = Expr.leaf(len(operands), IDS), scores.shape[1]
    wrong = Expr("or", (Expr("lt", (token, Expr.const(0, IDS)), "bool"),
                        Expr("ge", (token, Expr.const(words, IDS)), "bool")), "bool")
    place = Expr("where", (wrong, Expr.const(words + 1, IDS), token), IDS)

    def write(lo: Lowering, out: Tensor) -> None:
        wide, places = lo.new((batch, words + 1), FLOAT), lo.new((batch, count), IDS)
        lo.copy(scores, wide.slice(1, 0, words))
        lo.store(places, Expr("where", (same, place, Expr.const(words, IDS)), IDS),
                 [*operands, ids.slice(1, size - 1, count)])
        fill = lo.table(_nothing).view((batch, count), (0, 0))
        put(lo, wide, places, fill, 1, "none")
        lo.copy(wide.slice(1, 0, words), out)
    return placed(scores.shape, FLOAT, write)


def _nothing() -> np.ndarray:
    return np.array([-np.inf], np.float32)
