"""T5's decoder, for the first token and for those after it."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ...export import encoder_decoder, exporting
from ...export.past_helper import PastKeyValuesHelper
from .t5_encoder import T5EncoderInputs

logger = logging.getLogger(__name__)

_LENGTHS = ((2, 5, 3), (1, 4, 1), (3, 7, 6), (1, 2, 2))
"""Batch, tokens of the encoder, tokens in the cache: of comparisons."""


def logits_of(hidden: torch.Tensor, lm_head: Any, config: Any) -> torch.Tensor:
    """What T5 makes of its decoder's last hidden states."""
    if getattr(config, "scale_decoder_outputs", False):
        hidden = hidden * config.d_model**-0.5
    return lm_head(hidden)


class T5DecoderInit(torch.nn.Module):  # type: ignore[misc]
    """The decoder for the first token."""

    def __init__(self, decoder: torch.nn.Module, lm_head: torch.nn.Module, config: Any,
                 decoder_start_token_id: int | None = None) -> None:
        super().__init__()
        self.decoder, self.lm_head, self.config = decoder, lm_head, config
        self.decoder_start_token_id = (config.decoder_start_token_id if decoder_start_token_id is None
                                       else decoder_start_token_id)

    def forward(self, decoder_input_ids: torch.Tensor | None, encoder_attention_mask: torch.Tensor,
                encoder_hidden_states: torch.Tensor) -> tuple[Any, ...]:
        """Logits, the keys and values of the decoder's layers, those of the encoder's output."""
        if decoder_input_ids is None:
            decoder_input_ids = torch.full_like(encoder_attention_mask[:, :1], self.decoder_start_token_id)
        hidden, own, cross = encoder_decoder.run(self.decoder, decoder_input_ids, encoder_hidden_states, (),
                                                 self.config.num_decoder_layers, encoder_attention_mask)
        return logits_of(hidden, self.lm_head, self.config), own, cross


class T5Decoder(torch.nn.Module):  # type: ignore[misc]
    """The decoder with a cache."""

    def __init__(self, decoder: Any, lm_head: Any, config: Any) -> None:
        super().__init__()
        self.decoder, self.lm_head, self.config = decoder, lm_head, config

    def forward(self, decoder_input_ids: torch.Tensor, encoder_attention_mask: torch.Tensor,
                *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits, and the keys and values that grew. `past` is grouped by kind."""
        layers = self.config.num_decoder_layers
        hidden, own, _ = encoder_decoder.run(
            self.decoder, decoder_input_ids, encoder_decoder.stand_in(past, layers, self.config.d_model),
            past, layers, encoder_attention_mask)
        return (logits_of(hidden, self.lm_head, self.config), *own)


class T5DecoderInputs:
    """A token, the encoder's mask and the cache, grouped by kind; no cache for the first token."""

    def __init__(self, decoder_input_ids: Any, encoder_attention_mask: Any, past_key_values: Any = None
                 ) -> None:
        self.decoder_input_ids, self.encoder_attention_mask = decoder_input_ids, encoder_attention_mask
        self.past_key_values = past_key_values

    @staticmethod
    def create_dummy(config: Any, batch_size: int, encode_sequence_length: int,
                     past_decode_sequence_length: int, device: torch.device, float16: bool = False,
                     use_int32_inputs: bool = False) -> T5DecoderInputs:
        """Random inputs."""
        kind = torch.int32 if use_int32_inputs else torch.int64
        floats = torch.float16 if float16 else torch.float32
        mask = T5EncoderInputs.create_dummy(batch_size, encode_sequence_length, config.vocab_size, device,
                                            use_int32_inputs).attention_mask
        past = [torch.rand(batch_size, config.num_heads, length, config.d_kv, dtype=floats, device=device)
                for length in (past_decode_sequence_length, encode_sequence_length)
                for _ in range(2 * config.num_decoder_layers)]
        tokens = torch.randint(config.vocab_size, (batch_size, 1), dtype=kind, device=device)
        return T5DecoderInputs(tokens, mask, past)

    def to_list(self) -> list[Any]:
        """The tensors, caches last."""
        return [self.decoder_input_ids, self.encoder_attention_mask, *(self.past_key_values or ())]

    def to_fp32(self) -> T5DecoderInputs:
        """The same with floats of 32 bits."""
        past = self.past_key_values
        return T5DecoderInputs(self.decoder_input_ids.clone(), self.encoder_attention_mask.clone(),
                               past and [each.to(torch.float32) for each in past])

    def named(self, layers: int) -> dict[str, Any]:
        """The tensors by input name."""
        made = {"input_ids": self.decoder_input_ids, "encoder_attention_mask": self.encoder_attention_mask}
        return made | dict(zip(PastKeyValuesHelper.get_past_names(layers), self.past_key_values or (),
                               strict=False))


class T5DecoderHelper:
    """Everything is a static method."""

    @staticmethod
    def export_onnx(decoder: T5Decoder | T5DecoderInit, device: torch.device, onnx_model_path: str,
                    verbose: bool = True, use_external_data_format: bool = False,
                    use_int32_inputs: bool = False) -> None:
        """Write the decoder, for the first token or with its cache."""
        config, layers = decoder.config, decoder.config.num_decoder_layers
        inputs = T5DecoderInputs.create_dummy(config, 2, 3, 4, device, use_int32_inputs=use_int32_inputs)
        axes = {**encoder_decoder.axes_of_past(layers), "input_ids": {0: "batch_size"},
                "encoder_attention_mask": {0: "batch_size", 1: "encode_sequence_length"},
                "logits": {0: "batch_size"}}
        named = inputs.named(layers)
        present = PastKeyValuesHelper.get_past_names(layers, present=True)
        network: Any = decoder
        if isinstance(decoder, T5DecoderInit):
            named = {name: named[name] for name in ("input_ids", "encoder_attention_mask")}
            named["encoder_hidden_states"] = torch.rand(2, 3, config.d_model, device=device)
            axes["encoder_hidden_states"] = axes["encoder_attention_mask"]
            network = Flat(decoder)
        else:
            present = present[:2 * layers]
        known = {*named, *present, "logits"}
        exporting.export(network, named, ["logits", *present], onnx_model_path,
                         {name: each for name, each in axes.items() if name in known},
                         external=use_external_data_format, verbose=verbose)

    @staticmethod
    def onnxruntime_inference(ort_session: Any, inputs: T5DecoderInputs) -> list[Any]:
        """The session's outputs."""
        past = inputs.past_key_values or ()
        return ort_session.run(None, exporting.feed(inputs.named(len(past) // 4)))

    @staticmethod
    def verify_onnx(model: T5Decoder | T5DecoderInit, ort_session: Any, device: torch.device,
                    use_int32_inputs: bool, max_cases: int = 4) -> float:
        """The largest difference from torch over random inputs."""
        half = any(each.type == "tensor(float16)" for each in ort_session.get_inputs())
        cases = [T5DecoderInputs.create_dummy(model.config, *lengths, device, half, use_int32_inputs)
                 for lengths in _LENGTHS[:max_cases]]
        most = 0.0
        for case in cases:
            with torch.no_grad():
                expected = exporting.flat(model.eval()(*case.to_fp32().to_list()))
            most = max(most, exporting.difference(
                expected, T5DecoderHelper.onnxruntime_inference(ort_session, case)))
        logger.info("the decoder differs from torch by at most %.3g", most)
        return most


class Flat(torch.nn.Module):  # type: ignore[misc]
    """A module with its outputs in one tuple of tensors."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        return tuple(exporting.flat(self.module(*inputs)))
