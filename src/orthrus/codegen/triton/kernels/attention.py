"""Attention on GPUs: tiles of queries over tiles of keys, with a softmax that runs on from tile to tile.

Queries, keys, values, results and masks lie anywhere, by strides of their own. A program has a tile of query
rows of one head or, where queries are few, of all heads that share a key head; few rows over many keys are
divided over programs, of which the last one adds up all sums in order: see `parts`. Row
i sees the keys from i + shift - left to i + shift + right, and none from the end on; what a row gives that
sees none, `Empty` says. Scores and sums are float32. """

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....records import dataclass
from ....shapes.symbolic import choice
from ...kernels.attention.parts import Empty
from ..parts import last_of
from ..targets import HIP, Target
from ..write import Spec, Writer, kernel
from .entering import GROWN, Entering, Grown, View

MOST = 512
"""Features that a head may have."""

_LOG2E = math.log2(math.e)
_UNSEEN = 'float("-inf")'
_SMALL = 64 << 10
"""Bytes of shared memory that tiles of 128 rows and two stages are too much for."""

_AHEAD, _REGISTERS = 8, 64
"""Shares that are read before the first is added, and what a thread holds of them, at most."""

_FEW = 32
"""Keys up to which weights of halves are not rounded, as this costs little there."""


@dataclass(frozen=True)
class AttentionForm:
    """What of an attention a kernel is written for. `near`: of q, k, v and the result, whether features lie
    side by side; `mask`: the type of what is added to the scores, or excludes keys where it is `bool`;
    `mask_step`: its stride along keys where that is 0 or 1; `left`, `right`: whether a row sees not all keys
    before or behind it; `ends`: the type of how many keys each batch entry has, all where empty; `trailing`:
    queries are the last of them; `sink`: the type of the score, per head, of a further key without value;
    `precision`: how Triton multiplies float32; `exact`: weights of halves meet their values in float32;
    `kept`: of scores that a tensor of bool does not keep, 0 is left, or -inf without a mask; `empty`: what a
    row becomes that sees no key; `rounded`: masked scores are of type `dtype`; `grown`: see there."""

    dtype: str
    size: int
    value_size: int
    near: tuple[bool, bool, bool, bool] = (True, True, True, True)
    mask: str = ""
    mask_step: int | None = None
    left: bool = False
    right: bool = False
    ends: str = ""
    trailing: bool = False
    capped: bool = False
    sink: str = ""
    precision: str = "ieee"
    exact: bool = False
    kept: bool = False
    empty: Empty = "zero"
    rounded: bool = False
    grown: Grown | None = None

    def share(self) -> str:
        """One over a row's sum of weights."""
        if self.empty == "nan":
            return "1.0 / weight"
        some = "weight > 0" if self.empty == "guarded" else "weight != 0"
        return f"tl.where({some}, 1.0 / weight, 0.0)"

    @property
    def natural(self) -> bool:
        """Whether scores are to base e: what is added to them, or caps them, is."""
        return self.capped or self.mask not in ("", "bool")


def parts(size: int) -> list[tuple[int, int]]:
    """Where the features of a head are divided, (first, width), so that widths are powers of two."""
    whole = max(16, 1 << (size.bit_length() - 1))
    if size <= whole:
        return [(0, whole)]
    rest = max(16, 1 << (size - whole - 1).bit_length())
    return [(0, whole), (whole, rest)] if rest < whole else [(0, 2 * whole)]


