"""`torch.compile(backend="orthrus")`: the graphs that torch's compiler cuts out of a program.

In: a graph of torch calls with its inputs, parameters among them. Out: a function of these inputs that gives
what the graph gives. A graph that cannot be exported, writes to its inputs, draws random numbers or records
gradients runs as torch runs it; `report` keeps the reason.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from ..errors import ALL, InvalidArgument
from .cut import Cut, Refused, cut
from .export import Exported, by_dynamo, complex_among, written_by
from .frozen import Frozen
from .report import CompiledGraph, Fallback, note
from .tensors import array_of, tensor_of

_OPTIONS = ("sess_options", "providers")
_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                     "RandomUniformLike"})
_MODULES = 64
"""Sets of parameters, such as those of modules of one class, that one graph keeps sessions for."""
_CHANGES = 3
"""Times that the parameters of one set may change before they are taken to change always."""


def backend(graph: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
            mode: str | None = None) -> Callable[..., Any]:
    """Compile what torch's compiler hands over. `options`: `sess_options`, a SessionOptions, and `providers`,
    as for `InferenceSession`; by default there are as many threads as torch has. `mode` is not looked at.

    Raises InvalidArgument for other options.
    """
    given = dict(options or {})
    if unknown := [name for name in given if name not in _OPTIONS]:
        raise InvalidArgument("torch.compile got options that the backend 'orthrus' does not know",
                              found=", ".join(unknown), expected=", ".join(_OPTIONS))
    record = note(sum(node.op.startswith("call_") for node in graph.graph.nodes))
    try:
        taken = cut(graph, inputs)
        exported = _exported(taken)
    except Refused as refusal:
        record.fall_back(Fallback("the graph", str(refusal)))
    except Exception as error:
        record.fall_back(Fallback.of("torch.onnx.export", error))
    else:
        return _Compiled(graph, taken, exported, record, given)
    forward: Callable[..., Any] = graph.forward
    return forward


def _exported(taken: Cut) -> Exported:
    """The model of the part that is computed. Raises Refused where it does more than give results, and what
    torch's exporter does."""
    with torch._guards.tracing(None), torch.no_grad():
        program = torch.export.export(taken.computed, taken.examples, strict=False,
                                      dynamic_shapes=taken.dynamic_shapes)
        exported, outputs, program = by_dynamo(program)
    if written := written_by(program):
        raise Refused(f"it writes to its input {', '.join(written)}")
    if complex_among(program):
        raise Refused("an input or result is complex, which ONNX models have as pairs of numbers")
    if drawing := next(_random(exported.model.graph.node), None):
        raise Refused(f"it draws random numbers, by {drawing}")
    taken.places = [exported.outputs.index(name) for name in outputs]
    return exported


def _random(nodes: Any) -> Iterator[str]:
    """The operators among `nodes` that give other results for the same inputs."""
    constants = {name: node for node in nodes if node.op_type == "Constant" for name in node.output}
    for node in nodes:
        if node.op_type in _RANDOM:
            yield node.op_type
        elif node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
            chosen = constants.get(node.input[2])
            if chosen is None or any(onnx.numpy_helper.to_array(a.t) for a in chosen.attribute):
                yield node.op_type
        for attribute in node.attribute:
            yield from _random(attribute.g.node)


class _Compiled:
    """A graph as a function: its parameters frozen into a session for as long as they stay what they are. It
    has no effects, so what fails here is computed in eager mode."""

    def __init__(self, graph: Any, taken: Cut, exported: Exported, record: CompiledGraph,
                 options: Mapping[str, Any]) -> None:
        self.eager, self.cut, self.exported = graph, taken, exported
        self.record, self.options = record, options
        names = dict(zip(taken.fed, exported.inputs, strict=True))
        self.parameters = [(i, names[i]) for i in taken.frozen]
        self.fed = [(i, names[i]) for i in taken.fed if i not in taken.frozen]
        self.settled = list(taken.settled.items())
        self.frozen = dict[tuple[int, ...], Frozen]()
        self.changes = dict[tuple[int, ...], int]()
        self.last: Frozen | None = None

    def __call__(self, *args: Any) -> Any:
        if self.record.fallback is not None:
            return self.eager(*args)
        if any(args[i].item() != number for i, number in self.settled):
            self._give_up(Fallback("the graph", "a module's number changes between calls"))
            return self.eager(*args)
        last = self.last
        if last is None or not last.holds([args[i] for i, _ in self.parameters]):
            last = self._freeze(args)
            if last is None:
                return self.eager(*args)
        try:
            feeds = {name: _fed(args[i], name) for i, name in self.fed if name in last.taken}
            made: Sequence[Any] = last.session.run(None, feeds)
        except ALL as error:
            self._give_up(Fallback.of("a run", error))
            return self.eager(*args)
        computed = [tensor_of(array) for array in made]
        return self.cut.whole(args, computed)

    def _freeze(self, args: Sequence[Any]) -> Frozen | None:
        """The session for these parameters, which is now the last; None where the graph falls back."""
        tensors = [args[i] for i, _ in self.parameters]
        key = tuple(map(id, tensors))
        found = self.frozen.get(key)
        if found is not None and found.holds(tensors):
            self.last = found
            return found
        self.changes[key] = self.changes.get(key, -1) + 1
        if self.changes[key] > _CHANGES or len(self.changes) > _MODULES:
            self._give_up(Fallback("the graph", "its parameters change between calls"
                                   if self.changes[key] > _CHANGES else
                                   f"it is called with more than {_MODULES} sets of parameters"))
            return None
        try:
            arrays = {name: array_of(args[i].detach(), name) for i, name in self.parameters}
            session = self.exported.session(self.options.get("sess_options"), arrays,
                                            providers=self.options.get("providers"))
        except Exception as error:
            self._give_up(Fallback.of("the session", error))
            return None
        if tensors and key not in self.frozen:
            weakref.finalize(tensors[0], _forget, weakref.ref(self), key).atexit = False
        self.last = self.frozen[key] = Frozen(tensors, session)
        self.record.sessions = [frozen.session for frozen in self.frozen.values()]
        return self.last

    def forget(self, key: tuple[int, ...]) -> None:
        """Let go of the session for these parameters."""
        self.changes.pop(key, None)
        if (gone := self.frozen.pop(key, None)) is not None:
            self.last = None if self.last is gone else self.last
            self.record.sessions = [frozen.session for frozen in self.frozen.values()]

    def _give_up(self, fallback: Fallback) -> None:
        """Leave the graph to eager mode from now on."""
        self.record.fall_back(fallback)
        self.last = None
        self.frozen.clear()


def _forget(compiled: weakref.ref[_Compiled], key: tuple[int, ...]) -> None:
    """The first of these parameters is gone."""
    if (held := compiled()) is not None:
        held.forget(key)


def _fed(given: Any, name: str) -> np.ndarray:
    """An input, which may be a number, as an array."""
    return np.asarray(given) if isinstance(given, int | float) else array_of(given, name)
