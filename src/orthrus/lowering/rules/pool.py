"""Pooling of images, and the frame that all kernels over pixels share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.kernels import pool
from ...codegen.kernels.sample import frame_cells, lanes_for
from ...codegen.write.expr import BYTES, Expr
from ...ir import No, Node, Value
from ...ops.nn.geometry import Window, window
from ...records import dataclass
from ...shapes.symbolic import choice
from ..elements import store
from ..lower import Lowering, Out, Pending, lowers
from ..tensor import Tensor, c_strides, last_strides
from ..walk import Walked
from .rows import alive

F = "float32"
FEW_CHANNELS = 4
"""Channels below which an image that is not channels-last is walked one number at a time."""

_MOST_TAPS = 16
"""Elements of a window's row that are written one after the other."""
_GRAIN = 1 << 12


@dataclass(eq=False)
class Framed:
    """What a kernel over pixels gets: its parameters, its leading arguments and how to walk its input."""

    params: dict[str, Any]
    cells: list[Any]
    items: int
    grain: int
    planar: bool

    def walked(self, t: Tensor) -> list[int]:
        """Strides along images and spatial axes."""
        images = t.joined(0, 2) if self.planar else t.strides[0]
        assert images is not None
        return [images, *t.strides[2:]]


def framed(lo: Lowering, x: Tensor, out: Tensor, tree: Expr | None, operands: Sequence[Tensor],
           work: str | None = None) -> Framed:
    """The frame for one input image and an output like it; `work`: the type of a block's numbers, where it is
    not the input's."""
    planar = not _last(x)
    lanes = 1 if planar else lanes_for(lo.machine, work or x.dtype)
    made = Framed({}, [], 0, 0, planar)
    images, channels = (math.prod(out.shape[:2]), 1) if planar else out.shape[:2]
    size = (images, *out.shape[2:])
    tensors = [Walked(t, (*size, channels), (*made.walked(t), t.strides[1]), t is out)
               for t in (out, *operands)]
    made.cells, made.items, made.grain = frame_cells(
        size, channels, lanes, tensors, [t.strides[:-1] for t in tensors])
    made.params = {"rank": out.rank - 2, "lanes": lanes, "dtype": x.dtype, "out": out.dtype, "after": tree,
                   "operands": tuple((t.dtype, int(not planar and t.strides[1] == 1)) for t in operands)}
    return made


def _last(t: Tensor) -> bool:
    return t.strides[1] == 1 or t.shape[1] == 1


def image(lo: Lowering, t: Tensor) -> Tensor:
    """`t` as kernels over pixels read it: channels-last, or with few channels as it is where images and
    channels are one axis."""
    if not _last(t) and t.shape[1] < FEW_CHANNELS and t.joined(0, 2) is not None:
        return t
    return lo.channels_last(t)


def pixels(shape: tuple[int, ...], dtype: str, x: Tensor,
           emit: Callable[[Lowering, Tensor, Expr | None, list[Tensor]], None]) -> Pending:
    """The pending image of a kernel over pixels that reads `x`."""
    if _last(x):
        return Pending(shape, dtype, emit, last_strides(shape, shape[1]))

    return Pending(shape, dtype, emit, None, lambda t: t.joined(0, 2) is not None)


@lowers("MaxPool", "AveragePool", "LpPool", types=pool.DTYPES)
def windows(lo: Lowering, node: Node) -> Pending | tuple[Pending, Pending] | No:
    """One number per window and channel, and where the largest was."""
    (x,) = node.inputs
    attrs = node.attributes
    norm = attrs.get("p")
    if norm not in (None, 1, 2):
        return No("no generated kernel for this norm")
    kind = "max" if norm is None else f"l{norm:.0f}"
    kind = "average" if node.op_type == "AveragePool" else kind
    t = lo.tensor(x)
    if not alive(lo, node, 1):
        return pooled(lo, t, kind, attrs)
    t = image(lo, t) if t.rank > 2 else t
    made, places = pooled(lo, t, kind, attrs), pooled(lo, t, "place", attrs)
    return made if isinstance(made, No) else places if isinstance(places, No) else (made, places)


