"""Moving and comparing dequantized elements: done on the bytes they were dequantized from.

In: an operator that only moves elements, or picks the largest, of a tensor quantized as a whole. Out: its
result as bytes, and the floats as a tree over them, so that what reads them next may read bytes as well.
"""

from __future__ import annotations

import copy
from typing import Any

from ....ir import No, Node, Value
from ....ops.define import normalized_axis
from ...lower import RULES, Lazy, Lowering, Rule
from ...tensor import last_strides
from ..move import lies_last
from .int8 import Coded, F, coded, number
from .quantize import MOVES, dequantized, quantized


def _whole(lo: Lowering, value: Value | None) -> Coded | None:
    """What `value` was dequantized from, with one scale above 0 for all."""
    found = coded(lo, value)
    if found is None or not (number(lo, found.scale) or 0) > 0 or number(lo, found.zero) is None:
        return None
    return found


def _floats(lo: Lowering, output: Value, source: Coded, made: Any) -> Any:
    """The floats of bytes, and what they are known to be dequantized from."""
    value = Value(f"{output.name} as bytes")
    lo.bind(value, made)
    lo.left[value] = 1
    lo.codes[output] = Coded(value, source.scale, source.zero, source.axis)
    lo.tensor(value)
    return dequantized(lo, lo.lazy(value), source.scale, source.zero)


def _through(kind: str) -> Rule:
    def on_bytes(lo: Lowering, node: Node) -> Any:
        rule = RULES["", kind]
        source = _whole(lo, node.inputs[0])
        if source is None or lo.knows(node.inputs[0]):
            return rule(lo, node)
        same = copy.copy(node)
        same.inputs = [source.value, *node.inputs[1:]]
        made = rule(lo, same)
        if isinstance(made, No):
            return rule(lo, node)
        results = made if isinstance(made, tuple) else (made,)
        return tuple([_floats(lo, v, source, result) for v, result in zip(node.outputs, results, strict=False)
                      if v is not None])
    return on_bytes


def _nearest(kind: str) -> Rule:
    moved = _through(kind)
    return lambda lo, node: (moved if node.attributes["mode"] == "nearest" else RULES["", kind])(lo, node)


def _concat(lo: Lowering, node: Node) -> Any:
    """Each input is quantized as the whole will be, straight into its place."""
    readers = list(node.output.uses)
    sources = [_whole(lo, v) for v in node.inputs]
    if len(readers) != 1 or readers[0].kind != "QuantizeLinear" or node.output.graph_outputs or any(
            s is None for s in sources):
        return RULES["", "Concat"](lo, node)
    scale, zero = (*readers[0].inputs, None)[1:3]
    dtype = readers[0].output.elem.numpy.name
    if scale is None or lo.dtype(scale) != F or not lo.knows(scale) or (
            number(lo, scale) is None or number(lo, zero) is None) or any(
            s is not None and lo.dtype(s.value) != dtype for s in sources):
        return RULES["", "Concat"](lo, node)
    shapes = [lo.shape(v) for v in node.inputs]
    axis = normalized_axis(node.attrs["axis"], len(shapes[0]))
    whole = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1:])
    strides = last_strides(whole, whole[1]) if len(whole) > 2 and axis == 1 and all(
        s is not None and lies_last(lo, s.value) for s in sources) else None
    out, at = lo.new(whole, dtype, strides), 0
    target = Coded(node.output, scale, zero, 1)
    for v, source, shape in zip(node.inputs, sources, shapes, strict=True):
        assert source is not None and v is not None
        there = out.slice(axis, at, shape[axis])
        at += shape[axis]
        if 0 in shape:
            continue
        part = Value(f"{v.name} as bytes")
        lo.left[part] = 1
        lo.bind(part, lo.lazy(source.value) if _same(lo, source, target) else _requantized(
            lo, source, scale, zero, dtype))
        lo.into(part, there)
    return _floats(lo, node.output, target, out)


def _requantized(lo: Lowering, source: Coded, scale: Value | None, zero: Value | None, dtype: str) -> Lazy:
    real = dequantized(lo, lo.lazy(source.value), source.scale, source.zero)
    assert real is not None
    made = quantized(lo, real, scale, zero, dtype)
    assert made is not None
    return made


def _same(lo: Lowering, a: Coded, b: Coded) -> bool:
    return number(lo, a.scale) == number(lo, b.scale) and number(lo, a.zero) == number(lo, b.zero)


RULES.on_bytes.update({kind: _through(kind) for kind in MOVES}, Concat=_concat,
                      **{kind: _nearest(kind) for kind in ("Resize", "Upsample")})
