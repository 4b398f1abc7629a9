"""How long a kernel takes on a core: its code is followed through, what repeats itself evenly in strides.

In: `CycleCode`, the cells of its arguments and the items to do. Out: a `Tally`. Integers are computed,
vectors and floats are not; every instruction is given a place in the pipeline when its operands and its unit
are ready. Once an iteration of a loop changed all integers by as much as the one before, took every decision
as it did, and no decision is about to fall otherwise, further iterations are not followed but added, up to
the one where a decision changes: counts are those of following everything, cycles those of the last iteration
repeated.

Memory is looked at by loop: what a loop touches counts once where the bytes of one of its iterations fit into
the cache, else as often as its iterations touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from ...errors import Fail
from ...records import dataclass
from .cycles import Chip
from .cycles_code import BRANCHES, COMPUTE, DONE, JUMP, LOAD, SET, STORE, VECTOR, CycleCode, Op, signed
from .cycles_memory import Ranges, add, add_all, size, stride
from .cycles_timing import TWICE, UNITS, Timing, scalar, vector

ARGS, SCRATCH, STACK = 1 << 40, 1 << 44, 1 << 48
"""Where the arguments' cells, the scratch memory and the top of the stack are."""
_ROOM = 1 << 22
_SHARE = 0.75
"""The part of a cache that a loop's iteration may fill and still find there when it comes again."""
_FAR = 1 << 40

Look = Callable[[int, int], int]


class TooLong(Fail):
    """More instructions have to be followed than was allowed."""


@dataclass(frozen=True)
class Tally:
    """`cycles`, `instructions`; `busy`: cycles per unit, see `cycles_timing`; `moved`: bytes that vector and
    scalar loads and stores move; `near`, `far`: bytes that come from L2, and from behind it."""

    cycles: float
    instructions: int
    busy: tuple[float, ...]
    moved: float
    near: float
    far: float

    def scaled(self, by: float) -> Tally:
        return Tally(self.cycles * by, round(self.instructions * by), tuple(b * by for b in self.busy),
                     self.moved * by, self.near * by, self.far * by)

    def plus(self, other: Tally) -> Tally:
        return Tally(self.cycles + other.cycles, self.instructions + other.instructions,
                     tuple(a + b for a, b in zip(self.busy, other.busy, strict=True)),
                     self.moved + other.moved, self.near + other.near, self.far + other.far)


NOTHING_DONE = Tally(0.0, 0, (0.0,) * UNITS, 0.0, 0.0, 0.0)

_EXTRA, _COUNT, _BUSY, _MOVED, _NEAR, _FARTHER = 0, 1, 2, 2 + UNITS, 3 + UNITS, 4 + UNITS


@dataclass(slots=True)
class _Seen:
    """The state at the beginning of an iteration."""

    numbers: list[int]
    stack: dict[int, int]
    type: tuple[int, int, float]
    sums: list[Any]
    decided: int


@dataclass(slots=True)
class _Turning:
    """A loop that is being followed."""

    first: int
    body: frozenset[int]
    near: float
    far: float
    seen: list[_Seen] = field(default_factory=list)
    now: Ranges = field(default_factory=dict)
    before: Ranges = field(default_factory=dict)
    older: Ranges = field(default_factory=dict)
    total: Ranges = field(default_factory=dict)
    once: int = 0


