"""What comes of the leaves: base values, post transforms and labels, for `TreeEnsembleClassifier`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....records import dataclass
from ...write import vmath
from ...write.body import Body
from ...write.emit import F32, I32, I64, V, vec
from ...write.template import template


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
