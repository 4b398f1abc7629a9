"""Convolutions: weights in the kernels' order, tiles by the sizes, what follows elementwise at their end."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....codegen.kernels.conv.geometry import Geometry, phases
from ....codegen.triton.kernels.convolution import Pair, convolution, depthwise
from ....codegen.triton.kernels.products import MIDDLE, Tile, summed
from ....codegen.triton.tiles import FULL, Problem, best, candidates
from ....codegen.write.expr import Expr
from ....ir import No, Node, Value
from ....ops.define import normalized_axis
from ....ops.nn.conv import transposed
from ....records import dataclass
from ...rules.conv import geometry_of
from ...rules.elementwise import activation
from ...rules.quantized import int8_operators as shared
from ...rules.quantized.int8 import BYTES, INT, addends, coded, number
from ...tensor import Tensor, last_strides
from ..lower import GpuLowering, Lazy, Pending, Source, lowers
from ..products import Zeros, arriving, precision
from ..slides import Slid, Windows, slid, tile_of
from ..tuning import Task
from ..walks import closed

FLOATS = ("float32", "float16", "bfloat16", "float64")

_PHASES = 1 << 8
"""Phases of a transposed convolution up to which there is a launch for each."""


@dataclass(frozen=True)
class Weights:
    """Weights [groups, channels out, channels in, taps...]: `array` where they are known when the kernel is
    made, which `key` then stands for, else `tensor`, whose taps are one axis."""

    key: Hashable
    array: np.ndarray | None
    tensor: Tensor | None

    @property
    def finite(self) -> bool:
        """Whether all of them are known to be."""
        return self.array is not None and bool(np.isfinite(self.array).all())

    def merged(self, count: int) -> np.ndarray:
        """So many groups as one, with zeros between one's inputs and another's outputs."""
        assert self.array is not None
        w = self.array
        groups, cout, cin = w.shape[0] // count, *w.shape[1:3]
        made = np.zeros((groups, count, cout, count, cin, *w.shape[3:]), w.dtype)
        split = w.reshape(groups, count, *w.shape[1:])
        for i in range(count):
            made[:, i, :, i] = split[:, i]
        return made.reshape(groups, count * cout, count * cin, *w.shape[3:])


def _letters(strides: Sequence[int]) -> str:
    return "".join("1" if s == 1 else "s" for s in strides)


def _far(strides: Sequence[int]) -> list[int]:
    """Those that are arguments of a kernel."""
    return [s for s in strides if s != 1]


class Convolution:
    """One convolution of `x` (N, C, spatial...), ready to be written; of bytes, less what `zeros` says.
    `columns`: axes of its result that channels are, the first of them axis 1. `inner`: nothing stands beside
    the image, not even a 0."""

    def __init__(self, g: Geometry, x: Tensor, weights: Weights, zeros: Zeros | None = None,
                 columns: int = 1, inner: bool = False) -> None:
        self.g, self.weights, self.zeros, self.columns = g, weights, zeros or Zeros(), columns
        self.slid = slid(x, Windows(*(numbers[5 - x.rank:] for numbers in (
            g.kernel, g.strides, g.dilations, g.pads, g.out))))
        self.inner = inner and bool(self.slid.bounded) and not weights.finite
        self.rows = g.batch * math.prod(g.out)

    def write(self, lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        """Append the steps that put the tree of the convolution into `out`."""
        if 0 in out.shape:
            return
        if 0 in self.g.kernel:
            none = Expr.const(0, summed(self.slid.image.dtype))
            lo.store(out, none if tree is None else tree.substitute(
                lambda leaf: Expr.leaf(leaf.value - 1, leaf.dtype) if leaf.value else none), operands)
        elif self.g.cin == 1 and self.g.groups > 1:
            self._write_depthwise(lo, out, tree, operands)
        else:
            self._write_products(lo, out, tree, operands)

    def _write_depthwise(self, lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]
                         ) -> None:
        g, it, x = self.g, self.slid, self.slid.image
        channels = g.groups * g.cout
        weights, known = self.weights.tensor, self.weights.array
        if weights is None:
            assert known is not None
            weights = lo.constant((self.weights.key, "depthwise"), lambda: np.ascontiguousarray(
                known.reshape(channels, -1).T)).permute((1, 0))
        else:
            weights = weights.view((channels, math.prod(it.taps)), (weights.strides[1], weights.strides[3]))
        strides = x.strides[1], *weights.strides
        tile = tile_of(self.rows, channels, x.strides[1] == 1)
        closing, cells = closed(out, tree, operands, summed(x.dtype), [[0, *range(2, out.rank)], [1]])
        several = [g.cout] if g.cout > 1 else []
        numbers = Pair((x.dtype, weights.dtype), zeros=self.zeros.kinds())
        spec = depthwise(numbers=numbers, slide=it.slide, taps=it.taps, kinds=_letters(strides),
                         several=bool(several), inner=self.inner, tile=tile, closing=closing)
        lo.step(spec, [x, weights, *self.zeros.tensors(), *cells, *it.numbers, self.rows, channels,
                       *_far(strides), *several],
                -(-self.rows // tile.m) * -(-channels // tile.n))

    def _products(self, lo: GpuLowering) -> tuple[int, Tensor]:
        """How many groups are one, where each is small, and weights [groups, out, in, taps] as the kernel has
        them: matrix units take bytes whose inputs are neighbours."""
        g, given = self.g, self.weights.array
        if given is None:
            assert self.weights.tensor is not None
            return 1, self.weights.tensor
        count = 1
        while not self.zeros.b and g.groups % (2 * count) == 0 and 2 * count * min(g.cin, g.cout) <= FULL:
            count *= 2
        groups, cin, cout = g.groups // count, g.cin * count, g.cout * count
        order = (0, 3, 1, 2) if given.dtype.name in BYTES else (0, 3, 2, 1)
        packed = lo.constant((self.weights.key, "packed", count), lambda: np.ascontiguousarray(
            self.weights.merged(count).reshape(groups, cout, cin, -1).transpose(order)))
        return count, packed.permute([order.index(axis) for axis in range(4)])

    def _write_products(self, lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]
                        ) -> None:
        it, x = self.slid, self.slid.image
        merged, weights = self._products(lo)
        groups, cout, cin, _ = weights.shape
        taps, rounds = math.prod(it.taps), precision(lo, x.dtype)
        problem = Problem(self.rows, cout, taps * cin, groups, x.dtype, rounds, x.size, cin if it.taps else 0)
        way = best(lo.target, problem) if lo.tuner is None else lo.tuner.best(
            lo, self._task(weights, merged, out), candidates(lo.target, problem))
        self._write_tiles(lo, it, self.zeros.tensors(), weights, merged, out, tree, operands, way)

    def _task(self, weights: Tensor, merged: int, out: Tensor) -> Task:
        """What is measured where tiles are."""
        it = self.slid

        def compute(lo: GpuLowering, reads: Sequence[Tensor], out: Tensor, way: tuple[Tile, int]) -> None:
            x, w, *zeros = reads
            self._write_tiles(lo, replace(it, image=x), zeros, w, merged, out, None, [], way)
        numbers = "_".join(map(str, (*it.image.shape, *weights.shape, *it.numbers)))
        axes = " ".join(it.slide.axes)
        strides = _letters((it.image.strides[1], *weights.strides[1:]))
        zeros = "_".join(filter(None, self.zeros.kinds()))
        types = f"{it.image.dtype}_{weights.dtype}_{out.dtype}"
        return Task(" ".join(filter(None, ("convolution", types, axes, strides, zeros))), numbers,
                    [it.image, weights, *self.zeros.tensors()], out, compute)

    def _write_tiles(self, lo: GpuLowering, it: Slid, zeros: Sequence[Tensor], weights: Tensor, merged: int,
                     out: Tensor, tree: Expr | None, operands: list[Tensor], way: tuple[Tile, int]) -> None:
        """`weights` [groups, out, in, taps], as the kernel has them, each group of `merged`."""
        x, (tile, parts) = it.image, way
        groups, cout, cin, _ = weights.shape
        taps, sums, rounds = math.prod(it.taps), summed(x.dtype), precision(lo, x.dtype)
        pair = Pair((x.dtype, weights.dtype), rounds, self.zeros.kinds())
        whole = cin >= tile.k or not it.taps
        steps = taps * -(-cin // tile.k) if whole else -(-taps * cin // tile.k)
        each = -(-steps // parts)
        parts = -(-steps // each)
        cut = parts > 1
        columns = [*range(1, 1 + self.columns)]
        pixels = [0, *range(1 + self.columns, out.rank)]
        closing, cells = closed(out, tree, operands, sums, [pixels, columns])
        strides = x.strides[1], *weights.strides[1:]
        spec = convolution(
            numbers=pair, slide=it.slide, taps=it.taps, kinds=_letters(strides), whole=whole,
            few=0 if whole else cin, even=whole and cin % tile.k == 0, grouped=groups > 1, merged=merged,
            inner=self.inner, cut=cut, tile=tile, closing=closing)
        grouped = [groups, weights.strides[0]] if groups > 1 else []
        numbers = [self.rows, *([cin] if whole else []), cout, *_far(strides),
                   *([each, parts] if cut else []), *grouped]
        tiles_of = -(-self.rows // tile.m) * groups * -(-cout // tile.n)
        lo.step(spec, [x, weights, *zeros, *arriving(lo, parts, tiles_of, tile.m * tile.n, sums), *cells,
                       *it.numbers, *numbers], tiles_of * parts)


# operators

def _given(lo: GpuLowering, node: Node) -> tuple[Value, Value, Tensor | None] | No:
    """Image, weights and bias; No where the types are not for kernels."""
    x, w, b = (*node.inputs, None)[:3]
    assert x is not None and w is not None
    dtype = lo.dtype(x)
    if dtype not in FLOATS or lo.dtype(w) != dtype or (b is not None and lo.dtype(b) != dtype):
        return No(f"kernels convolve {', '.join(FLOATS)}, all of one type")
    if b is not None and len(lo.shape(b)) != 1:
        return No("its bias is no row")
    return x, w, None if b is None else lo.tensor(b)


def _weights(lo: GpuLowering, node: Node, w: Value, groups: int, order: Sequence[int] | None = None
             ) -> Weights:
    """The weights of a convolution [channels out, channels in of a group, taps...], once their axes are in
    `order`."""
    known = lo.known(w)
    if known is not None:
        return _known(known if order is None else known.transpose(order), id(node), groups)
    t = lo.tensor(w) if order is None else lo.tensor(w).permute(order)
    each = t.shape[0] // groups
    return _computed(lo, t.view((groups, each, *t.shape[1:]), (each * t.strides[0], *t.strides)), id(node))


def _known(w: np.ndarray, key: Hashable, groups: int) -> Weights:
    return Weights(key, w.reshape(groups, w.shape[0] // groups, *w.shape[1:]), None)


def _computed(lo: GpuLowering, t: Tensor, key: Hashable) -> Weights:
    """Weights [groups, channels out, channels in, taps...] that are only known later."""
    taps = math.prod(t.shape[3:])
    if taps > 1 and t.joined(3, t.rank) is None:
        t = lo.contiguous(t)
    return Weights(key, None, t.view((*t.shape[:3], taps), (*t.strides[:3], t.joined(3, t.rank) or 1)))


def _with(tree: Expr | None, inner: Expr) -> Expr:
    """`tree` over what `inner` makes of its leaf 0."""
    return inner if tree is None else tree.substitute(lambda leaf: leaf if leaf.value else inner)


def _with_bias(tree: Expr | None, operands: list[Tensor], bias: Tensor | None, shape: tuple[int, ...],
               sums: str) -> tuple[Expr | None, list[Tensor]]:
    """The tree over the sum plus `bias`, a tensor of one number per channel."""
    if bias is None:
        return tree, operands
    rest = len(shape) - 2
    spread = bias.view((1, shape[1], *(1,) * rest), (0, bias.strides[0], *(0,) * rest)).expand(shape)
    added = Expr.leaf(len(operands) + 1, bias.dtype).cast(sums)
    return _with(tree, Expr("add", (Expr.leaf(0, sums), added), sums)), [*operands, spread]


def _rounded(waiting: Pending, dtype: str) -> Pending | Lazy:
    """A kernel's sums as the operator's own type."""
    if waiting.dtype == dtype:
        return waiting
    return Lazy(waiting.shape, Expr.leaf(0, waiting.dtype).cast(dtype), [Source(waiting)])


# bytes

def convolved_bytes(lo: GpuLowering, node: Node, x: Tensor, x_zero: Value | None, w: Value,
                    w_zero: Value | None, bias: Value | Tensor | None = None) -> Lazy | No:
    """The int32 convolution of x (N, C, spatial...), less its zero point, one number, plus a bias."""
    dims = lo.shape(w)
    g = geometry_of(x.shape, dims, node.attributes)
    if isinstance(g, No):
        return g
    if x.dtype not in BYTES or lo.dtype(w) not in BYTES:
        return No("integer kernels convolve bytes")
    if x_zero is not None and math.prod(lo.shape(x_zero)) != 1:
        return No("its zero point is more than one number")
    if w_zero is not None and lo.shape(w_zero) not in ((), (1,), (dims[0],)):
        return No("its zero point is not one for each channel")
    shape, ones = (g.batch, dims[0], *g.out[5 - len(dims):]), (1,) * (len(dims) - 2)
    weights, other, sums = _byte_weights(lo, node, w, w_zero, g.groups)
    margin = sums is not None and not (g.cin == 1 and g.groups > 1)
    zeros = Zeros(_image_zero(lo, x, x_zero, margin), other, margin)
    made = Convolution(g, x, weights, zeros)

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        made.write(lo, out, tree, operands)
    total, rest = Expr.leaf(0, INT), list[Tensor]()

    def by_channel(t: Tensor) -> Expr:
        rest.append(t.view((), ()) if t.size == 1 else t.view(
            (t.shape[0], *ones), (t.strides[0], *(0,) * len(ones))))
        return Expr.leaf(len(rest), t.dtype).cast(INT)
    if margin and isinstance(zeros.a, Tensor):
        assert sums is not None
        lack = Expr.const(128 if x.dtype == "uint8" else 0, INT)
        by = Expr("sub", (by_channel(zeros.a.view((1,), (1,))), lack), INT)
        total = Expr("sub", (total, Expr("mul", (by, by_channel(lo.constant(
            ("sums of weights", id(node)), lambda: sums))), INT)), INT)
    if bias is not None:
        total = Expr("add", (total, by_channel(bias if isinstance(bias, Tensor) else lo.tensor(bias))), INT)
    return Lazy(shape, total, [Source(Pending(shape, INT, emit, last_strides(shape, shape[1]))), *rest])


def _byte_weights(lo: GpuLowering, node: Node, w: Value, zero: Value | None, groups: int
                  ) -> tuple[Weights, Tensor | str | None, np.ndarray | None]:
    """Weights, what is still to be subtracted from them, and, where both are known, their sums by channel."""
    known, low = lo.known(w), lo.known(zero) if zero is not None and lo.knows(zero) else None
    other = None if zero is None or (low is not None and not low.any()) else lo.contiguous(lo.tensor(zero))
    if known is None or (zero is not None and low is None):
        return _weights(lo, node, w, groups), other, None
    less = known.astype(np.int32)
    if low is not None:
        less = less - low.astype(np.int32).reshape(-1, *(1,) * (known.ndim - 1))
    sums = less.reshape(len(less), -1).sum(1, dtype=np.int32)
    if less.min() >= -128 and less.max() < 128:
        known, other = less.astype(np.int8), None
    return _known(known, id(node), groups), other, sums


def _image_zero(lo: GpuLowering, x: Tensor, zero: Value | None, always: bool) -> Tensor | str | None:
    """What `Zeros` holds of an image; `always`: unsigned bytes have one, be it 0."""
    known = lo.known(zero) if zero is not None and lo.knows(zero) else None
    if known is not None and x.dtype == "uint8" and (known == 128).all():
        return MIDDLE
    if zero is not None and (known is None or known.any()):
        return lo.tensor(zero)
    return lo.numbers([0], x.dtype) if always and x.dtype == "uint8" else None


def dequantized_convolution(lo: GpuLowering, node: Node) -> Lazy | No:
    """Conv of dequantized bytes; No where the factors are not that."""
    x, w, b = (*node.inputs, None)[:3]
    first, second = coded(lo, x), coded(lo, w)
    if first is None or second is None:
        return No("its factors are not both dequantized")
    zero, scale, by = number(lo, first.zero), number(lo, first.scale), lo.known(second.scale)
    dims = lo.shape(second.value)
    if zero is None or scale is None or by is None or (
            by.size > 1 and (by.ndim != 1 or normalized_axis(second.axis, len(dims)) != 0)):
        return No("its scales are neither one number nor one for each channel")
    total = np.asarray(scale * by, np.float32)
    more = addends(lo, b, total, (1,) * (len(dims) - 2))
    if isinstance(more, No):
        return more
    exact, real = more
    bias = None if exact is None else lo.constant(("bias", exact.key), lambda: exact.values)
    sums = convolved_bytes(lo, node, lo.tensor(first.value), first.zero, second.value, second.zero, bias)
    if isinstance(sums, No):
        return sums
    lying = total.reshape(-1, *(1,) * (len(dims) - 2)) if total.size > 1 else total.reshape(())
    factor = lo.constant(("scale", id(node)), lambda: lying)
    return shared.times(sums, (factor, "mul"), *([] if real is None else [(real, "add")]))


_RULES: dict[tuple[str, ...], Any] = {
    ("ConvInteger",): shared.conv_integer, ("QLinearConv", shared.MS + "QLinearConv"): shared.qlinear_conv,
}
for _kinds, _rule in _RULES.items():
    lowers(*_kinds, types=BYTES)(functools.partial(_rule, convolve=convolved_bytes))


@lowers("Conv", "com.microsoft::FusedConv", types=FLOATS)
def convolved(lo: GpuLowering, node: Node) -> Lazy | Pending | No:
    """FusedConv adds a tensor and applies an activation."""
    if not node.domain and isinstance(exact := dequantized_convolution(lo, node), Lazy):
        return exact
    attrs, given = node.attributes, _given(lo, node)
    if isinstance(given, No):
        return given
    x, w, bias = given
    g = geometry_of(lo.shape(x), lo.shape(w), attrs)
    if isinstance(g, No):
        return g
    dtype, sums = lo.dtype(x), summed(lo.dtype(x))
    shape = (g.batch, g.groups * g.cout, *g.out[5 - len(lo.shape(w)):])
    then = activation(attrs.get("activation"), attrs.get("activation_params"))
    if isinstance(then, No):
        return then
    z = node.inputs[3] if len(node.inputs) > 3 else None
    if z is not None and (lo.shape(z) != shape or lo.dtype(z) != dtype):
        return No("what it adds has another shape or type")
    added = None if z is None else lo.tensor(z)
    made = Convolution(g, lo.tensor(x), _weights(lo, node, w, g.groups))

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        inner = then
        if added is not None:
            operands = [*operands, added]
            other = Expr.leaf(len(operands), added.dtype).cast(sums)
            inner = Expr("add", (Expr.leaf(0, sums), other), sums)
            inner = inner if then is None else _with(then, inner)
        tree = tree if inner is None else _with(tree, inner)
        made.write(lo, out, *_with_bias(tree, operands, bias, shape, sums))
    return _rounded(Pending(shape, sums, emit, last_strides(shape, shape[1])), dtype)


@lowers("com.microsoft::NhwcConv", types=FLOATS)
def convolved_last(lo: GpuLowering, node: Node) -> Lazy | Pending | No:
    """Channels are the last axis of images and weights."""
    given = _given(lo, node)
    if isinstance(given, No):
        return given
    x, w, bias = given
    t, rank = lo.tensor(x), len(lo.shape(x))
    first, last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    if len(lo.shape(w)) != rank:
        return No("its weights have another rank than its image")
    t = t.permute(first)
    g = geometry_of(t.shape, tuple(lo.shape(w)[a] for a in first), node.attributes)
    if isinstance(g, No):
        return g
    sums, shape = summed(t.dtype), (g.batch, g.groups * g.cout, *g.out[5 - rank:])
    made = Convolution(g, t, _weights(lo, node, w, g.groups, first))

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        moved = [o.permute(first) for o in operands]
        made.write(lo, out.permute(first), *_with_bias(tree, moved, bias, shape, sums))
    return _rounded(Pending(tuple(shape[a] for a in last), sums, emit), t.dtype)


@lowers("ConvTranspose", types=FLOATS)
def convolved_back(lo: GpuLowering, node: Node) -> Lazy | Pending | No:
    """One plain convolution per phase of the output, each writing every stride-th pixel; one for all where
    each pixel of the output has one tap."""
    attrs, given = node.attributes, _given(lo, node)
    if isinstance(given, No):
        return given
    x, w, bias = given
    shape, weighs, group = lo.shape(x), lo.shape(w), attrs["group"]
    rank = len(shape) - 2
    if not 1 <= rank <= 3 or len(weighs) != rank + 2 or group < 1 or weighs[0] != shape[1] or (
            shape[1] % group) or 0 in (*shape, *weighs):
        return No("kernels convolve one to three spatial axes of images that are not empty")
    if tuple(attrs.get("kernel_shape") or weighs[2:]) != weighs[2:]:
        return No("its kernel_shape is not that of its weights")
    strides, dilations = (tuple(attrs.get(key) or (1,) * rank) for key in ("strides", "dilations"))
    if math.prod(strides) > _PHASES:
        return No(f"a launch for each of more than {_PHASES} phases is too many")
    try:
        begin, size = transposed(shape[2:], weighs[2:], strides, dilations, attrs["auto_pad"],
                                 attrs.get("output_padding"), attrs.get("output_shape"), attrs.get("pads"))
    except (TypeError, ValueError):
        return No("its window does not fit")
    cin, cout = shape[1] // group, weighs[1]
    whole = Geometry(shape[0], group, cin, cout, *(_three(numbers, fill) for numbers, fill in (
        (shape[2:], 1), (weighs[2:], 1), (strides, 1), (dilations, 1), (begin, 0), (size, 1))))
    made = (shape[0], cout * group, *size)
    if 0 in made:
        return No("its output is empty")
    t, sums = lo.tensor(x), summed(lo.dtype(x))

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        tree, operands = _with_bias(tree, operands, bias, made, sums)
        if tuple(strides) == weighs[2:] and not any(begin) and all(d == 1 for d in dilations) and (
                cin > 1 or group == 1) and tuple(size) == tuple(
                    d * s for d, s in zip(shape[2:], strides, strict=True)):
            whole_taps = _all_phases(lo, node, w, t, group)
            whole_taps.write(lo, _by_phase(out, strides), tree, [_by_phase(o, strides) for o in operands])
            return
        for g, picks, starts in phases(whole):
            def cut(t: Tensor, g: Geometry = g, starts: tuple[int, ...] = starts) -> Tensor:
                for axis in range(2, t.rank):
                    place = axis + 1 - rank
                    t = t.slice(axis, starts[place], g.out[place], whole.strides[place])
                return t
            weights = _phase(lo, node, w, group, picks[3 - rank:])
            Convolution(g, t, weights, inner=True).write(lo, cut(out), tree, [cut(o) for o in operands])
    return _rounded(Pending(made, sums, emit, last_strides(made, made[1])), t.dtype)


def _all_phases(lo: GpuLowering, node: Node, w: Value, x: Tensor, group: int) -> Convolution:
    """The convolution of `x` by one tap, whose channels are those of the weights [groups x channels in,
    channels out, taps...] at each tap."""
    known, key = lo.known(w), (id(node), "every tap")
    cin, (cout, *kernel) = x.shape[1] // group, lo.shape(w)[1:]
    count, ones = cout * math.prod(kernel), (1,) * len(kernel)
    if known is not None:
        weights = Weights(key, np.ascontiguousarray(
            known.reshape(group, cin, count).swapaxes(1, 2)).reshape(group, count, cin, *ones), None)
    else:
        t = lo.contiguous(lo.tensor(w))
        weights = Weights(key, None, t.view((group, count, cin, 1), (cin * count, 1, count, 1)))
    size = _three(x.shape[2:], 1)
    one, none = (1, 1, 1), (0, 0, 0)
    return Convolution(Geometry(x.shape[0], group, cin, count, size, one, one, one, none, size), x, weights,
                       columns=1 + len(kernel))


def _by_phase(t: Tensor, strides: Sequence[int]) -> Tensor:
    """(N, C, spatial...) as (N, C, phases..., spatial...)."""
    steps = t.strides[2:]
    return t.view((*t.shape[:2], *strides, *(d // s for d, s in zip(t.shape[2:], strides, strict=True))),
                  (*t.strides[:2], *steps, *(each * s for each, s in zip(steps, strides, strict=True))))


def _phase(lo: GpuLowering, node: Node, w: Value, group: int, picks: Sequence[slice]) -> Weights:
    """The weights of one phase: some taps of those [groups x channels in, channels out, taps...]."""
    known, key = lo.known(w), (id(node), *((pick.start, pick.stop, pick.step) for pick in picks))
    if known is not None:
        turned = known.reshape(group, -1, *known.shape[1:]).swapaxes(1, 2)
        return Weights(key, turned[(slice(None), slice(None), slice(None), *picks)], None)
    t = lo.tensor(w)
    each = t.shape[0] // group
    t = t.view((group, t.shape[1], each, *t.shape[2:]),
               (each * t.strides[0], t.strides[1], t.strides[0], *t.strides[2:]))
    for axis, pick in enumerate(picks, 3):
        taps = range(*pick.indices(t.shape[axis]))
        t = t.slice(axis, taps.start, len(taps), taps.step)
    return _computed(lo, t, key)


def _three(numbers: Sequence[int], fill: int) -> tuple[int, int, int]:
    first, second, third = (fill,) * (3 - len(numbers)) + tuple(numbers)
    return first, second, third
