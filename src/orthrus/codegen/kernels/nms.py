"""Non-maximum suppression: of boxes in the order of their scores, which no better one covers too much."""

from __future__ import annotations

from ..write.body import Body
from ..write.emit import F32, I64, V, vec
from ..write.template import template
from ..write.vmath import any_lane

SIDES = 4


def scratch(most: int, lanes: int) -> int:
    """Bytes that a thread needs to keep `most` boxes of one list."""
    return 4 * (SIDES + 1) * (most + lanes)


@template("boxes:ptr total:i64 starts:ptr most:i64 limit:float chosen:ptr counts:ptr")
def suppressed(f: Body, boxes: V, total: V, starts: V, most: V, limit: V, chosen: V, counts: V) -> None:
    """An item is a list: the boxes from `starts[i]` to `starts[i + 1]`, best first. `boxes`: float32
    [4, total], the lower then the upper ends along both axes. Up to `most` positions in the list are written
    to `chosen` (int64) from `starts[i]` on, and how many to `counts[i]` (int64). Two boxes overlap too much
    where they share more than `limit` of their union; one without area overlaps none."""
    lanes = f.machine.lanes()
    ty = vec(F32, lanes)
    room = most + lanes
    kept = [f.gep(f.scratch, room * side, F32) for side in range(SIDES + 1)]

    def area(sides: list[V]) -> V:
        return (sides[2] - sides[0]) * (sides[3] - sides[1])

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
        begin, end = (f.load(I64, starts, item + i, 8) for i in range(2))

        def box(at: V, count: V) -> tuple[V, list[V]]:
            mine = [f.load(F32, boxes, total * side + at) for side in range(SIDES)]
            size = area(mine)

            def keep() -> V:
                for side, value in zip(kept, (*mine, size), strict=True):
                    f.store(value, side, count)
                f.store(at - begin, chosen, begin + count, 8)
                return count + 1
            (count,) = f.when(covered(mine, size, count), lambda: count, keep)
            following = at + 1
            return (following < end) & (count < most), [following, count]

        def boxes_of() -> V:
            _, count = f.repeat([begin, f.i64(0)], box)
            return count
        (count,) = f.when((begin < end) & (most > 0), boxes_of, lambda: f.i64(0))
        f.store(count, counts, item, 8)
    f.loop(f.lo, f.hi, 1, [], one_list)
