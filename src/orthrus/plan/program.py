"""The steps of a graph, in order, over numbered slots, and what it takes to run them.

A `Step` is numbers. What they stand for, kernels, devices and constants, lies beside the steps in their
`Program`, and `code` puts the two together for the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ..errors import EPFail
from ..ir import ElementType, Graph, Node, TensorType, Type, Value
from ..kernels import (
    HOST,
    Device,
    DeviceArray,
    Gate,
    Kernel,
    Part,
    begun,
    copied,
    landed,
    ordered,
    refused,
    working,
)
from ..locks import lock
from ..records import dataclass
from .shortcut import Shortcut

ABSENT, TRASH = 0, 1
"""Two slots of every program: what an absent input reads, and where goes what nobody reads."""

COPY, LAND = -1, -2
"""The kernels of a step that copies a value to the step's device from whichever it lies on, or begins to; and
of one that waits until a copy which was begun is in the host's memory."""


class Step(NamedTuple):
    """One call: kernel number `kernel` on device number `device` reads the slots `reads` and fills `writes`
    (TRASH: nobody reads it), then `frees` are let go."""

    kernel: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...] = ()
    device: int = 0


@dataclass(slots=True, eq=False)
class Bound:
    """A kernel of a program, and the part it computes. `bodies`: the programs of a control step, whose `run`
    takes the run's context first and whose reads end with the bodies' captures."""

    kernel: Kernel
    part: Part
    bodies: tuple[Program, ...] = ()


@dataclass(slots=True, eq=False)
class Call:
    """A step with what its numbers stand for: `run(*[slots[i] for i in reads])` gives what goes to `writes`.
    """

    run: Callable[..., Any]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    part: Part
    kernel: Kernel
    bodies: tuple[Program, ...]
    device: Device

    @property
    def node(self) -> Node:
        return self.part.nodes[0]


Code = list[tuple[Callable[..., Any], Callable[[list[Any]], Any], int, tuple[int, ...], Call]]
"""What the runner walks: (run, take, write, frees, call). `run(*take(slots))` is the call, `write` 0 where it
has bodies, or not one output."""


def taker(reads: tuple[int, ...]) -> Callable[[list[Any]], Any]:
    """A function from the list of slots to the values in `reads`, in order."""
    if len(reads) > 1:
        return itemgetter(*reads)
    return itemgetter(slice(reads[0], reads[0] + 1) if reads else slice(0, 0))


