"""Model-local functions: which there are, how large they get when written out, and what a call of one
stands for.

The expanded size is counted over the call graph with every function counted once, so that a few lines that
would grow to billions of nodes are refused before the first is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import Fail, InvalidGraph
from ..limits import Limits

Key = tuple[str, str, str]


def domain_of(text: str) -> str:
    """A domain as it is kept: `ai.onnx` is the empty one."""
    return "" if text == "ai.onnx" else text


def key_of(node: Any) -> Key:
    return domain_of(node.domain), node.op_type, node.overload


def collect(model: Any) -> dict[Key, Any]:
    """The model's functions by domain, name and overload. Raises Fail if one is defined twice or returns
    what it does not make."""
    found: dict[Key, Any] = {}
    for function in model.functions:
        key = domain_of(function.domain), function.name, function.overload
        if key in found:
            raise Fail(
                f"This is an invalid model. Error: Duplicate definition of function ({function.name}).",
                found=f"domain {function.domain!r}, overload {function.overload!r}",
            )
        made = {*function.input, *(name for node in function.node for name in node.output)}
        for name in function.output:
            if name not in made or not name:
                raise Fail(
                    f"This is an invalid model. Function output ({name}) does not exist in the function.",
                    node=f"function {function.domain}::{function.name}",
                )
        found[key] = function
    return found


def nodes_of(nodes: Iterable[Any]) -> Iterator[Any]:
    """Every NodeProto, those in graph attributes included."""
    stack = [iter(nodes)]
    while stack:
        for node in stack[-1]:
            yield node
            inner = [
                n
                for a in node.attribute
                for g in (*((a.g,) if a.HasField("g") else ()), *a.graphs)
                for n in g.node
            ]
            if inner:
                stack.append(iter(inner))
                break
        else:
            stack.pop()


def bounded_size(graph: Any, functions: dict[Key, Any], limits: Limits) -> int:
    """The number of nodes once every function is written out. Raises InvalidGraph for recursion, Fail over
    the limit."""
    own: dict[Key, int] = {}
    calls: dict[Key, dict[Key, int]] = {}
    for key, function in functions.items():
        own[key], calls[key] = _count(function.node, functions)
    total: dict[Key, int] = {}
    for start in functions:
        stack = [(start, iter(calls[start]))] if start not in total else []
        path = {start: None}
        while stack:
            key, rest = stack[-1]
            callee = next((c for c in rest if c not in total), None)
            if callee is None:
                total[key] = own[key] + sum(total[c] * n for c, n in calls[key].items())
                stack.pop()
                path.pop(key)
            elif callee in path:
                cycle = [*list(path)[list(path).index(callee):], callee]
                raise InvalidGraph("Model local function definitions must not be recursive. Cycle: "
                                   + " -> ".join(f"{d}:{n}" for d, n, _ in cycle[:8]))
            else:
                path[callee] = None
                stack.append((callee, iter(calls[callee])))
    plain, used = _count(graph.node, functions)
    size = plain + sum(total[c] * n for c, n in used.items())
    if size > limits.max_nodes:
        raise Fail(
            "the model has too many nodes" if not used else "the model's functions expand to too many nodes",
            found=f"{size} nodes" if size < 1 << 64 else "over 2^64 nodes",
            expected=f"at most {limits.max_nodes}",
            cure="raise Limits.max_nodes if this size is meant",
        )
    return size


def _count(nodes: Iterable[Any], functions: dict[Key, Any]) -> tuple[int, dict[Key, int]]:
    plain = 0
    calls: dict[Key, int] = {}
    if not functions:
        return sum(1 for _ in nodes_of(nodes)), calls
    for node in nodes_of(nodes):
        key = key_of(node)
        if key in functions:
            calls[key] = calls.get(key, 0) + 1
        plain += 1
    return plain, calls
