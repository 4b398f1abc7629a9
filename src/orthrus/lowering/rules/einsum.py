"""Einsum: operands as views whose axes have letters, multiplied two by two.

In: an equation and operands. Out: what stays of the letters. A letter that only one operand has is summed
over it first; two operands are a matrix product over the letters that go, in batches over those both keep, or
a product of elements where none goes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ...codegen.write.expr import Expr
from ...codegen.write.tile import total_of
from ...ir import No, Node
from ...records import dataclass
from ...shapes.products import parsed_equation
from ..lower import Lowering, lowers
from ..rule_sets import BOTH
from ..tensor import Tensor, c_strides
from .reduce import Folded

TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")


@dataclass(frozen=True)
class Lettered:
    """A tensor and the letter of each axis, none twice."""

    tensor: Tensor
    letters: str

    def size(self, letter: str) -> int:
        return self.tensor.shape[self.letters.index(letter)] if letter in self.letters else 1

    def ordered(self, letters: str) -> Tensor:
        """With the axes in this order; of those it has not got, one of size 1."""
        places = [self.letters.find(letter) for letter in letters]
        t = self.tensor
        return t.view([t.shape[p] if p >= 0 else 1 for p in places],
                      [t.strides[p] if p >= 0 else 0 for p in places])


@lowers("Einsum", types=TYPES, sets=BOTH)
def einsum(lo: Lowering, node: Node) -> Tensor | No:
    """One operand after the other."""
    operands = [v for v in node.inputs if v is not None]
    if any(lo.dtype(v) != lo.dtype(operands[0]) or 0 in lo.shape(v) for v in operands):
        return No("its operands are of several types, or empty")
    try:
        terms, out = parsed_equation(node.attributes["equation"])
        spelled, out = _spelled(terms, out, [len(lo.shape(v)) for v in operands])
    except ValueError as error:
        return No(str(error))
    walked = [_diagonal(lo.tensor(v), letters) for v, letters in zip(operands, spelled, strict=True)]
    given = [it for it in walked if it is not None]
    if len(given) < len(walked):
        return No("a letter stands for several sizes of one operand")
    sizes = {letter: max(it.size(letter) for it in given) for it in given for letter in it.letters}
    if any(it.size(letter) not in (1, sizes[letter]) for it in given for letter in it.letters):
        return No("its letters stand for several sizes")
    made = _without(lo, given[0], {*out, *(letter for it in given[1:] for letter in it.letters)})
    for i, it in enumerate(given[1:], 1):
        later = {*out, *(letter for rest in given[i + 1:] for letter in rest.letters)}
        made = _product(lo, made, _without(lo, it, later | {*made.letters}), later)
    return made.ordered(out)


def _spelled(terms: list[str], out: str | None, ranks: list[int]) -> tuple[list[str], str]:
    """The terms and the output with letters for dots; ValueError where they do not fit."""
    if len(terms) != len(ranks):
        raise ValueError("its equation has another number of terms")
    used = {*"".join(terms), *(out or "")}
    free = [chr(code) for code in range(0x3b1, 0x3b1 + max(ranks) + 1) if chr(code) not in used]
    behind = {term: rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)}
    most = max((behind[term] for term in terms if "..." in term), default=0)
    if any(count < 0 or ("..." not in term and count) for term, count in behind.items()):
        raise ValueError("its terms do not fit its operands")
    dots = "".join(free[:most])
    spelled = [term.replace("...", dots[most - behind[term]:]) for term in terms]
    if out is None:
        every = "".join(spelled)
        out = dots + "".join(sorted(c for c in {*every} if every.count(c) == 1 and c not in dots))
    return spelled, out.replace("...", dots)


def _diagonal(t: Tensor, letters: str) -> Lettered | None:
    """A letter that stands for several axes walks all of them at once; None where these differ in size."""
    once = "".join(dict.fromkeys(letters))
    size = dict(zip(letters, t.shape, strict=True))
    if any(d != size[c] for c, d in zip(letters, t.shape, strict=True)):
        return None
    steps = {c: sum(s for s, own in zip(t.strides, letters, strict=True) if own == c) for c in once}
    return Lettered(t.view([size[c] for c in once], [steps[c] for c in once]), once)


def _without(lo: Lowering, it: Lettered, kept: Collection[str]) -> Lettered:
    """Summed over the letters that are not `kept`."""
    gone = tuple(a for a, letter in enumerate(it.letters) if letter not in kept)
    if not gone:
        return it
    t = it.tensor
    work = total_of(t.dtype)
    what = Folded("sum", Expr.leaf(0, t.dtype).cast(work), [t], gone)
    out = lo.new(what.short, t.dtype)
    lo.rules.steps["fold"](lo, what, out, Expr.leaf(0, work).cast(t.dtype), [])
    return Lettered(out, it.letters)


def _product(lo: Lowering, a: Lettered, b: Lettered, later: Collection[str]) -> Lettered:
    """a times b, summed over the letters that nobody needs `later`."""
    gone = [c for c in a.letters if c in b.letters and c not in later and a.size(c) == b.size(c) > 1]
    batch = [c for c in a.letters if c in b.letters and c in later]
    rows = [c for c in a.letters if c not in b.letters]
    columns = [c for c in b.letters if c not in a.letters]
    letters = "".join([*batch, *rows, *columns])
    a, b = (_without(lo, it, {*letters, *gone}) for it in (a, b))
    sizes = [max(a.size(c), b.size(c)) for c in letters]
    out = lo.new(sizes, a.tensor.dtype)
    if not gone:
        work = total_of(out.dtype)
        both = [Expr.leaf(i, out.dtype).cast(work) for i in range(2)]
        lo.store(out, Expr("mul", (both[0], both[1]), work).cast(out.dtype),
                 [it.ordered(letters) for it in (a, b)])
        return Lettered(out, letters)
    lead = [max(a.size(c), b.size(c)) for c in batch]
    deep = math.prod(a.size(c) for c in gone)
    first = _joined(lo, a, batch, [rows, gone])
    second = _joined(lo, b, batch, [gone, columns])
    m, n = first.shape[-2], second.shape[-1]
    assert second.shape[-2] == deep
    lo.rules.steps["product"](lo, first, second, out.view((*lead, m, n), c_strides((*lead, m, n))))
    return Lettered(out, letters)


def _joined(lo: Lowering, it: Lettered, batch: list[str], groups: list[list[str]]) -> Tensor:
    """With the letters of each group as one axis, behind those of `batch`."""
    t = it.ordered("".join([*batch, *(c for group in groups for c in group)]))
    shape = [*t.shape[:len(batch)], *(math.prod(it.size(c) for c in group) for group in groups)]
    steps, at = list(t.strides[:len(batch)]), len(batch)
    for group in groups:
        step = t.joined(at, at + len(group))
        if step is None:
            return lo.contiguous(t).view(shape, c_strides(shape))
        steps.append(step)
        at += len(group)
    return t.view(shape, steps)


