"""Decoders that look at an encoder's output, with their cache as plain tensors, for exporting.

A layer keeps four tensors, [batch, heads, tokens, size]: key and value of its own tokens, which grow, and
those of the encoder's output, which are made once. Grouped by kind, those that grow come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .past_helper import PastKeyValuesHelper


def run(decoder: Any, tokens: torch.Tensor, hidden: torch.Tensor, past: Sequence[torch.Tensor], layers: int,
        mask: torch.Tensor | None = None, **more: Any) -> tuple[torch.Tensor, list[Any], list[Any]]:
    """The decoder's last hidden states for `tokens`, and its cache grouped by kind: what grew, what stands
    for the encoder. `hidden`: the encoder's output, which is not looked at where `past` has it."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    cache = (PastKeyValuesHelper.group_by_layer(past, layers) if past
             else EncoderDecoderCache(DynamicCache(), DynamicCache()))
    if mask is not None:
        more["encoder_attention_mask"] = mask
    found = decoder(input_ids=tokens, encoder_hidden_states=hidden, past_key_values=cache, use_cache=True,
                    return_dict=True, **more)
    cache = found.past_key_values
    return (found.last_hidden_state, *([each for layer in part.layers for each in (layer.keys, layer.values)]
                                       for part in (cache.self_attention_cache, cache.cross_attention_cache)))


def stand_in(past: Sequence[torch.Tensor], layers: int, width: int) -> torch.Tensor:
    """An encoder's output of the right length that nobody reads."""
    cross = past[2 * layers]
    return torch.zeros(cross.shape[0], 1, width, dtype=cross.dtype, device=cross.device).expand(
        -1, cross.shape[2], -1)


def cross_attention_of(decoder: Any, hidden: torch.Tensor, parts: Iterable[Any], heads: int
                       ) -> list[torch.Tensor]:
    """The keys and values that stand for the encoder's output; `parts`: a layer's two projections each."""
    made = []
    for layer in parts:
        for projection in layer:
            flat = projection(hidden)
            made.append(flat.view(flat.shape[0], -1, heads, flat.shape[-1] // heads).transpose(1, 2))
    return made


def axes_of_past(layers: int, batch: str = "batch_size", old: str = "past_decode_sequence_length",
                 new: str = "total_decode_sequence_length", encoded: str = "encode_sequence_length"
                 ) -> dict[str, dict[int, str]]:
    """Open dimensions of past and present tensors."""
    made = {}
    for present, own in ((False, old), (True, new)):
        for name in PastKeyValuesHelper.get_past_names(layers, present):
            made[name] = {0: batch, 2: encoded if "cross" in name else own}
    return made
