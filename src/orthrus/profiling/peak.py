"""What this machine can do: multiply-adds and bytes per second, measured by generated code that does nothing
else.

In: a number of threads. Out: a `Peak`, measured once in a process, and kept for a day beside generated code
where nothing else took the processor meanwhile. Rates are the best of several turns.
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..codegen.kernels import amx
from ..codegen.machines.detect import host
from ..codegen.machines.machine import Machine
from ..codegen.object import cache, library
from ..codegen.runtime import entry
from ..codegen.runtime.call_kernel import aligned
from ..codegen.runtime.cells import STEP
from ..codegen.runtime.threads import pool
from ..codegen.write.body import Body
from ..codegen.write.emit import F32, V, vec
from ..codegen.write.spec import Spec
from ..codegen.write.template import template
from ..records import dataclass

CHAINS = 12
"""Independent multiply-adds in flight: more than any processor's latency times its ports."""

STREAM = 128 << 20
"""Bytes that are read to measure memory bandwidth: more than the caches of a core hold. Where cores share a
larger one, it is that one's."""

_DAY = 86400
_ROUNDS = 20000
_SECONDS = 0.03
_CHUNK = 1 << 18
_AHEAD = 1024
"""Elements by which memory is asked for ahead."""
_TILE_WORK = 4 * 2 * 16 * 16 * 32
"""Operations of four products of tiles."""


@dataclass(frozen=True)
class Peak:
    """`flops`: float32 operations per second by multiply-adds in vector registers. `bandwidth`: bytes per
    second read from memory. `threads`: that took part. `matrix`: float32 operations per second by a matrix
    unit that multiplies halves of bfloat16, three products for one; None where there is none. `alone`: False
    where something else took the processor while this was measured, which makes it too low."""

    flops: float
    bandwidth: float
    threads: int
    matrix: float | None = None
    alone: bool = True

    def share(self, flop: int, size: int, seconds: float) -> float | None:
        """The part of this peak that so many operations and bytes in so many seconds are: of the rate they
        are limited by. None where there is nothing to be done, or no time was taken."""
        if seconds <= 0 or not (flop or size):
            return None
        return max(flop / self.flops, size / self.bandwidth) / seconds

    def bound(self, flop: int, size: int) -> str:
        """"compute" where the operations take longer at peak than the bytes, else "memory"."""
        return "compute" if flop / self.flops > size / self.bandwidth else "memory"


@functools.cache
def peak_of(threads: int = 0) -> Peak:
    """The peak of `threads` threads, 0 for as many as the machine has. Takes about 0.2 s the first time.
    Where no code can be generated for this machine, numpy's product and sum are the measure."""
    machine = host()
    if machine is None or library.available() is not None:
        return _of_numpy(threads)
    count = min(threads or pool().capacity, pool().capacity)
    name = cache.name(f"peak of {count} threads of {_processor()}", machine, __file__)
    if name is not None and (kept := _kept(cache.load([name]).get(name))) is not None:
        return Peak(kept[0], kept[1], count, kept[2] or None)
    loop, work = multiply_add_loop(machine, 4 * count, count)
    loop()
    began, spent = time.perf_counter(), time.process_time()
    flops = work / _fastest(loop)
    alone = time.process_time() - spent > 0.9 * count * (time.perf_counter() - began)
    unit = _matrix(machine, count) if amx.usable(machine) else 0.0
    found = Peak(flops, _bandwidth(machine, count), count, unit or None, alone)
    if name is not None and alone:
        cache.store({name: struct.pack("<4d", time.time(), found.flops, found.bandwidth, unit)})
    return found


