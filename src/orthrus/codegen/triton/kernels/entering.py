"""Caches of keys and values that take up new rows while an attention reads them, and rotary positions.

In: in a kernel, a cache as it was, and new rows. Out: tiles of both, and the cache as it becomes, which may
be the same memory. New rows for which there is no room set `status`, where that may be, and are written
nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....records import dataclass
from ..write import Writer

GROWN = ("old_k", "old_v", "new_k", "new_v")
"""A cache as it was, and what is new in it."""



@dataclass(frozen=True)
class View:
    """A tensor (batch, head, position, feature) of a kernel: names of its address and strides."""

    name: str
    batch: str
    head: str
    step: str
    feature: str

    @staticmethod
    def declare(k: Writer, name: str, near: bool) -> View:
        batch, head, step = k.sizes(f"{name}_s", 3)
        return View(name, batch, head, step, "1" if near else k.size(f"{name}_s3"))

    def at(self, position: str, feature: str) -> str:
        """The offset of features of positions, of `batch` and `head`, which are 64 bits wide."""
        return (f"batch * {self.batch} + head * {self.head} + {position}.to(tl.int64) * {self.step} + "
                f"({feature}) * {self.feature}")


@dataclass(frozen=True)
class Grown:
    """What an attention does whose keys and values are a cache's: that takes up the last `length` rows as it
    is read. `near`: of the old cache and the new rows, keys and values each, whether features lie side by
    side; `begins`: the type of where the new rows begin in each batch entry, empty where all begin alike;
    `zeroed`: rows behind those held are made 0; `half`: pairs of features of queries and new keys that are
    turned by their positions, 0 for none; `interleaved`: pairs lie side by side; `sure`: there is room for
    the new rows, and a position for each."""

    near: tuple[bool, bool, bool, bool]
    begins: str = ""
    zeroed: bool = False
    half: int = 0
    interleaved: bool = False
    sure: bool = False


class Entering:
    """What a cache takes up while it is read, of a kernel that is being written. Old rows are read where they
    were, new ones where they came; the program of a key head's last share writes them."""

    def __init__(self, k: Writer, grown: Grown, dtype: str, views: Sequence[View]) -> None:
        self.k, self.grown, self.dtype = k, grown, dtype
        self.olds = dict(zip("kv", views[:2], strict=True))
        self.news = dict(zip("kv", views[2:], strict=True))

    def old(self, view: View) -> View:
        return self.olds[view.name]

    def place(self) -> None:
        """Where new rows begin, and whether there is room for them, and a position for each."""
        begins, most = self.grown.begins, "tl.minimum(capacity, places)" if self.grown.half else "capacity"
        self.k.text(f"""
            fresh = fresh_add{" + tl.load(begins + batch).to(tl.int32)" if begins else ""}
            fits = (fresh >= 0) & (fresh + length <= {most})
            solid = tl.maximum(tl.minimum(fresh, rows_held), 0)
        """)
        if not self.grown.sure:
            self.k.text("tl.store(status + tl.arange(0, 1), tl.full((1,), 1, tl.int64), mask=fits == 0)")

    def turned(self, value: str, pointer: str, at: Callable[[str], str], d: str, place: str, of_feature: str,
               mask: str) -> str:
        """Features `d` of rows at positions `place`, turned; `at`: where such features are."""
        k, half, dtype = self.k, self.grown.half, self.k.typed(self.dtype)
        if not half:
            return value
        beside = self.grown.interleaved
        other = k.let(
            f"{d} ^ 1" if beside else f"tl.where({d} < {half}, {d} + {half}, {d} - {half})", "other")
        pair = f"{d} // 2" if beside else f"{d} % {half}"
        inside = f"{mask} & fits & ({d} < {2 * half}){of_feature}"
        angle = k.let(f"{place}.to(tl.int64) * c_s + ({pair}){of_feature}", "angle")
        real = k.let(f"tl.load(cos + {angle}, mask={inside}, other=1).to(tl.float32)")
        imaginary = k.let(f"tl.load(sin + {angle}, mask={inside}, other=0).to(tl.float32)")
        across = k.let(f"tl.load({pointer} + {at(other)}, mask={inside}, other=0).to(tl.float32)")
        x = k.let(f"{value}.to(tl.float32)")
        first = f"{d} % 2 == 0" if beside else f"{d} < {half}"
        return k.let(f"tl.where(({first}){of_feature}, tl.fma({real}, {x}, -({imaginary} * {across})), "
                     f"tl.fma({imaginary}, {across}, {real} * {x})).to({dtype})")

    def new(self, view: View, row: str, d: str, whole: str | None, of_key: str, of_feature: str) -> str:
        """Features `d` of those of the new rows that are in `mine`."""
        k, it = self.k, self.news[view.name]

        def at(feature: str) -> str:
            return (f"batch * {it.batch} + shared * {it.head} + ({row}){of_key}.to(tl.int64) * {it.step} + "
                    f"({feature}){of_feature} * {it.feature}")
        mask = f"mine{of_key}" + (f" & ({whole}){of_feature}" if whole else "")
        value = k.load(it.name, at(d), mask)
        if view.name == "v":
            return value
        return self.turned(value, it.name, at, d, f"(fresh + {row}){of_key}", of_feature, mask)

    def write(self, keys: int, owner: str, views: Sequence[tuple[View, Sequence[tuple[str, str | None]]]]
              ) -> None:
        """Write the new rows and, where the cache is not where it was, its part of the old ones. `owner`:
        the condition that no other program has the same share; `views`: both parts of the cache, and their
        features."""
        k, zeroed = self.k, self.grown.zeroed
        with k.block(f"if (split == splits - 1){owner}:"), k.block(
                f"for begun in range(0, length, {keys}):"):
            k.text("entered = begun + key\nmine = (entered < length) & fits")
            for view, features in views:
                for d, whole in features:
                    value = self.new(view, "entered", d, whole, "[:, None]", "[None, :]")
                    mask = "mine[:, None]" + (f" & ({whole})[None, :]" if whole else "")
                    k.store(view.name, self._in(view, "(fresh + entered)", d), value, mask)
        k.text(f"""
            upto = tl.where(split == splits - 1, {"capacity" if zeroed else "rows_held"}, split * per + per)
            upto = tl.minimum(upto, {"capacity" if zeroed else "rows_held"})
        """)
        for view, features in views:
            old = self.old(view)
            alike = " & ".join(f"({a} == {b})" for a, b in zip(
                (old.batch, old.head, old.step), (view.batch, view.head, view.step), strict=True))
            there = f"({old.name}.to(tl.int64) == {view.name}.to(tl.int64)) & {alike}"
            with k.block(f"if (({there}) == 0){owner}:"), k.block(
                    f"for begun in range(split * per, upto, {keys}):"):
                k.text("""
                    passed = begun + key
                    stays = (passed < upto) & ((passed < fresh) | (passed >= fresh + length) | (fits == 0))
                """)
                for d, whole in features:
                    some = f" & ({whole})[None, :]" if whole else ""
                    value = k.load(old.name, self._in(old, "passed", d),
                                   f"(stays & (passed < rows_held))[:, None]{some}")
                    k.store(view.name, self._in(view, "passed", d), value, f"stays[:, None]{some}")

    def _in(self, view: View, row: str, d: str) -> str:
        """The offset of features of rows."""
        return (f"batch * {view.batch} + shared * {view.head} + {row}[:, None].to(tl.int64) * {view.step} + "
                f"{d}[None, :] * {view.feature}")
