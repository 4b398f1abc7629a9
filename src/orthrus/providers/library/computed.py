"""A compiled part of a library, run on arrays.

In: arrays of the part's inputs. Out: arrays of its outputs, in memory of ours where their shapes are known,
else in the library's, which it gets back with the last reference to them. What the library gives is checked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import EPFail
from ...ir import Value, shape_text
from ...kernels import Gate, Part, failed, readable
from ...kernels.dlpack import Tensor, adopted, shown
from ...limits import bounded
from ...recent import Recent
from ...records import dataclass
from . import abi
from .calls import Owned, blamed, blank, node_of

Place = int | tuple[int, int]
"""A dimension before a run: its size, or the input and axis that have it."""


_FORMS = 8
"""Tuples of input shapes whose structures are kept."""


@dataclass(frozen=True)
class _Form:
    """What a run of inputs of certain shapes hands over, but for addresses. `rooms`: shapes and types of the
    results whose shapes are known; `kept`: what the structures refer to."""

    inputs: Any
    outputs: Any
    rooms: Sequence[tuple[tuple[int, ...], np.dtype[Any]] | None]
    kept: Sequence[Any]


class Computed:
    """Runs of one kernel, on many threads at once. `constants`: what the library may look at meanwhile."""

    def __init__(self, kernel: Owned, run: Any, part: Part, constants: Sequence[np.ndarray],
                 provider: str) -> None:
        self.kernel, self.part, self.constants, self.provider = kernel, part, constants, provider
        self._run = run
        self._gate = Gate(part.inputs)
        self._places = [_places(value, part.inputs) for value in part.outputs]
        self._forms: Recent[tuple[tuple[int, ...], ...], _Form] = Recent(_FORMS)

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The results. Raises what the library answers, EPFail for a result that cannot be."""
        given = readable(self._gate(arrays))
        form = self._forms.kept(tuple(a.shape for a in given), lambda: self._form(given))
        inputs = type(form.inputs).from_buffer_copy(form.inputs)
        outputs = type(form.outputs).from_buffer_copy(form.outputs)
        rooms = [kind and np.empty(bounded(*kind), kind[1]) for kind in form.rooms]
        for tensor, array in zip(inputs, given, strict=True):
            tensor.data = array.ctypes.data
        for output, room in zip(outputs, rooms, strict=True):
            if room is not None:
                output.tensor.data = room.ctypes.data
        error = blank()
        code = self._run(self.kernel.handle, inputs, len(inputs), outputs, len(outputs),
                         ctypes.byref(error))
        made = self._taken([output.made for output in outputs], code)
        if code != abi.OK:
            raise self._blamed(error, code, given)
        return tuple(self._result(i, room, made.get(output.made), given)
                     for i, (room, output) in enumerate(zip(rooms, outputs, strict=True)))

    def _form(self, given: Sequence[np.ndarray]) -> _Form:
        """The structures for inputs of these shapes."""
        inputs, outputs = (Tensor * len(given))(), (abi.Output * len(self._places))()
        kept = [shown(tensor, array) for tensor, array in zip(inputs, given, strict=True)]
        rooms: list[tuple[tuple[int, ...], np.dtype[Any]] | None] = []
        for value, places, output in zip(self.part.outputs, self._places, outputs, strict=True):
            if places is None:
                rooms.append(None)
                continue
            shape = bounded([given[p[0]].shape[p[1]] if isinstance(p, tuple) else p for p in places],
                            value.elem.numpy)
            rooms.append((shape, value.elem.numpy))
            kept.append(shown(output.tensor, np.broadcast_to(np.zeros((), value.elem.numpy), shape)))
        return _Form(inputs, outputs, rooms, kept)

    def _taken(self, addresses: Sequence[int | None], code: int) -> dict[int | None, np.ndarray]:
        """The tensors that the library made, by their addresses; ours from here on, whatever is wrong with
        others. Raises EPFail for one that cannot be an array."""
        made: dict[int | None, np.ndarray] = {}
        wrong: Exception | None = None
        for i, address in enumerate(addresses):
            if not address:
                continue
            if address in made:
                wrong = wrong or self._fault(i, "it made one tensor for two outputs", "one for each")
                continue
            try:
                made[address] = adopted(address, self.kernel)
            except Exception as error:
                made[address] = np.empty(0)
                wrong = wrong or self._fault(i, f"{getattr(error, 'text', error)}",
                                             getattr(error, "expected", None), getattr(error, "found", None))
        if wrong is not None and code == abi.OK:
            raise wrong
        return made

    def _result(self, i: int, room: np.ndarray | None, made: np.ndarray | None,
                given: Sequence[np.ndarray]) -> np.ndarray:
        if made is None:
            if room is None:
                raise self._fault(i, "it made no tensor where the shape is not known before a run",
                                  "output->made")
            return room
        if made.dtype != (dtype := self.part.outputs[i].elem.numpy):
            raise self._fault(i, "it made a tensor of another type", str(dtype), str(made.dtype))
        if any(np.may_share_memory(made, other) for other in (*given, *self.constants)):
            return made.copy()
        return made

    def _fault(self, i: int, text: str, expected: str | None, found: str | None = None) -> Exception:
        value = self.part.outputs[i]
        error = EPFail(f"{self.provider}: {value.name}: {text}", found=found,
                       expected=expected or shape_text(value.type), cure="mend the library's run")
        return error if value.node is None else failed(value.node, error, (), value.node.label)

    def _blamed(self, error: abi.Error, code: int, given: Sequence[np.ndarray]) -> Exception:
        """What the library answered, with the node it names."""
        made = blamed(error, code, self.part.nodes, f"{self.provider}: run")
        node = node_of(error, self.part.nodes)
        return made if node is None else failed(node, made, given, node.label)


def _places(value: Value, inputs: Sequence[Value]) -> list[Place] | None:
    """Where a result's dimensions are known from before a run; None where one is not."""
    if value.shape is None:
        return None
    named = {dim: (i, axis) for i, source in reversed(list(enumerate(inputs)))
             for axis, dim in enumerate(source.shape or ()) if isinstance(dim, str)}
    places = [dim if isinstance(dim, int) else named.get(dim) for dim in value.shape]
    return [place for place in places if place is not None] if None not in places else None
