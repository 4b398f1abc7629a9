"""Elementwise loops: a tree over strided operands, stored into a strided result.

`nest` brings shapes and strides into the form the kernel takes: dimensions of one element dropped, neighbours
that lie as one joined, the innermost in vectors. In memory order of the result: `outer` dimensions, of which
an item is one position; a `middle` one looped over inside an item; the inner one, which where it is long is
`cut` into blocks, one an item. Rows of at most `SHORT_ROW` elements have a kernel of their own, that puts
several into a vector, as have longer ones without gaps where operands are spread; copies of short rows that
do not lie together go from row to row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod

from ...records import dataclass
from ...shapes.symbolic import memo
from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import BYTES as SIZES
from ..write.emit import I64, PTR, V, vec
from ..write.expr import BYTES, LLVM, Expr, emit
from ..write.spec import Spec
from ..write.template import template
from .rows import merged, positions

CONTIGUOUS, SPREAD, STRIDED = 1, 0, 2
"""How an array goes along the inner dimension: element by element, not at all, or in steps."""

BLOCK = 4096
"""Elements of an item: those of a block of the inner dimension, and at most so many with a middle one."""

ENOUGH = 1 << 14
"""Operations below which work is not divided."""

SHORT_ROW, REPEATED, ROWS = 4, 16, 1024
"""Elements of a row up to which a vector holds several, of one beside operands that are spread along rows or
are the same for all of them, and rows of an item then."""

_LYING = frozenset({"row", "each", "cycle", "one"})
"""How operands of rows lie that are longer than `SHORT_ROW`."""
_LONGEST = 48
"""Operations that the kernel of short rows may write out."""


@dataclass(frozen=True)
class Nest:
    """Sizes and, per array (the result first), strides of each dimension, outermost first."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def kinds(self) -> tuple[int, ...]:
        if not self.sizes:
            return (CONTIGUOUS, *(SPREAD for _ in self.strides[1:]))
        return tuple(s[-1] if s[-1] in (0, 1) else STRIDED for s in self.strides)


