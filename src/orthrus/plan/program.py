"""The steps of a graph, in order, over numbered slots."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ..errors import EPFail
from ..ir import Graph, No, Node, Type, Value, in_memory
from ..kernels import Gate, Kernel, Part, vetted
from ..partition import Placement, hand_back
from ..providers import CPUExecutionProvider
from ..providers.base import ExecutionProvider
from ..providers.ep_node import is_context, stored_of
from ..providers.trust import Trust

log = logging.getLogger("orthrus")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One kernel call: `run(*[slots[i] for i in reads])` fills `writes` (-1: nobody
    reads it), then `frees` are let go.

    A `control` step runs bodies: its `run` takes the run's context first, and its reads
    end with the bodies' captures.
    """

    run: Callable[..., Any]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    part: Part
    kernel: Kernel
    control: tuple[Program, ...] = ()

    @property
    def node(self) -> Node:
        return self.part.nodes[0]


Code = list[tuple[Callable[..., Any], Callable[[list[Any]], Any], int, tuple[int, ...], Step]]

ABSENT, TRASH = 0, 1
"""Two slots of every program: what an absent input reads, and where goes what nobody reads."""


def code(steps: Sequence[Step]) -> Code:
    """`steps` as the executors' tuples (run, take, write, frees, step): `run(*take(slots))` is the call,
    `write` 0 where a step has bodies, or not one output."""
    return [(s.run, taker(s.reads), s.writes[0] if len(s.writes) == 1 and not s.control else 0, s.frees, s)
            for s in steps]


def taker(reads: tuple[int, ...]) -> Callable[[list[Any]], Any]:
    """A function from the list of slots to the values in `reads`, in order."""
    if len(reads) > 1:
        return itemgetter(*reads)
    return itemgetter(slice(reads[0], reads[0] + 1) if reads else slice(0, 0))


class Program:
    """A compiled graph: steps over slots. `template` holds the constants in their
    slots, slot 0 the absent value."""

    def __init__(self, graph: Graph, template: list[Any], slots: dict[Value, int]) -> None:
        self.graph, self.template, self.slots = graph, template, slots
        self.inputs = [slots[v] for v in graph.inputs]
        self.outputs = [slots[v] for v in graph.outputs]
        self.gate = Gate(graph.inputs)
        self.captures: list[int] = []
        self.steps: list[Step] = []
        self.code: Code = []

    def __str__(self) -> str:
        return "\n".join(
            f"{i:4} {str(s.part):<28} {s.kernel.name:<24} {list(s.reads)} -> {list(s.writes)}  "
            f"free {list(s.frees)}"
            for i, s in enumerate(self.steps))

    @property
    def fixed(self) -> set[int]:
        """Slots no step may free: the absent value, the constants and what comes in."""
        constants = (i for value, i in self.slots.items() if value.const is not None)
        return {ABSENT, TRASH, *constants, *self.inputs, *self.captures}

    def finish(self, steps: Sequence[Step]) -> None:
        """Set the steps, each slot freed after its last reader."""
        self.steps = freed(steps, {*self.outputs, *self.fixed})
        self.code = code(self.steps)

    def close(self) -> None:
        """There will be no more runs: end what its kernels, and those of bodies, do beside them."""
        for step in self.steps:
            if step.kernel.close is not None:
                step.kernel.close()
            for body in step.control:
                body.close()

    def pruned(self, outputs: Sequence[int]) -> list[Step]:
        """The steps that `outputs` need."""
        needed, kept = set(outputs), list[Step]()
        for step in reversed(self.steps):
            if needed.intersection(step.writes):
                needed.update(step.reads)
                kept.append(step)
        return freed(kept[::-1], {*outputs, *self.fixed})


class Body:
    """A body of control flow bound to its captures for the length of one step:
    `body(*inputs)` gives its outputs. Raises InvalidArgument for an input of another type than the body
    declares."""

    __slots__ = ("program", "captured", "context")

    def __init__(self, program: Program, captured: Sequence[Any], context: Any) -> None:
        self.program, self.captured, self.context = program, captured, context

    @property
    def n_inputs(self) -> int:
        return len(self.program.inputs)

    @property
    def n_outputs(self) -> int:
        return len(self.program.outputs)

    @property
    def output_types(self) -> list[Type | None]:
        return [v.type for v in self.program.graph.outputs]

    def __call__(self, *inputs: Any) -> list[Any]:
        program = self.program
        slots = program.template.copy()
        for i, value in zip(program.captures, self.captured, strict=True):
            slots[i] = value
        for i, value in zip(program.inputs, program.gate(inputs), strict=False):
            slots[i] = value
        self.context.execute(program.code, slots)
        return [slots[i] for i in program.outputs]


class _Slots:
    """Numbers values as they are met, their constants beside them."""

    def __init__(self) -> None:
        self.of: dict[Value, int] = {}
        self.template: list[Any] = [None, None]

    def __call__(self, value: Value | None) -> int:
        if value is None:
            return ABSENT
        if value not in self.of:
            self.of[value] = len(self.template)
            self.template.append(in_memory(value.initial))
        return self.of[value]


