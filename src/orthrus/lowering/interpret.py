"""A part by its nodes' definitions, for providers that compile parts whole: for shapes they cannot lower, and
to find which node fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Node, Value, in_memory, type_of
from ..kernels import Part, Work, failed

Reference = Callable[[Node], Callable[..., Any]]
Note = Callable[[Work | None, int, int], None]
Watch = Callable[[Value, np.ndarray], None]


def interpret(part: Part, reference: Reference, arrays: Sequence[np.ndarray], note: Note | None = None,
              watch: Watch | None = None, check: Callable[[], None] | None = None) -> Any:
    """The part's results, node by node. `reference(node)` computes a node; `note`, `watch` and `check` are
    called as `Kernel.stepwise` says. Raises what a node raises, with its name."""
    env: dict[Value | None, Any] = {None: None, **dict(zip(part.inputs, arrays, strict=True))}
    for node in part.nodes:
        given = [env[v] if v is None or v in env else in_memory(v.const) for v in node.inputs]
        start = time.perf_counter_ns()
        try:
            made = reference(node)(*given)
        except Exception as error:
            raise failed(node, error, given, node.name) from error
        end = time.perf_counter_ns()
        results = made if isinstance(made, tuple) else (made,)
        env.update(zip(node.outputs, map(np.asarray, results), strict=False))
        if watch is not None:
            for v in node.outputs:
                if v is not None and v in env:
                    watch(v, env[v])
        if note is not None:
            inputs = {v: type_of(x) for v, x in zip(node.inputs, given, strict=True) if v is not None}
            outputs = {v: type_of(env[v]) for v in node.outputs if v is not None and v in env}
            note(Work(node, f"reference {node.op_type}", (node,), tuple(inputs), tuple(outputs),
                      {**inputs, **outputs}), start, end)
        if check is not None:
            check()
    several = tuple(env[v] for v in part.outputs)
    return several[0] if len(several) == 1 else several
