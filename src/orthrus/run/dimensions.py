"""The names of dimensions: given sizes before a model is optimized, and what to do where feeds contradict
them.

A name that several places of the inputs have is taken to mean one size, which is what lets shapes fold.
Exporters also write one name for whatever they do not know; feeds show it, and then every place gets a name
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..ir import Dim, Graph, TensorType, Value
from ..kernels import DeviceArray
from ..ops.infer import infer_graph

Places = list[tuple[str, int, str]]


def shared_names(inputs: Sequence[Value]) -> Places:
    """(input, axis, name) for every named dimension whose name another place has too."""
    found = [(v.name, axis, d) for v in inputs if isinstance(v.type, TensorType)
             for axis, d in enumerate(v.type.shape or ()) if isinstance(d, str)]
    names = [d for _, _, d in found]
    return [place for place in found if names.count(place[2]) > 1]


def agree(shared: Places, feeds: dict[str, Any]) -> bool:
    """Whether dimensions of one name are fed with one size."""
    sizes: dict[str, int] = {}
    for name, axis, dimension in shared:
        shape = _shape(feeds.get(name, ()))
        if axis < len(shape) and sizes.setdefault(dimension, shape[axis]) != shape[axis]:
            return False
    return True


def _shape(given: Any) -> tuple[int, ...]:
    """Of what is fed, which may lie on a device."""
    if type(given) is np.ndarray or type(given) is DeviceArray:
        return given.shape
    if hasattr(given, "__device_array__"):
        there = given.__device_array__()
        return np.shape(given) if there is None else there.shape
    shape = getattr(given, "shape", None)
    return np.shape(given) if shape is None or callable(shape) else tuple(shape)


def name_apart(graph: Graph) -> None:
    """Give every place of a shared name a name of its own, and infer types anew."""
    shared = shared_names(graph.inputs)
    own: dict[tuple[str, int], Dim] = {(name, axis): f"{d} of {name}[{axis}]" for name, axis, d in shared}
    for value in graph.inputs:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            shape = tuple(own.get((value.name, axis), d) for axis, d in enumerate(value.type.shape))
            value.type = TensorType(value.type.elem, shape)
    _infer_anew(graph, dict.fromkeys({d for _, _, d in shared}))


def fix_dimensions(graph: Graph, names: Mapping[str, int | str], denotations: dict[str, int]) -> None:
    """Give dimensions their sizes, or other names: by name, and on inputs by what they stand for, written in
    small letters or capitals; of two spellings of one denotation the first counts. Raises InvalidArgument
    for a denotation on a dimension that has another size, or that is given another one by its name."""
    sizes: dict[str, Dim] = dict(names)
    meant = {denotation.lower(): size for denotation, size in reversed(denotations.items())}
    for value in graph.inputs:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            continue
        shape = list(value.type.shape)
        for axis, denotation in graph.info.denotations.get(value.name, {}).items():
            before, size = shape[axis], meant.get(denotation.lower())
            if size is None:
                continue
            stated = names.get(before, size) if isinstance(before, str) else before
            if isinstance(stated, int) and stated != size:
                kind = "Invalid" if isinstance(before, int) else "Conflicting"
                raise InvalidArgument(
                    f"{kind} free dimension overrides: dimension {axis} of input {value.name} stands for "
                    f"{denotation}, which is given the size {size}", node=f"input {value.name}",
                    found=f"{before} = {stated}" if isinstance(before, str) else str(stated),
                    expected=str(size), cure="give one size to one dimension")
            shape[axis] = size
            if isinstance(before, str):
                sizes[before] = size
        value.type = TensorType(value.type.elem, tuple(shape))
        _replaced(value, sizes.get)
    _infer_anew(graph, sizes)


def _infer_anew(graph: Graph, sizes: dict[str, Dim]) -> None:
    """Replace names by `sizes` in the types of what nodes make, and let types flow again."""
    for node in graph.walk():
        for out in node.outputs:
            if out is not None:
                _replaced(out, sizes.get)
                out.content = None
    infer_graph(graph)


def _replaced(value: Value, size: Callable[[str, Dim], Dim]) -> None:
    if isinstance(value.type, TensorType) and value.type.shape is not None:
        shape = tuple(size(d, d) if isinstance(d, str) else d for d in value.type.shape)
        value.type = TensorType(value.type.elem, shape)
