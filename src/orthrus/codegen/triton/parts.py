"""Sums that several programs of one kernel share: the last of them to arrive adds them up.

In: what a program has summed of a cell, a tile of the result. Out: in that program's text, the sum of all
parts, in the order of the parts whichever program is last, so that the bits do not depend on it. Programs
count parts, and within one its cells; room for all sums and a count of arrivals, 0 before and after, for each
cell are arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from .write import Writer

_AHEAD = 8
"""Parts that are read before the first is added, at most."""

_REGISTERS = 64
"""What a thread holds of them, at most."""

_WRITTEN = "s_waitcnt vmcnt(0)\nv_mov_b32 $0, 0"
"""What a wave of AMD's data center GPUs waits by until all that it has written is there: barriers do not, and
what is released is but the writes of the wave that counts the arrival."""


class Parts:
    """The sums of a kernel, of type `dtype`. Declares their room where the sums are `cut`: else there is one
    program for each cell, and nothing to add up."""

    def __init__(self, k: Writer, dtype: str, cut: bool) -> None:
        self.k, self.dtype, self.cut = k, dtype, cut
        if cut:
            k.pointer("held", dtype)
            k.pointer("arrived", "int32")

    @contextlib.contextmanager
    def last(self, program: str, cells: str, values: Sequence[str], place: str, size: int
             ) -> Iterator[Sequence[str]]:
        """What is added inside is for the last program of each of `cells` alone, which gets the sums of
        `values`. `program`: its number; `place`: where an element of a value is among the `size` of them."""
        if not self.cut:
            yield values
            return
        k, each = self.k, len(values)
        ahead = max(1, min(_AHEAD, _REGISTERS * k.warps * k.target.warp // (size * each)))
        for i, value in enumerate(values):
            k.text(f"tl.store(held + ({program} * {each} + {i}) * {size} + {place}, {value})")
        cell = k.let(f"{program} % ({cells})", "cell")
        k.text(f"parts = tl.num_programs(0) // ({cells})")
        with last_of(k, cell, "parts"):
            sums = [k.let(f"tl.zeros_like({value})", "sum") for value in values]
            with k.block(f"for part in range(0, parts, {ahead}):"):
                reads = [[self._read(f"part + {a}" if a else "part", f"({cells}) + {cell}", f"* {each} + {i}",
                                     place, size)
                          for i in range(each)] for a in range(ahead)]
                for read in reads:
                    k.text("\n".join(f"{made} += {x}" for made, x in zip(sums, read, strict=True)))
            yield sums

    def _read(self, part: str, cell: str, which: str, place: str, size: int) -> str:
        """One of a part's sums, past the first-level cache; 0 where there is no such part."""
        return self.k.let(f"tl.load(held + ((({part}) * {cell}) {which}) * {size} + {place}, "
                          f"mask={place} < tl.where({part} < parts, {size}, 0), other=0, "
                          "cache_modifier='.cg')", "held")


@contextlib.contextmanager
def last_of(k: Writer, cell: str, count: str) -> Iterator[None]:
    """What is added inside is for the last of `count` programs of a cell alone, which sees what all of them
    have written before; `arrived` counts them, and is 0 again then."""
    if k.target.matrix == "mfma":
        k.text(f"tl.inline_asm_elementwise({_WRITTEN!r}, '=v,v,~{{memory}}', [{cell}], dtype=tl.int32, "
               "is_pure=False, pack=1)")
    k.text("tl.debug_barrier()")
    with k.block(f"if tl.atomic_add(arrived + {cell}, 1, sem='acq_rel') == {count} - 1:"):
        k.text(f"tl.store(arrived + {cell}, 0)")
        yield
