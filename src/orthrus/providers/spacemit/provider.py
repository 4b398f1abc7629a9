"""The provider: which nodes it takes, what it compiles them with, where they run."""

from __future__ import annotations

import functools
import logging
import os
import platform
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import knobs
from ...codegen.machines import detect
from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...codegen.runtime.entry import Entry
from ...codegen.runtime.scheduler import Runtime
from ...errors import InvalidArgument
from ...ir import No, Node, Value
from ...kernels import Kernel, Part, Stored, Work
from ...lowering.device import Device
from ..base import Capability, ExecutionProvider, GraphView, Option
from . import claims, dense, emulator, options, targets, worker
from .profile import Profile
from .team import gather_workers, note_time
from .worker import Program

if TYPE_CHECKING:
    from ...lowering.native import Native

log = logging.getLogger("orthrus")

NAME = "SpineSubgraph"
"""What parts are called, between the provider's name and their numbers."""

_THREADS = 4
"""Threads where nobody says how many, if there are that many processors."""

_FURTHER = (Runtime(), Entry(object.__basicsize__), gather_workers(), note_time())


def on_board() -> bool:
    """Whether this process runs on a riscv64 processor itself."""
    return platform.machine() == "riscv64"


class SpaceMITExecutionProvider(ExecutionProvider):
    """RISC-V cores with vectors, SpacemiT's K1 and K3 among them: on such a core in this process, elsewhere
    in workers under qemu's user emulation. There it is listed once `spacemit_ort` is imported: who takes all
    providers there are should not land in an emulator."""

    name = "SpaceMITExecutionProvider"
    fuses = True
    listed = on_board()
    options: ClassVar[dict[str, Option]] = options.OPTIONS
    target_option = "target"

    def __init__(self, given: dict[str, Any] | None = None) -> None:
        super().__init__(options.merged(given or {}))
        self.dynamic = False
        prefix = self._set("DEBUG_PROFILE")
        self.profile = Profile(prefix) if prefix else None
        if self.profile is not None:
            weakref.finalize(self, self.profile.write)

    @classmethod
    def probe(cls) -> No | None:
        if not on_board():
            found = emulator.find()
            return found if isinstance(found, No) else None
        return None if detect.host() is not None else No("this processor has no vectors (RVV 1.0)")

    @functools.cached_property
    def machine(self) -> Machine:
        """What code is generated for: the board, else the target asked for."""
        return (detect.host() if on_board() else None) or targets.chosen(self.settings)

    @functools.cached_property
    def runs_on(self) -> Device:
        """Where it runs."""
        cores = self._set("INTRA_THREAD_AFFINITY")
        asked = self._set("INTRA_THREAD_NUM")
        if cores and asked and len(cores) != asked:
            raise InvalidArgument(
                f"{options.PREFIX}INTRA_THREAD_AFFINITY names {len(cores)} processors for {asked} threads",
                found=";".join(map(str, cores)), cure="name one for each thread")
        there = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else frozenset(cores)
        if missing := set(cores) - there:
            raise InvalidArgument(f"{options.PREFIX}INTRA_THREAD_AFFINITY names processors this process may "
                                  "not use", found=";".join(map(str, sorted(missing))),
                                  expected=";".join(map(str, sorted(there))))
        threads = asked or len(cores) or self.threads or min(_THREADS, len(there) or _THREADS)
        if on_board():
            from .board import Board

            return Board(self.machine, threads, cores, bool(self._set("USE_GLOBAL_INTRA_THREAD")))
        from .device import Emulated, Teams, common

        vlen, qemu = 8 * self.machine.vector, self.settings["qemu"] or None
        seconds = self.settings["emulator_timeout"]
        if self._set("USE_GLOBAL_INTRA_THREAD"):
            teams = common(vlen, threads, 1, cores, seconds, qemu)
        else:
            teams = Teams(vlen, threads, self._set("INTER_THREAD_NUM"), cores, seconds, qemu)
            weakref.finalize(self, teams.close)
        return Emulated(self.machine, teams, self.profile)

    def _set(self, key: str) -> Any:
        return self.settings[options.PREFIX + key]

    def claim(self, node: Node) -> No | None:
        """The operators SpacemiT lists, under its conditions, that kernels are generated for, unless a filter
        names the node or operator."""
        if node.op_type in self._set("DISABLE_OP_TYPE_FILTER"):
            return No(f"{options.PREFIX}DISABLE_OP_TYPE_FILTER names {node.op_type}")
        if node.name in self._set("DISABLE_OP_NAME_FILTER"):
            return No(f"{options.PREFIX}DISABLE_OP_NAME_FILTER names {node.name}")
        from ...lowering.claims import refusal

        why = claims.refusal(node)
        return refusal(node) if why is None else why

    def get_capability(self, view: GraphView) -> list[Capability]:
        """What it claims and kernels can be generated for, in the fewest parts."""
        from ...lowering.claims import groups

        self.dynamic |= dense.dynamically_quantized(view.graph)
        joined, left_out = groups(view.graph, self.claimed(view), lambda _: False, views=True)
        for node, reason in left_out.items():
            view.refuse(node, No(reason))
        return [Capability(group, NAME) for group in joined]

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        if self._set("DUMP_SUBGRAPHS"):
            dump(part)
        native = self._native(part, self.runs_on)
        if self.profile is not None:
            self.profile.types.update((node.label, node.op_type) for node in part.nodes)
            self.profile.types.update(
                (step.node.label, "+".join(node.op_type for node in work.nodes))
                for plan in native.lowered()
                for step, work in zip(plan.steps, plan.works(native.part), strict=True))
        run: Callable[..., Any] = native
        if folder := self._set("DUMP_TENSORS"):
            run = Dumping(native, folder)
        elif self.profile is not None and on_board():
            run = Profiled(native, self.profile)
        return [Kernel(run, f"generated for {len(part.nodes)} nodes")]


    def _native(self, part: Part, device: Device) -> Native:
        """The compiled part."""
        from ...kernels import reference
        from ...lowering.native import Native

        level = self._set("DENSE_ACCURACY_LEVEL")
        if self.dynamic and level < dense.FULL:
            part = dense.lowered(part, level)
        native = Native(part, device, lambda node: reference(node).run, 0)
        native.half_epilogue = self.machine.has("zvfh") and not self._set("DISABLE_FLOAT16_EPILOGUE")
        native.prepare()
        return native

    def store(self, part: Part) -> Stored | No:
        from ...lowering.package import FORMAT, Compiling, pack

        native = self._native(part, Compiling(self.machine))
        packed = pack(native, self._beside(self.machine))
        if isinstance(packed, No):
            return packed
        return Stored(packed, f"package {FORMAT}", targets.label(self.machine), f"{len(part.nodes)} nodes")

    @staticmethod
    def _beside(target: Machine) -> list[tuple[Machine, library.Unit]]:
        """The code beside a part's own that runs it, on a board and under emulation."""
        return [*((target, unit) for unit in _FURTHER), (worker.MACHINE, Program.now())]

    def load(self, part: Part, stored: Stored) -> Kernel | No:
        from ...lowering.package import Package

        try:
            package = Package(stored.data)
            here = detect.host() if on_board() else None
            if here is not None and not here.runs(package.machine):
                return No(f"it is made for {stored.target}, which this board's processor is not")
            if here is None and not self.settings["target"]:
                self.machine = package.machine
            if here is None and package.machine != self.machine:
                return No(f"it is made for {stored.target}; the option target says {self.settings['target']}")
            package.provide(self._beside(here or self.machine))
            native = package.kernel(part, self.runs_on)
        except ValueError as error:
            return No(str(error))
        return Kernel(native, f"compiled ahead for {stored.target}, {stored.notes}")


