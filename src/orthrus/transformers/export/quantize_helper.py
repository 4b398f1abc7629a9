"""Networks and models with 8-bit weights, dynamically quantized."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

logger = logging.getLogger(__name__)


def conv1d_to_linear(model: torch.nn.Module) -> None:
    """Replace each Conv1D of transformers, which is a linear layer with its weights transposed, by a Linear.
    The network itself is changed."""
    from transformers.pytorch_utils import Conv1D

    for name, part in list(model.named_children()):
        if isinstance(part, Conv1D):
            linear = torch.nn.Linear(*part.weight.shape)
            linear.weight.data = part.weight.data.T.contiguous()
            linear.bias.data = part.bias.data
            setattr(model, name, linear)
        else:
            conv1d_to_linear(part)


class QuantizeHelper:
    """Everything is a static method."""

    @staticmethod
    def quantize_torch_model(model: torch.nn.Module, dtype: Any = torch.qint8) -> Any:
        """A network with its linear layers quantized by torch; `model`'s Conv1D become Linear."""
        conv1d_to_linear(model)
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=dtype)

    @staticmethod
    def quantize_onnx_model(onnx_model_path: str, quantized_model_path: str,
                            use_external_data_format: bool = False) -> None:
        """Write a model with its weights quantized by this package."""
        from ...quantization import quantize_dynamic

        os.makedirs(os.path.dirname(os.path.abspath(quantized_model_path)), exist_ok=True)
        quantize_dynamic(onnx_model_path, quantized_model_path,
                         use_external_data_format=use_external_data_format,
                         extra_options={"DefaultTensorType": 1})
        logger.info("quantized model saved to %s: %.2f MB, was %.2f MB", quantized_model_path,
                    os.path.getsize(quantized_model_path) / 2**20, os.path.getsize(onnx_model_path) / 2**20)
