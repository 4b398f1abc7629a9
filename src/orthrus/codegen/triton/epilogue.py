"""How kernels meet tensors of any strides, and the trees at kernels' ends.

A kernel walks an index space of *groups*: whatever it counts by itself. A product counts batches, rows and
columns; a row kernel rows and columns; a loop over elements one number. Each group stands for some axes of
the tensors, outermost first, merged into as few as lie behind each other in all of them. In: a `Walk`, which
says of every tensor, group and axis left whether its stride is 0, 1 or another; and in a kernel the index of
each group. Out: the offsets of elements. Sizes and strides are arguments of the kernel; those of an index
that is behind a group's end are garbage, which masks hide.

A kernel with a tree at its end takes a `Closing` as parameter, called `closing`; one that reads a tree over
tensors a `Reading`:

    @kernel
    def products(k: Writer, *, dtype: str, closing: Closing) -> None:
        a, b = k.pointer("a", dtype), k.pointer("b", dtype)
        close = closing.declare(k)          # the result, the operands, then sizes and strides
        rows, columns = k.size("rows"), k.size("columns")
        ...
        close.store("acc", [("batch", None),
                            ("rm[:, None]", f"rm[:, None] < {rows}"),
                            ("rn[None, :]", f"rn[None, :] < {columns}")])

Each group's index comes with the mask of those that count, None where all do; what depends on some groups
alone is loaded by these alone. A rule gets both the parameter and the arguments from `lowering.gpu.walks`:

    def emit(lo, out, tree, operands):      # out: (..., rows, columns), of any strides, as the operands are
        closing, cells = closed(out, tree, operands, "float32", [batches, [-2], [-1]])
        lo.step(products(dtype=..., closing=closing), [a, b, *cells, m, n], items)
"""

from __future__ import annotations

from collections.abc import Sequence

from ...records import dataclass
from ..write.expr import Expr
from .write import Writer

Index = tuple[str, str | None]
"""A group's index, a Triton expression of any shape that broadcasts with the others', and its mask."""


@dataclass(frozen=True)
class Walk:
    """`kinds`: for each group, and each of its axes, outermost first, a letter for each tensor: 0 or 1 for
    such a stride, s for another. `wide`: whether offsets need 64 bits."""

    kinds: tuple[tuple[str, ...], ...]
    wide: bool = False

    def near(self, group: int) -> bool:
        """Whether elements of any tensor lie next to each other along a group."""
        return any("1" in kinds for kinds in self.kinds[group])

    def declare(self, k: Writer, name: str = "at") -> Walking:
        """Declare sizes, but for those of the groups' first axes, and then strides."""
        sizes = [[k.size(f"{name}_n{g}_{d}") for d in range(1, len(axes))]
                 for g, axes in enumerate(self.kinds)]
        strides = [[[k.size(f"{name}_s{g}_{d}_{t}") if kind == "s" else kind for t, kind in enumerate(kinds)]
                    for d, kinds in enumerate(axes)] for g, axes in enumerate(self.kinds)]
        return Walking(k, self, name, sizes, strides)


