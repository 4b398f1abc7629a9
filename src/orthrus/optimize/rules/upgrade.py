"""Older forms of operators, rewritten exactly to the newest, so that everything after sees one form.

Only nodes whose form changed are touched; a node keeps its schema version where the newest definition serves
it anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir import ElementType, Graph, No, Node, Value
from ..rewrite import Missing, Work, newest
from .facts import as_type, rank

Form = tuple[list[Any], dict[str, Any]]
"""Inputs and attributes of the newest form; an array among the inputs becomes a constant."""


def upgrade_old_forms(work: Work) -> int:
    """Rewrite each node in place: same outputs, newest form."""
    count = 0
    for node in work.graph.nodes:
        if node.domain or (rule := _RULES.get(node.op_type)) is None or node.version >= rule[0]:
            continue
        name = _RENAMED.get(node.op_type, node.op_type)
        try:
            definition, version = newest("", name)
        except Missing:
            continue
        form = rule[1](node)
        if form is None or isinstance(form, No):
            if form is not None:
                work.decline("upgrade_old_forms", node, form.reason)
            continue
        if not work.take():
            break
        inputs, attrs = form
        values = [
            work.constant(v, f"{node.output.name}_{name}") if isinstance(v, np.ndarray) else v for v in inputs
        ]
        while values and values[-1] is None:
            values.pop()
        for i in range(len(node.inputs)):
            Graph.set_input(node, i, None)
        node.inputs = [None] * len(values)
        for i, value in enumerate(values):
            Graph.set_input(node, i, value)
        node.op_type, node.op, node.version, node.attrs = name, definition, version, attrs
        count += 1
    return count


def _int64(values: Any) -> np.ndarray:
    return np.array(values, np.int64).reshape(-1)


def _without(node: Node, *names: str) -> dict[str, Any]:
    return {k: v for k, v in node.attrs.items() if k not in names}


def _axes(node: Node) -> Form | None:
    """`axes` from an attribute to an input; absent it stays absent."""
    if len(node.inputs) > 1:
        return None
    axes = node.attrs.get("axes")
    return [node.inputs[0], None if axes is None else _int64(axes)], _without(node, "axes")


def _clip(node: Node) -> Form | None:
    x = node.inputs[0]
    if x is None or x.elem is None:
        return None
    with np.errstate(over="ignore"):
        bounds = [None if b is None else as_type(b, x) for b in map(node.attribute, ("min", "max"))]
    return [x, *bounds], _without(node, "min", "max", "consumed_inputs")


def _pad(node: Node) -> Form | None:
    x = node.inputs[0]
    pads = node.attrs.get("pads", node.attrs.get("paddings"))
    if pads is None or x is None or x.elem is None:
        return None
    value = node.attrs.get("value")
    return [x, _int64(pads), as_type(value, x) if value else None], _without(
        node, "pads", "paddings", "value"
    )


def _slice(node: Node) -> Form | None:
    attrs = node.attrs
    if "starts" not in attrs or "ends" not in attrs:
        return None
    axes = attrs.get("axes")
    return [
        node.inputs[0],
        _int64(attrs["starts"]),
        _int64(attrs["ends"]),
        None if axes is None else _int64(axes),
    ], {}


def _split(node: Node) -> Form | No | None:
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return (list(node.inputs), _without(node, "split")) if node.version >= 13 else None
    split = node.attrs.get("split")
    if not split:
        if not _is_even(node):
            return No("whether its axis has equal parts is not known")
        return [node.inputs[0]], {**_without(node, "split"), "num_outputs": len(node.outputs)}
    return [node.inputs[0], _int64(split)], _without(node, "split")


def _is_even(node: Node) -> bool:
    x, axis = node.inputs[0], node.attribute("axis")
    if x is None or x.shape is None or not -len(x.shape) <= axis < len(x.shape):
        return False
    length = x.shape[axis]
    return isinstance(length, int) and length % len(node.outputs) == 0


def _topk(node: Node) -> Form | None:
    return ([node.inputs[0], _int64([node.attrs["k"]])], _without(node, "k")) if "k" in node.attrs else None


_ASYMMETRIC = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _upsample(node: Node) -> Form | No | None:
    mode = node.attribute("mode")
    if isinstance(mode, bytes):
        mode = mode.decode()
    if mode not in ("nearest", "linear", "bilinear"):
        return None
    scales: Any
    if node.version >= 9:
        scales = node.inputs[1]
    elif node.version >= 7:
        scales = np.array(node.attrs["scales"], np.float32)
    else:
        scales = np.array([1, 1, node.attrs["height_scale"], node.attrs["width_scale"]], np.float32)
    return _by_scales(node.inputs[0], scales, "nearest" if mode == "nearest" else "linear")


def _resize(node: Node) -> Form | No | None:
    mode = node.attribute("mode")
    return _by_scales(node.inputs[0], node.inputs[1], mode) if node.version == 10 else None


def _by_scales(x: Value | None, scales: Any, mode: str) -> Form | No:
    known = scales.const if isinstance(scales, Value) else scales
    if mode == "nearest":
        if not isinstance(known, np.ndarray):
            return No("the scales are not known")
        if np.any((known < 1) & (np.frexp(known)[0] != 0.5)):
            return No("where an axis shrinks, the next element counts and no longer the one before")
    return [x, None, scales], {"mode": mode, **_ASYMMETRIC}


def _softmax(node: Node) -> Form | No:
    """The older form flattens; along the last axis that makes no difference."""
    n, axis = rank(node.inputs[0]), node.attribute("axis")
    if n is None:
        return No("the rank is not known")
    if (axis if axis >= 0 else axis + n) != n - 1:
        return No("it flattens several axes into one")
    return [node.inputs[0]], {"axis": -1}


def _binary(node: Node) -> Form | No | None:
    """The second input was broadcast from an axis of the first on; now shapes align at their ends."""
    a, b = node.inputs
    if not node.attrs.get("broadcast"):
        return [a, b], {}
    n, m, axis = rank(a), rank(b), node.attrs.get("axis")
    if n is None or m is None or a is None or b is None:
        return No("a rank is not known")
    if axis is None or m == 0 or (axis + n if axis < 0 else axis) + m == n:
        return [a, b], {}
    if not isinstance(b.const, np.ndarray):
        return No("the second input is broadcast from an inner axis and is not constant")
    tail = n - (axis + n if axis < 0 else axis) - m
    return (
        ([a, b.const.reshape(*b.const.shape, *[1] * tail)], {}) if tail > 0 else No("the axis does not fit")
    )


def _prelu(node: Node) -> Form | No | None:
    """A slope with one element per channel, now shaped to broadcast."""
    x, slope = node.inputs
    n, m = rank(x), rank(slope)
    if n is None or m is None or slope is None:
        return No("a rank is not known")
    if m != 1 or n <= 2 or slope.shape == (1,):
        return [x, slope], {}
    if not isinstance(slope.const, np.ndarray):
        return No("the slope is not constant")
    return [x, slope.const.reshape(-1, *[1] * (n - 2))], {}


def _gemm(node: Node) -> Form:
    return list(node.inputs), _without(node, "broadcast")


def _cast(node: Node) -> Form | None:
    to = node.attrs.get("to")
    if not isinstance(to, str) or to.upper() not in ElementType.__members__:
        return None
    return list(node.inputs), {"to": int(ElementType[to.upper()])}


def _reshape(node: Node) -> Form | None:
    shape = node.attrs.get("shape")
    return None if shape is None or len(node.inputs) != 1 else ([node.inputs[0], _int64(shape)], {})


def _concat(node: Node) -> Form | None:
    return None if "axis" in node.attrs else (list(node.inputs), {"axis": node.attribute("axis")})


def _renamed(node: Node) -> Form:
    return list(node.inputs), dict(node.attrs)


def _dft(node: Node) -> Form:
    inputs: list[Any] = [*node.inputs, None][:2]
    return [*inputs, np.array(node.attribute("axis"), np.int64)], _without(node, "axis")


def _grid_sample(node: Node) -> Form:
    mode = node.attribute("mode")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return list(node.inputs), {**node.attrs, "mode": mode}


def _group_normalization(node: Node) -> Form | No:
    """Scale and bias by group become scale and bias by channel."""
    x, scale, bias = node.inputs
    channels = x.shape[1] if x is not None and x.shape is not None and len(x.shape) > 1 else None
    groups = node.attrs.get("num_groups", 0)
    if not isinstance(channels, int) or not groups or channels % groups:
        return No("the channels are not known")
    given = [v.const if isinstance(v, Value) else None for v in (scale, bias)]
    if not all(isinstance(g, np.ndarray) for g in given):
        return No("scale and bias are not constant")
    return [x, *(np.repeat(np.asarray(g), channels // groups) for g in given)], dict(node.attrs)


def _batch_normalization(node: Node) -> Form | No:
    """The form that does not train."""
    trains = len(node.outputs) > 1 or (node.version < 7 and not node.attrs.get("is_test"))
    if trains or node.attribute("spatial") == 0:
        return No("it trains, or normalizes every feature apart")
    return list(node.inputs), _without(node, "spatial", "is_test", "consumed_inputs")


_REDUCTIONS = ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
_RULES: dict[str, tuple[int, Callable[[Node], Form | No | None]]] = {
    "Squeeze": (13, _axes), "Unsqueeze": (13, _axes), "ReduceSum": (13, _axes),
    **{f"Reduce{kind}": (18, _axes) for kind in _REDUCTIONS},
    "Clip": (11, _clip), "Pad": (11, _pad), "Slice": (10, _slice), "Split": (18, _split), "TopK": (10, _topk),
    "Upsample": (11, _upsample), "Resize": (11, _resize),
    "Softmax": (13, _softmax), "LogSoftmax": (13, _softmax), "Hardmax": (13, _softmax),
    **dict.fromkeys(_ARITHMETIC, (7, _binary)),
    "PRelu": (7, _prelu), "Gemm": (7, _gemm), "Cast": (6, _cast), "Reshape": (5, _reshape),
    "Concat": (4, _concat), **dict.fromkeys(("Scatter", "DynamicSlice"), (11, _renamed)),
    "DFT": (20, _dft), "GridSample": (20, _grid_sample),
    "GroupNormalization": (21, _group_normalization), "BatchNormalization": (14, _batch_normalization),
}
_RENAMED = {"Upsample": "Resize", "Scatter": "ScatterElements", "DynamicSlice": "Slice"}
