"""A forest as its kernel reads it: thresholds as ranks, trees completed, nodes as words, leaves in a table.

In: a `Forest` and how its leaves are joined. Out: `PackedForest`, or why the kernel cannot do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....records import dataclass
from ...machines.machine import Machine
from ...write.spec import Spec
from .arrays import ForestArrays
from .few import FewTrees, are_few, pack
from .walk import BATCH, SIGN, TOP, WAYS, forest_rows

if TYPE_CHECKING:
    from ....ops.ml.trees import Forest

DEEPEST = 12
"""Levels of a complete tree."""
_SURE = 6
_LIMIT = 1 << 27
_BLOCK = 128
_CACHE = 1 << 18
"""Bytes of ranks and sums that stay close at hand."""
_GRAIN = 1 << 10
"""Groups and rows worth a thread of their own."""
_NEUTRAL = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}


@dataclass(frozen=True, eq=False)
class Splits:
    """A forest whose tests are all `x <= threshold`: `left` where it holds. Children and roots are numbered
    as in `Forest`; column c is feature `features[c]`, its NaN goes right where `nan_right[c]`, else left."""

    roots: np.ndarray
    column: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    features: np.ndarray
    nan_right: np.ndarray


@dataclass(frozen=True, eq=False)
class PackedForest(ForestArrays):
    """A forest as `forest_rows` reads it."""

    lanes: int
    columns: int
    pitch: int

    def spec(self, dtype: str) -> Spec:
        """The kernel for features of a type."""
        return forest_rows(dtype=dtype, **dict(self.params))

    def block(self, rows: int) -> int:
        """Rows of one item."""
        room = _CACHE // (4 * (self.pitch + self.lanes * self.width))
        return -(-max(min(_BLOCK, room, -(-rows // 8)), 1) // WAYS) * WAYS

    def scratch(self, block: int) -> int:
        """Bytes each thread needs for blocks of so many rows."""
        return block * 4 * (self.pitch + self.lanes * self.width)

    def grain(self, block: int) -> int:
        """Blocks worth a thread of their own."""
        return max(1, _GRAIN // (block * int(self.arrays["groups"][:, -1].sum())))

    def cells(self, x: Any, x_row: int, rows: int, block: int, y: Any, arrays: dict[str, Any]) -> list[Any]:
        """The arguments; `arrays` by name as the kernel is to read them."""
        a = arrays
        return [x, x_row, rows, block, y, self.columns, a["features"], a["nan_right"], a["search"],
                a["searches"], a["tables"], a["groups"], a["sections"], len(self.arrays["sections"]),
                self.width, a["start"], a["links"], a["last"], a["weights"]]


def splits(forest: Forest) -> Splits | str:
    """`forest` with every test written as one or two of `x <= threshold`, or why it cannot be."""
    mode, t = forest.mode, forest.threshold.astype(np.float32)
    if (mode > 5).any():
        return "a test of set membership"
    if not ((t == forest.threshold) | np.isnan(t)).all():
        return "thresholds finer than float32"
    t = t + np.float32(0)
    below = np.nextafter(t, np.float32(-np.inf))
    yes, no, equal = forest.yes, forest.no, mode >= 4
    swapped, strict = (mode == 2) | (mode == 3), (mode == 1) | (mode == 2)
    to_yes = forest.missing | (mode == 5)
    count = len(mode)
    second = count + np.cumsum(equal) - 1
    match, other = np.where(mode == 5, no, yes), np.where(mode == 5, yes, no)
    never = np.isnan(t) | (strict & (t == -np.inf))
    nan_right = np.where(equal, ~((mode == 4) & forest.missing), to_yes == swapped)
    if (never & ~nan_right).any():
        return "a test that only NaN passes"
    right = np.where(equal, other, np.where(swapped, yes, no))
    left = np.where(never, right, np.where(equal, second, np.where(swapped, no, yes)))
    last = t[equal] == -np.inf
    kinds = np.concatenate((forest.feature * 2 + nan_right, forest.feature[equal] * 2 + 1))
    columns, column = np.unique(kinds, return_inverse=True)
    return Splits(forest.roots, column, np.concatenate((np.where(strict, below, t), below[equal])),
                  np.concatenate((left, np.where(last, match[equal], other[equal]))),
                  np.concatenate((right, match[equal])), columns >> 1, (columns & 1) != 0)


def _ranked(s: Splits) -> tuple[Splits, np.ndarray, list[np.ndarray]]:
    """The columns by falling number of thresholds, the rank of each node's, and each column's thresholds."""
    t = np.where(np.isnan(s.threshold), np.float32(np.inf), s.threshold)
    pairs = np.unique(np.stack((s.column.astype(np.float64), t.astype(np.float64)), 1), axis=0)
    counts = np.bincount(pairs[:, 0].astype(np.int64), minlength=len(s.features))
    order = np.argsort(-counts, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    starts = np.concatenate(([0], np.cumsum(counts)))
    values = [pairs[starts[c]:starts[c + 1], 1].astype(np.float32) for c in range(len(counts))]
    rank = np.zeros(len(t), np.int64)
    by_column = np.argsort(s.column, kind="stable")
    ends = np.cumsum(np.bincount(s.column, minlength=len(counts)))
    for c, nodes in enumerate(np.split(by_column, ends[:-1])):
        rank[nodes] = np.searchsorted(values[c], t[nodes])
    moved = replace(s, column=place[s.column], features=s.features[order], nan_right=s.nan_right[order])
    return moved, rank, [values[c] for c in order]


def _searches(values: Sequence[np.ndarray], lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Search trees of the columns, `lanes` at a time: per level, the lanes' nodes one after the other. Also
    offset and depth of each batch."""
    tables: list[np.ndarray] = []
    records, at = [], 0
    for first in range(0, len(values), lanes):
        batch = values[first:first + lanes]
        depth = max(int(len(v)).bit_length() for v in batch)
        sorted_ = np.full((lanes, 1 << depth), np.inf, np.float32)
        for i, v in enumerate(batch):
            sorted_[i, :len(v)] = v
        records.append((at, depth))
        for level in range(depth):
            half = 1 << depth - level - 1
            tables.append(sorted_[:, half - 1::2 * half].reshape(-1))
            at += tables[-1].size
    return np.concatenate(tables), np.array(records, np.int64)