@dataclass(frozen=True)
class Walking:
    """A walk whose arguments are declared: `strides` by group, axis and tensor."""

    k: Writer
    walk: Walk
    name: str
    sizes: Sequence[Sequence[str]]
    strides: Sequence[Sequence[Sequence[str]]]

    def offsets(self, tensors: Sequence[int], indices: Sequence[Index], whole: bool = False
                ) -> list[tuple[str, str | None]]:
        """Of each of these tensors the offsets of its elements, and their mask. `whole`: those of the first
        have the shape of all indices together, also where a group has but one element."""
        terms: dict[int, list[str]] = {t: [] for t in tensors}
        masks: dict[int, list[str]] = {t: [] for t in tensors}
        for g, (index, mask) in enumerate(indices):
            if not self.walk.kinds[g] and whole:
                terms[tensors[0]].append(f"({index}) * 0")
                masks[tensors[0]] += [mask] if mask is not None else []
            if not any(kinds[t] != "0" for kinds in self.walk.kinds[g] for t in tensors):
                continue
            places = self._places(g, index)
            for t in tensors:
                met = [p if s[t] == "1" else f"{p} * {s[t]}"
                       for p, s in zip(places, self.strides[g], strict=True) if s[t] != "0"]
                terms[t] += met
                masks[t] += [mask] if met and mask is not None else []
        return [(f"({' + '.join(terms[t]) or '0'})", _all(masks[t])) for t in tensors]

    def _places(self, g: int, index: str) -> list[str]:
        """The places along a group's axes."""
        sizes, names = self.sizes[g], list[str]()
        rest = self.k.let(f"({index}).to(tl.int64)" if self.walk.wide else index, "place")
        for size in reversed(sizes):
            names.append(self.k.let(f"{rest} % {size}", "place"))
            rest = self.k.let(f"{rest} // {size}", "place")
        return [rest, *reversed(names)]


def _all(masks: Sequence[str]) -> str | None:
    return " & ".join(f"({m})" for m in masks) or None


@dataclass(frozen=True)
class Closing:
    """The end of a kernel: `tree`, whose first leaves are the kernel's `values`, and the others operands of
    `dtypes`, goes to a result. The tensors of `walk` are the result and the operands."""

    walk: Walk
    tree: Expr
    dtypes: tuple[str, ...]
    values: int = 1

    def declare(self, k: Writer, name: str = "out") -> Closer:
        """Declare the result and the operands, sizes and strides."""
        out = k.pointer(name, self.tree.dtype)
        operands = [k.pointer(f"{name}_x{i}", dtype) for i, dtype in enumerate(self.dtypes)]
        return Closer(k, self, out, operands, self.walk.declare(k, name))


@dataclass(frozen=True)
class Closer:
    """A closing whose arguments are declared."""

    k: Writer
    closing: Closing
    out: str
    operands: Sequence[str]
    walking: Walking

    def store(self, value: str, indices: Sequence[Index], *more: str) -> None:
        """Apply the tree to `value`, whose shape is that of all indices together, and to `more` such, and
        write the result."""
        tree, k, values = self.closing.tree, self.k, self.closing.values
        read = sorted(leaf for leaf in {leaf.value for leaf in tree.leaves()} if leaf >= values)
        tensors = [0, *(i - values + 1 for i in read)]
        (place, mask), *places = self.walking.offsets(tensors, indices, whole=True)
        given = [value, *more, *[value] * len(self.operands)]
        for i, (at, where) in zip(read, places, strict=True):
            given[i] = k.load(self.operands[i - values], at, where)
        k.store(self.out, place, k.tree(tree, given), mask)


@dataclass(frozen=True)
class Reading:
    """What a kernel reads: `tree` over tensors of `dtypes`, leaf i the i-th of `walk`."""

    walk: Walk
    tree: Expr
    dtypes: tuple[str, ...]

    def declare(self, k: Writer, name: str = "x") -> Reader:
        """Declare the tensors, sizes and strides."""
        tensors = [k.pointer(f"{name}{i}", dtype) for i, dtype in enumerate(self.dtypes)]
        return Reader(k, self, tensors, self.walk.declare(k, name))


@dataclass(frozen=True)
class Reader:
    """A reading whose arguments are declared."""

    k: Writer
    reading: Reading
    tensors: Sequence[str]
    walking: Walking

    def load(self, indices: Sequence[Index]) -> str:
        """The tree's value at these indices; where a mask says no it is of no meaning."""
        read = sorted({leaf.value for leaf in self.reading.tree.leaves()})
        given = [""] * len(self.tensors)
        for i, (at, mask) in zip(read, self.walking.offsets(read, indices), strict=True):
            given[i] = self.k.load(self.tensors[i], at, mask)
        return self.k.tree(self.reading.tree, given)
