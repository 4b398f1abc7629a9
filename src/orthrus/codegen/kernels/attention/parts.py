"""What attention kernels are made of: squares of vectors transposed and folded, weights, rows of stored
numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from ....records import dataclass
from ...write import vmath
from ...write.body import Body
from ...write.convert import convert
from ...write.emit import F32, I1, I32, I64, V, vec
from ...write.expr import LLVM

Empty = Literal["zero", "nan", "guarded"]
"""What a row becomes that sees no key, all of its scores being -inf: `zero` or `nan`; `guarded`: zero, as
every row does with a weight that is NaN."""

_POWERS = (1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
           2.402264791363012e-1, 6.931472028550421e-1, 1.0)
"""2^r for |r| <= 1/2, highest power first."""


@dataclass(frozen=True)
class AttentionForm:
    """What of an attention a kernel is written for.

    `mask_step`: the mask's stride along keys, 0 or 1, None without one. `bounded`: not every query sees all
    keys. `ends_type`: the type of `ends`, empty where all batch entries have all keys. `trailing`: queries
    are the last of their entry. `capped`: scores are bounded softly. `sunk`: there is a `sink`. `kept`: there
    is a `keep`. `rounded`: scores are rounded to `dtype`.
    """

    dtype: str
    size: int
    value_size: int
    mask_step: int | None = None
    bounded: bool = False
    ends_type: str = ""
    trailing: bool = False
    capped: bool = False
    sunk: bool = False
    kept: bool = False
    empty: Empty = "zero"
    rounded: bool = False


class View:
    """A tensor (batch, head, position, feature) of a kernel, its features side by side: `base` is its
    address, the cells from `cell` on hold the strides of the first three axes."""

    def __init__(self, f: Body, base: V, cell: int, dtype: str) -> None:
        self.f, self.base, self.elem = f, base, LLVM[dtype]
        self.batch, self.head, self.step = (f.arg(cell + i, I64) for i in range(3))

    def at(self, batch: V, head: V, position: V | int = 0) -> V:
        """The address of one position's features."""
        index = batch * self.batch + head * self.head
        if isinstance(position, V):
            index = index + position * self.step
        return self.f.gep(self.base, index, self.elem)


