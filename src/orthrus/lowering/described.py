"""A part compiled ahead: all a session needs to run it, on another machine and without a compiler.

In: a plan, which serves one tuple of input shapes. Out: bytes that hold a description in JSON, the object
code of each kernel, and the packed constants, each at a cache line; and from those bytes a kernel again. What
numpy would have to compute is not packed. The bytes may be damaged: what does not hold is a ValueError. Their
code goes by the package's own digest, so that it answers for no kernel but the package's, and whoever opens
one trusts it as a shared library.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..codegen.machines.machine import Machine
from ..codegen.object import library
from ..codegen.write.template import Spec
from ..errors import Fail, InvalidArgument
from ..ir import No, Node, in_memory
from ..kernels import Gate, Part
from ..memory import LINE, take
from .device import PartDevice
from .native import Native
from .plans import Plan, Stepped
from .shaped_part import Key, Kinds
from .step import KernelStep
from .tensor import Buffer, Tensor, numpy_type

log = logging.getLogger("orthrus")

FORMAT = 2
_MAGIC = b"orthrus\2"
_SIZE = 8
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size + _SIZE
"""Bytes in front of the description: what this is, the digest of all that follows it, and the description's
length."""


@dataclass(frozen=True, repr=False)
class Packed(Spec):
    """A kernel whose object code comes from a package; `key`: which package, by its digest, and which of its
    kernels."""

    key: str = ""
    code: bytes = field(default=b"", compare=False)

    def __repr__(self) -> str:
        return self.key

    @property
    def brought(self) -> bytes | None:
        return self.code

    def text(self, machine: Machine) -> str:
        """Raises Fail: the package does not hold it."""
        raise Fail(f"kernel {self.template} is only there as object code for another machine",
                   cure="compile the model again for this one")


def beside() -> list[library.Unit]:
    """The code beside a part's own that runs it in this process."""
    from ..codegen.runtime.entry import Entry
    from ..codegen.runtime.fastcall import Quick
    from ..codegen.runtime.scheduler import Runtime

    return [Runtime(), Entry(object.__basicsize__), Quick(object.__basicsize__)]


def pack(native: Native, further: Sequence[tuple[Machine, library.Unit]] = ()) -> bytes | No:
    """The package of a part whose inputs have known sizes. `further`: what else its device runs."""
    if len(native.plans) != 1 or native.guessed:
        return No("its inputs have sizes that are known only at run time: fix them, see orthrus.tools."
                  "make_dynamic_shape_fixed")
    (shapes,) = native.plans
    pieces = packed(native, shapes, further)
    return pieces if isinstance(pieces, No) else b"".join(pieces)


def packed(native: Native, shapes: tuple[tuple[int, ...], ...],
           further: Sequence[tuple[Machine, library.Unit]] = (), about: Mapping[str, Any] | None = None
           ) -> list[Any] | No:
    """The plan for inputs of these `shapes` as a package, in pieces. `about`: more to be told, as JSON."""
    if isinstance(native, _Ahead):
        return No("it came compiled")
    plan = native.exact(shapes) if shapes in native.plans else None
    if plan is None:
        return No(native.refused.get(shapes, "there is no plan for these shapes"))
    for step in plan.steps:
        if step.spec is None:
            return No(f"{step.node.label} is computed by numpy: "
                      f"{plan.trail.why.get(step.node, 'no kernel is generated for it')}")
    units: dict[tuple[Machine, str], library.Unit] = {(m, repr(unit)): unit for m, unit in further}
    specs = [step.spec for step in plan.steps if step.spec is not None]
    units.update(((native.machine, repr(spec)), spec) for spec in specs)
    places = {key: i for i, key in enumerate(units)}
    constants: dict[int, np.ndarray] = {}
    numbers: dict[int, int] = {}
    steps = [{"kernel": places[native.machine, repr(spec)], "name": spec.template, "items": step.items,
              "grain": step.grain, "node": step.node.label, "op_type": step.node.op_type,
              "args": [cell(a, constants, numbers) for a in step.args]}
             for step, spec in zip(plan.steps, specs, strict=True)]
    arrays = [np.ascontiguousarray(in_memory(array)) for array in constants.values()]
    objects = [library.objects([unit], m)[0] for (m, _), unit in units.items()]
    blobs = Blobs()
    description = {
        "format": FORMAT, "arena": plan.size, "scratch": plan.scratch, "status": plan.status, "steps": steps,
        "inputs": [[list(shape), v.elem.numpy.name]
                   for shape, v in zip(shapes, native.part.inputs, strict=True)],
        "outputs": [[list(shape), dtype.name] for shape, dtype in plan.outputs],
        "units": [{"key": key, "machine": asdict(m), "at": blobs.add(data)}
                  for (m, key), data in zip(units, objects, strict=True)],
        "machine": asdict(native.machine), "about": dict(about or {}),
        "constants": [[array.dtype.name, blobs.add(array.reshape(-1).view(np.uint8))] for array in arrays]}
    return blobs.pieces(json.dumps(description).encode())


