"""A float model made ready for quantization for QNN.

In: a model. Out: a file with a model that computes the same, where there was anything to do: operators that
QNN has in the place of their parts, inputs and outputs that it takes without moving them, and a name for
every node, as overrides go by names.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx

from ....load import load, to_model_proto
from ....optimize import optimize
from ....tools.onnx_model_utils import fix_output_shapes, make_input_shape_fixed
from ....tools.remove_initializer_from_input import remove_initializer_from_input
from ...fusions import FusionGelu, FusionLayerNormalization
from ...onnx_model import ONNXModel, all_graphs
from ...quant_utils import get_opset_version, save_and_reload_model_with_shape_infer
from ...refused import InvalidValue
from .fusion_lpnorm import FusionLpNormalization
from .fusion_spacetodepth import FusionSpaceToDepth

_PREPARED = ("onnx.infer", "onnxruntime.tools.qnn.preprocess")
_WITH_LAYER_NORMALIZATION = 17
_TRANSPOSE, _UNNAMED = "Transpose_channel_", "qnn_preproc_node_"
_log = logging.getLogger(__name__)


def qnn_preprocess_model(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    exclude_initializer_from_input: bool = False,
    fuse_layernorm: bool = False,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    external_data_convert_attribute: bool = False,
    inputs_to_make_channel_last: list[str] | None = None,
    outputs_to_make_channel_last: list[str] | None = None,
    dynamic_input_shapes: list[tuple[str, str]] | None = None,
) -> bool:
    """Write `model_output`, and answer True, where the model had to change; else write nothing.

    What is done: Gelu, LpNormalization and SpaceToDepth made whole, and, if `fuse_layernorm`,
    LayerNormalization too; the inputs and outputs named to be channel-last, (N, C, ...) to (N, ..., C), by a
    Transpose behind or before them; shapes such as ("x", "1,3,224,224") given to inputs; initializers that
    are inputs too made constants; names given to nodes that have none. The parameters about external data
    are those of `onnx.save_model`.

    Raises: InvalidValue for a name or a shape that does not fit the model, and the errors of loading.
    """
    given = model_input if isinstance(model_input, onnx.ModelProto) else onnx.load_model(model_input)
    held = ONNXModel(save_and_reload_optimize_model(given, shape_infer=True))
    model = held.model
    changed = _with_fixed_shapes(model, dynamic_input_shapes or ())
    if exclude_initializer_from_input:
        changed |= remove_initializer_from_input(model)
    for fusion in (FusionGelu, FusionLpNormalization, FusionSpaceToDepth):
        changed |= fusion(held).apply()
    if fuse_layernorm:
        changed |= _with_layer_normalization(held)
    if inputs_to_make_channel_last or outputs_to_make_channel_last:
        first = held.get_largest_node_name_suffix(_TRANSPOSE) + 1
        update_io_to_channel_last(model, inputs_to_make_channel_last, outputs_to_make_channel_last,
                                  _TRANSPOSE, first)
        changed = True
    changed |= _with_names(held)
    if changed:
        held.topological_sort()
        _save(model, Path(model_output), save_as_external_data=save_as_external_data,
              all_tensors_to_one_file=all_tensors_to_one_file, location=external_data_location,
              size_threshold=external_data_size_threshold, convert_attribute=external_data_convert_attribute)
    return changed


def save_and_reload_optimize_model(model: onnx.ModelProto, shape_infer: bool) -> onnx.ModelProto:
    """A copy of the model after the basic level of optimization, each operator in the form it has in the
    model's operator set; with the shapes of all values if `shape_infer`."""
    graph = load(save_and_reload_model_with_shape_infer(model) if shape_infer else model)
    optimize(graph, level=1, skip=("upgrade_old_forms",))
    made: onnx.ModelProto = to_model_proto(graph)
    notes = {_PREPARED[0]: _PREPARED[1], **{entry.key: entry.value for entry in model.metadata_props}}
    onnx.helper.set_model_props(made, notes)
    return made


def _with_fixed_shapes(model: onnx.ModelProto, shapes: Iterable[tuple[str, str]]) -> bool:
    """Give inputs the shapes that texts such as "1,3,224,224" say; whether there were any."""
    given = list(shapes)
    for name, text in given:
        try:
            make_input_shape_fixed(model.graph, name, [int(size) for size in text.split(",")])
        except ValueError as error:
            raise InvalidValue(f"the shape of input {name!r} cannot be fixed: {error}", found=text,
                               expected="as many sizes as the input has dimensions, with commas between, "
                               "equal to those that are known") from None
    if given:
        fix_output_shapes(model)
    return bool(given)


def _with_layer_normalization(held: ONNXModel) -> bool:
    version = get_opset_version(held.model)
    if version < _WITH_LAYER_NORMALIZATION:
        _log.warning("LayerNormalization is not fused: the model has operators of version %d, and it comes "
                     "with %d; onnx.version_converter can raise it", version, _WITH_LAYER_NORMALIZATION)
        return False
    return FusionLayerNormalization(held).apply()


