"""What convolutions' kernels share: which taps lie inside the image, and what ends a pixel, which is an
elementwise tree over the sums and its operands, then the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...write.body import Body
from ...write.emit import I8, I64, PTR, V, lanes_of, vec
from ...write.expr import BYTES, LLVM, Expr, emit
from ...write.tile import Operand

_INLINE = 160
"""Instructions an epilogue may come to in a tile before it is written as a loop over pixels."""


class PixelEpilogue:
    """Applies a tree to sums and stores them: leaf 0 is the sum, leaf i operand i - 1. An operand's `row`
    says whether it differs from pixel to pixel, `col` whether from channel to channel. Cells from `at` on:
    per operand its address and its strides over images, depth, rows and pixels (elements)."""

    CELLS = 5

    def __init__(self, f: Body, tree: Expr | None, operands: Sequence[Operand], at: int) -> None:
        self.f, self.tree, self.operands = f, tree, tuple(operands)
        self.written = None if tree is None else flushed(tree)
        self.dtype = tree.dtype if tree is not None else "float32"
        self.bases = [f.arg(at + self.CELLS * i, PTR) for i in range(len(operands))]
        self.strides = [[f.arg(at + self.CELLS * i + 1 + j,
                               I64) for j in range(4)] for i in range(len(operands))]

    def place(self, image: V, depth: V, channel: V) -> list[V]:
        """The operands' addresses for one plane, from `channel` on."""
        out = []
        for base, (n, d, _, _), o in zip(self.bases, self.strides, self.operands, strict=True):
            at = image * n + depth * d
            out.append(self.f.gep(base, (at + channel if o.col else at) * BYTES[o.dtype], I8))
        return out

    def at(self, bases: Sequence[V], y: V, x: V) -> list[V]:
        """The operands' addresses for the pixel at row `y` and column `x`."""
        return [self.f.gep(base, (y * row + x * pixel) * BYTES[o.dtype], I8) if o.row else base
                for base, (_, _, row, pixel), o in zip(bases, self.strides, self.operands, strict=True)]

    def fixed(self, bases: Sequence[V], lanes: int, masks: Sequence[V | None]) -> list[list[V] | None]:
        """Per operand that is the same for all pixels its vectors, None for the others."""
        return [None if o.row else self._read(o, base, lanes, masks)
                for o, base in zip(self.operands, bases, strict=True)]

    def _read(self, o: Operand, at: V, lanes: int, masks: Sequence[V | None]) -> list[V]:
        f, elem = self.f, LLVM[o.dtype]
        if not o.col:
            return [f.splat(f.load(elem, at), lanes)] * len(masks)
        return [f.load_masked(vec(elem, lanes), f.gep(at, j * lanes * BYTES[o.dtype], I8), 0, mask)
                for j, mask in enumerate(masks)]

    def pixel(self, sums: Sequence[V], fixed: Sequence[list[V] | None], bases: Sequence[V], out: V,
              masks: Sequence[V | None]) -> None:
        """Store one pixel's vectors at `out`; `bases`: the operands' addresses for it."""
        f, lanes = self.f, sums[0].lanes
        given = [known or self._read(o, base, lanes, masks)
                 for known, o, base in zip(fixed, self.operands, bases, strict=True)]
        for j, (total, mask) in enumerate(zip(sums, masks, strict=True)):
            value = total if self.written is None else emit(f, self.written, [total, *(g[j] for g in given)])
            at = f.gep(out, j * lanes * BYTES[self.dtype], I8)
            f.store_masked(value, at, 0, mask)

    def tile(self, acc: Sequence[V], rows: int, address: Callable[[int, int | V], V], sides: Sequence[V],
             masks: Sequence[V | None], room: V) -> None:
        """Store `rows` pixels. `address(i, r)`: where pixel r lies in the output (i = 0) or in operand i - 1;
        `room`: memory for the tile."""
        f, cols, lanes = self.f, len(masks), acc[0].lanes
        if self.tree is not None and self.tree.instructions * len(acc) > _INLINE:
            for i, x in enumerate(acc):
                f.store(x, room, i * lanes, lanes * 4)
            self.stored(room, acc[0].ty, rows, address, sides, masks)
            return
        fixed = self.fixed(sides, lanes, masks)
        for r in range(rows):
            self._one(r, acc[r * cols:r * cols + cols], fixed, address, sides, masks)

    def stored(self, sums: V, ty: str, rows: int, address: Callable[[int, int | V], V], sides: Sequence[V],
               masks: Sequence[V | None]) -> None:
        """As `tile`, for sums that are vectors of type `ty` in memory."""
        f, cols, lanes = self.f, len(masks), lanes_of(ty)
        fixed = self.fixed(sides, lanes, masks)

        def one(r: V) -> None:
            read = [f.load(ty, sums, (r * cols + j) * lanes, lanes * 4) for j in range(cols)]
            self._one(r, read, fixed, address, sides, masks)
        f.loop(0, rows, 1, [], one)

    def _one(self, r: int | V, sums: Sequence[V], fixed: Sequence[list[V] | None],
             address: Callable[[int, int | V], V], sides: Sequence[V], masks: Sequence[V | None]) -> None:
        bases = [address(i + 1, r) if o.row else base
                 for i, (o, base) in enumerate(zip(self.operands, sides, strict=True))]
        self.pixel(sums, fixed, bases, address(0, r), masks)


_NORMAL = 87.0
"""e^-x is a normal float32 up to here."""


def flushed(tree: Expr) -> Expr:
    """`tree` with sigmoids of float32 that are 0 below -87 instead of denormal, and have no denormals on the
    way: arithmetic on those, here and where the output is read, takes a hundred times as long."""
    args = tuple(map(flushed, tree.args))
    if tree.op != "sigmoid" or tree.dtype != "float32":
        return Expr(tree.op, args, tree.dtype, tree.value)
    x, (least, most, zero) = args[0], (Expr.const(n, "float32") for n in (-_NORMAL, _NORMAL, 0.0))
    held = Expr("maximum", (Expr("minimum", (x, most), "float32"), least), "float32")
    value = Expr("sigmoid", (held,), "float32")
    return Expr("where", (Expr("lt", (x, least), "bool"), zero, value), "float32")


def inside(f: Body, first: V, step: V, count: V, size: V) -> tuple[V, V]:
    """Which of `count` taps, `step` apart from `first` on, lie in range(size): from, to."""
    begin = f.maximum((f.maximum(-first, 0) + step - 1) // step, 0)
    end = f.minimum((f.maximum(size - first, 0) + step - 1) // step, count)
    return f.minimum(begin, count), end
