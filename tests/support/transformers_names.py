"""The public names of onnxruntime.transformers, and the table of docs/transformers.md that lists them.

In: `ort_transformers_names.json`, module by module: a function's parameters, a class's members with theirs
(an enum's values in brackets), None for a constant. Out: the table, between `<!-- names -->` and
`<!-- end -->`; `python tests/support/transformers_names.py docs/transformers.md` rewrites the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from names_page import listed, rewrite, with_table
from transformers_patterns import PATTERNS

_RECORD = Path(__file__).parents[1] / "transformers" / "data" / "ort_transformers_names.json"

MODULES: dict[str, dict[str, Any]] = json.loads(_RECORD.read_text(encoding="utf-8"))["modules"]


_TENSORFLOW = "transformers has no networks of TensorFlow any more"
_STEPS = "a step of the export, which is another here"
_GPU = "for NVIDIA's GPUs"
_OPENAI = "OpenAI's own network is not exported, transformers' is"
_STUDY = "onnxruntime's own study, of one network on one machine"
_LATER = "not written"
_SD, _SAM, _WHISPER, _LLAMA = ("models.stable_diffusion", "models.sam2", "models.whisper", "models.llama")
_LEFT_OUT: dict[tuple[str, str], str] = {
    (_TENSORFLOW, ""): "convert_tf_models_to_pytorch",
    (_TENSORFLOW, "benchmark"): "run_with_tf_optimizations run_tensorflow",
    (_GPU, "benchmark_helper"): "CudaMemoryMonitor RocmMemoryMonitor",
    (_GPU, "large_model_exporter"): "auto_pipeline_parallel move_to_appropriate_device "
                                    "adapt_inputs_to_device",
    (_STEPS, "large_model_exporter"): "initialize_model_and_sample_inputs retrieve_onnx_inputs "
                                      "fetch_onnx_inputs_outputs_name do_export_internal",
    (_STUDY, "models.gpt2"): "gpt2_parity parity_check_helper",
    (_LATER, "models.gpt2"): "gpt2_tester",
    (_STUDY, _LLAMA): "benchmark_all",
    (_LATER, _LLAMA): "benchmark benchmark_e2e",
    ("for several processes by MPI", _LLAMA): "dist_settings",
    ("Intel's tool, which is not part of onnxruntime", _LLAMA):
        "quant_kv_dataloader convert_to_onnx.smooth_quant",
    ("Optimum's models, which Optimum exports", _LLAMA): "convert_to_onnx.optimize_optimum",
    ("one model takes prompts and what follows", _LLAMA): "convert_to_onnx.run_torchscript_separate_export",
    ("the optimizer's option", _LLAMA): "convert_to_onnx.use_group_query_attention",
    ("inputs of Microsoft's own file of Llama 2", _LLAMA): "llama_inputs.get_msft_sample_inputs",
    (_LATER, f"{_LLAMA}.llama_inputs"): "add_io_bindings_as_ortvalues add_io_bindings_as_tensors "
                                        "get_initial_inputs_and_outputs",
    (_GPU, "models.phi2"): "inference_example convert_to_onnx.ConvertPhi2ToONNX.convert_to_use_cuda_graph",
    (_OPENAI, _WHISPER): "whisper_decoder.WhisperDecoder.oai_forward "
                         "whisper_encoder_decoder_init.WhisperEncoderDecoderInit."
                         "oai_forward_for_beam_search_op "
                         "whisper_encoder_decoder_init.WhisperEncoderDecoderInit."
                         "oai_forward_for_no_beam_search_op",
    (_STEPS, _WHISPER): "whisper_encoder.WhisperEncoder.fix_layernorm_weights " + " ".join(
        f"whisper_decoder.WhisperDecoder.{name}" for name in (
            "fix_key_value_cache_dims", "fix_io", "fix_inputs_and_outputs", "fix_layernorm_weights")) + " "
        + " ".join(f"whisper_encoder_decoder_init.WhisperEncoderDecoderInit.{name}" for name in (
            "fix_key_value_cache_dims", "fix_outputs", "fix_layernorm_weights"))
        + " whisper_inputs convert_to_onnx.get_sensitive_node_names convert_to_onnx.make_quant_algo_config",
    ("makes a transcription, which needs the hub's processor",
     f"{_WHISPER}.whisper_helper.WhisperHelper"): "save_processing pt_transcription_for_verify_onnx "
                                                  "select_transcription_options get_outputs verify_onnx",
    (_STUDY, _WHISPER): "benchmark_all",
    (_LATER, _WHISPER): "benchmark whisper_chain whisper_jump_times",
    (_LATER, "models"): "bart.export bert.eval_squad longformer.benchmark_longformer",
    ("its operator, LongformerAttention, has a kernel for GPUs only",
     "models.longformer"): "convert_to_onnx longformer_helper",
    (_LATER, "models.longformer"): "generate_test_data",
    ("networks of the package sam2, from its repository", _SAM):
        "convert_to_onnx image_decoder image_encoder mask_decoder prompt_encoder sam2_utils "
        "sam2_image_onnx_predictor sam2_demo benchmark_sam2",
    (_GPU, _SAM): "nvtx_helper",
    (_GPU, _SD): "benchmark benchmark_controlnet demo_txt2img demo_txt2img_xl demo_utils diffusion_models "
                 "diffusion_schedulers engine_builder engine_builder_ort_cuda engine_builder_ort_trt "
                 "engine_builder_tensorrt engine_builder_torch pipeline_stable_diffusion trt_utilities "
                 "ort_optimizer",
    (_LATER, _SD): "optimize_pipeline",
    (_GPU, "convert_generation"): "pad_weights_of_logits_matmul "
        "update_decoder_subgraph_past_present_share_buffer find_past_seq_len_usage "
        "add_cache_indirection_to_mha update_decoder_subgraph_use_decoder_masked_attention "
        "add_output_qk_to_mha fix_past_sequence_length "
        "replace_mha_with_dmmha replace_mha_with_gqa update_decoder_subgraph_output_cross_attention "
        "update_decoder_subgraph_share_buffer_and_use_decoder_masked_mha pack_qkv_for_decoder_masked_mha",
    (_STUDY, "convert_generation"): "test_torch_performance test_gpt_model test_t5_model",
}
NOT_HERE = {f"{home}.{name}".lstrip("."): why
            for (why, home), names in _LEFT_OUT.items() for name in names.split()} | {
    name: why for why, names in PATTERNS.items() for name in names}
"""Modules, names of modules and members of classes that are left out, with the reason."""


def path(module: str) -> str:
    """The module's path here."""
    return f"orthrus.transformers.{module}"


def here() -> list[str]:
    """The modules that are to be here."""
    return [module for module in MODULES if module not in NOT_HERE]


def table() -> str:
    """A row per module: its names, and those that are left out with the reason."""
    rows = ["| module | here | not here |", "|---|---|---|"]
    for module in MODULES:
        if module in here():
            names = listed(name for name in MODULES[module] if f"{module}.{name}" not in NOT_HERE)
            rows.append(f"| `{path(module)}` | {names} | {'; '.join(_lacking(module))} |")
        elif module in NOT_HERE:
            rows.append(f"| `{path(module)}` | | all: {NOT_HERE[module]} |")
    return "\n".join(rows) + "\n"


def _lacking(module: str) -> Iterator[str]:
    left: dict[str, list[str]] = {}
    for name, why in NOT_HERE.items():
        own = name.removeprefix(f"{module}.")
        if own != name and own.split(".")[0] in MODULES[module]:
            left.setdefault(why, []).append(own)
    yield from (f"{listed(names)}: {why}" for why, names in left.items())


def renewed(page: str) -> str:
    """`page` with the table as the record has it."""
    return with_table(page, table())


if __name__ == "__main__":
    rewrite(renewed)
