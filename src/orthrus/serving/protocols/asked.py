"""An inference as HTTP has it: JSON with the tensors' bytes behind it, or nothing but bytes.

In: a body, and where its JSON ends. Out: what it asks of a version, and later the answer's JSON and bytes.
Clients send the same JSON again and again, with other bytes behind it: what it was found to ask for is kept
by its text, and the answer's head by the shapes of its outputs. Only what passed every check is kept.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import orjson

from .. import tensors
from ..inference import Given, Inputs, Reader, Wanted, delivered, timeout_of, wanted
from ..memory import Regions
from ..refusals import Kind, Refusal, invalid
from ..repository import Version
from . import arrays
from .body import LENGTH

Headers = list[tuple[bytes, bytes]]
JSON: Headers = [(b"content-type", b"application/json")]
SAME, MOST_KNOWN, MOST_ANSWERS, MOST_HEADS = 2048, 1024, 64, 1024
"""Bytes of a JSON that is kept, how many are, how many heads of answers with each, and requests' heads."""
NOTHING: dict[str, Any] = {}


class Answer(NamedTuple):
    """`pieces`: its JSON and the tensors' bytes."""

    headers: Headers
    pieces: list[Any]


class Form(NamedTuple):
    """What a JSON asks for whose tensors all are numbers' bytes behind it, and so all its answer's. `inputs`:
    each one's name, type, shape, elements and place; `size`: bytes of all; `answers`: headers and JSON by the
    outputs' shapes."""

    inputs: tuple[tuple[str, np.dtype, tuple[int, ...], int, int], ...]
    size: int
    outputs: list[Wanted]
    names: list[str]
    identity: str
    timeout: float | None
    answers: dict[tuple[tuple[int, ...], ...], tuple[Headers, bytes]]

    def asked(self, version: Version, rest: memoryview) -> Asked:
        feeds = dict[str, np.ndarray]()
        for name, dtype, shape, count, place in self.inputs:
            array = np.frombuffer(rest, dtype, count, place)
            feeds[name] = (array if array.flags.aligned else array.copy()).reshape(shape)
        return Asked(version, feeds, self.outputs, self.names, self.identity, True, self.timeout,
                     self.answers)


class Asked(NamedTuple):
    """An inference that may run. `names`: of the outputs; `binary`: whether those are bytes that don't say;
    `timeout`: seconds; `answers`: its form's."""

    version: Version
    feeds: dict[str, np.ndarray]
    outputs: list[Wanted]
    names: list[str]
    identity: str = ""
    binary: bool = False
    timeout: float | None = None
    answers: dict[tuple[tuple[int, ...], ...], tuple[Headers, bytes]] | None = None


class Head(NamedTuple):
    """An inference's head. `length`: of its body; `split`: of its JSON, as the header says; `packed`: what
    packing of the answer the client takes; `keep`: whether the connection stays."""

    name: str
    version: str
    length: int
    split: bytes | None
    packed: bytes | None
    keep: bool


