"""Linear quantization: kept as scales and zero points until somebody needs the numbers."""

from __future__ import annotations

import numpy as np

from ....ir import No, Node, Value
from ..binding import DST, SCALES, SRC, ZERO_POINTS
from ..lower import Lowering
from ..objects import Scaling, strided
from ..step import Link, links, lowers
from ..tensor import Argument, Quantized, Tensor


@lowers("DequantizeLinear")
def dequantize(lo: Lowering, node: Node) -> Quantized | No:
    """The real value of integers, which is left to whoever reads it."""
    t = lo.tensor(node.inputs[0])
    scale = lo.known(node.inputs[1])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zero = np.zeros(1, np.int8) if given is None else lo.known(given)
    if scale is None or zero is None:
        return No("its scale or zero point is no constant")
    found = Quantized(t, np.asarray(scale), np.asarray(zero), node.attribute("axis"), node)
    if t.buffer.kind != "const" and not found.whole:
        return No("a scale for each index of an axis, of what is no constant")
    return found


def target_of(node: Node, zero: np.ndarray | None) -> str:
    """numpy's name of the type a QuantizeLinear gives."""
    return "uint8" if zero is None else zero.dtype.name


@lowers("QuantizeLinear")
def quantize(lo: Lowering, node: Node) -> Tensor | No:
    """Rounded and saturated by a reorder; integers with the same scale are what they were."""
    scale, zero = _parameters(lo, node)
    if scale is None:
        return No("its scale or zero point is no constant number")
    dtype = target_of(node, zero)
    number = 0 if zero is None else int(zero.item())
    found = lo.quantized(node.inputs[0])
    scalings: list[Scaling] = [Scaling(DST, "scales")]
    args: list[Argument] = [(SCALES | DST, lo.number(scale))]
    if number:
        scalings.append(Scaling(DST, "zero_points"))
        args.append((ZERO_POINTS | DST, lo.number(number, "int32")))
    if found is not None and found.whole:
        t = found.tensor
        if t.dtype == dtype and float(found.scale.item()) == scale and int(found.zero.item()) == number:
            return t
        more, further = lo.scaled(found, SRC)
        scalings, args = [*more, *scalings], [*further, *args]
    else:
        t = lo.tensor(node.inputs[0])
    t = lo.strided(t)
    made = lo.new(t.shape, strided(lo.lib, t.shape, dtype, t.desc.strides if t.plain else None))
    lo.reorder(t, made, scalings, args)
    return made


@links("QuantizeLinear")
def quantize_link(lo: Lowering, node: Node, value: Value, shape: tuple[int, ...]) -> Link | None:
    """The end of a chain behind a product of integers."""
    scale, zero = _parameters(lo, node)
    if scale is None or node.inputs[0] is not value:
        return None
    return Link(node, None, None, target_of(node, zero), scale, 0 if zero is None else int(zero.item()))


def _parameters(lo: Lowering, node: Node) -> tuple[float | None, np.ndarray | None]:
    """One scale for all, None where it is not that, and the zero point."""
    scale = lo.known(node.inputs[1])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zero = lo.known(given)
    if scale is None or scale.size != 1 or (given is not None and (zero is None or zero.size != 1)):
        return None, None
    return float(scale.item()), zero
