"""The pack of ready-made kernels: what typical graphs ask for, compiled.

In: machines. Out: the file that `codegen.object.pack` reads. What is compiled is what lowering asks for when
it is given the graphs of `networks`, so that nothing here knows a kernel; an object that serves several of
the machines is in the file once.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...codegen.machines.machine import Machine
from ...codegen.machines.questions import Questioned, agrees
from ...codegen.object import cache, pack
from ...codegen.object.build import assemble
from ...codegen.object.library import Unit
from ...codegen.runtime.turns import Turns
from ...codegen.write.spec import Spec
from ...ir import No
from ...kernels import KernelRegistryManager
from ...load import load
from ...lowering.device import Compiling
from ...lowering.package.loaded import beside
from ...optimize import optimize
from ...partition import partition
from ...processors import usable
from ...providers import CPUExecutionProvider
from ..compile import machine_named
from .networks import Network, networks

COMMON = ("avx2", "avx512", "avx512+avx512vnni+avx512vbmi+avx512vbmi2",
          "avx512+avx512vnni+avx512vbmi+avx512vbmi2+avx512bf16+avx512fp16+avxvnni", "neon+dotprod")
"""Processors by what generated code tells them apart by: Haswell and Zen, Skylake, Ice Lake and Zen 4,
Sapphire Rapids; Graviton and Ampere."""
CACHES = ((32 << 10, 1 << 20), (48 << 10, 2 << 20))
"""Bytes of the first and the second cache, by which work is divided."""


_STEP = 8
"""How far apart in the list networks are that come one after another: when time runs out, all kinds came."""


class _Asking(CPUExecutionProvider):
    """The CPU provider of a machine, which notes the kernels that parts ask for."""

    kernels = CPUExecutionProvider.kernels

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.target, self.asked = machine, dict[str, Unit]()
        self.listing = _Listing(machine, self.asked)

    def _machine(self) -> Machine | No:
        return self.target


class _Listing(Compiling):
    """No place to run and no code: kernels are noted."""

    def __init__(self, machine: Machine, asked: dict[str, Unit]) -> None:
        super().__init__(machine)
        self.asked = asked

    def addresses(self, specs: Sequence[Spec]) -> list[int]:
        self.asked.update((repr(spec), spec) for spec in specs)
        return [0] * len(specs)


def asked(model: Any, machine: Machine) -> dict[str, Unit]:
    """The kernels that a session of `model`, as `load` takes it, asks for on `machine`, by what they are."""
    provider = _Asking(machine)
    registries = KernelRegistryManager(())
    registries.register(provider.name, provider.kernels)
    provider.registries = registries
    graph = load(model)
    optimize(graph, provider.level)
    for part in partition(graph, [provider]).parts:
        if part.fused:
            native = provider._prepared(part, provider.listing)
            for plan in native.plans.values():
                if plan is not None:
                    plan.code.ready()
    return {key: unit for key, unit in provider.asked.items()
            if " at 0x" not in key and cache.own(unit.origin)}


def wanted(targets: Sequence[Machine], until: float = math.inf, processes: int | None = None
           ) -> dict[str, Unit]:
    """What the pack has for each of `targets`, which differ in their caches alone: what runs every model,
    then what `networks` ask for until a time of `time.monotonic`."""
    found: dict[str, Unit] = {repr(unit): unit for unit in (*beside(), Turns())}
    nets = list(networks())
    mixed = [net for i in range(_STEP) for net in nets[i::_STEP]]
    work = [partial(_asked, net, targets, until) for net in mixed]
    for several in _done(work, processes):
        found |= several
    return found


def _asked(net: Network, targets: Sequence[Machine], until: float) -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    if time.monotonic() < until:
        model = net()
        for target in targets:
            found |= asked(model, target)
    return found


def made(unit: Unit, machine: Machine) -> pack.Ready:
    """A unit's object, and what it depends on."""
    target = Questioned(machine)
    text = unit.text(target)
    data = assemble(text, machine)
    assert isinstance(data, bytes)
    return pack.Ready(repr(unit), machine, target.asked, data)


def build(units: Sequence[tuple[Machine, dict[str, Unit]]], until: float = math.inf,
          processes: int | None = None) -> bytes:
    """The pack of each machine's units, the least machine first, as far as time goes."""
    found: dict[str, list[pack.Ready]] = {}
    for machine, there in units:
        todo = [unit for key, unit in there.items() if not any(
            machine.runs(each.machine) and agrees(machine, each.asked) for each in found.get(key, ()))]
        for ready in _done([partial(_made, unit, machine, until) for unit in todo], processes):
            if ready is not None:
                found.setdefault(ready.unit, []).append(ready)
    return pack.packed([each for several in found.values() for each in several], cache.generators())


def _made(unit: Unit, machine: Machine, until: float) -> pack.Ready | None:
    return made(unit, machine) if time.monotonic() < until else None


_work: list[Callable[[], Any]] = []
"""What processes that are forked off do."""


def _done(work: Sequence[Callable[[], Any]], processes: int | None) -> Iterator[Any]:
    """The results of `work`, in its order, done by several processes."""
    _work[:] = work
    with multiprocessing.get_context("fork").Pool(processes or len(usable())) as pool:
        yield from pool.imap(_at, range(len(work)), 4)


def _at(i: int) -> Any:
    return _work[i]()


def compared(step: int) -> int:
    """How many objects of the installed pack are those that are made now, for this machine and every so many
    networks. Raises ValueError for one that is not."""
    here, count, there = machine_named("host"), 0, pack.opened(pack.PLACE)
    if there is None:
        return 0
    for net in list(networks())[::step]:
        for key, unit in asked(net(), here).items():
            row = there.row(key, here)
            if row is not None:
                count += 1
                if made(unit, row.machine).data != there.find({0: key}, here).get(0):
                    raise ValueError(f"{key} is made otherwise now than it was for the pack")
    return count


def machines(names: Sequence[str]) -> list[Machine]:
    """The machines of these names, "all" for `COMMON`."""
    return [machine_named(name) for each in names for name in (COMMON if each == "all" else (each,))]


def whole(names: Sequence[str], seconds: float = math.inf) -> tuple[bytes, int]:
    """The pack for the machines of these names, this one where there are none, with as many kernels as can be
    made in so many seconds, and how many there should be. Raises Fail where this machine is none that code is
    generated for."""
    start = time.monotonic()
    targets = [(machine, [replace(machine, l1=l1, l2=l2) for l1, l2 in CACHES])
               for machine in machines(names)]
    if not names:
        here = machine_named("host")
        targets = [(here, [here])]
    units = [(machine, wanted(several, start + seconds / 3)) for machine, several in targets]
    return build(units, start + seconds), sum(len(each) for _, each in units)
