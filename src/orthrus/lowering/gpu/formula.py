"""Plans of a GPU for shapes that nobody lowered.

In: one lowering, with `SymInt`s in the place of the dimensions that the part's inputs leave open. Out: a
formula, which computes the plan of any shapes that its lowering would have treated alike: kernels that were
compiled already, with other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.triton import compile as compiling
from ...ir import Value
from ...kernels import Device, Memory
from ...limits import current
from ...memory import LINE
from ...shapes.symbolic import Key, Sizes, SymInt, filled
from ..formula import Formula, Numbers, Open, Table
from ..memory import Lives, appends
from ..tensor import Tensor
from .lower import GpuLowering
from .merging import merged, single
from .plan import FORMATS, Constants, GpuPlan, Launch, hints, room


class OpenGpu(Open, GpuLowering):
    """A lowering for GPUs some of whose dimensions are `SymInt`s."""


class FormedPlan(GpuPlan):
    """A plan that a formula computed: it runs, and knows of no steps. `tables`: memory that kernels read."""

    tables: Memory | None = None

    def __init__(self, formula: GpuFormula, outputs: list[tuple[tuple[int, ...], np.dtype[Any]]],
                 size: int, status: int, launches: list[Launch | None]) -> None:
        self.described([], formula.codes, formula.inputs, outputs, size, status, formula.device)
        self.appends = formula.appends
        self.launches = launches
        self.parts = [(None, [launch for launch in launches if launch is not None])]


class GpuFormula(Formula):
    """What computes a part's plans on `device`. `constants`: the part's. Raises what compiling raises, and
    LookupError where a plan needs more than other numbers."""

    def __init__(self, made: OpenGpu, sizes: Sizes, dims: Sequence[Sequence[int]], outputs: Sequence[Value],
                 device: Device, constants: Constants) -> None:
        self.sizes, self.dims = sizes, [tuple(each) for each in dims]
        self.device, self.inputs, report = device, len(dims), made.status.buffer
        self.held = Constants(device)
        shared = {id(t.buffer) for t in made.constants.values()}
        steps = merged(made.steps, made.target, report)
        reports = any(t.buffer is report for s in steps for t in s.outs)
        self.lives = Lives.of(steps, [report] if reports else [])
        buffers = {id(b): i for i, b in enumerate(self.lives.buffers)}
        self.status = buffers[id(report)] if reports else -1
        for buffer in self.lives.buffers:
            buffer.offset = 0
        self.appends = appends(single(steps))
        about = [(s.spec, made.target, hints(s, made.target)) for s in steps]
        self.codes = compiling.codes(about)
        self.functions = [(device.function(c.data, c.name, c.shared), c.threads, c.shared)
                          for c in self.codes]
        data, arena, arrays, self.spans = bytearray(), list[Any](), list[Any](), list[tuple[int, int]]()
        tables: dict[int, tuple[Table, list[int], list[Any]]] = {}
        wide, narrow = list[tuple[int, Any]](), list[tuple[int, Any]]()
        for step, code in zip(steps, self.codes, strict=True):
            offsets, size = code.layout
            begin, piece = len(data), bytearray(room(size))
            self.spans.append((begin, begin + size))
            for kind, offset, given in zip(code.kinds, offsets, step.args, strict=False):
                value, at = given, begin + offset
                if isinstance(given, Tensor):
                    value, buffer, after = 0, given.buffer, given.byte_offset
                    if buffer.kind == "arena":
                        arena += [at // 8, buffers[id(buffer)], after]
                    elif buffer.kind in ("input", "output"):
                        arrays += [at // 8, after, buffer.index + self.inputs * (buffer.kind == "output")]
                    elif buffer.kind == "table":
                        _, places, offsets_in = tables.setdefault(id(buffer), (buffer.table, [], []))
                        places.append(at // 8)
                        offsets_in.append(after)
                    elif not isinstance(after, SymInt):
                        own = constants if id(buffer) in shared else self.held
                        value = own.address(buffer) + after
                    else:
                        raise LookupError("where a constant is read depends on the shapes")
                elif isinstance(given, SymInt):
                    value = 0
                    if kind == compiling.INT32:
                        narrow.append((at // 4, given))
                    else:
                        wide.append((at // 8, given))
                form = np.dtype(FORMATS[kind])
                piece[offset:offset + form.itemsize] = np.array([value], form).tobytes()
            data += piece
        rows: dict[Key, int] = {}
        self.packed = np.frombuffer(bytes(data), np.uint8)
        self.wide, self.narrow = (
            (np.array([at for at, _ in each], np.int64), Numbers([x for _, x in each], rows))
            for each in (wide, narrow))
        self.arena, self.arrays = (Numbers(each, rows, (-1, 3)) for each in (arena, arrays))
        self.blocks = Numbers([s.items for s in steps], rows)
        self._finish(made, outputs, tables.values(), rows)

    def plan(self, shapes: Sequence[Sequence[int]]) -> GpuPlan | None:  # type: ignore[override]
        """The plan for inputs of these shapes; None where their lowering would go another way, or what it
        makes is over the limits."""
        dimensions = self._dimensions(shapes)
        atoms = self.sizes.at(dimensions) if dimensions is not None else None
        found = self.numbers.at(atoms) if atoms is not None else None
        if atoms is None or found is None:
            return None
        outputs, sizes = self._outputs(found), self.bytes.of(found)
        if self._largest(sizes, outputs) > current().max_tensor_bytes:
            return None
        packed = self.packed.copy()
        for (at, numbers), dtype in ((self.wide, np.int64), (self.narrow, np.int32)):
            packed.view(dtype)[at] = numbers.of(found)
        offsets, size = self._laid(sizes)
        launches: list[Launch | None] = [
            Launch(function, blocks, threads, shared, *span)
            for (function, threads, shared), blocks, span in zip(
                self.functions, self.blocks.of(found).tolist(), self.spans, strict=True)]
        made = FormedPlan(self, outputs, size, -1 if self.status < 0 else int(offsets[self.status]), launches)
        cell, buffer, after = self.arena.of(found).T
        made.packed, made.arrays = packed, self.arrays.of(found)
        made.arena = np.stack([cell, offsets[buffer] + after], 1)
        if self.tables:
            made.tables = self._tables(packed.view(np.int64), found, atoms.tolist())
        return made

    def _tables(self, cells: np.ndarray, found: np.ndarray, atoms: list[int]) -> Memory:
        """What holds the tables of a plan, whose addresses are put into `cells`."""
        arrays = [np.ascontiguousarray(make(*filled(given, atoms))) for make, given, _, _ in self.tables]
        begins = np.cumsum([0, *(-(-a.nbytes // LINE) * LINE for a in arrays)])
        whole = np.zeros(max(1, int(begins[-1])), np.uint8)
        for begin, array in zip(begins, arrays, strict=False):
            whole[begin:begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        memory = Memory(self.device, len(whole))
        self.device.copy_in(whole, memory.handle)
        self.device.synchronize(self.device.stream)
        for begin, (_, _, places, after) in zip(begins, self.tables, strict=False):
            cells[places] = int(memory.handle) + begin + after.of(found)
        return memory
