"""orthrus.generate over exports of transformers' networks, against transformers' own generate."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orthrus.generation import Decoder, generate

pytestmark = pytest.mark.slow
HIDDEN, LAYERS, VOCAB = 32, 2, 96


def network(name: str) -> Any:
    """A small network with random weights."""
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    common = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "attn_implementation": "eager"}
    made = library.GPT2LMHeadModel(library.GPT2Config(
        n_embd=HIDDEN, n_layer=LAYERS, n_head=2, n_positions=64, **common)) if name == "gpt2" else \
        library.LlamaForCausalLM(library.LlamaConfig(
            hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, **common))
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    return made.eval()


def exported(net: Any, path: Path) -> None:
    """`net` with its cache as inputs and outputs."""
    import torch
    from transformers.cache_utils import DynamicCache

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
            cache = DynamicCache()
            for i in range(LAYERS):
                cache.update(past[2 * i], past[2 * i + 1], i)
            out = self.net(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                           past_key_values=cache, use_cache=True)
            return (out.logits, *(part for layer in out.past_key_values.layers
                                  for part in (layer.keys, layer.values)))
    heads = getattr(net.config, "num_key_value_heads", net.config.num_attention_heads)
    size = HIDDEN // net.config.num_attention_heads
    parts = [f"{i}.{part}" for i in range(LAYERS) for part in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{p}" for p in parts)]
    outputs = ["logits", *(f"present.{p}" for p in parts)]
    axes = {name: {0: "batch", 2 if "past" in name or "present" in name else 1: f"{name}_length"}
            for name in (*inputs, *outputs)}
    given = (torch.randint(0, VOCAB, (2, 3)), torch.ones(2, 7, dtype=torch.int64),
             torch.arange(4, 7)[None].repeat(2, 1), *(torch.randn(2, heads, 4, size) for _ in parts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Flat().eval(), given, str(path), input_names=inputs, output_names=outputs,
                          dynamic_axes=axes, opset_version=17, dynamo=False)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    net = network(name)
    import torch

    exported(net, tmp_path / "model.onnx")
    decoder, rng = Decoder(tmp_path / "model.onnx"), np.random.default_rng(0)
    for _ in range(8):
        rows = [rng.integers(2, VOCAB, rng.integers(1, 7)).tolist() for _ in range(rng.integers(1, 4))]
        length, stop = max(map(len, rows)), int(rng.integers(2, VOCAB))
        tokens, mask = (np.zeros((len(rows), length), np.int64) for _ in range(2))
        for i, row in enumerate(rows):
            tokens[i, length - len(row):], mask[i, length - len(row):] = row, 1
        for beams in (1, 2, 4):
            penalty = float(rng.choice([0.5, 1, 2]))
            with torch.no_grad():
                made = net.generate(torch.tensor(tokens), attention_mask=torch.tensor(mask), num_beams=beams,
                                    max_new_tokens=10, do_sample=False, eos_token_id=stop, pad_token_id=0,
                                    length_penalty=penalty)[:, length:].tolist()
            expected = [row[:row.index(stop) + 1] if stop in row else row for row in made]
            found = generate(decoder, rows, max_new_tokens=10, stop=stop, beams=beams, length_penalty=penalty)
            assert found.tokens == expected
