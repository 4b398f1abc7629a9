"""How an engine is made: what every way to one is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from ..limits import DEFAULT, Limits
from ..records import dataclass

if TYPE_CHECKING:
    import numpy as np

    from ..kernels import KernelRegistry
    from ..providers import ExecutionProvider


@dataclass
class Config:
    """How an engine is made. `level`, `skip`: see `optimize`. `fallback`: what a node on the CPU
    provider is when another provider was asked for: "allow", "warn" or "error". `kernels`: registries that
    come before the providers' own. `names_apart`: see `dimensions`. `context_reader`: gives the bytes of a
    compiled part by the name of its file, in the place of the model's folder. Paths are strings, threads 0
    for as many as there are cores."""

    providers: list[ExecutionProvider] = field(default_factory=list)
    level: int = 99
    skip: frozenset[str] = frozenset()
    kernels: Sequence[KernelRegistry] = ()
    limits: Limits = DEFAULT
    free_dims: dict[str, int] = field(default_factory=dict)
    free_denotations: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    external_initializers: dict[str, np.ndarray] = field(default_factory=dict)
    external_root: str | None = None
    names_apart: bool = False
    parallel: bool = False
    inter_op_threads: int = 0
    intra_op_threads: int = 0
    fallback: str = "allow"
    optimized_model_path: str = ""
    memory_arena: bool = True
    memory_pattern: bool = True
    memory_reuse: bool = True
    entries: dict[str, str] = field(default_factory=dict)
    context_reader: Callable[[str], bytes] | None = None
