"""A model without its weights, and the weights, under the names of onnxruntime.transformers.onnx_utils."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto, TensorProto, external_data_helper, numpy_helper

from ...quantization.onnx_model import all_graphs


def extract_raw_data_from_model(model: ModelProto) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The names and the values, as OrtValues, of the main graph's initializers that hold raw bytes, which are
    taken out of the model: their tensors say that a session is given them, as
    `SessionOptions.add_external_initializers` does."""
    from ... import OrtValue

    names, values = [], []
    for tensor in model.graph.initializer:
        if tensor.HasField("raw_data"):
            names.append(tensor.name)
            values.append(OrtValue.ortvalue_from_numpy(numpy_helper.to_array(tensor)))
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key, entry.value = "location", "weights"
    return tuple(names), tuple(values)


def has_external_data(model: ModelProto) -> bool:
    """Whether a tensor's data lie outside the model."""
    return any(external_data_helper.uses_external_data(tensor)
               for graph in all_graphs(model.graph) for tensor in graph.initializer)
