"""A model as a package that C can run.

In: a model, the machines it is to run on, the sizes that its open dimensions may have. Out: the pieces of a
package, with a plan for every combination of these sizes and each machine. What numpy would have to compute
is refused, by the name of its node.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..codegen.machines import detect
from ..codegen.machines.machine import BEYOND, FORCED, Machine
from ..errors import InvalidArgument
from ..errors import NotImplemented as NotImplementedFail
from ..ir import Graph, No, Node, TensorType, Value
from ..kernels import KernelRegistryManager, Part
from ..load import load
from ..lowering import claims
from ..lowering.device import Compiling
from ..lowering.instance import Plan
from ..lowering.native import Native
from ..lowering.package.writer import Compiled, Described, Pieces, Shapes, write
from ..ops import find
from ..optimize import optimize
from ..partition import Placement, partition
from ..providers import CPUExecutionProvider
from ..providers.base import Capability, GraphView, interpreted
from ..run.dimensions import fix_dimensions

Sizes = Mapping[str, Iterable[int] | str]

_MOST_PLANS = 1 << 16
_IDENTITY = 21
"""The version of Identity that copies tensors of any type."""


class _Target(CPUExecutionProvider):
    """The CPU provider of another machine."""

    kernels = CPUExecutionProvider.kernels

    def __init__(self, machine: Machine, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.target = machine

    def _machine(self) -> Machine | No:
        return self.target

    def get_capability(self, view: GraphView) -> list[Capability]:
        """One part of all nodes, joined or not, where code can be generated for each."""
        by_name = interpreted()
        groups, left_out = claims.groups(view.graph, [node for node in view.graph.nodes if not by_name(node)],
                                         lambda node: not isinstance(self.lookup(node), No), views=True)
        if sum(map(len, groups)) == len(view.graph.nodes) > 0:
            return [Capability(list(view.graph.nodes), "CPU")]
        for node, reason in left_out.items():
            view.remark(node, reason)
        inside = {node for group in groups for node in group}
        return [*(Capability(group, "CPU") for group in groups),
                *(Capability([node]) for node in view.graph.nodes if node not in inside)]


def machine_named(name: str) -> Machine:
    """The machine that is called so, such as "avx2", "avx512+avx512vnni" or "host". Raises
    InvalidArgument."""
    if name == "host":
        here = detect.host()
        if here is None:
            raise InvalidArgument("no code can be generated for this machine", found=name,
                                  expected=f"one of {', '.join(FORCED)}")
        return here
    base, *more = name.split("+")
    if base not in FORCED or not {*more} <= {*BEYOND.get(base, ())}:
        raise InvalidArgument("no machine has that name", found=name,
                              expected=f"host, or one of {', '.join(FORCED)}",
                              cure="features beyond a machine's own follow it: avx512+avx512vnni")
    return replace(FORCED[base], features=tuple(sorted({*FORCED[base].features, *more})))


def package(source: Any, machines: Sequence[Machine], sizes: Sizes | None = None, level: int = 99,
            options: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None) -> Pieces:
    """The package of a model: a path, bytes, or what else `load` takes. `machines`: the best first; `sizes`:
    by name of a dimension, or `input:axis` of a single one, the sizes it may have, or the name of another
    that it always equals; `options`: the CPU provider's. Raises InvalidArgument for a dimension that nothing
    is said of, NotImplementedFail for a model that is not generated code from begin to end, and what loading
    raises."""
    made = [_compiled(source, machine, sizes or {}, level, dict(options or {})) for machine in machines]
    first, graph, part = made[0]
    writes = [graph.outputs.index(v) for v in part.outputs]
    some = next(iter(first.plans.values())).outputs
    ranks = {i: len(shape) for i, (shape, _) in zip(writes, some, strict=True)}
    return write([compiled for compiled, _, _ in made], [_described(v, len(v.shape)) for v in graph.inputs],
                 [_described(v, ranks[i]) for i, v in enumerate(graph.outputs)], metadata,
                 {"graph": graph.name},
                 [graph.inputs.index(v) for v in part.inputs], writes)


def _compiled(source: Any, machine: Machine, sizes: Sizes, level: int, options: dict[str, str]
              ) -> tuple[Compiled, Graph, Part]:
    """The plans of a model for one machine, its graph as optimized, and the part that it is."""
    graph = load(source)
    _take_defaults(graph)
    several = _named_sizes(graph, sizes)
    fix_dimensions(graph, {name: given[0] for name, given in several.items() if len(given) == 1}, {})
    provider = _Target(machine, options)
    optimize(graph, min(level, provider.level))
    _compute_outputs(graph)
    registries = KernelRegistryManager(())
    registries.register(provider.name, provider.kernels)
    provider.registries = registries
    if not graph.outputs:
        raise NotImplementedFail("the model has no outputs",
                                 cure="name what is to be computed as its outputs")
    native = provider.entire(graph, Compiling(machine)) if any(node.has_bodies for node in graph.nodes) else \
        provider._native(_only(partition(graph, [provider])), Compiling(machine))
    if isinstance(native, No):
        raise _not_generated(native.reason)
    native.learner.background = False
    return Compiled(machine, dict(_plans(native, graph, several))), graph, native.part


def _take_defaults(graph: Graph) -> None:
    """An input that the model has an array for is that array."""
    for value in [v for v in graph.inputs if v.default is not None]:
        graph.inputs.remove(value)
        value.const, value.default = value.default, None
        graph.add_initializer(value)


def _compute_outputs(graph: Graph) -> None:
    """An output that is a constant, an input, or another output besides, is copied by a node of its own."""
    outputs: list[Value] = []
    for value in graph.outputs:
        if value.node is None or value in outputs:
            node = Node("Identity", "", _IDENTITY, find("", "Identity", _IDENTITY), [value], {},
                        graph.fresh(f"Identity_{value.name}"))
            copy = Value(value.name, value.type, node)
            node.outputs = [copy]
            graph.nodes.append(node)
            value = copy
        outputs.append(value)
    graph.set_outputs(outputs)


def _named_sizes(graph: Graph, sizes: Sizes) -> dict[str, list[int]]:
    """The sizes of each dimension, by the name that it has from now on. Raises InvalidArgument for names that
    no input has, and for what is no size."""
    _name_places(graph, sizes)
    same = {name: other for name, other in sizes.items() if isinstance(other, str)}
    several = {name: list(dict.fromkeys(given)) for name, given in sizes.items()
               if not isinstance(given, str)}
    known = {d for value in graph.inputs for d in value.shape or () if isinstance(d, str)} | {*same.values()}
    places = {f"{v.name}:{axis}" for v in graph.inputs for axis in range(len(v.shape or ()))}
    for name, given in several.items():
        if not given or not all(isinstance(n, int | np.integer) and n >= 0 for n in given):
            raise InvalidArgument(f"these are no sizes of the dimension {name}", found=str(given),
                                  expected="whole numbers from 0 on")
    for name in {*sizes} - known - places:
        raise InvalidArgument("no input has a dimension of that name", found=name,
                              expected=f"one of {', '.join(sorted(known)) or 'none: all sizes are known'}")
    if looped := [f"{name}={other}" for name, other in same.items() if other in same or other not in several]:
        raise InvalidArgument("a dimension is to equal one that has no sizes", found=", ".join(looped),
                              expected="the name of a dimension that sizes are given for")
    if (count := math.prod(map(len, several.values()))) > _MOST_PLANS:
        raise InvalidArgument("too many combinations of sizes", found=str(count),
                              expected=f"at most {_MOST_PLANS}", cure="name fewer sizes")
    if same:
        for value in graph.inputs:
            if isinstance(value.type, TensorType) and value.shape is not None:
                value.type = TensorType(value.type.elem, tuple(
                    same.get(d, d) if isinstance(d, str) else d for d in value.shape))
        fix_dimensions(graph, same, {})
    return several


def _name_places(graph: Graph, sizes: Mapping[str, Any]) -> None:
    """A dimension that sizes are given for by its place goes by that from now on."""
    for value in graph.inputs:
        if isinstance(value.type, TensorType) and value.shape is not None:
            places = [f"{value.name}:{axis}" for axis in range(len(value.shape))]
            value.type = TensorType(value.type.elem, tuple(
                place if place in sizes and not isinstance(d, int) else d
                for place, d in zip(places, value.shape, strict=True)))


def _only(placement: Placement) -> Part:
    """The one part that a model is. Raises NotImplementedFail that names what else there is."""
    graph, fused = placement.graph, [part for part in placement.parts if part.fused]
    others = [node for part in placement.parts if not part.fused for node in part.nodes]
    if len(fused) == 1 and not others and len(fused[0].outputs) == len(graph.outputs):
        return fused[0]
    found = [f"{node.label}: {remark.reason}" if (remark := placement.remarks.get(node)) else node.label
             for node in others[:8]]
    raise _not_generated("; ".join(found) or f"{len(fused)} parts, {len(graph.outputs)} outputs")


def _not_generated(found: str) -> NotImplementedFail:
    return NotImplementedFail("the model is not generated code from begin to end", found=found,
                              expected="nodes that kernels are generated for, all in one part",
                              cure="run it in Python, or through the drop-in library")


def _plans(native: Native, graph: Graph, sizes: Mapping[str, Sequence[int]]) -> Iterator[tuple[Shapes, Plan]]:
    """The plan for each combination of sizes, by the shapes of the graph's inputs, which a part need not all
    read."""
    inputs = native.part.inputs
    names = dict.fromkeys(name for v in graph.inputs for name in _open(v))
    if unknown := [name for name in names if name not in sizes]:
        raise InvalidArgument("the model leaves sizes open", found=", ".join(unknown),
                              expected="every size that each may have",
                              cure="--dim NAME=SIZE, or NAME=FIRST..LAST, or NAME=OTHER")
    for chosen in itertools.product(*(sizes[name] for name in names)):
        by_name = dict(zip(names, chosen, strict=True))
        given = {v: tuple(d if isinstance(d, int) else by_name[_dimension(v, axis, d)]
                          for axis, d in enumerate(v.shape)) for v in graph.inputs}
        shapes = tuple(given[v] for v in inputs)
        plan = native.plan_for(shapes)
        if plan is None:
            raise NotImplementedFail("no plan can be made for inputs of these shapes", found=str(shapes),
                                     expected=native.refused.get(shapes, "shapes that lower"))
        if plan.hosts:
            step = plan.hosts[0][1]
            raise NotImplementedFail(
                f"{step.node.label} is computed by numpy", node=step.node,
                found=native.lower(shapes, native.kinds(shapes)).trail.why.get(
                    step.node, "no kernel is generated for it"),
                cure="run the model in Python, or through the drop-in library")
        yield tuple(given.values()), plan


def _dimension(value: Value, axis: int, name: str | None) -> str:
    return name if isinstance(name, str) and name else f"{value.name}:{axis}"


def _open(value: Value) -> list[str]:
    """The names of an input's open dimensions. Raises InvalidArgument where there is not even a rank."""
    if value.shape is None:
        raise InvalidArgument(f"input {value.name} has no shape", found=str(value.type),
                              expected="a rank", cure="write the shape into the model")
    return [_dimension(value, axis, d) for axis, d in enumerate(value.shape) if not isinstance(d, int)]


def _described(value: Value, rank: int) -> Described:
    known = value.shape is not None and len(value.shape) == rank
    return Described(value.name, value.elem, value.shape if known else [None] * rank)
