"""Whisper's encoder: a spectrogram in, hidden states out."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ...export import exporting

logger = logging.getLogger(__name__)


def features(config: Any, batch: int = 2) -> torch.Tensor:
    """A random spectrogram, [batch, bands, frames]; Whisper takes one number of frames."""
    return torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)


class WhisperEncoder(torch.nn.Module):  # type: ignore[misc]
    """The encoder of a network of transformers. `model_impl`: only "hf"."""

    def __init__(self, config: Any, model: Any, model_impl: str) -> None:
        super().__init__()
        self.config, self.model, self.model_impl = config, model, model_impl

    def forward(self, audio_features: torch.Tensor) -> torch.Tensor:
        """Hidden states, [batch, frames / 2, width]."""
        return self.model.model.encoder(audio_features, return_dict=True).last_hidden_state

    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return ["audio_features"]

    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return ["encoder_hidden_states"]

    def dynamic_axes(self, input_names: list[str], output_names: list[str]) -> dict[str, dict[int, str]]:
        """Open dimensions: the batch."""
        return {name: {0: "batch_size"} for name in (*input_names, *output_names)}

    def export_onnx(self, onnx_model_path: str, provider: str, verbose: bool = True,
                    use_external_data_format: bool = False, use_fp16_inputs: bool = False) -> None:
        """Write the encoder."""
        names = self.input_names(), self.output_names()
        exporting.export(self, {names[0][0]: features(self.config)}, names[1], onnx_model_path,
                         self.dynamic_axes(*names), external=use_external_data_format, verbose=verbose)

    def verify_onnx(self, onnx_model_path: str, provider: str, use_fp16_inputs: bool) -> float:
        """The largest difference from torch over random inputs."""
        runner = exporting.session(onnx_model_path, provider=provider)
        return exporting.parity(self, runner, [{"audio_features": features(self.config, batch)}
                                               for batch in (2, 1)])
