"""A transformer with its attentions, normalizations, Gelus and embeddings as operators of com.microsoft,
under the names of onnxruntime.transformers.optimizer; also `python -m orthrus.transformers.optimizer`.

In: a model as an exporter wrote it, and its type. Out: an OnnxModel that computes the same under the same
opset, with the same inputs and outputs. What was declined, and why, is in its `journal`.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from ..errors import Fail, InvalidGraph
from ..quantization.refused import InvalidValue
from . import forms
from .fusion_options import FusionOptions
from .model.bert import BertOnnxModel
from .model.families import (
    BartOnnxModel,
    BertOnnxModelKeras,
    BertOnnxModelTF,
    ClipOnnxModel,
    ConformerOnnxModel,
    Gpt2OnnxModel,
    MmditOnnxModel,
    PhiOnnxModel,
    Sam2OnnxModel,
    T5OnnxModel,
    TnlrOnnxModel,
    UnetOnnxModel,
    VaeOnnxModel,
)
from .model.onnx_model import OnnxModel

__all__ = ["MODEL_TYPES", "FusionOptions", "get_fusion_statistics", "main", "optimize_by_fusion",
           "optimize_by_onnxruntime", "optimize_model"]
logger = logging.getLogger(__name__)

MODEL_TYPES: dict[str, tuple[type[BertOnnxModel], str, int]] = {
    "bart": (BartOnnxModel, "pytorch", 1),
    "bert": (BertOnnxModel, "pytorch", 1),
    "bert_tf": (BertOnnxModelTF, "tf2onnx", 0),
    "bert_keras": (BertOnnxModelKeras, "keras2onnx", 0),
    "clip": (ClipOnnxModel, "pytorch", 1),
    "conformer": (ConformerOnnxModel, "pytorch", 1),
    "gpt2": (Gpt2OnnxModel, "pytorch", 1),
    "gpt2_tf": (Gpt2OnnxModel, "tf2onnx", 0),
    "gpt_neox": (BertOnnxModel, "pytorch", 0),
    "phi": (PhiOnnxModel, "pytorch", 0),
    "qwen3": (Gpt2OnnxModel, "pytorch", 0),
    "sam2": (Sam2OnnxModel, "pytorch", 1),
    "swin": (BertOnnxModel, "pytorch", 1),
    "tnlr": (TnlrOnnxModel, "pytorch", 1),
    "t5": (T5OnnxModel, "pytorch", 2),
    "unet": (UnetOnnxModel, "pytorch", 1),
    "vae": (VaeOnnxModel, "pytorch", 1),
    "vit": (BertOnnxModel, "pytorch", 1),
    "mmdit": (MmditOnnxModel, "pytorch", 1),
}
"""Model type → its class, who exports such models, and the level of `opt_level` where none is given."""
_LEVELS = (0, 1, 2, 3, 99)
_GPUS = frozenset({"CUDAExecutionProvider", "ROCMExecutionProvider", "MIGraphXExecutionProvider"})


def optimize_model(input: str | os.PathLike[str] | ModelProto, model_type: str = "bert", num_heads: int = 0,
                   hidden_size: int = 0, optimization_options: FusionOptions | None = None,
                   opt_level: int | None = None, use_gpu: bool = False, only_onnxruntime: bool = False,
                   verbose: bool = False, *, provider: str | None = None) -> OnnxModel:
    """Fuse what `optimization_options` switch on; the options of the model type without any given.

    `input`: a path, with weights in files beside it or not, or a ModelProto, which stays as it is.
    `num_heads` and `hidden_size`: the model tells them; a number of heads other than its own gives a warning.
    `opt_level`: 0 only fuses, 1 and more also make the runtime's basic optimizations. `only_onnxruntime`: no
    fusions, only the optimizations of this runtime. `use_gpu`, `provider`: where the model shall run; the
    fusions are the same everywhere. A model of an unknown type comes back as it is, with a warning, and so
    does one that only fuses and breaks a rule of ONNX.

    Raises: InvalidValue for levels and heads that cannot be, and the errors of loading.
    """
    if opt_level not in (None, *_LEVELS):
        raise InvalidValue("the level is not known", found=opt_level, expected=f"one of {_LEVELS}")
    if model_type not in MODEL_TYPES:
        return _unknown(input, model_type)
    level = MODEL_TYPES[model_type][2] if opt_level is None else opt_level
    if only_onnxruntime:
        with tempfile.TemporaryDirectory() as folder:
            path = optimize_by_onnxruntime(input, use_gpu, str(Path(folder, "optimized.onnx")), level or 1,
                                           verbose=verbose, save_as_external_data=True,
                                           external_data_filename="optimized.data", provider=provider)
            return OnnxModel(onnx.load(path))
    return _fused(input, model_type, num_heads, hidden_size, optimization_options, level)


def optimize_by_fusion(model: ModelProto, model_type: str = "bert", num_heads: int = 0, hidden_size: int = 0,
                       optimization_options: FusionOptions | None = None) -> OnnxModel:
    """Only the fusions of `optimize_model`. A model of an unknown type stays as it is, with a warning."""
    if model_type not in MODEL_TYPES:
        return _unknown(model, model_type)
    return _fused(model, model_type, num_heads, hidden_size, optimization_options, 0)


def _unknown(source: Any, model_type: str) -> OnnxModel:
    logger.warning("model type %r is not known; the model is left as it is. Known are %s", model_type,
                   ", ".join(MODEL_TYPES))
    return OnnxModel(_loaded(source))


def _fused(source: Any, model_type: str, num_heads: int, hidden_size: int, options: FusionOptions | None,
           level: int) -> BertOnnxModel:
    kind, producer, _ = MODEL_TYPES[model_type]
    options = options or FusionOptions(model_type)
    made = kind(ModelProto(), num_heads, hidden_size)
    made.options = options
    try:
        model, made.journal = forms.optimized(source, model_type, options, num_heads, hidden_size, level)
    except (Fail, InvalidGraph) as error:
        if level:
            raise
        logger.warning("the model is invalid and left as it is: %s", error)
        model = _loaded(source)
    made.initialize(model)
    if model.producer_name and producer != model.producer_name:
        logger.debug("models of type %s come from %s; this one is from %s", model_type, producer,
                     model.producer_name)
    return made


def _loaded(model: str | os.PathLike[str] | ModelProto) -> ModelProto:
    return model if isinstance(model, ModelProto) else onnx.load(os.fspath(model))


def optimize_by_onnxruntime(onnx_model: str | os.PathLike[str] | ModelProto | None = None,
                            use_gpu: bool = False, optimized_model_path: str | None = None,
                            opt_level: int | None = 99, disabled_optimizers: Sequence[str] = (),
                            verbose: bool = False, save_as_external_data: bool = False,
                            external_data_filename: str = "", external_data_file_threshold: int = 1024, *,
                            provider: str | None = None, **deprecated_kwargs: Any) -> str:
    """Write a model as this runtime optimizes it for a session, and give the file's path.

    `optimized_model_path`: by default the model's path with `_o<level>_<cpu or gpu>` in it, or such a name in
    the working directory. `disabled_optimizers`: passes to leave out, by name. `save_as_external_data`:
    tensors of `external_data_file_threshold` bytes and more go to `external_data_filename` beside it. With
    `use_gpu` and no provider of this runtime for a GPU, the path that came in comes back, with an error in
    the log. Raises: InvalidValue for a level that is none.
    """
    from .. import GraphOptimizationLevel, InferenceSession, SessionOptions, get_available_providers

    source = deprecated_kwargs.pop("onnx_model_path", None) if onnx_model is None else onnx_model
    if deprecated_kwargs or source is None:
        raise InvalidValue("there is no model, or a parameter is not known", found=list(deprecated_kwargs))
    levels = {1: GraphOptimizationLevel.ORT_ENABLE_BASIC, 2: GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
              3: GraphOptimizationLevel.ORT_ENABLE_LAYOUT, 99: GraphOptimizationLevel.ORT_ENABLE_ALL}
    if opt_level not in levels:
        raise InvalidValue("the level is not known", found=opt_level, expected=f"one of {tuple(levels)}")
    available = get_available_providers()
    if use_gpu and provider is None and _GPUS.isdisjoint(available):
        logger.error("no provider of this runtime works on a GPU here")
        return "" if isinstance(source, ModelProto) else os.fspath(source)
    if optimized_model_path is None:
        stem = "optimized_model" if isinstance(source, ModelProto) else str(Path(source).with_suffix(""))
        optimized_model_path = f"{stem}_o{opt_level}_{'gpu' if use_gpu else 'cpu'}.onnx"
    options = SessionOptions()
    options.graph_optimization_level = levels[opt_level]
    options.optimized_model_filepath = optimized_model_path
    if save_as_external_data:
        name = external_data_filename or f"{Path(optimized_model_path).name}.data"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", name)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes",
            str(external_data_file_threshold))
    if verbose:
        options.log_severity_level = 0
    given = source.SerializeToString() if isinstance(source, ModelProto) else os.fspath(source)
    chosen = [provider] if provider else [p for p in available if p in _GPUS] if use_gpu else []
    InferenceSession(given, options, providers=[*chosen, "CPUExecutionProvider"],
                     disabled_optimizers=list(disabled_optimizers))
    return optimized_model_path


def get_fusion_statistics(optimized_model_path: str | os.PathLike[str]) -> dict[str, int]:
    """How many nodes a model in a file has of each operator that fusions write."""
    model = onnx.load(os.fspath(optimized_model_path), load_external_data=False)
    return BertOnnxModel(model).get_fused_operator_statistics()


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m orthrus.transformers.optimizer",
        description="Write a transformer's model with its attentions, normalizations and Gelus fused.")
    parser.add_argument("--input", required=True, help="the model to read")
    parser.add_argument("--output", required=True, help="the model to write")
    parser.add_argument("--model_type", type=str.lower, default="bert", choices=list(MODEL_TYPES))
    parser.add_argument("--num_heads", type=int, default=0, help="the model tells it; 0: not checked")
    parser.add_argument("--hidden_size", type=int, default=0, help="the model tells it; 0: not checked")
    for flag, text in (
            ("input_int32", "inputs that hold ids and flags become int32"),
            ("float16", "weights and values become float16; inputs and outputs stay"),
            ("verbose", "say what was fused and what was declined, and why"),
            ("use_gpu", "the model is to run on a GPU"),
            ("only_onnxruntime", "no fusions, only the optimizations of this runtime"),
            ("use_external_data_format", "weights go to a file beside the model"),
            ("convert_to_packing_mode", "attention works on texts without their padding"),
            ("convert_attribute", "tensors in attributes go to the file beside the model, too")):
        parser.add_argument(f"--{flag}", action="store_true", help=text)
    parser.add_argument("--provider", help="the provider the model is to run on")
    parser.add_argument("--opt_level", type=int, default=None, choices=_LEVELS,
                        help="0: only fusions; more: also the runtime's basic optimizations")
    FusionOptions.add_arguments(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    args = _parse_arguments(argv)
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.INFO, format="%(message)s")
    if os.path.realpath(args.input) == os.path.realpath(args.output):
        logger.warning("the model is written over itself")
    made = optimize_model(args.input, args.model_type, args.num_heads, args.hidden_size,
                          FusionOptions.parse(args), args.opt_level, args.use_gpu, args.only_onnxruntime,
                          args.verbose, provider=args.provider)
    if args.float16:
        made.convert_float_to_float16(keep_io_types=True)
    if isinstance(made, BertOnnxModel):
        if args.input_int32:
            made.change_graph_inputs_to_int32()
        if args.convert_to_packing_mode:
            made.convert_to_packing_mode()
        _tell(made, args.verbose)
    made.save_model_to_file(args.output, args.use_external_data_format,
                            convert_attribute=args.convert_attribute)


def _tell(made: BertOnnxModel, all_of_it: bool) -> None:
    counts = made.get_fused_operator_statistics()
    logger.info("fused: %s", ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "nothing")
    if made.is_fully_optimized(counts):
        logger.info("the model is fully optimized")
    for entry in made.journal if all_of_it else ():
        for line in entry.declined:
            logger.info("%s declined at %s", entry.name, line)


if __name__ == "__main__":
    main()
