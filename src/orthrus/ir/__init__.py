"""The graph and its types; knows no protobuf and runs nothing."""

from typing import TYPE_CHECKING

from ..later import later

if TYPE_CHECKING:
    from .graph import Graph, ModelInfo, No, Node, Value, verify
    from .half import HALF
    from .lazy_array import LazyArray, in_memory
    from .shape_guess import likely_shapes
    from .types import (
        Dim,
        ElementType,
        MapType,
        OptionalType,
        SequenceType,
        SparseArray,
        SparseTensorType,
        TensorType,
        Type,
        element_of,
        parse_type,
        shape_text,
        type_of,
    )

__all__ = ["HALF", "Dim", "ElementType", "Graph", "LazyArray", "MapType", "ModelInfo", "No", "Node",
           "OptionalType", "SequenceType", "SparseArray", "SparseTensorType", "TensorType", "Type", "Value",
           "element_of", "in_memory", "likely_shapes", "parse_type", "shape_text", "type_of", "verify"]

__getattr__ = later(__name__, {
    "graph": ("Graph", "ModelInfo", "No", "Node", "Value", "verify"),
    "half": ("HALF",),
    "lazy_array": ("LazyArray", "in_memory"),
    "shape_guess": ("likely_shapes",),
    "types": ("Dim", "ElementType", "MapType", "OptionalType", "SequenceType", "SparseArray",
              "SparseTensorType", "TensorType", "Type", "element_of", "parse_type", "shape_text", "type_of"),
})
