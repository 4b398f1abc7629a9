"""Nodes in the version of the model's own opset.

In: a graph whose operators are in their newest form. Out: the same graph, every node that has the model's
version of its operator in it. What has none stays: the writer raises the opset for it, and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ...ir import Graph, Node
from ...load.write import same_meaning
from ...ops import find
from ...ops.schema import Schema, lookup
from ...optimize.pattern import rule
from ...optimize.rewrite import Work
from ...optimize.rules.facts import array, ints
from .asked import Asked

log = logging.getLogger("orthrus")
Form = tuple[list[Any], dict[str, Any]]
"""Inputs and attributes of the older form."""


def write_model_versions(work: Work) -> int:
    """Give nodes the version of the model's opset, and the inputs and attributes it has."""
    count = 0
    assert isinstance(work.settings, Asked)
    opset = work.settings.opset
    for node in work.graph.nodes:
        if node.domain or same_meaning(node, opset, released=False):
            continue
        schema = lookup("", node.op_type, opset)
        rule = _OLDER.get(node.op_type)
        form = rule(node, schema.version) if rule is not None and isinstance(schema, Schema) else None
        if form is None or not isinstance(schema, Schema):
            log.warning("%s needs a later opset than the model's, which is %d", node, opset)
            continue
        inputs, attrs = form
        for i in range(len(node.inputs)):
            Graph.set_input(node, i, None)
        node.inputs = [None] * len(inputs)
        for i, value in enumerate(inputs):
            Graph.set_input(node, i, value)
        node.attrs, node.version = attrs, schema.version
        node.op = find("", node.op_type, schema.version)
        count += 1
    return count


def _axes(node: Node, version: int) -> Form | None:
    """`axes` from an input to an attribute."""
    given = node.inputs[1] if len(node.inputs) > 1 else None
    axes = ints(given)
    if (given is not None and axes is None) or node.attrs.get("noop_with_empty_axes"):
        return None
    return node.inputs[:1], {**node.attrs, **({} if axes is None else {"axes": axes})}


def _split(node: Node, version: int) -> Form | None:
    attrs = {k: v for k, v in node.attrs.items() if k != "num_outputs"}
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if version >= 13:
        return list(node.inputs), attrs
    sizes = ints(given)
    if given is not None and sizes is None:
        return None
    return node.inputs[:1], {**attrs, **({} if sizes is None else {"split": sizes})}


def _clip(node: Node, version: int) -> Form | None:
    bounds: dict[str, Any] = {}
    for name, value in zip(("min", "max"), node.inputs[1:], strict=False):
        if value is not None:
            given = array(value)
            if given is None or given.size != 1:
                return None
            bounds[name] = float(given.reshape(()))
    return node.inputs[:1], bounds


def _slice(node: Node, version: int) -> Form | None:
    told = [ints(v) for v in node.inputs[1:]]
    if None in told[:2] or (len(told) > 3 and told[3] is not None and any(s != 1 for s in told[3])):
        return None
    axes = {"axes": told[2]} if len(told) > 2 and told[2] is not None else {}
    return node.inputs[:1], {"starts": told[0], "ends": told[1], **axes}


def _pad(node: Node, version: int) -> Form | None:
    pads = ints(node.inputs[1])
    fill = array(node.inputs[2]) if len(node.inputs) > 2 else None
    if pads is None or (len(node.inputs) > 2 and node.inputs[2] is not None and fill is None):
        return None
    return node.inputs[:1], {**node.attrs, "pads": pads, "value": 0.0 if fill is None else float(fill)}


def _softmax(node: Node, version: int) -> Form | None:
    """Along the last axis the older form, which flattens, gives the same."""
    n = None if node.inputs[0] is None or node.inputs[0].shape is None else len(node.inputs[0].shape)
    axis = node.attribute("axis")
    if axis != -1 and (n is None or axis != n - 1):
        return None
    return (node.inputs[:1], {"axis": n - 1}) if n is not None else (node.inputs[:1], {"axis": -1})


@rule(lambda op, x: op.Shape(x))
def expand_shape_part(op, x, root):
    """A part of a shape, where the model's opset gives it whole only"""
    if op.settings.opset >= 15 or not {"start", "end"} & set(root.attrs):
        return None
    start, end = root.attribute("start"), root.attribute("end")
    return op.Slice(op.Shape(x), op.ints([start]), op.ints([1 << 31 if end is None else end]), op.ints([0]))


_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
_OLDER: dict[str, Callable[[Node, int], Form | None]] = {
    **dict.fromkeys(("Squeeze", "Unsqueeze", *(f"Reduce{kind}" for kind in _REDUCTIONS)), _axes),
    "Split": _split, "Clip": _clip, "Slice": _slice, "Pad": _pad,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
}