def dump(part: Part) -> None:
    """Write `part` to the working folder, its name followed by the shapes of its inputs."""
    from ...load import save

    shapes = ("".join(f"{d}_" for d in v.shape or ()) for v in part.inputs)
    path = f"{part.name}{''.join(f'_shape{shape}' for shape in shapes)}_.onnx"
    try:
        save(part.graph(), Path(path))
    except (OSError, ValueError) as error:
        log.warning("part %s is not written to %s: %s", part, path, error)


class Dumping:
    """Runs a part step by step and writes what its nodes compute, each run over the one before."""

    def __init__(self, native: Native, folder: str) -> None:
        self.part, self.folder = native.part, Path(folder)
        self.stepwise, self.describe, self.close = native.stepwise, native.describe, native.close

    def __call__(self, *arrays: np.ndarray) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True)
        made = self.stepwise(arrays, None, self._write)
        several = made if isinstance(made, tuple) else (made,)
        for value, array in zip(self.part.outputs, several, strict=True):
            self._write(value, array)
        return made

    def _write(self, value: Value, array: np.ndarray) -> None:
        np.save(self.folder / f"{knobs.file_name(value.name)}.npy", array, allow_pickle=False)


class Profiled:
    """Runs a part step by step and adds each step to the provider's own profile."""

    def __init__(self, native: Native, profile: Profile) -> None:
        self.profile = profile
        self.stepwise, self.describe, self.close = native.stepwise, native.describe, native.close

    def __call__(self, *arrays: np.ndarray) -> Any:
        return self.stepwise(arrays, self._note)

    def _note(self, work: Work | None, begin: int, end: int) -> None:
        if work is not None:
            self.profile.add(work.node.label, 0, begin, end)
