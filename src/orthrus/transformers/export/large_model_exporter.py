"""`python -m orthrus.transformers.large_model_exporter`: any causal language model of transformers as ONNX.

In: a name of the hub, a folder of weights, or one with a configuration only. Out: a model with its weights in
a file beside it; with `--with_past` it takes and gives a cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from ...shown import tell
from ..measure.arguments import parser, switch, value
from . import decoding, exporting, networks

_FLAGS = {
    "model": value("-m", "--model", required=True, help="name in the hub, or folder"),
    "saved_path": value("-s", "--saved_path", default="./onnx_models/", help="folder to write to"),
    "cache_dir": value("--cache_dir", help="folder of downloads"),
    "with_past": switch("--with_past", help="the model takes and gives a cache"),
    "opset": value("--opset", type=int, default=exporting.OPSET, help="version of ONNX's operators"),
}


@contextlib.contextmanager
def disable_huggingface_init() -> Iterator[None]:
    """While it lasts, networks are built without initializing weights that are loaded afterwards."""
    def kept(tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    names = ("kaiming_uniform_", "uniform_", "normal_")
    before = {name: getattr(torch.nn.init, name) for name in names}
    for name in names:
        setattr(torch.nn.init, name, kept)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch.nn.init, name, function)


def get_model_parameter_size(model: torch.nn.Module) -> int:
    """Megabytes of the weights."""
    return sum(each.numel() * each.element_size() for each in model.parameters()) >> 20


def export_onnx(hf_model: str, cache_dir: str | None, onnx_path_str: str, with_past: bool, opset: int) -> str:
    """Write the network into a folder, or to a path that ends in .onnx, and answer the path."""
    from transformers import AutoModelForCausalLM

    config = networks.configuration(hf_model, cache_dir)
    network = networks.network(hf_model, AutoModelForCausalLM, config, cache_dir)
    path = onnx_path_str
    if not path.endswith(".onnx"):
        name = os.path.basename(os.path.normpath(hf_model))
        path = os.path.join(path, name, f"{name}.onnx")
    inputs, axes = decoding.example(config, 2, 3, 5 if with_past else 0), dict(decoding.axes(config))
    if not with_past:
        network = _WithoutPast(network)
        inputs = {name: inputs[name] for name in decoding.INPUTS}
        axes["attention_mask"] = axes["input_ids"]
    outputs = decoding.outputs(config) if with_past else ["logits"]
    exporting.export(decoding.Decoder(network) if with_past else network, inputs, outputs, path,
                     {name: each for name, each in axes.items() if name in {*inputs, *outputs}}, opset,
                     external=True)
    return path


class _WithoutPast(torch.nn.Module):  # type: ignore[misc]
    """A network's logits for a whole text."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
                ) -> torch.Tensor:
        return self.network(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                            use_cache=False, return_dict=True).logits


def parse_arguments() -> Any:
    """The command's flags."""
    return parser("Export a causal language model to ONNX.", more=_FLAGS).parse_args()


def main() -> None:
    """The command."""
    given = parse_arguments()
    path = export_onnx(given.model, given.cache_dir, given.saved_path, given.with_past, given.opset)
    tell(f"The model is {path}")


if __name__ == "__main__":
    main()