def build(placement: Placement, providers: Sequence[ExecutionProvider], trust: Trust) -> Program:
    """Compile every part and number every value. A part that its provider gives back goes to the providers
    behind it, and `placement` says so. Raises EPFail where a provider gives the wrong number of kernels, Fail
    for a part that came compiled and that `trust` does not let pass."""
    compiled = _compile_all(placement, providers, trust)
    graph, slot = placement.graph, _Slots()
    captured = graph.captures() if graph.outer is not None else []
    for value in (*graph.inputs, *captured):
        slot(value)
    steps: list[Step] = []
    for part in placement.parts:
        kernels = compiled[part]
        if part.fused:
            steps.append(_step(part, kernels[0], part.inputs, part.outputs, slot))
            continue
        for node, made in zip(part.nodes, kernels, strict=True):
            alone = part if len(part.nodes) == 1 else Part(part.provider, [node], [], [])
            if node.has_bodies:
                steps.append(_control_step(alone, node, placement, providers, trust, slot))
            else:
                steps.append(_step(alone, made, node.inputs, node.outputs, slot))
    for value in graph.outputs:
        slot(value)
    program = Program(graph, slot.template, slot.of)
    program.captures = [slot(v) for v in captured]
    program.finish(steps)
    return program


def whole(graph: Graph, part: Part, kernel: Kernel) -> Program:
    """The program of a graph that is one fused part."""
    slot = _Slots()
    for value in graph.inputs:
        slot(value)
    step = _step(part, kernel, part.inputs, part.outputs, slot)
    program = Program(graph, slot.template, slot.of)
    program.finish([step])
    return program


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


def _step(part: Part, made: Kernel, reads: Sequence[Value | None], writes: Sequence[Value | None],
          slot: _Slots) -> Step:
    sources = tuple(slot(v) for v in reads)
    while sources and sources[-1] == ABSENT:
        sources = sources[:-1]
    run = vetted(made.run, part.nodes[0]) if not part.fused and _believed(part.nodes[0]) else made.run
    return Step(run, sources, _targets(writes, slot), (), part, made)


def _believed(node: Node) -> bool:
    """Whether nothing but the model's word says what a result's type is: that of an input is not known."""
    return any(v is not None and v.const is None and "?" in str(v.type or "?") for v in node.inputs)


def _targets(writes: Sequence[Value | None], slot: _Slots) -> tuple[int, ...]:
    return tuple(TRASH if v is None or v.dead else slot(v) for v in writes)


def _control_step(part: Part, node: Node, placement: Placement, providers: Sequence[ExecutionProvider],
                  trust: Trust, slot: _Slots) -> Step:
    plans: list[tuple[str, int | None, Program, int]] = []
    reads = [slot(v) for v in node.inputs]
    plain: dict[str, Any] = {}
    for key, attr in node.attrs.items():
        graphs = attr if isinstance(attr, list) and attr and isinstance(attr[0], Graph) else [attr]
        if not isinstance(graphs[0], Graph):
            plain[key] = attr
            continue
        for i, body in enumerate(graphs):
            outer = body.captures()
            inner = build(placement.bodies[body], providers, trust)
            plans.append((key, i if graphs is attr else None, inner, len(outer)))
            reads += [slot(v) for v in outer]
    run = _control_run(node, plain, plans)
    kernel = Kernel(run, f"control {node.op_type}")
    return Step(run, tuple(reads), _targets(node.outputs, slot), (), part, kernel, tuple(p[2] for p in plans))


def _control_run(node: Node, plain: dict[str, Any], plans: Sequence[tuple[str, int | None, Program, int]]
                 ) -> Callable[..., Any]:
    op, count = node.op, len(node.inputs)
    names = {key for key, *_ in plans}
    fixed = {k: v for k, v in op.with_defaults({**plain, **dict.fromkeys(names)}).items()
             if k in op.attributes and k not in names}
    if "n_outputs" in op.runtime:
        fixed["n_outputs"] = len(node.outputs)

    def run(context: Any, *values: Any) -> Any:
        bodies: dict[str, Any] = {}
        at = count
        for key, index, program, size in plans:
            body = Body(program, values[at:at + size], context)
            at += size
            if index is None:
                bodies[key] = body
            else:
                bodies.setdefault(key, []).append(body)
        return op.body(*values[:count], **fixed, **bodies)
    return vetted(run, node)


def freed(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    """`steps` with each slot freed after its last reader, but those in `kept`."""
    out, seen = list[Step](), set(kept)
    for step in reversed(steps):
        touched = {*step.reads, *step.writes}
        frees = tuple(sorted(touched - seen))
        seen |= touched
        out.append(Step(step.run, step.reads, step.writes, frees, step.part, step.kernel, step.control))
    return out[::-1]
