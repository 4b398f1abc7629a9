"""Categories that a model knows: texts and numbers that its inputs may hold.

In: a model. Out: for an input, or a column of one, the categories and keys of the operators that look its
elements up, as far as they reach those unchanged. An encoder that knows no other element may refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir import Graph, Node, Value

Known = Mapping[str, Mapping[int | None, Sequence[Any]]]
"""By an input's name and the column on its last axis, None for all columns."""

_ATTRIBUTES = ("cats_strings", "cats_int64s", "keys_strings", "keys_int64s", "keys_floats", "keys_tensor",
               "pool_strings", "pool_int64s")
_UNCHANGED = frozenset(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"))


def known_values(source: Any) -> Known:
    """Those of a model as `load` takes it; none where only its session can read it."""
    from ...errors import ALL
    from ...load import load

    try:
        graph = load(source)
    except ALL:
        return {}
    try:
        return _known(graph)
    finally:
        graph.release()


def drawn(known: Mapping[int | None, Sequence[Any]], values: np.ndarray, rng: np.random.Generator
          ) -> np.ndarray:
    """`values` with known ones in all columns of which some are known."""
    columns = values.shape[-1] if values.ndim else 1
    made = values.reshape(-1, columns) if values.size else values
    for column in range(columns if values.size else 0):
        if choices := known.get(column, known.get(None)):
            picked = rng.integers(len(choices), size=len(made))
            made[:, column] = [choices[i] for i in picked]
    return made.reshape(values.shape)


def _known(graph: Graph) -> Known:
    found: dict[str, dict[int | None, Sequence[Any]]] = {}
    for node in graph.nodes:
        found_keys = next((node.attrs[name] for name in _ATTRIBUTES if node.attrs.get(name) is not None), ())
        keys = np.asarray(found_keys, object).ravel().tolist()
        if keys and node.inputs and node.inputs[0] is not None:
            for name, column in _origins(node.inputs[0], None):
                found.setdefault(name, {}).setdefault(column, keys)
    return found


def _origins(value: Value, column: int | None) -> Iterator[tuple[str, int | None]]:
    """The inputs, and columns of them, whose elements `column` of `value` holds."""
    node = value.node
    if node is None:
        if value.const is None:
            yield value.name, column
        return
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type in _UNCHANGED:
        yield from _origins(inputs[0], column)
    elif (chosen := _chosen(node, inputs)) is not None:
        for index in chosen if column is None else chosen[column:column + 1]:
            yield from _origins(inputs[0], index)
    elif node.op_type == "Concat":
        for each in inputs:
            width = each.shape[-1] if each.shape else None
            if column is None or not isinstance(width, int):
                yield from _origins(each, None)
            elif column < width:
                yield from _origins(each, column if width > 1 else None)
                return
            else:
                column -= width


def _chosen(node: Node, inputs: Sequence[Value]) -> list[int] | None:
    """The columns that a node takes of its first input; None where it does something else."""
    shape = inputs[0].shape if inputs else None
    last = node.op_type == "ArrayFeatureExtractor" or (
        node.op_type == "Gather" and shape is not None and node.attribute("axis") in (-1, len(shape) - 1))
    if not last or len(inputs) < 2 or not isinstance(inputs[1].const, np.ndarray):
        return None
    return [int(i) for i in inputs[1].const.ravel()]
