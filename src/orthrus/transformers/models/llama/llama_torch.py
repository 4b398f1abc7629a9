"""A Llama in torch, by what a command line says."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ...export import networks

logger = logging.getLogger("")


def setup_torch_model(args: Any, location: str, auth: Any, torch_dtype: torch.dtype = torch.float32,
                      device: torch.device | None = None) -> tuple[Any, Any]:
    """Configuration and network. `location`: a name of the hub, a folder of weights, or one with a
    configuration only, for random weights; `args.cache_dir`: folder of downloads; `auth`: a token of the hub,
    or whether to use the one that is stored."""
    from transformers import AutoModelForCausalLM

    cache = getattr(args, "cache_dir", None)
    more = {} if networks.is_bare(location) or not auth else {"token": auth}
    config = networks.configuration(location, cache, **more)
    network = networks.network(location, AutoModelForCausalLM, config, cache, **more)
    return config, network.to(torch_dtype).to(device or torch.device("cpu"))
