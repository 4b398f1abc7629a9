"""Sampling by coordinates and boxes: grids, affine grids, suppression of overlapping boxes, centred crops."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import limits
from ...ir import HALF
from ..define import normalized_axis, op
from .resize import _back, _cubic

_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic",
          "bicubic": "cubic"}
_CHUNK = 256
"""Boxes compared with one another at once."""
_CANDIDATES = 4
"""Boxes that are looked at first, for each one wanted."""


def _reflected(at: np.ndarray, low: float, high: float) -> np.ndarray:
    """`at` mirrored at `low` and `high` until it lies between them."""
    span = high - low
    if span <= 0:
        return np.full_like(at, low)
    away = np.abs(at - low)
    rest = np.fmod(away, 2 * span)
    return np.where(rest > span, 2 * span - rest, rest) + low


@op(since=16)
def GridSample(X, grid, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"):
    """Samples X [N, C, D1..Dr] at grid [N, O1..Or, r]: coordinates from -1 to 1, last axis first."""
    rank = X.ndim - 2
    if rank < 1 or grid.ndim != X.ndim or grid.shape[-1] != rank or grid.shape[0] != X.shape[0]:
        raise ValueError(f"X has shape {list(X.shape)} and grid {list(grid.shape)}, expected [N, C, D1..Dr] "
                         "and [N, O1..Or, r]")
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}, expected one of {sorted(_MODES)}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"padding_mode is {padding_mode!r}, expected zeros, border or reflection")
    kind = _MODES[mode]
    shape = limits.bounded((*X.shape[:2], *grid.shape[1:-1]), X.dtype)
    if 0 in shape:
        return np.zeros(shape, X.dtype)
    if 0 in X.shape:
        raise ValueError(f"an empty tensor of shape {list(X.shape)} cannot be sampled")
    if X.dtype.kind == "O" and kind != "nearest":
        raise ValueError(f"mode {mode} cannot interpolate strings")
    x = X
    if kind != "nearest":
        x = X.astype(np.float32 if X.dtype in HALF else np.float64 if X.dtype.kind in "iub" else X.dtype,
                     copy=False)
    exact = np.float64 if grid.dtype == np.float64 or x.dtype == np.float64 else np.float32
    y = np.empty((*X.shape[:2], int(np.prod(shape[2:]))), x.dtype)
    size = X.shape[2:]
    for image in range(X.shape[0]):
        places = grid[image].reshape(-1, rank)[:, ::-1].astype(exact)
        at = [_unnormalized(places[:, a], n, bool(align_corners)) for a, n in enumerate(size)]
        y[image] = _sampled(x[image].reshape(X.shape[1], -1), at, size, kind, padding_mode,
                            bool(align_corners))
    return _back(y.reshape(shape), X.dtype)


def _unnormalized(at: np.ndarray, size: int, align: bool) -> np.ndarray:
    half = at.dtype.type(0.5)
    at = (at + 1) * half * (size - 1) if align else ((at + 1) * size - 1) * half
    return np.clip(np.nan_to_num(at, nan=-1.0 - size), -1e9 - size, 1e9 + size)


def _sampled(source: np.ndarray, at: list[np.ndarray], size: tuple[int, ...], kind: str, padding: str,
             align: bool) -> np.ndarray:
    """source [C, prod(size)] at the coordinates at[axis] [P] → [C, P]."""
    per_axis: list[list[tuple[np.ndarray, Any, Any]]] = []
    for where, n in zip(at, size, strict=True):
        bounds = (0.0, n - 1.0) if align else (-0.5, n - 0.5)
        if kind == "nearest":
            where = np.rint(where)
        elif kind == "linear" and padding == "border":
            where = np.clip(where, 0, n - 1)
        elif kind == "linear" and padding == "reflection":
            where = np.clip(_reflected(where, *bounds), 0, n - 1)
        low = np.floor(where)
        steps: list[int]
        weights: list[Any]
        fraction = (where - low).astype(source.real.dtype if kind != "nearest" else np.float32)
        if kind == "nearest":
            steps, weights = [0], [None]
        elif kind == "linear":
            steps, weights = [0, 1], [1 - fraction, fraction]
        else:
            steps = [-1, 0, 1, 2]
            weights = [_cubic(fraction - s, -0.75) for s in steps]
        taps = []
        for step, weight in zip(steps, weights, strict=True):
            place = low + step
            if padding == "reflection":
                place = _reflected(place, *bounds)
            inside = (place >= 0) & (place <= n - 1) if padding == "zeros" else None
            taps.append((np.clip(np.rint(place), 0, n - 1).astype(np.int64), weight, inside))
        per_axis.append(taps)
    total: Any = None
    for choice in np.ndindex(*map(len, per_axis)):
        index: Any = 0
        weight: Any = None
        inside: Any = None
        for taps, tap, n in zip(per_axis, choice, size, strict=True):
            place, w, here = taps[tap]
            index = index * n + place
            weight = w if weight is None else weight * w
            if here is not None:
                inside = here if inside is None else inside & here
        part = np.take(source, index, axis=1)
        if inside is not None:
            part[:, ~inside] = "" if part.dtype == object else 0
        if weight is not None:
            part *= weight
        total = part if total is None else np.add(total, part, out=total)
    return total


@op(widen=True)
def AffineGrid(theta, size, *, align_corners: int = 0):
    """The grid of affine maps theta [N, r, r + 1] over an image of `size` [N, C, D...] → [N, D..., r]."""
    dims = size.tolist()
    rank = len(dims) - 2
    if rank not in (2, 3) or theta.shape != (dims[0], rank, rank + 1):
        raise ValueError(f"theta has shape {list(theta.shape)} and size is {dims}, expected [N, 2, 3] with "
                         "[N, C, H, W] or [N, 3, 4] with [N, C, D, H, W]")
    shape = limits.bounded((dims[0], *dims[2:], rank), theta.dtype)
    lines = []
    for n in dims[2:]:
        line = np.linspace(-1, 1, n) if align_corners else (2 * np.arange(n) + 1) / n - 1
        lines.append(line.astype(theta.dtype))
    points = np.ones((*dims[2:], rank + 1), theta.dtype)
    for a, line in enumerate(lines):
        points[..., rank - 1 - a] = line.reshape(-1, *(1,) * (rank - 1 - a))
    return np.matmul(points.reshape(-1, rank + 1), theta.transpose(0, 2, 1)).reshape(shape)


@op(since=10)
def NonMaxSuppression(boxes, scores, max_output_boxes_per_class=None, iou_threshold=None,
                      score_threshold=None, *, center_point_box: int = 0):
    """Per image and class the best boxes that do not overlap a better one, as rows [image, class, box]."""
    most, limit, least = suppression_limits(boxes, scores, max_output_boxes_per_class, iou_threshold,
                                            score_threshold, center_point_box=center_point_box)
    if most <= 0 or not scores.shape[0] * scores.shape[1]:
        return np.zeros((0, 3), np.int64)
    first, second = boxes[..., :2], boxes[..., 2:]
    low = first - second / 2 if center_point_box else np.minimum(first, second)
    high = first + second / 2 if center_point_box else np.maximum(first, second)
    found: dict[tuple[int, ...], np.ndarray] = {}
    places = list(np.ndindex(*scores.shape[:2]))
    for first_of in (most * _CANDIDATES, None):
        orders = {p: _ranked(scores[p], least, first_of) for p in places if p not in found}
        for place, (order, whole) in orders.items():
            kept = _suppressed(low[place[0]][order], high[place[0]][order], most, limit)
            if whole or len(kept) == most:
                found[place] = order[kept]
    rows = [np.column_stack([np.full((len(found[place]), 2), place), found[place]]) for place in places]
    return np.concatenate(rows, dtype=np.int64)


def suppression_limits(boxes: np.ndarray, scores: np.ndarray, most: np.ndarray | None = None,
                       limit: np.ndarray | None = None, least: np.ndarray | None = None, *,
                       center_point_box: int = 0) -> tuple[int, float, float | None]:
    """Of NonMaxSuppression: how many boxes are kept at most, of which overlap on, and above which score.
    Raises ValueError where inputs do not fit one another."""
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3 or scores.shape[0] != boxes.shape[0] \
            or scores.shape[2] != boxes.shape[1]:
        raise ValueError(f"boxes has shape {list(boxes.shape)} and scores {list(scores.shape)}, expected "
                         "[N, B, 4] and [N, classes, B]")
    number = _scalar(most, "max_output_boxes_per_class", 0)
    share = _scalar(limit, "iou_threshold", 0.0)
    if not 0 <= share <= 1:
        raise ValueError(f"iou_threshold is {share}, expected 0 to 1")
    if center_point_box not in (0, 1):
        raise ValueError(f"center_point_box is {center_point_box}, expected 0 or 1")
    return number, share, _scalar(least, "score_threshold", None)


def _ranked(score: np.ndarray, least: float | None, first: int | None) -> tuple[np.ndarray, bool]:
    """The places of scores above `least`, best first, of equal ones the first; some of the best alone where
    there are many more than `first`, and whether it is all of them."""
    kept = np.arange(score.size) if least is None else np.flatnonzero(score > least)
    values = score[kept]
    if first is not None and len(kept) > 2 * first:
        bound = np.partition(values, -first)[-first]
        if not np.isnan(bound):
            kept = kept[values >= bound]
            return kept[np.argsort(-score[kept], kind="stable")], False
    return kept[np.argsort(-values, kind="stable")], True


def _scalar(value: np.ndarray | None, name: str, default: Any) -> Any:
    if value is None:
        return default
    if value.size > 1:
        raise ValueError(f"{name} has shape {list(value.shape)}, expected a scalar")
    return value.item() if value.size else default


def _suppressed(low: np.ndarray, high: np.ndarray, most: int, limit: float) -> list[int]:
    """Positions of the boxes to keep; `low` and `high` are their corners, best box first."""
    chosen: list[int] = []
    for first in range(0, len(low), _CHUNK):
        block = np.arange(first, min(first + _CHUNK, len(low)))
        for part in range(0, len(chosen), _CHUNK):
            better = chosen[part:part + _CHUNK]
            block = block[~_overlapping(low, high, np.array(better), block, limit).any(axis=0)]
        among = _overlapping(low, high, block, block, limit)
        gone = np.zeros(len(block), bool)
        for i, box in enumerate(block.tolist()):
            if not gone[i]:
                chosen.append(box)
                if len(chosen) >= most:
                    return chosen
                gone |= among[i]
    return chosen


def _overlapping(low: np.ndarray, high: np.ndarray, a: np.ndarray, b: np.ndarray, limit: float) -> np.ndarray:
    """[len(a), len(b)]: whether boxes a and b share more than `limit` of their union."""
    area_a, area_b = (np.prod(high[i] - low[i], axis=1) for i in (a, b))
    overlap: Any = 1
    for axis in (0, 1):
        sides = (np.minimum(high[a, axis][:, None], high[b, axis])
                 - np.maximum(low[a, axis][:, None], low[b, axis]))
        overlap = overlap * np.maximum(sides, 0)
    union = area_a[:, None] + area_b - overlap
    solid = (area_a[:, None] > 0) & (area_b > 0) & (union > 0)
    return solid & (overlap / np.where(solid, union, 1) > low.dtype.type(limit))


@op
def CenterCropPad(input_data, shape, *, axes: list[int] | None = None):
    """Crops or zero-pads `axes` (all where absent) round their centre to `shape`."""
    wanted = np.ravel(shape).tolist()
    chosen = [normalized_axis(a, input_data.ndim) for a in axes] if axes else list(range(input_data.ndim))
    if len(wanted) != len(chosen) or len(set(chosen)) != len(chosen):
        raise ValueError(f"shape is {wanted} and axes {axes}, expected one size per axis and no axis twice")
    dims = list(input_data.shape)
    source, target = [slice(None)] * input_data.ndim, [slice(None)] * input_data.ndim
    for a, want in zip(chosen, wanted, strict=True):
        have = dims[a]
        if want < have:
            source[a] = slice((have - want) // 2, (have - want) // 2 + want)
        else:
            target[a] = slice((want - have) // 2, (want - have) // 2 + have)
        dims[a] = want
    y = np.zeros(limits.bounded(dims, input_data.dtype), input_data.dtype)
    if y.dtype == object:
        y[...] = ""
    y[tuple(target)] = input_data[tuple(source)]
    return y