class Inferences:
    """`most`: bytes of a JSON."""

    def __init__(self, regions: Regions, most: int) -> None:
        self.regions, self.most = regions, most
        self._forms = dict[tuple[str, bytes], Form]()

    def asked(self, version: Version, split: bytes | None, body: bytes | memoryview, local: bool) -> Asked:
        """What a body asks for. `split`: the length of its JSON, as its header says it. `local`: the client
        is on this machine. Raises Refusal."""
        end = len(body) if split is None else _length(split, len(body))
        if split is not None and not end and len(body):
            outputs = wanted(version, (), local)
            return Asked(version, _raw(version, body), outputs, [each.name for each in outputs], binary=True)
        rest = memoryview(body)[end:]
        if not 0 < end <= SAME or not len(rest):
            return self._read(version, body[:end] if len(rest) else body, rest, local)
        key = version.key, bytes(body[:end])
        form = self._forms.get(key)
        if form is not None and len(rest) == form.size:
            return form.asked(version, rest)
        found = self._read(version, key[1], rest, local)
        if form is None and (form := _form(found, len(rest))) is not None:
            if len(self._forms) >= MOST_KNOWN:
                del self._forms[next(iter(self._forms))]
            self._forms[key] = form
        return found

    def _read(self, version: Version, text: bytes | memoryview, rest: memoryview, local: bool) -> Asked:
        if len(text) <= self.most and (request := arrays.loaded(text)) is not None:
            with contextlib.suppress(Refusal):  # is told by the reader of all JSON
                return self._made(version, request, rest, local)
        return self._made(version, parsed(text, self.most), rest, local)

    def _made(self, version: Version, request: Mapping[str, Any], rest: memoryview, local: bool) -> Asked:
        feeds = _inputs(Inputs(version, self.regions, local), request, rest)
        parameters = _parameters(request, "the request")
        outputs = wanted(version, [(_field(each, "name"), _parameters(each, "an output"))
                                   for each in _items(request, "outputs")], local)
        identity = request.get("id", "")
        if identity.__class__ is not str:
            raise invalid(f"id is {identity!r:.100}; expected a text")
        return Asked(version, feeds, outputs, [each.name for each in outputs], identity,
                     bool(parameters.get("binary_data_output", False)), timeout_of(parameters))

    def answer(self, asked: Asked, result: Sequence[Any]) -> Answer:
        """The answer to it. Raises Refusal."""
        shapes, answers = tuple[tuple[int, ...], ...](), asked.answers
        if answers is not None:
            shapes = tuple([getattr(array, "shape", ()) for array in result])
            if (ready := answers.get(shapes)) is not None:
                return Answer(list(ready[0]), [ready[1], *map(tensors.to_bytes, result)])
        text, pieces = _outputs(asked.version, delivered(asked.version, result, asked.outputs, self.regions),
                                asked.identity, asked.binary)
        pieces.insert(0, text)
        if len(pieces) == 1:
            return Answer(list(JSON), pieces)
        headers = [(b"content-type", b"application/octet-stream"), (LENGTH, b"%d" % len(text))]
        if answers is not None and len(answers) < MOST_ANSWERS:
            answers[shapes] = list(headers), text
        return Answer(headers, pieces)


def _form(asked: Asked, size: int) -> Form | None:
    """The form of what was asked with so many bytes behind its JSON, where it has one."""
    version, place = asked.version, 0
    inputs = list[tuple[str, np.dtype, tuple[int, ...], int, int]]()
    for name, array in asked.feeds.items():
        kind = version.inputs[name].kind
        if kind is tensors.BYTES or kind.name == "BOOL" or not array.size:
            return None
        inputs.append((name, kind.dtype, array.shape, array.size, place))
        place += array.nbytes
    plain = place == size and all(
        not each.classes and each.place is None and (asked.binary if each.binary is None else each.binary)
        and version.outputs[each.name].kind is not tensors.BYTES for each in asked.outputs)
    return Form(tuple(inputs), size, asked.outputs, asked.names, asked.identity, asked.timeout,
                {}) if plain else None


def _length(given: bytes, size: int) -> int:
    if not given.isdigit() or len(given) > 18 or int(given) > size:
        raise invalid(f"Inference-Header-Content-Length is {given!r:.60}; the body has {size} bytes")
    return int(given)


def parsed(data: bytes | memoryview, most: int) -> dict[str, Any]:
    """A JSON object."""
    if len(data) > most:
        raise Refusal(Kind.LARGE, f"{len(data)} bytes of JSON; at most {most} are taken: send large "
                                  f"tensors in binary")
    try:
        found = _loaded(data)
    except RecursionError:
        raise invalid("the JSON is nested too deep") from None
    except ValueError as error:
        raise invalid(f"the request is no JSON: {error}") from None
    if found.__class__ is not dict:
        raise invalid(f"the request is a JSON {type(found).__name__}; expected an object")
    return found


def _loaded(data: bytes | memoryview) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:  # NaN, Infinity, numbers beyond float64, lone surrogates, or no JSON
        return json.loads(data if isinstance(data, bytes) else bytes(data))


