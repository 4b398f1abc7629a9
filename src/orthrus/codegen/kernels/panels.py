"""Panels of a product's factors, copied to scratch in the type of their sums: rows as they lie, or turned."""

from __future__ import annotations

from collections.abc import Sequence

from ..write.body import Body
from ..write.emit import BF16, F16, F32, V, vec
from ..write.emit import BYTES as SIZES
from ..write.tile import as_float


def _computed(elem: str) -> str:
    """The type of sums of products of `elem`, LLVM's names."""
    return F32 if elem in (F16, BF16) else elem


def copy(f: Body, elem: str, source: V, target: V, size: V) -> None:
    """`size` numbers in the type of their sums; the target's last vector is written whole."""
    lanes = f.machine.lanes(SIZES[_computed(elem)])
    ty = vec(elem, lanes)
    whole = size & -lanes
    f.loop(0, whole, lanes, [], lambda j: f.store(as_float(f, f.load(ty, source, j)), target, j))
    f.when(whole < size, lambda: f.store(
        as_float(f, f.load_masked(ty, source, whole, f.mask(lanes, size - whole))), target, whole))


def copy_panel(f: Body, elem: str, source: V, stride: V, target: V, size: V, lanes: int,
               masks: Sequence[V | None]) -> None:
    """`size` rows of a vector per mask, `stride` apart, one after another to `target`; zeros outside."""
    cols, total = len(masks), _computed(elem)

    def row(j: V, at: V) -> V:
        for c in range(cols):
            x = f.load_masked(vec(elem, lanes), f.gep(at, c * lanes, elem), 0, masks[c])
            f.store(as_float(f, x), f.gep(target, c * lanes, total), j * (cols * lanes), lanes * SIZES[total])
        return f.gep(at, stride, elem)
    f.loop(0, size, 1, [source], row)


def transpose_panel(f: Body, elem: str, source: V, stride: V, n: V, col: V, panel: int, target: V,
                    size: V) -> None:
    """Columns `col` to `col + panel` of Bᵀ, `size` of K: from rows along K to rows along N. Columns behind
    `n` repeat the last one."""
    total = _computed(elem)
    lanes = f.machine.lanes(SIZES[total])
    whole = size & -lanes

    def group(g: V) -> None:
        rows = [f.gep(source, f.fast_min(col + g + j, n - 1) * stride, elem) for j in range(lanes)]
        out = f.gep(target, g, total)

        def square(j: V) -> None:
            for i, x in enumerate(transpose(f, [as_float(f, f.load(vec(elem, lanes), r, j)) for r in rows])):
                f.store(x, out, (j + i) * panel, lanes * SIZES[total])
        f.loop(0, whole, lanes, [], square)

        def one(j: V) -> None:
            x = f.undef(vec(elem, lanes))
            for i, r in enumerate(rows):
                x = f.insert(x, f.load(elem, r, j), i)
            f.store(as_float(f, x), out, j * panel, lanes * SIZES[total])
        f.loop(whole, size, 1, [], one)
    f.loop(0, panel, lanes, [], group)


def transpose(f: Body, rows: Sequence[V]) -> list[V]:
    """The columns of a square of vectors: in log2 rounds, elements change sides of ever smaller blocks."""
    out, lanes = list(rows), len(rows)
    d = lanes // 2
    while d:
        for i in range(lanes):
            if not i & d:
                x, y = out[i], out[i + d]
                out[i] = f.shuffle(x, y, [j if not j & d else lanes + j - d for j in range(lanes)])
                out[i + d] = f.shuffle(x, y, [j + d if not j & d else lanes + j for j in range(lanes)])
        d //= 2
    return out
