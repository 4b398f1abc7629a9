"""Whether a part may use the matrix unit: found out once, by trying.

Products summed from bfloat16 halves have an error of some 5e-6 of the largest result. Most networks end with
about that; one that amplifies differences does not. The part is run both ways on the same random inputs, and
what came out is kept beside the generated code, so that a later session need not try.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import knobs
from ...codegen import cache
from ...codegen.machine import Machine
from ...ir.stored import sampled
from ..base import Part

LIMIT = 2e-5
"""Difference, in parts of the largest output, up to which fast products are good enough."""

_SAMPLE = 1024
_FAST, _EXACT = b"fast", b"exact"

Kinds = Sequence[tuple[tuple[int, ...], str]]


def verdict(part: Part, machine: Machine) -> bool | None:
    """What was found out about `part` before; None where nothing was."""
    name = _name(part, machine)
    known = cache.load([name]) if name is not None else {}
    found = known.get(name or "")
    return found == _FAST if found in (_FAST, _EXACT) else None


def fast_enough(part: Part, machine: Machine, kinds: Kinds,
                run: Callable[[bool, list[np.ndarray]], Any]) -> bool:
    """Whether `run(fast, inputs)` gives the same either way, within LIMIT. `kinds`: shapes and types of the
    inputs."""
    inputs = [_drawn(np.random.default_rng(i), shape, dtype) for i, (shape, dtype) in enumerate(kinds)]
    fast, exact = run(True, inputs), run(False, inputs)
    good = all(_close(a, b) for a, b in zip(fast, exact, strict=True))
    if (name := _name(part, machine)) is not None:
        cache.store({name: _FAST if good else _EXACT})
    return good


def _name(part: Part, machine: Machine) -> str | None:
    """What the verdict is kept under; None where it is neither kept nor believed."""
    stamp = cache.stamp()
    if knobs.OVERRIDE or not stamp:
        return None
    return cache.name(f"precision of {_digest(part)} by {stamp}", machine, __file__)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal floats; integers that are 0 or 1, which every table has."""
    if "float" in dtype:
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    if b.dtype.kind != "f" or not b.size:
        return True
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return False
    a, b = a[finite].astype(np.float64), b[finite].astype(np.float64)
    return bool(np.abs(a - b).max() <= LIMIT * np.abs(b).max())


def _digest(part: Part) -> str:
    """The part's nodes, and samples of its weights."""
    digest = hashlib.blake2b(digest_size=16)
    for node in part.nodes:
        digest.update(f"{node.kind}-{node.version} {sorted(node.attrs)}".encode())
        for v in (*node.inputs, *node.outputs):
            digest.update(f"{v.name} {v.type}".encode("utf-8", "surrogatepass") if v is not None else b"-")
            if v is not None and isinstance(v.const, np.ndarray) and v.const.dtype != object:
                digest.update(sampled(v.const, _SAMPLE))
    return digest.hexdigest()
