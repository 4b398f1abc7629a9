"""Matrix products: tiles of A (..., m, k) times B (..., k, n), with a tree at the end.

In: A and B of any strides, batches broadcast. Out: their product, summed in float32, float64 or int32, under
the kernel's tree. Where k is cut among programs, the last of them adds up the sums: see `parts`.
"""

from __future__ import annotations

from ....records import dataclass
from ..epilogue import Closing, Walk
from ..parts import Parts
from ..write import Writer, kernel

ONE, EACH, MIDDLE, MARGIN = "one", "each", "middle", "margin"
"""Zero points: one number for all, one for each row of A or column of B, or 128 of unsigned bytes; or one
number that stands beside an image and is subtracted elsewhere."""


@dataclass(frozen=True)
class Tile:
    """What a program computes: `m` rows by `n` columns, `k` elements of the sums at a time; `group`: tiles
    above each other that run side by side, which share columns of B."""

    m: int
    n: int
    k: int
    group: int = 8
    warps: int = 4
    stages: int = 2


def summed(dtype: str) -> str:
    """The type of sums of products of this type."""
    if "int8" in dtype:
        return "int32"
    return dtype if "int" in dtype or dtype == "float64" else "float32"


class Numbers:
    """What is multiplied by what. `precision`: of products of float32, as `tl.dot` calls it; `zeros`: what is
    subtracted from bytes, ONE, EACH, MIDDLE or None."""

    dtypes: tuple[str, str]
    precision: str
    zeros: tuple[str | None, str | None]

    @property
    def total(self) -> str:
        """The type of sums."""
        return summed(self.dtypes[0])

    @property
    def lacks(self) -> tuple[int, int]:
        """What is missing in unsigned bytes, which are multiplied as signed ones."""
        first, second = (128 if dtype == "uint8" else 0 for dtype in self.dtypes)
        return first, second

    @property
    def subtracts(self) -> tuple[bool, bool]:
        """Whether something is subtracted from bytes as they are multiplied."""
        first, second = (how in (ONE, EACH) or (how is None and lack != 0)
                         for how, lack in zip(self.zeros, self.lacks, strict=True))
        return first, second

    def points(self, k: Writer) -> list[str | None]:
        """Declare the zero points."""
        return [k.pointer(f"zero_{name}", dtype) if how in (ONE, EACH, MARGIN) else None
                for name, how, dtype in zip("ab", self.zeros, self.dtypes, strict=True)]


@dataclass(frozen=True)
class Factors(Numbers):
    """How A and B are read. `walk`: of both over batches, rows and columns; `depth`: their strides along k, a
    letter each as in a `Walk`."""

    dtypes: tuple[str, str]
    walk: Walk
    depth: tuple[str, str]
    precision: str = "ieee"
    zeros: tuple[str | None, str | None] = (None, None)

    @property
    def signature(self) -> str:
        """All of it as text: types, letters of rows and columns, precision, zero points."""
        letters = "_".join("".join(kinds) or "-" for kinds in self.walk.kinds)
        zeros = "_".join(str(z) for z in self.zeros if z is not None)
        return " ".join(filter(None, ("_".join(self.dtypes), letters, "".join(self.depth), self.precision,
                                      zeros)))

    def along(self, k: Writer) -> list[str]:
        """Declare the strides along k."""
        return [k.size(f"along_{name}") if kind == "s" else "1"
                for name, kind in zip("ab", self.depth, strict=True)]


@kernel
def products(k: Writer, *, factors: Factors, closing: Closing, tile: Tile, even: bool, cut: bool) -> None:
    """A·B. Programs count parts of k, if it is `cut`, batches and tiles; `even`: each part of k is a multiple
    of tiles."""
    a, b = (k.pointer(name, "int8" if "int8" in dtype else dtype)
            for name, dtype in zip("ab", factors.dtypes, strict=True))
    zeros = factors.points(k)
    parts = Parts(k, factors.total, cut)
    close = closing.declare(k)
    m = k.count("m", factors.walk.near(1) or closing.walk.near(1))
    n, depth, part, batches = k.size("n"), k.count("depth", not even), k.size("part"), k.count("batches")
    along = factors.along(k)
    walking = factors.walk.declare(k, "in")
    place(k, m, n, tile)
    k.text(f"""
        batch = piece % {batches}
        first = piece // {batches} * {part}
        last = tl.minimum(first + {part}, {depth})
        rm = row * {tile.m} + tl.arange(0, {tile.m})
        rn = column * {tile.n} + tl.arange(0, {tile.n})
        rk = tl.arange(0, {tile.k})
    """)
    k.warps, k.stages = tile.warps, tile.stages
    rows, columns = ("rm[:, None]", f"rm[:, None] < {m}"), ("rn[None, :]", f"rn[None, :] < {n}")
    indices = [("batch", None), rows, columns]
    wide = ".to(tl.int64)" if factors.walk.wide else ""
    masks = []
    for i, (name, pointer, depths) in enumerate((("a", a, "rk[None, :]"), ("b", b, "rk[:, None]"))):
        (at, mask), = walking.offsets([i], indices)
        masks.append(mask)
        k.text(f"{name}_at = {pointer} + ({at}) + ({depths} + first){wide} * {along[i]}")
    sums = Sums(k, factors, tile)
    with k.block(f"for step in range(first, last, {tile.k}):"):
        values = [_tile_of(k, factors, tile, i, mask, even) for i, mask in enumerate(masks)]
        sums.add(*values)
        k.text("\n".join(f"{name}_at += {_times(tile.k, by)}" for name, by in zip("ab", along, strict=True)))
    value = sums.less(zeros, ("rm", f"rm < {m}"), ("rn", f"rn < {n}"), "(last - first)")
    with parts.last("program", f"{batches} * tiles", [value], *lying(tile)) as (value,):
        close.store(value, [("batch", None), rows, columns])


