"""Non-maximum suppression: of boxes in the order of their scores, which no better one covers too much."""

from __future__ import annotations

from ..write.body import Body
from ..write.emit import F32, I32, I64, V, vec
from ..write.template import template
from ..write.vmath import any_lane
from .reduce import order_key

SIDES = 4
_WORST = -1 << 31


def scratch(boxes: int, most: int, lanes: int) -> int:
    """Bytes that a thread needs to order `boxes` of one list and to keep `most` of them."""
    return 8 * boxes + 4 * (SIDES + 1) * (most + lanes)


@template("boxes:ptr scores:ptr total:i64 classes:i64 most:i64 limit:float least:float rows:ptr counts:ptr")
def suppressed(f: Body, boxes: V, scores: V, total: V, classes: V, most: V, limit: V, least: V, rows: V,
               counts: V, *, centered: bool, bounded: bool) -> None:
    """An item is a list: the `total` boxes of an image in the order of their `scores` (float32
    [images, classes, total]) for a class, best first, of equal ones the first, NaN last; with `bounded` those
    above `least` alone. `boxes`: float32 [images, total, 4], two opposite corners, or with `centered` centre
    and sizes. Up to `most` rows (int64: image, class, box) are written to `rows` from row `item * most` on,
    and how many to `counts[item]` (int64). Two boxes overlap too much where they share more than `limit` of
    their union; one without area overlaps none. Scratch: see `scratch`."""
    lanes = f.machine.lanes()
    ty = vec(F32, lanes)
    sides = f.gep(f.scratch, total, I64)
    room = most + lanes
    kept = [f.gep(sides, room * side, F32) for side in range(SIDES + 1)]

    def corners(given: list[V]) -> list[V]:
        first, second = given[:2], given[2:]
        if centered:
            halves = [v * 0.5 for v in second]
            pairs = [(c - h, c + h) for c, h in zip(first, halves, strict=True)]
        else:
            pairs = [(f.minimum(a, b), f.maximum(a, b)) for a, b in zip(first, second, strict=True)]
        return [low for low, _ in pairs] + [high for _, high in pairs]

    def area(box: list[V]) -> V:
        return (box[2] - box[0]) * (box[3] - box[1])

    def covered(mine: list[V], size: V, count: V) -> V:
        """Whether one of the first `count` kept boxes covers the box."""
        wide, whole = [f.splat(v, lanes) for v in mine], f.splat(size, lanes)
        bound, none = f.splat(limit, lanes), f.zero(ty)

        def some(i: V, _: V) -> tuple[V, list[V]]:
            mask = f.mask(lanes, count - i)
            better = [f.load_masked(ty, side, i, mask) for side in kept]
            spans = []
            for axis in (0, 1):
                high, low = (wide[axis + 2], better[axis + 2]), (wide[axis], better[axis])
                span = f.select(high[0] < high[1], *high) - f.select(low[0] > low[1], *low)
                spans.append(f.select(span > 0.0, span, none))
            shared = spans[0] * spans[1]
            union = better[SIDES] + whole - shared
            solid = mask & (better[SIDES] > 0.0) & (whole > 0.0) & (union > 0.0)
            safe = f.select(solid, union, f.const(ty, 1.0))
            hit = any_lane(f, solid & (shared / safe > bound))
            following = i + lanes
            return ~hit & (following < count), [following, hit]

        def look() -> V:
            _, hit = f.repeat([f.i64(0), f.const("i1", 0)], some)
            return hit
        (found,) = f.when(count > 0, look, lambda: f.const("i1", 0))
        return found

    def one_list(item: V) -> None:
        image = item // classes
        mine = f.gep(boxes, image * total * SIDES, F32)
        have = _heaped(f, f.gep(scores, item * total, F32), total, least if bounded else None)
        to = f.gep(rows, item * most * 3, I64)

        def best(left: V, count: V) -> tuple[V, list[V]]:
            place = f.cast(~f.cast(f.load(I64, f.scratch), I32), I64, unsigned=True)
            box = corners([f.load(F32, mine, place * SIDES + side) for side in range(SIDES)])
            size = area(box)

            def keep() -> V:
                for side, value in zip(kept, (*box, size), strict=True):
                    f.store(value, side, count)
                for column, number in enumerate((image, item - image * classes, place)):
                    f.store(number, to, count * 3 + column)
                return count + 1
            (count,) = f.when(covered(box, size, count), lambda: count, keep)
            left = left - 1
            _sifted(f, f.load(I64, f.scratch, left), f.i64(0), left)
            return (left > 0) & (count < most), [left, count]
        (count,) = f.when((have > 0) & (most > 0), lambda: f.repeat([have, f.i64(0)], best)[1],
                          lambda: f.i64(0))
        f.store(count, counts, item)
    f.loop(f.lo, f.hi, 1, [], one_list)


def _heaped(f: Body, scores: V, total: V, least: V | None) -> V:
    """How many of the scores are above `least`. Their keys are then in scratch, each no smaller than those at
    twice its place plus one and two: the score's rank above the complement of its place."""
    lanes = f.machine.lanes()
    ty = vec(F32, lanes)

    def one(i: V, have: V) -> V:
        score = f.load(F32, scores, i)
        rank = f.select(score.ne(score), f.const(I32, _WORST), order_key(f, score, "float32", False))
        f.store((f.cast(rank, I64) << 32) | f.cast(~f.cast(i, I32), I64, unsigned=True), f.scratch, have)
        return have + (1 if least is None else f.cast(score > least, I64))

    def several(i: V, have: V) -> list[V]:
        if least is None:
            return f.loop(i, i + lanes, 1, [have], one)
        some = any_lane(f, f.load(ty, scores, i) > f.splat(least, lanes))
        return f.when(some, lambda: f.loop(i, i + lanes, 1, [have], one), lambda: have)
    whole = total & -lanes
    (have,) = f.loop(whole, total, 1, f.loop(0, whole, lanes, [f.i64(0)], several), one)
    parents = have >> 1
    f.loop(0, parents, 1, [], lambda i: _sifted(
        f, f.load(I64, f.scratch, parents - 1 - i), parents - 1 - i, have))
    return have


def _sifted(f: Body, key: V, start: V, have: V) -> None:
    """Put `key` at place `start` of a heap of `have`, or below, what is larger moving up."""
    def down(at: V) -> tuple[V, list[V]]:
        child = (at << 1) + 1
        other = f.minimum(child + 1, have - 1)
        a, b = f.load(I64, f.scratch, child), f.load(I64, f.scratch, other)
        larger, place = f.select(b > a, b, a), f.select(b > a, other, child)
        moves = larger > key
        f.store(f.select(moves, larger, key), f.scratch, at)
        at = f.select(moves, place, at)
        return moves & ((at << 1) + 1 < have), [at]
    (last,) = f.when((start << 1) + 1 < have, lambda: f.repeat([start], down), lambda: start)
    f.when(last < have, lambda: f.store(key, f.scratch, last))
