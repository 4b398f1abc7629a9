"""T5's encoder: tokens and their mask in, hidden states out."""

from __future__ import annotations

import logging
import random
from typing import Any

import torch

logger = logging.getLogger(__name__)


class T5Encoder(torch.nn.Module):  # type: ignore[misc]
    """The encoder alone."""

    def __init__(self, encoder: Any, config: Any) -> None:
        super().__init__()
        self.encoder, self.config = encoder, config

    def forward(self, input_ids: Any, attention_mask: Any) -> torch.Tensor:
        """Hidden states, [batch, tokens, width]."""
        return self.encoder(input_ids, attention_mask)[0]


class T5EncoderInputs:
    """Tokens and their mask, [batch, tokens] each."""

    def __init__(self, input_ids: Any, attention_mask: Any) -> None:
        self.input_ids, self.attention_mask = input_ids, attention_mask

    @staticmethod
    def create_dummy(batch_size: int, sequence_length: int, vocab_size: int, device: torch.device,
                     use_int32_inputs: bool = False) -> T5EncoderInputs:
        """Random tokens with padding before them, of another length in each row."""
        kind = torch.int32 if use_int32_inputs else torch.int64
        mask = torch.ones(batch_size, sequence_length, dtype=kind, device=device)
        for row in range(batch_size if sequence_length > 1 else 0):
            mask[row, :random.randint(0, sequence_length - 1)] = 0
        return T5EncoderInputs(torch.randint(vocab_size, mask.shape, dtype=kind, device=device), mask)

    def to_list(self) -> list[Any]:
        """The tensors that there are."""
        return [each for each in (self.input_ids, self.attention_mask) if each is not None]