def _with_names(held: ONNXModel) -> bool:
    """Name the nodes that have no name; whether there were any."""
    nameless = [node for node in held.nodes() if not node.name and node.op_type != "Constant"]
    first = held.get_largest_node_name_suffix(_UNNAMED) + 1
    for suffix, node in enumerate(nameless, first):
        node.name = f"{_UNNAMED}{suffix}"
        _log.warning("a node %s had no name, and is now %s", node.op_type, node.name)
    return bool(nameless)


def _save(model: onnx.ModelProto, path: Path, **options: Any) -> None:
    """`onnx.save_model`, with files that appear whole."""
    folder = path.absolute().parent
    with tempfile.TemporaryDirectory(dir=folder, prefix=".qnn-") as place:
        onnx.save_model(model, Path(place, path.name), **options)
        made = sorted(file for file in Path(place).rglob("*") if file.is_file())
        for file in sorted(made, key=lambda file: file.name == path.name):
            final = folder / file.relative_to(place)
            final.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, final)


class InputOutputNameMap:
    """The names that inputs and outputs have inside the graph once they are channel-last outside.

    `updated_io_names` leads from the one to the other; `new_value_infos` describes the values inside."""

    def __init__(self, orig_tensor_names: set[str], orig_graph_inputs: Mapping[str, onnx.ValueInfoProto],
                 orig_graph_outputs: Mapping[str, onnx.ValueInfoProto]) -> None:
        self.orig_tensor_names = orig_tensor_names
        self.orig_graph_inputs = orig_graph_inputs
        self.orig_graph_outputs = orig_graph_outputs
        self.updated_io_names: dict[str, str] = {}
        self.new_value_infos: list[onnx.ValueInfoProto] = []

    def get_new_name(self, orig_name: str) -> str:
        """The name inside, `x_channel_first_0` or the next number that is free."""
        if orig_name not in self.updated_io_names:
            prefix = f"{orig_name}_channel_first_"
            ends = [name.removeprefix(prefix) for name in self.orig_tensor_names if name.startswith(prefix)]
            free = max((int(end) for end in ends if end.isdigit()), default=-1) + 1
            info = onnx.ValueInfoProto()
            info.CopyFrom(self.orig_graph_inputs.get(orig_name) or self.orig_graph_outputs[orig_name])
            info.name = self.updated_io_names[orig_name] = f"{prefix}{free}"
            self.new_value_infos.append(info)
        return self.updated_io_names[orig_name]


def update_io_to_channel_last(
    model: onnx.ModelProto,
    inputs_to_update: list[str] | None,
    outputs_to_update: list[str] | None,
    transpose_node_name_prefix: str = "Transpose_channel_",
    transpose_node_name_start_suffix: int = 0,
) -> None:
    """Let inputs and outputs of shape (N, C, D1, ..., Dn) be (N, D1, ..., Dn, C) outside, by a Transpose
    each, which is appended to the nodes: sort them afterwards.

    Raises: InvalidValue, with the model as it was, for a name that is no input or no output, and for one that
    is no tensor of three or more dimensions.
    """
    graph = model.graph
    inputs, outputs = ({info.name: info for info in infos} for infos in (graph.input, graph.output))
    sides = [(_named(inputs, inputs_to_update, "input"), True),
             (_named(outputs, outputs_to_update, "output"), False)]
    taken = {name for node in graph.node for name in node.input if name} | {*inputs, *outputs}
    names = InputOutputNameMap(taken, inputs, outputs)
    inside = {info.name: names.get_new_name(info.name) for infos, _ in sides for info in infos}
    for part in all_graphs(graph):
        for node in part.node:
            node.input[:] = [inside.get(name, name) for name in node.input]
    for node in graph.node:
        node.output[:] = [inside.get(name, name) for name in node.output]
    number = transpose_node_name_start_suffix
    for infos, entering in sides:
        for info in infos:
            dims = info.type.tensor_type.shape.dim
            channels = dims.pop(1)
            dims.append(channels)
            last = len(dims) - 1
            ends = (info.name, inside[info.name]) if entering else (inside[info.name], info.name)
            order = [0, last, *range(1, last)] if entering else [0, *range(2, last + 1), 1]
            graph.node.append(onnx.helper.make_node(
                "Transpose", ends[:1], ends[1:], f"{transpose_node_name_prefix}{number}", perm=order))
            number += 1
    graph.value_info.extend(names.new_value_infos)


def _named(infos: Mapping[str, onnx.ValueInfoProto], names: Iterable[str] | None,
           side: str) -> list[onnx.ValueInfoProto]:
    """The inputs or outputs of these names, each once."""
    found = []
    for name in dict.fromkeys(names or ()):
        if name not in infos:
            raise InvalidValue(f"{name} is not a graph {side}", expected=f"one of {', '.join(infos)}")
        kind = infos[name].type.tensor_type
        if not infos[name].type.HasField("tensor_type") or not kind.HasField("shape"):
            raise InvalidValue(f"Expected {side} {name} to have a tensor_type with a shape",
                               cure="infer the shapes first, or fix them by dynamic_input_shapes")
        if len(kind.shape.dim) < 3:
            raise InvalidValue(f"Expected {side} {name} to be of rank >= 3",
                               found=f"rank {len(kind.shape.dim)}")
        found.append(infos[name])
    return found
