"""Providers whose kernels are generated for GPUs: what CUDA's and ROCm's have in common.

In: a graph. Out: parts, as large as they can be, that a GPU computes. What has no kernel for GPUs is refused
with its reason, and stays with the providers behind this one. Neither `lowering` nor a compiler is imported
before there is a part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...codegen.triton import compile as compiling
from ...codegen.triton import targets
from ...codegen.triton.targets import Target
from ...errors import EPFail
from ...ir import No, Node
from ...kernels import (
    Kernel,
    KernelEntry,
    KernelRegistry,
    Lanes,
    OpKernelInfo,
    Part,
    Stored,
    reference,
)
from ...records import cached_property
from ..base import INTERPRETED, Capability, ExecutionProvider, GraphView, interpreted, schema_of
from . import memory, tuned
from .device import GpuDevice, shared
from .driver import DriverError
from .library import Finding, LibraryDriver
from .options import remark, text_of

if TYPE_CHECKING:
    from ...lowering.gpu.tuning import Tuner


SIZED = KernelRegistry()
"""Kernels of single nodes, whose results' sizes are only known when they run, of every provider for GPUs."""


class GpuProvider(ExecutionProvider):
    """A provider of kernels for GPUs, one for each fused part. `api`: what its targets are for; `extra`: of
    this package, that brings the compiler; `finding`: how its driver is found, None where its instances bring
    a device; `graphs`: the option to record what a run asks of the device."""

    fuses: ClassVar[bool] = True
    target_option = "target"
    api: ClassVar[str]
    extra: ClassVar[str]
    finding: ClassVar[Finding | None] = None
    graphs: ClassVar[str] = ""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.given = {name: text_of(value) for name, value in self.settings.items()}
        remark(self.name, self.options, self.settings)

    @classmethod
    def _driver(cls) -> LibraryDriver | No | None:
        return None if cls.finding is None else cls.finding.driver()

    @classmethod
    def probe(cls) -> No | None:
        """Whether there is a driver, and a device that there are kernels for."""
        driver = cls._driver()
        if driver is None:
            return None
        if isinstance(driver, No):
            return No(f"{driver.reason}; and pip install orthrus-runtime[{cls.extra}]")
        try:
            found = [driver.properties(index).target for index in range(driver.count())]
        except DriverError as error:
            return No(f"the {driver.name} driver fails: {error}")
        if any(map(targets.named, found)):
            return None
        return No(f"there are no kernels for {', '.join(sorted(set(found)))}; known are {_known(cls.api)}")

    @classmethod
    def probe_target(cls, target: str) -> No | None:
        """Whether kernels for a GPU can be compiled, which need not be here."""
        found = targets.named(target)
        if found is None or found.api != cls.api:
            return No(f"there is no target {target}; known are {_known(cls.api)}")
        missing = compiling.available()
        return missing and No(f"{missing.reason}: pip install orthrus-runtime[{cls.extra}]")

    @classmethod
    def devices(cls) -> Sequence[GpuDevice]:
        driver = cls._driver()
        if driver is None or isinstance(driver, No):
            return []
        return [shared(driver, i) for i in range(driver.count())]

    @cached_property
    def device(self) -> GpuDevice:  # type: ignore[override]
        """The device that the options name, which sessions share. Raises InvalidArgument where there is none
        of that number, and EPFail."""
        assert self.finding is not None, f"{self.name} brings no device"
        return shared(self.finding.made(), self.settings["device_id"])

    @cached_property
    def target(self) -> Target:
        """What kernels are compiled for. Raises EPFail for a GPU there are none for."""
        asked = self.settings.get("target") or self.device.target
        found = targets.named(asked)
        if found is None:
            raise EPFail(f"there are no kernels for {self.device!r}", found=asked,
                         expected=", ".join(targets.TARGETS))
        return found

    def lanes(self) -> Lanes:
        """What runs use of the device, as the options say."""
        settings = self.settings
        return Lanes(self.device, memory.allocator(self.device, settings),
                     settings.get("user_compute_stream") or None,
                     settings.get("do_copy_in_default_stream", True))

    def on_run_end(self) -> None:
        memory.run_over(self.settings)

    def lookup(self, node: Node) -> KernelEntry | No:
        """What was registered for this provider goes before what all for GPUs have."""
        found = super().lookup(node)
        if isinstance(found, No) and not interpreted()(node):
            made = SIZED.lookup(GpuProvider.__name__, node, schema_of(node))
            return found if isinstance(made, No) else made
        return found

    def claim(self, node: Node) -> No | None:
        """What there is a kernel for, as far as a node by itself says."""
        from ...lowering import claims
        from ...lowering.gpu import rules as _rules  # noqa: F401
        from ...lowering.rule_sets import GPU_RULES

        if interpreted()(node):
            return No(INTERPRETED)
        if not isinstance(self.lookup(node), No):
            return None
        return claims.alone(node, GPU_RULES)

    def get_capability(self, view: GraphView) -> list[Capability]:
        """What there are kernels for, joined into parts; computations of shapes are the host's, inside of a
        part or outside."""
        from ...lowering import claims
        from ...lowering.gpu import rules as _rules  # noqa: F401
        from ...lowering.rule_sets import GPU_RULES

        by_name = interpreted()
        derived = claims.from_sizes(view.nodes)
        registered = [n for n in view.nodes if not isinstance(
            super(GpuProvider, self).lookup(n) if n in derived else self.lookup(n), No)]
        own = set(registered)
        joined, left_out = claims.groups(view.graph, [n for n in view.nodes if not by_name(n)],
                                         lambda n: n in own, views=True, rules=GPU_RULES, deciding=True)
        left_out.update((n, INTERPRETED) for n in view.nodes if by_name(n))
        for node, reason in left_out.items():
            if node not in own:
                view.refuse(node, No(reason))
        name = self.name.removesuffix("ExecutionProvider")
        return [*(Capability(group, name) for group in joined), *(Capability([n]) for n in registered)]

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        """One kernel for a fused part; else the registered one of each node."""
        if not part.fused:
            return super().compile(part)
        from ...lowering.gpu.part import GpuPart

        made = GpuPart(part, self.device, self.target, lambda node: reference(node).run, self.settings,
                       self.strict, self.settings.get(self.graphs, False), self.tuner)
        try:
            made.prepare()
        except EPFail as error:
            if compiling.available() is None:
                raise
            return [No(f"{error.text}; pip install orthrus-runtime[{self.extra}] brings what compiles it")]
        return [Kernel(made, f"GPU kernels for {len(part.nodes)} nodes", on_host=tuple(made.deciding))]

    @cached_property
    def tuner(self) -> Tuner:
        """What knows which tiles are fastest on the device."""
        from ...lowering.gpu.tuning import Tuner

        enabled = self.settings.get("tunable_op_enable", False)
        made = Tuner(self.device, enabled, self.settings.get("tunable_op_tuning_enable", False),
                     self.settings.get("tunable_op_max_tuning_duration_ms", 0),
                     lambda results: tuned.keep(results, tuned.validators(self)))
        if enabled:
            made.load(tuned.recalled(tuned.validators(self)))
        return made

    def tuning_results(self) -> dict[str, Any]:
        return {"ep": self.name, "validators": tuned.validators(self),
                "results": copy.deepcopy(self.tuner.results)}

    def load_tuning_results(self, validators: Any, results: Any, enable: bool) -> No | None:
        found = tuned.checked(tuned.validators(self), validators, results)
        if isinstance(found, No):
            return No(f"Failed to load TuningResults: {found.reason}")
        self.tuner.enabled = self.tuner.enabled or enable
        self.tuner.load(found)
        return None

    def store(self, part: Part) -> Stored | No:
        """A part whose inputs have known sizes, for the target that the options name, or the device's."""
        from ...lowering.gpu.package import pack

        packed = pack(part, self.target, lambda node: reference(node).run, self.settings, self.strict)
        if isinstance(packed, No):
            return packed
        data, compiler = packed
        return Stored(data, compiler, self.target.arch, f"{len(part.nodes)} nodes")

    def load(self, part: Part, stored: Stored) -> Kernel | No:
        from ...lowering.gpu.package import GpuPackage

        try:
            package = GpuPackage(stored.data)
            if package.target != self.target:
                return No(f"it is made for {package.target}, and the device is {self.device.target}")
            made = package.part(part, self.device, self.strict, self.settings.get(self.graphs, False))
        except ValueError as error:
            return No(str(error))
        return Kernel(made, f"compiled ahead for {package.target}, {stored.notes}")


@SIZED.kernel("NonZero", provider=GpuProvider.__name__)
@SIZED.kernel("Compress", provider=GpuProvider.__name__)
@SIZED.kernel("NonMaxSuppression", provider=GpuProvider.__name__, since=10)
def sized(info: OpKernelInfo) -> Callable[..., Any] | No:
    """Two kernels, and between them the host, which waits for how many elements there are."""
    from ...lowering.gpu.sized import kernel

    provider = info.provider
    assert isinstance(provider, GpuProvider)
    return kernel(info, provider.device, provider.target)


def _known(api: str) -> str:
    return ", ".join(target.arch for target in targets.TARGETS.values() if target.api == api)
