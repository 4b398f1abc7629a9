"""Inputs of a Llama: tokens, mask, positions and cache, for torch and for a session.

A session's cache has names, `past_key_values.0.key`; torch's is a list of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ....errors import InvalidArgument
from ...export import decoding, exporting

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def get_position_ids(attention_mask: torch.Tensor, use_past_kv: bool) -> torch.Tensor:
    """Places of all tokens, 1 where padding is; with `use_past_kv` of the last one only."""
    places = (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)
    return places[:, -1:] if use_past_kv else places


def _tokens(config: Any, batch: int, length: int, device: Any) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, length), dtype=torch.int64, device=device)


def _given(made: dict[str, Any], engine: str, return_dict: bool) -> Any:
    """Inputs as an engine takes them: `pt` tensors, `ort` arrays; a dict or a tuple."""
    if engine == "ort":
        past = made.pop("past_key_values", None)
        arrays: dict[str, Any] = exporting.feed(made)
        made = arrays | (exporting.feed(flatten_past_kv_inputs(past)) if past else {})
    return made if return_dict else tuple(made.values())


def get_sample_inputs(config: Any, device: torch.device, batch_size: int, seq_len: int, engine: str = "pt",
                      return_dict: bool = False) -> Any:
    """A random prompt: tokens, mask, positions, [batch, tokens] each."""
    mask = torch.ones(batch_size, seq_len, dtype=torch.int64, device=device)
    return _given({"input_ids": _tokens(config, batch_size, seq_len, device), "attention_mask": mask,
                   "position_ids": get_position_ids(mask, False)}, engine, return_dict)


def get_sample_with_past_kv_inputs(config: Any, device: torch.device, batch_size: int, past_seq_len: int,
                                   use_fp16: bool = False, engine: str = "pt", return_dict: bool = False,
                                   world_size: int = 1) -> Any:
    """A random token after a cache of `past_seq_len`."""
    return get_merged_sample_with_past_kv_inputs(config, device, batch_size, 1, past_seq_len,
                                                 past_seq_len + 1, use_fp16, False, engine, return_dict,
                                                 world_size)


def get_merged_sample_with_past_kv_inputs(
        config: Any, device: torch.device, batch_size: int, seq_len: int, past_seq_len: int,
        max_seq_len: int, use_fp16: bool = False, use_buffer_share: bool = False, engine: str = "pt",
        return_dict: bool = False, world_size: int = 1) -> Any:
    """`seq_len` random tokens after a cache of `past_seq_len`; with `use_buffer_share` a session's cache lies
    in memory for `max_seq_len` tokens."""
    total = past_seq_len + seq_len
    mask = torch.ones(batch_size, total, dtype=torch.int64, device=device)
    past = [(key.to(device), value.to(device))
            for key, value in get_past_kv_inputs(config, batch_size, past_seq_len, use_fp16, world_size)]
    made = _given({"input_ids": _tokens(config, batch_size, seq_len, device), "attention_mask": mask,
                   "position_ids": get_position_ids(mask, False)[:, past_seq_len:].contiguous(),
                   "past_key_values": past}, engine, return_dict=True)
    if engine == "ort" and use_buffer_share:
        made = enable_past_present_share_buffer(made, past_seq_len, max_seq_len)
    return made if return_dict else tuple(made.values())


def get_past_kv_inputs(config: Any, batch_size: int, past_seq_len: int, use_fp16: bool, world_size: int = 1
                       ) -> Pairs:
    """A random cache: a key and a value a layer, [batch, heads, tokens, size], of one of `world_size` equal
    parts of the heads."""
    heads, size = decoding.heads_of(config)
    shape = (batch_size, heads // world_size, past_seq_len, size)
    kind = torch.float16 if use_fp16 else torch.float32
    return [(torch.rand(shape, dtype=kind), torch.rand(shape, dtype=kind))
            for _ in range(config.num_hidden_layers)]


def flatten_past_kv_inputs(past_key_values: Sequence[tuple[torch.Tensor, torch.Tensor]]
                           ) -> dict[str, torch.Tensor]:
    """A cache by input names."""
    return {f"past_key_values.{i}.{part}": tensor for i, pair in enumerate(past_key_values)
            for part, tensor in zip(("key", "value"), pair, strict=True)}


def convert_inputs_for_ort(pt_inputs: Mapping[str, Any], use_buffer_share: bool = False,
                           past_seq_len: int = 0, max_seq_len: int = 2048) -> dict[str, np.ndarray]:
    """torch's inputs as arrays by a session's names."""
    made = dict(pt_inputs)
    past = made.pop("past_key_values", None) or ()
    arrays = exporting.feed(made) | exporting.feed(flatten_past_kv_inputs(past))
    if use_buffer_share:
        return enable_past_present_share_buffer(arrays, past_seq_len, max_seq_len)
    return arrays


def enable_past_present_share_buffer(ort_inputs: dict[str, np.ndarray], past_seq_len: int, max_seq_len: int
                                     ) -> dict[str, np.ndarray]:
    """The feed with its cache in memory for `max_seq_len` tokens, zeros behind the `past_seq_len` it has.
    Raises InvalidArgument where the cache has more."""
    made = dict(ort_inputs)
    for name, array in ort_inputs.items():
        if name.startswith("past_key_values"):
            if past_seq_len > max_seq_len:
                raise InvalidArgument("A cache is longer than its memory", node=name, found=past_seq_len,
                                      expected=f"at most {max_seq_len}", cure="raise max_seq_len")
            made[name] = np.zeros((*array.shape[:2], max_seq_len, array.shape[3]), array.dtype)
            made[name][:, :, :past_seq_len] = array[:, :, :past_seq_len]
    return made


def verify_ort_inputs(model: Any, ort_inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a feed that a session takes. Raises InvalidArgument where an input is missing."""
    names = [each.name for each in model.get_inputs()]
    missing = [name for name in names if name not in ort_inputs]
    if missing:
        raise InvalidArgument("Inputs are missing", found=", ".join(ort_inputs), expected=", ".join(names),
                              cure=f"feed {', '.join(missing)}")
    return {name: ort_inputs[name] for name in names}
