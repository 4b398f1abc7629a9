"""Shapes of a model's values for given sizes, under the names of
onnxruntime.transformers.shape_infer_helper.

In: a ModelProto, and sizes of its named dimensions. Out: the dimensions of each value: numbers, names of
those not given, expressions over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto, ValueInfoProto

from ...tools.symbolic_shape_infer import Incomplete, infer_shapes

__all__ = ["SymbolicShapeInferenceHelper"]


class SymbolicShapeInferenceHelper:
    """`known_vi_`: the types inferred, by value. The other parameters are those of
    `tools.symbolic_shape_infer.infer_shapes`."""

    def __init__(self, model: ModelProto, verbose: int = 0, int_max: int = 2 ** 31 - 1,
                 auto_merge: bool = True, guess_output_rank: bool = False) -> None:
        self.model_ = model
        self.known_vi_: dict[str, ValueInfoProto] = {}
        self.all_shapes_inferred_ = False
        self._options: dict[str, Any] = {
            "int_max": int_max, "auto_merge": auto_merge, "guess_output_rank": guess_output_rank}
        self._sizes: dict[str, int] | None = None

    def infer(self, dynamic_axis_mapping: Mapping[str, int], max_runs: int = 200) -> bool:
        """Infer with these sizes; whether every value has a type now. One call suffices: `max_runs` changes
        nothing."""
        if self._sizes == dict(dynamic_axis_mapping):
            return self.all_shapes_inferred_
        self._sizes = dict(dynamic_axis_mapping)
        sized = _sized(self.model_, self._sizes)
        try:
            done, self.all_shapes_inferred_ = infer_shapes(sized, **self._options), True
        except Incomplete as error:
            done, self.all_shapes_inferred_ = error.model, False
        graph = done.graph
        self.known_vi_ = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
        return self.all_shapes_inferred_

    def get_edge_shape(self, edge: str) -> list[int | str] | None:
        """A value's dimensions; None where nothing is known of it."""
        known = self.known_vi_.get(edge)
        if known is not None and known.type.tensor_type.HasField("shape"):
            return [d.dim_value if d.HasField("dim_value") else d.dim_param
                    for d in known.type.tensor_type.shape.dim]
        return next((list(t.dims) for t in self.model_.graph.initializer if t.name == edge), None)

    def compare_shape(self, edge: str, edge_other: str) -> bool:
        """Whether two values surely have the same shape. Raises: KeyError where one is not known."""
        shapes = [self.get_edge_shape(name) for name in (edge, edge_other)]
        for name, shape in zip((edge, edge_other), shapes, strict=True):
            if shape is None:
                raise KeyError(name)
        return shapes[0] == shapes[1] and "" not in (shapes[0] or ())


def _sized(model: ModelProto, sizes: Mapping[str, int]) -> ModelProto:
    """The model with sizes in the place of names, and no types between inputs and outputs."""
    made = ModelProto()
    made.CopyFrom(model)
    made.graph.ClearField("value_info")
    for value in (*made.graph.input, *made.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return made