class Blobs:
    """Bytes that follow a description, each beginning at a cache line."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.end = 0

    def add(self, data: Any) -> list[int]:
        """Where `data` lies, from the first blob on, and how long it is."""
        begin, size = self.end, len(data)
        padding = -size % LINE
        self.all += [data, bytes(padding)]
        self.end += size + padding
        return [begin, size]

    def pieces(self, description: bytes) -> list[Any]:
        """The whole package."""
        description += b" " * (-(_HEAD + len(description)) % LINE)
        digest = hashlib.sha256(description)
        for piece in self.all:
            digest.update(piece)
        return [_MAGIC, digest.digest(), len(description).to_bytes(_SIZE, "little"), description, *self.all]


def cell(arg: Any, constants: dict[int, np.ndarray], numbers: dict[int, int]) -> Any:
    """An argument as JSON: a number, or a buffer's kind, which one, and bytes into it."""
    if not isinstance(arg, Tensor):
        return {"float": arg} if isinstance(arg, float) else int(arg)
    buffer = arg.buffer
    if buffer.array is not None:
        constants.setdefault(id(buffer.array), buffer.array)
        return ["const", numbers.setdefault(id(buffer.array), len(numbers)), arg.byte_offset]
    return [buffer.kind, buffer.offset if buffer.kind == "arena" else buffer.index, arg.byte_offset]


class Compiling(PartDevice):
    """No place to run: kernels are compiled for `machine`, and that is all."""

    def addresses(self, specs: Sequence[Spec]) -> list[int]:
        library.objects(specs, self.machine)
        return [0] * len(specs)

    def constant(self, array: np.ndarray) -> np.ndarray:
        return array


class Opened:
    """A package, opened. Raises ValueError for anything else. `data` is kept where it begins at a cache line,
    and copied where it does not; `kept`: whether it is this user's own, from the cache, and so undamaged and
    made by this package."""

    def __init__(self, data: bytes | np.ndarray, kept: bool = False) -> None:
        self.bytes, self.kept = _at_line(data), kept
        try:
            head, size = self.bytes[:_HEAD].tobytes(), len(_MAGIC)
            if head[:size] != _MAGIC:
                raise ValueError(f"no package of a compiled part, or not of format {FORMAT}")
            begin = _HEAD + int.from_bytes(head[-_SIZE:], "little")
            self.digest = head[size:-_SIZE].hex()
            if not kept and hashlib.sha256(self.bytes[_HEAD:].data).hexdigest() != self.digest:
                raise ValueError("a damaged package")
            self.about: dict[str, Any] = json.loads(self.bytes[_HEAD:begin].tobytes())
            self.blobs = self.bytes[begin:]
            self.objects = [self._blob(unit["at"]).tobytes() for unit in self.about["units"]]
            self.constants = [self._blob(at).view(numpy_type(name)) for name, at in self.about["constants"]]
            self._look()
        except (KeyError, TypeError, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"no package of a compiled part: {error}") from None

    def _look(self) -> None:
        """Read what packages of its kind hold besides."""

    def _blob(self, at: Sequence[int]) -> np.ndarray:
        begin, size = at
        if not 0 <= begin <= begin + size <= len(self.blobs):
            raise ValueError(f"a damaged package: {begin} + {size} of {len(self.blobs)} bytes")
        return self.blobs[begin:begin + size]

    def expected(self, part: Part) -> list[tuple[tuple[int, ...], str]]:
        """The inputs it was compiled for, of the `part` that stands for it. Raises ValueError for a part of
        other types."""
        kinds, outputs = self.about["inputs"], self.about["outputs"]
        if len(kinds) != len(part.inputs) or len(outputs) != len(part.outputs):
            raise ValueError("a package of another part: the numbers of inputs or outputs differ")
        for value, (_, name) in zip((*part.inputs, *part.outputs), (*kinds, *outputs), strict=True):
            if value.elem is None or value.elem.numpy.name != name:
                raise ValueError(f"a package of another part: {value.name} is {value.type}, not {name}")
        return [(tuple(shape), name) for shape, name in kinds]


