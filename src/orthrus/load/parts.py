"""The parts that an operator of the optimizer's own stands for, as a function of ONNX's operators.

In: a node of the domain `OWN`. Out: the nodes of the function that a saved model calls in its place. The
optimizer makes the same node of them again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Node, Value, element_of
from .tensors import pack


class _Body:
    """Adds nodes to a function and gives the names of their results."""

    def __init__(self, function: Any) -> None:
        self.function, self.count = function, 0

    def __call__(self, kind: str, *inputs: str, made: str = "", **attrs: Any) -> str:
        from onnx import helper

        self.count += 1
        made = made or f"t{self.count}"
        self.function.node.append(helper.make_node(kind, inputs, [made], **attrs))
        return made

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        import onnx

        array = np.array(value, dtype)
        element = element_of(array.dtype)
        return self("Constant", value=onnx.TensorProto(data_type=int(element), dims=array.shape,
                                                       raw_data=pack(array, element)))


def write_softmax_attention(function: Any, node: Node) -> None:
    """Fill `function` with softmax(where(keep, q @ k' * scale, 0) + bias) @ v; its inputs are those there
    are, `i0` and on, its outputs `o0` and on."""
    at, put, has = node.attributes, _Body(function), [v is not None for v in node.inputs] + [False] * 7
    given = [value for value in node.inputs[:3] if value is not None]
    flat = given[0].shape is not None and len(given[0].shape) == 3
    counts: list[Any] = [at[name] if flat else _size(value, 1) for name, value in zip(
        ("q_num_heads", "kv_num_heads", "kv_num_heads"), given, strict=True)]
    heads, shared = counts[:2]
    sizes = [_part(_size(value, -1), n if flat else 1) for value, n in zip(given, counts, strict=True)]
    names = ["i0", "i1", "i2"]
    if flat:
        apart = [put("Reshape", name, put.constant([0, 0, n, size or -1]))
                 for name, n, size in zip(names, counts, sizes, strict=True)]
        names = [put("Transpose", name, perm=[0, 2, 1, 3]) for name in apart]
    for i in (1, 2):
        shown = f"o{i}" if len(node.outputs) > i and node.outputs[i] is not None else ""
        if has[i + 3]:
            names[i] = put("Concat", f"i{i + 3}", names[i], made=shown, axis=2)
        elif shown:
            put("Identity", names[i], made=shown)
        if heads != shared:
            names[i] = _repeated(put, names[i], heads, shared, sizes[i])
    assert given[0].elem is not None
    kind, precision = given[0].elem.numpy, at["softmax_precision"]
    x = put("MatMul", names[0], put("Transpose", names[1], perm=[0, 1, 3, 2]))
    x = put("Mul", x, put.constant(at["scale"], kind))
    if has[6]:
        x = put("Where", "i6", x, put.constant(0 if has[3] else -np.inf, kind))
    if has[3]:
        x = put("Add", x, "i3")
    if precision is not None:
        x = put("Cast", x, to=precision)
    x = put("Softmax", x, axis=-1)
    if at["guarded"]:
        x = put("Where", put("IsNaN", x), put.constant(0, kind if precision is None else np.float32), x)
    if precision is not None:
        x = put("Cast", x, to=int(given[0].elem))
    x = put("MatMul", x, names[2], made="" if flat else "o0")
    if flat:
        width = [0, 0, heads * sizes[2] if sizes[2] else -1]
        put("Reshape", put("Transpose", x, perm=[0, 2, 1, 3]), put.constant(width), made="o0")


def _size(value: Value, axis: int) -> int | None:
    size = value.shape[axis] if value.shape is not None else None
    return size if isinstance(size, int) else None


def _part(width: int | None, count: int) -> int | None:
    return None if width is None else width // count


def _repeated(put: _Body, name: str, heads: int, shared: int, size: int | None) -> str:
    """Keys or values, each head as often as query heads share it."""
    times = heads // shared
    if size is None:
        return put("Gather", name, put.constant([i // times for i in range(heads)]), axis=1)
    wide = put("Expand", put("Unsqueeze", name, put.constant([2])), put.constant([1, 1, times, 1, 1]))
    return put("Reshape", wide, put.constant([0, heads, -1, size]))


WRITERS = {"SoftmaxAttention": write_softmax_attention}
