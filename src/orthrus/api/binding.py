"""Inputs and outputs bound to memory before a run, so that it can be repeated without passing them again.

A bound output with memory of its own receives the result there; one without is allocated by each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arguments import mismatch
from .core import CoreSession
from .devices import CoreDevice, OrtDevice, memory_of
from .ortvalue import OrtValue
from .values import CoreValue, OrtValueVector, over_address, write

_FEW = 1 << 16
"""Bytes of results that a copy costs less than to have them made where they are wanted."""
_TRIES = 3
"""Runs with the same arrays, none of them repeated, after which it is clear that they cannot be: a graph is
there behind the second."""


class SessionIOBinding:
    """The bindings of one session, of the capi layer."""

    def __init__(self, session: CoreSession) -> None:
        if not isinstance(session, CoreSession):
            raise mismatch("__init__", "SessionIOBinding(arg0: InferenceSession)", session)
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, CoreValue | None] = {}
        self._places: dict[str, Any] = {}
        self._results: list[CoreValue] = []
        self._changed()

    def _changed(self) -> None:
        """Nothing is known of how to repeat the last run."""
        self._repeat: Any = None
        self._arrays: list[tuple[CoreValue, Any]] = []
        self._tries = _TRIES
        self._host: _OnHost | None = None
        self._elsewhere = False

    def _set_input(self, name: str, value: Any) -> None:
        """Bind an input; what is known of all else on the host holds on."""
        host = self._host
        self._changed()
        self._inputs[name] = value
        if host is not None and host.feed(name, value):
            self._host = host

    def _input_names(self) -> list[str]:
        engine = self._session._engine
        return [v.name for v in (*engine.inputs, *engine.overridable)]

    def bind_input(self, name: str, *where: Any) -> None:
        """Bind an input to an array, or to (device, element type, shape, address).

        Raises RuntimeError for an unknown name, for what is no array, and for memory of another device;
        ValueError for an address that is none.
        """
        if name not in self._input_names():
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        if len(where) == 1:
            self._set_input(name, _bound(where[0]))
            return
        if len(where) != 4:
            raise mismatch("bind_input",
                           "(self: SessionIOBinding, arg0: str, arg1: OrtDevice, arg2: object, arg3: "
                           "collections.abc.Sequence[int], arg4: int) -> None", self, name, *where)
        device, element_type, shape, pointer = where
        self._set_input(name, _at(pointer, element_type, shape, device, "input"))

    def bind_ortvalue_input(self, name: str, value: CoreValue) -> None:
        """Bind an input to a value. Raises RuntimeError for an unknown name."""
        if name not in self._input_names():
            raise RuntimeError(f"Error when binding input: Failed to find input name in the mapping: {name}")
        self._set_input(name, value)

    def bind_output(self, name: str, device: CoreDevice, element_type: Any = None, shape: Any = None,
                    pointer: int | None = None) -> None:
        """Bind an output to memory at an address, or only name it and the device where it is to be: the host
        for one that no provider of the session has.

        Raises ValueError for an address that is none, RuntimeError for memory of another device.
        """
        self._changed()
        if pointer is None:
            self._outputs[name], self._places[name] = None, memory_of(device)
            return
        self._outputs[name] = CoreValue._make(_at(pointer, element_type, shape, device, "output"))

    def bind_ortvalue_output(self, name: str, value: CoreValue) -> None:
        """Bind an output to a tensor, which is written over."""
        self._changed()
        self._outputs[name] = value

    def clear_binding_inputs(self) -> None:
        self._changed()
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._changed()
        self._outputs.clear()
        self._places.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Wait for what this runtime still does to the inputs on devices."""
        from ..kernels import finished

        finished(_given(value) for value in self._inputs.values())

    def synchronize_outputs(self) -> None:
        """Wait for the outputs of the last run on devices."""
        from ..kernels import finished

        finished(value._value for value in self._results)

    def get_outputs(self) -> OrtValueVector:
        """The results of the last run, in the order in which outputs were bound."""
        return OrtValueVector._of(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results as arrays, lists and dicts of their own."""
        return [_copied(v._value) if type(v._value) is np.ndarray or v._placed is None else v.numpy()
                for v in self._results]

    def _run(self, session: CoreSession, run_options: Any) -> None:
        waits = True if run_options is None else run_options._waits()
        if waits is not None and (self._repeat is not None and self._repeated(session, waits)
                                  or not self._elsewhere and self._shortly(session, run_options)):
            return
        if not self._outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        names = list(self._outputs)
        engine = session._engine
        declared = {v.name: v.type for v in session._outputs()}
        if unknown := [n for n in names if n not in declared]:
            raise RuntimeError(f"Error in execution: Invalid output name: {unknown[0]}")
        if missing := [v.name for v in engine.inputs if v.name not in self._inputs]:
            raise RuntimeError(f"Error in execution: Missing Input: {missing[0]}\n  cure: bind every input "
                               "of session.get_inputs()")
        for name, target in self._outputs.items():
            if target is not None:
                _check(name, target._value, declared[name])
        feeds = {name: _given(value) for name, value in self._inputs.items()}
        targets = self._targets()
        try:
            results = session._execute(names, feeds, run_options, targets)
        except Exception as error:
            raise _failed(error) from error
        self._results = [self._taken(name, value, declared[name]) for name, value in zip(names, results,
                                                                                         strict=True)]
        if self._tries and waits is not None:
            self._tries -= 1
            self._repeat = _repeat(engine, names, feeds, targets)
            self._arrays = [(v, v._value) for v in (*self._inputs.values(), *self._outputs.values())
                            if isinstance(v, CoreValue) and self._repeat is not None]

    def _repeated(self, session: CoreSession, waits: bool) -> bool:
        """Whether the run is done, as the last one was: on the same arrays, for nobody who looks on. `waits`:
        for the devices."""
        repeat, engine, same = self._repeat, session._engine, False
        for value, array in self._arrays:
            if value._value is not array:
                break
        else:
            same = repeat.engine is engine
        if same and session._profile is None and not session._collecting:
            try:
                if engine.again(repeat, waits):
                    self._results, self._tries = list[Any](self._outputs.values()), _TRIES
                    return True
            except Exception as error:
                raise _failed(error) from error
        self._repeat = None
        return False

    def _shortly(self, session: CoreSession, run_options: Any) -> bool:
        """Whether the run is done the shortest way, on arrays of the host's alone."""
        if self._host is None:
            self._host = _OnHost.of(session, self._inputs, self._outputs, self._places)
        host = self._host
        self._elsewhere = host is None
        if host is None or session._shortest.quick is None or not host.same():
            return False
        try:
            made = session.shortly(host.names, host.feeds, run_options)
        except Exception as error:
            raise _failed(error) from error
        if made is None or any(
                target is not None and (target.shape != value.shape or target.dtype != value.dtype)
                for target, value in zip(host.targets, made, strict=True)):
            return False
        for i, target in enumerate(host.targets):
            if target is not None:
                target[...] = made[i]
        self._results = [bound if bound is not None else CoreValue._make(value, kind)
                         for bound, value, kind in zip(host.bound, made, host.kinds, strict=True)]
        return True

    def _targets(self) -> list[Any]:
        """The array that each output is bound to, or the device where it is to be had."""
        return [self._places.get(name) if bound is None else bound._value
                for name, bound in self._outputs.items()]

    def _taken(self, name: str, value: Any, kind: Any) -> CoreValue:
        target = self._outputs[name]
        if target is None:
            return CoreValue._got(value, kind)
        array = target._value
        if target.is_tensor() and hasattr(value, "shape") and hasattr(value, "dtype"):
            if value is not array:
                _check(name, array, kind, value.shape, value.dtype)
                write(array, value)
        else:
            target._value = CoreValue._got(value)._value
        return target


class _OnHost:
    """Bindings of which all are tensors in the host's memory, results being written over few bytes at most.
    By output: what it is bound to, the array of that, its declared type."""

    __slots__ = ("bound", "feeds", "given", "kinds", "names", "targets")

    def __init__(self, outputs: dict[str, CoreValue | None]) -> None:
        self.names, self.bound = list(outputs), list(outputs.values())
        self.kinds = list[Any]()
        self.targets = [None if bound is None else bound._value for bound in self.bound]
        self.feeds, self.given = dict[str, np.ndarray](), dict[str, CoreValue]()

    @classmethod
    def of(cls, session: CoreSession, inputs: dict[str, Any], outputs: dict[str, CoreValue | None],
           places: dict[str, Any]) -> _OnHost | None:
        """These; None where something is elsewhere, missing, or does not fit."""
        from ..ir import TensorType
        from ..kernels import HOST

        made = cls(outputs)
        targets = [target for target in made.targets if target is not None]
        if not outputs or not all(made.feed(name, value) for name, value in inputs.items()):
            return None
        declared = {v.name: v.type for v in session._outputs()}
        made.kinds = [declared.get(name) for name in outputs]
        if (inputs.keys() != {v.name for v in session._engine.inputs}
                or not all(isinstance(kind, TensorType) for kind in made.kinds)
                or not all(places.get(name) in (None, HOST) for name in outputs)
                or not all(type(target) is np.ndarray and target.flags.writeable
                           and target.dtype != object for target in targets)
                or sum(target.nbytes for target in targets) > _FEW):
            return None
        for name, target, kind in zip(made.names, made.targets, made.kinds, strict=True):
            if target is not None:
                _check(name, target, kind)
        return made

    def feed(self, name: str, value: Any) -> bool:
        """Take note of what an input is bound to; answers whether that can be."""
        array = value._value if isinstance(value, CoreValue) else value
        if type(array) is not np.ndarray or not array.flags.aligned:
            return False
        self.feeds[name] = array
        if array is value:
            self.given.pop(name, None)
        else:
            self.given[name] = value
        return True

    def same(self) -> bool:
        """Whether all values have the arrays that they had."""
        return (all(value._value is self.feeds[name] for name, value in self.given.items())
                and all(bound is None or bound._value is target
                        for bound, target in zip(self.bound, self.targets, strict=True)))


def _repeat(engine: Any, names: list[str], feeds: dict[str, Any], targets: list[Any]) -> Any:
    """How to repeat a run that was just done; None where not all of its arrays lie on devices, or the engine
    knows no shorter way."""
    from ..kernels import DeviceArray

    on_devices = all(isinstance(value, DeviceArray) for value in (*feeds.values(), *targets))
    return engine.repeating(names, feeds, targets) if on_devices else None


def _failed(error: Exception) -> RuntimeError:
    """What a run's error is for who bound its arrays."""
    text = getattr(error, "text", "")
    return RuntimeError("Error in execution: " + "".join(str(error).partition(text)[1:] if text
                                                         else str(error)))


def _check(name: str, bound: Any, kind: Any, shape: Sequence[Any] | None = None, dtype: Any = None) -> None:
    """Raise RuntimeError where memory bound to an output does not fit what the output is declared, or
    became. One that is declared a scalar may become anything, as an input may be fed anything then."""
    from ..ir import TensorType, element_of

    if not hasattr(bound, "dtype") or not isinstance(kind, TensorType):
        return
    dtype = dtype if dtype is not None else kind.elem.numpy if kind.elem is not None else bound.dtype
    if bound.dtype != dtype:
        raise RuntimeError(f"Error in execution: Unexpected output data type. Actual: (tensor("
                           f"{element_of(bound.dtype).text})) , expected: (tensor({element_of(dtype).text}))")
    if isinstance(bound, np.ndarray) and not bound.flags.writeable:
        raise RuntimeError(f"Error in execution: the memory bound to output {name} is read-only")
    expected = shape if shape is not None else kind.shape or None
    if expected is None:
        return
    if len(expected) != bound.ndim:
        raise RuntimeError(f"Error in execution: Invalid rank for output: {name} Got: {bound.ndim} Expected: "
                           f"{len(expected)} Please fix either the inputs/outputs or the model.")
    wrong = "".join(f"\n index: {i} Got: {g} Expected: {d}" for i, (d, g) in enumerate(zip(expected,
                                                                                           bound.shape,
                                                                                           strict=True))
                    if isinstance(d, int) and d != g)
    if wrong:
        raise RuntimeError(f"Error in execution: Got invalid dimensions for output: {name} for the following "
                           f"indices{wrong}\n Please fix either the inputs/outputs or the model.")


def _bound(given: Any) -> Any:
    """What an input is bound to: an array shared where possible."""
    from .values import tensor

    if isinstance(given, np.ndarray):
        return tensor(given)
    raise RuntimeError("Unable to create OrtValue from the given python object")


def _given(value: Any) -> Any:
    """What a run takes for a bound input; memory at an odd address is copied."""
    given = value._given() if isinstance(value, CoreValue) else value
    if isinstance(given, np.ndarray) and not given.flags.aligned:
        return given.copy()
    return given


def _at(pointer: Any, element_type: Any, shape: Sequence[int], device: CoreDevice, what: str) -> Any:
    try:
        return over_address(pointer, element_type, shape, device)
    except RuntimeError as error:
        raise RuntimeError(f"Error when binding {what}: {error}") from error


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return [_copied(v) for v in value] if isinstance(value, list) else value


class IOBinding:
    """Binds the inputs and outputs of a session, for `InferenceSession.run_with_iobinding`."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._iobinding = SessionIOBinding(session._sess)
        self._numpy_obj_references: dict[str, Any] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an input to an array, shared where it is contiguous: a later run sees what is written to it.

        Raises RuntimeError for an unknown name or what is no array.
        """
        self._numpy_obj_references[name] = arr_on_cpu
        self._iobinding.bind_input(name, arr_on_cpu)

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int],
                   buffer_ptr: int) -> None:
        """Bind an input to memory at an address of the host or of a device, such as `tensor.data_ptr()`,
        which the caller keeps alive and large enough for shape and type, and has finished writing.

        `element_type` is a numpy type or the number of an ONNX type. Raises ValueError for an address that is
        none, RuntimeError for an unknown name, a shape with a negative dimension, or a device that no
        provider has.
        """
        device = OrtDevice.make(device_type, device_id)._get_c_device()
        self._iobinding.bind_input(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to an OrtValue. Raises RuntimeError for an unknown name."""
        self._iobinding.bind_ortvalue_input(name, ortvalue._ortvalue)

    def synchronize_inputs(self) -> None:
        """Wait for what this runtime still does to the inputs on devices."""
        self._iobinding.synchronize_inputs()

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
                    shape: Sequence[int] | None = None, buffer_ptr: int | None = None) -> None:
        """Name an output to be had, or bind it to memory at an address.

        Raises ValueError for an address without element type and shape, or one that is none, and RuntimeError
        for memory of another device.
        """
        device = OrtDevice.make(device_type, device_id)._get_c_device()
        if buffer_ptr is None:
            self._iobinding.bind_output(name, device)
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is "
                             "provided")
        self._iobinding.bind_output(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to an OrtValue's tensor, which each run writes over."""
        self._iobinding.bind_ortvalue_output(name, ortvalue._ortvalue)

    def synchronize_outputs(self) -> None:
        """Wait for the outputs of the last run on devices."""
        self._iobinding.synchronize_outputs()

    def get_outputs(self) -> list[OrtValue]:
        """The results of the last run, in the order in which outputs were bound."""
        return [OrtValue(value) for value in self._iobinding.get_outputs()]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """As `get_outputs`, in a vector, which makes no object for a value that nobody asks for."""
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results as arrays, lists and dicts of their own."""
        return self._iobinding.copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        """Let go of all inputs; they have to be bound anew before a run."""
        self._iobinding.clear_binding_inputs()
        self._numpy_obj_references.clear()

    def clear_binding_outputs(self) -> None:
        """Let go of all outputs, and of the results of the last run."""
        self._iobinding.clear_binding_outputs()