def _items(request: Mapping[str, Any], field: str) -> list[Any]:
    items = request.get(field, [])
    if items.__class__ is not list or not all(each.__class__ is dict for each in items):
        raise invalid(f"{field} is {items!r:.100}; expected a list of objects")
    return items


def _field(item: Mapping[str, Any], field: str) -> Any:
    if field not in item:
        raise invalid(f"{item!r:.100} has no {field}")
    return item[field]


def _parameters(item: Mapping[str, Any], what: str) -> dict[str, Any]:
    parameters = item.get("parameters", NOTHING)
    if parameters.__class__ is not dict:
        raise invalid(f"{what}: parameters are {parameters!r:.100}; expected an object")
    return parameters


def _inputs(inputs: Inputs, request: Mapping[str, Any], rest: memoryview) -> dict[str, np.ndarray]:
    """The inputs of a request; `rest` is what lies behind its JSON."""
    for item in _items(request, "inputs"):
        parameters, name = _parameters(item, "an input"), _field(item, "name")
        size = parameters.get("binary_data_size")
        if size is not None:
            if size.__class__ is not int or not 0 <= size <= len(rest):
                raise invalid(f"input {name!r:.100}: binary_data_size is {size!r:.60}; the body has "
                              f"{len(rest)} bytes left")
            read: Reader = partial(tensors.of_bytes, rest[:size])
            rest = rest[size:]
        else:
            read = partial(tensors.of_list, item.get("data"))
        inputs.take(name, _field(item, "datatype"), _field(item, "shape"), parameters, read)
    if len(rest):
        raise invalid(f"{len(rest)} bytes behind the last input's data belong to none")
    return inputs.done()


def _raw(version: Version, body: bytes | memoryview) -> dict[str, np.ndarray]:
    """A body that is nothing but the bytes of the model's one input."""
    if len(version.inputs) != 1 or [*version.inputs.values()][0].shape.count(-1) > 1:
        raise invalid(f"{version} can't be asked by a body without JSON: that takes a model of one input "
                      f"with at most one open size")
    [tensor] = version.inputs.values()
    if tensor.kind is tensors.BYTES:
        shape: tuple[int, ...] = (1,) * len(tensor.shape)
        return {tensor.name: tensors.of_texts([bytes(body)], shape, f"input {tensor.name!r}")}
    row = tensor.kind.dtype.itemsize
    for size in tensor.shape:
        row *= abs(size)
    open_size = len(body) // row if row else 0
    shape = tuple(open_size if size == -1 else size for size in tensor.shape)
    return {tensor.name: tensors.of_bytes(memoryview(body), tensor.kind, shape, f"input {tensor.name!r}")}


def _outputs(version: Version, given: list[Given], identity: str, binary: bool) -> tuple[bytes, list[Any]]:
    """The JSON of an answer, and the tensors' bytes behind it."""
    pieces, items, finite = list[Any](), list[dict[str, Any]](), True
    for each in given:
        item: dict[str, Any] = {"name": each.name, "datatype": each.kind.name, "shape": each.shape}
        if each.array is None:
            item["parameters"] = each.parameters
        elif binary if each.binary is None else each.binary:
            data = tensors.to_bytes(each.array)
            item["parameters"] = {"binary_data_size": len(data)}
            pieces.append(data)
        else:
            item["data"] = elements = tensors.for_json(each.array)
            finite = finite and (isinstance(elements, list) or bool(np.isfinite(elements).all()))
        items.append(item)
    answer: dict[str, Any] = {"model_name": version.name, "model_version": str(version.version),
                              "outputs": items}
    if identity:
        answer["id"] = identity
    return text_of(answer, finite), pieces


_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=np.ndarray.tolist)


def text_of(data: Any, finite: bool = True) -> bytes:
    """JSON in UTF-8. `finite`: whether all its numbers are; the others are NaN and Infinity, as Python's JSON
    has them."""
    if finite:
        try:
            return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError:
            pass  # texts with lone surrogates
    return _encoder.encode(data).encode()
