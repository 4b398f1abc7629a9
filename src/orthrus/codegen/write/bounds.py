"""Kernels that look where they read and write, for `ORTHRUS_CHECK=3`.

In: templates as they are. Out: kernels in which every load and store, masked, gathered or of the matrix unit,
is compared with the memory that its address comes from: the array behind an argument, the thread's scratch, a
table or an array of the kernel's own. One that would go elsewhere goes to memory nobody uses, and is noted.
Where an address is followed to several arrays, or to none, it may lie in any of those.

`notes` says where a kernel finds that memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from ...records import dataclass
from ..machines.machine import Machine
from .body import Body
from .emit import BYTES, I1, I8, I64, PTR, Function, Module, V, elem_of, size_of, vec
from .notes import ANY, ARGUMENT, NOTED, OWN, SCRATCH, edge
from .origin import Origin

_ASIDE = 1 << 14
"""Bytes of memory nobody uses: what the widest access takes."""


@dataclass(eq=False)
class Region:
    """Memory: `number` of an argument or one in its place; `at` and `size` of the kernel's own; `holds`: what
    addresses stored there lead into."""

    number: int
    at: str = ""
    size: int = 0
    holds: Origin = field(default_factory=Origin)


class Checked(Body):
    """The function a template writes, its accesses checked. Where an address leads is known when all of it is
    written; the text is completed then."""

    def __init__(self, module: Module, machine: Machine) -> None:
        self._regions: dict[int, Region] = {}
        self._later: dict[str, Callable[[], list[str]]] = {}
        self._edges: dict[Region, tuple[str, str]] = {}
        self._begin: list[str] = []
        super().__init__(module, machine)
        self.scratch.origin = Origin(self._region(SCRATCH))
        self._aside = self.fresh()
        self._begin.append(f"  {self._aside} = alloca i8, i64 {_ASIDE}, align 64")
        self._sink = self.fresh()
        self._begin.append(f"  {self._sink} = alloca i64, i64 {NOTED}, align 64")
        self._report = self._cell(-1, PTR)

    def _region(self, number: int) -> Region:
        return self._regions.setdefault(number, Region(number))

    def _cell(self, index: int, ty: str) -> str:
        """A cell in front of the arguments', read where the function begins."""
        at, ref = self.fresh(), self.fresh()
        self._begin += [f"  {at} = getelementptr i64, {self.args}, i64 {index}",
                        f"  {ref} = load {ty}, ptr {at}, align 8"]
        return ref

    def arg(self, index: int, ty: str) -> V:
        made = super().load(ty, self.gep(self.args, index, I64), 0, 8)
        if ty == PTR:
            made.origin = Origin(self._region(index))
        return made

    def alloca(self, ty: str, count: int = 1, align: int = 64) -> V:
        made = super().alloca(ty, count, align)
        made.origin = Origin(Region(OWN, made.ref, size_of(ty) * count))
        return made

    def table(self, ty: str, values: Sequence[Any]) -> V:
        made = super().table(ty, values)
        made.origin = Origin(Region(OWN, made.ref, BYTES[ty] * len(values)))
        return made

    # accesses

    def load(self, ty: str, base: V, index: int | V = 0, align: int = 0) -> V:
        at = self.gep(base, index, I8 if elem_of(ty) == I1 else elem_of(ty))
        made = super().load(ty, self._allowed(at, size_of(ty)), 0, align)
        if elem_of(ty) in (PTR, I64):
            held = [region.holds for region in at.origin.regions()] if at.origin is not None else []
            made.origin = Origin(others=held)
        return made

    def store(self, x: V, base: V, index: int | V = 0, align: int = 0) -> None:
        at = self.gep(base, index, I8 if x.elem == I1 else x.elem)
        if x.origin is not None and at.origin is not None:
            for region in at.origin.regions():
                region.holds.others.append(x.origin)
        super().store(x, self._allowed(at, size_of(x.ty)), 0, align)

    def load_masked(self, ty: str, base: V, index: int | V, mask: V | None, other: Any = 0) -> V:
        if mask is None:
            return self.load(ty, base, index)
        elem = elem_of(ty)
        at = self.gep(base, index, I8 if elem == I1 else elem)
        return super().load_masked(ty, self._allowed_lanes(at, mask, BYTES[elem]), 0, mask, other)

    def store_masked(self, x: V, base: V, index: int | V, mask: V | None) -> None:
        if mask is None:
            self.store(x, base, index)
            return
        at = self.gep(base, index, I8 if x.elem == I1 else x.elem)
        super().store_masked(x, self._allowed_lanes(at, mask, BYTES[x.elem]), 0, mask)

    def gathered(self, elem: str, at: V, mask: V) -> V:
        return super().gathered(elem, self._allowed_each(at, mask, BYTES[elem]), mask)

    def scattered(self, x: V, at: V, mask: V) -> None:
        super().scattered(x, self._allowed_each(at, mask, BYTES[x.elem]), mask)

    def load_tile(self, tile: int, at: V, stride: V, rows: int | V = 16) -> None:
        super().load_tile(tile, *self._allowed_rows(at, stride, rows), rows)

    def store_tile(self, tile: int, at: V, stride: V, rows: int | V = 16) -> None:
        super().store_tile(tile, *self._allowed_rows(at, stride, rows), rows)

    # what is written in front of them

    def _allowed(self, at: V, size: int) -> V:
        """`at`, or an address aside where `size` bytes from there are not all in its regions."""
        number = self.cast(at, I64)
        _, every = self._checked(at, number, number + size, size)
        return self.select(every, at, V(self, PTR, self._aside))

    def _allowed_lanes(self, at: V, mask: V, size: int) -> V:
        """The same for those elements of `size` bytes from `at` on that are in `mask`."""
        steps = self.const(vec(I64, mask.lanes), [size * i for i in range(mask.lanes)])
        numbers = self.splat(self.cast(at, I64), mask.lanes) + steps
        _, every = self._checked(at, numbers, numbers + size, size, mask)
        return self.select(every, at, V(self, PTR, self._aside))

    def _allowed_each(self, at: V, mask: V, size: int) -> V:
        """The same for the elements at the addresses `at`, each by itself."""
        numbers = self.cast(at, I64)
        good, _ = self._checked(at, numbers, numbers + size, size, mask)
        return self.select(good, at, self.splat(V(self, PTR, self._aside), at.lanes))

    def _allowed_rows(self, at: V, stride: V, rows: int | V) -> tuple[V, V]:
        """The same for rows of 64 bytes, and the stride to go with."""
        every = self.const(I1, True)
        for row in (at, self.gep(at, stride * (rows - 1), I8)):
            number = self.cast(row, I64)
            every = every & self._checked(row, number, number + 64, 64)[1]
        return self.select(every, at, V(self, PTR, self._aside)), self.select(every, stride, 64)

    def _checked(self, at: V, begin: V, end: V, size: int, mask: V | None = None) -> tuple[V, V]:
        """Which of the accesses from `begin` to `end` are within what `at` leads into, and whether all are.
        Compared once it is known where that is."""
        good, every = V(self, vec(I1, begin.lanes), self.fresh()), V(self, I1, self.fresh())
        self.lines.append(good.ref)
        self._later[good.ref] = lambda: self._compared(at.origin, begin, end, size, mask, good, every)
        return good, every

    def _compared(self, origin: Origin | None, begin: V, end: V, size: int, mask: V | None, good: V, every: V
                  ) -> list[str]:
        lanes = begin.lanes
        found = origin.regions() if origin is not None else []
        regions = found or list(self._regions.values())
        first = regions[0] if len(regions) == 1 else Region(ANY)
        out: list[str] = []

        def write(text: str) -> str:
            ref = self.fresh()
            out.append(f"  {ref} = {text}")
            return ref

        def spread(ref: str) -> str:
            if lanes == 1:
                return ref
            one = write(f"insertelement {begin.ty} poison, i64 {ref}, i64 0")
            return write(f"shufflevector {begin.ty} {one}, {begin.ty} poison, "
                         f"<{lanes} x i32> zeroinitializer")
        inside = ""
        bit = vec(I1, lanes)
        for region in regions:
            low, high = map(spread, self._edge(region))
            above = write(f"icmp uge {begin}, {low}")
            below = write(f"icmp ule {end}, {high}")
            here = write(f"and {bit} {above}, {below}")
            inside = write(f"or {bit} {inside}, {here}") if inside else here
        if mask is not None:
            off = write(f"xor {mask}, {'splat (i1 true)' if lanes > 1 else 'true'}")
            inside = write(f"or {bit} {inside}, {off}")
        out.append(f"  {good.ref} = or {bit} {inside}, {'zeroinitializer' if lanes > 1 else 'false'}")
        whole, where = good.ref, begin.ref
        if lanes > 1:
            whole = write(f"bitcast {good} to i{lanes}")
            where = write(f"extractelement {begin}, i64 0")
        out.append(f"  {every.ref} = icmp eq i{lanes} {whole}, -1")
        note = write(f"select {every}, ptr {self._sink}, ptr {self._report}")
        edges = self._edge(first) if len(regions) == 1 else ("0", "0")
        args = write(f"ptrtoint {self.args} to i64")
        for i, what in enumerate((str(first.number * ARGUMENT + size), where, *edges, args)):
            cell = write(f"getelementptr i64, ptr {note}, i64 {i}")
            out.append(f"  store i64 {what}, ptr {cell}, align 8")
        return out

    def _edge(self, region: Region) -> tuple[str, str]:
        """Where a region begins and ends, read where the function begins."""
        if region not in self._edges:
            if region.number == OWN:
                begin, end = self.fresh(), self.fresh()
                self.entry.append(f"  {begin} = ptrtoint ptr {region.at} to i64")
                self.entry.append(f"  {end} = add i64 {begin}, {region.size}")
            elif region.number == SCRATCH:
                begin, end, size = self.fresh(), self.fresh(), self._cell(-2, I64)
                self._begin.append(f"  {begin} = ptrtoint {self.scratch} to i64")
                self._begin.append(f"  {end} = add i64 {begin}, {size}")
            else:
                end = self._cell(edge(region.number) + 1, I64)
                begin = self._cell(edge(region.number), I64)
            self._edges[region] = begin, end
        return self._edges[region]

    def __str__(self) -> str:
        self.lines = [text for line in self.lines for text in (
            self._later[line]() if line in self._later else (line,))]
        own = [line for line in self.entry if " = alloca " in line]
        rest = [line for line in self.entry if " = alloca " not in line]
        self.entry = [*own, *self._begin, *rest]
        self._begin = []
        return Function.__str__(self)
