"""Models of one operator on images, with geometries and operands drawn at random, for tests of kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

TYPES: dict[str, tuple[Any, int]] = {
    "float32": (np.float32, TensorProto.FLOAT), "float16": (np.float16, TensorProto.FLOAT16),
    "float64": (np.float64, TensorProto.DOUBLE), "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16),
    "int8": (np.int8, TensorProto.INT8), "uint8": (np.uint8, TensorProto.UINT8),
    "int64": (np.int64, TensorProto.INT64), "int32": (np.int32, TensorProto.INT32)}


@dataclass
class Images:
    """A model while it is put together. `rng` chooses; `said`: what was chosen."""

    seed: int
    dtype: str = "float32"
    nodes: list[Any] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    held: dict[str, np.ndarray] = field(default_factory=dict)
    said: str = ""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def chosen(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def numbers(self, shape: Any) -> np.ndarray:
        """Multiples of 1/8 that are exact in each type."""
        made = self.rng.integers(-8, 9, shape)
        kind = TYPES[self.dtype][0]
        return made.astype(kind) if "int" in self.dtype else (made / 8).astype(kind)

    def given(self, array: np.ndarray) -> str:
        """An input of the model."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.held)}"
        self.held[name] = array
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attrs))
        self.said += f"{op}({', '.join(str(self.shape_of(i)) for i in inputs)}, {attrs}) "
        return names[0] if outputs == 1 else names

    def shape_of(self, name: str) -> Any:
        found = self.feeds.get(name, self.held.get(name))
        return name if found is None else found.shape

    def model(self, *outputs: str, opset: int = 21) -> ModelProto:
        """The model with these results."""
        def info(name: str, array: np.ndarray) -> Any:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor_value_info(name, kind, array.shape)
        made = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", [info(*item) for item in self.feeds.items()], made,
                                  [numpy_helper.from_array(array, name) for name, array in self.held.items()])
        return helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])