def pooled(lo: Lowering, x: Tensor, kind: str, attrs: dict[str, Any], zero: Tensor | None = None
           ) -> Pending | No:
    """One number of `kind` per window of an image (N, C, spatial...) and channel. `zero`: a float32 number
    that an average of bytes, which is float32, takes off each."""
    shape, dtype = x.shape, x.dtype
    if not 3 <= len(shape) <= 5 or 0 in shape:
        return No("kernels pool one to three spatial axes")
    if kind not in ("max", "place") and dtype in pool.LOWEST and zero is None:
        return No(f"no generated kernel for {dtype} and this norm")
    kernel = attrs.get("kernel_shape", shape[2:])
    if not kernel:
        return No("its kernel_shape is empty")
    try:
        win = window(shape[2:], kernel, attrs.get("strides"), attrs.get("dilations"), attrs.get("pads"),
                     **{key: attrs[key] for key in ("auto_pad", "ceil_mode") if key in attrs})
    except (TypeError, ValueError):
        return No("its window does not fit")
    if any(max(b, e) > (k - 1) * d
           for k, d, b, e in zip(win.kernel, win.dilations, win.begin, win.end, strict=True)):
        return No("its padding is wider than its kernel")
    if kind != "place" and dtype in pool.PLANES and len(win.size) == 2 and x.strides[3] == 1 and (
            x.strides[1] != 1 or shape[1] == 1) and _in_rows(
                win.out[1], win.strides[1], win.kernel[1], lanes_for(lo.machine, dtype)):
        return _planes(lo, x, kind, win, bool(attrs.get("count_include_pad")))
    if (kind == "max" and dtype in pool.PLANES or kind != "place" and dtype in (F, "float64")) and (
            len(win.size) == 3 and x.contiguous
            and shape[1] < FEW_CHANNELS * (1 + (2 * win.out[2] >= lanes_for(lo.machine, dtype)))
            and max(win.strides) <= pool.FARTHEST and max(win.kernel) <= _MOST_TAPS):
        return _volumes(lo, x, kind, win, bool(attrs.get("count_include_pad")))
    t = image(lo, x)
    if kind == "max" and _apart(math.prod(win.kernel[:-1]), win.kernel[-1], math.prod(win.size[:-1]),
                                math.prod(win.out[:-1]), win.out[-1]):
        return _by_axis(lo, t, attrs, win)
    tables = _tables(lo, win, kind, bool(attrs.get("count_include_pad")))
    numbers: list[int] = []
    if kind == "place":
        order = [*reversed(range(len(win.size)))]
        apart = c_strides([win.size[a] for a in order] if attrs.get("storage_order") else win.size)
        apart = tuple(apart[a] for a in order) if attrs.get("storage_order") else apart
        numbers = [*apart, *(d * s for d, s in zip(win.dilations, apart, strict=True))]
        if math.prod(win.size) >= 1 << 31:
            return No("its images are too large for their places")

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        if kind == "place":
            tree, operands = _numbered(lo, out, tree, operands, math.prod(win.size))
        frame = framed(lo, t, out, tree, operands, None if zero is None and kind != "place" else F)
        strides = frame.walked(t)
        steps = [d * s for d, s in zip(win.dilations, strides[1:], strict=True)]
        spec = pool.pool_windows(kind=kind, taps=win.kernel[-1], **frame.params)
        less = [] if zero is None else [zero]
        lo.step(spec, [*frame.cells, t, *strides, *steps, *tables, *less, *numbers], frame.items, frame.grain)
    made = "int64" if kind == "place" else dtype if zero is None else F
    return pixels((*shape[:2], *win.out), made, t, emit)


@choice()
def _in_rows(width: int, step: int, taps: int, lanes: int) -> bool:
    """Whether vectors are made of windows next to each other in a row."""
    return width >= lanes and step <= pool.FARTHEST and taps <= _MOST_TAPS


