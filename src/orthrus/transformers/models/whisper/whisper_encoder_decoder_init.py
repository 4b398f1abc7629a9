"""Whisper's encoder with what its decoder takes of it, in one model."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ...export import encoder_decoder, exporting
from ...export.past_helper import PastKeyValuesHelper
from .whisper_decoder import WhisperDecoder
from .whisper_encoder import WhisperEncoder, features

logger = logging.getLogger(__name__)


class WhisperEncoderDecoderInit(torch.nn.Module):  # type: ignore[misc]
    """The encoder and the decoder's first tokens; with `no_beam_search_op` instead of these only the keys and
    values of the encoder's output. `model_impl`: only "hf"."""

    def __init__(self, config: Any, model: Any, model_impl: str, no_beam_search_op: bool = False) -> None:
        super().__init__()
        self.config, self.model, self.model_impl = config, model, model_impl
        self.no_beam_search_op = no_beam_search_op
        self.whisper_encoder = WhisperEncoder(config, model, model_impl)
        self.whisper_decoder = WhisperDecoder(config, model, model_impl, no_beam_search_op)

    def hf_forward_for_beam_search_op(self, audio_features: torch.Tensor, decoder_input_ids: torch.Tensor
                                      ) -> tuple[Any, ...]:
        """Logits, the encoder's hidden states and the cache, grouped by kind."""
        hidden = self.whisper_encoder(audio_features)
        logits, own, cross = self.whisper_decoder(decoder_input_ids, hidden)
        return (logits, hidden, *own, *cross)

    def hf_forward_for_no_beam_search_op(self, audio_features: torch.Tensor) -> tuple[Any, ...]:
        """The encoder's hidden states, and their keys and values."""
        hidden = self.whisper_encoder(audio_features)
        decoder = self.model.model.decoder
        parts = [(layer.encoder_attn.k_proj, layer.encoder_attn.v_proj) for layer in decoder.layers]
        return (hidden, *encoder_decoder.cross_attention_of(decoder, hidden, parts,
                                                            self.config.decoder_attention_heads))

    def forward(self, audio_features: torch.Tensor, decoder_input_ids: torch.Tensor | None = None
                ) -> tuple[Any, ...]:
        """One of the two, as it was asked for."""
        if self.no_beam_search_op or decoder_input_ids is None:
            return self.hf_forward_for_no_beam_search_op(audio_features)
        return self.hf_forward_for_beam_search_op(audio_features, decoder_input_ids)

    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return ["audio_features"] if self.no_beam_search_op else ["audio_features", "decoder_input_ids"]

    def output_names(self) -> list[str]:
        """Names of the outputs."""
        layers = self.config.decoder_layers
        present = PastKeyValuesHelper.get_past_names(layers, present=True)
        if self.no_beam_search_op:
            return ["encoder_hidden_states", *present[2 * layers:]]
        return ["logits", "encoder_hidden_states", *present]

    def dynamic_axes(self, input_names: list[str], output_names: list[str]) -> dict[str, dict[int, str]]:
        """Open dimensions: the batch, and the first tokens."""
        made = {name: {0: "batch_size"} for name in (*input_names, *output_names)}
        for name in made:
            if name in ("decoder_input_ids", "logits"):
                made[name][1] = "decode_sequence_length"
            elif "self" in name:
                made[name][2] = "decode_sequence_length"
        return made

    def inputs(self, use_fp16_inputs: bool, use_int32_inputs: bool, return_dict: bool = False) -> Any:
        """Random inputs, as a tuple or by name."""
        made = {"audio_features": features(self.config)}
        if not self.no_beam_search_op:
            kind = torch.int32 if use_int32_inputs else torch.int64
            made["decoder_input_ids"] = torch.randint(self.config.vocab_size, (2, 2), dtype=kind)
        return made if return_dict else tuple(made.values())

    def export_onnx(self, onnx_model_path: str, provider: str, verbose: bool = True,
                    use_external_data_format: bool = False, use_fp16_inputs: bool = False,
                    use_int32_inputs: bool = True) -> None:
        """Write the model."""
        names = self.input_names(), self.output_names()
        exporting.export(self, self.inputs(False, use_int32_inputs, True), names[1], onnx_model_path,
                         self.dynamic_axes(*names), external=use_external_data_format, verbose=verbose)

    def verify_onnx(self, onnx_model_path: str, provider: str, use_fp16_inputs: bool,
                    use_int32_inputs: bool) -> float:
        """The largest difference from torch over random inputs."""
        runner = exporting.session(onnx_model_path, provider=provider)
        return exporting.parity(self, runner, [self.inputs(False, use_int32_inputs, True) for _ in range(2)])
