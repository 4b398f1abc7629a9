"""A network of transformers as an ONNX file that is checked, optimized and, where asked for, quantized.

In: a name, how many inputs, an optimizer, a precision. Out: the file's path, whether its results were the
network's, how many tokens and how long a sequence it takes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import InvalidArgument
from ..measure.benchmark_helper import OptimizerInfo, Precision, create_onnxruntime_session
from . import exporting, networks
from .quantize_helper import QuantizeHelper

logger = logging.getLogger(__name__)

torch_func = {"triu": torch.triu}
"""torch's own functions, while others stand in for them."""
_GONE = {"AutoModelWithLMHead": "AutoModelForCausalLM"}
"""Classes that today's transformers has under other names."""
_IMAGES = ("vit", "swin")
_LONGEST = 1024
_EXAMPLE = (2, 16)
_TOLERANCE = {False: 1e-3, True: 1e-1}


def triu_onnx(x: Any, diagonal: int = 0, out: Any = None) -> Any:
    """The upper triangle of a square matrix, by operators that every version of ONNX has."""
    if out is not None or x.dim() != 2 or x.size(0) != x.size(1):
        raise InvalidArgument("Only a square matrix has its triangle taken", found=tuple(x.shape),
                              expected="[n, n]", cure="use torch.triu")
    rows = torch.arange(x.size(0), device=x.device)
    return torch.where(rows[None, :] - rows[:, None] >= diagonal, x, torch.zeros_like(x))


def replace_torch_functions() -> None:
    """Let torch.triu be `triu_onnx`, for exporting."""
    torch.triu = triu_onnx


def restore_torch_functions() -> None:
    """Let torch.triu be its own again."""
    torch.triu = torch_func["triu"]


def create_onnxruntime_input(vocab_size: int, batch_size: int, sequence_length: int,
                             input_names: Sequence[str], config: Any, data_type: Any = np.int64
                             ) -> dict[str, np.ndarray]:
    """A random feed for a network of transformers: tokens and masks of `data_type`, or an image."""
    if config.model_type in _IMAGES:
        shape = (batch_size, config.num_channels, config.image_size, config.image_size)
        return {input_names[0]: np.random.rand(*shape).astype(np.float32)}
    tokens = np.random.randint(vocab_size - 1, size=(batch_size, sequence_length)).astype(data_type)
    made = {"input_ids": tokens, "attention_mask": np.ones_like(tokens),
            "token_type_ids": np.zeros_like(tokens)}
    if config.is_encoder_decoder:
        made["decoder_input_ids"] = tokens
    return filter_inputs(made, input_names)


def filter_inputs(inputs: Mapping[str, Any], input_names: Sequence[str]) -> dict[str, Any]:
    """Those of the inputs that are named, in the names' order."""
    return {name: inputs[name] for name in input_names if name in inputs}


def flatten(inputs: Any) -> list[Any]:
    """The tensors in nested lists and tuples, in order."""
    return exporting.flat(inputs)


def update_flatten_list(inputs: Any, res_list: list[Any]) -> list[Any]:
    """Append the tensors in nested lists and tuples to `res_list`."""
    res_list += exporting.flat(inputs)
    return res_list


def build_dynamic_axes(example_inputs: Mapping[str, Any], outputs_flatten: Sequence[Any]
                       ) -> tuple[dict[str, dict[int, str]], list[str]]:
    """Names for open dimensions of the inputs, [batch_size, seq_len] or an image's batch, and of the outputs
    wherever one has a sequence's length; and names for the outputs."""
    length = next((each.shape[1] for each in example_inputs.values() if each.dim() == 2), None)
    axes = {name: {0: "batch_size", 1: "seq_len"} if each.dim() == 2 else {0: "batch_size"}
            for name, each in example_inputs.items()}
    names = [f"output_{i + 1}" for i in range(len(outputs_flatten))]
    for name, output in zip(names, outputs_flatten, strict=True):
        axes[name] = {0: "batch_size", **{i: "seq_len" for i, size in enumerate(output.shape)
                                          if i and size == length}}
    return axes, names


def validate_onnx_model(onnx_model_path: str, example_inputs: Mapping[str, Any],
                        example_outputs_flatten: Sequence[Any], use_gpu: bool, fp16: bool,
                        output_names: Sequence[str] | None = None) -> bool:
    """Whether a file's results are the network's: within 1e-3, or 1e-1 with `fp16`."""
    session = create_onnxruntime_session(onnx_model_path, use_gpu)
    known = {each.name for each in session.get_inputs()}
    feed = {name: each for name, each in exporting.feed(example_inputs).items() if name in known}
    gap = exporting.difference(example_outputs_flatten, session.run(output_names, feed))
    logger.info("%s differs from the network by at most %.3g", onnx_model_path, gap)
    return gap <= _TOLERANCE[fp16]


