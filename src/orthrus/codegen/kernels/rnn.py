"""Recurrent layers: all time steps of RNN, GRU and LSTM in one kernel call.

In: the inputs of every step already multiplied by W with the biases added (`order` says how their columns
lie) and R packed by `pack`. Out: every step's hidden state and the last states. Hidden lanes are done
`units` vectors at a time with all their gates side by side, so that a tile of h·Rᵀ leaves a cell's gates in
registers, where the cell is updated. An item is some rows of the batch in one direction; its states stay in
the thread's scratch. A step reads all of R, which should begin on a cache line. R may be bytes
(`int8.states`): an item is then all rows, as they share a range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np

from ...records import dataclass
from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import F32, I8, I32, I64, V, vec
from ..write.expr import Expr, emit
from ..write.spec import Spec
from ..write.template import template
from ..write.tile import tile
from .int8 import products, states

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STATES = {"RNN": 2, "GRU": 4, "LSTM": 3}
_PART = 256
"""Products whose sum is added to that of the others where the hidden size is larger, so that errors of long
sums stay small."""


@dataclass(frozen=True)
class RecurrencePlan:
    """How a layer is divided. `phases`: which gates a pass over h·Rᵀ computes; `units`: vectors of hidden
    lanes next to each other; `blocks` of them cover the hidden size. Rows of the batch are done `height` at
    a time, `tiles` of them per direction; the last one starts earlier and repeats rows. An item takes
    `per_item` tiles. `coded`: R is bytes."""

    kind: str
    phases: tuple[tuple[int, ...], ...]
    lanes: int
    units: int
    blocks: int
    hidden: int
    height: int
    tiles: int
    per_item: int
    coded: bool = False

    @property
    def wide(self) -> int:
        """Hidden lanes of a block."""
        return self.units * self.lanes

    @property
    def padded(self) -> int:
        """The hidden size in whole blocks."""
        return self.blocks * self.wide

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
        rows = self.per_item * self.height
        more = states.room(rows, self.padded) if self.coded else 0
        return 4 * _STATES[self.kind] * rows * self.padded + more

    def order(self, gates: Sequence[int]) -> np.ndarray:
        """The row of a [gates * hidden] weight that each column of `gates` stands for, -1 for padding."""
        lane = np.arange(self.blocks)[:, None, None] * self.wide + np.arange(self.wide)
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

    def packing(self, machine: Machine) -> products.Packing:
        """How a block of R of bytes is packed."""
        return states.packing(machine, self.wide * GATES[self.kind])

    def pack_codes(self, r: np.ndarray, how: products.Packing) -> np.ndarray:
        """R [directions, gates * hidden, hidden] of int8 or uint8 as [directions, n] of int8."""
        return np.stack([products.pack(np.ascontiguousarray(each.T)[None], None, how).reshape(-1)
                         for each in self.spread(states.centred(r))])

    def numbers(self, r: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """The numbers of R's columns, [directions, `states.NUMBERS`, columns], the bits of floats as int32;
        `scale`, `zero`: [directions, gates * hidden]."""
        total = states.centred(r).sum(2, dtype=np.int32)
        scales = self.spread(scale.astype(np.float32)).view(np.int32)
        return np.stack([scales, *map(self.spread, (total, states.lacking(r, zero)))], 1)

    def lined(self, vectors: np.ndarray) -> np.ndarray:
        """[..., hidden] with zeros up to whole blocks."""
        out = np.zeros((*vectors.shape[:-1], self.padded), vectors.dtype)
        out[..., :self.hidden] = vectors
        return out

    def spec(self, activations: tuple[Expr, ...], clip: float, peephole: bool, lengths: bool,
             coupled: bool, shifted: bool = False) -> Spec:
        """The kernel; `activations`: trees over leaf 0; `clip` 0 for none; `coupled`: an LSTM whose input
        gate is 1 less its forget gate; `shifted`: R's bytes lack something."""
        return recurrence(form=CellForm(self.kind, self.phases, self.units, self.height,
                                        self.hidden != self.padded, activations, clip, peephole, lengths,
                                        coupled, self.coded, shifted, self.hidden > _PART))