def _of_numpy(threads: int) -> Peak:
    square, data = np.ones((512, 512), np.float32), np.ones(STREAM // 4, np.float32)
    flops = 2 * 512 ** 3 / _fastest(lambda: square @ square)
    return Peak(flops, STREAM / _fastest(data.sum), threads or os.cpu_count() or 1)


def _kept(data: bytes | None) -> tuple[float, float, float] | None:
    if data is None or len(data) != 32:
        return None
    when, flops, bandwidth, matrix = struct.unpack("<4d", data)
    young = 0 <= time.time() - when < _DAY
    return (flops, bandwidth, matrix) if young and flops > 0 and bandwidth > 0 else None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return " ".join(sorted({line.split(":", 1)[1].strip() for line in lines
                                    if line.startswith(("model name", "stepping", "microcode", "CPU part"))}))
    except OSError:
        return ""


@template("rounds:i64 at:ptr")
def multiply_adds(f: Body, rounds: V, at: V) -> None:
    """Independent chains of multiply-adds, `rounds` long, for each item; nothing but registers is touched in
    them."""
    lanes = f.machine.lanes()

    def item(i: V) -> None:
        x = f.splat(f.load(F32, at), lanes)
        sums = f.loop(0, rounds, 1, [f.zero(vec(F32, lanes))] * CHAINS,
                      lambda _, *s: [f.fma(y, x, x) for y in s])
        for y in sums:
            f.store(y, at, (i + 1) * lanes)
    f.loop(f.lo, f.hi, 1, [], item)


@template("rounds:i64 at:ptr config:ptr")
def tile_products(f: Body, rounds: V, at: V, config: V) -> None:
    """Four independent chains of tile products of bfloat16 for each item."""
    for name, types in (("ldtilecfg", "ptr"), ("tilezero", "i8 immarg"), ("tilerelease", ""),
                        ("tdpbf16ps", "i8 immarg, i8 immarg, i8 immarg")):
        f.module.declared["x86." + name] = f"declare void @llvm.x86.{name}({types})"
    f.line(f"call void @llvm.x86.ldtilecfg({config})")

    def item(i: V) -> None:
        for t in range(8):
            f.line(f"call void @llvm.x86.tilezero(i8 {t})")

        def turn(_: V) -> None:
            for t in range(4):
                f.line(f"call void @llvm.x86.tdpbf16ps(i8 {t}, i8 {4 + t // 2}, i8 {6 + t % 2})")
        f.loop(0, rounds, 1, [], turn)
    f.loop(f.lo, f.hi, 1, [], item)
    f.line("call void @llvm.x86.tilerelease()")


@template("x:ptr at:ptr n:i64")
def read(f: Body, x: V, at: V, n: V) -> None:
    """An item is `n` float32 of x, a multiple of eight vectors; they are added up."""
    lanes = f.machine.lanes()

    def item(i: V) -> None:
        start = f.gep(x, i * n, F32)

        def block(k: V, *sums: V) -> list[V]:
            for j in range(8):
                f.prefetch(f.gep(start, k + (_AHEAD + j * lanes), F32), 0, level=2)
            return [y + f.load(vec(F32, lanes), start, k + j * lanes) for j, y in enumerate(sums)]
        sums = f.loop(0, n, 8 * lanes, [f.zero(vec(F32, lanes))] * 8, block)
        total = sums[0]
        for y in sums[1:]:
            total = total + y
        f.store(total, at, i * lanes)
    f.loop(f.lo, f.hi, 1, [], item)


def call(machine: Machine, spec: Spec, args: list[Any], items: int, threads: int = 1) -> Callable[[], None]:
    """A function that does all items of a kernel on up to `threads` threads."""
    (address,) = library.addresses([spec], machine)
    cells = np.array([a.ctypes.data if isinstance(a, np.ndarray) else a for a in args], np.int64)
    table = np.array([[address, cells.ctypes.data, items, 1]], np.int64)
    assert table.shape[1] == STEP
    return entry.make(entry.block(table, threads=threads, keep=(cells, args)))


def multiply_add_loop(machine: Machine, items: int = 1, threads: int = 1) -> tuple[Callable[[], None], int]:
    """A function that does nothing but multiply-adds, and how many operations they are."""
    lanes = machine.lanes()
    at = aligned(((items + 1) * lanes,))
    at[...] = 0
    loop = call(machine, multiply_adds(), [_ROUNDS, at], items, threads)
    return loop, items * _ROUNDS * CHAINS * 2 * lanes


def _matrix(machine: Machine, threads: int) -> float:
    config = np.zeros(64, np.uint8)
    config[0] = 1
    config[16:32:2], config[48:56] = 64, 16
    at, items, rounds = aligned((16,)), 4 * threads, 4000
    loop = call(machine, tile_products(), [rounds, at, config], items, threads)
    return items * rounds * _TILE_WORK / 3 / _fastest(loop)


def _bandwidth(machine: Machine, threads: int) -> float:
    data = np.ones(STREAM // 4, np.float32)
    items = STREAM // _CHUNK
    at = aligned((items * machine.lanes(),))
    loop = call(machine, read(), [data, at, _CHUNK // 4], items, threads)
    return STREAM / _fastest(loop)


def _fastest(run: Callable[[], Any]) -> float:
    """Seconds of the fastest of at least three calls within `_SECONDS`."""
    run()
    best, until, turns = float("inf"), time.perf_counter() + _SECONDS, 0
    while turns < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        turns += 1
    return best