def _planes(lo: Lowering, x: Tensor, kind: str, win: Window, padded: bool) -> Pending:
    """Windows of an image whose rows lie together."""
    shape = (*x.shape[:2], *win.out)
    rows = [win.size[0], win.kernel[0], win.strides[0], win.dilations[0], win.begin[0], win.out[0]]
    tables = [lo.table(_table, i, *rows) for i in (0, 1)]
    if kind == "average":
        tables += [lo.table(pool.divisors, win, i, padded) for i in (0, 1)]
    taps, step, apart = win.kernel[1], win.strides[1], win.dilations[1]
    wide, width, left = win.size[1], win.out[1], win.begin[1]
    room = pool.planes_room(lo.machine, x.dtype, width, wide, left, taps, step, apart)
    spec = pool.pool_planes(dtype=x.dtype, kind=kind, down=win.kernel[0], taps=taps, step=step, apart=apart)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        to = out if tree is None and out.strides[3] == 1 else lo.new(shape, x.dtype)
        lo.step(spec, [Out(to), x, shape[1], win.out[0], wide, width, left, room, *x.strides[:3],
                       x.strides[2] * win.dilations[0], *to.strides[:3], *tables],
                math.prod(shape[:3]), max(1, _GRAIN // (wide + width)),
                room * BYTES[pool.working_type(x.dtype)])
        if to is not out:
            store(lo, out, tree or Expr.leaf(0, x.dtype), [to, *operands])
    return Pending(shape, x.dtype, emit)


def _volumes(lo: Lowering, x: Tensor, kind: str, win: Window, padded: bool) -> Pending:
    """Windows of three axes of few channels: of each plane, then of the numbers of planes side by side."""
    (images, channels), (deep, *plane) = x.shape[:2], win.size
    small = Window(*(along[1:] for along in (win.size, win.kernel, win.strides, win.dilations, win.begin,
                                             win.end, win.out)))
    numbers = math.prod(small.out)
    lines = Window((deep, numbers), (win.kernel[0], 1), (win.strides[0], 1), (win.dilations[0], 1),
                   (win.begin[0], 0), (win.end[0], 0), (win.out[0], numbers))
    shape, flat = (images, channels, *win.out), (images, channels, win.out[0], numbers)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        planes = lo.new((images, channels * deep, *small.out), x.dtype)
        within = x.view((images, channels * deep, *plane), c_strides((images, channels * deep, *plane)))
        _planes(lo, within, kind, small, padded).emit(lo, planes, None, [])
        to = out if tree is None and out.contiguous else lo.new(shape, x.dtype)
        stacked = (images, channels, deep, numbers)
        _planes(lo, planes.view(stacked, c_strides(stacked)), kind, lines, padded).emit(
            lo, to.view(flat, c_strides(flat)), None, [])
        if to is not out:
            store(lo, out, tree or Expr.leaf(0, x.dtype), [to, *operands])
    return Pending(shape, x.dtype, emit)


@choice()
def _apart(taps: int, last: int, rows: int, made: int, columns: int) -> bool:
    """Whether the largest of `taps` by `last` numbers is sooner found along the last axis first, of `rows`
    rows of an image, and then of `made` rows of that, `columns` each."""
    return made * taps * last >= 2 * (rows * last + made * taps)


def _by_axis(lo: Lowering, t: Tensor, attrs: dict[str, Any], win: Window) -> Pending | No:
    """The largest number of each window along the last axis, then of these along the others."""
    axes = len(win.kernel)

    def kept(last: bool) -> dict[str, Any]:
        def over(values: Sequence[int], other: int) -> list[int]:
            return [v if (i % axes == axes - 1) == last else other for i, v in enumerate(values)]
        pads = {"pads": over(attrs["pads"], 0)} if attrs.get("pads") else {}
        return attrs | pads | {"kernel_shape": over(win.kernel, 1), "strides": over(win.strides, 1),
                               "dilations": over(win.dilations, 1)}
    first = pooled(lo, t, "max", kept(True))
    assert isinstance(first, Pending)
    value = Value("largest along the last axis")
    lo.bind(value, first)
    lo.left[value] = 1
    return pooled(lo, lo.tensor(value), "max", kept(False))


def _numbered(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor], plane: int
              ) -> tuple[Expr, list[Tensor]]:
    """The tree over places in the whole of images of `plane` elements, of places in one; -1 stays."""
    images, channels, *rest = out.shape
    first = lo.counted(0, images * channels, plane).view(
        (images, channels, *(1 for _ in rest)), (channels, 1, *(0 for _ in rest))).expand(out.shape)
    place = Expr.leaf(0, "int32").cast("int64")
    whole = Expr("add", (place, Expr.leaf(1 + len(operands), "int64")), "int64")
    none = Expr("lt", (place, Expr.const(0, "int64")), "bool")
    whole = Expr("where", (none, place, whole), "int64")
    made = whole if tree is None else tree.substitute(lambda leaf: leaf if leaf.value else whole)
    return made, [*operands, first]


def _tables(lo: Lowering, win: Window, kind: str, padded: bool) -> list[Tensor]:
    """First elements, then taps, then divisors, each per axis."""
    axes = list(zip(win.size, win.kernel, win.strides, win.dilations, win.begin, win.out, strict=True))
    made = [lo.table(_table, i, *axis) for i in (0, 1) for axis in axes]
    if kind == "average":
        made += [lo.table(pool.divisors, win, i, padded) for i in range(len(axes))]
    return made


def _table(index: int, *axis: int) -> np.ndarray:
    return pool.tables(*axis)[index]