class Program:
    """A compiled graph. `template` holds the constants in their slots, slot 0 the absent value; `kernels` and
    `devices` are what steps have numbers of, device 0 the host; `places` says which slots are of a device
    other than that. `steps` take inputs from the host and give outputs, in the slots `results`, there; `bare`
    are the same without copies. `copied`: the constants on other devices, which bodies share. `shortcuts`:
    by kernel what is called instead of it.
    """

    def __init__(self, graph: Graph, template: list[Any], slots: dict[Value, int],
                 kernels: Sequence[Bound] = (), devices: Sequence[Device] = (HOST,)) -> None:
        self.graph, self.template, self.slots = graph, template, slots
        self.kernels, self.devices = kernels, devices
        self.inputs = [slots[v] for v in graph.inputs]
        self.outputs = [slots[v] for v in graph.outputs]
        self.gate = Gate(graph.inputs)
        self.captures: list[int] = []
        self.places: dict[int, int] = {}
        self.bare: list[Step] = []
        self.shortcuts: dict[int, Callable[..., Any]] = {}
        self.steps: list[Step] = []
        self.code: Code = []
        self.results = self.outputs
        self.copied: dict[tuple[Value, int], Any] = {}
        self._copies: dict[tuple[int, int], int] = {}
        self._originals: dict[int, Value] = {}
        self._lock = lock()

    def __str__(self) -> str:
        rows = []
        for i, call in enumerate(self.calls):
            where = "" if call.device is HOST else f"  on {call.device!r}"
            rows.append(f"{i:4} {str(call.part):<28} {call.kernel.name:<24} {list(call.reads)} -> "
                        f"{list(call.writes)}  free {list(call.frees)}{where}")
        return "\n".join(rows)

    @property
    def calls(self) -> list[Call]:
        """The steps with what their numbers stand for."""
        return [entry[4] for entry in self.code]

    @property
    def constants(self) -> set[int]:
        """The slots of constants."""
        found = {i for value, i in self.slots.items() if value.const is not None}
        return found | {there for (slot, _), there in self._copies.items() if slot in found}

    @property
    def fixed(self) -> set[int]:
        """Slots no step may free: the absent value, the constants and what comes in."""
        return {ABSENT, TRASH, *self.constants, *self.inputs, *self.captures}

    def finish(self, steps: Sequence[Step]) -> None:
        """Set the steps: what is to be computed, before any copy."""
        self.bare = list(steps)
        self.steps, self.results = self.planned(self.outputs)
        self.code = self.bound(self.steps)

    def shorten(self) -> None:
        """Let steps of generated code be entered by shortcuts, where nobody else enters these."""
        self.shortcuts = {step.kernel: Shortcut.of(
            self.kernels[step.kernel].kernel, len(step.reads), len(step.writes)) for step in self.bare
            if self.devices[step.device] is HOST}
        self.code = self.bound(self.steps)

    def planned(self, outputs: Sequence[int], fed: Mapping[int, int] | None = None,
                wanted: Sequence[int] | None = None) -> tuple[list[Step], list[int]]:
        """The steps that `outputs` need, with the copies these need, each slot freed after its last reader;
        and the slots where the outputs are then. `fed`: the devices of inputs that come on another than the
        host; `wanted`: that on which each output is to be had."""
        whole = set(outputs) == set(self.outputs)
        steps, results = self.bare if whole else _needed(self.bare, outputs), list(outputs)
        if len(self.devices) > 1:
            steps, results = self._copied(steps, results, fed or {}, wanted or [0] * len(results))
        return freed(steps, {*results, *self.fixed}), results

    def _copied(self, steps: Sequence[Step], outputs: Sequence[int], fed: Mapping[int, int],
                wanted: Sequence[int]) -> tuple[list[Step], list[int]]:
        """`steps` with a copy, to each device where a value is read and does not lie, begun as soon as there
        is something to copy, and the slots of the outputs where they are `wanted`. Constants are copied once,
        now."""
        places, constants = {**self.places, **fed}, self.constants
        values = {slot: value for value, slot in self.slots.items()}
        fixed = {slot for slot, value in values.items() if not movable(value)} | {ABSENT, TRASH}
        reads = [pair for step in steps for pair in zip(step.reads, self._takes(step), strict=True)]
        needed = dict[int, dict[int, None]]()
        for slot, device in (*reads, *zip(outputs, wanted, strict=True)):
            if slot not in fixed and places.get(slot, 0) != device:
                needed.setdefault(slot, {})[device] = None
        made, flying = list[Step](), dict[int, int]()

        def begin(slot: int) -> None:
            for device in needed.get(slot, ()):
                copy = self._copy(slot, device, values[slot])
                if slot in constants:
                    continue
                if not device and self.devices[places[slot]].streams:
                    flying[copy] = copy = self._flight(copy)
                made.append(Step(COPY, (slot,), (copy,), (), device))

        def on(slot: int, device: int) -> int:
            if device not in needed.get(slot, ()):
                return slot
            copy = self._copies[slot, device]
            if copy in flying:
                made.append(Step(LAND, (flying.pop(copy),), (copy,)))
            return copy
        computed = {slot for step in steps for slot in step.writes}
        for slot in needed:
            if slot not in computed:
                begin(slot)
        for step in steps:
            there = tuple([on(s, d) for s, d in zip(step.reads, self._takes(step), strict=True)])
            made.append(step._replace(reads=there))
            for slot in step.writes:
                begin(slot)
        results = [on(s, d) for s, d in zip(outputs, wanted, strict=True)]
        return made, results

    def _flight(self, copy: int) -> int:
        """The slot of what becomes the host's `copy`."""
        with self._lock:
            if (copy, -1) not in self._copies:
                self._copies[copy, -1] = slot = len(self.template)
                self._originals[slot] = self._originals[copy]
                self.template.append(None)
            return self._copies[copy, -1]

    def read_on(self, slot: int) -> int:
        """The device that alone reads a slot, 0 where several do."""
        found = {device for step in self.bare
                 for read, device in zip(step.reads, self._takes(step), strict=True) if read == slot}
        return found.pop() if len(found) == 1 else 0

    def _takes(self, step: Step) -> list[int]:
        """The device on which a step takes each value that it reads: its own, the host for what its kernel
        wants there, that of bodies for captures."""
        kernel = self.kernels[step.kernel].kernel
        captured = [body.places.get(slot, 0) for body in self.kernels[step.kernel].bodies
                    for slot in body.captures]
        own = [0 if i in kernel.on_host else step.device for i in range(len(step.reads) - len(captured))]
        return own + captured

    def _copy(self, slot: int, device: int, value: Value) -> int:
        """The slot of what is in `slot` on another device: always the same one."""
        with self._lock:
            if (slot, device) not in self._copies:
                made = None
                if value.const is not None:
                    if (value, device) not in self.copied:
                        self.copied[value, device] = copied(self.template[slot], self.devices[device])
                    made = self.copied[value, device]
                self._copies[slot, device] = copy = len(self.template)
                self._originals[copy], self.places[copy] = value, device
                self.template.append(made)
            return self._copies[slot, device]

    def bound(self, steps: Sequence[Step]) -> Code:
        """`steps` as the runner walks them."""
        made: Code = []
        for step in steps:
            call = self._call(step)
            write = step.writes[0] if len(step.writes) == 1 and not call.bodies else 0
            made.append((call.run, taker(step.reads), write, step.frees, call))
        return made

    def _call(self, step: Step) -> Call:
        device = self.devices[step.device]
        bound = self._copying(step) if step.kernel < 0 else self.kernels[step.kernel]
        run = self.shortcuts.get(step.kernel, bound.kernel.run)
        if device is not HOST and step.kernel >= 0:
            run = _checked(run, device, bound.part.nodes[0], step.writes, self._where(step))
        return Call(run, step.reads, step.writes, step.frees, bound.part, bound.kernel, bound.bodies, device)

    def _where(self, step: Step) -> list[Device]:
        return [self.devices[self.places.get(slot, 0)] for slot in step.writes]

    def _copying(self, step: Step) -> Bound:
        """A copy, as work of a node of its own."""
        target = self.devices[step.device]
        value = self._originals[step.writes[0]]
        node = Node(f"MemcpyTo{'Host' if target is HOST else 'Device'}", "", 1, None, (), {},
                    f"Memcpy of {value.name} to {target!r}")
        node.inputs, node.outputs = [value], [value]
        part = Part("CPUExecutionProvider", [node], [value], [value], info=self.graph.info)
        if step.kernel == LAND:
            return Bound(Kernel(landed, f"end of the copy to {target!r}"), part)
        return Bound(Kernel(partial(_begun_to, target), f"copy to {target!r}"), part)

    def close(self) -> None:
        """There will be no more runs: end what its kernels, and those of bodies, do beside them."""
        for each in self.shortcuts.values():
            if isinstance(each, Shortcut):
                each.close()
        for bound in self.kernels:
            if bound.kernel.close is not None:
                bound.kernel.close()
            for body in bound.bodies:
                body.close()


