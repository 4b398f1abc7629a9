"""`python -m orthrus.transformers.models.phi2.convert_to_onnx`: Phi-2 as ONNX, for the CPU.

In: a name of the hub, a folder of weights, or one with a configuration only, for random weights. Out: the
model of float32, and of 4-bit weights, each held against torch. Flags for GPUs are refused.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ....errors import Fail, InvalidArgument
from ....shown import tell
from ...export import decoding, exporting, finishing, networks
from ...fusion_options import AttentionOpType
from ...measure.arguments import parser, switch, value
from ...measure.benchmark_helper import Precision
from ..llama.llama_parity import TOLERANCE

_GPU = ("fp32_gpu", "fp16_gpu", "int4_gpu", "fp16_gpu_sm8x", "int4_gpu_sm8x", "fp16_vllm", "int4_vllm",
        "use_cuda_graph")
_LENGTHS = ((2, 3, 5), (1, 1, 7), (1, 4, 0))
"""Texts, new tokens and tokens in the cache: of comparisons."""


class ConvertPhi2ToONNX:
    """Phi-2's conversion. `model_class`: the name of the hub, or a folder."""

    def __init__(self, device: torch.device, model_class: str = "microsoft/phi-2",
                 cache_dir: str = "./cache") -> None:
        self.model_class, self.device, self.cache_dir = model_class, device, cache_dir
        self.phi_config = networks.configuration(model_class, cache_dir)
        self.phi_model: Any = None
        self.batch_size, self.sequence_length = 2, 8
        self.attn_op_type: AttentionOpType | None = None
        self.precision: Precision | None = None
        self.block_size, self.accuracy_level = finishing.BLOCK, None

    def set_quantization_params(self, block_size: int, accuracy_level: int | None) -> None:
        """How weights of 4 bits are made: how many share a scale, MatMulNBits' attribute."""
        self.block_size = block_size
        self.accuracy_level = accuracy_level  # type: ignore[assignment]

    def init_attn_type_and_precision(self, attn_op_type: AttentionOpType, precision: Precision) -> None:
        """Which operator attention becomes, and what weights are."""
        self.attn_op_type, self.precision = attn_op_type, precision

    def erase_onnx_model(self, onnx_path: str) -> None:
        """Delete a model and the file of its weights."""
        exporting.remove(onnx_path)

    def get_phi2_torch_model(self) -> None:
        """Load the network, once."""
        from transformers import AutoModelForCausalLM

        if self.phi_model is None:
            self.phi_model = networks.network(self.model_class, AutoModelForCausalLM, self.phi_config,
                                              self.cache_dir).to(self.device)

    def get_phi2_torch_inputs(self, batch_size: int, sequence_length: int) -> tuple[Any, ...]:
        """A random prompt: tokens, mask, positions, and an empty cache."""
        return tuple(decoding.example(self.phi_config, batch_size, sequence_length, 0).values())

    def dynamo_export(self, onnx_path: str) -> None:
        """Write the network by torch.export."""
        self.export(onnx_path, dynamo=True)

    def export(self, onnx_path: str, dynamo: bool = False) -> None:
        """Write the network with its cache, by tracing or by torch.export."""
        self.get_phi2_torch_model()
        exporting.export(decoding.Decoder(self.phi_model), decoding.example(self.phi_config, 2, 3, 5),
                         decoding.outputs(self.phi_config), onnx_path, decoding.axes(self.phi_config),
                         dynamo=dynamo, external=True)

    def optimize_phi2_onnx(self, onnx_path: str, onnx_path_opt: str) -> None:
        """Write the model as the optimizer makes it, with the attention and the precision that are set."""
        from ...fusion_options import FusionOptions

        options = FusionOptions("phi")
        if self.attn_op_type is not None:
            options.set_attention_op_type(self.attn_op_type)
        precision = self.precision or Precision.FLOAT32
        finishing.optimize(onnx_path, onnx_path_opt, "phi", self.phi_config.num_attention_heads,
                           self.phi_config.hidden_size, precision is Precision.FLOAT16, True, options)
        if precision in (Precision.INT4, Precision.INT8):
            finishing.convert(onnx_path_opt, onnx_path_opt, precision, True, block_size=self.block_size,
                              accuracy_level=self.accuracy_level)

    def verify(self, onnx_path: str) -> float:
        """The largest difference from torch over random inputs."""
        self.get_phi2_torch_model()
        cases = [decoding.example(self.phi_config, *lengths) for lengths in _LENGTHS]
        return exporting.parity(decoding.Decoder(self.phi_model), exporting.session(onnx_path), cases)


def parse_arguments() -> Any:
    """The command's flags."""
    own = {
        "model_name_or_path": value("-m", "--model_name_or_path", default="microsoft/phi-2",
                                    help="name in the hub, or folder"),
        "fp32_cpu": switch("--fp32_cpu", help="write the model of float32"),
        "int4_cpu": switch("--int4_cpu", help="write the model of 4-bit weights"),
        **{name: switch(f"--{name}", help="refused: for a GPU") for name in _GPU},
        "overwrite": switch("--overwrite", help="write again what is there"),
        "cache_dir": value("--cache_dir", default="./cache", help="folder of downloads"),
        "skip_export": switch("--skip_export", help="the exported model is there"),
        "output_dir": value("--output_dir", default="./", help="folder to write to"),
        "block_size": value("--block_size", type=int, default=16, help="weights that share a scale"),
        "int4_accuracy_level": value("--int4_accuracy_level", type=int, default=0,
                                     help="accuracy_level of MatMulNBits"),
    }
    return parser("Convert Phi-2 to ONNX.", more=own).parse_args()


def main() -> None:
    """The command. Raises InvalidArgument for flags of a GPU, Fail for a model that differs from torch."""
    given = parse_arguments()
    refused = [name for name in _GPU if getattr(given, name)]
    if refused or not (given.fp32_cpu or given.int4_cpu):
        raise InvalidArgument("There is nothing to convert to", found=", ".join(refused) or "no target",
                              expected="--fp32_cpu or --int4_cpu", cure="name one of them")
    converter = ConvertPhi2ToONNX(torch.device("cpu"), given.model_name_or_path, given.cache_dir)
    os.makedirs(given.output_dir, exist_ok=True)
    raw = os.path.join(given.output_dir, "phi2.onnx")
    if not given.skip_export and (given.overwrite or not os.path.exists(raw)):
        converter.export(raw)
    for wanted, precision in ((given.fp32_cpu, Precision.FLOAT32), (given.int4_cpu, Precision.INT4)):
        if not wanted:
            continue
        path = os.path.join(given.output_dir, f"phi2_decoder_{precision}_cpu.onnx")
        converter.set_quantization_params(given.block_size, given.int4_accuracy_level)
        converter.init_attn_type_and_precision(AttentionOpType.MultiHeadAttention, precision)
        if given.overwrite or not os.path.exists(path):
            converter.optimize_phi2_onnx(raw, path)
        gap = converter.verify(path)
        tell(f"{path}: the largest difference from torch {gap:.3g}")
        if not gap <= TOLERANCE[str(precision)]:
            raise Fail("The converted model differs from torch", node=path, found=gap,
                       expected=f"at most {TOLERANCE[str(precision)]}",
                       cure="take the exported model, phi2.onnx")


if __name__ == "__main__":
    main()
