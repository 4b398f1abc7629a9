"""Packages written: the plans of a part for several tuples of input shapes and several machines.

In: for each machine, plans by their inputs' shapes. Out: the pieces of a package: its head, an image of the
code of each machine, the constants. Tables, texts, kernels and constants that are equal are there once. What
has an address is named by what it points to, so that the bytes are the same wherever the package was made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...codegen.object.link import image
from ...codegen.runtime.units import Runtime
from ...codegen.write.spec import ENTRY
from ...errors import Fail
from ...ir import ElementType
from ...records import dataclass
from ..instance import Plan as ShapedPlan
from . import layout
from .layout import Head, Plan, Tables, Target, digest, rounded

Shapes = tuple[tuple[int, ...], ...]

_BASES = 1 << 28, 1 << 29


@dataclass
class Described:
    """An input or output: `shape` has sizes, names of sizes, or None."""

    name: str
    elem: ElementType
    shape: Sequence[Any]


@dataclass
class Compiled:
    """A machine with its plans, by the shapes of the package's inputs; with none, for what is there besides:
    `further`."""

    machine: Machine
    plans: Mapping[Shapes, ShapedPlan]
    further: Sequence[library.Unit] = ()


@dataclass
class Pieces:
    """A package in pieces. `head`: its bytes; `images`: the code of each machine; `constants`: arrays of
    bytes, padded to cache lines. A file of them all is `whole`."""

    head: bytes
    images: list[bytes]
    constants: list[Any] = field(repr=False)
    machines: list[Machine] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return sum(map(len, self.whole()))

    def whole(self) -> list[Any]:
        """All of it, in the order of a file, each piece beginning at a page."""
        made: list[Any] = []
        for piece in (self.head, *self.images):
            made += [piece, bytes(-len(piece) % layout.PAGE)]
        return [*made, *self.constants]


class _Constants:
    """Arrays one behind the other, each from a cache line on; those of equal content are one."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.end = 0
        self.by_id: dict[int, tuple[np.ndarray, int]] = {}
        self.by_content: dict[bytes, int] = {}

    def add(self, array: np.ndarray) -> int:
        """Where it begins."""
        found = self.by_id.get(id(array))
        if found is None:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            key = digest([data.data]).tobytes()
            if key not in self.by_content:
                self.by_content[key] = self.end
                self.pieces += [data.data, bytes(-len(data) % layout.LINE)]
                self.end += rounded(len(data), layout.LINE)
            found = self.by_id[id(array)] = array, self.by_content[key]
        return found[1]


class _Image:
    """The code of a machine: kernels of plans by what they are, and units besides."""

    def __init__(self, of: Compiled) -> None:
        self.machine = of.machine
        beside = (Runtime(), *of.further) if of.plans else of.further
        units: dict[str, library.Unit] = {repr(unit): unit for unit in beside}
        self.named = list(units)
        units.update((repr(spec), spec) for plan in of.plans.values() for spec in plan.code.specs)
        objects = library.objects(list(units.values()), of.machine)
        self.bytes, found = image(objects, _BASES[0], of.machine.arch)
        if self.bytes != image(objects, _BASES[1], of.machine.arch)[0]:
            raise Fail(f"the code of {_moving(units, objects, of.machine.arch)} depends on where it lies",
                       cure="a fault of this package: report it")
        self.functions = {key: {name: at - _BASES[0] for name, at in each.items()}
                          for key, each in zip(units, found, strict=True)}

    def kernels(self, plan: ShapedPlan) -> list[int]:
        return [self.functions[repr(spec)][ENTRY] for spec in plan.code.specs]


def _moving(units: Mapping[str, Any], objects: Sequence[bytes], arch: str) -> str:
    """Which units are not the same at any address."""
    return ", ".join(key for key, data in zip(units, objects, strict=True)
                     if image([data], _BASES[0], arch)[0] != image([data], _BASES[1], arch)[0])


def write(compiled: Sequence[Compiled], inputs: Sequence[Described], outputs: Sequence[Described],
          metadata: Mapping[str, str] | None = None, about: Mapping[str, Any] | None = None,
          reads: Sequence[int] | None = None, writes: Sequence[int] | None = None) -> Pieces:
    """A package of `compiled` plans of `inputs` and `outputs`. `about`: more to be told, as JSON. `reads`,
    `writes`: which of the inputs and outputs are the plans', in their order, where these are others.
    Raises Fail, RuntimeError as LLVM does."""
    tables, constants = Tables(), _Constants()
    places = [*(reads if reads is not None else range(len(inputs))),
              *(len(inputs) + i for i in (writes if writes is not None else range(len(outputs))))]
    images = [_Image(each) for each in compiled]
    steps: dict[str, int] = {}
    rows = []
    head = np.zeros(Head.WORDS, np.int64)
    for each, made in zip(compiled, images, strict=True):
        row = _target_row(made, tables)
        keys = sorted((tuple(d for shape in shapes for d in shape), shapes) for shapes in each.plans)
        plans = [_plan_row(each.plans[shapes], made, tables, constants, places, steps, writes)
                 for _, shapes in keys]
        row[Target.KEYS] = tables.add([d for key, _ in keys for d in key])
        row[Target.PLANS], row[Target.PLANS_COUNT] = tables.add(np.array(plans)), len(plans)
        rows.append(row)
    head[Head.INPUTS], head[Head.INPUTS_COUNT] = _values(inputs, tables), len(inputs)
    head[Head.OUTPUTS], head[Head.OUTPUTS_COUNT] = _values(outputs, tables), len(outputs)
    pairs = [tables.text(text) for pair in (metadata or {}).items() for text in pair]
    head[Head.METADATA], head[Head.METADATA_COUNT] = tables.add(pairs), len(pairs) // 2
    codes = [{"machine": asdict(made.machine), "units": {key: made.functions[key] for key in made.named}}
             for made in images]
    description = json.dumps({"targets": codes, "steps": [json.loads(text) for text in steps],
                              "about": dict(about or {})}).encode()
    return _finished(head, rows, images, tables, constants, description)