def get_onnx_file_path(onnx_dir: str, model_name: str, input_count: int, optimized_by_script: bool,
                       use_gpu: bool, precision: Precision, optimized_by_onnxruntime: bool,
                       use_external_data: bool) -> str:
    """Where a model is kept: what was done to it is in its name. With `use_external_data` in a folder of its
    own."""
    name = f"{model_name.replace('/', '_').replace(os.sep, '_')}_{input_count}"
    where = "gpu" if use_gpu else "cpu"
    if optimized_by_script or (optimized_by_onnxruntime and precision is not Precision.FLOAT32):
        name = f"{name}_{precision}_{where}"
    if optimized_by_onnxruntime:
        name = f"{name}_ort"
    elif use_external_data:
        return os.path.join(onnx_dir, name, f"{name}.onnx")
    return os.path.join(onnx_dir, f"{name}.onnx")


def add_filename_suffix(file_path: str, suffix: str) -> str:
    """`a/model.onnx` and `_x` → `a/model_x.onnx`."""
    path = Path(file_path)
    return str(path.parent / f"{path.name.split('.')[0]}{suffix}{path.suffix}")


def _fused(model: Any, path: str, statistics: MutableMapping[str, Any] | None) -> None:
    if statistics is not None:
        statistics[path] = model.get_fused_operator_statistics()


def optimize_onnx_model_by_ort(onnx_model_path: str, ort_model_path: str, use_gpu: bool, overwrite: bool,
                               model_fusion_statistics: MutableMapping[str, Any] | None) -> None:
    """Write a model as this runtime's session optimizes it, unless it is there."""
    if overwrite or not os.path.exists(ort_model_path):
        import orthrus as ort

        from ..optimizer import get_fusion_statistics

        options = ort.SessionOptions()
        options.optimized_model_filepath = ort_model_path
        ort.InferenceSession(onnx_model_path, options)
        if model_fusion_statistics is not None:
            model_fusion_statistics[ort_model_path] = get_fusion_statistics(ort_model_path)


def optimize_onnx_model(onnx_model_path: str, optimized_model_path: str, model_type: str,
                        num_attention_heads: int, hidden_size: int, use_gpu: bool, precision: Precision,
                        use_raw_attention_mask: bool, overwrite: bool,
                        model_fusion_statistics: MutableMapping[str, Any] | None,
                        use_external_data_format: bool, optimization_options: Any = None) -> None:
    """Write a model as the optimizer for its type makes it, of half floats where asked for, unless it is
    there."""
    if not overwrite and os.path.exists(optimized_model_path):
        return
    from ..optimizer import FusionOptions, optimize_model

    options = optimization_options or FusionOptions(model_type)
    options.use_raw_attention_mask(use_raw_attention_mask)
    model = optimize_model(onnx_model_path, model_type, num_heads=num_attention_heads,
                           hidden_size=hidden_size, optimization_options=options, use_gpu=use_gpu,
                           opt_level=0)
    if precision is Precision.FLOAT16:
        model.convert_float_to_float16(keep_io_types=True)
    _fused(model, optimized_model_path, model_fusion_statistics)
    os.makedirs(os.path.dirname(os.path.abspath(optimized_model_path)), exist_ok=True)
    model.save_model_to_file(optimized_model_path, use_external_data_format)


def modelclass_dispatcher(model_name: str, custom_model_class: str | None) -> str:
    """The class for a network: the one that is named, else GPT-2's without a cache for a GPT-2, else
    AutoModel."""
    if custom_model_class:
        return custom_model_class
    return "GPT2ModelNoPastState" if "gpt2" in model_name else "AutoModel"


def load_pretrained_model(model_name: str, config: Any, cache_dir: str | None,
                          custom_model_class: str | None, is_tf_model: bool = False) -> Any:
    """The network of a name, see `networks`. Raises InvalidArgument for TensorFlow's, which transformers has
    no more."""
    import transformers

    if is_tf_model:
        raise _no_tensorflow(model_name)
    kind = modelclass_dispatcher(model_name, custom_model_class)
    if kind == "GPT2ModelNoPastState":
        from ..models.gpt2.gpt2_helper import GPT2ModelNoPastState

        return networks.network(model_name, GPT2ModelNoPastState, config, cache_dir)
    return networks.network(model_name, getattr(transformers, _GONE.get(kind, kind)), config, cache_dir)


def load_pt_model(model_name: str, model_class: str | None, cache_dir: str | None, config_modifier: Any
                  ) -> tuple[Any, Any]:
    """Configuration and network of a name."""
    config = networks.configuration(model_name, cache_dir)
    config.return_dict = False
    config_modifier.modify(config)
    return config, load_pretrained_model(model_name, config, cache_dir, model_class)


def _no_tensorflow(model_name: str) -> InvalidArgument:
    return InvalidArgument("transformers has no networks of TensorFlow any more", found=model_name,
                           expected="weights of torch", cure="convert its checkpoint with transformers 4")


def load_tf_model(model_name: str, model_class: str | None, cache_dir: str | None, config_modifier: Any
                  ) -> Any:
    """Raises InvalidArgument: transformers has no networks of TensorFlow any more."""
    raise _no_tensorflow(model_name)


def load_pt_model_from_tf(model_name: str) -> Any:
    """Raises InvalidArgument: transformers reads no checkpoints of TensorFlow any more."""
    raise _no_tensorflow(model_name)


