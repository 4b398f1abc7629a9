"""Elements by index: rows and elements gathered, and folded in where indices say.

Indices count from the back where they are below 0; one out of range sets `status` and nothing is read or
written for it. Updates are folded in in their order, so that results do not depend on chance: every element
of a result has one program that writes it. """

from __future__ import annotations

from ...write.expr import Expr
from ..epilogue import Closing, Walk
from ..write import Writer, kernel

_FOLD = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def _folded(how: str, dtype: str) -> Expr:
    """An element, leaf 0, with an update, leaf 1."""
    old, new = Expr.leaf(0, dtype), Expr.leaf(1, dtype)
    if how == "none":
        return new
    real = "float32" if dtype in ("float16", "bfloat16") else dtype
    return Expr(_FOLD[how], (old.cast(real), new.cast(real)), real).cast(dtype)


def checked(k: Writer, index: str, limit: str, dtype: str) -> tuple[str, str]:
    """An index counted from the front, and whether there is such a one. One of a type without signs never
    counts from behind."""
    signed = not dtype.startswith("u")
    at = k.let(f"tl.where({index} < 0, {index} + {limit}, {index})" if signed else f"{index}.to(tl.int64)",
               "index")
    good = k.let(f"({at} >= 0) & ({at} < {limit})", "good")
    return at, good


def reported(k: Writer, bad: str) -> None:
    """Set `status` where any index is bad."""
    k.text(f"""
        some = tl.sum(({bad}).to(tl.int32)) > 0
        tl.store(status + tl.arange(0, 1), tl.full((1,), 1, tl.int64), mask=some)
    """)


