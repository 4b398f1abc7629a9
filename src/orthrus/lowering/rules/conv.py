"""Convolutions: which kernel does one, its weights packed once, its epilogue what follows it elementwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.kernels.conv import depthwise, direct, winograd
from ...codegen.kernels.conv.copies import pad_rows
from ...codegen.kernels.conv.geometry import Geometry, phases, preferred_pitch
from ...codegen.write.expr import Expr
from ...codegen.write.tile import Operand, widens
from ...ir import No, Node, Value
from ...ops.nn.conv import transposed
from ...ops.nn.geometry import window
from ...shapes.symbolic import memo
from ..elements import store
from ..lower import Emit, Lazy, Lowering, Out, Pending, Source, lowers
from ..tensor import Tensor, c_strides, last_strides
from ..walk import Walked
from . import conv_columns, conv_planes, matrix_unit
from .conv_weights import Computed, Known, Weights
from .elementwise import activation

FEW_CHANNELS = 4
"""Input channels up to which an image is copied with its margins, each channel a plane."""

_F32, _F16 = "float32", "float16"
_VALUE = Expr.leaf(0, _F32)

_FEW_SUMMED = 16
"""Input channels up to which a transposed convolution without steps is done plane by plane."""

_PHASES = 1 << 12
"""Phases of a transposed convolution up to which there is a kernel for each."""


def _three(values: Sequence[int], fill: int) -> tuple[int, int, int]:
    made = (fill,) * (3 - len(values)) + tuple(values)
    return made[0], made[1], made[2]


def _walk(t: Tensor) -> tuple[int, int, int, int]:
    """Strides over images, depth, rows and pixels."""
    return (t.strides[0] if t.shape[0] > 1 else 0, *_three(t.strides[2:], 0))


def _even(t: Tensor) -> bool:
    """Whether all pixels of a plane are equally far apart."""
    return t.rank < 4 or t.shape[-2] == 1 or t.strides[-2] == t.shape[-1] * t.strides[-1]


def _operand(t: Tensor) -> Operand:
    row = any(s and d > 1 for d, s in zip(t.shape[-2:] if t.rank > 3 else t.shape[-1:],
                                          t.strides[-2:] if t.rank > 3 else t.strides[-1:], strict=True))
    return Operand(t.dtype, row, t.shape[1] > 1 and t.strides[1] != 0)


def _with_bias(tree: Expr | None, operands: list[Tensor], bias: Tensor | None,
               shape: tuple[int, ...]) -> tuple[Expr | None, list[Tensor]]:
    """The tree over the sum plus `bias`, a tensor of one number per channel."""
    if bias is None:
        return tree, operands
    rest = len(shape) - 2
    spread = bias.view((1, shape[1], *(1,) * rest), (0, 1, *(0,) * rest))
    operands = [*operands, spread.expand(shape)]
    total = Expr("add", (_VALUE, Expr.leaf(len(operands), bias.dtype).cast(_F32)), _F32)
    return (total if tree is None else tree.substitute(lambda leaf: leaf if leaf.value else total)), operands


def _met(t: Tensor, size: Sequence[int], written: bool = False) -> Walked:
    """`t`, an output or an operand, as a kernel that counts `size` (depth, rows, pixels) meets it."""
    image, *plane = _walk(t)
    return Walked(t, (t.shape[0], *size, t.shape[1]), (image, *plane, t.strides[1]), written)


def _counted(plan: direct.ConvPlan) -> tuple[int, int, int]:
    """Depth, rows and pixels of a row of the output, as the kernel counts them."""
    deep, high, wide = plan.geometry.out
    return deep, high * wide // plan.width, plan.width


def _cells_of(operands: Sequence[Tensor], size: Sequence[int]) -> list[Any]:
    return [cell for t in operands for cell in (_met(t, size), *_walk(t))]


class Convolution:
    """One convolution of `x` (N, C, spatial...), ready to be written into an output. Images of float16 are
    widened first where no instruction does it on the way, or where the kernel transforms them."""

    def __init__(self, lo: Lowering, g: Geometry, x: Tensor, weights: Weights) -> None:
        self.g, self.weights = g, weights
        self.stem = (g.groups == 1 and g.cin <= FEW_CHANNELS and g.size[0] == g.kernel[0] == g.out[0] == 1
                     and g.pads[0] == 0 and g.kernel[2] > 1 and g.dilations[2] == 1
                     and min(g.pads) >= 0)
        self.side = 0
        if isinstance(weights, Known) and not self.stem and not depthwise.fits(g) and lo.transforms:
            self.side = winograd.choose(g, lo.machine)
            if self.side and winograd.few_bits(weights.make()):
                self.side = 0
        if x.dtype != _F32 and (self.side or not widens(lo.machine, x.dtype, x.dtype)):
            wide = lo.new(x.shape, _F32, None if self.stem else last_strides(
                x.shape, preferred_pitch(x.shape[1])))
            store(lo, wide, Expr.leaf(0, x.dtype).cast(_F32), [x])
            x = wide
        if self.stem:
            planar = x.strides[-1] == 1 and (x.shape[0] == 1 or x.strides[0] == x.shape[1] * x.strides[1])
            self.x = x if planar else lo.contiguous(x)
        else:
            self.x = lo.channels_last(x, preferred_pitch(x.shape[1]))

    def write(self, lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        """Append the steps that put the tree of the convolution into `out`."""
        if 0 in out.shape:
            return
        g, machine, given, dtype = self.g, lo.machine, [_operand(t) for t in operands], self.x.dtype
        if depthwise.fits(g):
            lanes = depthwise.lanes_of(g, machine)
            packed = self.weights.panels(lo, 1, 1, lanes, dtype)
            cells = depthwise.cells(g, _walk(self.x), _walk(out))
            lo.step(depthwise.spec(g, machine, tree, given, dtype=dtype),
                    [self.x, packed, _met(out, g.out, True), *cells, *_cells_of(operands, g.out)],
                    depthwise.items(g))
            return
        if self.stem:
            self._write_stem(lo, out, tree, operands, given)
            return
        if self._on_matrix_unit(lo, out, tree, operands):
            return
        if self.side:
            self._write_winograd(lo, winograd.plan(g, machine, self.side), out, tree, operands, given)
            return
        flat = all(map(_even, (self.x, out, *(t for t, o in zip(operands, given, strict=True) if o.row))))
        plan = direct.plan(g, machine, flat and g.strides[1:] == (1, 1), dtype=dtype, apart=not lo.transforms)
        packed = self.weights.panels(lo, *plan.panelled)
        lo.step(plan.spec(tree, given), [
            self.x, packed, _met(out, _counted(plan), True), *plan.cells(_walk(self.x), _walk(out)),
            *([Out(lo.status)] if plan.merge > 1 else []), *_cells_of(operands, _counted(plan))],
            plan.items, 1, plan.scratch)

    def _on_matrix_unit(self, lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> bool:
        """Write the convolution there where that is faster."""
        g, weights = self.g, self.weights
        if isinstance(weights, Computed):
            return False
        taps = g.kernel[1] * g.kernel[2]
        pixels = g.batch * g.out[1] * g.out[2]
        if g.groups != 1 or g.size[0] != 1 or g.kernel[0] != 1 or g.pads[0] or min(g.pads) < 0 or not (
                matrix_unit.takes(lo, pixels, g.cout, g.cin * taps, g.cin)):
            return False
        window = matrix_unit.Window(g.kernel[1:], g.strides[1:], g.dilations[1:], g.pads[1:])
        x, target, *rest = (_image(t) for t in (self.x, out, *operands))
        matrix_unit.conv(lo, x, weights.key, lambda: weights.make().reshape(g.cout, g.cin, *g.kernel[1:]),
                         window, target, tree, rest)
        return True

    def _write_stem(self, lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor],
                    given: list[Operand]) -> None:
        x, stem = self.x, direct.plan_stem(self.g, lo.machine, self.x.dtype)
        copy = lo.new((stem.planes, stem.rows, stem.pitch), x.dtype)
        plane, row = x.strides[1] if x.shape[1] > 1 else x.strides[0], x.strides[-2] if x.rank > 3 else 0
        lo.step(pad_rows(dtype=x.dtype), [x, Out(copy), *stem.copy_cells(plane, row)],
                stem.planes * stem.rows, 16)
        packed = self.weights.upright().panels(lo, *stem.plan.panelled)
        size = _counted(stem.plan)
        lo.step(stem.plan.spec(tree, given), [
            copy, packed, _met(out, size, True), *stem.plan.cells(stem.strides, _walk(out)),
            *_cells_of(operands, size)], stem.plan.items, 1, stem.plan.scratch)

    def _write_winograd(self, lo: Lowering, plan: winograd.WinogradPlan, out: Tensor, tree: Expr | None,
                        operands: list[Tensor], given: list[Operand]) -> None:
        weights = self.weights
        assert isinstance(weights, Known)
        packed = lo.constant((*weights.key, "winograd", plan.side, plan.cols),
                             lambda: plan.pack(np.asarray(weights.make(), np.float32)))
        v, m = (lo.new((size if plan.whole else 1,), _F32) for size in (plan.v_size, plan.m_size))
        steps = plan.steps(tree, given)
        for i, (spec, items, scratch) in enumerate(steps):
            last = i == len(steps) - 1
            rooms = Out(v) if i == 0 else v, Out(m) if i == 1 else m
            size = self.g.out
            args = [self.x, packed, _met(out, size, True) if last else out, *rooms,
                    Out(lo.status) if last else lo.status, *plan.cells(_walk(self.x), _walk(out)),
                    *(_cells_of(operands, size) if last else ())]
            lo.step(spec, args, items, 1, scratch)


def _image(t: Tensor) -> Tensor:
    """A tensor of one or two spatial axes, or three of which the first is 1, with two."""
    shape, strides = (*t.shape[:2], *t.shape[2:][-2:]), (*t.strides[:2], *t.strides[2:][-2:])
    if t.rank > 3:
        return t.view(shape, strides)
    return t.view((*shape[:2], 1, shape[2]), (*strides[:2], 0, strides[2]))


def _accepts(t: Tensor) -> bool:
    return t.shape[1] == 1 or t.strides[1] in (0, 1)


def _pending(shape: tuple[int, ...], emit: Emit) -> Pending:
    return Pending(shape, _F32, emit, last_strides(shape, preferred_pitch(shape[1])), _accepts, numbers=True)


def _spatial(w: np.ndarray) -> np.ndarray:
    """Weights [Cout, Cin, spatial...] with three spatial axes."""
    return w.reshape(*w.shape[:2], *_three(w.shape[2:], 1))


def _weights(w: np.ndarray | Tensor, groups: int, key: tuple[Any, ...]) -> Weights:
    """Those of a convolution, [Cout, Cin / groups, spatial...]."""
    return _computed(w, groups) if isinstance(w, Tensor) else Known(lambda: _spatial(w), key)


def _picked(w: Tensor, groups: int, picks: Sequence[slice]) -> Computed:
    """The weights [Cin, Cout / groups, spatial...] of one phase of a transposed convolution."""
    first, *rest = w.strides
    count = w.shape[0] // groups
    t = w.view((groups, w.shape[1], count, *_three(w.shape[2:], 1)),
               (count * first, rest[0], first, *_three(rest[1:], 0)))
    for axis, pick in enumerate(picks, 3):
        start, stop, step = pick.indices(t.shape[axis])
        t = t.slice(axis, start, len(range(start, stop, step)), step)
    return Computed(t)


def _computed(w: Tensor, groups: int) -> Computed:
    """Weights [Cout, Cin / groups, spatial...] by groups, with three spatial axes."""
    first, *rest = w.strides
    count = w.shape[0] // groups
    return Computed(w.view((groups, count, w.shape[1], *_three(w.shape[2:], 1)),
                           (count * first, first, rest[0], *_three(rest[1:], 0))))


def geometry(shape: tuple[int, ...], w: np.ndarray | Tensor, attrs: dict[str, Any]) -> Geometry | No:
    """What a convolution's attributes mean for an input of `shape` and weights [Cout, Cin / group, K...]."""
    return geometry_of(shape, w.shape, attrs)


