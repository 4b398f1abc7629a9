"""Weights of recurrent layers as `codegen.kernels.rnn` reads them: known ones are laid out once, computed
ones in each run.

In: W, R, biases and peephole weights as ONNX has them, lines of [directions, gates * hidden]. Out: the same
in blocks of hidden lanes, zeros up to whole ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.kernels import rnn
from ...codegen.write.expr import Expr
from ...ir import Value
from ...records import dataclass
from ..lower import Lowering
from ..tensor import Tensor

F = "float32"


@dataclass(eq=False)
class Laid:
    """What lays out a layer's weights by `plan`; `own`: the key of what is known."""

    lo: Lowering
    own: tuple[Any, ...]
    plan: rnn.RecurrencePlan
    directions: int

    def recurrent(self, r: Value) -> Tensor:
        """R, as `RecurrencePlan.pack` has it."""
        lo, plan, known = self.lo, self.plan, self.lo.known(r)
        if known is not None:
            return lo.constant((*self.own, "recurrent"), lambda: plan.pack(known.astype(np.float32)))
        source = _by_gate(lo.tensor(r), plan.hidden)
        made = lo.new((self.directions, plan.columns * plan.hidden), F)
        at = 0
        for gates in plan.phases:
            run = len(gates) * plan.wide
            target = made.view((self.directions, plan.blocks, plan.hidden, len(gates), plan.wide),
                               (made.strides[0], plan.hidden * run, run, plan.wide, 1), at)
            self._put(target.permute((0, 3, 1, 4, 2)), [source.slice(1, gates[0], len(gates))])
            at += plan.padded * len(gates) * plan.hidden
        return made

    def inputs(self, w: Value) -> Tensor:
        """Every direction's W, computed, as [n, columns]."""
        plan, source = self.plan, _by_gate(self.lo.tensor(w), self.plan.hidden)
        made = self.lo.new((self.directions, plan.blocks, source.shape[1], plan.wide, source.shape[3]), F)
        self._put(made.permute((0, 2, 1, 3, 4)), [source])
        return made.view((source.shape[3], self.directions * plan.columns), (1, source.shape[3]))

    def bias(self, b: Value | None, linear: bool) -> Tensor:
        """What is added to the projected inputs, [1, columns]; `linear`: of a candidate its own bias only."""
        plan, known = self.plan, self.lo.known(b)
        gates = rnn.GATES[plan.kind]
        if b is None or known is not None:
            return self.lo.constant((*self.own, "bias"), lambda: plan.spread(bias_of(
                known, gates, plan.hidden, self.directions, linear)).reshape(1, -1))
        first = _by_gate(self.lo.tensor(b), plan.hidden)
        second = first.slice(1, gates, gates)
        first = first.slice(1, 0, gates)
        made = self.lo.new((self.directions, plan.blocks, gates, plan.wide), F)
        target = made.permute((0, 2, 1, 3))
        both = gates - linear
        self._put(target.slice(1, 0, both), [first.slice(1, 0, both), second.slice(1, 0, both)])
        if linear:
            self._put(target.slice(1, both, 1), [first.slice(1, both, 1)])
        return made.view((1, self.directions * plan.columns), (0, 1))

    def shift(self, b: Value | None) -> Tensor:
        """The candidate's second bias of a GRU, [directions, padded]."""
        hidden = self.plan.hidden
        if b is None:
            return self._lined("shift", b, lambda: np.zeros((self.directions, hidden), np.float32), 0, 1)
        return self._lined("shift", b, lambda: self.lo.known(b)[:, -hidden:], 5, 1)  # type: ignore[index]

    def peephole(self, p: Value) -> Tensor:
        """An LSTM's peephole weights, [directions, 3, padded]."""
        return self._lined("peephole", p, lambda: self.lo.known(p).reshape(  # type: ignore[union-attr]
            self.directions, 3, self.plan.hidden), 0, 3)

    def _lined(self, name: str, value: Value | None, known: Callable[[], np.ndarray], first: int, count: int
               ) -> Tensor:
        """`count` lines of `value` from the `first` on; `known`: those of one that is known."""
        lo, plan = self.lo, self.plan
        if value is None or lo.knows(value):
            return lo.constant((*self.own, name), lambda: plan.lined(known()))
        made = lo.new((self.directions, count, plan.blocks, plan.wide), F)
        self._put(made, [_by_gate(lo.tensor(value), plan.hidden).slice(1, first, count)])
        return made.view((self.directions, count, plan.padded), (count * plan.padded, plan.padded, 1))

    def _put(self, target: Tensor, sources: Sequence[Tensor]) -> None:
        """The sum of `sources` (directions, gates, hidden, ...) to `target` (directions, gates, blocks, lanes
        of a block, ...)."""
        wide = self.plan.wide
        whole, left = divmod(self.plan.hidden, wide)
        tree = Expr.leaf(0, F)
        for i in range(1, len(sources)):
            tree = Expr("add", (tree, Expr.leaf(i, F)), F)
        if whole:
            self.lo.store(target.slice(2, 0, whole), tree, [_blocks(t, 0, whole, wide) for t in sources])
        if left:
            last = target.slice(2, whole, 1)
            self.lo.store(last, Expr.const(0.0, F), [])
            self.lo.store(last.slice(3, 0, left), tree, [_blocks(t, whole * wide, 1, left) for t in sources])


def bias_of(bias: np.ndarray | None, gates: int, hidden: int, directions: int, linear: bool) -> np.ndarray:
    """The biases that are added to the projected inputs, [directions, gates * hidden]."""
    if bias is None:
        return np.zeros((directions, gates * hidden), np.float32)
    both = bias.reshape(directions, 2, -1)
    total: np.ndarray = both.sum(1)
    if linear:
        total[:, 2 * hidden:] = both[:, 0, 2 * hidden:]
    return total


def _by_gate(t: Tensor, hidden: int) -> Tensor:
    """Lines (directions, gates * hidden, ...) as (directions, gates, hidden, ...)."""
    first, lines, *rest = t.strides
    return t.view((t.shape[0], t.shape[1] // hidden, hidden, *t.shape[2:]),
                  (first, lines * hidden, lines, *rest))


def _blocks(t: Tensor, start: int, count: int, wide: int) -> Tensor:
    """`count` blocks of `wide` lanes of (directions, gates, hidden, ...) from the lane `start` on."""
    lane = t.strides[2]
    return t.view((*t.shape[:2], count, wide, *t.shape[3:]),
                  (*t.strides[:2], lane * wide, lane, *t.strides[3:]), start * lane)