class Package(Opened):
    """What `pack` made, opened."""

    def _look(self) -> None:
        if "target" in self.about:
            raise ValueError(f"a package of a part compiled for {self.about['target']}")
        self.machine = machine_of(self.about["machine"])

    def provide(self, units: Sequence[tuple[Machine, library.Unit]]) -> None:
        """Let the library know the package's code of `units`, which are there beside kernels to run them:
        what was kept is as good as made here, what came with a model is for where none can be made."""
        there = {unit["key"]: data for unit, data in zip(self.about["units"], self.objects, strict=True)}
        for machine, unit in units:
            if (data := there.get(repr(unit))) is not None:
                (library.provide if self.kept else library.lend)(unit, data, machine)

    def kernel(self, part: Part, device: PartDevice, threads: int = 0,
               otherwise: Callable[..., Any] | None = None) -> Native:
        """What runs it, for the `part` that stands for it, on `threads` threads, 0 for as many as there are.
        `otherwise` computes what it was not compiled for, where there is something that can. Raises
        ValueError."""
        try:
            return _Ahead(part, device, self, threads, otherwise)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"a damaged package: {error!r}") from None


def machine_of(plain: Mapping[str, Any]) -> Machine:
    """A machine from its fields as JSON."""
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in plain.items()}
    return Machine(**fields)


def steps_of(package: Opened) -> Iterator[KernelStep]:
    """The steps of a package's plan. Raises ValueError."""
    about, constants = package.about, package.constants
    buffers: dict[tuple[str, int], Buffer] = {}
    limits = {"arena": about["arena"] + 1, "input": len(about["inputs"]), "output": len(about["outputs"]),
              "const": len(constants)}

    def argument(plain: Any) -> Any:
        if isinstance(plain, dict):
            return float(plain["float"])
        if isinstance(plain, int):
            return plain
        kind, which, offset = plain
        if not 0 <= which < limits[kind]:
            raise ValueError(f"a damaged package: {kind} {which}")
        if (kind, which) not in buffers:
            array = constants[which] if kind == "const" else None
            buffers[kind, which] = Buffer(kind, 0, -1 if kind == "arena" else which, array,
                                          offset=which if kind == "arena" else -1)
        return Tensor("uint8", (1,), (1,), buffers[kind, which], offset)

    for row in about["steps"]:
        which = int(row["kernel"])
        spec = Packed(_word(row["name"]), (), f"package {package.digest}, unit {which}",
                      package.objects[which])
        node = Node(row["op_type"], "", 1, None, (), {}, row["node"])
        yield KernelStep(spec, [argument(a) for a in row["args"]], row["items"], row["grain"], 0, node, [])


def _word(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a damaged package: no kernel is called {name!r}")
    return name


class _Ahead(Native):
    """Runs the one plan of a package."""

    def __init__(self, part: Part, device: PartDevice, package: Package, threads: int,
                 otherwise: Callable[..., Any] | None) -> None:
        super().__init__(part, device, nothing, threads, False)
        self.otherwise = otherwise
        self.expected = package.expected(part)
        self.gate = Gate(part.inputs, [numpy_type(name) for _, name in self.expected])
        about = package.about
        self.plans[tuple(shape for shape, _ in self.expected)] = Stepped(
            list(steps_of(package)), len(self.expected),
            [(tuple(shape), numpy_type(name)) for shape, name in about["outputs"]], about["arena"],
            about["scratch"], about["status"], device, self.threads)

    def _made(self, key: Key, kinds: Kinds) -> Plan | None:
        if key in self.plans or self.otherwise is not None:
            return self.plans.get(key)
        raise other_shapes(self.part, kinds, self.expected)

    def describe(self) -> None:
        """Nothing: what the steps stand for is not in a package."""

    def without_transforms(self, arrays: Sequence[np.ndarray], made: Any) -> Any:
        if self.otherwise is not None:
            return self.otherwise(*arrays)
        log.warning("%s: a convolution met numbers that are not finite, or beyond 2**40; compiled code has "
                    "no other way to compute it, so that results near these may be NaN or inexact", self.part)
        return made

    def interpret(self, arrays: Sequence[np.ndarray], *given: Any) -> Any:
        return super().interpret(arrays, *given) if self.otherwise is None else self.otherwise(*arrays)


def other_shapes(part: Part, kinds: Kinds, expected: Kinds) -> InvalidArgument:
    """The error for inputs that a part was not compiled for."""
    return InvalidArgument(
        f"{part} was compiled ahead for other shapes", node=part.nodes[0],
        found=", ".join(str(tuple(shape)) for shape, _ in kinds),
        expected=", ".join(str(shape) for shape, _ in expected),
        cure="feed these shapes, or compile the model for those")


def nothing(node: Node) -> Callable[..., Any]:
    """In the place of a definition, which is not there. Raises Fail."""
    raise Fail(f"{node.label} is only there as compiled code", node=node,
               cure="use the model that it was compiled from")


def _at_line(data: bytes | np.ndarray) -> np.ndarray:
    whole = np.frombuffer(data, np.uint8)
    if whole.ctypes.data % LINE == 0:
        return whole
    made = take(len(whole))
    made[:] = whole
    return made