@dataclass(frozen=True, eq=False)
class _Reached:
    """What each tree reaches: its height, and pairs of tree and leaf and of tree and branch, each once."""

    height: np.ndarray
    leaves: tuple[np.ndarray, np.ndarray]
    branches: tuple[np.ndarray, np.ndarray]


def _reached(s: Splits) -> _Reached | str:
    trees, at = np.arange(len(s.roots)), s.roots
    height = np.zeros(len(s.roots), np.int64)
    leaves, branches = [], []
    parents = np.bincount(np.concatenate((s.left, s.right, s.roots)).clip(-1) + 1)[1:]
    shared = parents.max(initial=0) > 1
    level = 0
    while at.size:
        if shared:
            trees, at = np.unique(np.stack((trees, at)), axis=1)
        done = at < 0
        leaves.append((trees[done], ~at[done]))
        trees, at = trees[~done], at[~done]
        branches.append((trees, at))
        level += 1
        height[trees] = level
        if level > 1024:
            return "a tree deeper than 1024"
        trees, at = np.tile(trees, 2), np.concatenate((s.left[at], s.right[at]))
    found = [np.unique(np.concatenate(side, axis=1), axis=1) for side in (leaves, branches)]
    return _Reached(height, (found[0][0], found[0][1]), (found[1][0], found[1][1]))


def _spoken(forest: Forest, reached: _Reached) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Which targets every row meets, which are named at all, and each tree's only target where it has one."""
    trees, leaves = reached.leaves
    many = np.diff(forest.start)[leaves]
    total = int(many.sum())
    entry = np.repeat(forest.start[leaves] - (np.cumsum(many) - many), many) + np.arange(total)
    triples = np.stack((np.repeat(trees, many), forest.target[entry], np.repeat(leaves, many)))
    keys = np.unique(triples, axis=1)
    pairs, counts = np.unique(keys[:2], axis=1, return_counts=True)
    spoken = np.zeros(forest.targets, bool)
    spoken[pairs[1][counts == np.bincount(trees)[pairs[0]]]] = True
    mentioned = np.bincount(forest.target[entry], minlength=forest.targets) > 0
    only = np.full(len(forest.roots), 0)
    only[pairs[0]] = pairs[1]
    alone = len(np.unique(pairs[0])) == pairs.shape[1]
    return spoken, mentioned, only if alone else None


