"""Generated code that runs a program: the steps one after another, large ones divided over the pool's
threads.

What it reads and writes is described in `cells`. Nothing here has a result that depends on who does what:
kernels see to that.

A row of JUMP items is a jump, whose arguments are those of the kernel `jump`: the address of a byte, a row,
and 1 or 0 for whether the run goes on there where the byte is true, or where it is false.

How a step is divided: each place of a team starts with its own part of the items and then helps the others, a
few grains at a time, so that the same thread tends to meet the same rows in the next step. The caller has
place 0. The others belong to whoever comes, and the caller waits for none but those who came: it fills a
*ticket* with seats, workers take them, and once nothing is left to take, it takes the seats away. A sleeping
worker costs nothing but its help.
"""

from __future__ import annotations

from collections.abc import Callable

from ..machines.machine import Machine
from ..write.emit import I8, I32, I64, PTR, VOID, Function, Module, V
from .cells import STEP, Cell, PoolCell

_SEATS = 0xFFFF
_AHEAD = 4
"""Chunks each place's part is cut into, where the grain allows."""


def text(machine: Machine) -> str:
    """What the unit `Runtime` holds."""
    module = Module(machine.triple)
    share = _share(module, _spread(module, machine, _part(module)))
    _drive(module, share)
    _work(module, machine)
    pauses = module.function("pauses", [(I64, "count")])
    pauses.loop(0, pauses.params[0], 1, [], lambda i: _pause(pauses, machine))
    pauses.ret()
    return str(module)


def pointer(f: Function, at: V, cell: int) -> V:
    """The address of a cell of the block at `at`, which comes as i64: a pointer among parameters would
    promise that nobody else changes what it points to."""
    return f.gep(f.cast(at, PTR), cell, I64)


def cell(f: Function, at: V, index: int, ty: str = I64) -> V:
    """A cell's value."""
    return f.load(ty, pointer(f, at, index), 0, 8)


def put(f: Function, x: V, at: V, index: int) -> None:
    """Set a cell."""
    f.store(x, pointer(f, at, index), 0, 8)


def _watch(f: Function, at: V, index: int, order: str = "acquire") -> V:
    return f.emit(I64, f"load atomic i64, {pointer(f, at, index)} {order}, align 8")


def _change(f: Function, how: str, at: V, index: int, by: int | V, order: str = "seq_cst") -> V:
    """Change a cell at once for all threads; gives what it held."""
    return f.emit(I64, f"atomicrmw {how} {pointer(f, at, index)}, {f.i64(by)} {order}, align 8")


def _replace(f: Function, at: V, index: int, old: V, new: V) -> V:
    """Set a cell if it still holds `old`; whether it did."""
    both = f.fresh()
    f.line(f"{both} = cmpxchg {pointer(f, at, index)}, {old}, {new} acq_rel monotonic, align 8")
    return f.emit("i1", f"extractvalue {{ i64, i1 }} {both}, 1")


def _pause(f: Function, machine: Machine) -> None:
    if machine.arch == "x86_64":
        f.intrinsic("x86.sse2.pause", VOID)
    elif machine.arch == "aarch64":
        f.intrinsic("aarch64.isb", VOID, f.const(I32, 15))


def _futex(f: Function, machine: Machine, pool: V, index: int, action: int, value: V) -> None:
    """Wait on a cell's low half while it is `value` (0), or wake `value` threads that do (1)."""
    number = 202 if machine.arch == "x86_64" else 98
    at, call = pointer(f, pool, index), cell(f, pool, PoolCell.SYSCALL, PTR)
    f.emit(I64, f"call i64 (i64, ...) {call.ref}(i64 {number}, {at}, i64 {action | 128}, {value}, "
                "i64 0, i64 0, i64 0)")


def _spin(f: Function, machine: Machine, count: V, look: Callable[[], V], good: Callable[[V], V]) -> V:
    """Look until what is seen is good, or `count` pauses went by; gives what was seen last."""
    def again(i: V, _: V) -> tuple[V, list[V]]:
        _pause(f, machine)
        seen = look()
        return ~good(seen) & (i < count), [i + 1, seen]
    first = look()
    (seen,) = f.when(~good(first), lambda: f.repeat([f.i64(0), first], again)[1], lambda: first)
    return seen


def _call(f: Function, callee: Function | V, *args: V) -> None:
    f.call(callee, args)


def _add(f: Function, at: V, index: int, by: int) -> None:
    _change(f, "add", at, index, by)


