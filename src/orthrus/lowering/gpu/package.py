"""A part compiled ahead for GPUs: what a session needs to run it where there is no compiler.

In: a part and a target. Out: a package as `described` says it, whose units are code objects; and
from its bytes a part again, with one plan. What the host would have to compute is not packed. Its code goes
to the device as it is, under no name that anything else asks for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.triton import targets
from ...codegen.triton.compile import CodeObject
from ...codegen.triton.targets import Target
from ...ir import No, in_memory
from ...kernels import Device, Gate, Part
from ..interpret import Reference
from ..package.ahead import nothing, other_shapes
from ..shaped_part import Key, Kinds
from ..tensor import Tensor, numpy_type
from .described import FORMAT, Blobs, Opened, cell, steps_of
from .part import GpuPart
from .plan import GpuPlan


class Compiling(Device):
    """No device: kernels are compiled for one, and that is all."""

    def allocate(self, size: int) -> int:
        return 0

    def free(self, handle: int) -> None:
        """Nothing was taken."""

    def copy_in(self, array: np.ndarray, handle: int) -> None:
        """The package takes the array."""

    def synchronize(self, stream: Any) -> None:
        """Nothing is under way."""

    def function(self, code: bytes, name: str, shared: int) -> int:
        return 0


def pack(part: Part, target: Target, reference: Reference, settings: dict[str, Any], strict: bool
         ) -> tuple[bytes, str] | No:
    """The package of a part whose inputs have known sizes, and the compiler that made its code. Raises
    EPFail."""
    made = GpuPart(part, Compiling(), target, reference, settings, strict)
    made.prepare()
    if len(made.plans) != 1 or made.guessed:
        return No("its inputs have sizes, or elements that are sizes, which are known only at run time: fix "
                  "them, see orthrus.tools.make_dynamic_shape_fixed")
    ((key, plan),) = made.plans.items()
    if plan is None:
        return No(made.refused.get(key, "there is no plan for these shapes"))
    if plan.hosted:
        return No(f"the host computes {', '.join(plan.hosted)}")
    return b"".join(_pieces(part, target, key, plan)), next((code.by for code in plan.codes), "")


def _pieces(part: Part, target: Target, key: Key, plan: GpuPlan) -> list[Any]:
    constants: dict[int, np.ndarray] = {}
    numbers: dict[int, int] = {}
    units = {code: i for i, code in enumerate(dict.fromkeys(plan.codes))}
    steps = [{"kernel": units[code], "name": code.name, "items": step.items, "grain": step.grain,
              "node": step.node.label, "op_type": step.node.op_type,
              "args": [cell(a, constants, numbers) for a in step.args]}
             for step, code in zip(plan.steps, plan.codes, strict=True)]
    arrays = [np.ascontiguousarray(in_memory(array)) for array in constants.values()]
    blobs = Blobs()
    description = {
        "format": FORMAT, "target": target.arch, "arena": plan.size, "status": plan.status, "steps": steps,
        "inputs": [[list(shape), v.elem.numpy.name]
                   for shape, v in zip(key, part.inputs, strict=True) if v.elem is not None],
        "outputs": [[list(shape), dtype.name] for shape, dtype in plan.outputs],
        "units": [{"at": blobs.add(code.to_bytes())} for code in units],
        "constants": [[array.dtype.name, blobs.add(array.reshape(-1).view(np.uint8))] for array in arrays]}
    return blobs.pieces(json.dumps(description).encode())


class GpuPackage(Opened):
    """What `pack` made, opened. `target`: what it is compiled for."""

    def _look(self) -> None:
        found = targets.named(str(self.about.get("target", "")))
        if found is None:
            raise ValueError(f"a package of a part compiled for {self.about.get('target', 'a processor')}")
        self.target, self.codes = found, [CodeObject.from_bytes(data) for data in self.objects]

    def part(self, part: Part, device: Device, strict: bool = False, graphs: bool = False) -> GpuPart:
        """What runs it on a device, for the `part` that stands for it. Raises ValueError, and EPFail where
        the device refuses its code."""
        try:
            return _Ahead(part, device, self, strict, graphs)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"a damaged package: {error!r}") from None


class _Ahead(GpuPart):
    """Runs the one plan of a package."""

    def __init__(self, part: Part, device: Device, package: GpuPackage, strict: bool, graphs: bool) -> None:
        super().__init__(part, device, package.target, nothing, {}, strict, graphs)
        self.expected = package.expected(part)
        self.deciding: Sequence[int] = ()
        self.gate = Gate(part.inputs, [numpy_type(name) for _, name in self.expected])
        about, steps = package.about, list(steps_of(package))
        codes = [package.codes[row["kernel"]] for row in about["steps"]]
        for step, code in zip(steps, codes, strict=True):
            _check(step.args, code)
        plan = GpuPlan(steps, codes, len(self.expected), [
            (tuple(shape), numpy_type(name)) for shape, name in about["outputs"]], about["arena"],
            about["status"], device, self.held.address)
        self.recorded(plan)
        self.plans[tuple(shape for shape, _ in self.expected)] = plan

    def _made(self, key: Key, kinds: Kinds) -> GpuPlan | None:
        if key in self.plans:
            return self.plans[key]
        raise other_shapes(self.part, [shape for shape, _ in kinds], [[shape for shape, _ in self.expected]])

    def describe(self) -> None:
        """Nothing: what the steps stand for is not in a package."""


def _check(args: Sequence[Any], code: CodeObject) -> None:
    """Raises ValueError where a kernel takes other arguments."""
    fits = [kind == "p" if isinstance(a, Tensor) else kind != "p"
            for a, kind in zip(args, code.kinds, strict=False)]
    if len(args) > len(code.kinds) or not all(fits):
        raise ValueError(f"a damaged package: {code.name} is given other arguments than {code.kinds}")
