"""Small models for kernels of GPUs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import orthrus
from orthrus import knobs

OPSETS = {"": 22, "com.microsoft": 1}


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    """A node, named `Softmax` or `com.microsoft::Gelu`; its values' names, `-` for none."""
    domain, _, kind = op.rpartition("::")
    given, made = ([name.replace("-", "") for name in names.split()] for names in (inputs, outputs))
    return helper.make_node(kind, given, made, domain=domain, **attrs)


def model(nodes: Sequence[Any], inputs: Mapping[str, Sequence[int | str | None]], outputs: Sequence[str],
          dtype: str = "float32", opset: int = 22, **constants: np.ndarray) -> bytes:
    """`inputs`: shapes, all of one type; the outputs' types are inferred."""
    kind = helper.np_dtype_to_tensor_dtype(numpy_type(dtype))
    kinds = [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    given = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid(domain, version) for domain, version in {**OPSETS, "": opset}.items()]
    graph = helper.make_graph(list(nodes), "g", kinds, made, given)
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return data


def by_turns(*what: object) -> tuple[str]:
    """One of AMD's targets, which depends on what is tested: a table of tests has both."""
    return (("gfx1100", "gfx942")[zlib.crc32(repr(what).encode()) % 2],)


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The type of that name, bfloat16 too."""
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def of_arrays(op: str, inputs: Sequence[np.ndarray | None] | Mapping[str, np.ndarray | None],
              outputs: int = 1, constants: Sequence[str] = (), opset: int = 24, **attrs: Any
              ) -> tuple[bytes, dict[str, np.ndarray]]:
    """A model of one node over arrays, and its feeds. What is None is left out; `constants` are named."""
    given = dict(inputs) if isinstance(inputs, Mapping) else {f"x{i}": x for i, x in enumerate(inputs)}
    names = " ".join("-" if x is None else name for name, x in given.items())
    made = [node(op, names, " ".join(f"y{i}" for i in range(outputs)), **attrs)]
    there = {name: x for name, x in given.items() if x is not None}
    feeds = {name: x for name, x in there.items() if name not in constants}
    kinds = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
             for name, x in feeds.items()]
    results = [helper.make_tensor_value_info(f"y{i}", TensorProto.UNDEFINED, None) for i in range(outputs)]
    held = [numpy_helper.from_array(x, name) for name, x in there.items() if name in constants]
    graph = helper.make_graph(made, "g", kinds, results, held)
    opsets = [helper.make_opsetid(domain, version) for domain, version in {**OPSETS, "": opset}.items()]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return data, feeds


def defined(made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the operators' definitions give."""
    options = orthrus.SessionOptions()
    options.graph_optimization_level = orthrus.GraphOptimizationLevel.ORT_DISABLE_ALL
    with knobs.setting(CODEGEN=0):
        session = orthrus.InferenceSession(made.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))
