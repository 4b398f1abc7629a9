"""An exported decoder, or an encoder and its decoder, and a search become one model: `convert_generation`.

In: onnx files by onnxruntime's conventions, the folder with the model's config.json, and flags. Out: one file
whose only node is BeamSearch, GreedySearch or Sampling of com.microsoft, with the graphs inside. The files it
came from are not changed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper

from ..errors import InvalidArgument
from .generation_flags import parse_arguments
from .generation_graphs import (
    generate_gpt2_init_decoder,
    get_shared_initializers,
    infer_shapes,
    kwargs_of,
    last_logits,
    make_dim_proto_numeric_t5,
    move_initializers,
    one_token,
    remove_shared_initializers,
    save,
    shape_of,
    update_input_shapes_for_gpt2_decoder_model,
    verify_gpt2_subgraph,
    verify_t5_decoder_subgraph,
    verify_t5_encoder_decoder_init_subgraph,
)

if TYPE_CHECKING:
    from ..api.session import InferenceSession

__all__ = ["GenerationType", "convert_generation_model", "create_attention_mask", "create_ort_session",
           "generate_gpt2_init_decoder", "get_shared_initializers", "gpt2_to_onnx", "kwargs_of", "logger",
           "main", "make_dim_proto_numeric_t5", "move_initializers", "parse_arguments",
           "remove_shared_initializers",
           "shape_inference", "shape_of", "t5_to_onnx", "update_input_shapes_for_gpt2_decoder_model",
           "verify_gpt2_subgraph", "verify_t5_decoder_subgraph", "verify_t5_encoder_decoder_init_subgraph"]

logger = logging.getLogger("")
INT, FLOAT = TensorProto.INT32, TensorProto.FLOAT
_CONFIG: dict[str, dict[str, Any]] = {
    "gpt2": {"eos_token_id": 50256, "vocab_size": 50257, "pad_token_id": None},
    "t5": {"eos_token_id": 1, "pad_token_id": 0, "vocab_size": 32128, "num_heads": 8, "d_model": 512,
           "d_kv": 64, "decoder_start_token_id": 0}}
"""What a config.json that says nothing means."""


class GenerationType(Enum):
    BEAMSEARCH = "beam_search"
    GREEDYSEARCH = "greedy_search"
    SAMPLING = "sampling"


_OPERATORS = {GenerationType.BEAMSEARCH: "BeamSearch", GenerationType.GREEDYSEARCH: "GreedySearch",
              GenerationType.SAMPLING: "Sampling"}


def shape_inference(onnx_path: str, use_external_data_format: bool = True) -> None:
    """Write what is known of shapes into the model of a file."""
    save(infer_shapes(onnx.load_model(onnx_path)), onnx_path, use_external_data_format)


def create_ort_session(model_path: str, use_gpu: bool, use_sln_strict_mode: bool) -> InferenceSession:
    """A session for a model, of this runtime. `use_sln_strict_mode` concerns a GPU."""
    from ..api.session import InferenceSession

    first = ["CUDAExecutionProvider"] if use_gpu else []
    return InferenceSession(model_path, providers=[*first, "CPUExecutionProvider"])


def create_attention_mask(input_ids: Any, pad_token_id: int) -> np.ndarray:
    """1 for every token but the padding on the left."""
    return np.logical_or.accumulate(np.asarray(input_ids) != pad_token_id, 1).astype(np.int32)


def convert_generation_model(args: argparse.Namespace,
                             generation_type: GenerationType = GenerationType.BEAMSEARCH) -> None:
    """Write the model that `args` describe to `args.output`.

    Raises NotImplementedError for a search that a model type has none of, ValueError for flags that exclude
    each other or that need a GPU and for a graph of another convention, InvalidArgument where the exported
    files or the model's config.json are missing.
    """
    _refuse(args, generation_type)
    _exported(args)
    config = _config(args)
    decoder = _loaded(args, args.decoder_onnx)
    decoder.graph.name = f"{args.model_type} decoder"
    if args.model_type == "gpt2":
        verify_gpt2_subgraph(decoder.graph, args.precision)
        graphs, shared = _gpt2_graphs(args, decoder)
    else:
        verify_t5_decoder_subgraph(decoder.graph, args.precision)
        graphs, shared = _t5_graphs(args, decoder, config)
    node = _node(args, generation_type, config)
    node.attribute.extend(helper.make_attribute(name, graph) for name, graph in graphs.items())
    inputs, outputs = _interface(args, generation_type, config.vocab_size)
    graph = helper.make_graph([node], f"{args.model_type} {generation_type.value}".replace("_", " "),
                              inputs, outputs, shared)
    model = helper.make_model(graph, producer_name="orthrus.transformers", opset_imports=_imports(decoder),
                              ir_version=decoder.ir_version)
    save(model, args.output, args.use_external_data_format)
    logger.info("model save to %s", args.output)


def _loaded(args: argparse.Namespace, path: str) -> ModelProto:
    model = onnx.load_model(path)
    return infer_shapes(model) if args.run_shape_inference else model


def _refuse(args: argparse.Namespace, kind: GenerationType) -> None:
    """Raise for what cannot be asked for."""
    beams = kind is GenerationType.BEAMSEARCH
    if not beams and args.model_type != "gpt2":
        raise NotImplementedError("Currently only gpt2 with greedy search/sampling is supported")
    for flag in ("output_sequences_scores", "output_token_scores"):
        if not beams and getattr(args, flag):
            raise NotImplementedError(f"{flag} currently is not supported in greedy search/sampling")
    if args.output_token_scores and not args.output_sequences_scores:
        raise ValueError("--output_token_scores requires --output_sequences_scores")
    for flag in ("past_present_share_buffer", "use_decoder_masked_attention"):
        if getattr(args, flag):
            raise ValueError(f"`{flag}` is for graphs of CUDA's attention, which this package does not make")


def _config(args: argparse.Namespace) -> Any:
    """What the model's config.json says, over it what the flags say."""
    path = Path(args.model_name_or_path, "config.json")
    known = dict(_CONFIG["gpt2" if args.model_type == "gpt2" else "t5"])
    if not path.exists():
        raise InvalidArgument("the model's configuration is not here", found=str(path),
                              expected="a folder with config.json",
                              cure="model.config.save_pretrained(folder)")
    known |= {k: v for k, v in json.loads(path.read_text(encoding="utf-8")).items() if v is not None}
    if isinstance(known["eos_token_id"], list):
        known["eos_token_id"] = known["eos_token_id"][0]
    if args.model_type == "gpt2":
        known["pad_token_id"] = known["eos_token_id"]
    known |= {name: getattr(args, name) for name in ("vocab_size", "eos_token_id", "pad_token_id")
              if getattr(args, name) != -1}
    return SimpleNamespace(**known)


