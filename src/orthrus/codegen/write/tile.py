"""Register tiles: a block of C = A·B held in vector registers while K runs, and storing it through a tree.

In: addresses and run-time strides (elements) of A, contiguous along K, and of B, contiguous along its
columns. Out: `rows * cols` vectors, row by row: acc[r * cols + c]. Blocking, packing and items are the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...records import dataclass
from ..machines.machine import Machine
from .body import Body
from .convert import widened
from .emit import BF16, F16, F32, I8, V, elem_of, lanes_of, size_of, vec
from .emit import BYTES as SIZES
from .expr import BYTES, LLVM, Expr, emit
from .rvv_intrinsics import multiply_halves

Prefetch = int | Callable[[V, int], None]
Masks = V | Sequence[V | None] | None

_UNROLL, _MANY = 4, 12
"""Steps of K that are written out, and the sums from which on one step keeps AVX-512 busy by itself: more
would only take longer to compile."""
_CHAINS = 8
_INLINE = 150
LONG_SUM = 256
"""Products that are summed one after another in float32, at most half as many again."""


def shapes(machine: Machine) -> dict[int, int]:
    """The tallest tile of each width in registers, `{cols: rows}`, in order of preference: its sums, a row of
    B and a spread element of A fit the registers; where instructions work on groups of them, they take the
    element of A as a number."""
    if machine.group > 1:
        return {cols: min(14, (machine.registers - cols) // cols) for cols in (4, 2, 1)}
    wide = (2, 3, 1, 4) if machine.vector > 16 else (3, 2, 1, 4)
    return {cols: min(14, (machine.registers - cols - 1) // cols) for cols in wide}


def total_of(dtype: str) -> str:
    """The type in which products of `dtype` are added (numpy's names): float32 for halves, else its own."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def joined(machine: Machine, cols: int, halves: bool = False, size: int = 4) -> tuple[int, int]:
    """How `cols` registers across a tile are written: lanes of a vector, and vectors. Where an instruction
    works on several, one vector; two for four registers, so that one half of a row of B is on its way while
    the other is used, which cores that work in order would wait for. `halves`: B is float16 and multiplied
    as it is, so that its next row has room beside this one; `size`: bytes of a sum."""
    wide = 1 if machine.group % cols else cols if halves else min(cols, 2)
    return machine.lanes(size) * wide, cols // wide


def widens(machine: Machine, a_type: str, b_type: str) -> bool:
    """Whether one instruction multiplies elements of these types (numpy's names) and adds to float32."""
    return a_type == b_type == "float16" and machine.arch == "riscv64" and machine.has("zvfh")


def opaque(f: Body, x: V) -> V:
    """`x`, its origin hidden, so that addresses stay as they are written."""
    return f.emit(x.ty, f'call {x.ty} asm "", "=r,0"({x})', x)


class Rows:
    """Addresses of `count` rows that lie `stride` bytes apart, as few registers reach them.

    x86 adds an index times 1, 2, 4 or 8 to a base: 1, 3 and 5 strides reach 7 rows from one base, so two
    bases serve 14. A stride known now takes one base, any other machine one for each row.
    """

    def __init__(self, f: Body, start: V, stride: V | int, count: int) -> None:
        self.f, self.stride, self.count = f, stride, count
        self.known = isinstance(stride, int)
        if isinstance(stride, int):
            self.span = max(count, 1)
        elif f.machine.arch == "x86_64":
            self.span = 7
            odd = [n for n in (1, 3, 5) if count > n]
            self.index = {n: opaque(f, stride * n) for n in odd}
        else:
            self.span = 1
        f.module.arranged = True
        self.bases = [f.gep(start, self._times(g), I8) for g in range(0, count, self.span)]

    def _times(self, r: int) -> V | int:
        return self.stride * r if r else 0

    def at(self, bases: Sequence[V], r: int, offset: int) -> V:
        """The address `offset` bytes into row `r`, with the bases where they are now."""
        base, r = bases[r // self.span], r % self.span
        if isinstance(self.stride, int):
            return self.f.gep(base, self.stride * r + offset, I8)
        if r:
            odd, shift = r, 0
            while odd % 2 == 0:
                odd, shift = odd // 2, shift + 1
            base = self.f.gep(base, self.index[odd] << shift if shift else self.index[odd], I8)
        return self.f.gep(base, offset, I8)


def tile(f: Body, rows: int, cols: int, a: V, a_row: V | int, b: V, b_step: V | int, k: V | int,
         acc: Sequence[V], *, prefetch: Prefetch = 0, stream: V | None = None, lines: int = 1,
         mask: Masks = None, a_type: str = F32, b_type: str = F32) -> list[V]:
    """acc[r * cols + c] += sum over kk of a[r * a_row + kk] * b[kk * b_step + c * lanes], in order of kk;
    tiles of few vectors keep several sums and add them at the end.

    `prefetch`: how many steps of K ahead B is fetched, or what to write per step, called with the address
    of B's row and the step's place among the unrolled ones. `stream`: memory to bring into the second cache
    meanwhile, `lines` of 64 bytes every four steps. `mask`: the lanes of the last column vector that exist,
    or one mask per vector; other lanes are not read and count as 0. `a_type`, `b_type`: how A and B are
    stored, LLVM's names.
    """
    apart = acc[0].lanes == f.machine.lanes(SIZES[acc[0].elem])
    if apart and cols > 1 and f.machine.group % cols == 0 and not any(mask_list(mask, cols)):
        beside = [_beside(f, acc[r * cols:r * cols + cols]) for r in range(rows)]
        made = tile(f, rows, 1, a, a_row, b, b_step, k, beside, prefetch=prefetch, stream=stream, lines=lines,
                    a_type=a_type, b_type=b_type)
        return [part for x in made for part in _apart(f, x, cols)]
    lanes, size = acc[0].lanes, rows * cols
    a_size, b_size = SIZES[a_type], SIZES[b_type]
    masks = mask_list(mask, cols)
    busy = size >= _MANY and f.machine.vector == 64 and f.machine.arch == "x86_64"
    unroll = 1 if busy else _UNROLL
    sets = max(1, min(unroll, _CHAINS // size))
    step = b_step * b_size
    a_rows, b_rows = Rows(f, a, a_row * a_size, rows), Rows(f, b, step, unroll)
    streams = [] if stream is None else [stream]
    n_a, n_p = len(a_rows.bases), len(a_rows.bases) + len(b_rows.bases)
    n_s = n_p + len(streams)
    reach = 64 * lines * unroll // _UNROLL
    places = range(0, reach, 64)
    whole = k // unroll * unroll if isinstance(k, int) else k & -unroll
    ahead: V | int = 0
    if isinstance(prefetch, int) and prefetch:
        ahead = step * prefetch if isinstance(step, int) else opaque(f, step * prefetch)

    grouped = f.machine.group > 1
    early = a_type == b_type == F16 and widens(f.machine, "float16", "float16")

    def column(b_at: Sequence[V], u: int, c: int) -> V:
        """A vector of the row of B of a step."""
        place = b_rows.at(b_at, u, c * lanes * b_size)
        return as_float(f, f.load_masked(vec(b_type, lanes), place, 0, masks[c]))

    def spread(x: V) -> V:
        return as_float(f, f.splat(x, lanes)) if a_type == b_type else f.splat(as_float(f, x), lanes)

    def one(a_at: Sequence[V], b_at: Sequence[V], u: int, sums: list[V], columns: Sequence[V], more: bool
            ) -> list[V]:
        """Add the products of a step; gives the row of B of the next one, where there is one."""
        if callable(prefetch):
            prefetch(b_rows.at(b_at, u, 0), u)
        elif prefetch:
            place = f.gep(b_rows.at(b_at, u, 0), ahead, I8)
            for line in range(0, cols * lanes * b_size, 64):
                f.prefetch(place, line)
        first = u % sets * size
        following = [column(b_at, u + 1, c) for c in range(cols)] if more and early else []
        if grouped:
            numbers = [f.load(a_type, a_rows.at(a_at, r, u * a_size)) for r in range(rows)]
            for c in range(cols):
                for i, x in zip(range(first + c, first + size, cols), numbers, strict=True):
                    sums[i] = f.fma(spread(x), columns[c], sums[i])
                if more and not early:
                    following.append(column(b_at, u + 1, c))
            return following
        for r in range(rows):
            x = spread(f.load(a_type, a_rows.at(a_at, r, u * a_size)))
            for c in range(cols):
                i = first + r * cols + c
                sums[i] = f.fma(x, columns[c], sums[i])
        f.fence()
        return [column(b_at, u + 1, c) for c in range(cols)] if more else []

    def steps(count: int) -> Callable[..., list[V]]:
        def body(_: V, *state: V) -> list[V]:
            at = [opaque(f, p) for p in state[:n_s]]
            sums = list(state[n_s:])
            columns = [column(at[n_a:n_p], 0, c) for c in range(cols)]
            for u in range(count):
                if stream is not None and count == unroll:
                    for place in places[u * len(places) // unroll:(u + 1) * len(places) // unroll]:
                        f.prefetch(at[-1], place, level=2)
                columns = one(at[:n_a], at[n_a:n_p], u, sums, columns, u + 1 < count)
            return [*(f.gep(p, count * a_size, I8) for p in at[:n_a]),
                    *(f.gep(p, step * count, I8) for p in at[n_a:n_p]),
                    *(f.gep(p, reach, I8) for p in at[n_p:]), *sums]
        return body

    state = [*a_rows.bases, *b_rows.bases, *streams, *acc, *[f.zero(acc[0].ty)] * (size * (sets - 1))]
    if not isinstance(k, int) or k >= unroll:
        state = f.loop(0, whole, unroll, state, steps(unroll))
    if unroll > 1 and (not isinstance(k, int) or k % unroll):
        state = f.loop(whole, k, 1, state, steps(1))
    sums = state[n_s:]
    for i in range(size, size * sets):
        sums[i % size] = sums[i % size] + sums[i]
    return sums[:size]


def long_tile(f: Body, rows: int, cols: int, a: V, a_row: V | int, b: V, b_step: V | int, k: V, ty: str,
              room: V, *, stream: V | None = None, lines: int = 1, a_type: str = F32, b_type: str = F32,
              **how: Any) -> list[V]:
    """As `tile`, from zeros of type `ty` on, but sums of float32 that are long are those of parts, which wait
    in `room`, so that errors stay as small as those of short ones."""
    start, size, lanes = [f.zero(ty)] * (rows * cols), size_of(ty), lanes_of(ty)
    how |= {"lines": lines, "a_type": a_type, "b_type": b_type}
    if elem_of(ty) != F32:
        return tile(f, rows, cols, a, a_row, b, b_step, k, start, stream=stream, **how)
    first = f.select(k > LONG_SUM * 3 // 2, LONG_SUM, k)
    acc = tile(f, rows, cols, a, a_row, b, b_step, first, start, stream=stream, **how)

    def further() -> list[V]:
        for i, x in enumerate(acc):
            f.store(x, room, i * lanes, size)

        def part(k0: V) -> None:
            behind = None if stream is None else f.gep(stream, (k0 >> 2) * (64 * lines), I8)
            more = tile(f, rows, cols, f.gep(a, k0, a_type), a_row, f.gep(b, k0 * b_step, b_type), b_step,
                        f.fast_min(k - k0, LONG_SUM), start, stream=behind, **how)
            for i, x in enumerate(more):
                f.store(f.load(ty, room, i * lanes, size) + x, room, i * lanes, size)
        f.loop(first, k, LONG_SUM, [], part)
        return [f.load(ty, room, i * lanes, size) for i in range(rows * cols)]
    return f.when(first < k, further, lambda: acc)


def _beside(f: Body, vectors: Sequence[V]) -> V:
    """One vector of the lanes of two or four."""
    if len(vectors) == 1:
        return vectors[0]
    if all(x.ref == "zeroinitializer" for x in vectors):
        return f.zero(vec(vectors[0].elem, sum(x.lanes for x in vectors)))
    half = len(vectors) // 2
    a, b = _beside(f, vectors[:half]), _beside(f, vectors[half:])
    return f.shuffle(a, b, range(2 * a.lanes))


def _apart(f: Body, x: V, count: int) -> list[V]:
    """The lanes of `x` as `count` vectors."""
    lanes = x.lanes // count
    return [f.shuffle(x, None, range(i * lanes, (i + 1) * lanes)) for i in range(count)]


def mask_list(mask: Masks, cols: int) -> list[V | None]:
    """One mask per column vector: None where all lanes exist."""
    if isinstance(mask, Sequence):
        return list(mask)
    return [None] * (cols - 1) + [mask]


def as_float(f: Body, x: V) -> V:
    """A half as the float it is computed with; other types are computed with as they are."""
    return widened(f, x) if x.elem in (F16, BF16) else x


def added(f: Body, total: V, a: V, b: V) -> V:
    """total + a b, of halves in float32."""
    if a.elem == b.elem == F16 and widens(f.machine, "float16", "float16"):
        return multiply_halves(f, total, a, b)
    return f.fma(as_float(f, a), as_float(f, b), total)


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an epilogue: its type (numpy's name), whether it differs from row to row, and whether
    from column to column, its elements being adjacent."""

    dtype: str
    row: bool = True
    col: bool = True


@dataclass(frozen=True, slots=True)
class Corner:
    """Where a tile's first element of something lies, and how many elements its rows are apart."""

    at: V
    stride: V | int = 0


class TileEpilogue:
    """Stores sums of type `total` through `tree`: leaf 0 is the sum, leaf i operand i - 1; as they are
    without."""

    def __init__(self, f: Body, tree: Expr | None, operands: Sequence[Operand], total: str = "float32"
                 ) -> None:
        self.f, self.tree, self.operands = f, tree, tuple(operands)
        self.dtype = tree.dtype if tree is not None else total
        self.size = 0 if tree is None else tree.instructions

    def store(self, acc: Sequence[V], cols: int, out: Corner, places: Sequence[Corner], mask: Masks = None,
              room: V | None = None) -> None:
        """Store a tile. With `room` (memory for the tile, aligned to vectors), a large tree is written once,
        in a loop over rows, instead of once per vector."""
        f, rows = self.f, len(acc) // cols
        if room is not None and self.size * len(acc) > _INLINE:
            for i, x in enumerate(acc):
                f.store(x, room, i * x.lanes, x.lanes * SIZES[x.elem])
            self.store_from(room, acc[0].ty, rows, cols, out, places, mask)
            return
        masks, lanes = mask_list(mask, cols), acc[0].lanes
        fixed = self._fixed(places, cols, lanes, masks)
        at, ats = out.at, [p.at for p in places]
        for r in range(rows):
            if r:
                at, ats = self._next(at, ats, out, places)
            self._row(acc[r * cols:r * cols + cols], at, ats, fixed, masks)

    def store_from(self, sums: V, ty: str, rows: V | int, cols: int, out: Corner, places: Sequence[Corner],
                   mask: Masks = None) -> None:
        """Store `rows` rows of `cols` vectors of type `ty` each, found at `sums` one after another."""
        f, masks, lanes = self.f, mask_list(mask, cols), int(ty[1:ty.index(" ")])
        size = lanes * SIZES[ty[:-1].split(" x ")[1]]
        fixed = self._fixed(places, cols, lanes, masks)

        def row(_: V, at: V, *ats: V) -> list[V]:
            self._row([f.load(ty, f.gep(at, c * size, I8), 0, size) for c in range(cols)], ats[0], ats[1:],
                      fixed, masks)
            after, afters = self._next(ats[0], ats[1:], out, places)
            return [f.gep(at, cols * size, I8), after, *afters]
        f.loop(0, rows, 1, [sums, out.at, *(p.at for p in places)], row)

    def _next(self, at: V, ats: Sequence[V], out: Corner, places: Sequence[Corner]) -> tuple[V, list[V]]:
        f = self.f
        return f.gep(at, out.stride * BYTES[self.dtype], I8), [
            f.gep(p, place.stride * BYTES[o.dtype], I8) if o.row else p
            for p, place, o in zip(ats, places, self.operands, strict=True)]

    def _fixed(self, places: Sequence[Corner], cols: int, lanes: int,
               masks: Sequence[V | None]) -> list[list[V] | None]:
        """The vectors of operands that are the same in every row."""
        return [None if o.row else self._read(o, p.at, cols, lanes, masks)
                for o, p in zip(self.operands, places, strict=True)]

    def _read(self, o: Operand, at: V, cols: int, lanes: int, masks: Sequence[V | None]) -> list[V]:
        f, elem, size = self.f, LLVM[o.dtype], BYTES[o.dtype]
        if not o.col:
            return [f.splat(f.load(elem, at), lanes)] * cols
        return [f.load_masked(vec(elem, lanes), f.gep(at, c * lanes * size, I8), 0, masks[c])
                for c in range(cols)]

    def _row(self, sums: Sequence[V], at: V, ats: Sequence[V], fixed: Sequence[list[V] | None],
             masks: Sequence[V | None]) -> None:
        f, cols, lanes = self.f, len(sums), sums[0].lanes
        given = [known or self._read(o, p, cols, lanes, masks)
                 for known, o, p in zip(fixed, self.operands, ats, strict=True)]
        for c, x in enumerate(sums):
            y = x if self.tree is None else emit(f, self.tree, [x, *(g[c] for g in given)])
            place, mask = f.gep(at, c * lanes * BYTES[self.dtype], I8), masks[c]
            f.store_masked(y, place, 0, mask)
