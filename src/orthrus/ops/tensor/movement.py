"""Operators that move elements and compute nothing: arrays of any element type come in, rearranged arrays go
out.

Every body leaves the element type alone and may return a view of its input. What decides a shape at run time
(`shape`, `repeats`, `pads`, `depth`, `k`) is checked against the session's limits before anything is
allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...errors import Unfit
from ...limits import bounded
from ..define import normalized_axis, op


def ints(value: Any, what: str) -> list[int]:
    """An integer tensor of rank 1 as Python ints; a scalar counts as one element. Raises ValueError above
    rank 1."""
    value = np.asarray(value)
    if value.ndim > 1:
        raise ValueError(f"{what} must have rank 1, found shape {list(value.shape)}")
    return [int(v) for v in value.ravel().tolist()]


def scalar(value: Any, what: str) -> int:
    """The only element of `value`, truncated to an int. Raises ValueError for another number of elements."""
    value = np.asarray(value)
    if value.size != 1:
        raise ValueError(f"{what} must have exactly one element, found shape {list(value.shape)}")
    try:
        return int(value.reshape(())[()])
    except (OverflowError, ValueError) as e:
        raise ValueError(f"{what} is {value.reshape(())[()]}, expected an integer") from e


def zero_of(dtype: np.dtype[Any]) -> Any:
    """What pads and masks leave behind: 0, False or the empty string."""
    return "" if dtype.kind == "O" else np.zeros((), dtype)[()]


def distinct_axes(axes: Iterable[int], rank: int) -> list[int]:
    """`axes` in the given order, non-negative. Raises ValueError out of range or if one is named twice."""
    given = list(axes)
    out = [axis_of(a, rank) for a in given]
    if len(set(out)) != len(out):
        raise Unfit(f"axes {given} name an axis twice")
    return out


def axis_of(axis: int, rank: int) -> int:
    """`axis` as a non-negative int below `rank`. Raises ValueError out of range, so always for a scalar."""
    if not rank:
        raise ValueError(f"axis {axis} is out of range for a tensor of rank 0")
    return normalized_axis(axis, rank)


def chosen(value: str, names: tuple[str, ...], what: str) -> str:
    """`value`, once it is known to be one of `names`; raises ValueError otherwise."""
    if value not in names:
        raise ValueError(f"{what} {value!r} is unknown, expected one of {', '.join(names)}")
    return value


def dimensions(old: Sequence[Any], shape: Sequence[Any], allowzero: int | None) -> list[Any]:
    """What Reshape's `shape` asks for of a tensor of shape `old`. A copied dimension stands on both sides:
    without it the rest is decided even where it is 0."""
    copied = set() if allowzero else {i for i, d in enumerate(shape) if d == 0}
    dims = [old[i] if i in copied else d for i, d in enumerate(shape)]
    if -1 in shape:
        size = math.prod([d for i, d in enumerate(old) if i not in copied])
        known = math.prod([d for i, d in enumerate(shape) if i not in copied and d != -1])
        rest = size // known if known else 0
        if not known or rest * known != size:
            raise ValueError(f"{size} elements do not divide by {known}")
        dims[list(shape).index(-1)] = rest
    return dims


def _reshaped(x: np.ndarray, shape: Sequence[int], allowzero: int) -> np.ndarray:
    def refusal(why: str) -> ValueError:
        return ValueError("The input tensor cannot be reshaped to the requested shape. "
                          f"Input shape:{list(x.shape)}, requested shape:{list(shape)}: {why}")

    if any(d < -1 for d in shape) or list(shape).count(-1) > 1:
        raise refusal("a dimension must be at least -1, and -1 may occur once")
    if allowzero and 0 in shape and -1 in shape:
        raise refusal("with allowzero, 0 and -1 exclude each other")
    if not allowzero and any(d == 0 for d in shape[x.ndim:]):
        raise refusal("0 copies a dimension that the input does not have")
    try:
        dims = dimensions(x.shape, shape, allowzero)
    except ValueError as error:
        raise refusal(str(error)) from None
    if math.prod(dims) != x.size:
        raise refusal(f"{math.prod(dims)} elements asked for, {x.size} given")
    return x.reshape(dims)


@op(since=5)
def Reshape(data, shape, *, allowzero: int = 0):
    """The elements in row-major order under another shape; -1 is inferred, 0 copies a dimension unless
    `allowzero`"""
    return _reshaped(data, ints(shape, "shape"), allowzero)


@op
def Reshape_1(data, *, shape: list[int] | None = None):
    """Reshape with the shape as an attribute"""
    return _reshaped(data, shape or [], 0)


@op
def Transpose(data, *, perm: list[int] | None = None):
    """Axis i of the output is axis perm[i] of the input; without `perm`, the axes in reverse"""
    if perm is None:
        return data.transpose()
    if len(perm) != data.ndim:
        raise ValueError(f"perm {perm} has {len(perm)} entries for a tensor of rank {data.ndim}")
    return data.transpose(distinct_axes(perm, data.ndim))


def joined(arrays: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The arrays one after the other along `axis`. Raises ValueError where ranks or other dimensions differ;
    of an array that is empty along `axis` only the rank counts, as in onnxruntime."""
    if not arrays:
        raise ValueError("Must have 1 or more inputs")
    rank = arrays[0].ndim
    if not rank:
        raise ValueError("Cannot concatenate scalars")
    axis = normalized_axis(axis, rank)
    shape = arrays[0].shape
    if [x.shape for x in arrays].count(shape) == len(arrays):
        bounded((*shape[:axis], len(arrays) * shape[axis], *shape[axis + 1:]), arrays[0].dtype)
        return np.concatenate(arrays, axis)
    for i, x in enumerate(arrays):
        if x.ndim != rank:
            raise ValueError("Ranks of input data are different, cannot concatenate them. "
                             f"expected rank: {rank} got: {x.ndim} (input {i})")
    kept = [i for i, x in enumerate(arrays) if x.shape[axis]] or [0]
    first = arrays[kept[0]]
    for i in kept:
        x = arrays[i]
        if x.shape[:axis] != first.shape[:axis] or x.shape[axis + 1:] != first.shape[axis + 1:]:
            raise ValueError(f"Non concat axis dimensions must match: axis {axis}, input {kept[0]} has shape "
                             f"{list(first.shape)}, input {i} has shape {list(x.shape)}")
    sizes = sum(arrays[i].shape[axis] for i in kept)
    bounded((*first.shape[:axis], sizes, *first.shape[axis + 1:]), first.dtype)
    return np.concatenate([arrays[i] for i in kept], axis)


