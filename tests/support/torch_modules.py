"""Torch modules of twelve kinds, small, with the inputs of one call: what `from_torch` and the compiler's
backend are tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

TRANSFORMERS = ("bert", "gpt2", "vit", "t5_encoder")
"""Those that are the package transformers' own."""


class Residual(nn.Module):
    def __init__(self, width: int, wider: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, wider, 3, stride, 1, bias=False), nn.BatchNorm2d(wider))
        self.second = nn.Sequential(nn.Conv2d(wider, wider, 3, 1, 1, bias=False), nn.BatchNorm2d(wider))
        self.around = nn.Conv2d(width, wider, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.second(F.relu(self.first(x))) + self.around(x))


def resnet(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    width = 16 * scale
    net = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                        Residual(width, width, 1), Residual(width, 2 * width, 2),
                        Residual(2 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(4 * width, 10))
    return net, (torch.randn(1, 3, 56 * scale, 56 * scale),), {}


def mlp(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    net = nn.Sequential(nn.Linear(64, 128 * scale), nn.GELU(), nn.LayerNorm(128 * scale),
                        nn.Linear(128 * scale, 128 * scale), nn.SiLU(), nn.Linear(128 * scale, 10),
                        nn.Softmax(-1))
    return net, (torch.randn(8, 64),), {}


class Recurrent(nn.Module):
    def __init__(self, kind: Any, width: int) -> None:
        super().__init__()
        self.cell = kind(32, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, x: Any) -> Any:
        rows, state = self.cell(x)
        return self.head(rows), state


def lstm(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return Recurrent(nn.LSTM, 32 * scale), (torch.randn(2, 20, 32),), {}


def gru(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return Recurrent(nn.GRU, 32 * scale), (torch.randn(2, 20, 32),), {}


class Unet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.SiLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)
        self.time = nn.Linear(16, 2 * width)

    def forward(self, x: Any, time: Any) -> Any:
        across = self.enter(x)
        low = self.down(across) + self.time(time)[:, :, None, None]
        low = F.interpolate(self.up(low), size=across.shape[-2:])
        return self.leave(torch.cat([low, across], 1))


def unet(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return Unet(16 * scale), (torch.randn(1, 3, 16 * scale, 16 * scale), torch.randn(1, 16)), {}


def audio(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    width = 16 * scale
    net = nn.Sequential(nn.Conv1d(1, width, 10, 5), nn.GroupNorm(1, width), nn.GELU(),
                        nn.Conv1d(width, width, 3, 2, groups=4), nn.GELU(),
                        nn.Conv1d(width, 2 * width, 3, dilation=2), nn.BatchNorm1d(2 * width), nn.Tanh(),
                        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, 4))
    return net, (torch.randn(2, 1, 1600),), {}


class Branching(nn.Module):
    """Control flow that depends on data: torch's compiler cuts the graph there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.near, self.far = nn.Linear(32, width), nn.Linear(32, width)
        self.out = nn.Linear(width, 8)

    def forward(self, x: Any, options: dict[str, Any]) -> dict[str, Any]:
        hidden = self.near(x) if x.mean() > 0 else self.far(x)
        for _ in range(options["rounds"]):
            hidden = torch.tanh(hidden) * 1.5
        if hidden.abs().max().item() > 1:
            hidden = hidden / hidden.abs().amax(-1, keepdim=True)
        return {"logits": self.out(hidden), "hidden": hidden, "shape": hidden.shape}


def branching(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return Branching(64 * scale), (torch.randn(4, 32), {"rounds": 2}), {}


class Bags(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.users = nn.Embedding(1000, width, padding_idx=0), nn.Embedding(50, width)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, words: Any, user: Any) -> Any:
        found = self.words(words)
        there = (words != 0).unsqueeze(-1).to(found.dtype)
        mean = (found * there).sum(1) / there.sum(1).clamp(min=1)
        return torch.sigmoid(self.head(torch.cat([mean, self.users(user)], -1))).squeeze(-1)


def bags(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return Bags(32 * scale), (torch.randint(0, 1000, (16, 12)), torch.randint(0, 50, (16,))), {}


def bert(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=64 * scale, num_hidden_layers=2, num_attention_heads=4, vocab_size=100,
                        intermediate_size=128 * scale)
    mask = torch.ones(2, 16 * scale, dtype=torch.int64)
    mask[1, 9:] = 0
    words = torch.randint(0, 100, (2, 16 * scale))
    return BertModel(config), (), {"input_ids": words, "attention_mask": mask}


def gpt2(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64 * scale, n_layer=2, n_head=4, vocab_size=100, n_positions=128,
                        bos_token_id=0, eos_token_id=0)
    words = torch.randint(0, 100, (1, 16 * scale))
    return GPT2LMHeadModel(config), (), {"input_ids": words, "use_cache": False}


def vit(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=64 * scale, num_hidden_layers=2, num_attention_heads=4,
                       intermediate_size=128 * scale, image_size=64, patch_size=16)
    return ViTModel(config), (torch.randn(1, 3, 64, 64),), {}


def t5_encoder(scale: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=64 * scale, d_ff=128 * scale, d_kv=16 * scale, num_layers=2, num_heads=4,
                      vocab_size=100)
    return T5EncoderModel(config), (), {"input_ids": torch.randint(0, 100, (1, 16 * scale))}


MODULES: dict[str, Callable[[int], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    made.__name__: made for made in (resnet, mlp, lstm, gru, unet, audio, branching, bags, bert, gpt2, vit,
                                     t5_encoder)}


def module(name: str, scale: int = 1) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A module in evaluation mode with the arguments of a call, the same for every call of this function."""
    torch.manual_seed(0)
    net, args, kwargs = MODULES[name](scale)
    return net.eval(), args, kwargs
