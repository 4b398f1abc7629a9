"""A graph as the structures that a library reads.

In: a graph or a part. Out: `ShownGraph`, whose `struct` is valid for as long as it is referred to. Nodes and
values have the numbers of their places in `nodes` and `values`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ctypes import Array, c_char_p, c_float, c_int32, c_int64, c_size_t, pointer, sizeof
from typing import Any

import numpy as np

from ...ir import ElementType, Node, TensorType, Value, element_of, in_memory
from . import abi

_FLOAT, _INT, _STRING, _TENSOR, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 6, 7, 8
"""ONNX's numbers for kinds of attributes."""


def encoded(text: str) -> bytes:
    """A text of a model as its bytes in the file."""
    return text.encode("utf-8", "surrogateescape")


class ShownGraph:
    """`nodes` with all they read and write. `free`: those that may be taken. `limit`: the bytes up to which
    the elements of constants are shown; `constants` are the arrays of those that are."""

    def __init__(self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value],
                 free: Collection[Node], limit: int | None = None) -> None:
        self.nodes, self.limit = list(nodes), limit
        self.constants: list[np.ndarray] = []
        read = (v for node in nodes for v in (*node.inputs, *node.outputs))
        self.values = [v for v in dict.fromkeys((*inputs, *outputs, *read)) if v is not None]
        self._numbers = {value: i for i, value in enumerate(self.values)}
        rows = abi.table(abi.Node, [self._node(node, node in free) for node in nodes])
        values = abi.table(abi.Value, [self._value(value) for value in self.values])
        self.struct = abi.Graph(
            sizeof(abi.Graph), rows, len(self.nodes), values, len(self.values), self._places(inputs),
            len(inputs), self._places(outputs), len(outputs))

    def _node(self, node: Node, free: bool) -> abi.Node:
        attributes = [self._attribute(name, value) for name, value in sorted(_attributes(node).items())]
        return abi.Node(
            encoded(node.op_type), encoded(node.domain), encoded(node.name), encoded(node.label),
            node.version, free, self._places(node.inputs), len(node.inputs), self._places(node.outputs),
            len(node.outputs), abi.table(abi.Attribute, attributes), len(attributes))

    def _places(self, values: Sequence[Value | None]) -> Array[c_int32] | None:
        return abi.table(c_int32, [-1 if v is None else self._numbers[v] for v in values])

    def _value(self, value: Value) -> abi.Value:
        made = abi.Value(encoded(value.name), 0, -1)
        if isinstance(value.type, TensorType):
            made.element_type = value.elem or 0
            self._shape(made, value.shape)
        if value.const is not None:
            self._constant(made, value.const)
        return made

    def _constant(self, made: abi.Value, array: Any) -> None:
        """Let `made` show an array's type, shape and, within the limit, elements."""
        made.constant = 1
        if not isinstance(array, np.ndarray):
            return
        made.element_type = element_of(array.dtype)
        self._shape(made, array.shape)
        if made.element_type == ElementType.STRING:
            return
        made.bytes = array.nbytes
        if self.limit is None or array.nbytes <= self.limit:
            held = np.ascontiguousarray(in_memory(array))
            self.constants.append(held)
            made.data = held.ctypes.data

    def _shape(self, made: abi.Value, shape: Any) -> None:
        if shape is None:
            return
        made.rank = len(shape)
        made.dims = abi.table(c_int64, [d if isinstance(d, int) else -1 for d in shape])
        made.dim_names = abi.table(c_char_p, [encoded(d) if isinstance(d, str) else None for d in shape])

    def _attribute(self, name: str, value: Any) -> abi.Attribute:
        made = abi.Attribute(encoded(name), 0, 0)
        if isinstance(value, np.ndarray):
            tensor = abi.Value(b"", 0, -1)
            self._constant(tensor, value)
            made.type, made.count, made.tensor = _TENSOR, 1, pointer(tensor)
            return made
        items = value if isinstance(value, list | tuple) else [value]
        several = items is value
        if all(isinstance(item, int) for item in items):
            made.type, made.ints = _INTS if several else _INT, abi.table(c_int64, [int(i) for i in items])
        elif all(isinstance(item, int | float) for item in items):
            made.type, made.floats = _FLOATS if several else _FLOAT, abi.table(c_float, list(items))
        elif all(isinstance(item, str | bytes) for item in items):
            texts = [encoded(item) if isinstance(item, str) else item for item in items]
            made.type, made.strings = _STRINGS if several else _STRING, abi.table(c_char_p, texts)
            made.string_bytes = abi.table(c_size_t, [len(text) for text in texts])
        else:
            return made
        made.count = len(items)
        return made


def _attributes(node: Node) -> dict[str, Any]:
    """Those given, and the defaults that there are."""
    defaults = {} if node.op is None else node.op.defaults
    return {name: value for name, value in {**defaults, **node.attrs}.items() if value is not None}
