"""Resize and Upsample of images along their spatial axes, by tables made once per shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...codegen.kernels import resize
from ...codegen.write.expr import Expr
from ...ir import No, Node
from ...ops.define import find, normalized_axis
from ..lower import Lowering, Pending, lowers
from ..tensor import Tensor
from .pool import framed, image, pixels
from .rows import FLOATS

LONGEST = 1 << 12
"""Length of an axis up to which its table is made."""


@lowers("Resize", "Upsample")
def resized(lo: Lowering, node: Node) -> Pending | No:
    """Each output pixel from a few input pixels."""
    x = node.inputs[0]
    assert x is not None and node.op is not None
    shape, dtype, attrs = lo.shape(x), lo.dtype(x), node.attributes
    nearest = attrs["mode"] == "nearest"
    if not 3 <= len(shape) <= 5 or 0 in shape or max(shape[2:]) > LONGEST:
        return No("kernels resize one to three spatial axes of moderate length")
    if dtype not in FLOATS and not nearest or dtype == "bool":
        return No(f"no generated kernel interpolates {dtype}")
    wanted = _wanted(lo, node, attrs, shape)
    if isinstance(wanted, No):
        return wanted
    axes: list[tuple[np.ndarray, np.ndarray]] = []
    for axis, along in enumerate(wanted):
        if axis > 1:
            axes.append(resize.table(along or _kept, shape[axis], nearest))
        elif along is not None:
            return No("it resizes images or channels")
    taps = tuple(places.shape[1] for places, _ in axes)
    if prod(taps) > resize.MOST:
        return No("a pixel reads too many others")
    t = image(lo, lo.tensor(x))
    places = [_constant(lo, p) for p, _ in axes]
    weights = [_constant(lo, w) for _, w in axes if w.shape[1] > 1]

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        frame = framed(lo, t, out, tree, operands)
        spec = resize.resize_taps(taps=taps, **frame.params)
        lo.step(spec, [*frame.cells, t, *frame.walked(t), *places, *weights], frame.items, frame.grain)
    return pixels((*shape[:2], *(len(p) for p, _ in axes)), dtype, t, emit)


def _constant(lo: Lowering, table: np.ndarray) -> Tensor:
    return lo.constant(("resize", table.shape, table.tobytes()), lambda: table)


Along = Callable[[np.ndarray], np.ndarray]


def _wanted(lo: Lowering, node: Node, attrs: dict[str, Any], shape: Sequence[int]) -> list[Along | None] | No:
    """Per axis the operator's own definition on the second axis of a matrix; None where it keeps the axis."""
    op, rank = node.op, len(shape)
    assert op is not None
    if op.name == "Upsample" or op.since < 11:
        given = attrs.get("scales")
        if given is None:
            given = lo.known(node.inputs[1]) if len(node.inputs) > 1 else None
        if given is None or len(given) != rank:
            return No("its scales are not known")
        one = find("", "Upsample", 9)
        assert one is not None
        call = one.bind({"mode": attrs["mode"]})
        return [partial(_scaled, call, s) if s != 1 else None for s in np.ravel(given).tolist()]
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
    call = op.bind({**attrs, "axes": [1]})
    found: list[Along | None] = [None] * rank
    for i, (axis, number) in enumerate(zip(chosen, numbers.tolist(), strict=True)):
        if number != (1 if by_scale else shape[axis]):
            found[axis] = partial(_along, call, numbers[i:i + 1], by_scale)
    return found


def _kept(matrix: np.ndarray) -> np.ndarray:
    return matrix


def _along(call: Callable[..., Any], number: np.ndarray, is_scale: bool, matrix: np.ndarray) -> Any:
    return call(matrix, None, number) if is_scale else call(matrix, None, None, number)


def _scaled(call: Callable[..., Any], scale: float, matrix: np.ndarray) -> Any:
    return call(matrix, np.array([1, scale], np.float32))
