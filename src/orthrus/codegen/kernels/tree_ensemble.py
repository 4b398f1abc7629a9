"""Forests of decision trees: rows of features in, per row and target the sum, least or greatest leaf out.

Thresholds are replaced by ranks. Every row's features are ranked once among the thresholds they meet, by
binary search; a test is then one comparison of integers, and a node is one 32-bit word: the threshold's rank
above, the column of ranks it is for in the low `bits`. A *column* is a feature together with where its NaN
goes.

A vector's lanes are trees. A group of as many trees walks down together for one row, whose ranks lie in
registers where they fit: the first levels choose between whole vectors, each further level is one gather.
Trees are padded to complete ones, so that a node's children follow from its place; deep or ragged trees are
complete for some levels and continue in a list of linked nodes. Lanes add up their own leaves and are joined
at the end, so that the order of a sum depends on the forest alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..machines.machine import Machine
from ..write import vmath
from ..write.body import Body
from ..write.emit import F32, I32, I64, V, vec
from ..write.expr import LLVM
from ..write.template import Spec, template

if TYPE_CHECKING:
    from ...ops.ml.trees import Forest

TOP = 3
"""Levels that are chosen from whole vectors."""
WAYS = 8
"""Rows that walk a group's trees at the same time; half of it where registers are few."""
BATCH = 4
"""Groups of trees of one depth that stand together, so that a single row can walk them at the same time."""
DEEPEST = 12
"""Levels of a complete tree."""
_SURE = 6
_SIGN = 1 << 31
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
class Packed:
    """A forest as `forest_rows` reads it: its parameters and arrays. `spoken[t]`: every row meets a leaf for
    target t, `mentioned[t]`: some leaf is for it."""

    params: tuple[tuple[str, Any], ...]
    lanes: int
    columns: int
    pitch: int
    width: int
    arrays: dict[str, np.ndarray]
    spoken: np.ndarray
    mentioned: np.ndarray
    inputs: int

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