def lying(tile: Tile) -> tuple[str, int]:
    """Where an element of a tile is in memory of the tile's own, and how many there are."""
    return f"(tl.arange(0, {tile.m})[:, None] * {tile.n} + tl.arange(0, {tile.n})[None, :])", tile.m * tile.n


def place(k: Writer, m: str, n: str, tile: Tile) -> None:
    """Which tile a program has: `row` and `column` count tiles, `piece` whole products."""
    k.text(f"""
        tiles_m = tl.cdiv({m}, {tile.m})
        tiles_n = tl.cdiv({n}, {tile.n})
        tiles = tiles_m * tiles_n
        program = {_dealt(k)}
        piece = program // tiles
        spot = program % tiles
    """)
    if tile.group == 1:
        k.text("""
            row = spot // tiles_n
            column = spot % tiles_n
        """)
        return
    k.text(f"""
        band = spot // ({tile.group} * tiles_n)
        within = spot % ({tile.group} * tiles_n)
        high = tl.minimum(tiles_m - band * {tile.group}, {tile.group})
        row = band * {tile.group} + within % high
        column = within // high
    """)


def _dealt(k: Writer) -> str:
    """The program's number, such that neighbours run on one die, whose cache they share."""
    dies = k.target.dies
    if dies == 1:
        return "tl.program_id(0)"
    k.text(f"""
        die = tl.program_id(0) % {dies}
        programs = tl.num_programs(0)
    """)
    return f"die * (programs // {dies}) + tl.minimum(die, programs % {dies}) + tl.program_id(0) // {dies}"


def _tile_of(k: Writer, factors: Factors, tile: Tile, i: int, mask: str | None, even: bool) -> str:
    """A tile of a factor, zeros outside."""
    name, lack = "ab"[i], factors.lacks[i]
    depth = None if even else ("rk[None, :]", "rk[:, None]")[i] + " < last - step"
    inside = " & ".join(f"({m})" for m in (mask, depth) if m is not None)
    other = f", mask={inside}, other={-lack}" if inside else ""
    value = k.let(f"tl.load({name}_at{other})", name)
    if mask is None:
        size = (f"{tile.m}, {tile.k}", f"{tile.k}, {tile.n}")[i]
        value = k.let(f"tl.broadcast_to({value}, ({size}))", name)
    return k.let(f"{value} ^ -128", name) if lack else value


def _times(count: int, by: str) -> str:
    return str(count) if by == "1" else f"{count} * {by}"


class Sums:
    """The accumulators: of the product, the variable `acc`, and, for zero points, of rows of A and columns of
    B."""

    def __init__(self, k: Writer, factors: Numbers, tile: Tile) -> None:
        self.k, self.factors = k, factors
        k.text(f"acc = tl.zeros(({tile.m}, {tile.n}), {k.typed(factors.total)})")
        self.subtracts = factors.subtracts
        if self.subtracts[1]:
            k.text(f"sum_a = tl.zeros(({tile.m},), tl.int32)")
        if self.subtracts[0]:
            k.text(f"sum_b = tl.zeros(({tile.n},), tl.int32)")

    def add(self, a: str, b: str, to: str = "acc") -> None:
        """Add the product of a tile of each."""
        k, total = self.k, self.factors.total
        how = f"input_precision='{self.factors.precision}', " if total == "float32" else ""
        k.text(f"{to} = tl.dot({a}, {b}, {to}, {how}out_dtype={k.typed(total)})")
        if self.subtracts[1]:
            k.text(f"sum_a += tl.sum({a}.to(tl.int32), 1)")
        if self.subtracts[0]:
            k.text(f"sum_b += tl.sum({b}.to(tl.int32), 0)")

    def less(self, zeros: list[str | None], row: tuple[str, str], column: tuple[str, str], count: str) -> str:
        """The product, of sums of `count`, less what zero points take of it; rows and columns by their index
        and the mask of it."""
        if not any(self.subtracts):
            return "acc"
        first = self._zero(0, zeros[0], row, "[:, None]")
        second = self._zero(1, zeros[1], column, "[None, :]")
        terms = []
        if second is not None:
            terms.append(f"{second} * sum_a[:, None]")
        if first is not None:
            terms.append(f"{first} * sum_b[None, :]")
        both = "" if first is None or second is None else f" + {count} * {first} * {second}"
        return self.k.let(f"acc - {' - '.join(terms)}{both}", "acc")

    def _zero(self, i: int, pointer: str | None, index: tuple[str, str], spread: str) -> str | None:
        """A factor's zero point, less what its bytes lack."""
        k, lack = self.k, self.factors.lacks[i]
        if not self.subtracts[i]:
            return None
        if pointer is None:
            return k.let(f"tl.full((), {-lack}, tl.int32)", "zero")
        value = k.load(pointer, "0") if self.factors.zeros[i] == ONE else k.load(pointer, *index) + spread
        return k.let(f"{value}.to(tl.int32) - {lack}", "zero")
