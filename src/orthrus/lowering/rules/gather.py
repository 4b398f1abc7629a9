"""Elements by index, running totals, and results that are views put together: padding, tiling, space to
depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.kernels import gather, loops
from ...codegen.write.expr import BYTES, LLVM, Expr
from ...ir import No, Node, Value
from ...ops.define import normalized_axis
from ...ops.tensor.movement import BLOCK_MODES, PAD_MODES
from ...shapes.symbolic import choice
from ..lower import BOTH, Lowering, Out, Pending, lowers, varied
from ..rule_sets import RULES
from ..tensor import Tensor, c_strides
from .rows import lying

TYPES = tuple(LLVM)
INDICES = ("int32", "int64")
EACH = 4096
"""Elements an item gathers at least."""
_COLUMNS, _ROWS = 8, (32, 64 * EACH)
"""Up to so many elements of each of so many rows, at least and at most, are gathered column by column."""
ABREAST = 8
"""Vectors that run along an axis side by side, so that memory is read in long runs."""
_LONG = 64
"""Elements of a run that is repeated as it is; shorter ones are doubled first."""

Write = Callable[[Lowering, Tensor], None]


def placed(shape: Sequence[int], dtype: str, write: Write, strides: Sequence[int] | None = None) -> Pending:
    """A result that `write(lo, out)` puts wherever it is wanted; a following tree is a loop of its own."""
    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        if tree is None:
            write(lo, out)
            return
        plain = lo.new(shape, dtype, out.strides if _dense(out) else None)
        write(lo, plain)
        lo.store(out, tree, [plain, *operands])
    return Pending(tuple(shape), dtype, emit, None if strides is None else tuple(strides), lambda t: True)


def _dense(out: Tensor) -> bool:
    """Whether its strides are those of a dense tensor in some order."""
    return lying(out) == out.strides


def from_front(lo: Lowering, indices: Tensor) -> Tensor:
    """int64 indices that never count from behind: below 0 they are out of range."""
    held = lo.contiguous(indices)
    return Tensor("uint64", held.shape, held.strides, held.buffer, held.offset)


@varied
def gathered(lo: Lowering, x: Tensor, indices: Tensor, out: Tensor, before: int, tuples: int, parts: int,
              batch: bool) -> None:
    """out[b..., j..., r...] = x[b..., *indices[(b...), j...], r...]: `before` axes b, `tuples` axes j,
    `parts` axes of x that a tuple indexes; with `batch` the indices are (b..., j..., parts)."""
    count = math.prod(out.shape[before:before + tuples])
    if not batch and x.rank == before + parts and count <= _COLUMNS and (
            _ROWS[0] <= math.prod(x.shape[:before]) <= _ROWS[1]):
        columns, to = (t.permute((*range(before, t.rank), *range(before))) for t in (x, out))
        gathered(lo, columns, indices, to, 0, tuples, parts, False)
        return
    step = out.joined(before, before + tuples)
    if step is None:
        plain = lo.new(out.shape, out.dtype)
        gathered(lo, x, indices, plain, before, tuples, parts, batch)
        lo.copy(plain, out)
        return
    indices = lo.contiguous(indices)
    last = before + tuples
    rows = loops.nest(out.shape[last:], [out.strides[last:], x.strides[before + parts:]])
    sizes, lines = rows.sizes or (1,), [s or (1,) for s in rows.strides]
    inner = "one" if sizes == (1,) else "unit" if lines[0][-1] == lines[1][-1] == 1 else "strided"
    outer = max(before, 1)
    own = c_strides((*x.shape[:before], count * parts))[:-1] if batch else (0,) * before
    chunk = max(1, EACH // math.prod(sizes))
    spec = gather.gather_rows(size=x.itemsize, dtype=indices.dtype, outer=outer, parts=parts,
                              dims=len(sizes) - 1, inner=inner)
    limits = [v for a in range(before, before + parts) for v in (x.shape[a], x.strides[a])]
    around = [v for s in (out.strides[:before], x.strides[:before], own) for v in s or (0,)]
    cells = [*x.shape[1:before], *around, *limits, *sizes, *lines[0], *lines[1]]
    lo.step(spec, [Out(out), x, indices, Out(lo.status), count, chunk, step, *cells],
            math.prod(x.shape[:before]) * -(-count // chunk), max(1, EACH // (chunk * math.prod(sizes))))


def _refused(lo: Lowering, x: Value, indices: Value) -> No | None:
    if lo.dtype(indices) not in INDICES:
        return No("its indices are of another type")
    if 0 in lo.shape(x) or 0 in lo.shape(indices) or not lo.shape(x):
        return No("empty or a scalar")
    return None


@lowers("Gather", types=TYPES, sets=BOTH)
def gather_axis(lo: Lowering, node: Node) -> Pending | Tensor | No:
    """Slices by index along an axis; one known index is a view."""
    vx, vi = node.inputs
    assert vx is not None and vi is not None
    refused = _refused(lo, vx, vi)
    if refused is not None:
        return refused
    shape, own = lo.shape(vx), lo.shape(vi)
    axis = normalized_axis(node.attributes["axis"], len(shape))
    known = lo.known(vi)
    if known is not None and known.size == 1 and -shape[axis] <= known.item() < shape[axis]:
        t = lo.tensor(vx).slice(axis, known.item() % shape[axis], 1)
        return t.view((*shape[:axis], *own, *shape[axis + 1:]),
                      (*t.strides[:axis], *(0 for _ in own), *t.strides[axis + 1:]))
    x, indices = lo.tensor(vx), lo.tensor(vi)

    def write(lo: Lowering, out: Tensor) -> None:
        gathered(lo, x, indices, out, axis, len(own), 1, False)
    return placed((*shape[:axis], *own, *shape[axis + 1:]), x.dtype, write)


@lowers("GatherND", types=TYPES, sets=BOTH)
def gather_nd(lo: Lowering, node: Node) -> Pending | No:
    """Slices by tuples of indices."""
    vx, vi = node.inputs
    assert vx is not None and vi is not None
    refused = _refused(lo, vx, vi)
    if refused is not None:
        return refused
    shape, own, b = lo.shape(vx), lo.shape(vi), node.attribute("batch_dims") or 0
    if not own or not 0 <= b < min(len(shape), len(own)) or not 1 <= own[-1] <= len(shape) - b or (
            shape[:b] != own[:b]):
        return No("its shapes do not fit")
    x, indices, parts = lo.tensor(vx), lo.tensor(vi), own[-1]
    return placed((*own[:-1], *shape[b + parts:]), x.dtype,
                  lambda lo, out: gathered(lo, x, indices, out, b, len(own) - 1 - b, parts, True))


def _along(t: Tensor, axes: Sequence[int]) -> list[int]:
    return [t.strides[a] for a in axes]


@lowers("GatherElements", types=TYPES, sets=BOTH)
def gather_elements(lo: Lowering, node: Node) -> Pending | No:
    """One element per index."""
    vx, vi = node.inputs
    assert vx is not None and vi is not None
    refused = _elements(lo, node, vx, vi)
    if refused is not None:
        return refused
    x, indices = lo.tensor(vx), lo.tensor(vi)
    axis = normalized_axis(node.attributes["axis"], x.rank)
    return placed(indices.shape, x.dtype, lambda lo, out: picked(lo, x, indices, out, axis))


@varied
def picked(lo: Lowering, x: Tensor, indices: Tensor, out: Tensor, axis: int) -> None:
    """out[at] = x[at], moved along `axis` to indices[at]."""
    last = max(range(x.rank), key=lambda a: (out.shape[a] > 1, -abs(out.strides[a]), a))
    order = [*(a for a in range(x.rank) if a != last), last]
    fixed = x.view(x.shape, [0 if a == axis else s for a, s in enumerate(x.strides)])
    outer = max(x.rank - 1, 1)
    lines = [v for t in (out, fixed, indices)
             for v in ([0] if x.rank == 1 else []) + _along(t, order)]
    spec = gather.pick_elements(size=x.itemsize, dtype=indices.dtype, outer=outer,
                                unit=out.strides[last] == indices.strides[last] == 1)
    count = out.shape[last]
    lo.step(spec, [Out(out), x, indices, Out(lo.status), count, x.shape[axis], x.strides[axis],
                   *(out.shape[a] for a in order[1:-1]), *lines],
            out.size // count, max(1, EACH // count))


def _elements(lo: Lowering, node: Node, x: Value, indices: Value) -> No | None:
    """Why the form with one index per element is not lowered."""
    refused = _refused(lo, x, indices)
    if refused is not None:
        return refused
    shape, own = lo.shape(x), lo.shape(indices)
    if len(shape) != len(own):
        return No("its ranks differ")
    axis = normalized_axis(node.attributes["axis"], len(shape))
    if any(n > d for a, (d, n) in enumerate(zip(shape, own, strict=True)) if a != axis):
        return No("its indices have more places than its data")
    return None


def _how(lo: Lowering, node: Node) -> str | No:
    """How updates are folded in."""
    assert node.inputs[0] is not None and node.inputs[2] is not None
    how = node.attribute("reduction")
    if how is None:
        from ...ops.tensor.index import ScatterElements

        how = ScatterElements.defaults["reduction"]
    dtype = lo.dtype(node.inputs[0])
    if how not in ("none", "add", "mul", "max", "min"):
        return No("an unknown reduction")
    if how != "none" and dtype in lo.unfolded:
        return No(f"no generated kernel folds {dtype}")
    if lo.dtype(node.inputs[2]) != dtype:
        return No("its types differ")
    return how


@lowers("ScatterElements", "Scatter", types=TYPES, sets=BOTH)
def scatter_elements(lo: Lowering, node: Node) -> Pending | No:
    """A copy with one element per index replaced."""
    vx, vi, vu = node.inputs
    assert vx is not None and vi is not None and vu is not None
    refused, how = _elements(lo, node, vx, vi), _how(lo, node)
    if refused is not None:
        return refused
    if isinstance(how, No):
        return how
    if lo.shape(vu) != lo.shape(vi):
        return No("its updates do not fit")
    x, indices, updates = lo.tensor(vx), lo.tensor(vi), lo.tensor(vu)
    axis = normalized_axis(node.attributes["axis"], x.rank)

    def write(lo: Lowering, out: Tensor) -> None:
        lo.copy(x, out)
        put(lo, out, indices, updates, axis, how)
    return placed(x.shape, x.dtype, write)


@varied
def put(lo: Lowering, out: Tensor, indices: Tensor, updates: Tensor, axis: int, how: str) -> None:
    """Fold updates[at] into out[at], moved along `axis` to indices[at], in their order."""
    others = [a for a in range(out.rank) if a != axis]
    spec = gather.place_elements(element=out.dtype, how=how, dtype=indices.dtype, outer=max(len(others), 1))
    none = [] if others else [0]
    lines = [*none, *_along(out, others)]
    for t in (updates, indices):
        lines += [*none, *_along(t, others), t.strides[axis]]
    count = indices.shape[axis]
    lo.step(spec, [Out(out), updates, indices, Out(lo.status), count, out.shape[axis], out.strides[axis],
                   *(indices.shape[a] for a in others[1:]), *lines], indices.size // count,
            max(1, EACH // count))


@lowers("ScatterND", types=TYPES, sets=BOTH)
def scatter_nd(lo: Lowering, node: Node) -> Pending | No:
    """A copy with one slice per tuple of indices replaced."""
    vx, vi, vu = node.inputs
    assert vx is not None and vi is not None and vu is not None
    refused, how = _refused(lo, vx, vi), _how(lo, node)
    if refused is not None:
        return refused
    if isinstance(how, No):
        return how
    shape, own = lo.shape(vx), lo.shape(vi)
    if not own or not 1 <= own[-1] <= len(shape) or lo.shape(vu) != (*own[:-1], *shape[own[-1]:]):
        return No("its shapes do not fit")
    x, indices, updates = lo.tensor(vx), lo.contiguous(lo.tensor(vi)), lo.contiguous(lo.tensor(vu))
    parts = own[-1]
    wanted = rows_lying(lo, x, updates, parts)

    def write(lo: Lowering, out: Tensor) -> None:
        dense = out if out.contiguous or out.strides == wanted else lo.new(x.shape, x.dtype)
        lo.copy(x, dense)
        scattered(lo, dense, indices, updates, parts, how)
        if dense is not out:
            lo.copy(dense, out)
    return placed(shape, x.dtype, write, wanted)


@varied
def rows_lying(lo: Lowering, x: Tensor, updates: Tensor, parts: int) -> tuple[int, ...] | None:
    """Strides, beside those of C order, by which `scattered` folds into a copy of `x`."""
    return None


@varied
def scattered(lo: Lowering, out: Tensor, indices: Tensor, updates: Tensor, parts: int, how: str) -> None:
    """Fold rows of updates into out[*indices], tuples of `parts`, in their order; all in C order, or `out` as
    `rows_lying` says."""
    width, steps = math.prod(out.shape[parts:]), c_strides(out.shape)
    spec = gather.scatter_rows(element=out.dtype, how=how, dtype=indices.dtype, parts=parts,
                               single=width == 1)
    lo.step(spec, [Out(out), updates, indices, Out(lo.status), indices.size // parts, width,
                   *(v for a in range(parts) for v in (out.shape[a], steps[a]))], -(-width // gather.CHUNK))


@lowers("Tile", types=TYPES, sets=BOTH)
def tile(lo: Lowering, node: Node) -> Pending | No:
    """Repeated along each axis."""
    vx, vr = node.inputs[:2]
    assert vx is not None
    known = lo.known(vr)
    if known is None or known.ndim > 1 or len(node.inputs) > 2:
        return No("its repeats are not known, or no vector")
    t, repeats = lo.tensor(vx), known.reshape(-1).tolist()
    if len(repeats) != t.rank or any(r < 0 for r in repeats):
        return No("its repeats do not fit")
    shape = tuple(d * r for d, r in zip(t.shape, repeats, strict=True))

    def write(lo: Lowering, out: Tensor) -> None:
        if lo.rules is not RULES:
            wide = [v for d, r in zip(t.shape, repeats, strict=True) for v in (r, d)]
            source = t.view(wide, [v for s in t.strides for v in (0, s)])
            steps = [v for d, s in zip(t.shape, out.strides, strict=True) for v in (d * s, s)]
            lo.copy(source, out.view(wide, steps))
            return
        part = out
        for a, d in enumerate(t.shape):
            part = part.slice(a, 0, d)
        lo.copy(t, part)
        for a in reversed(range(t.rank)):  # so that what is copied along outer axes is long
            part = out
            for outer in range(a):
                part = part.slice(outer, 0, t.shape[outer])
            _repeated(lo, part, a, t.shape[a], repeats[a])
    return placed(shape, t.dtype, write, lying(t.view(shape, t.strides)))


def _repeated(lo: Lowering, out: Tensor, axis: int, size: int, times: int) -> None:
    """Fill `out` along `axis` with its first `size` elements, `times` in all: what is there is doubled until
    it is a long run, and that copied as often as is wanted."""
    done, behind = 1, math.prod(out.shape[axis + 1:])
    outer, inner = out.shape[:axis], out.shape[axis + 1:]
    before, step, after = out.strides[:axis], out.strides[axis], out.strides[axis + 1:]
    while done < times:
        copied = min(done, times - done)
        count, again = copied * size, (times - done) // copied if _is_long(copied * size * behind) else 1
        shape = (*outer, again, count, *inner)
        target = out.slice(axis, done * size, again * count)
        lo.copy(out.view(shape, (*before, 0, step, *after)),
                target.view(shape, (*before, count * step, step, *after)))
        done += copied * again


@choice()
def _is_long(run: int) -> bool:
    return run >= _LONG


def _runs(at: np.ndarray) -> list[tuple[int, int, int]]:
    """Indices as runs (first place, count, step)."""
    made, i = [], 0
    while i < len(at):
        j = i + 1
        step = int(at[j] - at[i]) if j < len(at) else 0
        while j < len(at) and at[j] - at[j - 1] == step:
            j += 1
        made.append((i, j - i, step))
        i = j
    return made


def _sources(mode: str, count: int, before: int, after: int) -> np.ndarray:
    """Which of `count` elements stand at the places from -before to count + after."""
    at = np.arange(-before, count + after)
    if mode == "edge":
        return np.clip(at, 0, count - 1)
    if mode == "wrap":
        return at % count
    at = at % max(2 * count - 2, 1)
    return np.where(at >= count, 2 * count - 2 - at, at)


@lowers("Pad", "com.microsoft::Pad", types=TYPES, sets=BOTH)
def pad(lo: Lowering, node: Node) -> Pending | Tensor | No:
    """The input in the middle of its result, whose borders are filled axis by axis."""
    vx = node.inputs[0]
    assert vx is not None
    attrs, dtype = node.attributes, lo.dtype(vx)
    mode = attrs["mode"]
    if mode not in PAD_MODES:
        return No(f"its mode {mode!r} is unknown")
    given: list[Any] = [None if v is None else lo.known(v) for v in node.inputs[1:]]
    if any(g is None and v is not None for g, v in zip(given, node.inputs[1:], strict=True)):
        return No("its pads are not known")
    pads, fill, axes = [*given, None, None, None][:3]
    if pads is None:
        pads = np.array(attrs.get("pads") or attrs.get("paddings") or [])
        fill = np.array(attrs["value"])
    t = lo.tensor(vx)
    which = range(t.rank) if axes is None else [normalized_axis(a, t.rank) for a in axes.reshape(-1).tolist()]
    ends = pads.reshape(-1).tolist()
    if len(ends) != 2 * len(which) or len({*which}) < len(which) or 0 in t.shape or (
            fill is not None and fill.size != 1):
        return No("its pads do not fit, or it is empty")
    before, after = [0] * t.rank, [0] * t.rank
    for i, a in enumerate(which):
        before[a], after[a] = ends[i], ends[i + len(which)]
        low, high = max(0, -before[a]), max(0, -after[a])
        if low + high >= t.shape[a]:
            return No("nothing is left")
        t = t.slice(a, low, t.shape[a] - low - high)
        before[a], after[a] = max(0, before[a]), max(0, after[a])
    if not any((*before, *after)):
        return t
    shape = tuple(b + d + e for b, d, e in zip(before, t.shape, after, strict=True))
    value = 0 if fill is None or not fill.size else fill.reshape(()).item()
    constant = Expr.const(value, dtype if dtype not in ("float16", "bfloat16") else "float32").cast(dtype)

    def write(lo: Lowering, out: Tensor) -> None:
        middle = out
        for a in range(t.rank):
            middle = middle.slice(a, before[a], t.shape[a])
        lo.copy(t, middle)
        for a in reversed(range(t.rank)):  # so that what is copied along outer axes is long
            part = out
            for other in range(a):
                part = part.slice(other, before[other], t.shape[other])
            count = t.shape[a]
            if mode == "constant":
                for first, size in ((0, before[a]), (before[a] + count, after[a])):
                    if size:
                        lo.store(part.slice(a, first, size), constant, [])
                continue
            own = part.slice(a, before[a], count)
            places = _sources(mode, count, before[a], after[a])
            for first, size in ((0, before[a]), (before[a] + count, after[a])):
                at = places[first:first + size]
                for i, length, step in _runs(at):
                    lo.copy(own.slice(a, int(at[i]), length, step), part.slice(a, first + i, length))
    return placed(shape, dtype, write, lying(t.view(shape, t.strides)))


@lowers("DepthToSpace", "SpaceToDepth", types=TYPES, sets=BOTH)
def blocks(lo: Lowering, node: Node) -> Pending | No:
    """A view with the blocks' axes apart, put into a view of the result."""
    vx = node.inputs[0]
    assert vx is not None
    attrs = node.attributes
    s, t = attrs["blocksize"], lo.tensor(vx)
    mode = attrs.get("mode")
    if t.rank != 4 or s < 1 or 0 in t.shape or mode not in (None, *BLOCK_MODES):
        return No("no image, or its mode is unknown")
    first = mode != "CRD"
    n, c, h, w = t.shape
    deep = node.op_type == "DepthToSpace"
    if (c % (s * s)) if deep else (h % s or w % s):
        return No("its sizes do not divide")
    shape = (n, c // (s * s), h * s, w * s) if deep else (n, c * s * s, h // s, w // s)

    def apart(y: Tensor, fine: bool) -> Tensor:
        """As n, c, h, w, block row, block column of the smaller image; `fine`: it is the larger one."""
        a, b, d, e = y.strides
        if fine:
            return y.view((*y.shape[:2], y.shape[2] // s, y.shape[3] // s, s, s), (a, b, s * d, s * e, d, e))
        each = y.shape[1] // (s * s)
        steps = (each * s * b, each * b) if first else (s * b, b)
        return y.view((y.shape[0], each, *y.shape[2:], s, s), (a, b if first else s * s * b, d, e, *steps))
    return placed(shape, t.dtype, lambda lo, out: lo.copy(apart(t, not deep), apart(out, deep)),
                  lying(t.view(shape, t.strides)))


@lowers("CumSum", "CumProd", types=tuple(t for t in TYPES if t != "bool"))
def running(lo: Lowering, node: Node) -> Pending | No:
    """Totals so far along a known axis."""
    vx, va = node.inputs
    assert vx is not None
    known, attrs = lo.known(va), node.attributes
    if known is None or known.size != 1 or not lo.shape(vx) or 0 in lo.shape(vx):
        return No("its axis is not known, or it is empty")
    t = lo.tensor(vx)
    axis = normalized_axis(known.item(), t.rank)
    exclusive, how = bool(attrs.get("exclusive")), "add" if node.op_type == "CumSum" else "mul"

    def write(lo: Lowering, out: Tensor) -> None:
        x, y, length = t, out, t.shape[axis]
        if attrs.get("reverse"):
            x, y = (v.slice(axis, length - 1, length, -1) for v in (x, y))
        others = [a for a in range(x.rank) if a != axis]
        made = loops.nest([x.shape[a] for a in others], [_along(y, others), _along(x, others)])
        sizes, lines = list(made.sizes), [list(s) for s in made.strides]
        across = bool(sizes) and all(s[-1] == 1 for s in lines)
        columns = sizes.pop() if across else 1
        lines = [(s[:-1] if across else s) or [0] for s in lines]
        sizes = sizes or [1]
        lanes = lo.machine.lanes(max(BYTES[x.dtype], 4 if x.dtype in ("float16", "bfloat16") else 1))
        vectors = min(ABREAST, -(-columns // lanes)) if across else 0
        spec = gather.running(dtype=x.dtype, how=how, outer=len(sizes), exclusive=exclusive, across=vectors)
        lo.step(spec, [Out(y), x, length, columns, y.strides[axis], x.strides[axis], *sizes[1:], *lines[0],
                       *lines[1]],
                math.prod(sizes) * (-(-columns // (lanes * vectors)) if across else 1),
                max(1, EACH // length))
    return placed(t.shape, t.dtype, write, lying(t))
