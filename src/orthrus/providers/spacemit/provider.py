"""The provider: which nodes it takes, what it compiles them with, where they run."""

from __future__ import annotations

import logging
import os
import platform
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import knobs
from ...codegen.emulate import emulator, worker
from ...codegen.machines import detect
from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...codegen.runtime.units import Entry, Runtime
from ...errors import InvalidArgument
from ...ir import No, Node, Value
from ...kernels import Kernel, Part, Work
from ...lowering.device import PartDevice
from ...records import cached_property
from ..base import Capability, GraphView, Option
from ..generating import GeneratingProvider
from . import claims, dense, options, targets
from .profile import Profile
from .team import gather_workers, note_time

if TYPE_CHECKING:
    from ...lowering.native import Native
    from ...lowering.package.loaded import Package

log = logging.getLogger("orthrus")

ARCH = "riscv64"
NAME = "SpineSubgraph"
"""What parts are called, between the provider's name and their numbers."""

_THREADS = 4
"""Threads where nobody says how many, if there are that many processors."""
_MOST = 16
"""Threads at most, where there are no more processors: the cores of the largest chip that is emulated."""

_FURTHER = (Runtime(), Entry(object.__basicsize__), gather_workers(), note_time())


def on_board() -> bool:
    """Whether this process runs on a riscv64 processor itself."""
    return platform.machine() == ARCH


class SpaceMITExecutionProvider(GeneratingProvider):
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
            found = emulator.find(ARCH)
            return found if isinstance(found, No) else None
        return None if detect.host() is not None else No("this processor has no vectors (RVV 1.0)")

    @cached_property
    def machine(self) -> Machine:
        """What code is generated for: the board, else the target asked for."""
        return (detect.host() if on_board() else None) or targets.chosen(self.settings)

    @cached_property
    def runs_on(self) -> PartDevice:
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
        threads = min(threads, max(_MOST, len(there)))
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
        (kernel,) = super().compile(part)
        assert isinstance(kernel, Kernel)
        native: Any = kernel.run
        if self.profile is not None:
            self.profile.types.update((node.label, node.op_type) for node in part.nodes)
            self.profile.types.update(
                (step.node.label, "+".join(node.op_type for node in work.nodes))
                for plan in native.lowered()
                for step, work in zip(plan.steps, plan.works(native.part), strict=True))
        if folder := self._set("DUMP_TENSORS"):
            return [replace(kernel, run=Dumping(native, folder))]
        if self.profile is not None and on_board():
            return [replace(kernel, run=Profiled(native, self.profile))]
        return [kernel]

    def _machine(self) -> Machine:
        return self.machine

    def _device(self, machine: Machine) -> PartDevice:
        return self.runs_on

    def _storing(self, machine: Machine) -> PartDevice:
        from ...lowering.device import Compiling

        return Compiling(machine)

    def _threads(self) -> int:
        return 0

    def _native(self, part: Part, device: PartDevice) -> Native:
        level = self._set("DENSE_ACCURACY_LEVEL")
        if self.dynamic and level < dense.FULL:
            part = dense.lowered(part, level)
        native = super()._native(part, device)
        native.half_epilogue = self.machine.has("zvfh") and not self._set("DISABLE_FLOAT16_EPILOGUE")
        return native

    def _label(self, machine: Machine) -> str:
        return targets.label(machine)

    def _beside(self, machine: Machine) -> list[tuple[Machine, library.Unit]]:
        """On a board and under emulation."""
        return [*((machine, unit) for unit in _FURTHER), (worker.MACHINES[ARCH], worker.WorkerCode.now(ARCH))]

    def opening(self, package: Package) -> Machine | No:
        here = detect.host() if on_board() else None
        target = self.machine if here is not None or self.settings["target"] else None
        if package.fits(lambda machine: target is None or (
                here.runs(machine) if here else machine == target)):
            self.machine = here or package.code.machine
            return self.machine
        made_for = " or ".join(self._label(code.machine) for code in package.codes if code.plans)
        return No(f"it is made for {made_for}" + (
            ", which this board's processor is not" if here is not None
            else f"; the option target says {self.settings['target']}"))


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