@op(since=4)
def Concat(*inputs, axis: int):
    """The inputs one after the other along `axis`"""
    return joined(inputs, axis)


@op
def Concat_1(*inputs, axis: int = 1):
    """Concat whose axis has a default"""
    return joined(inputs, axis)


def pieces(x: np.ndarray, sizes: Sequence[int], axis: int) -> tuple[np.ndarray, ...]:
    """`x` cut along `axis` into parts of the given sizes. Raises ValueError unless they add up to the
    dimension."""
    if any(s < 0 for s in sizes):
        raise ValueError(f"Invalid value in 'split' input. All values must be >= 0, found {list(sizes)}")
    if sum(sizes) != x.shape[axis]:
        raise ValueError("Cannot split using values in 'split' input. "
                         f"Axis={axis} Input shape={list(x.shape)} "
                         f"Sum of sizes in 'split' (size of axis) was {sum(sizes)}")
    out, start, before = [], 0, (slice(None),) * axis
    for s in sizes:
        out.append(x[(*before, slice(start, start + s))])
        start += s
    return tuple(out)


def _even(x: np.ndarray, axis: int, parts: int) -> tuple[np.ndarray, ...]:
    size = x.shape[axis]
    if parts < 1 or size % parts:
        raise ValueError("Input cannot be split evenly on selected axis. "
                         f"Input shape={list(x.shape)} Axis={axis} NumOutputs={parts}")
    return pieces(x, [size // parts] * parts, axis)


def _counted(sizes: Sequence[int], n_outputs: int) -> Sequence[int]:
    if len(sizes) != n_outputs:
        raise ValueError(f"Mismatch between number of splits ({len(sizes)}) and outputs ({n_outputs})")
    return sizes


@op(since=18, outputs=None)
def Split(x, split=None, *, num_outputs: int | None = None, axis: int = 0, n_outputs: int):
    """The input cut along `axis` into parts of the lengths in `split`, or into `num_outputs` equal ones, the
    last of which may be smaller"""
    axis = axis_of(axis, x.ndim)
    if split is not None:
        if num_outputs is not None:
            raise ValueError("Split takes either the input 'split' or the attribute 'num_outputs', not both")
        return pieces(x, _counted(ints(split, "split"), n_outputs), axis)
    parts = n_outputs if num_outputs is None else num_outputs
    if parts < 1 or parts != n_outputs:
        raise ValueError(f"num_outputs is {parts}, but the node has {n_outputs} outputs")
    size = -(-x.shape[axis] // parts)
    last = x.shape[axis] - size * (parts - 1)
    if last < 0:
        raise ValueError(f"Invalid value in 'split'. A dimension of {x.shape[axis]} does not give "
                         f"{parts} parts of {size}")
    return pieces(x, [size] * (parts - 1) + [last], axis)


@op(outputs=None)
def Split_13(x, split=None, *, axis: int = 0, n_outputs: int):
    """The input cut along `axis` into parts of the lengths in `split`, or into equal ones"""
    axis = axis_of(axis, x.ndim)
    if split is None:
        return _even(x, axis, n_outputs)
    return pieces(x, _counted(ints(split, "split"), n_outputs), axis)


@op(outputs=None)
def Split_1(x, lengths=None, *, split: list[int] | None = None, axis: int = 0, n_outputs: int):
    """Split with the lengths as an attribute; version 1 also takes them as an input"""
    axis = axis_of(axis, x.ndim)
    sizes = split if lengths is None else ints(lengths, "split")
    return pieces(x, _counted(sizes, n_outputs), axis) if sizes else _even(x, axis, n_outputs)


def _squeezed(x: np.ndarray, axes: Sequence[int] | None) -> np.ndarray:
    if axes is None:
        gone = {i for i, d in enumerate(x.shape) if d == 1}
    else:
        gone = {axis_of(a, x.ndim) for a in axes}
    for a in gone:
        if x.shape[a] != 1:
            raise ValueError(f"Dimension of input {a} must be 1 instead of {x.shape[a]}. "
                             f"shape={list(x.shape)}")
    return x.reshape([d for i, d in enumerate(x.shape) if i not in gone])


@op(since=13)
def Squeeze(data, axes=None):
    """Without the dimensions named in `axes`, which must be 1; without `axes`, every dimension of 1 goes"""
    return _squeezed(data, None if axes is None else ints(axes, "axes"))


@op
def Squeeze_1(data, *, axes: list[int] | None = None):
    """Squeeze with the axes as an attribute"""
    return _squeezed(data, axes)


def _unsqueezed(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    rank = x.ndim + len(axes)
    new = set(distinct_axes(axes, rank))
    if rank > 64:
        raise ValueError(f"the output would have rank {rank}, expected at most 64")
    dims = iter(x.shape)
    return x.reshape([1 if i in new else next(dims) for i in range(rank)])


@op(since=13)
def Unsqueeze(data, axes):
    """With a dimension of 1 at each position in `axes`, counted in the output"""
    return _unsqueezed(data, ints(axes, "axes"))


@op
def Unsqueeze_1(data, *, axes: list[int]):
    """Unsqueeze with the axes as an attribute"""
    return _unsqueezed(data, axes)


@op
def Flatten(x, *, axis: int = 1):
    """A matrix: the dimensions before `axis` make its rows, the others its columns"""
    axis = normalized_axis(axis, x.ndim, inclusive=True)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op
def Expand(x, shape):
    """The input broadcast against `shape`, both ways"""
    want = ints(shape, "shape")
    bounded(want, x.dtype)
    try:
        dims = np.broadcast_shapes(x.shape, tuple(want))
    except ValueError:
        raise Unfit(f"invalid expand shape: {want} does not broadcast with {list(x.shape)}") from None
    return np.broadcast_to(x, bounded(dims, x.dtype))


def _tiled(x: np.ndarray, repeats: Sequence[int]) -> np.ndarray:
    if len(repeats) != x.ndim:
        raise Unfit(f"'repeats' has {len(repeats)} entries for a tensor of rank {x.ndim}")
    bounded(repeats, np.dtype(np.int8), "repeats")
    dims = bounded([d * r for d, r in zip(x.shape, repeats, strict=True)], x.dtype)
    source, wide = [], []
    for d, r in zip(x.shape, repeats, strict=True):
        source += [d] if r == 1 else [1, d]
        wide += [d] if r == 1 else [r, d]
    if len(wide) > 64:
        return np.tile(x, repeats)
    return np.broadcast_to(x.reshape(source), wide).reshape(dims)


@op(since=6)
def Tile(x, repeats):
    """The input repeats[i] times along each axis i"""
    return _tiled(x, ints(repeats, "repeats"))


@op
def Tile_1(x, tiles, axis):
    """The input `tiles` times along one axis"""
    repeats = [1] * x.ndim
    repeats[axis_of(scalar(axis, "axis"), x.ndim)] = scalar(tiles, "tiles")
    return _tiled(x, repeats)


PAD_MODES = ("constant", "reflect", "edge", "wrap")
BLOCK_MODES = ("DCR", "CRD")


def padded(x: np.ndarray, begins: Sequence[int], ends: Sequence[int], mode: str, value: Any) -> np.ndarray:
    """`x` with `begins[i]` elements more before and `ends[i]` after it on each axis i; negative numbers take
    away.

    `reflect`, `edge` and `wrap` read from what is left after taking away.
    """
    chosen(mode, PAD_MODES, "pad mode")
    dims = [d + b + e for d, b, e in zip(x.shape, begins, ends, strict=True)]
    if any(d < 0 for d in dims):
        raise ValueError(f"pads {[*begins, *ends]} take more away than there is: input shape {list(x.shape)}")
    bounded(dims, x.dtype)
    if mode == "constant":
        out = np.full(dims, value, x.dtype)
        into, source = [], []
        for d, size, b in zip(x.shape, dims, begins, strict=True):
            n = max(0, min(d - max(-b, 0), size - max(b, 0)))
            into.append(slice(max(b, 0), max(b, 0) + n))
            source.append(slice(max(-b, 0), max(-b, 0) + n))
        out[tuple(into)] = x[tuple(source)]
        return out
    for axis, (d, size, b, e) in enumerate(zip(x.shape, dims, begins, ends, strict=True)):
        if b == e == 0:
            continue
        low, n = max(-b, 0), d + min(b, 0) + min(e, 0)
        if n <= 0 < size:
            raise ValueError(f"Cannot use '{mode}' mode to pad dimension with a value of 0. "
                             f"Input shape:{list(x.shape)}, axis {axis}")
        at = np.arange(size) - max(b, 0)
        if mode == "edge":
            at = np.clip(at, 0, n - 1)
        elif mode == "wrap":
            at %= max(n, 1)
        else:
            at %= max(2 * n - 2, 1)
            at = np.where(at >= n, 2 * n - 2 - at, at)
        x = np.take(x, at + low, axis)
    return x


def _pads(pads: Sequence[int], axes: Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    if len(pads) != 2 * len(axes):
        raise ValueError(f"'pads' has {len(pads)} entries, expected two for each of {len(axes)} axes")
    begins, ends = [0] * rank, [0] * rank
    for i, a in enumerate(axes):
        begins[a], ends[a] = pads[i], pads[i + len(axes)]
    return begins, ends


@op(since=11)
def Pad(data, pads, constant_value=None, axes=None, *, mode: str = "constant"):
    """The input with elements added, or taken away where negative, at both ends of each axis"""
    which = range(data.ndim) if axes is None else distinct_axes(ints(axes, "axes"), data.ndim)
    if np.ndim(pads) == 2 and np.shape(pads)[0] == 1:
        pads = pads[0]
    value = zero_of(data.dtype)
    if constant_value is not None and constant_value.size:
        if constant_value.size != 1:
            raise ValueError(f"'constant_value' must be a scalar, found shape {list(constant_value.shape)}")
        value = constant_value.reshape(())[()]
    return padded(data, *_pads(ints(pads, "pads"), which, data.ndim), mode, value)


@op
def Pad_2(data, *, mode: str = "constant", pads: list[int], value: float = 0.0):
    """Pad with attributes"""
    return padded(data, *_pads(pads, range(data.ndim), data.ndim), mode, data.dtype.type(value))


@op
def Pad_1(data, *, mode: str = "constant", paddings: list[int], value: float = 0.0):
    """Pad with attributes under their first names"""
    return padded(data, *_pads(paddings, range(data.ndim), data.ndim), mode, data.dtype.type(value))


def _sliced(x: np.ndarray, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None,
            steps: Sequence[int] | None) -> np.ndarray:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError("'starts', 'ends', 'axes' and 'steps' must be of one length, "
                         f"found {len(starts)}, {len(ends)}, {len(axes)} and {len(steps)}")
    cut: list[Any] = [slice(None)] * x.ndim
    try:
        places = distinct_axes(axes, x.ndim)
    except ValueError as error:
        raise Unfit(str(error)) from None
    for a, start, end, step in zip(places, starts, ends, steps, strict=True):
        n = x.shape[a]
        start, end = (v + n if v < 0 else v for v in (start, end))
        if step > 0:
            cut[a] = slice(min(max(start, 0), n), min(max(end, 0), n), step)
        elif step < 0:
            first, last = min(max(start, 0), n - 1), min(max(end, -1), n - 1)
            cut[a] = slice(first, last if last >= 0 else None, step) if first > last else slice(0, 0)
        else:
            raise Unfit("'step' value cannot be 0")
    return x[(*cut, ...)]


@op(since=10)
def Slice(data, starts, ends, axes=None, steps=None):
    """Every steps[i]-th element from starts[i] up to ends[i] along axes[i]"""
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    for what, value in given.items():
        if value is not None and np.ndim(value) != 1:
            raise ValueError(f"{what} must have rank 1, found shape {list(np.shape(value))}")
    return _sliced(data, *(None if v is None else ints(v, what) for what, v in given.items()))


@op
def Slice_1(data, *, starts: list[int], ends: list[int], axes: list[int] | None = None):
    """Slice with attributes and steps of 1"""
    return _sliced(data, starts, ends, axes, None)


@op(types={"starts": ("int32", "int64"), "ends": ("int32", "int64"), "axes": ("int32", "int64")})
def DynamicSlice(data, starts, ends, axes=None):
    """Slice with steps of 1, an operator of the first versions"""
    return Slice(data, starts, ends, axes)


@op(types={"input": ("float", "double", "float16")})
def Crop(input, *, border: list[int], scale: list[int] | None = None):
    """Images [N, C, H, W] without what `border` takes at the left, the top, the right and the bottom; with
    `scale`, that height and width from the first two on. An operator of the first versions"""
    if input.ndim != 4 or len(border) != 4 or len(scale or (0, 0)) != 2 or min(border) < 0:
        raise ValueError(f"Crop takes four dimensions, four borders and perhaps two lengths, found"
                         f" {list(input.shape)}, {list(border)} and {scale}")
    left, top, right, bottom = border
    end = (input.shape[2] - bottom, input.shape[3] - right) if scale is None else (top + scale[0],
                                                                                   left + scale[1])
    if end[0] < top or end[1] < left or end[0] > input.shape[2] or end[1] > input.shape[3]:
        raise ValueError(f"borders {list(border)} and lengths {scale} do not fit images of"
                         f" {list(input.shape[2:])}")
    return input[:, :, top:end[0], left:end[1]]


@op
def Identity(x):
    """The input: a tensor, a sequence or an optional"""
    return x


@op
def MemcpyFromHost(x):
    """The input, which lies on a device where there is one"""
    return x


@op
def MemcpyToHost(x):
    """The input, which lies on the host"""
    return x


@op
def Shape(data, *, start: int = 0, end: int | None = None):
    """The input's dimensions from `start` up to `end`, as int64"""
    return np.array(data.shape[start:end], np.int64)


@op
def Size(data):
    """The input's number of elements, an int64 scalar"""
    return np.array(data.size, np.int64)


def _blocks(x: np.ndarray, blocksize: int) -> tuple[int, int, int, int]:
    if x.ndim != 4:
        raise ValueError(f"expected a tensor of rank 4, found rank {x.ndim}")
    if blocksize < 1:
        raise ValueError(f"blocksize must be positive, found {blocksize}")
    return x.shape


@op
def DepthToSpace(x, *, blocksize: int, mode: str = "DCR"):
    """Groups of blocksize² channels laid out as squares in the plane"""
    n, c, h, w = _blocks(x, s := blocksize)
    if c % (s * s):
        raise Unfit(f"DepthToSpace requires the channels ({c}) to be a multiple of blocksize² ({s * s})")
    if chosen(mode, BLOCK_MODES, "mode") == "DCR":
        y = x.reshape(n, s, s, c // (s * s), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // (s * s), s, s, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // (s * s), h * s, w * s)


@op
def SpaceToDepth(x, *, blocksize: int, mode: str = "DCR"):
    """Squares of blocksize² elements in the plane laid out as channels"""
    n, c, h, w = _blocks(x, s := blocksize)
    if h % s or w % s:
        raise Unfit(f"SpaceToDepth requires height {h} and width {w} to be multiples of blocksize {s}")
    order = (0, 3, 5, 1, 2, 4) if chosen(mode, BLOCK_MODES, "mode") == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape(n, c, h // s, s, w // s, s).transpose(order).reshape(n, c * s * s, h // s, w // s)


@op
def Trilu(x, k=None, *, upper: int = 1):
    """The upper or lower triangle of each matrix, from diagonal k on; zero elsewhere"""
    if x.ndim < 2:
        raise ValueError(f"Input tensor should have a rank of at least 2, found {x.ndim}")
    rows, columns = x.shape[-2:]
    k = 0 if k is None else max(-rows, min(columns, scalar(k, "k")))
    distance = np.arange(columns) - np.arange(rows)[:, None]
    out = np.full(x.shape, zero_of(x.dtype), x.dtype)
    np.copyto(out, x, where=distance >= k if upper else distance <= k)
    return out


VIEWS = frozenset(it.name for it in (Identity, Reshape, Squeeze, Unsqueeze, Flatten))
"""Operators whose result is their first input's elements in their order."""
