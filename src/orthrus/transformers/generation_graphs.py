"""Exported decoders and encoders on their way into a generation operator.

In: onnx graphs by onnxruntime's conventions. Out: the same graphs, checked, or changed in place: weights that
two have in common in neither of them, fixed dimensions, a first step that computes one row of logits.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..quantization.onnx_model import ONNXModel, subgraphs


def kwargs_of(node: NodeProto) -> dict[str, Any]:
    """A node's attributes by name, and its domain where it has one, in the order of their names."""
    found = {a.name: a.g if a.type == AttributeProto.GRAPH else helper.get_attribute_value(a)
             for a in node.attribute}
    if node.domain:
        found["domain"] = node.domain
    return dict(sorted(found.items()))


def shape_of(vi: Any) -> tuple[Any, ...]:
    """The dimensions of a value: names, or numbers where they have none."""
    return tuple(d.dim_param or d.dim_value for d in vi.type.tensor_type.shape.dim)


def verify_gpt2_subgraph(graph: GraphProto, precision: Any) -> None:
    """Raise ValueError for a graph that is no decoder of GPT-2's convention."""
    layers = len(graph.input) - 3
    _verify(graph, precision, ["input_ids", "position_ids", "attention_mask",
                               *(f"past_{i}" for i in range(layers))], 3,
            ["logits", *(f"present_{i}" for i in range(layers))], layers)


def verify_t5_decoder_subgraph(graph: GraphProto, precision: Any) -> None:
    """Raise ValueError for a graph that is no decoder of T5's convention."""
    layers = (len(graph.input) - 2) // 4
    _verify(graph, precision, ["input_ids", "encoder_attention_mask", *_cache("past", "self", layers),
                               *_cache("past", "cross", layers)], 2,
            ["logits", *_cache("present", "self", layers)], layers)


def verify_t5_encoder_decoder_init_subgraph(graph: GraphProto, precision: Any) -> None:
    """Raise ValueError for a graph that is no encoder of T5's convention, with the decoder's first step or
    without."""
    inputs = ["encoder_input_ids", "encoder_attention_mask"]
    if graph.output and "cross" in graph.output[0].name:
        layers = len(graph.output) // 2
        _verify(graph, precision, inputs, 2, _cache("present", "cross", layers), layers)
        return
    layers = (len(graph.output) - 2) // 4
    _verify(graph, precision, [*inputs, "decoder_input_ids"], 3, [
        "logits", "encoder_hidden_states", *_cache("present", "self", layers),
        *_cache("present", "cross", layers)], layers)


def _cache(when: str, kind: str, layers: int) -> list[str]:
    return [f"{when}_{part}_{kind}_{i}" for i in range(layers) for part in ("key", "value")]


def _verify(graph: GraphProto, precision: Any, inputs: list[str], integers: int, outputs: list[str],
            layers: int) -> None:
    number = TensorProto.FLOAT16 if getattr(precision, "value", precision) == "fp16" else TensorProto.FLOAT
    if layers < 1:
        raise ValueError(f"the graph {graph.name} has no inputs for a cache")
    for what, values, names, first in (("input", graph.input, inputs, integers),
                                       ("output", graph.output, outputs, 0)):
        if len(values) != len(names):
            raise ValueError(f"Number of {what}s expected to be {len(names)}. Got {len(values)}")
        for i, (value, name) in enumerate(zip(values, names, strict=True)):
            if value.name != name:
                raise ValueError(f"{what.capitalize()} {i} is expected to be {name}. Got {value.name}")
            kind, expected = value.type.tensor_type.elem_type, TensorProto.INT32 if i < first else number
            if kind != expected:
                raise ValueError(f"{what.capitalize()} {i} is expected to have onnx data type {expected}. "
                                 f"Got {kind}")


def move_initializers(graph: GraphProto, min_elements: int = 1024) -> list[TensorProto]:
    """Take initializers of at least `min_elements` out of a graph, which goes on reading them by name."""
    moved = [tensor for tensor in graph.initializer if _large(tensor, min_elements)]
    for tensor in moved:
        graph.initializer.remove(tensor)
        _declare(graph, tensor)
    return moved


def remove_shared_initializers(graph1: GraphProto, graph2: GraphProto, shared_prefix: str = "shared_",
                               min_elements: int = 1024, signature_cache1: dict[Any, Any] | None = None,
                               signature_cache2: dict[Any, Any] | None = None) -> list[TensorProto]:
    """Take what both graphs have alike out of them; they read it by the second's name after
    `shared_prefix`. `signature_cache1`, `signature_cache2` are taken for the callers' sake. Raises
    RuntimeError where such a name is taken already."""
    of_second: dict[bytes, TensorProto] = {}
    for tensor in graph2.initializer:
        if _large(tensor, min_elements):
            of_second.setdefault(_content(tensor), tensor)
    pairs = [(tensor, twin) for tensor in graph1.initializer if _large(tensor, min_elements)
             and (twin := of_second.get(_content(tensor))) is not None]
    shared = {twin.name: twin for _, twin in pairs}
    for graph in (graph1, graph2):
        taken = {name for node in graph.node for name in (*node.input, *node.output)}
        if clash := taken & {shared_prefix + name for name in shared}:
            raise RuntimeError(f"name is found in graph {graph.name}: {min(clash)}")
    _renamed(graph1, {tensor.name: shared_prefix + twin.name for tensor, twin in pairs})
    _renamed(graph2, {name: shared_prefix + name for name in shared})
    for tensor, _ in pairs:
        graph1.initializer.remove(tensor)
    made = []
    for tensor in shared.values():
        moved = TensorProto()
        moved.CopyFrom(tensor)
        moved.name = shared_prefix + tensor.name
        graph2.initializer.remove(tensor)
        made.append(moved)
        for graph in (graph1, graph2):
            _declare(graph, moved)
    return made


