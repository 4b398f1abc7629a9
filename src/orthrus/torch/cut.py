"""A graph of torch calls, cut in two: what is computed, and looks at memory that torch gives out.

In: a graph and its inputs, as torch's compiler hands them over. Out: a `Cut`. Results that share memory with
an input or with one another in torch share it afterwards: they are views, taken in eager mode, of inputs and
of what was computed. Sizes are results of that kind too. The part that is computed has only tensors as inputs
and results, none of which share memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import fx

from ..records import dataclass

_VIEWS = frozenset({
    "view", "view_as", "reshape", "transpose", "permute", "t", "swapaxes", "swapdims", "movedim", "flatten",
    "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "narrow", "select", "chunk", "split",
    "tensor_split", "unbind", "getitem", "detach", "diagonal", "unfold", "contiguous", "size", "getattr",
    "sym_size", "add", "sub", "mul", "floordiv", "neg", "mod"})
"""Calls that look at their argument's memory or compute with sizes."""


class Refused(Exception):
    """The graph cannot run here, and why."""


@dataclass
class Cut:
    """`computed`: a GraphModule of the inputs `fed`, given by their numbers; `examples` are such tensors and
    `dynamic_shapes` their open dimensions. `frozen`: the numbers of parameters and buffers; `settled`: those
    of numbers that are attributes of modules, compiled in. `looks`: a GraphModule that gives the graph's
    results, of the inputs `seen` and of what was computed; None where that is all. `places`: which output of
    the model each computed result is."""

    computed: Any
    fed: list[int]
    examples: tuple[Any, ...]
    dynamic_shapes: Any
    frozen: list[int]
    settled: dict[int, float]
    looks: Any
    seen: list[int]
    places: list[int] = field(default_factory=list)

    def whole(self, args: Sequence[Any], computed: Sequence[Any]) -> Any:
        """The results of the graph, of its inputs and of what was computed."""
        results = [computed[i] for i in self.places]
        if self.looks is None:
            return tuple(results)
        return self.looks(*[args[i] for i in self.seen], *results)


def cut(module: Any, inputs: Sequence[Any]) -> Cut:
    """Cut a graph. Raises Refused for one that records gradients, or that has inputs or shared memory of a
    kind that cannot be kept."""
    graph = module.graph
    holders = graph.find_nodes(op="placeholder")
    _check(holders, inputs)
    results = graph.output_node().args[0]
    looking = _looking(graph, holders, results)
    bases = list(dict.fromkeys(
        base for result in looking for base in _walk(result, graph, holders)[1] if base not in holders))
    if skewed := next((base.name for base in bases if not _value(base).is_contiguous()), None):
        raise Refused(f"results share the memory of {skewed}, which is not contiguous")
    wanted = list(dict.fromkeys([*bases, *(r for r in results if _is_tensor(r) and r not in looking)]))
    if not wanted:
        raise Refused("it computes nothing but views of its inputs")
    settled = {i: inputs[i].item() for i, holder in enumerate(holders) if _is_setting(holder)}
    sizes = {i: found for i, holder in enumerate(holders) if (found := _size(holder, holders)) is not None}
    fed = [i for i in range(len(holders)) if i not in settled and i not in sizes]
    looks, seen = (None, []) if list(results) == wanted else _looks(module, holders, wanted, results)
    return Cut(_computed(module, holders, wanted, settled, sizes), fed,
               examples=tuple(_example(_value(holders[i])) for i in fed),
               dynamic_shapes=tuple(_open(_value(holders[i])) for i in fed),
               frozen=[i for i in fed if _is_parameter(holders[i])],
               settled=settled, looks=looks, seen=seen)


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def _is_tensor(node: Any) -> bool:
    return isinstance(_value(node), torch.Tensor)


def _check(holders: Sequence[Any], inputs: Sequence[Any]) -> None:
    for holder, given in zip(holders, inputs, strict=True):
        if _is_parameter(holder) and given.is_inference():
            raise Refused(f"its parameter {holder.name} was made in inference mode, where torch counts no "
                          "writes: make modules outside")
        value = _value(holder)
        if not isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat):
            raise Refused(f"its input {holder.name} is a {type(value).__name__}")
        if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.layout != torch.strided):
            raise Refused(f"its input {holder.name} is {value.dtype} on {value.device}, {value.layout}")
    grown = [holder.name for holder in holders if getattr(_value(holder), "requires_grad", False)]
    if torch.is_grad_enabled() and grown:
        raise Refused(f"it records gradients of {grown[0]} and {len(grown) - 1} more inputs: call it under "
                      "torch.no_grad() or torch.inference_mode()")


def _is_parameter(holder: Any) -> bool:
    """Whether an input is a parameter or buffer of a module."""
    return "_dynamo_static_input_type" in holder.meta.get("tensor_dict", {})


