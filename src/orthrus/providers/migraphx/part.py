"""What runs a part: one program where its shapes are known, else one for each tuple of them, or one for many
batches.

In: a part, and what makes a program of a part whose shapes are known. Out: objects that kernels run. Results
are held to the shapes that this package's own inference gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...ir import Value
from ...kernels import HOST, Device, Gate, Kernel, Part, Work, copied, reference
from ...lowering.interpret import interpret
from ..foreign.fixed import Engine, FixedShapes, Shape
from ..foreign.shapes import Shapes
from .device import brought, first_rows, padded, with_rows
from .program import Program

Note = Callable[[Any, int, int], None]
ENGINE = Engine("MIGraphX", "fixed dimensions, or another provider for such shapes")


class HostGate(Gate):
    """As `Gate`, with the declared ranks; one element may come in another rank, as onnxruntime takes it."""

    def __init__(self, values: Sequence[Value]) -> None:
        super().__init__(values, ranked=True)

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        return super().__call__([
            a.reshape((1,) * rank) if isinstance(a, np.ndarray) and a.size == 1 and rank not in (None, a.ndim)
            else a for a, rank in zip(given, self.ranks, strict=True)])


class DeviceGate:
    """As `Gate`, for arrays of a device."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        for value, array in zip(self.values, given, strict=True):
            if array.dtype != value.elem.numpy or array.ndim != len(value.shape):
                raise InvalidArgument(f"{value.name} is of another type than the model declares",
                                      node=value.node, found=repr(array), expected=str(value.type))
        return given


def gate_of(values: Sequence[Value], device: Device) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What arrays of a device go through before a part takes them."""
    return HostGate(values) if device is HOST else DeviceGate(values)


class Whole:
    """A part by one program."""

    def __init__(self, part: Part, program: Program, device: Device = HOST) -> None:
        self.part, self.program = part, program
        self.gate, self.shapes = gate_of(part.inputs, device), Shapes(part, ENGINE.name)

    def __call__(self, *given: np.ndarray) -> Any:
        arrays = self.gate(given)
        expected = self.shapes.expected(arrays)
        return self._checked(self.program.run(arrays), expected, arrays)

    def _checked(self, made: list[np.ndarray], expected: Sequence[Any], arrays: Sequence[np.ndarray]) -> Any:
        self.shapes.check(made, expected, arrays)
        return made[0] if len(made) == 1 else tuple(made)

    def stepwise(self, given: Sequence[np.ndarray], note: Note | None, watch: Any = None,
                 check: Callable[[], None] | None = None) -> Any:
        """As a call. Where times are wanted, the library computes in another process, which prints those of
        its instructions; they are noted one behind the other up to the end."""
        if note is None:
            return self(*given)
        began = time.perf_counter_ns()
        arrays = self.gate(given)
        expected = self.shapes.expected(arrays)
        made, spent = self.program.traced(arrays)
        end = time.perf_counter_ns()
        spent = spent or [("MIGraphX", (end - began) / 1e9)]
        start = max(began, end - sum(int(seconds * 1e9) for _, seconds in spent))
        note(None, began, start)
        for turn, (name, seconds) in enumerate(spent, 1):
            stop = min(end, start + int(seconds * 1e9))
            note(self._work(name, turn, len(spent)), start, stop)
            start = stop
        return self._checked(made, expected, arrays)

    def _work(self, name: str, turn: int, turns: int) -> Work:
        part = self.part
        kinds = {v: v.type for v in (*part.inputs, *part.outputs) if v.type is not None}
        return Work(part.nodes[0], name, tuple(part.nodes), tuple(part.inputs), tuple(part.outputs), kinds,
                    turn,
                    turns)


class ByShapes(FixedShapes):
    """A part with open dimensions: a program for each tuple of shapes. Arrays without elements, which the
    library was hardly tried with, go through the nodes' definitions."""

    def __init__(self, part: Part, make: Callable[[Part], Any], batches: Sequence[int],
                 ranged: tuple[Kernel, int] | None = None, device: Device = HOST) -> None:
        super().__init__(part, make, ENGINE)
        self.device, self.gate = device, gate_of(part.inputs, device)
        self.batches = batches if one_batch(part) else ()
        self.ranged = ranged

    def __call__(self, *arrays: np.ndarray) -> Any:
        return self._run(arrays, lambda kernel, given: kernel.run(*given))

    def stepwise(self, arrays: Sequence[np.ndarray], note: Note | None, watch: Any = None,
                 check: Callable[[], None] | None = None) -> Any:
        """As a call, with times; see `Whole.stepwise`."""
        return self._run(arrays, lambda kernel, given: kernel.run.stepwise(  # type: ignore[attr-defined]
            given, note, watch, check))

    def _run(self, given: Sequence[np.ndarray], run: Callable[[Kernel, Sequence[np.ndarray]], Any]) -> Any:
        arrays = self.gate(given)
        if not all(a.size for a in arrays):
            return self._defined(arrays)
        rows = next((a.shape[0] for a, v in zip(arrays, self.part.inputs, strict=True)
                     if v.shape and isinstance(v.shape[0], str)), 0)
        if self.ranged is not None and rows <= self.ranged[1]:
            return run(self.ranged[0], arrays)
        to = next((b for b in self.batches if b >= rows), rows)
        if to == rows:
            return run(self.kernel(arrays), arrays)
        fill: Callable[[Any, int], Any] = with_rows if self.device is HOST else padded
        wide = [fill(a, to) if v.shape and isinstance(v.shape[0], str) else a
                for a, v in zip(arrays, self.part.inputs, strict=True)]
        made = run(self.kernel(wide), wide)
        return tuple(first_rows(m, rows) for m in made) if isinstance(made, tuple) else first_rows(made, rows)

    def _defined(self, arrays: Sequence[Any]) -> Any:
        """The results by the nodes' definitions."""
        made = interpret(self.part, lambda node: reference(node).run, [copied(a, HOST) for a in arrays])
        if self.device is HOST:
            return made
        return tuple(brought(m, self.device) for m in made) if isinstance(made, tuple) else brought(
            made, self.device)

    def prepare(self, batches: Sequence[int]) -> None:
        """Compile for these batches. Raises as `kernel`."""
        for batch in batches if self.batches else ():
            self.of_shapes(tuple(sizes(v.shape, batch) for v in self.part.inputs))


def one_batch(part: Part) -> bool:
    """Whether all that is open of a part is one batch, the first dimension of some inputs and of every
    output, so that rows can be added and left out again."""
    open_ = {d for v in part.inputs for d in v.shape or () if not isinstance(d, int)}
    first = {v.shape[0] for v in part.inputs if v.shape} - {d for d in open_ if d is None}
    inner = {d for v in (*part.inputs, *part.outputs) for d in (v.shape or ())[1:]}
    return len(open_) == 1 and None not in open_ and open_ <= first and not open_ & inner and all(
        v.shape and v.shape[0] in open_ for v in part.outputs)


def sizes(shape: Sequence[Any], batch: int) -> Shape:
    """A shape with its batch filled in."""
    return tuple(d if isinstance(d, int) else batch for d in shape)