def nest(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Nest:
    """The loops over `shape` for arrays with these strides, the result's first."""
    return _nested(tuple(shape), tuple(map(tuple, strides)))


@memo()
def _nested(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> Nest:
    axes = sorted((a for a, d in enumerate(shape) if d != 1), key=lambda a: (-strides[0][a], a))
    dims = merged(shape, axes, strides)
    return Nest(tuple(d for d, _ in dims), tuple(tuple(s[i] for _, s in dims) for i in range(len(strides))))


def elementwise(made: Nest, tree: Expr, dtypes: Sequence[str]) -> tuple[Spec, Sequence[int], int, int]:
    """The kernel for a nest: its spec, the cells behind the arrays' addresses, its items and their grain.
    `dtypes`: the operands'; the result's is the tree's."""
    cost = 1 + tree.size() // 2
    ways = _ways(made, tree)
    if ways is not None:
        return _short_rows(made, tree, dtypes, ways, cost)
    if tree.op == "leaf" and len(made.sizes) > 1 and made.sizes[-1] <= SHORT_ROW < made.sizes[-2] and any(
            steps[-1] != 1 for steps in made.strides):
        made = Nest(_outermost(made.sizes), tuple(map(_outermost, made.strides)))
    sizes = made.sizes
    inner = sizes[-1] if sizes else 1
    middle = len(sizes) > 2 and sizes[-2] * inner <= BLOCK
    outer = max(len(sizes) - 1 - middle, 0)
    cells = [inner, *sizes[:-1]]
    for steps in made.strides:
        cells.extend(steps[:-1])
    cells.extend(steps[-1] for steps, kind in zip(made.strides, made.kinds, strict=True) if kind == STRIDED)
    cut = not outer or inner > BLOCK
    items = prod(sizes[:outer]) * (-(-inner // BLOCK) if cut else 1)
    each = min(inner, BLOCK) if cut else prod(sizes[outer:])
    spec = loop(tree=tree, dtypes=tuple(dtypes), kinds=made.kinds, outer=outer, middle=middle, cut=cut)
    return spec, cells, items, max(1, ENOUGH // max(1, each * cost))


def _outermost(along: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes or strides of dimensions, the innermost moved outermost."""
    return (along[-1], *along[:-1])


def _ways(made: Nest, tree: Expr) -> tuple[str, ...] | None:
    """How each array of a nest of short rows lies along rows and their elements, the result first; None where
    the rows are not short or an array lies otherwise.

    `row`: without gaps; `back`: so, each row from its last element to its first; `pitch`: rows apart;
    `plane`: rows next to each other for each element; `each`: one element a row; `cycle`: every row the same;
    `one`: one element in all."""
    if len(made.sizes) < 2 or not 1 < made.sizes[-1] <= REPEATED or made.sizes[-1] * tree.size() > _LONGEST:
        return None
    few, found = made.sizes[-1], []
    for row, step in (s[-2:] for s in made.strides):
        if step == 1 and row == few:
            found.append("row")
        elif step == -1 and row == few:
            found.append("back")
        elif step == 1 and row == 0:
            found.append("cycle")
        elif step == 1 and few in (2, 4):
            found.append("pitch")
        elif step == 0:
            found.append({0: "one", 1: "each"}.get(row, ""))
        else:
            found.append("plane" if row == 1 else "")
    if few > SHORT_ROW and (found[0] != "row" or not _LYING.issuperset(found[1:])):
        return None
    return tuple(found) if all(found) and found[0] in ("row", "pitch") else None


def _short_rows(made: Nest, tree: Expr, dtypes: Sequence[str], ways: tuple[str, ...], cost: int
                ) -> tuple[Spec, list[int], int, int]:
    *outer, rows, few = made.sizes
    outer = outer or [1]
    cells = [rows, *outer[1:]]
    for steps in made.strides:
        cells.extend(steps[:-2] or [0])
    for (row, step), way in zip((s[-2:] for s in made.strides), ways, strict=True):
        cells.append(step if way == "plane" else row)
    spec = short_rows(tree=tree, dtypes=tuple(dtypes), ways=ways, few=few, outer=len(outer))
    return spec, cells, prod(outer) * -(-rows // ROWS), max(1, ENOUGH // max(1, min(rows, ROWS) * few * cost))


@template("out:ptr")
def loop(f: Body, out: V, *, tree: Expr, dtypes: tuple[str, ...], kinds: tuple[int, ...], outer: int,
         middle: bool, cut: bool) -> None:
    """Cells behind the result's address: the operands', the inner size, the outer and middle sizes, each
    array's strides over those, and the inner strides of those that are strided."""
    count = 1 + len(dtypes)
    elems = [LLVM[tree.dtype], *(LLVM[d] for d in dtypes)]
    bases = [out, *(f.arg(1 + i, PTR) for i in range(len(dtypes)))]
    dims = outer + middle
    at = count
    inner = f.arg(at, I64)
    sizes = [f.arg(at + 1 + d, I64) for d in range(dims)]
    at += 1 + dims
    strides = [[f.arg(at + i * dims + d, I64) for d in range(dims)] for i in range(count)]
    at += count * dims
    steps: list[V | None] = []
    for kind in kinds:
        steps.append(f.arg(at, I64) if kind == STRIDED else None)
        at += kind == STRIDED
    widest = max(SIZES[e] for e in elems)
    joined = 2 if f.machine.group > 1 and STRIDED not in kinds and widest <= 4 else 1
    lanes = joined * f.machine.lanes()
    unroll = 1 if STRIDED in kinds or tree.size() > 8 else 2 if widest > 4 or tree.size() > 3 else 4 // joined
    wide, own = lanes, f.machine.lanes(_widest(tree))
    if tree.op == "leaf" or joined == 1 and STRIDED not in kinds:
        wide = max(lanes, own)
    if own == lanes and tree.op != "leaf" and STRIDED not in kinds and _waits(f.machine):
        beside = _beside(tree)
        wide, unroll = beside * lanes, max(1, unroll // beside)

    def read(i: int, base: V, x: V, mask: V | None, last: V | None, lanes: int) -> V:
        elem, ty = elems[i], vec(elems[i], lanes)
        if kinds[i] == SPREAD:
            return f.splat(f.load(elem, base), lanes)
        if kinds[i] == CONTIGUOUS:
            return f.load_masked(ty, base, x, mask)
        value = f.undef(ty)
        for lane in range(lanes):
            index = x + lane if last is None else f.minimum(x + lane, last)
            value = f.insert(value, f.load(elem, base, index * steps[i]), lane)
        return value

    def copied(places: Sequence[V], x: V, count: V | int) -> None:
        """Elements copied one by one."""
        cell, ends = f"i{8 * SIZES[elems[0]]}", list[tuple[V, V]]()
        for place, step in zip(places, steps, strict=True):
            by = f.i64(1) if step is None else step
            ends.append((f.gep(place, x * by, cell), by))
        (to, wide), (source, far) = ends

        def each(lane: V | int) -> None:
            f.store(f.load(cell, source, far * lane), to, wide * lane)
        if isinstance(count, int):
            for lane in range(count):
                each(lane)
        else:
            f.loop(0, count, 1, [], each)

    def vector(places: Sequence[V], x: V, rest: V | None, lanes: int = lanes) -> None:
        if tree.op == "leaf" and kinds[-1] == STRIDED and (kinds[0] == STRIDED or widest == 1):
            copied(places, x, lanes if rest is None else rest)
            return
        mask = None if rest is None else f.mask(lanes, rest)
        last = None if rest is None else x + rest - 1
        value = emit(f, tree, [read(i, places[i], x, mask, last, lanes) for i in range(1, count)])
        if not dtypes:
            value = f.splat(value, lanes)
        if kinds[0] == CONTIGUOUS:
            f.store_masked(value, places[0], x, mask)
            return
        step = steps[0]
        assert step is not None
        to = f.gep(places[0], x * step, _cell(elems[0]))
        if rest is None:
            for lane in range(lanes):
                f.store(f.extract(value, lane), to, step * lane)
        else:
            f.loop(0, rest, 1, [], lambda lane: f.store(f.extract(value, lane), to, lane * step))

    def line(places: Sequence[V], begin: V | int, end: V) -> None:
        if tree.op == "leaf" and set(kinds) == {CONTIGUOUS}:
            to, source = (f.gep(place, begin, _cell(elems[0])) for place in places)
            f.copied(elems[0], source, to, end - begin, lambda: vectors(places, begin, end))
        else:
            vectors(places, begin, end)

    def vectors(places: Sequence[V], begin: V | int, end: V) -> None:
        if unroll * wide > lanes:
            (begin,) = f.loop(begin, end - (unroll * wide - 1), unroll * wide, [f.i64(begin)],
                              lambda x, _: many(places, x))
        (begin,) = f.loop(begin, end - (lanes - 1), lanes, [f.i64(begin)], lambda x, _: one(places, x))
        f.when(begin < end, lambda: vector(places, begin, end - begin))

    def many(places: Sequence[V], x: V) -> V:
        for u in range(unroll):
            vector(places, x + u * wide, None, wide)
        return x + unroll * wide

    def one(places: Sequence[V], x: V) -> V:
        vector(places, x, None)
        return x + lanes

    def item(_: V, at: Sequence[V]) -> None:
        places = list(bases)
        for d, i in enumerate(at[:outer]):
            places = [f.gep(p, i * s[d], _cell(e)) for p, s, e in zip(places, strides, elems, strict=True)]
        if cut:
            begin = at[-1] * BLOCK
            line(places, begin, f.minimum(begin + BLOCK, inner))
        elif middle:
            f.loop(0, sizes[outer], 1, places, row)
        else:
            line(places, 0, inner)

    def row(_: V, *places: V) -> list[V]:
        line(places, 0, inner)
        return [f.gep(p, s[outer], _cell(e)) for p, s, e in zip(places, strides, elems, strict=True)]
    blocks = [(inner + (BLOCK - 1)) // BLOCK] if cut and outer else []
    positions(f, [*sizes[1:outer], *blocks], item)


def _cell(elem: str) -> str:
    return "i8" if elem == "i1" else elem


@functools.lru_cache(1 << 12)
def _widest(tree: Expr) -> int:
    """Bytes of the widest type that the tree computes in."""
    return max([BYTES[tree.dtype], *map(_widest, tree.args)])


_CHAINS = ("exp", "exp_nonpositive", "exp2", "expm1", "log", "log2", "log1p", "sigmoid", "tanh", "erf")
"""Functions that are chains of operations and need few registers."""
_FEW = 12


@functools.lru_cache(1 << 12)
def _beside(tree: Expr) -> int:
    """How many vectors are computed side by side where that has to be: more of trees of few operations that
    wait long for each other."""
    def chains(it: Expr) -> bool:
        return it.op in _CHAINS or any(map(chains, it.args))
    return 4 if tree.size() <= _FEW and chains(tree) else 2


def side_by_side(machine: Machine, tree: Expr) -> bool:
    """Whether more than two vectors of a tree are computed side by side."""
    return _waits(machine) and _beside(tree) > 2


def _waits(machine: Machine) -> bool:
    """Whether vectors have to be computed side by side, so that no operation waits for the one before it:
    machines of few registers, whose compiler writes one vector after the other, look ahead by some 60."""
    return machine.arch == "x86_64" and machine.vector <= 32


@template("out:ptr")
def short_rows(f: Body, out: V, *, tree: Expr, dtypes: tuple[str, ...], ways: tuple[str, ...], few: int,
               outer: int) -> None:
    """Rows of `few` elements; as many rows as a vector has lanes are `few` vectors. Cells behind the result's
    address: the operands', the number of rows, the outer sizes but for the first, each array's strides over
    those, then of each its stride from row to row, or for a `plane` from element to element."""
    count = 1 + len(dtypes)
    names = [tree.dtype, *dtypes]
    elems = [LLVM[d] for d in names]
    bases = [out, *(f.arg(1 + i, PTR) for i in range(len(dtypes)))]
    rows = f.arg(count, I64)
    sizes = [f.arg(count + 1 + d, I64) for d in range(outer - 1)]
    at = count + outer
    strides = [[f.arg(at + i * outer + d, I64) for d in range(outer)] for i in range(count)]
    pitches = [f.arg(at + count * outer + i, I64) for i in range(count)]
    lanes = f.machine.lanes()
    every = [[divmod(j * lanes + lane, few) for lane in range(lanes)] for j in range(few)]

    def fixed(i: int, base: V) -> list[V] | None:
        """The vectors of an operand that are the same for all rows."""
        ty = vec(elems[i], lanes)
        if ways[i] == "one":
            return [f.splat(f.load(elems[i], base), lanes)] * few
        if ways[i] != "cycle":
            return None
        row = [f.undef(ty)] * -(-few // lanes)
        for c in range(few):
            row[c // lanes] = f.insert(row[c // lanes], f.load(elems[i], base, c), c % lanes)
        return [picked(f, row, [divmod(c, lanes) for _, c in places]) for places in every]

    def read(i: int, base: V, r: V, rest: V | None) -> list[V]:
        ty, cell = vec(elems[i], lanes), _cell(elems[i])
        if ways[i] in ("row", "back"):
            start = f.gep(base, r * few - (few - 1 if ways[i] == "back" else 0), cell)
            found = [part(ty, start, j * lanes, rest * few if rest is not None else None) for j in range(few)]
            if ways[i] == "row":
                return found
            return [picked(f, found, [divmod(row * few + few - 1 - c, lanes) for row, c in places])
                    for places in every]
        if ways[i] == "each":
            found = [part(ty, f.gep(base, r, cell), 0, rest)]
            return [f.shuffle(found[0], None, [row for row, _ in places]) for places in every]
        if ways[i] == "plane":
            found = [part(ty, f.gep(base, r + pitches[i] * c, cell), 0, rest) for c in range(few)]
            return [picked(f, found, [(c, row) for row, c in places]) for places in every]
        last = None if rest is None else r + (rest - 1)
        numbers = [r + row if last is None else f.minimum(r + row, last) for row in range(lanes)]
        found = [f.load(vec(elems[i], few), base, number * pitches[i]) for number in numbers]
        each = lanes // few
        return [joined(f, found[j * each:(j + 1) * each]) for j in range(few)]

    def part(ty: str, base: V, at: int, count: V | None) -> V:
        """The lanes from `at` on, of which the array has `count` in all."""
        return f.load_masked(ty, base, at, None if count is None else f.mask(lanes, count - at))

    def block(places: Sequence[V], kept: Sequence[list[V] | None], r: V, rest: V | None) -> None:
        given = [k or read(i, places[i], r, rest) for i, k in enumerate(kept, 1)]
        for j in range(few):
            y = f.splat(emit(f, tree, [g[j] for g in given]), lanes)
            if ways[0] == "row":
                start = f.gep(places[0], r * few, _cell(elems[0]))
                mask = None if rest is None else f.mask(lanes, rest * few - j * lanes)
                f.store_masked(y, start, j * lanes, mask)
                continue
            for k in range(lanes // few):
                row = j * lanes // few + k
                mine = f.shuffle(y, None, range(k * few, (k + 1) * few))
                to = (r + row) * pitches[0]
                if rest is None:
                    f.store(mine, places[0], to)
                else:
                    f.when(rest > row, functools.partial(f.store, mine, places[0], to))

    def item(_: V, at: Sequence[V]) -> None:
        places = []
        for base, steps, elem in zip(bases, strides, elems, strict=True):
            offset = f.i64(0)
            for i, step in zip(at[:-1], steps, strict=True):
                offset = offset + i * step
            places.append(f.gep(base, offset, _cell(elem)))
        kept = [fixed(i, places[i]) for i in range(1, count)]
        begin = at[-1] * ROWS
        end = f.minimum(begin + ROWS, rows)
        whole = begin + ((end - begin) & -lanes)
        f.loop(begin, whole, lanes, [], lambda r: block(places, kept, r, None))
        f.when(whole < end, lambda: block(places, kept, whole, end - whole))
    positions(f, [*sizes, (rows + (ROWS - 1)) // ROWS], item)


@template("x:ptr status:ptr n:i64")
def none_zero(f: Body, x: V, status: V, n: V, *, dtype: str) -> None:
    """`status` becomes 1 where one of n integers next to each other is 0. An item is a BLOCK of them."""
    elem = LLVM[dtype]
    lanes = f.machine.lanes(SIZES[elem])
    ty, mask = vec(elem, lanes), vec("i1", lanes)

    def item(i: V) -> None:
        begin = i * BLOCK
        end = f.fast_min(begin + BLOCK, n)
        whole = begin + ((end - begin) & -lanes)
        (found,) = f.loop(begin, whole, lanes, [f.zero(mask)],
                          lambda j, found: found | f.load(ty, x, j).eq(0))
        (last,) = f.loop(whole, end, 1, [f.const("i1", False)],
                         lambda j, found: found | f.load(elem, x, j).eq(0))
        f.when(f.reduce(found, lambda a, b: a | b) | last, lambda: f.store(f.i64(1), status))
    f.loop(f.lo, f.hi, 1, [], item)


def picked(f: Body, vectors: Sequence[V], places: Sequence[tuple[int, int]]) -> V:
    """The vector whose lanes are (which vector, which lane)."""
    lanes = len(places)
    used = sorted({which for which, _ in places})
    made = f.shuffle(vectors[used[0]], None, [lane if which == used[0] else -1 for which, lane in places])
    for v in used[1:]:
        made = f.shuffle(made, vectors[v], [lanes + lane if which == v else i if which < v else -1
                                            for i, (which, lane) in enumerate(places)])
    return made


def joined(f: Body, parts: Sequence[V]) -> V:
    """Vectors of one length, a power of two of them, as one."""
    now = list(parts)
    while len(now) > 1:
        both = range(2 * now[0].lanes)
        now = [f.shuffle(a, b, both) for a, b in zip(now[::2], now[1::2], strict=True)]
    return now[0]
