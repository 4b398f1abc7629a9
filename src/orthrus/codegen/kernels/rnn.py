"""Recurrent layers: all time steps of RNN, GRU and LSTM in one kernel call.

In: the inputs of every step already multiplied by W with the biases added (`order` says how their columns
lie) and R packed by `pack`. Out: every step's hidden state and the last states. Hidden lanes are done
`units` vectors at a time with all their gates side by side, so that a tile of h·Rᵀ leaves a cell's gates in
registers, where the cell is updated. An item is some rows of the batch in one direction; its states stay in
the thread's scratch. A step reads all of R, which should begin on a cache line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import F32, I32, I64, V, vec
from ..write.expr import Expr, emit
from ..write.template import Spec, template
from ..write.tile import tile

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STATES = {"RNN": 2, "GRU": 4, "LSTM": 3}


@dataclass(frozen=True)
class Plan:
    """How a layer is divided. `phases`: which gates a pass over h·Rᵀ computes; `units`: vectors of hidden
    lanes next to each other; `blocks` of them cover the hidden size. Rows of the batch are done `height` at
    a time, `tiles` of them per direction; the last one starts earlier and repeats rows. An item takes
    `per_item` tiles."""

    kind: str
    phases: tuple[tuple[int, ...], ...]
    lanes: int
    units: int
    blocks: int
    hidden: int
    height: int
    tiles: int
    per_item: int

    @property
    def padded(self) -> int:
        """The hidden size in whole blocks."""
        return self.blocks * self.units * self.lanes

    @property
    def columns(self) -> int:
        """Columns of one direction's projected inputs."""
        return GATES[self.kind] * self.padded

    @property
    def items(self) -> int:
        """Items of one direction."""
        return -(-self.tiles // self.per_item)

    @property
    def scratch(self) -> int:
        """Bytes for each thread."""
        return 4 * _STATES[self.kind] * self.per_item * self.height * self.padded

    def order(self, gates: Sequence[int]) -> np.ndarray:
        """The row of a [gates * hidden] weight that each column of `gates` stands for, -1 for padding."""
        wide = self.units * self.lanes
        lane = np.arange(self.blocks)[:, None, None] * wide + np.arange(wide)
        return np.where(lane < self.hidden, lane + np.array(gates)[:, None] * self.hidden, -1).reshape(-1)

    def spread(self, weights: np.ndarray) -> np.ndarray:
        """[..., gates * hidden, n] or [..., gates * hidden] biases in the order of the projected inputs."""
        order = self.order(range(GATES[self.kind]))
        axis = weights.ndim - 2 if weights.ndim > 2 else -1
        shape = [1] * weights.ndim
        shape[axis] = -1
        out: np.ndarray = np.take(weights, order.clip(0), axis)
        return np.where((order >= 0).reshape(shape), out, out.dtype.type(0))

    def pack(self, r: np.ndarray) -> np.ndarray:
        """R [directions, gates * hidden, hidden] as [directions, n]: per phase and block a panel
        [hidden, columns]."""
        parts = []
        for gates in self.phases:
            order = self.order(gates)
            picked = r[:, order.clip(0)] * (order >= 0)[:, None].astype(r.dtype)
            panels = picked.reshape(len(r), self.blocks, -1, self.hidden).swapaxes(2, 3)
            parts.append(panels.reshape(len(r), -1))
        return np.ascontiguousarray(np.concatenate(parts, 1))

    def lined(self, vectors: np.ndarray) -> np.ndarray:
        """[..., hidden] with zeros up to whole blocks."""
        out = np.zeros((*vectors.shape[:-1], self.padded), vectors.dtype)
        out[..., :self.hidden] = vectors
        return out

    def spec(self, activations: tuple[Expr, ...], clip: float, peephole: bool, lengths: bool,
             coupled: bool) -> Spec:
        """The kernel; `activations`: trees over leaf 0; `clip` 0 for none; `coupled`: an LSTM whose input
        gate is 1 less its forget gate."""
        return recurrence(kind=self.kind, phases=self.phases, units=self.units, height=self.height,
                          tail=self.hidden != self.padded, activations=activations, clip=clip,
                          peephole=peephole, lengths=lengths, coupled=coupled)


def plan(machine: Machine, kind: str, hidden: int, batch: int, linear_before_reset: bool = False) -> Plan:
    """Divide a layer of one of `GATES`."""
    lanes = machine.lanes()
    phases: tuple[tuple[int, ...], ...] = (tuple(range(GATES[kind])),)
    if kind == "GRU" and not linear_before_reset:
        phases = ((0, 1), (2,))
    vectors = -(-hidden // lanes)
    units = min({"RNN": 2, "GRU": 2 if len(phases) > 1 else 1, "LSTM": 1}[kind], vectors)
    cols = units * len(phases[0])
    tallest = max(1, (machine.registers - cols - 1) // cols)
    tiles = -(-batch // tallest)
    height = -(-batch // tiles)
    near = 4 * GATES[kind] * hidden * hidden <= machine.l2 * 3 // 4
    return Plan(kind, phases, lanes, units, -(-vectors // units), hidden, height, tiles,
                1 if near else -(-tiles // 2))


_CELLS = ("p:ptr p_t:i64 p_n:i64 p_d:i64 r:ptr r_d:i64 y:ptr y_t:i64 y_n:i64 y_d:i64 h0:ptr h0_n:i64 "
          "h0_d:i64 hn:ptr hn_n:i64 hn_d:i64 c0:ptr c0_n:i64 c0_d:i64 cn:ptr cn_n:i64 cn_d:i64 extra:ptr "
          "extra_d:i64 lens:ptr status:ptr steps:i64 batch:i64 hidden:i64 blocks:i64 tiles:i64 per_item:i64 "
          "items:i64 first:i64 backward:i64")


@template(_CELLS)
def recurrence(f: Body, p: V, p_t: V, p_n: V, p_d: V, r: V, r_d: V, y: V, y_t: V, y_n: V, y_d: V, h0: V,
               h0_n: V, h0_d: V, hn: V, hn_n: V, hn_d: V, c0: V, c0_n: V, c0_d: V, cn: V, cn_n: V,
               cn_d: V, extra: V, extra_d: V, lens: V, status: V, steps: V, batch: V, hidden: V, blocks: V,
               tiles: V, per_item: V, items: V, first: V, backward: V, *, kind: str,
               phases: tuple[tuple[int, ...], ...], units: int, height: int, tail: bool,
               activations: tuple[Expr, ...], clip: float, peephole: bool, lengths: bool,
               coupled: bool) -> None:
    """p: projected inputs, r: packed R, y: hidden states, h0, hn, c0, cn: first and last states, each with
    its strides over time, batch and directions; elements of a row are next to each other. `extra`: an LSTM's
    peephole weights i, o, f, or a GRU's second bias of the candidate where it is added before the reset,
    [.., padded]. Item (direction - first) * items + group of tiles; directions from `backward` on run against
    time. With `lengths` each row has its own number of steps, `lens` int32: beyond, y is 0 and states stay;
    `status` becomes 1 where one is not in 0 to `steps`."""
    lanes = f.machine.lanes()
    floats, wide = vec(F32, lanes), units * lanes
    gates = GATES[kind]
    padded = blocks * wide
    size = padded * height
    rows = range(height)
    before_reset = kind == "GRU" and len(phases) == 1
    state_size = per_item * size

    def area(i: int) -> V:
        return f.gep(f.scratch, state_size * i, F32)

    def act(index: int, x: V) -> V:
        return emit(f, activations[index], [_clipped(f, x, clip) if index < 2 else x])

    def item(i: V) -> None:
        group = i // items
        d = first + group
        t0 = (i - group * items) * per_item
        count = f.minimum(tiles - t0, per_item)
        p_at, r_at, y_at, h0_at, hn_at, c0_at, cn_at, side = (
            f.gep(base, d * stride, F32) for base, stride in (
                (p, p_d), (r, r_d), (y, y_d), (h0, h0_d), (hn, hn_d), (c0, c0_d), (cn, cn_d),
                (extra, extra_d)))
        back = d >= backward

        def row_of(t: V) -> V:
            """The first row of the batch in tile `t` of this item."""
            return f.minimum((t0 + t) * height, batch - height)

        def mask_at(column: V, u: int) -> V | None:
            return f.mask(lanes, hidden - column - u * lanes) if tail else None

        def each_state(body: Callable[[V, V, V, V | None], None]) -> None:
            """body(row of the batch, place in a state, column, mask) for all vectors of a state."""
            def one(t: V) -> None:
                for row in rows:
                    def vector(b: V, row: int = row) -> None:
                        column = b * lanes
                        body(row_of(t) + row, t * size + padded * row + column, column, mask_at(column, 0))
                    f.loop(0, blocks * units, 1, [], vector)
            f.loop(0, count, 1, [], one)

        def begin(state: V, source: V, stride: V) -> None:
            each_state(lambda n, at, column, mask: f.store(
                _read(f, source, n * stride + column, mask), state, at, 64))

        def finish(state: V, target: V, stride: V) -> None:
            each_state(lambda n, at, column, mask: _write(
                f, f.load(floats, state, at, 64), target, n * stride + column, mask))
        begin(area(0), h0_at, h0_n)
        if kind == "LSTM":
            begin(area(2), c0_at, c0_n)

        def step(s: V, now: V, new: V) -> list[V]:
            def timed(t: V) -> tuple[list[V], list[V]]:
                """Per row the step of the sequence it is at and whether that is within its length."""
                if not lengths:
                    return [f.select(back, steps - 1 - s, s)] * height, []
                at, live = [], []
                for row in rows:
                    own = _bounded(f, f.cast(f.load(I32, lens, row_of(t) + row), I64), steps)
                    live.append(s < own)
                    at.append(f.select(live[-1] & back, own - 1 - s, s))
                return at, live

            def part(phase: int) -> None:
                mine = phases[phase]
                cols = len(mine) * units
                panels = r_at if not phase else f.gep(r_at, hidden * padded * len(phases[0]), F32)

                def block(b: V) -> None:
                    panel = f.gep(panels, b * hidden * (cols * lanes), F32)
                    column = b * wide

                    def one(t: V) -> None:
                        when, live = timed(t)
                        base = t * size
                        inputs = [f.gep(p_at, when[i] * p_t + (row_of(t) + i) * p_n + column * gates, F32)
                                  for i in rows]
                        rest = 2 if before_reset else gates
                        acc = [f.load(floats, x, (g * units + u) * lanes) if g < rest else f.zero(floats)
                               for x in inputs for g in mine for u in range(units)]
                        source = f.gep(now if not phase else area(3), base, F32)
                        acc = tile(f, height, cols, source, padded, panel, cols * lanes, hidden, acc)
                        for i in rows:
                            for u in range(units):
                                at = base + padded * i + column + u * lanes
                                x = acc[i * cols + u:(i + 1) * cols:units]
                                mask = mask_at(column, u)
                                old = f.load(floats, now, at, 64)
                                if kind == "GRU" and not phase and not before_reset:
                                    f.store(act(0, x[0]), area(2), at, 64)
                                    f.store(act(0, x[1]) * old, area(3), at, 64)
                                    continue
                                alive = live[i] if live else None
                                h = cell(x, at, old, column + u * lanes, inputs[i], u, phase, alive)
                                f.store(h if alive is None else f.select(alive, h, old), new, at, 64)
                                place = when[i] * y_t + (row_of(t) + i) * y_n + column + u * lanes
                                shown = h if alive is None else f.select(alive, h, f.zero(floats))
                                _write(f, shown, y_at, place, mask)
                    f.loop(0, count, 1, [], one)
                f.loop(0, blocks, 1, [], block)

            def cell(x: Sequence[V], at: V, old: V, column: V, given: V, u: int, phase: int, alive: V | None
                     ) -> V:
                """The new hidden state from the gates' sums; an LSTM's new cell is stored where `alive`."""
                if kind == "RNN":
                    return act(0, x[0])
                if kind == "GRU":
                    if before_reset:
                        z = act(0, x[0])
                        linear = x[2] + f.load(floats, side, column)
                        sum_ = f.fma(act(0, x[1]), linear, f.load(floats, given, (2 * units + u) * lanes))
                    else:
                        z, sum_ = f.load(floats, area(2), at, 64), x[0]
                    return f.fma(z, old, (1 - z) * act(1, sum_))
                c = f.load(floats, area(2), at, 64)

                def peep(gate: int, sum_: V, state: V) -> V:
                    if not peephole:
                        return sum_
                    return f.fma(f.load(floats, side, padded * gate + column), state, sum_)
                i = act(0, peep(0, x[0], c))
                forget = 1 - i if coupled else act(0, peep(2, x[2], c))
                before, c = c, f.fma(forget, c, i * act(1, x[3]))
                f.store(c if alive is None else f.select(alive, c, before), area(2), at, 64)
                return act(0, peep(1, x[1], c)) * act(2, c)

            for phase in range(len(phases)):
                part(phase)
            return [new, now]
        h, _ = f.loop(0, steps, 1, [area(0), area(1)], step)
        finish(h, hn_at, hn_n)
        if kind == "LSTM":
            finish(area(2), cn_at, cn_n)

    if lengths:
        def check(n: V) -> None:
            own = f.cast(f.load(I32, lens, n), I64)
            f.when(own.ne(_bounded(f, own, steps)), lambda: f.store(f.i64(1), status))
        f.loop(0, batch, 1, [], check)
    f.loop(f.lo, f.hi, 1, [], item)


def _bounded(f: Body, x: V, most: V) -> V:
    return f.minimum(f.maximum(x, 0), most)


def _read(f: Body, base: V, index: V, mask: V | None) -> V:
    ty = vec(F32, f.machine.lanes())
    return f.load(ty, base, index) if mask is None else f.load_masked(ty, base, index, mask)


def _write(f: Body, x: V, base: V, index: V, mask: V | None) -> None:
    if mask is None:
        f.store(x, base, index)
    else:
        f.store_masked(x, base, index, mask)


def _clipped(f: Body, x: V, clip: float) -> V:
    return f.minimum(f.maximum(x, -clip), clip) if clip else x