def plan(machine: Machine, forest: Forest, aggregate: str) -> Packed | str:
    """`forest` packed for `machine`, `aggregate` being SUM, AVERAGE, MIN or MAX; else why no kernel takes
    it."""
    if not forest.mode.size or not np.isfinite(forest.weight).all():
        return "no tree has a branch, or a leaf is not finite"
    s = splits(forest)
    if isinstance(s, str):
        return s
    lanes = machine.lanes(4)
    s, rank, values = _ranked(s)
    columns = -(-len(values) // lanes)
    held = next((h for h in (1, 2, 4) if columns <= h), 0) if machine.has("avx512f") else 0
    bits = (held * lanes or len(values) - 1).bit_length() - bool(held)
    always = (1 << 32 - bits) - 1
    if max(len(v) for v in values) >= always or s.features.max() >= 1 << 31:
        return "too many thresholds or features"
    reached = _reached(s)
    if isinstance(reached, str):
        return reached
    spoken, mentioned, only = _spoken(forest, reached)
    wide = only is None
    dense = _dense(forest, aggregate, wide)
    if dense.size > _LIMIT or len(s.left) > _LIMIT:
        return "too large a forest"
    never = np.isnan(s.threshold)
    words = _signed(np.where(never, always, rank) << bits | s.column)
    grow = _Grower(s, words, np.int32(_signed(np.array(always << bits))), dense, lanes)
    chosen = [np.arange(len(s.roots))] if only is None else [
        np.flatnonzero(only == t) for t in range(forest.targets)]
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
    join = {"MIN": "min", "MAX": "max"}.get(aggregate, "sum")
    params = {"bits": bits, "held": held, "chained": bool(grow.links.size), "wide": wide, "join": join}
    return Packed(tuple(params.items()), lanes, columns, (held or columns) * lanes, dense.shape[1], arrays,
                  spoken, mentioned, int(s.features.max()) + 1)


def _signed(words: np.ndarray) -> np.ndarray:
    """Unsigned words as signed ones in the same order."""
    return (words.astype(np.int64) - _SIGN).astype(np.int32)


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


class _Walk:
    """One row's way: its ranks, in `held` vectors or at an address."""

    def __init__(self, f: Body, ranks: V, held: int, bits: int) -> None:
        self.f, self.bits, self.at = f, bits, ranks
        self.lanes = f.machine.lanes(4)
        self.ty = vec(I32, self.lanes)
        self.held = [f.load(self.ty, ranks, i * self.lanes, 64) for i in range(held)]

    def fails(self, word: V) -> V:
        """Per lane whether the row's rank exceeds that of `word`."""
        return self.rank(word) > word

    def rank(self, word: V) -> V:
        f, h = self.f, self.held
        if not h:
            return f.gather(I32, self.at, word & ((1 << self.bits) - 1))
        if len(h) == 1:
            return f.intrinsic("x86.avx512.permvar.si.512", self.ty, h[0], word)
        pairs = [f.intrinsic("x86.avx512.vpermi2var.d.512", self.ty, h[i], word, h[i + 1])
                 for i in range(0, len(h), 2)]
        return pairs[0] if len(pairs) == 1 else f.select((word & 32).ne(0), pairs[1], pairs[0])


def _down(f: Body, place: V, right: V) -> V:
    """The child's place in the next level."""
    twice = place + place
    return f.select(right, twice + 1, twice)


@template("x:ptr x_row:i64 rows:i64 block:i64 y:ptr columns:i64 features:ptr nan_right:ptr search:ptr "
          "searches:ptr tables:ptr groups:ptr sections:ptr count:i64 width:i64 start:ptr links:ptr last:ptr "
          "weights:ptr")
def forest_rows(f: Body, x: V, x_row: V, rows: V, block: V, y: V, columns: V, features: V, nan_right: V,
                search: V, searches: V, tables: V, groups: V, sections: V, count: V, width: V, start: V,
                links: V, last: V, weights: V, *, dtype: str, bits: int, held: int, chained: bool, wide: bool,
                join: str) -> None:
    """y [rows, targets] float32 = what the trees say of each row of x (`x_row` elements apart, features next
    to each other) joined by sum, min or max, plus `start` [targets]. Items are blocks of `block` rows. A
    section is a target with its trees, or all targets with `wide` leaves of `width` weights. The forest's
    arrays are those of `Packed`."""
    lanes, ways = f.machine.lanes(4), WAYS if f.machine.registers >= 32 else WAYS // 2
    ints, floats = vec(I32, lanes), vec(F32, lanes)
    pitch = f.i64(held * lanes) if held else columns * lanes
    sums = f.gep(f.scratch, block * pitch, I32)
    lane = f.const(ints, list(range(lanes)))
    neutral = f.const(floats, {"sum": 0.0, "min": np.inf, "max": -np.inf}[join])

    def joined(a: V, b: V) -> V:
        return a + b if join == "sum" else f.fast_min(a, b) if join == "min" else f.fast_max(a, b)

    def each(n: V, body: Callable[[V, int], None]) -> None:
        """Run body(first, how many) over n rows."""
        whole = n & -ways
        f.loop(0, whole, ways, [], lambda r: body(r, ways))
        f.loop(whole, n, 1, [], lambda r: body(r, 1))

    def rank(first: V, r: V, several: int) -> None:
        at = [f.gep(x, (first + r + w) * x_row, LLVM[dtype]) for w in range(several)]

        def batch(c: V) -> None:
            column = c * lanes
            feature = f.load(ints, features, column)
            to_right = f.load(ints, nan_right, column).ne(0)
            record = f.gep(searches, c * 2, I64)
            table, depth = f.gep(search, f.load(I64, record), F32), f.load(I64, record, 1)
            value = [f.cast(f.gather(LLVM[dtype], a, feature), F32) for a in at]
            root = f.load(floats, table)
            places = [_down(f, lane, root < v) for v in value]

            def level(i: V, now: V, *p: V) -> list[V]:
                here = [_down(f, q, f.gather(F32, now, q) < v) for q, v in zip(p, value, strict=True)]
                return [f.gep(now, f.i64(lanes) << i, F32), *here]
            ends = f.loop(1, depth, 1, [f.gep(table, lanes, F32), *places], level)[1:]
            base = lane << f.splat(f.cast(depth, I32), lanes)
            for w, (p, v) in enumerate(zip(ends, value, strict=True)):
                word = ((p - base) << bits) ^ f.const(ints, -_SIGN)
                top = f.const(ints, ((1 << 32 - bits) - 1 << bits) - _SIGN)
                f.store(f.select(v.ne(v) & to_right, top, word), f.scratch, (r + w) * pitch + column, 64)
        f.loop(0, columns, 1, [], batch)

    def add(leaf: V, row: V) -> None:
        if not wide:
            at = f.gep(sums, row * lanes, F32)
            f.store(joined(f.bitcast(leaf, floats), f.load(floats, at, 0, 64)), at, 0, 64)
            return
        to = f.gep(sums, row * width * lanes, F32)

        def one(k: V) -> None:
            weight = f.gather(F32, f.gep(weights, k, F32), leaf)
            f.store(joined(weight, f.load(floats, to, k * lanes, 64)), to, k * lanes, 64)
        f.loop(0, width, 1, [], one)

    def descend(way: Sequence[_Walk], tables: Sequence[V], top: Sequence[Sequence[V]], depth: V, linked: bool
                ) -> list[V]:
        """What the leaves hold for each row and the table it walks; one table may serve all."""
        def level(i: V, now: V, *p: V) -> list[V]:
            bases = [f.gep(t, now, I32) for t in tables]
            words = [f.gather(I32, bases[w % len(bases)], q) for w, q in enumerate(p)]
            return [now + (f.i64(lanes) << i), *(_down(f, q, w.fails(word))
                                                 for q, w, word in zip(p, way, words, strict=True))]
        places = [_start(f, w, top[i % len(top)], lane) for i, w in enumerate(way)]
        now, *places = f.loop(TOP, depth, 1, [f.i64(lanes * ((1 << TOP) - 1)), *places], level)
        leaves = [f.gather(I32, f.gep(tables[i % len(tables)], now, I32), p) for i, p in enumerate(places)]
        return _chain(f, way, links, last, leaves) if linked else leaves

    def row_at(r: V) -> _Walk:
        return _Walk(f, f.gep(f.scratch, r * pitch, I32), held, bits)

    def walk(n: V, linked: bool) -> Any:
        def run(g: V) -> None:
            record = f.gep(groups, g * (BATCH + 2), I64)
            depth, many = f.load(I64, record, BATCH), f.load(I64, record, BATCH + 1)

            def table_at(j: V | int) -> tuple[V, list[V]]:
                at = f.gep(tables, f.load(I64, record, j), I32)
                return at, [f.load(ints, at, i * lanes) for i in range((1 << TOP) - 1)]

            def one(j: V) -> None:
                at, top = table_at(j)

                def some(r: V) -> None:
                    way = [row_at(r + w) for w in range(ways)]
                    for w, leaf in enumerate(descend(way, [at], [top], depth, linked)):
                        add(leaf, r + w)
                f.loop(0, n & -ways, ways, [], some)
            f.loop(0, many, 1, [], one)

            def single(r: V) -> None:
                at, top = zip(*(table_at(j) for j in range(BATCH)), strict=True)
                for j, leaf in enumerate(descend([row_at(r)] * BATCH, at, top, depth, linked)):
                    f.when(many > j, partial(add, leaf, r))
            f.loop(n & -ways, n, 1, [], single)
        return run

    def item(i: V) -> None:
        first = i * block
        n = f.minimum(rows - first, block)
        each(n, lambda r, several: rank(first, r, several))

        def section(s: V) -> None:
            f.loop(0, n * width, 1, [], lambda j: f.store(neutral, sums, j * lanes, 64))
            bounds = f.gep(sections, s * 3, I64)
            begin, middle, end = (f.load(I64, bounds, j) for j in range(3))
            f.loop(begin, middle, 1, [], walk(n, False))
            if chained:
                f.loop(middle, end, 1, [], walk(n, True))

            def close(j: V) -> None:
                total = f.reduce(f.load(floats, sums, j * lanes, 64), joined)
                place = j if wide else j * count + s
                column = j % width if wide else s
                f.store(total + f.load(F32, start, column), y, first * (width if wide else count) + place)
            f.loop(0, n * width, 1, [], close)
        f.loop(0, count, 1, [], section)
    f.loop(f.lo, f.hi, 1, [], item)


def _start(f: Body, way: _Walk, top: Sequence[V], lane: V) -> V:
    """A row's place in the first level behind `top`, whose nodes are whole vectors."""
    place, nodes = lane << TOP, list(top)
    sides: list[V] = []
    for level in range(TOP):
        choice, nodes = nodes[:1 << level], nodes[1 << level:]
        for side in reversed(sides):
            choice = [f.select(side, choice[j + 1], choice[j]) for j in range(0, len(choice), 2)]
        sides.append(way.fails(choice[0]))
        place = f.select(sides[-1], place + (1 << TOP - 1 - level), place)
    return place


def _chain(f: Body, way: Sequence[_Walk], links: V, last: V, places: Sequence[V]) -> list[V]:
    """Follow the links until no lane moves; what the leaves hold."""
    lanes = places[0].lanes

    def step(*p: V) -> tuple[V, list[V]]:
        new, moved = [], f.zero(vec("i1", lanes))
        for q, w in zip(p, way, strict=True):
            right = w.fails(f.gather(I32, links, q, I64))
            child = f.gather(I32, f.gep(links, 1, I32), q, I64)
            new.append(f.select(right, child + 1, child))
            moved = moved | new[-1].ne(q)
        return f.compare("ne", f.bitcast(moved, f"i{lanes}"), 0), new
    return [f.gather(I32, last, p) for p in f.repeat(list(places), step)]


@template("y:ptr rows:i64 classes:i64 labels:ptr names:ptr first:float second:float")
def tree_scores(f: Body, y: V, rows: V, classes: V, labels: V, names: V, first: V, second: V, *,
                transform: str, choice: str, pair: Pair | None) -> None:
    """Apply a post transform to y [rows, classes] in place and write each row's label, `names` being int64:
    with `choice` "most" that of the highest score, "only" the first, with "none" no label. `pair`: how two
    classes share what the trees say, `first` and `second` being base values. Items are vectors of rows."""
    lanes = f.machine.lanes(4)
    ints, floats = vec(I32, lanes), vec(F32, lanes)

    def item(i: V) -> None:
        row = i * lanes
        mask = f.mask(lanes, f.minimum(rows - row, lanes))
        base = f.gep(y, row * classes, F32)
        at = f.const(ints, list(range(lanes))) * f.cast(classes, I32)

        def score(k: V | int) -> V:
            return f.gather(F32, f.gep(base, k, F32), at, mask=mask)

        def put(k: V | int, x: V) -> None:
            f.scatter(x, f.gep(base, k, F32), at, mask)

        def label(which: V) -> None:
            found = f.gather(I64, names, which)
            f.store_masked(found, labels, row, mask)
        if pair is not None:
            scores, above = pair.scores(f, score(0), score(1), first, second, transform)
            for k in range(2):
                put(k, scores[k])
            label(f.cast(above, I32))
            return
        most, which = f.loop(0, classes, 1, [f.const(floats, -np.inf), f.zero(ints)], lambda k, m, w: (
            (lambda x: [f.fast_max(x, m), f.select(x > m, f.cast(k, I32), w)])(score(k))))
        if choice != "none":
            label(which if choice == "most" else f.zero(ints))
        if transform == "LOGISTIC":
            f.loop(0, classes, 1, [], lambda k: put(k, vmath.sigmoid(f, score(k))))
        elif transform.startswith("SOFTMAX"):
            def raised(k: V, total: V) -> V:
                x = score(k)
                e = vmath.exp(f, x - most)
                if transform == "SOFTMAX_ZERO":
                    e = f.select(f.unary("fabs", x) > 1e-7, e, 0)
                put(k, e)
                return total + e
            (total,) = f.loop(0, classes, 1, [f.zero(floats)], raised)
            total = f.select(total.eq(0), 1, total)
            f.loop(0, classes, 1, [], lambda k: put(k, score(k) / total))
    f.loop(f.lo, f.hi, 1, [], item)


@dataclass(frozen=True)
class Pair:
    """How a model of two classes is read. `spoken`: whether rows have a score for each class, `base`: how
    many base values there are, `one`: all leaves are for one class, `positive`: no weight is negative."""

    spoken: tuple[bool, bool]
    base: int
    one: bool
    positive: bool

    def scores(self, f: Body, x: V, z: V, first: V, second: V, transform: str) -> tuple[Sequence[V], V]:
        """The scores of both classes and whether the second is chosen, from what the trees say of each."""
        paired, zero = self.spoken[1], f.zero(x.ty)
        if self.base == 2:
            joined = x + second
            pair = ((-joined if self.spoken[0] else zero), joined) if paired else (x + first, zero)
            lead = joined if paired else pair[0]
            paired = True
        else:
            if self.base:
                x = x + first if self.spoken[0] or not paired else zero
            pair, lead = (x, z), (z if paired else x)
        if paired:
            shown = _both(f, pair, transform)
        elif transform == "LOGISTIC":
            shown = (vmath.sigmoid(f, -x), vmath.sigmoid(f, x))
        else:
            shown = (-x if not self.one or not self.positive else 1 - x, x)
        if self.one:
            return shown, lead > (0.5 if self.positive else 0.0)
        a, b = pair if paired else (-x, x)
        return shown, b > a


def _both(f: Body, pair: Sequence[V], transform: str) -> Sequence[V]:
    """Two scores after a post transform."""
    if transform == "LOGISTIC":
        return [vmath.sigmoid(f, x) for x in pair]
    if transform == "NONE":
        return pair
    most = f.fast_max(pair[0], pair[1])
    raised = [vmath.exp(f, x - most) for x in pair]
    if transform == "SOFTMAX_ZERO":
        raised = [f.select(f.unary("fabs", x) > 1e-7, e, 0) for x, e in zip(pair, raised, strict=True)]
    total = raised[0] + raised[1]
    total = f.select(total.eq(0), 1, total)
    return [e / total for e in raised]