class Walk:
    """Follows one kernel on one core of `chip`, `cores` of which work. `most`: instructions followed before
    TooLong is raised."""

    def __init__(self, code: CycleCode, chip: Chip, cores: int = 1, most: int = 3_000_000) -> None:
        self.code, self.core, self.most = code, chip.core, most
        self._matrix = chip.matrix(cores)
        self._l1 = _SHARE * chip.core.l1
        self._l2 = _SHARE * chip.l2
        self._scalars = [None if op.kind == VECTOR else scalar(op.text, self.core) for op in code.ops]
        self._vectors: dict[tuple[int, int, int, float], Timing] = {}
        self._bias: dict[int, int] = {}

    def run(self, cells: Sequence[int], first: int, last: int, look: Look | None = None) -> Tally:
        """The items from `first` to `last`, with these arguments. `look(address, bytes)`: what constants in
        memory hold there, for kernels that go by tables."""
        self.look = look
        x = self.x = [0] * 32
        x[2], x[10], x[11], x[12], x[13] = STACK, ARGS, first, last, SCRATCH
        self.cells, self.stack, self.heap = cells, dict[int, int](), dict[int, int]()
        self.length, self.width, self.group = 0, 8, 1.0
        self.ready, self.free = [0.0] * 96, [[0.0] * (2 if u in TWICE else 1) for u in range(UNITS)]
        self.clock, self.slots, self.retired = 0.0, 0, 0.0
        self.ring = [0.0] * self.core.window
        self.sums: list[Any] = [0.0, 0] + [0.0] * (3 + UNITS)
        self.decided: list[tuple[int, int, int, int]] = []
        self.turning: list[_Turning] = []
        self.root: Ranges = {}
        self._follow()
        while self.turning:
            self._leave()
        s = self.sums
        return Tally(max(self.clock, self.retired) + s[_EXTRA], round(s[_COUNT]),
                     tuple(s[_BUSY:_BUSY + UNITS]), s[_MOVED], s[_NEAR], s[_FARTHER])

    def _follow(self) -> None:
        ops, starts, loops, at, left = self.code.ops, self.code.starts, self.code.loops, 0, self.most
        while True:
            if at in starts:
                while self.turning and at not in self.turning[-1].body:
                    self._leave()
                if at in loops:
                    self._visit(at, loops[at])
            op = ops[at]
            left -= 1
            if left < 0:
                raise TooLong("a kernel takes too long to follow", found=f"{self.most} instructions")
            kind = op.kind
            timing = self._scalars[at]
            if kind == VECTOR:
                timing = self._vector(at, op)
            assert timing is not None
            self._place(timing)
            following = at + 1
            if kind == COMPUTE:
                self._compute(at, op)
            elif kind == BRANCHES:
                if self._branches(at, op):
                    following = op.target
            elif kind == JUMP:
                following = op.target
            elif kind == LOAD:
                self._load(at, op, timing)
            elif kind == STORE:
                self._store(at, op, timing)
            elif kind == SET:
                self._set(op)
            elif kind == DONE:
                return
            at = following

    # what instructions do

    def _compute(self, at: int, op: Op) -> None:
        a = self.x[op.a] if op.a >= 0 else op.x
        b = self.x[op.b] if op.b >= 0 else op.y
        assert op.effect is not None
        value = op.effect(a, b)
        if not -(1 << 63) <= value < 1 << 63:
            value = signed(value)
        self.x[op.to] = value
        if op.bent:
            self.decided.append((at, a, b, value))

    def _branches(self, at: int, op: Op) -> bool:
        a = self.x[op.a] if op.a >= 0 else op.x
        b = self.x[op.b] if op.b >= 0 else op.y
        assert op.test is not None
        taken = op.test(a, b)
        self.decided.append((at, a, b, int(taken)))
        bias = self._bias.get(at, 2 if op.target <= at else 1)
        if taken != (bias >= 2):
            self.clock += self.core.branch
            self.slots = 0
        self._bias[at] = min(3, bias + 1) if taken else max(0, bias - 1)
        return taken

    def _load(self, at: int, op: Op, timing: Timing) -> None:
        where = self.x[op.a] + op.x
        if op.to > 0:
            self.x[op.to] = self._read(where, timing.move)
        self._touch(at, where, where + timing.move, timing.move)

    def _read(self, where: int, count: int) -> int:
        if STACK - _ROOM < where <= STACK:
            return self.stack.get(where, 0)
        if ARGS <= where < ARGS + 8 * len(self.cells):
            return signed(self.cells[(where - ARGS) // 8], 8 * count)
        if 1 << 52 <= where < 1 << 53:
            return self.code.constant(where)
        if where in self.heap or self.look is None:
            return self.heap.get(where, 0)
        return self.look(where, count)

    def _store(self, at: int, op: Op, timing: Timing) -> None:
        where = self.x[op.a] + op.x
        if STACK - _ROOM < where <= STACK:
            self.stack[where] = self.x[op.to] if op.to >= 0 else 0
            return
        if op.to >= 0:
            self.heap[where] = signed(self.x[op.to], 8 * timing.move)
        self._touch(at, where, where + timing.move, timing.move)

    def _set(self, op: Op) -> None:
        self.width, self.group = op.type
        most = int(8 * self.code.machine.vector * self.group) // self.width
        if op.a == 0:
            self.length = most if op.to else min(self.length, most)
        else:
            self.length = min(self.x[op.a] if op.a > 0 else op.x, most)
        if op.to:
            self.x[op.to] = self.length

    def _vector(self, at: int, op: Op) -> Timing:
        key = at, self.length, self.width, self.group
        made = self._vectors.get(key)
        if made is None:
            made = self._vectors[key] = vector(op.text, self.core, self.code.machine.vector, self.width,
                                               self.group, self.length, self._matrix)
        if op.to > 0:
            self.x[op.to] = 0
        if made.move:
            where = self.x[op.a] + op.y
            stride = self.x[op.b] if op.b > 0 else 0
            if stride:
                ends = where, where + stride * (self.length - 1)
                self._touch(at, min(ends), max(ends) + self.width // 8, made.move)
            else:
                self._touch(at, where, where + made.move, made.move)
        return made

    # the pipeline

    def _place(self, t: Timing) -> None:
        """Start an instruction as early as the ones before it, its operands and its unit allow."""
        ready, start, window = self.ready, self.clock, self.core.window
        if window:
            slot = self.sums[_COUNT] % window
            if self.ring[slot] > start:
                start = self.clock = self.ring[slot]
                self.slots = 0
        for r in t.reads:
            at = ready[r]
            if at > start:
                start = at
        unit = self.free[t.unit]
        if len(unit) == 1:
            if unit[0] > start:
                start = unit[0]
            unit[0] = start + t.busy
        else:
            which = 0 if unit[0] <= unit[1] else 1
            if unit[which] > start:
                start = unit[which]
            unit[which] = start + t.busy
        done = start + t.latency
        for r in t.writes:
            ready[r] = done
        if window:
            if done > self.retired:
                self.retired = done
            self.ring[slot] = self.retired
        elif start > self.clock:
            self.clock, self.slots = start, 0
        self.slots += 1
        if self.slots == self.core.width:
            self.clock += 1
            self.slots = 0
        sums = self.sums
        sums[_COUNT] += 1
        sums[_BUSY + t.unit] += t.busy

    # memory

    def _touch(self, at: int, low: int, high: int, count: int) -> None:
        if STACK - _ROOM < low <= STACK or ARGS <= low < ARGS + 8 * len(self.cells):
            return
        self.sums[_MOVED] += count
        self.sums[_NEAR] += count
        self.sums[_FARTHER] += count
        add(self.turning[-1].now if self.turning else self.root, at, low, high, count)

    # loops

    def _visit(self, first: int, body: frozenset[int]) -> None:
        top = self.turning[-1] if self.turning else None
        if top is None or top.first != first:
            top = _Turning(first, body, self.sums[_NEAR], self.sums[_FARTHER])
            self.turning.append(top)
        else:
            self._turned(top)
        sums = list(self.sums)
        sums[_EXTRA] += max(self.clock, self.retired)
        top.seen.append(_Seen(list(self.x), dict(self.stack), (self.length, self.width, self.group), sums,
                              len(self.decided)))
        if len(top.seen) >= 3:
            turns = self._turns(top)
            if turns:
                self._skip(top, turns)
            else:
                del top.seen[0]

    def _turned(self, top: _Turning) -> None:
        """An iteration is over."""
        top.once = size(top.now)
        add_all(top.total, top.now)
        top.older, top.before, top.now = top.before, top.now, {}

    def _leave(self) -> None:
        """A loop is over."""
        top = self.turning.pop()
        one = top.once or size(top.now)
        add_all(top.total, top.now)
        whole = size(top.total)
        if one <= self._l1:
            self.sums[_NEAR] = min(self.sums[_NEAR], top.near + whole)
        if one <= self._l2:
            self.sums[_FARTHER] = min(self.sums[_FARTHER], top.far + whole)
        add_all(self.turning[-1].now if self.turning else self.root, top.total)

    def _turns(self, top: _Turning) -> int:
        """How many further iterations are like the last two; 0 where these differ."""
        a, b, c = top.seen[-3:]
        if not a.type == b.type == c.type or a.stack.keys() != c.stack.keys():
            return 0
        if any(r - 2 * q + p for p, q, r in zip(a.numbers, b.numbers, c.numbers, strict=True)):
            return 0
        if any(c.stack[k] - 2 * b.stack[k] + v for k, v in a.stack.items()):
            return 0
        one, two = self.decided[a.decided:b.decided], self.decided[b.decided:c.decided]
        if len(one) != len(two):
            return 0
        turns = _FAR
        for (at, p, q, out), (again, r, s, now) in zip(one, two, strict=True):
            if at != again:
                return 0
            if p == r and q == s:
                if out != now:
                    return 0
                continue
            if at < 0:
                return 0
            op = self.code.ops[at]
            if op.test is not None and out != now:
                return 0
            turns = min(turns, self._reach(op, r, s, r - p, s - q, now, now - out, turns))
            if not turns:
                return 0
        if turns >= _FAR:
            raise Fail("a loop of a kernel never ends", found=str(self.code.ops[top.first].text))
        return turns

    def _reach(self, op: Op, a: int, b: int, da: int, db: int, out: int, change: int, most: int) -> int:
        """For how many iterations a decision falls as the last two did, `most` at most."""
        if op.test is not None and op.text.op in ("beq", "bne", "beqz", "bnez"):
            apart, step = a - b, da - db
            if apart == 0:
                return most if step == 0 else 0
            return most if step == 0 or apart % step or -apart // step <= 0 else min(most, -apart // step - 1)

        def holds(j: int) -> bool:
            x, y = a + j * da, b + j * db
            value = int(op.test(x, y)) if op.test is not None else op.effect(x, y)  # type: ignore[misc]
            return value == (out if op.test is not None else out + j * change)
        if not holds(1):
            return 0
        low, high = 1, 2
        while high < most and holds(high) and (not change or holds(high + 1)):
            low, high = high, 2 * high
        if high >= most:
            if holds(most):
                return most
            high = most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    def _skip(self, top: _Turning, turns: int) -> None:
        """Add `turns` iterations like the last one."""
        before, last = top.seen[-2:]
        for i, (p, q) in enumerate(zip(before.numbers, last.numbers, strict=True)):
            self.x[i] += turns * (q - p)
        for k, p in before.stack.items():
            self.stack[k] += turns * (last.stack[k] - p)
        for i, (p2, q2) in enumerate(zip(before.sums, last.sums, strict=True)):
            self.sums[i] += turns * (q2 - p2)
        self.decided.append((-top.first - 1, turns, 0, turns))
        stride(top.total, top.before, top.older, turns)
        top.seen.clear()
