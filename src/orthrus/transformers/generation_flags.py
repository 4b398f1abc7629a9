"""The flags of `convert_generation`, by onnxruntime's names.

In: a list of arguments. Out: a namespace with every flag.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

_INPUT: dict[str, dict[str, Any]] = {
    "--model_type": {"default": "gpt2", "choices": ["gpt2", "t5", "mt5"], "help": "kind of model"},
    "--cache_dir": {"default": os.path.join(".", "cache_models"), "help": "where fetched models lie"},
    "--decoder_onnx": {"default": "", "help": "an exported decoder"},
    "--encoder_decoder_init_onnx": {"default": "",
                                    "help": "an exported encoder, or one with the decoder's first step"},
}
_OUTPUT: dict[str, dict[str, Any]] = {
    "--op_block_list": {"nargs": "*", "default": ["auto"], "help": "operators that stay float32"},
}
_SWITCHES = {
    "--verbose": "say more", "--use_external_data_format": "weights in a file beside the model",
    "--run_shape_inference": "write shapes into the exported graphs",
    "--disable_pad_vocab_size": "leave the vocabulary's width as it is",
    "--disable_separate_gpt2_decoder_for_init_run": "one graph for the first and the later steps",
    "--disable_shared_initializers": "every graph has its own weights",
    "--encoder_decoder_init": "the encoder makes the decoder's first step",
    "--output_sequences_scores": "an output of each sequence's score",
    "--output_token_scores": "an output of every token's score", "--early_stopping": "stop at num_beams ends",
    "--vocab_mask": "an input of tokens allowed", "--prefix_vocab_mask": "one of first tokens allowed",
    "--past_present_share_buffer": "one buffer for the cache, on a GPU",
    "--use_decoder_masked_attention": "attention of one token at a time, on a GPU",
    "--custom_attention_mask": "an input for the mask", "--presence_mask": "an input of tokens present",
    "--seed": "an input for the seed", "--use_sln_strict_mode": "exact norms, on a GPU",
    "--use_gpu": "run on a GPU", "--disable_parity": "no comparison with torch",
    "--disable_perf_test": "no measurement", "--torch_performance": "measure torch too",
    "--save_test_data": "keep inputs and outputs",
}
_NUMBERS: dict[str, tuple[type, Any, str]] = {
    "--no_repeat_ngram_size": (int, 0, "no run of so many tokens twice"),
    "--min_length": (int, 1, "fewest tokens"), "--max_length": (int, 50, "most tokens"),
    "--num_beams": (int, 4, "beams"), "--num_return_sequences": (int, 1, "sequences of each prompt"),
    "--length_penalty": (float, 1, "above 1 for longer sequences"),
    "--repetition_penalty": (float, 1, "above 1 against repetition"),
    "--temperature": (float, 1.0, "what logits are divided by"),
    "--top_p": (float, 1.0, "share of probability to draw from"),
    "--filter_value": (float, -float("inf"), "logits of tokens that are not drawn"),
    "--min_tokens_to_keep": (int, 1, "tokens to draw from at least"),
    "--presence_penalty": (float, 0.0, "less for tokens present"),
    "--custom": (int, 0, "1 for the other rule of top_p"), "--vocab_size": (int, -1, "tokens there are"),
    "--eos_token_id": (int, -1, "the end"), "--pad_token_id": (int, -1, "padding"),
    "--total_runs": (int, 1, "runs to measure"),
}
_SHORT = {"--model_name_or_path": "-m", "--precision": "-p", "--op_block_list": "-b",
          "--use_external_data_format": "-e", "--run_shape_inference": "-s",
          "--disable_pad_vocab_size": "-dpvs",
          "--disable_separate_gpt2_decoder_for_init_run": "-dsgd", "--disable_shared_initializers": "-i"}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Every flag, from `argv` or the command line. Ends the program with a message for one that is wrong."""
    parser = argparse.ArgumentParser(description="an exported model and a search become one model")

    def add(flag: str, **options: Any) -> None:
        parser.add_argument(*([_SHORT[flag]] if flag in _SHORT else []), flag, **options)
    add("--model_name_or_path", required=True, help="a folder of transformers, or the name of a model")
    add("--output", required=True, help="the file to write")
    add("--precision", default="fp32", choices=["fp32", "fp16"], help="of the exported graphs")
    for flag, options in (_INPUT | _OUTPUT).items():
        add(flag, **options)
    for flag, text in _SWITCHES.items():
        add(flag, action="store_true", help=text)
    for flag, (kind, default, text) in _NUMBERS.items():
        add(flag, type=kind, default=default, help=text)
    return parser.parse_args(argv)
