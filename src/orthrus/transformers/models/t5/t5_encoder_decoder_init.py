"""T5's encoder with what the decoder's first token takes of it, in one model."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ...export import encoder_decoder, exporting
from ...export.past_helper import PastKeyValuesHelper
from .t5_decoder import Flat, T5DecoderInit
from .t5_encoder import T5Encoder, T5EncoderInputs

logger = logging.getLogger(__name__)

_LENGTHS = ((2, 5), (1, 4), (3, 7), (1, 1))
"""Batch and tokens of comparisons."""


class T5EncoderDecoderInit(torch.nn.Module):  # type: ignore[misc]
    """The encoder and the decoder's first token; with `output_cross_only` instead of that token only the keys
    and values of the encoder's output."""

    def __init__(self, encoder: torch.nn.Module, decoder: torch.nn.Module, lm_head: torch.nn.Linear,
                 config: Any, decoder_start_token_id: int | None = None, output_cross_only: bool = False
                 ) -> None:
        super().__init__()
        self.config, self.output_cross_only = config, output_cross_only
        self.t5_encoder = T5Encoder(encoder, config)
        self.t5_decoder_init = T5DecoderInit(decoder, lm_head, config, decoder_start_token_id)

    def forward(self, encoder_input_ids: torch.Tensor, encoder_attention_mask: torch.Tensor,
                decoder_input_ids: torch.Tensor | None = None) -> Any:
        """Logits, the encoder's hidden states and the cache, grouped by kind; or the keys and values of the
        encoder's output alone."""
        hidden = self.t5_encoder(encoder_input_ids, encoder_attention_mask)
        if self.output_cross_only:
            layers = [block.layer[1].EncDecAttention for block in self.t5_decoder_init.decoder.block]
            return encoder_decoder.cross_attention_of(
                self.t5_decoder_init.decoder, hidden, [(each.k, each.v) for each in layers],
                self.config.num_heads)
        logits, own, cross = self.t5_decoder_init(decoder_input_ids, encoder_attention_mask, hidden)
        return logits, hidden, own, cross


class T5EncoderDecoderInitInputs:
    """Tokens, their mask, and the decoder's first token, which may be None."""

    def __init__(self, encoder_input_ids: Any, encoder_attention_mask: Any, decoder_input_ids: Any = None
                 ) -> None:
        self.encoder_input_ids, self.encoder_attention_mask = encoder_input_ids, encoder_attention_mask
        self.decoder_input_ids = decoder_input_ids

    @staticmethod
    def create_dummy(config: Any, batch_size: int, encode_sequence_length: int, use_decoder_input_ids: int,
                     device: torch.device, use_int32_inputs: bool = False) -> T5EncoderDecoderInitInputs:
        """Random inputs; the decoder's first token is the configuration's."""
        inputs = T5EncoderInputs.create_dummy(batch_size, encode_sequence_length, config.vocab_size, device,
                                              use_int32_inputs)
        first = None
        if use_decoder_input_ids:
            first = torch.full_like(inputs.input_ids[:, :1], config.decoder_start_token_id)
        return T5EncoderDecoderInitInputs(inputs.input_ids, inputs.attention_mask, first)

    def to_list(self) -> list[Any]:
        """The tensors that there are."""
        return [each for each in vars(self).values() if each is not None]

    def named(self) -> dict[str, Any]:
        """The tensors that there are, by input name."""
        return {name: each for name, each in vars(self).items() if each is not None}


class T5EncoderDecoderInitHelper:
    """Everything is a static method."""

    @staticmethod
    def export_onnx(model: T5EncoderDecoderInit, device: torch.device, onnx_model_path: str,
                    use_decoder_input_ids: bool = True, verbose: bool = True,
                    use_external_data_format: bool = False, use_int32_inputs: bool = False) -> None:
        """Write the model."""
        layers = model.config.num_decoder_layers
        inputs = T5EncoderDecoderInitInputs.create_dummy(
            model.config, 2, 3, use_decoder_input_ids and not model.output_cross_only, device,
            use_int32_inputs).named()
        present = PastKeyValuesHelper.get_past_names(layers, present=True)
        outputs = (present[2 * layers:] if model.output_cross_only
                   else ["logits", "encoder_hidden_states", *present])
        encoded = {0: "batch_size", 1: "encode_sequence_length"}
        axes = {"encoder_input_ids": encoded, "encoder_attention_mask": encoded,
                "encoder_hidden_states": encoded, "decoder_input_ids": {0: "batch_size"},
                "logits": {0: "batch_size"}, **encoder_decoder.axes_of_past(layers)}
        for name in present[:2 * layers]:
            axes[name] = {0: "batch_size"}
        known = {*inputs, *outputs}
        exporting.export(Flat(model), inputs, outputs, onnx_model_path,
                         {name: each for name, each in axes.items() if name in known},
                         external=use_external_data_format, verbose=verbose)

    @staticmethod
    def onnxruntime_inference(ort_session: Any, inputs: T5EncoderDecoderInitInputs) -> list[Any]:
        """The session's outputs."""
        return ort_session.run(None, exporting.feed(inputs.named()))

    @staticmethod
    def verify_onnx(model: T5EncoderDecoderInit, ort_session: Any, device: torch.device,
                    use_int32_inputs: bool, max_cases: int = 4) -> float:
        """The largest difference from torch over random inputs."""
        tokens = any(each.name == "decoder_input_ids" for each in ort_session.get_inputs())
        cases = [T5EncoderDecoderInitInputs.create_dummy(model.config, *lengths, tokens, device,
                                                         use_int32_inputs).named()
                 for lengths in _LENGTHS[:max_cases]]
        most = exporting.parity(model, ort_session, cases)
        logger.info("the encoder differs from torch by at most %.3g", most)
        return most
