"""Few trees: rows walk a tree side by side, each by itself, since trees do not fill a vector.

In: a forest whose tests are all `x <= threshold`. Out: `FewTrees`, what `few_trees` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

from ....records import dataclass
from ...write.body import Body
from ...write.emit import F32, I32, I64, V, vec
from ...write.expr import LLVM
from ...write.spec import Spec
from ...write.template import template
from .arrays import ForestArrays, joining

if TYPE_CHECKING:
    from .packing import Splits

_ROWS = 8
"""Rows that walk a tree at the same time."""
_EVEN = 8
"""Levels up to which rows take all of a tree's; in deeper ones they stop when the last has come to a leaf."""
_BLOCK, _GRAIN = 64, 1 << 12


@template("x:ptr x_row:i64 rows:i64 block:i64 y:ptr trees:ptr sections:ptr count:i64 width:i64 nodes:ptr "
          "start:ptr weights:ptr")
def few_trees(f: Body, x: V, x_row: V, rows: V, block: V, y: V, trees: V, sections: V, count: V, width: V,
              nodes: V, start: V, weights: V, *, dtype: str, join: str, wide: bool, nan_right: bool,
              deep: bool) -> None:
    """As `forest_rows`. A tree is where its root is and how many levels it has, a section where its trees
    begin; `wide` leaves have at most as many weights as a vector has elements. The nodes are those of
    `FewTrees`."""
    lanes = f.machine.lanes(4)
    mask = f.mask(lanes, width) if wide else None
    neutral, joined = joining(f, join, vec(F32, lanes) if wide else F32)

    def child(at: V, row: V) -> V:
        feature, threshold = f.cast(f.load(I32, nodes, at), I64), f.load(F32, nodes, at + 1)
        value = f.cast(f.load(LLVM[dtype], row, feature), F32)
        second = value <= threshold if nan_right else value > threshold
        return f.cast(f.load(I32, nodes, at + 2), I64) + f.select(second, f.i64(_FIELDS), 0)

    def leaves(tree: V, row: Sequence[V]) -> list[V]:
        record = f.gep(trees, tree * 2, I64)
        places, height = [f.load(I64, record)] * len(row), f.load(I64, record, 1)

        def level(_: V, *at: V) -> list[V]:
            return [child(a, r) for a, r in zip(at, row, strict=True)]

        def on(*at: V) -> tuple[V, list[V]]:
            below = level(at[0], *at)
            return reduce(or_, (b.ne(a) for a, b in zip(at, below, strict=True))), below
        return f.repeat(places, on) if deep else f.loop(0, height, 1, places, level)

    def said(leaf: V) -> V:
        if not wide:
            return f.load(F32, nodes, leaf + 3)
        own = f.gep(weights, f.cast(f.load(I32, nodes, leaf + 3), I64), F32)
        return f.load_masked(neutral.ty, own, 0, mask)

    def some(r: V, many: int) -> None:
        row = [f.gep(x, (r + i) * x_row, LLVM[dtype]) for i in range(many)]

        def one(tree: V, *now: V) -> list[V]:
            return [joined(said(leaf), a) for leaf, a in zip(leaves(tree, row), now, strict=True)]

        def section(s: V) -> None:
            totals = f.loop(f.load(I64, sections, s), f.load(I64, sections, s + 1), 1, [neutral] * many, one)
            for i, total in enumerate(totals):
                if wide:
                    total = total + f.load_masked(total.ty, start, 0, mask)
                    f.store_masked(total, y, (r + i) * width, mask)
                else:
                    f.store(total + f.load(F32, start, s), y, (r + i) * count + s)
        f.loop(0, count, 1, [], section)

    def item(i: V) -> None:
        first = i * block
        end = f.minimum(first + block, rows)
        whole = first + (end - first & -_ROWS)
        f.loop(first, whole, _ROWS, [], lambda r: some(r, _ROWS))
        f.loop(whole, end, 1, [], lambda r: some(r, 1))
    f.loop(f.lo, f.hi, 1, [], item)


_FIELDS = 4
"""Of a node: its feature, its threshold, where its children are, what a leaf holds."""


def are_few(trees: int, height: int, lanes: int) -> bool:
    """Whether rows walk so many trees for a target faster by themselves than `lanes` trees walk together."""
    return 8 * trees <= (10 if height > _EVEN else 5) * lanes


@dataclass(frozen=True, eq=False)
class FewTrees(ForestArrays):
    """A forest as `few_trees` reads it. A node's second child, the first's neighbour, is where its test is
    passed; a leaf's test is never passed and it is its own first child."""

    def spec(self, dtype: str) -> Spec:
        """The kernel for features of a type."""
        return few_trees(dtype=dtype, **dict(self.params))

    def block(self, rows: int) -> int:
        """Rows of one item."""
        return -(-min(_BLOCK, max(rows, 1)) // _ROWS) * _ROWS

    def scratch(self, block: int) -> int:
        """Bytes each thread needs for blocks of so many rows."""
        return 0

    def grain(self, block: int) -> int:
        """Blocks worth a thread of their own."""
        return max(1, _GRAIN // (block * len(self.arrays["trees"])))

    def cells(self, x: Any, x_row: int, rows: int, block: int, y: Any, arrays: dict[str, Any]) -> list[Any]:
        """The arguments; `arrays` by name as the kernel is to read them."""
        a, sections = arrays, len(self.arrays["sections"]) - 1
        return [x, x_row, rows, block, y, a["trees"], a["sections"], sections, self.width, a["nodes"],
                a["start"], a["weights"]]


def pack(s: Splits, sections: Sequence[np.ndarray], height: np.ndarray, branches: np.ndarray,
         dense: np.ndarray, join: str, wide: bool, spoken: np.ndarray, mentioned: np.ndarray) -> FewTrees:
    """`s` for this kernel: its trees by section, their heights, the branches that are reached, the weights of
    leaves [leaves, width]. NaN goes the same way everywhere."""
    nan_right = bool(s.nan_right[0])
    ways = (s.right, s.left) if nan_right else (s.left, s.right)
    trees = np.concatenate(sections)
    node = np.concatenate((s.roots[trees], np.stack([way[branches] for way in ways], 1).reshape(-1)))
    pair = np.zeros(len(s.left), np.int64)
    pair[branches] = len(trees) + 2 * np.arange(len(branches))
    branch, place, leaf = node >= 0, node.clip(0), (~node).clip(0)
    threshold = np.where(branch, s.threshold[place], np.float32(np.nan)).astype(np.float32)
    holds = leaf * dense.shape[1] if wide else dense.view(np.int32)[leaf, 0]
    nodes = np.stack((np.where(branch, s.features[s.column[place]], 0), threshold.view(np.int32),
                      _FIELDS * np.where(branch, pair[place], np.arange(len(node))), holds), 1)
    arrays = {"nodes": nodes.astype(np.int32), "weights": dense,
              "trees": np.stack((_FIELDS * np.arange(len(trees)), height[trees]), 1).astype(np.int64),
              "sections": np.cumsum([0, *(len(each) for each in sections)]).astype(np.int64)}
    params = {"join": join, "wide": wide, "nan_right": nan_right, "deep": bool(height.max() > _EVEN)}
    return FewTrees(tuple(params.items()), dense.shape[1], arrays, spoken, mentioned,
                    int(s.features.max()) + 1)
