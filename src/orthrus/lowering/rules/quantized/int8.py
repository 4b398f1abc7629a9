"""Products of bytes: which matrix products and convolutions of quantized tensors run on integer kernels.

In: a first factor that is there as int8 or uint8, a second one that is constant or there too. Out: the exact
int32 sum as a `Pending`, and `real`: what the sum stands for, a lazy tree over it, which a following
QuantizeLinear or elementwise operator extends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....codegen.kernels.conv.geometry import Geometry
from ....codegen.kernels.int8 import depthwise, pack, products
from ....codegen.kernels.int8.margins import int8_margins
from ....codegen.kernels.int8.step import lanes_of
from ....codegen.write.expr import Expr
from ....codegen.write.tile import Operand
from ....ir import No, Node, Value, in_memory
from ....ops.define import normalized_axis
from ....records import dataclass
from ...elements import store
from ...lower import Lazy, Lowering, Out, Pending, Source
from ...tensor import Tensor, c_strides, last_strides
from ...walk import Walked, merged

INT, F = "int32", "float32"
BYTES = ("int8", "uint8")
_SUM = Expr.leaf(0, INT)
_SLACK = 64
_COPY_GRAIN = 1 << 15


@dataclass(frozen=True, eq=False)
class Coded:
    """A quantized tensor: the value that holds its bytes, its scale, its zero point and their axis."""

    value: Value
    scale: Value
    zero: Value | None
    axis: int


def coded(lo: Lowering, value: Value | None) -> Coded | None:
    """What `value` was dequantized from, where that is a tensor of bytes at hand and its parameters known."""
    if value in lo.codes:
        return lo.codes[value]
    node = value.node if value is not None else None
    if node is None or node.op_type != "DequantizeLinear" or node.attrs.get("block_size"):
        return None
    x, scale, zero = (*node.inputs, None)[:3]
    if x is None or scale is None or not (x in lo.env or lo.knows(x)) or lo.dtype(x) not in BYTES or (
            lo.dtype(scale) != F or not lo.knows(scale) or (zero is not None and not lo.knows(zero))):
        return None
    return Coded(x, scale, zero, node.attribute("axis"))


def number(lo: Lowering, value: Value | None, default: int = 0) -> Any:
    """The one element of a value known now; `default` where it is absent, None where it is not that."""
    known = lo.known(value)
    if value is None:
        return default
    return known.reshape(())[()] if known is not None and known.size == 1 else None


@dataclass(eq=False)
class Factor:
    """A constant second factor (taps, k, n) of bytes: `make` gives it and its zero point, one or one for each
    column; `key` tells it from others."""

    key: tuple[Any, ...]
    shape: tuple[int, int, int]
    make: Callable[[], tuple[np.ndarray, np.ndarray | None]]

    def packed(self, lo: Lowering, how: products.Packing) -> tuple[Tensor, int]:
        """As kernels read it, and of how many parts it is the sum of."""
        found = lo.constant(("bytes", *self.key, how), lambda: products.pack(*self.make(), how))
        return found, found.shape[1] // self.shape[0]

    def sums(self, lo: Lowering) -> Tensor:
        """The sums of its columns, int32."""
        return lo.constant(("sums of bytes", *self.key), lambda: products.sums(*self.make()))

    def packing(self, lo: Lowering, m: int) -> products.Packing:
        """How it is packed for `m` rows of A."""
        _, k, n = self.shape
        return products.packing(lo.machine, n, k, products.on_matrix_unit(lo.machine, m, n, k, False))

    def start(self, lo: Lowering, made: products.ProductPlan, zero: int, bias: Bias | None) -> Tensor:
        """What the sums of a product with it start from; `zero`: A's zero point."""
        sums = self.sums(lo).buffer.array
        assert sums is not None
        key = "start", *self.key, made.packing, made.offset, zero, None if bias is None else bias.key
        return lo.constant(key, lambda: made.start(sums, None if bias is None else bias.values, zero))


