"""Compiled parts that came as packages, run in Python.

In: an opened package, and the part that stands for it in a graph. Out: a kernel, whose plans are the
package's. What it was not compiled for is an error, or goes to whoever is there to compute it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import Fail, InvalidArgument
from ...ir import Node
from ...kernels import Gate, Part
from ..device import PartDevice
from ..instance import Plan
from ..native import Native
from ..plans import Stepped
from ..report import Trail
from ..shaped_part import Key, Kinds
from ..step import KernelStep
from .loaded import LoadedPlan, Package

log = logging.getLogger("orthrus")


class _Ahead(Stepped):
    """A plan of a package with its steps, which have no arguments: these are cells only."""

    def __init__(self, made: LoadedPlan) -> None:
        code, self.trail = made.code, Trail()
        self.steps = [KernelStep(spec, [], items, grain, 0, Node(operator, "", 1, None, (), {}, label), [])
                      for label, operator, spec, (items, grain)
                      in zip(code.names, code.operators, code.specs, made.work.tolist(), strict=True)]
        Plan.__init__(self, code, made.cells, made.work, made.outputs, made.size, made.scratch, made.status)


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
        return _Ahead(self.package.plan(key, self.weights, self.device, self.threads))

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
                    "no other way to compute it, so that results near these, or in other groups, may be NaN "
                    "or inexact", self.part)
        return made

    def interpret(self, arrays: Sequence[np.ndarray], *given: Any) -> Any:
        return super().interpret(arrays, *given) if self.otherwise is None else self.otherwise(*arrays)


def kernel(package: Package, part: Part, device: PartDevice, threads: int = 0,
           otherwise: Callable[..., Any] | None = None) -> Native:
    """What runs a package, once loaded, for the `part` that stands for it, on `threads` threads, 0 for as
    many as there are. `otherwise` computes what it was not compiled for, where there is something that can.
    Raises ValueError."""
    try:
        return Ahead(part, device, package, threads, otherwise)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"a damaged package: {error!r}") from None


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