@kernel
def gather_rows(k: Writer, *, closing: Closing, source: Walk, dtype: str, index: str, parts: int, rows: int,
                columns: int) -> None:
    """Places, each with a tuple of `parts` indices into x, of rows of elements: the groups of both walks;
    `source` is of x, with stride 0 where indices move it, and of the first index of each tuple. Arguments
    behind: how far a tuple's indices are apart; per index, the size and x's stride of its axis."""
    close = closing.declare(k)
    k.pointer("x", dtype)
    k.pointer("indices", index)
    k.pointer("status", "int64")
    walking = source.declare(k, "from")
    k.count("count", closing.walk.near(0))
    k.size("width")
    k.count("apart")
    moves = [(k.count(f"limit{p}"), k.size(f"stride{p}")) for p in range(parts)]
    k.text(f"""
        across = tl.cdiv(width, {columns})
        r = tl.program_id(0) // across * {rows} + tl.arange(0, {rows})
        c = tl.program_id(0) % across * {columns} + tl.arange(0, {columns})
        inside = (r < count)[:, None]
    """)
    groups = [("r[:, None]", "inside"), ("c[None, :]", "(c < width)[None, :]")]
    (place, _), (first, _) = walking.offsets([0, 1], groups)
    k.text(f"place = r[:, None].to(tl.int64) * 0 + {place}")
    k.text("fine = inside")
    for p, (limit, stride) in enumerate(moves):
        given = k.load("indices", f"({first} + {p} * apart + r[:, None] * 0)", "inside")
        at, good = checked(k, given, limit, index)
        k.text(f"fine = fine & {good}")
        k.text(f"place += tl.where({good}, {at}, 0).to(tl.int64) * {stride}")
    reported(k, "inside & (fine == 0)")
    value = k.load("x", "place", "fine & (c < width)[None, :]")
    close.store(value, groups)
    k.warps, k.stages = max(1, min(4, rows * columns // 256)), 1


@kernel
def fold_lines(k: Writer, *, walk: Walk, dtype: str, index: str, how: str, block: int) -> None:
    """Lines of indices and updates along an axis, folded into lines of a result, a line a lane: `walk` is
    over lines of the result, indices and updates; `count` indices, `limit` elements of a result's line, and
    how far elements, indices and updates are apart. `block` is as many as a block has threads, so that each
    of these writes what it alone reads."""
    k.pointer("out", dtype)
    k.pointer("indices", index)
    k.pointer("updates", dtype)
    k.pointer("status", "int64")
    walking = walk.declare(k, "at")
    for name in ("lines", "count", "limit", "out_step", "index_step", "update_step"):
        k.size(name)
    k.text(f"""
        line = tl.program_id(0) * {block} + tl.arange(0, {block})
        inside = line < lines
    """)
    (out, _), (indices, _), (updates, _) = walking.offsets([0, 1, 2], [("line", "inside")])
    zeros = " + line * 0"
    out, indices, updates = (k.let(f"({at}{zeros}).to(tl.int64)") for at in (out, indices, updates))
    k.text("wrong = line < 0")
    with k.block("for j in range(0, count):"):
        given = k.load("indices", f"{indices} + j.to(tl.int64) * index_step", "inside")
        at, good = checked(k, given, "limit", index)
        k.text(f"wrong = wrong | (inside & ({good} == 0))")
        target = k.let(f"{out} + tl.where({good}, {at}, 0).to(tl.int64) * out_step")
        new = k.load("updates", f"{updates} + j.to(tl.int64) * update_step", "inside")
        old = k.load("out", target, f"inside & {good}") if how != "none" else new
        k.store("out", target, k.tree(_folded(how, dtype), [old, new]), f"inside & {good}")
    reported(k, "wrong")
    k.warps, k.stages = block // k.target.warp, 1


@kernel
def fold_rows(k: Writer, *, dtype: str, index: str, how: str, parts: int, block: int, columns: int) -> None:
    """`count` tuples of `parts` indices, each with a row of `width` updates that is folded into a row of the
    result; `repeats` such problems lie behind each other. A program has the rows of the result from some
    place on, `per` of them, and `columns` columns, and looks through all tuples for its own, `block` at a
    time. Per index, the size of its axis; how far rows, tuples, their indices and updates are apart, and
    problems."""
    k.pointer("out", dtype)
    k.pointer("indices", index)
    k.pointer("updates", dtype)
    k.pointer("status", "int64")
    for name in ("count", "width", "per", "shares", "out_row", "out_column", "out_far", "tuple_step",
                 "index_step", "index_far", "update_row", "update_column", "update_far"):
        k.size(name)
    limits = [k.size(f"limit{p}") for p in range(parts)]
    k.text(f"""
        across = tl.cdiv(width, {columns})
        c = tl.program_id(0) % across * {columns} + tl.arange(0, {columns})
        unit = tl.program_id(0) // across
        low = (unit % shares).to(tl.int64) * per
        far = (unit // shares).to(tl.int64)
        there = c < width
        wrong = tl.zeros(({block},), tl.int32)
    """)
    with k.block(f"for start in range(0, count, {block}):"):
        k.text(f"""
            j = start + tl.arange(0, {block})
            inside = j < count
            row = tl.zeros(({block},), tl.int64)
            fine = inside
        """)
        for p, limit in enumerate(limits):
            given = k.load("indices", f"far * index_far + j.to(tl.int64) * tuple_step + {p} * index_step",
                           "inside")
            at, good = checked(k, given, limit, index)
            k.text(f"row = row * {limit} + {at}")
            k.text(f"fine = fine & {good}")
        k.text(f"""
            wrong = wrong | (inside & (fine == 0)).to(tl.int32)
            key = tl.where(fine & (row >= low) & (row < low + per), tl.arange(0, {block}), {block})
            found = tl.min(key, 0)
        """)
        with k.block(f"while found < {block}:"):
            k.text("""
                own = tl.sum(tl.where(key == found, row, 0), 0)
                column = c.to(tl.int64)
                target = far * out_far + own * out_row + column * out_column
                source = far * update_far + (start + found).to(tl.int64) * update_row + column * update_column
            """)
            new = k.load("updates", "source", "there")
            old = k.load("out", "target", "there") if how != "none" else new
            k.store("out", "target", k.tree(_folded(how, dtype), [old, new]), "there")
            k.text(f"""
                tl.debug_barrier()
                key = tl.where(key == found, {block}, key)
                found = tl.min(key, 0)
            """)
    reported(k, "wrong > 0")
    k.warps, k.stages = 4, 1
