"""Every way by which a value comes to code made for declared types: control flow, sequences, optionals,
Python operators, with each declared type, each given type, and ranks. A model ends in a typed error, or gives
what its nodes' definitions give, in the types that it declares; code made for other types is never entered.

The cases run in a child process, on feeds that end where a page begins that nobody may read.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import logging
import mmap
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus import errors
from orthrus.lowering.native import Native

F, D, B, U, L = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.UINT8,
                 TensorProto.INT64)
TYPES = (D, F, U, B, L)
N, TURNS = 40, 3
DOMAIN = "doors.test"
info, node = helper.make_tensor_value_info, helper.make_node
Door = Callable[[int, int], tuple[list[Any], list[Any]]]
DOORS: dict[str, Door] = {}


def dtype_of(kind: int) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(kind)


def door(make: Door) -> Door:
    """`make(declared, given)`: nodes from %x, of the type given, to %u, and constants."""
    DOORS[make.__name__] = make
    return make


def used(value: str) -> list[Any]:
    """Nodes that go into a compiled part which reads `value`: to %u, a double."""
    return [node("Cast", [value], ["a"], to=D), node("Mul", ["a", "a"], ["b"]),
            node("Add", ["b", "b"], ["u"])]


def typed(name: str, kind: int, shape: Any = (N,)) -> Any:
    """`kind` 0: nothing is declared."""
    return info(name, kind, shape) if kind else onnx.ValueInfoProto(name=name)


def loop(declared: int, made: Sequence[Any], back: int) -> list[Any]:
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), *made], "body",
        [info("i", L, []), info("c", B, []), typed("s", declared)],
        [info("d", B, []), typed("t", back), info("u", D, None)])
    return [node("Loop", ["turns", "", "x"], ["last", "us"], body=body),
            node("ReduceMax", ["us"], ["u"], keepdims=0)]


def scan(declared: int, made: Sequence[Any], back: int, **more: Any) -> list[Any]:
    body = helper.make_graph(list(made), "body", [typed("s", declared), info("k", D, [1])],
                             [typed("t", back), info("u", D, None)])
    return [node("Scan", ["x", "ks"], ["last", "us"], body=body, num_scan_inputs=1),
            node("ReduceMax", ["us"], ["u"], keepdims=0)]


TURNED = {"turns": np.array(TURNS)}
SCANNED = {"ks": np.zeros((TURNS, 1))}


@door
def loop_start(declared: int, given: int) -> Any:
    return loop(declared, [*used("s"), node("Identity", ["s"], ["t"])], declared), TURNED


@door
def loop_back(declared: int, given: int) -> Any:
    """What a turn gives to the next one; it is given the declared type at first."""
    inner = loop(declared, [*used("s"), node("Anything", ["s"], ["t"], to=given, domain=DOMAIN)], 0)
    inner[0].input[2] = "right"
    return [node("Cast", ["x"], ["right"], to=declared), *inner], TURNED


@door
def scan_start(declared: int, given: int) -> Any:
    return scan(declared, [*used("s"), node("Identity", ["s"], ["t"])], declared), SCANNED


@door
def scan_back(declared: int, given: int) -> Any:
    inner = scan(declared, [*used("s"), node("Cast", ["s"], ["t"], to=given)], given)
    inner[0].input[0] = "right"
    return [node("Cast", ["x"], ["right"], to=declared), *inner], SCANNED


@door
def scan_input(declared: int, given: int) -> Any:
    body = helper.make_graph(used("s"), "body", [typed("s", declared, ())], [info("u", D, None)])
    return [node("Scan", ["x"], ["u"], body=body, num_scan_inputs=1)], {}


@door
def sequence_map(declared: int, given: int) -> Any:
    body = helper.make_graph(used("s"), "body", [typed("s", declared)], [info("u", D, None)])
    return [node("SequenceConstruct", ["x"], ["q"]), node("SequenceMap", ["q"], ["r"], body=body),
            node("SequenceAt", ["r", "first"], ["u"])], {"first": np.array(0)}


@door
def branch(declared: int, given: int) -> Any:
    """Either branch may be taken: one gives the declared type, the other what is given."""
    then, other = (helper.make_graph([made], "branch", [], [typed("t", 0)]) for made in (
        node("Identity", ["x"], ["t"]), node("Cast", ["x"], ["t"], to=declared)))
    return [node("If", ["yes"], ["y"], then_branch=then, else_branch=other), *used("y")], {
        "yes": np.array(True)}


@door
def sequence_at(declared: int, given: int) -> Any:
    return [node("Cast", ["x"], ["right"], to=declared), node("SequenceConstruct", ["right"], ["q"]),
            node("SequenceInsert", ["q", "x"], ["r"]), node("SequenceAt", ["r", "last"], ["y"]),
            *used("y")], {
                "last": np.array(1)}


@door
def optional(declared: int, given: int) -> Any:
    return [node("Optional", ["x"], ["o"]), node("OptionalGetElement", ["o"], ["y"]), *used("y")], {}


@door
def operator(declared: int, given: int) -> Any:
    """A Python operator that declares nothing; the model does."""
    return [node("Anything", ["x"], ["y"], to=given, domain=DOMAIN), *used("y")], {}


def model(made: Sequence[Any], constants: dict[str, np.ndarray], given: int, shape: Any, blind: bool,
          declared: int) -> bytes:
    """`blind`: %x comes through an operator of which nobody knows the type."""
    made = list(made)
    if blind:
        made.insert(0, node("Anything", ["fed"], ["x"], to=given, domain=DOMAIN))
    graph = helper.make_graph(
        made, "doors", [info("fed" if blind else "x", given, shape)], [info("u", D, None)],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
        value_info=[info("y", declared, None)] if declared else [])
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]).SerializeToString()


def at_guard(array: np.ndarray) -> np.ndarray:
    """A copy that ends where nobody may read on."""
    page = mmap.PAGESIZE
    size = -(-max(array.nbytes, 1) // page) * page
    room = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), page, 0):
        raise OSError("mprotect")
    made = np.frombuffer(room, np.uint8, array.nbytes, size - array.nbytes).view(array.dtype)
    made = made.reshape(array.shape)
    made[...] = array
    return made


def outcome(data: bytes, feeds: dict[str, Any], codegen: bool) -> Any:
    """Results, or the class of a typed error."""
    provider = ("CPUExecutionProvider", {"use_codegen": str(int(codegen))})
    try:
        return ort.InferenceSession(data, providers=[provider]).run(None, feeds)
    except errors.ALL as error:
        return type(error).__name__


def watched(self: Any, plan: Any, arrays: Sequence[Any], *more: Any) -> Any:
    for value, array in zip(self.part.inputs, arrays, strict=True):
        if type(array) is not np.ndarray or array.dtype != value.elem.numpy:
            raise SystemExit(f"{value.name}: code for {value.type} was given {type(array)} {array.dtype}")
    return ENTERED(self, plan, arrays, *more)


ENTERED = Native._entered


def judged(data: bytes, feeds: dict[str, Any], right: bool) -> str | None:
    """What is wrong. `right`: whether the model keeps what it declares, so that it has to run."""
    found, plain = outcome(data, feeds, True), outcome(data, feeds, False)
    if isinstance(found, str) != isinstance(plain, str):
        return f"generated: {found}, definitions: {plain}"
    if isinstance(found, str):
        return f"refused with {found}" if right else None
    for a, b in zip(found, plain, strict=True):
        if a.dtype != np.float64 or b.dtype != np.float64 or not np.array_equal(a, b):
            return f"generated: {a.dtype}{list(a.shape)}, definitions: {b.dtype}{list(b.shape)}"
    return None


def type_cases() -> Iterator[tuple[str, Callable[[], str | None]]]:
    for (name, make), declared, given, blind in itertools.product(DOORS.items(), (*TYPES, 0), TYPES,
                                                                  (False, True)):
        def run(make: Any = make, declared: int = declared, given: int = given, blind: bool = blind
                ) -> str | None:
            value = at_guard((np.arange(N) % 2).astype(dtype_of(given)))
            stated = declared or given
            made, constants = make(declared, given) if declared else make(0, given)
            data = model(made, constants, given, [N], blind, declared if "y" in str(made) else 0)
            return judged(data, {"fed" if blind else "x": value}, stated == given and not blind)
        if declared or name in ("loop_start", "scan_start", "scan_input", "sequence_map", "optional"):
            label = [TensorProto.DataType.Name(t) if t else "nothing" for t in (declared, given)]
            yield f"{name}, declared {label[0]}, given {label[1]}, blind {blind}", run


def misaligned(a: np.ndarray) -> np.ndarray:
    room = np.zeros(a.nbytes + 1, np.uint8)
    made = room[1:].view(a.dtype)
    made[:] = a
    return made


class Own(np.ndarray):
    pass


def frozen(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


FORMS: dict[str, tuple[Callable[[np.ndarray], Any], bool]] = {
    "as it is": (lambda a: a, True),
    "big endian": (lambda a: a.astype(a.dtype.newbyteorder(">")), True),
    "strided": (lambda a: np.repeat(a, 2)[::2], True),
    "backwards": (lambda a: a[::-1].copy()[::-1], True),
    "spread": (lambda a: np.broadcast_to(a[:1], a.shape), True),
    "misaligned": (misaligned, True),
    "read-only": (frozen, True),
    "a subclass": (lambda a: a.view(Own), True),
    "another object for its type": (lambda a: a.astype(np.dtype(a.dtype.str, metadata={"of": "mine"})), True),
    "in a tuple": (lambda a: (a,), True),
    "masked": (lambda a: np.ma.MaskedArray(a, np.zeros(a.shape, bool)), False),
    "a list": (lambda a: list(a), False),
    "nothing": (lambda a: None, False),
    "an empty tuple": (lambda a: (), False),
    "objects": (lambda a: a.astype(object), False),
    "text": (lambda a: a.astype(str), False),
    "bytes": (lambda a: a.tobytes(), False),
    "a half type": (lambda a: a.astype(ml_dtypes.bfloat16), False),
    "complex": (lambda a: a.astype(np.complex64), False),
    "times": (lambda a: a.astype(np.int64).view("m8[s]"), False),
    "a record": (lambda a: a.view([("field", a.dtype)]), False),
    "a matrix": (lambda a: np.asmatrix(a), True),
    "a row of rank 2": (lambda a: a[None], True),
    "one number": (lambda a: a[0], True),
    "rank 0": (lambda a: np.array(a[0]), True),
    "no element": (lambda a: a[:0], True),
    "longer": (lambda a: np.concatenate([a, a]), True),
}
_form: list[Callable[[np.ndarray], Any]] = []


def form_cases() -> Iterator[tuple[str, Callable[[], str | None]]]:
    for (name, (form, fits)), kind in itertools.product(FORMS.items(), (D, F, L)):
        def run(form: Any = form, fits: bool = fits, kind: int = kind) -> str | None:
            _form[:] = [form]
            made = [node("Shaped", ["x"], ["y"], domain=DOMAIN), *used("y")]
            data = model(made, {}, kind, [N], False, kind)
            return judged(data, {"x": at_guard(np.arange(N).astype(dtype_of(kind)))}, fits)
        yield f"an operator gives {name}, for {TensorProto.DataType.Name(kind)}", run


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(50)

    @ort.op(f"{DOMAIN}::Anything")
    def anything(x, *, to: int):
        return x.astype(dtype_of(to))

    @ort.op(f"{DOMAIN}::Shaped")
    def shaped(x):
        return _form[0](x)

    Native._entered = watched  # type: ignore[method-assign]
    for name, run in itertools.chain(type_cases(), form_cases()):
        print(json.dumps(name), flush=True)
        wrong = run()
        if wrong:
            print(json.dumps([name, wrong]), flush=True)
    print(json.dumps("done"), flush=True)


@pytest.mark.slow
def test_every_door() -> None:
    here = Path(__file__).resolve()
    paths = [str(here.parents[2] / "src"), *(p for p in sys.path if p)]
    ran = subprocess.run([sys.executable, str(here)], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    said = [json.loads(line) for line in ran.stdout.splitlines()]
    wrong = [" → ".join(line) for line in said if isinstance(line, list)]
    assert said[-1:] == ["done"], f"ended with {ran.returncode} at {said[-1:]}: {ran.stderr[-2000:]}"
    assert not wrong, "\n".join([f"{len(wrong)} of {len(said) - len(wrong)}", *wrong[:40]])


if __name__ == "__main__":
    main()
