"""Compiled parts that came as packages, run in Python.

In: an opened package, and the part that stands for it in a graph. Out: a kernel, whose plans are the
package's. What it was not compiled for is an error, or goes to whoever is there to compute it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...codegen.write.template import Spec
from ...errors import Fail, InvalidArgument
from ...ir import Node
from ...kernels import Gate, Part
from ..device import Loaded, PartDevice
from ..native import Native
from ..plans import Cells, Plan, Stepped
from ..plans import Code as PlanCode
from ..report import Trail
from ..shaped_part import Key, Kinds
from ..step import KernelStep
from .opened import Code, Opened, Tables

log = logging.getLogger("orthrus")


def beside() -> list[library.Unit]:
    """The code beside a part's own that runs it in this process."""
    from ...codegen.runtime.entry import Entry
    from ...codegen.runtime.fastcall import Quick
    from ...codegen.runtime.scheduler import Runtime

    return [Runtime(), Entry(object.__basicsize__), Quick(object.__basicsize__)]


class Package(Opened):
    """A package, which of its targets runs here, and its code as it is loaded."""

    code: Code
    loaded: Loaded

    def fits(self, runs: Callable[[Machine], bool]) -> bool:
        """Whether it holds code for a machine that `runs`; that is `code` from then on."""
        found = self.choose(runs)
        if found is not None:
            self.code = found
        return found is not None

    def lend(self, units: Sequence[tuple[Machine, library.Unit]]) -> None:
        """Let the library borrow the code of `units`, which is there beside kernels to run them, where none
        can be made."""
        for (i, machine), functions in self._beside(units):
            library.lend(functions, self.codes[i].image, machine)

    def load(self, device: PartDevice, units: Sequence[tuple[Machine, library.Unit]]) -> None:
        """Load the code. Where it was kept, that of `units` is as good as made here, and the library is
        told."""
        self.loaded = device.load(self.code.image)
        for (i, machine), functions in self._beside(units) if self.kept else ():
            if self.codes[i] is self.code:
                library.provide(functions, self.loaded, machine)

    def _beside(self, units: Sequence[tuple[Machine, library.Unit]]
                ) -> Iterable[tuple[tuple[int, Machine], library.Functions]]:
        """Those of `units` that are there, by which code has them and for which machine."""
        found: dict[tuple[int, Machine], dict[str, Mapping[str, int]]] = {}
        for machine, unit in units:
            key = repr(unit)
            i = next((i for i, code in enumerate(self.codes) if key in code.units and (
                code is self.code or code.machine == machine)), None)
            if i is not None:
                found.setdefault((i, machine), {})[key] = self.codes[i].units[key]
        return found.items()

    def kernel(self, part: Part, device: PartDevice, threads: int = 0,
               otherwise: Callable[..., Any] | None = None) -> Native:
        """What runs it, once loaded, for the `part` that stands for it, on `threads` threads, 0 for as many
        as there are. `otherwise` computes what it was not compiled for, where there is something that can.
        Raises ValueError."""
        try:
            return Ahead(part, device, self, threads, otherwise)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"a damaged package: {error!r}") from None

    def expected(self, part: Part) -> None:
        """Raises ValueError for a part of other types."""
        if len(self.inputs) != len(part.inputs) or len(self.outputs) != len(part.outputs):
            raise ValueError("a package of another part: the numbers of inputs or outputs differ")
        for value, (elem, _) in zip((*part.inputs, *part.outputs), (*self.inputs, *self.outputs),
                                    strict=True):
            if value.elem is not elem:
                raise ValueError(f"a package of another part: {value.name} is {value.type}, not {elem.text}")


class _Ahead(Stepped):
    """A plan of a package. Its steps have no arguments: these are cells only."""

    def __init__(self, package: Package, tables: Tables, constants: np.ndarray, device: PartDevice,
                 threads: int) -> None:
        loaded = package.loaded
        about, self.trail = package.steps[tables.about], Trail()
        self.steps = [KernelStep(Spec(_word(template), ()), [], items, grain, 0,
                                 Node(operator, "", 1, None, (), {}, label), [])
                      for (label, operator, template), (items, grain)
                      in zip(about["steps"], tables.work.tolist(), strict=True)]
        values = tables.values.copy()
        values[tables.constant_rows[:, 0]] = tables.constant_rows[:, 1] + constants.ctypes.data
        code = PlanCode([step.spec for step in self.steps],
                        [step.node.label for step in self.steps], [step.node.op_type for step in self.steps],
                        len(package.inputs), frozenset((int(i), int(o)) for i, o in about["appends"]),
                        device, threads, (tables.kernels + loaded.address).tolist())
        cells = Cells(values, tables.arena_rows, tables.array_rows, tables.begins,
                      (package.bytes, constants, loaded), list)
        outputs = [(shape, elem.numpy)
                   for shape, (elem, _) in zip(tables.outputs, package.outputs, strict=True)]
        Plan.__init__(self, code, cells, tables.work, outputs, tables.arena, tables.scratch, tables.status)


class Ahead(Native):
    """Runs the plans of a package."""

    def __init__(self, part: Part, device: PartDevice, package: Package, threads: int,
                 otherwise: Callable[..., Any] | None) -> None:
        super().__init__(part, device, nothing, threads, False)
        package.expected(part)
        self.package, self.otherwise = package, otherwise
        self.gate = Gate(part.inputs, [elem.numpy for elem, _ in package.inputs])
        self.weights = device.constant(package.constants)
        first = next(iter(package.code.plans))
        self.plans[first] = self._opened(first)

    def _opened(self, key: Key) -> Plan:
        code = self.package.code
        return _Ahead(self.package, self.package.tables(code, code.plans[key]), self.weights, self.device,
                      self.threads)

    def _made(self, key: Key, kinds: Kinds) -> Plan | None:
        if key in self.package.code.plans:
            return self.plans.kept(key, lambda: self._opened(key))
        if self.otherwise is not None:
            return None
        raise other_shapes(self.part, [shape for shape, _ in kinds], list(self.package.code.plans))

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


def _word(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a damaged package: no kernel is called {name!r}")
    return name


def other_shapes(part: Part, found: Sequence[tuple[int, ...]], known: Sequence[Sequence[tuple[int, ...]]]
                 ) -> InvalidArgument:
    """The error for inputs that a part was not compiled for."""
    several = [", ".join(map(str, shapes)) for shapes in known[:4]] + ["..."] * (len(known) > 4)
    return InvalidArgument(
        f"{part} was compiled ahead for other shapes", node=part.nodes[0], found=", ".join(map(str, found)),
        expected=" or ".join(several), cure="feed these shapes, or compile the model for those")


def nothing(node: Node) -> Callable[..., Any]:
    """In the place of a definition, which is not there. Raises Fail."""
    raise Fail(f"{node.label} is only there as compiled code", node=node,
               cure="use the model that it was compiled from")
