"""Resize where oneDNN's resampling picks the same elements: nearest, and linear between pixel centres."""

from __future__ import annotations

import math

import numpy as np

from ....ir import No, Node
from ..binding import DST, INFERENCE, RESAMPLING, SRC
from ..lower import Lowering
from ..objects import Attr, Primitive, open_layout
from ..step import lowers
from ..tensor import Tensor


@lowers("Resize")
def resize(lo: Lowering, node: Node) -> Tensor | No:
    """X [N, C, D...] to the given sizes, or by the given scales."""
    attrs = node.attributes
    x = lo.dense(lo.tensor(node.inputs[0]))
    if not 3 <= len(x.shape) <= 5:
        return No(f"rank {len(x.shape)}")
    sizes = lo.known(node.inputs[3]) if len(node.inputs) > 3 else None
    scales = lo.known(node.inputs[2]) if len(node.inputs) > 2 else None
    if sizes is not None and sizes.size:
        shape = tuple(int(s) for s in sizes)
    elif scales is not None and scales.size:
        shape = tuple(math.floor(d * s) for d, s in zip(x.shape, scales.tolist(), strict=True))
        if any(d * s != o for d, s, o in zip(x.shape, scales.tolist(), shape, strict=True)):
            return No("its scales do not give whole sizes")
    else:
        return No("its sizes are no constant")
    if len(shape) != len(x.shape) or shape[:2] != x.shape[:2] or 0 in shape:
        return No("it resizes more than the dimensions behind the channels")
    kind = attrs["mode"]
    if kind == "nearest":
        for old, new in zip(x.shape[2:], shape[2:], strict=True):
            if not np.array_equal(_nearest(old, new, attrs), _taken(old, new)):
                return No("oneDNN would pick other elements")
    made = Primitive(lo.lib, "resampling_forward", lo.lib.engine, INFERENCE, RESAMPLING[kind], None, x.desc,
                     open_layout(lo.lib, shape, x.dtype), Attr(lo.lib))
    out = lo.new(shape, made.desc(DST, shape, x.dtype))
    lo.step(made, [(SRC, x), (DST, out)], [out])
    return out


def _taken(old: int, new: int) -> np.ndarray:
    """Which element oneDNN takes for each of `new`: the nearest centre, halves away from zero."""
    at = (np.arange(new, dtype=np.float64) + 0.5) * old / new - 0.5
    return np.clip(np.floor(at + 0.5), 0, old - 1)


def _nearest(old: int, new: int, attrs: dict[str, object]) -> np.ndarray:
    """Which element ONNX takes."""
    i = np.arange(new, dtype=np.float64)
    mode = attrs["coordinate_transformation_mode"]
    if mode == "asymmetric":
        at = i * old / new
    elif mode == "align_corners":
        at = i * (old - 1) / (new - 1) if new > 1 else i * 0
    else:
        at = (i + 0.5) * old / new - 0.5
    rounding = attrs["nearest_mode"]
    index = {"floor": np.floor(at), "ceil": np.ceil(at), "round_prefer_floor": np.ceil(at - 0.5),
             "round_prefer_ceil": np.floor(at + 0.5)}[str(rounding)]
    return np.clip(index, 0, old - 1)