def geometry_of(shape: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> Geometry | No:
    """The same for weights of the shape `w`."""
    lists = (None if attrs.get(name) is None else tuple(attrs[name])
             for name in ("kernel_shape", "strides", "dilations", "pads"))
    return _geometry(tuple(shape), tuple(w), attrs["group"], attrs["auto_pad"], *lists)


@memo()
def _geometry(shape: tuple[int, ...], w: tuple[int, ...], group: int, auto_pad: str,
              *lists: tuple[int, ...] | None) -> Geometry | No:
    """`lists`: the size of the kernel, its steps, its spread and the margins."""
    if not 3 <= len(shape) <= 5 or len(w) != len(shape) or group < 1 or w[0] % group or (
            w[1] * group != shape[1]) or 0 in (*shape, *w):
        return No("kernels convolve one to three spatial axes of images that are not empty")
    kernel, strides, dilations, pads = lists
    try:
        win = window(shape[2:], kernel or w[2:], strides, dilations, pads, auto_pad)
    except (TypeError, ValueError):
        return No("its window does not fit")
    if win.kernel != w[2:]:
        return No("its kernel_shape is not that of its weights")
    return Geometry(shape[0], group, w[1], w[0] // group, _three(win.size, 1),
                         _three(win.kernel, 1), _three(win.strides, 1), _three(win.dilations, 1),
                         _three(win.begin, 0), _three(win.out, 1))


def _parts(lo: Lowering, node: Node, types: Sequence[str] = (_F32,)
           ) -> tuple[Value, np.ndarray | Tensor, Tensor | None] | No:
    """Input, weights and bias, whose numbers lie one after the other; No where the types, all one of `types`,
    are not for kernels."""
    x, w, b = (*node.inputs, None)[:3]
    assert x is not None and w is not None
    dtype = lo.dtype(x)
    if dtype not in types or lo.dtype(w) != dtype or (b is not None and lo.dtype(b) != dtype):
        return No(f"the kernel convolves {' or '.join(types)} only, all of one type")
    sums = lo.shape(w)[:1]
    if node.op_type == "ConvTranspose":
        sums = tuple(n * node.attributes["group"] for n in lo.shape(w)[1:2])
    if b is not None and lo.shape(b) != sums:
        return No("its bias has not a number per channel")
    known = lo.known(w)
    return x, lo.tensor(w) if known is None else known, None if b is None else lo.contiguous(lo.tensor(b))


@lowers("Conv", "com.microsoft::FusedConv", types=(_F32, _F16))
def convolution(lo: Lowering, node: Node) -> Lazy | Pending | No:
    """Direct, Winograd or depthwise; FusedConv adds a tensor and applies an activation."""
    if not node.domain and lo.dequantized(*node.inputs[:2]):
        from .quantized import int8

        if isinstance(exact := int8.dequantized_conv(lo, node, geometry), Lazy):
            return exact
    attrs, parts = node.attributes, _parts(lo, node, (_F32, _F16))
    if isinstance(parts, No):
        return parts
    x, w, bias = parts
    g = geometry(lo.shape(x), w, attrs)
    if isinstance(g, No):
        return g
    shape = (g.batch, w.shape[0], *g.out[5 - len(w.shape):])
    then = activation(attrs.get("activation"), attrs.get("activation_params"))
    if isinstance(then, No):
        return then
    z = node.inputs[3] if len(node.inputs) > 3 else None
    if z is not None and (lo.shape(z) != shape or lo.dtype(z) != lo.dtype(x)):
        return No("what it adds has another shape or type")
    added = None if z is None else lo.tensor(z)
    if added is not None and not _accepts(added):
        added = lo.channels_last(added)
    source, weights = lo.tensor(x), _weights(w, g.groups, ("conv", id(node)))
    planar = _pointwise(lo, node, g, source) or conv_planes.of(lo, g, source, weights)
    made = planar or Convolution(lo, g, source, weights)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        inner = then
        if added is not None:
            operands = [*operands, added]
            total = Expr("add", (_VALUE, Expr.leaf(len(operands), added.dtype).cast(_F32)), _F32)
            inner = total if then is None else then.substitute(lambda _: total)
        if inner is not None:
            tree = inner if tree is None else tree.substitute(lambda leaf: leaf if leaf.value else inner)
        made.write(lo, out, *_with_bias(tree, operands, bias, shape))
    waiting = _pending(shape, emit)
    if planar:
        waiting = Pending(shape, _F32, emit, numbers=isinstance(planar, conv_planes.Planes))
    if lo.dtype(x) == _F32:
        return waiting
    return Lazy(shape, _VALUE.cast(lo.dtype(x)), [Source(waiting)])


class Pointwise:
    """A convolution of one tap whose images lie plane by plane, as a product of weights and planes, group by
    group: weights (groups, Cout, Cin) and planes (N, groups, Cin, pixels); without groups where there is
    one."""

    def __init__(self, weights: Tensor, planes: Tensor) -> None:
        self.weights, self.planes = weights, planes

    def write(self, lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        """As `Convolution.write`."""
        if 0 in out.shape:
            return
        shape = (*self.planes.shape[:-2], self.weights.shape[-2], self.planes.shape[-1])
        target = out.reshape(shape)
        result = lo.new(shape, out.dtype) if target is None else target
        rest = [t.reshape(shape) or lo.contiguous(t).reshape(shape) for t in operands]
        lo.rules.steps["product_then"](lo, self.weights, self.planes, None, result, tree,
                                       [t for t in rest if t is not None])
        if target is None:
            lo.copy(result.view(out.shape, c_strides(out.shape)), out)


class Scaled:
    """A convolution of one tap and one channel a group: planes, each times its number."""

    def __init__(self, weights: Tensor, x: Tensor) -> None:
        self.weights, self.x = weights, x

    def write(self, lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        """As `Convolution.write`."""
        product = Expr("mul", (_VALUE, Expr.leaf(1, _F32)), _F32)
        whole = product if tree is None else tree.substitute(
            lambda leaf: Expr.leaf(leaf.value + 1, leaf.dtype) if leaf.value else product)
        lo.store(out, whole, [self.x, self.weights.expand(out.shape), *operands])


def _pointwise(lo: Lowering, node: Node, g: Geometry, x: Tensor) -> Pointwise | Scaled | None:
    """That of a convolution over images that lie plane by plane, of the pixels that it meets where it steps
    over some; None where it is another, its results are far more than its images and not asked for plane by
    plane, or a matrix unit takes images whose channels come last."""
    if (lo.matrix_unit or x.strides[1] == 1 or x.dtype != _F32 or {*g.kernel} != {1} or any(g.pads)
            or g.leaves):
        return None
    one, final = g.cin == g.cout == 1, node.outputs[0] in lo.finals
    if not one and (1 in (g.cin, math.prod(g.out)) or (g.groups == 1 and g.cin < FEW_CHANNELS)
                    or (g.cout > 2 * g.cin and not final)):
        return None
    weights = lo.contiguous(lo.tensor(node.inputs[1]))
    for axis in range(2, x.rank):
        x = x.slice(axis, 0, g.out[axis + 3 - x.rank], g.strides[axis + 3 - x.rank])
    if one:
        return Scaled(weights.view((1, g.groups, *(1,) * (x.rank - 2)), (0, 1, *(0,) * (x.rank - 2))), x)
    groups = (g.groups,) if g.groups > 1 else ()
    planes, matrices = (g.batch, *groups, g.cin, math.prod(g.out)), (*groups, g.cout, g.cin)
    lying = x.reshape(planes)
    if lying is None or lying.strides[-1] != 1:
        lying = lo.contiguous(x).view(planes, c_strides(planes))
    return Pointwise(weights.view(matrices, c_strides(matrices)), lying)


@lowers("com.microsoft::NhwcConv", types=(_F32,))
def convolution_of_last(lo: Lowering, node: Node) -> Pending | No:
    """Channels are the last axis of images and weights."""
    parts = _parts(lo, node)
    if isinstance(parts, No):
        return parts
    x, w, bias = parts
    t = lo.tensor(x)
    first, last = [0, t.rank - 1, *range(1, t.rank - 1)], [0, *range(2, t.rank), 1]
    t = t.permute(first)
    if len(w.shape) == t.rank:
        w = w.permute(first) if isinstance(w, Tensor) else w.transpose(first)
    g = geometry(t.shape, w, node.attributes)
    if isinstance(g, No):
        return g
    shape = (g.batch, w.shape[0], *g.out[5 - len(w.shape):])
    made = Convolution(lo, g, t, _weights(w, g.groups, ("conv", id(node))))

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        made.write(lo, out.permute(first),
                   *_with_bias(tree, [o.permute(first) for o in operands], bias, shape))
    strides = last_strides(shape, shape[1])
    return Pending(tuple(shape[a] for a in last), _F32, emit, tuple(strides[a] for a in last),
                   lambda t: t.shape[-1] == 1 or t.strides[-1] in (0, 1))


@lowers("ConvTranspose", types=(_F32,))
def convolution_transposed(lo: Lowering, node: Node) -> Pending | No:
    """One plain convolution per phase of the output, each writing every stride-th pixel."""
    attrs, parts = node.attributes, _parts(lo, node)
    if isinstance(parts, No):
        return parts
    x, w, bias = parts
    shape, group, rank = lo.shape(x), attrs["group"], len(w.shape) - 2
    if not 3 <= len(shape) <= 5 or len(w.shape) != len(shape) or group < 1 or w.shape[0] != shape[1] or (
            w.shape[0] % group) or 0 in (*shape, *w.shape):
        return No("kernels convolve one to three spatial axes of images that are not empty")
    if tuple(attrs.get("kernel_shape") or w.shape[2:]) != w.shape[2:]:
        return No("its kernel_shape is not that of its weights")
    strides, dilations = (tuple(attrs.get(key) or (1,) * rank) for key in ("strides", "dilations"))
    if math.prod(strides) > _PHASES:
        return No(f"a kernel for each of more than {_PHASES} phases is too much to compile")
    try:
        begin, size = transposed(shape[2:], w.shape[2:], strides, dilations, attrs["auto_pad"],
                                 attrs.get("output_padding"), attrs.get("output_shape"), attrs.get("pads"))
    except (TypeError, ValueError):
        return No("its window does not fit")
    cin, cout = w.shape[0] // group, w.shape[1]
    whole = Geometry(shape[0], group, cin, cout, _three(shape[2:], 1), _three(w.shape[2:], 1),
                          _three(strides, 1), _three(dilations, 1), _three(begin, 0), _three(size, 1))
    made = (shape[0], cout * group, *size)
    if 0 in made:
        return No("its output is empty")
    def weights(picks: tuple[slice, ...]) -> Weights:
        if isinstance(w, Tensor):
            return _picked(w, group, picks)
        moved = w.reshape(group, cin, cout, *w.shape[2:]).swapaxes(1, 2)
        taps = tuple((pick.start, pick.stop, pick.step) for pick in picks)
        return Known(lambda: _spatial(moved.reshape(group * cout, cin, *w.shape[2:]))[
            (slice(None), slice(None), *picks)], ("transposed", id(node), taps))
    source = lo.tensor(x)
    what = conv_columns.Columns(tuple(shape[2:]), w.shape[2:], strides, tuple(begin), tuple(size))
    columns = isinstance(w, np.ndarray) and set(dilations) == {1} and what.fits() and (
        conv_columns.pays(what, group, cin, cout, lo.machine.lanes()))
    finite = isinstance(w, Tensor) or bool(np.isfinite(w).all())
    if not finite and not columns:
        return No("a weight is not finite, and kernels take what lies beside an image for zeros")
    if set(strides) == {1} and finite and not (
            columns and (cin > _FEW_SUMMED or cin >= conv_columns.DEEP * cout)):
        (g, picks, _), = phases(whole)
        if planar := conv_planes.of(lo, g, source, weights(picks)):
            return Pending(made, _F32, lambda lo, out, tree, operands: planar.write(
                lo, out, *_with_bias(tree, operands, bias, made)), numbers=True)
    if columns:
        assert isinstance(w, np.ndarray)

        def added(lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
            tree, operands = _with_bias(tree, operands, bias, made)
            conv_columns.write(lo, source, w, (id(node), *what.image), group, what, out, tree, operands)
        return Pending(made, _F32, added, None, lambda t: True)
    t = lo.channels_last(source, preferred_pitch(shape[1]))

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        tree, operands = _with_bias(tree, operands, bias, made)
        for g, picks, starts in phases(whole):
            def cut(t: Tensor, g: Geometry = g, starts: tuple[int, int, int] = starts) -> Tensor:
                for axis in range(2, t.rank):
                    place = axis - 2 + 3 - rank
                    t = t.slice(axis, starts[place], g.out[place], whole.strides[place])
                return t
            Convolution(lo, g, t, weights(picks)).write(lo, cut(out), tree, [cut(o) for o in operands])
    return _pending(made, emit)
