"""A part compiled ahead: all a session needs to run it, on another machine and without a compiler.

In: a plan, which serves one tuple of input shapes. Out: bytes, a ZIP archive without compression that holds
`part.json`, the object code of each kernel, and the packed constants; and from those bytes a kernel again.
What numpy would have to compute is not packed. An archive may be damaged or hostile: what does not hold is a
ValueError, and its code is as trusted as a shared library is.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...codegen import library
from ...codegen.machine import Machine
from ...codegen.template import Spec
from ...errors import Fail, InvalidArgument
from ...ir import No, Node, in_memory
from ..base import Part
from .device import Device
from .lower import Step
from .native import Native, Plan, numpy_type
from .tensor import Buffer, Tensor

FORMAT = 1
_DESCRIPTION = "part.json"


@dataclass(frozen=True, repr=False)
class Packed(Spec):
    """A kernel whose object code comes from a package; `key`: what it went by where it was made."""

    key: str = ""

    def __repr__(self) -> str:
        return self.key

    def text(self, machine: Machine) -> str:
        """Raises Fail: the package does not hold it."""
        raise Fail(f"kernel {self.template} is only there as object code for another machine",
                   cure="compile the model again for this one")


def pack(native: Native, further: Sequence[tuple[Machine, library.Unit]] = ()) -> bytes | No:
    """The archive of a part whose inputs have known sizes. `further`: what else its device runs."""
    plans = [plan for plan in native.plans.values() if plan is not None]
    if len(plans) != 1 or native.guessed:
        return No("its inputs have sizes that are known only at run time: fix them, see orthrus.tools."
                  "make_dynamic_shape_fixed")
    (plan,) = plans
    for step in plan.steps:
        if step.spec is None:
            return No(f"{step.node.label} is computed by numpy: "
                      f"{plan.trail.why.get(step.node, 'no kernel is generated for it')}")
    units: dict[tuple[Machine, str], library.Unit] = {(m, repr(unit)): unit for m, unit in further}
    specs = [step.spec for step in plan.steps if step.spec is not None]
    units.update(((native.machine, repr(spec)), spec) for spec in specs)
    places = {key: i for i, key in enumerate(units)}
    constants: dict[int, np.ndarray] = {}
    steps = [{"kernel": places[native.machine, repr(spec)], "name": spec.template, "items": step.items,
              "grain": step.grain, "node": step.node.label, "op_type": step.node.op_type,
              "args": [_cell(a, constants) for a in step.args]}
             for step, spec in zip(plan.steps, specs, strict=True)]
    arrays = [in_memory(array) for array in constants.values()]
    (key,) = native.plans
    description = {
        "format": FORMAT, "arena": plan.size, "scratch": plan.scratch, "status": plan.status, "steps": steps,
        "inputs": [[list(shape), v.elem.numpy.name]
                   for shape, v in zip(key, native.part.inputs, strict=True)],
        "outputs": [[list(shape), dtype.name] for shape, dtype in plan.outputs],
        "units": [{"key": key, "machine": asdict(m)} for m, key in units],
        "machine": asdict(native.machine),
        "constants": [array.dtype.name for array in arrays]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(_DESCRIPTION, json.dumps(description))
        for i, ((m, _), unit) in enumerate(units.items()):
            archive.writestr(f"objects/{i}", library.objects([unit], m)[0])
        for i, array in enumerate(arrays):
            archive.writestr(f"constants/{i}", np.ascontiguousarray(array).tobytes())
    return buffer.getvalue()


def _cell(arg: Any, constants: dict[int, np.ndarray]) -> Any:
    """An argument as JSON: a number, or a buffer's kind, which one, and bytes into it."""
    if not isinstance(arg, Tensor):
        return {"float": arg} if isinstance(arg, float) else int(arg)
    buffer = arg.buffer
    if buffer.array is not None:
        constants.setdefault(id(buffer.array), buffer.array)
        return ["const", list(constants).index(id(buffer.array)), arg.byte_offset]
    return [buffer.kind, buffer.offset if buffer.kind == "arena" else buffer.index, arg.byte_offset]


class Compiling(Device):
    """No place to run: kernels are compiled for `machine`, and that is all."""

    def addresses(self, specs: Sequence[Spec]) -> list[int]:
        library.objects(specs, self.machine)
        return [0] * len(specs)

    def constant(self, array: np.ndarray) -> np.ndarray:
        return array


class Package:
    """An opened archive, for `machine`. Raises ValueError for what is none."""

    def __init__(self, data: bytes) -> None:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                self.about: dict[str, Any] = json.loads(archive.read(_DESCRIPTION))
                self.objects = [archive.read(f"objects/{i}") for i in range(len(self.about["units"]))]
                self.constants = [
                    np.frombuffer(archive.read(f"constants/{i}"), numpy_type(name))
                    for i, name in enumerate(self.about["constants"])]
            self.machine = machine_of(self.about["machine"])
            if self.about["format"] != FORMAT:
                raise ValueError(f"format {self.about['format']} of packages; this version reads {FORMAT}")
        except (zipfile.BadZipFile, KeyError, TypeError, EOFError, NotImplementedError) as error:
            raise ValueError(f"no package of a compiled part: {error}") from None

    def provide(self, here: Machine | None = None) -> None:
        """Let the library know the package's code, what is made for the machine of the part also for `here`,
        the description of the same machine that this process goes by."""
        for unit, data in zip(self.about["units"], self.objects, strict=True):
            library.provide(unit["key"], data, machine_of(unit["machine"]))
            if here is not None:
                library.provide(unit["key"], data, here)

    def kernel(self, part: Part, device: Device) -> Native:
        """What runs it, for the `part` that stands for it. Raises ValueError."""
        try:
            return _Ahead(part, device, self)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"a damaged package: {error!r}") from None


def machine_of(plain: Mapping[str, Any]) -> Machine:
    """A machine from its fields as JSON."""
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in plain.items()}
    return Machine(**fields)


def _steps(about: Mapping[str, Any], constants: Sequence[np.ndarray]) -> Iterator[Step]:
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
        spec = Packed(row["name"], (), about["units"][row["kernel"]]["key"])
        node = Node(row["op_type"], "", 1, None, (), {}, row["node"])
        yield Step(spec, [argument(a) for a in row["args"]], row["items"], row["grain"], 0, node, [])


class _Ahead(Native):
    """Runs the one plan of a package."""

    def __init__(self, part: Part, device: Device, package: Package) -> None:
        super().__init__(part, device, _nothing, 0, False)
        kinds = package.about["inputs"]
        self.expected = [(tuple(shape), name) for shape, name in kinds]
        if len(kinds) != len(part.inputs) or len(package.about["outputs"]) != len(part.outputs):
            raise ValueError("a package of another part: the numbers of inputs or outputs differ")
        about = package.about
        self.plans[tuple(shape for shape, _ in self.expected)] = Plan(
            list(_steps(about, package.constants)), len(kinds),
            [(tuple(shape), numpy_type(name)) for shape, name in about["outputs"]], about["arena"],
            about["scratch"], about["status"], device, self.threads)

    def lower(self, kinds: Any) -> Plan:
        raise InvalidArgument(
            f"{self.part} was compiled ahead for other shapes", node=self.part.nodes[0],
            found=", ".join(str(tuple(shape)) for shape, _ in kinds),
            expected=", ".join(str(shape) for shape, _ in self.expected),
            cure="feed these shapes, or compile the model for those")


def _nothing(node: Node) -> Callable[..., Any]:
    raise Fail(f"{node.label} is only there as compiled code", node=node,
               cure="use the model that it was compiled from")
