"""A network of transformers by name: from the hub, from a folder, or of random weights.

In: a name. Out: a configuration and a network in the mode of evaluation. A folder with a configuration and
no weights gives a network of random ones, always the same, so that a structure can be measured and converted
without a download.
"""

from __future__ import annotations

import os
from typing import Any

import torch

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")
_SEED = 0


def is_bare(name: str) -> bool:
    """Whether `name` is a folder that has a configuration but no weights."""
    return (os.path.isfile(os.path.join(name, "config.json"))
            and not any(file.endswith(_WEIGHTS) for file in os.listdir(name)))


def configuration(name: str, cache_dir: str | None = None, **more: Any) -> Any:
    """The configuration of a name. Raises OSError where there is none."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name, cache_dir=cache_dir, **more)


def network(name: str, kind: Any, config: Any = None, cache_dir: str | None = None, **more: Any) -> Any:
    """The network of a name. `kind`: a class of transformers, an Auto class or a model's own."""
    config = configuration(name, cache_dir) if config is None else config
    if is_bare(name):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            made = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    else:
        made = kind.from_pretrained(name, config=config, cache_dir=cache_dir, **more)
    return made.eval()
