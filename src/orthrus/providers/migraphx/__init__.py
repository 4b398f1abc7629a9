"""MIGraphXExecutionProvider: parts by AMD's graph compiler MIGraphX, through its Python module.

In: parts of a graph. Out: kernels. A part is parsed and compiled in a process of its own, saved, and loaded
here. What MIGraphX gets wrong, refuses or dies of by the record of version 2.16 is refused before it is
asked; a part that it refuses all the same goes to the next provider, with its words as the reason. Nothing
of it is imported before somebody asks whether it is here."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ...errors import EPFail, Fail
from ...ir import No, Node
from ...kernels import HOST, Device, Kernel, Part, Stored, convex_groups
from ...records import cached_property
from ..base import Capability, ExecutionProvider, GraphView, Option
from ..foreign.fixed import is_open
from ..gpu.device import shared
from ..gpu.hip import HIP
from . import claims, module, settings
from .calibration import Ranges, read_ranges
from .compiler import Compiled, Order, build
from .device import OnDevice
from .part import ByShapes, Whole, one_batch, sizes
from .program import Program


class MIGraphXExecutionProvider(ExecutionProvider):
    """Whole parts by MIGraphX, on AMD's GPUs, and on its reference for tests."""

    name = "MIGraphXExecutionProvider"
    fuses = True
    level = 1
    options: ClassVar[dict[str, Option]] = settings.DECLARED
    target_option = "target"
    finding = HIP

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.settings = settings.settled(self.given, self.settings)
        self.ranges: Ranges | None = None
        if self.settings["int8_enable"] or self.settings["fp8_enable"]:
            self.ranges = read_ranges(settings.table_file(self.settings),
                                      self.settings["int8_use_native_calibration_table"])

    @classmethod
    def probe(cls) -> No | None:
        """Whether the module is here, of a version that was tried, and has a GPU to compile for."""
        return cls.probe_with({})

    @classmethod
    def probe_with(cls, options: dict[str, Any]) -> No | None:
        """Whether it can work with these options, which may name the module's folder and the target."""
        given = {key: str(options[key]) for key in ("module_path", "any_version", "target") if key in options}
        found = module.found(given.get("module_path", ""), given.get("any_version") in ("1", "true", "on"))
        if isinstance(found, No):
            return found
        target = module.target(found, given.get("target", "gpu"))
        return target if isinstance(target, No) else None

    @cached_property
    def device(self) -> Device:  # type: ignore[override]
        """Where arguments and results lie: the GPU's memory where HIP is there, else the host's. Raises
        InvalidArgument for a device there is none of."""
        if self.settings["target"] == "ref" or self.settings["offload_copy"]:
            return HOST
        driver = self.finding.driver()
        return HOST if isinstance(driver, No) else shared(driver, self.settings["device_id"])

    @property
    def library(self) -> Any:
        """The module. Raises EPFail where it is missing."""
        found = module.found(self.settings["module_path"], self.settings["any_version"])
        if isinstance(found, No):
            raise EPFail(f"{self.name} cannot work on this machine: {found.reason}")
        return found

    @property
    def version(self) -> str:
        return f"migraphx {self.library.__version__}"

    def claim(self, node: Node) -> No | None:
        """None for a node that the record speaks for."""
        if node.has_bodies:
            return No("control flow stays with the runtime; its bodies are partitioned themselves")
        return claims.judged(node, self.settings["target"])

    def get_capability(self, view: GraphView) -> list[Capability]:
        """The nodes claimed, in convex parts that have the constants their parser needs, and that are worth
        an engine, or the whole of what is asked for."""
        claimed = set(self.claimed(view))
        while True:
            groups = convex_groups(view.graph, claimed)
            torn = {node: no for group in groups for node, no in claims.torn(group).items()}
            if not torn:
                break
            for node, no in torn.items():
                view.refuse(node, no)
            claimed -= torn.keys()
        found = list[Capability]()
        for group in groups:
            why = claims.border(group)
            if why is None and len(group) < len(view.nodes) and claims.trivial(group):
                why = No("nothing but views of values, which no engine is worth")
            if why is None:
                found.append(Capability(group, "MIGraphX"))
                continue
            for node in group:
                view.refuse(node, why)
        return found

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        """One kernel, or why there is none. A part with open dimensions is compiled for the batches that the
        options name, and otherwise when arrays come."""
        if not is_open(part):
            return [self._made(part)]
        made = ByShapes(part, self._made, settings.batches(self.settings), self._ranged(part), self.device)
        try:
            made.prepare(self.settings["compile_batches"])
        except Fail as error:
            return [No(str(error))]
        return [Kernel(made, f"MIGraphX for {len(part.nodes)} nodes, compiled for each shape")]

    def _made(self, part: Part) -> Kernel | No:
        """The kernel of a part of known sizes."""
        compiled = self._compiled(part)
        return compiled if isinstance(compiled, No) else self._kernel(part, compiled)

    def _compiled(self, part: Part) -> Compiled | No:
        for node in part.nodes:
            if (why := claims.judged(node, self.settings["target"])) is not None:
                return why
        return build(part, self._order())

    def _order(self, offload: bool = False, **more: Any) -> Order:
        return Order(self.settings, self.version, offload or self.device is HOST, self.ranges, **more)

    def _kernel(self, part: Part, compiled: Compiled) -> Kernel | No:
        given = self.library, compiled.file, part, compiled.reads, self.settings
        try:
            program = Program(*given) if self.device is HOST else OnDevice(
                *given, self.device, functools.cache(lambda: self._twin(part)))
        except EPFail as error:
            return No(str(error))
        return Kernel(Whole(part, program, self.device), f"MIGraphX for {len(part.nodes)} nodes")

    def _twin(self, part: Part) -> Program:
        """The program of `part` for the host's memory. Raises EPFail."""
        compiled = build(part, self._order(offload=True))
        if isinstance(compiled, No):
            raise EPFail(f"MIGraphX does not compile a part to time it: {compiled.reason}", node=part)
        return Program(self.library, compiled.file, part, compiled.reads, self.settings)

    def _ranged(self, part: Part) -> tuple[Kernel, int] | None:
        """One kernel for all batches up to the largest, where that is asked for and MIGraphX takes it."""
        largest = self.settings["max_dynamic_batch"]
        if not self.settings["dynamic_dims"] or not one_batch(part) or self.device is not HOST:
            return None
        sides = {i: list(zip(sizes(v.shape, 1), sizes(v.shape, largest), strict=True))
                 for i, v in enumerate(part.inputs) if v.shape}
        compiled = build(part, self._order(open=sides))
        kernel = compiled if isinstance(compiled, No) else self._kernel(part, compiled)
        return None if isinstance(kernel, No) else (kernel, largest)

    def store(self, part: Part) -> Stored | No:
        """The compiled program of `part`, behind a line that says which inputs it reads."""
        if is_open(part):
            return No("its shapes are open; orthrus compile --dim NAME=SIZE fixes them")
        try:
            compiled = self._compiled(part)
            if isinstance(compiled, No):
                return compiled
            data = json.dumps({"reads": compiled.reads,
                               "offload": self.device is HOST}).encode() + b"\n" + compiled.file.read_bytes()
        except (Fail, OSError) as error:
            return No(f"the compiled part cannot be had: {error}")
        return Stored(data, self.version, self.settings["target"], f"{len(part.nodes)} nodes")

    def load(self, part: Part, stored: Stored) -> Kernel | No:
        """The kernel of a program that `store` gave."""
        if stored.version != self.version:
            return No(f"it was compiled by {stored.version or 'an unnamed version'}, and {self.version} is"
                      " here")
        if stored.target != self.settings["target"]:
            return No(f"it was compiled for {stored.target or 'an unnamed target'}, and the option target is"
                      f" {self.settings['target']}")
        head, _, program = stored.data.partition(b"\n")
        try:
            said = json.loads(head)
            reads, offload = said["reads"], bool(said["offload"])
            if not all(isinstance(i, int) and 0 <= i < len(part.inputs) for i in reads):
                raise ValueError(f"it reads inputs {reads}")
            if offload != (self.device is HOST):
                place = "the host" if offload else "a device"
                return No(f"it takes arrays of {place}; the option offload_copy says where they lie")
            with tempfile.NamedTemporaryFile(suffix=".mxr") as file:
                file.write(program)
                file.flush()
                return self._kernel(part, Compiled(Path(file.name), tuple(reads)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            return No(f"the compiled part is damaged: {error}")