def _is_setting(holder: Any) -> bool:
    """Whether an input is a number that is an attribute of a module, which comes as a tensor."""
    given = holder.meta.get("grapharg")
    return (given is not None and given.pass_arg_as_tensor and _is_tensor(holder)
            and "NN_MODULE" in given.source.guard_source.name)


def _memory(node: Any) -> int | None:
    """What tells the memory of a node's tensor from another's."""
    value = _value(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _looking(graph: Any, holders: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Those of the results that are views of inputs or of something other results view too, and sizes."""
    of_inputs = {_memory(holder) for holder in holders} - {None}
    memories = [_memory(r) for r in dict.fromkeys(r for r in results if isinstance(r, fx.Node))]
    shared = {m for m in memories if m is not None and (m in of_inputs or memories.count(m) > 1)}
    return [r for r in dict.fromkeys(results)
            if isinstance(r, fx.Node) and (not _is_tensor(r) or _memory(r) in shared)]


def _walk(result: Any, graph: Any, holders: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The calls between a result that only looks and what it looks at, and the latter: inputs, and the first
    tensors in their memory. Raises Refused for a call that is no view."""
    first: dict[int, Any] = {}
    for node in graph.nodes:
        memory = _memory(node)
        if memory is not None:
            first.setdefault(memory, node)
    calls, bases, stack = list[Any](), list[Any](), [result]
    while stack:
        node = stack.pop()
        if node in calls or node in bases:
            continue
        if node in holders or first.get(_memory(node) or 0) is node:
            bases.append(node)
            continue
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op not in ("call_function", "call_method") or name.split(".")[0] not in _VIEWS:
            raise Refused(f"two of its inputs and results share memory through {name or node.op}")
        calls.append(node)
        stack.extend(node.all_input_nodes)
    return calls, bases


def _computed(module: Any, holders: Sequence[Any], wanted: Sequence[Any], settled: Mapping[int, Any],
              sizes: Mapping[int, tuple[int, int]]) -> Any:
    """The graph with only tensors as inputs, a number as one without dimensions, and `wanted` as its
    results."""
    made, copies = fx.Graph(), dict[Any, Any]()
    for i, holder in enumerate(holders):
        if i not in settled and i not in sizes:
            copies[holder] = made.placeholder(holder.name)
    for i, holder in enumerate(holders):
        if i in sizes:
            of, axis = sizes[i]
            copies[holder] = made.call_function(torch.ops.aten.sym_size.int, (copies[holders[of]], axis))
        elif i not in settled and not _is_tensor(holder):
            copies[holder] = made.call_method("item", (copies[holder],))
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.target == "item" and node.args[0] in holders and holders.index(node.args[0]) in settled:
            copies[node] = settled[holders.index(node.args[0])]
        else:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[node] for node in wanted))
    return fx.GraphModule(module, made)


def _size(holder: Any, holders: Sequence[Any]) -> tuple[int, int] | None:
    """The number of an input and its axis whose size `holder`, a number, is; None where it is none."""
    number = _value(holder)
    if not isinstance(number, torch.SymInt):
        return None
    for i, other in enumerate(holders):
        for axis, size in enumerate(_value(other).shape if _is_tensor(other) else ()):
            if _is_open(size) and size.node.expr == number.node.expr:
                return i, axis
    return None


def _looks(module: Any, holders: Sequence[Any], wanted: Sequence[Any], results: Sequence[Any]
           ) -> tuple[Any, list[int]]:
    """A GraphModule that gives the results, of some inputs and of `wanted`; and the numbers of these
    inputs."""
    made, copies = fx.Graph(), dict[Any, Any]()
    needed = {node for r in results if isinstance(r, fx.Node) and r not in wanted
              for row in _walk(r, module.graph, holders) for node in row}
    seen = [i for i, holder in enumerate(holders) if holder in needed]
    for node in [*(holders[i] for i in seen), *wanted]:
        copies[node] = made.placeholder(node.name)
    for node in module.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[r] if isinstance(r, fx.Node) else r for r in results))
    return fx.GraphModule(module, made), seen


def _open(value: Any) -> dict[int, Any] | None:
    """The open dimensions of an input, as torch.export takes them."""
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    return {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(shape)
            if _is_open(size)} or None


def _is_open(size: Any) -> bool:
    """Whether a size is a symbol that was not settled since."""
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None


def _example(value: Any) -> Any:
    """A tensor like an input, for torch.export, which looks at nothing but its type and shape."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(_hint(value))
    return torch.empty_strided([*map(_hint, value.shape)], [*map(_hint, value.stride())], dtype=value.dtype)


def _hint(size: Any) -> Any:
    return size.node.hint if isinstance(size, torch.SymInt | torch.SymFloat) else size
