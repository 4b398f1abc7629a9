"""`python -m orthrus.transformers.models.llama.llama_parity`: does an export say what torch says?"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import torch

from ....errors import Fail
from ....shown import tell
from ...export import decoding, exporting, networks
from ...measure.arguments import parser, switch, value
from ...measure.benchmark_helper import setup_logger
from .llama_inputs import convert_inputs_for_ort, get_merged_sample_with_past_kv_inputs, verify_ort_inputs
from .llama_torch import setup_torch_model

logger = logging.getLogger("")

TOLERANCE = {"fp32": 1e-3, "fp16": 1e-1, "int8": 2.0, "int4": 4.0}
"""How far logits may be from torch's, by precision."""
_FLAGS = {
    "model_name": value("-m", "--model_name", required=True, help="name in the hub, or folder"),
    "torch_model_directory": value("-t", "--torch_model_directory", help="folder of the network"),
    "onnx_model_path": value("-o", "--onnx_model_path", required=True, help="the exported model"),
    "execution_provider": value("-ep", "--execution_provider", default="cpu", help="where to run it"),
    "verbose": switch("-v", "--verbose", help="say more"),
    "use_past_kv": switch("-p", "--use_past_kv", help="compare with a cache that is filled"),
    "merged": switch("--merged", help="the model takes prompts and what follows them"),
    "precision": value("-fp", "--precision", default="fp32", choices=list(TOLERANCE), help="of the model"),
    "cache_dir": value("--cache_dir", default="./model_cache", help="folder of downloads"),
}


def get_sequence_lengths(args: Any, config: Any) -> tuple[int, int, int]:
    """Tokens in the cache, new ones, and how many fit."""
    past = 8 if args.use_past_kv else 0
    return past, 1 if args.use_past_kv else 8, min(config.max_position_embeddings, 2048)


def get_inputs(args: Any, config: Any) -> dict[str, Any]:
    """Random inputs for torch."""
    past, tokens, most = get_sequence_lengths(args, config)
    return get_merged_sample_with_past_kv_inputs(config, torch.device("cpu"), 2, tokens, past, most,
                                                 return_dict=True)


def torch_deepcopy(value: Any) -> Any:
    """A copy of tensors in lists, dicts and caches: a run of torch adds to a cache."""
    return copy.deepcopy(value)


def verify_parity(args: Any, location: str, use_auth_token: bool, kv_cache_ortvalues: dict[str, Any],
                  pytorch_model: None | torch.nn.Module = None, config: Any = None) -> dict[str, Any]:
    """Compare logits and cache of `args.onnx_model_path` with torch's, and answer `kv_cache_ortvalues` as it
    came. Raises Fail where they differ by more than `TOLERANCE`."""
    if pytorch_model is None or config is None:
        config, pytorch_model = setup_torch_model(args, location, use_auth_token)
    inputs = get_inputs(args, config)
    with torch.no_grad():
        given = torch_deepcopy(inputs)
        past = [each for pair in given.pop("past_key_values") for each in pair]
        expected = decoding.Decoder(pytorch_model).eval()(*given.values(), *past)
    runner = exporting.session(args.onnx_model_path, provider=args.execution_provider)
    feed = convert_inputs_for_ort(inputs)
    for each in runner.get_inputs():
        if each.type == "tensor(float16)":
            feed[each.name] = feed[each.name].astype("float16")
    gap = exporting.difference(expected, runner.run(None, verify_ort_inputs(runner, feed)))
    tolerance = TOLERANCE[args.precision]
    tell(f"{args.onnx_model_path}: the largest difference from torch {gap:.3g}")
    if not gap <= tolerance:
        raise Fail("The converted model differs from torch", node=args.onnx_model_path, found=gap,
                   expected=f"at most {tolerance}", cure="convert it again without --optimize")
    return kv_cache_ortvalues


def get_args(argv: Sequence[str]) -> Any:
    """The command's flags."""
    return parser("Compare an exported Llama with torch.", more=_FLAGS).parse_args(argv or None)


def main(argv: Sequence[str] = ()) -> None:
    """The command."""
    given = get_args(argv)
    setup_logger(given.verbose)
    location = given.torch_model_directory or given.model_name
    verify_parity(given, location, not networks.is_bare(location) and given.torch_model_directory is None, {})


if __name__ == "__main__":
    main()