class _Attending:
    """One kernel while it is written: what its parts need to know of each other."""

    def __init__(self, k: Writer, form: AttentionForm, rows: int, keys: int, folded: bool, most: int
                 ) -> None:
        self.k, self.form, self.rows, self.keys, self.most = k, form, rows, keys, most
        self.folded, self.single = folded, rows == 1
        self.sizes, self.value_sizes = parts(form.size), parts(form.value_size)

    def declare(self) -> None:
        k, form = self.k, self.form
        grown = form.grown
        given = dict.fromkeys((*"qkv", *(GROWN if grown else ())), form.dtype)
        given |= {"mask": form.mask, "ends": form.ends, "sink": form.sink}
        given |= {"keep": "bool"} if form.kept else {}
        if grown:
            given |= {"begins": grown.begins, "status": "" if grown.sure else "int64"}
            given |= dict.fromkeys(("cos", "sin") if grown.half else (), form.dtype)
        for name, dtype in given.items():
            if dtype:
                k.pointer(name, dtype)
        if self.most > 1:
            k.pointer("sums", "float32")
            k.pointer("weights", "float32")
            k.pointer("arrived", "int32")
        k.pointer("out", form.dtype)
        for name in ("groups", "group", "length", "total", "tiles", "splits", "per", "shift", "left", "right",
                     "ends_add"):
            k.count(name)
        k.number("scale")
        k.number("cap")
        if grown:
            for name in ("rows_held", "capacity", "fresh_add", *(("places", "c_s") if grown.half else ())):
                k.count(name)
        self.q, self.keys_at, self.values_at = (
            View.declare(k, n, near) for n, near in zip("qkv", form.near[:3], strict=True))
        self.out = View.declare(k, "out", form.near[3])
        if grown:
            self.entering = Entering(k, grown, form.dtype, [
                View.declare(k, n, near) for n, near in zip(GROWN, grown.near, strict=True)])
        if form.mask:
            self.bias = [k.count(f"mask_s{i}") for i in range(4)]
        if form.kept:
            self.counted = [k.count(f"keep_s{i}") for i in range(4)]

    def place(self) -> None:
        """Which rows a program has, and which keys they see."""
        form, rows, k = self.form, self.rows, self.k
        k.text(f"""
            unit = tl.program_id(0)
            split = unit % splits
            unit = unit // splits
            tile = tiles - 1 - unit % tiles
            unit = unit // tiles
            batch = (unit // groups).to(tl.int64)
            row = tile * {rows} + tl.arange(0, {rows})
            key = tl.arange(0, {self.keys})
        """)
        if self.folded:
            k.text(f"""
                shared = (unit % groups).to(tl.int64)
                head = (shared * group + row % group)[:, None]
                position = row // group
                first, last = tile * {rows} // group, (tile * {rows} + {rows} - 1) // group
            """)
        else:
            k.text(f"""
                head = (unit % groups).to(tl.int64)
                shared = head // group
                position = row
                first, last = tile * {rows}, tile * {rows} + {rows - 1}
            """)
        k.text("""
            inside = position < length
            last = tl.minimum(last, length - 1)
            entry = total
        """)
        if form.ends:
            k.text("entry = tl.load(ends + batch).to(tl.int32) + ends_add")
        k.text(f"""
            offset = {"entry - length" if form.trailing else "shift"}
            limit = tl.maximum(tl.minimum(entry, total), 0)
            begin, end = split * per, tl.minimum(split * per + per, limit)
        """)
        if form.left:
            k.text(f"""
                begin = tl.maximum(begin, tl.maximum(first + offset - left, 0) // {self.keys} * {self.keys})
            """)
        if form.right:
            k.text("end = tl.minimum(end, last + offset + right + 1)")
        free = "end"
        if form.left or form.right:
            free = "begin" if form.left else "tl.minimum(end, first + offset + right + 1)"
        if form.grown:
            self.entering.place()
            free = f"tl.minimum({free}, solid)"
        k.text(f"middle = begin + tl.maximum({free} - begin, 0) // {self.keys} * {self.keys}")

    def _features(self, first: int, width: int, size: int) -> tuple[str, str | None]:
        """Numbers of features, and which of them there are where not all are."""
        index = self.k.let(f"{first} + tl.arange(0, {width})", "feature")
        return index, f"{index} < {size}" if first + width > size else None

    def load_queries(self) -> None:
        k, q = self.k, self.q
        self.queries, self.feature = [], []
        for first, width in self.sizes:
            d, whole = self._features(first, width, self.form.size)
            self.feature.append((d, whole))
            at = q.at("position[:, None]", f"{d}[None, :]")
            mask = "inside[:, None]" + (f" & ({whole})[None, :]" if whole else "")
            value = k.load("q", at, mask)
            if self.form.grown:
                value = self.entering.turned(
                    value, "q", lambda feature: q.at("position[:, None]", f"{feature}[None, :]"), d,
                    "(fresh + position)[:, None]", "[None, :]", mask)
            self.queries.append(value)
        self.value_feature = [self._features(first, width, self.form.value_size)
                              for first, width in self.value_sizes]

    def start(self) -> None:
        """The largest score so far, the sum of weights, and the sums of values: for one row, by key until the
        end."""
        form, k, rows = self.form, self.k, self.rows
        depth = self.keys if self.single else rows
        k.text(f"""
            top = tl.full(({rows},), {_UNSEEN}, tl.float32)
            weight = tl.zeros(({depth},), tl.float32)
        """)
        for i, (_, width) in enumerate(self.value_sizes):
            k.text(f"mixed{i} = tl.zeros(({depth}, {width}), tl.float32)")
        if form.sink:
            mine = f"tl.reshape(head, ({rows},))" if self.folded else "head"
            score = f"tl.load(sink + {mine}).to(tl.float32)" + ("" if form.natural else f" * {_LOG2E!r}")
            k.text(f"top = tl.where((split == 0) & inside, {score}, top)")
            some = f"tl.where(top > {_UNSEEN}, 1.0, 0.0)"
            k.text(f"weight = {f'tl.where(key == 0, {some}, 0.0)' if self.single else some}")

    def over(self, begin: str, end: str, bounded: bool) -> None:
        """The loop over the tiles of keys from `begin` to `end`; `bounded`: not every row sees all of
        them. Where old and new rows meet, none are read ahead: both would take room."""
        once = ", num_stages=1" if bounded and self.form.grown else ""
        with self.k.block(f"for start in tl.range({begin}, {end}, {self.keys}{once}):"):
            self._tile(bounded)

    def _tile(self, bounded: bool) -> None:
        k, form = self.k, self.form
        k.text("column = start + key")
        if form.grown and bounded:
            k.text("mine = (column >= fresh) & (column < tl.minimum(fresh + length, limit)) & fits")
        for it in (self.keys_at, self.values_at):
            old = self.entering.old(it) if form.grown else it
            k.text(f"{it.name}_tile = {old.name} + batch * {old.batch} + shared * {old.head} + "
                   f"start.to(tl.int64) * {old.step}")
        score = self._scores(bounded)
        score = self._weighed(score, bounded)
        k.text(f"""
            peak = tl.maximum(top, tl.max({score}, {0 if self.single else 1}))
            calm = tl.where(peak == {_UNSEEN}, 0.0, peak)
        """)
        by = f" * {_LOG2E!r}" if form.natural else ""
        across = "calm" if self.single else "calm[:, None]"
        k.text(f"""
            chance = tl.exp2(({score} - {across}){by})
            fade = tl.exp2((top - calm){by})
            weight = weight * fade + {"chance" if self.single else "tl.sum(chance, 1)"}
        """)
        if form.empty == "guarded":
            k.text(f"""
                chance = tl.where({score} <= {across}, chance, 0.0)
                fade = tl.where(top <= calm, fade, 0.0)
            """)
        k.text("top = peak")
        self._mix(bounded)

    def _rows_of(self, view: View, d: str, whole: str | None, bounded: bool, turned: bool) -> str:
        """A tile of keys or values: (key, feature), or (feature, key) where `turned`."""
        of_key, of_feature = ("[None, :]", "[:, None]") if turned else ("[:, None]", "[None, :]")
        grown = self.form.grown is not None
        old = self.entering.old(view) if grown else view
        masks = [f"(column < {'tl.minimum(solid, limit)' if grown else 'limit'}){of_key}"] if bounded else []
        masks += [f"({whole}){of_feature}"] if whole else []
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        rows = self.k.let(f"tl.load({view.name}_tile + key{of_key} * {old.step} + {d}{of_feature} * "
                          f"{old.feature}{mask})")
        if not grown or not bounded:
            return rows
        new = self.entering.new(view, "column - fresh", d, whole, of_key, of_feature)
        return self.k.let(f"tl.where(mine{of_key}, {new}, {rows})")

    def _dot(self, a: str, b: str, acc: str | None, precision: str = "") -> str:
        how = precision or (self.form.precision if self.form.dtype == "float32" else "")
        how = f', input_precision="{how}"' if how else ""
        return f"tl.dot({a}, {b}{f', {acc}' if acc else ''}{how})"

    def _scores(self, bounded: bool) -> str:
        score = None
        for q, (d, whole) in zip(self.queries, self.feature, strict=True):
            rows = self._rows_of(self.keys_at, d, whole, bounded, not self.single)
            if self.single:
                term = f"tl.sum({q}.to(tl.float32) * {rows}.to(tl.float32), 1)"
                score = self.k.let(term if score is None else f"{score} + {term}")
            else:
                score = self.k.let(self._dot(q, rows, score))
        assert score is not None
        if self.form.capped:
            return self.k.let(f"libdevice.tanh({score} * scale) * cap")
        return self.k.let(f"{score} * scale")

    def _weighed(self, score: str, bounded: bool) -> str:
        """Scores with what is added to them, and none where a row does not see a key."""
        k, form = self.k, self.form
        of_key, of_row = ("", "") if self.single else ("[None, :]", "[:, None]")
        tests = [f"(column < limit){of_key}"] if bounded else []

        def taken(name: str, strides: list[str], step: int | None) -> str:
            """A mask's elements of the tile."""
            batch, head, row, along = strides
            place = f"batch * {batch} + head * {head} + position{of_row}.to(tl.int64) * {row}"
            masks = [f"inside{of_row}"]
            if step != 0:
                place += f" + column{of_key}" + ("" if step == 1 else f".to(tl.int64) * {along}")
                masks += tests[:1]
            return k.load(name, place, " & ".join(masks))
        added = taken("mask", self.bias, form.mask_step) if form.mask else ""
        if form.kept:
            counts = taken("keep", self.counted, None)
            score = k.let(f"tl.where({counts}, {score}, {'0.0' if form.mask else _UNSEEN})")
        if form.mask == "bool":
            tests.append(added)
        elif form.mask:
            score = k.let(f"{score} + {added}.to(tl.float32)")
            if form.rounded and form.dtype != "float32":
                score = k.let(f"{score}.to({k.typed(form.dtype)}).to(tl.float32)")
        if bounded and form.left:
            tests.append(f"(column{of_key} >= (position + offset - left){of_row})")
        if bounded and form.right:
            tests.append(f"(column{of_key} <= (position + offset + right){of_row})")
        return k.let(f"tl.where({' & '.join(tests)}, {score}, {_UNSEEN})") if tests else score

    def _mix(self, bounded: bool) -> None:
        k = self.k
        for i, (d, whole) in enumerate(self.value_feature):
            rows = self._rows_of(self.values_at, d, whole, bounded, False)
            if self.single:
                k.text(f"mixed{i} = mixed{i} * fade + chance[:, None] * {rows}.to(tl.float32)")
            else:
                k.text(f"mixed{i} = mixed{i} * fade[:, None]")
                chance, how = f"chance.to({k.typed(self.form.dtype)})", ""
                if self.form.exact:
                    chance, rows = "chance", f"{rows}.to(tl.float32)"
                    how = "ieee" if self.form.precision == "ieee" else "tf32x3"
                k.text(f"mixed{i} = {self._dot(chance, rows, f'mixed{i}', how)}")

    def finish(self) -> None:
        """Write what the rows are, or the program's share of them."""
        k, form, rows = self.k, self.form, self.rows
        if self.single:
            k.text("weight = tl.sum(weight, 0) + tl.zeros((1,), tl.float32)")
            for i in range(len(self.value_sizes)):
                k.text(f"mixed{i} = tl.sum(mixed{i}, 0)[None, :]")
        if self.most == 1:
            k.text(f"factor = {form.share()}")
            self._store([f"mixed{i}" for i in range(len(self.value_sizes))])
            return
        k.text(f"""
            cell = unit * tiles + tile
            first_slot = (cell * splits).to(tl.int64) * {rows} + tl.arange(0, {rows})
            slot = first_slot + split * {rows}
            tl.store(weights + slot * 2, top)
            tl.store(weights + slot * 2 + 1, weight)
        """)
        for i, (d, whole) in enumerate(self.value_feature):
            k.text(f"tl.store(sums + {self._held('slot', d)}, mixed{i}, mask={self._inside(whole)})")
        with last_of(k, "cell", "splits"):
            self._join()

    def _join(self) -> None:
        """Write what the shares of all programs are together."""
        k, form, rows, most = self.k, self.form, self.rows, self.most
        power = f" * {_LOG2E!r}" if form.natural else ""
        k.text(f"""
            each = tl.arange(0, {most})[None, :]
            slots = (first_slot[:, None] + each * {rows}) * 2
            tops = tl.load(weights + slots, mask=each < splits, other={_UNSEEN}, cache_modifier=".cg")
            peak = tl.max(tops, 1)
            calm = tl.where(peak == {_UNSEEN}, 0.0, peak)
            held = tl.load(weights + slots + 1, mask=each < splits, other=0.0, cache_modifier=".cg")
            weight = tl.sum(tl.exp2((tops - calm[:, None]){power}) * held, 1)
            factor = {form.share()}
        """)
        whole = [k.let(f"tl.zeros_like(mixed{i})", "whole") for i in range(len(self.value_sizes))]
        wide = sum(width for _, width in self.value_sizes)
        ahead = max(1, min(_AHEAD, _REGISTERS * k.warps * k.target.warp // (rows * wide), most))
        with k.block(f"for other in range(0, splits, {ahead}):"):
            shares, reads = list[str](), list[list[str]]()
            for a in range(ahead):
                at = k.let(f"first_slot + (other + {a}) * {rows}", "slot")
                there = f"other + {a} < splits"
                top = k.let(f"tl.load(weights + {at} * 2, mask=tl.broadcast_to({there}, ({rows},)), "
                            f"other={_UNSEEN}, cache_modifier='.cg')", "top")
                share = f"tl.exp2(({top} - calm){power})"
                shares.append(f"tl.where({top} <= calm, {share}, 0.0)" if form.empty == "guarded" else share)
                reads.append([k.let(f"tl.load(sums + {self._held(at, d)}, mask={self._inside(some)} & "
                                    f"({there}), other=0.0, cache_modifier='.cg')", "part")
                              for d, some in self.value_feature])
            for share, parts in zip(shares, reads, strict=True):
                by = k.let(share, "share")
                for to, part in zip(whole, parts, strict=True):
                    k.text(f"{to} += {part} * {by}[:, None]")
        self._store(whole)

    def _held(self, slot: str, feature: str) -> str:
        """Where the sums of values of a slot are."""
        return f"{slot}[:, None] * {self.form.value_size} + {feature}[None, :]"

    def _inside(self, whole: str | None) -> str:
        return f"inside[:, None] & ({whole})[None, :]" if whole else "inside[:, None]"

    def _store(self, values: Sequence[str]) -> None:
        """Write the rows."""
        for value, (d, whole) in zip(values, self.value_feature, strict=True):
            self.k.store("out", self.out.at("position[:, None]", f"{d}[None, :]"),
                         f"{value} * factor[:, None]", self._inside(whole))


@kernel
def attend(k: Writer, *, form: AttentionForm, rows: int, keys: int, folded: bool, most: int, warps: int,
           stages: int) -> None:
    """softmax(q k' scale + mask) v, a tile of `rows` query rows a program, over `keys` keys at a time;
    `folded`: rows are those of all query heads that share a key head; `most`: programs that share a tile, at
    most, each over `per` keys."""
    k.warps, k.stages, k.options["enable_fp_fusion"] = warps, stages, not form.capped
    it = _Attending(k, form, rows, keys, folded, most)
    it.declare()
    it.place()
    it.load_queries()
    if form.grown:
        it.entering.write(keys, "" if folded else " & (head % group == 0)", [
            (it.keys_at, it.feature), (it.values_at, it.value_feature)])
    it.start()
    it.over("begin", "middle", False)
    it.over("middle", "end", True)
    it.finish()


@dataclass(frozen=True)
class AttentionPlan:
    """How an attention is divided: tiles of `rows` query rows, `keys` keys at a time, each over `per` keys of
    `splits` shares; see `attend`."""

    form: AttentionForm
    rows: int
    keys: int
    warps: int
    stages: int
    folded: bool
    tiles: int
    splits: int
    per: int
    units: int

    @property
    def spec(self) -> Spec:
        return attend(form=self.form, rows=self.rows, keys=self.keys, folded=self.folded,
                      most=1 << (self.splits - 1).bit_length(), warps=self.warps, stages=self.stages)

    @property
    def items(self) -> int:
        """Programs of `attend`."""
        return self.units * self.tiles * self.splits

    @property
    def slots(self) -> int:
        """Rows of sums that programs of one tile share; weights are twice as many numbers."""
        return self.items * self.rows


@choice()
def plan(target: Target, form: AttentionForm, batch: int, heads: int, kv_heads: int, length: int, total: int,
         processors: int = 128) -> AttentionPlan:
    """How `length` query rows per head over `total` keys are divided over so many multiprocessors."""
    group = heads // kv_heads
    if form.dtype != "float32" and length > 1 and total <= _FEW:
        form = replace(form, exact=True)
    folded = group > 1 and group * length <= 64
    count = group * length if folded else length
    width = max(sum(w for _, w in parts(n)) for n in (form.size, form.value_size))
    rows, keys, warps, stages = _tile(target, form, count, width)
    units, tiles = batch * (kv_heads if folded else heads), -(-count // rows)
    splits = 1
    if units * tiles < processors and count <= 64:
        splits = max(1, min(-(-total // (2 * keys)), 2 * processors // (units * tiles), 64))
    per = -(-total // (splits * keys)) * keys
    return AttentionPlan(form, rows, keys, warps, stages, folded, tiles, -(-total // per), per, units)


def _tile(target: Target, form: AttentionForm, count: int, width: int) -> tuple[int, int, int, int]:
    """Query rows and keys of a tile, warps of a block and stages of its loads, for `count` rows in all."""
    if count == 1:
        return 1, max(16, min(128, 1 << (4096 // width).bit_length() - 1)), 4, 2
    wide = 1 << (count - 1).bit_length()
    single = form.dtype == "float32" or form.exact
    if single and target.api != HIP and form.precision == "ieee" and width > 64:
        return max(16, min(wide, 32)), 16, 8, 2
    if single:
        most, keys = (32, 32) if width <= 128 else (16, 16)
        return max(16, min(wide, most)), keys, 4, 1 if target.api == HIP else 2
    most, keys, warps = (64, 32, 4) if width <= 256 else (32, 16, 4)
    if width <= 128:
        small = target.matrix == "wmma" or target.api != HIP and target.shared <= _SMALL
        most, keys, warps = (64, 64, 4) if small else (128, 64, 8)
    if target.api == HIP:
        warps = 4
    rows = max(16, min(wide, most))
    stages = 3 if target.shared >= 160 << 10 else 2
    return rows, keys, min(warps, max(rows // 16, 4)), 1 if target.api == HIP else stages


def numbers(made: AttentionPlan, heads: int, kv_heads: int, length: int, total: int,
            window: tuple[int, int, int], ends_add: int, scale: float, cap: float) -> list[Any]:
    """The arguments of `attend` between its tensors and their strides."""
    by = scale / cap if cap else scale if made.form.natural else scale * _LOG2E
    return [kv_heads if made.folded else heads, heads // kv_heads, length, total, made.tiles, made.splits,
            made.per, *window, ends_add, by, float(cap)]
