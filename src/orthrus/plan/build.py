"""From placed parts to a program: every part compiled, every value numbered.

In: a `Placement` and the providers. Out: a `Program`, in which each value has the device of the step that
makes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import EPFail
from ..ir import Graph, No, Node, Value, in_memory
from ..kernels import HOST, Device, Kernel, Part, vetted
from ..partition import Placement, hand_back
from ..providers import CPUExecutionProvider
from ..providers.base import ExecutionProvider
from ..providers.ep_node import is_context, stored_of
from ..providers.trust import Trust
from .program import ABSENT, TRASH, Body, Bound, Program, Step, movable
from .turns import Turning

log = logging.getLogger("orthrus")


class _Planning:
    """A program in the making: values are numbered as they are met, their constants beside them."""

    def __init__(self, graph: Graph, devices: Sequence[Device] = (HOST,),
                 outer: _Planning | None = None) -> None:
        self.graph, self.devices = graph, devices
        self.of: dict[Value, int] = {}
        self.template: list[Any] = [None, None]
        self.places: dict[int, int] = {}
        self.kernels: list[Bound] = []
        self.steps: list[Step] = []
        self.copied: dict[tuple[Value, int], Any] = {} if outer is None else outer.copied
        self.captured = graph.captures() if outer is not None else []
        for value in graph.inputs:
            self.slot(value)
        for value in self.captured:
            if outer is not None and (place := outer.places.get(outer.slot(value))):
                self.places[self.slot(value)] = place
            self.slot(value)

    def slot(self, value: Value | None) -> int:
        if value is None:
            return ABSENT
        if value not in self.of:
            self.of[value] = len(self.template)
            self.template.append(in_memory(value.initial))
        return self.of[value]

    def step(self, bound: Bound, reads: Sequence[Value | None], writes: Sequence[Value | None],
             device: Device = HOST) -> None:
        """Append a step; what it makes lies on its device, where it can."""
        sources = [self.slot(v) for v in reads]
        while sources and sources[-1] == ABSENT and not bound.bodies:
            sources.pop()
        number = 0 if device is HOST else next(i for i, d in enumerate(self.devices) if d is device)
        targets = [TRASH if v is None or v.dead else self.slot(v) for v in writes]
        for value, slot in zip(writes, targets, strict=True) if number else ():
            if value is not None and slot > TRASH and movable(value):
                self.places[slot] = number
        self.steps.append(Step(len(self.kernels), tuple(sources), tuple(targets), (), number))
        self.kernels.append(bound)

    def finished(self) -> Program:
        for value in self.graph.outputs:
            self.slot(value)
        program = Program(self.graph, self.template, self.of, self.kernels, self.devices)
        program.places.update(self.places)
        program.captures, program.copied = [self.slot(v) for v in self.captured], self.copied
        program.finish(self.steps)
        return program


def build(placement: Placement, providers: Sequence[ExecutionProvider], trust: Trust) -> Program:
    """Compile every part and number every value. A part that its provider gives back goes to the providers
    behind it, and `placement` says so. Raises EPFail where a provider gives the wrong number of kernels, Fail
    for a part that came compiled and that `trust` does not let pass."""
    devices = list({id(device): device for device in (HOST, *(p.device for p in providers))}.values())
    return _build(_Planning(placement.graph, devices), placement, providers, trust)


def _build(plan: _Planning, placement: Placement, providers: Sequence[ExecutionProvider], trust: Trust
           ) -> Program:
    compiled = _compile_all(placement, providers, trust)
    device_of = {provider.name: provider.device for provider in providers}
    for part in placement.parts:
        kernels, device = compiled[part], device_of[part.provider]
        if part.fused:
            plan.step(Bound(kernels[0], part), part.inputs, part.outputs, device)
            continue
        for node, made in zip(part.nodes, kernels, strict=True):
            alone = part if len(part.nodes) == 1 else Part(part.provider, [node], [], [])
            if node.has_bodies:
                _control_step(alone, node, placement, providers, trust, plan)
                continue
            if _believed(node):
                made = replace(made, run=vetted(made.run, node))
            plan.step(Bound(made, alone), node.inputs, node.outputs, device)
    return plan.finished()


def whole(graph: Graph, part: Part, kernel: Kernel) -> Program:
    """The program of a graph that is one fused part."""
    plan = _Planning(graph)
    plan.step(Bound(kernel, part), part.inputs, part.outputs)
    return plan.finished()


def _compile_all(placement: Placement, providers: Sequence[ExecutionProvider], trust: Trust
                 ) -> dict[Part, list[Kernel]]:
    """The kernels of every part; parts that cannot be compiled are handed back first."""
    by_name = {provider.name: provider for provider in providers}
    done: dict[Part, list[Kernel]] = {}
    while waiting := [part for part in placement.parts if part not in done]:
        for part in waiting:
            made = _compiled(by_name[part.provider], part, trust)
            if isinstance(made, No):
                log.warning("%s hands %s back, %d nodes: %s", part.provider, part, len(part.nodes),
                            made.reason.partition("\n")[0])
                hand_back(placement, part, made, providers)
                break
            done[part] = made
    return {part: done[part] for part in placement.parts}


def _compiled(provider: ExecutionProvider, part: Part, trust: Trust) -> list[Kernel] | No:
    """The kernels of one part, or why its nodes go to another provider."""
    kernels: Sequence[Kernel | No]
    first = part.nodes[0]
    if loads := is_context(first):
        kernels = [provider.load(part, stored_of(first, part.info.path, trust))]
    else:
        kernels = list(provider.compile(part))
    expected = 1 if part.fused else len(part.nodes)
    good = [k for k in kernels if isinstance(k, Kernel)]
    if len(good) == expected and len(kernels) == expected:
        return good
    refusal = next((k for k in kernels if isinstance(k, No)), None)
    if loads and refusal is not None:
        raise EPFail(f"{provider.name} cannot use the compiled part: {refusal.reason}", node=part,
                     cure="compile the original model again, here")
    if refusal is not None and len(kernels) == expected and provider.name != CPUExecutionProvider.name:
        return refusal
    raise EPFail(f"{provider.name} did not return correct number of compiled functions", node=part,
                 found=refusal.reason if refusal else f"{len(kernels)} results",
                 expected=f"{expected} of type Kernel",
                 cure="compile(part) returns one Kernel for a fused part, else one per node")


def _believed(node: Node) -> bool:
    """Whether nothing but the model's word says what a result's type is: that of an input is not known."""
    return any(v is not None and v.const is None and "?" in str(v.type or "?") for v in node.inputs)


def _control_step(part: Part, node: Node, placement: Placement, providers: Sequence[ExecutionProvider],
                  trust: Trust, plan: _Planning) -> None:
    bodies: list[tuple[str, int | None, Program, int]] = []
    reads = list(node.inputs)
    plain: dict[str, Any] = {}
    for key, attr in node.attrs.items():
        graphs = attr if isinstance(attr, list) and attr and isinstance(attr[0], Graph) else [attr]
        if not isinstance(graphs[0], Graph):
            plain[key] = attr
            continue
        for i, body in enumerate(graphs):
            inner = _Planning(body, plan.devices, plan)
            reads += inner.captured
            made = _build(inner, placement.bodies[body], providers, trust)
            bodies.append((key, i if graphs is attr else None, made, len(inner.captured)))
    found = [] if node.op_type == "If" else [Turning.of(program) for _, _, program, _ in bodies]
    how = [f", turn by turn: {each.reason}" if isinstance(each, No) else ", turns in generated code"
           for each in found]
    turnings = [None if isinstance(each, No) else each for each in found] or [None] * len(bodies)
    for (_, _, program, _), each in zip(bodies, found or [No("a branch")] * len(bodies), strict=True):
        if isinstance(each, No):
            program.shorten()
    own = node.op.own and all(bound.kernel.own for _, _, program, _ in bodies for bound in program.kernels)
    kernel = Kernel(_control_run(node, plain, bodies, turnings), f"control {node.op_type}{''.join(how)}",
                    own=own)
    plan.step(Bound(kernel, part, tuple(program for _, _, program, _ in bodies)), reads, node.outputs)


def _control_run(node: Node, plain: dict[str, Any], plans: Sequence[tuple[str, int | None, Program, int]],
                 turnings: Sequence[Turning | None]) -> Callable[..., Any]:
    op, count = node.op, len(node.inputs)
    names = {key for key, *_ in plans}
    fixed = {k: v for k, v in op.with_defaults({**plain, **dict.fromkeys(names)}).items()
             if k in op.attributes and k not in names}
    if "n_outputs" in op.runtime:
        fixed["n_outputs"] = len(node.outputs)

    def run(context: Any, *values: Any) -> Any:
        bodies: dict[str, Any] = {}
        at = count
        for (key, index, program, size), turning in zip(plans, turnings, strict=True):
            body = Body(program, values[at:at + size], context, turning)
            at += size
            if index is None:
                bodies[key] = body
            else:
                bodies.setdefault(key, []).append(body)
        return op.body(*values[:count], **fixed, **bodies)
    return vetted(run, node)