def _dense(forest: Forest, aggregate: str, wide: bool) -> np.ndarray:
    """Per leaf its weight for each target, or for the only one of its tree; a neutral leaf comes last."""
    width = forest.targets if wide else 1
    dense = np.full((len(forest.start), width), np.nan)
    owner = np.repeat(np.arange(len(forest.start) - 1), np.diff(forest.start))
    cell = dense.reshape(-1)[:]
    where = owner * width + (forest.target if wide else 0)
    cell[where] = _NEUTRAL[aggregate]
    join = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
    join.at(cell, where, forest.weight)
    if aggregate == "AVERAGE":
        cell /= max(len(forest.roots), 1)
    named = np.zeros(cell.shape, bool)
    named[where] = True
    cell[~named] = _NEUTRAL[aggregate]
    return dense.astype(np.float32)


Packed = PackedForest | FewTrees


def plan(machine: Machine, forest: Forest, aggregate: str) -> Packed | str:
    """`forest` packed for `machine`, `aggregate` being SUM, AVERAGE, MIN or MAX; else why no kernel takes
    it."""
    if not forest.mode.size or not np.isfinite(forest.weight).all():
        return "no tree has a branch, or a leaf is not finite"
    s = splits(forest)
    if isinstance(s, str):
        return s
    if s.features.max() >= 1 << 31:
        return "too many features"
    reached = _reached(s)
    if isinstance(reached, str):
        return reached
    spoken, mentioned, only = _spoken(forest, reached)
    wide = only is None
    chosen = [np.arange(len(s.roots))] if only is None else [
        np.flatnonzero(only == t) for t in range(forest.targets)]
    dense = _dense(forest, aggregate, wide)
    if dense.size > _LIMIT or len(s.left) > _LIMIT:
        return "too large a forest"
    lanes, join = machine.lanes(4), {"MIN": "min", "MAX": "max"}.get(aggregate, "sum")
    few = are_few(max(map(len, chosen)), reached.height.max(), lanes)
    if few and s.nan_right.min() == s.nan_right.max() and (not wide or forest.targets <= lanes):
        return pack(s, chosen, reached.height, np.unique(reached.branches[1]), dense, join, wide, spoken,
                    mentioned)
    s, rank, values = _ranked(s)
    columns = -(-len(values) // lanes)
    held = next((h for h in (1, 2, 4) if columns <= h), 0) if machine.has("avx512f") else 0
    bits = (held * lanes or len(values) - 1).bit_length() - bool(held)
    always = (1 << 32 - bits) - 1
    if max(len(v) for v in values) >= always:
        return "too many thresholds"
    never = np.isnan(s.threshold)
    words = _signed(np.where(never, always, rank) << bits | s.column)
    grow = _Grower(s, words, np.int32(_signed(np.array(always << bits))), dense, lanes)
    sections = grow.grow(chosen, reached)
    if sum(t.size for t in grow.tables) > _LIMIT:
        return "too large a forest"
    search, records = _searches(values, lanes)
    feature, nan_right = np.zeros(columns * lanes, np.int32), np.zeros(columns * lanes, np.int32)
    feature[:len(values)], nan_right[:len(values)] = s.features, s.nan_right
    arrays = {"features": feature, "nan_right": nan_right, "search": search, "searches": records,
              "tables": np.concatenate([*grow.tables, np.zeros(1, np.int32)]),
              "groups": np.array(grow.records, np.int64).reshape(-1, BATCH + 2), "sections": sections,
              "links": grow.links, "last": grow.last, "weights": dense}
    params = {"bits": bits, "held": held, "chained": bool(grow.links.size), "wide": wide, "join": join}
    return PackedForest(tuple(params.items()), dense.shape[1], arrays, spoken, mentioned,
                        int(s.features.max()) + 1, lanes, columns, (held or columns) * lanes)


def _signed(words: np.ndarray) -> np.ndarray:
    """Unsigned words as signed ones in the same order."""
    return (words.astype(np.int64) - SIGN).astype(np.int32)


class _Grower:
    """Lays trees out as tables, a group of `lanes` trees at a time."""

    def __init__(self, s: Splits, words: np.ndarray, always: np.int32, dense: np.ndarray, lanes: int) -> None:
        self.s, self.words, self.always, self.lanes = s, words, always, lanes
        self.null = ~(len(dense) - 1)
        self.final = dense.view(np.int32)[:, 0] if dense.shape[1] == 1 else (
            np.arange(len(dense), dtype=np.int32) * dense.shape[1])
        self.tables: list[np.ndarray] = []
        self.records: list[list[int]] = []
        self.links, self.last = np.zeros((0, 2), np.int32), np.zeros(0, np.int32)
        self.at = 0

    def grow(self, sections: Sequence[np.ndarray], reached: _Reached) -> np.ndarray:
        """Tables for all sections' trees; per section its first record, its first chained one and the end."""
        branches = np.bincount(reached.branches[0], minlength=len(self.s.roots))
        complete: list[list[tuple[np.ndarray, int]]] = []
        chained: list[list[np.ndarray]] = []
        for trees in sections:
            trees = trees[np.argsort(reached.height[trees], kind="stable")]
            complete.append([])
            chained.append([])
            for i in range(0, len(trees), self.lanes):
                group = trees[i:i + self.lanes]
                depth = max(int(reached.height[group].max()), TOP)
                if depth <= _SURE or (depth <= DEEPEST and len(group) << depth <= 4 * branches[group].sum()):
                    complete[-1].append((group, depth))
                else:
                    chained[-1].append(group)
        linked = np.concatenate([g for groups in chained for g in groups] or [np.zeros(0, np.int64)])
        below = np.unique(reached.branches[1][np.isin(reached.branches[0], linked)])
        ends = [np.stack((self.s.left[below], self.s.right[below]), 1).reshape(-1)]
        rows = []
        for whole, open_ in zip(complete, chained, strict=True):
            row = [len(self.records)]
            self._record([(self._table(group, depth, None), depth) for group, depth in whole])
            row.append(len(self.records))
            self._record([(self._table(group, _SURE, ends), _SURE) for group in open_])
            rows.append([*row, len(self.records)])
        if linked.size:
            self._link(below, np.concatenate(ends))
        return np.array(rows, np.int64)

    def _record(self, groups: Sequence[tuple[int, int]]) -> None:
        """Note groups of one depth together: where each one's table is, their depth and number."""
        for depth in sorted({d for _, d in groups}):
            offsets = [at for at, d in groups if d == depth]
            for i in range(0, len(offsets), BATCH):
                batch = offsets[i:i + BATCH]
                self.records.append([*batch, *batch[:1] * (BATCH - len(batch)), depth, len(batch)])

    def _table(self, trees: np.ndarray, depth: int, ends: list[np.ndarray] | None) -> int:
        """Write the table of a group down to `depth` and say where. Below are leaves, or with `ends` the
        links that continue there: what they stand for is appended."""
        start = self.at
        at = np.full((self.lanes, 1), self.null)
        at[:len(trees), 0] = self.s.roots[trees]
        for level in range(depth):
            branch, node = at >= 0, at.clip(0)
            words = np.where(branch, self.words[node], self.always)
            self._put(words.T if level < TOP else words)
            children = (np.where(branch, side[node], at) for side in (self.s.left, self.s.right))
            at = np.stack(tuple(children), 2).reshape(self.lanes, -1)
        if ends is None:
            self._put(self.final[~at])
        else:
            self._put(sum(e.size for e in ends) + np.arange(at.size))
            ends.append(at.reshape(-1))
        return start

    def _put(self, table: np.ndarray) -> None:
        self.tables.append(np.ascontiguousarray(table, np.int32).reshape(-1))
        self.at += self.tables[-1].size

    def _link(self, branches: np.ndarray, node: np.ndarray) -> None:
        """The links: first the children of `branches` in pairs, then what tables lead to. A leaf leads to
        itself."""
        pair = np.zeros(len(self.s.left), np.int64)
        pair[branches] = 2 * np.arange(len(branches))
        branch, place = node >= 0, node.clip(0)
        self.links = np.stack((np.where(branch, self.words[place], self.always),
                               np.where(branch, pair[place], np.arange(len(node)))), 1).astype(np.int32)
        self.last = self.final[(~node).clip(0)]