def _part(module: Module) -> Function:
    """`part(pool, place)`: take chunks of the job, of one's own range first, until none is left."""
    f = module.function("part", [(I64, "pool"), (I64, "place")], VOID, True)
    pool, place = f.params
    kernel, args = cell(f, pool, PoolCell.KERNEL, PTR), cell(f, pool, PoolCell.ARGS, PTR)
    chunk, team = cell(f, pool, PoolCell.CHUNK), cell(f, pool, PoolCell.TEAM)
    scratch = f.gep(cell(f, pool, PoolCell.ROOM, PTR), place * cell(f, pool, PoolCell.ROOM_SIZE), I8)

    def help_(i: V) -> None:
        whose = (place + i) % team
        at = pool + (whose * PoolCell.RANGE + PoolCell.RANGES) * 8
        end = cell(f, at, 1)

        def take() -> tuple[V, list[V]]:
            lo = _change(f, "add", at, 0, chunk, "monotonic")
            f.when(lo < end, lambda: _call(f, kernel, args, lo, f.minimum(lo + chunk, end), scratch))
            return lo + chunk < end, []
        f.when(_watch(f, at, 0, "monotonic") < end, lambda: f.repeat([], take))
    f.loop(0, team, 1, [], help_)
    f.ret()
    return f


def _spread(module: Module, machine: Machine, part: Function) -> Function:
    """`spread(pool, row, team, room, room_size)`: do a step with a team of the pool, which the caller
    holds."""
    names = ("pool", "row", "team", "room", "room_size")
    f = module.function("spread", [(I64, name) for name in names], VOID, True)
    pool, row, team, room, room_size = f.params
    items, grain = cell(f, row, 2), cell(f, row, 3)
    grains = (items + grain - 1) // grain

    def deal(place: V) -> None:
        at = pool + (place * PoolCell.RANGE + PoolCell.RANGES) * 8
        put(f, grains * place // team * grain, at, 0)
        put(f, f.minimum(grains * (place + 1) // team * grain, items), at, 1)
    f.loop(0, team, 1, [], deal)
    chunk = f.maximum(grains // (team * _AHEAD), 1) * grain
    for index, value in ((PoolCell.KERNEL, cell(f, row, 0)), (PoolCell.ARGS, cell(f, row, 1)),
                         (PoolCell.CHUNK, chunk), (PoolCell.TEAM, team), (PoolCell.ROOM, room),
                         (PoolCell.ROOM_SIZE, room_size), (PoolCell.LEFT, f.i64(0))):
        put(f, value, pool, index)
    seats = team - 1
    ticket = ((cell(f, pool, PoolCell.TICKET) | _SEATS) + 1) | seats
    _change(f, "xchg", pool, PoolCell.TICKET, ticket)
    may_sleep = cell(f, pool, PoolCell.SYSCALL).ne(0)
    f.when(_watch(f, pool, PoolCell.AWAY, "seq_cst").ne(0) & may_sleep,
           lambda: _futex(f, machine, pool, PoolCell.TICKET, 1, seats))
    _call(f, part, pool, f.i64(0))
    came = seats - (_change(f, "and", pool, PoolCell.TICKET, ~_SEATS) & _SEATS)

    def look() -> V:
        return _watch(f, pool, PoolCell.LEFT)

    def park() -> None:
        _change(f, "xchg", pool, PoolCell.WAITING, 1)

        def wait() -> tuple[V, list[V]]:
            left = _watch(f, pool, PoolCell.LEFT, "seq_cst")
            f.when(left.ne(came) & may_sleep, lambda: _futex(f, machine, pool, PoolCell.LEFT, 0, left))
            _pause(f, machine)
            return left.ne(came), []
        f.repeat([], wait)
        _change(f, "xchg", pool, PoolCell.WAITING, 0)
    left = _spin(f, machine, cell(f, pool, PoolCell.PATIENCE), look, lambda seen: seen.eq(came))
    f.when(left.ne(came), park)
    f.ret()
    return f


def _share(module: Module, spread: Function) -> Function:
    """`share(block, row, state)`: do a step that is worth several threads; gives the new state of the run.

    State 0: no such step yet; 1: counted among the pool's runs; 2: holds the pool. Whoever does not get hold
    of the pool works alone, and each run that goes on beside takes one thread off a team.
    """
    f = module.function("share", [(I64, "block"), (I64, "row"), (I64, "state")], I64, True)
    block, row, state = f.params
    pool, room = cell(f, block, Cell.POOL), cell(f, block, Cell.SCRATCH)
    items, grain = cell(f, row, 2), cell(f, row, 3)

    def arrive() -> V:
        _add(f, pool, PoolCell.RUNS, 1)
        return f.i64(1)
    (counted,) = f.when(state.eq(0), arrive, lambda: state)
    others = _watch(f, pool, PoolCell.RUNS, "monotonic") - 1
    team = f.minimum(f.minimum(cell(f, block, Cell.THREADS), cell(f, pool, PoolCell.SIZE) - others),
                  (items + grain - 1) // grain)

    def seize() -> V:
        free = _watch(f, pool, PoolCell.HELD, "monotonic").eq(0)
        (got,) = f.when(free, lambda: f.cast(_replace(f, pool, PoolCell.HELD, f.i64(0), f.i64(1)), I64),
                        lambda: f.i64(0))
        return got + 1
    (now,) = f.when((team > 1) & counted.eq(1), seize, lambda: counted)
    f.when((team > 1) & now.eq(2),
           lambda: _call(f, spread, pool, row, team, room, cell(f, block, Cell.SCRATCH_SIZE)),
           lambda: _alone(f, row, room))
    f.ret(now)
    return f


def _alone(f: Function, row: V, scratch: V) -> None:
    _call(f, cell(f, row, 0, PTR), cell(f, row, 1, PTR), f.i64(0), cell(f, row, 2), f.cast(scratch, PTR))


def _drive(module: Module, share: Function) -> None:
    """`drive(block)`: run a program to its end, or until told to stop."""
    f = module.function("drive", [(I64, "block")])
    (block,) = f.params
    table, steps, pool = (cell(f, block, c) for c in (Cell.TABLE, Cell.STEPS, Cell.POOL))
    scratch, stop = cell(f, block, Cell.SCRATCH), cell(f, block, Cell.STOP)
    threads = f.select(pool.ne(0), cell(f, block, Cell.THREADS), f.i64(1))

    def go_on(i: V) -> V:
        return (i < steps) & _watch(f, stop, 0, "monotonic").eq(0)

    def step(i: V, state: V) -> tuple[V, list[V]]:
        row = table + i * (STEP * 8)
        large = (threads > 1) & (cell(f, row, 2) > cell(f, row, 3))

        def alone() -> V:
            _alone(f, row, scratch)
            return state

        def work() -> list[V]:
            return [i + 1, *f.when(large, lambda: f.call(share, [block, row, state]), alone)]

        def jump() -> list[V]:
            given = cell(f, row, 1)
            true = f.load(I8, f.cast(cell(f, given, 0), PTR), 0, 1).ne(0)
            there = true.eq(cell(f, given, 2).ne(0))
            return [f.select(there, cell(f, given, 1), i + 1), state]
        after, now = f.when(cell(f, row, 2) >= 0, work, jump)
        return go_on(after), [after, now]
    first = f.i64(0)
    done, state = f.when(go_on(first), lambda: f.repeat([first, first], step), lambda: [first, first])

    def let_go() -> None:
        f.line(f"store atomic i64 0, {pointer(f, pool, PoolCell.HELD)} release, align 8")
    f.when(state.eq(2), let_go)
    f.when(state > 0, lambda: _add(f, pool, PoolCell.RUNS, -1))
    put(f, done, block, Cell.DONE)
    f.ret()


def _work(module: Module, machine: Machine) -> None:
    """`work(pool)`: take seats as long as the process lives. Without a futex it gives the thread back where
    others park, and whoever has the thread calls again when there is work."""
    part = next(g for g in module.functions if g.name == "part")
    f = module.function("work", [(I64, "pool")])
    (pool,) = f.params
    sleeps = cell(f, pool, PoolCell.SYSCALL).ne(0)

    def look() -> V:
        return _watch(f, pool, PoolCell.TICKET)

    def work(seen: V) -> tuple[V, list[V]]:
        def good(ticket: V) -> V:
            return (ticket & _SEATS).ne(0) & (ticket | _SEATS).ne(seen)
        ticket = _spin(f, machine, cell(f, pool, PoolCell.SPIN), look, good)

        def sit() -> V:
            def help_() -> V:
                _call(f, part, pool, ticket & _SEATS)
                _add(f, pool, PoolCell.LEFT, 1)
                f.when(_watch(f, pool, PoolCell.WAITING, "seq_cst").ne(0) & sleeps,
                       lambda: _futex(f, machine, pool, PoolCell.LEFT, 1, f.i64(1)))
                return ticket | _SEATS
            return f.when(_replace(f, pool, PoolCell.TICKET, ticket, ticket - 1), help_, lambda: seen)[0]

        def park() -> None:
            _add(f, pool, PoolCell.AWAY, 1)
            now = _watch(f, pool, PoolCell.TICKET, "seq_cst")
            f.when(~good(now), lambda: _futex(f, machine, pool, PoolCell.TICKET, 0, now))
            _add(f, pool, PoolCell.AWAY, -1)

        def rest() -> V:
            f.when(sleeps, park)
            return seen
        (after,) = f.when(good(ticket), sit, rest)
        return sleeps | good(ticket), [after]
    f.repeat([f.i64(-1)], work)
    f.ret()
