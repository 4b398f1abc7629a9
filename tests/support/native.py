"""Running one generated kernel by itself, and arrays that end where memory ends. Kernels for
other architectures run under emulation, see `board`."""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from collections import deque
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import board

from orthrus.codegen.machines.detect import host
from orthrus.codegen.machines.machine import Machine
from orthrus.codegen.object.build import assemble
from orthrus.codegen.object.link import link
from orthrus.codegen.runtime import call_kernel
from orthrus.codegen.write import notes
from orthrus.codegen.write.spec import Spec

_libc = ctypes.CDLL(None)
_kept: list[Any] = []
_MOST = 2000
_blocks: deque[tuple[int, mmap.mmap]] = deque()
"""Guarded blocks that are kept, at most: each is three of the 65,000 mappings that a process may have."""


@functools.lru_cache(512)
def address(spec: Spec, machine: Machine | None = None) -> int:
    """Where the kernel of `spec` starts, compiled for `machine` (else this one)."""
    target = machine or notes.checking(host())
    (found,) = link([bytes(assemble(spec.text(target), target))])  # type: ignore[arg-type]
    _kept.append(found)
    return found["kernel"]


def cells(args: tuple[Any, ...]) -> np.ndarray:
    """Arguments as a kernel reads them: addresses of arrays, ints, floats in their low bytes (float32)."""
    out = np.zeros(len(args) + 1, np.int64)
    for i, x in enumerate(args):
        if isinstance(x, np.ndarray):
            out[i] = x.ctypes.data
        elif isinstance(x, float):
            out[i] = struct.unpack("<i", struct.pack("<f", x))[0]
        else:
            out[i] = int(x)
    return out


def run(spec: Spec, *args: Any, items: int, scratch: int = 0, machine: Machine | None = None,
        splits: tuple[int, ...] = ()) -> None:
    """Call a kernel on all its items, in one go or divided at `splits`."""
    edges = [0, *splits, items]
    target = board.chosen[-1] if board.chosen else machine
    here = host()
    if target is not None and (here is None or target.arch != here.arch):
        board.run(spec, [x for x in args if isinstance(x, np.ndarray)], cells(args), edges, scratch, target)
        return
    target = notes.checking(target or here)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 1, *[ctypes.c_int64] * 2, ctypes.c_void_p)(
        address(spec, target))
    note = np.zeros(notes.NOTED, np.int64)
    plain = [x if isinstance(x, np.ndarray) else y for x, y in zip(args, cells(args).tolist(), strict=False)]
    row, first = call_kernel.laid([*plain, 0], target, scratch, note)
    room = np.full(scratch + 64, 0xFF, np.uint8)
    at = room.ctypes.data + -room.ctypes.data % 64
    for lo, hi in zip(edges, edges[1:], strict=False):
        call(row.ctypes.data + 8 * first, lo, hi, at)
    notes.refuse(note, str(spec), None)


def guarded(array: np.ndarray, before: bool = False) -> np.ndarray:
    """A copy of `array` (C order) that ends right before a page nobody may touch, or starts right behind one.
    """
    page = mmap.PAGESIZE
    body = -(-max(array.nbytes, 1) // page) * page
    block = mmap.mmap(-1, body + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for at in (start, start + page + body):
        assert _libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), 0) == 0
    offset = page if before else page + body - array.nbytes
    made = np.frombuffer(block, array.dtype, array.size, offset).reshape(array.shape)
    made[...] = array
    board.guards[start + page] = start + offset, start + offset + array.nbytes
    _blocks.append((start + page, block))
    if len(_blocks) > _MOST:
        board.guards.pop(_blocks.popleft()[0], None)
    return made
