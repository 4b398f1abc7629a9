"""A request for an inference, whichever protocol it came by: its inputs checked, its outputs handed back.

In: names, datatypes, shapes and parameters as plain data, and a function that reads a tensor's data from the
message. Out: feeds for a session, and for each output what goes into the answer. What the model doesn't have,
or has twice, is refused before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .memory import Regions
from .refusals import Kind, Refusal, invalid
from .repository import Version
from .tensors import BYTES, Datatype, classified, datatype_of, of_bytes, shape_of, to_bytes

Parameters = Mapping[str, Any]
Reader = Callable[[Datatype, tuple[int, ...], str], np.ndarray]
SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")


class Place(NamedTuple):
    """Where in shared memory a tensor lies."""

    region: Any
    offset: Any
    size: Any


class Wanted(NamedTuple):
    """An output as a request asks for it. `binary`: None, where it doesn't say; `classes`: so many of the
    highest values, 0 for the tensor itself."""

    name: str
    binary: bool | None = None
    classes: int = 0
    place: Place | None = None


class Given(NamedTuple):
    """An output of the answer; `array` is None where it lies in shared memory, as `parameters` say."""

    name: str
    kind: Datatype
    shape: tuple[int, ...]
    array: np.ndarray | None
    parameters: dict[str, Any]
    binary: bool | None


def place_of(parameters: Parameters, local: bool) -> Place | None:
    """Where in shared memory a tensor lies, if it does. `local`: the client is on this machine."""
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    require_local(local)
    return Place(region, parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size"))


def require_local(local: bool) -> None:
    if not local:
        raise Refusal(Kind.FORBIDDEN, "shared memory is for clients on the server's own machine, "
                                      "over loopback")


class Inputs:
    """The inputs of one request, taken one by one."""

    __slots__ = ("feeds", "local", "regions", "version")

    def __init__(self, version: Version, regions: Regions, local: bool) -> None:
        self.version, self.regions, self.local = version, regions, local
        self.feeds = dict[str, np.ndarray]()

    def take(self, name: Any, datatype: Any, shape: Any, parameters: Parameters, read: Reader) -> None:
        """One input. Raises Refusal."""
        tensor = self.version.tensor(name)
        what = f"input {name!r}"
        if name in self.feeds:
            raise invalid(f"{what} is given twice")
        if datatype != tensor.kind.name:
            datatype_of(datatype, what)
            raise invalid(f"{what} has datatype {datatype}; {self.version} takes {tensor.kind.name}")
        sizes = shape_of(shape, what)
        place = place_of(parameters, self.local) if parameters else None
        if place is None:
            self.feeds[name] = read(tensor.kind, sizes, what)
            return
        if tensor.kind is not BYTES and place.size != (size := math.prod(sizes) * tensor.kind.dtype.itemsize):
            raise invalid(f"{what}: shared_memory_byte_size is {place.size!r:.100}; {tensor.kind.name} of "
                          f"shape {list(sizes)} takes {size}")
        self.feeds[name] = of_bytes(memoryview(self.regions.read(*place)), tensor.kind, sizes, what)

    def done(self) -> dict[str, np.ndarray]:
        """All of them. Raises Refusal where one is missing."""
        if missing := self.version.needed - self.feeds.keys():
            raise invalid(f"{self.version} needs the input {sorted(missing)[0]!r}, which the request "
                          f"does not have")
        return self.feeds


def wanted(version: Version, given: Iterable[tuple[Any, Parameters]], local: bool) -> list[Wanted]:
    """The outputs that a request asks for: all where it names none. Raises Refusal."""
    found = dict[str, Wanted]()
    for name, parameters in given:
        version.output(name)
        if name in found:
            raise invalid(f"output {name!r} is asked for twice")
        classes, binary = parameters.get("classification", 0), parameters.get("binary_data")
        if classes.__class__ is not int or classes < 0:
            raise invalid(f"output {name!r}: classification is {classes!r:.100}; expected a "
                          f"number of classes")
        if binary is not None and binary.__class__ is not bool:
            raise invalid(f"output {name!r}: binary_data is {binary!r:.100}; expected true or false")
        place = place_of(parameters, local)
        if place is not None and classes:
            raise invalid(f"output {name!r}: classification does not go into shared memory")
        found[name] = Wanted(name, binary, classes, place)
    return list(found.values()) or [Wanted(name) for name in version.outputs]


def timeout_of(parameters: Parameters) -> float | None:
    """The seconds that a request gives itself: its parameter `timeout` is in microseconds. Raises Refusal."""
    for name in SEQUENCES:
        if parameters.get(name):
            raise invalid(f"parameter {name}: no model here keeps a state between requests")
    value = parameters.get("timeout", 0)
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    if value.__class__ is not int or value < 0:
        raise invalid(f"parameter timeout is {value!r:.100}; expected microseconds, from 0 on")
    return value / 1e6 if value else None


def delivered(version: Version, arrays: Iterable[Any], outputs: Iterable[Wanted], regions: Regions
              ) -> list[Given]:
    """The outputs of a run, in the form that was asked for. Raises Refusal."""
    made = list[Given]()
    for array, each in zip(arrays, outputs, strict=True):
        kind = version.outputs[each.name].kind
        if array is None:
            raise Refusal(Kind.FAILED, f"{version}: output {each.name!r} is an empty optional, which the "
                                       f"protocol can't carry")
        if each.classes:
            batched = version.config.max_batch_size > 1
            kind, array = BYTES, classified(array, each.classes, batched)
        if each.place is None:
            made.append(Given(each.name, kind, array.shape, array, {}, each.binary))
            continue
        data = to_bytes(array)
        regions.write(*each.place, data)
        made.append(Given(each.name, kind, array.shape, None, {
            "shared_memory_region": each.place.region, "shared_memory_offset": each.place.offset,
            "shared_memory_byte_size": len(data)}, None))
    return made