def gpt2_to_onnx(args: argparse.Namespace) -> None:
    """Export the GPT-2 that `args` name to `args.decoder_onnx`, optimized, with tokens as int32. Needs torch
    and transformers."""
    from .models.gpt2.convert_to_onnx import main as convert

    beside = Path(args.output).with_name(f"gpt2_past_{args.precision}.onnx")
    args.decoder_onnx = args.decoder_onnx or str(beside)
    switches = [f"--{name}" for name in ("use_gpu", "use_external_data_format") if getattr(args, name)]
    convert(["-m", args.model_name_or_path, "--output", args.decoder_onnx, "--cache_dir", args.cache_dir,
             "-o", "-p", args.precision, "-t", "1", "-r", "1", "--overwrite", *switches])


def t5_to_onnx(args: argparse.Namespace) -> None:
    """Export the T5 or mT5 that `args` name into the folder of `args.output`, and put the files' paths into
    `args.encoder_decoder_init_onnx` and `args.decoder_onnx`. Needs torch and transformers."""
    from .models.t5.convert_to_onnx import export_onnx_models

    paths = export_onnx_models(
        args.model_name_or_path, args.cache_dir, os.path.dirname(args.output) or ".", args.use_gpu,
        args.use_external_data_format, precision=args.precision, verbose=args.verbose, overwrite=True,
        model_type=args.model_type, encoder_decoder_init=args.encoder_decoder_init)
    args.encoder_decoder_init_onnx, args.decoder_onnx = paths


def _exported(args: argparse.Namespace) -> None:
    """See that the exported files are there; export them where they are not."""
    needed = ["decoder_onnx"] if args.model_type == "gpt2" else ["decoder_onnx", "encoder_decoder_init_onnx"]
    if all(getattr(args, name) and os.path.exists(getattr(args, name)) for name in needed):
        return
    try:
        (gpt2_to_onnx if args.model_type == "gpt2" else t5_to_onnx)(args)
    except Exception as error:
        raise InvalidArgument(
            f"the exported {args.model_type} is not here, nor can it be exported",
            found=f"{type(error).__name__}: {error}",
            expected=" and ".join(f"--{name}" for name in needed) + ", files that exist",
            cure="export the model with a cache and int32 tokens; or, with torch and transformers installed, "
                 "name a folder or a model of the hub") from error


def _gpt2_graphs(args: argparse.Namespace, decoder: ModelProto
                 ) -> tuple[dict[str, GraphProto], list[TensorProto]]:
    """The graphs of the node and what they share."""
    first = ModelProto()
    first.CopyFrom(decoder)
    first.graph.name = "gpt2 init decoder"
    if args.disable_separate_gpt2_decoder_for_init_run or not last_logits(first.graph):
        return {"decoder": decoder.graph}, move_initializers(decoder.graph)
    one_token(decoder.graph)
    shared = [] if args.disable_shared_initializers else get_shared_initializers(first, decoder)
    return {"init_decoder": first.graph, "decoder": decoder.graph}, shared


