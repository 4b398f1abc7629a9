"""Inputs for a model by the shapes it declares: a graph's inputs and sizes for its open dimensions come in,
a feed goes out.

A dimension that is open and has no size given is refused by name, so that no shape is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ...errors import InvalidArgument

Fill = Callable[[tuple[int, ...], np.dtype], np.ndarray]


def graph_of(model: Any) -> Any:
    """The graph of a ModelProto, or of an `OnnxModel` that holds one."""
    return getattr(model, "model", model).graph


def open_inputs(model: Any) -> list[Any]:
    """The inputs that a run must be given: those with a value of their own are left out."""
    graph = graph_of(model)
    given = {tensor.name for tensor in graph.initializer}
    return [each for each in graph.input if each.name not in given]


def dtype_of(value: Any) -> np.dtype:
    """numpy's type of a tensor's elements. Raises InvalidArgument for an input that is no tensor."""
    from onnx import helper

    if not value.type.HasField("tensor_type"):
        raise InvalidArgument(f"Input {value.name} is no tensor", node=value.name,
                              found=value.type.WhichOneof("value") or "no type", expected="a tensor",
                              cure="feed this model by session.run")
    return np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def declared(value: Any) -> list[int | str]:
    """The shape an input declares: a number, a name, or "" for each dimension."""
    return [dim.dim_param if not dim.HasField("dim_value") else dim.dim_value
            for dim in value.type.tensor_type.shape.dim]


def sized(value: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The declared shape with `sizes` for names. Raises InvalidArgument for a name without a size."""
    shape = []
    for dim in declared(value):
        if isinstance(dim, str) and dim not in sizes:
            raise InvalidArgument(f"symbol is not supported: {dim or '?'}", node=value.name,
                                  found=declared(value), expected=f"only {', '.join(sizes) or 'numbers'}",
                                  cure="rename the dimension, or fix it by make_dynamic_shape_fixed")
        shape.append(dim if isinstance(dim, int) else sizes[dim])
    return tuple(shape)


def ones(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What any input may hold: a mask that hides nothing, a token of every vocabulary."""
    return np.ones(shape, dtype)


def feed(values: Iterable[Any], sizes: Mapping[str, int], fills: Mapping[str, Fill] | None = None
         ) -> dict[str, np.ndarray]:
    """An array for each input: of ones, or as `fills` makes the inputs whose names contain a key of it."""
    made = {}
    for value in values:
        fill = next((each for part, each in (fills or {}).items() if part in value.name), ones)
        made[value.name] = np.asarray(fill(sized(value, sizes), dtype_of(value)))
    return made
