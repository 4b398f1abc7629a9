"""Elementwise loops: a tree over strided operands, stored into a strided result.

`nest` brings shapes and strides into the form the kernel takes: dimensions of one element dropped, neighbours
that lie as one joined, the innermost in vectors. In memory order of the result: `outer` dimensions, of which an
item is one position; a `middle` one looped over inside an item; the inner one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .emit import BYTES as SIZES
from .emit import I64, PTR, V, vec
from .expr import LLVM, Expr, emit
from .template import Body, Spec, template

CONTIGUOUS, SPREAD, STRIDED = 1, 0, 2
"""How an array goes along the inner dimension: element by element, not at all, or in steps."""

BLOCK = 4096
"""Inner elements of an item where there is no outer dimension."""

ENOUGH = 1 << 14
"""Operations below which work is not divided."""


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
    axes = sorted((a for a, d in enumerate(shape) if d != 1), key=lambda a: (-strides[0][a], a))
    dims: list[tuple[int, list[int]]] = []
    for a in axes:
        steps = [s[a] for s in strides]
        if dims and all(before == after * shape[a] for before, after in zip(dims[-1][1], steps, strict=True)):
            dims[-1] = (dims[-1][0] * shape[a], steps)
        else:
            dims.append((shape[a], steps))
    return Nest(tuple(d for d, _ in dims), tuple(tuple(s[i] for _, s in dims) for i in range(len(strides))))


def elementwise(made: Nest, tree: Expr, dtypes: Sequence[str]) -> tuple[Spec, list[int], int, int]:
    """The kernel for a nest: its spec, the cells behind the arrays' addresses, its items and their grain.
    `dtypes`: the operands'; the result's is the tree's."""
    sizes = made.sizes
    outer = max(len(sizes) - 2, min(len(sizes) - 1, 1), 0)
    middle = len(sizes) - 1 > outer
    inner = sizes[-1] if sizes else 1
    cells = [inner, *sizes[:-1]]
    for steps in made.strides:
        cells.extend(steps[:-1])
    cells.extend(steps[-1] for steps, kind in zip(made.strides, made.kinds, strict=True) if kind == STRIDED)
    items = prod(sizes[:outer]) if outer else -(-inner // BLOCK)
    each = prod(sizes[outer:]) if outer else min(inner, BLOCK)
    spec = loop(tree=tree, dtypes=tuple(dtypes), kinds=made.kinds, outer=outer, middle=middle)
    return spec, cells, items, max(1, ENOUGH // max(1, each * (1 + tree.size() // 2)))


@template("out:ptr")
def loop(f: Body, out: V, *, tree: Expr, dtypes: tuple[str, ...], kinds: tuple[int, ...], outer: int,
         middle: bool) -> None:
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
    lanes = f.machine.lanes()
    widest = max(SIZES[e] for e in elems)
    unroll = 1 if STRIDED in kinds or tree.size() > 8 else 2 if widest > 4 or tree.size() > 3 else 4

    def read(i: int, base: V, x: V, mask: V | None, last: V | None) -> V:
        elem, ty = elems[i], vec(elems[i], lanes)
        if kinds[i] == SPREAD:
            return f.splat(f.load(elem, base), lanes)
        if kinds[i] == CONTIGUOUS:
            return f.load(ty, base, x) if mask is None else f.load_masked(ty, base, x, mask)
        value = f.undef(ty)
        for lane in range(lanes):
            index = x + lane if last is None else f.minimum(x + lane, last)
            value = f.insert(value, f.load(elem, base, index * steps[i]), lane)
        return value

    def vector(places: Sequence[V], x: V, rest: V | None) -> None:
        mask = None if rest is None else f.mask(lanes, rest)
        last = None if rest is None else x + rest - 1
        value = emit(f, tree, [read(i, places[i], x, mask, last) for i in range(1, count)])
        if not dtypes:
            value = f.splat(value, lanes)
        if kinds[0] == CONTIGUOUS:
            if mask is None:
                f.store(value, places[0], x)
            else:
                f.store_masked(value, places[0], x, mask)
            return
        f.loop(0, lanes if rest is None else rest, 1, [], lambda lane: f.store(
            f.extract(value, lane), places[0], (x + lane) * steps[0]))

    def line(places: Sequence[V], begin: V | int, end: V) -> None:
        if unroll > 1:
            (begin,) = f.loop(begin, end - (unroll * lanes - 1), unroll * lanes, [f.i64(begin)],
                              lambda x, _: many(places, x))
        (begin,) = f.loop(begin, end - (lanes - 1), lanes, [f.i64(begin)], lambda x, _: one(places, x))
        f.when(begin < end, lambda: vector(places, begin, end - begin))

    def many(places: Sequence[V], x: V) -> V:
        for u in range(unroll):
            vector(places, x + u * lanes, None)
        return x + unroll * lanes

    def one(places: Sequence[V], x: V) -> V:
        vector(places, x, None)
        return x + lanes

    def item(i: V) -> None:
        if not outer:
            begin = i * BLOCK
            line(bases, begin, f.minimum(begin + BLOCK, inner))
            return
        offsets = [f.i64(0)] * count
        left = i
        for d in reversed(range(outer)):
            index = left % sizes[d] if d else left
            left = left // sizes[d] if d else left
            offsets = [o + index * s[d] for o, s in zip(offsets, strides, strict=True)]
        places = [f.gep(b, o, e if e != "i1" else "i8") for b, o, e in zip(bases, offsets, elems, strict=True)]
        if not middle:
            line(places, 0, inner)
            return

        def row(_: V, *places: V) -> list[V]:
            line(places, 0, inner)
            return [f.gep(p, s[outer], e if e != "i1" else "i8")
                    for p, s, e in zip(places, strides, elems, strict=True)]
        f.loop(0, sizes[outer], 1, places, row)
    f.loop(f.lo, f.hi, 1, [], item)
