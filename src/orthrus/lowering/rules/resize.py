"""Resize and Upsample of images along their spatial axes, by tables made once per shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...codegen.kernels import resize
from ...codegen.write.expr import Expr
from ...ir import No, Node
from ...ops.define import find, normalized_axis
from ...records import dataclass
from ..elements import store
from ..lower import Lazy, Lowering, Out, Pending, lowers
from ..tensor import Tensor
from .pool import framed, image, pixels
from .rows import FLOATS, F

LONGEST = 1 << 12
"""Length of an axis up to which its table is made."""
_SMALL = ("uint8", "int8", "uint16", "int16")
"""Integers that are interpolated as float32."""
_FEWER = 8
"""How many times fewer pixels make up for steps axis by axis."""
_FEW = 64
"""Bytes that lie together below which they are gathered one by one."""


@lowers("Resize", "Upsample")
def resized(lo: Lowering, node: Node) -> Pending | Lazy | No:
    """Each output pixel from a few input pixels; where all axes are kept, the image."""
    x = node.inputs[0]
    assert x is not None and node.op is not None
    shape, dtype, attrs = lo.shape(x), lo.dtype(x), node.attributes
    nearest = attrs["mode"] == "nearest"
    if 0 in shape or dtype == "bool" or (dtype not in (*FLOATS, *_SMALL) and not nearest):
        return No(f"no generated kernel interpolates {dtype} or what is empty")
    wanted = resizing(lo, node, attrs, shape)
    if isinstance(wanted, No):
        return wanted
    if wanted == [None] * len(shape):
        return lo.elementwise([x], lambda dtypes: Expr.leaf(0, dtypes[0]))
    if max((d for d, along in zip(shape, wanted, strict=True) if along is not None), default=0) > LONGEST:
        return No("kernels resize axes of moderate length")
    t = lo.tensor(x)
    if nearest and shape and (t.contiguous or (t.strides[-1] == 1 and t.strides[1] != 1)):
        return _in_rows(t, [None if along is None else resize.table(along, d, nearest)[0].reshape(-1)
                            for along, d in zip(wanted, shape, strict=True)])
    if not nearest and (dtype in _SMALL or not 3 <= len(shape) <= 5 or any(wanted[:2])
                        or _better_by_axes(t, wanted, lo.machine.lanes(4))):
        return _by_axes(t, wanted, dtype in _SMALL and bool(attrs.get("antialias")))
    if not 3 <= len(shape) <= 5 or max(shape[2:]) > LONGEST or any(wanted[:2]):
        return No("kernels resize one to three spatial axes of moderate length")
    axes = [resize.table(along or _kept, d, nearest) for along, d in zip(wanted[2:], shape[2:], strict=True)]
    taps = tuple(places.shape[1] for places, _ in axes)
    if prod(taps) > resize.MOST:
        return No("a pixel reads too many others")
    t = image(lo, t)
    places = [_constant(lo, p) for p, _ in axes]
    weights = [_constant(lo, w) for _, w in axes if w.shape[1] > 1]

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        frame = framed(lo, t, out, tree, operands)
        spec = resize.resize_taps(taps=taps, **frame.params)
        lo.step(spec, [*frame.cells, t, *frame.walked(t), *places, *weights], frame.items, frame.grain)
    return pixels((*shape[:2], *(len(p) for p, _ in axes)), dtype, t, emit)


def _better_by_axes(t: Tensor, wanted: Sequence[Along | None], lanes: int) -> bool:
    """Whether an image goes axis by axis: one that lies plane by plane and has few channels, or far fewer
    pixels in the end."""
    if not t.contiguous or not any(wanted):
        return False
    if t.shape[1] < lanes:
        return True
    pixels = [along(np.zeros((1, d))).shape[1] if along else d for d, along in zip(
        t.shape[2:], wanted[2:], strict=True)]
    return _FEWER * prod(pixels) <= prod(t.shape[2:])


def _by_axes(t: Tensor, wanted: Sequence[Along | None], rounds: bool) -> Pending | No:
    """Any axes of any array, one after the other, in the order of the operator's definition. `rounds`: the
    numbers are integers after each axis."""
    tables = {a: resize.table(along, t.shape[a], False) for a, along in enumerate(wanted) if along}
    shape = tuple([len(tables[a][0]) if a in tables else d for a, d in enumerate(t.shape)])
    if not tables or max(places.shape[1] for places, _ in tables.values()) > resize.MOST:
        return No("an element reads too many others")
    rounded = _rounded(t.dtype) if rounds else None
    back = rounded or (_whole(t.dtype) if t.dtype in _SMALL else Expr.leaf(0, F).cast(t.dtype))

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        x = lo.contiguous(t)
        for axis in sorted(tables, key=lambda a: -a if rounds else shape[a] / t.shape[a]):
            if rounded is not None and x.dtype == F:
                whole = lo.new(x.shape, t.dtype)
                store(lo, whole, rounded, [x])
                x = whole
            x = _one_axis(lo, x, axis, *tables[axis])
        after = back if tree is None else tree.substitute(lambda leaf: back if leaf.value == 0 else leaf)
        store(lo, out, after, [x, *operands])
    return Pending(shape, t.dtype, emit)


def _one_axis(lo: Lowering, x: Tensor, axis: int, places: np.ndarray, weights: np.ndarray) -> Tensor:
    """`x`, in C order, as float32 with another length of one axis."""
    shape = (*x.shape[:axis], len(places), *x.shape[axis + 1:])
    outer, wide, together = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1:])
    made, taps = lo.new(shape, "float32"), places.shape[1]
    along = together < lo.machine.lanes(4)
    if along:  # a row of all that lies together
        beside = np.arange(together, dtype=np.int32)
        places = (places.T[:, :, None] * np.int32(together) + beside).reshape(taps, -1)
        weights = weights.T.repeat(together, 1)
    length = places.shape[1] if along else places.shape[0]
    cells = [length, wide * together] if along else [length, wide, together]
    spec = resize.resize_axis(dtype=x.dtype, taps=taps, along=along)
    items = outer if along else outer * length
    lo.step(spec, [Out(made), x, _constant(lo, np.ascontiguousarray(places)),
                   _constant(lo, np.ascontiguousarray(weights)), *cells], items,
            max(1, resize.GRAIN * items // (made.size * taps)))
    return made


def _whole(dtype: str) -> Expr:
    """Leaf 0, a float32, as the operator's definition makes an integer of it: cut toward zero, but what is
    within rounding error of an integer is that one."""
    x = Expr.leaf(0, F)
    near = Expr("rint", (x,), F)
    off = Expr("abs", (Expr("sub", (x, near), F),), F)
    return _held(Expr("where", (Expr("le", (off, _error(x)), "bool"), near, x), F), dtype)


def _rounded(dtype: str) -> Expr:
    """Leaf 0, a float32, rounded as the operator's definition rounds: halves, and what is within rounding
    error of them, away from zero."""
    x = Expr.leaf(0, F)
    size = Expr("add", (Expr("abs", (x,), F), Expr("add", (_error(x), _const(0.5)), F)), F)
    size = Expr("floor", (size,), F)
    x = Expr("where", (Expr("lt", (x, _const(0.0)), "bool"), Expr("neg", (size,), F), size), F)
    return _held(x, dtype)


def _const(value: float) -> Expr:
    return Expr.const(value, F)


def _error(x: Expr) -> Expr:
    """What counts as a rounding error of `x`."""
    return Expr("mul", (Expr("maximum", (Expr("abs", (x,), F), _const(32.0)), F), _const(1e-6)), F)


def _held(x: Expr, dtype: str) -> Expr:
    """`x` in a type of integers, which saturate."""
    range_ = np.iinfo(dtype)
    x = Expr("minimum", (Expr("maximum", (x, _const(float(range_.min))), F), _const(float(range_.max))), F)
    return x.cast(dtype)


def _in_rows(t: Tensor, places: Sequence[np.ndarray | None]) -> Pending:
    """The nearest neighbours in an array whose last axis has stride 1: those at `places` of each axis, or
    all."""
    shape = tuple([d if p is None else len(p) for d, p in zip(t.shape, places, strict=True)])

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        if tree is not None or out.strides[-1] != 1:
            made = lo.new(shape, t.dtype)
            _gathered(lo, t, made, places)
            store(lo, out, tree or Expr.leaf(0, t.dtype), [made, *operands])
        else:
            _gathered(lo, t, out, places)
    return Pending(shape, t.dtype, emit)


def _gathered(lo: Lowering, t: Tensor, out: Tensor, places: Sequence[np.ndarray | None]) -> None:
    """Write what lies at `places` to `out`."""
    spec, cells, tables, items, grain = resize.nearest(lo.machine, t.itemsize, *rows(t, out, places))
    lo.step(spec, [Out(out), t, *cells, *(_constant(lo, p) for p in tables)], items, grain)


def rows(t: Tensor, out: Tensor, places: Sequence[np.ndarray | None]
         ) -> tuple[int, int, np.ndarray | None, list[resize.Outside]]:
    """The rows of a result and an input whose last axes have stride 1: their lengths, the places that are
    read in one, and the axes around them. Axes that lie as one with rows are part of these."""
    length = wide = 1
    own, axis = None, t.rank
    while axis and own is None and (out.shape[axis - 1] == 1 or out.strides[axis - 1] == length) and (
            t.shape[axis - 1] == 1 or t.strides[axis - 1] == wide):
        mine = places[axis - 1]
        if mine is not None and length * t.itemsize >= _FEW:
            break
        axis -= 1
        if mine is not None:
            own = (mine[:, None] * int(wide) + np.arange(int(wide), dtype=np.int32)).reshape(-1)
        length, wide = length * out.shape[axis], wide * t.shape[axis]
    outer = [resize.Outside(out.shape[a], (out.strides[a], t.strides[a]), places[a])
             for a in range(axis) if out.shape[a] != 1 or places[a] is not None]
    return length, wide, own, outer


def _constant(lo: Lowering, table: np.ndarray) -> Tensor:
    return lo.constant(("resize", table.shape, table.tobytes()), lambda: table)


@dataclass(frozen=True)
class Along:
    """The operator's own definition on the second axis of a matrix: `Resize` or `Upsample` of a version, with
    `attrs`, by the scale or to the size that `number` is."""

    op: str
    version: int
    attrs: tuple[tuple[str, Any], ...]
    number: int | float
    by_scale: bool

    def __call__(self, matrix: np.ndarray) -> Any:
        op = find("", self.op, self.version)
        assert op is not None
        call = op.bind(dict(self.attrs))
        if self.op == "Upsample":
            return call(matrix, np.array([1, self.number], np.float32))
        if self.by_scale:
            return call(matrix, None, np.array([self.number], np.float32))
        return call(matrix, None, None, np.array([self.number], np.int64))


def resizing(lo: Lowering, node: Node, attrs: dict[str, Any], shape: Sequence[int]
             ) -> list[Along | None] | No:
    """What is done along each axis; None where it is kept."""
    op, rank = node.op, len(shape)
    assert op is not None
    if op.name == "Upsample" or op.since < 11:
        given = attrs.get("scales")
        if given is None:
            given = lo.known(node.inputs[1]) if len(node.inputs) > 1 else None
        if given is None or len(given) != rank:
            return No("its scales are not known")
        by = (("mode", attrs["mode"]),)
        return [Along("Upsample", 9, by, s, True) if s != 1 else None for s in np.ravel(given).tolist()]
    if attrs["coordinate_transformation_mode"] == "tf_crop_and_resize":
        return No("it crops")
    if attrs["keep_aspect_ratio_policy"] != "stretch":
        return No("it keeps the aspect ratio")
    inputs = [*node.inputs, None, None, None]
    scales, sizes = lo.known(inputs[2]), lo.known(inputs[3])
    chosen = [normalized_axis(a, rank) for a in attrs["axes"] or range(rank)]
    by_scale, by_size = scales is not None and scales.size > 0, sizes is not None and sizes.size > 0
    numbers = scales if by_scale else sizes
    if by_scale == by_size or numbers is None or not numbers.size == len(chosen) == len(set(chosen)):
        return No("its scales or sizes are not known")
    own = tuple(sorted((name, tuple(value) if isinstance(value, list) else value)
                       for name, value in {**attrs, "axes": [1]}.items()))
    found: list[Along | None] = [None] * rank
    for axis, number in zip(chosen, numbers.tolist(), strict=True):
        if number != (1 if by_scale else shape[axis]):
            found[axis] = Along("Resize", op.since, own, number, by_scale)
    return found


def _kept(matrix: np.ndarray) -> np.ndarray:
    return matrix
