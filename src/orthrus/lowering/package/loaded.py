"""Packages loaded: their code where it runs, and their plans ready to be entered.

In: an opened package, and the device it is to run on. Out: plans. Nothing is compiled, and nothing that
compiles is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.object import library
from ...codegen.runtime.units import Entry, Quick, Runtime
from ...codegen.write.spec import Spec
from ..instance import Cells, Plan
from ..instance import Code as PlanCode
from .opened import Code, Opened, Shapes, Tables

if TYPE_CHECKING:
    from ...codegen.machines.machine import Machine
    from ...kernels import Part
    from ..device import Loaded, PartDevice


def beside() -> list[library.Unit]:
    """The code beside a part's own that runs it in this process."""

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
        told. Once is enough."""
        if hasattr(self, "loaded"):
            return
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

    def expected(self, part: Part) -> None:
        """Raises ValueError for a part of other types."""
        if len(self.inputs) != len(part.inputs) or len(self.outputs) != len(part.outputs):
            raise ValueError("a package of another part: the numbers of inputs or outputs differ")
        for value, (elem, _) in zip((*part.inputs, *part.outputs), (*self.inputs, *self.outputs),
                                    strict=True):
            if value.elem is not elem:
                raise ValueError(f"a package of another part: {value.name} is {value.type}, not {elem.text}")

    def plan(self, key: Shapes, constants: np.ndarray, device: PartDevice, threads: int) -> LoadedPlan:
        """The plan for inputs of these shapes. `constants`: the package's, where kernels can read them.
        Raises ValueError."""
        tables = self.tables(self.code, self.code.plans[key])
        try:
            return LoadedPlan(self, tables, constants, device, threads)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"a damaged package: {error!r}") from None


class LoadedPlan(Plan):
    """A plan of a package. Its steps have no arguments: these are cells only."""

    def __init__(self, package: Package, tables: Tables, constants: np.ndarray, device: PartDevice,
                 threads: int) -> None:
        loaded, about = package.loaded, package.steps[tables.about]
        names, operators, templates = zip(*about["steps"], strict=True) if about["steps"] else ((), (), ())
        values = tables.values.copy()
        values[tables.constant_rows[:, 0]] = tables.constant_rows[:, 1] + constants.ctypes.data
        code = PlanCode((tables.kernels + loaded.address).tolist(),
                        [Spec(_word(each), ()) for each in templates], list(names), list(operators),
                        len(package.inputs), frozenset((int(i), int(o)) for i, o in about["appends"]),
                        device, threads)
        cells = Cells(values, tables.arena_rows, tables.array_rows, tables.begins,
                      (package.bytes, constants, loaded), list)
        outputs = [(shape, elem.numpy)
                   for shape, (elem, _) in zip(tables.outputs, package.outputs, strict=True)]
        super().__init__(code, cells, tables.work, outputs, tables.arena, tables.scratch, tables.status)


def _word(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a damaged package: no kernel is called {name!r}")
    return name