def movable(value: Value) -> bool:
    """Whether a value may lie on a device: a tensor of numbers, or of what nobody knows."""
    return value.type is None or (isinstance(value.type, TensorType)
                                  and value.type.elem is not ElementType.STRING)


def _begun_to(target: Device, value: Any) -> Any:
    return begun(value, target)


def _checked(run: Callable[..., Any], device: Device, node: Node, writes: Sequence[int],
             places: Sequence[Device]) -> Callable[..., Any]:
    """`run`, behind what makes its inputs, with results where the program takes them to be. It raises EPFail
    for others, DeviceReset where the device is lost."""
    def checked(*given: Any) -> Any:
        try:
            if device.streams:
                ordered(working(device), given)
            made = run(*given)
        except Exception as error:
            if getattr(error, "lost", False):
                raise refused(device, error) from error
            raise
        several = made if isinstance(made, tuple | list) and len(writes) > 1 else (
            made if isinstance(made, tuple) else (made,))
        for result, slot, place in zip(several, writes, places, strict=False):
            found = result.device if isinstance(result, DeviceArray) else HOST
            if slot > TRASH and result is not None and found is not place:
                raise EPFail("a kernel gave a result on another device than its provider's", node=node,
                             found=repr(result)[:80], expected=f"an array on {place!r}",
                             cure="make results with device.array(shape, dtype)")
        return made
    return checked


def _needed(steps: Sequence[Step], outputs: Sequence[int]) -> list[Step]:
    """The steps that `outputs` need."""
    needed, kept = set(outputs), list[Step]()
    for step in reversed(steps):
        if needed.intersection(step.writes):
            needed.update(step.reads)
            kept.append(step)
    return kept[::-1]


def freed(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    """`steps` with each slot freed after its last reader, but those in `kept`."""
    out, seen = list[Step](), set(kept)
    for step in reversed(steps):
        touched = {*step.reads, *step.writes}
        frees = tuple(sorted(touched - seen))
        seen |= touched
        out.append(Step(step.kernel, step.reads, step.writes, frees, step.device))
    return out[::-1]


class Body:
    """A body of control flow bound to its captures for the length of one step:
    `body(*inputs)` gives its outputs. Raises InvalidArgument for an input of another type than the body
    declares."""

    __slots__ = ("program", "captured", "context", "turning")

    def __init__(self, program: Program, captured: Sequence[Any], context: Any, turning: Any = None) -> None:
        self.program, self.captured, self.context, self.turning = program, captured, context, turning

    @property
    def inputs(self) -> list[Value]:
        return self.program.graph.inputs

    @property
    def outputs(self) -> list[Value]:
        return self.program.graph.outputs

    @property
    def n_inputs(self) -> int:
        return len(self.program.inputs)

    @property
    def n_outputs(self) -> int:
        return len(self.program.outputs)

    @property
    def input_types(self) -> list[Type | None]:
        return [v.type for v in self.program.graph.inputs]

    @property
    def output_types(self) -> list[Type | None]:
        return [v.type for v in self.program.graph.outputs]

    def turns(self, leading: Sequence[np.ndarray], states: Sequence[Any], slices: Sequence[np.ndarray],
              first: int, most: int, heeded: bool) -> Any:
        """See `Turning`; None where it has to be called turn by turn."""
        if self.turning is None:
            return None
        return self.turning(leading, states, slices, self.captured, first, most, heeded, self.context)

    def __call__(self, *inputs: Any) -> list[Any]:
        program = self.program
        slots = program.template.copy()
        for i, value in zip(program.captures, self.captured, strict=True):
            slots[i] = value
        for i, value in zip(program.inputs, program.gate(inputs), strict=False):
            slots[i] = value
        self.context.execute(program.code, slots)
        return [slots[i] for i in program.results]
