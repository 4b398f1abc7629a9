"""A part compiled ahead: all a session needs to run it, on another machine and without a compiler.

In: a part's kernel, and the shapes of its inputs. Out: its package. What numpy would have to compute is not
packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...ir import No, Value
from ..native import Native
from .ahead import Ahead
from .writer import Compiled, Described, Pieces, Shapes, write


def pack(native: Native, further: Sequence[tuple[Machine, library.Unit]] = ()) -> bytes | No:
    """The package of a part whose inputs have known sizes. `further`: what else its device runs."""
    if len(native.plans) != 1 or native.guessed:
        return No("its inputs have sizes that are known only at run time")
    (shapes,) = native.plans
    pieces = packed(native, shapes, further)
    return pieces if isinstance(pieces, No) else b"".join(pieces.whole())


def packed(native: Native, shapes: Shapes, further: Sequence[tuple[Machine, library.Unit]] = (),
           about: Mapping[str, Any] | None = None) -> Pieces | No:
    """The plan for inputs of these `shapes` as a package. `about`: more to be told, as JSON."""
    if isinstance(native, Ahead):
        return No("it came compiled")
    plan = native.exact(shapes) if shapes in native.plans else None
    if plan is None:
        return No(native.refused.get(shapes, "there is no plan for these shapes"))
    if plan.hosts:
        step = plan.hosts[0][1]
        return No(f"{step.node.label} is computed by numpy: "
                  f"{plan.trail.why.get(step.node, 'no kernel is generated for it')}")
    here, part = native.machine, native.part
    units: dict[Machine, list[library.Unit]] = {here: []}
    for machine, unit in further:
        units.setdefault(machine, []).append(unit)
    compiled = [Compiled(here, {shapes: plan}, units.pop(here)),
                *(Compiled(machine, {}, several) for machine, several in units.items())]
    return write(compiled, _described(part.inputs, shapes),
                 _described(part.outputs, [shape for shape, _ in plan.outputs]), about=about)


def _described(values: Sequence[Value], shapes: Sequence[Sequence[int]]) -> list[Described]:
    return [Described(v.name, v.elem, shape) for v, shape in zip(values, shapes, strict=True)]