class Computed:
    """A second factor of bytes (taps, k, n) that is there, or one for each of `batch`: `codes` (matrices,
    taps, k, n), n adjacent. It is packed as int8, of which each lacks `lack`, uint8 128."""

    def __init__(self, lo: Lowering, codes: Tensor, batch: tuple[int, ...] = ()) -> None:
        self.codes, self.batch = codes, batch
        matrices, taps, k, n = codes.shape
        self.shape = taps, k, n
        self.lack = 128 if codes.dtype == "uint8" else 0
        self.how = products.packing(lo.machine, n, k, False)
        run = self.how.run(k)
        self.panels = -(-n // self.how.width)
        self.elements = lo.new((matrices, self.panels * taps * run * self.how.width), "int8")
        self.totals = lo.new((matrices, self.panels * self.how.width), INT)
        by_matrix, tap, row, _ = codes.strides
        lo.step(pack.int8_pack(cols=self.how.width // lanes_of(lo.machine), unsigned=self.lack > 0),
                [codes, Out(self.elements), Out(self.totals), taps, k, n, by_matrix, tap, row, run,
                 self.panels], matrices * self.panels, max(1, _COPY_GRAIN // (taps * run * self.how.width)))

    def packing(self, lo: Lowering, m: int) -> products.Packing:
        return self.how

    def packed(self, lo: Lowering, how: products.Packing) -> tuple[Tensor, int]:
        return self.elements, 1

    def sums(self, lo: Lowering) -> Tensor:
        """Of the packed columns, (batch, 1, n) or (n,)."""
        n, wide = self.shape[2], self.totals.strides[0]
        if not self.batch:
            return self.totals.view((n,), (1,))
        strides = [wide * s for s in c_strides(self.batch)]
        return self.totals.view((*self.batch, 1, n), (*strides, 0, 1))

    def start(self, lo: Lowering, made: products.ProductPlan, zero: int, bias: Bias | None) -> Tensor:
        """As `Factor.start`: one for each matrix."""
        by = -(zero + made.offset)
        wide = self.totals.shape[1]
        if not by and bias is None:
            return lo.table(np.zeros, wide, "int32")
        tree = Expr("mul", (_SUM, Expr.leaf(1, INT)), INT)
        operands = [self.totals, lo.numbers([by], INT)]
        if bias is not None:
            values = bias.values
            tree = Expr("add", (tree, Expr.leaf(2, INT)), INT)
            operands.append(lo.constant(("bias", bias.key, wide), lambda: np.concatenate(
                [values, np.zeros(wide - len(values), np.int32)]).astype(np.int32)))
        out = lo.new(self.totals.shape, INT)
        store(lo, out, tree, operands)
        return out


@dataclass(frozen=True, eq=False)
class Bias:
    """int32 numbers that are added to the sums, one for each column."""

    key: Any
    values: np.ndarray


def lines(lo: Lowering, a: Tensor, factor: Factor | Computed, how: products.Packing,
          offsets: Sequence[int], run: int, step: int, line: tuple[int, int, int], width: tuple[int, int],
          zero: int, bias: Bias | None, places: Sequence[tuple[Tensor, int, int, int]],
          across: Sequence[bool], tree: Expr | None) -> None:
    """Append a product: `line`: how many, bytes between them and positions in each; `width`: positions of a
    row and how many of them are kept; `places`: result and operands with their strides over lines, rows and
    positions; `across`: which operands differ from column to column."""
    count, line_step, length = line
    _, k, n = factor.shape
    packed, parts = factor.packed(lo, how)
    if products.widened(lo.machine, how):
        a, line_step, step, offsets = _widened(lo, a, line, step, offsets, k, run)
    flat = width[0] == width[1] and all(
        row == width[0] * col or length <= width[0] for _, _, row, col in places)
    made = products.plan(lo.machine, how, count, length, n, len(offsets) * parts, run, step,
                         a.dtype == "int8", flat)
    taps = tuple(offsets) * parts
    start = factor.start(lo, made, zero, bias)
    each = (packed.strides[0], start.strides[0] if start.rank > 1 else 0) if (
        isinstance(factor, Computed) and factor.batch) else (0, 0)
    size = count, -(-length // width[0]), min(width[1], length), n
    result, *rest = (Walked(t, size, (*strides, int(col)), t is places[0][0])
                     for (t, *strides), col in zip(places, (True, *across), strict=True))
    args: list[Any] = [
        a, packed, start, result, lo.constant(("taps", taps), lambda: np.array(taps, np.int64)), len(taps),
        run, step, line_step, length, n, *width, *result.strides[:3], *made.cells(*each)]
    kinds = []
    for operand, col in zip(rest, across, strict=True):
        *strides, _ = operand.strides
        args += [operand, *strides]
        kinds.append(Operand(operand.tensor.dtype, any(strides), col))
    lo.step(made.spec(tree, kinds), args, made.items, made.grain, made.scratch)


def _widened(lo: Lowering, a: Tensor, line: tuple[int, int, int], step: int, offsets: Sequence[int], k: int,
             run: int) -> tuple[Tensor, int, int, list[int]]:
    """Lines of bytes as int16, and the bytes between these, between their positions and to their taps. What
    is filled up of `run` elements is whatever lies there."""
    count, line_step, length = line
    count = count if line_step else 1
    if len(offsets) == 1 and not offsets[0]:
        source, step = a.view((count, length, k), (line_step, step, 1)), run
        made = lo.new((count * length * run + _SLACK,), "int16")
        to, far = made.view((count, length, k), (length * run, run, 1)), length * run
    else:
        far = (length - 1) * step + max(offsets) + run
        source, made = a.view((count, far), (line_step, 1)), lo.new((count * far,), "int16")
        to = made.view((count, far), (far, 1))
    store(lo, to, Expr.leaf(0, a.dtype).cast("int16"), [source])
    return made, 2 * far if line_step else 0, 2 * step, [2 * o for o in offsets]


def margins(lo: Lowering, x: Tensor, phases: int, high: int, wide: int, pitch: int, down: int, skip: int,
            top: int, left: int, fill: int | Tensor) -> Tensor:
    """A copy of the image x (N, C, H, W), channels adjacent, as `int8_margins` makes it, of every
    `skip`-th of its columns. `fill`: one byte, known or not."""
    if isinstance(fill, int):
        known = np.asarray(fill, x.dtype)
        fill = lo.constant(("byte", x.dtype, fill), lambda: known)
    images, count, rows, cols = x.shape
    out = lo.new((images * phases * high * wide * pitch + _SLACK,), x.dtype)
    taken, col_step = min(-(-cols // skip), wide - left), skip * x.strides[3]
    dense = col_step == count == pitch
    lo.step(int8_margins(dense=dense),
            [x, Out(out), phases, high, wide, count, pitch, x.strides[0], x.strides[2], col_step, rows, taken,
             down, top, left, fill],
            images * phases * high, max(1, _COPY_GRAIN // (wide * pitch)))
    return out


def product(lo: Lowering, a: Tensor, factor: Factor | Computed, zero: int = 0, bias: Bias | None = None
            ) -> Pending:
    """A (..., k) times the factor's only tap, int32. With a batch A is (batch, m, k)."""
    _, k, n = factor.shape
    shape = (*a.shape[:-1], n)
    matrix = [0] * (a.rank - 1)
    if isinstance(factor, Computed) and factor.batch:
        matrix[:-1] = c_strides(factor.batch)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        first = a if k == 1 or a.strides[-1] == 1 else lo.contiguous(a)

        def walked() -> list[tuple[int, list[int]]]:
            return merged(shape[:-1], [*(t.strides[:-1] for t in (first, out, *operands)), matrix])
        if len(walked()) > 2:
            first = lo.contiguous(first)
        dims = walked()
        none = [0] * (3 + len(operands))
        if not dims or dims[-1][1][-1]:
            dims.append((1, none))
        *outer, (m, steps) = dims
        if len(outer) > 1:
            whole = lo.new(shape, out.dtype)
            dense = [lo.contiguous(t) for t in operands]
            product(lo, a, factor, zero, bias).emit(lo, whole, tree, dense)
            lo.copy(whole, out)
            return
        count, apart = outer[0] if outer else (1, none)
        how = factor.packing(lo, m)
        run, step, far, source = how.run(k), steps[0], apart[0], first
        if run != k and not products.widened(lo.machine, how):
            image = first.view((count, k, 1, m), (far, 1, 0, step))
            source = margins(lo, image, 1, 1, m, run, 1, 1, 0, 0, 0)
            step, far = run, m * run
        places = [(t, apart[i], 0, steps[i]) for i, t in enumerate((out, *operands), 1)]
        lines(lo, source, factor, how, [0], run, step, (count, far, m), (max(m, 1), max(m, 1)), zero, bias,
              places, [t.strides[-1] == 1 and n > 1 for t in operands], tree)
    return Pending(shape, INT, emit)


Weights = Callable[[], tuple[np.ndarray, np.ndarray | None]]
"""Makes constant weights (M, C / group, KH, KW) and their zero points."""


def convolution(lo: Lowering, x: Tensor, g: Geometry, key: tuple[Any, ...], weights: Weights | Tensor,
                shape: tuple[int, ...], zero: int = 0, bias: Bias | None = None, fill: Tensor | None = None
                ) -> Pending | No:
    """x (N, C, spatial...), less `zero`, with weights (M, C / group, KH, KW), int32; padding is `zero`, or
    the byte `fill`. Weights that are there are taken as `Computed` packs them."""
    padding = zero if fill is None else fill
    if g.size[0] != 1 or g.kernel[0] != 1 or g.pads[0] or min(g.pads) < 0:
        return No("integer kernels convolve one or two spatial axes")
    one_by_one = g.groups > 1 and g.cin == g.cout == 1
    if g.groups > 1 and not one_by_one and g.cin * g.cout < 64:
        return No("integer kernels convolve single channels, or groups of eight channels at least")
    if one_by_one and isinstance(weights, Tensor):
        return No("integer kernels convolve single channels with constant weights")
    image = lo.channels_last(x)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        flat = [_two(t) for t in (image, out, *operands)]
        if one_by_one and not isinstance(weights, Tensor):
            _by_channel(lo, flat[0], g, key, weights, zero, padding, bias, flat[1], tree or _SUM, flat[2:])
            return
        for group in range(g.groups):
            source, *rest = [
                t if g.groups == 1 else t.slice(1, group * c, c) if t.shape[1] > 1 else t
                for t, c in zip(flat, (g.cin, *[g.cout] * (1 + len(operands))), strict=True)]
            picked = slice(group * g.cout, (group + 1) * g.cout)

            def make(picked: slice = picked) -> tuple[np.ndarray, np.ndarray | None]:
                assert not isinstance(weights, Tensor)
                w, low = weights()
                return w[picked], low if low is None or low.size == 1 else low.reshape(-1)[picked]
            own = weights.slice(0, group * g.cout, g.cout) if isinstance(weights, Tensor) else make
            mine = None if bias is None else Bias((bias.key, group), bias.values[picked])
            _convolve(lo, source, g, (*key, group), own, zero, padding, mine, rest[0], tree, rest[1:])
    return Pending(shape, INT, emit, last_strides(shape, shape[1]), accepts)


def accepts(t: Tensor) -> bool:
    return t.shape[1] == 1 or t.strides[1] in (0, 1)


def _two(t: Tensor) -> Tensor:
    """An image with two spatial axes."""
    if t.rank == 4:
        return t
    (n, c, w), (a, b, d) = t.shape, t.strides
    return t.view((n, c, 1, w), (a, b, w * d, d))


def _taps(lo: Lowering, weights: Weights | Tensor, key: tuple[Any, ...], joined: bool,
          size: tuple[int, int, int, int]) -> Factor | Computed:
    """The second factor that weights of `size` are: a tap for each place of a window, `joined` each row."""
    m, c, kh, kw = size
    shape = (kh, kw * c, m) if joined else (kh * kw, c, m)
    if isinstance(weights, Tensor):
        taps = lo.contiguous(weights.permute((2, 3, 1, 0))).reshape((1, *shape))
        assert taps is not None
        return Computed(lo, taps)

    def make() -> tuple[np.ndarray, np.ndarray | None]:
        w, low = weights()
        taps = w.reshape(size).transpose(2, 3, 1, 0)
        return np.ascontiguousarray(taps.reshape(shape)), low
    return Factor(key, shape, make)


def _convolve(lo: Lowering, x: Tensor, g: Geometry, key: tuple[Any, ...], weights: Weights | Tensor,
              zero: int, padding: int | Tensor, bias: Bias | None, out: Tensor, tree: Expr | None,
              operands: Sequence[Tensor]) -> None:
    """Append the convolution of one group."""
    (images, c, rows, cols), (_, _, oh, ow) = x.shape, out.shape
    (kh, kw), (sh, sw), (dh, dw) = g.kernel[1:], g.strides[1:], g.dilations[1:]
    top, left = g.pads[1:]
    row_step, pixel = x.strides[2], x.strides[3]
    if cols == 1:
        pixel = c
    if rows == 1:
        row_step = cols * pixel
    padded = top or left or (oh - 1) * sh + (kh - 1) * dh >= rows or (ow - 1) * sw + (kw - 1) * dw >= cols
    joined = dw == 1 and kw > 1

    def how_for(k: int) -> products.Packing:
        copied = bool(padded or joined or (sh, sw) != (1, 1))
        matrix = not isinstance(weights, Tensor) and products.on_matrix_unit(
            lo.machine, images * oh * ow, g.cout, k, copied)
        return products.packing(lo.machine, g.cout, k, matrix)
    how = how_for(kw * c if joined else c)
    direct = not padded and (sh == 1 or oh == 1) and (not joined or pixel == c) and (
        how.run(kw * c if joined else c) == (kw * c if joined else c) and row_step % (sw * pixel) == 0)
    if direct:
        source, line_step, tap_row, phase, across = x, x.strides[0], row_step, 0, sw
        phases, wide_step = 1, row_step * sh
    else:
        phases = 1 if kh == 1 else sh
        across, skip = (sw, 1) if kw > 1 else (1, sw)
        pitch = c if joined else how.run(c)
        high = oh + ((kh - 1) * dh) // phases if kh > 1 else oh
        wide = (ow - 1) * across + (kw - 1) * dw + 1
        wide = -(-wide // across) * across
        begin = left
        image = x.view((images, c, rows, cols), (x.strides[0], 1, row_step, pixel))
        if skip > 1:
            begin = -(-left // skip)
            first = begin * skip - left
            image = image.view((images, c, rows, max(cols - first, 0)), image.strides, first * pixel)
        source = margins(lo, image, phases, high, wide, pitch, sh, skip, top, begin, padding)
        pixel, tap_row, phase = pitch, wide * pitch, high * wide * pitch
        line_step, wide_step = phases * phase, wide * pitch
    step = across * pixel
    k = kw * c if joined else c
    offsets = [(i * dh % phases) * phase + (i * dh // phases) * tap_row + j * dw * pixel
               for i in range(kh) for j in range(1 if joined else kw)]
    width = wide_step // step if oh > 1 else ow

    factor = _taps(lo, weights, key, joined, (g.cout, c, kh, kw))
    length = (oh - 1) * width + ow
    places = [(t, t.strides[0] if images > 1 else 0, t.strides[2] if oh > 1 else t.strides[3] * ow,
               t.strides[3] if ow > 1 or oh > 1 else 0) for t in (out, *operands)]
    line = images, line_step, length
    if width == ow and images > 1 and line_step == length * step and all(
            by_line == oh * by_row and by_row == ow * by_col for _, by_line, by_row, by_col in places):
        line = 1, 0, images * length
        width = ow = images * length
    lines(lo, source, factor, how, offsets, how.run(k), step, line, (width, ow), zero, bias, places,
          [t.strides[1] == 1 and t.shape[1] > 1 for t in operands], tree)


def _by_channel(lo: Lowering, x: Tensor, g: Geometry, key: tuple[Any, ...], weights: Weights, zero: int,
                padding: int | Tensor, bias: Bias | None, out: Tensor, tree: Expr, operands: Sequence[Tensor]
                ) -> None:
    """Append a depthwise convolution."""
    (images, c, rows, cols), (_, _, oh, ow) = x.shape, out.shape
    (kh, kw), (sh, sw), (dh, dw), (top, left) = (
        part[1:] for part in (g.kernel, g.strides, g.dilations, g.pads))
    high, wide = (oh - 1) * sh + (kh - 1) * dh + 1, (ow - 1) * sw + (kw - 1) * dw + 1
    row, pixel = x.strides[2] if rows > 1 else 0, x.strides[3] if cols > 1 else c
    image = x.view(x.shape, (x.strides[0], 1, row, pixel))
    source = margins(lo, image, 1, high, wide, c, 1, 1, top, left, padding)
    packed = lo.constant((*key, "depthwise"), lambda: depthwise.pack(lo.machine, *weights()))
    array = in_memory(packed.buffer.array)
    dots = depthwise.dots(lo.machine, array)
    if dots:
        packed = lo.constant((*key, "depthwise dots"), lambda: depthwise.pack_dots(array))
        zero += 128 * (x.dtype == "int8")

    def start() -> np.ndarray:
        made = -zero * array.sum(0, dtype=np.int32)
        if bias is not None:
            made[:c] += bias.values
        return np.asarray(made, np.int32)
    kinds = tuple(Operand(t.dtype, any(t.strides[i] for i in (0, 2, 3)), t.strides[1] == 1 and c > 1)
                  for t in operands)
    result, *rest = (
        Walked(t, (images, oh, ow, c), (t.strides[0], t.strides[2], t.strides[3], int(col)), t is out)
        for t, col in zip((out, *operands), (True, *(kind.col for kind in kinds)), strict=True))
    args: list[Any] = [source, packed, lo.constant((*key, "start", zero), start), result, c, oh, ow,
                       high * wide * c, sh * wide * c, sw * c, dh * wide * c, dw * c, *result.strides[:3]]
    for each in rest:
        args += [each, *each.strides[:3]]
    spec = depthwise.int8_depthwise(signed=x.dtype == "int8", kernel=(kh, kw), tree=tree, operands=kinds,
                                    tail=c % depthwise.lanes_of(lo.machine) != 0, dots=dots)
    lo.step(spec, args, images * oh, max(1, _COPY_GRAIN // (ow * c * kh * kw)))


def real(lo: Lowering, pending: Pending, scale: np.ndarray, key: Any, axis: int,
         addend: Tensor | None = None) -> Lazy:
    """sum * scale + addend: `scale` is one number or one for each index of `axis`."""
    lying = (-1, *(1,) * (len(pending.shape) - axis - 1)) if scale.size > 1 else ()
    by = lo.constant(("scale", key, lying), lambda: np.asarray(scale, np.float32).reshape(lying))
    tree = Expr("mul", (_SUM.cast(F), Expr.leaf(1, F)), F)
    operands: list[Tensor | Source] = [Source(pending), by]
    if addend is not None:
        operands.append(addend)
        tree = Expr("add", (tree, Expr.leaf(2, F)), F)
    if lo.half_epilogue:
        tree = tree.cast("float16").cast(F)
    return Lazy(pending.shape, tree, operands)


def addends(lo: Lowering, value: Value | None, scale: np.ndarray, lying: tuple[int, ...]
            ) -> tuple[Bias | None, Tensor | None] | No:
    """A bias: int32 where it was quantized with the sum's own scale, as floats else."""
    if value is None:
        return None, None
    node = value.node
    if node is not None and node.op_type == "DequantizeLinear" and not node.attrs.get("block_size"):
        x, by, zero = (*node.inputs, None)[:3]
        codes, theirs, low = lo.known(x), lo.known(by), lo.known(zero)
        if codes is not None and theirs is not None and codes.dtype == np.int32 and codes.ndim == 1 and (
                low is None or not low.any()) and np.allclose(theirs, scale, 1e-5, 0):
            return Bias(id(value), codes), None
    t = lo.tensor(value)
    if t.dtype != F or t.rank != 1:
        return No("its bias is no row of float32")
    return None, t.view((t.shape[0], *lying), (t.strides[0], *(0,) * len(lying)))


def dequantized_conv(lo: Lowering, node: Node, geometry: Callable[..., Any]) -> Lazy | No | None:
    """Conv of dequantized factors; None where they are not that."""
    x, w, b = (*node.inputs, None)[:3]
    first, second = coded(lo, x), coded(lo, w)
    if first is None or second is None or not lo.knows(second.value):
        return None
    zero, scale, by = number(lo, first.zero), number(lo, first.scale), lo.known(second.scale)
    weights, low = lo.known(second.value), lo.known(second.zero)
    if zero is None or scale is None or by is None or weights is None or weights.ndim < 3 or (
            by.size > 1 and (by.ndim != 1 or normalized_axis(second.axis, weights.ndim) != 0)):
        return None
    g = geometry(lo.shape(first.value), weights, node.attributes)
    if isinstance(g, No):
        return g
    shape = (g.batch, weights.shape[0], *g.out[5 - weights.ndim:])
    total = np.asarray(scale * by, np.float32)
    more = addends(lo, b, total, (1,) * (weights.ndim - 2))
    if isinstance(more, No):
        return more
    made = convolution(lo, lo.tensor(first.value), g, ("conv", id(node)),
                       lambda: (planes(weights), low), shape, int(zero), more[0])
    return made if isinstance(made, No) else real(lo, made, total, id(node), 1, more[1])


def planes(w: np.ndarray) -> np.ndarray:
    """Weights (M, C, spatial...) with two spatial axes."""
    return w.reshape(*w.shape[:2], *(1,) * (4 - w.ndim), *w.shape[2:])


def dequantized_product(lo: Lowering, node: Node, a: Value, b: Value, flip: bool = False,
                        bias: Value | None = None, alpha: float = 1.0) -> Lazy | None:
    """A·B, B perhaps transposed, of dequantized factors; None where integer kernels do not take them."""
    first, second = coded(lo, a), coded(lo, b)
    if first is None or second is None or not lo.knows(second.value):
        return None
    zero, scale, by = number(lo, first.zero), number(lo, first.scale), lo.known(second.scale)
    weights, low = lo.known(second.value), lo.known(second.zero)
    if zero is None or scale is None or by is None or weights is None or weights.ndim != 2 or not (
            weights.size and lo.shape(first.value)):
        return None
    k, n = weights.shape[::-1] if flip else weights.shape
    if lo.shape(first.value)[-1] != k or 0 in lo.shape(first.value) or (
            by.size > 1 and (by.ndim != 1 or normalized_axis(second.axis, 2) != (0 if flip else 1))):
        return None
    total = np.asarray(scale * by, np.float32) * np.float32(alpha)
    if bias is not None and lo.shape(bias) != (n,):
        return None
    more = addends(lo, bias, total, ())
    if isinstance(more, No):
        return None
    factor = Factor(("product", id(b), flip), (1, k, n),
                    lambda: ((weights.T if flip else weights)[None], low))
    made = product(lo, lo.tensor(first.value), factor, int(zero), more[0])
    return real(lo, made, total, id(node), len(made.shape) - 1, more[1])
