"""Whisper's decoder with its cache."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ...export import encoder_decoder, exporting
from ...export.past_helper import PastKeyValuesHelper

logger = logging.getLogger(__name__)

_LENGTHS = ((2, 1, 5), (1, 1, 1), (3, 4, 0), (1, 3, 2))
"""Batch, new tokens and tokens in the cache: of comparisons."""


class WhisperDecoder(torch.nn.Module):  # type: ignore[misc]
    """The decoder of a network of transformers. `model_impl`: only "hf"; `no_beam_search_op` changes nothing:
    the same model serves a loop and an operator."""

    def __init__(self, config: Any, model: Any, model_impl: str, no_beam_search_op: bool = False) -> None:
        super().__init__()
        self.config, self.model, self.model_impl = config, model, model_impl
        self.no_beam_search_op = no_beam_search_op

    def hf_forward(self, decoder_input_ids: torch.Tensor, encoder_hidden_states: torch.Tensor | None = None,
                   past_key_values: Any = None) -> tuple[Any, ...]:
        """Logits and the keys and values of the decoder's layers; for the first tokens, which have no cache
        but the encoder's output, those of this output too. `past_key_values` is grouped by kind."""
        past, layers = tuple(past_key_values or ()), self.config.decoder_layers
        if past:
            encoder_hidden_states = encoder_decoder.stand_in(past, layers, self.config.d_model)
        hidden, own, cross = encoder_decoder.run(self.model.model.decoder, decoder_input_ids,
                                                 encoder_hidden_states, past, layers)
        logits = self.model.proj_out(hidden)
        return (logits, own) if past else (logits, own, cross)

    def forward(self, decoder_input_ids: torch.Tensor, encoder_hidden_states: torch.Tensor | None = None,
                past_key_values: Any = None) -> tuple[Any, ...]:
        """As `hf_forward`."""
        return self.hf_forward(decoder_input_ids, encoder_hidden_states, past_key_values)

    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return ["input_ids", *PastKeyValuesHelper.get_past_names(self.config.decoder_layers)]

    def output_names(self) -> list[str]:
        """Names of the outputs."""
        layers = self.config.decoder_layers
        return ["logits", *PastKeyValuesHelper.get_past_names(layers, present=True)[:2 * layers]]

    def dynamic_axes(self, input_names: list[str], output_names: list[str]) -> dict[str, dict[int, str]]:
        """Open dimensions of those that are named."""
        tokens = {0: "batch_size", 1: "sequence_length"}
        cache = encoder_decoder.axes_of_past(self.config.decoder_layers)
        made = {"input_ids": tokens, "logits": tokens, **cache}
        for name in cache:
            if "cross" in name:
                made[name] = {0: "batch_size"}
        return {name: made[name] for name in (*input_names, *output_names)}

    def inputs(self, use_fp16_inputs: bool, use_int32_inputs: bool, return_dict: bool = False) -> Any:
        """Random inputs, as a tuple or by name."""
        made = self.example(2, 1, 3, use_fp16_inputs, use_int32_inputs)
        return made if return_dict else tuple(made.values())

    def example(self, batch: int, tokens: int, past: int, half: bool = False, int32: bool = True
                ) -> dict[str, torch.Tensor]:
        """Random inputs by name."""
        config, kind = self.config, torch.float16 if half else torch.float32
        heads = config.decoder_attention_heads
        lengths = [past] * (2 * config.decoder_layers) + [config.max_source_positions] * (
            2 * config.decoder_layers)
        tensors = [torch.randint(config.vocab_size, (batch, tokens),
                                 dtype=torch.int32 if int32 else torch.int64),
                   *(torch.rand(batch, heads, length, config.d_model // heads).to(kind)
                     for length in lengths)]
        return dict(zip(self.input_names(), tensors, strict=True))

    def export_onnx(self, onnx_model_path: str, provider: str, verbose: bool = True,
                    use_external_data_format: bool = False, use_fp16_inputs: bool = False,
                    use_int32_inputs: bool = True, use_encoder_hidden_states: bool = False,
                    use_kv_cache_inputs: bool = True) -> None:
        """Write the decoder: with its cache, or with `use_encoder_hidden_states` for the first tokens."""
        network, inputs, outputs = _WithPast(self), self.inputs(False, use_int32_inputs, True), None
        if use_encoder_hidden_states or not use_kv_cache_inputs:
            network = _First(self)
            width, frames = self.config.d_model, self.config.max_source_positions
            inputs = {"input_ids": inputs["input_ids"], "encoder_hidden_states": torch.rand(2, frames, width)}
            outputs = ["logits", *PastKeyValuesHelper.get_past_names(self.config.decoder_layers, True)]
        outputs = outputs or self.output_names()
        axes = self.dynamic_axes([name for name in inputs if name != "encoder_hidden_states"], outputs)
        if "encoder_hidden_states" in inputs:
            axes["encoder_hidden_states"] = {0: "batch_size"}
        exporting.export(network, inputs, outputs, onnx_model_path, axes, external=use_external_data_format,
                         verbose=verbose)

    def verify_onnx(self, onnx_model_path: str, provider: str, use_fp16_inputs: bool,
                    use_int32_inputs: bool) -> float:
        """The largest difference from torch over random inputs."""
        runner = exporting.session(onnx_model_path, provider=provider)
        cases = [self.example(*lengths, int32=use_int32_inputs) for lengths in _LENGTHS]
        return exporting.parity(_WithPast(self), runner, cases)


class _WithPast(torch.nn.Module):  # type: ignore[misc]
    """The decoder with its cache as inputs of their own."""

    def __init__(self, decoder: WhisperDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, decoder_input_ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, own = self.decoder(decoder_input_ids, None, past)
        return (logits, *own)


class _First(_WithPast):
    """The decoder for its first tokens."""

    def forward(self, decoder_input_ids: torch.Tensor,
                encoder_hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(exporting.flat(self.decoder(decoder_input_ids, encoder_hidden_states)))