def _t5_graphs(args: argparse.Namespace, decoder: ModelProto, config: Any
               ) -> tuple[dict[str, GraphProto], list[TensorProto]]:
    encoder = _loaded(args, args.encoder_decoder_init_onnx)
    whole = len(encoder.graph.input) > 2
    encoder.graph.name = f"{args.model_type} " + ("encoder and decoder init" if whole else "encoder")
    verify_t5_encoder_decoder_init_subgraph(encoder.graph, args.precision)
    for model in (encoder, decoder):
        make_dim_proto_numeric_t5(model, config)
    shared = [] if args.disable_shared_initializers else get_shared_initializers(encoder, decoder)
    return {"encoder": encoder.graph, "decoder": decoder.graph}, shared


def _node(args: argparse.Namespace, kind: GenerationType, config: Any) -> Any:
    """The operator without its graphs."""
    attributes: dict[str, Any] = {
        "eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id,
        "model_type": 0 if args.model_type == "gpt2" else 1,
        "no_repeat_ngram_size": args.no_repeat_ngram_size}
    if kind is GenerationType.BEAMSEARCH:
        attributes["early_stopping"] = int(args.early_stopping)
    if kind is GenerationType.SAMPLING:
        attributes |= {name: getattr(args, name) for name in (
            "temperature", "top_p", "filter_value", "min_tokens_to_keep", "custom", "presence_penalty")}
    if args.model_type != "gpt2":
        attributes["decoder_start_token_id"] = config.decoder_start_token_id
    operator = _OPERATORS[kind]
    return helper.make_node(operator, _input_names(args, kind), _output_names(args), domain="com.microsoft",
                            name=f"{operator}_{args.model_type}", **attributes)


def _input_names(args: argparse.Namespace, kind: GenerationType) -> list[str]:
    """The node's inputs, "" for one that is left out."""
    names = ["input_ids", "max_length", "min_length"]
    if kind is GenerationType.BEAMSEARCH:
        names += ["num_beams", "num_return_sequences", "length_penalty"]
    names += ["repetition_penalty", "vocab_mask" if args.vocab_mask else "",
              "prefix_vocab_mask" if args.prefix_vocab_mask else "",
              "attention_mask" if args.custom_attention_mask else ""]
    if kind is GenerationType.SAMPLING:
        names += ["presence_mask" if args.custom and args.presence_mask else "", "seed" if args.seed else ""]
    return names


def _output_names(args: argparse.Namespace) -> list[str]:
    return ["sequences", *(["sequences_scores"] if args.output_sequences_scores else []),
            *(["scores"] if args.output_token_scores else [])]


def _interface(args: argparse.Namespace, kind: GenerationType, vocab: int) -> tuple[list[Any], list[Any]]:
    """The inputs and outputs of the model."""
    rows = ["batch_size", vocab]
    inputs = {"input_ids": (INT, ["batch_size", "sequence_length"]), "vocab_mask": (INT, [vocab]),
              "prefix_vocab_mask": (INT, rows), "attention_mask": (INT, ["batch_size", "sequence_length"]),
              "presence_mask": (INT, rows), "length_penalty": (FLOAT, [1]),
              "repetition_penalty": (FLOAT, [1])}
    returned = ["num_return_sequences"] if kind is GenerationType.BEAMSEARCH else []
    outputs = {"sequences": (INT, ["batch_size", *returned, "max_length"]),
               "sequences_scores": (FLOAT, ["batch_size", "num_return_sequences"]),
               "scores": (FLOAT, ["max_length - sequence_length", "batch_size", "num_beams", vocab])}
    return ([helper.make_tensor_value_info(name, *inputs.get(name, (INT, [1])))
             for name in _input_names(args, kind) if name],
            [helper.make_tensor_value_info(name, *outputs[name]) for name in _output_names(args)])


def _imports(decoder: ModelProto) -> list[Any]:
    found = list(decoder.opset_import)
    if all(it.domain != "com.microsoft" for it in found):
        found.append(helper.make_opsetid("com.microsoft", 1))
    return found


def main(argv: list[str] | None = None, sentences: list[str] | None = None) -> None:
    """The command: which search is made follows from --num_beams, --top_p and --num_return_sequences. The
    model is made; `sentences` would be for a comparison with torch, which is left to the caller."""
    args = parse_arguments(argv)
    kind = GenerationType.BEAMSEARCH
    if args.model_type == "gpt2" and args.num_beams == 1 and args.num_return_sequences == 1:
        drawn = 0.0 < args.top_p < 1.0
        kind = GenerationType.SAMPLING if drawn else GenerationType.GREEDYSEARCH
    convert_generation_model(args, kind)


if __name__ == "__main__":
    main()
