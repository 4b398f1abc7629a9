"""A part by its nodes' definitions, for providers that compile parts whole: for shapes they cannot lower, and
to find which node fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from ..errors import Fail
from ..ir import Node, TensorType, Value, in_memory, type_of
from ..kernels import Part, Work, failed
from ..ops.infer import infer_node

Reference = Callable[[Node], Callable[..., Any]]
Note = Callable[[Work | None, int, int], None]
Watch = Callable[[Value, np.ndarray], None]


class Shape(Protocol):
    """Anything that has one."""

    @property
    def shape(self) -> tuple[int, ...]:
        ...


T = TypeVar("T", bound=Shape)


def by_definition(node: Node, read: Callable[[Value], T], known: Callable[[Value], np.ndarray | None]
                  ) -> tuple[list[T | None], list[tuple[Value, tuple[int, ...], str]]]:
    """What a step reads that computes `node` by its definition: what `read` gives for each input, None for
    one that is absent; and what it makes: values, their shapes and numpy type names. `known`: the elements of
    an input where they are known. Raises Fail where a type does not follow from these."""
    reads = [None if v is None else read(v) for v in node.inputs]
    shadows = [None if v is None or t is None else Value(v.name, TensorType(v.elem, t.shape), None, known(v))
               for v, t in zip(node.inputs, reads, strict=True)]
    made = []
    kinds = infer_node(node, shadows, {node.domain: node.version})
    for value, kind in zip(node.outputs, kinds, strict=False):
        if value is None:
            continue
        if not isinstance(kind, TensorType) or kind.shape is None or kind.elem is None or not all(
                isinstance(d, int) for d in kind.shape):
            raise Fail(f"the type of {value.name} does not follow from shapes", node=node.label)
        made.append((value, tuple(int(d) for d in kind.shape if d is not None), kind.elem.numpy.name))
    return reads, made


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
