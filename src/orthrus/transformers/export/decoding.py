"""Decoders of transformers with their cache as plain tensors, for exporting.

In: a network for causal language models. Out: a module whose inputs and outputs are tensors: tokens, mask and
positions, then a key and a value per layer, [batch, heads, past, size]; logits, then the keys and values with
the new tokens behind the old ones. An empty past is one of length 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .exporting import Axes

INPUTS = ("input_ids", "attention_mask", "position_ids")


def positions(mask: torch.Tensor, new: int) -> torch.Tensor:
    """The places of the last `new` tokens, [batch, new], counted without the padding before them."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -new:].contiguous()


def cache_of(past: Sequence[torch.Tensor]) -> Any:
    """transformers' cache of keys and values that alternate."""
    from transformers import DynamicCache

    return DynamicCache(list(zip(past[0::2], past[1::2], strict=True)))


def pairs(cache: Any) -> list[torch.Tensor]:
    """Keys and values of a cache, alternating."""
    return [each for layer in cache.layers for each in (layer.keys, layer.values)]


class Decoder(torch.nn.Module):  # type: ignore[misc]
    """`network` with its cache as tensors."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor,
                *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits, [batch, tokens, vocabulary], and the cache."""
        found = self.network(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                             past_key_values=cache_of(past), use_cache=True, return_dict=True)
        return (found.logits, *pairs(found.past_key_values))


def heads_of(config: Any) -> tuple[int, int]:
    """How many heads keys and values have, and of what size."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return getattr(config, "num_key_value_heads", None) or heads, size


def layer_names(config: Any, when: str, form: str = "{when}.{layer}.{part}") -> list[str]:
    """Names for keys and values: `past_key_values.0.key` or `present.0.key`."""
    return [form.format(when=when, layer=layer, part=part) for layer in range(config.num_hidden_layers)
            for part in ("key", "value")]


def example(config: Any, batch: int, tokens: int, past: int, padding: bool = True, dtype: Any = torch.float32,
            generator: torch.Generator | None = None) -> dict[str, torch.Tensor]:
    """Random inputs by name: `tokens` after a cache of `past`; with `padding` the first of the past are
    hidden in each row but the first."""
    mask = torch.ones(batch, past + tokens, dtype=torch.int64)
    for row in range(1, batch if padding and past > 1 else 1):
        mask[row, :1 + row % (past - 1)] = 0
    heads, size = heads_of(config)
    made = {"input_ids": torch.randint(config.vocab_size, (batch, tokens), generator=generator),
            "attention_mask": mask, "position_ids": positions(mask, tokens)}
    return made | {name: torch.randn(batch, heads, past, size, generator=generator).to(dtype)
                   for name in layer_names(config, "past_key_values")}


def axes(config: Any) -> Axes:
    """Names of the open dimensions."""
    batch, old, new = "batch_size", "past_sequence_length", "sequence_length"
    return {"input_ids": {0: batch, 1: new}, "attention_mask": {0: batch, 1: "total_sequence_length"},
            "position_ids": {0: batch, 1: new}, "logits": {0: batch, 1: new},
            **{name: {0: batch, 2: old} for name in layer_names(config, "past_key_values")},
            **{name: {0: batch, 2: "total_sequence_length"} for name in layer_names(config, "present")}}


def outputs(config: Any) -> list[str]:
    """Names of the outputs."""
    return ["logits", *layer_names(config, "present")]