def plan(machine: Machine, kind: str, hidden: int, batch: int, linear_before_reset: bool = False,
         coded: bool = False) -> RecurrencePlan:
    """Divide a layer of one of `GATES`; `coded`: an LSTM whose R is bytes."""
    lanes = machine.lanes()
    phases: tuple[tuple[int, ...], ...] = (tuple(range(GATES[kind])),)
    if kind == "GRU" and not linear_before_reset:
        phases = ((0, 1), (2,))
    vectors = -(-hidden // lanes)
    units = min({"RNN": 2, "GRU": 2 if len(phases) > 1 else 1, "LSTM": 1}[kind], vectors)
    cols = units * len(phases[0])
    tallest = states.tallest(machine, cols) if coded else max(1, (machine.registers - cols - 1) // cols)
    tiles = -(-batch // tallest)
    height = -(-batch // tiles)
    near = not coded and 4 * GATES[kind] * hidden * hidden <= machine.l2 * 3 // 4
    return RecurrencePlan(kind, phases, lanes, units, -(-vectors // units), hidden, height, tiles,
                          1 if near else tiles if coded else -(-tiles // 2), coded)


_CELLS = ("p:ptr p_t:i64 p_n:i64 p_d:i64 r:ptr r_d:i64 y:ptr y_t:i64 y_n:i64 y_d:i64 h0:ptr h0_n:i64 "
          "h0_d:i64 hn:ptr hn_n:i64 hn_d:i64 c0:ptr c0_n:i64 c0_d:i64 cn:ptr cn_n:i64 cn_d:i64 extra:ptr "
          "extra_d:i64 lens:ptr status:ptr steps:i64 batch:i64 hidden:i64 blocks:i64 tiles:i64 per_item:i64 "
          "items:i64 first:i64 backward:i64 numbers:ptr numbers_d:i64 run:i64")


@dataclass(frozen=True)
class CellForm:
    """What `recurrence` is written for. `tail`: the hidden size does not fill its last block; `clip`: 0 for
    none; `lengths`: each row has its own number of steps; `coupled`, `shifted`: see `RecurrencePlan.spec`;
    `coded`: R is bytes; `long`: sums are made of several parts."""

    kind: str
    phases: tuple[tuple[int, ...], ...]
    units: int
    height: int
    tail: bool
    activations: tuple[Expr, ...]
    clip: float
    peephole: bool
    lengths: bool
    coupled: bool
    coded: bool = False
    shifted: bool = False
    long: bool = False


@template(_CELLS, together=True)
def recurrence(f: Body, c: SimpleNamespace, *, form: CellForm) -> None:
    """p: projected inputs, r: packed R, y: hidden states, h0, hn, c0, cn: first and last states, each with
    its strides over time, batch and directions; elements of a row are next to each other. `extra`: an LSTM's
    peephole weights i, o, f, or a GRU's second bias of the candidate where it is added before the reset,
    [.., padded]. Item (direction - first) * items + group of tiles; directions from `backward` on run against
    time. `numbers` and `run`: of R of bytes, its columns' numbers and the bytes of a packed column. With
    `lengths` each row has its own number of steps, `lens` int32: beyond, y is 0 and states stay;
    `status` becomes 1 where one is not in 0 to `steps`."""
    layer = _Layer(f, c, form)
    if form.lengths:
        def check(n: V) -> None:
            own = f.cast(f.load(I32, c.lens, n), I64)
            f.when(own.ne(_bounded(f, own, c.steps)), lambda: f.store(f.i64(1), c.status))
        f.loop(0, c.batch, 1, [], check)
    f.loop(f.lo, f.hi, 1, [], lambda i: _Item(layer, i).write())


class _Layer:
    """What all items share: the cells, what is written for, and sizes."""

    def __init__(self, f: Body, c: SimpleNamespace, form: CellForm) -> None:
        self.f, self.c, self.form = f, c, form
        self.lanes = f.machine.lanes()
        self.floats, self.wide = vec(F32, self.lanes), form.units * self.lanes
        self.gates = GATES[form.kind]
        self.padded = c.blocks * self.wide
        self.size = self.padded * form.height
        self.before_reset = form.kind == "GRU" and len(form.phases) == 1
        self.state_size = c.per_item * self.size

    def area(self, i: int) -> V:
        """A state of all of an item's rows in this thread's scratch: hidden, the next hidden, cells or what a
        GRU keeps between its phases."""
        return self.f.gep(self.f.scratch, self.state_size * i, F32)

    def act(self, index: int, x: V) -> V:
        clipped = _clipped(self.f, x, self.form.clip) if index < 2 else x
        return emit(self.f, self.form.activations[index], [clipped])


class _Item:
    """Some tiles of the batch's rows in one direction, through all steps."""

    def __init__(self, layer: _Layer, i: V) -> None:
        f, c = layer.f, layer.c
        self.layer, self.f, self.c, self.form = layer, f, c, layer.form
        group = i // c.items
        d = c.first + group
        self.t0 = (i - group * c.items) * c.per_item
        self.count = f.minimum(c.tiles - self.t0, c.per_item)
        self.p, self.y, self.h0, self.hn, self.c0, self.cn, self.side, self.numbers = (
            f.gep(base, d * stride, F32) for base, stride in (
                (c.p, c.p_d), (c.y, c.y_d), (c.h0, c.h0_d), (c.hn, c.hn_d), (c.c0, c.c0_d), (c.cn, c.cn_d),
                (c.extra, c.extra_d), (c.numbers, c.numbers_d)))
        self.r = f.gep(c.r, d * c.r_d, I8 if layer.form.coded else F32)
        self.back = d >= c.backward
        self.states: states.States | None = None
        if layer.form.coded:
            self.states = states.States(f, layer.area(_STATES[layer.form.kind]),
                                        self.count * layer.form.height, layer.padded, layer.lanes,
                                        layer.form.shifted)

    def write(self) -> None:
        f, c, area = self.f, self.c, self.layer.area
        self._begin(area(0), self.h0, c.h0_n)
        if self.form.kind == "LSTM":
            self._begin(area(2), self.c0, c.c0_n)
        h, _ = f.loop(0, c.steps, 1, [area(0), area(1)], self._step)
        self._finish(h, self.hn, c.hn_n)
        if self.form.kind == "LSTM":
            self._finish(area(2), self.cn, c.cn_n)

    def row_of(self, t: V) -> V:
        """The first row of the batch in tile `t` of this item."""
        return self.f.minimum((self.t0 + t) * self.form.height, self.c.batch - self.form.height)

    def mask_at(self, column: V, u: int) -> V | None:
        lanes = self.layer.lanes
        return self.f.mask(lanes, self.c.hidden - column - u * lanes) if self.form.tail else None

    # first and last states

    def _each_state(self, body: Callable[[V, V, V, V | None], None]) -> None:
        """body(row of the batch, place in a state, column, mask) for all vectors of a state."""
        f, layer = self.f, self.layer

        def one(t: V) -> None:
            for row in range(self.form.height):
                def vector(b: V, row: int = row) -> None:
                    column = b * layer.lanes
                    body(self.row_of(t) + row, t * layer.size + layer.padded * row + column, column,
                         self.mask_at(column, 0))
                f.loop(0, self.c.blocks * self.form.units, 1, [], vector)
        f.loop(0, self.count, 1, [], one)

    def _begin(self, state: V, source: V, stride: V) -> None:
        f, floats = self.f, self.layer.floats
        self._each_state(lambda n, at, column, mask: f.store(
            f.load_masked(floats, source, n * stride + column, mask), state, at, 64))

    def _finish(self, state: V, target: V, stride: V) -> None:
        f, floats = self.f, self.layer.floats
        self._each_state(lambda n, at, column, mask: f.store_masked(
            f.load(floats, state, at, 64), target, n * stride + column, mask))

    # steps

    def _step(self, s: V, now: V, new: V) -> list[V]:
        """The step `s` of all rows, from the hidden states `now` to `new`."""
        if self.states is not None:
            self.states.quantize(now)
        for phase in range(len(self.form.phases)):
            self._phase(phase, s, now, new)
        return [new, now]

    def _timed(self, s: V, t: V) -> tuple[list[V], list[V]]:
        """Per row the step of the sequence it is at and whether that is within its length."""
        f, c, height = self.f, self.c, self.form.height
        if not self.form.lengths:
            return [f.select(self.back, c.steps - 1 - s, s)] * height, []
        at, live = [], []
        for row in range(height):
            own = _bounded(f, f.cast(f.load(I32, c.lens, self.row_of(t) + row), I64), c.steps)
            live.append(s < own)
            at.append(f.select(live[-1] & self.back, own - 1 - s, s))
        return at, live

    def _phase(self, phase: int, s: V, now: V, new: V) -> None:
        """The gates of one pass over h·Rᵀ, block by block of hidden lanes, tile by tile of rows."""
        f, c, layer, form = self.f, self.c, self.layer, self.form
        cols = len(form.phases[phase]) * form.units
        panels = self.r if not phase else f.gep(self.r, c.hidden * layer.padded * len(form.phases[0]), F32)

        def block(b: V) -> None:
            size = c.run if form.coded else c.hidden
            panel = f.gep(panels, b * size * (cols * layer.lanes), I8 if form.coded else F32)
            column = b * layer.wide
            f.loop(0, self.count, 1, [], lambda t: self._tile(phase, panel, column, t, s, now, new))
        f.loop(0, c.blocks, 1, [], block)

    def _tile(self, phase: int, panel: V, column: V, t: V, s: V, now: V, new: V) -> None:
        f, c, layer, form = self.f, self.c, self.layer, self.form
        mine, units, lanes, rows = form.phases[phase], form.units, layer.lanes, range(form.height)
        cols = len(mine) * units
        when, live = self._timed(s, t)
        base = t * layer.size
        inputs = [f.gep(self.p, when[i] * c.p_t + (self.row_of(t) + i) * c.p_n + column * layer.gates, F32)
                  for i in rows]
        rest = 2 if layer.before_reset else layer.gates
        acc = [f.load(layer.floats, x, (g * units + u) * lanes) if g < rest else f.zero(layer.floats)
               for x in inputs for g in mine for u in range(units)]
        if self.states is not None:
            across = layer.padded * layer.gates
            numbers = [f.gep(self.numbers, across * i + column * layer.gates, F32)
                       for i in range(states.NUMBERS)]
            acc = self.states.times(t * form.height, form.height, panel, c.run, numbers, acc)
        else:
            source = f.gep(now if not phase else layer.area(3), base, F32)
            acc = self._times(source, panel, cols, acc)
        for i in rows:
            for u in range(units):
                at = base + layer.padded * i + column + u * lanes
                x = acc[i * cols + u:(i + 1) * cols:units]
                mask = self.mask_at(column, u)
                old = f.load(layer.floats, now, at, 64)
                if form.kind == "GRU" and not phase and not layer.before_reset:
                    f.store(layer.act(0, x[0]), layer.area(2), at, 64)
                    f.store(layer.act(0, x[1]) * old, layer.area(3), at, 64)
                    continue
                alive = live[i] if live else None
                h = self._cell(x, at, old, column + u * lanes, inputs[i], u, alive)
                if form.coded and mask is not None:
                    h = f.select(mask, h, f.zero(layer.floats))
                f.store(h if alive is None else f.select(alive, h, old), new, at, 64)
                place = when[i] * c.y_t + (self.row_of(t) + i) * c.y_n + column + u * lanes
                shown = h if alive is None else f.select(alive, h, f.zero(layer.floats))
                f.store_masked(shown, self.y, place, mask)

    def _times(self, source: V, panel: V, cols: int, acc: list[V]) -> list[V]:
        """`acc` plus the rows at `source` times a panel of R."""
        f, layer, height, hidden = self.f, self.layer, self.form.height, self.c.hidden
        step = cols * layer.lanes

        def part(k: V, *total: V) -> list[V]:
            rows, columns = f.gep(source, k, F32), f.gep(panel, k * step, F32)
            made = tile(f, height, cols, rows, layer.padded, columns, step, f.minimum(hidden - k, _PART),
                        [f.zero(layer.floats)] * len(total))
            return [a + b for a, b in zip(total, made, strict=True)]
        if self.form.long:
            return f.loop(0, hidden, _PART, acc, part)
        return tile(f, height, cols, source, layer.padded, panel, step, hidden, acc)

    # cells

    def _cell(self, x: Sequence[V], at: V, old: V, column: V, given: V, u: int, alive: V | None) -> V:
        """The new hidden state from the gates' sums; an LSTM's new cell is stored where `alive`."""
        if self.form.kind == "RNN":
            return self.layer.act(0, x[0])
        if self.form.kind == "GRU":
            return self._gru(x, at, old, column, given, u)
        return self._lstm(x, at, column, alive)

    def _gru(self, x: Sequence[V], at: V, old: V, column: V, given: V, u: int) -> V:
        f, layer, act = self.f, self.layer, self.layer.act
        if layer.before_reset:
            z = act(0, x[0])
            linear = x[2] + f.load(layer.floats, self.side, column)
            place = (2 * self.form.units + u) * layer.lanes
            sum_ = f.fma(act(0, x[1]), linear, f.load(layer.floats, given, place))
        else:
            z, sum_ = f.load(layer.floats, layer.area(2), at, 64), x[0]
        return f.fma(z, old, (1 - z) * act(1, sum_))

    def _lstm(self, x: Sequence[V], at: V, column: V, alive: V | None) -> V:
        f, layer, act, coupled = self.f, self.layer, self.layer.act, self.form.coupled
        before = f.load(layer.floats, layer.area(2), at, 64)

        def peep(gate: int, sum_: V, state: V) -> V:
            if not self.form.peephole:
                return sum_
            return f.fma(f.load(layer.floats, self.side, layer.padded * gate + column), state, sum_)
        i = act(0, peep(0, x[0], before))
        forget = 1 - i if coupled else act(0, peep(2, x[2], before))
        cell = f.fma(forget, before, i * act(1, x[3]))
        f.store(cell if alive is None else f.select(alive, cell, before), layer.area(2), at, 64)
        return act(0, peep(1, x[1], cell)) * act(2, cell)


def _bounded(f: Body, x: V, most: V) -> V:
    return f.minimum(f.maximum(x, 0), most)


def _clipped(f: Body, x: V, clip: float) -> V:
    return f.minimum(f.maximum(x, -clip), clip) if clip else x
