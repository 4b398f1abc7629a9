"""Keys and values of an encoder and a decoder: how they are named, and by what they are grouped.

A decoder's layer has four: its own key and value, then those that stand for the encoder. Grouped by layer
they are four after four; grouped by kind those of all layers' self attention come first, then those of cross
attention. Nothing is copied.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

logger = logging.getLogger(__name__)


class PastKeyValuesHelper:
    """Names and groups. Everything is a static method."""

    @staticmethod
    def get_past_names(num_layers: int, present: bool = False) -> list[str]:
        """The names of a model's past, or present, tensors, grouped by kind."""
        when = "present" if present else "past"
        return [f"{when}_{part}_{kind}_{layer}" for kind in ("self", "cross") for layer in range(num_layers)
                for part in ("key", "value")]

    @staticmethod
    def group_by_self_or_cross(present_key_values: Sequence[Sequence[Any]]) -> tuple[list[Any], list[Any]]:
        """Layers of four → the tensors of self attention, those of cross attention."""
        return ([each for layer in present_key_values for each in layer[:2]],
                [each for layer in present_key_values for each in layer[2:4]])

    @staticmethod
    def group_by_layer(past: Sequence[Any], num_layers: int) -> Any:
        """Tensors grouped by kind → transformers' cache of a decoder with an encoder. Raises ValueError for a
        number of tensors that is not four a layer."""
        layers = _layers(past, num_layers)
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache

        return EncoderDecoderCache(DynamicCache([layer[:2] for layer in layers]),
                                   DynamicCache([layer[2:] for layer in layers]))

    @staticmethod
    def back_group_by_layer(past_key_values: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
        """Tensors grouped by kind → four a layer."""
        return tuple(_layers(past_key_values, len(past_key_values) // 4))

    @staticmethod
    def group_by_self_and_cross(present_key_values: Sequence[Sequence[Any]], concat: bool = False) -> Any:
        """As `group_by_self_or_cross`; with `concat` in one list."""
        own, cross = PastKeyValuesHelper.group_by_self_or_cross(present_key_values)
        return own + cross if concat else (own, cross)

    @staticmethod
    def get_input_names(past_key_values: Sequence[Any], encoder: bool = True) -> list[str]:
        """The names of the present tensors that an encoder's model gives, grouped by kind; without `encoder`,
        of the past ones that a decoder's takes, by layer."""
        return PastKeyValuesHelper.get_past_names(len(past_key_values) // (4 if encoder else 1),
                                                  present=encoder)


def _layers(past: Sequence[Any], num_layers: int) -> list[tuple[Any, ...]]:
    if len(past) != 4 * num_layers:
        raise ValueError(f"{len(past)} tensors are not four for each of {num_layers} layers")
    half = 2 * num_layers
    return [(*past[2 * i:2 * i + 2], *past[half + 2 * i:half + 2 * i + 2]) for i in range(num_layers)]