def get_shared_initializers(encoder_model: ModelProto, decoder_model: ModelProto) -> list[TensorProto]:
    """What two models have alike, taken out of both. The names within them get the prefixes e_ and d_, what
    they share s_; inputs and outputs keep theirs."""
    for model, prefix in ((encoder_model, "e_"), (decoder_model, "d_")):
        _prefixed(model.graph, prefix)
    return remove_shared_initializers(decoder_model.graph, encoder_model.graph, "s_")


def _large(tensor: TensorProto, least: int) -> bool:
    return math.prod(tensor.dims) >= least


def _content(tensor: TensorProto) -> bytes:
    array = numpy_helper.to_array(tensor)
    return f"{tensor.data_type} {array.shape} ".encode() + array.tobytes()


def _declare(graph: GraphProto, tensor: TensorProto) -> None:
    graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def _renamed(graph: GraphProto, names: dict[str, str]) -> None:
    """What is called by a key of `names` is called by its value, in this graph and those within."""
    for value in graph.value_info:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in subgraphs(node):
            own = {v.name for v in (*inner.input, *inner.initializer)}
            _renamed(inner, {k: v for k, v in names.items() if k not in own})


def _prefixed(graph: GraphProto, prefix: str) -> None:
    kept = {v.name for v in (*graph.input, *graph.output)}
    made = {name for node in graph.node for name in node.output} | {t.name for t in graph.initializer}
    names = {name: prefix + name for name in made - kept if name}
    _renamed(graph, names)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        node.name = prefix + node.name if node.name else ""


def make_dim_proto_numeric_t5(model: ModelProto, config: Any) -> None:
    """Dimensions whose name is a number of `config` become that number; so do heads and their size in keys
    and values, which exporters leave open."""
    known = {str(n) for n in (1, config.num_heads, config.d_model, config.d_kv)}
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        for dim in dims:
            if dim.dim_param in known:
                dim.dim_value = int(dim.dim_param)
        if value.name.startswith(("past_", "present_")) and len(dims) == 4:
            dims[1].dim_value, dims[3].dim_value = config.num_heads, config.d_kv


def update_input_shapes_for_gpt2_decoder_model(decoder_onnx_path: str, use_external_data_format: bool = True
                                               ) -> bool:
    """Let the decoder in a file, which is written over, take one token at a time."""
    model = onnx.load_model(decoder_onnx_path)
    one_token(model.graph)
    save(model, decoder_onnx_path, use_external_data_format)
    return True


def one_token(graph: GraphProto) -> None:
    """Fix the length of input_ids and position_ids at 1."""
    for value in graph.input:
        if value.name in ("input_ids", "position_ids"):
            value.type.tensor_type.shape.dim[1].dim_value = 1


def generate_gpt2_init_decoder(decoder_onnx_path: str, init_decoder_onnx_path: str,
                               use_external_data_format: bool = True) -> bool:
    """Write the decoder of the first step, which computes logits of the last token alone; False where the
    graph's logits are not of a MatMul."""
    model = onnx.load_model(decoder_onnx_path)
    if not last_logits(model.graph):
        return False
    save(model, init_decoder_onnx_path, use_external_data_format)
    return True


def last_logits(graph: GraphProto) -> bool:
    """Cut what the product of the logits reads down to the last token; False where they are of no MatMul."""
    logits = graph.output[0]
    at = next((i for i, node in enumerate(graph.node) if logits.name in node.output), None)
    if at is None or graph.node[at].op_type != "MatMul":
        return False
    product = graph.node[at]
    names = [f"{logits.name}_last_{part}" for part in ("from", "to", "axis", "token")]
    graph.initializer.extend(numpy_helper.from_array(np.array([n], np.int64), name) for n, name in zip(
        (-1, np.iinfo(np.int64).max, 1), names, strict=False))
    cut = helper.make_node("Slice", [product.input[0], *names[:3]], [names[3]], name=f"{logits.name}_last")
    product.input[0] = names[3]
    graph.node.insert(at, cut)
    if len(logits.type.tensor_type.shape.dim) == 3:
        logits.type.tensor_type.shape.dim[1].dim_value = 1
    return True


def save(model: ModelProto, path: str | Path, external: bool) -> None:
    """Write a model, with its weights beside it where `external` says so."""
    ONNXModel(model).save_model_to_file(path, external)


def infer_shapes(model: ModelProto) -> ModelProto:
    """A copy with what is known of shapes."""
    from ..tools.symbolic_shape_infer import SymbolicShapeInference

    made: ModelProto = SymbolicShapeInference.infer_shapes(model, auto_merge=True)
    return made
