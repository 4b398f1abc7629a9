"""Where randomness comes from: a node's own seed, or the one `set_seed` gave, or the SEED switch, or the
system.

A generator belongs to one node of one session and goes on from run to run. Under the same seed, sessions made
after it draw the same numbers.
"""

from __future__ import annotations

import math

import numpy as np

from . import knobs

_MASK = (1 << 64) - 1
_given: int | None = None


def set_seed(seed: int) -> None:
    """Seed every random node without a seed of its own, in sessions created from now on."""
    global _given
    _given = int(seed) & _MASK


def clear() -> None:
    """Forget what `set_seed` gave: randomness follows the SEED switch or the system again."""
    global _given
    _given = None


def generator(node_seed: float | None, index: int) -> np.random.Generator:
    """The generator for one node: from `node_seed` where the node has one, else from the seed in force and
    `index`.

    `node_seed` is ONNX's float attribute; its bits are the seed, so that 1.0 and 1.5 differ. `index` tells
    the nodes of a graph apart.
    """
    if node_seed is not None and not math.isnan(node_seed):
        return np.random.default_rng(int(np.float32(node_seed).view(np.uint32)))
    if _given is not None:
        return np.random.default_rng([_given, index & _MASK])
    if knobs.SEED.value >= 0:
        return np.random.default_rng([knobs.SEED.value, index & _MASK])
    return np.random.default_rng()