def _finished(head: np.ndarray, rows: Sequence[np.ndarray], images: Sequence[_Image], tables: Tables,
              constants: _Constants, description: bytes) -> Pieces:
    """Everything put in its place."""
    targets = tables.end
    text = (targets + len(rows) * Target.WORDS) * layout.WORD
    about = text + len(tables.texts)
    size = rounded(about + len(description), layout.WORD)
    end = rounded(size, layout.PAGE)
    for row, made in zip(rows, images, strict=True):
        row[Target.CODE] = end
        end = rounded(end + len(made.bytes), layout.PAGE)
    head[Head.SIZE], head[Head.WHOLE] = size, end + constants.end
    head[Head.TARGETS], head[Head.TARGETS_COUNT] = targets, len(rows)
    head[Head.TEXT], head[Head.TEXT_SIZE] = text, len(tables.texts)
    head[Head.ABOUT], head[Head.ABOUT_SIZE] = about, len(description)
    head[Head.CONSTANTS], head[Head.CONSTANTS_SIZE] = end, constants.end
    head[Head.CONSTANTS_DIGEST:Head.CONSTANTS_DIGEST + layout.DIGEST] = digest(constants.pieces)
    behind = b"".join((head[Head.SIZE:].tobytes(), *tables.rows, *(row.tobytes() for row in rows),
                       tables.texts, description, bytes(size - about - len(description))))
    return Pieces(layout.MAGIC + digest([behind]).tobytes() + behind, [made.bytes for made in images],
                  constants.pieces, [made.machine for made in images])


def _order(writes: Sequence[int] | None, count: int) -> list[int]:
    """For each output, which of a plan's it is."""
    return list(range(count)) if writes is None else [list(writes).index(i) for i in range(count)]


def _target_row(made: _Image, tables: Tables) -> np.ndarray:
    """What there is to say of the code, without where it will lie and its plans."""
    row, machine = np.zeros(Target.WORDS, np.int64), made.machine
    row[Target.ARCH] = layout.ARCHITECTURES[machine.arch]
    row[Target.FEATURES] = layout.feature_bits(machine.arch, machine.features)
    row[Target.VECTOR] = machine.vector if machine.arch == "riscv64" else 0
    row[Target.NAME], row[Target.CODE_SIZE] = tables.text(machine.label), len(made.bytes)
    row[Target.CODE_DIGEST:Target.CODE_DIGEST + layout.DIGEST] = digest([made.bytes])
    runtime = made.functions.get(repr(Runtime()), {})
    for at, name in ((Target.DRIVE, "drive"), (Target.WORK, "work"), (Target.PAUSES, "pauses")):
        row[at] = runtime.get(name, 0)
    return row


def _plan_row(plan: ShapedPlan, code: _Image, tables: Tables, constants: _Constants, places: Sequence[int],
              steps: dict[str, int], writes: Sequence[int] | None) -> np.ndarray:
    row, cells = np.zeros(Plan.WORDS, np.int64), plan.cells
    pointed = [(cell, constants.add(array) + offset) for cell, array, offset in cells.constants()]
    values = cells.values.copy()
    values[[cell for cell, _ in pointed]] = 0
    arrays = [(places[which], cell, offset) for which, cell, offset in cells.arrays.tolist()]
    about = json.dumps({"steps": [[name, operator, spec.template] for name, operator, spec in zip(
        plan.code.names, plan.code.operators, plan.code.specs, strict=True)],
        "appends": sorted(plan.code.appends)})
    outputs = _order(writes, len(plan.outputs))
    row[Plan.STEPS], row[Plan.KERNELS] = len(plan.work), tables.add(code.kernels(plan))
    row[Plan.WORK], row[Plan.BEGINS] = tables.add(plan.work), tables.add(cells.begins)
    row[Plan.CELLS], row[Plan.VALUES] = len(values), tables.add(values)
    row[Plan.ARENA_ROWS], row[Plan.ARENA_COUNT] = tables.add(cells.arena), len(cells.arena)
    for rows, at, count in ((pointed, Plan.CONSTANT_ROWS, Plan.CONSTANT_COUNT),
                            (arrays, Plan.ARRAY_ROWS, Plan.ARRAY_COUNT)):
        row[at], row[count] = tables.add([x for each in rows for x in each]), len(rows)
    row[Plan.SHAPES] = tables.add([d for i in outputs for d in plan.outputs[i][0]])
    row[Plan.ARENA], row[Plan.SCRATCH], row[Plan.STATUS] = plan.size, plan.scratch, plan.status
    row[Plan.STEPS_ABOUT] = steps.setdefault(about, len(steps))
    return row


def _values(values: Sequence[Described], tables: Tables) -> int:
    """Which word the rows of inputs or outputs begin with."""
    made: list[int] = []
    for value in values:
        dims = [(int(d), 0) if isinstance(d, (int, np.integer)) else (-1, tables.text(d or ""))
                for d in value.shape]
        made += [int(value.elem), tables.text(value.name), len(dims),
                 tables.add([x for dim in dims for x in dim])]
    return tables.add(made)