def transpose(f: Body, rows: Sequence[V]) -> list[V]:
    """The columns of a square of vectors."""
    lanes = len(rows)
    parts = range(lanes // 4)

    def zipped(x: V, y: V, up: int) -> V:
        return f.shuffle(x, y, [o + 4 * i + j + up for i in parts for j in (0, 1) for o in (0, lanes)])

    def paired(x: V, y: V, up: int) -> V:
        return f.shuffle(x, y, [o + 4 * i + j + up for i in parts for o in (0, lanes) for j in (0, 1)])

    def blocks(x: V, y: V, first: Sequence[int]) -> V:
        return f.shuffle(x, y, [o + 4 * i + j for o in (0, lanes) for i in first for j in range(4)])

    quads: list[list[V]] = []
    for g in range(0, lanes, 4):
        a, b, c, d = rows[g:g + 4]
        low, high = (zipped(a, b, 0), zipped(c, d, 0)), (zipped(a, b, 2), zipped(c, d, 2))
        quads.append([paired(*low, 0), paired(*low, 2), paired(*high, 0), paired(*high, 2)])
    out: list[list[V]] = [[] for _ in parts]
    for j in range(4):
        w = [q[j] for q in quads]
        if len(w) == 2:
            w = [blocks(w[0], w[1], [0]), blocks(w[0], w[1], [1])]
        elif len(w) == 4:
            halves = [(blocks(w[0], w[1], at), blocks(w[2], w[3], at)) for at in ((0, 1), (2, 3))]
            w = [blocks(*halves[b // 2], [b % 2, b % 2 + 2]) for b in range(4)]
        elif len(w) > 4:
            for apart in (1 << i for i in range(len(w).bit_length() - 1)):
                even, odd = ([4 * (k & ~apart | up) + lanes * bool(k & apart) + n for k in parts
                              for n in range(4)] for up in (0, apart))
                for i in (i for i in parts if not i & apart):
                    x, y = w[i], w[i + apart]
                    w[i], w[i + apart] = f.shuffle(x, y, even), f.shuffle(x, y, odd)
        for part, column in zip(out, w, strict=True):
            part.append(column)
    return [column for part in out for column in part]


def fold(f: Body, rows: Sequence[V], combine: Callable[[V, V], V]) -> V:
    """Lane r is the combination of the lanes of `rows[r]`; as many vectors as they have lanes."""
    lanes = group = len(rows)
    while len(rows) > 1:
        halves = [[o + g + i for o in (0, lanes) for g in range(0, lanes, group)
                   for i in range(start, start + group // 2)] for start in (0, group // 2)]
        rows = [combine(f.shuffle(x, y, halves[0]), f.shuffle(x, y, halves[1]))
                for x, y in zip(rows[::2], rows[1::2], strict=True)]
        group //= 2
    return rows[0]


def ceil(x: int, to: int) -> int:
    return -(-x // to) * to


def up(x: V, to: int) -> V:
    """`x`, not negative, rounded up to a multiple of `to`, a power of two."""
    return (x + (to - 1)) & -to


def wide_load(f: Body, dtype: str, base: V, at: int | V, mask: V | None = None) -> V:
    """A vector of stored numbers as float32; 0 outside `mask`."""
    x = f.load_masked(vec(LLVM[dtype], f.machine.lanes()), base, at, mask)
    return convert(f, x, dtype, "float32")


def narrow_store(f: Body, x: V, dtype: str, base: V, at: int | V, mask: V | None) -> None:
    x = convert(f, x, "float32", dtype)
    f.store_masked(x, base, at, mask)


def as_stored(f: Body, x: V, dtype: str) -> V:
    """Scores as the type has them: what a mask adds is all that is left of one that it shuts out, so that a
    row of such is even."""
    return x if dtype == "float32" else convert(f, convert(f, x, "float32", dtype), dtype, "float32")


def masked_scores(f: Body, form: AttentionForm, x: V, inside: V, keeping: tuple[V, V], bias: tuple[V, V],
                  place: Callable[[V, bool], int | V]) -> V:
    """Scores `x` of a vector of keys, with what `keeping` and `bias` say of them, each an address and the
    stride from row to row; `place` says where the row's number is there, or, if True, those of these keys."""
    zero, unseen = f.zero(x.ty), f.const(x.ty, -math.inf)
    if form.kept:
        counts = f.load_masked(vec(I1, x.lanes), keeping[0], place(keeping[1], True), inside)
        x = f.select(counts, x, unseen if form.mask_step is None else zero)
    if form.mask_step == 0:
        x = x + f.splat(f.load(F32, bias[0], place(bias[1], False)), x.lanes)
    elif form.mask_step == 1:
        x = x + f.load_masked(x.ty, bias[0], place(bias[1], True), inside, -math.inf)
    return as_stored(f, x, form.dtype) if form.rounded else x


def columns_of(f: Body, size: int) -> list[tuple[int, V | None]]:
    """Where the vectors of a row of `size` start, each with the mask of its tail."""
    lanes = f.machine.lanes()
    return [(c, None if c + lanes <= size else f.const(vec("i1", lanes),
                                                       [c + i < size for i in range(lanes)]))
            for c in range(0, size, lanes)]


_MAGIC = 1.5 * 2.0 ** 23 + 127
"""What makes a sum an integer in its low bits, the exponent of a float32 above them once shifted."""


def weight_of(f: Body, x: V) -> V:
    """e^x for x <= 0, 0 below -87, NaN for NaN. The relative error grows with |x|, to 1e-6 where weights no
    longer count."""
    shifted = f.fma(x, math.log2(math.e), _MAGIC)
    r = f.fma(x, math.log2(math.e), -(shifted - _MAGIC))
    y = f.const(x.ty, _POWERS[0])
    for c in _POWERS[1:]:
        y = f.fma(y, r, c)
    scaled = y * f.bitcast(f.bitcast(shifted, vec(I32, x.lanes)) << 23, x.ty)
    return f.select(x < -87.0, 0.0, scaled)


def counted(f: Body, weight: V, distance: V) -> V:
    """A weight where the score's distance from the largest says that it is one, else 0: no NaN."""
    return f.select(f.compare("le", distance, 0.0), weight, 0.0)


def share_of(f: Body, weight: V, empty: Empty) -> V:
    """One over a row's sum of weights; what a row gets whose sum is 0 or NaN is said by `empty`."""
    if empty == "nan":
        return 1.0 / weight
    some = f.compare("gt", weight, 0.0) if empty == "guarded" else f.compare("ne", weight, 0.0)
    return f.select(some, 1.0 / weight, 0.0)


def softcapped(f: Body, x: V, cap: V) -> V:
    spread = f.splat(cap, x.lanes)
    return vmath.tanh(f, x / spread) * spread