def validate_and_optimize_onnx(
        model_name: str, use_external_data_format: bool, model_type: str, onnx_dir: str,
        input_names: Sequence[str], use_gpu: bool, precision: Precision, optimize_info: OptimizerInfo,
        validate_onnx: bool, use_raw_attention_mask: bool, overwrite: bool, config: Any,
        model_fusion_statistics: MutableMapping[str, Any] | None, onnx_model_path: str,
        example_inputs: Mapping[str, Any], example_outputs_flatten: Sequence[Any],
        output_names: Sequence[str] | None, fusion_options: Any) -> tuple[str, bool | None, int]:
    """Optimize an exported file and quantize it as asked; the path of what came out, whether it was right,
    None where that was not looked at, and how many tokens there are."""
    valid = None
    path = onnx_model_path
    half = precision is Precision.FLOAT16
    if validate_onnx:
        valid = validate_onnx_model(path, example_inputs, example_outputs_flatten, use_gpu, False,
                                    output_names)
    if optimize_info is OptimizerInfo.BYSCRIPT or half:
        path = get_onnx_file_path(onnx_dir, model_name, len(input_names), True, use_gpu, precision, False,
                                  use_external_data_format)
        optimize_onnx_model(onnx_model_path, path, model_type, config.num_attention_heads, config.hidden_size,
                            use_gpu, precision, use_raw_attention_mask, overwrite, model_fusion_statistics,
                            use_external_data_format, fusion_options)
    if precision is Precision.INT8:
        quantized = add_filename_suffix(path, "_int8") if "int8" not in path else path
        QuantizeHelper.quantize_onnx_model(path, quantized, use_external_data_format)
        path = quantized
    elif validate_onnx and path != onnx_model_path:
        valid = valid and validate_onnx_model(path, example_inputs, example_outputs_flatten, use_gpu, half,
                                              output_names)
    if optimize_info is OptimizerInfo.BYORT:
        optimized = add_filename_suffix(path, "_ort")
        optimize_onnx_model_by_ort(path, optimized, use_gpu, overwrite, model_fusion_statistics)
        path = optimized
    return path, valid, getattr(config, "vocab_size", 0) or 0


class _Named(torch.nn.Module):  # type: ignore[misc]
    """A network with its inputs by name, and a tuple of tensors as outputs."""

    def __init__(self, network: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.names = network, list(names)

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        given = dict(zip(self.names, inputs, strict=True))
        if getattr(self.network.config, "use_cache", None):
            given["use_cache"] = False
        return tuple(exporting.flat(self.network(**given, return_dict=False)))


def export_onnx_model_from_pt(
        model_name: str, opset_version: int, use_external_data_format: bool, model_type: str,
        model_class: str | None, config_modifier: Any, cache_dir: str | None, onnx_dir: str,
        input_names: Sequence[str], use_gpu: bool, precision: Precision, optimizer_info: OptimizerInfo,
        validate_onnx: bool, use_raw_attention_mask: bool, overwrite: bool,
        model_fusion_statistics: MutableMapping[str, Any] | None, fusion_options: Any
        ) -> tuple[str, bool | None, int, int]:
    """Export a network of transformers, optimize it, and answer the file's path, whether it is right (None:
    not looked at), the number of tokens and the longest sequence."""
    config, network = load_pt_model(model_name, model_class, cache_dir, config_modifier)
    vocabulary = getattr(config, "vocab_size", 0) or 2
    arrays = create_onnxruntime_input(vocabulary, *_EXAMPLE, input_names, config)
    example = {name: torch.from_numpy(array) for name, array in arrays.items()}
    named = _Named(network, list(example))
    with torch.no_grad():
        outputs = named.eval()(*example.values())
    axes, names = build_dynamic_axes(example, outputs)
    path = get_onnx_file_path(onnx_dir, model_name, len(input_names), False, use_gpu, precision, False,
                              use_external_data_format)
    if overwrite or not os.path.exists(path):
        exporting.export(named, example, names, path, axes, opset_version,
                         external=use_external_data_format)
    file, valid, _ = validate_and_optimize_onnx(
        model_name, use_external_data_format, model_type, onnx_dir, list(example), use_gpu, precision,
        optimizer_info, validate_onnx, use_raw_attention_mask, overwrite, config, model_fusion_statistics,
        path, example, outputs, names, fusion_options)
    return file, valid, vocabulary, getattr(config, "max_position_embeddings", None) or _LONGEST


def export_onnx_model_from_tf(
        model_name: str, opset_version: int, use_external_data_format: bool, model_type: str,
        model_class: str | None, config_modifier: Any, cache_dir: str | None, onnx_dir: str,
        input_names: Sequence[str], use_gpu: bool, precision: Precision, optimizer_info: OptimizerInfo,
        validate_onnx: bool, use_raw_attention_mask: bool, overwrite: bool,
        model_fusion_statistics: MutableMapping[str, Any] | None, fusion_options: Any) -> Any:
    """Raises InvalidArgument: transformers has no networks of TensorFlow any more."""
    raise _no_tensorflow(model_name)
